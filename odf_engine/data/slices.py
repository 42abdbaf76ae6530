"""Data slices: Parquet files with the system columns of the specification's Common Data Schema.

A slice is written in one pass over a stream of batches: rows are made to fit the schema, get their
offsets and system columns, are encoded and hashed (logically and physically) as they go by.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha3_256
from itertools import accumulate, chain
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

from odf_engine.data.conform import stored_type
from odf_engine.data.ddl import TIMESTAMP, UUID
from odf_engine.data.digest import LogicalHasher
from odf_engine.data.kernels import pc
from odf_engine.data.parquet_reader import UNREADABLE, open_parquet, read_bounded
from odf_engine.data.row_groups import MAX_ROWS, row_groups
from odf_engine.data.slice_rows import SliceRows, check_clash, check_event_time
from odf_engine.data.value_bytes import decoded, plain_type, schema_bytes
from odf_engine.errors import BadData, InvalidSchema, NotFound, OdfError
from odf_engine.files import write_all
from odf_engine.identity.multiformats import SHA3_256, Multihash
from odf_engine.metadata.model import DatasetVocabulary, OffsetInterval
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.progress import Reporter

# Level 1 costs the time of snappy (the smaller file is hashed sooner) and saves a quarter of its size.
_COMPRESSION: Final = "zstd"
_COMPRESSION_LEVEL: Final = 1
_SAMPLE: Final = 1 << 13


class WrittenSlice(NamedTuple):
    """A slice on disk, not committed yet. Event times are the least and greatest of all rows."""

    path: Path
    logical_hash: Multihash
    physical_hash: Multihash
    size: int
    rows: int
    offset_interval: OffsetInterval
    max_event_time: Timestamp | None
    min_event_time: Timestamp | None


def slice_schema(
    data_schema: pa.Schema, vocab: DatasetVocabulary, event_time_type: pa.DataType | None = None
) -> pa.Schema:
    """The complete schema of slices that hold the given data columns.

    Args:
        data_schema: data columns; the event time may be among them and moves to its place.
        vocab: names of the system columns.
        event_time_type: of the event time; by default as in ``data_schema``, else a timestamp.

    Raises:
        InvalidSchema: a column that clashes with a system column, is there twice, or is of a type that
            a slice cannot hold.
    """
    event_time = vocab.event_time_column
    system = (vocab.offset_column, vocab.operation_type_column, vocab.system_time_column)
    fields: list[pa.Field] = []
    for field in data_schema:
        check_clash(field.name, system)
        if field.name.casefold() == event_time.casefold():
            event_time_type = event_time_type or stored_type(field.type)
        else:
            fields.append(pa.field(field.name, stored_type(field.type), field.nullable))
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
) -> WrittenSlice | None:
    """Writes a slice; the same rows give the same file and hashes, however they are cut into batches.

    Args:
        batches: rows in order: data columns by name, and perhaps the operation and the event time.
        schema: the complete schema of the slice.
        vocab: names of the system columns in it.
        path: the file to write; it is removed again when anything goes wrong.
        first_offset: offset of the first row.
        system_time: of all rows.
        fallback_event_time: for rows without an event time.
        reporter: hears of rows and bytes of the file so far, and is asked whether to stop.

    Returns:
        What was written, or None (and no file) when there are no rows.

    Raises:
        InvalidSchema: columns that the schema does not have, lacks, or has in unrelated types.
        BadData: a value that does not fit its column; ``where`` is its row, from 1.
        Cancelled: the reporter was cancelled.
        OdfError: the file cannot be written, such as when the disk is full.
    """
    rows = SliceRows(schema, vocab, first_offset, system_time, fallback_event_time)
    complete = map(rows.complete, row_groups(rows.conformed(batches, reporter)))
    first = next(complete, None)
    if first is None:
        return None
    with _Sink(path) as sink, LogicalHasher(rows.schema) as hasher:
        with _writer(sink, first, vocab) as writer:
            for batch in chain([first], complete):
                hasher.update(batch)
                writer.write_batch(_annotated(batch, writer.schema), row_group_size=MAX_ROWS)
                reporter.amount(rows=rows.count, bytes=sink.size)
                reporter.check()
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
        )


class _Sink:
    """The file that Parquet is written to: counts and hashes the bytes as they leave.

    Leaving the ``with`` block by an error removes the file. What the system says against writing is
    raised as an :class:`OdfError`.
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
            self._path.unlink(missing_ok=True)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            raise OdfError(
                "the disk is full" if full else f"the file cannot be written: {error.strerror or error}",
                hint="free some space and try again; nothing was committed" if full else None,
                where=str(self._path),
            ) from error

    def write(self, data: bytes) -> int:
        with self._errors():
            write_all(self._file.fileno(), data)
        self.hasher.update(data)
        self.size += len(data)
        return len(data)

    def sync(self) -> None:
        """Returns when the file is safe on the disk."""
        with self._errors():
            os.fsync(self._file.fileno())

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        """Nothing is held back."""

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
        with suppress(Exception):  # the file goes away, whatever else it gets
            writer.close()
        raise
    writer.close()


