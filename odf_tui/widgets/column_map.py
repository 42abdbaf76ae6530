"""Draws the columns of a dataset, and lines to those that are connected with the one under the cursor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.cells import cell_len

from odf_engine.sql.lineage_model import TransformationType
from odf_engine.workspace.column_lineage import ColumnRef, is_source, source_id
from odf_tui.columnmap import ColumnMap, Line, Side
from odf_tui.columnwords import SHORT, column_name
from odf_tui.humane import clip, plain, shorten
from odf_tui.widgets.lines import LineScroll, Span

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
        name = _ending(plain(self.shown.graph.datasets[self.shown.dataset].name), middle - 2)
        return [
            (clip(" comes from", side + between), "head"),
            (clip(" " + name, middle), "title"),
            (clip("", between) + clip(" goes into", side), "head"),
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
            return [(clip(f" {_heading(shown, line.place, width - 2)}", width), "name")]
        how, style = self._look(shown, side, line.place)
        word = f"{SHORT[how]:>{_WORD}} " if how else ""
        room = width - len(word) - 2
        indent = " " if side == "middle" else "  "
        text = clip(indent + shorten(column_name(line.place.column), room - len(indent) + 1), room + 1)
        if index + self._tops[side] == shown.cursor[side] and (side == shown.side or side == "middle"):
            return [(text + clip(word, width - room - 1), "cursor" if side == shown.side else "idle")]
        return [(text, style), (clip(word, width - room - 1), "" if style == "lineage" else "muted")]

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
        return "⇣ its source" if own else "⇣ " + _ending("source of " + plain(name), width - 2)
    if not graph.is_in_workspace(place.dataset):
        return "? " + _ending(plain(name), width - 2)
    kind = "◆" if graph.datasets[place.dataset].inputs else "◇"
    return f"{kind} {_ending(plain(name), width - 2)}"


def _ending(name: str, width: int) -> str:
    """The end of a name, which tells more than its beginning."""
    while cell_len(name) > width > 1:
        name = "…" + name.removeprefix("…")[1:]
    return name
