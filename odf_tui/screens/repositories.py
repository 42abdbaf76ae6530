"""The browser for the datasets of repositories: what they have, and which of it is here already."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar, Final

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Input

from odf_engine.coordinator.protocol import Job, JobState, Search
from odf_engine.errors import OdfError
from odf_engine.metadata.timestamp import Timestamp
from odf_tui.found import Answer, Found, about, answer_of, fitting
from odf_tui.humane import clip, count, elapsed, explained, plain, short_count, shorten, size
from odf_tui.jobwords import outcome, seconds_of
from odf_tui.screens.dialogs import Dialog
from odf_tui.state import DatasetRow, JobBook, known_result
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
    """Shows what repositories have, each as soon as it has answered; ends with the datasets that are wanted.

    Args:
        title: which repositories.
        book: learns of the jobs.
        rows: the datasets that are here.
        ask: makes a job that searches for each repository; returns their ids, by the repositories' names.
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
        """A repository was asked, or could not be; that is a problem then."""

        def __init__(self, name: str, answer: Answer) -> None:
            super().__init__()
            self.name, self.answer = name, answer

    def __init__(
        self,
        title: str,
        book: JobBook,
        rows: Sequence[DatasetRow],
        ask: Callable[[], Awaitable[dict[str, str]]],
        stop: Callable[[str], Awaitable[None]],
    ) -> None:
        super().__init__()
        self._title, self._book, self._rows, self._ask, self._stop = title, book, rows, ask, stop
        self._asking = False
        self._jobs: dict[str, str] = {}  # those that have not ended, by the names of repositories
        self._answers: dict[str, Answer] = {}
        self._found: list[Found] = []
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
        self.set_interval(1.0, self._tell)
        self.action_again()

    # --- The search ---

    def action_again(self) -> None:
        """Asks the repositories, unless they are being asked."""
        if self._asking or self._jobs:
            return
        self._asking = True

        async def ask() -> None:
            try:
                self._jobs = await self._ask()
            except OdfError as error:
                self.post_message(self.Answered("", Answer((), [("", explained(error))])))
            else:
                self._answers.pop("", None)
            self._asking = False
            self._tell()

        self.run_worker(ask(), group="ask")

    def _look(self) -> None:
        """Takes in what has ended."""
        for name, id in list(self._jobs.items()):
            job = self._book.jobs.get(id)
            if job is not None and job.state.final:
                del self._jobs[name]
                self._take_in(name, job)

    def _take_in(self, name: str, job: Job) -> None:
        if job.state is not JobState.done:
            hint = "" if job.error is None or not job.error.hint else f" – {job.error.hint}"
            known = self._answers.get(name, Answer()).found
            self.post_message(self.Answered(name, Answer(known, [(name, outcome(job)[0] + hint)])))
            return
        rows = self._rows

        def read() -> None:
            result = known_result(job.result, Search)
            if result is None:
                answer = Answer((), [(name, "what it answered cannot be read")])
            else:
                answer = answer_of(result, rows)
            self.post_message(self.Answered(name, answer))

        self.run_worker(read, thread=True, group="read found")

    def on_browser_answered(self, message: Answered) -> None:
        """Shows what was found, and what was not asked."""
        self._answers[message.name] = message.answer
        self._found = [each for answer in self._answers.values() for each in answer.found]
        self._list.several = len({each.repository for each in self._found}) > 1
        self._narrow()

    def _narrow(self) -> None:
        self._list.set(fitting(self._found, self.query_one(Input).value), self._nothing())
        self._tell()

    def _nothing(self) -> list[list[Span]]:
        if self._found:
            return [[(" no dataset has these words", "muted")]]
        return [] if self._jobs or self._asking else [[(" no datasets were found", "muted")]]

    def _tell(self) -> None:
        """How many there are, which repositories are asked, and which could not be."""
        lines = [*self._counts(), *self._problems()]
        view = self.query_one("#searching", Paragraphs)
        if lines != view.given:
            view.set(lines)

    def _counts(self) -> list[list[Span]]:
        number, shown, marked = len(self._found), self._list.count(), len(self._list.marked)
        words = f"{count(shown)} of {count(number)}" if shown < number else count(number)
        words += " datasets" if number != 1 else " dataset"
        words += f" · {count(marked)} marked" if marked else ""
        jobs = [(name, self._book.jobs.get(id)) for name, id in self._jobs.items()]
        running = [(name, job) for name, job in jobs if job is not None and job.state is JobState.running]
        asked = "asking" if self._asking else ""
        if jobs:
            name = f" {running[0][0]}" if running else ""
            took = seconds_of(running[0][1], Timestamp.now()) if running else None
            asked = f"asking{plain(name)}" + (f" · {elapsed(took)}" if took is not None and took >= 1 else "")
            asked += f" · {count(len(jobs))} still to answer" if len(jobs) > 1 else ""
        return [[(f" {words}", "muted"), (f" · {asked}" if asked else "", "busy")]]

    def _problems(self) -> list[list[Span]]:
        found = [each for answer in self._answers.values() for each in answer.problems]
        lines: list[list[Span]] = []
        for name, message in found[:_PROBLEMS]:
            lines.append([(f" {plain(name)}: " if name else " ", "bad"), (plain(message), "bad")])
        if len(found) > _PROBLEMS:
            lines.append([(f" and {count(len(found) - _PROBLEMS)} more cannot be asked", "bad")])
        return lines

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
        self._tell()

    def action_take(self) -> None:
        """Those that are marked, else the one under the cursor; after what was typed before."""
        line = self.query_one(Input)
        line.call_later(self.call_later, self._take)

    def _take(self) -> None:
        marked = [each for each in self._found if each.url in self._list.marked]
        if marked or self._list.found is not None:
            self._end(marked or [self._list.found])  # type: ignore[list-item]

    def action_stop(self) -> None:
        """Stops asking; what was found before stays."""
        for job in self._jobs.values():
            self.app.run_worker(self._stop(job), group="commands")

    def action_leave(self) -> None:
        """Back; nobody waits for what is being asked."""
        self._end(None)

    def _end(self, found: list[Found] | None) -> None:
        self.action_stop()
        self.dismiss(found)
