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
from typing import Any, Final

import msgspec

from odf_engine.base.progress import Reporter
from odf_engine.errors import Cancelled, NotFound, OdfError, UsageError, disk_hint, escape_surrogates
from odf_engine.jobs.base import JobContext, WorkerHost
from odf_engine.worker.job_log import JobLog, Level
from odf_engine.worker.job_warnings import WarningList
from odf_engine.worker.protocol import Failure, Job, JobState, Progress, Request

Executor = Callable[[Request, JobContext, Reporter], Any]
"""Runs a request and returns its result, which msgspec can encode as JSON."""


_log = logging.getLogger(__name__)
_LEVELS: Final[dict[str, Level]] = {
    "debug": "debug",
    "info": "info",
    "warning": "warning",
    "error": "error",
}
_JOURNAL_PATIENCE: Final = 3.0
_MAX_READ_ONLY: Final = 2
"""Maximum number of concurrent read-only jobs. They have slots of their own: users wait for them."""


class JobReporter(Reporter):
    """Stores a job's log and commits in the job log; keeps its progress until the worker collects it."""

    def __init__(self, journal: JobLog, job: Job, *, fail_on_warning: bool = False) -> None:
        super().__init__()
        self._journal = journal
        self._job = job.id
        self._fail_on_warning = fail_on_warning
        self._warnings = WarningList(job.target)
        self._amounts = threading.Lock()
        self._progress = Progress()
        self._fresh = False
        self._ended = False

    def phase(self, name: str) -> None:
        with self._amounts:
            self._progress, self._fresh = Progress(phase=name), True

    @property
    def current_phase(self) -> str:
        return self._progress.phase

    def set_amounts(self, **amounts: int | str | None) -> None:
        known = {name: value for name, value in amounts.items() if value is not None}
        with self._amounts:
            self._progress, self._fresh = msgspec.structs.replace(self._progress, **known), True

    def warn(self, text: str, kind: str, count: int | None = None) -> None:
        self._warnings.add(kind, text, count)
        self._write_line(text, "warning")

    def log(self, text: str, level: str = "info") -> None:
        if level == "warning":
            self._warnings.add("other", text)
        self._write_line(text, level)

    def _write_line(self, text: str, level: str) -> None:
        try:
            self._journal.append_lines(self._job, text, _LEVELS.get(level, "info"))
        except sqlite3.Error:  # mostly a full disk: the job fails on it too, or continues without its log
            _log.warning("a log line of job %s is lost: %s", self._job, text, exc_info=True)

    def committed(self, dataset: str, block: str, event: str, rows: int) -> None:
        self._warnings.committed(dataset, block)
        try:
            self._journal.append_commit(self._job, dataset, block, event, rows)
        except sqlite3.Error:
            _log.warning(
                "job %s committed %s to %s, which is missing in the job log", self._job, block, dataset
            )

    def raise_if_warned(self) -> None:
        if self._fail_on_warning:
            self._warnings.require_none()

    @property
    def warnings(self) -> WarningList:
        """The warnings so far."""
        return self._warnings

    def collect(self) -> Progress | None:
        """Return the progress if it has changed since the last call and the job has not ended."""
        with self._amounts:
            if not self._fresh or self._ended:
                return None
            self._fresh = False
            return self._progress

    @property
    def amounts(self) -> Progress:
        """The newest progress."""
        with self._amounts:
            return self._progress

    def end(self) -> Progress:
        """Return the last progress; afterwards :meth:`collect` returns None."""
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
        self.read_only = request.read_only
        self.lane = "read_only" if self.read_only else "sync" if request.is_transfer else "other"