def _dictionary_columns(first: pa.RecordBatch, vocab: DatasetVocabulary) -> list[str]:
    """Columns worth a dictionary: where values repeat. For others it only costs time and space.

    Decided by the first rows, which are the same however rows came in batches.
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
    """The schema with UUIDs marked as such, for the Parquet file's own schema."""
    return pa.schema([field.with_type(pa.uuid()) if field.type == UUID else field for field in schema])


def _annotated(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = [
        pa.ExtensionArray.from_storage(field.type, column) if field.type == pa.uuid() else column
        for field, column in zip(schema, batch.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


# --- Reading -------------------------------------------------------------------------------------


def read_batches(path: Path, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The rows of a slice in order, a bounded number at a time.

    Args:
        path: the file.
        columns: names of the columns to read; by default all.

    Raises:
        NotFound: there is no such file.
        BadData: it is not a Parquet file, or damaged.
        InvalidSchema: it lacks a column.
    """
    with _opened(path, columns) as file:
        yield from map(_plain, read_bounded(path, columns, opened=file))


def take_rows(path: Path, places: pa.Array, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """Rows of a slice at these places; only their row groups are read, one after the other.

    Args:
        path: the file.
        places: numbers of rows, from 0, ascending.
        columns: names of the columns to read; those that the slice lacks are left out.

    Raises:
        NotFound: there is no such file.
        BadData: it is not a Parquet file, or damaged, or has fewer rows.
    """
    with _opened(path, None) as file:
        if len(places) and places[-1].as_py() >= file.metadata.num_rows:
            raise BadData("the data slice has fewer rows than its block says", where=str(path))
        known = [name for name in columns if name in file.schema_arrow.names]
        about = (file.metadata.row_group(at) for at in range(file.metadata.num_row_groups))
        begin = first = 0
        for end in accumulate(group.num_rows for group in about):
            last = pc.search_sorted(places, pa.scalar(end, places.type)).as_py()
            if last > first:
                stop = places[last - 1].as_py() + 1
                batches = read_bounded(path, known, begin, stop, opened=file)
                yield from _take(batches, places[first:last], begin)
            begin, first = end, last


def _take(batches: Iterator[pa.RecordBatch], places: pa.Array, row: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows at these places of batches that begin with the number ``row``."""
    first = 0
    for batch in batches:
        row += batch.num_rows
        last = pc.search_sorted(places, pa.scalar(row, places.type)).as_py()
        if last > first:
            yield _plain(batch).take(pc.subtract(places[first:last], row - batch.num_rows))
        first = last


@contextmanager
def _opened(path: Path, columns: list[str] | None) -> Iterator[pq.ParquetFile]:
    if not path.is_file():
        raise NotFound(f"there is no file {path}")
    try:
        with open_parquet(path) as file:
            missing = [name for name in columns or () if name not in file.schema_arrow.names]
            if missing:
                raise InvalidSchema(f"the slice has no column '{missing[0]}'", where=str(path))
            yield file
    except UNREADABLE as error:
        raise BadData(f"the data slice cannot be read: {error}", where=str(path)) from error


def _plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = [decoded(column) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, schema=_plain_schema(batch.schema))


def _plain_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(f.name, plain_type(f.type), f.nullable) for f in schema])
