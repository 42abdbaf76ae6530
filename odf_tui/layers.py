"""Where the nodes of a graph stand: components, layers, order and rows, before anything is drawn.

Time flows to the right. A key is a dataset in its layer, or the lane of its longer edges in an
earlier layer: a place that only a line goes through.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate
from math import floor

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


def components(nodes: Iterable[str], edges: Iterable[Edge]) -> list[Component]:
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
