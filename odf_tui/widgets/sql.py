"""The editor of queries over pane 3: text, words that can come next, and what became of the query.

Imported when it is opened first: the first paint does not need it.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, ClassVar, Final, cast

from rich.style import Style
from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import TextArea
from textual.widgets.text_area import TextAreaTheme

from odf_engine.coordinator.protocol import Failure
from odf_engine.sql.query_text import line_and_column
from odf_tui.sql_words import Proposals, datasets_in, kinds, proposals
from odf_tui.widgets.lines import LineView
from odf_tui.widgets.sql_parts import SqlLine, WordList, Wrong

if TYPE_CHECKING:
    from odf_tui.workstation import Workstation

_KINDS: Final = ("key", "good", "title", "muted")


class SqlEditor(TextArea):
    """The text. Keys that mean something here are messages to the panel."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+r,f5", "say('run')", show=False),
        Binding("tab", "say('complete')", show=False),
        Binding("shift+tab", "say('rows')", show=False),
        Binding("escape", "say('close')", show=False),
        Binding("ctrl+g", "say('stop')", show=False),
        Binding("ctrl+p", "say('older')", show=False),
        Binding("ctrl+o", "say('newer')", show=False),
        Binding("ctrl+l", "say('clear')", show=False),
    ]

    @dataclass
    class Pressed(Message):
        """A key of the panel: ``run``, ``complete``, ``rows``, ``close``, ``stop``, ``older``, ``newer``,
        ``clear``; with the list open ``up``, ``down`` and ``take``."""

        what: str

    choosing = False  # whether the list of words is open, which up, down and enter belong to then

    def __init__(self, text: str) -> None:
        super().__init__(text, id="sql", compact=True, tab_behavior="focus", highlight_cursor_line=False)
        self.cursor_blink = False

    def on_mount(self) -> None:
        """Takes the colours of the workstation."""
        self.dress()
        self.move_cursor(self.document.end)

    def dress(self) -> None:
        """Takes the colours of the theme."""
        palette = cast("Workstation", self.app).palette
        self.register_theme(
            TextAreaTheme(
                "odf",
                base_style=palette["base"],
                cursor_style=palette["base"] + Style(reverse=True),
                selection_style=palette["cursor"],
                bracket_matching_style=Style(bold=True, underline=True),
                syntax_styles={name: palette[name] for name in _KINDS},
            )
        )
        self.theme = "odf"
        self._build_highlight_map()
        self.refresh()

    def action_say(self, what: str) -> None:
        """Tells the panel of a key."""
        self.post_message(self.Pressed(what))

    def action_cursor_up(self, select: bool = False) -> None:
        """Up in the text, or in the list of words."""
        if self.choosing:
            self.post_message(self.Pressed("up"))
        else:
            super().action_cursor_up(select)

    def action_cursor_down(self, select: bool = False) -> None:
        """Down in the text, or in the list of words."""
        if self.choosing:
            self.post_message(self.Pressed("down"))
        else:
            super().action_cursor_down(select)

    async def _on_key(self, event: events.Key) -> None:
        if event.key == "enter" and self.choosing:
            event.stop()
            event.prevent_default()
            self.post_message(self.Pressed("take"))
        else:
            await super()._on_key(event)

    # --- Places in the text, as numbers of characters ---

    @property
    def at(self) -> int:
        """How many characters are before the cursor."""
        row, column = self.cursor_location
        return sum(len(self.document[each]) + 1 for each in range(row)) + column

    def location_of(self, at: int) -> tuple[int, int]:
        """The line and column, from 0, of a character."""
        line, column = line_and_column(self.text, at)
        return line - 1, column - 1

    # --- Words in their colours ---

    def _build_highlight_map(self) -> None:
        # Textual asks a syntax tree here, which takes long to import; words are enough for a query.
        self._line_cache.clear()
        self._highlights.clear()
        text = self.document.text
        starts = [0, *accumulate(len(line) + 1 for line in text.split("\n"))]
        for token, kind in kinds(text):
            line = bisect_right(starts, token.start) - 1
            column = token.start - starts[line]
            for number, part in enumerate(token.text.split("\n"), line):
                start = len(self.document[number][:column].encode())
                self._highlights[number].append((start, start + len(part.encode()), kind))
                column = 0


