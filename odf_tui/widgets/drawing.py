"""What pane 1 draws its datasets from, and the drawing of who feeds whom."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
from rich.cells import cell_len
from textual.geometry import Size

from odf_engine.coordinator.protocol import Job
from odf_tui import remotes
from odf_tui.dag import Layout, Place, Plan, Strokes, draw, plan
from odf_tui.humane import clip, count, moment, plain, short_count, shorten
from odf_tui.layers import Edge
from odf_tui.state import DatasetRow, Health
from odf_tui.widgets.lines import Span, right
from odf_tui.widgets.states import fitting, marks

UNTRUSTED: Final = "⊘"
_NAME_WIDTH: Final = 34
_MARK_WIDTH: Final = 6
_ROWS_WIDTH: Final = 8
_TIME_WIDTH: Final = 12
_SPARE: Final = 2  # cells at the right end, for marks that are longer than one cell
# What can stand beside a name, in cells: the longer mark and the rows; and the watermark.
_EXTRAS: Final = (_MARK_WIDTH - 1 + _ROWS_WIDTH + _TIME_WIDTH, _MARK_WIDTH - 1 + _ROWS_WIDTH)


class Board(msgspec.Struct):
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
        return marks(self.health(dataset), self.jobs.get(dataset), self.rates.get(dataset, ""))


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


class GraphDrawing:
    """Datasets as labels, and lines from each to those that it feeds."""

    headed = False

    def __init__(self, board: Board) -> None:
        self.board = board
        self._key: object = None
        self._plans: list[Plan] = []
        self._widths: dict[str, int] = {}
        self._extra = 0
        self._layout: Layout = draw([], {})
        self._at_row: list[list[tuple[Place, str]]] = []
        self._lineage = Lineage([], None)
        self._lit = Strokes([])

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
        self._lit = Strokes(self._routes(self._lineage))
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

    def _nearest(self, end: int, dataset: str, place: Place) -> str | None:
        """The nearest of those at this end of the dataset's arrows."""
        places = self._layout.places
        found = [edge[end] for edge in self.board.edges if edge[1 - end] == dataset]
        return min(found, key=lambda node: abs(places[node].y - place.y), default=None)

    def _beside(self, dataset: str, place: Place, step: int) -> str | None:
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

    def _label(self, place: Place, node: str, line: str, limit: int | None) -> list[Span]:
        row, health, found = self.board.rows[node], self.board.health(node), self.board.marks(node)
        name = _name(row)
        lineage = "lineage" if node in self._lineage.nodes else ""
        spans = [(name[:2], "name" if row.derivative else "muted"), (name[2:], lineage)]
        if self._extra:
            spans.append((" " * (place.width - self._extra - cell_len(name + _signs(row)) - 2), ""))
        if remote := remotes.mark(row.remotes):
            spans.append((f" {remote}", remotes.style(row.remotes)))
        spans.append((" ", ""))
        if row.untrusted:
            spans.append((UNTRUSTED, "warn"))
        if not self._extra:
            return [*spans, (_mark(found, line, place.x + place.width, limit), health.style)]
        if node in self.board.rates:  # for a while that says more than how many rows there are
            return [*spans, (clip(fitting(found, self._extra + 1), self._extra + 1), health.style)]
        spans.append((clip(fitting(found, _MARK_WIDTH), _MARK_WIDTH), health.style))
        spans.append((right(_rows(row), _ROWS_WIDTH), "muted"))
        if self._extra == _EXTRAS[0]:
            spans.append((right(moment(row.watermark)[:10], _TIME_WIDTH), "muted"))
        return spans


def kind_glyph(row: DatasetRow) -> str:
    """A root dataset, or one that is made from others."""
    return "◆" if row.derivative else "◇"


def _name(row: DatasetRow) -> str:
    return f"{kind_glyph(row)} {shorten(plain(row.name), _NAME_WIDTH)}"


def _signs(row: DatasetRow) -> str:
    """What stands between the name and how the dataset is: its remotes, and whether it is not trusted."""
    remote = remotes.mark(row.remotes)
    return (f" {remote}" if remote else "") + (UNTRUSTED if row.untrusted else "")


def _rows(row: DatasetRow) -> str:
    text = count(row.records)
    return text if len(text) < _ROWS_WIDTH else short_count(row.records)


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
        return fitting(found, len(found[0]) if last else max(blanks, 1))
    for at, mark in enumerate(found):
        more = len(mark) - 1
        if not more:
            return mark
        if more < strokes:  # there is room for a blank, and some of the line is left
            return mark + " "
        if (at or len(found) == 1) and more <= strokes + 1:  # short ones may stand close
            return mark
    return found[-1][:1]
