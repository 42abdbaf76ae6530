"""Reads and writes data slices: Parquet files with the system columns and deterministic row groups."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha3_256
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

from odf_engine.data.arrow_compute import decoded_type, pc
from odf_engine.data.changelog import Op
from odf_engine.data.ddl import TIMESTAMP, UUID
from odf_engine.data.digest import LogicalHasher, schema_bytes
from odf_engine.data.row_groups import MAX_ROWS, split_row_groups
from odf_engine.data.schema_enforcement import (
    cast_lossless,
    match_columns,
    slice_type,
    with_timestamp_unit,
)
from odf_engine.data.slice_file import FileLabel, SliceFile
from odf_engine.errors import BadData, InvalidSchema, NotFound, OdfError, disk_hint
from odf_engine.files import remove_temporary, write_all
from odf_engine.identity.multiformats import SHA3_256, Multihash
from odf_engine.metadata.model import DatasetVocabulary, OffsetInterval
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.progress import Reporter

_NS: Final = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1000, "ns": 1}
_DAY_NS: Final = 86_400 * 1_000_000_000


def check_event_time(name: str, data_type: pa.DataType) -> None:
    """Check that the type of an event time is a timestamp or date.

    Raises:
        InvalidSchema: it is another type.
    """
    if not (types.is_timestamp(data_type) or types.is_date(data_type)):
        raise InvalidSchema(
            f"the event time column '{name}' is a {data_type}, not a TIMESTAMP or DATE",
            hint="cast it in the preprocess query, or set another column in SetVocab.eventTimeColumn",
        )


def check_clash(name: str, system_columns: Sequence[str]) -> None:
    """Check that a data column does not have the name of a system column.

    Raises:
        InvalidSchema: it has.
    """
    if name.casefold() in [column.casefold() for column in system_columns]:
        raise InvalidSchema(
            f"column '{name}' has the name of a system column",
            hint="rename it in the preprocess query, or rename the system column in SetVocab",
        )


class SliceRowBuilder:
    """Completes incoming rows to rows of a slice, and collects their count and event times.

    Args:
        schema: the complete schema of the slice.
        vocab: names of the system columns.
        first_offset: offset of the first row.
        system_time: of all rows.
        fallback: for rows without an event time.
        counted_until: rows with a later event time do not count for the watermark; None: all count.

    Raises:
        InvalidSchema: a system column is missing, ambiguous, or the event time has another type.
    """

    def __init__(
        self,
        schema: pa.Schema,
        vocab: DatasetVocabulary,
        first_offset: int,
        system_time: Timestamp,
        fallback: Timestamp,
        counted_until: Timestamp | None = None,
    ) -> None:
        names = (vocab.offset_column, vocab.operation_type_column, vocab.system_time_column)
        for name in (*names, vocab.event_time_column):
            if schema.get_field_index(name) < 0:
                raise InvalidSchema(f"column '{name}' is missing or repeated in the schema of the slice")
        self.schema = pa.schema(list(schema))
        self._offset, self._op, self._system_time = names
        self._event_time = vocab.event_time_column
        self._first_offset = first_offset
        self._event_type = schema.field(self._event_time).type
        self._body = pa.schema(
            [field for field in schema if field.name not in (self._offset, self._system_time)]
        )
        check_event_time(self._event_time, self._event_type)
        self._system_value = _moment(system_time, schema.field(self._system_time).type)
        self._fallback = _moment(fallback, self._event_type)
        self._counted_until = (
            None if counted_until is None else counted_until.ns // _unit_ns(self._event_type)
        )
        self._seen: pa.Schema | None = None
        self._places: list[int | None] = []
        self.count = 0
        self._least: int | None = None
        self._greatest: int | None = None
        self._greatest_counted: int | None = None
        self.rows_ahead = 0

    def enforce_schema(
        self, batches: Iterable[pa.RecordBatch], reporter: Reporter
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows in the types of the schema, without offset and system time."""
        row = 0
        for batch in batches:
            reporter.raise_if_cancelled()
            if self._seen is None or not batch.schema.equals(self._seen):
                self._seen, self._places = batch.schema, self._lookup(batch.schema)
            columns = [
                self._column(batch, place, field, row)
                for place, field in zip(self._places, self._body, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=self._body)
            row += batch.num_rows

    def _lookup(self, schema: pa.Schema) -> list[int | None]:
        places = match_columns(schema.names, self._body.names)
        for field, place in zip(self._body, places, strict=True):
            if place is None and field.name not in (self._op, self._event_time):
                raise InvalidSchema(
                    f"missing column '{field.name}' in the data",
                    hint=f"columns of the data: {', '.join(schema.names)}",
                )
        for index, name in enumerate(schema.names):
            if index not in places:
                check_clash(name, (self._offset, self._system_time))
                raise InvalidSchema(
                    f"unknown column '{name}': not in the schema of the dataset",
                    hint=f"columns of the schema: {', '.join(self._body.names)}",
                )
        return places

    def _column(self, batch: pa.RecordBatch, place: int | None, field: pa.Field, row: int) -> pa.Array:
        if field.name == self._op:
            return self._operations(batch, place, field, row)
        if field.name != self._event_time:
            assert place is not None
            return cast_lossless(batch.column(place), field, row)
        if place is None:
            return pa.repeat(self._fallback, batch.num_rows)
        times = cast_lossless(batch.column(place), field.with_nullable(True), row)
        return pc.fill_null(times, self._fallback) if times.null_count else times

    def _operations(self, batch: pa.RecordBatch, place: int | None, field: pa.Field, row: int) -> pa.Array:
        append = pa.scalar(Op.APPEND, field.type)
        if place is None:
            return pa.repeat(append, batch.num_rows)
        values = pc.fill_null(cast_lossless(batch.column(place), field.with_nullable(True), row), append)
        wrong = pc.index(pc.is_in(values, pa.array(list(Op), field.type)), False).as_py()
        if wrong >= 0:
            raise BadData(
                f"column '{field.name}': invalid operation {values[wrong]} (valid: 0 to {max(Op)})",
                where=f"row {row + wrong + 1}",
            )
        return values

    def add_system_columns(self, group: pa.RecordBatch) -> pa.RecordBatch:
        """Return the next rows of the slice, with their offsets and system time."""
        self._update_event_times(group.column(self._event_time))
        rows = group.num_rows
        before = self._first_offset + self.count - 1
        ones = pa.repeat(pa.scalar(1, pa.int64()), rows)
        made = {
            self._offset: lambda kind: pc.cumulative_sum(ones, start=before).cast(kind),
            self._system_time: lambda _: pa.repeat(self._system_value, rows),
        }
        columns = [
            made[field.name](field.type) if field.name in made else group.column(field.name)
            for field in self.schema
        ]
        self.count += rows
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _update_event_times(self, times: pa.Array) -> None:
        values = times.cast(pa.int32() if types.is_date32(times.type) else pa.int64())
        extremes = pc.min_max(values)
        least, greatest = extremes["min"].as_py(), extremes["max"].as_py()
        self._least = least if self._least is None else min(self._least, least)
        self._greatest = greatest if self._greatest is None else max(self._greatest, greatest)
        if self._counted_until is not None and greatest > self._counted_until:
            counted = values.filter(pc.less_equal(values, pa.scalar(self._counted_until, pa.int64())))
            self.rows_ahead += len(values) - len(counted)
            greatest = pc.max(counted).as_py()
        if greatest is not None and (self._greatest_counted is None or greatest > self._greatest_counted):
            self._greatest_counted = greatest

    @property
    def max_counted_event_time(self) -> Timestamp | None:
        """Maximum event time so far of the rows up to ``counted_until``; None without such rows."""
        return _timestamp(self._greatest_counted, self._event_type)

    @property
    def event_times(self) -> tuple[Timestamp | None, Timestamp | None]:
        """Minimum and maximum event time so far."""
        return _timestamp(self._least, self._event_type), _timestamp(self._greatest, self._event_type)


def _unit_ns(data_type: pa.DataType) -> int:
    if types.is_date32(data_type):
        return _DAY_NS
    return _NS["ms" if types.is_date64(data_type) else data_type.unit]


def _moment(moment: Timestamp, data_type: pa.DataType) -> pa.Scalar:
    """Return a time as a value of a timestamp or date column, rounded down."""
    width = pa.int32() if types.is_date32(data_type) else pa.int64()
    days = moment.ns // _DAY_NS * _DAY_NS if types.is_date(data_type) else moment.ns
    return pa.array([days // _unit_ns(data_type)], width).cast(data_type)[0]


def _timestamp(value: int | None, data_type: pa.DataType) -> Timestamp | None:
    if value is None:
        return None
    try:
        return Timestamp(value * _unit_ns(data_type))
    except ValueError as error:
        raise BadData(f"event time out of range: {error}") from error


# Level 1 is as fast as snappy, since fewer bytes are hashed, and a quarter smaller.
_COMPRESSION: Final = "zstd"
_COMPRESSION_LEVEL: Final = 1
_SAMPLE: Final = 1 << 13


class WrittenSlice(NamedTuple):
    """A slice on disk that is not committed yet.

    Attributes:
        max_event_time, min_event_time: of all rows.
        max_counted_event_time: maximum of the rows that count for the watermark; None without such rows.
        rows_ahead: number of rows that do not count, since their event time is too far in the future.
    """

    path: Path
    logical_hash: Multihash
    physical_hash: Multihash
    size: int
    rows: int
    offset_interval: OffsetInterval
    max_event_time: Timestamp | None
    min_event_time: Timestamp | None
    max_counted_event_time: Timestamp | None = None
    rows_ahead: int = 0


def slice_schema(
    data_schema: pa.Schema, vocab: DatasetVocabulary, event_time_type: pa.DataType | None = None
) -> pa.Schema:
    """Return the complete schema of slices with the given data columns.

    Args:
        data_schema: data columns. An event time among them is moved to the system columns.
        vocab: names of the system columns.
        event_time_type: of the event time; by default as in ``data_schema``, else a timestamp.

    Raises:
        InvalidSchema: a column clashes with a system column, is repeated, or has a type that a slice cannot
            store.
    """
    event_time = vocab.event_time_column
    system = (vocab.offset_column, vocab.operation_type_column, vocab.system_time_column)
    fields: list[pa.Field] = []
    for field in data_schema:
        check_clash(field.name, system)
        if field.name.casefold() == event_time.casefold():
            # The specification has milliseconds for it.
            event_time_type = event_time_type or with_timestamp_unit(slice_type(field.type), "ms")
        else:
            fields.append(pa.field(field.name, slice_type(field.type), field.nullable))
    event_time_type = event_time_type or TIMESTAMP
    check_event_time(event_time, event_time_type)
    schema = pa.schema(
        [
            pa.field(vocab.offset_column, pa.uint64(), nullable=False),
            pa.field(vocab.operation_type_column, pa.uint8(), nullable=False),
            pa.field(vocab.system_time_column, TIMESTAMP, nullable=False),
            pa.field(event_time, event_time_type),
            *fields,
        ]
    )
    seen: dict[str, str] = {}
    for name in schema.names:
        if name.casefold() in seen:
            raise InvalidSchema(f"columns '{seen[name.casefold()]}' and '{name}' have the same name")
        seen[name.casefold()] = name
    schema_bytes(schema)  # raises for types that cannot be hashed
    return schema


def write_slice(
    batches: Iterable[pa.RecordBatch],
    *,
    schema: pa.Schema,
    vocab: DatasetVocabulary,
    path: Path,
    first_offset: int,
    system_time: Timestamp,
    fallback_event_time: Timestamp,
    reporter: Reporter,
    counted_until: Timestamp | None = None,
) -> WrittenSlice | None:
    """Write a slice. The same rows produce the same file and hashes, independent of their batches.

    Args:
        batches: rows in order: data columns by name, and optionally the operation and the event time.
        schema: the complete schema of the slice.
        vocab: names of the system columns in it.
        path: the file to write; it is removed on errors.
        first_offset: offset of the first row.
        system_time: of all rows.
        fallback_event_time: for rows without an event time.
        reporter: receives the rows and bytes written so far, and can cancel.
        counted_until: rows with a later event time do not count for the watermark; None: all count.

    Returns:
        The slice, or None (and no file) if there are no rows.

    Raises:
        InvalidSchema: a column is unknown, missing, or has an unrelated type.
        BadData: a value does not fit its column; ``where`` is its row, from 1.
        Cancelled: the reporter was cancelled.
        OdfError: the file cannot be written, such as when the disk is full.
    """
    rows = SliceRowBuilder(schema, vocab, first_offset, system_time, fallback_event_time, counted_until)
    complete = map(rows.add_system_columns, split_row_groups(rows.enforce_schema(batches, reporter)))
    first = next(complete, None)
    if first is None:
        return None
    with _Sink(path) as sink, LogicalHasher(rows.schema) as hasher:
        with _writer(sink, first, vocab) as writer:
            for batch in chain([first], complete):
                hasher.update(batch)
                writer.write_batch(_annotated(batch, writer.schema), row_group_size=MAX_ROWS)
                reporter.set_amounts(rows=rows.count, bytes=sink.size)
                reporter.raise_if_cancelled()
        sink.sync()
        least, greatest = rows.event_times
        return WrittenSlice(
            path=path,
            logical_hash=hasher.finish(),
            physical_hash=Multihash(SHA3_256, sink.hasher.digest()),
            size=sink.size,
            rows=rows.count,
            offset_interval=OffsetInterval(first_offset, first_offset + rows.count - 1),
            max_event_time=greatest,
            min_event_time=least,
            max_counted_event_time=rows.max_counted_event_time,
            rows_ahead=rows.rows_ahead,
        )


class _Sink:
    """The file that Parquet is written to; counts and hashes its bytes.

    Leaving the ``with`` block by an error removes the file. Errors of the system are raised as
    :class:`OdfError`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.hasher = sha3_256()
        self.size = 0
        self.closed = False

    def __enter__(self) -> Self:
        with self._errors():
            self._file = self._path.open("wb", buffering=0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        if error is not None:
            remove_temporary(self._path)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            raise OdfError(
                "the disk is full" if full else f"the file cannot be written: {error.strerror or error}",
                hint=f"{disk_hint(error)}; nothing was committed",
                where=str(self._path),
            ) from error

    def write(self, data: bytes) -> int:
        with self._errors():
            write_all(self._file.fileno(), data)
        self.hasher.update(data)
        self.size += len(data)
        return len(data)

    def sync(self) -> None:
        """Flush the file to disk."""
        with self._errors():
            os.fsync(self._file.fileno())

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        """Do nothing: writes are not buffered."""

    def close(self) -> None:
        self.closed = True


@contextmanager
def _writer(sink: _Sink, first: pa.RecordBatch, vocab: DatasetVocabulary) -> Iterator[pq.ParquetWriter]:
    writer = pq.ParquetWriter(
        sink,
        _annotated_schema(first.schema),
        version="2.6",
        compression=_COMPRESSION,
        compression_level=_COMPRESSION_LEVEL,
        use_dictionary=_dictionary_columns(first, vocab),  # pyright: ignore[reportArgumentType]
        column_encoding={vocab.offset_column: "DELTA_BINARY_PACKED"},
        store_schema=False,
    )
    try:
        yield writer
    except BaseException:
        with suppress(Exception):  # the file is removed in any case
            writer.close()
        raise
    writer.close()


def _dictionary_columns(first: pa.RecordBatch, vocab: DatasetVocabulary) -> list[str]:
    """Return the columns for which a dictionary saves space: those with repeated values.

    Only the first row group is examined, which does not depend on the batches.
    """
    always = (vocab.operation_type_column, vocab.system_time_column)
    return [
        field.name
        for field, column in zip(first.schema, first.columns, strict=True)
        if field.name in always or (field.name != vocab.offset_column and _repeats(column[:_SAMPLE]))
    ]


def _repeats(column: pa.Array) -> bool:
    return not types.is_nested(column.type) and len(column.unique()) * 2 <= len(column)


def _annotated_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema with UUIDs annotated, for the Parquet schema of the file."""
    return pa.schema([field.with_type(pa.uuid()) if field.type == UUID else field for field in schema])


def _annotated(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = [
        pa.ExtensionArray.from_storage(field.type, column) if field.type == pa.uuid() else column
        for field, column in zip(schema, batch.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


# --- Reading -------------------------------------------------------------------------------------


def read_batches(path: Path, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a slice in order, in the columns and types of the file, in bounded batches.

    Args:
        path: the file.
        columns: names of the columns to read; by default all.

    Raises:
        NotFound: there is no such file.
        BadData: it is not a Parquet file, or is damaged.
        InvalidSchema: it lacks a column.
    """
    with _open_slice(path) as file:
        names = file.schema.names if columns is None else columns
        missing = [name for name in names if name not in file.schema.names]
        if missing:
            raise InvalidSchema(f"column '{missing[0]}' not found in the slice", where=str(path))
        yield from file.batches(_decoded_schema(file.schema, names), [(0, file.rows)])


def read_rows_at(path: Path, positions: pa.Array, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """Yield single rows of a slice. Only their row groups are decoded.

    Args:
        path: the file.
        positions: row numbers from 0, ascending.
        columns: names of the columns to read. Columns that the slice lacks are left out.

    Raises:
        NotFound: there is no such file.
        BadData: it is not a Parquet file, is damaged, or has fewer rows.
    """
    with _open_slice(path) as file:
        known = [name for name in columns if name in file.schema.names]
        yield from file.take(_decoded_schema(file.schema, known), positions)


def _open_slice(path: Path) -> SliceFile:
    if not path.is_file():
        raise NotFound(f"file {path} not found")
    return SliceFile(path, FileLabel(str(path), None, "data slice"))


def _decoded_schema(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    """Return columns in the types without in-memory encodings."""
    fields = (schema.field(name) for name in names)
    return pa.schema([pa.field(field.name, decoded_type(field.type), field.nullable) for field in fields])
