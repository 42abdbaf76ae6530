"""Tasks that executors of a cluster run to write slices. They need this package, PyArrow and msgspec.

The rows are stored as Arrow files. The coordinator decides from their sizes which rows become a slice. If
there are several slices, a task writes each of them. Otherwise, tasks encode the row groups of the only
slice, others hash its columns, and one joins the row groups. All files have unique names, so that a task
that is repeated, or runs twice, does no harm.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Final, Protocol

from odf_engine.base.arrow import pa, pc, types
from odf_engine.base.files import translate_os_errors
from odf_engine.base.progress import Reporter
from odf_engine.data.digest import leaf_array, schema_bytes, value_bytes
from odf_engine.data.parquet.file_join import join_files
from odf_engine.data.parquet.row_groups import SliceLimits, concat_batches, count_row_groups
from odf_engine.data.parquet.slice_rows import EventTimes, SliceProperties, SliceRowBuilder
from odf_engine.data.parquet.slices import (
    HashingFile,
    RowGroupWriter,
    WrittenSlice,
    dictionary_columns,
    write_slices,
)
from odf_engine.errors import OdfError, Unsupported
from odf_engine.identity.multiformats import ARROW0_SHA3_256, SHA3_256, Multihash
from odf_engine.metadata.model import OffsetInterval

_MAX_FILE_BYTES: Final = 256 << 20
_GROUPS_OF_TASK: Final = 4


@dataclass(frozen=True)
class SliceTask:
    """What all tasks of a query have in common.

    Attributes:
        properties: the properties of the slices.
        limits: the limits of a slice, or None for a single slice.
        folder: a folder that all machines share.
        pyarrow: the required version of PyArrow, which encodes the slices.
    """

    properties: SliceProperties
    limits: SliceLimits | None
    folder: Path
    pyarrow: str = ""

    def new_file(self, suffix: str) -> Path:
        """Return a new path in the folder."""
        return self.folder / f"{uuid.uuid4().hex}{suffix}"

    def starting_at(self, row: int) -> SliceProperties:
        """Return the properties of the rows from number ``row`` on."""
        return replace(self.properties, first_offset=self.properties.first_offset + row)


WriteSlices = Callable[
    [Iterable["pa.RecordBatch"], SliceTask, Callable[[], Path], Reporter], list[WrittenSlice]
]
"""Writes rows as slices at the paths that a function returns."""


def write_task_slices(
    batches: Iterable[pa.RecordBatch], task: SliceTask, new_path: Callable[[], Path], reporter: Reporter
) -> list[WrittenSlice]:
    """Write the slices of a task in this process; see :func:`write_slices`."""
    return write_slices(batches, task.properties, new_path=new_path, reporter=reporter, limits=task.limits)


@dataclass(frozen=True)
class StoredRows:
    """The rows of a partition in an Arrow file, in the types of the slices.

    Attributes:
        path: the file.
        rows: the number of rows, at least 1.
        keys: the first and last sort key as numbers, or None if the keys do not ascend.
    """

    path: Path
    rows: int
    keys: tuple[int, int] | None


@dataclass(frozen=True)
class Call:
    """A function call that a task runs; :meth:`run` returns its result or its error."""

    task: SliceTask
    function: Callable[[], object]

    def run(self) -> object:
        """Return the result, or an :class:`OdfError`, which would lose its type if it was raised."""
        try:
            if pa.__version__ != self.task.pyarrow:
                problem = f"an executor has PyArrow {pa.__version__}, not {self.task.pyarrow}"
                hint = f"install PyArrow {self.task.pyarrow} on all machines of the cluster"
                raise Unsupported(problem, hint=hint)
            with translate_os_errors(self.task.folder):
                return self.function()
        except OdfError as error:
            return error


class RemoteCall(Protocol):
    """A call that a task of an executor runs."""

    def run(self) -> object:
        """Return the result, or an error."""
        ...


def run_calls(calls: Iterable[RemoteCall]) -> Iterator[object]:
    """Yield the results of calls."""
    return (call.run() for call in calls)


class DependentRows(OdfError):
    """The rows of a partition depend on rows of other partitions."""


PrepareRows = Callable[[Iterable["pa.RecordBatch"]], Iterator[tuple["pa.RecordBatch", "pa.Array | None"]]]
"""Returns rows in the types of the slices, without offset and system time, and their sort keys."""


@dataclass(frozen=True)
class SourceRows:
    """Prepares rows of a source, whose sort key is the event time.

    Attributes:
        properties: the properties of the slices.
    """

    properties: SliceProperties

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
        """Yield the rows, and their event times."""
        event_time = self.properties.vocab.event_time_column
        for rows in SliceRowBuilder(self.properties).enforce_schema(batches, Reporter()):
            yield rows, rows.column(event_time)


def store_partition(
    task: SliceTask, prepare: PrepareRows, schema: pa.Schema, messages: Iterable[bytes]
) -> Iterator[object]:
    """Store the rows of a partition; yield a list of :class:`StoredRows`, or an error.

    Args:
        task: the task.
        prepare: completes the rows.
        schema: the columns of the rows.
        messages: Arrow batches as IPC messages without a schema.
    """
    batches = (pa.ipc.read_record_batch(pa.py_buffer(message), schema) for message in messages)
    yield Call(task, lambda: store_rows(task, prepare(batches))).run()


def store_rows(
    task: SliceTask, batches: Iterable[tuple[pa.RecordBatch, pa.Array | None]]
) -> list[StoredRows]:
    """Store rows in Arrow files of bounded size.

    Args:
        task: the task.
        batches: rows in the types of the slices, without offset and system time, and their sort keys.

    Raises:
        BaseException: raised by the iterator; the files are removed.
    """
    stored: list[StoredRows] = []
    remaining = (batch for batch in batches if len(batch[0]))
    try:
        while (first := next(remaining, None)) is not None:
            stored.append(_store_file(task, chain([first], remaining), first[0].schema))
    except BaseException:
        remove_rows(stored)
        raise
    return stored


def _store_file(
    task: SliceTask, batches: Iterator[tuple[pa.RecordBatch, pa.Array | None]], schema: pa.Schema
) -> StoredRows:
    path = task.new_file(".arrow")
    order = _KeyOrder()
    rows = size = 0
    try:
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
            while size < _MAX_FILE_BYTES and (batch := next(batches, None)) is not None:
                order.add(batch[1])
                writer.write_batch(batch[0])
                rows, size = rows + batch[0].num_rows, size + batch[0].nbytes
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return StoredRows(path, rows, order.bounds)


def remove_rows(parts: Sequence[StoredRows]) -> None:
    """Remove the files of stored rows."""
    for part in parts:
        part.path.unlink(missing_ok=True)


def is_in_order(parts: Sequence[StoredRows]) -> bool:
    """Return whether the sort keys of all rows ascend."""
    keys = [part.keys for part in parts]
    return None not in keys and all(
        before is not None and after is not None and before[1] <= after[0] for before, after in pairwise(keys)
    )


def plan_slices(task: SliceTask, parts: Sequence[StoredRows]) -> list[list[int]]:
    """Return the numbers of rows of the row groups of each slice.

    Only the sizes of texts and lists are read.
    """
    builder = SliceRowBuilder(task.properties)
    return count_row_groups(read_rows(parts), task.limits, builder.ends_correction)


def read_rows(
    parts: Sequence[StoredRows], start: int = 0, end: int | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows with the numbers from ``start`` up to ``end``."""
    for part, after in zip(parts, accumulate(part.rows for part in parts), strict=True):
        before = after - part.rows
        if after > start and (end is None or before < end):
            yield from _read_file(
                part.path, max(start - before, 0), part.rows if end is None else end - before
            )


