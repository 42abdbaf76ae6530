"""ColumnLineageController: shows the upstream and downstream columns of a dataset."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar, Final, Literal, NamedTuple

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content

from odf_engine.api import (
    ROWS,
    ColumnGraph,
    ColumnRef,
    ReachableColumn,
    TransformationType,
    is_source,
    source_id,
)
from odf_engine.api.text import printable
from odf_tui.panes.data.view import DataPane
from odf_tui.services.controller import Controller
from odf_tui.state import typed_keys
from odf_tui.text.format import Span, dataset_glyph, ellipsize_middle, error_with_hint, fit_width
from odf_tui.text.lineage_text import HOW_WORDS, SHORT, column_name, dataset_title, source_name
from odf_tui.widgets.dialogs import MOVE_KEYS, Dialog
from odf_tui.widgets.line_view import LineScroll, WrappedLines

Side = Literal["left", "middle", "right"]
SIDES: Final[tuple[Side, ...]] = ("left", "middle", "right")
_SYSTEM: Final = ("offset", "op", "system_time", "event_time")


class LineageLine(NamedTuple):
    """A column, or the heading of a dataset."""

    ref: ColumnRef
    is_heading: bool = False


class ColumnMap:
    """Three lists of columns: upstream, of a dataset, downstream.

    Attributes:
        graph: all columns.
        dataset: id of the dataset in the middle.
        lines: the three lists.
        cursor: index of a line in each list.
        side: the list with the cursor.
        reachable: for both sides the columns that are connected to the column in the middle.
    """

    def __init__(self, graph: ColumnGraph, dataset: str, column: str | None = None) -> None:
        self.graph, self.dataset = graph, dataset
        columns = graph.datasets[dataset].columns
        middle = [LineageLine(ColumnRef(dataset, name)) for name in columns]
        if graph.inputs_of(ColumnRef(dataset, ROWS)):
            middle.append(LineageLine(ColumnRef(dataset, ROWS)))
        self.side: Side = "middle"
        self.lines: dict[Side, list[LineageLine]] = {
            "left": self._side(graph.upstream(*(line.ref for line in middle))),
            "middle": middle,
            "right": self._side(graph.downstream(*(line.ref for line in middle))),
        }
        names = [line.ref.column for line in middle]
        begin = next((at for at, name in enumerate(names) if name.casefold() not in _SYSTEM), 0)
        self.cursor: dict[Side, int] = {"left": 0, "middle": begin, "right": 0}
        if column in names:
            self.cursor["middle"] = names.index(column)
        self.reachable: dict[Side, dict[ColumnRef, ReachableColumn]] = {}
        self._connected: dict[Side, list[int]] = {"left": [], "right": []}
        self._update_reachable()

    def _side(self, reachable: dict[ColumnRef, ReachableColumn]) -> list[LineageLine]:
        """Return datasets, nearest first, with their columns that are connected with the middle."""
        steps: dict[str, int] = {}
        columns_by_dataset: dict[str, set[str]] = {}
        for ref, reach in reachable.items():
            steps[ref.dataset] = min(steps.get(ref.dataset, reach.steps), reach.steps)
            columns_by_dataset.setdefault(ref.dataset, set()).add(ref.column)
        lines: list[LineageLine] = []
        for dataset in sorted(steps, key=steps.__getitem__):
            if dataset == self.dataset:  # a cycle, which only a damaged chain has
                continue
            lines.append(LineageLine(ColumnRef(dataset, ""), is_heading=True))
            names = [*self.graph.datasets[dataset].columns, ROWS]
            lines += [
                LineageLine(ColumnRef(dataset, name)) for name in names if name in columns_by_dataset[dataset]
            ]
        return lines

    def _update_reachable(self) -> None:
        ref = self.ref
        self.reachable = {
            "left": self.graph.upstream(ref) if ref else {},
            "right": self.graph.downstream(ref) if ref else {},
        }
        for side, reachable in self.reachable.items():
            lines = enumerate(self.lines[side])
            self._connected[side] = [
                at for at, line in lines if not line.is_heading and line.ref in reachable
            ]
            self.cursor[side] = self._connected[side][0] if self._connected[side] else self._first(side)

    def _first(self, side: Side) -> int:
        return next((at for at, line in enumerate(self.lines[side]) if not line.is_heading), 0)

    def connected(self, side: Side) -> list[int]:
        """Return the indices of the connected lines of a side."""
        return self._connected[side]

    @property
    def ref(self) -> ColumnRef | None:
        """The column under the cursor of the middle list, or None without columns."""
        middle = self.lines["middle"]
        return middle[self.cursor["middle"]].ref if middle else None

    @property
    def current(self) -> ColumnRef | None:
        """The column under the cursor of the current list, or None in an empty list."""
        lines = self.lines[self.side]
        return lines[self.cursor[self.side]].ref if lines else None

    def move(self, move: str, page: int) -> None:
        """Move by one of ``line_view.MOVES``. Sides skip columns that are not connected, if any is."""
        lines = self.lines[self.side]
        stops = [at for at, line in enumerate(lines) if not line.is_heading]
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
            self._update_reachable()

    def change_side(self, by: int) -> bool:
        """Move to the next list. Returns False if that list is absent or empty."""
        at = SIDES.index(self.side) + by
        if not 0 <= at < len(SIDES) or not self.lines[SIDES[at]]:
            return False
        self.side = SIDES[at]
        return True


def description_lines(shown: ColumnMap) -> list[list[Span]]:
    """Return the description of the column under the cursor."""
    current, ref = shown.current, shown.ref
    if current is None or ref is None:
        problem = shown.graph.datasets[shown.dataset].lineage.problem
        return [[(f" {printable(problem or 'no columns yet: the dataset has no data')}", "warn")]]
    lines = _middle_lines(shown, ref) if shown.side == "middle" else _side_lines(shown, current, ref)
    problem = shown.graph.datasets[current.dataset].lineage.problem
    if problem:
        lines.insert(0, [(" ", ""), (f"cannot trace the query: {printable(problem)}", "warn")])
    return lines


def _middle_lines(shown: ColumnMap, ref: ColumnRef) -> list[list[Span]]:
    graph = shown.graph
    lines: list[list[Span]] = []
    label = "upstream"
    for link in graph.inputs_of(ref):
        lines.append(
            [(f" {label:<11}", "muted"), *_column_spans(graph, link.source), *_transformation_spans(link.how)]
        )
        label = ""
    label = "downstream"
    for link in graph.outputs_of(ref):
        lines.append(
            [(f" {label:<11}", "muted"), *_column_spans(graph, link.target), *_transformation_spans(link.how)]
        )
        label = ""
    if not graph.inputs_of(ref):
        lines.insert(0, [(" upstream   ", "muted"), (_no_input_text(shown, ref), "")])
    if not graph.outputs_of(ref) and ref.column != ROWS:
        lines.append([(" downstream ", "muted"), ("none in this workspace", "")])
    return lines


def _no_input_text(shown: ColumnMap, ref: ColumnRef) -> str:
    if ref.column.casefold() in _SYSTEM:
        return "none: set by the dataset"
    return "none: a constant, a row count, or an unknown column"


def _side_lines(shown: ColumnMap, current: ColumnRef, ref: ColumnRef) -> list[list[Span]]:
    graph = shown.graph
    reach = shown.reachable[shown.side].get(current)
    label = _column_spans(graph, current)
    if reach is None:
        return [[(" ", ""), *label, (" is not connected to ", "muted"), (column_name(ref.column), "")]]
    distance = "" if reach.steps == 1 else f", {reach.steps} datasets away"
    relation = "used in" if shown.side == "left" else "depends on"
    lines: list[list[Span]] = [
        [(" ", ""), *label],
        [
            (f" {relation:<11}", "muted"),
            (column_name(ref.column), "strong"),
            *_transformation_spans(reach.how),
            (distance, "muted"),
        ],
    ]
    if not graph.is_in_workspace(current.dataset) and not is_source(current.dataset):
        lines.append([(" ", ""), ("this dataset is missing: pull it to see its lineage", "warn")])
    return lines


def _column_spans(graph: ColumnGraph, ref: ColumnRef) -> list[Span]:
    return [(source_name(graph, ref.dataset) + ": ", ""), (column_name(ref.column), "strong")]


def _transformation_spans(how: TransformationType) -> list[Span]:
    return [(f" – {HOW_WORDS[how]}", "muted")]


_BOXES: Final = {
    # Whether there are lines to the left, right, up, down.
    (1, 1, 0, 0): "─", (1, 1, 1, 0): "┴", (1, 1, 0, 1): "┬", (1, 1, 1, 1): "┼",
    (1, 0, 1, 0): "╯", (1, 0, 0, 1): "╮", (1, 0, 1, 1): "┤",
    (0, 1, 1, 0): "╰", (0, 1, 0, 1): "╭", (0, 1, 1, 1): "├", (0, 0, 1, 1): "│",
}  # fmt: skip
_WORD_WIDTH: Final = 6
_NARROW: Final = 110
_MARGIN: Final = 3
"""Lines that stay visible above the cursor, for the heading of its dataset."""


class ColumnMapView(LineScroll):
    """Shows the three lists, each with its own scroll position, and the lines between them."""

    headed = True

    def __init__(self) -> None:
        super().__init__(id="column-map")
        self.shown: ColumnMap | None = None
        self._tops: dict[Side, int] = {"left": 0, "middle": 0, "right": 0}

    def set(self, shown: ColumnMap) -> None:
        """Show the columns of a dataset."""
        self.shown = shown
        self._tops = {"left": 0, "middle": 0, "right": 0}
        self.follow()

    def follow(self) -> None:
        """Scroll to the cursors, after a move or a resize."""
        if self.shown is not None:
            for side in self._tops:
                self._scroll(self.shown, side)
        self.reset()

    def on_resize(self) -> None:
        """Scroll to the cursors."""
        self.follow()

    def _scroll(self, shown: ColumnMap, side: Side) -> None:
        """Scroll a list as little as needed to show its cursor and the heading above it."""
        height, count = max(self.room.height, 1), len(shown.lines[side])
        top, at = self._tops[side], shown.cursor[side]
        margin = min(_MARGIN, (height - 1) // 2)
        if at < top + margin:
            top = at - margin
        elif at >= top + height - 1:
            top = at - height + 2
        self._tops[side] = max(min(top, count - height), 0)

    def count(self) -> int:
        """Return the number of lines: the height of the view."""
        return self.room.height if self.shown is not None else 0

    def empty(self) -> Sequence[Sequence[Span]]:
        """Return the text that is shown while the columns are read."""
        return [[(" reading …", "muted")]]

    @property
    def _parts(self) -> tuple[int, int, int]:
        """The widths in cells of a side, of the gap, and of the middle."""
        width = self.room.width
        between = 5 if width < _NARROW else 11
        side = max((width - 2 * between) // 3, 1)
        return side, between, max(width - 2 * between - 2 * side, 1)

    def header(self) -> Sequence[Span]:
        """Return the titles of the lists."""
        if self.shown is None:
            return ()
        side, between, middle = self._parts
        name = _ellipsize_start(printable(self.shown.graph.datasets[self.shown.dataset].name), middle - 2)
        return [
            (fit_width(" upstream", side + between), "head"),
            (fit_width(" " + name, middle), "title"),
            (fit_width("", between) + fit_width(" downstream", side), "head"),
        ]

    def spans(self, index: int) -> Sequence[Span]:
        """Return a line of all three lists."""
        shown = self.shown
        if shown is None:
            return ()
        side, between, middle = self._parts
        return [
            *self._cell(shown, "left", index, side),
            self._connector_span(shown, "left", index, between),
            *self._cell(shown, "middle", index, middle),
            self._connector_span(shown, "right", index, between),
            *self._cell(shown, "right", index, side),
        ]

    def _line(self, shown: ColumnMap, side: Side, index: int) -> LineageLine | None:
        at = index + self._tops[side]
        return shown.lines[side][at] if at < len(shown.lines[side]) else None

    def _cell(self, shown: ColumnMap, side: Side, index: int, width: int) -> list[Span]:
        line = self._line(shown, side, index)
        if line is None:
            return [(" " * width, "")]
        if line.is_heading:
            return [(fit_width(f" {_heading(shown, line.ref, width - 2)}", width), "name")]
        how, style = self._cell_style(shown, side, line.ref)
        word = f"{SHORT[how]:>{_WORD_WIDTH}} " if how else ""
        room = width - len(word) - 2
        indent = " " if side == "middle" else "  "
        text = fit_width(
            indent + ellipsize_middle(column_name(line.ref.column), room - len(indent) + 1), room + 1
        )
        if index + self._tops[side] == shown.cursor[side] and (side == shown.side or side == "middle"):
            return [(text + fit_width(word, width - room - 1), "cursor" if side == shown.side else "idle")]
        return [(text, style), (fit_width(word, width - room - 1), "" if style == "lineage" else "muted")]

    def _cell_style(
        self, shown: ColumnMap, side: Side, ref: ColumnRef
    ) -> tuple[TransformationType | None, str]:
        """Return the transformation to show at a column, if any, and its style."""
        if side == "middle":
            links = shown.graph.inputs_of(ref)
            hows: list[TransformationType] = list({link.how for link in links})
            return (hows[0] if len(hows) == 1 else None), "" if links else "muted"
        reach = shown.reachable[side].get(ref)
        return (None, "muted") if reach is None else (reach.how, "lineage")

    def _connector_span(self, shown: ColumnMap, side: Side, index: int, width: int) -> Span:
        """Return the connector between the middle and a side. Values flow from left to right."""
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


def _heading(shown: ColumnMap, ref: ColumnRef, width: int) -> str:
    graph, name = shown.graph, shown.graph.datasets[ref.dataset].name
    if is_source(ref.dataset):
        own = ref.dataset == source_id(shown.dataset)
        return "⇣ its source" if own else "⇣ " + _ellipsize_start("source of " + printable(name), width - 2)
    if not graph.is_in_workspace(ref.dataset):
        return "? " + _ellipsize_start(printable(name), width - 2)
    kind = dataset_glyph(derivative=bool(graph.datasets[ref.dataset].inputs))
    return f"{kind} {_ellipsize_start(printable(name), width - 2)}"


def _ellipsize_start(name: str, width: int) -> str:
    """Truncate a name at its start, because its end is more significant."""
    while cell_len(name) > width > 1:
        name = "…" + name.removeprefix("…")[1:]
    return name


class ColumnScreen(Dialog[str]):
    """Shows column lineage. Returns the id of a dataset to select, or None.

    Args:
        dataset: id of the dataset.
        name: name of the dataset.
        column: the column to begin at, or None for the first column of the data.
        read: reads the columns around a dataset.
        copy: called with a label and the text to copy.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "go", "go to the dataset of the column", show=False),
        Binding("h,left", "turn(-1)", "go upstream", show=False),
        Binding("l,right", "turn(1)", "go downstream", show=False),
        Binding("o", "select", "close, and select the dataset", show=False),
        Binding("y", "copy", "copy the description", show=False),
        Binding("J", "scroll('down')", "scroll the description down", show=False),
        Binding("K", "scroll('above')", "scroll the description up", show=False),
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
        """Yield the lists and the description of a column."""
        with Vertical(classes="dialog reader column-lineage") as box:
            box.border_title = Content(f"Column lineage of {printable(self._name)}")
            yield ColumnMapView()
            yield WrappedLines(id="about-place")

    @property
    def view(self) -> ColumnMapView:
        """The lists."""
        return self.query_one(ColumnMapView)

    def on_mount(self) -> None:
        """Read the columns."""
        self._show_keys()
        typed_keys.hold(self)
        self._open(*self._first)

    def _open(self, dataset: str, column: str | None, before: list[ColumnRef] | None = None) -> None:
        self.run_worker(self._show(dataset, column, before), group="columns", name="columns", exclusive=True)

    async def _show(self, dataset: str, column: str | None, before: list[ColumnRef] | None) -> None:
        try:
            graph = await self._read(dataset)
            shown = await asyncio.to_thread(ColumnMap, graph, dataset, column)
        except Exception as error:  # any error is shown, and the screen stays open
            self._description.set([[(f" {error_with_hint(error)}", "bad")]])
            return
        finally:
            typed_keys.release(self)
        if before is not None:
            self._before = before
        self.query_one(".dialog").border_title = Content(
            f"Column lineage of {printable(dataset_title(graph, dataset))}"
        )
        self.view.set(shown)
        self._moved()

    @property
    def _description(self) -> WrappedLines:
        return self.query_one("#about-place", WrappedLines)

    def _moved(self) -> None:
        if self.view.shown is not None:
            self.view.follow()
            self._description.set(description_lines(self.view.shown))
            self._description.scroll_to(0, 0, animate=False)
        self._show_keys()

    def _show_keys(self) -> None:
        aside = self.view.shown is not None and self.view.shown.side != "middle"
        back = "esc back" if aside or self._before else "esc closes"
        goes = "⏎ goes there" if aside else "⏎ follows it"
        self.query_one(".dialog").border_subtitle = Content(f"j k columns · h l sides · {goes} · {back}")

    def action_move(self, move: str) -> None:
        """Move the cursor."""
        if self.view.shown is not None:
            self.view.shown.move(move, max(self.view.room.height - 1, 1))
            self._moved()

    def action_turn(self, by: int) -> None:
        """Move to the list on the left or right."""
        if self.view.shown is not None and self.view.shown.change_side(by):
            self._moved()

    def action_scroll(self, move: str) -> None:
        """Scroll the description."""
        self._description.move(move)

    def action_go(self) -> None:
        """Move from the middle to a connected column, or from there to its dataset."""
        shown = self.view.shown
        if shown is None:
            return
        if shown.side == "middle":
            by = -1 if shown.connected("left") else 1 if shown.connected("right") else 0
            if by:
                self.action_turn(by)
            return
        current = shown.current
        if current is None or shown.ref is None:
            return
        if shown.graph.is_in_workspace(current.dataset):
            self._open(current.dataset, current.column, [*self._before, shown.ref])
        else:
            is_read_source = is_source(current.dataset)
            why = "a source has no upstream" if is_read_source else "the dataset is not in this workspace"
            self._description.set([*description_lines(shown), [(f" {why}", "warn")]])

    def action_back(self) -> None:
        """Return to the middle, or to the previous dataset, or close."""
        if self.view.shown is not None and self.view.shown.side != "middle":
            self.view.shown.side = "middle"
            self._moved()
        elif self._before:
            *before, ref = self._before
            self._open(*ref, before)
        else:
            self.dismiss(None)

    def action_select(self) -> None:
        """Close, and select the dataset."""
        shown = self.view.shown
        current = shown.current if shown is not None else None
        if shown is not None and current is not None:
            self.dismiss(current.dataset if shown.graph.is_in_workspace(current.dataset) else shown.dataset)

    def action_copy(self) -> None:
        """Copy the description."""
        lines = ["".join(text for text, _ in line).strip() for line in self._description.source_lines]
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
            return await asyncio.to_thread(self.workspace.column_graph, dataset)

        def closed(dataset: str | None) -> None:
            if dataset is not None and dataset != row.id:
                self.navigator.select_dataset(dataset)

        screen = ColumnScreen(row.id, row.name, self._column_of(row.id), read, self.host.copy_text)
        self.host.open(screen, closed)

    def _column_of(self, dataset: str) -> str | None:
        """Return the column under the cursor, if the data pane has the focus and shows all rows."""
        pane = self.host.query_one(DataPane)
        if self.state.pane != "data" or pane.window is None or not pane.is_showing(dataset):
            return None
        names = pane.window.columns.names
        return names[pane.view.column] if pane.view.column < len(names) else None
