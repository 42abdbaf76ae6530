"""Finds rows of a preview by their offset or by time, reading as little of them as possible."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import Final

import pyarrow as pa

from odf_engine.data.kernels import pc
from odf_engine.workspace.preview import Preview

_ROWS: Final = 1 << 20
"""Rows that are read at once."""


def row_of_offset(preview: Preview, offset: int, column: str) -> int | None:
    """The row with an offset; None when there is none, or when its slice cannot be read.

    Args:
        column: the offset's.
    """
    slices = preview.slices
    at = bisect_left(slices, offset, key=lambda row: row.end)
    if at == len(slices) or not slices[at].start <= offset:
        return None
    first = preview.ends[at - 1] if at else 0
    guess = first + offset - slices[at].start
    table, gaps = preview.part(guess, 1, [column])
    if gaps or table.column(0)[0].as_py() == offset:
        return guess
    # Some writers do not store rows in the order of their offsets.
    for start in range(first, preview.ends[at], _ROWS):
        table, _ = preview.part(start, min(preview.ends[at] - start, _ROWS), [column])
        found = pc.index(table.column(0), pa.scalar(offset, table.schema.field(0).type)).as_py()
        if found >= 0:
            return start + found
    return None


def row_at_time(preview: Preview, moment: datetime, column: str, stop: Callable[[], bool]) -> int | None:
    """The first row, in the order they are stored, whose time is at or after a moment; None: there is none.

    Row groups that are over before the moment, as their files say, are not read. Gives up with None when
    ``stop`` says so.

    Args:
        moment: with a time zone.
        column: of timestamps or dates.
    """
    kind = preview.columns.field(column).type
    wanted = moment_as(moment, kind)
    for group in preview.groups(column):
        if stop():
            return None
        greatest = group.bounds.greatest
        if greatest is not None and greatest < wanted.value:
            continue
        for start in range(group.start, group.stop, _ROWS):
            if stop():
                return None
            table, _ = preview.part(start, min(group.stop - start, _ROWS), [column])
            hits = pc.greater_equal(table.column(0), wanted).fill_null(False)
            if (at := pc.index(hits, True).as_py()) >= 0:
                return start + at
    return None


def moment_as(moment: datetime, kind: pa.DataType) -> pa.Scalar:
    """A moment as a value of a column's type; for days, the first that begins at or after it."""
    moment = moment.astimezone(UTC)
    if pa.types.is_date(kind):
        day = moment.date()
        bare = moment.time().replace(tzinfo=None) == datetime.min.time()
        return pa.scalar(day if bare else date.fromordinal(day.toordinal() + 1), kind)
    return pa.scalar(moment if kind.tz else moment.replace(tzinfo=None), kind)
