"""A window over all rows of a dataset, read from its slices as it moves.

Opening costs the same for ten rows and ten million: only the row groups that a window touches are
decoded, and the newest of them are kept.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from itertools import accumulate
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from odf_engine.chain.chain import Dataset, SliceRow
from odf_engine.data.arrow_schema import decode_schema
from odf_engine.errors import BadData, NotFound
from odf_engine.identity.multiformats import Multihash
from odf_engine.metadata.model import DEFAULT_VOCABULARY

CACHE_BYTES: Final = 48 * 1024 * 1024
_OPEN_FILES: Final = 16
_UNREADABLE: Final = (pa.ArrowException, OSError)
_HINT: Final = "odf verify shows everything that is wrong"


class Preview:
    """The rows of a dataset by their number from 0, in the order they were stored.

    Safe to use from several threads. It shows the dataset as it was when this was made, or at the
    last :meth:`refresh`.
    """

    def __init__(self, dataset: Dataset, cache_bytes: int = CACHE_BYTES) -> None:
        self._dataset = dataset
        self._lock = threading.Lock()
        self._files: OrderedDict[int, _SliceFile] = OrderedDict()
        self._groups = _Groups(cache_bytes)
        self._columns = pa.schema([])
        self._load()

    @property
    def columns(self) -> pa.Schema:
        """Names and types of the columns: the newest schema of the dataset."""
        return self._columns

    @property
    def row_count(self) -> int:
        """How many rows there are in all slices."""
        return self._ends[-1] if self._ends else 0

    def refresh(self) -> bool:
        """Looks for rows that came since; whether the dataset has changed."""
        with self._lock:
            if self._dataset.head() == self._head:
                return False
            self._load()
            return True

    def window(self, start: int, count: int) -> pa.Table:
        """Rows ``start`` to ``start + count``, as far as there are any; columns as :attr:`columns`.

        Raises:
            NotFound: a slice is not here.
            BadData: a slice is damaged, or does not fit the dataset's schema.
        """
        start = max(start, 0)
        with self._lock:
            stop = min(start + max(count, 0), self.row_count)
            parts: list[pa.Table] = []
            while start < stop:
                part = self._piece(start, stop)
                parts.append(part)
                start += part.num_rows
            return pa.concat_tables(parts) if parts else self._columns.empty_table()

    def tail(self, n: int) -> pa.Table:
        """The newest ``n`` rows by offset, oldest of them first."""
        table = self.window(self.row_count - max(n, 0), min(max(n, 0), self.row_count))
        # Some writers do not store rows in the order of their offsets.
        return table.sort_by(self._offset_column) if self._offset_column in table.column_names else table

    def _load(self) -> None:
        self._head = self._dataset.head()
        self._files.clear()
        state = self._dataset.state() if self._head else None
        self._slices = self._dataset.slices() if self._head else []
        self._ends = list(accumulate(row.end - row.start + 1 for row in self._slices))
        self._offset_column = (state.vocabulary if state else DEFAULT_VOCABULARY).offset_column
        columns = pa.schema([])
        if state is not None and state.schema is not None:
            columns = decode_schema(state.schema)
        elif self._slices:
            columns = self._file(len(self._slices) - 1).schema
        # Nothing is required here: a column that came later is null in older slices.
        columns = pa.schema([pa.field(field.name, field.type) for field in columns])
        if columns != self._columns:
            self._groups.clear()
            self._columns = columns

    def _piece(self, start: int, stop: int) -> pa.Table:
        """Rows from ``start`` to the end of its row group, or to ``stop``."""
        at = bisect_right(self._ends, start)
        first = self._ends[at - 1] if at else 0
        file = self._file(at)
        row = start - first
        group = bisect_right(file.group_ends, row)
        if group >= len(file.group_ends):
            raise BadData(
                f"the slice has {file.rows} rows where its block says {self._ends[at] - first}",
                where=file.where,
                hint=_HINT,
            )
        begin = file.group_ends[group - 1] if group else 0
        key = (self._slices[at].physical_hash, group)
        table = self._groups.get(key)
        if table is None:
            table = _unified(file.read(group), self._columns, file.where)
            self._groups.put(key, table)
        return table.slice(row - begin, min(stop, self._ends[at]) - start)

    def _file(self, at: int) -> _SliceFile:
        file = self._files.get(at)
        if file is None:
            file = _SliceFile(self._dataset, self._slices[at])
            self._files[at] = file
            if len(self._files) > _OPEN_FILES:
                self._files.popitem(last=False)[1].close()
        self._files.move_to_end(at)
        return file


class _SliceFile:
    """An open slice, whose row groups are read one by one.

    Attributes:
        where: the slice as a person finds it.
        group_ends: for each row group, the number of the row after its last.
    """

    def __init__(self, dataset: Dataset, row: SliceRow) -> None:
        self.where = f"slice {row.physical_hash.short} (block {row.sequence_number})"
        try:
            self._parquet = pq.ParquetFile(dataset.slice_path(row))
        except FileNotFoundError:
            raise NotFound("the slice is not here", where=self.where, hint=_HINT) from None
        except _UNREADABLE as error:
            raise self._damaged(error) from error
        metadata = self._parquet.metadata
        groups = (metadata.row_group(index).num_rows for index in range(metadata.num_row_groups))
        self.group_ends = list(accumulate(groups))

    @property
    def rows(self) -> int:
        return self.group_ends[-1] if self.group_ends else 0

    @property
    def schema(self) -> pa.Schema:
        return self._parquet.schema_arrow

    def read(self, group: int) -> pa.Table:
        try:
            return self._parquet.read_row_group(group)
        except _UNREADABLE as error:
            raise self._damaged(error) from error

    def close(self) -> None:
        self._parquet.close()

    def _damaged(self, error: Exception) -> BadData:
        return BadData(f"the slice cannot be read: {error}", where=self.where, hint=_HINT)


class _Groups:
    """Decoded row groups, the least recently used of them forgotten first; the newest always stays."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bytes = 0
        self._tables: OrderedDict[tuple[Multihash, int], pa.Table] = OrderedDict()

    def get(self, key: tuple[Multihash, int]) -> pa.Table | None:
        table = self._tables.get(key)
        if table is not None:
            self._tables.move_to_end(key)
        return table

    def put(self, key: tuple[Multihash, int], table: pa.Table) -> None:
        self._tables[key] = table
        self._bytes += table.nbytes
        while self._bytes > self._limit and len(self._tables) > 1:
            self._bytes -= self._tables.popitem(last=False)[1].nbytes

    def clear(self) -> None:
        self._tables.clear()
        self._bytes = 0


def _unified(table: pa.Table, columns: pa.Schema, where: str) -> pa.Table:
    """The columns that ``columns`` names, in its order and types; those that are missing are null."""
    arrays: list[pa.ChunkedArray | pa.Array] = []
    for field in columns:
        if field.name not in table.column_names:
            arrays.append(pa.nulls(table.num_rows, field.type))
            continue
        column = table.column(field.name)
        try:
            arrays.append(column if column.type == field.type else column.cast(field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise BadData(
                f"column '{field.name}' is {column.type} where the dataset's schema says {field.type}",
                where=where,
                hint=_HINT,
            ) from None
    return pa.Table.from_arrays(arrays, schema=columns)
