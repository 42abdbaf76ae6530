"""Finds the targets of flows among the datasets of a workspace."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from odf_engine.automation.documents import Selector, Target, matches_target
from odf_engine.errors import NotFound
from odf_engine.workspace.dataset_graph import DatasetGraph

if TYPE_CHECKING:
    from odf_engine.workspace.dataset_summary import DatasetEntry
    from odf_engine.workspace.workspace import Workspace


class FlowTargets:
    """The datasets of a workspace that targets select.

    Args:
        folder: folder of the workspace.
    """

    def __init__(self, folder: Path) -> None:
        # Deferred, as in the handlers of jobs: the worker responds before it loads the engine.
        from odf_engine.workspace.workspace import Workspace

        self._workspace: Workspace = Workspace.find(explicit=folder)

    def close(self) -> None:
        """Close the index."""
        self._workspace.index.close()

    def _match(self, targets: Sequence[Target]) -> list[DatasetEntry]:
        """Return the datasets that match.

        Raises:
            NotFound: a target matches nothing.
        """
        entries = self._workspace.match([target for target in targets if isinstance(target, str)])
        for target in (selector for selector in targets if isinstance(selector, Selector)):
            config = self._workspace.config
            matches = [
                entry
                for entry in self._workspace.datasets()
                if matches_target(target, entry.alias, entry.id, config)
            ]
            if not matches:
                raise NotFound(f"no dataset matches: {target}", hint="odf list shows the labels of datasets")
            entries += matches
        return entries

    def entries(self, targets: Sequence[Target]) -> list[DatasetEntry]:
        """Return the datasets that match, inputs first.

        Raises:
            NotFound: a target matches nothing.
        """
        entries = {entry.id: entry for entry in self._match(targets)}
        graph = DatasetGraph(self._workspace.summaries())
        return [entries[dataset] for dataset in graph.order(entries) if dataset in entries]

    def inputs(self, targets: Sequence[Target]) -> set[str]:
        """Return the ids of the inputs of the targets that are not targets themselves."""
        graph = DatasetGraph(self._workspace.summaries())
        datasets = {entry.id for entry in self._match(targets)}
        return {
            str(input_id)
            for dataset in datasets
            for input_id in graph.inputs(dataset)
            if input_id not in datasets
        }
