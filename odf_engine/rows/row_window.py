"""Random access to windows of rows, with a cache of decoded columns."""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime
from itertools import accumulate
from typing import Final, NamedTuple

import pyarrow as pa

from odf_engine.chain.block_summary import SliceSummary
from odf_engine.chain.dataset import Dataset
from odf_engine.data.arrow_compute import pc
from odf_engine.data.parquet.slice_file import Bounds, SliceFile
from odf_engine.errors import OdfError
from odf_engine.identity.multiformats import Multihash
from odf_engine.metadata.model import DEFAULT_VOCABULARY
from odf_engine.rows.scan import declared_schema, open_slice, slices_until

ColumnKey = tuple[Multihash, int, int, str]


class ColumnCache:
    """LRU cache of decoded columns of row groups.

    The columns of one call of :meth:`put` stay at least until the next call, regardless of their size.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bytes = 0
        self._columns: OrderedDict[ColumnKey, pa.ChunkedArray] = OrderedDict()

    def get(self, key: ColumnKey) -> pa.ChunkedArray | None:
        """Return a cached column, or None."""
        column = self._columns.get(key)
        if column is not None:
            self._columns.move_to_end(key)
        return column

    def put(self, columns: dict[ColumnKey, pa.ChunkedArray]) -> None:
        """Add columns."""
        room = self._limit - sum(column.nbytes for column in columns.values())
        while self._columns and self._bytes > max(room, 0):
            self._bytes -= self._columns.popitem(last=False)[1].nbytes
        self._columns |= columns
        self._bytes += sum(column.nbytes for column in columns.values())

    def clear(self) -> None:
        """Remove all columns."""
        self._columns.clear()
        self._bytes = 0


CACHE_BYTES: Final = 4 * 1024 * 1024
_OPEN_FILES: Final = 16
_BLOCK: Final = 1 << 14
_SMALL: Final = 1 << 12
_LARGE_BLOCK: Final = 1 << 20
_TRIM_BYTES: Final = 2 * 1024 * 1024


class UnreadableRange(NamedTuple):
    """Rows ``start`` to ``stop`` that cannot be read, and the reason."""

    start: int
    stop: int
    problem: str


class RowGroupInfo(NamedTuple):
    """Rows ``start`` to ``stop`` of a row group, and the bounds of a column."""

    start: int
    stop: int
    bounds: Bounds


class RowWindowReader:
    """Random access to the rows of a dataset by their number from 0, in the order of the files.

    Safe to use from several threads. Reads the version of the last :meth:`refresh`; with ``last_offset``
    only its slices that begin no later than at that offset (-1: none). A sequential reader should use
    :class:`odf_engine.rows.scan.Scan`.
    """

    def __init__(
        self, dataset: Dataset, cache_bytes: int = CACHE_BYTES, last_offset: int | None = None
    ) -> None:
        self._dataset = dataset
        self._last_offset = last_offset
        self._lock = threading.Lock()
        self._files: OrderedDict[int, SliceFile] = OrderedDict()
        self._decoded = ColumnCache(cache_bytes)
        self._untrimmed = 0
        self._columns = pa.schema([])
        self._load()

    @property
    def columns(self) -> pa.Schema:
        """Names and types of the columns: the newest schema of the dataset."""
        return self._columns

    @property
    def row_count(self) -> int:
        """Number of rows in all slices."""
        return self._ends[-1] if self._ends else 0

    @property
    def slices(self) -> Sequence[SliceSummary]:
        """The slices, in the order of their rows."""
        return self._slices

    @property
    def ends(self) -> Sequence[int]:
        """For each slice, the number of the row after its last."""
        return self._ends

    def refresh(self) -> bool:
        """Load new rows. Return whether the dataset has changed."""
        with self._lock:
            if self._dataset.head() == self._head:
                return False
            self._load()
            return True

    def window(self, start: int, count: int, columns: Sequence[str] | None = None) -> pa.Table:
        """Return rows ``start`` to ``start + count``, as far as they exist.

        Args:
            columns: names in the order of the result; by default all of :attr:`columns`.

        Raises:
            NotFound: a slice is missing.
            BadData: a slice is damaged, or does not fit the dataset's schema.
        """
        table, _ = self._read(start, count, columns, past_gaps=False)
        return table

    def window_with_gaps(
        self, start: int, count: int, columns: Sequence[str] | None = None
    ) -> tuple[pa.Table, list[UnreadableRange]]:
        """Return a window with nulls for rows that cannot be read, and the ranges of these."""
        return self._read(start, count, columns, past_gaps=True)

    def tail(self, n: int) -> pa.Table:
        """Return the newest ``n`` rows in the order of their offsets."""
        table = self.window(self.row_count - max(n, 0), min(max(n, 0), self.row_count))
        # Foreign writers may store rows in another order than by offset.
        return table.sort_by(self._offset_column) if self._offset_column in table.column_names else table

    def groups(self, column: str) -> Iterator[RowGroupInfo]:
        """Yield the readable row groups in order, with the bounds of a column."""
        field = self._columns.field(column)
        for at in range(len(self._slices)):
            first = self._ends[at - 1] if at else 0
            try:
                with self._lock:
                    file = self._file(at)
                    groups = [(end, file.bounds(group, field)) for group, end in enumerate(file.group_ends)]
            except OdfError:
                continue
            start = first
            for end, bounds in groups:
                yield RowGroupInfo(start, min(first + end, self._ends[at]), bounds)
                start = first + end

    def _load(self) -> None:
        self._head = self._dataset.head()
        self._files.clear()
        state = self._dataset.state() if self._head else None
        self._slices = slices_until(self._dataset, self._last_offset) if self._head else []
        self._ends = list(accumulate(row.end - row.start + 1 for row in self._slices))
        self._offset_column = (state.vocabulary if state else DEFAULT_VOCABULARY).offset_column
        columns = declared_schema(self._dataset, state, self._slices) if state else pa.schema([])
        if columns != self._columns:
            self._decoded.clear()
            self._columns = columns

    def _read(
        self, start: int, count: int, columns: Sequence[str] | None, *, past_gaps: bool
    ) -> tuple[pa.Table, list[UnreadableRange]]:
        names = self._columns.names if columns is None else columns
        schema = pa.schema([self._columns.field(name) for name in names])
        parts: list[pa.Table] = []
        gaps: list[UnreadableRange] = []
        with self._lock:
            start = max(start, 0)
            stop = min(start + max(count, 0), self.row_count) if names else start
            while start < stop:
                try:
                    part = self._read_in_group(start, stop, schema)
                except OdfError as error:
                    if not past_gaps:
                        raise
                    end = min(self._ends[bisect_right(self._ends, start)], stop)
                    gaps.append(UnreadableRange(start, end, str(error)))
                    part = _nulls(schema, end - start)
                parts.append(part)
                start += part.num_rows
        return pa.concat_tables(parts) if parts else schema.empty_table(), gaps

    def _read_in_group(self, start: int, stop: int, schema: pa.Schema) -> pa.Table:
        """Return rows from ``start`` to the end of its row group, or to ``stop``."""
        at = bisect_right(self._ends, start)
        first = self._ends[at - 1] if at else 0
        file = self._file(at)
        row = start - first
        if row >= file.rows:
            raise file.row_count_error(self._ends[at] - first)
        group, begin, end = file.group_of(row)
        stop = min(stop, self._ends[at]) - first
        block = _cache_block(row - begin, stop - row, end - begin)
        table = self._decode(self._slices[at], file, group, block, schema)
        if table.num_rows <= row - begin - block.start:  # the memory limit was reached before this row
            block = range(row - begin, block.stop)
            table = self._decode(self._slices[at], file, group, block, schema)
        return table.slice(row - begin - block.start, min(stop, end) - row)

    def _decode(
        self, row: SliceSummary, file: SliceFile, group: int, block: range, schema: pa.Schema
    ) -> pa.Table:
        """Return rows of columns of a row group, from the cache or the file.

        If they need much memory, only the first of them, at least one.
        """
        file_hash = row.physical_hash
        columns: dict[str, pa.ChunkedArray] = {}
        for name in schema.names:
            for start in {block.start, 0}:  # a large window caches all rows of a group
                kept = self._decoded.get((file_hash, group, start, name))
                if kept is not None and start + len(kept) >= block.stop:
                    columns[name] = kept.slice(block.start - start, len(block))
        missing = [field for field in schema if field.name not in columns]
        if missing:
            table = file.read(group, [field.name for field in missing], block)
            rows = table.num_rows if table.column_names else len(block)
            fresh = {field.name: _chunked(file.cast_column(table, field, rows)) for field in missing}
            self._untrimmed += (
                table.nbytes * block.stop // len(block)
            )  # the rows before the block are decoded too
            self._decoded.put(
                {(file_hash, group, block.start, name): column for name, column in fresh.items()}
            )
            columns |= fresh
            self._trim()
        rows = min(map(len, columns.values()))
        return pa.Table.from_arrays([columns[field.name].slice(0, rows) for field in schema], schema=schema)

    def _trim(self) -> None:
        """Release memory of decoding; the pool would keep several times the size of the cache."""
        if self._untrimmed > _TRIM_BYTES:
            self._untrimmed = 0
            pa.default_memory_pool().release_unused()

    def _file(self, at: int) -> SliceFile:
        file = self._files.get(at)
        if file is None:
            file = open_slice(self._dataset, self._slices[at])
            self._files[at] = file
            if len(self._files) > _OPEN_FILES:
                self._files.popitem(last=False)[1].close()
        self._files.move_to_end(at)
        return file


def _cache_block(row: int, count: int, rows: int) -> range:
    """Return the rows of a group to decode and cache for a window; the size depends on the window."""
    size = _BLOCK if count <= _SMALL else _LARGE_BLOCK
    start = row - row % size
    return range(start, min(start + size, rows))


def _nulls(schema: pa.Schema, rows: int) -> pa.Table:
    return pa.Table.from_arrays([pa.nulls(rows, field.type) for field in schema], schema=schema)


def _chunked(column: pa.Array | pa.ChunkedArray) -> pa.ChunkedArray:
    return column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])


_ROWS: Final = 1 << 20
"""Number of rows of a window during a search."""


def row_of_offset(reader: RowWindowReader, offset: int, column: str) -> int | None:
    """Return the number of the row with an offset, or None if absent, or its slice is unreadable.

    Args:
        reader: the rows.
        offset: the offset.
        column: name of the offset column.
    """
    slices = reader.slices
    at = bisect_left(slices, offset, key=lambda row: row.end)
    if at == len(slices) or not slices[at].start <= offset:
        return None
    first = reader.ends[at - 1] if at else 0
    guess = first + offset - slices[at].start
    table, gaps = reader.window_with_gaps(guess, 1, [column])
    if gaps or table.column(0)[0].as_py() == offset:
        return guess
    # Foreign writers may store rows in another order than by offset.
    for start in range(first, reader.ends[at], _ROWS):
        table, _ = reader.window_with_gaps(start, min(reader.ends[at] - start, _ROWS), [column])
        position = pc.index(table.column(0), pa.scalar(offset, table.schema.field(0).type)).as_py()
        if position >= 0:
            return start + position
    return None


def row_at_time(
    reader: RowWindowReader, moment: datetime, column: str, stop: Callable[[], bool]
) -> int | None:
    """Return the number of the first row in the order of storage with a time at or after a moment, or None.

    Row groups whose statistics exclude it are not decoded.

    Args:
        reader: the rows.
        moment: with a time zone.
        column: a column of timestamps or dates.
        stop: returns True to end the search with None.
    """
    data_type = reader.columns.field(column).type
    wanted = to_column_value(moment, data_type)
    for group in reader.groups(column):
        if stop():
            return None
        max_value = group.bounds.greatest
        if max_value is not None and max_value < wanted.value:
            continue
        for start in range(group.start, group.stop, _ROWS):
            if stop():
                return None
            table, _ = reader.window_with_gaps(start, min(group.stop - start, _ROWS), [column])
            hits = pc.greater_equal(table.column(0), wanted).fill_null(False)
            if (at := pc.index(hits, True).as_py()) >= 0:
                return start + at
    return None


def to_column_value(moment: datetime, data_type: pa.DataType) -> pa.Scalar:
    """Return a time as a value of a column; for dates the first day that begins at or after it."""
    moment = moment.astimezone(UTC)
    if pa.types.is_date(data_type):
        day = moment.date()
        bare = moment.time().replace(tzinfo=None) == datetime.min.time()
        return pa.scalar(day if bare else date.fromordinal(day.toordinal() + 1), data_type)
    return pa.scalar(moment if data_type.tz else moment.replace(tzinfo=None), data_type)
