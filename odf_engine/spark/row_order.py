"""Row order: how a query affects it, total orders, sorting of results."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass
from itertools import accumulate, chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import pyarrow as pa
from pyspark.sql import types as st
from pyspark.sql.functions import expr

from odf_engine.base.progress import Reporter
from odf_engine.data.arrow_compute import pc, sort_indexes
from odf_engine.errors import InvalidQuery
from odf_engine.metadata.model import SqlQueryStep
from odf_engine.spark.arrow_batches import arrow_batches, sort_partitions
from odf_engine.spark.errors import translate_errors
from odf_engine.spark.plan_rewrite import PlanBuilder, analyzed_plan, is_orderable, node_name, to_list
from odf_engine.spark.repeatability import check_repeatable
from odf_engine.spark.runtime.jvm import SparkFailed
from odf_engine.spark.sql_types import identifier
from odf_engine.spark.user_query import confinement_error

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


ResultT = TypeVar("ResultT")
_MAX_MEMORY_BYTES: Final = 64 << 20
SORT_PARTITIONS: Final = 128
"""Number of partitions that Spark sorts."""
_BATCH_ROWS: Final = 1 << 16


class UnsortedResult(Exception):
    """A large result was out of order after a part of it had been yielded. Run it again with ``sort``."""


@dataclass(frozen=True)
class SortOrder:
    """The sort columns, ascending, nulls first.

    Attributes:
        keys: column names; if empty, the rows keep their order.
        extra: columns that only define the order and are dropped afterwards.
        passes: yield a large result without sorting as long as it is in order.
    """

    keys: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    passes: bool = False


Step = Callable[[pa.RecordBatch], pa.RecordBatch]
"""Transformation of each batch before sorting."""
FrameFactory = Callable[[bool], tuple["DataFrame", Step]]
"""Returns the frame of the rows, sorted by Spark if True, and a new step."""


@dataclass(frozen=True)
class OrderedFrame:
    """The rows of a frame in an order.

    Attributes:
        make_frame: returns the frame.
        order: the order of its rows.
    """

    make_frame: FrameFactory
    order: SortOrder


def sorted_batches(
    make_frame: FrameFactory, order: SortOrder, reporter: Reporter, *, sort: bool = False
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a frame in order.

    Raises:
        UnsortedResult: the result is large and not in order.
    """
    frame, step = make_frame(sort)
    with (
        sort_partitions(frame.sparkSession, SORT_PARTITIONS) if sort else nullcontext(),
        closing(map_batches(frame, step, reporter)) as batches,
    ):
        if sort or not order.keys:
            yield from (_drop_columns(batch, order.extra) for batch in batches)
            return
        buffered, is_complete = _buffer(batches)
        if is_complete:
            yield from _sort_in_memory(buffered, order)
            return
        if order.passes and _is_sorted(buffered, order.keys):
            yield from _yield_if_sorted(buffered, batches, order)
            return
        buffered.clear()
    yield from sorted_batches(make_frame, order, reporter, sort=True)


def run_sorted(run: Callable[[bool], ResultT]) -> ResultT:
    """Return the result of a function that reads :func:`sorted_batches`; it gets the argument ``sort``."""
    try:
        return run(False)
    except UnsortedResult:
        return run(True)


def external_sort(
    batches: Iterator[pa.RecordBatch], order: SortOrder, path: Path
) -> Iterator[pa.RecordBatch]:
    """Yield rows in order; all batches are read before the first row is yielded. The sort is stable.

    Rows that exceed memory are stored in sorted runs, which are then merged.

    Args:
        batches: all with the same schema.
        order: the sort order.
        path: path of the temporary files.
    """
    keys_only = SortOrder(order.keys)
    runs: list[pa.Table] = []
    is_complete = False
    while not is_complete:
        buffered, is_complete = _buffer(batches)
        if is_complete and not runs:
            yield from _sort_in_memory(buffered, order)
        elif buffered:
            runs.append(_store_run(_sort_in_memory(buffered, keys_only), path))
    yield from (_drop_columns(batch, order.extra) for batch in _merge_runs(runs, order.keys))


