"""Finds rows of a preview by their offset or by time, reading as little of them as possible."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from datetime import UTC, date, datetime

import pyarrow as pa

from odf_engine.data.kernels import pc
from odf_engine.workspace.preview import Preview


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
    table, _ = preview.part(first, preview.ends[at] - first, [column])
    found = pc.index(table.column(0), pa.scalar(offset, table.schema.field(0).type)).as_py()
    return None if found < 0 else first + found


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
        table, _ = preview.part(group.start, group.stop - group.start, [column])
        hits = pc.greater_equal(table.column(0), wanted).fill_null(False)
        if (at := pc.index(hits, True).as_py()) >= 0:
            return group.start + at
    return None


def moment_as(moment: datetime, kind: pa.DataType) -> pa.Scalar:
    """A moment as a value of a column's type; for days, the first that begins at or after it."""
    moment = moment.astimezone(UTC)
    if pa.types.is_date(kind):
        day = moment.date()
        bare = moment.time().replace(tzinfo=None) == datetime.min.time()
        return pa.scalar(day if bare else date.fromordinal(day.toordinal() + 1), kind)
    return pa.scalar(moment if kind.tz else moment.replace(tzinfo=None), kind)
