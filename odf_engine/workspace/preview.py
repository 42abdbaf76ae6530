"""A window over all rows of a dataset, read from its slices as it moves.

Opening costs the same for ten rows and ten million: only the row groups that a window touches are
decoded, of these only the columns that are asked for, and the newest of them are kept: of a large group
that a small window touches, the rows around it.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

import pyarrow as pa

from odf_engine.chain.chain import Dataset, SliceRow
from odf_engine.data.arrow_schema import decode_schema
from odf_engine.errors import BadData, OdfError
from odf_engine.metadata.model import DEFAULT_VOCABULARY
from odf_engine.workspace.slice_files import HINT, Bounds, DecodedColumns, SliceFile

CACHE_BYTES: Final = 4 * 1024 * 1024
_OPEN_FILES: Final = 16
_BLOCK: Final = 1 << 14
_SMALL: Final = 1 << 12
_LARGE_BLOCK: Final = 1 << 20
_TRIM_BYTES: Final = 2 * 1024 * 1024


class Gap(NamedTuple):
    """Rows ``start`` to ``stop`` that cannot be read, and why."""

    start: int
    stop: int
    problem: str


class Group(NamedTuple):
    """Rows ``start`` to ``stop`` are stored together; what their file says of a column."""

    start: int
    stop: int
    bounds: Bounds


class Preview:
    """The rows of a dataset by their number from 0, in the order they were stored.

    Safe to use from several threads. It shows the dataset as it was when this was made, or at the
    last :meth:`refresh`; with ``until`` only its slices that begin no later than at that offset (-1: none).
    """

    def __init__(self, dataset: Dataset, cache_bytes: int = CACHE_BYTES, until: int | None = None) -> None:
        self._dataset = dataset
        self._until = until
        self._lock = threading.Lock()
        self._files: OrderedDict[int, SliceFile] = OrderedDict()
        self._decoded = DecodedColumns(cache_bytes)
        self._untrimmed = 0
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

    @property
    def slices(self) -> Sequence[SliceRow]:
        """The slices, in the order of their rows."""
        return self._slices

    @property
    def ends(self) -> Sequence[int]:
        """For each slice, the number of the row after its last."""
        return self._ends

    def refresh(self) -> bool:
        """Looks for rows that came since; whether the dataset has changed."""
        with self._lock:
            if self._dataset.head() == self._head:
                return False
            self._load()
            return True

    def window(self, start: int, count: int, columns: Sequence[str] | None = None) -> pa.Table:
        """Rows ``start`` to ``start + count``, as far as there are any.

        Args:
            columns: which, and in what order; by default all of :attr:`columns`.

        Raises:
            NotFound: a slice is not here.
            BadData: a slice is damaged, or does not fit the dataset's schema.
        """
        table, _ = self._read(start, count, columns, past_gaps=False)
        return table

    def part(
        self, start: int, count: int, columns: Sequence[str] | None = None
    ) -> tuple[pa.Table, list[Gap]]:
        """As :meth:`window`, with nulls for rows that cannot be read, and which these are."""
        return self._read(start, count, columns, past_gaps=True)

    def tail(self, n: int) -> pa.Table:
        """The newest ``n`` rows by offset, oldest of them first."""
        table = self.window(self.row_count - max(n, 0), min(max(n, 0), self.row_count))
        # Some writers do not store rows in the order of their offsets.
        return table.sort_by(self._offset_column) if self._offset_column in table.column_names else table

    def groups(self, column: str) -> Iterator[Group]:
        """The row groups that can be read, in order, and what their files say of a column."""
        field = self._columns.field(column)
        for at in range(len(self._slices)):
            first = self._ends[at - 1] if at else 0
            try:
                with self._lock:
                    file = self._file(at)
                    found = [(end, file.bounds(group, field)) for group, end in enumerate(file.group_ends)]
            except OdfError:
                continue
            start = first
            for end, bounds in found:
                yield Group(start, min(first + end, self._ends[at]), bounds)
                start = first + end

    def _load(self) -> None:
        self._head = self._dataset.head()
        self._files.clear()
        state = self._dataset.state() if self._head else None
        if self._until is None:
            self._slices = self._dataset.slices() if self._head else []
        else:
            self._slices = self._dataset.slices(0, self._until) if self._until >= 0 else []
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
            self._decoded.clear()
            self._columns = columns

    def _read(
        self, start: int, count: int, columns: Sequence[str] | None, *, past_gaps: bool
    ) -> tuple[pa.Table, list[Gap]]:
        names = self._columns.names if columns is None else columns
        schema = pa.schema([self._columns.field(name) for name in names])
        parts: list[pa.Table] = []
        gaps: list[Gap] = []
        with self._lock:
            start = max(start, 0)
            stop = min(start + max(count, 0), self.row_count) if names else start
            while start < stop:
                try:
                    part = self._piece(start, stop, schema)
                except OdfError as error:
                    if not past_gaps:
                        raise
                    end = min(self._ends[bisect_right(self._ends, start)], stop)
                    gaps.append(Gap(start, end, str(error)))
                    part = _nulls(schema, end - start)
                parts.append(part)
                start += part.num_rows
        return pa.concat_tables(parts) if parts else schema.empty_table(), gaps

    def _piece(self, start: int, stop: int, schema: pa.Schema) -> pa.Table:
        """Rows from ``start`` to the end of its row group, or to ``stop``."""
        at = bisect_right(self._ends, start)
        first = self._ends[at - 1] if at else 0
        file = self._file(at)
        row = start - first
        if row >= file.rows:
            raise BadData(
                f"the slice has {file.rows} rows where its block says {self._ends[at] - first}",
                where=file.where,
                hint=HINT,
            )
        group, begin, end = file.group_of(row)
        stop = min(stop, self._ends[at]) - first
        block = _block(row - begin, stop - row, end - begin)
        table = self._decode(self._slices[at], file, group, block, schema)
        if table.num_rows <= row - begin - block.start:  # the rows before it need too much memory
            block = range(row - begin, block.stop)
            table = self._decode(self._slices[at], file, group, block, schema)
        return table.slice(row - begin - block.start, min(stop, end) - row)

    def _decode(
        self, row: SliceRow, file: SliceFile, group: int, block: range, schema: pa.Schema
    ) -> pa.Table:
        """Rows of columns of a row group, from those that are kept or from the file.

        Where they need much memory, only the first of them, and one at least.
        """
        file_hash = row.physical_hash
        found: dict[str, pa.ChunkedArray] = {}
        for name in schema.names:
            for start in {block.start, 0}:  # all rows of the group may be here
                kept = self._decoded.get((file_hash, group, start, name))
                if kept is not None and start + len(kept) >= block.stop:
                    found[name] = kept.slice(block.start - start, len(block))
        missing = [field for field in schema if field.name not in found]
        if missing:
            table = file.read(group, [field.name for field in missing], block)
            rows = table.num_rows if table.column_names else len(block)
            fresh = {field.name: _unified(table, field, rows, file.where) for field in missing}
            self._untrimmed += table.nbytes * block.stop // len(block)  # rows before it are decoded as well
            self._decoded.put(
                {(file_hash, group, block.start, name): column for name, column in fresh.items()}
            )
            found |= fresh
            self._trim()
        rows = min(map(len, found.values()))
        return pa.Table.from_arrays([found[field.name].slice(0, rows) for field in schema], schema=schema)

    def _trim(self) -> None:
        """Gives back to the system what decoding needed: the pool would keep several times the cache."""
        if self._untrimmed > _TRIM_BYTES:
            self._untrimmed = 0
            pa.default_memory_pool().release_unused()

    def _file(self, at: int) -> SliceFile:
        file = self._files.get(at)
        if file is None:
            file = SliceFile(self._dataset, self._slices[at])
            self._files[at] = file
            if len(self._files) > _OPEN_FILES:
                self._files.popitem(last=False)[1].close()
        self._files.move_to_end(at)
        return file


def _block(row: int, count: int, rows: int) -> range:
    """Which rows of a group to keep for a window: a block of them, of a size that fits the window."""
    size = _BLOCK if count <= _SMALL else _LARGE_BLOCK
    start = row - row % size
    return range(start, min(start + size, rows))


def _nulls(schema: pa.Schema, rows: int) -> pa.Table:
    return pa.Table.from_arrays([pa.nulls(rows, field.type) for field in schema], schema=schema)


def _unified(table: pa.Table, field: pa.Field, rows: int, where: str) -> pa.ChunkedArray:
    """A column in the type of the dataset's schema; null where it is missing."""
    if field.name not in table.column_names:
        return pa.chunked_array([pa.nulls(rows, field.type)])
    column = table.column(field.name)
    try:
        return column if column.type == field.type else column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise BadData(
            f"column '{field.name}' is {column.type} where the dataset's schema says {field.type}",
            where=where,
            hint=HINT,
        ) from None
