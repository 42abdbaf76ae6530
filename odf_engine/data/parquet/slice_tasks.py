"""Tasks that executors of a cluster run to write slices. They need this package, PyArrow and msgspec.

The rows of a query are stored as one Arrow file for each partition. The coordinator decides from their counts
which rows become a slice. Then a task writes each slice. The files have unique names, so that a task that is
repeated, or runs twice, does no harm.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, pairwise
from pathlib import Path

from odf_engine.base.arrow import pa, pc, types
from odf_engine.base.files import translate_os_errors
from odf_engine.base.progress import Reporter
from odf_engine.data.parquet.row_groups import SliceLimits, count_slice_rows
from odf_engine.data.parquet.slices import SliceProperties, SliceRowBuilder, WrittenSlice, write_slices
from odf_engine.errors import OdfError, Unsupported


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

    def check_version(self) -> None:
        """Check that this process encodes slices as the coordinator does.

        Raises:
            Unsupported: it has another version of PyArrow.
        """
        if pa.__version__ != self.pyarrow:
            problem = f"an executor has PyArrow {pa.__version__}, not {self.pyarrow}"
            raise Unsupported(problem, hint=f"install PyArrow {self.pyarrow} on all machines of the cluster")


@dataclass(frozen=True)
class StoredRows:
    """The rows of a partition in an Arrow file, in the types of the slices.

    Attributes:
        path: the file.
        rows: the number of rows, at least 1.
        times: the first and last event time as numbers, or None if the times do not ascend.
    """

    path: Path
    rows: int
    times: tuple[int, int] | None


def store_rows(
    task: SliceTask, schema: pa.Schema, messages: Iterable[bytes]
) -> Iterator[StoredRows | OdfError]:
    """Store the rows of a partition; yield the stored rows, or an error, or nothing if there are no rows.

    Args:
        task: the task.
        schema: the columns of the rows.
        messages: Arrow batches as IPC messages without a schema.
    """
    batches = (pa.ipc.read_record_batch(pa.py_buffer(message), schema) for message in messages)
    try:
        task.check_version()
        builder = SliceRowBuilder(task.properties)
        completed = filter(len, builder.enforce_schema(batches, Reporter()))
        first = next(completed, None)
        if first is None:
            return
        path = task.folder / f"{uuid.uuid4().hex}.arrow"
        order = _EventTimeOrder(task.properties.vocab.event_time_column)
        rows = 0
        with (
            translate_os_errors(path),
            pa.OSFile(str(path), "wb") as file,
            pa.ipc.new_file(file, first.schema) as writer,
        ):
            for batch in chain([first], completed):
                order.add(batch)
                writer.write_batch(batch)
                rows += batch.num_rows
    except OdfError as error:
        yield error
    else:
        yield StoredRows(path, rows, order.times)


def is_in_order(parts: Sequence[StoredRows]) -> bool:
    """Return whether the event times of all rows ascend."""
    times = [part.times for part in parts]
    return None not in times and all(
        before is not None and after is not None and before[1] <= after[0]
        for before, after in pairwise(times)
    )


def plan_slices(task: SliceTask, parts: Sequence[StoredRows]) -> list[int]:
    """Return the number of rows of each slice. Only the sizes of texts and lists are read."""
    builder = SliceRowBuilder(task.properties)
    batches = (batch for part in parts for batch in _read(part.path, 0, part.rows))
    return count_slice_rows(batches, task.limits, builder.ends_correction)


def write_rows(
    task: SliceTask, parts: Sequence[StoredRows], spans: Iterable[tuple[int, int]]
) -> Iterator[WrittenSlice | OdfError]:
    """Write rows as slices; yield the slices, or an error.

    Args:
        task: the task.
        parts: all stored rows, in order.
        spans: the number of the first row of each slice, from 0, and the number of its rows.
    """
    for first, rows in spans:
        properties = replace(task.properties, first_offset=task.properties.first_offset + first)
        try:
            task.check_version()
            (written,) = write_slices(
                _rows_between(parts, first, first + rows),
                properties,
                new_path=lambda: task.folder / f"{uuid.uuid4().hex}.parquet",
                reporter=Reporter(),
                limits=task.limits,
                threads=1,
            )
        except OdfError as error:
            yield error
        else:
            yield written


def _rows_between(parts: Sequence[StoredRows], start: int, end: int) -> Iterator[pa.RecordBatch]:
    for part, after in zip(parts, accumulate(part.rows for part in parts), strict=True):
        before = after - part.rows
        if after > start and before < end:
            yield from _read(part.path, max(start - before, 0), min(end - before, part.rows))


def _read(path: Path, start: int, end: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of an Arrow file from ``start`` up to ``end``."""
    with pa.memory_map(str(path)) as file, pa.ipc.open_file(file) as reader:
        before = 0
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            first, last = max(start - before, 0), min(end - before, batch.num_rows)
            if first < last:
                yield batch.slice(first, last - first)
            before += batch.num_rows


class _EventTimeOrder:
    """Checks whether event times ascend.

    Attributes:
        times: the first and the last event time as numbers, or None if they do not ascend.
    """

    def __init__(self, column: str) -> None:
        self._column = column
        self.times: tuple[int, int] | None = None
        self._is_first = True

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows; there is at least one."""
        times = batch.column(self._column)
        numbers = times.cast(pa.int32() if types.is_date32(times.type) else pa.int64())
        first, last = numbers[0].as_py(), numbers[-1].as_py()
        ascends = len(numbers) < 2 or bool(pc.all(pc.less_equal(numbers[:-1], numbers[1:])).as_py())
        if self._is_first:
            self.times = (first, last) if ascends else None
        elif self.times is not None:
            self.times = (self.times[0], last) if ascends and self.times[1] <= first else None
        self._is_first = False
