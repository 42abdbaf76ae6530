"""Draws datasets as a lineage graph or as a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec
from rich.cells import cell_len
from textual.geometry import Size

from odf_engine.coordinator.protocol import Job, Progress
from odf_tui.panes.datasets.dataset_filter import list_kinds
from odf_tui.state.model import UNTRUSTED, DatasetRow, Health
from odf_tui.text import remotes
from odf_tui.text.format import (
    Span,
    ellipsize_middle,
    fit_width,
    format_bytes,
    format_count,
    format_count_short,
    format_time,
    printable,
    right,
)
from odf_tui.text.graph_layout import (
    Edge,
    LabelPosition,
    Layout,
    LineSegments,
    Plan,
    draw_layout,
    plan_layout,
)
from odf_tui.text.job_text import fraction_done

_MOST: Final = 99  # what still runs is not complete


def compute_percent(progress: Progress) -> int | None:
    """How far a job is, from 0 to 99; None where the whole is not known."""
    fraction = fraction_done(progress)
    return None if fraction is None else min(int(fraction * 100), _MOST)


def list_health_labels(health: Health, job: Job | None, rate: str = "") -> tuple[str, ...]:
    """What can be said, the longest first; the last one is short enough for every place.

    Args:
        job: the one that runs for the dataset.
        rate: how fast that is, in words; empty where that says little.
    """
    if health is not Health.running or job is None:
        return (health.glyph,)
    glyph = health.glyph
    done = compute_percent(job.progress)
    if done is not None:
        short = (f"{glyph} {done}%", f"{done}%", glyph)
        return (f"{glyph} {done}% · {rate}", f"{done}% {rate}", *short) if rate else short
    if job.progress.rows:
        rows = format_count_short(job.progress.rows)
        return (f"{glyph} {rows} rows", f"{glyph} {rows}", glyph)
    return (glyph,)


def choose_fitting(labels: Sequence[str], width: int) -> str:
    """The longest that fits into some cells."""
    return next((label for label in labels if len(label) <= width), labels[-1][: max(width, 1)])


_GRAPH_NAME_WIDTH: Final = 34
_MARK_WIDTH: Final = 6
_ROWS_WIDTH: Final = 8
_TIME_WIDTH: Final = 12
_SPARE: Final = 2  # cells at the right end, for marks that are longer than one cell

# What can stand beside a name, in cells: the longer mark and the rows; and the watermark.
_EXTRAS: Final = (_MARK_WIDTH - 1 + _ROWS_WIDTH + _TIME_WIDTH, _MARK_WIDTH - 1 + _ROWS_WIDTH)


class GraphModel(msgspec.Struct):
    """The datasets that are shown, how they are, what runs for them and how fast, and who feeds whom among
    them; the names of all that there are."""

    rows: dict[str, DatasetRow] = {}
    healths: Mapping[str, Health] = {}
    jobs: Mapping[str, Job] = {}
    edges: list[Edge] = []
    names: Mapping[str, str] = {}
    rates: Mapping[str, str] = {}

    def health(self, dataset: str) -> Health:
        """How a dataset is."""
        return self.healths.get(dataset, Health.new)

    def labels(self, dataset: str) -> tuple[str, ...]:
        """The same in cells, the longest first."""
        return list_health_labels(self.health(dataset), self.jobs.get(dataset), self.rates.get(dataset, ""))


class Lineage:
    """What a dataset is made of, and what is made of it."""

    def __init__(self, edges: Iterable[Edge], dataset: str | None) -> None:
        inputs: dict[str, list[str]] = {}
        outputs: dict[str, list[str]] = {}
        for source, target in edges:
            inputs.setdefault(target, []).append(source)
            outputs.setdefault(source, []).append(target)
        self.upstream = _find_reachable(dataset, inputs)
        self.downstream = _find_reachable(dataset, outputs)
        upstream, downstream = self.upstream | {dataset}, self.downstream | {dataset}
        self.edges = [
            (source, target)
            for source, target in edges
            if (target in upstream and source in self.upstream)
            or (source in downstream and target in self.downstream)
        ]

    @property
    def nodes(self) -> set[str]:
        """All of them."""
        return self.upstream | self.downstream


def _find_reachable(start: str | None, edges: Mapping[str, Sequence[str]]) -> set[str]:
    found: set[str] = set()
    pending = list(edges.get(start or "", ()))
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            pending += edges.get(node, ())
    return found


class DatasetGraph:
    """Datasets as labels, and lines from each to those that it feeds."""

    headed = False

    def __init__(self, model: GraphModel) -> None:
        self.model = model
        self._key: object = None
        self._plans: list[Plan] = []
        self._widths: dict[str, int] = {}
        self._extra = 0
        self._layout: Layout = draw_layout([], {})
        self._at_row: list[list[tuple[LabelPosition, str]]] = []
        self._lineage = Lineage([], None)
        self._highlighted = LineSegments([])

    def load(self) -> None:
        """The board has changed: what stands where is found anew only if names or arrows are others."""
        rows = self.model.rows
        key = [(row.id, row.name, _format_signs(row)) for row in rows.values()], self.model.edges
        if key == self._key:
            return
        self._key = key
        self._widths = {row.id: cell_len(_format_name(row) + _format_signs(row)) + 2 for row in rows.values()}
        self._plans = plan_layout(self._widths, self.model.edges)
        self._extra = 0
        self._draw()

    def _draw(self) -> None:
        self._layout = draw_layout(self._plans, self._widths, self._extra)
        self._at_row = [[] for _ in range(self._layout.height)]
        for node, place in self._layout.positions.items():
            self._at_row[place.y].append((place, node))
        for found in self._at_row:
            found.sort(key=lambda each: each[0].x)

    def fit(self, width: int) -> bool:
        """Shows as much beside the names as a window has room for; whether that is something else."""
        fits = (extra for extra in _EXTRAS if self._layout.width_with(extra) <= width)
        extra = next(fits, 0) if self.model.rows else 0
        changed, self._extra = extra != self._extra, extra
        if changed:
            self._draw()
        return changed

    @property
    def size(self) -> Size:
        """Cells of the drawing."""
        spare = 0 if self._extra or not self._layout.width else _SPARE
        return Size(self._layout.width + spare, self._layout.height)

    @property
    def min_size(self) -> Size:
        """Cells that it needs, with nothing beside the names."""
        return Size(self._layout.width_with(0), self._layout.height)

    def highlight(self, selected: str | None) -> set[int]:
        """What is made of the selected dataset, and what it is made of, stands out; the rows that change."""
        before = self._lineage
        self._lineage = Lineage(self.model.edges, selected)
        self._highlighted = LineSegments(self._routes(self._lineage))
        places, rows = self._layout.positions, set[int]()
        for found in (before, self._lineage):
            rows |= {places[node].y for node in found.nodes if node in places}
            for _, top, _, bottom in self._routes(found):
                rows.update(range(top, bottom + 1))
        return rows

    def _routes(self, lineage: Lineage) -> dict[tuple[int, int, int, int], None]:
        routes = self._layout.routes
        return dict.fromkeys(each for edge in lineage.edges for each in routes.get(edge, ()))

    # --- Where things are ---

    def first_dataset(self) -> str | None:
        """The dataset to begin with."""
        return next((found[0][1] for found in self._at_row if found), None)

    def row_of(self, dataset: str) -> int:
        """The row of a dataset."""
        return self._layout.positions[dataset].y

    def extent_of(self, dataset: str) -> tuple[int, int]:
        """Where a label starts and ends, in cells from the left."""
        place = self._layout.positions[dataset]
        return place.x, place.x + place.width

    def dataset_at(self, x: int, y: int) -> str | None:
        """The dataset at a cell."""
        found = self._at_row[y] if 0 <= y < len(self._at_row) else []
        return next((node for place, node in found if place.x <= x < place.x + place.width), None)

    def find_target(self, dataset: str, move: str, page: int) -> str | None:
        """Where a move leads from a dataset: left and right go along the lineage."""
        place = self._layout.positions[dataset]
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
            if found := self._at_row[row]:
                return min(found, key=lambda each: abs(each[0].x - x))[1]
        return None

    def _find_nearest(self, end: int, dataset: str, place: LabelPosition) -> str | None:
        """The nearest of those at this end of the dataset's arrows."""
        places = self._layout.positions
        found = [edge[end] for edge in self.model.edges if edge[1 - end] == dataset]
        return min(found, key=lambda node: abs(places[node].y - place.y), default=None)

    def _find_neighbour(self, dataset: str, place: LabelPosition, step: int) -> str | None:
        row = [node for _, node in self._at_row[place.y]]
        at = row.index(dataset) + step
        return row[at] if 0 <= at < len(row) else None

    # --- Cells ---

    def header(self) -> list[Span]:
        """There is none."""
        return []

    def spans(self, index: int, selected: str | None, style: str) -> list[Span]:
        """Edges and labels of a row; ``style`` is that of the selected one."""
        line, heavy = self._layout.line(index), self._layout.heavy_cells(index, self._highlighted)
        spans: list[Span] = []
        x = 0
        found = self._at_row[index]
        for at, (place, node) in enumerate(found):
            spans += _edge_spans(line, heavy, x, place.x)
            limit = found[at + 1][0].x if at + 1 < len(found) else None
            label = self._label_spans(place, node, line, limit)
            if node == selected:
                label = [("".join(text for text, _ in label).rstrip(), style), *_trailing_blanks(label)]
            spans += label
            x = place.x + sum(cell_len(text) for text, _ in label)
        return spans + _edge_spans(line, heavy, x, len(line))

    def _label_spans(self, place: LabelPosition, node: str, line: str, limit: int | None) -> list[Span]:
        row, health, found = self.model.rows[node], self.model.health(node), self.model.labels(node)
        name = _format_name(row)
        lineage = "lineage" if node in self._lineage.nodes else ""
        spans = [(name[:2], "name" if row.derivative else "muted"), (name[2:], lineage)]
        if self._extra:
            spans.append((" " * (place.width - self._extra - cell_len(name + _format_signs(row)) - 2), ""))
        if remote := remotes.remote_badge(row.remotes):
            spans.append((f" {remote}", remotes.remote_badge_style(row.remotes)))
        spans.append((" ", ""))
        if row.untrusted:
            spans.append((UNTRUSTED, "warn"))
        if not self._extra:
            return [*spans, (_choose_label(found, line, place.x + place.width, limit), health.style)]
        if node in self.model.rates:  # for a while that says more than how many rows there are
            return [
                *spans,
                (fit_width(choose_fitting(found, self._extra + 1), self._extra + 1), health.style),
            ]
        spans.append((fit_width(choose_fitting(found, _MARK_WIDTH), _MARK_WIDTH), health.style))
        spans.append((right(_format_rows(row), _ROWS_WIDTH), "muted"))
        if self._extra == _EXTRAS[0]:
            spans.append((right(format_time(row.watermark)[:10], _TIME_WIDTH), "muted"))
        return spans


