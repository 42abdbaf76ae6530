"""Scans of committed rows: which files, columns and rows are read, as a stream of record batches."""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Final, NamedTuple, Self

import msgspec
import pyarrow as pa
from pyarrow import types

from odf_engine.base.progress import Reporter
from odf_engine.chain.block_summary import SliceSummary
from odf_engine.chain.dataset import Dataset
from odf_engine.chain.schema_evolution import read_declaration
from odf_engine.chain.state import ChainState
from odf_engine.data.arrow_compute import decoded_type, pc
from odf_engine.data.parquet.slice_file import FileLabel, RowRange, SliceFile
from odf_engine.errors import InvalidSchema
from odf_engine.metadata.model import DEFAULT_VOCABULARY, DatasetVocabulary
from odf_engine.metadata.timestamp import Timestamp

MAX_ROWS: Final = 1 << 16
MAX_BYTES: Final = 16 << 20
"""Default limits of a batch."""
_HINT: Final = "run odf verify to find all errors"
_UNITS: Final = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_DAY: Final = 86_400 * 10**9

TimeRange = tuple[Timestamp | None, Timestamp | None]
"""The first time, and the time after the last; None: no limit."""


class ScanFile(msgspec.Struct, frozen=True):
    """A file of a scan.

    Attributes:
        source: the file, or a slice of a dataset.
        rows: number of rows that it is declared to have.
        fingerprint: identifies its content.
        where: how errors refer to it.
        first_offset: the first offset of its rows, which have consecutive offsets; None: not known.
    """

    source: Path | DatasetSlice
    rows: int
    fingerprint: str
    where: str
    first_offset: int | None = None

    @classmethod
    def of_slice(cls, dataset: Dataset, row: SliceSummary) -> Self:
        """Return the file of a slice. It is located when it is opened."""
        place = describe_slice(row)
        rows = row.end - row.start + 1
        return cls(DatasetSlice(dataset, row), rows, str(row.physical_hash), place, row.start)

    @property
    def path(self) -> Path:
        """The complete file, which is fetched if only a store has it."""
        source = self.source
        return source if isinstance(source, Path) else source.dataset.slice_path(source.row)

    def open(self, *, complete: bool = False) -> SliceFile:
        """Open the file.

        Args:
            complete: whether all of it will be read. Otherwise, only parts of a slice in a store are fetched.

        Raises:
            NotFound: it does not exist.
            BadData: it is damaged.
            SourceUnavailable: the store cannot be read.
        """
        label = FileLabel(self.where, _HINT, "file", "file not found")
        if complete or isinstance(self.source, Path):
            return SliceFile(self.path, label)
        return SliceFile(self.source.dataset.slice_parts(self.source.row), label)


class DatasetSlice(NamedTuple):
    """A slice of a dataset."""

    dataset: Dataset
    row: SliceSummary


class _ValueRange(NamedTuple):
    """Rows whose value in a column is at least ``start`` and less than ``stop``; both in its unit."""

    column: str
    start: int | None
    stop: int | None


