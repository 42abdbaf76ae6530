"""Sorted key files with checksums, and the external sort that writes them."""

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

from odf_engine.base.files import write_all
from odf_engine.data.arrow_compute import pc

_PAGE: Final = 4096
_SHIFT: Final = 9
"""Binary logarithm of the count of numbers in a page."""
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
    """A key file is missing, or has changed since it was written."""


class KeyFile:
    """An open key file: columns of 64-bit integers, sorted by the first one.

    Each page is checked when it is read first.

    Attributes:
        rows: number of keys.
        names: the names of the columns. The first two are hashes of the key.
        facts: metadata of the file.
    """

    def __init__(self, path: Path) -> None:
        """Open a file.

        Raises:
            CorruptKeyFile: it is missing or damaged.
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
            self._schema = pa.schema([(name, _NUMBER) for name in self.names])
            for at, name in enumerate(self.names):
                raw = self._data.slice(at * stride, 8 * self.rows)
                self._columns[name] = pa.Array.from_buffers(_NUMBER, self.rows, [None, raw])
                self._checks[name] = _Checks(memoryview(raw), sums[at * pages : (at + 1) * pages])
        except _DAMAGE as error:
            raise CorruptKeyFile from error

    def take(self, name: str, places: pa.Array) -> pa.Array:
        """Return the values of a column at ascending positions.

        Raises:
            CorruptKeyFile: a page is damaged.
        """
        self._checks[name].check(places)
        return self._columns[name].take(places)

    def find(self, keys: pa.Array, seconds: pa.Array) -> tuple[pa.Array, pa.Array]:
        """Find keys.

        Args:
            keys: values of the first column, ascending.
            seconds: values of the second column.

        Returns:
            Indices of the keys that the file has, and their positions in the file; both ascend.

        Raises:
            CorruptKeyFile: a page is damaged.
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
        matches = pc.indices_nonzero(pc.and_(inside, pc.equal(here, keys))).cast(_NUMBER)
        places = places.take(matches)
        return self._filter_by_second(matches, places, keys, seconds, second)

    def _filter_by_second(
        self, matches: pa.Array, places: pa.Array, keys: pa.Array, seconds: pa.Array, second: str
    ) -> tuple[pa.Array, pa.Array]:
        """Return the matches whose second hash is equal. Several keys may have the same first hash."""
        agree = pc.equal(self.take(second, places), seconds.take(matches))
        if pc.all(agree).as_py() is not False:
            return matches, places
        rows, ats = matches.to_pylist(), places.to_pylist()
        pairs: list[tuple[int, int]] = []
        for index, at in zip(rows, ats, strict=True):
            key, other = keys[index].as_py(), seconds[index].as_py()
            while at < self.rows and self._at(self.names[0], at) == key:
                if self._at(second, at) == other:
                    pairs.append((index, at))
                    break
                at += 1
        return pa.array([pair[0] for pair in pairs], _NUMBER), pa.array([pair[1] for pair in pairs], _NUMBER)

    def _at(self, name: str, place: int) -> int:
        return self.take(name, pa.array([place], _NUMBER))[0].as_py()

    def ranges(self, bounds: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """Yield all rows in ``len(bounds) + 1`` batches. A batch ends before the first key >= its bound.

        Raises:
            CorruptKeyFile: a page is damaged.
        """
        first = self._columns[self.names[0]]
        for checks in self._checks.values():
            checks.check_all()
        cuts = [0, *pc.search_sorted(first, pa.array(bounds, _NUMBER)).to_pylist(), self.rows]
        for start, stop in pairwise(cuts):
            columns = [self._columns[name].slice(start, stop - start) for name in self.names]
            yield pa.RecordBatch.from_arrays(columns, schema=self._schema)


class KeyFileWriter:
    """Writes a key file from sorted rows. An exception within the ``with`` block removes the file.

    Args:
        path: the path of the file.
        names: the names of the columns.
        max_rows: upper bound of the number of rows.
    """

    def __init__(self, path: Path, names: Sequence[str], max_rows: int) -> None:
        self._path = path
        self._names = list(names)
        self._stride = _pages(max_rows) * _PAGE
        self.rows = 0

    def __enter__(self) -> Self:
        self._file = self._path.open("w+b", buffering=0)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._file.close()
        if error is not None:
            self._path.unlink(missing_ok=True)

    def write(self, batch: pa.RecordBatch) -> None:
        """Write the next rows."""
        for at, column in enumerate(batch.columns):
            data = _raw(column)
            place = at * self._stride + 8 * self.rows
            write_all(self._file.fileno(), data, place)
        self.rows += batch.num_rows

    def finish(self, **facts: Any) -> None:
        """Write checksums and metadata; ``facts`` are added to the metadata."""
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
    """Checksums of the pages of a column. Each page is checked once."""

    def __init__(self, data: memoryview, sums: Sequence[int]) -> None:
        self._data = data
        self._sums = sums
        self._done = bytearray(len(sums))
        self._left = len(sums)

    def check(self, places: pa.Array) -> None:
        """Check the pages of ascending positions."""
        if self._left:
            self._compare(pc.unique(pc.shift_right(places, _SHIFT)).to_pylist())

    def check_all(self) -> None:
        """Check all pages."""
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
    """Return the bytes of an array of 64-bit integers without nulls."""
    data = column.buffers()[1]
    if data is None:
        return memoryview(b"")
    return memoryview(data).cast("B")[8 * column.offset : 8 * (column.offset + len(column))]


_NONE: Final = pa.array([], _NUMBER)


KEY: Final = "odf_key"
"""Column with the first hash of the key."""
SECOND: Final = "odf_key_2"
"""Column with the second hash of the key."""
OFFSET: Final = "odf_offset"
"""Column with the offset of the newest row of a key; the complement (~) if that row retracts the key."""
TIME: Final = "odf_time"
"""Column with the event time as a number."""
VALUES: Final = "odf_values"
"""Column with the hash of all columns except key and event time."""
COMPARED: Final = "odf_compared"
"""Column with the hash of the compared columns; absent if these are all."""
_IN_MEMORY: Final = 1 << 21
"""Number of rows that are sorted in memory."""
_BUCKETS: Final = 64
_RANGE: Final = 1 << 20
"""Number of rows that are merged immediately."""


class NullKey(Exception):
    """The primary key of a row is null."""


class RepeatedKey(Exception):
    """A primary key occurs twice."""


def bucket_bounds(parts: int) -> list[int]:
    """Return the bounds that divide the 64-bit integers into ranges of equal width."""
    width = (1 << 64) // parts
    return [at * width - (1 << 63) for at in range(1, parts)]


class KeySorter:
    """Sorts keys, in memory or by files of key ranges.

    Args:
        names: the names of the columns. The first four are ``KEY``, ``SECOND``, ``OFFSET`` and ``TIME``.
        folder: for temporary files; the caller removes it.
        unique: a repeated key is an error; otherwise its row with the greatest offset remains.

    Attributes:
        rows: number of rows that were added.
    """

    def __init__(self, names: list[str], folder: Path, *, unique: bool) -> None:
        self._schema = pa.schema([pa.field(name, pa.int64()) for name in names])
        self._folder = folder
        self._unique = unique
        self._batches: list[pa.RecordBatch] = []
        self._buckets: list[pa.RecordBatchStreamWriter] = []
        self.rows = self._buffered = 0

    def add(self, columns: list[pa.Array]) -> None:
        """Add rows: the columns in order, without nulls."""
        batch = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        self._batches.append(batch)
        self.rows += batch.num_rows
        self._buffered += batch.num_rows
        if self._buffered >= _IN_MEMORY:
            self._flush()

    def finish(self, path: Path, **facts: Any) -> None:
        """Write the key file; ``facts`` are added to its metadata.

        Raises:
            RepeatedKey: a key occurs twice, and keys must be unique.
        """
        with KeyFileWriter(path, self._schema.names, self.rows) as writer:
            for part in self._parts():
                writer.write(self._newest(part))
            writer.finish(**facts)

    def _flush(self) -> None:
        """Append the rows in memory to the files of key ranges."""
        if not self._buckets:
            self._buckets = [
                pa.ipc.new_stream(str(self._folder / f"keys-{id(self)}-{at}"), self._schema)
                for at in range(_BUCKETS)
            ]
        table = self._sorted(self._take_buffer())
        cuts = pc.search_sorted(table.column(KEY), pa.array(bucket_bounds(_BUCKETS))).to_pylist()
        for writer, (start, stop) in zip(self._buckets, pairwise([0, *cuts, table.num_rows]), strict=True):
            writer.write_batch(table.slice(start, stop - start))

    def _take_buffer(self) -> pa.RecordBatch:
        batches, self._batches, self._buffered = self._batches, [], 0
        return concat_batches(batches, self._schema)

    def _parts(self) -> Iterator[pa.RecordBatch]:
        if not self._buckets:
            yield self._take_buffer()
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
        """Return the rows sorted, with the newest row of each key."""
        batch = self._sorted(batch)
        if not _repeats(batch.column(KEY)):
            return batch
        offset = batch.column(OFFSET)
        age = pc.if_else(pc.less(offset, 0), offset, pc.bit_wise_not(offset))  # The newest row has the least.
        columns = {"key": batch.column(KEY), "second": batch.column(SECOND), "age": age}
        order = pc.sort_indices(pa.table(columns), sort_keys=[(name, "ascending") for name in columns])
        batch = batch.take(order)
        key, second = batch.column(KEY), batch.column(SECOND)
        again = pc.and_(pc.equal(key[1:], key[:-1]), pc.equal(second[1:], second[:-1]))
        if self._unique and pc.any(again).as_py():
            raise RepeatedKey
        return batch.filter(pa.concat_arrays([pa.array([True]), pc.invert(again)]))


def merge_files(older: KeyFile, newer: KeyFile, path: Path, *, drop_gone: bool) -> None:
    """Write a key file with the keys of two files. A key in both has the entry of the newer file.

    Args:
        older, newer: the files to merge.
        path: the path of the new file.
        drop_gone: omit retracted keys.

    Raises:
        CorruptKeyFile: a file is damaged.
    """
    cuts = bucket_bounds(max(1, (older.rows + newer.rows) // _RANGE))
    with KeyFileWriter(path, older.names, older.rows + newer.rows) as writer:
        place = 0
        for old, new in zip(older.ranges(cuts), newer.ranges(cuts), strict=True):
            _, places = older.find(new.column(KEY), new.column(SECOND))
            superseded = pc.subtract(places, place)
            place += old.num_rows
            if len(superseded):
                hits = pc.scatter(pa.repeat(True, len(superseded)), superseded, max_index=old.num_rows - 1)
                old = old.filter(hits.is_null())
            batch = concat_batches([old, new], old.schema)
            if drop_gone:
                batch = batch.filter(pc.greater_equal(batch.column(OFFSET), 0))
            writer.write(batch.take(pc.sort_indices(batch.column(KEY))))
        writer.finish(form=newer.facts["form"])


def concat_batches(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """Return all rows as one batch."""
    table = pa.Table.from_batches(batches, schema).combine_chunks()
    if table.num_rows:
        return table.to_batches()[0]
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def array_of(table: pa.Table | pa.RecordBatch, name: str) -> pa.Array:
    """Return a column as one array."""
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
