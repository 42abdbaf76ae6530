"""What had happened until an event time, with all corrections known (AS OF).

A changelog says what it takes back in the words of the row that it takes back, its event time with them.
So all rows of a key at an event time tell together whether there was such a record, and the last one of them
decides:

- an addition, or the second row of a correction: there was;
- a retraction: there never was;
- the first row of a correction: there never was, except that a *state* whose second row has a later event
  time was so until then. Snapshots say in this way that something changed, and queries that group without
  a window. Records of ledgers are *events*: a correction of theirs says that they were wrong.

A retraction of which there is no record at its own event time is the end of its key from then on. Of what is
left until the event time asked for, each key has the newest by event time, then by offset. Of a dataset whose
keys are all different, that is its current state, when the event time asked for is late enough.

Without a key, records are told apart by all their columns: each one that takes back takes away one that is
equal. Rows without an event time are left out: nobody knows when they happened.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from typing import Final

import pyarrow as pa
from pyarrow import types

from odf_engine.data.changelog import Op
from odf_engine.data.kernels import pc
from odf_engine.errors import InvalidSchema
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.workspace.by_key import greatest

_UNITS: Final = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_DAY: Final = 86_400 * 10**9
_GONE, _REPLACED, _STAYS = range(3)
_SAID: Final = 4
"""``last`` is the offset of the last row of a key at an event time, times this, and what it says of it."""


def in_units(moment: Timestamp, kind: pa.DataType) -> int:
    """A moment as the number that a column of event times has for it, rounded down.

    Raises:
        InvalidSchema: the column has no times.
    """
    if types.is_timestamp(kind):
        return moment.ns // _UNITS[kind.unit]
    if types.is_date32(kind):
        return moment.ns // _DAY
    if types.is_date64(kind):
        return moment.ns // _UNITS["ms"]
    raise InvalidSchema(f"the event time is {kind}, which is no time")


def numbers(times: pa.Array) -> pa.Array:
    """Event times as numbers, in the unit of their column."""
    return (times.cast(pa.int32()) if types.is_date32(times.type) else times).cast(pa.int64())


class AsOf:
    """Finds the rows of a keyed changelog.

    Args:
        keys: the columns of the key.
        until: the event time, as the column has it.
        events: corrections say that a record was wrong, whatever its event time.
    """

    def __init__(self, keys: Sequence[str], until: int, *, events: bool) -> None:
        self._names = list(keys)
        self._until = until
        self._events = events

    def rows(self, tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """What each row until the event time says of its key at its own.

        Args:
            tables: the key, ``offset``, ``op`` and ``time`` (as a number) in the order of the offsets.
        """
        held: pa.Table | None = None
        for table in tables:
            # Whether the last row is half of a correction, is said by the one after it.
            known = table if held is None else pa.concat_tables([held, table])
            known = known.combine_chunks()
            if known.num_rows:
                held = known.slice(known.num_rows - 1)
                yield self._said(known.slice(0, known.num_rows - 1), known.slice(1))
        if held is not None:
            yield self._said(held, None)

    def combine(self, table: pa.Table) -> pa.Table:
        """One row for a key at an event time."""
        return greatest(table, [*self._names, "time"], ["last", "add"])

    def found(self, table: pa.Table) -> pa.Array:
        """The offsets of the rows that stay, of what all rows say."""
        says = pc.bit_wise_and(table.column("last"), _SAID - 1)
        there, add = pc.is_valid(table.column("add")), table.column("add")
        ends = pc.and_(pc.equal(says, _GONE), pc.invert(there))
        kept = table.filter(pc.or_(ends, pc.and_(pc.equal(says, _STAYS), there)))
        kept = kept.sort_by([("time", "ascending"), ("last", "ascending")])
        place = pa.array(range(kept.num_rows), pa.int64())
        newest = greatest(kept.append_column("place", place), self._names, ["place"])
        add = kept.column("add").take(newest.column("place"))
        return add.drop_null().combine_chunks()

    def _said(self, table: pa.Table, following: pa.Table | None) -> pa.Table:
        """The rows until the event time, as they are combined; ``following`` has the row after each."""
        op, time, offset = (table.column(name) for name in ("op", "time", "offset"))
        adds = pc.is_in(op, pa.array([Op.APPEND, Op.CORRECT_TO], op.type))
        says = pc.if_else(adds, _STAYS, _GONE)
        if following is not None:
            pair = corrected(table, following, self._names)
            still = pc.and_(pc.greater(following.column("time"), self._until), not self._events)
            says = pc.if_else(pair, pc.if_else(pc.fill_null(still, False), _STAYS, _REPLACED), says)
        last = pc.add(pc.multiply(offset, _SAID), says)
        columns = {name: table.column(name) for name in self._names}
        columns |= {"time": time, "last": last, "add": pc.if_else(adds, offset, pa.scalar(None, pa.int64()))}
        return pa.table(columns).filter(pc.less_equal(time, self._until))


def corrected(table: pa.Table, following: pa.Table, names: Sequence[str]) -> pa.ChunkedArray:
    """Whether a row and the one that follows it are a correction of the same key, whose columns are named."""
    op, after = table.column("op"), following.column("op")
    next_offset = pc.add(table.column("offset"), 1)
    same = [
        pc.equal(op, pa.scalar(Op.CORRECT_FROM, op.type)),
        pc.equal(after, pa.scalar(Op.CORRECT_TO, after.type)),
        pc.equal(next_offset, following.column("offset")),
    ]
    for name in names:
        mine, other = table.column(name), following.column(name)
        equal = pc.fill_null(pc.equal(mine, other), False)
        same.append(pc.or_(equal, pc.and_(mine.is_null(), other.is_null())))
    return pc.fill_null(reduce(pc.and_, same), False)


class Left:
    """What retractions and corrections leave of rows without a key, told apart by all their columns."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = list(names)

    def found(self, table: pa.Table) -> pa.Array:
        """The offsets of the rows that stay, of all rows of some event times."""
        columns = {name: _comparable(table.column(name)) for name in self._names}
        made = pa.table(columns | {"offset": table.column("offset"), "takes": takes(table.column("op"))})
        asked = [("offset", "list"), ("takes", "list"), ("takes", "sum"), ("takes", "count")]
        grouped = made.group_by(self._names, use_threads=False).aggregate(asked)
        gone = grouped.column("takes_sum").cast(pa.int64())
        left = pc.subtract(grouped.column("takes_count"), pc.multiply(gone, 2))
        stays = pc.list_flatten(grouped.column("offset_list").filter(pc.equal(gone, 0))).combine_chunks()
        doubtful = grouped.filter(pc.and_(pc.greater(gone, 0), pc.greater(left, 0)))
        some: list[int] = []
        for offsets, kinds in zip(
            doubtful.column("offset_list").to_pylist(), doubtful.column("takes_list").to_pylist(), strict=True
        ):
            added = sorted(
                offset for offset, takes_back in zip(offsets, kinds, strict=True) if not takes_back
            )
            some += added[len(kinds) - len(added) :]
        return pa.concat_arrays([stays, pa.array(some, pa.int64())])


def takes(op: pa.Array) -> pa.Array:
    """Whether a row takes another one back."""
    return pc.is_in(op, pa.array([Op.RETRACT, Op.CORRECT_FROM], op.type))


def _is_flat(kind: pa.DataType) -> bool:
    return not types.is_nested(kind)


def _comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Values that Arrow can group by."""
    if _is_flat(column.type):
        return column
    return pa.chunked_array([pa.array([repr(value) for value in column.to_pylist()], pa.string())])
