"""What the screen knows: datasets, blocks, jobs; and the narrow door through which it learns it.

:class:`Source` and :class:`Link` are all that the workstation needs of the engine. The real ones are
in ``odf_tui.engine``; tests have some in memory. Nothing here imports Textual.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from odf_engine.coordinator.protocol import (
    Committed,
    Event,
    Job,
    JobChanged,
    JobProgress,
    JobState,
    JournalEvent,
    LogLine,
    Request,
    WorkerStatus,
)

if TYPE_CHECKING:
    import pyarrow as pa

LOG_LINES: Final = 5000


class DatasetRow(msgspec.Struct, frozen=True, kw_only=True):
    """A dataset as the graph shows it; times are RFC 3339, ``size`` is in bytes of data.

    ``head`` changes with every commit. ``missing``: others read it, and it is not in this workspace.
    """

    id: str
    name: str
    derivative: bool = False
    inputs: tuple[str, ...] = ()
    head: str = ""
    blocks: int = 0
    records: int = 0
    size: int = 0
    watermark: str | None = None
    last_pulled: str | None = None
    problem: str | None = None
    missing: bool = False


class BlockLine(msgspec.Struct, frozen=True):
    """A block as a line of the explorer."""

    sequence_number: int
    hash: str
    time: str
    event: str
    rows: int | None
    summary: str


class Detail(msgspec.Struct, frozen=True):
    """What the card says of a dataset, as names and values; ``text`` is all of it as YAML."""

    facts: tuple[tuple[str, str], ...]
    text: str


class RowWindow(Protocol):
    """All rows of a dataset, read a window at a time; slow, so never called on the event loop."""

    @property
    def columns(self) -> pa.Schema:
        """Names and types."""
        ...

    @property
    def row_count(self) -> int:
        """How many rows there are."""
        ...

    @property
    def system_columns(self) -> tuple[str, str, str, str]:
        """Names of the columns for offset, operation, system time and event time."""
        ...

    def window(self, start: int, count: int) -> pa.Table:
        """Some rows."""
        ...


class Link(Protocol):
    """A connection to the worker."""

    @property
    def status(self) -> WorkerStatus:
        """The worker when the connection was made."""
        ...

    async def submit(self, request: Request, target: str) -> str:
        """Makes a job."""
        ...

    async def cancel(self, job: str) -> None:
        """Stops a job."""
        ...

    def events(self, since: int | None = None) -> AsyncIterator[Event]:
        """What happens, until the worker is gone."""
        ...

    async def close(self) -> None:
        """Leaves; the worker goes on."""
        ...


class Source(Protocol):
    """The engine as the screen sees it. Everything but :meth:`connect` may block: call it in a thread."""

    @property
    def folder(self) -> Path:
        """The workspace's folder."""
        ...

    @property
    def theme(self) -> str:
        """The configured theme, or ``auto``."""
        ...

    def datasets(self) -> list[DatasetRow]:
        """Every dataset, by name."""
        ...

    def detail(self, dataset: str) -> Detail:
        """What is known of a dataset."""
        ...

    def blocks(self, dataset: str, limit: int, before: int | None, text: str) -> list[BlockLine]:
        """Blocks before a sequence number, newest first; only those that match ``text`` when given."""
        ...

    def block_text(self, dataset: str, sequence_number: int) -> str:
        """A block as YAML."""
        ...

    def rows(self, dataset: str) -> RowWindow:
        """The rows of a dataset."""
        ...

    def add(self, path: Path) -> dict[str, str]:
        """Adds datasets from a manifest file: all of them or none; their names by id."""
        ...

    def jobs(self) -> tuple[list[Job], int]:
        """Recent jobs, newest first, and the journal number up to which they are known."""
        ...

    def log(self, job: str) -> Sequence[JournalEvent]:
        """The journal of one job."""
        ...

    def save_theme(self, name: str) -> None:
        """Remembers the theme."""
        ...

    async def connect(self) -> Link:
        """Attaches to the worker, and starts it if none runs."""
        ...


class Health(Enum):
    """How a dataset is: value, glyph, name of its style. The glyph alone tells them apart."""

    new = ("new", "·", "muted")
    current = ("current", "✓", "good")
    stale = ("stale", "~", "warn")
    queued = ("queued", "◦", "busy")
    running = ("running", "▸", "busy")
    failed = ("failed", "✗", "bad")
    invalid = ("not valid", "≠", "bad")
    damaged = ("damaged", "!", "bad")
    missing = ("not here", "?", "warn")

    @property
    def word(self) -> str:
        """One word for people."""
        return self.value[0]

    @property
    def glyph(self) -> str:
        """One cell."""
        return self.value[1]

    @property
    def style(self) -> str:
        """Name of the style."""
        return self.value[2]