class JobQueue:
    """Runs jobs in order: at most ``max_jobs`` at the same time, and never two jobs of one dataset.

    A job whose request has ``after`` waits for the earlier jobs of these datasets. Jobs that synchronize
    with remotes wait for the network and not for Spark, so they have ``max_jobs`` slots of their own.
    Read-only jobs have slots of their own too, and wait for no other job of their dataset.

    Thread-safe. ``journal_lost`` is called when the end of a job cannot be stored: clients would wait for
    it forever, so the worker has to stop.
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
        """Number of running jobs."""
        with self._lock:  # a job whose end is stored must not count
            return len(self._running)

    @property
    def queued(self) -> int:
        """Number of queued jobs."""
        with self._lock:
            return len(self._waiting)

    def submit(self, request: Request, target: str, environment: Mapping[str, str]) -> Job:
        """Queue a job and return it; ``environment`` may have secrets and is only in memory."""
        with self._lock:
            job = self._journal.create(request, target)
            fails = getattr(request, "on_warning", "continue") == "fail"
            reporter = JobReporter(self._journal, job, fail_on_warning=fails)
            self._waiting[job.id] = _Entry(job, request, environment, reporter)
        return job

    def cancel(self, job_id: str) -> None:
        """Cancel a job: a queued one immediately; a running one ends at its next check for cancellation.

        Raises:
            NotFound: there is no such job.
            UsageError: the job has ended.
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
            raise UsageError(f"job {job_id} cannot be cancelled: it is already {state.value}")
        if running is not None:
            # The hooks of a job can block, and the caller is the event loop of the worker.
            threading.Thread(
                target=self._cancel, args=(running,), name=f"cancel-{job_id}", daemon=True
            ).start()

    def cancel_all(self) -> None:
        """Cancel all jobs."""
        with self._lock:
            job_ids = [*self._waiting, *self._running]
        for job_id in job_ids:
            try:
                self.cancel(job_id)
            except (NotFound, UsageError):
                continue  # it has just ended

    def mark_interrupted(self) -> None:
        """Mark the running jobs as interrupted, because the process ends."""
        self._journal.interrupt_open_jobs()

    def collect(self) -> dict[str, Progress]:
        """Return the changed progress of running jobs by job id, and store it."""
        with self._lock:
            entries = list(self._running.values())
        progress_by_job: dict[str, Progress] = {}
        for entry in entries:
            if (progress := entry.reporter.collect()) is not None:
                progress_by_job[entry.job.id] = progress
                self._store_progress(entry.job.id, progress)
        return progress_by_job

    def amounts(self) -> dict[str, Progress]:
        """Return the newest progress of all running jobs by job id."""
        with self._lock:
            entries = list(self._running.values())
        return {entry.job.id: entry.reporter.amounts for entry in entries}

    def dispatch_ready(self) -> None:
        """Start the queued jobs that can run now."""
        with self._lock:
            ahead = {entry.request.dataset_id for entry in self._running.values() if not entry.read_only}
            for job_id, entry in list(self._waiting.items()):
                if not entry.read_only:
                    blocked = ahead.intersection(
                        (entry.request.dataset_id, *getattr(entry.request, "after", ()))
                    )
                    ahead.add(entry.request.dataset_id)
                    if blocked:
                        continue
                running = sum(other.lane == entry.lane for other in self._running.values())
                if running >= (_MAX_READ_ONLY if entry.read_only else self._max_jobs):
                    continue
                try:
                    self._journal.transition(job_id, JobState.running)
                except sqlite3.Error:  # retried by the next call
                    _log.exception("job %s cannot be started", job_id)
                    return
                self._running[job_id] = self._waiting.pop(job_id)
                threading.Thread(target=self._run, args=(entry,), name=f"job-{job_id}", daemon=True).start()

    def _cancel(self, entry: _Entry) -> None:
        try:
            entry.reporter.cancel()
        except Exception:  # the job stays cancelled, and ends by itself later; the log has the error
            _log.exception("error while cancelling job %s", entry.job.id)

    def _run(self, entry: _Entry) -> None:
        state, error, result = self._execute(entry)
        progress = entry.reporter.end()
        self._store_progress(entry.job.id, progress)
        if self._finish(entry, state, error, result):
            self.dispatch_ready()
        else:
            self._journal_lost()

    def _execute(self, entry: _Entry) -> tuple[JobState, Failure | None, str | None]:
        reporter, job = entry.reporter, entry.job
        try:
            with contextlib.closing(JobContext(self._host, entry.environment)) as context:
                try:
                    result = self._executor(entry.request, context, reporter)
                    reporter.raise_if_warned()
                    reporter.warnings.assign_rest()
                finally:
                    reporter.warnings.store(lambda: context.workspace)
            return JobState.done, None, msgspec.json.encode(result).decode()
        except Cancelled:
            return JobState.cancelled, None, None
        except BaseException as error:
            if reporter.cancelled:  # most likely a consequence of the cancellation
                reporter.log(f"error during cancellation: {_trace(error)}", "debug")
                return JobState.cancelled, None, None
            if not isinstance(error, OdfError) or error.__cause__ is not None:
                reporter.log(_trace(error), "debug")
            return JobState.failed, failure_of(error, job), None

    def _store_progress(self, job_id: str, progress: Progress) -> None:
        try:
            self._journal.set_progress(job_id, progress)
        except sqlite3.Error:
            _log.warning("the progress of job %s cannot be stored", job_id, exc_info=True)

    def _finish(self, entry: _Entry, state: JobState, error: Failure | None, result: str | None) -> bool:
        """Store a job's end, with retries; return False if the job log cannot be written."""
        job_id, warnings = entry.job.id, entry.reporter.warnings.listed()
        deadline = time.monotonic() + _JOURNAL_PATIENCE
        while True:
            with self._lock:
                try:
                    with contextlib.suppress(NotFound):  # already marked as interrupted: the process ends
                        self._journal.transition(job_id, state, error=error, result=result, warnings=warnings)
                    del self._running[job_id]
                    self.last_end = time.monotonic()
                    return True
                except sqlite3.Error:
                    _log.exception("the end of job %s (%s) cannot be stored", job_id, state.value)
            if time.monotonic() > deadline:
                return False
            time.sleep(0.5)


def _trace(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)).rstrip()


def failure_of(error: BaseException, job: Job) -> Failure:
    """Return the error of a job for users: one sentence, and a hint."""
    if isinstance(error, OdfError):
        kinds = (base.__name__ for base in type(error).__mro__ if base.__module__ == OdfError.__module__)
        kind = next(kinds)
        return Failure(error.message, error.hint, error.where, error.exit_code, list(error.excerpt), kind)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Failure(
            "the disk is full",
            where=_file_name(error),
            hint="free disk space and run the job again; no incomplete block was committed",
        )
    if isinstance(error, PermissionError):
        return Failure(
            "permission denied",
            where=_file_name(error),
            hint="check the owner and the permissions of the file",
        )
    if isinstance(error, OSError) and (error.filename is not None or error.errno == errno.EIO):
        return Failure(
            f"a file cannot be read or written: {error.strerror or error}",
            where=_file_name(error),
            hint=disk_hint(error),
        )
    if isinstance(error, MemoryError):
        return Failure("not enough memory", hint="close other programs, or reduce worker.maxJobs")
    reason = (str(error).strip().splitlines() or ["no reason given"])[0][:300]
    return Failure(
        f"{job.kind} failed unexpectedly: {type(error).__name__}: {reason}",
        hint=f"report this with the output of odf logs {job.id} -v",
    )


def _file_name(error: OSError) -> str | None:
    return None if error.filename is None else escape_surrogates(str(error.filename))
