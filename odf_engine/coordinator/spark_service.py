"""The worker's Spark: start, wait, restart; load samples."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Literal, Protocol, cast

from odf_engine.coordinator.protocol import Progress, Rate, Sample
from odf_engine.errors import OdfError
from odf_engine.progress import Reporter

if TYPE_CHECKING:
    from odf_engine.spark.runtime.session import Memory, SparkRuntime


State = Literal["off", "starting", "ready", "failed"]
_STEP_SECONDS: Final = 0.1


class Runtime(Protocol):
    """What the worker itself has to know of a started Spark."""

    @property
    def detail(self) -> str:
        """Version and place of this Spark, for people."""
        ...

    @property
    def is_alive(self) -> bool:
        """Whether its Java process still runs."""
        ...

    @property
    def tasks_running(self) -> int:
        """How many tasks it works on, those of cancelled jobs included."""
        ...

    @property
    def memory(self) -> Memory | None:
        """What it has of memory, while it runs."""
        ...

    def train_archive_in_background(self, busy: Callable[[], bool]) -> None:
        """Makes later starts faster; it waits until nobody is busy, and returns at once."""
        ...

    def stop(self) -> None:
        """Ends it and its Java process."""
        ...


StartSpark = Callable[[Callable[[Runtime], None]], Runtime]
"""Returns a started runtime; passes it to its argument before it starts it, so that it can be stopped."""


class SparkService:
    """One Spark for all jobs.

    Args:
        start: makes a runtime, passes it to its argument, and starts it, which may take seconds.
        changed: called from any thread when :attr:`state` has changed.
        busy: whether there are jobs.
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
        """What Spark has of memory, while it runs."""
        runtime = self._runtime
        return None if runtime is None else runtime.memory

    def start(self) -> None:
        """Begins to start Spark in the background, unless it runs or starts already."""
        with self._condition:
            if self._closed or self.state in ("starting", "ready"):
                return
            self.state, self.detail, self.hint, self._error = "starting", "", "", None
            threading.Thread(target=self._run, name="spark-start", daemon=True).start()
        self._changed()

    def wait(self, reporter: Reporter) -> SparkRuntime:
        """The started Spark. One that was lost, or did not start before, is started again.

        Raises:
            OdfError: it does not start.
            Cancelled: while waiting.
        """
        self._notice_loss()
        if self.state == "starting":
            reporter.phase("starting Spark")
        elif self.state != "ready":
            reporter.phase("starting Spark")
            self.start()
        with reporter.on_cancel(self._wake), self._condition:
            while self.state == "starting":
                reporter.raise_if_cancelled()
                self._condition.wait()
            reporter.raise_if_cancelled()
            if self._runtime is None:
                raise self._error or OdfError("Spark is not running")
            return cast("SparkRuntime", self._runtime)

    def stop(self) -> None:
        """Ends Spark for good, also one that is starting; returns when its process has ended."""
        with self._condition:
            self._closed = True
            runtime, self._runtime = self._runtime, None
            self.state = "off"
            self._condition.notify_all()
        if runtime is not None:
            runtime.stop()
        while (starting := self._starting) is not None:
            starting.stop()
            with self._condition:  # once more, if its start had not begun yet
                self._condition.wait_for(lambda: self._starting is None, _STEP_SECONDS)

    def stop_runaway_tasks(self) -> None:
        """Ends Spark if tasks of cancelled jobs do not stop, once no job runs; starts it again.

        Returns at once; call it after a job was cancelled.
        """
        threading.Thread(target=self._end_leftovers, name="spark-leftovers", daemon=True).start()

    def _end_leftovers(self) -> None:
        from odf_engine.spark.runtime.session import has_runaway_tasks

        runtime = self._runtime
        if runtime is None or not has_runaway_tasks(runtime, self._busy):
            return
        with self._condition:
            if runtime is not self._runtime or self._busy():
                return
            self._runtime, self.state = None, "off"
        _log.warning("a cancelled job does not leave Spark: it is started again")
        _clear_away(runtime)
        self.start()

    def _wake(self) -> None:
        with self._condition:
            self._condition.notify_all()

    def _notice_loss(self) -> None:
        with self._condition:
            if self._runtime is None or self._runtime.is_alive:
                return
            runtime, self._runtime = self._runtime, None
            self.state = "off"
        _log.warning("Spark's Java process has ended; it is started again")
        _clear_away(runtime)

    def _begin(self, runtime: Runtime) -> None:
        with self._condition:
            if self._closed:
                raise OdfError("Spark was stopped before its start")
            self._starting = runtime

    def _run(self) -> None:
        runtime: Runtime | None = None
        error: OdfError | None = None
        try:
            runtime = self._start(self._begin)
        except OdfError as failure:
            error = failure
        except Exception as failure:
            _log.exception("Spark does not start")
            reason = (str(failure).splitlines() or [""])[0]
            error = OdfError(
                f"Spark does not start: {type(failure).__name__}: {reason}",
                hint="spark.log and worker.log in the workspace's .odf folder say more",
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


def _clear_away(runtime: Runtime) -> None:
    try:
        runtime.stop()
    except Exception:
        _log.warning("while clearing away the Spark that ended", exc_info=True)


PERIOD_SECONDS: Final = 1.0
MAX_SAMPLES: Final = 240
"""Samples kept for clients that come later."""
_log = logging.getLogger(__name__)


class LoadSampler:
    """Takes samples in a thread of its own, since Java may take its time to answer.

    Args:
        amounts: of the running jobs, by their ids.
        memory: of Spark, None while it does not run.
        busy: whether there are jobs.
        tell: gets each sample, in the thread of the sampler.
    """

    def __init__(
        self,
        amounts: Callable[[], Mapping[str, Progress]],
        memory: Callable[[], Memory | None],
        busy: Callable[[], bool],
        tell: Callable[[Sample], None],
        seconds: float = PERIOD_SECONDS,
    ) -> None:
        self._amounts, self._memory, self._busy, self._tell = amounts, memory, busy, tell
        self._seconds = seconds
        self._thread: threading.Thread | None = None
        self._before: Mapping[str, Progress] = {}
        self.samples: deque[Sample] = deque(maxlen=MAX_SAMPLES)

    def start(self) -> None:
        """Begins to look, until nothing is to be done any more. Called from one thread only."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        self._before, at = {}, time.monotonic()
        while self._busy():
            time.sleep(self._seconds)
            now = time.monotonic()
            try:
                sample = self._look(now - at)
            except Exception:  # jobs matter more than what is told of them
                _log.exception("no sample was taken")
                return
            at = now
            self.samples.append(sample)
            self._tell(sample)

    def _look(self, seconds: float) -> Sample:
        from odf_engine.spark.runtime.session import read_resident_memory

        now, before = self._amounts(), self._before
        self._before = now
        rates = {job: rate_between(before.get(job), amounts, seconds) for job, amounts in now.items()}
        memory = self._memory()
        mine = read_resident_memory()
        if memory is None:
            return Sample(time.time(), rates, memory=mine)
        return Sample(time.time(), rates, memory.heap, memory.heap_max, mine + memory.resident)


def rate_between(before: Progress | None, now: Progress, seconds: float) -> Rate:
    """What was done in between, per second; a phase begins at nothing."""

    def rate(was: int | None, amount: int | None) -> float:
        done = amount or 0
        start = was or 0
        grown = done - start if same and done >= start else done
        return round(grown / seconds, 1) if seconds > 0 else 0.0

    same = before is not None and before.phase == now.phase
    was = before or Progress()
    return Rate(rate(was.rows, now.rows), rate(was.bytes, now.bytes), rate(was.files, now.files))
