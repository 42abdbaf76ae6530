"""The worker's Spark: start, wait, restart; load samples."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Literal, Protocol, cast

from odf_engine.base.progress import Reporter
from odf_engine.errors import OdfError
from odf_engine.on_demand import spark_session
from odf_engine.worker.protocol import Progress, Rate, Sample

if TYPE_CHECKING:
    from odf_engine.spark.runtime.session import Memory, SparkRuntime


State = Literal["off", "starting", "ready", "failed"]
_STEP_SECONDS: Final = 0.1


class Runtime(Protocol):
    """The interface of a running Spark for the worker."""

    @property
    def detail(self) -> str:
        """Version and home of this Spark, for display."""
        ...

    @property
    def is_alive(self) -> bool:
        """Whether its Java process runs."""
        ...

    @property
    def tasks_running(self) -> int:
        """Number of running tasks, including tasks of cancelled jobs."""
        ...

    @property
    def memory(self) -> Memory | None:
        """Memory of its process, or None if it does not run."""
        ...

    def train_archive_in_background(self, busy: Callable[[], bool]) -> None:
        """Create the archive that speeds up later starts, in the background, once no job runs."""
        ...

    def stop(self) -> None:
        """Stop Spark and its Java process."""
        ...


StartSpark = Callable[[Callable[[Runtime], None]], Runtime]
"""Starts a runtime and returns it; passes it to its argument before the start, so that it can be stopped."""


class SparkService:
    """The Spark that all jobs share.

    Args:
        start: see :data:`StartSpark`; takes seconds.
        changed: called from any thread when :attr:`state` has changed.
        busy: returns whether there are jobs.
    """

    def __init__(self, start: StartSpark, changed: Callable[[], None], busy: Callable[[], bool]) -> None:
        self._start = start
        self._changed = changed
        self._busy = busy
        self._condition = threading.Condition()
        self._runtime: Runtime | None = None
        self._starting: Runtime | None = None
        self._error: OdfError | None = None
        self._closed = False
        self.state: State = "off"
        self.detail = ""
        self.hint = ""

    @property
    def memory(self) -> Memory | None:
        """Memory of Spark's process, or None if it does not run."""
        runtime = self._runtime
        return None if runtime is None else runtime.memory

    def start(self) -> None:
        """Start Spark in the background, unless it runs or starts."""
        with self._condition:
            if self._closed or self.state in ("starting", "ready"):
                return
            self.state, self.detail, self.hint, self._error = "starting", "", "", None
            threading.Thread(target=self._run, name="spark-start", daemon=True).start()
        self._changed()

    def wait(self, reporter: Reporter) -> SparkRuntime:
        """Return Spark when it has started; start it if it has ended or failed before.

        Raises:
            OdfError: it does not start.
            Cancelled: the job was cancelled while waiting.
        """
        self._check_alive()
        if self.state != "ready":
            with reporter.nested_phase("starting Spark"):
                if self.state != "starting":
                    self.start()
                with reporter.on_cancel(self._wake), self._condition:
                    while self.state == "starting":
                        reporter.raise_if_cancelled()
                        self._condition.wait()
        reporter.raise_if_cancelled()
        with self._condition:
            if self._runtime is None:
                raise self._error or OdfError("Spark is not running")
            return cast("SparkRuntime", self._runtime)

    def stop(self) -> None:
        """Stop Spark permanently, even while it starts; return when its process has ended."""
        with self._condition:
            self._closed = True
            runtime, self._runtime = self._runtime, None
            self.state = "off"
            self._condition.notify_all()
        if runtime is not None:
            runtime.stop()
        while (starting := self._starting) is not None:
            starting.stop()
            with self._condition:  # repeated in case the start had not begun
                self._condition.wait_for(lambda: self._starting is None, _STEP_SECONDS)

    def stop_idle(self, reason: str) -> None:
        """Stop Spark to free its memory, unless a job runs; the next job that needs it starts it again.

        Args:
            reason: shown as :attr:`detail`.
        """
        with self._condition:  # held until its process has ended: a start has to wait for that
            if self.state != "ready" or self._runtime is None or self._busy():
                return
            runtime, self._runtime = self._runtime, None
            self.state, self.detail = "off", reason
            _stop_quietly(runtime)
        _log.info("Spark is off: %s", reason)
        self._changed()

    def stop_runaway_tasks(self) -> None:
        """Restart Spark in the background if tasks of cancelled jobs still run when no job does.

        It is called after a job was cancelled.
        """
        threading.Thread(target=self._stop_runaway_tasks, name="spark-runaway-tasks", daemon=True).start()

    def _stop_runaway_tasks(self) -> None:
        runtime = self._runtime
        if runtime is None or not spark_session.has_runaway_tasks(runtime, self._busy):
            return
        with self._condition:
            if runtime is not self._runtime or self._busy():
                return
            self._runtime, self.state = None, "off"
        _log.warning("restarting Spark: tasks of a cancelled job do not stop")
        _stop_quietly(runtime)
        self.start()

    def _wake(self) -> None:
        with self._condition:
            self._condition.notify_all()

    def _check_alive(self) -> None:
        with self._condition:
            if self._runtime is None or self._runtime.is_alive:
                return
            runtime, self._runtime = self._runtime, None
            self.state = "off"
        _log.warning("restarting Spark: its Java process has exited")
        _stop_quietly(runtime)

    def _set_starting(self, runtime: Runtime) -> None:
        with self._condition:
            if self._closed:
                raise OdfError("Spark was stopped before its start")
            self._starting = runtime

    def _run(self) -> None:
        runtime: Runtime | None = None
        error: OdfError | None = None
        try:
            runtime = self._start(self._set_starting)
        except OdfError as failure:
            error = failure
        except Exception as failure:
            _log.exception("Spark did not start")
            reason = (str(failure).splitlines() or [""])[0]
            error = OdfError(
                f"Spark did not start: {type(failure).__name__}: {reason}",
                hint="see the logs `.odf/spark.log` and `.odf/worker.log`",
            )
        with self._condition:
            self._starting, late = None, self._closed
            if not late:
                self._runtime, self._error = runtime, error
                self.state = "failed" if runtime is None else "ready"
                self.detail = error.message if error else runtime.detail if runtime else ""
                self.hint = (error.hint if error else None) or ""
            self._changed()
            self._condition.notify_all()
        if runtime is not None:
            if late:
                runtime.stop()
            else:
                runtime.train_archive_in_background(self._busy)
        _log.info("Spark is %s: %s", self.state, self.detail)


