"""Runs jobs with live progress; reports failures and exit codes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from odf_engine.api import (
    Event,
    Job,
    JobChanged,
    JobProgress,
    JobRequest,
    JobState,
    LogLine,
    Progress,
    Request,
)
from odf_engine.api.progress import JobStatus, StatusReporter
from odf_engine.api.workspace import Workspace
from odf_tui.cli.shared.options import options_of
from odf_tui.cli.shared.output import SECONDS_BETWEEN_LINES, console, print_note, select_fields
from odf_tui.text.job_text import failure_lines, progress_line

if TYPE_CHECKING:
    from rich.live import Live


R = TypeVar("R")


def error_entry(job: Job) -> dict[str, Any] | None:
    """Return the error of a job for ``--json``, or None if it has none."""
    return None if job.error is None else select_fields(job.error, "message", "where", "hint")


def print_failure(job: Job) -> None:
    """Print to stderr why a job failed or was stopped."""
    for line in failure_lines(job):
        sys.stderr.write(line + "\n")


def print_failures(jobs: Sequence[Job]) -> None:
    """Print to stderr why jobs failed or were stopped."""
    for job in jobs:
        if job.state is not JobState.done:
            print_failure(job)


def exit_code(jobs: list[Job]) -> int:
    """Return the exit code of a command that waited for these jobs: 130 if one of them was cancelled."""
    if any(job.state is JobState.cancelled for job in jobs):
        return 130
    return max(
        (1 if job.error is None else job.error.exit_code for job in jobs if job.state is not JobState.done),
        default=0,
    )


def follow(workspace: Workspace, requests: Sequence[tuple[Request, str]]) -> list[Job]:
    """Submit requests, show their progress on stderr, and return the jobs in the same order.

    ^C cancels the jobs and waits until they end.

    Args:
        requests: each with the name of its target.
    """
    if not requests:
        return []
    options = options_of()
    if options.quiet:
        return workspace.run_jobs(requests, lambda event: None)
    if not sys.stderr.isatty():
        return workspace.run_jobs(requests, _ProgressLines(options.verbose))
    from rich.live import Live

    board = _ProgressTable(options.verbose)
    with Live(console=console(stderr=True), refresh_per_second=4, transient=True) as live:
        board.live = live
        return workspace.run_jobs(requests, board)


def run_request(workspace: Workspace, request: JobRequest[R], target: str) -> R:
    """Submit one request as :func:`follow` does, and return its result.

    If the job does not succeed, prints why and exits with its exit code.
    """
    (job,) = follow(workspace, [(cast("Request", request), target)])  # every kind of request is in the union
    result = job.result_of(type(request))
    if job.state is not JobState.done or result is None:
        print_failure(job)
        sys.exit(exit_code([job]))
    return result


class LiveReporter(StatusReporter):
    """Shows the progress of an operation of this process.

    Args:
        title: what is done, such as ``packing``.
        show_progress: see :func:`odf_tui.cli.shared.output.live_progress`.
    """

    def __init__(self, title: str, show_progress: Callable[[str], None]) -> None:
        self._status = JobStatus(title)
        super().__init__(self._status)
        self._show_progress = show_progress

    def set_amounts(self, **amounts: int | str | None) -> None:
        """Show the amounts of the phase."""
        super().set_amounts(**amounts)
        self._show_progress(f"{self._status.title}: {progress_line(self._status.progress)}")


class _ProgressLines:
    """Prints progress as lines, for pipes and log files."""

    def __init__(self, verbose: bool) -> None:
        self.verbose = verbose
        self.names: dict[str, str] = {}
        self.last_printed = time.monotonic()

    def __call__(self, event: Event) -> None:
        if isinstance(event, JobChanged):
            self.names[event.job.id] = event.job.target
            if event.job.state is JobState.running and self.verbose:
                print_note(f"{event.job.target}: started as job {event.job.id}")
        elif isinstance(event, LogLine):
            name = self.names.get(event.job, event.job)
            if event.level in ("warning", "error") or (self.verbose and event.level == "info"):
                print_note(f"{name}: {event.level + ': ' if event.level != 'info' else ''}{event.text}")
        elif isinstance(event, JobProgress) and time.monotonic() - self.last_printed > SECONDS_BETWEEN_LINES:
            self.last_printed = time.monotonic()
            print_note(f"{self.names.get(event.job, event.job)}: {progress_line(event.progress)}")


class _ProgressTable:
    """Shows progress on a terminal, a line for each job."""

    def __init__(self, verbose: bool) -> None:
        self.verbose = verbose
        self.live: Live | None = None
        self.jobs: dict[str, Job] = {}
        self.progress: dict[str, Progress] = {}
        self.started: dict[str, float] = {}

    def __call__(self, event: Event) -> None:
        if isinstance(event, JobChanged):
            self.jobs[event.job.id] = event.job
            if event.job.state is JobState.running:
                self.started.setdefault(event.job.id, time.monotonic())
        elif isinstance(event, JobProgress):
            self.progress[event.job] = event.progress
        elif isinstance(event, LogLine):
            job = self.jobs.get(event.job)
            if self.live and (
                event.level in ("warning", "error") or (self.verbose and event.level == "info")
            ):
                self.live.console.print(f"{job.target if job else event.job}: {event.text}")
        self._draw()

    def _draw(self) -> None:
        from rich.table import Table

        table = Table.grid(padding=(0, 2))
        for job in self.jobs.values():
            text, elapsed = job.state.value, ""
            if job.state is JobState.running:
                text = progress_line(self.progress.get(job.id, job.progress)) or text
                elapsed = f"{time.monotonic() - self.started.get(job.id, time.monotonic()):.0f} s"
            table.add_row(job.target, text, elapsed)
        if self.live:
            self.live.update(table)
