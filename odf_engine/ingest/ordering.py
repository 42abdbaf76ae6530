"""Rows in the order in which they get their offsets.

What fits into memory is sorted here, which is faster than a sort in Spark and keeps rows that are
equal in the order they came in. A larger result is passed on as it comes while it is in order; when
it turns out not to be, it is computed again with a sort in Spark. Rows that are not made by Spark
alone go through a file to be sorted there.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import pyarrow as pa
import pyarrow.parquet as pq

from odf_engine.data.kernels import pc
from odf_engine.progress import Reporter
from odf_engine.spark.frames import arrow_batches, sorted_in
from odf_engine.spark.launch import SparkFailed

if TYPE_CHECKING:
    from odf_engine.spark.frames import DataFrame

_IN_MEMORY: Final = 64 << 20
_PARTITIONS: Final = 128
_BATCH_ROWS: Final = 1 << 16


class OutOfOrder(Exception):
    """A large result was not in order after some of it had been passed on: ask again, with ``sort``."""


@dataclass(frozen=True)
class Order:
    """By which columns rows are sorted, ascending, nulls first.

    Attributes:
        keys: names of columns; without any, rows stay as they come.
        extra: columns that only serve the order and are dropped.
        passes: a large result may be passed on as it comes while it is in order.
    """

    keys: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    passes: bool = False


Step = Callable[[pa.RecordBatch], pa.RecordBatch]
"""What is done to each batch before it is sorted."""
Make = Callable[[bool], tuple["DataFrame", Step]]
"""Makes the frame of the rows, with True sorted by Spark, and a step that has seen no batch yet."""


def in_order(make: Make, order: Order, reporter: Reporter, *, sort: bool = False) -> Iterator[pa.RecordBatch]:
    """The rows of a frame in order.

    Raises:
        OutOfOrder: the result is large and not in order.
    """
    frame, step = make(sort)
    with (
        sorted_in(frame.sparkSession, _PARTITIONS) if sort else nullcontext(),
        closing(stepped(frame, step, reporter)) as batches,
    ):
        if sort or not order.keys:
            yield from (_without(batch, order.extra) for batch in batches)
            return
        held: list[pa.RecordBatch] = []
        size = 0
        for batch in batches:
            held.append(batch)
            size += batch.nbytes
            if size > _IN_MEMORY:
                break
        else:
            yield from _sorted(held, order)
            return
        if order.passes and _is_sorted(held, order.keys):
            yield from _passed_on(held, batches, order)
            return
        held.clear()
    yield from in_order(make, order, reporter, sort=True)


def gathered(
    batches: Iterator[pa.RecordBatch],
    order: Order,
    path: Path,
    sort: Callable[[pa.Schema], DataFrame],
    reporter: Reporter,
) -> Iterator[pa.RecordBatch]:
    """Rows in order, which all have to be there before the first one comes.

    Args:
        batches: all of one schema.
        order: how they are sorted.
        path: a Parquet file to write when memory does not hold them.
        sort: a frame of the rows in that file, of this schema, in order.
        reporter: is asked whether to stop.
    """
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size > _IN_MEMORY:
            break
    else:
        yield from _sorted(held, order)
        return
    schema = held[0].schema
    with pq.ParquetWriter(path, schema, compression="lz4", version="2.6") as writer:
        for batch in chain(held, batches):
            reporter.check()
            writer.write_batch(batch)
    held.clear()
    frame = sort(schema)
    with sorted_in(frame.sparkSession, _PARTITIONS):
        for batch in arrow_batches(frame, reporter, progress=False)[1]:
            yield _without(batch, order.extra)


def stepped(frame: DataFrame, step: Step, reporter: Reporter) -> Generator[pa.RecordBatch, None, None]:
    """The rows of a frame after the step; closing the iterator ends the job."""
    batches = cast("Generator[pa.RecordBatch, None, None]", arrow_batches(frame, reporter)[1])
    try:
        for batch in batches:
            yield step(batch)
    finally:
        # Ends the job at once when its rows are not wanted any more; what it says to that is no news.
        with suppress(SparkFailed):
            batches.close()


def _sorted(held: list[pa.RecordBatch], order: Order) -> Iterator[pa.RecordBatch]:
    if not held:
        return
    if not _is_sorted(held, order.keys):
        table = pa.Table.from_batches(held)
        held.clear()
        held = table.take(_sorted_places(table, order.keys)).to_batches(max_chunksize=_BATCH_ROWS)
    yield from (_without(batch, order.extra) for batch in held)


def _sorted_places(table: pa.Table, keys: tuple[str, ...]) -> pa.Array:
    """Places of the rows in order; rows that are equal stay as they are, nulls come first."""
    columns: list[pa.ChunkedArray] = []
    for key in keys:
        column = table.column(key)
        columns += [column.is_valid(), column] if column.null_count else [column]
    names = [str(at) for at in range(len(columns))]
    sort_keys = [(name, "ascending") for name in names]
    return pc.sort_indices(pa.table(columns, names=names), sort_keys=sort_keys)


def _passed_on(
    held: list[pa.RecordBatch], batches: Iterator[pa.RecordBatch], order: Order
) -> Iterator[pa.RecordBatch]:
    before = held[-1]
    held.reverse()
    while held:
        yield _without(held.pop(), order.extra)
    for batch in batches:
        if not _is_sorted([before.slice(before.num_rows - 1), batch], order.keys):
            raise OutOfOrder
        before = batch
        yield _without(batch, order.extra)


def _is_sorted(batches: list[pa.RecordBatch], keys: tuple[str, ...]) -> bool:
    """Whether the rows are in order by one key; with several keys that is not looked at."""
    if len(keys) != 1:
        return False
    column = pa.chunked_array([batch.column(keys[0]) for batch in batches]).combine_chunks()
    if column.null_count:
        return False
    return len(column) < 2 or bool(pc.all(pc.less_equal(column[:-1], column[1:])).as_py())


def _without(batch: pa.RecordBatch, names: tuple[str, ...]) -> pa.RecordBatch:
    return batch.drop_columns(list(names)) if names else batch
