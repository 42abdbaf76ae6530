"""JobBook: the jobs and their logs, updated by events of the worker. LogWindow: a part of a log."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import msgspec

from odf_engine.api import (
    Committed,
    Compare,
    Event,
    Job,
    JobChanged,
    JobProgress,
    JobState,
    JournalEvent,
    LogLine,
    WorkerStatus,
)
from odf_engine.api.model import LOG_LINES, LogPage
from odf_engine.api.readers.job_log import Entry, merge_log_entries
from odf_tui.state.model import Health
from odf_tui.text.job_text import has_findings, known_result, verified_head

if TYPE_CHECKING:
    from odf_engine.api.model import DatasetRow


MAX_LINES: Final = 10_000
"""Maximum number of lines in memory. Others are dropped, and read again on demand."""


class LogWindow:
    """Consecutive lines of a log, without a gap.

    Attributes:
        lines: the lines. A committed block is a line.
        older, newer: whether the journal has lines before the first and after the last.

    Args:
        max_lines: maximum number of lines.
    """

    def __init__(self, max_lines: int = MAX_LINES) -> None:
        self.lines: list[Entry] = []
        self.older = self.newer = False
        self._max_lines = max_lines
        self._last = 0

    @property
    def first_seq(self) -> int:
        """The journal number of the first line."""
        return self.lines[0].seq if self.lines else 0

    @property
    def last_seq(self) -> int:
        """The journal number of the last log entry that was read."""
        return self._last

    def load(self, page: LogPage) -> None:
        """Replace the lines by a page."""
        self.lines = merge_log_entries(page.events)
        self.older, self.newer = page.older, page.newer
        self._last = page.events[-1].seq if page.events else 0

    def add(self, events: Iterable[JournalEvent]) -> None:
        """Append new events if the window has the end of the log."""
        if not self.newer:
            self._append([event for event in events if event.seq > self._last])

    def extend(self, page: LogPage) -> None:
        """Append the next page."""
        self.newer = page.newer
        self._append(page.events)

    def prepend(self, page: LogPage) -> None:
        """Insert the previous page in front."""
        self.lines = merge_log_entries(page.events) + self.lines
        self.older = page.older
        if len(self.lines) > self._max_lines:
            del self.lines[self._max_lines :]
            self.newer = True
            self._last = self.lines[-1].seq

    def _append(self, events: Sequence[JournalEvent]) -> None:
        if not events:
            return
        self._last = events[-1].seq
        self.lines = self.lines[:-1] + merge_log_entries([*self.lines[-1:], *events])
        excess = max(len(self.lines) - self._max_lines, 0)
        if excess:
            del self.lines[:excess]
            self.older = True


def is_commit(entry: Entry) -> bool:
    """Return whether a line is about a committed block."""
    return isinstance(entry, Committed) or (entry.level == "info" and " block f1620" in f" {entry.text}")


def log_file_name(job: Job) -> str:
    """Return the default name of a log file."""
    return f"{job.kind}-{re.sub(r'[^0-9A-Za-z._-]+', '-', job.target) or 'dataset'}-{job.id}.log"


_STATE_GLYPHS: Final = {
    JobState.queued: ("◦", "busy"),
    JobState.running: ("▸", "busy"),
    JobState.done: ("✓", "good"),
    JobState.failed: ("✗", "bad"),
    JobState.cancelled: ("■", "muted"),
    JobState.interrupted: ("↯", "warn"),
}


def job_glyph(job: Job) -> tuple[str, str]:
    """Return the glyph of a job, one cell wide, and its style.

    A verification with findings and a comparison without a reachable remote are not successful.
    """
    if job.state is JobState.done and has_findings(job):
        return Health.invalid.glyph, "bad"
    if job.state is JobState.done and job.kind == "compare" and _compared_none(job.result or ""):
        return _STATE_GLYPHS[JobState.interrupted]
    return _STATE_GLYPHS[job.state]


@lru_cache(maxsize=1024)
def _compared_none(result: str) -> bool:
    """Return whether no remote could be compared."""
    comparison = known_result(result, Compare)
    return comparison is not None and bool(comparison.problems) and not comparison.seen


class JobChanges(msgspec.Struct):
    """The changes made by a batch of events.

    Attributes:
        jobs: ids of jobs with another state.
        added: whether a job is new.
        progress: ids of jobs with new progress.
        logs: ids of jobs with new lines in their log.
        datasets: ids of datasets that may have changed.
        ended: jobs that ended.
        worker: the status of the worker, if it was sent.
    """

    jobs: set[str] = set()
    added: bool = False
    progress: set[str] = set()
    logs: set[str] = set()
    datasets: set[str] = set()
    ended: list[Job] = []
    worker: WorkerStatus | None = None


class JobBook(msgspec.Struct):
    """The jobs, and the logs that were read.

    Attributes:
        jobs: all jobs by id, oldest first.
        logs: the newest lines of logs by the id of their job.
        last_seq: the journal number of the last applied event.
    """

    jobs: dict[str, Job] = {}
    logs: dict[str, list[LogLine | Committed]] = {}
    last_seq: int = 0
    _seen: dict[str, int] = {}

    def load(self, jobs: Iterable[Job], last_seq: int) -> None:
        """Replace all jobs by the journal's, which are newest first."""
        self.jobs = {job.id: job for job in reversed(list(jobs))}
        self.last_seq = last_seq

    def load_log(self, job: str, events: Iterable[JournalEvent]) -> None:
        """Replace the log of a job by its journal."""
        entries = list(events)
        self.logs[job] = [event for event in entries if not isinstance(event, JobChanged)][-LOG_LINES:]
        self._seen[job] = entries[-1].seq if entries else 0

    def apply(self, events: Iterable[Event]) -> JobChanges:
        """Apply events of the worker. Returns what changed."""
        changes = JobChanges()
        for event in events:
            match event:
                case WorkerStatus():
                    changes.worker = event
                case JobChanged():
                    self._apply_job_change(event, changes)
                case JobProgress():
                    job = self.jobs.get(event.job)
                    if job is not None and not job.state.final:
                        self.jobs[job.id] = msgspec.structs.replace(job, progress=event.progress)
                        changes.progress.add(job.id)
                case LogLine() | Committed():
                    self._apply_log_entry(event, changes)
        return changes

    def _apply_job_change(self, event: JobChanged, changes: JobChanges) -> None:
        self.last_seq = max(self.last_seq, event.seq)
        before = self.jobs.get(event.job.id)
        if before is not None and before.state.final and not event.job.state.final:
            return  # an old entry, sent again
        self.jobs[event.job.id] = event.job
        changes.jobs.add(event.job.id)
        changes.added = changes.added or before is None
        if event.job.state.final:
            changes.datasets.add(event.job.dataset)
        if event.job.state.final and (before is None or not before.state.final):
            changes.ended.append(event.job)

    def _apply_log_entry(self, event: LogLine | Committed, changes: JobChanges) -> None:
        self.last_seq = max(self.last_seq, event.seq)
        if isinstance(event, Committed):
            changes.datasets.add(event.dataset)
        log = self.logs.get(event.job)
        if log is not None and event.seq > self._seen.get(event.job, 0):
            log.append(event)
            del log[:-LOG_LINES]
            self._seen[event.job] = event.seq
            changes.logs.add(event.job)

    def latest_ingest(self, dataset: str) -> Job | None:
        """Return the newest job that ingested data into a dataset, or tried to. Branches do not count."""
        jobs = (
            job
            for job in reversed(self.jobs.values())
            if job.dataset == dataset and job.kind in INGEST_KINDS and not job.branch
        )
        return next(jobs, None)

    def last_polls(self) -> dict[str, str]:
        """Return when each dataset was last pulled or ingested into successfully, by its id."""
        return {
            job.dataset: job.ended
            for job in self.jobs.values()  # oldest first
            if job.kind in INGEST_KINDS and job.state is JobState.done and job.ended and not job.branch
        }

    def newest_first(self) -> list[Job]:
        """Return all jobs, newest first."""
        return list(reversed(self.jobs.values()))

    def warned_jobs(self) -> list[Job]:
        """Return the jobs with warnings, newest first."""
        return [job for job in self.newest_first() if job.warnings]

    def active_jobs(self) -> list[Job]:
        """Return the queued and running jobs."""
        return [job for job in self.jobs.values() if not job.state.final]

    def active_job_of(self, dataset: str) -> Job | None:
        """Return the running job of a dataset, or else its queued one. Read-only jobs do not count."""
        jobs = [job for job in self.active_jobs() if job.dataset == dataset and not job.read_only]
        running = [job for job in jobs if job.state is JobState.running]
        return (running or jobs or [None])[0]


