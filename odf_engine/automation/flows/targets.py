"""Finds the targets of flows among the datasets of a workspace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from odf_engine.errors import NotFound
from odf_engine.workspace.dataset_graph import DatasetGraph
from odf_engine.workspace.documents.document import Selector, Target, matches_target

if TYPE_CHECKING:
    from odf_engine.workspace.dataset_summary import DatasetEntry
    from odf_engine.workspace.workspace import Workspace


def find_targets(workspace: Workspace, targets: Sequence[Target]) -> list[DatasetEntry]:
    """Return the datasets that targets select, inputs first.

    Raises:
        NotFound: a target matches nothing.
    """
    entries = {entry.id: entry for entry in _match(workspace, targets)}
    graph = DatasetGraph(workspace.summaries())
    return [entries[dataset] for dataset in graph.order(entries) if dataset in entries]


def find_inputs(workspace: Workspace, targets: Sequence[Target]) -> set[str]:
    """Return the ids of the inputs of the targets that are not targets themselves.

    Raises:
        NotFound: a target matches nothing.
    """
    graph = DatasetGraph(workspace.summaries())
    datasets = {entry.id for entry in _match(workspace, targets)}
    return {
        str(input_id)
        for dataset in datasets
        for input_id in graph.inputs(dataset)
        if input_id not in datasets
    }


def _match(workspace: Workspace, targets: Sequence[Target]) -> list[DatasetEntry]:
    entries = workspace.match([target for target in targets if isinstance(target, str)])
    for target in (selector for selector in targets if isinstance(selector, Selector)):
        matches = [
            entry
            for entry in workspace.datasets()
            if matches_target(target, entry.alias, entry.id, workspace.config)
        ]
        if not matches:
            raise NotFound(f"no dataset matches: {target}", hint="odf list shows the labels of datasets")
        entries += matches
    return entries
