"""Results of DataFrames as streams of Arrow batches: ordered, bounded, cancellable, with progress."""

from __future__ import annotations

import os
import re
import struct
import threading
import uuid
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from odf_engine.errors import InvalidSchema
from odf_engine.progress import Reporter
from odf_engine.spark.errors import translate_errors
from odf_engine.spark.sql_types import arrow_schema

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession


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


class ProgressPoller(threading.Thread):
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
                self._reporter.set_amounts(rows=told[0], bytes=told[1])

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


_MAX_AT_ONCE: Final = 8
_LENGTH: Final = struct.Struct(">i")


def arrow_batches(
    frame: DataFrame, reporter: Reporter, *, progress: bool = True
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """The rows of a frame, in its order.

    Nothing runs until the first batch is asked for. One partition (16 MB of text) more than there are
    cores is read ahead, so the memory in use does not grow with the result. When the reporter is
    cancelled the running jobs stop within two seconds; closing the iterator early stops them as well.

    Args:
        frame: what to run.
        reporter: is told rows and bytes read four times a second, unless ``progress`` is off, and
            asked whether to stop.

    Returns:
        The schema (see :func:`odf_engine.spark.sql_types.arrow_schema`) and the batches, none empty.

    Raises:
        InvalidSchema: a type that has no place in Arrow batches, or two columns of one name.
        BadData, InvalidQuery, Cancelled, SparkFailed: while iterating.
    """
    with translate_errors():
        schema = arrow_schema(frame.schema)
    _check_names(schema)
    return schema, _run(frame, schema, reporter, progress)


@contextmanager
def cancellable(session: SparkSession, reporter: Reporter) -> Iterator[None]:
    """Jobs that this thread starts within stop when the reporter is cancelled; errors are translated.

    Raises:
        BadData, InvalidQuery, Cancelled, SparkFailed: as the jobs end.
    """
    reporter.raise_if_cancelled()
    context = session.sparkContext
    with (
        translate_errors(reporter),
        _job(context, reporter, progress=False) as job,
        _in_group(context, job.group),
    ):
        yield


@contextmanager
def sort_partitions(session: SparkSession, partitions: int) -> Iterator[None]:
    """What is sorted within comes in so many partitions, of which memory holds a few at a time."""
    name = "spark.sql.shuffle.partitions"
    before = str(session.conf.get(name))
    session.conf.set(name, str(partitions))
    try:
        yield
    finally:
        session.conf.set(name, before)


def _check_names(schema: pa.Schema) -> None:
    known: set[str] = set()
    for name in schema.names:
        if name.lower() in known:
            raise InvalidSchema(
                f"the result has two columns `{name}`", hint="give one of them another name with AS"
            )
        known.add(name.lower())


def _run(frame: DataFrame, schema: pa.Schema, reporter: Reporter, progress: bool) -> Iterator[pa.RecordBatch]:
    reporter.raise_if_cancelled()
    context = frame.sparkSession.sparkContext
    with translate_errors(reporter), _job(context, reporter, progress) as job:
        with _in_group(context, job.group):
            partitions = _partitions(frame)
            # Without them, through the public interface alone, which holds the whole result in memory.
            whole = [] if partitions is not None else frame.toArrow().to_batches()
        if partitions is None:
            yield from (batch.cast(schema) for batch in whole if batch.num_rows)
            return
        for data in _in_order(context, partitions, job):
            reporter.raise_if_cancelled()
            batch = pa.ipc.read_record_batch(pa.py_buffer(data), schema)
            if batch.num_rows:
                yield batch


def _partitions(frame: DataFrame) -> Any:
    """The inner door of Spark through which Arrow batches leave: a set of partitions of bytes, or None."""
    frame_in_java: Any = frame._jdf
    java: Any = frame.sparkSession._jvm
    try:
        java.PythonRDD.runJob  # noqa: B018
        return frame_in_java.toArrowBatchRdd().toJavaRDD()
    except Py4JError as error:
        if "does not exist" in str(error) and not isinstance(error, Py4JJavaError):
            return None
        raise


def _in_order(context: SparkContext, partitions: Any, job: _Job) -> Iterator[bytes]:
    """The batches of all partitions in their order.

    Jobs over the same data fail together, with the reason of whichever was first. So the partition
    whose turn it is after a failure runs once more, alone: it fails for a reason of its own, always the
    same for the same data, or it does not fail and the others go on after it.
    """
    count = partitions.getNumPartitions()
    following = 0
    while following < count:
        if count > 1:
            following = yield from _at_once(context, partitions, job, following, count)
        if following < count:
            with _in_group(context, job.group):
                found = _partition(context, partitions, following)
            following += 1
            yield from found


def _at_once(
    context: SparkContext, partitions: Any, job: _Job, first: int, count: int
) -> Generator[bytes, None, int]:
    """The batches of the partitions from ``first``, in order; returns which failed, or ``count``.

    As many partitions are made at once as there are cores, and one more, so that no core waits while
    rows are taken. Memory holds the partitions that are under way or wait for their turn.
    """
    workers = min(_cores(str(context.master)) + 1, count - first)
    pool = ThreadPoolExecutor(workers, "spark-rows", lambda: _join_group(context, job.group))

    def submit(index: int) -> Future[list[bytes]]:
        return pool.submit(_partition, context, partitions, index)

    try:
        waiting = deque(submit(i) for i in range(first, first + workers))
        for index in range(first, count):
            try:
                found = waiting.popleft().result()
            except (PySparkException, Py4JError):
                return index
            if index + workers < count:
                waiting.append(submit(index + workers))
            yield from found
    except BaseException:
        job.cancel()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
    return count


def _partition(context: SparkContext, partitions: Any, index: int) -> list[bytes]:
    """Runs one partition and returns its batches, as Arrow's messages without schema."""
    from pyspark.util import _create_local_socket

    java: Any = context._jvm
    address, secret, server = java.PythonRDD.runJob(java_spark(context), partitions, [index])
    file, connection = _create_local_socket((address, secret))  # pyright: ignore[reportArgumentType]
    with connection, file:
        found = []
        while len(head := file.read(_LENGTH.size)) == _LENGTH.size:
            found.append(file.read(_LENGTH.unpack(head)[0]))
    server.getResult()
    return found


def _cores(master: str) -> int:
    match = re.fullmatch(r"local(?:\[(\d+|\*).*\])?", master)
    if match is None:
        return _MAX_AT_ONCE
    cores = os.cpu_count() or 1 if match[1] == "*" else int(match[1] or 1)
    return min(cores, _MAX_AT_ONCE)


@dataclass(frozen=True)
class _Job:
    """A group of Spark's jobs, and how to cancel it."""

    group: str
    cancel: Callable[[], None]


@contextmanager
def _job(context: SparkContext, reporter: Reporter, progress: bool) -> Iterator[_Job]:
    """A group of jobs that is watched within, and cancelled with the reporter or on failure."""
    group = f"odf-{uuid.uuid4().hex}"
    over = threading.Event()

    def cancel() -> None:
        if not over.is_set():
            java_spark(context).cancelJobGroupAndFutureJobs(group)

    watcher = ProgressPoller(context, group, reporter) if progress else None
    if watcher is not None:
        watcher.start()
    finished = False
    try:
        with reporter.on_cancel(cancel):
            yield _Job(group, cancel)
            finished = True
    finally:
        if not finished:
            cancel()
        over.set()
        if watcher is not None:
            watcher.finish()


@contextmanager
def _in_group(context: SparkContext, group: str) -> Iterator[None]:
    """Whatever this thread starts within belongs to a group."""
    _join_group(context, group)
    try:
        yield
    finally:
        for name in ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel"):
            context.setLocalProperty(name, None)  # pyright: ignore[reportArgumentType]


def _join_group(context: SparkContext, group: str) -> None:
    context.setJobGroup(group, "odf", interruptOnCancel=True)
