"""Draws datasets as a lineage graph or as a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec
from rich.cells import cell_len
from textual.geometry import Size

from odf_engine.coordinator.protocol import Job, Progress
from odf_tui.panes.datasets.dataset_filter import kinds_of
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
from odf_tui.text.graph_layout import Edge, LabelPosition, Layout, LineSegments, Plan, draw, plan
from odf_tui.text.job_text import fraction_done
from odf_tui.text.lineage_text import dataset_glyph

_MOST: Final = 99  # what still runs is not complete


def percent(progress: Progress) -> int | None:
    """How far a job is, from 0 to 99; None where the whole is not known."""
    part = fraction_done(progress)
    return None if part is None else min(int(part * 100), _MOST)


def health_labels(health: Health, job: Job | None, rate: str = "") -> tuple[str, ...]:
    """What can be said, the longest first; the last one is short enough for every place.

    Args:
        job: the one that runs for the dataset.
        rate: how fast that is, in words; empty where that says little.
    """
    if health is not Health.running or job is None:
        return (health.glyph,)
    glyph = health.glyph
    done = percent(job.progress)
    if done is not None:
        short = (f"{glyph} {done}%", f"{done}%", glyph)
        return (f"{glyph} {done}% · {rate}", f"{done}% {rate}", *short) if rate else short
    if job.progress.rows:
        rows = format_count_short(job.progress.rows)
        return (f"{glyph} {rows} rows", f"{glyph} {rows}", glyph)
    return (glyph,)


def first_fitting(found: Sequence[str], room: int) -> str:
    """The longest that fits into some cells."""
    return next((mark for mark in found if len(mark) <= room), found[-1][: max(room, 1)])


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

    def marks(self, dataset: str) -> tuple[str, ...]:
        """The same in cells, the longest first."""
        return health_labels(self.health(dataset), self.jobs.get(dataset), self.rates.get(dataset, ""))


class Lineage:
    """What a dataset is made of, and what is made of it."""

    def __init__(self, edges: Iterable[Edge], dataset: str | None) -> None:
        inputs: dict[str, list[str]] = {}
        outputs: dict[str, list[str]] = {}
        for source, target in edges:
            inputs.setdefault(target, []).append(source)
            outputs.setdefault(source, []).append(target)
        self.above = _closure(dataset, inputs)
        self.below = _closure(dataset, outputs)
        above, below = self.above | {dataset}, self.below | {dataset}
        self.edges = [
            (source, target)
            for source, target in edges
            if (target in above and source in self.above) or (source in below and target in self.below)
        ]

    @property
    def nodes(self) -> set[str]:
        """All of them."""
        return self.above | self.below


def _closure(start: str | None, arrows: Mapping[str, Sequence[str]]) -> set[str]:
    seen: set[str] = set()
    todo = list(arrows.get(start or "", ()))
    while todo:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            todo += arrows.get(node, ())
    return seen


class DatasetGraph:
    """Datasets as labels, and lines from each to those that it feeds."""

    headed = False

    def __init__(self, board: GraphModel) -> None:
        self.board = board
        self._key: object = None
        self._plans: list[Plan] = []
        self._widths: dict[str, int] = {}
        self._extra = 0
        self._layout: Layout = draw([], {})
        self._at_row: list[list[tuple[LabelPosition, str]]] = []
        self._lineage = Lineage([], None)
        self._lit = LineSegments([])

    def load(self) -> None:
        """The board has changed: what stands where is found anew only if names or arrows are others."""
        rows = self.board.rows
        key = [(row.id, row.name, _signs(row)) for row in rows.values()], self.board.edges
        if key == self._key:
            return
        self._key = key
        self._widths = {row.id: cell_len(_name(row) + _signs(row)) + 2 for row in rows.values()}
        self._plans = plan(self._widths, self.board.edges)
        self._extra = 0
        self._draw()

    def _draw(self) -> None:
        self._layout = draw(self._plans, self._widths, self._extra)
        self._at_row = [[] for _ in range(self._layout.height)]
        for node, place in self._layout.places.items():
            self._at_row[place.y].append((place, node))
        for found in self._at_row:
            found.sort(key=lambda each: each[0].x)

    def fit(self, width: int) -> bool:
        """Shows as much beside the names as a window has room for; whether that is something else."""
        fits = (extra for extra in _EXTRAS if self._layout.width_with(extra) <= width)
        extra = next(fits, 0) if self.board.rows else 0
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
    def least(self) -> Size:
        """Cells that it needs, with nothing beside the names."""
        return Size(self._layout.width_with(0), self._layout.height)

    def light(self, selected: str | None) -> set[int]:
        """What is made of the selected dataset, and what it is made of, stands out; the rows that change."""
        before = self._lineage
        self._lineage = Lineage(self.board.edges, selected)
        self._lit = LineSegments(self._routes(self._lineage))
        places, rows = self._layout.places, set[int]()
        for found in (before, self._lineage):
            rows |= {places[node].y for node in found.nodes if node in places}
            for _, top, _, bottom in self._routes(found):
                rows.update(range(top, bottom + 1))
        return rows

    def _routes(self, lineage: Lineage) -> dict[tuple[int, int, int, int], None]:
        routes = self._layout.routes
        return dict.fromkeys(each for edge in lineage.edges for each in routes.get(edge, ()))

    # --- Where things are ---

    def first(self) -> str | None:
        """The dataset to begin with."""
        return next((found[0][1] for found in self._at_row if found), None)

    def row_of(self, dataset: str) -> int:
        """The row of a dataset."""
        return self._layout.places[dataset].y

    def extent_of(self, dataset: str) -> tuple[int, int]:
        """Where a label starts and ends, in cells from the left."""
        place = self._layout.places[dataset]
        return place.x, place.x + place.width

    def at(self, x: int, y: int) -> str | None:
        """The dataset at a cell."""
        found = self._at_row[y] if 0 <= y < len(self._at_row) else []
        return next((node for place, node in found if place.x <= x < place.x + place.width), None)

    def target(self, dataset: str, move: str, page: int) -> str | None:
        """Where a move leads from a dataset: left and right go along the lineage."""
        place = self._layout.places[dataset]
        last = len(self._at_row) - 1
        match move:
            case "left":
                return self._nearest(0, dataset, place) or self._beside(dataset, place, -1)
            case "right":
                return self._nearest(1, dataset, place) or self._beside(dataset, place, 1)
            case "down":
                return self._in_row(range(place.y + 1, last + 1), place.x)
            case "above":
                return self._in_row(range(place.y - 1, -1, -1), place.x)
            case "page_down":
                return self._in_row(range(min(place.y + page, last), place.y, -1), place.x)
            case "page_up":
                return self._in_row(range(max(place.y - page, 0), place.y), place.x)
            case "first":
                return self._in_row(range(last + 1), 0)
            case "last":
                return self._in_row(range(last, -1, -1), 0)
            case _:
                return None

    def _in_row(self, rows: range, x: int) -> str | None:
        for row in rows:
            if found := self._at_row[row]:
                return min(found, key=lambda each: abs(each[0].x - x))[1]
        return None

    def _nearest(self, end: int, dataset: str, place: LabelPosition) -> str | None:
        """The nearest of those at this end of the dataset's arrows."""
        places = self._layout.places
        found = [edge[end] for edge in self.board.edges if edge[1 - end] == dataset]
        return min(found, key=lambda node: abs(places[node].y - place.y), default=None)

    def _beside(self, dataset: str, place: LabelPosition, step: int) -> str | None:
        row = [node for _, node in self._at_row[place.y]]
        at = row.index(dataset) + step
        return row[at] if 0 <= at < len(row) else None

    # --- Cells ---

    def header(self) -> list[Span]:
        """There is none."""
        return []

    def spans(self, index: int, selected: str | None, style: str) -> list[Span]:
        """Edges and labels of a row; ``style`` is that of the selected one."""
        line, heavy = self._layout.line(index), self._layout.heavy(index, self._lit)
        spans: list[Span] = []
        x = 0
        found = self._at_row[index]
        for at, (place, node) in enumerate(found):
            spans += _edges(line, heavy, x, place.x)
            limit = found[at + 1][0].x if at + 1 < len(found) else None
            label = self._label(place, node, line, limit)
            if node == selected:
                label = [("".join(text for text, _ in label).rstrip(), style), *_trailing(label)]
            spans += label
            x = place.x + sum(cell_len(text) for text, _ in label)
        return spans + _edges(line, heavy, x, len(line))

    def _label(self, place: LabelPosition, node: str, line: str, limit: int | None) -> list[Span]:
        row, health, found = self.board.rows[node], self.board.health(node), self.board.marks(node)
        name = _name(row)
        lineage = "lineage" if node in self._lineage.nodes else ""
        spans = [(name[:2], "name" if row.derivative else "muted"), (name[2:], lineage)]
        if self._extra:
            spans.append((" " * (place.width - self._extra - cell_len(name + _signs(row)) - 2), ""))
        if remote := remotes.remote_badge(row.remotes):
            spans.append((f" {remote}", remotes.remote_badge_style(row.remotes)))
        spans.append((" ", ""))
        if row.untrusted:
            spans.append((UNTRUSTED, "warn"))
        if not self._extra:
            return [*spans, (_mark(found, line, place.x + place.width, limit), health.style)]
        if node in self.board.rates:  # for a while that says more than how many rows there are
            return [*spans, (fit_width(first_fitting(found, self._extra + 1), self._extra + 1), health.style)]
        spans.append((fit_width(first_fitting(found, _MARK_WIDTH), _MARK_WIDTH), health.style))
        spans.append((right(_rows(row), _ROWS_WIDTH), "muted"))
        if self._extra == _EXTRAS[0]:
            spans.append((right(format_time(row.watermark)[:10], _TIME_WIDTH), "muted"))
        return spans