class Scan:
    """A read of the committed rows of a dataset up to an offset, or of one Parquet file.

    A scan is immutable. :meth:`select`, :meth:`rows` and :meth:`where` return narrower scans. Opening files
    and decoding begin with the iteration of :meth:`batches`::

        scan = Scan.of_dataset(dataset).select(["city", "population"]).rows([(0, 1000)])
        for batch in scan.batches():
            ...

    Rows are numbered from 0 in the order of the files. In a dataset these numbers are the
    offsets, unless a foreign writer stored the rows of a slice in another order. All batches have the columns
    and types of :attr:`schema`: a column that an older slice lacks is null, other types are cast. One file is
    open at a time. Memory is bounded by the size of a batch, regardless of the sizes that a file declares.

    Attributes:
        schema: names and types of the columns of all batches.
        vocabulary: names of the system columns.
        files: the files in order.
        fingerprint: identifies the files and columns before any narrowing.
        end_offset: all offsets are less.
    """

    def __init__(
        self,
        schema: pa.Schema,
        vocabulary: DatasetVocabulary,
        files: Sequence[ScanFile],
        fingerprint: str,
        end_offset: int | None = None,
    ) -> None:
        self.schema = pa.schema([pa.field(field.name, _computable_type(field.type)) for field in schema])
        self.vocabulary = vocabulary
        self.files = list(files)
        self.fingerprint = fingerprint
        self._all_columns = self.schema
        self._ends = list(accumulate(file.rows for file in self.files))
        self._ranges: list[RowRange] | None = None
        self._filters: list[_ValueRange] = []
        self.end_offset = self.row_count if end_offset is None else end_offset

    @classmethod
    def of_dataset(cls, dataset: Dataset, last_offset: int | None = None) -> Self:
        """Return a scan of the rows of a dataset, in the columns of its newest schema.

        Args:
            dataset: the dataset.
            last_offset: the last offset of a block, as in
                :attr:`odf_engine.rows.PinnedVersion.last_offset`; -1: no rows. By default all rows.

        Raises:
            NotFound, BadData: the chain has no schema, and the newest slice cannot be opened.
        """
        state, slices = dataset.state(), slices_until(dataset, last_offset)
        files = [ScanFile.of_slice(dataset, row) for row in slices]
        fingerprint = f"{state.head}{'' if last_offset is None else f'-{last_offset}'}"
        schema = declared_schema(dataset, state, slices)
        return cls(schema, state.vocabulary, files, fingerprint, slices[-1].end + 1 if slices else 0)

    @classmethod
    def of_file(cls, path: Path, vocabulary: DatasetVocabulary = DEFAULT_VOCABULARY) -> Self:
        """Return a scan of a Parquet file. Its fingerprint is its name and size.

        Raises:
            NotFound, BadData: the file cannot be opened.
        """
        part = ScanFile(path, 0, path.stem, path.name)
        with part.open() as file:
            part = msgspec.structs.replace(part, rows=file.rows)
            return cls(file.schema, vocabulary, [part], f"{path.stem}-{path.stat().st_size}")

    def with_files(self, files: Sequence[ScanFile]) -> Self:
        """Return a scan of other files with the same columns and offsets of the same range."""
        fingerprint = f"{self.fingerprint}-{files[0].fingerprint}"
        return type(self)(self._all_columns, self.vocabulary, files, fingerprint, self.end_offset)

    @property
    def row_count(self) -> int:
        """Number of rows, without regard to :meth:`where`."""
        if self._ranges is not None:
            return sum(stop - start for start, stop in self._ranges)
        return self._ends[-1] if self._ends else 0

    @property
    def system_columns(self) -> tuple[str, str, str]:
        """Names of the columns that the engine adds: offset, operation, system time."""
        names = self.vocabulary
        return names.offset_column, names.operation_type_column, names.system_time_column

    def select(self, columns: Sequence[str]) -> Self:
        """Return a scan of some columns, in this order, each once.

        Raises:
            KeyError: there is no such column.
        """
        scan = copy.copy(self)
        scan.schema = pa.schema([self._all_columns.field(name) for name in dict.fromkeys(columns)])
        return scan

    def rows(self, ranges: Sequence[RowRange]) -> Self:
        """Return a scan of the rows with these numbers, which replace earlier ones.

        Rows are returned in the order of the ranges. A file is opened once if they are ascending.
        """
        scan, end = copy.copy(self), self._ends[-1] if self._ends else 0
        clipped = [(max(start, 0), min(stop, end)) for start, stop in ranges]
        scan._ranges = [(start, stop) for start, stop in clipped if start < stop]
        return scan

    def where(
        self,
        *,
        offsets: tuple[int | None, int | None] | None = None,
        event_time: TimeRange | None = None,
        system_time: TimeRange | None = None,
    ) -> Self:
        """Return a scan of the rows in ranges of values, in addition to earlier conditions.

        A range begins with its first value and ends before its second; None: no limit. Rows without a value
        are left out. Row groups are skipped if their statistics exclude them.

        Raises:
            InvalidSchema: a column does not exist, or has no times.
        """
        scan, names = copy.copy(self), self.vocabulary
        scan._filters = list(self._filters)
        limits = (
            (names.offset_column, offsets),
            (names.event_time_column, event_time),
            (names.system_time_column, system_time),
        )
        for name, values in limits:
            if values is None:
                continue
            if name not in self._all_columns.names:
                raise InvalidSchema(f"column '{name}' not found")
            data_type = self._all_columns.field(name).type
            start, stop = (_ceil_to_unit(v, data_type) if isinstance(v, Timestamp) else v for v in values)
            scan._filters.append(_ValueRange(name, start, stop))
        return scan

    def by_file(self) -> list[Self]:
        """Return one scan for each file that has rows of this scan, in order.

        A reader that needs the newest rows first iterates them in reverse.
        """
        selfs: list[Self] = []
        for _, first, ranges in self._plan():
            selfs.append(self.rows([(first + start, first + stop) for start, stop in ranges]))
        return selfs

    def batches(
        self, reporter: Reporter | None = None, *, max_rows: int = MAX_ROWS, max_bytes: int = MAX_BYTES
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows in order. No batch has rows of two files.

        Args:
            reporter: cancels the scan.
            max_rows, max_bytes: limits of a batch. A single row may be larger.

        Raises:
            NotFound: a file does not exist.
            BadData: a file is damaged, has another number of rows than its block declares, or a column does
                not fit the schema.
            Cancelled: the reporter was cancelled.
        """
        names = dict.fromkeys([*self.schema.names, *(value_range.column for value_range in self._filters)])
        schema = pa.schema([self._all_columns.field(name) for name in names])
        has_all_columns = not self._filters and len(schema) == len(self._all_columns)
        for part, _, ranges in self._plan():
            if self._is_excluded(part):
                continue
            is_complete = has_all_columns and ranges == [(0, part.rows)]
            with part.open(complete=is_complete) as file:
                file.check_row_count(part.rows)
                for value_range in self._filters:
                    ranges = _prune(file, ranges, value_range, schema.field(value_range.column))
                for batch in file.batches(schema, ranges, max_rows=max_rows, max_bytes=max_bytes):
                    if reporter is not None:
                        reporter.raise_if_cancelled()
                    yield self._filtered(batch) if self._filters else batch

    def event_time_range(self) -> tuple[Timestamp, Timestamp] | None:
        """Return the first and the last event time by the statistics of all files; no rows are read.

        None without rows, or if a file has no statistics.

        Raises:
            NotFound, BadData: a file is missing or damaged.
            InvalidSchema: the event time is not a time.
        """
        if self.vocabulary.event_time_column not in self.schema.names:
            return None
        field = self.schema.field(self.vocabulary.event_time_column)
        times: list[int] = []
        for part in self.files:
            with part.open() as file:
                for group in range(len(file.group_ends)):
                    low, high = file.bounds(group, field)
                    if low is None or high is None:
                        return None
                    times += (low, high)
        if not times:
            return None
        unit = _nanoseconds(field.type)
        return Timestamp(min(times) * unit), Timestamp(max(times) * unit)

    def to_reader(self, reporter: Reporter | None = None) -> pa.RecordBatchReader:
        """Return the rows as a stream for other Arrow libraries. Raises as :meth:`batches`."""
        return pa.RecordBatchReader.from_batches(self.schema, self.batches(reporter))

    def to_arrow(self, reporter: Reporter | None = None) -> pa.Table:
        """Return all rows as a table in memory. Raises as :meth:`batches`."""
        return pa.Table.from_batches(self.batches(reporter), self.schema)

    def _plan(self) -> Iterator[tuple[ScanFile, int, list[RowRange]]]:
        """Yield files, the number of their first row, and the ranges to read, by numbers in the file."""
        if self._ranges is None:
            for part, end in zip(self.files, self._ends, strict=True):
                yield part, end - part.rows, [(0, part.rows)]
            return
        current, parts = -1, list[RowRange]()
        for start, stop in self._ranges:
            at = bisect_right(self._ends, start)
            while start < stop:
                begin, end = self._ends[at] - self.files[at].rows, self._ends[at]
                if parts and (at != current or start - begin < parts[-1][1]):
                    yield self._planned(current, parts)
                    parts = []
                current = at
                parts.append((start - begin, min(stop, end) - begin))
                start, at = max(start, end), at + 1
        if parts:
            yield self._planned(current, parts)

    def _planned(self, at: int, ranges: list[RowRange]) -> tuple[ScanFile, int, list[RowRange]]:
        return self.files[at], self._ends[at] - self.files[at].rows, ranges

    def _filtered(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that pass all filters, without the columns that only the filters need."""
        for column, start, stop in self._filters:
            if start is not None:
                batch = batch.filter(pc.greater_equal(times_as_numbers(batch.column(column)), start))
            if stop is not None:
                batch = batch.filter(pc.less(times_as_numbers(batch.column(column)), stop))
        return batch.select(self.schema.names)

    def _is_excluded(self, part: ScanFile) -> bool:
        """Whether the offsets of a file are outside of a filter."""
        first = part.first_offset
        if first is None:
            return False
        return any(
            (start is not None and first + part.rows <= start) or (stop is not None and first >= stop)
            for column, start, stop in self._filters
            if column == self.vocabulary.offset_column
        )


def slices_until(dataset: Dataset, last_offset: int | None) -> list[SliceSummary]:
    """Return the slices of a dataset, oldest first.

    Args:
        dataset: the dataset.
        last_offset: only slices that begin no later; -1: none. By default all. A slice belongs to one block.
    """
    if last_offset is None:
        return dataset.slices()
    return dataset.slices(0, last_offset) if last_offset >= 0 else []


def declared_schema(dataset: Dataset, state: ChainState, slices: Sequence[SliceSummary]) -> pa.Schema:
    """Return the newest schema of a chain; if it declares none, the newest slice's.

    All columns are nullable: a column that was added later is null in older slices.

    Raises:
        NotFound, BadData: the newest slice cannot be opened.
    """
    schema = read_declaration(state)
    if schema is None:
        schema = pa.schema([])
        if slices:
            with open_slice(dataset, slices[-1]) as file:
                schema = file.schema
    return pa.schema([pa.field(field.name, field.type) for field in schema])


def open_slice(dataset: Dataset, row: SliceSummary) -> SliceFile:
    """Open a slice to show some of its rows.

    Raises:
        NotFound: the slice is missing.
        BadData: the slice is damaged.
    """
    return SliceFile(dataset.slice_parts(row), FileLabel(describe_slice(row)))


def describe_slice(row: SliceSummary) -> str:
    """Return how errors refer to a slice."""
    return f"slice {row.physical_hash.abbreviated} (block {row.sequence_number})"


def to_time_unit(moment: Timestamp, data_type: pa.DataType) -> int:
    """Return a time as the integer that a column of times stores, rounded down.

    Raises:
        InvalidSchema: the column has no times.
    """
    return moment.ns // _nanoseconds(data_type)


def times_as_numbers(times: pa.Array) -> pa.Array:
    """Return times as 64-bit integers, in the unit of their column."""
    return (times.cast(pa.int32()) if types.is_date32(times.type) else times).cast(pa.int64())


def _ceil_to_unit(moment: Timestamp, data_type: pa.DataType) -> int:
    return -(-moment.ns // _nanoseconds(data_type))


def _nanoseconds(data_type: pa.DataType) -> int:
    """Return the nanoseconds of the unit of a type."""
    if types.is_timestamp(data_type):
        return _UNITS[data_type.unit]
    if types.is_date32(data_type):
        return _DAY
    if types.is_date64(data_type):
        return _UNITS["ms"]
    raise InvalidSchema(f"invalid type of the event time: {data_type}")


def _prune(
    file: SliceFile, ranges: Sequence[RowRange], values: _ValueRange, field: pa.Field
) -> list[RowRange]:
    """Return the parts of row ranges in row groups whose statistics do not exclude them."""
    row_ranges: list[RowRange] = []
    for start, stop in ranges:
        while start < stop:
            group, _, end = file.group_of(start)
            end = min(stop, end)
            low, high = file.bounds(group, field)
            is_before = high is not None and values.start is not None and high < values.start
            is_after = low is not None and values.stop is not None and low >= values.stop
            if not is_before and not is_after:
                if row_ranges and row_ranges[-1][1] == start:
                    start = row_ranges.pop()[0]
                row_ranges.append((start, end))
            start = end
    return row_ranges


def _computable_type(data_type: pa.DataType) -> pa.DataType:
    """Return the type without encodings that kernels of Arrow do not support."""
    data_type = decoded_type(data_type)
    if types.is_string_view(data_type):
        return pa.string()
    return pa.binary() if types.is_binary_view(data_type) else data_type
