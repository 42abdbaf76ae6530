"""Lays out a directed acyclic graph compactly, as lines of text.

Nodes are placed in columns (layers) and rows. An edge over several columns passes through the columns
between them on *lanes*. The space between two columns is a *gutter*; the vertical lines in it are *tracks*.
A *key* is a node, or one of its lanes, in a column.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from heapq import heapify, heappop, heappush
from itertools import accumulate
from math import floor
from typing import Final, NamedTuple

import msgspec

Edge = tuple[str, str]
Key = tuple[str, int]
_SWEEPS = 6


class Component(msgspec.Struct):
    """A connected part of a graph.

    Attributes:
        nodes, edges: the nodes, and the edges between them.
        columns: the keys of each layer, from top to bottom.
        sources: by key, the linked keys one layer before.
        targets: by key, the linked keys one layer after.
        rows: the row of each key. Rows ascend within a column.
    """

    nodes: list[str]
    edges: list[Edge]
    columns: list[list[Key]] = []
    sources: dict[Key, list[Key]] = {}
    targets: dict[Key, list[Key]] = {}
    rows: dict[Key, int] = {}

    def is_lane(self, key: Key) -> bool:
        """Return whether a key is a lane, which has no label."""
        return any(target[0] == key[0] for target in self.targets.get(key, ()))


def split_into_layers(nodes: Iterable[str], edges: Iterable[Edge]) -> list[Component]:
    """Return the connected parts of a graph with all nodes placed; parts of one node come last.

    Edges of unknown nodes, loops, and edges that close a cycle are skipped.
    """
    components = _split_components(list(nodes), _remove_cycles(nodes, edges))
    components.sort(key=lambda component: len(component.nodes) == 1)
    for component in components:
        _fill_columns(component)
        _order_columns(component)
        _assign_rows(component)
    return components


def _remove_cycles(nodes: Iterable[str], edges: Iterable[Edge]) -> list[Edge]:
    """Return the edges between known nodes, without duplicates, loops and edges that close a cycle."""
    following: dict[str, list[str]] = {node: [] for node in nodes}
    for source, target in dict.fromkeys(edges):
        if source in following and target in following and source != target:
            following[source].append(target)
    result: list[Edge] = []
    state: dict[str, int] = {}  # 1: being visited, 2: complete
    for root in following:
        if root in state:
            continue
        stack = [(root, iter(following[root]))]
        state[root] = 1
        while stack:
            node, rest = stack[-1]
            for target in rest:
                if state.get(target) != 1:
                    result.append((node, target))
                if target not in state:
                    state[target] = 1
                    stack.append((target, iter(following[target])))
                    break
            else:
                state[node] = 2
                stack.pop()
    place = {node: index for index, node in enumerate(following)}
    return sorted(result, key=lambda edge: (place[edge[0]], place[edge[1]]))


def _split_components(nodes: Sequence[str], edges: Sequence[Edge]) -> list[Component]:
    """Return the connected parts, in the order of their first nodes."""
    parent = {node: node for node in nodes}

    def find(node: str) -> str:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for source, target in edges:
        parent[find(target)] = find(source)
    components: dict[str, Component] = {}
    for node in nodes:
        components.setdefault(find(node), Component([], [])).nodes.append(node)
    for edge in edges:
        components[find(edge[0])].edges.append(edge)
    return list(components.values())


def _compute_layers(component: Component) -> dict[str, int]:
    """Return the layer of each node: its longest path from a root. Roots move next to their first target."""
    sources: dict[str, list[str]] = {node: [] for node in component.nodes}
    targets: dict[str, list[str]] = {node: [] for node in component.nodes}
    for source, target in component.edges:
        sources[target].append(source)
        targets[source].append(target)
    pending = {node: len(keys) for node, keys in sources.items()}
    ready = [node for node in component.nodes if not pending[node]]
    layer = dict.fromkeys(ready, 0)
    for node in ready:  # the list grows during the loop
        for target in targets[node]:
            layer[target] = max(layer.get(target, 0), layer[node] + 1)
            pending[target] -= 1
            if not pending[target]:
                ready.append(target)
    for node in component.nodes:
        if not sources[node] and targets[node]:
            layer[node] = min(layer[target] for target in targets[node]) - 1
    return layer


def _fill_columns(component: Component) -> None:
    """Fill the columns, and the links from each column to the next, with lanes."""
    layer = _compute_layers(component)
    component.columns = [[] for _ in range(max(layer.values()) + 1)]
    for node in component.nodes:
        component.columns[layer[node]].append((node, layer[node]))
    for source, target in component.edges:
        before: Key = (source, layer[source])
        for step in range(layer[source] + 1, layer[target] + 1):
            after = (target, step)
            if after not in component.sources:
                component.sources[after] = []
                if step < layer[target]:
                    component.columns[step].append(after)
            if before not in component.sources[after]:
                component.sources[after].append(before)
                component.targets.setdefault(before, []).append(after)
            before = after


def _order_columns(component: Component) -> None:
    """Sort each column by the mean position of its neighbours, and store the order with fewest crossings."""
    best, fewest = [list(column) for column in component.columns], _count_crossings(component)
    for sweep in range(_SWEEPS):
        if not fewest:
            break
        forward = sweep % 2 == 0
        links = component.sources if forward else component.targets
        indices = range(1, len(component.columns)) if forward else range(len(component.columns) - 2, -1, -1)
        for index in indices:
            column = component.columns[index]
            other = component.columns[index - 1 if forward else index + 1]
            place = {key: at for at, key in enumerate(other)}
            own = {key: float(at) for at, key in enumerate(column)}
            for key in column:
                if neighbours := links.get(key):
                    own[key] = sum(place[neighbour] for neighbour in neighbours) / len(neighbours)
            column.sort(key=own.__getitem__)
        if (crossings := _count_crossings(component)) < fewest:
            best, fewest = [list(column) for column in component.columns], crossings
    component.columns = best


def _count_crossings(component: Component) -> int:
    """Return the number of pairs of links that cross, over all gutters."""
    total = 0
    for index in range(1, len(component.columns)):
        place = {key: at for at, key in enumerate(component.columns[index - 1])}
        seen: list[int] = []
        for key in component.columns[index]:
            neighbours = [place[source] for source in component.sources.get(key, ())]
            total += sum(len(seen) - bisect_right(seen, one) for one in neighbours)
            for one in neighbours:
                insort(seen, one)
    return total


def _assign_rows(component: Component) -> None:
    """Assign a row to each key: near its neighbours, in the order of the column."""
    keys = [key for column in component.columns for key in column]
    number = {key: at for at, key in enumerate(keys)}
    neighbours = tuple(
        tuple(number[end] for end in (*component.sources.get(key, ()), *component.targets.get(key, ())))
        for key in keys
    )
    rows = _compute_rows(tuple(map(len, component.columns)), neighbours)
    component.rows = dict(zip(keys, rows, strict=True))


@lru_cache(maxsize=512)
def _compute_rows(sizes: tuple[int, ...], neighbours: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    """Return the row of each key.

    Cached: a workspace of a thousand datasets has few different shapes of components.

    Args:
        sizes: the number of keys of each column. Keys are numbered through all columns.
        neighbours: by key, the numbers of the linked keys.
    """
    ends = list(accumulate(sizes))
    columns = [range(end - size, end) for size, end in zip(sizes, ends, strict=True)]
    rows = [float(key - column.start) for column in columns for key in column]
    passes = [columns, columns[::-1]]
    for ordered in passes * 3:
        for column in ordered:
            preferred = [_mean(rows, neighbours[key], rows[key]) for key in column]
            rows[column.start : column.stop] = _fit_rows(preferred)
    # For whole rows, the median gives straighter lines than the mean.
    result = [row for column in columns for row in _fit_whole_rows([rows[key] for key in column])]
    for ordered in passes * 2:
        for column in ordered:
            preferred = [_median(result, neighbours[key], result[key]) for key in column]
            result[column.start : column.stop] = _fit_whole_rows(preferred)
    # Rows with vertical lines only are removed.
    used = {row: index for index, row in enumerate(sorted(set(result)))}
    return tuple(used[row] for row in result)


def _mean(rows: Sequence[float], neighbours: Sequence[int], default: float) -> float:
    return sum(rows[key] for key in neighbours) / len(neighbours) if neighbours else default


def _median(rows: Sequence[int], neighbours: Sequence[int], default: int) -> float:
    return (
        float(sorted(rows[key] for key in neighbours)[(len(neighbours) - 1) // 2])
        if neighbours
        else float(default)
    )


def _fit_rows(preferred: Sequence[float]) -> list[float]:
    """Return the rows nearest to the preferred ones (least squares) that ascend by at least one."""
    return [mean + index for index, mean in enumerate(_pool_violators(preferred))]


def _fit_whole_rows(preferred: Sequence[float]) -> list[int]:
    """Return the rows of :func:`_fit_rows` as whole numbers."""
    return [floor(mean + 1e-9) + index for index, mean in enumerate(_pool_violators(preferred))]


def _pool_violators(preferred: Sequence[float]) -> list[float]:
    """Return the isotonic regression of the preferred rows, minus their indices.

    Pools adjacent violators.
    """
    blocks: list[tuple[float, int]] = []  # mean and size
    for index, row in enumerate(preferred):
        mean, size = row - index, 1
        while blocks and blocks[-1][0] >= mean:
            before, count = blocks.pop()
            mean = (before * count + mean * size) / (count + size)
            size += count
        blocks.append((mean, size))
    return [mean for mean, size in blocks for _ in range(size)]


Cell = tuple[int, int]
Segment = tuple[int, int, int, int]
"""A straight line from its first to its last cell (x, y, x, y), to the right or down."""
_GAP = 2  # cells from one track to the next

# The sides of a cell, and the glyphs for each sum of them.
_LEFT, _RIGHT, _UP, _DOWN = 1, 2, 4, 8
_LIGHT: Final = " ───│╯╰┴│╮╭┬│┤├┼"
_HEAVY: Final = " ━━━┃┛┗┻┃┓┏┳┃┫┣╋"


class LabelPosition(msgspec.Struct, frozen=True):
    """The position of a label, in cells from the upper left corner.

    Attributes:
        x, y: the first cell.
        layer: the layer of the node.
        width: cells of the label.
    """

    x: int
    y: int
    layer: int
    width: int


class LineSegments:
    """Straight lines, indexed by row."""

    def __init__(self, segments: Iterable[Segment]) -> None:
        self._horizontal: dict[int, list[Segment]] = {}
        self._vertical: list[Segment] = []
        for segment in segments:
            if segment[1] == segment[3]:
                self._horizontal.setdefault(segment[1], []).append(segment)
            else:
                self._vertical.append(segment)

    def sides(self, y: int) -> dict[int, int]:
        """Return the sides where lines leave a cell, by the x of each cell in a row."""
        sides: dict[int, int] = {}
        for left, _, right, _ in self._horizontal.get(y, ()):
            for x in range(left, right):
                sides[x] = sides.get(x, 0) | _RIGHT
                sides[x + 1] = sides.get(x + 1, 0) | _LEFT
        for x, top, _, bottom in self._vertical:
            if top <= y <= bottom:
                sides[x] = sides.get(x, 0) | (_UP if y > top else 0) | (_DOWN if y < bottom else 0)
        return sides


class Layout:
    """A drawn graph.

    Attributes:
        width, height: size in cells.
        positions: the position of the label of each node.
        routes: the straight lines of each edge. Edges share tracks and lanes.
    """

    def __init__(self, drawing: _Drawing) -> None:
        self.width, self.height = drawing.width, drawing.top
        self.positions: Mapping[str, LabelPosition] = drawing.positions
        self.routes: Mapping[Edge, list[Segment]] = drawing.routes
        self._bridges = drawing.bridges
        self._segments = LineSegments(dict.fromkeys(line for leg in drawing.legs.values() for line in leg))
        self._rows: dict[int, tuple[str, dict[int, int]]] = {}

    def line(self, y: int) -> str:
        """Return the edges of a row as text, with blanks instead of labels."""
        return self._draw_row(y)[0]

    def heavy_cells(self, y: int, segments: LineSegments) -> dict[int, str]:
        """Return heavy glyphs for the cells of a row through which some segments pass, by their x."""
        _, sides = self._draw_row(y)
        cells: dict[int, str] = {}
        for x, highlighted in segments.sides(y).items():
            if (x, y) not in self._bridges:
                cells[x] = _HEAVY[sides[x]]
            elif highlighted & (_UP | _DOWN):
                cells[x] = "┃"
        return cells

    def _draw_row(self, y: int) -> tuple[str, dict[int, int]]:
        if (row := self._rows.get(y)) is None:
            sides = self._segments.sides(y)
            cells = [" "] * self.width
            for x, side in sides.items():
                cells[x] = "│" if (x, y) in self._bridges else _LIGHT[side]
            row = self._rows[y] = "".join(cells), sides
        return row

    @property
    def lines(self) -> tuple[str, ...]:
        """The edges of all rows as text."""
        return tuple(map(self.line, range(self.height)))

    @property
    def paths(self) -> Mapping[Edge, frozenset[Cell]]:
        """The cells through which each edge passes."""
        return {edge: frozenset(route_cells(route)) for edge, route in self.routes.items()}


def route_cells(route: Iterable[Segment]) -> Iterable[Cell]:
    """Return the cells of straight lines."""
    for left, top, right, bottom in route:
        yield from ((x, y) for x in range(left, right + 1) for y in range(top, bottom + 1))


class Plan(msgspec.Struct, frozen=True):
    """The layout of a connected part in rows and tracks. It does not depend on the widths of labels."""

    component: Component
    gutters: list[_Gutter]
    rows: Mapping[Key, int]

    @property
    def is_single(self) -> bool:
        """Whether the part has one node."""
        return len(self.component.nodes) == 1


def plan_layout(nodes: Iterable[str], edges: Iterable[Edge]) -> list[Plan]:
    """Return the plan of each connected part of a graph.

    Edges of unknown nodes, loops, and edges that close a cycle are skipped.
    """
    plans: list[Plan] = []
    for component in split_into_layers(nodes, edges):
        gutters = [_GutterPlanner(component, index).plan() for index in range(1, len(component.columns))]
        plans.append(Plan(component, gutters, _number_rows(component, gutters)))
    return plans


class Columns(NamedTuple):
    """The columns of connected parts, from the left.

    Attributes:
        starts: the first cells of the labels.
        widths: the widths of the labels.
    """

    starts: tuple[int, ...]
    widths: tuple[int, ...]

    def width_with(self, extra: int) -> int:
        """Return the width of all columns with ``extra`` more cells for each label."""
        return self.starts[-1] + self.widths[-1] + len(self.starts) * extra if self.starts else 0


def measure_columns(plans: Sequence[Plan], widths: Mapping[str, int], extra: int = 0) -> Columns:
    """Return columns that fit all plans.

    Args:
        plans: the plans of connected parts.
        widths: the widths of labels in cells.
        extra: more cells for each label.
    """
    labels: list[int] = []
    gutters: list[int] = []
    for plan in plans:
        for index, column in enumerate(plan.component.columns):
            if index == len(labels):
                labels.append(0)
                gutters.append(0)
            nodes = (key[0] for key in column if not plan.component.is_lane(key))
            labels[index] = max(labels[index], *(widths[node] for node in nodes), 0)
            gutters[index] = max(gutters[index], plan.gutters[index - 1].width if index else 0)
    columns = tuple(width + extra for width in labels)
    ends = accumulate(width + gutter for width, gutter in zip(columns, gutters, strict=True))
    return Columns(tuple(end - width for end, width in zip(ends, columns, strict=True)), columns)


def draw_layout(
    plans: Iterable[Plan], widths: Mapping[str, int], extra: int = 0, *, aligned: bool = False
) -> Layout:
    """Draw a graph.

    Args:
        plans: the plans of its connected parts.
        widths: the widths of labels in cells.
        extra: more cells for each label. All labels of a column are then as wide as the widest of them;
            texts in these cells are aligned.
        aligned: whether the columns of all parts are aligned, or only of parts with one node.
    """
    plans = list(plans)
    singles = [plan for plan in plans if plan.is_single]
    drawing = _Drawing(widths, extra)
    shared = measure_columns(plans if aligned else singles, widths, extra)
    after_single = False
    for plan in plans:
        if drawing.top and not (plan.is_single and after_single):  # no empty row between parts of one node
            drawing.top += 1
        after_single = plan.is_single
        drawing.add(plan, shared if aligned or plan.is_single else measure_columns([plan], widths, extra))
    return Layout(drawing)


def lay_out(widths: Mapping[str, int], edges: Iterable[Edge]) -> Layout:
    """Plan and draw a graph. The drawing does not depend on the order of edges.

    Args:
        widths: the widths of labels in cells, in the preferred order of nodes.
        edges: pairs of nodes.
    """
    return draw_layout(plan_layout(widths, edges), widths)


class _Track(msgspec.Struct, eq=False):
    """A vertical line in a gutter.

    Attributes:
        joined_rows: the rows whose lines it joins. It crosses the lines of other rows.
        level: its position in the gutter, from 0 at the left.
    """

    joined_rows: set[float]
    level: int = 0


class _Net(msgspec.Struct, eq=False):
    """The targets of a gutter that have the same sources.

    Attributes:
        exit: the track that leads to the targets, or None for a straight line.
        split_row: the row between two tracks, if ``exit`` is the second one.
    """

    sources: list[Key]
    targets: list[Key] = []
    exit: _Track | None = None
    split_row: float | None = None


class _Gutter(msgspec.Struct):
    """The space between two columns.

    Attributes:
        tracks: the vertical lines.
        paths: by link, the tracks that it follows, each with its exit row.
    """

    tracks: list[_Track] = []
    paths: dict[tuple[Key, Key], list[tuple[_Track, float]]] = {}

    @property
    def width(self) -> int:
        """The width in cells."""
        levels = 1 + max((track.level for track in self.tracks), default=-1)
        return max(_GAP * (levels + 1) - 1, 2) + 1


class _GutterPlanner:
    """Finds the tracks between column ``index`` - 1 and ``index``.

    Lines are read from left to right. A line must lead from a source to its targets only, so lines of
    different targets meet only where everything to the left of the meeting point feeds everything to the
    right of it:

    - A source that feeds several nets has a *fork*, a track that only its own line enters.
    - A net with several sources has a *join*. The line of a source ends there, or passes to the targets.
    - A line from a fork to a join has a separate row. One join per source needs none: the last one of the
      line, if the line does not reach another target in its row.
    - The line of a source must end before the row is used for a target that it does not feed. If such
      constraints form a cycle, a net is split: a separate row leads to a second track.
    """

    def __init__(self, component: Component, index: int) -> None:
        self._rows = component.rows
        self._gutter = _Gutter()
        self._separate_rows: dict[int, int] = {}  # by the row above them, their number
        nets: dict[tuple[Key, ...], _Net] = {}
        for target in component.columns[index]:
            if sources := sorted(component.sources.get(target, ()), key=component.rows.__getitem__):
                nets.setdefault(tuple(sources), _Net(sources)).targets.append(target)
        self._nets = list(nets.values())
        self._nets_of: dict[Key, list[_Net]] = {}
        for net in self._nets:
            for source in net.sources:
                self._nets_of.setdefault(source, []).append(net)
        self._source_at = {self._rows[source]: source for source in self._nets_of}
        self._forks: dict[Key, _Track] = {}
        self._joins: dict[int, _Track] = {}  # by id of the net
        self._fork_rows: dict[tuple[Key, int], float] = {}
        self._direct: dict[Key, _Net] = {}  # by source, the join at which its line ends

    def plan(self) -> _Gutter:
        """Return the tracks, with their levels, and the paths of links."""
        for source, nets in self._nets_of.items():
            self._add_fork(source, nets)
        for net in self._nets:
            if len(net.sources) > 1:
                net.exit = self._joins[id(net)] = _Track(self._find_joined_rows(net))
            else:
                net.exit = self._forks.get(net.sources[0])
        while blocked := self._assign_levels():
            self._split(next(net for net in self._nets if self._is_blocked(net, blocked)))
        for net in self._nets:
            for source in net.sources:
                for target in net.targets:
                    self._gutter.paths[source, target] = self._find_path(net, source, target)
        return self._gutter

    def _add_fork(self, source: Key, nets: list[_Net]) -> None:
        """Choose the join that ends the line of a source; add a fork for its other nets."""
        row = self._rows[source]
        own = next((net for net in nets if len(net.sources) == 1), None)
        own_rows = {self._rows[target] for target in own.targets} if own else set()
        joins = [net for net in nets if net is not own]
        if joins and row not in own_rows:
            straight = (net for net in joins if any(self._rows[target] == row for target in net.targets))
            self._direct[source] = next(straight, joins[-1])
        rows = {float(row), *map(float, own_rows)}
        for net in joins:
            if net is not self._direct.get(source):
                self._fork_rows[source, id(net)] = extra = self._add_row(row, net)
                rows.add(extra)
        if len(rows) > 1:
            self._forks[source] = _Track(rows)

    def _add_row(self, row: int, net: _Net) -> float:
        """Return a separate row at the nearest target of a net, on the side of ``row``."""
        target = min((self._rows[node] for node in net.targets), key=lambda candidate: abs(candidate - row))
        above = target if row > target else target - 1
        number = self._separate_rows[above] = self._separate_rows.get(above, 0) + 1
        return above + number / 4096  # a fraction that is the same in each gutter

    def _find_joined_rows(self, net: _Net) -> set[float]:
        sources = {self._fork_rows.get((source, id(net)), self._rows[source]) for source in net.sources}
        return {*map(float, sources), *(float(self._rows[target]) for target in net.targets)}

    def _split(self, net: _Net) -> None:
        """Add a second track to a net. It leaves the first one by a separate row."""
        first = net.exit
        assert first  # a net without a track has no constraints
        targets = {float(self._rows[target]) for target in net.targets if not self._is_straight(net, target)}
        direct = {float(self._rows[source]) for source in net.sources if self._direct.get(source) is net}
        net.split_row = self._add_row(max(self._rows[source] for source in net.sources), net)
        first.joined_rows = (first.joined_rows - (targets - direct)) | {net.split_row}
        net.exit = _Track(targets | {net.split_row})

    def _is_straight(self, net: _Net, target: Key) -> bool:
        """Return whether a target is in the row of its only source."""
        return len(net.sources) == 1 and self._rows[target] == self._rows[net.sources[0]]

    def _is_blocked(self, net: _Net, blocked: set[_Track]) -> bool:
        """Return whether a net can be split to remove a constraint between some tracks."""
        if net.split_row is not None or net.exit not in blocked:
            return False
        others = (self._source_at.get(self._rows[target]) for target in net.targets)
        return any(
            track is not net.exit and track in blocked
            for source in others
            if source is not None
            for track in self._first_tracks(source)
        )

    def _first_tracks(self, source: Key) -> list[_Track]:
        """Return the tracks that the line of a source enters in its own row."""
        direct = self._direct.get(source)
        tracks = (self._forks.get(source), self._joins[id(direct)] if direct else None)
        return [track for track in tracks if track]

    def _find_constraints(self) -> dict[_Track, set[_Track]]:
        """Return the tracks that must be left of each track."""
        left: dict[_Track, set[_Track]] = {track: set() for track in self._forks.values()}
        for net in self._nets:
            first = self._joins.get(id(net), self._forks.get(net.sources[0]))
            if net.exit is None or first is None:
                continue
            left.setdefault(first, set())
            if len(net.sources) > 1:
                left[first].update(fork for source in net.sources if (fork := self._forks.get(source)))
            if net.split_row is not None:
                left.setdefault(net.exit, set()).add(first)
            for target in net.targets:
                source = self._source_at.get(self._rows[target])
                if source is not None:
                    left[net.exit].update(
                        track for track in self._first_tracks(source) if track is not net.exit
                    )
        return left

    def _assign_levels(self) -> set[_Track]:
        """Assign levels from left to right. Returns the tracks whose constraints form cycles."""
        left = self._find_constraints()
        right: dict[_Track, list[_Track]] = {}
        for track, others in left.items():
            for other in others:
                right.setdefault(other, []).append(track)
        pending = {track: len(others) for track, others in left.items()}
        order = {track: index for index, track in enumerate(left)}
        free = [(*_extent(track), order[track], track) for track, count in pending.items() if not count]
        heapify(free)
        placed: list[tuple[float, float, int]] = []
        self._gutter.tracks = []
        while free:
            low, high, _, track = heappop(free)
            del pending[track]
            track.level = max((predecessor.level + 1 for predecessor in left[track]), default=0)
            used_levels = {level for first, last, level in placed if first <= high and low <= last}
            while track.level in used_levels:
                track.level += 1
            placed.append((low, high, track.level))
            self._gutter.tracks.append(track)
            for other in right.get(track, ()):
                pending[other] -= 1
                if not pending[other]:
                    heappush(free, (*_extent(other), order[other], other))
        return set(pending)

    def _find_path(self, net: _Net, source: Key, target: Key) -> list[tuple[_Track, float]]:
        """Return the tracks that a link follows, each with its exit row."""
        if self._is_straight(net, target):
            return []
        row, path = float(self._rows[target]), list[tuple[_Track, float]]()
        fork, join = self._forks.get(source), self._joins.get(id(net))
        if fork and (extra := self._fork_rows.get((source, id(net)))) is not None:
            path.append((fork, extra))
        first = join or fork
        if net.split_row is not None and first and net.exit:
            path += [(first, net.split_row), (net.exit, row)]
        elif first:
            path.append((first, row))
        return path


def _extent(track: _Track) -> tuple[float, float]:
    """Return the first and the last row of a track."""
    return min(track.joined_rows), max(track.joined_rows)


def _number_rows(component: Component, gutters: list[_Gutter]) -> dict[Key, int]:
    """Return the rows as whole numbers. Tracks may have added rows between them."""
    tracks = [track for gutter in gutters for track in gutter.tracks]
    rows = sorted(
        {*map(float, component.rows.values()), *(row for line in tracks for row in line.joined_rows)}
    )
    number = {row: index for index, row in enumerate(rows)}
    for track in tracks:
        track.joined_rows = {float(number[row]) for row in track.joined_rows}
    for gutter in gutters:
        for link, path in gutter.paths.items():
            gutter.paths[link] = [(track, float(number[row])) for track, row in path]
    return {key: number[float(row)] for key, row in component.rows.items()}


class _Drawing(msgspec.Struct):
    """An incomplete drawing.

    Attributes:
        widths: the widths of labels in cells.
        extra: more cells for each label.
        top: the first free row.
        bridges: the cells where a vertical line crosses a horizontal one.
        legs: by link between columns, its lines.
        starts: by key, the first cell of its line.
    """

    widths: Mapping[str, int]
    extra: int
    top: int = 0
    width: int = 0
    bridges: set[Cell] = set()
    positions: dict[str, LabelPosition] = {}
    routes: dict[Edge, list[Segment]] = {}
    legs: dict[tuple[Key, Key], list[Segment]] = {}
    starts: dict[Key, int] = {}

    def add(self, plan: Plan, columns: Columns) -> None:
        """Draw a connected part below the others, in columns that fit it."""
        component, rows = plan.component, {key: row + self.top for key, row in plan.rows.items()}
        x = 0
        for index, column in enumerate(component.columns):
            start, width = columns.starts[index], columns.widths[index]
            if index:
                self._draw_gutter(component, plan.gutters[index - 1], index, x, start - 1, rows)
            for key in column:
                self._place_key(component, key, start, width, rows[key])
            x = start + width
        self._join_routes(component)
        self.width = max(self.width, x)
        self.top = max(rows.values()) + 1

    def _place_key(self, component: Component, key: Key, x: int, column_width: int, row: int) -> None:
        """Place a label, or a lane across the column."""
        if component.is_lane(key):
            lane = (x - 1, row, x + column_width, row)
            for source in component.sources[key]:
                self.legs[source, key].append(lane)
            self.starts[key] = x + column_width
        else:
            width = column_width if self.extra else self.widths[key[0]]
            self.positions[key[0]] = LabelPosition(x, row, key[1], width)
            self.starts[key] = x + width + 1  # one blank between a label and its line

    def _draw_gutter(
        self, component: Component, gutter: _Gutter, index: int, x: int, end: int, rows: Mapping[Key, int]
    ) -> None:
        """Draw the links into column ``index``, from ``x`` to ``end``."""
        for target in component.columns[index]:
            for source in component.sources.get(target, ()):
                at, row, leg = self.starts[source], rows[source], list[Segment]()
                for track, track_row in gutter.paths[source, target]:
                    bend, exit_row = x + _GAP * (track.level + 1), int(track_row) + self.top
                    leg += [(at, row, bend, row), (bend, min(row, exit_row), bend, max(row, exit_row))]
                    at, row = bend, exit_row
                self.legs[source, target] = [*leg, (at, row, end, row)]
        for track in gutter.tracks:
            bend, (first, last) = x + _GAP * (track.level + 1), map(int, _extent(track))
            crossed = (row for row in range(first + 1, last) if row not in track.joined_rows)
            self.bridges.update((bend, row + self.top) for row in crossed)

    def _join_routes(self, component: Component) -> None:
        """Join the links to the routes of edges."""
        home = {key[0]: key for column in component.columns for key in column if not component.is_lane(key)}
        for source, target in component.edges:
            key, route = home[source], list[Segment]()
            while key != home[target]:
                next_key = (target, key[1] + 1)
                route += self.legs[key, next_key]
                key = next_key
            self.routes[source, target] = route
