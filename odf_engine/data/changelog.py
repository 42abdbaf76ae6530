"""Changelog operations (append, retract, correct) and correction pairs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Final

from odf_engine.base.arrow import pa, pc, types

POSITION: Final = "odf_position"
"""Column with the position of the input row of each result row: the number of the input and the offset."""
OPERATION: Final = "odf_operation"
"""Column with the operation of that row."""
ROWS: Final = "odf_rows"
"""Column with the number of rows of a group without a window; 0 if it is no longer part of the result."""
INPUT_BITS: Final = 56
"""Bits of the offset in a position."""


class Op(IntEnum):
    """Operation of a row on the state: append, retract, or correct in two rows (from, to)."""

    APPEND = 0
    RETRACT = 1
    CORRECT_FROM = 2
    CORRECT_TO = 3

    @property
    def code(self) -> str:
        """The short code of the specification: ``+A``, ``-R``, ``-C`` or ``+C``."""
        return ("+A", "-R", "-C", "+C")[self]


RETRACTS: Final = f"IN ({Op.RETRACT:d}, {Op.CORRECT_FROM:d})"
"""SQL condition of an operation that retracts a row."""


class OperationCheck:
    """Checks operations and correction pairs of consecutive rows: a +C directly follows each -C.

    Attributes:
        has_retractions: whether a row so far is a retraction or a correction.
    """

    def __init__(self) -> None:
        self.has_retractions = False
        self._rows = 0
        self._last = int(Op.APPEND)

    def check(self, operations: pa.Array) -> str | None:
        """Return the problem of the first invalid row among the next rows, which are numbered from 0."""
        if not types.is_integer(operations.type):
            return f"the column is {operations.type}, expected an integer type"
        start, self._rows = self._rows, self._rows + len(operations)
        if not len(operations):
            return None
        if not operations.null_count and self._last != Op.CORRECT_FROM:
            # Most rows are in no correction. Their bounds are computed much faster than what follows.
            lowest, highest = pc.min_max(operations).as_py().values()
            if lowest >= Op.APPEND and highest <= Op.RETRACT:
                self.has_retractions = self.has_retractions or highest == Op.RETRACT
                self._last = operations[-1].as_py()
                return None
        known = pc.is_in(operations, pa.array(list(Op), operations.type))
        if (at := pc.index(known, False).as_py()) >= 0:
            operation = operations[at].as_py()
            if operation is None:
                return f"row {start + at} has no operation"
            return f"row {start + at} has invalid operation {operation}, expected 0 to {max(Op):d}"
        if not self.has_retractions:
            self.has_retractions = pc.any(pc.greater(operations, int(Op.APPEND))).as_py()
        previous = pa.concat_arrays([pa.array([self._last], operations.type), operations[:-1]])
        self._last = operations[-1].as_py()
        after = pc.equal(previous, pa.scalar(Op.CORRECT_FROM, operations.type))
        broken = pc.not_equal(pc.equal(operations, pa.scalar(Op.CORRECT_TO, operations.type)), after)
        if (at := pc.index(broken, True).as_py()) < 0:
            return None
        if after[at].as_py():
            return f"row {start + at} follows a -C, but is not a +C"
        return f"row {start + at} is a +C without a preceding -C"

    def finish(self) -> str | None:
        """Return the problem that is known after the last row."""
        if self._last != Op.CORRECT_FROM:
            return None
        return f"row {self._rows - 1} is a -C without a following +C"


def has_corrections(operations: pa.Array) -> bool:
    """Return whether rows with these operations are parts of corrections."""
    parts = pa.array([Op.CORRECT_FROM, Op.CORRECT_TO], operations.type)
    return bool(pc.any(pc.is_in(operations, parts)).as_py())


def repair_correction_pairs(
    batches: Iterable[pa.RecordBatch], position: str, operation: str
) -> Iterator[pa.RecordBatch]:
    """Yield rows; the operations of corrections that are not a complete pair are replaced.

    A correction is two rows of an input, -C and +C, at consecutive positions. It stays a correction if each
    of the two has exactly one image and the images are consecutive. Otherwise images of -C become
    retractions, and images of +C additions.

    Args:
        batches: rows in order.
        position, operation: columns with the position and the operation of the input row.
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
    """Return how many rows at the end may belong together with the next rows."""
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
    if not has_corrections(operations):
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


def split_corrections(batch: pa.RecordBatch, operation: str) -> pa.RecordBatch:
    """Return rows with a retraction and an addition in place of each correction.

    Used for results in another order than the input.
    """
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
