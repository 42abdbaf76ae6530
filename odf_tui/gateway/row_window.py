"""RowWindow: rows read a window at a time, with slices and unreadable ranges."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec

if TYPE_CHECKING:
    import pyarrow as pa


class RowWindow(Protocol):
    """All rows of a dataset, read a window at a time; slow, so never called on the event loop."""

    @property
    def columns(self) -> pa.Schema:
        """Names and types."""
        ...

    @property
    def row_count(self) -> int:
        """How many rows there are."""
        ...

    @property
    def system_columns(self) -> tuple[str, str, str, str]:
        """Names of the columns for offset, operation, system time and event time."""
        ...

    def window(self, start: int, count: int) -> pa.Table:
        """Some rows."""
        ...


UnreadableRange = tuple[int, int, str]
"""Rows from a number to another that cannot be read, and why."""


class SliceMark(msgspec.Struct, frozen=True):
    """A slice begins: its first row, the block that committed it, its hash in short."""

    start: int
    block: int
    hash: str


@runtime_checkable
class PartialWindow(RowWindow, Protocol):
    """Rows of which some columns can be read, past those that are broken."""

    def part(
        self, start: int, count: int, columns: Sequence[int]
    ) -> tuple[pa.Table, Sequence[UnreadableRange]]:
        """Some columns of some rows, by their numbers; rows that cannot be read are nulls, and named."""
        ...


@runtime_checkable
class StoredWindow(PartialWindow, Protocol):
    """The rows of a dataset as they are stored."""

    @property
    def slices(self) -> Sequence[SliceMark]:
        """The slices, in the order of their rows."""
        ...

    def row_of_offset(self, offset: int) -> int | None:
        """The row with an offset."""
        ...

    def row_at_time(self, moment: datetime, stop: Callable[[], bool]) -> int | None:
        """The first row whose event time is at or after a moment."""
        ...


def read_part(
    window: RowWindow, start: int, count: int, columns: Sequence[int]
) -> tuple[pa.Table, Sequence[UnreadableRange]]:
    """Some columns of some rows of any window; in a thread."""
    if isinstance(window, PartialWindow):
        return window.part(start, count, columns)
    return window.window(start, count).select(list(columns)), ()


def slices_of(window: RowWindow) -> Sequence[SliceMark]:
    """The slices, when the window knows of any."""
    return window.slices if isinstance(window, StoredWindow) else ()


def slice_at(slices: Sequence[SliceMark], row: int) -> int:
    """The number of a row's slice from 0; -1 before the first."""
    return bisect_right(slices, row, key=lambda each: each.start) - 1


def extends(older: RowWindow, newer: RowWindow) -> bool:
    """Whether a window has all rows of another, and perhaps some after them."""
    before, after = slices_of(older), slices_of(newer)
    return bool(before) and list(after[: len(before)]) == list(before) and older.columns == newer.columns


class RowPrefix:
    """The first rows of a dataset, as they were before others came.

    Attributes:
        base: all rows.
        row_count: how many there are of them.
        slices: those with these rows.
    """

    def __init__(self, base: RowWindow, rows: int) -> None:
        if isinstance(base, RowPrefix):
            base = base.base
        self.base = base
        self.row_count = min(rows, base.row_count)
        all_slices = slices_of(base)
        self.slices = all_slices[: slice_at(all_slices, self.row_count - 1) + 1] if self.row_count else ()
        self.system_columns = base.system_columns

    @property
    def columns(self) -> pa.Schema:
        """Names and types: the newest there are."""
        return self.base.columns

    def window(self, start: int, count: int) -> pa.Table:
        """Some rows."""
        return self.base.window(start, self._limit_count(start, count))

    def part(
        self, start: int, count: int, columns: Sequence[int]
    ) -> tuple[pa.Table, Sequence[UnreadableRange]]:
        """Some columns of some rows."""
        return read_part(self.base, start, self._limit_count(start, count), columns)

    def row_of_offset(self, offset: int) -> int | None:
        """The row with an offset."""
        if not isinstance(self.base, StoredWindow):
            return offset if offset < self.row_count else None
        return self._row_in_prefix(self.base.row_of_offset(offset))

    def row_at_time(self, moment: datetime, stop: Callable[[], bool]) -> int | None:
        """The first row whose event time is at or after a moment."""
        if not isinstance(self.base, StoredWindow):
            return None
        return self._row_in_prefix(self.base.row_at_time(moment, stop))

    def _limit_count(self, start: int, count: int) -> int:
        return max(min(count, self.row_count - start), 0)

    def _row_in_prefix(self, row: int | None) -> int | None:
        return row if row is not None and row < self.row_count else None
