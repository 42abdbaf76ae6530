"""The browser for the datasets of repositories: what they have, and which of it is here already."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar, Final

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Input

from odf_engine.coordinator.protocol import JobState
from odf_engine.errors import OdfError
from odf_engine.metadata.timestamp import Timestamp
from odf_tui.found import Answer, Found, about, answer_of, fitting
from odf_tui.humane import clip, count, explained, plain, short_count, shorten, size
from odf_tui.jobwords import doing, outcome
from odf_tui.screens.dialogs import Dialog
from odf_tui.state import DatasetRow, JobBook
from odf_tui.widgets.lines import LineView, Paragraphs, Span, right

_LOOK_SECONDS: Final = 0.1
_ROWS, _SIZE, _HERE = 7, 9, 20
_WIDE: Final = 90
_PLACE: Final = 16
_ABOUT: Final = 5
_PROBLEMS: Final = 3


class FoundList(LineView):
    """The datasets that were found, those that are marked with a sign.

    Attributes:
        shown: those that fit what was typed.
        marked: URLs.
        several: whether they are of several repositories.
    """

    headed = True

    def __init__(self) -> None:
        super().__init__(id="found")
        self.active = True
        self.shown: Sequence[Found] = ()
        self.marked: set[str] = set()
        self.several = False
        self.nothing: Sequence[Sequence[Span]] = ()

    def set(self, shown: Sequence[Found], nothing: Sequence[Sequence[Span]]) -> None:
        """Shows these, or why there are none; the cursor stays on what it was on."""
        before = self.found
        self.shown, self.nothing = shown, nothing
        self.cursor = next((at for at, each in enumerate(shown) if before and each.url == before.url), 0)
        self.reset()
        self.show(self.cursor)
        self.post_message(self.Moved(self))

    @property
    def found(self) -> Found | None:
        """The one under the cursor."""
        return self.shown[self.cursor] if self.cursor < len(self.shown) else None

    def mark(self) -> None:
        """Marks the one under the cursor, or takes that back."""
        if (found := self.found) is not None:
            self.marked ^= {found.url}
            self.refresh_line(self.cursor + 1)

    def count(self) -> int:
        """How many."""
        return len(self.shown)

    @property
    def _widths(self) -> tuple[int, int, int]:
        """Cells for the name, the repository, and how it stands."""
        place = _PLACE if self.several and self.room.width >= _WIDE else 0
        name = max(self.room.width - 4 - _ROWS - _SIZE - _HERE - place - 4, 12)
        return name, place, _HERE

    def header(self) -> Sequence[Span]:
        """The names of the columns."""
        name, place, here = self._widths
        text = f"    {clip('name', name)}{right('rows', _ROWS)}{right('size', _SIZE)}  {clip('here', here)}"
        return [(text + (f"  {clip('repository', place)}" if place else ""), "head")]

    def spans(self, index: int) -> Sequence[Span]:
        """A dataset."""
        found = self.shown[index]
        name, place, here = self._widths
        rows = "" if found.records is None else short_count(found.records)
        derivative = found.kind.lower() == "derivative"
        glyph = "◆" if derivative else "◇" if found.kind else " "
        return [
            ("+ " if found.url in self.marked else "  ", "good"),
            (f"{glyph} ", "name" if derivative else "muted"),
            (clip(shorten(plain(found.name), name), name), "strong" if found.url in self.marked else ""),
            (right(rows, _ROWS), ""),
            (right(size(found.size), _SIZE), "muted"),
            (f"  {clip(found.standing, here)}", "good"),
            (f"  {clip(plain(found.repository), place)}" if place else "", "muted"),
        ]

    def empty(self) -> Sequence[Sequence[Span]]:
        """Why there are none."""
        return self.nothing


class Browser(Dialog[list[Found]]):
    """Shows what repositories have; ends with those datasets that are wanted.

    Args:
        title: which repositories.
        book: learns of the job.
        rows: the datasets that are here.
        ask: makes a job that searches; returns its id.
        stop: stops a job.
    """

    AUTO_FOCUS = "Input"

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "take", "pull the marked ones, or this one", show=False, priority=True),
        Binding("plus", "mark", "mark this one, or not", show=False, priority=True),
        Binding("ctrl+r", "again", "ask the repositories again", show=False, priority=True),
        Binding("ctrl+g", "stop", "stop asking", show=False, priority=True),
        Binding("escape", "leave", "back", show=False, priority=True),
        Binding("down,ctrl+n", "move('down')", show=False, priority=True),
        Binding("up,ctrl+p", "move('above')", show=False, priority=True),
        Binding("pagedown", "move('page_down')", show=False, priority=True),
        Binding("pageup", "move('page_up')", show=False, priority=True),
    ]

    class Answered(Message):
        """The repositories were asked, or could not be."""

        def __init__(self, answer: Answer, error: str = "") -> None:
            super().__init__()
            self.answer, self.error = answer, error

    def __init__(
        self,
        title: str,
        book: JobBook,
        rows: Sequence[DatasetRow],
        ask: Callable[[], Awaitable[str]],
        stop: Callable[[str], Awaitable[None]],
    ) -> None:
        super().__init__()
        self._title, self._book, self._rows, self._ask, self._stop = title, book, rows, ask, stop
        self._job = ""
        self._answer = Answer()
        self._said = ""
        self._list = FoundList()

    def compose(self) -> ComposeResult:
        """A line to type in, the list, what is known of one, and how the search goes."""
        with Vertical(classes="dialog browser") as box:
            box.border_title = Content(plain(self._title))
            box.border_subtitle = Content("⏎ pulls · + marks · ^r again · ^g stops · esc back")
            line = Input(placeholder="words of names, descriptions and keywords", compact=True)
            line.cursor_blink = False
            yield line
            yield self._list
            yield Paragraphs(id="about-found")
            yield Paragraphs(id="searching")

    def on_mount(self) -> None:
        """Asks."""
        self.set_interval(_LOOK_SECONDS, self._look)
        self.action_again()

    # --- The search ---

    def action_again(self) -> None:
        """Asks the repositories, unless they are being asked."""
        if self._job:
            return
        self._job = "?"

        async def ask() -> None:
            try:
                self._job = await self._ask()
            except OdfError as error:
                self._job = ""
                self.post_message(self.Answered(Answer(), explained(error)))

        self.run_worker(ask(), group="ask")

    def _look(self) -> None:
        """Whether it has ended; what it does is told when that is something else."""
        job = self._book.jobs.get(self._job)
        if job is None or not job.state.final:
            if self._job:
                self._tell("asking" if job is None else doing(job, Timestamp.now()))
            return
        self._job = ""
        if job.state is JobState.done:
            text, rows = job.result or "{}", self._rows

            def read() -> None:
                try:
                    message = self.Answered(answer_of(json.loads(text), rows))
                except (ValueError, TypeError, AttributeError):
                    message = self.Answered(Answer(), "what was found cannot be read")
                self.post_message(message)

            self.run_worker(read, thread=True, group="read found")
        else:
            error = "" if job.error is None or not job.error.hint else f" – {job.error.hint}"
            self.post_message(self.Answered(self._answer, f"{outcome(job)[0]}{error}"))

    def on_browser_answered(self, message: Answered) -> None:
        """Shows what was found, and what was not asked."""
        self._answer = message.answer
        self._list.several = len({each.repository for each in message.answer.found}) > 1
        self._error = message.error
        self._narrow()

    _error = ""

    def _tell(self, words: str) -> None:
        if words != self._said:
            self._said = words
            self.query_one("#searching", Paragraphs).set([[(f" {plain(words)}", "busy")]])

    def _narrow(self) -> None:
        shown = fitting(self._answer.found, self.query_one(Input).value)
        self._list.set(shown, self._nothing())
        if not self._job:
            self._tell_result(len(shown))

    def _nothing(self) -> list[list[Span]]:
        if self._job:
            return []
        if self._answer.found:
            return [[(" no dataset has these words", "muted")]]
        if self._error or self._answer.problems:
            return [[(" nothing was found", "muted")]]
        return [[(" there are no datasets", "muted")]]

    def _tell_result(self, shown: int) -> None:
        """How many there are, and which repositories could not be asked."""
        number, marked = len(self._answer.found), len(self._list.marked)
        words = f"{count(shown)} of {count(number)}" if shown < number else count(number)
        words += " datasets" if number != 1 else " dataset"
        words += f" · {count(marked)} marked" if marked else ""
        lines: list[list[Span]] = [[(f" {words}", "muted")]]
        if self._error:
            lines.append([(" ", ""), (plain(self._error), "bad")])
        problems = self._answer.problems
        for name, message in problems[:_PROBLEMS]:
            lines.append([(f" {plain(name)}: ", "bad"), (plain(message), "bad")])
        if len(problems) > _PROBLEMS:
            lines.append([(f" and {count(len(problems) - _PROBLEMS)} more cannot be asked", "bad")])
        self._said = ""
        self.query_one("#searching", Paragraphs).set(lines)

    # --- What is done ---

    def on_input_changed(self) -> None:
        """Narrows the list."""
        self._narrow()

    @on(LineView.Moved, "#found")
    def _moved(self) -> None:
        found = self._list.found
        self.query_one("#about-found", Paragraphs).set([] if found is None else about(found)[:_ABOUT])

    def on_line_view_opened(self) -> None:
        """Clicked twice."""
        self.action_take()

    def action_move(self, move: str) -> None:
        """Moves the cursor."""
        self._list.move(move)

    def action_mark(self) -> None:
        """Marks, and goes on to the next."""
        self._list.mark()
        self._list.move("down")
        if not self._job:
            self._tell_result(self._list.count())

    def action_take(self) -> None:
        """Those that are marked, else the one under the cursor; after what was typed before."""
        line = self.query_one(Input)
        line.call_later(self.call_later, self._take)

    def _take(self) -> None:
        marked = [each for each in self._answer.found if each.url in self._list.marked]
        if marked or self._list.found is not None:
            self._end(marked or [self._list.found])  # type: ignore[list-item]

    def action_stop(self) -> None:
        """Stops asking; what was found before stays."""
        if self._job not in ("", "?"):
            self.app.run_worker(self._stop(self._job), group="commands")

    def action_leave(self) -> None:
        """Back; nobody waits for what is being asked."""
        self._end(None)

    def _end(self, found: list[Found] | None) -> None:
        self.action_stop()
        self.dismiss(found)
