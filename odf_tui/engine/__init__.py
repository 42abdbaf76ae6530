"""The real :class:`odf_tui.source.Source`: a workspace, its journal and its worker.

What is heavy (Arrow, the YAML writer) is imported when it is first needed, in a thread.
"""

from __future__ import annotations

from odf_engine.workspace import config as settings
from odf_tui.engine.blocks import BlockReads
from odf_tui.engine.changes import Changes
from odf_tui.engine.datasets import DatasetReads
from odf_tui.engine.jobs import JobReads
from odf_tui.engine.rows import RowReads


class WorkspaceSource(DatasetReads, BlockReads, RowReads, Changes, JobReads):
    """What the screen needs of a workspace."""

    @property
    def theme(self) -> str:
        """The configured theme."""
        return self.workspace.config.ui.theme

    @property
    def ui(self) -> settings.UiConfig:
        """The settings of the workstation."""
        return self.workspace.config.ui

    def save_theme(self, name: str) -> None:
        """Remembers the theme in the workspace's settings."""
        path = self.workspace.config_path
        settings.save(settings.set_value(settings.load(path), "ui.theme", name), path)
