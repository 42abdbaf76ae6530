"""Checks of rows with operations against each other and the live rows of a dataset, on Arrow tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from odf_engine.data.arrow_compute import pc
from odf_engine.data.changelog import Op
from odf_engine.ingest.merge.key_file import KEY, OFFSET, SECOND, TIME, VALUES, array_of

CODE: Final = "odf_op"
"""Column with the number of the operation; null if the text is not an operation."""
ROW_POSITION: Final = "position"
"""Column with the position of a row among all new rows."""
LIVE: Final = "live "
"""Prefix of columns of the live row that has the key of a new row; null if there is none."""
RETRACTING: Final = pa.array([Op.RETRACT, Op.CORRECT_FROM], pa.int32())
_ADDING: Final = pa.array([Op.APPEND, Op.CORRECT_TO], pa.int32())
FAULTS: Final = {
    1: "column {column}: invalid operation {op}; use +A, -R, -C, +C or 0 to 3",
    2: "the primary key is null",
    3: "a row with this primary key already exists",
    4: "the retracted row does not exist",
    5: "the values differ from those of the existing row",
    6: "a -C must be followed by the +C of the same row",
    7: "a +C must follow the -C of the same row",
}


def check_keyed_rows(
    rows: pa.Table, default_time: pa.Scalar, *, by_key: bool = False
) -> tuple[pa.Array, pa.Array]:
    """Check rows that have a primary key.

    Args:
        rows: hashes, ``CODE``, event time and position of the new rows, and the ``LIVE`` columns.
        default_time: event time of rows that have none, as a 64-bit integer.
        by_key: the two rows of a correction follow each other among the rows of their key; otherwise among
            all rows.

    Returns:
        For each row its key in ``FAULTS``, or 0, and the event time of the row with the same key before it.
    """
    order = pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in (KEY, SECOND, ROW_POSITION)])
    ordered = rows.take(order)
    op, time = array_of(ordered, CODE), array_of(ordered, TIME)
    same_key = _has_key_of_previous(ordered)
    # After an append the previous row is live, after a retraction none.
    added = pc.is_in(_previous(ordered, CODE), _ADDING)
    values = pc.if_else(added, _previous(ordered, VALUES), None)
    values = pc.if_else(same_key, values, array_of(ordered, f"{LIVE}{VALUES}"))
    times = pc.if_else(added, pc.fill_null(_previous(ordered, TIME), default_time), None)
    times = pc.if_else(same_key, times, array_of(ordered, f"{LIVE}{TIME}"))
    differs = pc.or_(
        pc.not_equal(array_of(ordered, VALUES), values), pc.fill_null(pc.not_equal(time, times), False)
    )
    retracts = pc.is_in(op, RETRACTING)
    faults = first_true(
        {
            2: array_of(ordered, KEY).is_null(),
            3: pc.and_(pc.equal(op, pa.scalar(Op.APPEND, op.type)), values.is_valid()),
            4: pc.and_(retracts, values.is_null()),
            5: pc.and_(retracts, differs),
        }
    )
    if by_key:
        faults = _with_unpaired(ordered, faults, same_key)
    places = order.cast(pa.int64())
    faults, times = (pc.scatter(column, places, max_index=len(order) - 1) for column in (faults, times))
    if by_key:
        return faults, times
    return _with_unpaired(rows, faults, _has_key_of_previous(rows)), times


def check_unkeyed_rows(
    rows: pa.Table, history: Sequence[dict[str, int]], default_time: int
) -> tuple[pa.Array, pa.Array]:
    """Check rows without a primary key: a retracted row is found by its values.

    Args:
        rows: hashes, ``CODE`` and event time of the new rows.
        history: the stored rows with the values of a retraction, by offset.
        default_time: event time of rows that have none.

    Returns:
        For each row its key in ``FAULTS``, or 0, and the event time of the row that it retracts.
    """
    retractions = rows.filter(pc.is_in(rows.column(CODE), RETRACTING))
    live: dict[tuple[int, int], list[int]] = {}
    for row in history:
        times = live.setdefault((row[KEY], row[SECOND]), [])
        if row[OFFSET] >= 0:
            times.append(row[TIME])
        elif row[TIME] in times:
            times.remove(row[TIME])
    faults: list[int] = [0] * rows.num_rows
    retracted: list[int | None] = [None] * rows.num_rows
    for at in pc.indices_nonzero(pc.is_in(rows.column(KEY), array_of(retractions, KEY))).to_pylist():
        new: dict[str, Any] = rows.slice(at, 1).to_pylist()[0]
        times, time = live.setdefault((new[KEY], new[SECOND]), []), new[TIME]
        if new[CODE] in (Op.APPEND, Op.CORRECT_TO):
            times.append(default_time if time is None else time)
        elif not times or (time is not None and time not in times):
            faults[at] = 5 if times else 4
        else:
            removed = times[-1] if time is None else time
            times.remove(removed)
            retracted[at] = removed
    any_pair = pa.repeat(True, rows.num_rows)
    return _with_unpaired(rows, pa.array(faults, pa.int32()), any_pair), pa.array(retracted, pa.int64())


def _with_unpaired(rows: pa.Table, faults: pa.Array, is_pair: pa.Array) -> pa.Array:
    """Add the faults of operations that are invalid, or half of a correction. They precede other faults.

    Args:
        rows: with ``CODE``, in the order of the source or the key.
        faults: the faults of the rows.
        is_pair: whether a row and the previous one can be a correction.
    """
    op = array_of(rows, CODE)
    start, end = (
        pc.fill_null(pc.equal(op, pa.scalar(code, op.type)), False)
        for code in (Op.CORRECT_FROM, Op.CORRECT_TO)
    )
    completes = pc.and_(pc.and_(end, is_pair), pc.fill_null(_shifted(start, 1), False))
    completed = pc.fill_null(_shifted(completes, -1), False)
    unpaired = first_true({1: op.is_null(), 6: pc.and_not(start, completed), 7: pc.and_not(end, completes)})
    return pc.if_else(pc.greater(unpaired, 0), unpaired, faults)


def first_true(cases: dict[int, pa.Array]) -> pa.Array:
    """Return for each row the number of the first case that is true, or 0."""
    conditions = pc.make_struct(*(pc.fill_null(case, False) for case in cases.values()))
    return pc.case_when(conditions, *(pa.scalar(number, pa.int32()) for number in (*cases, 0)))


def _previous(rows: pa.Table, name: str) -> pa.Array:
    """Return for each row the value of the previous row; null for the first one."""
    return _shifted(array_of(rows, name), 1)


def _shifted(column: pa.Array, by: int) -> pa.Array:
    """Move each value one row down (1) or up (-1)."""
    edge = pa.nulls(1, column.type)
    return pa.concat_arrays([edge, column[:-1]] if by > 0 else [column[1:], edge])


def _has_key_of_previous(rows: pa.Table) -> pa.Array:
    """Return for each row whether the previous row has the same key."""
    equal = [pc.equal(array_of(rows, name), _previous(rows, name)) for name in (KEY, SECOND)]
    return pc.fill_null(pc.and_(*equal), False)