def _read_file(path: Path, start: int, end: int) -> Iterator[pa.RecordBatch]:
    with pa.memory_map(str(path)) as file, pa.ipc.open_file(file) as reader:
        before = 0
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            first, last = max(start - before, 0), min(end - before, batch.num_rows)
            if first < last:
                yield batch.slice(first, last - first)
            before += batch.num_rows


def plan_calls(task: SliceTask, parts: Sequence[StoredRows], slices: Sequence[Sequence[int]]) -> list[Call]:
    """Return the calls that write slices; :func:`join_row_groups` returns a single slice from their results.

    Args:
        task: the task.
        parts: the stored rows, in order.
        slices: the numbers of rows of the row groups of each slice.
    """
    if len(slices) != 1:
        write = partial(_write_slice, task)
        return [Call(task, partial(write, rows)) for rows in _divide(parts, map(sum, slices))]
    dictionary = _dictionary_columns(task, parts, slices[0][0])
    leaves = range(len(schema_bytes(task.properties.schema)[1]))
    groups = slices[0]
    divided = [groups[at : at + _GROUPS_OF_TASK] for at in range(0, len(groups), _GROUPS_OF_TASK)]
    ranges = _divide(parts, map(sum, divided))
    encode = partial(_encode_row_groups, task, dictionary)
    return [
        *(Call(task, partial(_hash_column, task, parts, leaf)) for leaf in leaves),
        *(Call(task, partial(encode, rows, counts)) for rows, counts in zip(ranges, divided, strict=True)),
    ]


@dataclass(frozen=True)
class _RowRange:
    """Consecutive rows of files.

    Attributes:
        parts: the files.
        before: number of rows before the first file.
        start: number of the first row.
        count: number of rows.
    """

    parts: Sequence[StoredRows]
    before: int
    start: int
    count: int

    def read(self, start: int = 0, count: int | None = None) -> Iterator[pa.RecordBatch]:
        """Yield ``count`` rows from number ``start`` of the range on, by default all."""
        first = self.start - self.before + start
        return read_rows(self.parts, first, first + (self.count if count is None else count))


