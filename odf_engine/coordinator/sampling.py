"""How busy the worker is, looked at once a second while jobs run and never while they do not."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from odf_engine.coordinator.protocol import Progress, Rate, Sample
from odf_engine.spark.memory import Memory, resident

PERIOD_SECONDS: Final = 1.0
KEPT: Final = 240
"""Samples kept for clients that come later."""

_log = logging.getLogger(__name__)


class Sampler:
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
        self.samples: deque[Sample] = deque(maxlen=KEPT)

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
        now, before = self._amounts(), self._before
        self._before = now
        rates = {job: rate_between(before.get(job), amounts, seconds) for job, amounts in now.items()}
        memory = self._memory()
        mine = resident()
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
