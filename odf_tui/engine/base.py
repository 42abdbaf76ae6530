"""A workspace and its datasets by id: what every reader of the screen starts from."""

from __future__ import annotations

from pathlib import Path

from odf_engine.errors import NotFound
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.trust import Trust
from odf_engine.workspace.workspace import Workspace


class Entries:
    """A workspace whose datasets are found by id.

    Attributes:
        workspace: the workspace.
        trusts: what others may run in it.
    """

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.trusts = Trust(workspace)
        self._entries: dict[str, DatasetEntry] = {}

    @property
    def folder(self) -> Path:
        """The workspace's folder."""
        return self.workspace.folder

    def entry(self, dataset: str) -> DatasetEntry:
        """A dataset by its id.

        Raises:
            NotFound: it is not here (any more).
        """
        entry = self._entries.get(dataset)
        if entry is None or not entry.dataset.folder.is_dir():
            self._entries = {str(each.id): each for each in self.workspace.datasets()}
            entry = self._entries.get(dataset)
        if entry is None:
            raise NotFound("this dataset is not in the workspace")
        return entry
