"""Sorts keys into a key file, in bounded memory: first into buckets by their first bits, then each bucket."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from odf_engine.data.kernels import pc
from odf_engine.ingest.key_file import KeyFile, KeyFileWriter

KEY: Final = "odf_key"
SECOND: Final = "odf_key_2"
OFFSET: Final = "odf_offset"
"""Of the newest row of a key; its complement (~) when that row took the key away."""
TIME: Final = "odf_time"
VALUES: Final = "odf_values"
COMPARED: Final = "odf_compared"
"""Only where some columns are compared: of these, while ``VALUES`` is of all but the key and event time."""

_IN_MEMORY: Final = 1 << 21
_BUCKETS: Final = 64
_RANGE: Final = 1 << 20


class RepeatedKey(Exception):
    """A key came twice."""


def bounds(parts: int) -> list[int]:
    """Numbers that cut all 64-bit numbers into parts of equal width."""
    width = (1 << 64) // parts
    return [at * width - (1 << 63) for at in range(1, parts)]


class KeySpool:
    """Takes rows of keys in any order.

    Args:
        names: of the columns, the first four as above.
        folder: for temporary files, which whoever calls removes.
        unique: a key that comes twice is an error; else the one with the greatest offset counts.
    """

    def __init__(self, names: list[str], folder: Path, *, unique: bool) -> None:
        self._schema = pa.schema([pa.field(name, pa.int64()) for name in names])
        self._folder = folder
        self._unique = unique
        self._held: list[pa.RecordBatch] = []
        self._buckets: list[pa.RecordBatchStreamWriter] = []
        self.rows = self._waiting = 0

    def add(self, columns: list[pa.Array]) -> None:
        """More rows: the columns in order, none with nulls."""
        batch = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        self._held.append(batch)
        self.rows += batch.num_rows
        self._waiting += batch.num_rows
        if self._waiting >= _IN_MEMORY:
            self._flush()

    def finish(self, path: Path, **facts: Any) -> None:
        """Writes the file.

        Raises:
            RepeatedKey: when keys are to be unique.
        """
        with KeyFileWriter(path, self._schema.names, self.rows) as writer:
            for part in self._parts():
                writer.write(self._newest(part))
            writer.finish(**facts)

    def _flush(self) -> None:
        """Adds what is in memory to the buckets."""
        if not self._buckets:
            self._buckets = [
                pa.ipc.new_stream(str(self._folder / f"keys-{id(self)}-{at}"), self._schema)
                for at in range(_BUCKETS)
            ]
        table = self._sorted(self._taken())
        cuts = pc.search_sorted(table.column(KEY), pa.array(bounds(_BUCKETS))).to_pylist()
        for writer, (start, stop) in zip(self._buckets, pairwise([0, *cuts, table.num_rows]), strict=True):
            writer.write_batch(table.slice(start, stop - start))

    def _taken(self) -> pa.RecordBatch:
        held, self._held, self._waiting = self._held, [], 0
        return joined(held, self._schema)

    def _parts(self) -> Iterator[pa.RecordBatch]:
        if not self._buckets:
            yield self._taken()
            return
        self._flush()
        for writer in self._buckets:
            writer.close()
        for at in range(_BUCKETS):
            path = self._folder / f"keys-{id(self)}-{at}"
            with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as stream:
                yield joined(list(stream), self._schema)
            path.unlink()

    def _sorted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.take(pc.sort_indices(batch.column(KEY)))

    def _newest(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """In order, with each key once."""
        batch = self._sorted(batch)
        if not _repeats(batch.column(KEY)):
            return batch
        offset = batch.column(OFFSET)
        age = pc.if_else(pc.less(offset, 0), offset, pc.bit_wise_not(offset))  # the newest is the least
        columns = {"key": batch.column(KEY), "second": batch.column(SECOND), "age": age}
        order = pc.sort_indices(pa.table(columns), sort_keys=[(name, "ascending") for name in columns])
        batch = batch.take(order)
        key, second = batch.column(KEY), batch.column(SECOND)
        again = pc.and_(pc.equal(key[1:], key[:-1]), pc.equal(second[1:], second[:-1]))
        if self._unique and pc.any(again).as_py():
            raise RepeatedKey
        return batch.filter(pa.concat_arrays([pa.array([True]), pc.invert(again)]))


def merge_files(older: KeyFile, newer: KeyFile, path: Path, *, drop_gone: bool) -> None:
    """Writes a file with the keys of two; those of the newer one count.

    Args:
        drop_gone: leaves out keys that were taken away.

    Raises:
        DamagedKeys: one of them is not as it was written.
    """
    cuts = bounds(max(1, (older.rows + newer.rows) // _RANGE))
    with KeyFileWriter(path, older.names, older.rows + newer.rows) as writer:
        place = 0
        for old, new in zip(older.ranges(cuts), newer.ranges(cuts), strict=True):
            _, places = older.find(new.column(KEY), new.column(SECOND))
            superseded = pc.subtract(places, place)
            place += old.num_rows
            if len(superseded):
                gone = pc.scatter(pa.repeat(True, len(superseded)), superseded, max_index=old.num_rows - 1)
                old = old.filter(gone.is_null())
            batch = joined([old, new], old.schema)
            if drop_gone:
                batch = batch.filter(pc.greater_equal(batch.column(OFFSET), 0))
            writer.write(batch.take(pc.sort_indices(batch.column(KEY))))
        writer.finish(form=newer.facts["form"])


def joined(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """All rows in one batch."""
    table = pa.Table.from_batches(batches, schema).combine_chunks()
    if table.num_rows:
        return table.to_batches()[0]
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def array_of(table: pa.Table | pa.RecordBatch, name: str) -> pa.Array:
    """A column in one piece."""
    column = table.column(name)
    if isinstance(column, pa.Array):
        return column
    return (
        column.chunk(0)
        if column.num_chunks == 1
        else pa.concat_arrays(column.chunks or [pa.array([], column.type)])
    )


def _repeats(keys: pa.Array) -> bool:
    return len(keys) > 1 and bool(pc.any(pc.equal(keys[1:], keys[:-1])).as_py())