def _stop_quietly(runtime: Runtime) -> None:
    try:
        runtime.stop()
    except Exception:  # Spark has ended or is damaged: nothing else can be done; the log has the error
        _log.warning("error while cleaning up after Spark", exc_info=True)


PERIOD_SECONDS: Final = 1.0
MAX_SAMPLES: Final = 240
"""Number of samples stored for new subscribers."""
_log = logging.getLogger(__name__)


class LoadSampler:
    """Takes load samples in a separate thread, since Java can respond slowly.

    Args:
        amounts: returns the progress of the running jobs by job id.
        memory: returns the memory of Spark, or None while it does not run.
        busy: returns whether there are jobs.
        on_sample: called with each sample, in the thread of the sampler.
        seconds: period of the samples.
    """

    def __init__(
        self,
        amounts: Callable[[], Mapping[str, Progress]],
        memory: Callable[[], Memory | None],
        busy: Callable[[], bool],
        on_sample: Callable[[Sample], None],
        seconds: float = PERIOD_SECONDS,
    ) -> None:
        self._amounts, self._memory, self._busy, self._on_sample = amounts, memory, busy, on_sample
        self._seconds = seconds
        self._thread: threading.Thread | None = None
        self._before: Mapping[str, Progress] = {}
        self.samples: deque[Sample] = deque(maxlen=MAX_SAMPLES)

    def start(self) -> None:
        """Take samples until there are no jobs. Called from one thread only."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        self._before, at = {}, time.monotonic()
        while self._busy():
            time.sleep(self._seconds)
            now = time.monotonic()
            try:
                sample = self._take_sample(now - at)
            except Exception:  # the load display must not affect jobs
                _log.exception("the load could not be sampled")
                return
            at = now
            self.samples.append(sample)
            self._on_sample(sample)

    def _take_sample(self, seconds: float) -> Sample:
        now, before = self._amounts(), self._before
        self._before = now
        rates = {job: rate_between(before.get(job), amounts, seconds) for job, amounts in now.items()}
        memory = self._memory()
        own = spark_session.read_resident_memory()
        if memory is None:
            return Sample(time.time(), rates, memory=own)
        return Sample(time.time(), rates, memory.heap, memory.heap_max, own + memory.resident)


def rate_between(before: Progress | None, now: Progress, seconds: float) -> Rate:
    """Return the throughput between two progress reports, per second; a new phase starts from zero."""

    def rate(was: int | None, amount: int | None) -> float:
        done = amount or 0
        start = was or 0
        grown = done - start if same and done >= start else done
        return round(grown / seconds, 1) if seconds > 0 else 0.0

    same = before is not None and before.phase == now.phase
    was = before or Progress()
    return Rate(rate(was.rows, now.rows), rate(was.bytes, now.bytes), rate(was.files, now.files))
