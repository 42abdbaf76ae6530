"""Waiting for jobs of the worker: a live line each on a terminal, a line now and then when piped."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from odf_engine.coordinator.client import run_jobs
from odf_engine.coordinator.protocol import (
    Event,
    Job,
    JobChanged,
    JobProgress,
    JobState,
    LogLine,
    Progress,
    Request,
)
from odf_engine.workspace.workspace import Workspace
from odf_tui import humane
from odf_tui.cli.output import console, options_of, say

if TYPE_CHECKING:
    from rich.live import Live

SECONDS_BETWEEN_LINES: Final = 5.0
_COUNTED: Final = {  # where they are no files
    "verify": ("", " blocks"),
    "replay": ("transaction ", ""),
    "compare": ("", " blocks"),
    "search": ("", " datasets"),
}


def follow(workspace: Workspace, requests: Sequence[tuple[Request, str]]) -> list[Job]:
    """Submits the requests, shows what happens on stderr, and returns the jobs in the same order.

    ^C cancels them and waits for their end.
    """
    if not requests:
        return []
    options = options_of()
    if options.quiet:
        return run_jobs(workspace.folder, list(requests), on_event=lambda event: None)
    if not sys.stderr.isatty():
        return run_jobs(workspace.folder, list(requests), on_event=_Lines(options.verbose))
    from rich.live import Live

    board = _Board(options.verbose)
    with Live(console=console(stderr=True), refresh_per_second=4, transient=True) as live:
        board.live = live
        return run_jobs(workspace.folder, list(requests), on_event=board)


def describe(progress: Progress) -> str:
    """Amounts of a running job in a few words, such as ``read  1 200 000 rows  93.1 MB of 938.0 MB``."""
    parts = [progress.phase]
    if progress.rows is not None:
        parts.append(f"{humane.count(progress.rows)} rows")
    if progress.bytes is not None:
        total = f" of {humane.size(progress.total_bytes)}" if progress.total_bytes else ""
        parts.append(humane.size(progress.bytes) + total)
    if progress.files is not None:
        total = f" of {progress.total_files}" if progress.total_files else ""
        before, after = _COUNTED.get(progress.phase, ("", " files"))
        parts.append(f"{before}{progress.files}{total}{after}")
    return "  ".join(part for part in parts if part)


class _Lines:
    """Progress for pipes and log files."""

    def __init__(self, verbose: bool) -> None:
        self.verbose = verbose
        self.names: dict[str, str] = {}
        self.spoke = time.monotonic()

    def __call__(self, event: Event) -> None:
        if isinstance(event, JobChanged):
            self.names[event.job.id] = event.job.target
            if event.job.state is JobState.running and self.verbose:
                say(f"{event.job.target}: started as job {event.job.id}")
        elif isinstance(event, LogLine):
            name = self.names.get(event.job, event.job)
            if event.level in ("warning", "error") or (self.verbose and event.level == "info"):
                say(f"{name}: {event.level + ': ' if event.level != 'info' else ''}{event.text}")
        elif isinstance(event, JobProgress) and time.monotonic() - self.spoke > SECONDS_BETWEEN_LINES:
            self.spoke = time.monotonic()
            say(f"{self.names.get(event.job, event.job)}: {describe(event.progress)}")


class _Board:
    """A live line a job."""

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
                text = describe(self.progress.get(job.id, job.progress)) or text
                elapsed = f"{time.monotonic() - self.started.get(job.id, time.monotonic()):.0f} s"
            table.add_row(job.target, text, elapsed)
        if self.live:
            self.live.update(table)
