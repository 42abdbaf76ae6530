"""Slices that the executors of a cluster write."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import RDD, SparkFiles
from pyspark.serializers import NoOpSerializer

import odf_engine
from odf_engine.base.config import is_local
from odf_engine.base.progress import Reporter
from odf_engine.data.parquet.slice_rows import SliceRowBuilder
from odf_engine.data.parquet.slice_tasks import (
    Call,
    DependentRows,
    PrepareRows,
    SliceTask,
    StoredRows,
    is_in_order,
    join_row_groups,
    plan_calls,
    plan_slices,
    read_rows,
    remove_rows,
    run_calls,
    store_partition,
    store_rows,
    write_task_slices,
)
from odf_engine.data.parquet.slices import WrittenSlice
from odf_engine.errors import BadData, InvalidSchema, OdfError, Unsupported
from odf_engine.spark.arrow_batches import (
    PollerFactory,
    ProgressPoller,
    batch_partitions,
    cancellable,
    sort_partitions,
)
from odf_engine.spark.errors import translate_errors
from odf_engine.spark.row_order import SORT_PARTITIONS, OrderedFrame
from odf_engine.spark.runtime.jvm import SparkFailed
from odf_engine.spark.sql_types import arrow_schema

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession

MAX_LOCAL_BYTES = 64 << 20
"""Size of the rows of this process that executors do not write."""
_unusable: dict[str, str] = {}
"""Applications whose executors cannot run the tasks, and why."""
_prepared: set[str] = set()
"""Applications whose executors were sent this package."""


class ExecutorWriter:
    """Writes slices by tasks of a cluster, or in this process if Spark runs on this machine.

    The slices are the same in both cases.

    Args:
        session: the session of the job.
        task: the slices. Its folder receives temporary files, and is removed by the caller.
        new_path: returns the path of the next slice.
        reporter: receives the rows that are written, and cancels the jobs.
    """

    def __init__(
        self, session: SparkSession, task: SliceTask, new_path: Callable[[], Path], reporter: Reporter
    ) -> None:
        self._session = session
        self._task = task
        self._new_path = new_path
        self._reporter = reporter

    def write_frame(
        self, ordered: OrderedFrame, prepare: PrepareRows, reads: Reporter
    ) -> list[WrittenSlice] | None:
        """Write the rows of a frame, which do not pass through this process.

        Args:
            ordered: the rows and their order.
            prepare: completes the rows of each partition; it is sent to the executors.
            reads: receives the rows and bytes that are read.

        Returns:
            The slices, or None if the rows must be read by this process: there are no executors, the rows
            are a single partition or depend on other partitions, or a row is invalid, whose error then has
            its location.

        Raises:
            Cancelled, SparkFailed: a job failed.
            OdfError: a file cannot be written.
        """
        if not has_executors(self._session):
            return None
        frame = ordered.make_frame(False)[0]
        partitions = batch_partitions(frame)
        if partitions is None or partitions.getNumPartitions() < 2:
            return None
        try:
            parts = self._store_in_order(ordered, frame, prepare, reads)
        except (BadData, InvalidSchema, DependentRows):
            return None
        except Unsupported as error:
            self._report_unusable(error)
            return None
        return None if parts is None else self._write_stored(parts)

    def write_batches(self, batches: Iterable[pa.RecordBatch]) -> list[WrittenSlice]:
        """Write rows of this process. Executors encode and hash them if there are many.

        Args, raises: as for :func:`odf_engine.data.parquet.slices.write_slices`.
        """
        if not has_executors(self._session):
            return self._write_here(batches)
        builder = SliceRowBuilder(self._task.properties)
        rows = builder.enforce_schema(batches, self._reporter)
        buffered: list[pa.RecordBatch] = []
        size = 0
        for batch in rows:
            buffered.append(batch)
            size += batch.nbytes
            if size > MAX_LOCAL_BYTES:
                remaining = chain(_consume(buffered), rows)
                parts = store_rows(self._task, ((batch, None) for batch in remaining))
                try:
                    return self._write_stored(parts)
                finally:
                    remove_rows(parts)
        return self._write_here(buffered)

    def _write_here(self, batches: Iterable[pa.RecordBatch]) -> list[WrittenSlice]:
        return write_task_slices(batches, self._task, self._new_path, self._reporter)

    def _write_stored(self, parts: Sequence[StoredRows]) -> list[WrittenSlice]:
        slices = plan_slices(self._task, parts)
        calls = plan_calls(self._task, parts, slices)
        rows = sum(map(sum, slices))
        try:
            written = self._run(calls, partial(CallPoller, rows=rows, calls=len(calls)))
            if len(slices) == 1:
                written = self._run([Call(self._task, partial(join_row_groups, self._task, written))])
        except Unsupported as error:
            self._report_unusable(error)
            return self._write_here(read_rows(parts))
        self._reporter.set_amounts(rows=rows)
        self._reporter.log(f"{rows:,} rows written by executors", "debug")
        return [part._replace(path=_move(part.path, self._new_path())) for part in written]

    def _run(self, calls: Sequence[Call], make_poller: PollerFactory | None = None) -> list[Any]:
        if not calls:
            return []
        context = self._session.sparkContext
        with cancellable(self._session, self._reporter, make_poller):
            send_package(context, self._reporter)
            return _require(context.parallelize(calls, len(calls)).mapPartitions(run_calls).collect())

    def _store_in_order(
        self, ordered: OrderedFrame, frame: DataFrame, prepare: PrepareRows, reporter: Reporter
    ) -> list[StoredRows] | None:
        """Store the rows of all partitions, in order; sorted by Spark if they are not in order."""
        order = ordered.order
        if not order.keys or order.passes:
            parts = self._store(frame, prepare, reporter)
            if parts is None or not order.keys or is_in_order(parts):
                return parts
            remove_rows(parts)
            reporter.log("the rows are not in order: sorting them")
        with sort_partitions(frame.sparkSession, SORT_PARTITIONS):
            return self._store(ordered.make_frame(True)[0], prepare, reporter)

    def _store(self, frame: DataFrame, prepare: PrepareRows, reporter: Reporter) -> list[StoredRows] | None:
        session = frame.sparkSession
        schema = arrow_schema(frame.schema)
        with cancellable(session, reporter, ProgressPoller):
            partitions = batch_partitions(frame)
            if partitions is None:
                return None
            send_package(session.sparkContext, reporter)
            rows = RDD(partitions, session.sparkContext, NoOpSerializer())  # type: ignore[arg-type]
            reporter.log("the rows are read by executors", "debug")
            results = rows.mapPartitions(partial(store_partition, self._task, prepare, schema)).collect()
        return [part for parts in _require(results) for part in parts]

    def _report_unusable(self, error: Unsupported) -> None:
        _unusable[self._session.sparkContext.applicationId] = error.message
        self._reporter.log(f"this machine writes all slices: {error.message}; {error.hint}", "warning")


def has_executors(session: SparkSession) -> bool:
    """Return whether Spark runs on a cluster whose executors can run the tasks, as far as known."""
    context = session.sparkContext
    return not is_local(str(context.master)) and context.applicationId not in _unusable


def write_session_slices(
    session: SparkSession,
    batches: Iterable[pa.RecordBatch],
    task: SliceTask,
    new_path: Callable[[], Path],
    reporter: Reporter,
) -> list[WrittenSlice]:
    """Write the slices of a job; see :meth:`ExecutorWriter.write_batches`."""
    return ExecutorWriter(session, task, new_path, reporter).write_batches(batches)


def _consume(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches, which are released."""
    batches.reverse()
    while batches:
        yield batches.pop()


