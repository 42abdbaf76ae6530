"""What the screen knows: datasets, blocks, jobs. It learns it from an ``odf_tui.source.Source``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from typing import Final, Literal, TypeVar

import msgspec

from odf_engine.coordinator.protocol import (
    READ_ONLY_JOBS,
    Committed,
    Compare,
    Event,
    Job,
    JobChanged,
    JobProgress,
    JobRequest,
    JobState,
    JournalEvent,
    LogLine,
    Verify,
    WorkerStatus,
    decode_result,
)
from odf_engine.errors import BadData
from odf_tui.remotes import Remote

LOG_LINES: Final = 5000
R = TypeVar("R")


class DatasetRow(msgspec.Struct, frozen=True, kw_only=True):
    """A dataset as the graph shows it; times are RFC 3339, ``size`` is in bytes of data.

    ``head`` changes with every commit. ``polls``: there is a source to poll; ``push_sources``: the names of
    those that take what is pushed. ``standing``: own, trusted or not trusted, see
    ``odf_engine.workspace.trust``. ``missing``: others read it, and it is not in this workspace.
    ``behind``: its inputs have more than it has taken in. ``diverged``: the names of inputs that were reset
    or replaced since it was made from them. ``remotes``: where it comes from and goes to.
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
    polls: bool = False
    push_sources: tuple[str, ...] = ()
    standing: Literal["own", "trusted", "not trusted"] = "own"
    problem: str | None = None
    missing: bool = False
    behind: bool = False
    diverged: tuple[str, ...] = ()
    remotes: tuple[Remote, ...] = ()

    @property
    def untrusted(self) -> bool:
        """Whether its sources may not run."""
        return self.standing == "not trusted"

    @property
    def comes_from_elsewhere(self) -> bool:
        """Whether it is taken over from other places, and not made here."""
        return any(each.pull for each in self.remotes)


class BlockLine(msgspec.Struct, frozen=True):
    """A block as a line of the explorer; ``broken``: it cannot be read, and the summary says why."""

    sequence_number: int
    hash: str
    time: str
    event: str
    rows: int | None
    summary: str
    broken: bool = False


class Sql(str):
    """The text of a query."""


Fact = tuple[str, str]
"""A name and what there is to say; that may have several lines, and be a query (:class:`Sql`)."""


class Section(msgspec.Struct, frozen=True):
    """Facts under a title."""

    title: str
    facts: tuple[Fact, ...]


class Detail(msgspec.Struct, frozen=True):
    """What is known of a dataset: a few facts for the card, all of it in words, and all of it as YAML."""

    facts: tuple[Fact, ...]
    sections: tuple[Section, ...]
    text: str


class Target(msgspec.Struct, frozen=True):
    """A place to go to: a block by its number, a row by its number from 0, or a dataset."""

    dataset: str
    pane: Literal["blocks", "data", "datasets"]
    at: int = 0


class Change(msgspec.Struct, frozen=True):
    """An event that is to be appended: its title, and lines that start with ``+``, ``-`` or a space."""

    title: str
    lines: tuple[str, ...]


class Execution(msgspec.Struct, frozen=True):
    """One thing that a source runs or reads: in words what it does, with what, and the block that says so."""

    does: str
    text: str
    block: str


class Standing(msgspec.Struct, frozen=True):
    """Somebody else's dataset: where it came from, if that is known, what runs, whether it was trusted."""

    origin: str
    runs: tuple[Execution, ...]
    before: bool = False


class Health(Enum):
    """How a dataset is: value, glyph, name of its style. The glyph alone tells them apart."""

    new = ("new", "·", "muted")
    current = ("current", "✓", "good")
    verified = ("verified", "✓✓", "good")  # current, and found right up to its present head
    stale = ("stale", "~", "warn")
    queued = ("queued", "◦", "busy")
    running = ("running", "▸", "busy")
    failed = ("failed", "✗", "bad")
    diverged = ("diverged", "÷", "bad")
    invalid = ("not valid", "≠", "bad")
    damaged = ("damaged", "!", "bad")
    missing = ("not here", "?", "warn")

    @property
    def word(self) -> str:
        """One word for people."""
        return self.value[0]

    @property
    def glyph(self) -> str:
        """One cell; two for those that are verified."""
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


