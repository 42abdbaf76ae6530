"""Reads one Parquet file of rows: checked before it is decoded, in bounded memory, with typed errors."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple, Self

from odf_engine.base.arrow import pa, pc, pq
from odf_engine.base.progress import count_of
from odf_engine.data.arrow_compute import decode_array
from odf_engine.data.parquet.parquet_reader import (
    BatchLimits,
    RangedFile,
    open_parquet,
    parquet_errors,
    read_bounded,
)
from odf_engine.data.parquet.row_groups import MAX_BYTES, MAX_ROWS
from odf_engine.errors import BadData, NotFound

RowRange = tuple[int, int]
"""Row numbers from 0: of the first row, and of the row after the last."""


class FileLabel(NamedTuple):
    """How errors refer to a file.

    Attributes:
        where: the location in errors.
        hint: what the user can do.
        subject: begins the message if the file is damaged.
        missing: the message if the file does not exist.
    """

    where: str
    hint: str | None = "restore it from a copy of the dataset; run odf verify to find all errors"
    subject: str = "slice"
    missing: str = "slice is missing"


class Bounds(NamedTuple):
    """Minimum and maximum of a column in a row group, as stored in the footer, or None if not declared."""

    least: int | None
    greatest: int | None


class SliceFile:
    """An open data slice, or another Parquet file of rows.

    Nothing is decoded before the page headers of its row group are checked (:mod:`.parquet_reader`).

    Attributes:
        schema: names and types of its columns.
        group_ends: for each row group, the number of the row after its last.

    Raises:
        NotFound: the file does not exist.
        BadData: the file or its footer is damaged.
    """

    def __init__(self, path: Path | RangedFile, label: FileLabel) -> None:
        self._path = path
        self._label = label
        try:
            self._parquet = open_parquet(path)
        except FileNotFoundError:
            raise NotFound(label.missing, where=label.where, hint=label.hint) from None
        except parquet_errors() as error:
            raise self._damaged(error) from error
        self.schema: pa.Schema = self._parquet.schema_arrow
        metadata = self._parquet.metadata
        groups = (metadata.row_group(index).num_rows for index in range(metadata.num_row_groups))
        self.group_ends = list(accumulate(groups))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._parquet.close()

    @property
    def metadata(self) -> pq.FileMetaData:
        """The footer."""
        return self._parquet.metadata

    @property
    def rows(self) -> int:
        """Number of rows in all row groups."""
        return self.group_ends[-1] if self.group_ends else 0

    def group_of(self, row: int) -> tuple[int, int, int]:
        """Return the number of a row's row group, its first row, and the row after its last."""
        group = bisect_right(self.group_ends, row)
        return group, self.group_ends[group - 1] if group else 0, self.group_ends[group]

    def group_rows(self, group: int) -> int:
        """Return the number of rows of a row group."""
        return self.group_ends[group] - (self.group_ends[group - 1] if group else 0)

    def bounds(self, group: int, field: pa.Field) -> Bounds:
        """Return the bounds of a column of integers or times, if it is stored in the type of ``field``."""
        index = self.schema.get_field_index(field.name)
        metadata = self._parquet.metadata
        # Nested columns before it would shift the number that Parquet counts by.
        columns = range(metadata.num_columns)
        at = next((column for column in columns if metadata.schema.column(column).path == field.name), -1)
        if index < 0 or at < 0 or self.schema.field(index).type != field.type:
            return Bounds(None, None)
        statistics = metadata.row_group(group).column(at).statistics
        if statistics is None or not statistics.has_min_max or not isinstance(statistics.max_raw, int):
            return Bounds(None, None)
        return Bounds(statistics.min_raw, statistics.max_raw)

    def check_row_count(self, declared: int) -> None:
        """Compare the number of rows with that in the block.

        Raises:
            BadData: they differ.
        """
        if self.rows != declared:
            raise self.row_count_error(declared)

    def row_count_error(self, declared: int) -> BadData:
        """Return the error for a file that does not have the number of rows declared in its block."""
        return self._error(
            f"{self._label.subject} has {count_of(self.rows, 'row')}, but its block declares {declared}"
        )

    def batches(
        self,
        schema: pa.Schema,
        ranges: Sequence[RowRange],
        *,
        max_rows: int = MAX_ROWS,
        max_bytes: int = MAX_BYTES,
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows in order. A row group is decoded once, even if it contains several ranges.

        Args:
            schema: columns to read. A column that the file lacks is null; other types are cast.
            ranges: ascending and disjoint.
            max_rows, max_bytes: limits of a batch. A single row may be larger.

        Raises:
            BadData: the file is damaged, or a column cannot be cast.
        """
        names = self._stored(schema.names)
        try:
            for span in self._spans(ranges):
                at, stop = span[0][0], span[-1][1]
                for batch in read_bounded(
                    self._path,
                    names,
                    at,
                    stop,
                    opened=self._parquet,
                    limits=BatchLimits(max_rows=max_rows, max_bytes=max_bytes),
                ):
                    rows = batch if len(span) == 1 else _rows_of(batch, at, span)
                    at += batch.num_rows
                    if rows is not None:
                        yield self.align(rows, schema)
        except parquet_errors() as error:
            raise self._damaged(error) from error

    def take(self, schema: pa.Schema, rows: pa.Array) -> Iterator[pa.RecordBatch]:
        """Yield single rows. Only their row groups are decoded.

        Args:
            schema: as in :meth:`batches`.
            rows: row numbers from 0, ascending.

        Raises:
            BadData: as in :meth:`batches`; or there is no such row.
        """
        if len(rows) and rows[-1].as_py() >= self.rows:
            raise self._error(f"{self._label.subject} has fewer rows than its block declares")
        names = self._stored(schema.names)
        begin = first = 0
        try:
            for end in self.group_ends:
                last = _position(rows, end)
                if last > first:
                    at, stop = begin, rows[last - 1].as_py() + 1
                    for batch in read_bounded(self._path, names, begin, stop, opened=self._parquet):
                        at += batch.num_rows
                        after = _position(rows, at)
                        if after > first:
                            places = pc.subtract(rows[first:after], at - batch.num_rows)
                            yield self.align(batch.take(places), schema)
                        first = after
                begin = end
        except parquet_errors() as error:
            raise self._damaged(error) from error

    def read(self, group: int, columns: Sequence[str], rows: range) -> pa.Table:
        """Read columns of a few rows of a row group. Columns that the file lacks are left out.

        Texts are checked to be UTF-8. If the rows need more than 64 MiB, only the first of them are
        returned, at least one.

        Args:
            group: the number of the row group.
            columns: names of columns.
            rows: numbers of rows, from 0 in the row group.

        Raises:
            BadData: the file is damaged, or needs too much memory.
        """
        names = self._stored(columns)
        if not names:
            return pa.table({})
        first = self.group_ends[group] - self.group_rows(group)
        batches: list[pa.RecordBatch] = []
        size = 0
        try:
            start, stop = first + rows.start, first + rows.stop
            for batch in read_bounded(self._path, names, start, stop, opened=self._parquet):
                if batches and size + batch.nbytes > MAX_BYTES:
                    break
                batch.validate(full=True)
                size += batch.nbytes
                if batch.get_total_buffer_size() > 2 * batch.nbytes:  # it shares buffers with other rows
                    batch = batch.take(pa.array(range(batch.num_rows), pa.int64()))
                batches.append(batch)
        except parquet_errors() as error:
            raise self._damaged(error) from error
        if not batches:
            raise self._error(f"{self._label.subject} has fewer rows than its footer declares")
        return pa.Table.from_batches(batches)

    def align(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """Return rows of this file in the columns and types of a schema; null where it lacks a column.

        Raises:
            BadData: a column cannot be cast.
        """
        arrays = [self.cast_column(batch, field, batch.num_rows) for field in schema]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def cast_column(self, rows: pa.RecordBatch | pa.Table, field: pa.Field, count: int) -> pa.Array:
        """Return a column of ``count`` rows of this file in the type of a field; null if it is missing.

        Raises:
            BadData: it cannot be cast.
        """
        if field.name not in rows.schema.names:
            return pa.nulls(count, field.type)
        column = rows.column(field.name)
        if column.type == field.type:
            return column
        try:
            column = decode_array(column)
            return column if column.type == field.type else column.cast(field.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise self._error(
                f"column '{field.name}' is {column.type}, but {field.type} in the schema of the dataset"
            ) from None

    def _stored(self, names: Sequence[str]) -> list[str]:
        known = set(self.schema.names)
        return [name for name in names if name in known]

    def _spans(self, ranges: Sequence[RowRange]) -> Iterator[list[RowRange]]:
        """Group ranges that share row groups: one ends where the next begins."""
        span: list[RowRange] = []
        last = -1
        for start, stop in ranges:
            if span and bisect_right(self.group_ends, start) != last:
                yield span
                span = []
            span.append((start, stop))
            last = bisect_right(self.group_ends, stop - 1)
        if span:
            yield span

    def _error(self, problem: str) -> BadData:
        return BadData(problem, where=self._label.where, hint=self._label.hint)

    def _damaged(self, error: Exception) -> BadData:
        return self._error(f"{self._label.subject} cannot be read: {error}")


def _position(rows: pa.Array, row: int) -> int:
    """Return how many of these row numbers, which are ascending, are less than ``row``."""
    return pc.search_sorted(rows, pa.scalar(row, rows.type)).as_py()


def _rows_of(batch: pa.RecordBatch, first: int, ranges: Sequence[RowRange]) -> pa.RecordBatch | None:
    """Return the rows of a batch in some ranges; its first row has the number ``first``."""
    last = first + batch.num_rows
    pieces: list[pa.RecordBatch] = []
    for start, stop in ranges[bisect_right(ranges, first, key=lambda row_range: row_range[1]) :]:
        if start >= last:
            break
        begin = max(start, first)
        pieces.append(batch.slice(begin - first, min(stop, last) - begin))
    return pa.concat_batches(pieces) if len(pieces) > 1 else next(iter(pieces), None)
