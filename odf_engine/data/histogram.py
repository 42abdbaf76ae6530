"""A mergeable histogram with bins of equal width that double when there are too many."""

from __future__ import annotations

import math
from typing import Any, Final

import msgspec

from odf_engine.base.arrow import pa, pc

MAX_BINS: Final = 24
_MIN_EXPONENT: Final = -1000


class Histogram(msgspec.Struct):
    """Counts of numbers in bins of the width ``2 ** exponent``, by the number of the bin."""

    exponent: int | None = None
    bins: dict[int, int] = {}

    def add(self, values: pa.Array, integral: bool) -> None:
        """Count 64-bit floating point numbers. With ``integral``, no bin is narrower than one."""
        values = values.filter(pc.fill_null(pc.is_finite(values), False))
        if not len(values):
            return
        low, high = pc.min_max(values).values()
        exponent = _smallest_exponent(low.as_py(), high.as_py(), 0 if integral else _MIN_EXPONENT)
        if self.exponent is not None:
            exponent = max(exponent, self.exponent)
        self._widen(exponent)
        numbers = pc.floor(pc.multiply(values, math.ldexp(1.0, -exponent))).cast(pa.int64())
        for entry in pc.value_counts(numbers).to_pylist():
            self.bins[entry["values"]] = self.bins.get(entry["values"], 0) + entry["counts"]
        while max(self.bins) - min(self.bins) >= MAX_BINS:
            self._widen(exponent := exponent + 1)

    def counts(self) -> list[int]:
        """Return the counts from the lowest bin to the highest."""
        return [self.bins.get(at, 0) for at in range(min(self.bins), max(self.bins) + 1)] if self.bins else []

    def _widen(self, exponent: int) -> None:
        by = exponent - (exponent if self.exponent is None else self.exponent)
        self.exponent = exponent
        if by:
            bins: dict[int, int] = {}
            for number, count in self.bins.items():
                bins[number >> by] = bins.get(number >> by, 0) + count
            self.bins = bins


def _smallest_exponent(low: float, high: float, narrowest: int) -> int:
    """Return the smallest exponent that divides the range into at most :data:`MAX_BINS` bins."""
    half: Any = high / 2 - low / 2
    largest = max(abs(low), abs(high))
    # The numbers of bins must fit in 64-bit integers.
    floor = max(narrowest, math.frexp(largest)[1] - 52 if largest else 0)
    exponent = floor if half <= 0 else max(floor, math.frexp(half / MAX_BINS)[1])
    while math.floor(math.ldexp(high, -exponent)) - math.floor(math.ldexp(low, -exponent)) >= MAX_BINS:
        exponent += 1
    return max(exponent, _MIN_EXPONENT)
