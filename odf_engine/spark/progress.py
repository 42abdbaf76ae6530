"""Tells how much a group of Spark's jobs has read so far."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError

from odf_engine.progress import Reporter

if TYPE_CHECKING:
    from pyspark import SparkContext

_PERIOD_SECONDS: Final = 0.25


def java_spark(context: SparkContext) -> Any:
    """The context as Java knows it."""
    java: Any = context._jsc
    return java.sc()


def tasks_running(context: SparkContext) -> int:
    """How many tasks run on all executors; a task of a cancelled job runs until it notices."""
    try:
        executors = java_spark(context).statusTracker().getExecutorInfos()
        return sum(int(each.numRunningTasks()) for each in executors)
    except (Py4JError, OSError):
        return 0  # Spark has ended


class Watcher(threading.Thread):
    """Asks Spark four times a second, so a short job is never asked about.

    Args:
        context: where the jobs run.
        group: the group they belong to.
        reporter: is told rows and bytes read.
    """

    def __init__(self, context: SparkContext, group: str, reporter: Reporter) -> None:
        super().__init__(name="spark-progress", daemon=True)
        self._context = context
        self._group = group
        self._reporter = reporter
        self._over = threading.Event()
        self._done: dict[int, tuple[int, int]] = {}
        self._ended: set[int] = set()

    def run(self) -> None:
        """The thread itself; it ends when Spark's process does."""
        told = (0, 0)
        while not self._over.wait(_PERIOD_SECONDS):
            try:
                amounts = self._amounts()
            except (Py4JError, OSError):
                return
            if amounts != told:
                told = amounts
                self._reporter.amount(rows=told[0], bytes=told[1])

    def finish(self) -> None:
        """Ends the thread."""
        self._over.set()
        self.join()

    def _amounts(self) -> tuple[int, int]:
        """Rows and bytes read by all stages; what has ended is not asked about again."""
        running: list[tuple[int, int]] = []
        tracker = self._context.statusTracker()
        for job in set(tracker.getJobIdsForGroup(self._group)) - self._ended:
            info = tracker.getJobInfo(job)
            if info is None:
                continue
            stages = [self._stage(stage) for stage in info.stageIds if stage not in self._done]
            running += [read for read in stages if read is not None]
            if info.status != "RUNNING":
                self._ended.add(job)
        rows, sizes = zip(*running, *self._done.values(), (0, 0), strict=True)
        return sum(rows), sum(sizes)

    def _stage(self, stage: int) -> tuple[int, int] | None:
        """What a running stage has read; an ended one is noted instead."""
        try:
            data = java_spark(self._context).statusStore().lastStageAttempt(stage)
        except Py4JError:
            return None  # not yet begun, or skipped
        read = (int(data.inputRecords()), int(data.inputBytes()))
        if data.status().toString() in ("COMPLETE", "FAILED", "SKIPPED"):
            self._done[stage] = read
            return None
        return read
