"""Runs requests: through the worker of the workspace if one runs, else in this process."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO, TypeVar, cast

from odf_engine import errors
from odf_engine.coordinator.client import Client, run_jobs
from odf_engine.coordinator.endpoint import WorkerEndpoint
from odf_engine.coordinator.handlers.dispatch import run_request
from odf_engine.coordinator.job_queue import JobContext
from odf_engine.coordinator.protocol import (
    Event,
    Failure,
    Job,
    JobChanged,
    JobProgress,
    JobRequest,
    JobState,
    Pull,
    Request,
    decode_result,
)
from odf_engine.errors import Cancelled, OdfError
from odf_engine.progress import Reporter
from odf_engine.workspace.environment import read_allowed_variables

if TYPE_CHECKING:
    from odf_engine.spark.runtime.session import SparkRuntime
    from odf_engine.workspace.workspace import Workspace

R = TypeVar("R")
T = TypeVar("T")
_POLL_SECONDS: Final = 0.2


class ProgressLine:
    """One line on a terminal or below a notebook cell that shows what a job does.

    Args:
        out: where it is written; None: nowhere.
    """

    def __init__(self, out: TextIO | None) -> None:
        self._out = out
        self._width = 0

    def show(self, text: str) -> None:
        """Replace the line."""
        if self._out is not None:
            self._out.write("\r" + text.ljust(self._width))
            self._out.flush()
            self._width = len(text)

    def clear(self) -> None:
        """Remove the line."""
        if self._out is not None and self._width:
            self._out.write("\r" + " " * self._width + "\r")
            self._out.flush()
            self._width = 0


class _LineReporter(Reporter):
    """Shows phase and rows of a job in this process."""

    def __init__(self, title: str, line: ProgressLine) -> None:
        super().__init__()
        self._title, self._line, self._phase = title, line, ""

    def phase(self, name: str) -> None:
        self._phase = name
        self._line.show(f"{self._title}: {name}")

    def set_amounts(
        self,
        *,
        rows: int | None = None,
        bytes: int | None = None,
        files: int | None = None,
        total_bytes: int | None = None,
        total_rows: int | None = None,
        total_files: int | None = None,
    ) -> None:
        if rows is not None:
            self._line.show(f"{self._title}: {self._phase}, {rows} rows")


class JobRunner:
    """Runs the requests of one workspace, one at a time. An interrupt (^C) cancels the running one.

    Args:
        workspace: the workspace.
        in_process: True: never use a worker; False: always, and start one; None: use it if it runs.
        quiet: whether no progress is shown. By default it is shown on terminals and in notebooks.
    """

    def __init__(self, workspace: Workspace, in_process: bool | None, quiet: bool | None) -> None:
        self._workspace = workspace
        self._in_process = in_process
        self._runtime: SparkRuntime | None = None
        self._lock = threading.Lock()
        shown = not quiet if quiet is not None else sys.stderr.isatty() or "ipykernel" in sys.modules
        self._line = ProgressLine(sys.stderr if shown else None)

    @property
    def folder(self) -> Path:
        """The workspace's folder."""
        return self._workspace.folder

    def run(self, request: JobRequest[R], target: str) -> R:
        """Run a request, and return its result.

        Args:
            request: the request.
            target: name of the dataset, for messages.

        Raises:
            OdfError: it failed; the class is that of the error in the worker.
            Cancelled: it was cancelled there.
            KeyboardInterrupt: it was cancelled here; what it committed stays.
        """
        local = self._in_process
        if local is None:
            local = not WorkerEndpoint(self.folder).worker_alive()
        try:
            with self._lock:
                return self._run_here(request, target) if local else self._run_in_worker(request, target)
        finally:
            self._line.clear()

    def close(self) -> None:
        """Stop Spark, if this process started it."""
        if self._runtime is not None:
            self._runtime.stop()
            self._runtime = None

    # --- In this process ---

    def spark(self, reporter: Reporter) -> SparkRuntime:
        """Return Spark; start it by the first request that needs it."""
        if self._runtime is None or not self._runtime.is_alive:
            from odf_engine.spark.runtime.session import SparkRuntime  # deferred: it loads PySpark

            workspace = self._workspace
            reporter.phase("start Spark")
            runtime = SparkRuntime(
                workspace.config.spark, workspace.odf / "spark.log", workspace.odf / "cache"
            )
            with reporter.on_cancel(runtime.stop):
                runtime.start()
            self._runtime = runtime
        return self._runtime

    def _run_here(self, request: JobRequest[R], target: str) -> R:
        reporter = _LineReporter(_title(request, target), self._line)
        variables: dict[str, str] = {}
        if isinstance(request, Pull):
            variables = read_allowed_variables(self._workspace.odf, request.dataset, target)
        context = JobContext(self, variables)

        def work() -> R:
            try:
                return cast("R", run_request(cast("Request", request), context, reporter))
            finally:
                context.close()

        return _in_thread(work, reporter.cancel)

    # --- In the worker ---

    def _run_in_worker(self, request: JobRequest[R], target: str) -> R:
        title, known = _title(request, target), list[str]()

        def show(event: Event) -> None:
            if isinstance(event, JobChanged):
                known[:] = [event.job.id]
                self._line.show(f"{title}: {event.job.state.value}")
            elif isinstance(event, JobProgress):
                progress = event.progress
                self._line.show(f"{title}: {progress.phase}, {progress.rows or 0} rows")

        def work() -> Job:
            (job,) = run_jobs(self.folder, [(cast("Request", request), target)], show)
            return job

        job = _in_thread(work, lambda: _cancel_job(self.folder, known))
        if job.state is JobState.done:
            return decode_result(job.result or "{}", type(request))
        if job.state is JobState.cancelled:
            raise Cancelled(f"{title}: cancelled")
        raise _error_of(job.error or Failure(f"{title}: {job.state.value}"))


def _title(request: JobRequest[Any], target: str) -> str:
    return f"{type(request).__name__.lower()} {target}"


def _in_thread(work: Callable[[], T], cancel: Callable[[], object]) -> T:
    """Run a function in a thread, so that a running event loop (notebook) does not matter.

    An interrupt of the main thread cancels it, and is raised once the function has ended.
    """
    found: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="odf-job", daemon=True)
    thread.start()
    interrupted: KeyboardInterrupt | None = None
    while thread.is_alive():
        try:
            thread.join(_POLL_SECONDS)
        except KeyboardInterrupt as interrupt:
            if interrupted is not None:
                raise
            interrupted = interrupt
            cancel()
    if interrupted is not None:
        raise interrupted
    if failed:
        raise failed[0]
    return found[0]


def _cancel_job(folder: Path, jobs: list[str]) -> None:
    async def cancel() -> None:
        client = await Client.connect(folder)
        try:
            for job in jobs:
                await client.cancel(job)
        finally:
            await client.close()

    thread = threading.Thread(target=lambda: asyncio.run(cancel()), name="odf-cancel", daemon=True)
    thread.start()
    thread.join()


def _error_of(failure: Failure) -> OdfError:
    """Return the error of a job as the class that it had in the worker."""
    kind = getattr(errors, failure.kind, OdfError) if failure.kind else OdfError
    if not (isinstance(kind, type) and issubclass(kind, OdfError)):
        kind = OdfError
    error = kind.__new__(kind)
    OdfError.__init__(error, failure.message, hint=failure.hint, where=failure.where)  # whatever kind takes
    return error
