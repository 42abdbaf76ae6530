"""Schedules jobs on threads; job context."""

from __future__ import annotations

import contextlib
import errno
import logging
import sqlite3
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from odf_engine.coordinator.job_log import JobLog, Level
from odf_engine.coordinator.protocol import (
    READ_ONLY_JOBS,
    Failure,
    Job,
    JobState,
    Progress,
    Pull,
    Push,
    Request,
)
from odf_engine.errors import Cancelled, NotFound, OdfError, UsageError, escape_surrogates
from odf_engine.progress import Reporter

if TYPE_CHECKING:
    from odf_engine.spark.runtime.session import SparkRuntime
    from odf_engine.workspace.workspace import Workspace


class WorkerHost(Protocol):
    """What the worker has for all jobs."""

    @property
    def folder(self) -> Path:
        """The workspace's folder."""
        ...

    def spark(self, reporter: Reporter) -> SparkRuntime:
        """The worker's Spark; waits until it has started.

        Raises:
            OdfError: it does not start.
            Cancelled: while waiting.
        """
        ...


@dataclass(frozen=True)
class JobContext:
    """What a job finds in the worker; closed at the end of the job.

    Attributes:
        host: the worker.
        environment: variables that its dataset's source may read, as the client has them.
    """

    host: WorkerHost
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)

    @cached_property
    def workspace(self) -> Workspace:
        """The worker's workspace, opened for this job.

        Raises:
            NotFound, Unsupported: see :meth:`odf_engine.workspace.workspace.Workspace.find`.
        """
        from odf_engine.workspace.workspace import Workspace

        return Workspace.find(explicit=self.host.folder)

    def close(self) -> None:
        """Closes the index of blocks: references in cycles would keep its file open for some time."""
        if "workspace" in self.__dict__:
            self.workspace.index.close()


Executor = Callable[[Request, JobContext, Reporter], Any]
"""Does a request; the result is what JSON can hold."""


_log = logging.getLogger(__name__)
_LEVELS: Final[dict[str, Level]] = {
    "debug": "debug",
    "info": "info",
    "warning": "warning",
    "error": "error",
}
_JOURNAL_PATIENCE: Final = 3.0
_MAX_LOOKS: Final = 2
"""How many jobs that only look run at once, besides the others: somebody sits and waits for them."""


class JobReporter(Reporter):
    """Takes what a job tells to the journal; amounts are kept until the worker collects them."""

    def __init__(self, journal: JobLog, job_id: str) -> None:
        super().__init__()
        self._journal = journal
        self._job = job_id
        self._amounts = threading.Lock()
        self._progress = Progress()
        self._fresh = False
        self._ended = False

    def phase(self, name: str) -> None:
        with self._amounts:
            self._progress, self._fresh = Progress(phase=name), True

    def set_amounts(self, **amounts: int | None) -> None:
        known = {name: value for name, value in amounts.items() if value is not None}
        with self._amounts:
            self._progress, self._fresh = msgspec.structs.replace(self._progress, **known), True

    def log(self, text: str, level: str = "info") -> None:
        try:
            self._journal.line(self._job, text, _LEVELS.get(level, "info"))
        except sqlite3.Error:  # a full disk, mostly: the job itself meets that or goes on without its log
            _log.warning("a log line of job %s is lost: %s", self._job, text, exc_info=True)

    def committed(self, dataset: str, block: str, event: str, rows: int) -> None:
        try:
            self._journal.committed(self._job, dataset, block, event, rows)
        except sqlite3.Error:
            _log.warning("job %s committed %s to %s; the journal misses it", self._job, block, dataset)

    def collect(self) -> Progress | None:
        """The amounts, if they are others than at the last time and the job has not ended."""
        with self._amounts:
            if not self._fresh or self._ended:
                return None
            self._fresh = False
            return self._progress

    @property
    def amounts(self) -> Progress:
        """The newest amounts."""
        with self._amounts:
            return self._progress

    def end(self) -> Progress:
        """The last amounts; :meth:`collect` has nothing from now on."""
        with self._amounts:
            self._ended = True
            return self._progress


