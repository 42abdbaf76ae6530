"""List jobs, newest first. A job with warnings has the mark ! after its state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from odf_engine.api import Job, JobState, Pull, Timestamp
from odf_engine.api.text import count_of, format_count, format_time_seconds
from odf_tui.cli.shared.options import define_command
from odf_tui.cli.shared.output import Table, select_fields, show
from odf_tui.cli.shared.workspace import open_workspace, use_timezone
from odf_tui.text.job_text import job_seconds, known_result, warnings_text

ORDER = 380
MEANINGS = "ps tasks queue"


@define_command("jobs", help=__doc__, example="odf jobs --json", json=True)
@click.option(
    "-n", "--limit", type=click.IntRange(min=1), default=20, show_default=True, help="Maximum number of jobs."
)
def command(limit: int) -> None:
    workspace = open_workspace()
    jobs = workspace.journal.jobs(limit)
    show([job_json(job) for job in jobs], lambda: _jobs_table(jobs, use_timezone(workspace)))


def _jobs_table(jobs: Sequence[Job], zone: str) -> Table:
    return Table(
        ["job", "kind", "target", "state", "rows", f"started ({zone})", "duration", "error or warnings"],
        [
            [
                job.id,
                job.kind,
                job.target,
                job.state.value + (" !" if job.warnings else ""),
                format_count(_rows(job)),
                format_time_seconds(job.started),
                _duration_text(job),
                job.error.message if job.error else _remark(job),
            ]
            for job in jobs
        ],
        right=["rows", "duration"],
        empty="no jobs yet",
    )


def _rows(job: Job) -> int | None:
    """Return the number of rows of a job; of one that was stopped, those that it committed before."""
    is_stopped = job.state.final and job.state is not JobState.done
    return job.committed_rows if is_stopped else job.progress.rows


def _rejected_rows(job: Job) -> int:
    result = known_result(job.result, Pull) if job.kind in ("pull", "ingest") and job.result else None
    return (result.rejected or 0) if result is not None else 0


def _remark(job: Job) -> str:
    """Return the number of rejected rows and the warnings of a job."""
    rows = _rejected_rows(job)
    rejected = f"{count_of(rows, 'row', separators=False)} rejected" if rows else ""
    return "; ".join(filter(None, [rejected, warnings_text(job.warnings) if job.warnings else ""]))


def job_json(job: Job) -> dict[str, Any]:
    """Return a job for ``--json``, without what only the worker and the workstation use."""
    document = select_fields(job, "id", "kind", "target", "state", "progress", "started", "ended", "error")
    if rejected := _rejected_rows(job):
        document["rejected"] = rejected
    if job.committed_rows:
        document["committed_rows"] = job.committed_rows
    return document | ({"warnings": job.warnings} if job.warnings else {})


def _duration_text(job: Job) -> str:
    seconds = None if job.ended is None else job_seconds(job, Timestamp.parse(job.ended))
    return "" if seconds is None else f"{seconds:.1f} s"