_STATE_GLYPHS: Final = {
    JobState.queued: ("◦", "busy"),
    JobState.running: ("▸", "busy"),
    JobState.done: ("✓", "good"),
    JobState.failed: ("✗", "bad"),
    JobState.cancelled: ("∅", "muted"),
    JobState.interrupted: ("↯", "warn"),
}


def job_glyph(job: Job) -> tuple[str, str]:
    """One cell and the name of its style; a verification that found something is no success."""
    if job.state is JobState.done and found_invalid(job):
        return Health.invalid.glyph, "bad"
    return _STATE_GLYPHS[job.state]


def found_invalid(job: Job) -> bool:
    """Whether this is a finished verification that found something."""
    if job.kind != "verify" or not job.result:
        return False
    try:
        result = json.loads(job.result)
    except ValueError:
        return False
    return isinstance(result, dict) and result.get("valid") is False


class Changes(msgspec.Struct):
    """What a batch of events changed: states of jobs, their amounts, logs, datasets, the worker."""

    jobs: set[str] = set()
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

    def apply(self, events: Iterable[Event]) -> Changes:
        """Takes in events as they come from the worker, in any amount."""
        changes = Changes()
        for event in events:
            match event:
                case WorkerStatus():
                    changes.worker = event
                case JobChanged():
                    self._changed(event, changes)
                case JobProgress():
                    job = self.jobs.get(event.job)
                    if job is not None and not job.state.final:
                        self.jobs[job.id] = msgspec.structs.replace(job, progress=event.progress)
                        changes.progress.add(job.id)
                case LogLine() | Committed():
                    self._logged(event, changes)
        return changes

    def _changed(self, event: JobChanged, changes: Changes) -> None:
        self.last_seq = max(self.last_seq, event.seq)
        before = self.jobs.get(event.job.id)
        if before is not None and before.state.final and not event.job.state.final:
            return  # an old entry, told again
        self.jobs[event.job.id] = event.job
        changes.jobs.add(event.job.id)
        if event.job.state.final:
            changes.datasets.add(event.job.dataset)
        if event.job.state.final and (before is None or not before.state.final):
            changes.ended.append(event.job)

    def _logged(self, event: LogLine | Committed, changes: Changes) -> None:
        self.last_seq = max(self.last_seq, event.seq)
        if isinstance(event, Committed):
            changes.datasets.add(event.dataset)
        log = self.logs.get(event.job)
        if log is not None and event.seq > self._seen.get(event.job, 0):
            log.append(event)
            del log[:-LOG_LINES]
            self._seen[event.job] = event.seq
            changes.logs.add(event.job)

    def newest_first(self) -> list[Job]:
        """All jobs."""
        return list(reversed(self.jobs.values()))

    def open(self) -> list[Job]:
        """Those that are queued or running."""
        return [job for job in self.jobs.values() if not job.state.final]

    def open_of(self, dataset: str) -> Job | None:
        """The job that runs for a dataset, or waits."""
        found = [job for job in self.open() if job.dataset == dataset]
        running = [job for job in found if job.state is JobState.running]
        return (running or found or [None])[0]


def healths(rows: Sequence[DatasetRow], book: JobBook) -> dict[str, Health]:
    """How every dataset is, from its chain and its newest jobs."""
    pulls: dict[str, Job] = {}
    verifies: dict[str, Job] = {}
    for job in book.jobs.values():  # oldest first
        if job.kind == "pull" and job.state is not JobState.cancelled:
            pulls[job.dataset] = job
        elif job.kind == "verify" and job.state is JobState.done:
            verifies[job.dataset] = job
    opened = {job.dataset: job for job in reversed(book.open())}
    pulled = {row.id: row.last_pulled or "" for row in rows}
    return {row.id: _health(row, opened.get(row.id), pulls, verifies, pulled) for row in rows}


def _health(
    row: DatasetRow,
    opened: Job | None,
    pulls: Mapping[str, Job],
    verifies: Mapping[str, Job],
    pulled: Mapping[str, str],
) -> Health:
    if row.missing:
        return Health.missing
    if row.problem:
        return Health.damaged
    if opened is not None:
        return Health.running if opened.state is JobState.running else Health.queued
    pull, verify = pulls.get(row.id), verifies.get(row.id)
    if verify is not None and found_invalid(verify):
        return Health.invalid
    if pull is not None and pull.state in (JobState.failed, JobState.interrupted):
        return Health.failed
    if row.derivative and row.last_pulled is None:
        return Health.new
    if row.derivative and any(pulled.get(each, "") > (row.last_pulled or "") for each in row.inputs):
        return Health.stale
    if row.last_pulled is None and (pull is None or pull.state is not JobState.done):
        return Health.new
    return Health.current
