"""SqlPanel: the SQL editor with highlighting, completion, errors and status."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from rich.cells import cell_len
from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.geometry import Offset
from textual.message import Message
from textual.widgets import TextArea

from odf_engine.api import Failure, Job, JobState, Query, QueryResult, Timestamp, line_and_column, table_names
from odf_engine.api.text import count_of, printable
from odf_tui.text.format import Span, ellipsize_middle, fit_width, format_duration, wrapped
from odf_tui.text.job_text import job_amounts, job_seconds, known_result
from odf_tui.text.pinned_blocks import pins_text
from odf_tui.text.sql_completion import Proposals, complete, datasets_in, highlight
from odf_tui.widgets.code_editor import CodeEditor
from odf_tui.widgets.line_view import LineScroll, LineView

_SHOWN: Final = 8
_WIDEST: Final = 44
_MAX_KIND_WIDTH: Final = 16
_ERROR_LINES: Final = 6
_POSITION: Final = re.compile(r"line (\d+), column (\d+)")


class CompletionList(LineView):
    """Lists completions at the cursor of the editor."""

    def __init__(self) -> None:
        super().__init__(id="words")
        self.active = True
        self.display = False
        self.found = Proposals(0, 0, ())
        self._widths = (0, 0)

    def show_proposals(self, proposals: Proposals, cursor: Offset) -> None:
        """Show completions below the cursor, or above it if there is no room."""
        self.found, self.cursor = proposals, 0
        self._widths = (
            min(max(cell_len(printable(word.text)) for word in proposals.words), _WIDEST),
            min(max(len(printable(word.kind)) for word in proposals.words), _MAX_KIND_WIDTH),
        )
        height = min(len(proposals.words), _SHOWN) + 2
        width = sum(self._widths) + 6 + (len(proposals.words) > _SHOWN)
        screen = self.screen.size
        above = cursor.y + 1 + height > screen.height
        left = max(min(cursor.x - (proposals.end - proposals.start) - 2, screen.width - width), 0)
        self.styles.width, self.styles.height = width, height
        self.absolute_offset = Offset(left, max(cursor.y - height, 0) if above else cursor.y + 1)
        self.display = True
        self.scroll_to(y=0, animate=False)
        self.reset()
        self.refresh(layout=True)

    def count(self) -> int:
        """Return the number of completions."""
        return len(self.found.words)

    def spans(self, index: int) -> Sequence[Span]:
        """Return the spans of a completion and its kind."""
        word = self.found.words[index]
        name, kind = self._widths
        return [
            (f" {fit_width(ellipsize_middle(printable(word.text), name), name)}  ", ""),
            (fit_width(printable(word.kind), kind) + " ", "muted"),
        ]


class QueryStatusLine(LineScroll):
    """The line between a query and its rows: the state of the query."""

    def __init__(self) -> None:
        super().__init__(id="sql-line")
        self._parts: Sequence[Span] = ()

    def show_text(self, *parts: Span) -> None:
        """Show other spans; without spans the line is empty."""
        if parts != self._parts:
            self._parts = parts
            self.refresh()

    def count(self) -> int:
        """Return the number of lines, one."""
        return 1

    def spans(self, index: int) -> Sequence[Span]:
        """Return a rule with the text in it. A text that is too long is cut at its end."""
        parts = list(self._parts)
        over = sum(cell_len(text) for text, _ in parts) + 8 - self.size.width
        if parts and over > 0:
            text, kind = parts[-1]
            parts[-1] = (fit_width(text, max(cell_len(text) - over, 0)), kind)
        rest = max(self.size.width - sum(cell_len(text) for text, _ in parts) - 8, 0)
        middle = [(" ", ""), *parts, (" ", "")] if parts else []
        return [("─", "rule"), (" SQL ", "head"), *middle, ("─" * (rest + (2 if not middle else 0)), "rule")]


class QueryErrorView(LineScroll):
    """Shows the error of a query, with its line and a mark below the position."""

    def __init__(self) -> None:
        super().__init__(id="sql-wrong")
        self.display = False
        self._failure: Failure | None = None
        self._lines: list[list[Span]] = []

    def show_failure(self, failure: Failure | None) -> None:
        """Show an error; None hides the view."""
        self._failure = failure
        self.display = failure is not None
        self._wrap()

    def on_resize(self) -> None:
        """Wrap the lines again."""
        self._wrap()

    def _wrap(self) -> None:
        failure = self._failure
        lines: list[list[Span]] = []
        if failure is not None:
            lines = [[(" ✗ ", "bad"), (printable(failure.message), "bad")]]
            lines += [[(f"   {printable(line)}", "strong")] for line in failure.excerpt]
            lines += [[("   hint ", "muted"), (printable(failure.hint), "")]] if failure.hint else []
        width = max(self.size.width or self.screen.size.width // 2, 20)
        broken = [part for line in lines for part in wrapped(line, width)]
        if broken != self._lines:
            self._lines = broken
            self.styles.height = min(len(broken), _ERROR_LINES) or 1
            self.reset()

    def count(self) -> int:
        """Return the number of lines."""
        return len(self._lines)

    def spans(self, index: int) -> Sequence[Span]:
        """Return the spans of a line."""
        return self._lines[index]


def error_position(error: Failure | None) -> tuple[int, int] | None:
    """Return the line and column of an error in a query, from 1, or None if the error has none."""
    match = _POSITION.search((error.where or "") if error is not None else "")
    return (int(match[1]), int(match[2])) if match else None


def state_spans(job: Job) -> list[tuple[str, str]]:
    """Return the state of the job of a query, for the line below the query."""
    duration = job_seconds(job, Timestamp.now())
    time = format_duration(duration) if duration is not None else ""
    match job.state:
        case JobState.queued:
            return [("queued", "muted")]
        case JobState.running:
            parts = [f"running {int(duration or 0)} s", job_amounts(job)]
            return [(" · ".join(part for part in parts if part), "busy")]
        case JobState.done:
            result = known_result(job.result, Query) or QueryResult()
            first = "the first " if result.truncated else ""
            words = f"{first}{count_of(result.rows, 'row')} · {time}"
            pins = pins_text(result.pins)
            return [(words, "good"), (f" · {pins}", "muted")] if pins else [(words, "good")]
        case JobState.failed:
            position = error_position(job.error)
            return [("failed" + (f": line {position[0]}, column {position[1]}" if position else ""), "bad")]
    return [(f"{job.state.value} after {time}" if time else job.state.value, "warn")]


class SqlEditor(CodeEditor):
    """The text area. Keys with a meaning in the panel are messages to it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+r,f5", "press_key('run')", show=False),
        Binding("tab", "press_key('complete')", show=False),
        Binding("shift+tab", "press_key('rows')", show=False),
        Binding("escape", "press_key('close')", show=False),
        Binding("ctrl+g", "press_key('stop')", show=False),
        Binding("ctrl+p", "press_key('older')", show=False),
        Binding("ctrl+o", "press_key('newer')", show=False),
        Binding("ctrl+l", "press_key('clear')", show=False),
    ]

    @dataclass
    class Pressed(Message):
        """A key of the panel was pressed: ``run``, ``complete``, ``rows``, ``close``, ``stop``, ``older``,
        ``newer`` or ``clear``; in the list of completions also ``up``, ``down`` and ``accept``.
        """

        command: str

    choosing = False  # whether the list of completions is open and receives up, down and enter

    def __init__(self, text: str) -> None:
        super().__init__(text, id="sql", tab_behavior="focus")

    def on_mount(self) -> None:
        """Move the cursor to the end of the query."""
        self.move_cursor(self.document.end)

    def styled_parts(self) -> Iterator[tuple[int, str, str]]:
        """Yield the tokens of the query."""
        return ((token.start, token.text, kind) for token, kind in highlight(self.document.text))

    def action_press_key(self, key: str) -> None:
        """Send a key to the panel."""
        self.post_message(self.Pressed(key))

    def action_cursor_up(self, select: bool = False) -> None:
        """Move up in the text, or in the list of completions."""
        if self.choosing:
            self.post_message(self.Pressed("up"))
        else:
            super().action_cursor_up(select)

    def action_cursor_down(self, select: bool = False) -> None:
        """Move down in the text, or in the list of completions."""
        if self.choosing:
            self.post_message(self.Pressed("down"))
        else:
            super().action_cursor_down(select)

    async def _on_key(self, event: events.Key) -> None:
        if event.key == "enter" and self.choosing:
            event.stop()
            event.prevent_default()
            self.post_message(self.Pressed("accept"))
        else:
            await super()._on_key(event)

    @property
    def cursor_index(self) -> int:
        """The number of characters before the cursor."""
        row, column = self.cursor_location
        return sum(len(self.document[line]) + 1 for line in range(row)) + column

    def location_of(self, at: int) -> tuple[int, int]:
        """Return the line and column of a character, both from 0."""
        line, column = line_and_column(self.text, at)
        return line - 1, column - 1


