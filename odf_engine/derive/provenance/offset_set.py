"""Sets of offsets as ranges, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import pyarrow as pa

from odf_engine.data.arrow_compute import pc
from odf_engine.derive.provenance.model import OffsetRange

_MAX_PENDING: Final = 1 << 21
MAX_RANGES: Final = 1_000_000
"""Larger numbers of ranges are not useful, and would exceed memory."""


class OffsetSet:
    """A set of offsets of one input.

    Args:
        ranges: the first offsets.

    Attributes:
        scattered: whether the nearest ranges were merged because there were too many.
    """

    def __init__(self, ranges: Iterable[OffsetRange] = ()) -> None:
        self._starts = pa.array([], pa.int64())
        self._ends = pa.array([], pa.int64())
        self._pending: list[pa.Array] = []
        self._count = 0
        self.scattered = False
        self.add_ranges(ranges)

    def add(self, offsets: pa.Array) -> None:
        """Add offsets in any order, with duplicates."""
        if len(offsets):
            self._pending.append(offsets)
            self._count += len(offsets)
            if self._count > _MAX_PENDING:
                self._merge_pending()

    def add_ranges(self, ranges: Iterable[OffsetRange]) -> None:
        """Add ranges."""
        self._merge_pending()
        added = list(ranges)
        starts = pa.array([run[0] for run in added], pa.int64())
        ends = pa.array([run[1] for run in added], pa.int64())
        self._merge(starts, ends)

    def ranges(self) -> list[OffsetRange]:
        """Return the ranges in ascending order."""
        self._merge_pending()
        return list(zip(self._starts.to_pylist(), self._ends.to_pylist(), strict=True))

    def _merge_pending(self) -> None:
        if not self._pending:
            return
        offsets = pc.unique(pa.chunked_array(self._pending, pa.int64()))
        self._pending, self._count = [], 0
        offsets = offsets.take(pc.sort_indices(offsets))
        self._merge(offsets, offsets)

    def _merge(self, starts: pa.Array, ends: pa.Array) -> None:
        """Add ranges, and merge those that touch or overlap."""
        starts = pa.concat_arrays([self._starts, starts])
        ends = pa.concat_arrays([self._ends, ends])
        order = pc.sort_indices(starts)
        starts, ends = starts.take(order), pc.cumulative_max(ends.take(order))
        self._starts, self._ends = _close_gaps(starts, ends, 1)
        gap = 2
        while len(self._starts) > MAX_RANGES:
            self.scattered = True
            self._starts, self._ends = _close_gaps(self._starts, self._ends, gap)
            gap *= 2


def _close_gaps(starts: pa.Array, ends: pa.Array, gap: int) -> tuple[pa.Array, pa.Array]:
    """Merge sorted ranges that start at most ``gap`` after the end of the previous one."""
    if len(starts) < 2:
        return starts, ends
    apart = pc.greater(starts[1:], pc.add(ends[:-1], gap))
    true = pa.array([True])
    first, last = pa.concat_arrays([true, apart]), pa.concat_arrays([apart, true])
    return starts.filter(first), ends.filter(last)


def normalize_ranges(ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
    """Sort ranges, and merge those that touch or overlap."""
    return OffsetSet(ranges).ranges()
