"""Results of DataFrames as streams of Arrow batches: ordered, bounded in memory, cancellable, with
progress.
"""

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
from pyspark.util import _create_local_socket

from odf_engine.base.progress import Reporter
from odf_engine.errors import InvalidSchema
from odf_engine.spark.errors import translate_errors
from odf_engine.spark.sql_types import arrow_schema

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession


_POLL_SECONDS: Final = 0.25


def scala_context(context: SparkContext) -> Any:
    """Return the Scala `SparkContext` behind a Python context."""
    java: Any = context._jsc
    return java.sc()


def count_running_tasks(context: SparkContext) -> int:
    """Return the number of running tasks on all executors, or 0 if Spark has stopped.

    A task of a cancelled job counts until it reacts to the cancellation.
    """
    try:
        executors = scala_context(context).statusTracker().getExecutorInfos()
        return sum(int(executor.numRunningTasks()) for executor in executors)
    except (Py4JError, OSError):
        return 0  # Spark has stopped


class ProgressPoller(threading.Thread):
    """Polls Spark's job status four times a second, and reports rows and bytes read.

    Args:
        context: where the jobs run.
        group: job group of the jobs.
        reporter: receives rows and bytes read.
    """

    def __init__(self, context: SparkContext, group: str, reporter: Reporter) -> None:
        super().__init__(name="spark-progress", daemon=True)
        self._context = context
        self._group = group
        self._reporter = reporter
        self._stopped = threading.Event()
        self._stage_amounts: dict[int, tuple[int, int]] = {}
        self._finished_jobs: set[int] = set()

    def run(self) -> None:
        """Poll until :meth:`finish` is called or Spark's process exits."""
        reported = (0, 0)
        while not self._stopped.wait(_POLL_SECONDS):
            try:
                amounts = self._amounts()
            except (Py4JError, OSError):
                return
            if amounts != reported:
                reported = amounts
                self._reporter.set_amounts(rows=reported[0], bytes=reported[1])

    def finish(self) -> None:
        """Stop the thread and wait for it."""
        self._stopped.set()
        self.join()

    def _amounts(self) -> tuple[int, int]:
        """Return rows and bytes read by all stages. Completed stages are not requested again."""
        running: list[tuple[int, int]] = []
        tracker = self._context.statusTracker()
        for job in set(tracker.getJobIdsForGroup(self._group)) - self._finished_jobs:
            info = tracker.getJobInfo(job)
            if info is None:
                continue
            stages = [self._stage(stage) for stage in info.stageIds if stage not in self._stage_amounts]
            running += [read for read in stages if read is not None]
            if info.status != "RUNNING":
                self._finished_jobs.add(job)
        rows, sizes = zip(*running, *self._stage_amounts.values(), (0, 0), strict=True)
        return sum(rows), sum(sizes)

    def _stage(self, stage: int) -> tuple[int, int] | None:
        """Return what a running stage has read, or None. The amounts of a completed stage are stored."""
        try:
            data = scala_context(self._context).statusStore().lastStageAttempt(stage)
        except Py4JError:
            return None  # not started yet, or skipped
        read = (int(data.inputRecords()), int(data.inputBytes()))
        if data.status().toString() in ("COMPLETE", "FAILED", "SKIPPED"):
            self._stage_amounts[stage] = read
            return None
        return read


_MAX_PARALLEL: Final = 8
_LENGTH_PREFIX: Final = struct.Struct(">i")
_CODE_GENERATION: Final = "spark.sql.codegen.factoryMode"
"""Whether tasks compile expressions to Java classes or interpret them. Spark passes the settings of a session
to the tasks of its SQL queries, but not to those of :func:`_run_partition`.
"""


