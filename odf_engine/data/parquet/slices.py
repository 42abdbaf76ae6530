"""Reads and writes data slices: Parquet files with the system columns and deterministic row groups."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha3_256
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

from odf_engine.base.arrow import pa, pq, types
from odf_engine.base.files import remove_temporary, write_all
from odf_engine.base.progress import Reporter
from odf_engine.data.arrow_compute import decoded_type
from odf_engine.data.ddl import timestamp_type, uuid_type
from odf_engine.data.digest import LogicalHasher, SerialExecutor, SerialExecutors, schema_bytes
from odf_engine.data.parquet.row_groups import MAX_BYTES, MAX_ROWS, SliceLimits, split_row_groups
from odf_engine.data.parquet.slice_file import FileLabel, RowRange, SliceFile
from odf_engine.data.parquet.slice_rows import (
    EventTimes,
    SliceProperties,
    SliceRowBuilder,
    check_clash,
    check_event_time,
)
from odf_engine.data.schema_enforcement import slice_type, with_timestamp_unit
from odf_engine.errors import BadData, InvalidSchema, NotFound, OdfError, disk_hint
from odf_engine.identity.multiformats import SHA3_256, Multihash
from odf_engine.metadata.model import DatasetVocabulary, OffsetInterval
from odf_engine.metadata.timestamp import Timestamp


@dataclass(frozen=True)
class TableFiles:
    """The Parquet files with the rows of a dataset, as a table of a query.

    Attributes:
        name: the name of the table in the query.
        paths: Parquet files, oldest first.
        schema: the schema of the table, including system columns.
        vocab: names of the system columns.
    """

    name: str
    paths: Sequence[Path]
    schema: pa.Schema
    vocab: DatasetVocabulary


# Level 1 is as fast as snappy, since fewer bytes are hashed, and a quarter smaller.
_COMPRESSION: Final = "zstd"
_COMPRESSION_LEVEL: Final = 1
_SAMPLE: Final = 1 << 13


class WrittenSlice(NamedTuple):
    """A slice on disk that is not committed yet.

    Attributes:
        max_event_time, min_event_time: of all rows.
        max_counted_event_time: maximum of the rows that count for the watermark, or None without such rows.
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
        event_time_type: the type of the event time; by default as in ``data_schema``, else a timestamp.

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
    event_time_type = event_time_type or timestamp_type()
    check_event_time(event_time, event_time_type)
    schema = pa.schema(
        [
            pa.field(vocab.offset_column, pa.uint64(), nullable=False),
            pa.field(vocab.operation_type_column, pa.uint8(), nullable=False),
            pa.field(vocab.system_time_column, timestamp_type(), nullable=False),
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


def with_kamu_types(schema: pa.Schema, vocab: DatasetVocabulary) -> pa.Schema:
    """Return the schema of slices with the types of system columns that kamu writes.

    They are 64-bit and 32-bit signed integers, and the event time is not nullable. Kamu appends only to
    datasets with these types.
    """
    kinds = {vocab.offset_column: pa.int64(), vocab.operation_type_column: pa.int32()}
    return pa.schema(
        [
            field.with_type(kinds.get(field.name, field.type)).with_nullable(
                field.nullable and field.name != vocab.event_time_column
            )
            for field in schema
        ]
    )


def write_slice(
    batches: Iterable[pa.RecordBatch], properties: SliceProperties, *, path: Path, reporter: Reporter
) -> WrittenSlice | None:
    """Write all rows as one slice; see :func:`write_slices`.

    Args:
        path: the file to write; it is removed on errors.

    Returns:
        The slice, or None (and no file) if there are no rows.
    """
    slices = write_slices(batches, properties, new_path=lambda: path, reporter=reporter)
    return slices[0] if slices else None


def write_slices(
    batches: Iterable[pa.RecordBatch],
    properties: SliceProperties,
    *,
    new_path: Callable[[], Path],
    reporter: Reporter,
    limits: SliceLimits | None = None,
    threads: int | None = None,
) -> list[WrittenSlice]:
    """Write rows as one or more slices. A thread encodes each slice while the rows of the next ones arrive.

    The same rows produce the same files and hashes, independent of their batches and of the number of cores.

    Args:
        batches: rows in order: data columns by name, and optionally the operation and the event time.
        properties: what the rows have in common.
        new_path: returns the path of the next file to write. On errors all files are removed.
        reporter: receives the rows and bytes written so far, and can cancel.
        limits: the limits of a slice, or None for a single slice. The two rows of a correction stay in one.
        threads: the number of threads that encode and hash; by default one more than cores, since one of them
            often waits for the disk.

    Returns:
        The slices in the order of their offsets; no slice (and no file) if there are no rows.

    Raises:
        InvalidSchema: a column is unknown, missing, or has an unrelated type.
        BadData: a value does not fit its column; ``where`` is its row, from 1.
        Cancelled: the reporter was cancelled.
        OdfError: a file cannot be written, such as when the disk is full.
    """
    builder, vocab = SliceRowBuilder(properties), properties.vocab
    event_type = properties.schema.field(vocab.event_time_column).type
    groups = split_row_groups(builder.enforce_schema(batches, reporter), limits, builder.ends_correction)
    writers: list[_SliceWriter] = []
    with SerialExecutors(threads or (os.cpu_count() or 1) + 1, depth=None) as executors:
        backlog = _Backlog(_BACKLOG_BYTES if threads is None else threads * MAX_BYTES)
        try:
            for group in groups:
                offset, rows = builder.next_offset, builder.add_system_columns(group.rows)
                if group.slice_number == len(writers):
                    if writers:
                        writers[-1].end()
                    times = EventTimes(event_type, properties.counted_until)
                    writers.append(_SliceWriter(new_path(), rows, vocab, offset, times, executors, backlog))
                writers[-1].add(rows)
                size = sum(writer.size for writer in writers)
                reporter.set_amounts(rows=builder.next_offset - properties.first_offset, bytes=size)
                reporter.raise_if_cancelled()
            if writers:
                writers[-1].end()
            return [writer.finish() for writer in writers]
        except BaseException:
            executors.close()
            for writer in writers:
                writer.discard()
            raise


_BACKLOG_BYTES: Final = 256 << 20


class _Backlog:
    """Limits the bytes of the row groups that are not encoded and hashed yet."""

    def __init__(self, max_bytes: int) -> None:
        self._max = max_bytes
        self._bytes = 0
        self._error: BaseException | None = None
        self._changed = threading.Condition()

    def submit(
        self, rows: pa.RecordBatch, tasks: Sequence[tuple[SerialExecutor, Callable[[], None]]]
    ) -> None:
        """Queue the tasks of a row group; blocks while the backlog is full.

        Raises:
            BaseException: raised by an earlier task.
        """
        size = rows.nbytes
        with self._changed:
            self._changed.wait_for(lambda: not self._bytes or self._bytes + size <= self._max or self._error)
            if self._error is not None:
                raise self._error
            self._bytes += size
        pending = len(tasks)

        def run(task: Callable[[], None]) -> None:
            nonlocal pending
            try:
                task()
            except BaseException as error:
                with self._changed:
                    self._error = self._error or error
                    self._changed.notify_all()
                raise
            with self._changed:
                pending -= 1
                self._bytes -= 0 if pending else size
                self._changed.notify_all()

        for executor, task in tasks:
            executor.submit(partial(run, task))


class _SliceWriter:
    """Writes one slice, in the threads of ``executors``.

    Args:
        path: the path of the file.
        first: the rows of the first row group; :meth:`add` adds them.
        vocab: names of the system columns.
        first_offset: offset of the first row.
        times: collects the event times.
        executors: encode and hash the rows.
        backlog: limits the rows in memory.

    Raises:
        OdfError: the file cannot be created.
    """

    def __init__(
        self,
        path: Path,
        first: pa.RecordBatch,
        vocab: DatasetVocabulary,
        first_offset: int,
        times: EventTimes,
        executors: SerialExecutors,
        backlog: _Backlog,
    ) -> None:
        self._path = path
        self._event_time = vocab.event_time_column
        self._interval = OffsetInterval(first_offset, first_offset - 1)
        self._times = times
        self._backlog = backlog
        self._hasher = LogicalHasher(first.schema, executors)
        self._encoder = executors.new_executor()
        self._sink = HashingFile(path)
        try:
            self._writer = RowGroupWriter(self._sink, first.schema, vocab, dictionary_columns(first, vocab))
        except BaseException:  # the first bytes cannot be written
            self._sink.close_file()
            remove_temporary(path)
            raise

    @property
    def size(self) -> int:
        """Number of bytes written so far."""
        return self._sink.size

    def add(self, rows: pa.RecordBatch) -> None:
        """Add a row group. Returns before it is written; blocks while too many row groups wait.

        Raises:
            BaseException: raised while an earlier row group was written.
        """
        self._times.update(rows.column(self._event_time))
        self._interval = OffsetInterval(self._interval.start, self._interval.end + rows.num_rows)
        # Not in the encoder's thread: Arrow checks the null counts, which the threads of the hasher set.
        annotated = self._writer.annotate(rows)
        encode = partial(self._writer.write, annotated)
        self._backlog.submit(rows, [(self._encoder, encode), *self._hasher.tasks(rows)])

    def end(self) -> None:
        """Write the footer after the last row group, and sync the file. Returns before it is written."""
        self._encoder.submit(self._close)

    def _close(self) -> None:
        self._writer.close()
        self._sink.sync()
        self._sink.close_file()

    def finish(self) -> WrittenSlice:
        """Wait for the end; return the slice.

        Raises:
            BaseException: raised while the slice was written.
        """
        self._encoder.wait()
        return WrittenSlice(
            path=self._path,
            logical_hash=self._hasher.finish(),
            physical_hash=Multihash(SHA3_256, self._sink.hasher.digest()),
            size=self._sink.size,
            rows=self._interval.end - self._interval.start + 1,
            offset_interval=self._interval,
            max_event_time=self._times.max,
            min_event_time=self._times.min,
            max_counted_event_time=self._times.max_counted,
            rows_ahead=self._times.rows_ahead,
        )

    def discard(self) -> None:
        """Remove the file. The threads have ended."""
        with suppress(Exception):  # the file is removed in any case
            self._writer.close()
        self._sink.close_file()
        remove_temporary(self._path)


def write_stored_rows(
    batches: Iterable[pa.RecordBatch], *, vocab: DatasetVocabulary, path: Path, reporter: Reporter
) -> WrittenSlice:
    """Write rows of slices as one slice. The same rows produce the same file, independent of their batches.

    Args:
        batches: rows in order with all system columns, all of the same schema; at least one row.
        vocab: names of the system columns.
        path: the file to write; it is removed on errors.
        reporter: can cancel.

    Raises:
        BadData: there are no rows.
        Cancelled: the reporter was cancelled.
        OdfError: the file cannot be written, such as when the disk is full.
    """
    groups = (group.rows for group in split_row_groups(batches))
    first = next(groups, None)
    if first is None:
        raise BadData("the slices have no rows", where=str(path))
    offset = first.column(vocab.offset_column)[0].as_py()
    times = EventTimes(first.schema.field(vocab.event_time_column).type, None)
    with SerialExecutors((os.cpu_count() or 1) + 1, depth=None) as executors:
        writer = _SliceWriter(path, first, vocab, offset, times, executors, _Backlog(_BACKLOG_BYTES))
        try:
            for rows in chain([first], groups):
                writer.add(rows)
                reporter.raise_if_cancelled()
            writer.end()
            return writer.finish()
        except BaseException:
            executors.close()
            writer.discard()
            raise


def copy_rows(
    source: Path, target: Path, rows: RowRange, *, vocab: DatasetVocabulary, reporter: Reporter
) -> WrittenSlice:
    """Write rows of a slice as a file of their own.

    Args:
        source: the slice.
        target: the file to write.
        rows: numbers of the rows.
        vocab, reporter: as in :func:`write_stored_rows`.

    Raises:
        NotFound: the slice does not exist.
        BadData: it is damaged, or has no such rows.
        OdfError: the file cannot be written.
    """
    with _open_slice(source) as file:
        batches = file.batches(_decoded_schema(file.schema, file.schema.names), [rows])
        return write_stored_rows(batches, vocab=vocab, path=target, reporter=reporter)


class RowGroupWriter:
    """Encodes row groups of a slice. Their bytes depend only on their rows and the columns with a dictionary.

    Args:
        sink: the file to write.
        schema: the schema of the slice.
        vocab: names of the system columns.
        dictionary: the columns that are encoded with a dictionary.
    """

    def __init__(
        self, sink: HashingFile, schema: pa.Schema, vocab: DatasetVocabulary, dictionary: list[str]
    ) -> None:
        self._writer = pq.ParquetWriter(
            sink,
            _annotated_schema(schema),
            version="2.6",
            compression=_COMPRESSION,
            compression_level=_COMPRESSION_LEVEL,
            use_dictionary=dictionary,  # pyright: ignore[reportArgumentType]
            column_encoding={vocab.offset_column: "DELTA_BINARY_PACKED"},
            store_schema=False,
        )

    def annotate(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows with UUIDs annotated, for :meth:`write`."""
        schema = self._writer.schema
        columns = [
            pa.ExtensionArray.from_storage(field.type, column) if field.type == pa.uuid() else column
            for field, column in zip(schema, rows.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def write(self, annotated: pa.RecordBatch) -> None:
        """Write a row group."""
        self._writer.write_batch(annotated, row_group_size=MAX_ROWS)

    def close(self) -> None:
        """Write the footer."""
        self._writer.close()


class HashingFile:
    """A file that is written once; counts and hashes its bytes.

    Errors of the system are raised as :class:`OdfError`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.hasher = sha3_256()
        self.size = 0
        self.closed = False
        with self._errors():
            self._file = self._path.open("wb", buffering=0)

    def close_file(self) -> None:
        """Close the file."""
        self._file.close()

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


def dictionary_columns(first: pa.RecordBatch, vocab: DatasetVocabulary) -> list[str]:
    """Return the columns with duplicate values, where a dictionary saves space.

    Only the first row group of a slice is examined, which does not depend on the batches.
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
    return pa.schema([field.with_type(pa.uuid()) if field.type == uuid_type() else field for field in schema])


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


def read_batches_of(path: Path, rows: RowRange) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Return the schema of a slice, and some of its rows in order, in bounded batches.

    Args:
        path: the file.
        rows: numbers of the rows.

    Raises:
        NotFound: there is no such file.
        BadData: it is damaged.
    """
    file = _open_slice(path)
    schema = _decoded_schema(file.schema, file.schema.names)
    return schema, file.batches(schema, [rows])


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
