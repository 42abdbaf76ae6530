"""Show datasets and jobs continuously.

On a terminal, shows a table that is updated in place. Otherwise, prints a line for each change. Runs
until ^C, or until all jobs have ended with --until-idle.
"""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext
from typing import Any, Final

import click

from odf_engine.api import Job, Timestamp
from odf_engine.api.text import format_count, format_time, format_time_seconds, printable
from odf_engine.errors import NotFound
from odf_tui.cli.shared.datasets import status_word
from odf_tui.cli.shared.options import define_command
from odf_tui.cli.shared.output import console
from odf_tui.cli.shared.workspace import open_workspace
from odf_tui.cli.status import WorkspaceState
from odf_tui.text.job_text import job_outcome

ORDER = 100
MEANINGS = "monitor top follow live"

_MIN_INTERVAL: Final = 0.2
_RECENT_JOBS: Final = 5


@define_command("watch", help=__doc__, example="odf watch --until-idle > watch.log")
@click.option(
    "--interval",
    type=click.FloatRange(min=_MIN_INTERVAL),
    default=2.0,
    show_default=True,
    help="Seconds between two reads.",
)
@click.option("--until-idle", is_flag=True, help="End when no job is queued or running.")
def command(interval: float, until_idle: bool) -> None:
    workspace = open_workspace()
    board = _WatchTable() if sys.stdout.isatty() else _WatchLines()
    try:
        with board:
            while True:
                if not workspace.odf.is_dir():
                    raise NotFound("the workspace was deleted", where=str(workspace.folder))
                state = WorkspaceState.read(workspace)
                board.show(state)
                if until_idle and not state.book.active_jobs():
                    return
                time.sleep(interval)
    except KeyboardInterrupt:
        return  # the normal end


class _WatchLines(nullcontext[None]):
    """Prints a line for each change of a dataset or a job."""

    def __init__(self) -> None:
        super().__init__()
        self._before: dict[str, str] | None = None

    def show(self, state: WorkspaceState) -> None:
        """Print the changes since the last call; the first call prints a summary and the open jobs."""
        now = {f"job {job.id}": _watch_job_text(job) for job in state.book.jobs.values()}
        now |= {row.name: status_word(state.healths[row.id]) for row in state.rows}
        time_text = format_time_seconds(Timestamp.now())
        if self._before is None:
            lines = [
                state.summary(),
                *(f"job {job.id}: {_watch_job_text(job)}" for job in state.book.active_jobs()),
            ]
        else:
            old = self._before
            lines = [f"{name}: {text}" for name, text in now.items() if old.get(name) != text]
            lines += [f"{name}: deleted" for name in old if name not in now and not name.startswith("job ")]
        for line in lines:
            sys.stdout.write(f"{time_text}  {printable(line)}\n")
        sys.stdout.flush()
        self._before = now


def _watch_job_text(job: Job) -> str:
    """Return kind, target and state of a job, and the outcome of an ended one."""
    outcome = f": {job_outcome(job)[0]}" if job.state.final and job_outcome(job)[0] != job.state.value else ""
    return f"{job.kind} {job.target}, {job.state.value}{outcome}"


class _WatchTable:
    """Shows a table of jobs and datasets on a terminal; what needs attention is first."""

    def __init__(self) -> None:
        from rich.live import Live  # deferred: only this needs it

        self._live = Live(console=console(), auto_refresh=False, vertical_overflow="crop")

    def __enter__(self) -> None:
        self._live.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._live.__exit__(*error)

    def show(self, state: WorkspaceState) -> None:
        """Show a new state."""
        from rich.console import Group
        from rich.table import Table

        datasets = Table(box=None, pad_edge=False, header_style="bold")
        for header in ("status", "dataset", "rows", "last pulled"):
            datasets.add_column(header, no_wrap=True, justify="right" if header == "rows" else "left")
        attention = {row.id for row, _ in state.findings()}
        for row in sorted(state.rows, key=lambda row: row.id not in attention):
            health = state.healths[row.id]
            datasets.add_row(
                f"{health.glyph} {status_word(health)}",
                row.name,
                format_count(row.records),
                format_time(row.last_pulled),
            )
        jobs = Table(box=None, pad_edge=False, header_style="bold")
        for header, width in (("job", 3), ("kind", 8), ("target", 20), ("state", 9), ("outcome", 10)):
            jobs.add_column(header, no_wrap=True, overflow="ellipsis", min_width=width)
        active = state.book.active_jobs()
        ended = [job for job in state.book.newest_first() if job.state.final]
        for job in [*active, *ended[: max(_RECENT_JOBS - len(active), 1)]]:
            jobs.add_row(job.id, job.kind, job.target, job.state.value, job_outcome(job)[0])
        title = (
            f"{state.summary()} · {state.jobs_summary() or 'idle'} · {format_time_seconds(Timestamp.now())}"
        )
        self._live.update(Group(title, "", jobs, "", datasets), refresh=True)