class SqlPanel(Vertical):
    """The editor with its error, status line and list of completions."""

    @dataclass
    class QuerySubmitted(Message):
        """A query is to be run."""

        sql: str

    @dataclass
    class CommandRequested(Message):
        """A command of the panel: ``edit``, ``rows``, ``close``, ``stop``, ``older`` or ``newer``."""

        command: str

    @dataclass
    class ColumnsRequested(Message):
        """The columns of these datasets are to be read."""

        names: list[str]

    def __init__(self, text: str) -> None:
        super().__init__(id="sql-panel")
        self._text = text
        self.datasets: list[str] = []
        self.selected = ""  # the dataset whose columns are proposed before a table is named
        self.columns: dict[str, list[tuple[str, str]]] = {}
        self._completes_later = False  # whether to complete once all columns are read

    def compose(self) -> ComposeResult:
        """Yield the editor, the error, the status line and the list of completions."""
        yield SqlEditor(self._text)
        yield QueryErrorView()
        yield QueryStatusLine()
        yield CompletionList()

    @property
    def editor(self) -> SqlEditor:
        """The text area."""
        return self.query_one(SqlEditor)

    @property
    def line(self) -> QueryStatusLine:
        """The status line."""
        return self.query_one(QueryStatusLine)

    @property
    def words(self) -> CompletionList:
        """The list of completions."""
        return self.query_one(CompletionList)

    def set_text(self, text: str) -> None:
        """Replace the text, and move the cursor to its end."""
        self.editor.load_text("\n".join(text.splitlines()))
        self.editor.move_cursor(self.editor.document.end)

    def show_failure(self, failure: Failure | None, position: tuple[int, int] | None = None) -> None:
        """Show an error, and move the cursor to its line and column, both from 1. None hides the error."""
        self.query_one(QueryErrorView).show_failure(failure)
        self.set_class(failure is not None, "-wrong")
        if position is not None:
            self.editor.move_cursor((position[0] - 1, position[1] - 1))

    def on_click(self, event: events.Click) -> None:
        """Focus the editor, not the data pane."""
        event.stop()
        self.post_message(self.CommandRequested("edit"))

    @on(SqlEditor.Pressed)
    def _pressed(self, message: SqlEditor.Pressed) -> None:
        message.stop()
        what = message.command
        if what in ("up", "down"):
            self.words.move("above" if what == "up" else what)
        elif what == "accept" or (what == "complete" and self.words.display):
            self._accept()
        elif what == "complete":
            self._complete()
        elif what == "close" and self.words.display:
            self._close_completions()
        elif what == "clear":
            self.set_text("")
            self.show_failure(None)
        else:
            self._close_completions()
            sql = self.editor.text
            self.post_message(self.QuerySubmitted(sql) if what == "run" else self.CommandRequested(what))

    def set_columns(self, name: str, columns: list[tuple[str, str]]) -> None:
        """Store the columns of a dataset, and complete if all columns are read now."""
        self.columns[name.casefold()] = columns
        if self._completes_later and not self._unread_datasets():
            self._completes_later = False
            self._complete()

    @on(TextArea.Changed)
    def _changed(self) -> None:
        if self.words.display:
            self._show_completions()

    @on(TextArea.SelectionChanged)
    def _cursor_moved(self) -> None:
        proposals = self.words.found
        if self.words.display and not proposals.start <= self.editor.cursor_index <= proposals.end:
            self._show_completions()

    @on(LineView.Opened)
    def _clicked(self, message: LineView.Opened) -> None:
        message.stop()
        self._accept()

    @on(LineView.Moved)
    def _word_moved(self, message: LineView.Moved) -> None:
        message.stop()

    def _complete(self) -> None:
        """Insert the only completion, or show the list of completions."""
        if unknown := self._unread_datasets():
            self._completes_later = True
            self.post_message(self.ColumnsRequested(unknown))
            return
        proposals = self._proposals()
        typed = self.editor.text[proposals.start : proposals.end]
        if not proposals.words:
            self.line.show_text(("no completions", "warn"))
        elif len(proposals.words) == 1:
            self._insert(proposals, proposals.words[0].text)
        else:
            if len(proposals.shared) > len(typed) and proposals.shared.casefold().startswith(
                typed.casefold()
            ):
                self._insert(proposals, proposals.shared)
            self._show_completions()

    def _unread_datasets(self) -> list[str]:
        """Return the datasets of the query, or else the selected one, whose columns are not read yet."""
        read = datasets_in(self.editor.text, self.datasets)
        if not read and self.selected and not table_names(self.editor.text):
            read = [self.selected]
        return [name for name in read if name.casefold() not in self.columns]

    def _proposals(self) -> Proposals:
        editor = self.editor
        return complete(editor.text, editor.cursor_index, self.datasets, self.columns, self.selected)

    def _show_completions(self) -> None:
        proposals = self._proposals()
        typed = self.editor.text[proposals.start : proposals.end]
        if not proposals.words or [word.text for word in proposals.words] == [typed]:
            self._close_completions()
            return
        self.editor.choosing = True
        self.words.show_proposals(proposals, self.editor.cursor_screen_offset)

    def _accept(self) -> None:
        proposals = self.words.found
        word = proposals.words[self.words.cursor].text if proposals.words else ""
        self._close_completions()
        if word:
            self._insert(proposals, word)

    def _insert(self, proposals: Proposals, word: str) -> None:
        editor = self.editor
        end = proposals.end
        if word.endswith("`") and editor.text[end : end + 1] == "`":
            end += 1
        editor.replace(word, editor.location_of(proposals.start), editor.location_of(end))
        editor.move_cursor(editor.location_of(proposals.start + len(word)))

    def _close_completions(self) -> None:
        self.editor.choosing = False
        self.words.display = False