def _store_run(batches: Iterator[pa.RecordBatch], path: Path) -> pa.Table:
    """Return sorted rows as a table in a file, which exists until the table is no longer used."""
    first = next(batches)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, first.schema) as writer:
        for batch in chain([first], batches):
            writer.write_batch(batch)
    stored = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    path.unlink()
    return stored


def _merge_runs(runs: Sequence[pa.Table], keys: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of sorted tables in order; equal rows in the order of the tables."""
    starts = [0] * len(runs)
    while remaining := [number for number, run in enumerate(runs) if starts[number] < run.num_rows]:
        heads = {number: runs[number].slice(starts[number], _BATCH_ROWS) for number in remaining}
        # No row after a head precedes the first of the last rows of the heads.
        longer = [number for number in remaining if starts[number] + _BATCH_ROWS < runs[number].num_rows]
        lasts = [heads[number].select(keys).slice(_BATCH_ROWS - 1) for number in longer]
        bound = longer[sort_indexes(pa.concat_tables(lasts), keys)[0].as_py()] if longer else None
        if bound is not None:
            firsts = [
                lasts[longer.index(bound)] if number == bound else heads[number].select(keys).slice(0, 1)
                for number in remaining
            ]
            order = sort_indexes(pa.concat_tables(firsts), keys).to_pylist()
            for index in order[order.index(remaining.index(bound)) + 1 :]:
                del heads[remaining[index]]
        rows = pa.concat_tables(heads.values())
        indexes = sort_indexes(rows, keys)
        ends = list(accumulate(head.num_rows for head in heads.values()))
        if bound is not None:
            last = ends[list(heads).index(bound)] - 1
            indexes = indexes[: pc.index(indexes, pa.scalar(last, indexes.type)).as_py() + 1]
        counts = [pc.sum(pc.less(indexes, end)).as_py() for end in ends]
        for number, count, before in zip(heads, counts, [0, *counts], strict=False):
            starts[number] += count - before
        yield from rows.take(indexes).combine_chunks().to_batches(max_chunksize=_BATCH_ROWS)


def map_batches(frame: DataFrame, step: Step, reporter: Reporter) -> Generator[pa.RecordBatch, None, None]:
    """Yield the batches of a frame after the step; closing the iterator cancels the job."""
    batches = cast("Generator[pa.RecordBatch, None, None]", arrow_batches(frame, reporter)[1])
    try:
        for batch in batches:
            yield step(batch)
    finally:
        # Cancels the job if the consumer stops early; the resulting error is expected.
        with suppress(SparkFailed):
            batches.close()


def _buffer(batches: Iterator[pa.RecordBatch]) -> tuple[list[pa.RecordBatch], bool]:
    """Read batches until they exceed the memory limit; return them, and whether these are all."""
    buffered: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        buffered.append(batch)
        size += batch.nbytes
        if size > _MAX_MEMORY_BYTES:
            return buffered, False
    return buffered, True


def _sort_in_memory(buffered: list[pa.RecordBatch], order: SortOrder) -> Iterator[pa.RecordBatch]:
    if not buffered:
        return
    if not _is_sorted(buffered, order.keys):
        table = pa.Table.from_batches(buffered)
        buffered.clear()
        buffered = table.take(sort_indexes(table, order.keys)).to_batches(max_chunksize=_BATCH_ROWS)
    yield from (_drop_columns(batch, order.extra) for batch in buffered)


def _yield_if_sorted(
    buffered: list[pa.RecordBatch], batches: Iterator[pa.RecordBatch], order: SortOrder
) -> Iterator[pa.RecordBatch]:
    previous = buffered[-1]
    buffered.reverse()
    while buffered:
        yield _drop_columns(buffered.pop(), order.extra)
    for batch in batches:
        if not _is_sorted([previous.slice(previous.num_rows - 1), batch], order.keys):
            raise UnsortedResult
        previous = batch
        yield _drop_columns(batch, order.extra)


def _is_sorted(batches: list[pa.RecordBatch], keys: tuple[str, ...]) -> bool:
    """Return whether the rows are sorted by a single key. Always False for several keys."""
    if len(keys) != 1:
        return False
    column = pa.chunked_array([batch.column(keys[0]) for batch in batches]).combine_chunks()
    if column.null_count:
        return False
    return len(column) < 2 or bool(pc.all(pc.less_equal(column[:-1], column[1:])).as_py())


def _drop_columns(batch: pa.RecordBatch, names: tuple[str, ...]) -> pa.RecordBatch:
    return batch.drop_columns(list(names)) if names else batch


_ORDER_PRESERVING: Final = (
    "Project",
    "SubqueryAlias",
    "GlobalLimit",
    "LocalLimit",
    "Offset",
    "Filter",
    "ResolvedHint",
)
LIMITING: Final = ("GlobalLimit", "LocalLimit", "Offset", "Tail")
_LIMITING_CLASSES: Final = re.compile(r'"class":"[\w.]+\.(?:GlobalLimit|LocalLimit|Offset|Tail|Sample)"')


def with_total_order(session: SparkSession, frame: DataFrame, query: str) -> tuple[DataFrame, bool]:
    """Return the frame in a total order: its ORDER BY with ties resolved, or the order of all columns.

    Args:
        session: the session of the query.
        frame: the result of the query.
        query: its text.

    Returns:
        The sorted frame, and whether the query itself has an ORDER BY.

    Raises:
        InvalidQuery: the query is not repeatable.
    """
    try:
        check_repeatable(frame, [SqlQueryStep(query=query)])
    except InvalidQuery as error:
        error.hint = (
            "write times as literals, sort collected lists (sort_array), or run the query without a proof"
        )
        raise
    with translate_errors():
        return _TotalOrder(session).apply(frame)


class _TotalOrder(PlanBuilder):
    def apply(self, frame: DataFrame) -> tuple[DataFrame, bool]:
        plan = analyzed_plan(frame)
        text = plan.toJSON()
        if "logical.WithCTE" in text:
            plan = self.catalyst.optimizer.InlineCTE(True, False, False).apply(plan)
            text = plan.toJSON()
        self._limits = 0
        plan = self._with_total_sorts(plan)
        if len(_LIMITING_CLASSES.findall(text)) > self._limits:
            raise InvalidQuery(
                "LIMIT within an expression is not deterministic", hint="use a join, max_by or min_by instead"
            )
        ordered = is_ordered(plan)
        if not ordered:
            plan = self.sort(self._all_columns(plan), plan, everywhere=True)
        return self.to_frame(plan), ordered

    def _with_total_sorts(self, plan: Any) -> Any:
        """Return the plan with every ORDER BY made total."""
        name = node_name(plan)
        if name == "View":
            return plan
        if name == "Sample":
            raise confinement_error(plan, "TABLESAMPLE is not deterministic", "filter rows by their values")
        plan = self.map_children(plan, self._with_total_sorts)
        if name == "Sort" and getattr(plan, "global")():
            order = [*to_list(plan.order()), *self._all_columns(plan.child())]
            return self.sort(order, plan.child(), everywhere=True)
        if name in LIMITING:
            self._limits += 1
            if not is_ordered(plan.child()):
                raise confinement_error(plan, "LIMIT without ORDER BY is not deterministic", "add ORDER BY")
        return plan

    def _all_columns(self, plan: Any) -> list[Any]:
        return [self.ascending(column) for column in to_list(plan.output()) if is_orderable(column)]


def is_ordered(plan: Any) -> bool:
    """Return whether an ORDER BY defines the order of the rows of a plan."""
    while node_name(plan) in _ORDER_PRESERVING:
        plan = plan.child()
    return node_name(plan) == "Sort" and getattr(plan, "global")()


_REORDERING: Final = re.compile(
    r"^[ :|+-]*(Aggregate|Join|AsOfJoin|LateralJoin|Window|Distinct|Deduplicate|Intersect|Except"
    r"|Repartition\w*|RebalancePartitions|Pivot|Sample)\b",
    re.MULTILINE,
)
ORDER_PREFIX: Final = "odf_order_"
"""Prefix of the columns that carry the sort values."""


def strip_order_by(builder: PlanBuilder, plan: Any) -> tuple[Any, tuple[str, ...]]:
    """Remove the ORDER BY at the top of a plan; its values become columns.

    Args:
        builder: builds plan nodes.
        plan: the analyzed plan.

    Returns:
        The plan, and the sort terms: column name, direction and null order of each. Empty without an ORDER
            BY.
    """
    sort = plan.child() if node_name(plan) == "Project" else plan
    if node_name(sort) != "Sort" or not getattr(sort, "global")():
        return plan, ()
    columns = to_list(plan.output() if sort is plan else plan.projectList())
    orders = to_list(sort.order())
    sort_columns = [
        builder.alias(order.child(), f"{ORDER_PREFIX}{index}") for index, order in enumerate(orders)
    ]
    directions = [f"{order.direction().sql()} {order.nullOrdering().sql()}" for order in orders]
    projected = builder.project([*columns, *sort_columns], sort.child())
    return projected, tuple(
        f"{ORDER_PREFIX}{index} {direction}" for index, direction in enumerate(directions)
    )


def has_nondeterministic_order(frame: DataFrame) -> bool:
    """Return whether the row order may depend on how Spark partitions the work.

    This is so after joins, grouping, windows or repartitioning. Filters and row-by-row expressions keep the
    order.
    """
    java: Any = frame._jdf
    with translate_errors():
        return _REORDERING.search(java.queryExecution().analyzed().toString()) is not None


def keeps_order(frame: DataFrame) -> bool:
    """Return whether a frame over a single file has its rows in the order of the file."""
    java: Any = frame._jdf
    with translate_errors():
        text: str = java.queryExecution().analyzed().toString()
    return _REORDERING.search(text) is None and text.count("Relation [") == 1


def sort_by_all_columns(frame: DataFrame, *first: str) -> DataFrame:
    """Sort the rows by the expressions ``first`` and then by all columns, nulls first.

    The order depends on the rows alone.
    """
    if len(set(map(str.lower, frame.columns))) < len(frame.columns):
        return frame  # a duplicate column name is reported later
    keys = [identifier(field.name) for field in frame.schema if _is_sortable(field.dataType)]
    with translate_errors():
        return frame.sort(*map(expr, [*first, *keys]))


def sort_by_terms(frame: DataFrame, order: Sequence[str], first: str) -> DataFrame:
    """Sort the rows by the terms of an ORDER BY, then by the column ``first``, then by all other columns.

    Args:
        frame: with the columns of :func:`strip_order_by`.
        order: the sort terms of :func:`strip_order_by`.
        first: a column name.
    """
    others = [
        field.name
        for field in frame.schema
        if _is_sortable(field.dataType) and ORDER_PREFIX not in field.name
    ]
    keys = [*order, *map(identifier, sorted(others, key=lambda name: name != first))]
    with translate_errors():
        frame.createOrReplaceTempView("odf_unsorted")
        return frame.sparkSession.sql(f"SELECT * FROM odf_unsorted ORDER BY {', '.join(keys)}")


def _is_sortable(data_type: st.DataType) -> bool:
    if isinstance(data_type, st.ArrayType):
        return _is_sortable(data_type.elementType)
    if isinstance(data_type, st.StructType):
        return all(_is_sortable(field.dataType) for field in data_type)
    return not isinstance(data_type, st.MapType | st.VariantType | st.NullType)
