"""Lays out a directed acyclic graph compactly, as lines of text."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from math import floor
from typing import Final

import msgspec

Edge = tuple[str, str]
Key = tuple[str, int]
_SWEEPS = 6


class Component(msgspec.Struct):
    """A connected part of a graph.

    Attributes:
        columns: the keys of each layer, from top to bottom.
        feeds: the keys one layer before that lead to a key.
        fed: the same, backwards.
        rows: the row of each key; within a column they ascend.
    """

    nodes: list[str]
    edges: list[Edge]
    columns: list[list[Key]] = []
    feeds: dict[Key, list[Key]] = {}
    fed: dict[Key, list[Key]] = {}
    rows: dict[Key, int] = {}

    def is_lane(self, key: Key) -> bool:
        """Whether only a line stands there."""
        return any(target[0] == key[0] for target in self.fed.get(key, ()))


def layered_components(nodes: Iterable[str], edges: Iterable[Edge]) -> list[Component]:
    """The connected parts of a graph, each with its nodes placed, those of one node last.

    Edges that name unknown nodes, loops, and edges that close a circle are left out.
    """
    parts = _split(list(nodes), _acyclic(nodes, edges))
    parts.sort(key=lambda part: len(part.nodes) == 1)
    for part in parts:
        _columns(part)
        _order(part)
        _rows(part)
    return parts


def _acyclic(nodes: Iterable[str], edges: Iterable[Edge]) -> list[Edge]:
    """The edges between known nodes, each once, without those that lead back."""
    following: dict[str, list[str]] = {node: [] for node in nodes}
    for source, target in dict.fromkeys(edges):
        if source in following and target in following and source != target:
            following[source].append(target)
    kept: list[Edge] = []
    state: dict[str, int] = {}  # 1: on the way, 2: done
    for root in following:
        if root in state:
            continue
        stack = [(root, iter(following[root]))]
        state[root] = 1
        while stack:
            node, rest = stack[-1]
            for target in rest:
                if state.get(target) != 1:
                    kept.append((node, target))
                if target not in state:
                    state[target] = 1
                    stack.append((target, iter(following[target])))
                    break
            else:
                state[node] = 2
                stack.pop()
    place = {node: index for index, node in enumerate(following)}
    return sorted(kept, key=lambda edge: (place[edge[0]], place[edge[1]]))


def _split(nodes: Sequence[str], edges: Sequence[Edge]) -> list[Component]:
    """The connected parts, in the order of their first nodes."""
    leader = {node: node for node in nodes}

    def find(node: str) -> str:
        while leader[node] != node:
            leader[node] = leader[leader[node]]
            node = leader[node]
        return node

    for source, target in edges:
        leader[find(target)] = find(source)
    parts: dict[str, Component] = {}
    for node in nodes:
        parts.setdefault(find(node), Component([], [])).nodes.append(node)
    for edge in edges:
        parts[find(edge[0])].edges.append(edge)
    return list(parts.values())


def _layers(part: Component) -> dict[str, int]:
    """Longest path from the roots; then each root right before its first consumer."""
    sources: dict[str, list[str]] = {node: [] for node in part.nodes}
    targets: dict[str, list[str]] = {node: [] for node in part.nodes}
    for source, target in part.edges:
        sources[target].append(source)
        targets[source].append(target)
    waiting = {node: len(found) for node, found in sources.items()}
    ready = [node for node in part.nodes if not waiting[node]]
    layer = dict.fromkeys(ready, 0)
    for node in ready:  # grows while it is walked
        for target in targets[node]:
            layer[target] = max(layer.get(target, 0), layer[node] + 1)
            waiting[target] -= 1
            if not waiting[target]:
                ready.append(target)
    for node in part.nodes:
        if not sources[node] and targets[node]:
            layer[node] = min(layer[target] for target in targets[node]) - 1
    return layer


def _columns(part: Component) -> None:
    """Fills in the columns, and the links from each column to the next, with lanes."""
    layer = _layers(part)
    part.columns = [[] for _ in range(max(layer.values()) + 1)]
    for node in part.nodes:
        part.columns[layer[node]].append((node, layer[node]))
    for source, target in part.edges:
        before: Key = (source, layer[source])
        for step in range(layer[source] + 1, layer[target] + 1):
            after = (target, step)
            if after not in part.feeds:
                part.feeds[after] = []
                if step < layer[target]:
                    part.columns[step].append(after)
            if before not in part.feeds[after]:
                part.feeds[after].append(before)
                part.fed.setdefault(before, []).append(after)
            before = after


def _order(part: Component) -> None:
    """Sorts each column by the mean position of its neighbours, and keeps the best order seen."""
    best, fewest = [list(column) for column in part.columns], _crossings(part)
    for sweep in range(_SWEEPS):
        if not fewest:
            break
        forward = sweep % 2 == 0
        links = part.feeds if forward else part.fed
        indices = range(1, len(part.columns)) if forward else range(len(part.columns) - 2, -1, -1)
        for index in indices:
            column = part.columns[index]
            other = part.columns[index - 1 if forward else index + 1]
            place = {key: at for at, key in enumerate(other)}
            own = {key: float(at) for at, key in enumerate(column)}
            for key in column:
                if near := links.get(key):
                    own[key] = sum(place[each] for each in near) / len(near)
            column.sort(key=own.__getitem__)
        if (crossings := _crossings(part)) < fewest:
            best, fewest = [list(column) for column in part.columns], crossings
    part.columns = best


def _crossings(part: Component) -> int:
    """How many pairs of links cross, over all gutters."""
    total = 0
    for index in range(1, len(part.columns)):
        place = {key: at for at, key in enumerate(part.columns[index - 1])}
        seen: list[int] = []
        for key in part.columns[index]:
            near = [place[each] for each in part.feeds.get(key, ())]
            total += sum(len(seen) - bisect_right(seen, one) for one in near)
            for one in near:
                insort(seen, one)
    return total


def _rows(part: Component) -> None:
    """Gives every place a row: near its neighbours, in the column's order, one row each."""
    keys = [key for column in part.columns for key in column]
    number = {key: at for at, key in enumerate(keys)}
    near = tuple(
        tuple(number[each] for each in (*part.feeds.get(key, ()), *part.fed.get(key, ()))) for key in keys
    )
    rows = _rows_of(tuple(map(len, part.columns)), near)
    part.rows = dict(zip(keys, rows, strict=True))


