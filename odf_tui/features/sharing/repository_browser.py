"""RepositoryBrowser, a dialog that lists the datasets of repositories and selects those to import."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import ClassVar, Final, NamedTuple

import msgspec
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Input

from odf_engine.api import FoundDataset, Job, JobState, Search, SearchResult, Timestamp
from odf_engine.api.model import DatasetRow
from odf_engine.api.text import count_of, format_bytes, format_count, printable
from odf_engine.errors import OdfError
from odf_tui.state.job_book import JobBook
from odf_tui.text.format import (
    Span,
    dataset_glyph,
    ellipsize_middle,
    error_with_hint,
    fit_width,
    format_count_short,
    format_duration,
    right,
    shorten_name,
)
from odf_tui.text.job_text import job_outcome, job_seconds, known_result
from odf_tui.text.remotes import relation_text
from odf_tui.widgets.dialogs import Dialog
from odf_tui.widgets.line_view import LineView, WrappedLines

_HASH_WIDTH: Final = 48


class ListedDataset(msgspec.Struct, frozen=True):
    """A dataset of a repository, as the repository describes it.

    Attributes:
        local: the same dataset in the workspace, or None if absent.
        local_relation: relation of the two in a few words, or "" without ``local``.
        search_text: the text that the filter searches, in lower case.
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
    local: DatasetRow | None = None
    local_relation: str = ""
    search_text: str = ""


class ChosenDatasets(NamedTuple):
    """The datasets to import, and whether they are verified afterwards."""

    datasets: Sequence[ListedDataset]
    verifies: bool = False


class SearchListing(msgspec.Struct, frozen=True):
    """The datasets that a search found, and the repositories that failed.

    Attributes:
        found: the datasets.
        problems: name of the repository and message, for each that failed.
    """

    found: Sequence[ListedDataset] = ()
    problems: Sequence[tuple[str, str]] = ()


