"""Jobs and their logs, kept current from worker events; the health of datasets derived from them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import msgspec

from odf_engine.coordinator.protocol import (
    READ_ONLY_JOBS,
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
from odf_tui.state.model import Health
from odf_tui.text.job_text import found_invalid, known_result, verified_head

if TYPE_CHECKING:
    from odf_tui.state.model import DatasetRow


Entry = LogLine | Committed
PAGE: Final = 2000
MAX_LINES: Final = 10_000
"""Lines in memory; those beyond, on the other side, are let go and read again when they are wanted."""
MAX_LINE_LENGTH: Final = 4000
_HASH: Final = re.compile(r"\bf1620[0-9a-f]{56}([0-9a-f]{8})\b")


class WrittenBlock(msgspec.Struct, frozen=True):
    """A block that a job wrote: its dataset (id), number, hash, kind of event, and the rows it added."""

    dataset: str
    number: int
    hash: str
    event: str
    rows: int


class LogPage(msgspec.Struct, frozen=True):
    """Some events of a job, and whether the journal has more of them before and after."""

    events: list[JournalEvent]
    older: bool
    newer: bool


class LogWindow:
    """Lines of a job's log that follow each other without a gap.

    Attributes:
        lines: the lines; a block that was committed is one of them.
        older, newer: whether the journal has lines before the first and after the last.
    """

    def __init__(self, most: int = MAX_LINES) -> None:
        self.lines: list[Entry] = []
        self.older = self.newer = False
        self._most = most
        self._last = 0

    @property
    def first_seq(self) -> int:
        """The journal number of the first line."""
        return self.lines[0].seq if self.lines else 0

    @property
    def last_seq(self) -> int:
        """The journal number up to which lines are known."""
        return self._last

    def load(self, page: LogPage) -> None:
        """Takes a page in place of what there is."""
        self.lines = merge_log_entries(page.events)
        self.older, self.newer = page.older, page.newer
        self._last = page.events[-1].seq if page.events else 0

    def add(self, events: Iterable[JournalEvent]) -> None:
        """Appends what is new, where the end of the log is in memory."""
        if not self.newer:
            self._append([event for event in events if event.seq > self._last])

    def extend(self, page: LogPage) -> None:
        """Appends the page that follows."""
        self.newer = page.newer
        self._append(page.events)

    def prepend(self, page: LogPage) -> None:
        """Puts the page that comes before in front."""
        self.lines = merge_log_entries(page.events) + self.lines
        self.older = page.older
        if len(self.lines) > self._most:
            del self.lines[self._most :]
            self.newer = True
            self._last = self.lines[-1].seq

    def _append(self, events: Sequence[JournalEvent]) -> None:
        if not events:
            return
        self._last = events[-1].seq
        self.lines = self.lines[:-1] + merge_log_entries([*self.lines[-1:], *events])
        gone = max(len(self.lines) - self._most, 0)
        if gone:
            del self.lines[:gone]
            self.older = True


def merge_log_entries(events: Iterable[JournalEvent]) -> list[Entry]:
    """The lines among events. A block has one line: what the job said of it, if it said its hash."""
    lines: list[Entry] = []
    for event in events:
        if isinstance(event, JobChanged):
            continue
        last = lines[-1] if lines else None
        if isinstance(event, Committed) and isinstance(last, LogLine) and event.block in last.text:
            continue
        lines.append(event)
    return lines


def is_commit(entry: Entry) -> bool:
    """Whether a line tells of a block that was committed."""
    return isinstance(entry, Committed) or (entry.level == "info" and " block f1620" in f" {entry.text}")


def log_display_text(entry: Entry) -> str:
    """What a line says on the screen: hashes are short there."""
    if isinstance(entry, Committed):
        rows = f", {entry.rows:,} rows" if entry.rows else ""
        return f"block …{entry.block[-8:]}, {entry.event}{rows}"
    return _HASH.sub(r"…\1", entry.text[:MAX_LINE_LENGTH].rstrip("\r\n"))


def log_search_text(entry: Entry) -> str:
    """What is searched, in lower case: hashes in full, and no time."""
    text = f"block {entry.block} {entry.event}" if isinstance(entry, Committed) else entry.text
    return text.lower()


def format_log_line(entry: Entry) -> str:
    """A line as a file has it."""
    if isinstance(entry, Committed):
        return f"{' ' * 24} block {entry.block}, {entry.event}, {entry.rows:,} rows"
    return f"{entry.time:<24} {entry.level:<7} {entry.text}"


def log_file_header(job: Job) -> list[str]:
    """What a file says of the job."""
    return [
        f"# {job.kind} {job.target}, job {job.id}: {job.state.value}",
        f"# made {job.created}, started {job.started or 'never'}, ended {job.ended or 'not yet'}",
    ]


def log_file_footer(job: Job) -> list[str]:
    """What a file says of why the job failed."""
    error = job.error
    if error is None:
        return []
    lines = [f"# {job.state.value}: {error.message}"]
    lines += [f"# where: {error.where}"] if error.where else []
    lines += [f"# {line}" for line in error.excerpt]
    return lines + ([f"# try: {error.hint}"] if error.hint else [])


def log_file_name(job: Job) -> str:
    """What a saved log is called."""
    return f"{job.kind}-{re.sub(r'[^0-9A-Za-z._-]+', '-', job.target) or 'dataset'}-{job.id}.log"


LOG_LINES: Final = 5000
_STATE_GLYPHS: Final = {
    JobState.queued: ("◦", "busy"),
    JobState.running: ("▸", "busy"),
    JobState.done: ("✓", "good"),
    JobState.failed: ("✗", "bad"),
    JobState.cancelled: ("∅", "muted"),
    JobState.interrupted: ("↯", "warn"),
}


def job_glyph(job: Job) -> tuple[str, str]:
    """One cell and the name of its style; a verification that found something is no success.

    Neither is a look at remotes of which none could be asked.
    """
    if job.state is JobState.done and found_invalid(job):
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
    """What a batch of events changed: states of jobs, their amounts, logs, datasets, the worker.

    ``added``: whether there are jobs that were unknown before.
    """

    jobs: set[str] = set()
    added: bool = False
    progress: set[str] = set()
    logs: set[str] = set()
    datasets: set[str] = set()
    ended: list[Job] = []
    worker: WorkerStatus | None = None


class JobBook(msgspec.Struct):
    """All jobs that the screen knows of, and the logs of those that were looked at."""

    jobs: dict[str, Job] = {}
    logs: dict[str, list[LogLine | Committed]] = {}
    last_seq: int = 0
    _seen: dict[str, int] = {}

    def load(self, jobs: Iterable[Job], last_seq: int) -> None:
        """Takes over what the journal says, newest first."""
        self.jobs = {job.id: job for job in reversed(list(jobs))}
        self.last_seq = last_seq

    def load_log(self, job: str, events: Iterable[JournalEvent]) -> None:
        """Takes over the journal of one job."""
        found = list(events)
        self.logs[job] = [event for event in found if not isinstance(event, JobChanged)][-LOG_LINES:]
        self._seen[job] = found[-1].seq if found else 0

    def apply(self, events: Iterable[Event]) -> JobChanges:
        """Takes in events as they come from the worker, in any amount."""
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
            return  # an old entry, told again
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
        """The newest job that brought data into a dataset, or tried to."""
        found = (
            job for job in reversed(self.jobs.values()) if job.dataset == dataset and job.kind in INGEST_KINDS
        )
        return next(found, None)

    def newest_first(self) -> list[Job]:
        """All jobs."""
        return list(reversed(self.jobs.values()))

    def active_jobs(self) -> list[Job]:
        """Those that are queued or running."""
        return [job for job in self.jobs.values() if not job.state.final]

    def active_job_of(self, dataset: str) -> Job | None:
        """The job that runs for a dataset, or waits; one that only looks at it does not count."""
        found = [
            job for job in self.active_jobs() if job.dataset == dataset and job.kind not in READ_ONLY_JOBS
        ]
        running = [job for job in found if job.state is JobState.running]
        return (running or found or [None])[0]


INGEST_KINDS: Final = ("pull", "ingest")
"""The kinds of jobs that bring data into a dataset."""


def dataset_healths(rows: Sequence[DatasetRow], book: JobBook) -> dict[str, Health]:
    """How every dataset is, from its chain and its newest jobs."""
    pulls: dict[str, Job] = {}
    verifies: dict[str, Job] = {}
    for job in book.jobs.values():  # oldest first
        if job.kind in INGEST_KINDS and job.state is not JobState.cancelled:
            pulls[job.dataset] = job
        elif job.kind == "update" and job.state is JobState.done:
            pulls.pop(job.dataset, None)  # what failed before was another query
        elif job.kind == "verify" and job.state is JobState.done:
            verifies[job.dataset] = job
    active = {job.dataset: job for job in reversed(book.active_jobs()) if job.kind not in READ_ONLY_JOBS}
    return {row.id: _health(row, active.get(row.id), pulls, verifies) for row in rows}


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
    if row.diverged or any(each.pull and each.relation == "diverged" for each in row.remotes):
        return Health.diverged
    pull, verify = pulls.get(row.id), verifies.get(row.id)
    if verify is not None and found_invalid(verify):
        return Health.invalid
    if pull is not None and pull.state in (JobState.failed, JobState.interrupted):
        return Health.failed
    if row.derivative and row.last_pulled is None:
        return Health.new
    if row.behind or any(each.pull and each.relation == "behind" for each in row.remotes):
        return Health.stale
    if row.last_pulled is None and (pull is None or pull.state is not JobState.done):
        return Health.new
    if verify is not None and row.head and verified_head(verify) == row.head:
        return Health.verified
    return Health.current
