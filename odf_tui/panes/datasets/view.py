"""The datasets pane: graph or list, and the card of the selected dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal

import msgspec
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.geometry import Size

from odf_engine.coordinator.protocol import Failure, Job, JobState
from odf_tui.panes.datasets.dataset_filter import depends_on_health, visible_graph
from odf_tui.panes.datasets.dataset_graph import SORTS, DatasetGraph, DatasetTable, GraphModel
from odf_tui.state.job_book import INGEST_KINDS, JobBook
from odf_tui.state.model import UNTRUSTED, DatasetDetail, DatasetRow, Health
from odf_tui.text.format import Span, ellipsize_middle, format_time, printable
from odf_tui.text.job_text import found_invalid, job_amounts, verified_head
from odf_tui.text.remotes import blocks_to_pull, direction, diverged_remotes, remote_text
from odf_tui.widgets.line_view import LineView, WrappedLines
from odf_tui.widgets.pane_frame import Pane

_CARD_KEYS = 11
_UNTRUSTED_WORDS = "not trusted: p shows what would run"
_STANDINGS = {"diverged": "bad", "behind": "warn"}


class CardJobs(msgspec.Struct, frozen=True):
    """The newest job that brought data into a dataset, the newest verification that ended, what runs."""

    intake: Job | None = None
    verification: Job | None = None
    running: Job | None = None


def jobs_of(book: JobBook, dataset: str) -> CardJobs:
    """The jobs that a card tells of."""
    found = [job for job in book.newest_first() if job.dataset == dataset]
    return CardJobs(
        next((job for job in found if job.kind in INGEST_KINDS), None),
        next((job for job in found if job.kind == "verify" and job.state is JobState.done), None),
        next((job for job in found if job.state is JobState.running), None),
    )


class DatasetCard(WrappedLines):
    """What is known of the selected dataset, in a few lines.

    Attributes:
        why: why its last pull failed, in a line; empty when it did not.
    """

    def __init__(self) -> None:
        super().__init__(id="card")
        self.why = ""
        self._above: list[list[Span]] = []
        self._below: list[list[Span]] = []
        self._doing = ""

    def load(
        self, row: DatasetRow | None, health: Health | None, detail: DatasetDetail | None, jobs: CardJobs
    ) -> None:
        """Shows a dataset; ``detail`` may come later."""
        above: list[list[Span]] = []
        below: list[list[Span]] = []
        self.why = ""
        if row is not None and health is not None:
            above = self._standing(row, health, jobs)
            below = [[], *(_fact(name, value) for name, value in (detail.facts if detail else ()))]
            if row.blocks:
                below.insert(1, _verification(row, jobs.verification))
                below[1:1] = _remotes(row)
        self._above, self._below = above, below
        self._doing = doing(jobs.running)
        self._show()

    def progress(self, running: Job | None, rate: str = "") -> None:
        """How far what runs is, and how fast; repainted only when that is something else."""
        if (words := " · ".join(filter(None, (doing(running), rate)))) != self._doing:
            self._doing = words
            self._show()

    def _show(self) -> None:
        lines = [[("now  ", "muted"), (self._doing, "busy")]] if self._doing and self._above else []
        self.set([*self._above, *lines, *self._below])

    def _standing(self, row: DatasetRow, health: Health, jobs: CardJobs) -> list[list[Span]]:
        kind = "derivative" if row.derivative else "root"
        lines: list[list[Span]] = [
            [(printable(row.name), "title")],
            [(f"{kind}  ", "muted"), (f"{health.glyph} {health.word}", health.style)],
        ]
        if row.problem:
            why, _, remedy = printable(row.problem).partition(" – ")
            lines.append([("why  ", "bad"), (why, "bad")])
            lines += [[("try  ", "muted"), (remedy, "good")]] if remedy else []
            self.why = f"{health.glyph} {why}"
        if row.untrusted:
            why = "not trusted: t shows what would run" if row.comes_from_elsewhere else _UNTRUSTED_WORDS
            lines.append([(f"{UNTRUSTED} ", "warn"), (why, "warn")])
        if row.diverged:
            names = printable(", ".join(row.diverged))
            lines.append(
                [("why  ", "bad"), (f"{names}, which it was made from, was reset or replaced", "bad")]
            )
            lines.append([("try  ", "muted"), ("D makes it anew", "good")])
            self.why = f"{health.glyph} {names} was reset or replaced: D makes it anew"
        if health is Health.failed and jobs.intake is not None and jobs.intake.error is not None:
            lines += self._failure(jobs.intake.error)
        return lines

    def _failure(self, error: Failure) -> list[list[Span]]:
        first = printable(error.message.partition("\n")[0])
        self.why = f"{Health.failed.glyph} {first}"
        lines: list[list[Span]] = [[("why  ", "bad"), (first, "bad")]]
        if error.hint:  # before the place: where there is little room, it matters more
            lines.append([("try  ", "muted"), (printable(error.hint), "good")])
        if error.where:
            lines.append([("at   ", "muted"), (printable(error.where), "")])
        return lines


def doing(job: Job | None) -> str:
    """What a job does, in words; empty when there is none."""
    if job is None:
        return ""
    return printable(f"{job.kind} · {job_amounts(job)}" if job_amounts(job) else job.kind)


def _remotes(row: DatasetRow) -> list[list[Span]]:
    """Where it comes from and goes to, and how it stands to that."""
    lines = [
        _fact(direction(each), remote_text(each), _STANDINGS.get(each.relation, "")) for each in row.remotes
    ]
    if diverged_remotes(row.remotes):
        lines.append([("try  ", "muted"), ("V shows both histories, and what can be done", "good")])
    elif blocks_to_pull(row.remotes):
        lines.append([("try  ", "muted"), (f"{'p' if row.comes_from_elsewhere else 'V'} pulls", "good")])
    return lines


def _verification(row: DatasetRow, job: Job | None) -> list[Span]:
    if job is None:
        return _fact("verified", "not yet: v verifies it", "muted")
    when = format_time(job.ended)
    if found_invalid(job):
        return _fact("verified", f"{when}, and it is not valid", "bad")
    if verified_head(job) == row.head:
        return _fact("verified", f"{when}, all of it", "good")
    return _fact("verified", f"{when}, not all that it has now", "")


def _fact(name: str, value: str, style: str = "") -> list[Span]:
    return [(f"{name:<{_CARD_KEYS}}", "muted"), (printable(value), style)]


Mode = Literal["graph", "list"]
_STEP: Final = 8
_BESIDE: Final = 6


CARD_SIZE: Final = Size(38, 9)
_CARD_HEIGHT: Final = 13
_MIN_CARD: Final = 8


class GraphView(LineView):
    """The datasets: a graph, where h and l walk along the lineage, or a list; the selection is the same.

    Attributes:
        rows, healths: all datasets, and how they are.
        selected: the id of the selected one.
        filter: what is shown of them, see :mod:`odf_tui.panes.datasets.dataset_filter`.
    """

    class Moved(LineView.Moved):
        """Another dataset is selected."""

    def __init__(self) -> None:
        super().__init__(id="graph")
        self.rows: list[DatasetRow] = []
        self.healths: Mapping[str, Health] = {}
        self.selected: str | None = None
        self.filter = ""
        self.problem = ""  # why the datasets cannot be read
        self._board = GraphModel()
        self._graph, self._table = DatasetGraph(self._board), DatasetTable(self._board)
        self._drawing: DatasetGraph | DatasetTable = self._graph

    # --- What is shown ---

    def load(self, rows: Sequence[DatasetRow], healths: Mapping[str, Health], text: str) -> None:
        """Shows these datasets, as far as the filter leaves them."""
        self.rows, self.healths, self.filter = list(rows), healths, text
        shown, edges = visible_graph(rows, text, healths)
        board = self._board
        board.rows, board.healths, board.edges = {row.id: row for row in shown}, healths, edges
        board.names = {row.id: row.name for row in rows}
        self._drawing.load()
        if self.selected not in board.rows:
            self.selected = self._drawing.first()
            self.post_message(self.Moved(self))
        self._drawing.fit(self._window)
        self._drawing.light(self.selected)
        self.reset()

    def set_healths(self, healths: Mapping[str, Health]) -> None:
        """Shows how the datasets are; repaints the rows of those that changed."""
        before, self.healths = self.healths, healths
        changed = [each for each in self._board.rows if healths.get(each) != before.get(each)]
        if depends_on_health(self.filter) and before != healths:
            self.load(self.rows, healths, self.filter)
            return
        self._board.healths = healths
        if changed and self.mode == "list" and self.sort[0] == "state":
            self._table.load()
            self.reset()
        self._repaint({self._drawing.row_of(each) for each in changed})

    def set_jobs(self, jobs: Mapping[str, Job], rates: Mapping[str, str] | None = None) -> None:
        """Shows how far the jobs that run are, by their datasets, and how fast; repaints what says it."""
        board = self._board
        touched = [each for each in {**board.jobs, **jobs} if each in board.rows]
        before = {each: board.marks(each) for each in touched}
        board.jobs, board.rates = jobs, rates or {}
        self._repaint({self._drawing.row_of(each) for each in touched if before[each] != board.marks(each)})

    @property
    def mode(self) -> Mode:
        """Graph or list."""
        return "graph" if self._drawing is self._graph else "list"

    @mode.setter
    def mode(self, mode: Mode) -> None:
        self._drawing = self._graph if mode == "graph" else self._table
        self.headed = self._drawing.headed  # type: ignore[misc] # pyright: ignore[reportAttributeAccessIssue]
        self._anew()

    @property
    def sorts(self) -> list[str]:
        """What the list can be sorted by, as it is now."""
        return self._table.sorts

    @property
    def sort(self) -> tuple[str, bool]:
        """What the list is sorted by, one of ``table.SORTS``, and whether the other way round."""
        return self._table.sort

    @sort.setter
    def sort(self, sort: tuple[str, bool]) -> None:
        self._table.sort = sort
        if self.mode == "list":
            self._anew()

    def _anew(self) -> None:
        self._drawing.load()
        self._drawing.fit(self._window)
        self._drawing.light(self.selected)
        if self.is_mounted:
            self.scroll_to(0, 0, animate=False)
            self.reset()
            self._reveal()

    @property
    def row(self) -> DatasetRow | None:
        """The selected dataset."""
        return self._board.rows.get(self.selected or "")

    @property
    def size_needed(self) -> Size:
        """Cells that the whole takes, with a scroll bar, longer marks and some air beside it."""
        least = self._drawing.least
        bar = self.mode == "list" and least.width > self.size.width  # which scrolls sideways
        return Size(least.width + _BESIDE, least.height + self._drawing.headed + bar)

    @property
    def _window(self) -> int:
        """Cells for a line, also when there is a scroll bar."""
        return max(self.size.width - 1, 0)

    # --- The selection ---

    def select(self, dataset: str) -> None:
        """Selects a dataset, if it is shown."""
        if dataset not in self._board.rows:
            return
        if dataset != self.selected:
            before, self.selected = self.selected, dataset
            rows = self._drawing.light(dataset)
            rows |= {self._drawing.row_of(each) for each in (before, dataset) if each in self._board.rows}
            self._repaint(rows)
            self.post_message(self.Moved(self))
        self._reveal()

    def move(self, move: str) -> None:
        """Moves the selection; in the list, left and right scroll."""
        if self.row is None:
            return
        if self.mode == "list" and move in ("left", "right"):
            x = self.scroll_offset.x + (_STEP if move == "right" else -_STEP)
            self.scroll_to(x=x, animate=False)
            return
        page = max(self.room.height - 1, 1)
        found = self._drawing.target(self.row.id, move, page)
        if found is not None:
            self.select(found)

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
        if start < left:
            self.scroll_to(x=start, animate=False)
        elif end > left + room:
            # Of a label that is wider than the window, the beginning tells more.
            self.scroll_to(x=min(start, end - room), animate=False)

    def scroll_to_cursor(self) -> None:
        """Shows what the window has room for, and scrolls to the selection."""
        if self._drawing.fit(self._window):
            self._drawing.light(self.selected)
            self.reset()
        self._reveal()

    # --- Drawing ---

    def count(self) -> int:
        """Rows."""
        return self._drawing.size.height

    def widest(self) -> int:
        """Cells of a row."""
        return self._drawing.size.width

    def style_of(self, index: int) -> str:
        """In the graph the selection is a label, in the list a line."""
        if self.mode == "graph" or self.row is None or self._drawing.row_of(self.row.id) != index:
            return ""
        return self._cursor_style

    @property
    def _cursor_style(self) -> str:
        return "cursor" if self.active else "idle"

    def header(self) -> list[Span]:
        """The names of the columns, as far as the list is scrolled."""
        spans, left = list[Span](), self.scroll_offset.x
        for text, style in self._drawing.header():
            spans.append((text[left:], style))
            left = max(left - len(text), 0)
        return spans

    def spans(self, index: int) -> list[Span]:
        """A row."""
        return self._drawing.spans(index, self.selected, self._cursor_style)

    def empty(self) -> Sequence[Sequence[Span]]:
        """What to do when nothing is here."""
        if self.problem:
            return [[(f" {self.problem}", "bad")], [], [(" r  ", "key"), ("read them again", "")]]
        if self.filter:
            return [
                [(" No dataset matches ", ""), (self.filter, "strong")],
                [
                    (f" of {len(self.rows)}. ", "muted"),
                    ("esc", "key"),
                    (" shows all of them again.", "muted"),
                ],
            ]
        return _BEGINNING

    def click_at(self, x: int, y: int) -> bool:
        """Selects the dataset at a cell of the window."""
        y -= self._drawing.headed
        found = self._drawing.at(x + self.scroll_offset.x, y + self.scroll_offset.y) if y >= 0 else None
        if found is not None:
            self.select(found)
        return found is not None


_BEGINNING: Final[Sequence[Sequence[Span]]] = [
    [(" There are no datasets yet.", "strong")],
    [],
    [(" n  ", "key"), ("make one: from a file of yours, a URL, or a query", "")],
    [(" A  ", "key"), ("add those of a manifest that is there already", "")],
    [(" d  ", "key"), ("look at a demo first: five datasets with sample data, made here", "")],
    [(" I  ", "key"), ("bring in those of others, from a repository or an address", "")],
    [],
    [(" ?  ", "key"), ("all keys", "muted")],
]


class DatasetsPane(Pane):
    """The graph or the list, and beside it the card."""

    number = 1
    label = "Datasets"

    filter_placeholder = "letters · kind:root · state:failed,stale · remote:behind · !letters without"

    def __init__(self, id: str, classes: str = "") -> None:
        super().__init__(id, classes)
        self._view = GraphView()

    def compose(self) -> ComposeResult:
        """Datasets and card."""
        with Horizontal(id="home"):
            yield self._view
            yield DatasetCard()

    def on_resize(self) -> None:
        """Find room for the card, once the graph has its new size."""
        self.call_later(self.place_card)

    def place_card(self) -> None:
        """Show the card beside the graph, below it, or not at all: where the graph leaves it room."""
        graph, card, need = self.view, self.card, self.view.size_needed
        width, height = self.size
        beside = width - need.width >= CARD_SIZE.width or width >= 3 * CARD_SIZE.width
        below = height - max(need.height, 2) >= CARD_SIZE.height and not beside
        if self.mode == "list" and not below:  # in the list the columns go before the card
            beside = width - need.width >= CARD_SIZE.width
        card.display = graph.row is not None and (beside or below)
        self.query_one("#home").set_class(below, "-below")
        shows_why = bool(graph.rows) and not (beside or below)
        self.set_subtitle(ellipsize_middle(card.why, max(width - 4, 0)) if shows_why else "")
        room = max(min(_CARD_HEIGHT, height - need.height - 1), _MIN_CARD)
        card.styles.height = room if below and card.display else None

    @property
    def view(self) -> GraphView:
        """The graph, or the list."""
        return self._view

    @property
    def card(self) -> DatasetCard:
        """The card."""
        return self.query_one(DatasetCard)

    @property
    def mode(self) -> Mode:
        """Graph or list."""
        return self._view.mode

    @mode.setter
    def mode(self, mode: Mode) -> None:
        self._view.mode = mode
        self._tell()

    @property
    def sort(self) -> tuple[str, bool]:
        """What the list is sorted by, and whether the other way round; what there is not is not taken."""
        return self._view.sort

    @sort.setter
    def sort(self, sort: tuple[str, bool]) -> None:
        if sort[0] in SORTS:
            self._view.sort = sort
            self._tell()

    def _tell(self) -> None:
        name, reverse = self.sort
        self.set_context(f"by {name}{', reversed' if reverse else ''}" if self.mode == "list" else "")

    @property
    def shown(self) -> list[DatasetRow]:
        """The datasets that match the filter."""
        return visible_graph(self.view.rows, self.filter, self.view.healths)[0]

    def set_filter(self, text: str) -> None:
        """Shows the datasets that match."""
        super().set_filter(text)
        self.view.load(self.view.rows, self.view.healths, text)

    def selection(self) -> tuple[str, str] | None:
        """The dataset's id."""
        row = self.view.row
        return None if row is None else ("id", row.id)