def known_result(result: str | None, request: type[JobRequest[R]]) -> R | None:
    """Return a job's result; None if it cannot be decoded, such as that of another version.

    A job that is done without a result has the default result of its kind, where there is one.
    """
    try:
        return decode_result(result or "{}", request)
    except BadData:
        return None


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


def found_invalid(job: Job) -> bool:
    """Whether this is a finished verification that found something."""
    return job.kind == "verify" and _verdict(job.result or "")[0] is False


def verified_head(job: Job) -> str | None:
    """The block up to which this verification found nothing wrong; None: it did, or looked at less."""
    valid, head = _verdict(job.result or "") if job.kind == "verify" else (None, None)
    return head if valid is True else None


@lru_cache(maxsize=4096)
def _verdict(result: str) -> tuple[bool | None, str | None]:
    """Return ``valid`` and ``head`` of a report. Cached: reports can be long, and each event reads them."""
    report = known_result(result, Verify)
    return (None, None) if report is None else (report.valid, report.head)


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

    def intake_of(self, dataset: str) -> Job | None:
        """The newest job that brought data into a dataset, or tried to."""
        found = (
            job for job in reversed(self.jobs.values()) if job.dataset == dataset and job.kind in INTAKES
        )
        return next(found, None)

    def newest_first(self) -> list[Job]:
        """All jobs."""
        return list(reversed(self.jobs.values()))

    def open(self) -> list[Job]:
        """Those that are queued or running."""
        return [job for job in self.jobs.values() if not job.state.final]

    def open_of(self, dataset: str) -> Job | None:
        """The job that runs for a dataset, or waits; one that only looks at it does not count."""
        found = [job for job in self.open() if job.dataset == dataset and job.kind not in READ_ONLY_JOBS]
        running = [job for job in found if job.state is JobState.running]
        return (running or found or [None])[0]


def inputs_first(rows: Sequence[DatasetRow], wanted: Iterable[str]) -> list[str]:
    """The wanted datasets (ids) and all that they are made from, inputs before what is made from them."""
    inputs = {row.id: row.inputs for row in rows}
    found: dict[str, Sequence[str]] = {}
    todo = list(wanted)
    while todo:
        dataset = todo.pop()
        if dataset not in found:
            found[dataset] = inputs.get(dataset, ())
            todo += found[dataset]
    try:
        return list(TopologicalSorter(found).static_order())
    except CycleError:  # only a damaged workspace has one
        return list(found)


INTAKES: Final = ("pull", "ingest")
"""The kinds of jobs that bring data into a dataset."""


def healths(rows: Sequence[DatasetRow], book: JobBook) -> dict[str, Health]:
    """How every dataset is, from its chain and its newest jobs."""
    pulls: dict[str, Job] = {}
    verifies: dict[str, Job] = {}
    for job in book.jobs.values():  # oldest first
        if job.kind in INTAKES and job.state is not JobState.cancelled:
            pulls[job.dataset] = job
        elif job.kind == "update" and job.state is JobState.done:
            pulls.pop(job.dataset, None)  # what failed before was another query
        elif job.kind == "verify" and job.state is JobState.done:
            verifies[job.dataset] = job
    opened = {job.dataset: job for job in reversed(book.open()) if job.kind not in READ_ONLY_JOBS}
    return {row.id: _health(row, opened.get(row.id), pulls, verifies) for row in rows}


def _health(
    row: DatasetRow,
    opened: Job | None,
    pulls: Mapping[str, Job],
    verifies: Mapping[str, Job],
) -> Health:
    if row.missing:
        return Health.missing
    if row.problem:
        return Health.damaged
    if opened is not None:
        return Health.running if opened.state is JobState.running else Health.queued
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