def _move(source: Path, target: Path) -> Path:
    source.replace(target)
    return target


def send_package(context: SparkContext, reporter: Reporter) -> None:
    """Send this package to the executors, once for each application.

    Raises:
        Unsupported: an executor cannot import it.
    """
    if context.applicationId in _prepared:
        return
    path = Path(SparkFiles.getRootDirectory()).with_name("odf_engine.zip")
    root = Path(odf_engine.__file__).parent
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for module in root.rglob("*.py"):
            archive.write(module, module.relative_to(root.parent))
    before = list(sys.path)
    context.addPyFile(str(path))
    sys.path[:] = before  # the archive is for executors
    try:
        with translate_errors(reporter):
            context.parallelize([], 2).mapPartitions(run_calls).count()
    except SparkFailed as error:
        hint = "for the requirements, see odf help clusters"
        raise Unsupported(f"executors cannot run Python tasks: {error.message}", hint=hint) from error
    _prepared.add(context.applicationId)


def _require(results: list[Any]) -> list[Any]:
    """Return the results of calls.

    Raises:
        OdfError: a result is an error.
    """
    for result in results:
        if isinstance(result, OdfError):
            raise result
    return results


class CallPoller(ProgressPoller):
    """Reports rows and bytes by the number of completed calls.

    Args:
        context, group, reporter: see :class:`ProgressPoller`.
        calls: the number of calls.
        rows: the rows of all calls.
        size: the bytes of all calls.
    """

    def __init__(
        self,
        context: SparkContext,
        group: str,
        reporter: Reporter,
        *,
        calls: int,
        rows: int = 0,
        size: int = 0,
    ) -> None:
        super().__init__(context, group, reporter)
        self._calls, self._rows, self._size = calls, rows, size

    def _amounts(self) -> tuple[int, int]:
        tracker = self._context.statusTracker()
        completed = 0
        for job in tracker.getJobIdsForGroup(self._group):
            info = tracker.getJobInfo(job)
            stages = [] if info is None else [tracker.getStageInfo(stage) for stage in info.stageIds]
            completed += sum(stage.numCompletedTasks for stage in stages if stage is not None)
        completed = min(completed, self._calls)
        return self._rows * completed // self._calls, self._size * completed // self._calls