class SqlPanel(Vertical):
    """Editor, error and line of state."""

    @dataclass
    class Asked(Message):
        """A query is to be run."""

        sql: str

    @dataclass
    class Wanted(Message):
        """The panel asks for something: ``edit``, ``rows``, ``close``, ``stop``, ``older``, ``newer``."""

        what: str

    @dataclass
    class ColumnsWanted(Message):
        """The columns of these datasets are not known yet."""

        names: list[str]

    def __init__(self, text: str) -> None:
        super().__init__(id="sql-panel")
        self._text = text
        self.datasets: list[str] = []
        self.columns: dict[str, list[tuple[str, str]]] = {}
        self._awaited = False  # whether words are to be shown as soon as all columns are known

    def compose(self) -> ComposeResult:
        """Text, list, error, line."""
        yield SqlEditor(self._text)
        yield Wrong()
        yield SqlLine()
        yield WordList()

    @property
    def editor(self) -> SqlEditor:
        """The text."""
        return self.query_one(SqlEditor)

    @property
    def line(self) -> SqlLine:
        """How it is."""
        return self.query_one(SqlLine)

    @property
    def words(self) -> WordList:
        """The list of words."""
        return self.query_one(WordList)

    def write(self, text: str) -> None:
        """Puts another text there, with the cursor at its end."""
        self.editor.load_text("\n".join(text.splitlines()))
        self.editor.move_cursor(self.editor.document.end)

    def show_failure(self, failure: Failure | None, place: tuple[int, int] | None = None) -> None:
        """Shows an error, and goes to its line and column, from 1."""
        self.query_one(Wrong).show_failure(failure)
        self.set_class(failure is not None, "-wrong")
        if place is not None:
            self.editor.move_cursor((place[0] - 1, place[1] - 1))

    def on_click(self, event: events.Click) -> None:
        """The mouse goes on writing; the pane itself would take the keys."""
        event.stop()
        self.post_message(self.Wanted("edit"))

    # --- Keys ---

    @on(SqlEditor.Pressed)
    def _pressed(self, message: SqlEditor.Pressed) -> None:
        message.stop()
        what = message.what
        if what in ("up", "down"):
            self.words.move("above" if what == "up" else what)
        elif what == "take" or (what == "complete" and self.words.display):
            self._take()
        elif what == "complete":
            self._complete()
        elif what == "close" and self.words.display:
            self._close_words()
        elif what == "clear":
            self.write("")
            self.show_failure(None)
        else:
            self._close_words()
            sql = self.editor.text
            self.post_message(self.Asked(sql) if what == "run" else self.Wanted(what))

    # --- Words ---

    def know_columns(self, name: str, columns: list[tuple[str, str]]) -> None:
        """The columns of a dataset are known now."""
        self.columns[name.casefold()] = columns
        if self._awaited and not self._unknown():
            self._awaited = False
            self._complete()

    @on(TextArea.Changed)
    def _changed(self) -> None:
        if self.words.display:
            self._offer()

    @on(TextArea.SelectionChanged)
    def _cursor_moved(self) -> None:
        found = self.words.found
        if self.words.display and not found.start <= self.editor.at <= found.end:
            self._offer()

    @on(LineView.Opened)
    def _clicked(self, message: LineView.Opened) -> None:
        message.stop()
        self._take()

    @on(LineView.Moved)
    def _word_moved(self, message: LineView.Moved) -> None:
        message.stop()

    def _complete(self) -> None:
        """Writes what can only be meant; shows a list where there is a choice."""
        if unknown := self._unknown():
            self._awaited = True
            self.post_message(self.ColumnsWanted(unknown))
            return
        found = self._found()
        typed = self.editor.text[found.start : found.end]
        if not found.words:
            self.line.tell(("no word is known that could come here", "warn"))
        elif len(found.words) == 1:
            self._put(found, found.words[0].text)
        else:
            if len(found.shared) > len(typed) and found.shared.casefold().startswith(typed.casefold()):
                self._put(found, found.shared)
            self._offer()

    def _unknown(self) -> list[str]:
        """The datasets that the query reads and whose columns are not known yet."""
        read = datasets_in(self.editor.text, self.datasets)
        return [name for name in read if name.casefold() not in self.columns]

    def _found(self) -> Proposals:
        return proposals(self.editor.text, self.editor.at, self.datasets, self.columns)

    def _offer(self) -> None:
        found = self._found()
        typed = self.editor.text[found.start : found.end]
        if not found.words or [word.text for word in found.words] == [typed]:
            self._close_words()
            return
        self.editor.choosing = True
        self.words.offer(found, self.editor.cursor_screen_offset)

    def _take(self) -> None:
        found = self.words.found
        word = found.words[self.words.cursor].text if found.words else ""
        self._close_words()
        if word:
            self._put(found, word)

    def _put(self, found: Proposals, word: str) -> None:
        editor = self.editor
        end = found.end
        if word.endswith("`") and editor.text[end : end + 1] == "`":
            end += 1
        editor.replace(word, editor.location_of(found.start), editor.location_of(end))
        editor.move_cursor(editor.location_of(found.start + len(word)))

    def _close_words(self) -> None:
        self.editor.choosing = False
        self.words.display = False
