"""Runs requests: through the worker of the workspace if one runs, else in this process."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import msgspec

from odf_engine.api.progress import JobStatus, StatusReporter, create_display
from odf_engine.base.progress import JobWarning, Reporter
from odf_engine.errors import Cancelled, UsageError
from odf_engine.jobs.base import JobContext, JobRequest, run_request
from odf_engine.jobs.pull import PullResult
from odf_engine.on_demand import given_session, spark_session
from odf_engine.worker.client import run_job
from odf_engine.worker.endpoint import WorkerEndpoint
from odf_engine.worker.protocol import Event, JobChanged, JobProgress, Progress
from odf_engine.workspace.environment import read_allowed_variables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from odf_engine.spark.runtime.given_session import GivenSpark
    from odf_engine.spark.runtime.session import SparkRuntime
    from odf_engine.workspace.workspace import Workspace

R = TypeVar("R")
T = TypeVar("T")
_POLL_SECONDS: Final = 0.2


class JobRunner:
    """Runs the requests of one workspace, one at a time. An interrupt (^C) cancels the running one.

    Args:
        workspace: the workspace.
        in_process: True: never use a worker; False: always, and start one; None: use it if it runs.
        progress: whether progress is shown. By default it is on terminals and in notebooks.
        spark: a Spark session for jobs in this process, which is not stopped; None: start one when needed.

    Raises:
        UsageError: ``spark`` is given with ``in_process=False``, or its settings change results.
        Unsupported, SparkFailed: see :class:`odf_engine.spark.runtime.given_session.GivenSpark`.
    """

    def __init__(
        self,
        workspace: Workspace,
        in_process: bool | None,
        progress: bool | None,
        spark: SparkSession | None = None,
    ) -> None:
        self._workspace = workspace
        self._in_process = in_process
        self._runtime: SparkRuntime | None = None
        self._given: GivenSpark | None = None
        if spark is not None:
            if in_process is False:
                raise UsageError(
                    "the worker cannot use a Spark session of another process",
                    hint="leave out `spark` or `in_process`",
                )
            self._in_process = True
            self._given = given_session.GivenSpark(spark, workspace.config.spark, workspace.odf / "cache")
        self._lock = threading.Lock()
        self._display = create_display(progress)

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
            OdfError: it failed; the class is the one in the worker.
            Cancelled: it was cancelled there.
            KeyboardInterrupt: it was cancelled here; what it committed stays.
        """
        local = self._in_process
        if local is None:
            local = not WorkerEndpoint(self.folder).worker_alive()
        run = self._run_here if local else self._run_in_worker
        return self._run_displayed(_title(request, target), lambda status: run(request, target, status))

    def run_function(self, function: Callable[[Reporter], T], title: str) -> T:
        """Run a function in a thread of this process, and show its progress as the progress of a job.

        Raises:
            KeyboardInterrupt: it was cancelled.
        """

        def run(status: JobStatus) -> T:
            reporter = StatusReporter(status)
            return _in_thread(
                lambda: function(reporter), reporter.cancel, lambda: self._display.update(status)
            )

        return self._run_displayed(title, run)

    def _run_displayed(self, title: str, run: Callable[[JobStatus], T]) -> T:
        status, outcome = JobStatus(title), "failed"
        try:
            with self._lock:
                result = run(status)
            outcome = "done"
            return result
        except (KeyboardInterrupt, Cancelled):
            outcome = "cancelled"
            raise
        finally:
            self._display.close(status, outcome)

    def close(self) -> None:
        """Stop Spark, if this process started it."""
        if self._runtime is not None:
            self._runtime.stop()
            self._runtime = None

    def spark(self, reporter: Reporter) -> SparkRuntime:
        """Return Spark. The first request that needs it starts it.

        Raises:
            UsageError: this process has a Spark session already, which was not given.
            SparkFailed: it does not start, or the given session was stopped.
        """
        if self._given is not None:
            self._given.start()
            return self._given
        if self._runtime is None or not self._runtime.is_alive:
            _check_no_other_spark()
            workspace = self._workspace
            runtime = spark_session.SparkRuntime(
                workspace.config.spark, workspace.odf / "spark.log", workspace.odf / "cache"
            )
            with reporter.nested_phase("starting Spark"), reporter.on_cancel(runtime.stop):
                runtime.start()
            self._runtime = runtime
        return self._runtime

    def _run_here(self, request: JobRequest[R], target: str, status: JobStatus) -> R:
        reporter = StatusReporter(status, target)
        variables: dict[str, str] = {}
        if request.dataset_id:
            variables = read_allowed_variables(self._workspace.odf, request.dataset_id, target)
        context = JobContext(self, variables)

        def work() -> R:
            try:
                result: Any = run_request(request, context, reporter)
                reporter.warnings.assign_rest()
                return _with_warnings(result, reporter.warnings.listed())
            finally:
                reporter.warnings.store(lambda: context.workspace)
                context.close()

        with nullcontext() if self._given is None else self._given.job():
            return _in_thread(work, reporter.cancel, lambda: self._display.update(status))

    def _run_in_worker(self, request: JobRequest[R], target: str, status: JobStatus) -> R:
        reporter = Reporter()

        def note(event: Event) -> None:
            if isinstance(event, JobChanged):
                if not event.job.progress.phase:
                    status.progress = Progress(phase=event.job.state.value)
            elif isinstance(event, JobProgress):
                status.progress = event.progress

        result, job = _in_thread(
            lambda: run_job(self.folder, request, target, reporter, note),
            reporter.cancel,
            lambda: self._display.update(status),
        )
        return _with_warnings(result, job.warnings)


def _with_warnings(result: R, warnings: list[JobWarning]) -> R:
    """Return the result of a pull or ingest with the warnings of the job; other results as they are."""
    if not warnings or not isinstance(result, PullResult):
        return result
    return cast("R", msgspec.structs.replace(result, warnings=warnings))


def _check_no_other_spark() -> None:
    """Check that this process has no Spark session: PySpark supports only one per process."""
    pyspark: Any = sys.modules.get("pyspark")
    if pyspark is not None and pyspark.SparkContext._active_spark_context is not None:
        raise UsageError(
            "this process already runs another Spark session",
            hint="use it: odf.open(path, spark=session), or let the worker run jobs: in_process=False",
        )


def _title(request: JobRequest[Any], target: str) -> str:
    return f"{type(request).__name__.lower()} {target}"


def _in_thread(work: Callable[[], T], cancel: Callable[[], object], tick: Callable[[], object]) -> T:
    """Run a function in a thread, since the current one may run an event loop, as in a notebook.

    An interrupt of the main thread cancels it, and is raised once the function has ended. ``tick`` is called
    in this thread while the function runs, five times a second.
    """
    results: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="odf-job", daemon=True)
    thread.start()
    interrupted: KeyboardInterrupt | None = None
    while thread.is_alive():
        try:
            thread.join(_POLL_SECONDS)
            if thread.is_alive():
                tick()
        except KeyboardInterrupt as interrupt:
            if interrupted is not None:
                raise
            interrupted = interrupt
            cancel()
    if interrupted is not None:
        raise interrupted
    if failed:
        raise failed[0]
    return results[0]
