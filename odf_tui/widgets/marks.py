"""Rows that a reader has marked."""

from __future__ import annotations

from collections.abc import Sequence


class Marks:
    """Ranges of rows. The first mark begins a range, the second one ends it.

    Attributes:
        anchor: where a range was begun.
    """

    def __init__(self) -> None:
        self.anchor: int | None = None
        self._ranges: list[tuple[int, int]] = []

    def press(self, row: int) -> None:
        """Begins a range at a row, ends the one that was begun, or takes a marked row out."""
        if self.anchor is not None:
            self._add(min(self.anchor, row), max(self.anchor, row) + 1)
            self.anchor = None
        elif row in self:
            self._remove(row)
        else:
            self._add(row, row + 1)
            self.anchor = row

    def clear(self) -> bool:
        """Takes all marks away; whether there were some."""
        there = bool(self._ranges)
        self._ranges, self.anchor = [], None
        return there

    def __contains__(self, row: int) -> bool:
        return any(start <= row < stop for start, stop in self._ranges)

    @property
    def ranges(self) -> Sequence[tuple[int, int]]:
        """The ranges in order, each from a row to the one after its last."""
        return tuple(self._ranges)

    @property
    def count(self) -> int:
        """How many rows are marked."""
        return sum(stop - start for start, stop in self._ranges)

    def _add(self, start: int, stop: int) -> None:
        apart = [each for each in self._ranges if each[1] < start or each[0] > stop]
        near = [each for each in self._ranges if each not in apart]
        start = min([start, *(each[0] for each in near)])
        stop = max([stop, *(each[1] for each in near)])
        self._ranges = sorted([*apart, (start, stop)])

    def _remove(self, row: int) -> None:
        at = next(each for each in self._ranges if each[0] <= row < each[1])
        self._ranges.remove(at)
        left = [part for part in ((at[0], row), (row + 1, at[1])) if part[0] < part[1]]
        self._ranges = sorted([*self._ranges, *left])
