"""Places of rows that come in any order, folded into runs as they come: memory holds the runs alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import pyarrow as pa

from odf_engine.data.kernels import pc
from odf_engine.workspace.traced import Run

_MOST_WAITING: Final = 1 << 21
MOST_RUNS: Final = 1_000_000
"""More of them help nobody, and would not fit."""


class Folding:
    """The offsets of rows of one input.

    Attributes:
        scattered: there were too many runs: those nearest to each other were taken as one.
    """

    def __init__(self) -> None:
        self._starts = pa.array([], pa.int64())
        self._ends = pa.array([], pa.int64())
        self._waiting: list[pa.Array] = []
        self._count = 0
        self.scattered = False

    def add(self, offsets: pa.Array) -> None:
        """Takes offsets in any order, each any number of times."""
        if len(offsets):
            self._waiting.append(offsets)
            self._count += len(offsets)
            if self._count > _MOST_WAITING:
                self._fold()

    def add_runs(self, runs: Iterable[Run]) -> None:
        """Takes whole runs."""
        self._fold()
        found = list(runs)
        starts = pa.array([run[0] for run in found], pa.int64())
        ends = pa.array([run[1] for run in found], pa.int64())
        self._merge(starts, ends)

    def runs(self) -> list[Run]:
        """What there is, in ascending order."""
        self._fold()
        return list(zip(self._starts.to_pylist(), self._ends.to_pylist(), strict=True))

    def _fold(self) -> None:
        if not self._waiting:
            return
        offsets = pc.unique(pa.chunked_array(self._waiting, pa.int64()))
        self._waiting, self._count = [], 0
        offsets = offsets.take(pc.sort_indices(offsets))
        self._merge(offsets, offsets)

    def _merge(self, starts: pa.Array, ends: pa.Array) -> None:
        """Adds runs; those that touch or overlap become one."""
        starts = pa.concat_arrays([self._starts, starts])
        ends = pa.concat_arrays([self._ends, ends])
        order = pc.sort_indices(starts)
        starts, ends = starts.take(order), pc.cumulative_max(ends.take(order))
        self._starts, self._ends = _closed(starts, ends, 1)
        gap = 2
        while len(self._starts) > MOST_RUNS:
            self.scattered = True
            self._starts, self._ends = _closed(self._starts, self._ends, gap)
            gap *= 2


def _closed(starts: pa.Array, ends: pa.Array, gap: int) -> tuple[pa.Array, pa.Array]:
    """Runs in order, as one where the next begins at most ``gap`` after the end."""
    if len(starts) < 2:
        return starts, ends
    apart = pc.greater(starts[1:], pc.add(ends[:-1], gap))
    yes = pa.array([True])
    first, last = pa.concat_arrays([yes, apart]), pa.concat_arrays([apart, yes])
    return starts.filter(first), ends.filter(last)


def folded(runs: Sequence[Run]) -> list[Run]:
    """Runs in any order, in ascending order."""
    folding = Folding()
    folding.add_runs(runs)
    return folding.runs()