def _divide(parts: Sequence[StoredRows], counts: Iterable[int]) -> Iterator[_RowRange]:
    """Yield consecutive ranges with these numbers of rows, each with the files that have its rows."""
    start = before = first = 0
    for count in counts:
        while before + parts[first].rows <= start:
            before += parts[first].rows
            first += 1
        last, after = first, before
        while after < start + count:
            after += parts[last].rows
            last += 1
        yield _RowRange(parts[first:last], before, start, count)
        start += count


def _dictionary_columns(task: SliceTask, parts: Sequence[StoredRows], rows: int) -> list[str]:
    """Return the columns with a dictionary, which depend on the first row group of the slice."""
    group = concat_batches(list(read_rows(parts, 0, rows)))
    first = SliceRowBuilder(task.properties).add_system_columns(group)
    return dictionary_columns(first, task.properties.vocab)


def _write_slice(task: SliceTask, rows: _RowRange) -> WrittenSlice:
    (written,) = write_slices(
        rows.read(),
        task.starting_at(rows.start),
        new_path=lambda: task.new_file(".parquet"),
        reporter=Reporter(),
        limits=task.limits,
        threads=1,
    )
    return written


@dataclass(frozen=True)
class _EncodedRows:
    """Row groups in a Parquet file."""

    path: Path
    rows: int
    times: EventTimes


def _encode_row_groups(
    task: SliceTask, dictionary: list[str], rows: _RowRange, counts: Sequence[int]
) -> _EncodedRows:
    """Write row groups with these numbers of rows as a file of their own."""
    properties = task.starting_at(rows.start)
    builder, vocab = SliceRowBuilder(properties), properties.vocab
    event_time = properties.schema.field(vocab.event_time_column)
    times = EventTimes(event_time.type, properties.counted_until)
    path = task.new_file(".parquet")
    with _new_file(path) as sink:
        writer = RowGroupWriter(sink, builder.schema, vocab, dictionary)
        for start, count in zip(accumulate(counts, initial=0), counts, strict=False):
            completed = builder.add_system_columns(concat_batches(list(rows.read(start, count))))
            times.update(completed.column(event_time.name))
            writer.write(writer.annotate(completed))
        writer.close()
    return _EncodedRows(path, rows.count, times)


def _hash_column(task: SliceTask, parts: Sequence[StoredRows], number: int) -> bytes:
    """Return the digest of a column of the logical hash."""
    builder = SliceRowBuilder(task.properties)
    leaf = schema_bytes(builder.schema)[1][number]
    hasher = hashlib.sha3_256(leaf.type_bytes)
    for batch in read_rows(parts):
        for piece in value_bytes(leaf_array(builder.add_system_columns(batch), leaf.path)):
            hasher.update(piece)
    return hasher.digest()


def join_row_groups(task: SliceTask, results: Sequence[object]) -> WrittenSlice:
    """Join the results of the calls that write a single slice; at least one row group."""
    encoded = [result for result in results if isinstance(result, _EncodedRows)]
    path = task.new_file(".parquet")
    with _new_file(path) as sink:
        join_files([part.path for part in encoded], sink.write)
    total = hashlib.sha3_256(schema_bytes(task.properties.schema)[0])
    for digest in results:
        if isinstance(digest, bytes):
            total.update(digest)
    times, rows = encoded[0].times, sum(part.rows for part in encoded)
    for part in encoded[1:]:
        times.add(part.times)
    first = task.properties.first_offset
    return WrittenSlice(
        path,
        Multihash(ARROW0_SHA3_256, total.digest()),
        Multihash(SHA3_256, sink.hasher.digest()),
        sink.size,
        rows,
        OffsetInterval(first, first + rows - 1),
        times.max,
        times.min,
        times.max_counted,
        times.rows_ahead,
    )


@contextmanager
def _new_file(path: Path) -> Iterator[HashingFile]:
    """Open a new file, which is removed on errors."""
    sink = HashingFile(path)
    try:
        yield sink
        sink.sync()
        sink.close_file()
    except BaseException:
        sink.close_file()
        path.unlink(missing_ok=True)
        raise


class _KeyOrder:
    """Checks whether sort keys ascend.

    Attributes:
        bounds: the first and the last key as numbers, or None if they do not ascend.
    """

    def __init__(self) -> None:
        self.bounds: tuple[int, int] | None = None
        self._is_first = True

    def add(self, keys: pa.Array | None) -> None:
        """Add keys, at least one; or None for rows without a key."""
        if keys is None:
            return
        numbers = keys.cast(pa.int32() if types.is_date32(keys.type) else pa.int64())
        first, last = numbers[0].as_py(), numbers[-1].as_py()
        ascends = len(numbers) < 2 or bool(pc.all(pc.less_equal(numbers[:-1], numbers[1:])).as_py())
        if self._is_first:
            self.bounds = (first, last) if ascends else None
        elif self.bounds is not None:
            self.bounds = (self.bounds[0], last) if ascends and self.bounds[1] <= first else None
        self._is_first = False
