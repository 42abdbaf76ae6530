"""Splits a stream of batches into slices and row groups that depend on the rows and the limits alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from odf_engine.base.arrow import pa, pc, types
from odf_engine.data.arrow_compute import decode_array, is_list_like

MAX_ROWS: Final = 1 << 17  # a window of a few rows decodes its row group up to them
MAX_BYTES: Final = 64 << 20


class SliceLimits(NamedTuple):
    """Limits of a slice. The row that reaches one of them is the last of its slice.

    Attributes:
        rows: number of rows.
        bytes: size of the values in memory. Only the last row of a row group can reach this limit.
    """

    rows: int
    bytes: int


class RowGroup(NamedTuple):
    """Rows that become one row group.

    Attributes:
        rows: the rows.
        slice_number: number of their slice in the stream, from 0.
    """

    rows: pa.RecordBatch
    slice_number: int


def split_row_groups(
    batches: Iterable[pa.RecordBatch],
    limits: SliceLimits | None = None,
    may_end: Callable[[pa.RecordBatch], bool] = lambda rows: True,
) -> Iterator[RowGroup]:
    """Yield the same rows in groups that end with the row that completes ``MAX_ROWS`` rows or ``MAX_BYTES``.

    The boundaries depend on the rows and the limits alone, not on the batches.

    Args:
        batches: the rows.
        limits: the limits of a slice; None: all rows are in one slice.
        may_end: whether a slice may end with the last of these rows. Otherwise, it has more rows.
    """
    for parts, number in _split(batches, limits, may_end):
        yield RowGroup(concat_batches(parts), number)


def count_row_groups(
    batches: Iterable[pa.RecordBatch],
    limits: SliceLimits | None = None,
    may_end: Callable[[pa.RecordBatch], bool] = lambda rows: True,
) -> list[list[int]]:
    """Return the numbers of rows of the row groups of each slice, which :func:`split_row_groups` returns.

    No values are copied.
    """
    counts: list[list[int]] = []
    for parts, number in _split(batches, limits, may_end):
        if number == len(counts):
            counts.append([])
        counts[number].append(sum(part.num_rows for part in parts))
    return counts


def _split(
    batches: Iterable[pa.RecordBatch],
    limits: SliceLimits | None,
    may_end: Callable[[pa.RecordBatch], bool],
) -> Iterator[tuple[list[pa.RecordBatch], int]]:
    """Yield the parts of each row group, and the number of its slice."""
    group: list[pa.RecordBatch] = []
    rows = bits = 0
    number = slice_rows = slice_bits = 0  # of the complete groups of the slice
    max_rows = MAX_ROWS if limits is None else min(MAX_ROWS, limits.rows)
    for batch in batches:
        while batch.num_rows:
            count = _rows_until(batch, max_rows - rows, 8 * MAX_BYTES - bits)
            part, batch = batch.slice(0, count), batch.slice(count)
            group.append(part)
            rows, bits = rows + count, bits + _bits(part)
            if rows < max_rows and bits < 8 * MAX_BYTES:
                continue
            yield group, number
            if limits is not None:
                slice_rows, slice_bits = slice_rows + rows, slice_bits + bits
                is_full = slice_rows >= limits.rows or slice_bits >= 8 * limits.bytes
                if is_full and may_end(group[-1]):
                    is_full, number, slice_rows, slice_bits = False, number + 1, 0, 0
                max_rows = 1 if is_full else min(MAX_ROWS, limits.rows - slice_rows)
            group, rows, bits = [], 0, 0
    if group:
        yield group, number


def split_batch(batch: pa.RecordBatch, max_bytes: int) -> Iterator[pa.RecordBatch]:
    """Split a batch into parts of at most ``max_bytes`` with dictionaries decoded.

    A larger row is a part by itself.
    """
    while batch.num_rows:
        count = _rows_until(batch, batch.num_rows, 8 * max_bytes)
        if count > 1 and _bits(batch.slice(0, count)) > 8 * max_bytes:
            count -= 1
        yield batch.slice(0, count)
        batch = batch.slice(count)


def _rows_until(batch: pa.RecordBatch, rows: int, bits: int) -> int:
    """Return how many rows reach a number of rows or bits; all rows if they are too few."""
    high = min(rows, batch.num_rows)
    if _bits(batch.slice(0, high)) < bits:
        return high
    low = 1
    while low < high:
        middle = (low + high) // 2
        if _bits(batch.slice(0, middle)) < bits:
            low = middle + 1
        else:
            high = middle
    return high


def concat_batches(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Return the rows of batches as one batch; there is at least one."""
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def _bits(batch: pa.RecordBatch) -> int:
    return sum(_array_bits(column) for column in batch.columns)


def _array_bits(array: pa.Array) -> int:
    # Exactly additive over slices, unlike nbytes, which depends on slicing and on the validity buffer.
    data_type = array.type
    if types.is_dictionary(data_type) and is_text(data_type.value_type):
        lengths = pc.binary_length(array.dictionary).take(
            array.indices
        )  # decoded texts may not fit in memory
        return 32 * len(array) + 8 * (pc.sum(lengths).as_py() or 0)
    array = decode_array(array)
    data_type = array.type
    if types.is_struct(data_type):
        return sum(_array_bits(child) for child in array.flatten())
    if is_list_like(data_type):
        return 32 * len(array) + _array_bits(array.flatten())
    if types.is_map(data_type):
        start, stop = array.offsets[0].as_py(), array.offsets[-1].as_py()
        entries = (array.keys.slice(start, stop - start), array.items.slice(start, stop - start))
        return 32 * len(array) + sum(map(_array_bits, entries))
    if is_text(data_type):
        return 32 * len(array) + 8 * (pc.sum(pc.binary_length(array)).as_py() or 0)
    try:
        return len(array) * data_type.bit_width
    except ValueError:  # no fixed width; slices have no such types
        return 8 * array.nbytes


def is_text(data_type: pa.DataType) -> bool:
    """Whether a type is text or bytes of variable length, stored contiguously."""
    return (
        types.is_string(data_type)
        or types.is_binary(data_type)
        or types.is_large_string(data_type)
        or types.is_large_binary(data_type)
    )