def kind_glyph(row: DatasetRow) -> str:
    """A root dataset, or one that is made from others."""
    return "◆" if row.derivative else "◇"


def _format_name(row: DatasetRow) -> str:
    return f"{kind_glyph(row)} {ellipsize_middle(printable(row.name), _GRAPH_NAME_WIDTH)}"


def _format_signs(row: DatasetRow) -> str:
    """What stands between the name and how the dataset is: its remotes, and whether it is not trusted."""
    remote = remotes.remote_badge(row.remotes)
    return (f" {remote}" if remote else "") + (UNTRUSTED if row.untrusted else "")


def _format_rows(row: DatasetRow) -> str:
    text = format_count(row.records)
    return text if len(text) < _ROWS_WIDTH else format_count_short(row.records)


def _trailing_blanks(label: Sequence[Span]) -> list[Span]:
    """The blanks at the end of a label: the cursor does not cover them."""
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
    """The longest mark for which there is room.

    One cell of it belongs to the label, which ends at ``end``. More of it goes over the blank and the
    beginning of the line that follow, so that nothing has to move when something begins to run.

    Args:
        limit: where the next label of the row starts; None: there is none.
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
        if extra < strokes:  # there is room for a blank, and some of the line is left
            return label + " "
        if (at or len(labels) == 1) and extra <= strokes + 1:  # short ones may stand close
            return label
    return labels[-1][:1]


_GAP: Final = "  "
_MARKS_WIDTH: Final = 4  # lineage, kind, and a blank after each
_TABLE_NAME_WIDTH: Final = 40
_INPUTS_WIDTH: Final = 60
_REMOTE_WIDTH: Final = 26
_STATE_WIDTH: Final = 13
Value = str | int | None


class _Column(msgspec.Struct, frozen=True):
    """A column: its name, its cells (0: as wide as what is in it), which side, and what sorts it."""

    name: str
    width: int
    value: Callable[[DatasetRow, GraphModel], Value]
    right_aligned: bool = False


def _kind_value(row: DatasetRow, model: GraphModel) -> str:
    return (list_kinds(row) or ("",))[-1]


def _state_value(row: DatasetRow, model: GraphModel) -> int:
    return list(Health).index(model.health(row.id))


def _format_remote(row: DatasetRow) -> str:
    """Its mark, and where it comes from or goes to."""
    labels = ", ".join(dict.fromkeys(each.label for each in row.remotes))
    return printable(f"{remotes.remote_badge(row.remotes)} {labels}".strip()) if labels else ""


_COLUMNS: Final = (
    _Column("name", 0, lambda row, board: row.name.lower()),
    _Column("kind", 10, _kind_value),
    _Column("state", _STATE_WIDTH, _state_value),
    _Column("remote", 0, lambda row, board: _format_remote(row) or None),
    _Column("rows", 9, lambda row, board: row.records, right_aligned=True),
    _Column("size", 8, lambda row, board: row.size, right_aligned=True),
    _Column("blocks", 7, lambda row, board: row.blocks, right_aligned=True),
    _Column("watermark", 16, lambda row, board: row.watermark),
    _Column("last pull", 16, lambda row, board: row.last_pulled),
    _Column("inputs", 0, lambda row, board: len(row.inputs) or None),
)
SORTS: Final = tuple(column.name for column in _COLUMNS)
"""What the list can be sorted by."""
_REMOTE: Final = SORTS.index("remote")


class DatasetTable:
    """A line for each dataset. ``sort`` is a name of :data:`SORTS`, and whether the other way round."""

    headed = True

    def __init__(self, model: GraphModel) -> None:
        self.model = model
        self.sort: tuple[str, bool] = (SORTS[0], False)
        self._columns: list[int] = []  # those that are shown
        self._order: list[str] = []
        self._index: dict[str, int] = {}
        self._widths: list[int] = []
        self._lineage = Lineage([], None)

    def load(self) -> None:
        """The board, or the order, has changed."""
        rows, model = sorted(self.model.rows.values(), key=lambda row: row.name.lower()), self.model
        name, reverse = self.sort
        column = next(each for each in _COLUMNS if each.name == name)
        known = [(value, row) for row in rows if (value := column.value(row, model)) is not None]
        known.sort(key=lambda each: each[0], reverse=reverse)  # type: ignore[arg-type, return-value]
        known_ids = {row.id for _, row in known}
        self._order = [row.id for _, row in known] + [row.id for row in rows if row.id not in known_ids]
        self._index = {dataset: at for at, dataset in enumerate(self._order)}
        names = max((cell_len(row.name) for row in rows), default=0)
        inputs = max((cell_len(self._format_inputs(row)) for row in rows), default=0)
        remote = max((cell_len(_format_remote(row)) for row in rows), default=0)
        self._widths = [each.width for each in _COLUMNS]
        self._widths[0] = min(max(names, 12), _TABLE_NAME_WIDTH)
        self._widths[_REMOTE] = min(max(remote, 8), _REMOTE_WIDTH) if remote else 0
        self._widths[-1] = min(max(inputs, 8), _INPUTS_WIDTH)
        self._columns = [at for at, width in enumerate(self._widths) if width]

    @property
    def sorts(self) -> list[str]:
        """What it can be sorted by: the columns that are shown."""
        return [SORTS[at] for at in self._columns]

    def fit(self, width: int) -> bool:
        """A window of another width shows other cells of the same lines."""
        return False

    @property
    def size(self) -> Size:
        """Cells of all lines, without the header."""
        return Size(_MARKS_WIDTH + sum(self._widths) + len(_GAP) * (len(self._columns) - 1), len(self._order))

    @property
    def min_size(self) -> Size:
        """The same: all of it has to be seen."""
        return self.size

    def highlight(self, selected: str | None) -> set[int]:
        """What is made of the selected dataset, and what it is made of, is marked; the lines that change."""
        before = self._lineage
        self._lineage = Lineage(self.model.edges, selected)
        return {self._index[node] for node in before.nodes | self._lineage.nodes if node in self._index}

    # --- Where things are ---

    def first_dataset(self) -> str | None:
        """The dataset to begin with."""
        return next(iter(self._order), None)

    def row_of(self, dataset: str) -> int:
        """The line of a dataset."""
        return self._index[dataset]

    def extent_of(self, dataset: str) -> tuple[int, int]:
        """A line goes through the whole window."""
        return 0, 0

    def dataset_at(self, x: int, y: int) -> str | None:
        """The dataset in a line."""
        return self._order[y] if 0 <= y < len(self._order) else None

    def find_target(self, dataset: str, move: str, page: int) -> str | None:
        """Where a move leads from a dataset."""
        last = len(self._order) - 1
        at = self._index[dataset]
        targets = {
            "down": at + 1, "above": at - 1, "first": 0, "last": last,
            "page_down": at + page, "page_up": at - page,
        }.get(move, at)  # fmt: skip
        return self._order[max(min(targets, last), 0)]

    # --- Cells ---

    def header(self) -> list[Span]:
        """The names of the columns; an arrow stands at the one that sorts."""
        spans: list[Span] = [(" " * _MARKS_WIDTH, "head")]
        for at in self._columns:
            column, width = _COLUMNS[at], self._widths[at]
            sorts = column.name == self.sort[0]
            text = f"{column.name} {'↓' if self.sort[1] else '↑'}" if sorts else column.name
            cell = right(text, width) if column.right_aligned else fit_width(text, width)
            spans += [(_GAP, "head")] * bool(at) + [(cell, "strong" if sorts else "head")]
        return spans

    def spans(self, index: int, selected: str | None, style: str) -> list[Span]:
        """A dataset."""
        row = self.model.rows[self._order[index]]
        health = self.model.health(row.id)
        is_upstream, is_downstream = row.id in self._lineage.upstream, row.id in self._lineage.downstream
        texts: Sequence[Span] = (
            (
                ellipsize_middle(printable(row.name), self._widths[0]),
                "lineage" if is_upstream or is_downstream else "",
            ),
            (_kind_value(row, self.model), "muted"),
            (self._format_state(row, health), health.style),
            (
                ellipsize_middle(_format_remote(row), self._widths[_REMOTE]),
                remotes.remote_badge_style(row.remotes),
            ),
            (format_count(row.records), ""),
            (format_bytes(row.size), "muted"),
            (format_count(row.blocks), "muted"),
            (format_time(row.watermark), "muted"),
            (format_time(row.last_pulled), "muted"),
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
        found = self.model.labels(row.id)
        mark = (
            choose_fitting(found, _STATE_WIDTH - row.untrusted)
            if len(found) > 1
            else f"{health.glyph} {health.word}"
        )
        return f"{UNTRUSTED if row.untrusted else ''}{mark}"

    def _format_inputs(self, row: DatasetRow) -> str:
        return printable(", ".join(self.model.names.get(each, each) for each in row.inputs))
