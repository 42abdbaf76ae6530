"""Browses the datasets of repositories, and marks those to pull."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import ClassVar, Final

import msgspec
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Input

from odf_engine.coordinator.protocol import Job, JobState, Search
from odf_engine.coordinator.results import FoundDataset
from odf_engine.coordinator.results import SearchResult as results_SearchResult
from odf_engine.errors import OdfError
from odf_engine.metadata.timestamp import Timestamp
from odf_tui.state.job_book import JobBook
from odf_tui.state.model import DatasetRow
from odf_tui.text.format import (
    Span,
    ellipsize_middle,
    error_with_hint,
    fit_width,
    format_bytes,
    format_count,
    format_count_short,
    format_duration,
    printable,
    right,
)
from odf_tui.text.job_text import job_outcome, job_seconds, known_result
from odf_tui.text.remotes import relation_text
from odf_tui.widgets.dialogs import Dialog
from odf_tui.widgets.line_view import LineView, WrappedLines

_HEAD: Final = 48


class RemoteDataset(msgspec.Struct, frozen=True):
    """A dataset elsewhere, as its repository tells of it.

    Attributes:
        here: the one in this workspace that is the same.
        standing: how that stands to it, in a few words; empty: it is not here.
        words: what it is found by, in small letters.
    """

    name: str
    url: str
    repository: str = ""
    id: str = ""
    kind: str = ""
    head: str = ""
    blocks: int | None = None
    records: int | None = None
    size: int | None = None
    description: str = ""
    keywords: tuple[str, ...] = ()
    here: DatasetRow | None = None
    standing: str = ""
    words: str = ""


class SearchResult(msgspec.Struct, frozen=True):
    """What a search found, and which repositories could not be asked: name and reason."""

    found: Sequence[RemoteDataset] = ()
    problems: Sequence[tuple[str, str]] = ()


def answer_of(result: results_SearchResult, rows: Iterable[DatasetRow]) -> SearchResult:
    """Return what a search found. Datasets without a name or URL are left out.

    Args:
        result: the result of the search.
        rows: the datasets of the workspace.
    """
    by_id: dict[str, DatasetRow] = {}
    by_url: dict[str, DatasetRow] = {}
    by_head: dict[str, DatasetRow] = {}
    for row in rows:
        if not row.missing:
            by_id[row.id] = by_head[row.head] = row
            by_url.update((remote.url, row) for remote in row.remotes)
    found: list[RemoteDataset] = []
    for dataset in result.datasets:
        if dataset.name and dataset.url:
            one = _found(dataset)
            same = by_id.get(one.id) or by_url.get(one.url) or by_head.get(one.head or "?")
            found.append(_with_ours(one, same))
    problems = [(each.repository or "?", each.message or "it cannot be asked") for each in result.problems]
    return SearchResult(found, problems)


def _found(dataset: FoundDataset) -> RemoteDataset:
    words = (dataset.name, dataset.repository, dataset.id or "", dataset.description, *dataset.keywords)
    return RemoteDataset(
        name=dataset.name,
        url=dataset.url,
        repository=dataset.repository,
        id=dataset.id or "",
        kind=dataset.kind or "",
        head=dataset.head or "",
        blocks=dataset.blocks,
        records=dataset.records,
        size=dataset.size,
        description=dataset.description,
        keywords=dataset.keywords,
        words=" ".join(words).lower(),
    )


def _with_ours(found: RemoteDataset, row: DatasetRow | None) -> RemoteDataset:
    if row is None:
        return found
    remote = next((each for each in row.remotes if each.url == found.url), None)
    if found.head and found.head == row.head:
        words = "here, the same"
    elif remote is not None and remote.relation and remote.their_head == found.head:
        words = "here, " + ("diverged" if remote.relation == "diverged" else relation_text(remote))
    elif found.head and found.blocks is not None and found.blocks > row.blocks:
        words = f"here, {format_count(found.blocks - row.blocks)} blocks less"
    elif found.head:
        words = "here, another head"
    else:
        words = "here"
    return msgspec.structs.replace(found, here=row, standing=words)


def matching_words(found: Sequence[RemoteDataset], text: str) -> list[RemoteDataset]:
    """Those that have all of some words in them."""
    wanted = text.lower().split()
    return [each for each in found if all(word in each.words for word in wanted)]


def remote_dataset_lines(found: RemoteDataset) -> list[list[Span]]:
    """What there is to say of one: some lines, the most important first."""
    facts = [
        found.kind.lower(),
        "" if found.records is None else f"{format_count(found.records)} rows",
        "" if found.size is None else format_bytes(found.size),
        "" if found.blocks is None else f"{format_count(found.blocks)} blocks",
    ]
    told = printable(" · ".join(filter(None, facts)))
    lines: list[list[Span]] = []
    if told or found.here is not None:
        as_name = "" if found.here is None else f"{found.standing}, as {printable(found.here.name)}"
        lines.append([(" ", ""), (told + ("  " if told and as_name else ""), ""), (as_name, "good")])
    if found.description:
        lines.append([(" ", ""), (printable(found.description.partition("\n")[0]), "")])
    if found.keywords:
        lines.append([(" ", ""), (printable(", ".join(found.keywords)), "muted")])
    lines.append([(" at    ", "muted"), (printable(found.url), "")])
    if found.head:
        lines.append([(" head  ", "muted"), (printable(ellipsize_middle(found.head, _HEAD)), "muted")])
    return lines


_LOOK_SECONDS: Final = 0.1
_ROWS, _SIZE, _HERE = 7, 9, 20
_WIDE: Final = 90
_PLACE: Final = 16
_ABOUT: Final = 5
_PROBLEMS: Final = 3


class RemoteDatasetList(LineView):
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
        self.shown: Sequence[RemoteDataset] = ()
        self.marked: set[str] = set()
        self.several = False
        self.nothing: Sequence[Sequence[Span]] = ()

    def set(self, shown: Sequence[RemoteDataset], nothing: Sequence[Sequence[Span]]) -> None:
        """Shows these, or why there are none; the cursor stays on what it was on."""
        before = self.found
        self.shown, self.nothing = shown, nothing
        self.cursor = next((at for at, each in enumerate(shown) if before and each.url == before.url), 0)
        self.reset()
        self.show(self.cursor)
        self.post_message(self.Moved(self))

    @property
    def found(self) -> RemoteDataset | None:
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
        amounts = f"{right('rows', _ROWS)}{right('size', _SIZE)}"
        text = f"    {fit_width('name', name)}{amounts}  {fit_width('here', here)}"
        return [(text + (f"  {fit_width('repository', place)}" if place else ""), "head")]

    def spans(self, index: int) -> Sequence[Span]:
        """A dataset."""
        found = self.shown[index]
        name, place, here = self._widths
        rows = "" if found.records is None else format_count_short(found.records)
        derivative = found.kind.lower() == "derivative"
        glyph = "◆" if derivative else "◇" if found.kind else " "
        return [
            ("+ " if found.url in self.marked else "  ", "good"),
            (f"{glyph} ", "name" if derivative else "muted"),
            (
                fit_width(ellipsize_middle(printable(found.name), name), name),
                "strong" if found.url in self.marked else "",
            ),
            (right(rows, _ROWS), ""),
            (right(format_bytes(found.size), _SIZE), "muted"),
            (f"  {fit_width(found.standing, here)}", "good"),
            (f"  {fit_width(printable(found.repository), place)}" if place else "", "muted"),
        ]

    def empty(self) -> Sequence[Sequence[Span]]:
        """Why there are none."""
        return self.nothing


class RepositoryBrowser(Dialog[list[RemoteDataset]]):
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

        def __init__(self, name: str, answer: SearchResult) -> None:
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
        self._answers: dict[str, SearchResult] = {}
        self._found: list[RemoteDataset] = []
        self._list = RemoteDatasetList()

    def compose(self) -> ComposeResult:
        """A line to type in, the list, what is known of one, and how the search goes."""
        with Vertical(classes="dialog browser") as box:
            box.border_title = Content(printable(self._title))
            box.border_subtitle = Content("⏎ pulls · + marks · ^r again · ^g stops · esc back")
            line = Input(placeholder="words of names, descriptions and keywords", compact=True)
            line.cursor_blink = False
            yield line
            yield self._list
            yield WrappedLines(id="about-found")
            yield WrappedLines(id="searching")

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
                self.post_message(self.Answered("", SearchResult((), [("", error_with_hint(error))])))
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
            known = self._answers.get(name, SearchResult()).found
            self.post_message(self.Answered(name, SearchResult(known, [(name, job_outcome(job)[0] + hint)])))
            return
        rows = self._rows

        def read() -> None:
            result = known_result(job.result, Search)
            if result is None:
                answer = SearchResult((), [(name, "what it answered cannot be read")])
            else:
                answer = answer_of(result, rows)
            self.post_message(self.Answered(name, answer))

        self.run_worker(read, thread=True, group="read found")

    @on(Answered)
    def _show_answer(self, message: Answered) -> None:
        """Shows what was found, and what was not asked."""
        self._answers[message.name] = message.answer
        self._found = [each for answer in self._answers.values() for each in answer.found]
        self._list.several = len({each.repository for each in self._found}) > 1
        self._narrow()

    def _narrow(self) -> None:
        self._list.set(matching_words(self._found, self.query_one(Input).value), self._nothing())
        self._tell()

    def _nothing(self) -> list[list[Span]]:
        if self._found:
            return [[(" no dataset has these words", "muted")]]
        return [] if self._jobs or self._asking else [[(" no datasets were found", "muted")]]

    def _tell(self) -> None:
        """How many there are, which repositories are asked, and which could not be."""
        lines = [*self._counts(), *self._problems()]
        view = self.query_one("#searching", WrappedLines)
        if lines != view.source_lines:
            view.set(lines)

    def _counts(self) -> list[list[Span]]:
        number, shown, marked = len(self._found), self._list.count(), len(self._list.marked)
        words = f"{format_count(shown)} of {format_count(number)}" if shown < number else format_count(number)
        words += " datasets" if number != 1 else " dataset"
        words += f" · {format_count(marked)} marked" if marked else ""
        jobs = [(name, self._book.jobs.get(id)) for name, id in self._jobs.items()]
        running = [(name, job) for name, job in jobs if job is not None and job.state is JobState.running]
        asked = "asking" if self._asking else ""
        if jobs:
            name = f" {running[0][0]}" if running else ""
            took = job_seconds(running[0][1], Timestamp.now()) if running else None
            asked = f"asking{printable(name)}" + (
                f" · {format_duration(took)}" if took is not None and took >= 1 else ""
            )
            asked += f" · {format_count(len(jobs))} still to answer" if len(jobs) > 1 else ""
        return [[(f" {words}", "muted"), (f" · {asked}" if asked else "", "busy")]]

    def _problems(self) -> list[list[Span]]:
        found = [each for answer in self._answers.values() for each in answer.problems]
        lines: list[list[Span]] = []
        for name, message in found[:_PROBLEMS]:
            lines.append([(f" {printable(name)}: " if name else " ", "bad"), (printable(message), "bad")])
        if len(found) > _PROBLEMS:
            lines.append([(f" and {format_count(len(found) - _PROBLEMS)} more cannot be asked", "bad")])
        return lines

    # --- What is done ---

    def on_input_changed(self) -> None:
        """Narrows the list."""
        self._narrow()

    @on(LineView.Moved, "#found")
    def _moved(self) -> None:
        found = self._list.found
        self.query_one("#about-found", WrappedLines).set(
            [] if found is None else remote_dataset_lines(found)[:_ABOUT]
        )

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

    def _end(self, found: list[RemoteDataset] | None) -> None:
        self.action_stop()
        self.dismiss(found)
