"""Which columns feed which, as a map to walk along."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar, Final, Literal, NamedTuple

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content

from odf_engine.sql.lineage_model import TransformationType
from odf_engine.workspace.column_lineage import (
    ROWS,
    ColumnGraph,
    ColumnRef,
    ReachableColumn,
    is_source,
    source_id,
)
from odf_tui.panes.data.view import DataPane
from odf_tui.services.controller import Controller
from odf_tui.text.format import Span, ellipsize_middle, error_with_hint, fit_width, printable
from odf_tui.text.lineage_text import HOW_WORDS, SHORT, column_name, dataset_title, source_name
from odf_tui.widgets.dialogs import MOVE_KEYS, Dialog
from odf_tui.widgets.line_view import LineScroll, WrappedLines

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
        return [[(f" {printable(problem or 'no columns are known yet: there is no data')}", "warn")]]
    lines = _of_middle(shown, place) if shown.side == "middle" else _of_side(shown, here, place)
    problem = shown.graph.datasets[here.dataset].lineage.problem
    if problem:
        lines.insert(0, [(" ", ""), (f"the query could not be followed: {printable(problem)}", "warn")])
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


_BOXES: Final = {
    # Whether lines go left, right, up, down.
    (1, 1, 0, 0): "─", (1, 1, 1, 0): "┴", (1, 1, 0, 1): "┬", (1, 1, 1, 1): "┼",
    (1, 0, 1, 0): "╯", (1, 0, 0, 1): "╮", (1, 0, 1, 1): "┤",
    (0, 1, 1, 0): "╰", (0, 1, 0, 1): "╭", (0, 1, 1, 1): "├", (0, 0, 1, 1): "│",
}  # fmt: skip
_WORD: Final = 6
_NARROW: Final = 110
_MARGIN: Final = 3
"""Lines above what is scrolled to: the name of its dataset is among them."""


class ColumnMapView(LineScroll):
    """Three lists, which scroll each by itself, and what connects them."""

    headed = True

    def __init__(self) -> None:
        super().__init__(id="column-map")
        self.shown: ColumnMap | None = None
        self._tops: dict[Side, int] = {"left": 0, "middle": 0, "right": 0}

    def set(self, shown: ColumnMap) -> None:
        """Shows the columns of a dataset."""
        self.shown = shown
        self._tops = {"left": 0, "middle": 0, "right": 0}
        self.follow()

    def follow(self) -> None:
        """The cursor has moved, or there is another room."""
        if self.shown is not None:
            for side in self._tops:
                self._scroll(self.shown, side)
        self.reset()

    def on_resize(self) -> None:
        """There is another room."""
        self.follow()

    def _scroll(self, shown: ColumnMap, side: Side) -> None:
        """As little as is needed to see the cursor, and the name above it."""
        height, count = max(self.room.height, 1), len(shown.lines[side])
        top, at = self._tops[side], shown.cursor[side]
        margin = min(_MARGIN, (height - 1) // 2)
        if at < top + margin:
            top = at - margin
        elif at >= top + height - 1:
            top = at - height + 2
        self._tops[side] = max(min(top, count - height), 0)

    # --- Drawing ---

    def count(self) -> int:
        """As many lines as there is room for."""
        return self.room.height if self.shown is not None else 0

    def empty(self) -> Sequence[Sequence[Span]]:
        """Nothing is known yet."""
        return [[(" reading …", "muted")]]

    @property
    def _parts(self) -> tuple[int, int, int]:
        """Cells of a side, of what is between, and of the middle."""
        width = self.room.width
        between = 5 if width < _NARROW else 11
        side = max((width - 2 * between) // 3, 1)
        return side, between, max(width - 2 * between - 2 * side, 1)

    def header(self) -> Sequence[Span]:
        """What the lists are."""
        if self.shown is None:
            return ()
        side, between, middle = self._parts
        name = _ending(printable(self.shown.graph.datasets[self.shown.dataset].name), middle - 2)
        return [
            (fit_width(" comes from", side + between), "head"),
            (fit_width(" " + name, middle), "title"),
            (fit_width("", between) + fit_width(" goes into", side), "head"),
        ]

    def spans(self, index: int) -> Sequence[Span]:
        """A line of all three lists."""
        shown = self.shown
        if shown is None:
            return ()
        side, between, middle = self._parts
        return [
            *self._cell(shown, "left", index, side),
            self._between(shown, "left", index, between),
            *self._cell(shown, "middle", index, middle),
            self._between(shown, "right", index, between),
            *self._cell(shown, "right", index, side),
        ]

    def _line(self, shown: ColumnMap, side: Side, index: int) -> Line | None:
        at = index + self._tops[side]
        return shown.lines[side][at] if at < len(shown.lines[side]) else None

    def _cell(self, shown: ColumnMap, side: Side, index: int, width: int) -> list[Span]:
        line = self._line(shown, side, index)
        if line is None:
            return [(" " * width, "")]
        if line.heads:
            return [(fit_width(f" {_heading(shown, line.place, width - 2)}", width), "name")]
        how, style = self._look(shown, side, line.place)
        word = f"{SHORT[how]:>{_WORD}} " if how else ""
        room = width - len(word) - 2
        indent = " " if side == "middle" else "  "
        text = fit_width(
            indent + ellipsize_middle(column_name(line.place.column), room - len(indent) + 1), room + 1
        )
        if index + self._tops[side] == shown.cursor[side] and (side == shown.side or side == "middle"):
            return [(text + fit_width(word, width - room - 1), "cursor" if side == shown.side else "idle")]
        return [(text, style), (fit_width(word, width - room - 1), "" if style == "lineage" else "muted")]

    def _look(self, shown: ColumnMap, side: Side, place: ColumnRef) -> tuple[TransformationType | None, str]:
        """What is done on the way to a column, where that is to be said, and its style."""
        if side == "middle":
            links = shown.graph.inputs_of(place)
            hows: list[TransformationType] = list({link.how for link in links})
            return (hows[0] if len(hows) == 1 else None), "" if links else "muted"
        reach = shown.lit[side].get(place)
        return (None, "muted") if reach is None else (reach.how, "lineage")

    def _between(self, shown: ColumnMap, side: Side, index: int, width: int) -> Span:
        """The lines between the middle and a side: values go from the left to the right."""
        ends = {at - self._tops[side] for at in shown.connected(side)}
        if not ends:
            return " " * width, ""
        middle = shown.cursor["middle"] - self._tops["middle"]
        every = {*ends, middle}
        comes, goes = (ends, {middle}) if side == "left" else ({middle}, ends)
        key = (
            index in comes,
            index in goes,
            min(every) < index <= max(every),
            min(every) <= index < max(every),
        )
        before, after = width // 2, width - width // 2 - 2
        box = _BOXES.get((int(key[0]), int(key[1]), int(key[2]), int(key[3])), " ")
        start = "─" * before if key[0] else " " * before
        end = "─" * after + "▸" if key[1] else " " * (after + 1)
        return start + box + end, "lineage"


def _heading(shown: ColumnMap, place: ColumnRef, width: int) -> str:
    graph, name = shown.graph, shown.graph.datasets[place.dataset].name
    if is_source(place.dataset):
        own = place.dataset == source_id(shown.dataset)
        return "⇣ its source" if own else "⇣ " + _ending("source of " + printable(name), width - 2)
    if not graph.is_in_workspace(place.dataset):
        return "? " + _ending(printable(name), width - 2)
    kind = "◆" if graph.datasets[place.dataset].inputs else "◇"
    return f"{kind} {_ending(printable(name), width - 2)}"


def _ending(name: str, width: int) -> str:
    """The end of a name, which tells more than its beginning."""
    while cell_len(name) > width > 1:
        name = "…" + name.removeprefix("…")[1:]
    return name


class ColumnScreen(Dialog[str]):
    """Shows columns. Ends with the id of the dataset that was gone to.

    Args:
        dataset: its id.
        name: how it is called.
        column: the one to begin at.
        read: reads the columns of a dataset and of all around it; slow.
        copy: takes what it is and its text.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "go", "go to the dataset of the column", show=False),
        Binding("h,left", "turn(-1)", "to what it comes from", show=False),
        Binding("l,right", "turn(1)", "to what it goes into", show=False),
        Binding("o", "select", "close this, and select the dataset", show=False),
        Binding("y", "copy", "copy what is said of the column", show=False),
        Binding("J", "scroll('down')", "scroll what is said", show=False),
        Binding("K", "scroll('above')", "scroll it back", show=False),
        Binding("escape,backspace", "back", "back", show=False),
        Binding("q,number_sign", "dismiss(None)", "close", show=False),
        *MOVE_KEYS,
    ]

    def __init__(
        self,
        dataset: str,
        name: str,
        column: str | None,
        read: Callable[[str], Awaitable[ColumnGraph]],
        copy: Callable[[str, str], None],
    ) -> None:
        super().__init__()
        self._first = (dataset, column)
        self._name, self._read, self._copy = name, read, copy
        self._before: list[ColumnRef] = []

    def compose(self) -> ComposeResult:
        """The lists, and what is said of the column under the cursor."""
        with Vertical(classes="dialog reader column-lineage") as box:
            box.border_title = Content(f"Columns of {printable(self._name)}")
            yield ColumnMapView()
            yield WrappedLines(id="about-place")

    @property
    def view(self) -> ColumnMapView:
        """The lists."""
        return self.query_one(ColumnMapView)

    def on_mount(self) -> None:
        """Reads the columns."""
        self._tell_keys()
        self._open(*self._first)

    def _open(self, dataset: str, column: str | None, before: list[ColumnRef] | None = None) -> None:
        self.run_worker(self._show(dataset, column, before), group="columns", name="columns", exclusive=True)

    async def _show(self, dataset: str, column: str | None, before: list[ColumnRef] | None) -> None:
        try:
            graph = await self._read(dataset)
            shown = await asyncio.to_thread(ColumnMap, graph, dataset, column)
        except Exception as error:  # whatever it is, it is shown, and the screen lives on
            self._about.set([[(f" {error_with_hint(error)}", "bad")]])
            return
        if before is not None:
            self._before = before
        self.query_one(".dialog").border_title = Content(
            f"Columns of {printable(dataset_title(graph, dataset))}"
        )
        self.view.set(shown)
        self._moved()

    @property
    def _about(self) -> WrappedLines:
        return self.query_one("#about-place", WrappedLines)

    def _moved(self) -> None:
        if self.view.shown is not None:
            self.view.follow()
            self._about.set(words(self.view.shown))
            self._about.scroll_to(0, 0, animate=False)
        self._tell_keys()

    def _tell_keys(self) -> None:
        aside = self.view.shown is not None and self.view.shown.side != "middle"
        back = "esc back" if aside or self._before else "esc closes"
        goes = "⏎ goes there" if aside else "⏎ follows it"
        self.query_one(".dialog").border_subtitle = Content(f"j k columns · h l sides · {goes} · {back}")

    # --- Keys ---

    def action_move(self, move: str) -> None:
        """Moves the cursor."""
        if self.view.shown is not None:
            self.view.shown.move(move, max(self.view.room.height - 1, 1))
            self._moved()

    def action_turn(self, by: int) -> None:
        """To the list beside this one."""
        if self.view.shown is not None and self.view.shown.turn(by):
            self._moved()

    def action_scroll(self, move: str) -> None:
        """Scrolls what is said."""
        self._about.move(move)

    def action_go(self) -> None:
        """From the middle to what is connected; from there to its dataset."""
        shown = self.view.shown
        if shown is None:
            return
        if shown.side == "middle":
            by = -1 if shown.connected("left") else 1 if shown.connected("right") else 0
            if by:
                self.action_turn(by)
            return
        here = shown.here
        if here is None or shown.place is None:
            return
        if shown.graph.is_in_workspace(here.dataset):
            self._open(here.dataset, here.column, [*self._before, shown.place])
        else:
            why = "nothing lies before what is read" if is_source(here.dataset) else "the dataset is not here"
            self._about.set([*words(shown), [(f" {why}", "warn")]])

    def action_back(self) -> None:
        """To where one came from."""
        if self.view.shown is not None and self.view.shown.side != "middle":
            self.view.shown.side = "middle"
            self._moved()
        elif self._before:
            *before, place = self._before
            self._open(*place, before)
        else:
            self.dismiss(None)

    def action_select(self) -> None:
        """Closes, and selects the dataset."""
        shown = self.view.shown
        here = shown.here if shown is not None else None
        if shown is not None and here is not None:
            self.dismiss(here.dataset if shown.graph.is_in_workspace(here.dataset) else shown.dataset)

    def action_copy(self) -> None:
        """Copies what is said."""
        lines = ["".join(text for text, _ in line).strip() for line in self._about.source_lines]
        if lines:
            self._copy("columns", "\n".join(lines))


class ColumnLineageController(Controller):
    """Shows the column lineage of the selected dataset."""

    def show_column_lineage(self) -> None:
        """Show the columns of the selected dataset, from the column under the cursor of the data pane."""
        row = self.state.row
        if row is None:
            return

        async def read(dataset: str) -> ColumnGraph:
            return await asyncio.to_thread(self.gateway.column_graph, dataset)

        def closed(dataset: str | None) -> None:
            if dataset is not None and dataset != row.id:
                self.navigator.select_dataset(dataset)

        screen = ColumnScreen(row.id, row.name, self._column_of(row.id), read, self.host.copy_text)
        self.host.open(screen, closed)

    def _column_of(self, dataset: str) -> str | None:
        """Return the column under the cursor, if the data pane has the focus and shows all rows."""
        pane = self.host.widget(DataPane)
        if self.state.pane != "data" or pane.window is None or not pane.shows(dataset):
            return None
        names = pane.window.columns.names
        return names[pane.view.column] if pane.view.column < len(names) else None
