"""The graph of datasets and their inputs."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from odf_engine.identity.did import DatasetId
from odf_engine.metadata.model import DatasetKind


class GraphDataset(Protocol):
    """A dataset as the graph requires it, such as a ``Summary``."""

    @property
    def id(self) -> DatasetId: ...
    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> DatasetKind: ...
    @property
    def inputs(self) -> Sequence[DatasetId]: ...


class GraphNode(msgspec.Struct, frozen=True):
    """A dataset in the graph; ``missing`` if it is an input that the workspace does not have.

    The name of a missing dataset is its id, and its kind is Root because it is unknown.
    """

    id: DatasetId
    name: str
    kind: DatasetKind
    missing: bool = False


class DatasetGraph:
    """Datasets and the edges from inputs to derivative datasets.

    Attributes:
        nodes: every dataset by id: the workspace's in the given order, then missing inputs.
    """

    nodes: Mapping[DatasetId, GraphNode]

    def __init__(self, datasets: Iterable[GraphDataset]) -> None:
        known = list(datasets)
        nodes = {dataset.id: GraphNode(dataset.id, dataset.name, dataset.kind) for dataset in known}
        self._inputs: dict[DatasetId, list[DatasetId]] = {}
        self._outputs: dict[DatasetId, list[DatasetId]] = {}
        for dataset in known:
            inputs = list(dict.fromkeys(dataset.inputs))
            self._inputs[dataset.id] = inputs
            for source in inputs:
                self._outputs.setdefault(source, []).append(dataset.id)
                if source not in nodes:
                    nodes[source] = GraphNode(source, str(source), DatasetKind.Root, missing=True)
        self.nodes = nodes

    @property
    def edges(self) -> list[tuple[DatasetId, DatasetId]]:
        """The edges as (input, output)."""
        return [(source, target) for target, sources in self._inputs.items() for source in sources]

    def inputs(self, dataset: DatasetId) -> list[DatasetId]:
        """Return the inputs of the dataset, in the order of its transform."""
        return list(self._inputs.get(dataset, ()))

    def outputs(self, dataset: DatasetId) -> list[DatasetId]:
        """Return the datasets that read the dataset."""
        return list(self._outputs.get(dataset, ()))

    def upstream(self, dataset: DatasetId) -> set[DatasetId]:
        """Return all direct and indirect inputs of the dataset, without itself."""
        return _closure(dataset, self._inputs)

    def downstream(self, dataset: DatasetId) -> set[DatasetId]:
        """Return all datasets that read the dataset directly or indirectly, without itself."""
        return _closure(dataset, self._outputs)

    def order(self, subset: Iterable[DatasetId] | None = None) -> list[DatasetId]:
        """Return the datasets (or those in ``subset``) in topological order, inputs first; otherwise by name.

        A cycle, which only a damaged or foreign chain can have, is broken at an arbitrary edge.
        """
        ranked = self._all_in_order()
        if subset is None:
            return ranked
        selected = set(subset)
        return [dataset for dataset in ranked if dataset in selected]

    def _rank(self, dataset: DatasetId) -> tuple[str, bytes]:
        return (self.nodes[dataset].name.lower(), bytes(dataset))

    def _all_in_order(self) -> list[DatasetId]:
        waiting = {node: len(self._inputs.get(node, ())) for node in self.nodes}
        free = [(self._rank(node), node) for node, count in waiting.items() if not count]
        heapq.heapify(free)
        done: list[DatasetId] = []
        while waiting:
            node = heapq.heappop(free)[1] if free else min(waiting, key=self._rank)
            if waiting.pop(node, None) is None:
                continue
            done.append(node)
            for target in self._outputs.get(node, ()):
                if target in waiting:
                    waiting[target] -= 1
                    if not waiting[target]:
                        heapq.heappush(free, (self._rank(target), target))
        return done


def _closure(start: DatasetId, arrows: Mapping[DatasetId, Sequence[DatasetId]]) -> set[DatasetId]:
    seen = {start}
    todo = [start]
    while todo:
        for follower in arrows.get(todo.pop(), ()):
            if follower not in seen:
                seen.add(follower)
                todo.append(follower)
    return seen - {start}
