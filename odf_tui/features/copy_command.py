"""Copies the `odf` command for the selection, to use it in scripts."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from functools import partial

from odf_engine.coordinator.protocol import (
    Check,
    Compact,
    Compare,
    Job,
    Pull,
    Push,
    Query,
    Request,
    Trace,
    Verify,
)
from odf_engine.errors import OdfError
from odf_tui.panes.data.view import QUERY, DataPane
from odf_tui.services.controller import Controller
from odf_tui.state.model import DatasetRow


class CopyCommandController(Controller):
    """Copies the command for the selection of the focused pane."""

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

    def _copy_row(self, row: DatasetRow) -> None:
        pane = self.host.widget(DataPane)
        window, at = pane.window, pane.view.cursor
        front = pane.front_view
        if window is None or (front is not None and front.kind == QUERY):
            self.host.notice("query results have no command: copy the command of the job in pane 4", "warn")
            return

        def read() -> list[str]:
            from odf_tui.gateway.row_text import read_scalar  # deferred: it loads Arrow

            name = window.system_columns[0]
            names = window.columns.names
            offset = read_scalar(window, at, names.index(name)) if name in names else None
            if offset is None or not offset.is_valid:
                raise OdfError("this row has no offset or cannot be read")
            return ["provenance", row.name, str(offset.as_py())]

        self._copy_later(read)

    def _job_command(self, job: Job) -> list[str]:
        return job_command(job, self.gateway.request_of_job(job), self.state.name_of)

    def _copy_later(self, read: Callable[[], list[str]]) -> None:
        self.reader.read("command", read, self._copy_command)

    def _copy_command(self, arguments: list[str] | None, error: str) -> None:
        if arguments is None:
            self.host.notice(error, "bad")
            return
        command = shlex.join(["odf", "-w", str(self.gateway.folder), *arguments])
        self.host.copy_text(command, command)


def job_command(job: Job, request: Request, name_of: Callable[[str], str]) -> list[str]:
    """Return the arguments of `odf` that submit the request of a job again.

    Args:
        job: the job.
        request: its request.
        name_of: returns the name of a dataset by its id.

    Raises:
        OdfError: no command submits such a request.
    """
    match request:
        case Pull(alias=str(alias), url=str(url)):
            return ["pull", "--from", url, "--as", alias]
        case Pull():
            options = {
                "--force": request.force,
                "--strict": request.strict,
                "--fetch-uncacheable": request.fetch_uncacheable,
                "--reset-on-divergence": request.reset_on_divergence,
                "--rederive": request.rederive,
            }
            found = [option for option, given in options.items() if given]
            found += ["--from", request.url] if request.url else []
            found += _branch_option(request.branch)
            found += ["--remote-branch", request.remote_branch] if request.remote_branch else []
            if request.set_watermark is not None:
                found += ["--set-watermark", request.set_watermark]
            return ["pull", name_of(request.dataset), *found]
        case Push():
            found = (["--force"] if request.force else []) + _branch_option(request.branch)
            return ["push", name_of(request.dataset), "--to", request.url, *found]
        case Verify():
            options = {
                "--integrity": request.integrity,
                "--recompute": request.recompute,
                "--rows": request.rows,
            }
            found = [name for name, given in options.items() if given]
            return ["verify", name_of(request.dataset), *found, *_branch_option(request.branch)]
        case Check():
            return ["check", "run", name_of(request.dataset), *_branch_option(request.branch)]
        case Compact():
            return ["compact", name_of(request.dataset), *(["--dry-run"] if request.dry_run else [])]
        case Compare():
            return ["repo", "status", name_of(request.dataset)]
        case Query():
            engine = [] if request.engine == "spark" else ["--engine", request.engine]
            return ["sql", request.sql, *engine]
        case Trace():
            first, last = request.runs[0][0], request.runs[-1][1]
            column = [] if request.column is None else ["--column", request.column]
            offsets = str(first) if first == last else f"{first}..{last}"
            return ["provenance", name_of(request.dataset), offsets, *column]
        case _:
            raise OdfError(
                f"no command for {job.kind} {job.target}", hint=f"run odf logs {job.id} to see its log"
            )


def _branch_option(branch: str) -> list[str]:
    return ["--branch", branch] if branch else []
