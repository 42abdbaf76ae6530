"""Sorted, checksummed key files, and the external sort that makes them."""

from __future__ import annotations

import json
import struct
import zlib
from array import array
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Self

import pyarrow as pa

from odf_engine.data.arrow_compute import pc
from odf_engine.files import write_all

_PAGE: Final = 4096
_SHIFT: Final = 9
"""A page has two to the power of this many numbers."""
_TAIL: Final = struct.Struct("<QI")
_NUMBER: Final = pa.int64()
_DAMAGE: Final = (
    AttributeError,
    LookupError,
    OSError,
    OverflowError,
    RecursionError,
    TypeError,
    ValueError,
    pa.ArrowException,
    struct.error,
)


class CorruptKeyFile(Exception):
    """The file is not as it was written."""


class KeyFile:
    """An open file.

    Attributes:
        rows: how many keys it has.
        names: of its columns.
        facts: what its writer had to say.
    """

    def __init__(self, path: Path) -> None:
        """Raises:
        DamagedKeys: it is missing, or not one.
        """
        self.path = path
        try:
            with pa.memory_map(str(path)) as file:
                self._data = file.read_buffer(file.size())
            length, checksum = _TAIL.unpack(self._data[-_TAIL.size :])
            description = memoryview(self._data)[len(self._data) - _TAIL.size - length : -_TAIL.size]
            self.facts: dict[str, Any] = json.loads(bytes(description))
            self.rows: int = self.facts["rows"]
            self.names: list[str] = self.facts["names"]
            if not (isinstance(self.names, list) and all(isinstance(name, str) for name in self.names)):
                raise CorruptKeyFile
            if len(self.names) < 2 or self.rows < 0:
                raise CorruptKeyFile
            stride, pages = self.facts["stride"], _pages(self.rows)
            table = memoryview(self._data)[stride * len(self.names) :][: 4 * pages * len(self.names)]
            sums = array("I", bytes(table))
            if zlib.crc32(description, zlib.crc32(table)) != checksum or self.facts["name"] != path.name:
                raise CorruptKeyFile
            self._columns: dict[str, pa.Array] = {}
            self._checks: dict[str, _Checks] = {}
            for at, name in enumerate(self.names):
                raw = self._data.slice(at * stride, 8 * self.rows)
                self._columns[name] = pa.Array.from_buffers(_NUMBER, self.rows, [None, raw])
                self._checks[name] = _Checks(memoryview(raw), sums[at * pages : (at + 1) * pages])
        except _DAMAGE as error:
            raise CorruptKeyFile from error

    def take(self, name: str, places: pa.Array) -> pa.Array:
        """The numbers of a column at these places, which ascend.

        Raises:
            DamagedKeys: a page is not as it was written.
        """
        self._checks[name].check(places)
        return self._columns[name].take(places)

    def find(self, keys: pa.Array, seconds: pa.Array) -> tuple[pa.Array, pa.Array]:
        """Which of the keys are there.

        Args:
            keys: numbers to look for in the first column, ascending.
            seconds: the second column has to agree with these.

        Returns:
            Indices of the keys that were found, and their places in the file; both ascend.

        Raises:
            DamagedKeys: a page is not as it was written.
        """
        first, second = self.names[:2]
        if self.rows == 0 or len(keys) == 0:
            return _NONE, _NONE
        places = pc.search_sorted(self._columns[first], keys).cast(_NUMBER)
        here = self.take(first, pc.min_element_wise(places, self.rows - 1))
        before = self.take(first, pc.max_element_wise(pc.subtract(places, 1), 0))
        inside = pc.less(places, self.rows)
        sound = pc.and_(
            pc.or_(pc.greater_equal(here, keys), pc.invert(inside)),
            pc.or_(pc.less(before, keys), pc.equal(places, 0)),
        )
        if not pc.all(sound).as_py():
            raise CorruptKeyFile
        found = pc.indices_nonzero(pc.and_(inside, pc.equal(here, keys))).cast(_NUMBER)
        places = places.take(found)
        return self._agreeing(found, places, keys, seconds, second)

    def _agreeing(
        self, found: pa.Array, places: pa.Array, keys: pa.Array, seconds: pa.Array, second: str
    ) -> tuple[pa.Array, pa.Array]:
        """Those whose second numbers are equal; two keys may have the same first one."""
        agree = pc.equal(self.take(second, places), seconds.take(found))
        if pc.all(agree).as_py() is not False:
            return found, places
        rows, ats = found.to_pylist(), places.to_pylist()
        kept: list[tuple[int, int]] = []
        for index, at in zip(rows, ats, strict=True):
            key, other = keys[index].as_py(), seconds[index].as_py()
            while at < self.rows and self._at(self.names[0], at) == key:
                if self._at(second, at) == other:
                    kept.append((index, at))
                    break
                at += 1
        return pa.array([pair[0] for pair in kept], _NUMBER), pa.array([pair[1] for pair in kept], _NUMBER)

    def _at(self, name: str, place: int) -> int:
        return self.take(name, pa.array([place], _NUMBER))[0].as_py()

    def ranges(self, bounds: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """All rows, cut before the first number that is not below each bound."""
        first = self._columns[self.names[0]]
        for checks in self._checks.values():
            checks.check_all()
        cuts = [0, *pc.search_sorted(first, pa.array(bounds, _NUMBER)).to_pylist(), self.rows]
        for start, stop in pairwise(cuts):
            columns = [self._columns[name].slice(start, stop - start) for name in self.names]
            yield pa.RecordBatch.from_arrays(columns, names=self.names)


class KeyFileWriter:
    """Writes a file of keys; rows have to come sorted. Leaving the ``with`` block by an error removes it.

    Args:
        path: of the file.
        names: of the columns.
        most: rows at most.
    """

    def __init__(self, path: Path, names: Sequence[str], most: int) -> None:
        self._path = path
        self._names = list(names)
        self._stride = _pages(most) * _PAGE
        self.rows = 0

    def __enter__(self) -> Self:
        self._file = self._path.open("w+b", buffering=0)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._file.close()
        if error is not None:
            self._path.unlink(missing_ok=True)

    def write(self, batch: pa.RecordBatch) -> None:
        """The next rows."""
        for at, column in enumerate(batch.columns):
            data = _raw(column)
            place = at * self._stride + 8 * self.rows
            write_all(self._file.fileno(), data, place)
        self.rows += batch.num_rows

    def finish(self, **facts: Any) -> None:
        """Ends the file with what there is to say of it."""
        end = self._stride * len(self._names)
        sums = array("I")
        self._file.truncate(end)
        if end and self.rows:
            with pa.memory_map(str(self._path)) as file:
                data = memoryview(file.read_buffer(end))
            for at in range(len(self._names)):
                sums.extend(_sums(data[at * self._stride :][: 8 * self.rows]))
        description = json.dumps(
            {
                **facts,
                "name": self._path.name,
                "rows": self.rows,
                "names": self._names,
                "stride": self._stride,
            }
        ).encode()
        checksum = zlib.crc32(description, zlib.crc32(sums.tobytes()))
        tail = sums.tobytes() + description + _TAIL.pack(len(description), checksum)
        write_all(self._file.fileno(), tail, end)


class _Checks:
    """The checksums of the pages of a column, and which of them were compared."""

    def __init__(self, data: memoryview, sums: Sequence[int]) -> None:
        self._data = data
        self._sums = sums
        self._done = bytearray(len(sums))
        self._left = len(sums)

    def check(self, places: pa.Array) -> None:
        """Compares the pages of these ascending places."""
        if self._left:
            self._compare(pc.unique(pc.shift_right(places, _SHIFT)).to_pylist())

    def check_all(self) -> None:
        """Compares all pages."""
        if self._left:
            self._compare(range(len(self._sums)))

    def _compare(self, pages: Sequence[int]) -> None:
        data, sums, done = self._data, self._sums, self._done
        for page in pages:
            if not done[page]:
                if zlib.crc32(data[page * _PAGE : (page + 1) * _PAGE]) != sums[page]:
                    raise CorruptKeyFile
                done[page] = 1
                self._left -= 1


def _sums(data: memoryview) -> Iterator[int]:
    return (zlib.crc32(data[at : at + _PAGE]) for at in range(0, len(data), _PAGE))


def _pages(rows: int) -> int:
    return (8 * rows + _PAGE - 1) // _PAGE


def _raw(column: pa.Array) -> memoryview:
    """The bytes of numbers without nulls."""
    data = column.buffers()[1]
    if data is None:
        return memoryview(b"")
    return memoryview(data).cast("B")[8 * column.offset : 8 * (column.offset + len(column))]


_NONE: Final = pa.array([], _NUMBER)


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


class NullKey(Exception):
    """The primary key of a row is null."""


class RepeatedKey(Exception):
    """A primary key occurs twice."""


def bucket_bounds(parts: int) -> list[int]:
    """Numbers that cut all 64-bit numbers into parts of equal width."""
    width = (1 << 64) // parts
    return [at * width - (1 << 63) for at in range(1, parts)]


class KeySorter:
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
        cuts = pc.search_sorted(table.column(KEY), pa.array(bucket_bounds(_BUCKETS))).to_pylist()
        for writer, (start, stop) in zip(self._buckets, pairwise([0, *cuts, table.num_rows]), strict=True):
            writer.write_batch(table.slice(start, stop - start))

    def _taken(self) -> pa.RecordBatch:
        held, self._held, self._waiting = self._held, [], 0
        return concat_batches(held, self._schema)

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
                yield concat_batches(list(stream), self._schema)
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
    cuts = bucket_bounds(max(1, (older.rows + newer.rows) // _RANGE))
    with KeyFileWriter(path, older.names, older.rows + newer.rows) as writer:
        place = 0
        for old, new in zip(older.ranges(cuts), newer.ranges(cuts), strict=True):
            _, places = older.find(new.column(KEY), new.column(SECOND))
            superseded = pc.subtract(places, place)
            place += old.num_rows
            if len(superseded):
                gone = pc.scatter(pa.repeat(True, len(superseded)), superseded, max_index=old.num_rows - 1)
                old = old.filter(gone.is_null())
            batch = concat_batches([old, new], old.schema)
            if drop_gone:
                batch = batch.filter(pc.greater_equal(batch.column(OFFSET), 0))
            writer.write(batch.take(pc.sort_indices(batch.column(KEY))))
        writer.finish(form=newer.facts["form"])


def concat_batches(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
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