def kind_glyph(row: DatasetRow) -> str:
    """A root dataset, or one that is made from others."""
    return dataset_glyph(derivative=row.derivative)


def _name(row: DatasetRow) -> str:
    return f"{kind_glyph(row)} {ellipsize_middle(printable(row.name), _GRAPH_NAME_WIDTH)}"


def _signs(row: DatasetRow) -> str:
    """What stands between the name and how the dataset is: its remotes, and whether it is not trusted."""
    remote = remotes.remote_badge(row.remotes)
    return (f" {remote}" if remote else "") + (UNTRUSTED if row.untrusted else "")


def _rows(row: DatasetRow) -> str:
    text = format_count(row.records)
    return text if len(text) < _ROWS_WIDTH else format_count_short(row.records)


def _trailing(label: Sequence[Span]) -> list[Span]:
    """The blanks at the end of a label: the cursor does not cover them."""
    text = "".join(text for text, _ in label)
    blanks = len(text) - len(text.rstrip())
    return [(" " * blanks, "")] if blanks else []


def _edges(line: str, heavy: Mapping[int, str], start: int, end: int) -> list[Span]:
    spans: list[Span] = []
    for x in range(start, end):
        glyph, style = (heavy[x], "lineage") if x in heavy else (line[x], "rule")
        if spans and spans[-1][1] == style:
            spans[-1] = (spans[-1][0] + glyph, style)
        else:
            spans.append((glyph, style))
    return spans


