"""Corrections that a query has torn apart: what is left of a pair becomes a retraction or an addition."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from odf_engine.data.changelog import Op
from odf_engine.data.kernels import pc


def whole_pairs(batches: Iterable[pa.RecordBatch], position: str, operation: str) -> Iterator[pa.RecordBatch]:
    """The rows, with the operations of those that do not stand as a pair changed.

    A correction is two rows of an input, -C and +C, at two positions that follow each other. It stays a
    correction when each of the two has exactly one image and these follow each other; else the images
    of -C are retractions, those of +C additions.

    Args:
        batches: rows in their order.
        position, operation: columns that say where a row comes from, and the input row's operation.
    """
    held: pa.RecordBatch | None = None
    for batch in batches:
        rows = batch if held is None else pa.concat_batches([held, batch])
        keep = _open_end(rows, position, operation)
        done, held = rows.slice(0, rows.num_rows - keep), rows.slice(rows.num_rows - keep)
        if done.num_rows:
            yield _settled(done, position, operation)
    if held is not None and held.num_rows:
        yield _settled(held, position, operation)


def _open_end(rows: pa.RecordBatch, position: str, operation: str) -> int:
    """How many rows at the end may belong together with rows that follow."""
    reach = {Op.CORRECT_FROM: 0, Op.CORRECT_TO: 1}.get(rows.column(operation)[-1].as_py())
    if reach is None:
        return 0
    places = rows.column(position)
    last = places[-1].as_py()
    keep = 1
    while keep < rows.num_rows and last - places[rows.num_rows - 1 - keep].as_py() in (0, reach):
        keep += 1
    return keep


def _settled(rows: pa.RecordBatch, position: str, operation: str) -> pa.RecordBatch:
    operations = rows.column(operation)
    corrections = pc.is_in(operations, pa.array([Op.CORRECT_FROM, Op.CORRECT_TO], operations.type))
    if not pc.any(corrections).as_py():
        return rows
    codes: list[int] = operations.to_pylist()
    places: list[int] = rows.column(position).to_pylist()
    count = len(codes)
    at = 0
    while at < count:
        code = codes[at]
        if code == Op.CORRECT_FROM and _is_pair(codes, places, at):
            at += 2
            continue
        if code == Op.CORRECT_FROM:
            codes[at] = Op.RETRACT
        elif code == Op.CORRECT_TO:
            codes[at] = Op.APPEND
        at += 1
    index = rows.schema.get_field_index(operation)
    return rows.set_column(index, rows.schema.field(index), pa.array(codes, operations.type))


def torn(batch: pa.RecordBatch, operation: str) -> pa.RecordBatch:
    """The rows with every correction taken apart: for results whose order is not that of the input."""
    operations = batch.column(operation)
    plain = pc.if_else(
        pc.equal(operations, pa.scalar(Op.CORRECT_FROM, operations.type)),
        pa.scalar(Op.RETRACT, operations.type),
        pc.if_else(
            pc.equal(operations, pa.scalar(Op.CORRECT_TO, operations.type)),
            pa.scalar(Op.APPEND, operations.type),
            operations,
        ),
    )
    index = batch.schema.get_field_index(operation)
    return batch.set_column(index, batch.schema.field(index), plain)


def _is_pair(codes: list[int], places: list[int], at: int) -> bool:
    """Whether the -C at ``at`` and the row after it are the only images of a pair."""
    place, count = places[at], len(codes)
    return (
        (at == 0 or places[at - 1] != place)
        and at + 1 < count
        and codes[at + 1] == Op.CORRECT_TO
        and places[at + 1] == place + 1
        and (at + 2 == count or places[at + 2] != place + 1)
    )
