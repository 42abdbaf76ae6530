"""Cutting a stream of batches anew, so that the same rows always give the same row groups."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa
from pyarrow import types

from odf_engine.data.kernels import pc
from odf_engine.data.value_bytes import decoded, is_any_list

MAX_ROWS: Final = 1 << 17  # a preview decodes a whole row group to show a few rows
MAX_BYTES: Final = 64 << 20
_QUANTUM: Final = 1 << 13


def row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of at most ``MAX_ROWS`` rows or about ``MAX_BYTES``.

    Where they are cut depends on the rows alone, not on how they came.
    """
    group: list[pa.RecordBatch] = []
    rows = size = 0
    for quantum in _quanta(batches):
        for part in _halves(quantum):
            part_size = _content_size(part)
            if group and (rows + part.num_rows > MAX_ROWS or size + part_size > MAX_BYTES):
                yield _joined(group)
                group, rows, size = [], 0, 0
            group.append(part)
            rows, size = rows + part.num_rows, size + part_size
    if group:
        yield _joined(group)


def _quanta(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Batches of exactly ``_QUANTUM`` rows; the last may have fewer."""
    waiting: list[pa.RecordBatch] = []
    missing = _QUANTUM
    for batch in batches:
        at = 0
        while at < batch.num_rows:
            part = batch.slice(at, missing)
            waiting.append(part)
            at, missing = at + part.num_rows, missing - part.num_rows
            if not missing:
                yield _joined(waiting)
                waiting, missing = [], _QUANTUM
    if waiting:
        yield _joined(waiting)


def _halves(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if batch.num_rows > 1 and _content_size(batch) > MAX_BYTES:
        half = batch.num_rows // 2
        yield from _halves(batch.slice(0, half))
        yield from _halves(batch.slice(half))
    else:
        yield batch


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def _content_size(batch: pa.RecordBatch) -> int:
    return sum(_array_size(column) for column in batch.columns)


def _array_size(array: pa.Array) -> int:
    # Not nbytes: that depends on how an array is sliced and whether it has room for nulls.
    array = decoded(array)
    kind = array.type
    if types.is_struct(kind):
        return sum(_array_size(child) for child in array.flatten())
    if is_any_list(kind):
        return 4 * len(array) + _array_size(array.flatten())
    try:
        return len(array) * kind.bit_width // 8
    except ValueError:  # no fixed width: text or binary
        return 4 * len(array) + (pc.sum(pc.binary_length(array)).as_py() or 0)