def _mark(found: Sequence[str], line: str, end: int, limit: int | None) -> str:
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
        last = limit is None and end + blanks == stop
        return first_fitting(found, len(found[0]) if last else max(blanks, 1))
    for at, mark in enumerate(found):
        more = len(mark) - 1
        if not more:
            return mark
        if more < strokes:  # there is room for a blank, and some of the line is left
            return mark + " "
        if (at or len(found) == 1) and more <= strokes + 1:  # short ones may stand close
            return mark
    return found[-1][:1]


_GAP: Final = "  "
_LEAD: Final = 4  # lineage, kind, and a blank after each
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
    rightwards: bool = False


def _kind(row: DatasetRow, board: GraphModel) -> str:
    return (kinds_of(row) or ("",))[-1]


def _state(row: DatasetRow, board: GraphModel) -> int:
    return list(Health).index(board.health(row.id))


def _remote(row: DatasetRow) -> str:
    """Its mark, and where it comes from or goes to."""
    labels = ", ".join(dict.fromkeys(each.label for each in row.remotes))
    return printable(f"{remotes.remote_badge(row.remotes)} {labels}".strip()) if labels else ""


_COLUMNS: Final = (
    _Column("name", 0, lambda row, board: row.name.lower()),
    _Column("kind", 10, _kind),
    _Column("state", _STATE_WIDTH, _state),
    _Column("remote", 0, lambda row, board: _remote(row) or None),
    _Column("rows", 9, lambda row, board: row.records, rightwards=True),
    _Column("size", 8, lambda row, board: row.size, rightwards=True),
    _Column("blocks", 7, lambda row, board: row.blocks, rightwards=True),
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

    def __init__(self, board: GraphModel) -> None:
        self.board = board
        self.sort: tuple[str, bool] = (SORTS[0], False)
        self._columns: list[int] = []  # those that are shown
        self._order: list[str] = []
        self._at: dict[str, int] = {}
        self._widths: list[int] = []
        self._lineage = Lineage([], None)

    def load(self) -> None:
        """The board, or the order, has changed."""
        rows, board = sorted(self.board.rows.values(), key=lambda row: row.name.lower()), self.board
        name, reverse = self.sort
        column = next(each for each in _COLUMNS if each.name == name)
        known = [(value, row) for row in rows if (value := column.value(row, board)) is not None]
        known.sort(key=lambda each: each[0], reverse=reverse)  # type: ignore[arg-type, return-value]
        there = {row.id for _, row in known}
        self._order = [row.id for _, row in known] + [row.id for row in rows if row.id not in there]
        self._at = {dataset: at for at, dataset in enumerate(self._order)}
        names = max((cell_len(row.name) for row in rows), default=0)
        inputs = max((cell_len(self._inputs(row)) for row in rows), default=0)
        remote = max((cell_len(_remote(row)) for row in rows), default=0)
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
        return Size(_LEAD + sum(self._widths) + len(_GAP) * (len(self._columns) - 1), len(self._order))

    @property
    def least(self) -> Size:
        """The same: all of it has to be seen."""
        return self.size

    def light(self, selected: str | None) -> set[int]:
        """What is made of the selected dataset, and what it is made of, is marked; the lines that change."""
        before = self._lineage
        self._lineage = Lineage(self.board.edges, selected)
        return {self._at[node] for node in before.nodes | self._lineage.nodes if node in self._at}

    # --- Where things are ---

    def first(self) -> str | None:
        """The dataset to begin with."""
        return next(iter(self._order), None)

    def row_of(self, dataset: str) -> int:
        """The line of a dataset."""
        return self._at[dataset]

    def extent_of(self, dataset: str) -> tuple[int, int]:
        """A line goes through the whole window."""
        return 0, 0

    def at(self, x: int, y: int) -> str | None:
        """The dataset in a line."""
        return self._order[y] if 0 <= y < len(self._order) else None

    def target(self, dataset: str, move: str, page: int) -> str | None:
        """Where a move leads from a dataset."""
        last = len(self._order) - 1
        at = self._at[dataset]
        found = {
            "down": at + 1, "above": at - 1, "first": 0, "last": last,
            "page_down": at + page, "page_up": at - page,
        }.get(move, at)  # fmt: skip
        return self._order[max(min(found, last), 0)]

    # --- Cells ---

    def header(self) -> list[Span]:
        """The names of the columns; an arrow stands at the one that sorts."""
        spans: list[Span] = [(" " * _LEAD, "head")]
        for at in self._columns:
            column, width = _COLUMNS[at], self._widths[at]
            sorts = column.name == self.sort[0]
            text = f"{column.name} {'↓' if self.sort[1] else '↑'}" if sorts else column.name
            cell = right(text, width) if column.rightwards else fit_width(text, width)
            spans += [(_GAP, "head")] * bool(at) + [(cell, "strong" if sorts else "head")]
        return spans

    def spans(self, index: int, selected: str | None, style: str) -> list[Span]:
        """A dataset."""
        row = self.board.rows[self._order[index]]
        health = self.board.health(row.id)
        above, below = row.id in self._lineage.above, row.id in self._lineage.below
        texts: Sequence[Span] = (
            (ellipsize_middle(printable(row.name), self._widths[0]), "lineage" if above or below else ""),
            (_kind(row, self.board), "muted"),
            (self._state(row, health), health.style),
            (ellipsize_middle(_remote(row), self._widths[_REMOTE]), remotes.remote_badge_style(row.remotes)),
            (format_count(row.records), ""),
            (format_bytes(row.size), "muted"),
            (format_count(row.blocks), "muted"),
            (format_time(row.watermark), "muted"),
            (format_time(row.last_pulled), "muted"),
            (self._inputs(row), "muted"),
        )
        mark = "<" if above else ">" if below else " "
        spans: list[Span] = [
            (f"{mark} ", "lineage"), (f"{kind_glyph(row)} ", "name" if row.derivative else "muted")
        ]  # fmt: skip
        for at in self._columns:
            column, width, (text, how) = _COLUMNS[at], self._widths[at], texts[at]
            cell = right(text, width) if column.rightwards else fit_width(text, width)
            spans += [(_GAP, "")] * bool(at) + [(cell, how)]
        return spans

    def _state(self, row: DatasetRow, health: Health) -> str:
        found = self.board.marks(row.id)
        mark = (
            first_fitting(found, _STATE_WIDTH - row.untrusted)
            if len(found) > 1
            else f"{health.glyph} {health.word}"
        )
        return f"{UNTRUSTED if row.untrusted else ''}{mark}"

    def _inputs(self, row: DatasetRow) -> str:
        return printable(", ".join(self.board.names.get(each, each) for each in row.inputs))
