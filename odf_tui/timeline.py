"""The history of a dataset as a slider shows it: along the blocks that brought rows, or along event time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import accumulate, pairwise
from math import ceil, log1p
from typing import Final, Literal, Protocol

import msgspec

from odf_engine.metadata.timestamp import Timestamp
from odf_tui.humane import count

AxisName = Literal["at", "of"]
Move = Literal["back", "on", "cell_back", "cell_on", "page_back", "page_on", "first", "last"]

MOST_PROBED: Final = 4000
"""The most files whose ends are read for the marks of one slider."""
BARS: Final = " ▁▂▃▄▅▆▇█"

_HIGHEST: Final = 6  # whole blocks would weigh more than the slider below them
_PAGES: Final = 10
_SECOND: Final = 1000
_DAY: Final = 86_400 * _SECOND
_UNITS: Final = (
    1, 10, 100, _SECOND, 10 * _SECOND, 60 * _SECOND, 600 * _SECOND, 3600 * _SECOND, 21_600 * _SECOND,
    _DAY, 7 * _DAY, 30 * _DAY, 365 * _DAY,
)  # fmt: skip
_STEPS: Final = 150
"""Into about how many steps event time is divided."""
_PARTS: Final = 8


class Probe(msgspec.Struct, frozen=True):
    """What the file of a stop says of itself.

    Attributes:
        stop: the number of the stop, from 0.
        changes: whether it has retractions or corrections.
        groups: rows, least and greatest event time of its parts, in milliseconds since 1970.
        moments: event times of some of its retractions and corrections.
    """

    stop: int
    changes: bool
    groups: tuple[tuple[int, int, int], ...] = ()
    moments: tuple[int, ...] = ()


class Timeline(Protocol):
    """The blocks of a dataset that brought rows, its stops, oldest first; as they were when this was read.

    Attributes:
        blocks: their numbers.
        rows: how many rows the changelog has up to each.
        times: their system times, in milliseconds since 1970.
        head: the number of the newest block of all.
        schemas: the stops before which the schema changed.
        timed: whether the rows have event times.
    """

    blocks: Sequence[int]
    rows: Sequence[int]
    times: Sequence[int]
    head: int
    schemas: Sequence[int]
    timed: bool

    def probe(self, stops: Sequence[int]) -> list[Probe]:
        """Reads what the files of some stops say of themselves; slow, and those that cannot be read say
        nothing."""
        ...


class Place(msgspec.Struct, frozen=True):
    """A time at which rows are seen.

    Attributes:
        axis: ``at`` a block, or ``of`` an event time.
        block, rows, head: of a block: its number, the rows up to it, the newest number when it was chosen.
        moment: the block's system time, or the event time, in milliseconds since 1970.
        finely: how exactly the moment is said, see :func:`moment_words`.
        key: columns, for the newest row of each key alone; None: whatever is usual.
    """

    axis: AxisName
    moment: int
    block: int = 0
    rows: int = 0
    head: int = 0
    finely: int = 0
    key: tuple[str, ...] | None = None

    @property
    def words(self) -> str:
        """The time, for a title."""
        moment = moment_words(self.moment, self.finely)
        if self.axis == "of":
            return f"as of {moment}"
        return f"as at {moment} · block {count(self.block)} of {count(self.head)}"

    @property
    def direct(self) -> bool:
        """Whether the rows are the first ones of the changelog as they are."""
        return self.axis == "at" and self.key is None

    @property
    def as_of(self) -> str | None:
        """The event time as RFC 3339."""
        return str(Timestamp.from_ms(self.moment)) if self.axis == "of" else None


def moment_words(ms: int, finely: int = 0) -> str:
    """A moment in UTC: to the minute (0), to the second (1), or to the millisecond (2)."""
    try:
        moment = datetime.fromtimestamp(ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):  # before the year 1 or so
        return f"{ms} ms"
    if finely > 1:
        return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{ms % _SECOND:03d}"
    return moment.strftime("%Y-%m-%d %H:%M:%S" if finely else "%Y-%m-%d %H:%M")


def _finely(times: Sequence[int]) -> int:
    """How exactly moments are said so that those after each other are told apart."""
    for finely, unit in ((0, 60 * _SECOND), (1, _SECOND)):
        if all(after // unit > before // unit or after == before for before, after in pairwise(times)):
            return finely
    return 2


def levels(amounts: Sequence[float]) -> list[int]:
    """Heights of bars from 0 to 6: every amount can be seen beside one that is a thousand times it."""
    most = log1p(max(amounts, default=0))
    return [0 if each <= 0 else max(1, ceil(_HIGHEST * log1p(each) / most)) for each in amounts]


def probing_order(stops: int) -> Iterator[int]:
    """All stops, so that the first of them are spread evenly; the ends come first."""
    if stops:
        yield stops - 1
    step = 1 << max(stops - 1, 0).bit_length()
    seen = {stops - 1}
    while step:
        for stop in range(0, stops, step):
            if stop not in seen and (step == 1 << max(stops - 1, 0).bit_length() or stop % (2 * step)):
                yield stop
        step //= 2


class BlockAxis:
    """A slider along the blocks that brought rows; its position is the number of a stop."""

    name: AxisName = "at"

    def __init__(self, line: Timeline) -> None:
        self.line = line
        self.position = max(len(line.blocks) - 1, 0)
        self._finely = _finely(line.times)
        self._changing: list[int] = []

    def learn(self, probes: Sequence[Probe]) -> None:
        """Knows what files say of themselves."""
        self._changing = sorted({*self._changing, *(probe.stop for probe in probes if probe.changes)})

    @property
    def stops(self) -> int:
        """How many there are."""
        return len(self.line.blocks)

    def move(self, move: Move, width: int) -> bool:
        """Goes elsewhere; whether that is another stop."""
        cell = max(self.stops // max(width, 1), 1)
        page = max(self.stops // _PAGES, 1)
        steps = {"back": -1, "on": 1, "cell_back": -cell, "cell_on": cell, "page_back": -page,
                 "page_on": page, "first": -self.stops, "last": self.stops}  # fmt: skip
        return self.go(self.position + steps[move])

    def go(self, stop: int) -> bool:
        """Goes to a stop, or the first or last; whether that is another."""
        before, self.position = self.position, max(0, min(stop, self.stops - 1))
        return self.position != before

    def stop_at(self, moment: int) -> int:
        """The newest stop of a moment; -1: there was none yet."""
        return bisect_right(self.line.times, moment) - 1

    def stop_of_block(self, block: int) -> int:
        """The newest stop up to a block; -1: there was none yet."""
        return bisect_right(self.line.blocks, block) - 1

    def place(self, key: tuple[str, ...] | None) -> Place:
        """Where it is."""
        line, at = self.line, self.position
        return Place("at", line.times[at], line.blocks[at], line.rows[at], line.head, self._finely, key)

    def holds(self, place: Place) -> bool:
        """Whether a place is one of this history; event times are of every history."""
        stop, line = self.stop_of_block(place.block), self.line
        if place.axis == "of":
            return True
        known = (place.block, place.rows, place.moment)
        return stop >= 0 and (line.blocks[stop], line.rows[stop], line.times[stop]) == known

    def brought(self, stop: int) -> int:
        """How many rows a stop brought."""
        return self.line.rows[stop] - (self.line.rows[stop - 1] if stop else 0)

    def cell_of(self, stop: int, width: int) -> int:
        """The cell of a stop."""
        return 0 if self.stops < 2 else round(stop * (width - 1) / (self.stops - 1))

    def position_at(self, cell: int, width: int) -> int:
        """The stop of a cell."""
        return 0 if self.stops < 2 else round(cell * (self.stops - 1) / max(width - 1, 1))

    def bars(self, width: int) -> list[int]:
        """How much came, cell by cell."""
        amounts = [0.0] * width
        if self.stops <= 8 * width:
            for stop in range(self.stops):
                amounts[self.cell_of(stop, width)] += self.brought(stop)
        else:
            ends = [self.line.rows[(cell + 1) * self.stops // width - 1] for cell in range(width)]
            amounts = [float(after - before) for before, after in zip([0, *ends], ends, strict=False)]
        return levels(amounts)

    def marks(self, width: int) -> dict[int, str]:
        """Signs in cells: s where the schema changed, c where rows were taken back or corrected, x both."""
        schemas = {self.cell_of(stop, width) for stop in self.line.schemas}
        changing = {self.cell_of(stop, width) for stop in self._changing}
        return {
            cell: "x" if cell in schemas and cell in changing else "s" if cell in schemas else "c"
            for cell in schemas | changing
        }

    def ends(self) -> tuple[str, str]:
        """The first and the last time."""
        times = self.line.times
        finely = min(self._finely, 1)
        return moment_words(times[0], finely), moment_words(times[-1], finely)

    def about(self) -> str:
        """What is known of where it is."""
        stop = self.position
        rows = self.brought(stop)
        words = [f"block {count(self.line.blocks[stop])} · +{count(rows)} {'row' if rows == 1 else 'rows'}"]
        if _has(self._changing, stop):
            words.append("corrections")
        if _has(self.line.schemas, stop):
            words.append("new schema")
        return ", ".join(words)


class EventAxis:
    """A slider along event time; its position is a moment in milliseconds since 1970."""

    name: AxisName = "of"

    def __init__(self) -> None:
        self.least = self.greatest = self.position = 0
        self.known = False
        self._kept = False
        self._grain = _DAY
        self._groups: list[tuple[int, int, int]] = []
        self._moments: set[int] = set()

    def learn(self, probes: Sequence[Probe]) -> None:
        """Knows what files say of themselves; the axis becomes longer, never shorter."""
        new = [group for probe in probes for group in probe.groups]
        for probe in probes:
            self._moments.update(probe.moments)
        if not new:
            return
        self._groups += new
        for bound in {bound for group in new for bound in group[1:]}:
            while bound % self._grain:  # no finer than the data is
                self._grain = max(unit for unit in _UNITS if unit < self._grain)
        least, greatest = min(group[1] for group in new), max(group[2] for group in new)
        self.least = min(self.least, least) if self.known else least
        self.greatest = max(self.greatest, greatest) if self.known else greatest
        self.known = True
        if not self._kept:
            self.position = self.greatest

    def keep(self, moment: int) -> None:
        """Stands at a moment, whatever becomes known."""
        self.position, self._kept = moment, True

    @property
    def unit(self) -> int:
        """How far a step goes, in milliseconds."""
        span = max(self.greatest - self.least, 1)
        return max(self._grain, max((unit for unit in _UNITS if unit * _STEPS <= span), default=1))

    def move(self, move: Move, width: int) -> bool:
        """Goes elsewhere, to whole units; whether that is another moment."""
        span, unit = self.greatest - self.least, self.unit
        cell = max(span // max(width, 1) // unit, 1) * unit
        page = max(span // _PAGES // unit, 1) * unit
        if move == "first" or move == "last":
            return self.go(self.least if move == "first" else self.greatest)
        step = unit if move in ("back", "on") else cell if move in ("cell_back", "cell_on") else page
        if move.endswith("back"):
            return self.go(-(-self.position // unit) * unit - step)
        return self.go(self.position // unit * unit + step)

    def go(self, moment: int) -> bool:
        """Goes to a moment, or the first or last; whether that is another."""
        before, self._kept = self.position, True
        self.position = max(self.least, min(moment, self.greatest))
        return self.position != before

    def place(self, key: tuple[str, ...] | None) -> Place:
        """Where it is."""
        ms = self.position
        return Place(
            "of", ms, finely=0 if ms % (60 * _SECOND) == 0 else 1 if ms % _SECOND == 0 else 2, key=key
        )

    def cell_of(self, moment: int, width: int) -> int:
        """The cell of a moment."""
        span = self.greatest - self.least
        if span <= 0:
            return width - 1
        return max(0, min((moment - self.least) * (width - 1) // span, width - 1))

    def position_at(self, cell: int, width: int) -> int:
        """The moment of a cell."""
        found = self.least + cell * (self.greatest - self.least) // max(width - 1, 1)
        return found if cell >= width - 1 else found // self.unit * self.unit

    def bars(self, width: int) -> list[int]:
        """How many rows happened, cell by cell, as far as files were asked: spread between their ends."""
        parts = width * _PARTS
        changes = [0.0] * (parts + 1)
        for rows, least, greatest in self._groups:
            first, last = self.cell_of(least, parts), self.cell_of(greatest, parts)
            changes[first] += rows / (last - first + 1)
            changes[last + 1] -= rows / (last - first + 1)
        amounts = list(accumulate(changes[:parts]))
        cells = (sum(amounts[cell * _PARTS : (cell + 1) * _PARTS]) for cell in range(width))
        return levels([round(amount, 6) for amount in cells])

    def marks(self, width: int) -> dict[int, str]:
        """Signs in cells: c where rows were taken back or corrected."""
        return {self.cell_of(moment, width): "c" for moment in self._moments}

    def ends(self) -> tuple[str, str]:
        """The first and the last time."""
        return moment_words(self.least), moment_words(self.greatest)

    def about(self) -> str:
        """What is known of where it is."""
        words = moment_words(self.position, self.place(None).finely)
        return f"{words} · all that happened" if self.position >= self.greatest else words


def _has(numbers: Sequence[int], number: int) -> bool:
    at = bisect_left(numbers, number)
    return at < len(numbers) and numbers[at] == number
