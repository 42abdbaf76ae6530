"""Cutting a stream of batches anew, so that the same rows always give the same row groups."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa
from pyarrow import types

from odf_engine.data.arrow_compute import decode_array, is_list_like, pc

MAX_ROWS: Final = 1 << 17  # a preview decodes a whole row group to show a few rows
MAX_BYTES: Final = 64 << 20


def split_row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches that end with the row that makes them ``MAX_ROWS`` rows or ``MAX_BYTES``.

    Where they end depends on the rows alone, not on how they came.
    """
    group: list[pa.RecordBatch] = []
    rows = bits = 0
    for batch in batches:
        while batch.num_rows:
            count = _rows_until(batch, MAX_ROWS - rows, 8 * MAX_BYTES - bits)
            part, batch = batch.slice(0, count), batch.slice(count)
            group.append(part)
            rows, bits = rows + count, bits + _bits(part)
            if rows >= MAX_ROWS or bits >= 8 * MAX_BYTES:
                yield _joined(group)
                group, rows, bits = [], 0, 0
    if group:
        yield _joined(group)


def split_batch(batch: pa.RecordBatch, most_bytes: int) -> Iterator[pa.RecordBatch]:
    """Split a batch so that no part needs more than ``most_bytes`` once dictionaries are decoded.

    A row that needs more is a part of its own.
    """
    while batch.num_rows:
        count = _rows_until(batch, batch.num_rows, 8 * most_bytes)
        if count > 1 and _bits(batch.slice(0, count)) > 8 * most_bytes:
            count -= 1
        yield batch.slice(0, count)
        batch = batch.slice(count)


def _rows_until(batch: pa.RecordBatch, rows: int, bits: int) -> int:
    """How many rows it takes to have so many rows or bits; all of them if they are too few."""
    most = min(rows, batch.num_rows)
    if _bits(batch.slice(0, most)) < bits:
        return most
    least = 1
    while least < most:
        middle = (least + most) // 2
        if _bits(batch.slice(0, middle)) < bits:
            least = middle + 1
        else:
            most = middle
    return most


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def _bits(batch: pa.RecordBatch) -> int:
    return sum(_array_bits(column) for column in batch.columns)


def _array_bits(array: pa.Array) -> int:
    # Adds up exactly over slices, unlike nbytes: that depends on how an array is cut and whether it has
    # room for nulls.
    kind = array.type
    if types.is_dictionary(kind) and is_text(kind.value_type):
        lengths = pc.binary_length(array.dictionary).take(
            array.indices
        )  # the texts may be too many to decode
        return 32 * len(array) + 8 * (pc.sum(lengths).as_py() or 0)
    array = decode_array(array)
    kind = array.type
    if types.is_struct(kind):
        return sum(_array_bits(child) for child in array.flatten())
    if is_list_like(kind):
        return 32 * len(array) + _array_bits(array.flatten())
    if types.is_map(kind):
        start, stop = array.offsets[0].as_py(), array.offsets[-1].as_py()
        entries = (array.keys.slice(start, stop - start), array.items.slice(start, stop - start))
        return 32 * len(array) + sum(map(_array_bits, entries))
    if is_text(kind):
        return 32 * len(array) + 8 * (pc.sum(pc.binary_length(array)).as_py() or 0)
    try:
        return len(array) * kind.bit_width
    except ValueError:  # no fixed width, and nothing that a slice holds
        return 8 * array.nbytes


def is_text(kind: pa.DataType) -> bool:
    """Whether values of a type are text or bytes of any length, one after the other."""
    return (
        types.is_string(kind)
        or types.is_binary(kind)
        or types.is_large_string(kind)
        or types.is_large_binary(kind)
    )
