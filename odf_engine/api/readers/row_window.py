"""Protocols of windows over rows, with slices and unreadable ranges, and RowPrefix."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec

if TYPE_CHECKING:
    import pyarrow as pa


class RowWindow(Protocol):
    """All rows of a dataset, read in ranges. Reads are slow, and never run on the event loop."""

    @property
    def columns(self) -> pa.Schema:
        """The schema."""
        ...

    @property
    def row_count(self) -> int:
        """The number of rows."""
        ...

    @property
    def system_columns(self) -> tuple[str, str, str, str]:
        """The names of the columns of offset, operation, system time and event time."""
        ...

    def window(self, start: int, count: int) -> pa.Table:
        """Return up to ``count`` rows from ``start`` on."""
        ...


UnreadableRange = tuple[int, int, str]
"""Start and exclusive end of rows that cannot be read, and the reason."""


class SliceMark(msgspec.Struct, frozen=True):
    """The start of a slice: its first row, the number of its block, its abbreviated hash.

    ``checks`` describes the results of checks of its commit, if it is the last slice; empty without them.
    """

    start: int
    block: int
    hash: str
    checks: str = ""


@runtime_checkable
class PartialWindow(RowWindow, Protocol):
    """A window that reads single columns, and skips unreadable slices."""

    def part(
        self, start: int, count: int, columns: Sequence[int]
    ) -> tuple[pa.Table, Sequence[UnreadableRange]]:
        """Return some columns of rows, and the unreadable ranges, whose values are nulls."""
        ...


@runtime_checkable
class StoredWindow(PartialWindow, Protocol):
    """The stored rows of a dataset, in the order of their slices."""

    @property
    def slices(self) -> Sequence[SliceMark]:
        """The slices, in the order of their rows."""
        ...

    def row_of_offset(self, offset: int) -> int | None:
        """Return the row with an offset, or None if absent."""
        ...

    def row_at_time(self, moment: datetime, stop: Callable[[], bool]) -> int | None:
        """Return the first row at or after an event time, or None if absent, or after ``stop()``."""
        ...


def read_part(
    window: RowWindow, start: int, count: int, columns: Sequence[int]
) -> tuple[pa.Table, Sequence[UnreadableRange]]:
    """Return some columns of rows of any window, and the unreadable ranges. Slow."""
    if isinstance(window, PartialWindow):
        return window.part(start, count, columns)
    return window.window(start, count).select(list(columns)), ()


def slices_of(window: RowWindow) -> Sequence[SliceMark]:
    """Return the slices of a window, or an empty tuple if it has none."""
    return window.slices if isinstance(window, StoredWindow) else ()


def slice_at(slices: Sequence[SliceMark], row: int) -> int:
    """Return the index of the slice of a row; -1 before the first slice."""
    return bisect_right(slices, row, key=lambda mark: mark.start) - 1


def extends(older: RowWindow, newer: RowWindow) -> bool:
    """Return whether a window starts with all rows of another one."""
    before, after = slices_of(older), slices_of(newer)
    return bool(before) and list(after[: len(before)]) == list(before) and older.columns == newer.columns


class RowPrefix:
    """The first rows of a dataset, as at an earlier block.

    Attributes:
        base: the window over all rows.
        row_count: the number of rows in the prefix.
        slices: the slices with these rows.
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
        """The newest schema."""
        return self.base.columns

    def window(self, start: int, count: int) -> pa.Table:
        """Return rows."""
        return self.base.window(start, self._limit_count(start, count))

    def part(
        self, start: int, count: int, columns: Sequence[int]
    ) -> tuple[pa.Table, Sequence[UnreadableRange]]:
        """Return some columns of rows."""
        return read_part(self.base, start, self._limit_count(start, count), columns)

    def row_of_offset(self, offset: int) -> int | None:
        """Return the row with an offset, or None if absent."""
        if not isinstance(self.base, StoredWindow):
            return offset if offset < self.row_count else None
        return self._row_in_prefix(self.base.row_of_offset(offset))

    def row_at_time(self, moment: datetime, stop: Callable[[], bool]) -> int | None:
        """Return the first row at or after an event time, or None if absent."""
        if not isinstance(self.base, StoredWindow):
            return None
        return self._row_in_prefix(self.base.row_at_time(moment, stop))

    def _limit_count(self, start: int, count: int) -> int:
        return max(min(count, self.row_count - start), 0)

    def _row_in_prefix(self, row: int | None) -> int | None:
        return row if row is not None and row < self.row_count else None