INGEST_KINDS: Final = ("pull", "ingest")
"""The kinds of jobs that ingest data."""


def dataset_healths(rows: Sequence[DatasetRow], book: JobBook) -> dict[str, Health]:
    """Return the health of each dataset by id, from its chain and its newest jobs."""
    pulls: dict[str, Job] = {}
    verifies: dict[str, Job] = {}
    for job in book.jobs.values():  # oldest first
        if job.branch:
            continue  # the state of a branch is not that of the dataset
        if job.kind in INGEST_KINDS and job.state is not JobState.cancelled:
            pulls[job.dataset] = job
        elif job.kind == "update" and job.state is JobState.done:
            pulls.pop(job.dataset, None)  # an earlier failure was that of the old query
        elif job.kind == "verify" and job.state is JobState.done:
            verifies[job.dataset] = job
    active = {job.dataset: job for job in reversed(book.active_jobs()) if not job.read_only}
    return {row.id: _health(row, active.get(row.id), pulls, verifies) for row in rows}


def warned_datasets(book: JobBook, seen: Set[str]) -> set[str]:
    """Return the ids of datasets whose newest pull or ingest has warnings, or that have unseen warnings.

    Args:
        book: the jobs.
        seen: when the jobs ended whose warnings the user has seen.
    """
    warned: set[str] = set()
    judged: set[str] = set()
    for job in book.newest_first():
        is_newest = job.kind in INGEST_KINDS and not job.branch and job.dataset not in judged
        if is_newest and job.state.final:
            judged.add(job.dataset)
        if job.warnings and (is_newest or job.ended not in seen):
            warned.add(job.dataset)
    return warned


def _health(
    row: DatasetRow,
    active: Job | None,
    pulls: Mapping[str, Job],
    verifies: Mapping[str, Job],
) -> Health:
    if row.missing:
        return Health.missing
    if row.problem:
        return Health.damaged
    if active is not None:
        return Health.running if active.state is JobState.running else Health.queued
    if row.diverged or any(remote.pull and remote.relation == "diverged" for remote in row.remotes):
        return Health.diverged
    pull, verify = pulls.get(row.id), verifies.get(row.id)
    if verify is not None and has_findings(verify):
        return Health.invalid
    if pull is not None and pull.state in (JobState.failed, JobState.interrupted):
        return Health.failed
    if row.derivative and row.last_pulled is None:
        return Health.new
    if row.behind or any(remote.pull and remote.relation == "behind" for remote in row.remotes):
        return Health.stale
    if row.last_pulled is None and (pull is None or pull.state is not JobState.done):
        return Health.new
    if verify is not None and row.head and verified_head(verify) == row.head:
        return Health.verified
    return Health.current
