"""The real :class:`odf_tui.source.Source`: a workspace, its journal and its worker.

What is heavy (Arrow, the YAML writer) is imported when it is first needed, in a thread.
"""

from __future__ import annotations

from functools import cached_property

from odf_engine import settings
from odf_engine.errors import OdfError
from odf_tui import remembered
from odf_tui.engine.changes import Changes
from odf_tui.engine.datasets import DatasetReads
from odf_tui.engine.jobs import JobReads
from odf_tui.engine.looking import LookReads
from odf_tui.engine.rows import RowReads
from odf_tui.engine.sql import SqlReads
from odf_tui.engine.timeline import TimelineReads


class WorkspaceSource(DatasetReads, RowReads, Changes, JobReads, SqlReads, LookReads, TimelineReads):
    """What the screen needs of a workspace."""

    @property
    def theme(self) -> str:
        """The theme that was chosen last, else the configured one."""
        return remembered.theme(remembered.load(self.folder), self.ui.theme)

    @property
    def ui(self) -> settings.UiConfig:
        """The settings of the workstation; the usual ones when the file cannot be read."""
        return self._settings[0]

    @property
    def settings_problem(self) -> str:
        """Why the file of settings cannot be read."""
        return self._settings[1]

    def keep(self) -> None:
        """Keeps what the first screen shows for the next start."""
        from odf_tui import snapshot

        snapshot.save(self.folder, self)

    @cached_property
    def _settings(self) -> tuple[settings.UiConfig, str]:
        try:
            return self.workspace.config.ui, ""
        except OdfError as error:
            return settings.UiConfig(), error.format_line
