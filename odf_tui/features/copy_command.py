"""Copies the `odf` command for the selection, to use it in scripts, and citations."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from functools import partial

from odf_engine.api import Job
from odf_engine.api.model import DatasetRow
from odf_engine.errors import OdfError
from odf_tui.panes.data.view import QUERY, DataPane
from odf_tui.services.controller import Controller
from odf_tui.text.row_text import read_scalar


class CopyCommandController(Controller):
    """Copies the command for the selection of the focused pane, and the citation of the dataset."""

    def copy(self) -> None:
        """Copy the command for the dataset, its blocks, the row or the job. Reads run in a thread."""
        situation = self.host.situation()
        row, job = situation.dataset, situation.job
        if situation.pane == "jobs" and job is not None:
            self._copy_later(partial(self._job_command, job))
        elif row is None:
            self.host.notice("nothing is selected", "warn")
        elif situation.pane == "data" and situation.has_rows:
            self._copy_row(row)
        else:
            self._copy_command(["log" if situation.pane == "blocks" else "show", row.name], "")

    def copy_citation(self) -> None:
        """Copy the citation of the selected dataset. It is read in a thread."""
        row = self.state.row
        if row is not None:
            self.host.read("citation", partial(self._read_citation, row.id), self._copy_citation)

    def _read_citation(self, dataset: str) -> str:
        return self.workspace.resolve(dataset).cite().apa

    def _copy_citation(self, citation: str | None, error: str) -> None:
        if citation is None:
            self.host.notice(error, "bad")
        else:
            self.host.copy_text("citation", citation)

    def _copy_row(self, row: DatasetRow) -> None:
        pane = self.host.query_one(DataPane)
        window, at = pane.window, pane.view.cursor
        front = pane.front_view
        if window is None or (front is not None and front.kind == QUERY):
            self.host.notice("query results have no command: copy the command of the job in pane 4", "warn")
            return

        def read() -> list[str]:
            name = window.system_columns[0]
            names = window.columns.names
            offset = read_scalar(window, at, names.index(name)) if name in names else None
            if offset is None or not offset.is_valid:
                raise OdfError("this row has no offset or cannot be read")
            return ["provenance", row.name, str(offset.as_py())]

        self._copy_later(read)

    def _job_command(self, job: Job) -> list[str]:
        command = self.workspace.request_of_job(job).command(self.state.name_of)
        if command is None:
            raise OdfError(
                f"no command for {job.kind} {job.target}", hint=f"run odf logs {job.id} to see its log"
            )
        return command

    def _copy_later(self, read: Callable[[], list[str]]) -> None:
        self.host.read("command", read, self._copy_command)

    def _copy_command(self, arguments: list[str] | None, error: str) -> None:
        if arguments is None:
            self.host.notice(error, "bad")
            return
        command = shlex.join(["odf", "-w", str(self.workspace.folder), *arguments])
        self.host.copy_text(command, command)