def arrow_batches(
    frame: DataFrame, reporter: Reporter, *, progress: bool = True
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Run a frame and return its rows as Arrow batches in the frame's order.

    Nothing runs until the first batch is requested. The number of partitions read ahead is the number of
    cores plus one, so memory use does not grow with the size of the result. After a cancellation the running
    jobs stop within two seconds. Closing the iterator early also stops them.

    Args:
        frame: the rows.
        reporter: receives rows and bytes read four times a second, unless ``progress`` is False. Its
            cancellation stops the jobs.

    Returns:
        The schema (see :func:`odf_engine.spark.sql_types.arrow_schema`) and the batches, none of them empty.

    Raises:
        InvalidSchema: a type without an Arrow equivalent, or duplicate column names.
        BadData, InvalidQuery, Cancelled, SparkFailed: while iterating.
    """
    with translate_errors():
        schema = arrow_schema(frame.schema)
    _check_names(schema)
    return schema, _run(frame, schema, reporter, progress)


PollerFactory = Callable[["SparkContext", str, Reporter], ProgressPoller]
"""Returns a poller of the jobs of a group."""


@contextmanager
def cancellable(
    session: SparkSession, reporter: Reporter, make_poller: PollerFactory | None = None
) -> Iterator[None]:
    """Cancel jobs that this thread starts in the block when the reporter is cancelled; translate errors.

    ``make_poller`` reports the progress of the jobs.

    Raises:
        BadData, InvalidQuery, Cancelled, SparkFailed: a job failed.
    """
    reporter.raise_if_cancelled()
    with (
        translate_errors(reporter),
        _job_group(session, reporter, make_poller) as job,
        _in_group(session.sparkContext, job),
    ):
        yield


@contextmanager
def sort_partitions(session: SparkSession, partitions: int) -> Iterator[None]:
    """Set the number of shuffle partitions for the block. Memory holds a few partitions of a sort at a
    time.
    """
    name = "spark.sql.shuffle.partitions"
    before = str(session.conf.get(name))
    session.conf.set(name, str(partitions))
    try:
        yield
    finally:
        session.conf.set(name, before)


def _check_names(schema: pa.Schema) -> None:
    seen: set[str] = set()
    for name in schema.names:
        if name.lower() in seen:
            raise InvalidSchema(f"the result has two columns `{name}`", hint="rename one of them with AS")
        seen.add(name.lower())


def _run(frame: DataFrame, schema: pa.Schema, reporter: Reporter, progress: bool) -> Iterator[pa.RecordBatch]:
    reporter.raise_if_cancelled()
    context = frame.sparkSession.sparkContext
    poller = ProgressPoller if progress else None
    with translate_errors(reporter), _job_group(frame.sparkSession, reporter, poller) as job:
        with _in_group(context, job):
            partitions = batch_partitions(frame)
            # Fallback through the public interface alone; it holds the entire result in memory.
            batches = [] if partitions is not None else frame.toArrow().to_batches()
        if partitions is None:
            yield from (batch.cast(schema) for batch in batches if batch.num_rows)
            return
        for data in _ordered_batches(context, partitions, job):
            reporter.raise_if_cancelled()
            batch = pa.ipc.read_record_batch(pa.py_buffer(data), schema)
            if batch.num_rows:
                yield batch


def batch_partitions(frame: DataFrame) -> Any:
    """Return Spark's internal RDD of Arrow batches as bytes, or None if this version of Spark has none."""
    frame_in_java: Any = frame._jdf
    jvm: Any = frame.sparkSession._jvm
    try:
        jvm.PythonRDD.runJob  # noqa: B018
        return frame_in_java.toArrowBatchRdd().toJavaRDD()
    except Py4JError as error:
        if "does not exist" in str(error) and not isinstance(error, Py4JJavaError):
            return None
        raise


def _ordered_batches(context: SparkContext, partitions: Any, job: _Job) -> Iterator[bytes]:
    """Yield the batches of all partitions in order.

    Concurrent jobs over the same data fail together, with the reason of the first failure. After a failure
    the next partition in order therefore runs again, alone. It either fails for its own reason, which is
    always the same for the same data, or succeeds, and the remaining partitions follow.
    """
    count = partitions.getNumPartitions()
    next_index = 0
    while next_index < count:
        if count > 1:
            next_index = yield from _parallel_batches(context, partitions, job, next_index, count)
        if next_index < count:
            with _in_group(context, job):
                batches = _run_partition(context, partitions, next_index)
            next_index += 1
            yield from batches


def _parallel_batches(
    context: SparkContext, partitions: Any, job: _Job, first: int, count: int
) -> Generator[bytes, None, int]:
    """Yield the batches of the partitions from ``first`` on, in order. Returns the failed partition or
    ``count``.

    The number of concurrent partitions is the number of cores plus one, so no core is idle while the consumer
    reads rows. Memory holds the running partitions and the finished ones that wait for an earlier one.
    """
    workers = min(_cores(str(context.master)) + 1, count - first)
    pool = ThreadPoolExecutor(workers, "spark-rows", lambda: _join_group(context, job))

    def submit(index: int) -> Future[list[bytes]]:
        return pool.submit(_run_partition, context, partitions, index)

    try:
        pending = deque(submit(i) for i in range(first, first + workers))
        for index in range(first, count):
            try:
                batches = pending.popleft().result()
            except (PySparkException, Py4JError):
                return index
            if index + workers < count:
                pending.append(submit(index + workers))
            yield from batches
    except BaseException:
        job.cancel()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
    return count


def _run_partition(context: SparkContext, partitions: Any, index: int) -> list[bytes]:
    """Run one partition and return its batches as Arrow IPC messages without schema."""
    jvm: Any = context._jvm
    address, secret, server = jvm.PythonRDD.runJob(scala_context(context), partitions, [index])
    file, connection = _create_local_socket((address, secret))  # pyright: ignore[reportArgumentType]
    with connection, file:
        messages = []
        while len(prefix := file.read(_LENGTH_PREFIX.size)) == _LENGTH_PREFIX.size:
            messages.append(file.read(_LENGTH_PREFIX.unpack(prefix)[0]))
    server.getResult()
    return messages


def _cores(master: str) -> int:
    match = re.fullmatch(r"local(?:\[(\d+|\*).*\])?", master)
    if match is None:
        return _MAX_PARALLEL
    cores = os.cpu_count() or 1 if match[1] == "*" else int(match[1] or 1)
    return min(cores, _MAX_PARALLEL)


_JOB_PROPERTIES: Final = (
    "spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel", _CODE_GENERATION,
)  # fmt: skip


@dataclass(frozen=True)
class _Job:
    """A job group of Spark, the code generation of its tasks, and the function that cancels it."""

    group: str
    code_generation: str
    cancel: Callable[[], None]


@contextmanager
def _job_group(
    session: SparkSession, reporter: Reporter, make_poller: PollerFactory | None
) -> Iterator[_Job]:
    """Open a job group that is cancelled with the reporter, or if the block fails."""
    context = session.sparkContext
    code_generation = str(session.conf.get(_CODE_GENERATION))
    group = f"odf-{uuid.uuid4().hex}"
    ended = threading.Event()

    def cancel() -> None:
        if not ended.is_set():
            scala_context(context).cancelJobGroupAndFutureJobs(group)

    poller = None if make_poller is None else make_poller(context, group, reporter)
    if poller is not None:
        poller.start()
    finished = False
    try:
        with reporter.on_cancel(cancel):
            yield _Job(group, code_generation, cancel)
            finished = True
    finally:
        if not finished:
            cancel()
        ended.set()
        if poller is not None:
            poller.finish()


@contextmanager
def _in_group(context: SparkContext, job: _Job) -> Iterator[None]:
    """Assign jobs that this thread starts in the block to a group."""
    _join_group(context, job)
    try:
        yield
    finally:
        for name in _JOB_PROPERTIES:
            context.setLocalProperty(name, None)  # pyright: ignore[reportArgumentType]


def _join_group(context: SparkContext, job: _Job) -> None:
    context.setJobGroup(job.group, "odf", interruptOnCancel=True)
    context.setLocalProperty(_CODE_GENERATION, job.code_generation)
