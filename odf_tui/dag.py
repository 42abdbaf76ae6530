"""A compact layout of who feeds whom: pure functions from nodes and edges to lines and positions.

Datasets stand in columns, and time flows to the right. Between two columns is a gutter with vertical
tracks, one for each dataset on its right that another row feeds. Longer edges into one dataset share
a lane. A crossing is drawn as a bridge (``─│─``), so a glyph with three arms means that lines join.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from odf_tui.layers import Component, Edge, Key, components

Cell = tuple[int, int]

_GAP = 2  # cells from one track to the next


class Place(msgspec.Struct, frozen=True):
    """Where a label starts (cells, from the upper left corner), and its layer."""

    x: int
    y: int
    layer: int


class Layout(msgspec.Struct, frozen=True):
    """A drawn graph.

    Attributes:
        lines: the edges as text, with blanks where the labels go; all of the same width.
        places: where each node's label starts.
        paths: the cells that each edge goes through; tracks and lanes are shared.
    """

    lines: tuple[str, ...]
    places: Mapping[str, Place]
    paths: Mapping[Edge, frozenset[Cell]]

    @property
    def width(self) -> int:
        """Cells from the left to the right end."""
        return len(self.lines[0]) if self.lines else 0

    @property
    def height(self) -> int:
        """Rows."""
        return len(self.lines)


def layout(widths: Mapping[str, int], edges: Iterable[Edge]) -> Layout:
    """Draws a graph; ``widths`` are the labels' widths in cells, in the order to prefer.

    Edges that name unknown nodes, loops, and edges that close a circle are left out. The same
    input always gives the same drawing.
    """
    drawing = _Drawing(widths)
    alone = False
    for part in components(widths, edges):
        single = len(part.nodes) == 1
        if drawing.top and not (single and alone):  # what stands alone stands close together
            drawing.top += 1
        alone = single
        drawing.add(part)
    return drawing.finish()


class _Track(msgspec.Struct):
    """A vertical in a gutter: its level from 0 at the left, the rows that it joins, the one it leaves by."""

    level: int
    touched: set[float]
    exit: float


_Gutter = dict[Key, list[_Track]]  # by the target that the verticals lead to


def _tracks(part: Component, index: int) -> _Gutter:
    """The verticals between column ``index`` - 1 and ``index``.

    A target whose only source is in its own row needs none. A track must lie left of another when
    one of its sources is in the other target's row: else its line would run into that target. Where
    such wishes close a circle, a target gets two tracks and a row of its own between them.
    """
    rows = part.rows
    spans: dict[Key, set[float]] = {}
    for target in part.columns[index]:
        touched = {float(rows[source]) for source in part.feeds.get(target, ())}
        if touched - {rows[target]}:
            spans[target] = touched | {rows[target]}
    entry = {rows[target]: target for target in spans}
    left_of: dict[Key, set[Key]] = {target: set() for target in spans}  # target -> what is left of it
    for target in spans:
        for source in part.feeds[target]:
            other = entry.get(rows[source])
            if other is not None and other != target:
                left_of[other].add(target)

    gutter: _Gutter = {}
    waiting = sorted(spans, key=lambda target: (min(spans[target]), max(spans[target])))
    while waiting:
        free = [target for target in waiting if left_of[target] <= gutter.keys()]
        if free:
            target = free[0]
            waiting.remove(target)
            level = max((gutter[each][0].level + 1 for each in left_of[target]), default=0)
            touched = spans[target]
            if target in gutter:
                level = max(level, gutter[target][0].level + 1)
                touched = {gutter[target][0].exit, float(rows[target])}
            _settle(gutter, target, level, touched, rows[target])
        else:
            unsplit = (target for target in waiting if target not in gutter)
            target = min(unsplit, key=lambda each: len(left_of[each] - gutter.keys()))
            touched = {float(rows[source]) for source in part.feeds[target]}
            aside = rows[target] + (0.25 if max(touched) > rows[target] else -0.25)
            _settle(gutter, target, 0, touched | {aside}, aside)
    return gutter


def _settle(gutter: _Gutter, target: Key, level: int, touched: set[float], leave: float) -> None:
    """Adds a track at the first free level from ``level``."""
    low, high = min(touched), max(touched)
    taken = {
        track.level
        for found in gutter.values()
        for track in found
        if min(track.touched) <= high and low <= max(track.touched)
    }
    while level in taken:
        level += 1
    gutter.setdefault(target, []).append(_Track(level, touched, leave))


def _whole_rows(part: Component, gutters: list[_Gutter]) -> dict[Key, int]:
    """Rows as whole numbers, once the tracks have put rows of their own between them."""
    tracks = [track for gutter in gutters for found in gutter.values() for track in found]
    used = sorted({*map(float, part.rows.values()), *(track.exit for track in tracks)})
    place = {row: index for index, row in enumerate(used)}
    for track in tracks:
        track.touched = {float(place[row]) for row in track.touched}
        track.exit = place[track.exit]
    return {key: place[float(row)] for key, row in part.rows.items()}


_GLYPHS = {
    "l": "─", "r": "─", "lr": "─", "u": "│", "d": "│", "du": "│",
    "dl": "╮", "dr": "╭", "lu": "╯", "ru": "╰",
    "dlr": "┬", "lru": "┴", "dlu": "┤", "dru": "├", "dlru": "┼",
}  # fmt: skip


class _Drawing(msgspec.Struct):
    """What has been drawn so far: cells with arms (left, right, up, down), bridges, places, paths."""

    widths: Mapping[str, int]
    top: int = 0
    width: int = 0
    arms: dict[Cell, set[str]] = {}
    bridges: set[Cell] = set()
    places: dict[str, Place] = {}
    paths: dict[Edge, frozenset[Cell]] = {}
    # For each link from one column to the next, its cells; for each key, where its line starts.
    legs: dict[tuple[Key, Key], list[Cell]] = {}
    starts: dict[Key, int] = {}

    def add(self, part: Component) -> None:
        """Draws a component below what there is."""
        gutters = [_tracks(part, index) for index in range(1, len(part.columns))]
        rows = {key: row + self.top for key, row in _whole_rows(part, gutters).items()}
        x = 0
        for index, column in enumerate(part.columns):
            if index:
                x = self._gutter(part, gutters[index - 1], index, x, rows)
            wide = max((self.widths[key[0]] for key in column if not part.is_lane(key)), default=0)
            for key in column:
                self._stand(part, key, x, wide, rows[key])
            x += wide
        self._trace(part)
        self.width = max(self.width, x)
        self.top = max(rows.values()) + 1

    def finish(self) -> Layout:
        """The drawing as text."""
        lines = [[" "] * self.width for _ in range(self.top)]
        for (x, y), arms in self.arms.items():
            lines[y][x] = "│" if (x, y) in self.bridges else _GLYPHS["".join(sorted(arms))]
        return Layout(tuple("".join(line) for line in lines), self.places, self.paths)

    def _stand(self, part: Component, key: Key, x: int, wide: int, row: int) -> None:
        """A label, or a lane across the column."""
        if part.is_lane(key):
            lane = self._across(x - 1, x + wide, row)
            for source in part.feeds[key]:
                self.legs[source, key] += lane
            self.starts[key] = x + wide
        else:
            self.places[key[0]] = Place(x, row, key[1])
            self.starts[key] = x + self.widths[key[0]] + 1  # one blank between a label and its line

    def _gutter(self, part: Component, gutter: _Gutter, index: int, x: int, rows: Mapping[Key, int]) -> int:
        """Draws the links into column ``index``, from ``x``; returns where the column starts."""
        levels = 1 + max((track.level for found in gutter.values() for track in found), default=-1)
        end = x + max(_GAP * (levels + 1) - 1, 2)
        for target in part.columns[index]:
            tracks = [
                (x + _GAP * (track.level + 1), int(track.exit) + self.top, track)
                for track in gutter.get(target, ())
            ]
            for source in part.feeds.get(target, ()):
                at, row, cells = self.starts[source], rows[source], list[Cell]()
                for bend, leave, _ in tracks:
                    cells += self._across(at, bend, row) + self._down(bend, row, leave)
                    at, row = bend, leave
                self.legs[source, target] = cells + self._across(at, end, row)
            for bend, _, track in tracks:
                between = range(int(min(track.touched)) + 1, int(max(track.touched)))
                self.bridges.update((bend, row + self.top) for row in between if row not in track.touched)
        return end + 1

    def _trace(self, part: Component) -> None:
        """Puts the links together to the paths of the edges."""
        home = {key[0]: key for column in part.columns for key in column if not part.is_lane(key)}
        for source, target in part.edges:
            before, cells = home[source], list[Cell]()
            while before != home[target]:
                after = (target, before[1] + 1)
                cells += self.legs[before, after]
                before = after
            self.paths[source, target] = frozenset(cells)

    def _across(self, left: int, right: int, row: int) -> list[Cell]:
        for x in range(left, right):
            self.arms.setdefault((x, row), set()).add("r")
            self.arms.setdefault((x + 1, row), set()).add("l")
        return [(x, row) for x in range(left, right + 1)]

    def _down(self, x: int, one: int, other: int) -> list[Cell]:
        top, bottom = min(one, other), max(one, other)
        for row in range(top, bottom):
            self.arms.setdefault((x, row), set()).add("d")
            self.arms.setdefault((x, row + 1), set()).add("u")
        return [(x, row) for row in range(top, bottom + 1)]