def match_search_result(result: SearchResult, rows: Iterable[DatasetRow]) -> SearchListing:
    """Match the datasets of a search with the workspace's: by id, URL or head.

    Datasets without a name or URL are omitted.

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
    listed_datasets: list[ListedDataset] = []
    for dataset in result.datasets:
        if dataset.name and dataset.url:
            remote = _remote_dataset(dataset)
            local = by_id.get(remote.id) or by_url.get(remote.url) or by_head.get(remote.head or "?")
            listed_datasets.append(_match_dataset(remote, local))
    problems = [
        (problem.repository or "?", problem.message or "search failed") for problem in result.problems
    ]
    return SearchListing(listed_datasets, problems)


def _remote_dataset(dataset: FoundDataset) -> ListedDataset:
    words = (dataset.name, dataset.repository, dataset.id or "", dataset.description, *dataset.keywords)
    return ListedDataset(
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
        search_text=" ".join(words).lower(),
    )


def _match_dataset(dataset: ListedDataset, row: DatasetRow | None) -> ListedDataset:
    if row is None:
        return dataset
    remote = next((candidate for candidate in row.remotes if candidate.url == dataset.url), None)
    if dataset.head and dataset.head == row.head:
        words = "up to date"
    elif remote is not None and remote.relation and remote.their_head == dataset.head:
        words = "diverged" if remote.relation == "diverged" else relation_text(remote)
    elif dataset.head and dataset.blocks is not None and dataset.blocks > row.blocks:
        words = f"{count_of(dataset.blocks - row.blocks, 'block')} behind"
    elif dataset.head:
        words = "another head"
    else:
        words = "imported"
    return msgspec.structs.replace(dataset, local=row, local_relation=words)


def filter_by_words(datasets: Sequence[ListedDataset], text: str) -> list[ListedDataset]:
    """Return the datasets that contain all words of a text."""
    words = text.lower().split()
    return [dataset for dataset in datasets if all(word in dataset.search_text for word in words)]


def remote_dataset_lines(listed: ListedDataset) -> list[list[Span]]:
    """Return lines that describe a dataset, the most important first."""
    facts = [
        listed.kind.lower(),
        "" if listed.records is None else count_of(listed.records, "row"),
        "" if listed.size is None else format_bytes(listed.size),
        "" if listed.blocks is None else count_of(listed.blocks, "block"),
    ]
    summary = printable(" · ".join(filter(None, facts)))
    lines: list[list[Span]] = []
    if summary or listed.local is not None:
        as_name = ""
        if listed.local is not None:
            as_name = f"{listed.local_relation}, in workspace as {printable(listed.local.name)}"
        lines.append([(" ", ""), (summary + ("  " if summary and as_name else ""), ""), (as_name, "good")])
    if listed.description:
        lines.append([(" ", ""), (printable(listed.description.partition("\n")[0]), "")])
    if listed.keywords:
        lines.append([(" ", ""), (printable(", ".join(listed.keywords)), "muted")])
    lines.append([(" at    ", "muted"), (printable(listed.url), "")])
    if listed.head:
        lines.append([(" head  ", "muted"), (printable(ellipsize_middle(listed.head, _HASH_WIDTH)), "muted")])
    return lines


_POLL_SECONDS: Final = 0.1
_ROWS_WIDTH, _SIZE_WIDTH, _RELATION_WIDTH = 7, 9, 20
_MIN_REPOSITORY_ROOM: Final = 90
_REPOSITORY_WIDTH: Final = 16
_DETAIL_LINES: Final = 5
_PROBLEM_LINES: Final = 3


class RemoteDatasetList(LineView):
    """A list of datasets of repositories. Datasets can be marked.

    Attributes:
        shown: the datasets that pass the filter.
        marked: URLs of the marked datasets.
        shows_repository: whether a column shows the repository.
        empty_lines: the lines of an empty list.
    """

    headed = True

    def __init__(self) -> None:
        super().__init__(id="found")
        self.active = True
        self.shown: Sequence[ListedDataset] = ()
        self.marked: set[str] = set()
        self.shows_repository = False
        self.empty_lines: Sequence[Sequence[Span]] = ()

    def set_datasets(self, shown: Sequence[ListedDataset], empty_lines: Sequence[Sequence[Span]]) -> None:
        """Replace the datasets. The cursor stays on its dataset."""
        before = self.selected
        self.shown, self.empty_lines = shown, empty_lines
        self.cursor = next((at for at, item in enumerate(shown) if before and item.url == before.url), 0)
        self.reset()
        self.show(self.cursor)
        self.post_message(self.Moved(self))

    @property
    def selected(self) -> ListedDataset | None:
        """The dataset under the cursor, or None if the list is empty."""
        return self.shown[self.cursor] if self.cursor < len(self.shown) else None

    def toggle_mark(self) -> None:
        """Mark the dataset under the cursor, or remove its mark."""
        if (dataset := self.selected) is not None:
            self.marked ^= {dataset.url}
            self.refresh_line(self.cursor + 1)

    def count(self) -> int:
        """Return the number of datasets."""
        return len(self.shown)

    @property
    def _widths(self) -> tuple[int, int, int]:
        """Widths in cells of the columns for the name, the repository and the local relation."""
        repository = (
            _REPOSITORY_WIDTH if self.shows_repository and self.room.width >= _MIN_REPOSITORY_ROOM else 0
        )
        name = max(self.room.width - 4 - _ROWS_WIDTH - _SIZE_WIDTH - _RELATION_WIDTH - repository - 4, 12)
        return name, repository, _RELATION_WIDTH

    def header(self) -> Sequence[Span]:
        """Return the names of the columns."""
        name, repository, here = self._widths
        amounts = f"{right('rows', _ROWS_WIDTH)}{right('size', _SIZE_WIDTH)}"
        text = f"    {fit_width('name', name)}{amounts}  {fit_width('workspace', here)}"
        return [(text + (f"  {fit_width('repository', repository)}" if repository else ""), "head")]

    def spans(self, index: int) -> Sequence[Span]:
        """Return the line of a dataset."""
        dataset = self.shown[index]
        name, repository, here = self._widths
        rows = "" if dataset.records is None else format_count_short(dataset.records)
        derivative = dataset.kind.lower() == "derivative"
        glyph = dataset_glyph(derivative=derivative) if derivative or dataset.kind else " "
        return [
            ("+ " if dataset.url in self.marked else "  ", "good"),
            (f"{glyph} ", "name" if derivative else "muted"),
            (
                fit_width(shorten_name(printable(dataset.name), name), name),
                "strong" if dataset.url in self.marked else "",
            ),
            (right(rows, _ROWS_WIDTH), ""),
            (right(format_bytes(dataset.size), _SIZE_WIDTH), "muted"),
            (f"  {fit_width(dataset.local_relation, here)}", "good"),
            (f"  {fit_width(printable(dataset.repository), repository)}" if repository else "", "muted"),
        ]

    def empty(self) -> Sequence[Sequence[Span]]:
        """Return the lines of an empty list."""
        return self.empty_lines


class RepositoryBrowser(Dialog[ChosenDatasets]):
    """Lists the datasets of repositories as their searches end. The result is those to import.

    Args:
        title: title of the dialog.
        book: the jobs.
        rows: the datasets of the workspace.
        search: submits a search job for each repository; returns the ids of the jobs by repository.
        cancel: cancels a job.
    """

    AUTO_FOCUS = "Input"

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "enter", "choose(False)", "import the marked datasets, or this one", show=False, priority=True
        ),
        Binding(
            "ctrl+y", "choose(True)", "import and verify them, with their inputs", show=False, priority=True
        ),
        Binding("plus", "mark", "mark or unmark the dataset", show=False, priority=True),
        Binding("ctrl+r", "search", "search again", show=False, priority=True),
        Binding("ctrl+g", "cancel", "cancel the search", show=False, priority=True),
        Binding("escape", "close", "back", show=False, priority=True),
        Binding("down,ctrl+n", "move('down')", show=False, priority=True),
        Binding("up,ctrl+p", "move('above')", show=False, priority=True),
        Binding("pagedown", "move('page_down')", show=False, priority=True),
        Binding("pageup", "move('page_up')", show=False, priority=True),
    ]

    class Listed(Message):
        """A search ended: its datasets, or its problem."""

        def __init__(self, repository: str, listing: SearchListing) -> None:
            super().__init__()
            self.repository, self.listing = repository, listing

    def __init__(
        self,
        title: str,
        book: JobBook,
        rows: Sequence[DatasetRow],
        search: Callable[[], Awaitable[dict[str, str]]],
        cancel: Callable[[str], Awaitable[None]],
    ) -> None:
        super().__init__()
        self._title, self._book, self._rows = title, book, rows
        self._search, self._cancel = search, cancel
        self._submitting = False
        self._jobs: dict[str, str] = {}  # ids of the running jobs, by repository
        self._listings: dict[str, SearchListing] = {}
        self._found: list[ListedDataset] = []
        self._list = RemoteDatasetList()

    def compose(self) -> ComposeResult:
        """Create the filter, the list, the details of a dataset and the state of the search."""
        with Vertical(classes="dialog browser") as box:
            box.border_title = Content(printable(self._title))
            box.border_subtitle = Content("⏎ imports · ^y also verifies · + marks · ^r searches · esc back")
            line = Input(placeholder="words in names, descriptions and keywords", compact=True)
            line.cursor_blink = False
            yield line
            yield self._list
            yield WrappedLines(id="about-found")
            yield WrappedLines(id="searching")

    def on_mount(self) -> None:
        """Start the search."""
        self.set_interval(_POLL_SECONDS, self._poll_jobs)
        self.set_interval(1.0, self._update_status)
        self.action_search()

    def action_search(self) -> None:
        """Search the repositories, unless a search runs."""
        if self._submitting or self._jobs:
            return
        self._submitting = True

        async def search() -> None:
            try:
                self._jobs = await self._search()
            except OdfError as error:
                self.post_message(self.Listed("", SearchListing((), [("", error_with_hint(error))])))
            else:
                self._listings.pop("", None)
            self._submitting = False
            self._update_status()

        self.run_worker(search(), group="search")

    def _poll_jobs(self) -> None:
        """Read the results of the jobs that ended."""
        for name, id in list(self._jobs.items()):
            job = self._book.jobs.get(id)
            if job is not None and job.state.final:
                del self._jobs[name]
                self._read_result(name, job)

    def _read_result(self, name: str, job: Job) -> None:
        if job.state is not JobState.done:
            hint = "" if job.error is None or not job.error.hint else f" – {job.error.hint}"
            known = self._listings.get(name, SearchListing()).found
            self.post_message(self.Listed(name, SearchListing(known, [(name, job_outcome(job)[0] + hint)])))
            return
        rows = self._rows

        def read() -> None:
            result = known_result(job.result, Search)
            if result is None:
                listing = SearchListing((), [(name, "invalid search result")])
            else:
                listing = match_search_result(result, rows)
            self.post_message(self.Listed(name, listing))

        self.run_worker(read, thread=True, group="read found")

    @on(Listed)
    def _show_listing(self, message: Listed) -> None:
        """Show the datasets and problems of a repository."""
        self._listings[message.repository] = message.listing
        self._found = [dataset for listing in self._listings.values() for dataset in listing.found]
        self._list.shows_repository = len({dataset.repository for dataset in self._found}) > 1
        self._apply_filter()

    def _apply_filter(self) -> None:
        self._list.set_datasets(
            filter_by_words(self._found, self.query_one(Input).value), self._empty_lines()
        )
        self._update_status()

    def _empty_lines(self) -> list[list[Span]]:
        if self._found:
            return [[(" no dataset matches the filter", "muted")]]
        return [] if self._jobs or self._submitting else [[(" no datasets found", "muted")]]

    def _update_status(self) -> None:
        """Show the number of datasets, the running searches and the problems."""
        lines = [*self._status_lines(), *self._problem_lines()]
        view = self.query_one("#searching", WrappedLines)
        if lines != view.source_lines:
            view.set(lines)

    def _status_lines(self) -> list[list[Span]]:
        total, shown, marked = len(self._found), self._list.count(), len(self._list.marked)
        words = f"{format_count(shown)} of " if shown < total else ""
        words += count_of(total, "dataset")
        words += f" · {format_count(marked)} marked" if marked else ""
        jobs = [(name, self._book.jobs.get(id)) for name, id in self._jobs.items()]
        running = [(name, job) for name, job in jobs if job is not None and job.state is JobState.running]
        activity = "searching" if self._submitting else ""
        if jobs:
            name = f" {running[0][0]}" if running else ""
            seconds = job_seconds(running[0][1], Timestamp.now()) if running else None
            activity = f"searching{printable(name)}" + (
                f" · {format_duration(seconds)}" if seconds is not None and seconds >= 1 else ""
            )
            activity += f" · {format_count(len(jobs))} remaining" if len(jobs) > 1 else ""
        return [[(f" {words}", "muted"), (f" · {activity}" if activity else "", "busy")]]

    def _problem_lines(self) -> list[list[Span]]:
        problems = [problem for listing in self._listings.values() for problem in listing.problems]
        lines: list[list[Span]] = []
        for name, message in problems[:_PROBLEM_LINES]:
            lines.append([(f" {printable(name)}: " if name else " ", "bad"), (printable(message), "bad")])
        if len(problems) > _PROBLEM_LINES:
            lines.append([(f" and {format_count(len(problems) - _PROBLEM_LINES)} more failed", "bad")])
        return lines

    def on_input_changed(self) -> None:
        """Filter the list."""
        self._apply_filter()

    @on(LineView.Moved, "#found")
    def _moved(self) -> None:
        dataset = self._list.selected
        self.query_one("#about-found", WrappedLines).set(
            [] if dataset is None else remote_dataset_lines(dataset)[:_DETAIL_LINES]
        )

    def on_line_view_opened(self) -> None:
        """Choose the dataset that was double-clicked."""
        self.action_choose(False)

    def action_move(self, move: str) -> None:
        """Move the cursor."""
        self._list.move(move)

    def action_mark(self) -> None:
        """Toggle the mark of a dataset, and move to the next."""
        self._list.toggle_mark()
        self._list.move("down")
        self._update_status()

    def action_choose(self, verifies: bool) -> None:
        """Close the dialog with the marked datasets, else with the one under the cursor."""
        # Typed keys that are still queued for the input change the list first.
        line = self.query_one(Input)
        line.call_later(self.call_later, self._choose, verifies)

    def _choose(self, verifies: bool) -> None:
        marked = [dataset for dataset in self._found if dataset.url in self._list.marked]
        selected = self._list.selected
        if marked or selected is not None:
            self._end(ChosenDatasets(marked or [selected], verifies))  # type: ignore[list-item]

    def action_cancel(self) -> None:
        """Cancel the running searches. Datasets that were found stay."""
        for job in self._jobs.values():
            self.app.run_worker(self._cancel(job), group="commands")

    def action_close(self) -> None:
        """Close the dialog without a result."""
        self._end(None)

    def _end(self, chosen: ChosenDatasets | None) -> None:
        self.action_cancel()
        self.dismiss(chosen)
