"""What an as-of join keeps from one batch to the next: rows that wait, and versions they may ask for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from odf_engine.data.kernels import pc
from odf_engine.spark.types import arrow_schema
from odf_engine.spark.versions import ALIVE, DUE, OLDEST, TIME, UNKNOWN

if TYPE_CHECKING:
    from odf_engine.spark.frames import DataFrame


def nullable(frame: DataFrame) -> pa.Schema:
    """The columns of rows that are written together with others of the same columns."""
    return pa.schema([field.with_nullable(True) for field in arrow_schema(frame.schema)])


class Waiting:
    """The rows of a join that are not due: they go into a file.

    Args:
        path: of the file.
        schema: of the rows.
        until: the watermark in milliseconds; None while there is none.
        outer: whether rows without a version come out.

    Attributes:
        least: the least event time among them, in milliseconds.
        unknown: how many of the other rows have not the version at their time.
    """

    def __init__(self, path: Path, schema: pa.Schema, until: int | None, *, outer: bool) -> None:
        self._writer = pq.ParquetWriter(path, schema)
        self._until = None if until is None else _moment(until, schema.field(DUE).type)
        self._outer = outer
        self.least: int | None = None
        self.unknown = 0

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._writer.close()

    def due(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Passes on rows that come out, of rows in the order in which they are due."""
        schema = self._writer.schema
        for batch in batches:
            count = 0
            if self._until is not None:
                count = pc.sum(pc.less_equal(batch.column(DUE), self._until)).as_py() or 0
            rest = batch.slice(count)
            if rest.num_rows:
                least = pc.min(pc.cast(rest.column(TIME), pa.int64())).as_py() // 1000
                self.least = least if self.least is None else min(least, self.least)
                self._writer.write_batch(pa.record_batch(rest.select(schema.names).columns, schema=schema))
            now = batch.slice(0, count)
            if not self._outer:
                now = now.filter(now.column(ALIVE))
            if now.num_rows:
                self.unknown += pc.sum(now.column(UNKNOWN)).as_py() or 0
                yield now


def still_needed(
    batches: Iterable[pa.RecordBatch], keys: Sequence[str], until: int | None
) -> Iterator[pa.RecordBatch]:
    """The versions that rows may still ask for: the newest of each key at a time, and all later ones.

    Args:
        batches: versions by key, then by event time and place.
        keys: the columns of the key.
        until: that time in milliseconds; None when every version is needed.
    """
    if until is None:
        yield from batches
        return
    held: pa.RecordBatch | None = None
    for batch in batches:
        rows = batch if held is None else pa.concat_batches([held, batch])
        # Whether the last row is needed, is said by the one after it; its own predecessor is not.
        yield from _needed(rows, keys, until, end=False)
        held = _carried(rows, keys)
    if held is not None:
        yield from _needed(held, keys, until, end=True)


def _carried(rows: pa.RecordBatch, keys: Sequence[str]) -> pa.RecordBatch:
    """The last row, which knows whether there were others of its key before it."""
    last = rows.slice(rows.num_rows - 1)
    if rows.num_rows < 2 or not _same_key(rows.slice(rows.num_rows - 2), keys)[0].as_py():
        return last
    at = last.schema.get_field_index(OLDEST)
    # Read only where the row lies before the time: then so do all before it.
    return last.set_column(at, last.schema.field(at), pa.array([True], pa.bool_()))


def _needed(rows: pa.RecordBatch, keys: Sequence[str], until: int, *, end: bool) -> Iterator[pa.RecordBatch]:
    """Those of the rows, without the last one unless it is the ``end``."""
    past = pc.less_equal(rows.column(TIME), _moment(until, rows.column(TIME).type))
    same = _same_key(rows, keys)
    no = pa.array([False])
    replaced = pa.concat_arrays([pc.and_(same, past[1:]), no])
    follows = pa.concat_arrays([no, same])
    oldest = pc.and_(past, pc.or_(rows.column(OLDEST), follows))
    at = rows.schema.get_field_index(OLDEST)
    made = rows.set_column(at, rows.schema.field(at), oldest)
    kept = pc.or_(pc.invert(past), pc.invert(replaced))
    count = rows.num_rows if end else rows.num_rows - 1
    found = made.slice(0, count).filter(kept[:count])
    if found.num_rows:
        yield found


def _same_key(rows: pa.RecordBatch, keys: Sequence[str]) -> pa.Array:
    """Of each row but the last, whether the next has the same key."""
    count = rows.num_rows - 1
    equal = [pc.equal(rows.column(key).slice(0, count), rows.column(key).slice(1, count)) for key in keys]
    return reduce(pc.and_, equal)


def _moment(milliseconds: int, kind: pa.DataType) -> pa.Scalar:
    return pa.scalar(milliseconds * 1000).cast(kind)
