"""Two lines about speed and memory, as small bars: one a second, the newest at the right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.cells import cell_len

from odf_tui.pace import Pressure, sparkline
from odf_tui.widgets.lines import LineScroll, Span

_MOST: Final = 120
_WIDE: Final = 90


class Gauges(LineScroll):
    """Speed and memory."""

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self.pressure: Pressure | None = None

    def set(self, pressure: Pressure | None) -> None:
        """Shows other values."""
        if pressure != self.pressure:
            self.pressure = pressure
            self.reset()

    def count(self) -> int:
        """Two."""
        return 0 if self.pressure is None else 2

    def spans(self, index: int) -> Sequence[Span]:
        """A line."""
        return [] if self.pressure is None else gauge_lines(self.pressure, self.room.width)[index]


def gauge_lines(pressure: Pressure, width: int) -> list[list[Span]]:
    """Speed, and memory, in lines of a width."""
    rate = pressure.rate or "nothing moves"
    memory = pressure.memory + (pressure.whole if width >= _WIDE else "")
    room = max(min(width - 11 - max(cell_len(rate), cell_len(memory)), _MOST), 0)
    seconds = max(len(pressure.rates), len(pressure.heap))
    bars = min(room, seconds)

    def line(name: str, values: Sequence[float], most: float, words: str) -> list[Span]:
        drawn = sparkline(values, bars, most).rjust(bars)
        return [(f" {name:<8}", "muted"), (drawn, "name"), (f"  {words}", "")]

    return [
        line("speed", pressure.rates, 0, rate),
        line("memory", pressure.heap, pressure.heap_max, memory),
    ]
