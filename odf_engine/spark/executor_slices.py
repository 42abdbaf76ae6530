"""Slices that the executors of a cluster write: the rows do not pass through this process."""

from __future__ import annotations

import logging
import sys
import zipfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar, cast

from pyspark import RDD, SparkFiles
from pyspark.serializers import NoOpSerializer

import odf_engine
from odf_engine.base.progress import Reporter
from odf_engine.data.parquet.slice_tasks import (
    SliceTask,
    StoredRows,
    is_in_order,
    plan_slices,
    store_rows,
    write_rows,
)
from odf_engine.data.parquet.slices import WrittenSlice
from odf_engine.errors import BadData, InvalidSchema, OdfError, Unsupported
from odf_engine.spark.arrow_batches import ProgressPoller, batch_partitions, cancellable, sort_partitions
from odf_engine.spark.row_order import SORT_PARTITIONS, OrderedFrame
from odf_engine.spark.runtime.spark_conf import is_local
from odf_engine.spark.sql_types import arrow_schema

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession

ResultT = TypeVar("ResultT")
_log = logging.getLogger(__name__)
_PYTHON: Final = "spark.pyspark.python"
_unusable: dict[str, str] = {}
"""Applications whose executors cannot run the tasks, and why."""
_prepared: set[str] = set()
"""Applications whose executors were sent this package."""


class ExecutorReporters(NamedTuple):
    """Reporters of the two steps: of the rows that are read, and of the rows that are written."""

    reads: Reporter
    writes: Reporter


def write_on_executors(
    ordered: OrderedFrame, task: SliceTask, reporters: ExecutorReporters
) -> list[WrittenSlice] | None:
    """Write the rows of a frame as slices by tasks of a cluster.

    The slices are those that :func:`odf_engine.data.parquet.slices.write_slices` writes of the same rows.

    Args:
        ordered: the rows and their order.
        task: the slices. Its folder receives the files, and is removed by the caller.
        reporters: receive amounts, and cancel the jobs.

    Returns:
        The slices, or None if this process must write them: Spark runs on this machine, the rows are a
        single partition, a row is invalid (whose error then has its location), or executors lack PyArrow.

    Raises:
        Cancelled, SparkFailed: a job failed.
        OdfError: a file cannot be written.
    """
    frame = ordered.make_frame(False)[0]
    session = frame.sparkSession
    context = session.sparkContext
    if is_local(str(context.master)) or context.applicationId in _unusable:
        return None
    partitions = batch_partitions(frame)
    if partitions is None or partitions.getNumPartitions() < 2:
        return None
    try:
        _prepare(context)
        parts = _store_in_order(ordered, frame, task, reporters.reads)
        return None if parts is None else _write(session, task, parts, reporters.writes)
    except Unsupported as error:
        _unusable[context.applicationId] = error.message
        reporters.writes.log(f"this machine writes all slices: {error.message}; {error.hint}", "warning")
    except (BadData, InvalidSchema) as error:
        _log.info("the rows are read again for the location of an error: %s", error)
    return None


def _prepare(context: SparkContext) -> None:
    """Send this package to the executors, once for each application."""
    if context.applicationId in _prepared:
        return
    context.pythonExec = context.getConf().get(_PYTHON) or sys.executable
    path = Path(SparkFiles.getRootDirectory()).with_name("odf_engine.zip")
    root = Path(odf_engine.__file__).parent
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for module in root.rglob("*.py"):
            archive.write(module, module.relative_to(root.parent))
    before = list(sys.path)
    context.addPyFile(str(path))
    sys.path[:] = before
    _prepared.add(context.applicationId)


def _store_in_order(
    ordered: OrderedFrame, frame: DataFrame, task: SliceTask, reporter: Reporter
) -> list[StoredRows] | None:
    """Store the rows of all partitions, in order; sorted by Spark if they are not in order."""
    order = ordered.order
    if not order.keys or order.passes:
        parts = _store(frame, task, reporter)
        if parts is None or not order.keys or is_in_order(parts):
            return parts
        for part in parts:
            part.path.unlink(missing_ok=True)
        reporter.log("the rows are not ordered by event time: sorting them")
    with sort_partitions(frame.sparkSession, SORT_PARTITIONS):
        return _store(ordered.make_frame(True)[0], task, reporter)


def _store(frame: DataFrame, task: SliceTask, reporter: Reporter) -> list[StoredRows] | None:
    session = frame.sparkSession
    schema = arrow_schema(frame.schema)
    with cancellable(session, reporter, ProgressPoller):
        partitions = batch_partitions(frame)
        if partitions is None:
            return None
        rows = RDD(partitions, session.sparkContext, NoOpSerializer())  # type: ignore[arg-type]
        results = rows.mapPartitions(partial(store_rows, task, schema)).collect()
    return _require(results)


def _write(
    session: SparkSession, task: SliceTask, parts: Sequence[StoredRows], reporter: Reporter
) -> list[WrittenSlice]:
    counts = plan_slices(task, parts)
    spans = [(sum(counts[:number]), count) for number, count in enumerate(counts)]
    poller = partial(_TaskPoller, rows=sum(counts), tasks=len(counts))
    with cancellable(session, reporter, poller):
        tasks = session.sparkContext.parallelize(spans, max(len(spans), 1))
        results = tasks.mapPartitions(partial(write_rows, task, parts)).collect()
    reporter.set_amounts(rows=sum(counts))
    return _require(results)


def _require(results: list[ResultT | OdfError]) -> list[ResultT]:
    """Return the results of tasks.

    Raises:
        OdfError: a result is an error.
    """
    for result in results:
        if isinstance(result, OdfError):
            raise result
    return cast("list[ResultT]", results)


class _TaskPoller(ProgressPoller):
    """Reports the rows of completed tasks, which have about the same number of rows."""

    def __init__(
        self, context: SparkContext, group: str, reporter: Reporter, *, rows: int, tasks: int
    ) -> None:
        super().__init__(context, group, reporter)
        self._rows, self._tasks = rows, tasks

    def _amounts(self) -> tuple[int, int]:
        tracker = self._context.statusTracker()
        completed = 0
        for job in tracker.getJobIdsForGroup(self._group):
            info = tracker.getJobInfo(job)
            stages = [] if info is None else [tracker.getStageInfo(stage) for stage in info.stageIds]
            completed += sum(stage.numCompletedTasks for stage in stages if stage is not None)
        return self._rows * min(completed, self._tasks) // self._tasks, 0
