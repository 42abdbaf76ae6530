"""The datasets pane: graph or list, and the card of the selected dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Final, Literal

import msgspec
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.geometry import Offset, Size
from textual.message import Message

from odf_engine.api import Failure, Job, JobState
from odf_engine.api.model import DatasetDetail, DatasetRow
from odf_engine.api.text import count_of, format_zoned_time, printable
from odf_tui.panes.datasets.dataset_filter import depends_on_health, filter_graph
from odf_tui.panes.datasets.dataset_graph import SORTS, DatasetLinks, DatasetTable, GraphDrawing, GraphModel
from odf_tui.state.job_book import INGEST_KINDS, JobBook
from odf_tui.state.model import UNTRUSTED, Health
from odf_tui.text.format import Span, ellipsize_middle
from odf_tui.text.job_text import findings_verdict, has_findings, job_amounts, verified_head, warnings_text
from odf_tui.text.remotes import blocks_to_pull, direction, diverged_remotes, remote_text
from odf_tui.widgets.line_view import LineView, WrappedLines
from odf_tui.widgets.pane_frame import Pane

_CARD_KEYS = 11
_UNTRUSTED_REASON = "untrusted: press p to review"
_RELATION_STYLES = {"diverged": "bad", "behind": "warn"}


class CardJobs(msgspec.Struct, frozen=True):
    """The jobs of a dataset that the card shows.

    Attributes:
        ingest: the newest job that added data, or failed to.
        verification: the newest completed verification.
        running: the running job.
        polled: when the newest successful pull ended, with or without new rows, or "" if unknown.
    """

    ingest: Job | None = None
    verification: Job | None = None
    running: Job | None = None
    polled: str = ""


def find_card_jobs(book: JobBook, dataset: str) -> CardJobs:
    """Return the jobs that the card of a dataset shows."""
    jobs = [job for job in book.newest_first() if job.dataset == dataset]
    of_head = [job for job in jobs if not job.branch]
    return CardJobs(
        next((job for job in of_head if job.kind in INGEST_KINDS), None),
        next((job for job in of_head if job.kind == "verify" and job.state is JobState.done), None),
        next((job for job in jobs if job.state is JobState.running), None),
        book.last_polls().get(dataset, ""),
    )


class DatasetCard(WrappedLines):
    """Shows facts about the selected dataset.

    Attributes:
        reason: why the dataset is damaged, diverged or failed, as one line; empty otherwise.
    """

    def __init__(self) -> None:
        super().__init__(id="card")
        self.reason = ""
        self._status_lines: list[list[Span]] = []
        self._fact_lines: list[list[Span]] = []
        self._activity = ""

    def load(
        self, row: DatasetRow | None, health: Health | None, detail: DatasetDetail | None, jobs: CardJobs
    ) -> None:
        """Show a dataset. ``detail`` is None until it is read."""
        status: list[list[Span]] = []
        facts: list[list[Span]] = []
        self.reason = ""
        if row is not None and health is not None:
            status = self._describe_status(row, health, jobs)
            facts = [[]]
            for name, value in detail.facts if detail else ():
                if name == "changed" and jobs.polled:
                    facts.append(_fact_spans("pulled", format_zoned_time(jobs.polled)))
                facts.append(_fact_spans(name, value))
            if row.blocks:
                facts.insert(1, _verification_spans(row, jobs.verification))
                facts[1:1] = _remote_lines(row)
            if row.branches:
                facts.insert(1, _fact_spans("branches", printable(", ".join(row.branches))))
        self._status_lines, self._fact_lines = status, facts
        self._activity = describe_job(jobs.running)
        self._show()

    def show_progress(self, running: Job | None, rate: str = "") -> None:
        """Show progress and rate of the running job. Repaints only if the text changed."""
        if (activity := " · ".join(filter(None, (describe_job(running), rate)))) != self._activity:
            self._activity = activity
            self._show()

    def _show(self) -> None:
        lines = (
            [[("now  ", "muted"), (self._activity, "busy")]] if self._activity and self._status_lines else []
        )
        self.set([*self._status_lines, *lines, *self._fact_lines])

    def _describe_status(self, row: DatasetRow, health: Health, jobs: CardJobs) -> list[list[Span]]:
        kind = "derivative" if row.derivative else "root"
        lines: list[list[Span]] = [
            [(printable(row.name), "title")],
            [(f"{kind}  ", "muted"), (f"{health.glyph} {health.word}", health.style)],
        ]
        if row.problem:
            reason, _, hint = printable(row.problem).partition(" – ")
            lines.append([("why  ", "bad"), (reason, "bad")])
            lines += [[("try  ", "muted"), (hint, "good")]] if hint else []
            self.reason = f"{health.glyph} {reason}"
        if row.untrusted:
            reason = "untrusted: press t to review" if row.has_pull_remote else _UNTRUSTED_REASON
            lines.append([(f"{UNTRUSTED} ", "warn"), (reason, "warn")])
        if row.diverged:
            names = printable(", ".join(row.diverged))
            lines.append([("why  ", "bad"), (f"input {names} was reset or replaced", "bad")])
            lines.append([("try  ", "muted"), ("press D to rebuild it", "good")])
            self.reason = f"{health.glyph} input {names} was reset or replaced: press D to rebuild it"
        if row.waiting is not None:
            lines.append([("why  ", "warn"), (printable(row.waiting.text), "warn")])
            self.reason = self.reason or f"{health.glyph} {printable(row.waiting.text)}"
        if health is Health.failed and jobs.ingest is not None and jobs.ingest.error is not None:
            lines += self._failure_lines(jobs.ingest.error)
        elif jobs.ingest is not None and jobs.ingest.warnings:
            lines.append([("why  ", "warn"), (warnings_text(jobs.ingest.warnings), "warn")])
        return lines

    def _failure_lines(self, error: Failure) -> list[list[Span]]:
        first = printable(error.message.partition("\n")[0])
        self.reason = f"{Health.failed.glyph} {first}"
        lines: list[list[Span]] = [[("why  ", "bad"), (first, "bad")]]
        if error.hint:  # before the position: with little room, the hint matters more
            lines.append([("try  ", "muted"), (printable(error.hint), "good")])
        if error.where:
            lines.append([("at   ", "muted"), (printable(error.where), "")])
        return lines


def describe_job(job: Job | None) -> str:
    """Return the kind and the progress of a job as text, or "" without a job."""
    if job is None:
        return ""
    return printable(f"{job.kind} · {job_amounts(job)}" if job_amounts(job) else job.kind)


def _remote_lines(row: DatasetRow) -> list[list[Span]]:
    """Return the remotes of a dataset, their state, and what to do."""
    lines = [
        _fact_spans(direction(remote), remote_text(remote), _RELATION_STYLES.get(remote.relation, ""))
        for remote in row.remotes
    ]
    if diverged_remotes(row.remotes):
        lines.append([("try  ", "muted"), ("press V to compare histories", "good")])
    elif blocks_to_pull(row.remotes):
        lines.append([("try  ", "muted"), (f"press {'p' if row.has_pull_remote else 'V'} to pull", "good")])
    return lines


def _verification_spans(row: DatasetRow, job: Job | None) -> list[Span]:
    if job is None:
        return _fact_spans("verified", "never: press v to verify", "muted")
    when = format_zoned_time(job.ended)
    if has_findings(job):
        return _fact_spans("verified", f"{when}: {findings_verdict(job)}", "bad")
    if verified_head(job) == row.head:
        return _fact_spans("verified", f"{when}, fully", "good")
    return _fact_spans("verified", f"{when}, not up to the head", "")


def _fact_spans(name: str, value: str, style: str = "") -> list[Span]:
    return [(f"{name:<{_CARD_KEYS}}", "muted"), (printable(value), style)]


Mode = Literal["graph", "list"]
_SCROLL_CELLS: Final = 8
_SPARE: Final = 6


CARD_SIZE: Final = Size(38, 9)
_CARD_HEIGHT: Final = 13
_CARD_SCREEN_WIDTH: Final = 200
"""Cells of a screen that always has room for the card."""
_MIN_CARD: Final = 8


class GraphView(LineView):
    """Shows the datasets as a graph or as a list, with one selection.

    In the graph, h and l follow the lineage.

    Attributes:
        rows, healths: all datasets, and the health of each by id.
        selected: the id of the selected dataset.
        filter: see :mod:`odf_tui.panes.datasets.dataset_filter`.
        problem: why the datasets cannot be read; empty otherwise.
        is_read: whether the datasets were read.
    """

    class Moved(LineView.Moved):
        """Another dataset was selected."""

    def __init__(self) -> None:
        super().__init__(id="graph")
        self.rows: list[DatasetRow] = []
        self.healths: Mapping[str, Health] = {}
        self.selected: str | None = None
        self.filter = ""
        self.problem = ""
        self.is_read = False
        self._model = GraphModel()
        self._graph, self._table = GraphDrawing(self._model), DatasetTable(self._model)
        self._drawing: GraphDrawing | DatasetTable = self._graph

    def load(self, rows: Sequence[DatasetRow], healths: Mapping[str, Health], text: str) -> None:
        """Show the datasets that match a filter."""
        self.rows, self.healths, self.filter = list(rows), healths, text
        shown, edges = filter_graph(rows, text, healths)
        model = self._model
        model.rows, model.healths, model.edges = {row.id: row for row in shown}, healths, edges
        model.links = DatasetLinks(edges)
        model.names = {row.id: row.name for row in rows}
        self._drawing.load()
        if self.selected not in model.rows:
            self.selected = self._drawing.first_dataset()
            self.post_message(self.Moved(self))
        self._drawing.reveal(self.selected)
        self._drawing.fit(self._window)
        self._drawing.highlight(self.selected)
        self.reset()

    @property
    def _margin(self) -> int:
        """Cells for the mark of the selected label, left of the graph. Lines of the list have their own."""
        return int(self.mode == "graph")

    def set_healths(self, healths: Mapping[str, Health]) -> None:
        """Show the health of the datasets. Repaints the rows that changed."""
        before, self.healths = self.healths, healths
        changed = [row for row in self._model.rows if healths.get(row) != before.get(row)]
        if depends_on_health(self.filter) and before != healths:
            self.load(self.rows, healths, self.filter)
            return
        self._model.healths = healths
        if changed and self.mode == "list" and self.sort[0] == "state":
            self._table.load()
            self.reset()
        self._repaint({self._drawing.row_of(node) for node in changed})

    def set_jobs(
        self, jobs: Mapping[str, Job], rates: Mapping[str, str] | None = None, warned: Set[str] = frozenset()
    ) -> None:
        """Show progress and rate of running jobs, and marks of warnings. Repaints the rows that changed.

        Args:
            jobs: the running jobs, by the id of their dataset.
            rates: their rates as text, by the id of their dataset.
            warned: ids of the datasets with warnings.
        """
        model = self._model
        concerned = [node for node in {*model.jobs, *jobs, *(model.warned ^ warned)} if node in model.rows]
        before = {node: model.labels(node) for node in concerned}
        model.jobs, model.rates, model.warned = jobs, rates or {}, warned
        self._repaint(
            {self._drawing.row_of(node) for node in concerned if before[node] != model.labels(node)}
        )

    @property
    def mode(self) -> Mode:
        """``graph`` or ``list``."""
        return "graph" if self._drawing is self._graph else "list"

    @mode.setter
    def mode(self, mode: Mode) -> None:
        self._drawing = self._graph if mode == "graph" else self._table
        self.headed = self._drawing.headed  # type: ignore[misc] # pyright: ignore[reportAttributeAccessIssue]
        self._redraw()

    @property
    def sorts(self) -> list[str]:
        """The columns that the list can currently be sorted by."""
        return self._table.sorts

    @property
    def sort(self) -> tuple[str, bool]:
        """The column of the list that it is sorted by, and whether the order is reversed."""
        return self._table.sort

    @sort.setter
    def sort(self, sort: tuple[str, bool]) -> None:
        self._table.sort = sort
        if self.mode == "list":
            self._redraw()

    def _redraw(self) -> None:
        self._drawing.load()
        self._drawing.reveal(self.selected)
        self._drawing.fit(self._window)
        self._drawing.highlight(self.selected)
        if self.is_mounted:
            self.scroll_to(0, 0, animate=False)
            self.reset()
            self._reveal()

    @property
    def row(self) -> DatasetRow | None:
        """The selected dataset."""
        return self._model.rows.get(self.selected or "")

    @property
    def min_size(self) -> Size:
        """Cells that the drawing needs, with scroll bar, longer labels and a margin."""
        needed = self._drawing.min_size
        has_scroll_bar = self.mode == "list" and needed.width > self.size.width  # it scrolls sideways
        height = needed.height + self._drawing.headed + has_scroll_bar
        return Size(needed.width + self._margin + _SPARE, height)

    @property
    def cursor_cell(self) -> Offset:
        """The first cell of the selected dataset, from the upper left corner of the screen."""
        if self.row is None:
            return self.content_region.offset
        x, y = self._drawing.extent_of(self.row.id)[0], self._drawing.row_of(self.row.id)
        return self.content_region.offset + Offset(x, y + self.headed) - self.scroll_offset

    @property
    def _window(self) -> int:
        """Cells of a line; one is reserved for a scroll bar."""
        return max(self.size.width - 1 - self._margin, 0)

    def select(self, dataset: str) -> None:
        """Select a dataset, if it is shown."""
        if dataset not in self._model.rows:
            return
        if self._drawing.reveal(dataset):
            self.selected = dataset
            self._drawing.fit(self._window)
            self._drawing.highlight(dataset)
            self.reset()
            self.post_message(self.Moved(self))
        elif dataset != self.selected:
            before, self.selected = self.selected, dataset
            rows = self._drawing.highlight(dataset)
            rows |= {self._drawing.row_of(node) for node in (before, dataset) if node in self._model.rows}
            self._repaint(rows)
            self.post_message(self.Moved(self))
        self._reveal()

    def move(self, move: str) -> None:
        """Move the selection. In the list, left and right scroll."""
        if self.row is None:
            return
        if self.mode == "list" and move in ("left", "right"):
            x = self.scroll_offset.x + (_SCROLL_CELLS if move == "right" else -_SCROLL_CELLS)
            self.scroll_to(x=x, animate=False)
            return
        page = max(self.room.height - 1, 1)
        target = self._drawing.find_target(self.row.id, move, page)
        if target is not None:
            self.select(target)

    def _repaint(self, rows: set[int]) -> None:
        top, height = self.scroll_offset.y, self.room.height
        for row in rows:
            if top <= row < top + height:
                self.refresh_line(row + self._drawing.headed)

    def _reveal(self) -> None:
        if self.row is None:
            return
        self.show(self._drawing.row_of(self.row.id))
        start, end = self._drawing.extent_of(self.row.id)
        left, room = self.scroll_offset.x, self.room.width
        if start == end:
            return
        end += self._margin
        if start < left:
            self.scroll_to(x=start, animate=False)
        elif end > left + room:
            # Of a label wider than the window, the start is shown.
            self.scroll_to(x=min(start, end - room), animate=False)

    def scroll_to_cursor(self) -> None:
        """Show the facts that fit into the window, and scroll to the selection."""
        if self._drawing.fit(self._window):
            self._drawing.highlight(self.selected)
            self.reset()
        self._reveal()

    def count(self) -> int:
        """Return the number of rows."""
        return self._drawing.size.height

    def widest(self) -> int:
        """Return the width in cells."""
        width = self._drawing.size.width
        return width and width + self._margin

    def style_of(self, index: int) -> str:
        """Return the style of a line. The selection is a line in the list, a label in the graph."""
        if self.mode == "graph" or self.row is None or self._drawing.row_of(self.row.id) != index:
            return ""
        return self._cursor_style

    @property
    def _cursor_style(self) -> str:
        return "cursor" if self.active else "idle"

    def header(self) -> list[Span]:
        """Return the names of the columns, scrolled sideways as the list is."""
        spans, left = list[Span](), self.scroll_offset.x
        for text, style in self._drawing.header():
            spans.append((text[left:], style))
            left = max(left - len(text), 0)
        return spans

    def spans(self, index: int) -> list[Span]:
        """Return a row."""
        spans = self._drawing.spans(index, self.selected, self._cursor_style)
        if not self._margin:
            return spans
        spans.insert(0, (" ", ""))
        at = next((at for at, (_, style) in enumerate(spans) if style == self._cursor_style), 0)
        if at:  # the selected label
            text, style = spans[at - 1]
            spans[at - 1 : at] = [(text[:-1], style), self.selection_mark]
        return spans

    def empty(self) -> Sequence[Sequence[Span]]:
        """Return the lines shown without datasets: an error, the filter, or the first actions."""
        if self.problem:
            return [[(f" {self.problem}", "bad")], [], [(" r  ", "key"), ("reload", "")]]
        if self.filter:
            return [
                [(" No dataset matches ", ""), (self.filter, "strong")],
                [
                    (f" {count_of(len(self.rows), 'dataset')} hidden. ", "muted"),
                    ("esc", "key"),
                    (" shows all", "muted"),
                ],
            ]
        return _EMPTY_LINES if self.is_read else [[(" reading the datasets…", "muted")]]

    def click_at(self, x: int, y: int) -> bool:
        """Select the dataset at a cell of the window. Returns whether there is one."""
        x += self.scroll_offset.x - self._margin
        y -= self._drawing.headed
        dataset = self._drawing.dataset_at(x, y + self.scroll_offset.y) if y >= 0 else None
        if dataset is not None:
            self.select(dataset)
        return dataset is not None


_EMPTY_LINES: Final[Sequence[Sequence[Span]]] = [
    [(" No datasets yet", "strong")],
    [],
    [(" n  ", "key"), ("create a dataset from a file, a URL or a query", "")],
    [(" A  ", "key"), ("add datasets from an existing manifest", "")],
    [(" d  ", "key"), ("create the demo: five datasets with sample data", "")],
    [(" I  ", "key"), ("import datasets from a repository or a URL", "")],
    [],
    [(" ?  ", "key"), ("all keys", "muted")],
]


class DatasetsPane(Pane):
    """Pane 1: the graph or the list, and the card."""

    number = 1
    label = "Datasets"

    class ModeChanged(Message):
        """The datasets are shown as a list now, or as a graph."""

    filter_placeholder = "text · kind:root · state:failed,stale · remote:behind · !text to exclude"

    def __init__(self, id: str, classes: str = "") -> None:
        super().__init__(id, classes)
        self._view = GraphView()

    def compose(self) -> ComposeResult:
        """Create the view of the datasets and the card."""
        with Horizontal(id="home"):
            yield self._view
            yield DatasetCard()

    def on_resize(self) -> None:
        """Place the card again, once the graph has its new size."""
        self.call_later(self.place_card)

    def _card_place(self, width: int, height: int) -> tuple[bool, bool]:
        """Return whether the card has room next to the graph, and below it."""
        needed = self.view.min_size
        has_room = width - needed.width >= CARD_SIZE.width or self.screen.size.width >= _CARD_SCREEN_WIDTH
        is_beside = has_room or width >= 3 * CARD_SIZE.width
        is_below = height - max(needed.height, 2) >= CARD_SIZE.height and not is_beside
        if self.mode == "list" and not is_below:  # in the list, columns take precedence over the card
            is_beside = has_room
        return is_beside, is_below

    def content_height(self, width: int, max_height: int) -> int:
        """Return the lines that the datasets and the card fill, at most ``max_height``."""
        needed = self.view.min_size
        lines = needed.height + (self.mode == "graph" and needed.width > width)
        is_beside, is_below = self._card_place(width, max_height)
        if is_below:
            lines += 1 + _CARD_HEIGHT
        return min(max(lines, _CARD_HEIGHT if is_beside else 0), max_height)

    def place_card(self) -> None:
        """Show the card next to the graph or below it. Hide it if there is no room."""
        graph, card, needed = self.view, self.card, self.view.min_size
        width, height = self.size
        is_beside, is_below = self._card_place(width, height)
        card.display = graph.row is not None and (is_beside or is_below)
        self.query_one("#home").set_class(is_below, "-below")
        shows_why = bool(graph.rows) and not (is_beside or is_below)
        self.set_subtitle(ellipsize_middle(card.reason, max(width - 4, 0)) if shows_why else "")
        room = max(min(_CARD_HEIGHT, height - needed.height - 1), _MIN_CARD)
        card.styles.height = room if is_below and card.display else None

    @property
    def view(self) -> GraphView:
        """The view of the datasets."""
        return self._view

    @property
    def card(self) -> DatasetCard:
        """The card."""
        return self.query_one(DatasetCard)

    @property
    def mode(self) -> Mode:
        """``graph`` or ``list``."""
        return self._view.mode

    @mode.setter
    def mode(self, mode: Mode) -> None:
        self._view.mode = mode
        self._show_order()
        self.post_message(self.ModeChanged())

    @property
    def sort(self) -> tuple[str, bool]:
        """The column of the list that it is sorted by, and whether the order is reversed.

        An unknown column is ignored.
        """
        return self._view.sort

    @sort.setter
    def sort(self, sort: tuple[str, bool]) -> None:
        if sort[0] in SORTS:
            self._view.sort = sort
            self._show_order()

    def _show_order(self) -> None:
        name, reverse = self.sort
        self.set_context(f"by {name}{', reversed' if reverse else ''}" if self.mode == "list" else "")

    @property
    def shown(self) -> list[DatasetRow]:
        """The datasets that match the filter."""
        return filter_graph(self.view.rows, self.filter, self.view.healths)[0]

    def set_filter(self, text: str) -> None:
        """Show the datasets that match a filter."""
        super().set_filter(text)
        self.view.load(self.view.rows, self.view.healths, text)
        if self.is_mounted:
            self.place_card()

    def selection(self) -> tuple[str, str] | None:
        """Return the id of the selected dataset, to copy it."""
        row = self.view.row
        return None if row is None else ("id", row.id)