@lru_cache(maxsize=512)
def _rows_of(sizes: tuple[int, ...], near: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    """The row of each key, for columns of these sizes; keys are numbered through all columns.

    A workspace of a thousand datasets has few shapes of components: each is thought about once.
    """
    ends = list(accumulate(sizes))
    columns = [range(end - size, end) for size, end in zip(sizes, ends, strict=True)]
    rows = [float(key - column.start) for column in columns for key in column]
    passes = [columns, columns[::-1]]
    for ordered in passes * 3:
        for column in ordered:
            wishes = [_mean(rows, near[key], rows[key]) for key in column]
            rows[column.start : column.stop] = _spread(wishes)
    # In whole rows the median serves better than the mean: it keeps lines straight.
    whole = [row for column in columns for row in _whole([rows[key] for key in column])]
    for ordered in passes * 2:
        for column in ordered:
            wishes = [_median(whole, near[key], whole[key]) for key in column]
            whole[column.start : column.stop] = _whole(wishes)
    # Rows that hold nothing but verticals are not needed.
    used = {row: index for index, row in enumerate(sorted(set(whole)))}
    return tuple(used[row] for row in whole)


def _mean(rows: Sequence[float], near: Sequence[int], default: float) -> float:
    return sum(rows[key] for key in near) / len(near) if near else default


def _median(rows: Sequence[int], near: Sequence[int], default: int) -> float:
    return float(sorted(rows[key] for key in near)[(len(near) - 1) // 2]) if near else float(default)


def _spread(wishes: Sequence[float]) -> list[float]:
    """The rows nearest to the wishes (least squares) that ascend by at least one."""
    return [mean + index for index, mean in enumerate(_pooled(wishes))]


def _whole(wishes: Sequence[float]) -> list[int]:
    """The same in whole rows."""
    return [floor(mean + 1e-9) + index for index, mean in enumerate(_pooled(wishes))]


def _pooled(wishes: Sequence[float]) -> list[float]:
    """Isotonic regression by pooling adjacent violators, of the wishes without their indices."""
    blocks: list[tuple[float, int]] = []  # mean and size
    for index, wish in enumerate(wishes):
        mean, size = wish - index, 1
        while blocks and blocks[-1][0] >= mean:
            before, count = blocks.pop()
            mean = (before * count + mean * size) / (count + size)
            size += count
        blocks.append((mean, size))
    return [mean for mean, size in blocks for _ in range(size)]


Cell = tuple[int, int]
Segment = tuple[int, int, int, int]
"""A straight line from its first to its last cell (x, y, x, y), rightwards or downwards."""
_GAP = 2  # cells from one track to the next

# What leaves a cell, and the glyphs for each sum of them.
_LEFT, _RIGHT, _UP, _DOWN = 1, 2, 4, 8
_LIGHT: Final = " ───│╯╰┴│╮╭┬│┤├┼"
_HEAVY: Final = " ━━━┃┛┗┻┃┓┏┳┃┫┣╋"


class LabelPosition(msgspec.Struct, frozen=True):
    """Where a label starts (cells, from the upper left corner), its layer, and how many cells are its own."""

    x: int
    y: int
    layer: int
    width: int


class LineSegments:
    """Straight lines, and what they are in each row."""

    def __init__(self, segments: Iterable[Segment]) -> None:
        self._flat: dict[int, list[Segment]] = {}
        self._upright: list[Segment] = []
        for segment in segments:
            if segment[1] == segment[3]:
                self._flat.setdefault(segment[1], []).append(segment)
            else:
                self._upright.append(segment)

    def arms(self, y: int) -> dict[int, int]:
        """For each cell of a row that a line goes through, by its x, the sides where it leaves the cell."""
        arms: dict[int, int] = {}
        for left, _, right, _ in self._flat.get(y, ()):
            for x in range(left, right):
                arms[x] = arms.get(x, 0) | _RIGHT
                arms[x + 1] = arms.get(x + 1, 0) | _LEFT
        for x, top, _, bottom in self._upright:
            if top <= y <= bottom:
                arms[x] = arms.get(x, 0) | (_UP if y > top else 0) | (_DOWN if y < bottom else 0)
        return arms


class Layout:
    """A drawn graph.

    Attributes:
        width, height: cells.
        places: where each node's label stands.
        routes: the straight lines that each edge goes along; tracks and lanes are shared.
    """

    def __init__(self, drawing: _Drawing) -> None:
        self.width, self.height = drawing.width, drawing.top
        self.places: Mapping[str, LabelPosition] = drawing.places
        self.routes: Mapping[Edge, list[Segment]] = drawing.routes
        self._extents = drawing.extents
        self._bridges = drawing.bridges
        self._strokes = LineSegments(dict.fromkeys(each for leg in drawing.legs.values() for each in leg))
        self._rows: dict[int, tuple[str, dict[int, int]]] = {}

    def width_with(self, extra: int) -> int:
        """Cells from the left to the right end, if every column had some more."""
        return max((width + columns * extra for width, columns in self._extents), default=0)

    def line(self, y: int) -> str:
        """The edges of a row as text, with blanks where the labels go."""
        return self._row(y)[0]

    def heavy(self, y: int, strokes: LineSegments) -> dict[int, str]:
        """The cells of a row, by their x, that some of the edges go through: in heavy glyphs."""
        _, arms = self._row(y)
        found: dict[int, str] = {}
        for x, lit in strokes.arms(y).items():
            if (x, y) not in self._bridges:
                found[x] = _HEAVY[arms[x]]
            elif lit & (_UP | _DOWN):
                found[x] = "┃"
        return found

    def _row(self, y: int) -> tuple[str, dict[int, int]]:
        if (row := self._rows.get(y)) is None:
            arms = self._strokes.arms(y)
            cells = [" "] * self.width
            for x, sides in arms.items():
                cells[x] = "│" if (x, y) in self._bridges else _LIGHT[sides]
            row = self._rows[y] = "".join(cells), arms
        return row

    @property
    def lines(self) -> tuple[str, ...]:
        """The edges as text, all rows."""
        return tuple(map(self.line, range(self.height)))

    @property
    def paths(self) -> Mapping[Edge, frozenset[Cell]]:
        """The cells that each edge goes through."""
        return {edge: frozenset(route_cells(route)) for edge, route in self.routes.items()}


def route_cells(route: Iterable[Segment]) -> Iterable[Cell]:
    """The cells of straight lines."""
    for left, top, right, bottom in route:
        yield from ((x, y) for x in range(left, right + 1) for y in range(top, bottom + 1))


class Plan(msgspec.Struct, frozen=True):
    """A connected part of a graph, in rows and tracks: everything but the widths of labels."""

    part: Component
    gutters: list[_Gutter]
    rows: Mapping[Key, int]


def plan(nodes: Iterable[str], edges: Iterable[Edge]) -> list[Plan]:
    """Finds out which node goes where; edges that name unknown nodes, loops, and circles are left out."""
    found: list[Plan] = []
    for part in layered_components(nodes, edges):
        gutters = [_tracks(part, index) for index in range(1, len(part.columns))]
        found.append(Plan(part, gutters, _whole_rows(part, gutters)))
    return found


def draw(plans: Iterable[Plan], widths: Mapping[str, int], extra: int = 0) -> Layout:
    """Draws a graph; ``widths`` are the labels' widths in cells.

    With ``extra`` cells for every label, all labels of a column are as wide as the widest of them: what is
    written into these cells stands below each other.
    """
    plans = list(plans)
    singles = [each.part.nodes[0] for each in plans if len(each.part.nodes) == 1]
    drawing = _Drawing(widths, extra, max((widths[node] for node in singles), default=0))
    alone = False
    for each in plans:
        single = len(each.part.nodes) == 1
        if drawing.top and not (single and alone):  # what stands alone stands close together
            drawing.top += 1
        alone = single
        drawing.add(each)
    return Layout(drawing)


def layout(widths: Mapping[str, int], edges: Iterable[Edge]) -> Layout:
    """Plans and draws a graph, of labels in the order to prefer. The same input gives the same drawing."""
    return draw(plan(widths, edges), widths)


class _Track(msgspec.Struct):
    """A vertical in a gutter: its level from 0 at the left, the rows that it joins, the one it leaves by,
    and, before there are whole rows, the first and the last that it joins."""

    level: int
    touched: set[float]
    exit: float
    low: float
    high: float


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
        track.level for found in gutter.values() for track in found if track.low <= high and low <= track.high
    }
    while level in taken:
        level += 1
    gutter.setdefault(target, []).append(_Track(level, touched, leave, low, high))


def _whole_rows(part: Component, gutters: list[_Gutter]) -> dict[Key, int]:
    """Rows as whole numbers, once the tracks have put rows of their own between them."""
    tracks = [track for gutter in gutters for found in gutter.values() for track in found]
    used = sorted({*map(float, part.rows.values()), *(track.exit for track in tracks)})
    place = {row: index for index, row in enumerate(used)}
    for track in tracks:
        track.touched = {float(place[row]) for row in track.touched}
        track.exit = place[track.exit]
    return {key: place[float(row)] for key, row in part.rows.items()}


class _Drawing(msgspec.Struct):
    """What has been drawn so far: bridges, places, routes, and the extent of each component in cells and
    columns."""

    widths: Mapping[str, int]
    extra: int
    single: int  # the widest label of what stands alone
    top: int = 0
    width: int = 0
    bridges: set[Cell] = set()
    places: dict[str, LabelPosition] = {}
    routes: dict[Edge, list[Segment]] = {}
    extents: list[tuple[int, int]] = []
    # For each link from one column to the next, its lines; for each key, where its line starts.
    legs: dict[tuple[Key, Key], list[Segment]] = {}
    starts: dict[Key, int] = {}

    def add(self, plan: Plan) -> None:
        """Draws a component below what there is."""
        part, rows = plan.part, {key: row + self.top for key, row in plan.rows.items()}
        x = 0
        for index, column in enumerate(part.columns):
            if index:
                x = self._gutter(part, plan.gutters[index - 1], index, x, rows)
            wide = max((self.widths[key[0]] for key in column if not part.is_lane(key)), default=0)
            if self.extra:
                wide = (self.single if len(part.nodes) == 1 else wide) + self.extra
            for key in column:
                self._stand(part, key, x, wide, rows[key])
            x += wide
        self._trace(part)
        self.extents.append((x - len(part.columns) * self.extra, len(part.columns)))
        self.width = max(self.width, x)
        self.top = max(rows.values()) + 1

    def _stand(self, part: Component, key: Key, x: int, wide: int, row: int) -> None:
        """A label, or a lane across the column."""
        if part.is_lane(key):
            lane = (x - 1, row, x + wide, row)
            for source in part.feeds[key]:
                self.legs[source, key].append(lane)
            self.starts[key] = x + wide
        else:
            own = wide if self.extra else self.widths[key[0]]
            self.places[key[0]] = LabelPosition(x, row, key[1], own)
            self.starts[key] = x + own + 1  # one blank between a label and its line

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
                at, row, leg = self.starts[source], rows[source], list[Segment]()
                for bend, leave, _ in tracks:
                    leg += [(at, row, bend, row), (bend, min(row, leave), bend, max(row, leave))]
                    at, row = bend, leave
                self.legs[source, target] = [*leg, (at, row, end, row)]
            for bend, _, track in tracks:
                between = range(int(min(track.touched)) + 1, int(max(track.touched)))
                self.bridges.update((bend, row + self.top) for row in between if row not in track.touched)
        return end + 1

    def _trace(self, part: Component) -> None:
        """Puts the links together to the routes of the edges."""
        home = {key[0]: key for column in part.columns for key in column if not part.is_lane(key)}
        for source, target in part.edges:
            before, route = home[source], list[Segment]()
            while before != home[target]:
                after = (target, before[1] + 1)
                route += self.legs[before, after]
                before = after
            self.routes[source, target] = route
