"""A dataset's columns between those that feed them and those that they feed, and which of all are lit."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from odf_engine.sql.lineage_model import TransformationType
from odf_engine.workspace.column_lineage import ROWS, ColumnGraph, ColumnRef, ReachableColumn, is_source
from odf_tui.columnwords import HOW_WORDS, column_name, source_name
from odf_tui.humane import plain
from odf_tui.widgets.lines import Span

Side = Literal["left", "middle", "right"]
SIDES: Final[tuple[Side, ...]] = ("left", "middle", "right")

_SYSTEM: Final = ("offset", "op", "system_time", "event_time")


class Line(NamedTuple):
    """A column, or the dataset whose columns follow."""

    place: ColumnRef
    heads: bool = False


class ColumnMap:
    """The three lists.

    Attributes:
        graph: all columns.
        dataset: whose columns stand in the middle.
        lines: the three lists.
        cursor: the number of a line in each.
        side: where the keys go.
        lit: in the lists at the sides, what is connected with the column in the middle.
    """

    def __init__(self, graph: ColumnGraph, dataset: str, column: str | None = None) -> None:
        self.graph, self.dataset = graph, dataset
        columns = graph.datasets[dataset].columns
        middle = [Line(ColumnRef(dataset, each)) for each in columns]
        if graph.inputs_of(ColumnRef(dataset, ROWS)):
            middle.append(Line(ColumnRef(dataset, ROWS)))
        self.side: Side = "middle"
        self.lines: dict[Side, list[Line]] = {
            "left": self._side(graph.upstream(*(line.place for line in middle))),
            "middle": middle,
            "right": self._side(graph.downstream(*(line.place for line in middle))),
        }
        names = [line.place.column for line in middle]
        begin = next((at for at, name in enumerate(names) if name.casefold() not in _SYSTEM), 0)
        self.cursor: dict[Side, int] = {"left": 0, "middle": begin, "right": 0}
        if column in names:
            self.cursor["middle"] = names.index(column)
        self.lit: dict[Side, dict[ColumnRef, ReachableColumn]] = {}
        self._connected: dict[Side, list[int]] = {"left": [], "right": []}
        self._light()

    def _side(self, found: dict[ColumnRef, ReachableColumn]) -> list[Line]:
        """Datasets, nearest first, each with those columns that are connected with any in the middle."""
        steps: dict[str, int] = {}
        places: dict[str, set[str]] = {}
        for place, reach in found.items():
            steps[place.dataset] = min(steps.get(place.dataset, reach.steps), reach.steps)
            places.setdefault(place.dataset, set()).add(place.column)
        lines: list[Line] = []
        for dataset in sorted(steps, key=steps.__getitem__):
            if dataset == self.dataset:  # a circle, which only a damaged chain can have
                continue
            lines.append(Line(ColumnRef(dataset, ""), heads=True))
            names = [*self.graph.datasets[dataset].columns, ROWS]
            lines += [Line(ColumnRef(dataset, name)) for name in names if name in places[dataset]]
        return lines

    def _light(self) -> None:
        place = self.place
        self.lit = {
            "left": self.graph.upstream(place) if place else {},
            "right": self.graph.downstream(place) if place else {},
        }
        for side, lit in self.lit.items():
            lines = enumerate(self.lines[side])
            self._connected[side] = [at for at, line in lines if not line.heads and line.place in lit]
            self.cursor[side] = self._connected[side][0] if self._connected[side] else self._first(side)

    def _first(self, side: Side) -> int:
        return next((at for at, line in enumerate(self.lines[side]) if not line.heads), 0)

    def connected(self, side: Side) -> list[int]:
        """The numbers of the lines of a side that are lit."""
        return self._connected[side]

    @property
    def place(self) -> ColumnRef | None:
        """The column in the middle that the cursor is on."""
        middle = self.lines["middle"]
        return middle[self.cursor["middle"]].place if middle else None

    @property
    def here(self) -> ColumnRef | None:
        """What the cursor is on, at whatever side."""
        lines = self.lines[self.side]
        return lines[self.cursor[self.side]].place if lines else None

    # --- Moving ---

    def move(self, move: str, page: int) -> None:
        """Moves by one of ``lines.MOVES``: at the sides over what is lit, if anything is."""
        lines = self.lines[self.side]
        stops = [at for at, line in enumerate(lines) if not line.heads]
        if self.side != "middle":
            stops = self.connected(self.side) or stops
        if not stops:
            return
        at = stops.index(self.cursor[self.side]) if self.cursor[self.side] in stops else 0
        target = {
            "down": at + 1, "above": at - 1, "first": 0, "last": len(stops) - 1,
            "page_down": at + page, "page_up": at - page,
        }.get(move, at)  # fmt: skip
        self.cursor[self.side] = stops[max(min(target, len(stops) - 1), 0)]
        if self.side == "middle":
            self._light()

    def turn(self, by: int) -> bool:
        """Goes to the next list, if there is anything in it."""
        at = SIDES.index(self.side) + by
        if not 0 <= at < len(SIDES) or not self.lines[SIDES[at]]:
            return False
        self.side = SIDES[at]
        return True


# --- Words ---


def words(shown: ColumnMap) -> list[list[Span]]:
    """All about what the cursor is on."""
    here, place = shown.here, shown.place
    if here is None or place is None:
        problem = shown.graph.datasets[shown.dataset].lineage.problem
        return [[(f" {plain(problem or 'no columns are known yet: there is no data')}", "warn")]]
    lines = _of_middle(shown, place) if shown.side == "middle" else _of_side(shown, here, place)
    problem = shown.graph.datasets[here.dataset].lineage.problem
    if problem:
        lines.insert(0, [(" ", ""), (f"the query could not be followed: {plain(problem)}", "warn")])
    return lines


def _of_middle(shown: ColumnMap, place: ColumnRef) -> list[list[Span]]:
    graph = shown.graph
    lines: list[list[Span]] = []
    said = "comes from"
    for link in graph.inputs_of(place):
        lines.append([(f" {said:<11}", "muted"), *_named(graph, link.source), *_how(link.how)])
        said = ""
    said = "goes into"
    for link in graph.outputs_of(place):
        lines.append([(f" {said:<11}", "muted"), *_named(graph, link.target), *_how(link.how)])
        said = ""
    if not graph.inputs_of(place):
        lines.insert(0, [(" comes from ", "muted"), (_from_nothing(shown, place), "")])
    if not graph.outputs_of(place) and place.column != ROWS:
        lines.append([(" goes into  ", "muted"), ("nothing here", "")])
    return lines


def _from_nothing(shown: ColumnMap, place: ColumnRef) -> str:
    if place.column.casefold() in _SYSTEM:
        return "no other column: the dataset makes it itself"
    return "no other column: it is a constant, counts rows, or what it was read from is not known"


def _of_side(shown: ColumnMap, here: ColumnRef, place: ColumnRef) -> list[list[Span]]:
    graph = shown.graph
    reach = shown.lit[shown.side].get(here)
    said = _named(graph, here)
    if reach is None:
        return [[(" ", ""), *said, (" has no part in ", "muted"), (column_name(place.column), "")]]
    far = "" if reach.steps == 1 else f", {reach.steps} datasets away"
    order = ("goes into", "comes from") if shown.side == "left" else ("comes from", "goes into")
    lines: list[list[Span]] = [
        [(" ", ""), *said],
        [
            (f" {order[0]:<11}", "muted"),
            (column_name(place.column), "strong"),
            *_how(reach.how),
            (far, "muted"),
        ],
    ]
    if not graph.is_in_workspace(here.dataset) and not is_source(here.dataset):
        lines.append([(" ", ""), ("this dataset is not here: pull it to see further", "warn")])
    return lines


def _named(graph: ColumnGraph, place: ColumnRef) -> list[Span]:
    return [(source_name(graph, place.dataset) + ": ", ""), (column_name(place.column), "strong")]


def _how(how: TransformationType) -> list[Span]:
    return [(f" – {HOW_WORDS[how]}", "muted")]