class _Entry:
    def __init__(
        self, job: Job, request: Request, environment: Mapping[str, str], reporter: JobReporter
    ) -> None:
        self.job = job
        self.request = request
        self.environment = environment
        self.reporter = reporter
        self.looks = job.kind in READ_ONLY_JOBS
        exchanges = isinstance(request, Push) or (isinstance(request, Pull) and request.url is not None)
        self.lane = "looks" if self.looks else "exchanges" if exchanges else "works"


class JobQueue:
    """Runs jobs: at most ``max_jobs`` at once, in order, never two of one dataset at the same time.

    A job that names datasets to come ``after`` waits until the jobs of these before it have ended. Jobs
    that exchange datasets with other places, which wait for the network and not for Spark, have as many
    places of their own. Jobs that only look wait for none of these, but for each other when there are many.

    Safe from any thread. ``journal_lost`` is called when a job's end cannot be written down: its
    waiting clients would never learn of it, so the worker should end.
    """

    def __init__(
        self,
        journal: JobLog,
        host: WorkerHost,
        executor: Executor,
        max_jobs: int,
        journal_lost: Callable[[], None],
    ) -> None:
        self._journal = journal
        self._host = host
        self._executor = executor
        self._max_jobs = max_jobs
        self._journal_lost = journal_lost
        self._lock = threading.RLock()
        self._waiting: dict[str, _Entry] = {}
        self._running: dict[str, _Entry] = {}
        self.last_end = time.monotonic()

    @property
    def running(self) -> int:
        """How many jobs run."""
        with self._lock:  # so that a job whose end is told does not count any more
            return len(self._running)

    @property
    def queued(self) -> int:
        """How many jobs wait for their turn."""
        with self._lock:
            return len(self._waiting)

    def submit(self, request: Request, target: str, environment: Mapping[str, str]) -> Job:
        """Enters a job; ``environment`` may hold secrets and stays in memory, as long as the job is here."""
        with self._lock:
            job = self._journal.create(request, target)
            self._waiting[job.id] = _Entry(job, request, environment, JobReporter(self._journal, job.id))
        return job

    def cancel(self, job_id: str) -> None:
        """Stops a job: at once while it waits; a running one ends as soon as it notices.

        Raises:
            NotFound: there is no such job.
            UsageError: it has ended already.
        """
        with self._lock:
            waiting = self._waiting.get(job_id)
            running = self._running.get(job_id)
            if waiting is not None:
                self._journal.transition(job_id, JobState.cancelled)
                del self._waiting[job_id]
                self.last_end = time.monotonic()
        if waiting is None and running is None:
            state = self._journal.job(job_id).state
            raise UsageError(f"job {job_id} cannot be cancelled: it is {state.value} already")
        if running is not None:
            # The hooks of a job may take a moment, and the caller is the loop that serves everybody.
            threading.Thread(
                target=self._cancel, args=(running,), name=f"cancel-{job_id}", daemon=True
            ).start()

    def cancel_all(self) -> None:
        """Stops every job."""
        with self._lock:
            job_ids = [*self._waiting, *self._running]
        for job_id in job_ids:
            try:
                self.cancel(job_id)
            except (NotFound, UsageError):
                continue  # it ended meanwhile

    def mark_interrupted(self) -> None:
        """Marks the jobs that still run as interrupted: the process ends, and they with it."""
        self._journal.interrupt_open_jobs()

    def collect(self) -> dict[str, Progress]:
        """New amounts of running jobs, which are noted in the journal too."""
        with self._lock:
            entries = list(self._running.values())
        found: dict[str, Progress] = {}
        for entry in entries:
            if (progress := entry.reporter.collect()) is not None:
                found[entry.job.id] = progress
                self._note(entry.job.id, progress)
        return found

    def amounts(self) -> dict[str, Progress]:
        """The newest amounts of all running jobs."""
        with self._lock:
            entries = list(self._running.values())
        return {entry.job.id: entry.reporter.amounts for entry in entries}

    def dispatch_ready(self) -> None:
        """Starts the jobs whose turn it is."""
        with self._lock:
            ahead = {entry.request.dataset for entry in self._running.values() if not entry.looks}
            for job_id, entry in list(self._waiting.items()):
                if not entry.looks:
                    waits = ahead.intersection((entry.request.dataset, *getattr(entry.request, "after", ())))
                    ahead.add(entry.request.dataset)
                    if waits:
                        continue
                running = sum(other.lane == entry.lane for other in self._running.values())
                if running >= (_MAX_LOOKS if entry.looks else self._max_jobs):
                    continue
                try:
                    self._journal.transition(job_id, JobState.running)
                except sqlite3.Error:  # the next call tries again
                    _log.exception("job %s cannot be started", job_id)
                    return
                self._running[job_id] = self._waiting.pop(job_id)
                threading.Thread(target=self._run, args=(entry,), name=f"job-{job_id}", daemon=True).start()

    def _cancel(self, entry: _Entry) -> None:
        try:
            entry.reporter.cancel()
        except Exception:
            _log.exception("while cancelling job %s", entry.job.id)

    def _run(self, entry: _Entry) -> None:
        state, error, result = self._execute(entry)
        progress = entry.reporter.end()
        self._note(entry.job.id, progress)
        if self._finish(entry.job.id, state, error, result):
            self.dispatch_ready()
        else:
            self._journal_lost()

    def _execute(self, entry: _Entry) -> tuple[JobState, Failure | None, str | None]:
        reporter, job = entry.reporter, entry.job
        try:
            with contextlib.closing(JobContext(self._host, entry.environment)) as context:
                result = self._executor(entry.request, context, reporter)
            return JobState.done, None, msgspec.json.encode(result).decode()
        except Cancelled:
            return JobState.cancelled, None, None
        except BaseException as error:
            if reporter.cancelled:  # most likely the way in which something noticed it
                reporter.log(f"while it was cancelled: {_trace(error)}", "debug")
                return JobState.cancelled, None, None
            if not isinstance(error, OdfError) or error.__cause__ is not None:
                reporter.log(_trace(error), "debug")
            return JobState.failed, _failure(error, job), None

    def _note(self, job_id: str, progress: Progress) -> None:
        try:
            self._journal.progress(job_id, progress)
        except sqlite3.Error:
            _log.warning("the progress of job %s is not written", job_id, exc_info=True)

    def _finish(self, job_id: str, state: JobState, error: Failure | None, result: str | None) -> bool:
        """Writes a job's end; False when the journal takes it not even after a while."""
        deadline = time.monotonic() + _JOURNAL_PATIENCE
        while True:
            with self._lock:
                try:
                    with contextlib.suppress(NotFound):  # marked as interrupted: this process is ending
                        self._journal.transition(job_id, state, error=error, result=result)
                    del self._running[job_id]
                    self.last_end = time.monotonic()
                    return True
                except sqlite3.Error:
                    _log.exception("the end of job %s (%s) is not written", job_id, state.value)
            if time.monotonic() > deadline:
                return False
            time.sleep(0.5)


def _trace(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)).rstrip()


def _failure(error: BaseException, job: Job) -> Failure:
    """An error as people see it: one sentence, and what to do."""
    if isinstance(error, OdfError):
        return Failure(error.message, error.hint, error.where, error.exit_code, list(error.excerpt))
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Failure(
            "no space is left on the disk",
            where=_name(error),
            hint="nothing half-written was committed; make room and run it again",
        )
    if isinstance(error, PermissionError):
        return Failure("permission denied", where=_name(error), hint="check who owns it and its mode")
    if isinstance(error, MemoryError):
        return Failure("not enough memory", hint="end other programs, or run fewer jobs: worker.maxJobs")
    reason = (str(error).strip().splitlines() or ["no reason given"])[0][:300]
    return Failure(
        f"{job.kind} failed unexpectedly: {type(error).__name__}: {reason}",
        hint=f"'odf logs {job.id} -v' shows the details; this should be reported",
    )


def _name(error: OSError) -> str | None:
    return None if error.filename is None else escape_surrogates(str(error.filename))
