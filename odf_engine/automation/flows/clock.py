"""The time of the scheduler: the wall clock, without the jumps of a clock that is wrong for a moment."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

_TOLERANCE_SECONDS: Final = 1.0
"""Smaller differences are drift and corrections of it."""
_CONFIRMATION_SECONDS: Final = 30.0


def elapsed_seconds() -> float:
    """Return the seconds since the start of the computer, with the time that it was suspended if possible."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


class SteadyClock:
    """A wall clock that advances with the elapsed time.

    When the wall clock is set, the time follows it only after 30 seconds: a clock that is wrong for a moment,
    as before a correction by NTP, neither starts nor delays anything.

    Args:
        wall: returns the seconds since 1970.
        elapsed: returns the elapsed seconds; also while the computer is suspended.
    """

    def __init__(
        self, wall: Callable[[], float] = time.time, elapsed: Callable[[], float] = elapsed_seconds
    ) -> None:
        self._read_wall, self._read_elapsed = wall, elapsed
        self._offset = wall() - elapsed()
        self._last = wall()
        self._candidate: tuple[float, float] | None = None
        self._step = 0.0

    def now(self) -> float:
        """Return the seconds since 1970. The time goes back only when the clock was set back."""
        wall, elapsed = self._read_wall(), self._read_elapsed()
        step = wall - elapsed - self._offset
        if abs(step) < _TOLERANCE_SECONDS:
            self._candidate = None
            self._offset += step
        elif self._candidate is None or abs(self._candidate[0] - step) >= _TOLERANCE_SECONDS:
            self._candidate = step, elapsed
        elif elapsed - self._candidate[1] >= _CONFIRMATION_SECONDS:
            self._candidate = None
            self._offset += step
            self._step += step
            self._last = wall
        self._last = max(self._last, elapsed + self._offset)
        return self._last

    def take_step(self) -> float:
        """Return by how many seconds the clock was set since the last call: negative if back, 0 if not."""
        step, self._step = self._step, 0.0
        return step
