"""Draws datasets as a lineage graph or as a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Final

import msgspec
from rich.cells import cell_len
from textual.geometry import Size

from odf_engine.api import Job
from odf_engine.api.model import DatasetRow
from odf_engine.api.text import format_bytes, format_count, format_time, printable, zone_label
from odf_tui.panes.datasets.dataset_filter import list_kinds
from odf_tui.state.model import BRANCH, UNTRUSTED, WARNED, Health
from odf_tui.text import remotes
from odf_tui.text.format import (
    Span,
    dataset_glyph,
    ellipsize_middle,
    fit_width,
    format_age,
    format_count_short,
    right,
    shorten_name,
)
from odf_tui.text.graph_layout import (
    Edge,
    LabelPosition,
    Layout,
    LineSegments,
    Plan,
    draw_layout,
    measure_columns,
    plan_layout,
)
from odf_tui.text.job_text import percent_done


def list_health_labels(health: Health, job: Job | None, rate: str = "") -> tuple[str, ...]:
    """Return labels for the health of a dataset, the longest first. The last one fits everywhere.

    Args:
        health: the health of the dataset.
        job: the running job of the dataset.
        rate: the rate of the job, such as ``48.2k rows/s``, or "" if unknown.
    """
    if health is not Health.running or job is None:
        return (health.glyph,)
    glyph = health.glyph
    done = percent_done(job.progress)
    if done is not None:
        short = (f"{glyph} {done}%", f"{done}%", glyph)
        return (f"{glyph} {done}% · {rate}", f"{done}% {rate}", *short) if rate else short
    if job.progress.rows:
        rows = format_count_short(job.progress.rows)
        return (f"{glyph} {rows} rows", f"{glyph} {rows}", glyph)
    return (glyph,)


def choose_fitting(labels: Sequence[str], width: int) -> str:
    """Return the first label that fits into ``width`` cells, else the last one, cut."""
    return next((label for label in labels if len(label) <= width), labels[-1][: max(width, 1)])


_GRAPH_NAME_WIDTH: Final = 34
_MAX_SIBLINGS: Final = 30
_SHOWN_SIBLINGS: Final = 10
_MARK_WIDTH: Final = 6
_ROWS_WIDTH: Final = 8
_TIME_WIDTH: Final = 12
_SPARE: Final = 2  # cells at the right end, for labels longer than one cell

# Cells for facts next to a name: longer label, rows and watermark; without the watermark.
_EXTRAS: Final = (_MARK_WIDTH - 1 + _ROWS_WIDTH + _TIME_WIDTH, _MARK_WIDTH - 1 + _ROWS_WIDTH)


class GraphModel(msgspec.Struct):
    """The datasets to draw.

    Attributes:
        rows: the datasets that match the filter, by id.
        healths: the health of each dataset, by id.
        jobs: the running jobs, by the id of their dataset.
        edges: pairs of ids, each from an upstream to a downstream dataset.
        names: the names of all datasets, by id.
        rates: the rates of running jobs as text, by the id of their dataset.
        links: the edges by dataset.
        warned: ids of the datasets with warnings.
    """

    rows: dict[str, DatasetRow] = {}
    healths: Mapping[str, Health] = {}
    jobs: Mapping[str, Job] = {}
    edges: list[Edge] = []
    names: Mapping[str, str] = {}
    rates: Mapping[str, str] = {}
    links: DatasetLinks = msgspec.field(default_factory=lambda: DatasetLinks())
    warned: Set[str] = frozenset()

    def __post_init__(self) -> None:
        """Set the links of the edges."""
        self.links = DatasetLinks(self.edges)

    def health(self, dataset: str) -> Health:
        """Return the health of a dataset."""
        return self.healths.get(dataset, Health.new)

    def labels(self, dataset: str) -> tuple[str, ...]:
        """Return the labels for the health of a dataset, the longest first. A mark shows its warnings."""
        health = self.health(dataset)
        if self.is_warned(dataset):
            return (f"{WARNED}{health.glyph}", f"{WARNED}{health.glyph[:1]}", health.glyph)
        return list_health_labels(health, self.jobs.get(dataset), self.rates.get(dataset, ""))

    def style(self, dataset: str) -> str:
        """Return the style of the labels of a dataset."""
        style = self.health(dataset).style
        return "warn" if style == "good" and self.is_warned(dataset) else style

    def is_warned(self, dataset: str) -> bool:
        """Return whether a dataset has warnings, and nothing more important is shown."""
        shown = dataset in self.jobs or self.health(dataset) is Health.damaged
        return dataset in self.warned and not shown


class DatasetLinks:
    """The direct inputs and outputs of datasets.

    Attributes:
        inputs, outputs: ids of the datasets upstream and downstream of a dataset, by its id.
    """

    def __init__(self, edges: Iterable[Edge] = ()) -> None:
        self.inputs: dict[str, list[str]] = {}
        self.outputs: dict[str, list[str]] = {}
        for source, target in edges:
            self.inputs.setdefault(target, []).append(source)
            self.outputs.setdefault(source, []).append(target)


class LineageDrawing:
    """The upstream and downstream datasets of a dataset, direct and indirect.

    Attributes:
        upstream, downstream: ids of datasets.
        edges: the edges between them.
    """

    def __init__(self, links: DatasetLinks, dataset: str | None) -> None:
        self.upstream = _find_reachable(dataset, links.inputs)
        self.downstream = _find_reachable(dataset, links.outputs)
        start = set[str]() if dataset is None else {dataset}
        self.edges: list[Edge] = [
            *(
                (source, target)
                for target in self.upstream | start
                for source in links.inputs.get(target, ())
            ),
            *(
                (source, target)
                for source in self.downstream | start
                for target in links.outputs.get(source, ())
            ),
        ]

    @property
    def nodes(self) -> set[str]:
        """All upstream and downstream datasets."""
        return self.upstream | self.downstream


def _find_reachable(start: str | None, edges: Mapping[str, Sequence[str]]) -> set[str]:
    reachable: set[str] = set()
    pending = list(edges.get(start or "", ()))
    while pending:
        node = pending.pop()
        if node not in reachable:
            reachable.add(node)
            pending += edges.get(node, ())
    return reachable


def fold_siblings(nodes: Sequence[str], links: DatasetLinks, unfolded: Set[str]) -> dict[str, list[str]]:
    """Return the datasets that one label stands for: the last ones of many outputs of the same inputs.

    Args:
        nodes: ids of the datasets.
        links: their edges.
        unfolded: ids of datasets whose siblings are all shown.

    Returns:
        The folded datasets, by the first of them.
    """
    siblings: dict[frozenset[str], list[str]] = {}
    for node in nodes:
        if (inputs := links.inputs.get(node)) and node not in links.outputs:
            siblings.setdefault(frozenset(inputs), []).append(node)
    return {
        group[_SHOWN_SIBLINGS]: group[_SHOWN_SIBLINGS:]
        for group in siblings.values()
        if len(group) > _MAX_SIBLINGS and unfolded.isdisjoint(group)
    }


class GraphDrawing:
    """Draws datasets as labels, with lines from each dataset to its downstream datasets.

    Of more than 30 outputs of the same inputs, only the first ones have labels. The next label stands for the
    others, until one of them is selected.
    """

    headed = False

    def __init__(self, model: GraphModel) -> None:
        self.model = model
        self._key: object = None
        self._unfolded: set[str] = set()
        self._folds: dict[str, list[str]] = {}
        self._label_of: dict[str, str] = {}  # by folded dataset, the one with the label of all
        self._edges: list[Edge] = []
        self._plans: list[Plan] = []
        self._columns = measure_columns([], {})
        self._parts = [self._columns]
        self._widths: dict[str, int] = {}
        self._extra = 0
        self._aligned = False
        self._layout: Layout = draw_layout([], {})
        self._at_row: list[list[tuple[LabelPosition, str]]] = []
        self._lineage = LineageDrawing(DatasetLinks(), None)
        self._highlighted = LineSegments([])

    def load(self) -> None:
        """Compute the layout of a changed model. It stays if only healths, jobs or amounts changed."""
        rows = self.model.rows
        key = [(row.id, row.name, _format_signs(row)) for row in rows.values()], self.model.edges
        if key == self._key:
            return
        self._key = key
        self._folds = fold_siblings(list(rows), self.model.links, self._unfolded)
        self._label_of = {node: label for label, group in self._folds.items() for node in group}
        self._edges = [edge for edge in self.model.edges if self._label_of.get(edge[1], edge[1]) == edge[1]]
        self._widths = {
            row.id: cell_len(self._fold_text(row.id) or _format_name(row) + _format_signs(row)) + 2
            for row in rows.values()
            if self._label_of.get(row.id, row.id) == row.id
        }
        self._plans = plan_layout(self._widths, self._edges)
        self._columns = measure_columns(self._plans, self._widths)
        self._parts = [measure_columns([plan], self._widths) for plan in self._plans]
        self._extra, self._aligned = 0, False
        self._draw()

    def reveal(self, dataset: str | None) -> bool:
        """Show the siblings of a dataset if it is folded. Returns whether it was."""
        if dataset is None or dataset not in self._label_of:
            return False
        self._unfolded.add(dataset)
        self._key = None
        self.load()
        return True

    def _fold_text(self, node: str) -> str:
        """Return the label of folded datasets, or "" for one dataset."""
        return f"▾ {len(self._folds[node])} more" if node in self._folds else ""

    def _place(self, dataset: str) -> LabelPosition:
        return self._layout.positions[self._label_of.get(dataset, dataset)]

    def _draw(self) -> None:
        self._layout = draw_layout(self._plans, self._widths, self._extra, aligned=self._aligned)
        self._at_row = [[] for _ in range(self._layout.height)]
        for node, place in self._layout.positions.items():
            self._at_row[place.y].append((place, node))
        for labels in self._at_row:
            labels.sort(key=lambda label: label[0].x)

    def fit(self, width: int) -> bool:
        """Show as many facts next to the names as fit into a width. Returns whether it changed."""
        before = self._extra, self._aligned
        fits = (extra for extra in _EXTRAS if self._width_with(extra) <= width)
        self._extra = next(fits, 0) if self.model.rows else 0
        self._aligned = self._extra > 0 and self._columns.width_with(self._extra) <= width
        if changed := before != (self._extra, self._aligned):
            self._draw()
        return changed

    @property
    def size(self) -> Size:
        """Size of the drawing in cells."""
        spare = 0 if self._extra or not self._layout.width else _SPARE
        return Size(self._layout.width + spare, self._layout.height)

    @property
    def min_size(self) -> Size:
        """Size in cells without facts next to the names."""
        return Size(self._width_with(0), self._layout.height)

    def _width_with(self, extra: int) -> int:
        return max((part.width_with(extra) for part in self._parts), default=0)

    def highlight(self, selected: str | None) -> set[int]:
        """Highlight the lineage of the selected dataset. Returns the rows to repaint."""
        before = self._lineage
        self._lineage = LineageDrawing(self.model.links, selected)
        self._highlighted = LineSegments(self._routes(self._lineage))
        places, rows = self._layout.positions, set[int]()
        for lineage in (before, self._lineage):
            rows |= {places[node].y for node in lineage.nodes if node in places}
            for _, top, _, bottom in self._routes(lineage):
                rows.update(range(top, bottom + 1))
        return rows

    def _routes(self, lineage: LineageDrawing) -> dict[tuple[int, int, int, int], None]:
        edges = ((source, self._label_of.get(target, target)) for source, target in lineage.edges)
        return dict.fromkeys(line for edge in edges for line in self._layout.routes.get(edge, ()))

    def first_dataset(self) -> str | None:
        """Return the dataset that is selected at first."""
        return next((labels[0][1] for labels in self._at_row if labels), None)

    def row_of(self, dataset: str) -> int:
        """Return the row of a dataset."""
        return self._place(dataset).y

    def extent_of(self, dataset: str) -> tuple[int, int]:
        """Return the first cell of a label, and the one after its last, from the left."""
        place = self._place(dataset)
        return place.x, place.x + place.width

    def dataset_at(self, x: int, y: int) -> str | None:
        """Return the dataset at a cell."""
        labels = self._at_row[y] if 0 <= y < len(self._at_row) else []
        return next((node for place, node in labels if place.x <= x < place.x + place.width), None)

    def find_target(self, dataset: str, move: str, page: int) -> str | None:
        """Return the target dataset of a move, or None if absent.

        Left and right follow the lineage.

        Args:
            dataset: the id of the selected dataset.
            move: one of :data:`odf_tui.widgets.line_view.MOVES`.
            page: rows of a page.
        """
        place = self._place(dataset)
        last = len(self._at_row) - 1
        match move:
            case "left":
                return self._find_nearest(0, dataset, place) or self._find_neighbour(dataset, place, -1)
            case "right":
                return self._find_nearest(1, dataset, place) or self._find_neighbour(dataset, place, 1)
            case "down":
                return self._find_in_rows(range(place.y + 1, last + 1), place.x)
            case "above":
                return self._find_in_rows(range(place.y - 1, -1, -1), place.x)
            case "page_down":
                return self._find_in_rows(range(min(place.y + page, last), place.y, -1), place.x)
            case "page_up":
                return self._find_in_rows(range(max(place.y - page, 0), place.y), place.x)
            case "first":
                return self._find_in_rows(range(last + 1), 0)
            case "last":
                return self._find_in_rows(range(last, -1, -1), 0)
            case _:
                return None

    def _find_in_rows(self, rows: range, x: int) -> str | None:
        for row in rows:
            if labels := self._at_row[row]:
                return min(labels, key=lambda label: abs(label[0].x - x))[1]
        return None

    def _find_nearest(self, end: int, dataset: str, place: LabelPosition) -> str | None:
        """Return the nearest dataset at one end of the edges of a dataset."""
        places = self._layout.positions
        candidates = [edge[end] for edge in self._edges if edge[1 - end] == dataset]
        return min(candidates, key=lambda node: abs(places[node].y - place.y), default=None)

    def _find_neighbour(self, dataset: str, place: LabelPosition, step: int) -> str | None:
        row = [node for _, node in self._at_row[place.y]]
        at = row.index(dataset) + step
        return row[at] if 0 <= at < len(row) else None

    def header(self) -> list[Span]:
        """Return no spans: a graph has no header."""
        return []

    def spans(self, index: int, selected: str | None, style: str) -> list[Span]:
        """Return edges and labels of a row. ``style`` is the style of the selected label."""
        line, heavy = self._layout.line(index), self._layout.heavy_cells(index, self._highlighted)
        spans: list[Span] = []
        x = 0
        labels = self._at_row[index]
        for at, (place, node) in enumerate(labels):
            spans += _edge_spans(line, heavy, x, place.x)
            limit = labels[at + 1][0].x if at + 1 < len(labels) else None
            label = self._label_spans(place, node, line, limit)
            if node == selected:
                label = [("".join(text for text, _ in label).rstrip(), style), *_trailing_blanks(label)]
            spans += label
            x = place.x + sum(cell_len(text) for text, _ in label)
        return spans + _edge_spans(line, heavy, x, len(line))

    def _label_spans(self, place: LabelPosition, node: str, line: str, limit: int | None) -> list[Span]:
        if text := self._fold_text(node):
            styles = {self.model.style(folded) for folded in self._folds[node]}
            style = next((style for style in ("bad", "warn", "busy") if style in styles), "muted")
            return [(fit_width(text, place.width), style)]
        row, style, labels = self.model.rows[node], self.model.style(node), self.model.labels(node)
        name = _format_name(row)
        lineage = "lineage" if node in self._lineage.nodes else ""
        spans = [(name[:2], "name" if row.derivative else "muted"), (name[2:], lineage)]
        if self._extra:
            spans.append((" " * (place.width - self._extra - cell_len(name + _format_signs(row)) - 2), ""))
        if remote := remotes.remote_badge(row.remotes):
            spans.append((f" {remote}", remotes.remote_badge_style(row.remotes)))
        if row.branches:
            spans.append((f" {_branch_badge(row)}", "muted"))
        spans.append((" ", ""))
        if row.untrusted:
            spans.append((UNTRUSTED, "warn"))
        if not self._extra:
            return [*spans, (_choose_label(labels, line, place.x + place.width, limit), style)]
        if node in self.model.rates:  # while a job runs, its rate replaces the number of rows
            return [*spans, (fit_width(choose_fitting(labels, self._extra + 1), self._extra + 1), style)]
        spans.append((fit_width(choose_fitting(labels, _MARK_WIDTH), _MARK_WIDTH), style))
        spans.append((right(_format_rows(row), _ROWS_WIDTH), "muted"))
        if self._extra == _EXTRAS[0]:
            spans.append((right(format_time(row.watermark)[:10], _TIME_WIDTH), "muted"))
        return spans


def kind_glyph(row: DatasetRow) -> str:
    """Return the glyph of a root or of a derivative dataset."""
    return dataset_glyph(derivative=row.derivative)


def _format_name(row: DatasetRow) -> str:
    return f"{kind_glyph(row)} {shorten_name(printable(row.name), _GRAPH_NAME_WIDTH)}"


def _format_signs(row: DatasetRow) -> str:
    """Return the signs between name and health: badges of remotes and branches, the sign for untrusted."""
    remote = remotes.remote_badge(row.remotes)
    badges = [remote] if remote else []
    badges += [_branch_badge(row)] if row.branches else []
    return "".join(f" {badge}" for badge in badges) + (UNTRUSTED if row.untrusted else "")


def _branch_badge(row: DatasetRow) -> str:
    """Return the badge of the branches of a dataset: ``⎇2`` for two."""
    return f"{BRANCH}{len(row.branches)}"


def _format_rows(row: DatasetRow) -> str:
    text = format_count(row.records)
    return text if len(text) < _ROWS_WIDTH else format_count_short(row.records)


def _trailing_blanks(label: Sequence[Span]) -> list[Span]:
    """Return the blanks at the end of a label, which the cursor does not cover."""
    text = "".join(text for text, _ in label)
    blanks = len(text) - len(text.rstrip())
    return [(" " * blanks, "")] if blanks else []


def _edge_spans(line: str, heavy: Mapping[int, str], start: int, end: int) -> list[Span]:
    spans: list[Span] = []
    for x in range(start, end):
        glyph, style = (heavy[x], "lineage") if x in heavy else (line[x], "rule")
        if spans and spans[-1][1] == style:
            spans[-1] = (spans[-1][0] + glyph, style)
        else:
            spans.append((glyph, style))
    return spans


def _choose_label(labels: Sequence[str], line: str, end: int, limit: int | None) -> str:
    """Return the longest label that fits.

    One cell belongs to the label of the dataset, which ends at ``end``. Longer labels cover the blank
    and the start of the line that follow. No line moves when a job starts.

    Args:
        labels: the labels, the longest first.
        line: the edges of the row.
        end: the first cell after the label of the dataset.
        limit: the first cell of the next label in the row, or None if absent.
    """
    strokes = len(line[end + 1 :]) - len(line[end + 1 :].lstrip("─"))  # a straight line, after a blank
    if not strokes:
        stop = len(line) if limit is None else limit
        blanks = len(line[end:stop]) - len(line[end:stop].lstrip())
        is_last = limit is None and end + blanks == stop
        return choose_fitting(labels, len(labels[0]) if is_last else max(blanks, 1))
    for at, label in enumerate(labels):
        extra = len(label) - 1
        if not extra:
            return label
        if extra < strokes:  # room for a blank and a part of the line
            return label + " "
        if (at or len(labels) == 1) and extra <= strokes + 1:  # short labels need no blank
            return label
    return labels[-1][:1]


_GAP: Final = "  "
_MARKS_WIDTH: Final = 4  # marks of lineage and kind, each with a blank
_TABLE_NAME_WIDTH: Final = 40
_INPUTS_WIDTH: Final = 60
_REMOTE_WIDTH: Final = 26
_STATE_WIDTH: Final = 13
Value = str | int | None


class _Column(msgspec.Struct, frozen=True):
    """A column of the list.

    Attributes:
        width: width in cells, or 0 if it depends on the values.
        value: returns the value that the column is sorted by.
        right_aligned: whether values are aligned to the right.
    """

    name: str
    width: int
    value: Callable[[DatasetRow, GraphModel], Value]
    right_aligned: bool = False


def _kind_value(row: DatasetRow, model: GraphModel) -> str:
    return (list_kinds(row) or ("",))[-1]


def _state_value(row: DatasetRow, model: GraphModel) -> int:
    return list(Health).index(model.health(row.id))


def _format_remote(row: DatasetRow) -> str:
    """Return the badge and the labels of the remotes of a dataset."""
    labels = ", ".join(dict.fromkeys(remote.label for remote in row.remotes))
    return printable(f"{remotes.remote_badge(row.remotes)} {labels}".strip()) if labels else ""


_COLUMNS: Final = (
    _Column("name", 0, lambda row, board: row.name.lower()),
    _Column("kind", 10, _kind_value),
    _Column("state", _STATE_WIDTH, _state_value),
    _Column("remote", 0, lambda row, board: _format_remote(row) or None),
    _Column("rows", 9, lambda row, board: row.records, right_aligned=True),
    _Column("size", 8, lambda row, board: row.size, right_aligned=True),
    _Column("blocks", 7, lambda row, board: row.blocks, right_aligned=True),
    _Column("watermark", 17, lambda row, board: row.watermark),
    _Column("last change", 13, lambda row, board: row.last_pulled),
    _Column("inputs", 0, lambda row, board: len(row.inputs) or None),
)
SORTS: Final = tuple(column.name for column in _COLUMNS)
"""The columns that the list can be sorted by."""
_REMOTE: Final = SORTS.index("remote")


class DatasetTable:
    """Draws datasets as a table.

    Attributes:
        sort: a name of :data:`SORTS`, and whether the order is reversed.
    """

    headed = True

    def __init__(self, model: GraphModel) -> None:
        self.model = model
        self.sort: tuple[str, bool] = (SORTS[0], False)
        self._columns: list[int] = []  # indices of the visible columns
        self._order: list[str] = []
        self._index: dict[str, int] = {}
        self._widths: list[int] = []
        self._lineage = LineageDrawing(DatasetLinks(), None)

    def load(self) -> None:
        """Sort the rows and compute the widths, after the model or the order changed."""
        rows, model = sorted(self.model.rows.values(), key=lambda row: row.name.lower()), self.model
        name, reverse = self.sort
        column = next(candidate for candidate in _COLUMNS if candidate.name == name)
        known = [(value, row) for row in rows if (value := column.value(row, model)) is not None]
        known.sort(key=lambda entry: entry[0], reverse=reverse)  # type: ignore[arg-type, return-value]
        known_ids = {row.id for _, row in known}
        self._order = [row.id for _, row in known] + [row.id for row in rows if row.id not in known_ids]
        self._index = {dataset: at for at, dataset in enumerate(self._order)}
        names = max((cell_len(row.name) for row in rows), default=0)
        inputs = max((cell_len(self._format_inputs(row)) for row in rows), default=0)
        remote = max((cell_len(_format_remote(row)) for row in rows), default=0)
        self._widths = [table_column.width for table_column in _COLUMNS]
        self._widths[0] = min(max(names, 12), _TABLE_NAME_WIDTH)
        self._widths[_REMOTE] = min(max(remote, 8), _REMOTE_WIDTH) if remote else 0
        self._widths[-1] = min(max(inputs, 8), _INPUTS_WIDTH)
        self._columns = [at for at, width in enumerate(self._widths) if width]

    @property
    def sorts(self) -> list[str]:
        """The names of the visible columns."""
        return [SORTS[at] for at in self._columns]

    def reveal(self, dataset: str | None) -> bool:
        """Return False: a list shows all datasets."""
        return False

    def fit(self, width: int) -> bool:
        """Return False: the width of the window does not change the drawing."""
        return False

    @property
    def size(self) -> Size:
        """Size of all lines in cells, without the header."""
        return Size(_MARKS_WIDTH + sum(self._widths) + len(_GAP) * (len(self._columns) - 1), len(self._order))

    @property
    def min_size(self) -> Size:
        """The size: no column is optional."""
        return self.size

    def highlight(self, selected: str | None) -> set[int]:
        """Mark the lineage of the selected dataset. Returns the lines to repaint."""
        before = self._lineage
        self._lineage = LineageDrawing(self.model.links, selected)
        return {self._index[node] for node in before.nodes | self._lineage.nodes if node in self._index}

    def first_dataset(self) -> str | None:
        """Return the dataset that is selected at first."""
        return next(iter(self._order), None)

    def row_of(self, dataset: str) -> int:
        """Return the line of a dataset."""
        return self._index[dataset]

    def extent_of(self, dataset: str) -> tuple[int, int]:
        """Return an empty extent: the window does not scroll sideways to a line."""
        return 0, 0

    def dataset_at(self, x: int, y: int) -> str | None:
        """Return the dataset of a line."""
        return self._order[y] if 0 <= y < len(self._order) else None

    def find_target(self, dataset: str, move: str, page: int) -> str | None:
        """Return the target dataset of a move."""
        last = len(self._order) - 1
        at = self._index[dataset]
        targets = {
            "down": at + 1, "above": at - 1, "first": 0, "last": last,
            "page_down": at + page, "page_up": at - page,
        }.get(move, at)  # fmt: skip
        return self._order[max(min(targets, last), 0)]

    def header(self) -> list[Span]:
        """Return the names of the columns, with an arrow at the one that the list is sorted by."""
        spans: list[Span] = [(" " * _MARKS_WIDTH, "head")]
        for at in self._columns:
            column, width = _COLUMNS[at], self._widths[at]
            sorts = column.name == self.sort[0]
            name = f"{column.name} ({zone_label()})" if column.name == "watermark" else column.name
            text = f"{name} {'↓' if self.sort[1] else '↑'}" if sorts else name
            cell = right(text, width) if column.right_aligned else fit_width(text, width)
            spans += [(_GAP, "head")] * bool(at) + [(cell, "strong" if sorts else "head")]
        return spans

    def spans(self, index: int, selected: str | None, style: str) -> list[Span]:
        """Return the line of a dataset."""
        row = self.model.rows[self._order[index]]
        health = self.model.health(row.id)
        is_upstream, is_downstream = row.id in self._lineage.upstream, row.id in self._lineage.downstream
        texts: Sequence[Span] = (
            (
                shorten_name(printable(row.name), self._widths[0]),
                "lineage" if is_upstream or is_downstream else "",
            ),
            (_kind_value(row, self.model), "muted"),
            (self._format_state(row, health), self.model.style(row.id)),
            (
                ellipsize_middle(_format_remote(row), self._widths[_REMOTE]),
                remotes.remote_badge_style(row.remotes),
            ),
            (format_count(row.records), ""),
            (format_bytes(row.size), "muted"),
            (format_count(row.blocks), "muted"),
            (format_time(row.watermark), "muted"),
            (format_age(row.last_pulled), "muted"),
            (self._format_inputs(row), "muted"),
        )
        mark = "<" if is_upstream else ">" if is_downstream else " "
        spans: list[Span] = [
            (f"{mark} ", "lineage"), (f"{kind_glyph(row)} ", "name" if row.derivative else "muted")
        ]  # fmt: skip
        for at in self._columns:
            column, width, (text, cell_style) = _COLUMNS[at], self._widths[at], texts[at]
            cell = right(text, width) if column.right_aligned else fit_width(text, width)
            spans += [(_GAP, "")] * bool(at) + [(cell, cell_style)]
        return spans

    def _format_state(self, row: DatasetRow, health: Health) -> str:
        labels = self.model.labels(row.id)
        if len(labels) > 1 and row.id in self.model.jobs:
            mark = choose_fitting(labels, _STATE_WIDTH - row.untrusted)
        else:
            mark = f"{WARNED if self.model.is_warned(row.id) else ''}{health.glyph} {health.word}"
        return f"{UNTRUSTED if row.untrusted else ''}{mark}"

    def _format_inputs(self, row: DatasetRow) -> str:
        return printable(", ".join(self.model.names.get(dataset, dataset) for dataset in row.inputs))
