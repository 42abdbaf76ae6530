"""The axes of a dataset's history, and the slider over them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate, pairwise
from math import ceil, log1p
from typing import TYPE_CHECKING, ClassVar, Final, Literal

import msgspec
from rich.cells import cell_len
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import Input

from odf_engine.metadata.timestamp import Timestamp
from odf_tui.gateway.protocol import FileTimeRange
from odf_tui.text.format import Span, count_of, ellipsize_middle, fit_width, format_count, printable
from odf_tui.widgets.line_view import LineScroll

if TYPE_CHECKING:
    from odf_tui.gateway.protocol import Timeline


AxisName = Literal["at", "of"]
Move = Literal["back", "on", "cell_back", "cell_on", "page_back", "page_on", "first", "last"]
MAX_PROBED: Final = 4000
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


class PointInTime(msgspec.Struct, frozen=True):
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
        return f"as at {moment} · block {format_count(self.block)} of {format_count(self.head)}"

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


def bar_heights(amounts: Sequence[float]) -> list[int]:
    """Heights of bars from 0 to 6: every amount can be seen beside one that is a thousand times it."""
    most = log1p(max(amounts, default=0))
    return [0 if each <= 0 else max(1, ceil(_HIGHEST * log1p(each) / most)) for each in amounts]


def probe_order(stops: int) -> Iterator[int]:
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

    def learn(self, probes: Sequence[FileTimeRange]) -> None:
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

    def place(self, key: tuple[str, ...] | None) -> PointInTime:
        """Where it is."""
        line, at = self.line, self.position
        return PointInTime("at", line.times[at], line.blocks[at], line.rows[at], line.head, self._finely, key)

    def holds(self, place: PointInTime) -> bool:
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
        return bar_heights(amounts)

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
        words = [f"block {format_count(self.line.blocks[stop])} · +{count_of(rows, 'row')}"]
        if _has(self._changing, stop):
            words.append("corrections")
        if _has(self.line.schemas, stop):
            words.append("new schema")
        return ", ".join(words)


class EventTimeAxis:
    """A slider along event time; its position is a moment in milliseconds since 1970."""

    name: AxisName = "of"

    def __init__(self) -> None:
        self.least = self.greatest = self.position = 0
        self.known = False
        self._kept = False
        self._grain = _DAY
        self._groups: list[tuple[int, int, int]] = []
        self._moments: set[int] = set()

    def learn(self, probes: Sequence[FileTimeRange]) -> None:
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

    def place(self, key: tuple[str, ...] | None) -> PointInTime:
        """Where it is."""
        ms = self.position
        return PointInTime(
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
        return bar_heights([round(amount, 6) for amount in cells])

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


_MARKS: Final = {"c": "warn", "s": "name", "x": "warn"}
_LEGEND: Final = {"c": "corrections", "s": "new schema", "x": "both"}
_LOW: Final = 18
"""Lines of the screen up to which the slider is as low as it can be."""
_WHOLE, _SMALL, _KEPT = 4, 2, 1


class TimeSlider(LineScroll, can_focus=True):
    """The slider itself. What its keys ask for are messages to the panel's screen."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "go('back')", show=False),
        Binding("right,l", "go('on')", show=False),
        Binding("left_square_bracket", "go('cell_back')", show=False),
        Binding("right_square_bracket", "go('cell_on')", show=False),
        Binding("pageup", "go('page_back')", show=False),
        Binding("pagedown", "go('page_on')", show=False),
        Binding("home", "go('first')", show=False),
        Binding("end", "go('last')", show=False),
        Binding("t", "say('type')", show=False),
        Binding("enter", "say('keep')", show=False),
        Binding("escape", "say('now')", show=False),
    ]

    @dataclass
    class Moved(Message):
        """The slider stands elsewhere."""

    @dataclass
    class Pressed(Message):
        """A key: ``type``, ``keep``, ``now``; ``refocus`` when it was clicked."""

        what: str

    def __init__(self, blocks: BlockAxis, place: PointInTime | None) -> None:
        super().__init__(id="time-track")
        self.blocks, self.events = blocks, EventTimeAxis()
        self.axis: BlockAxis | EventTimeAxis = blocks
        self._lines = _KEPT
        self._chosen: set[str] = set()
        if place is not None:
            self._chosen.add(place.axis)
        if place is not None and place.axis == "of":
            self.axis = self.events
            self.events.keep(place.moment)
        elif place is not None:
            blocks.go(blocks.stop_of_block(place.block))
        self.said: Span | None = None

    @property
    def track_width(self) -> int:
        """Cells of the track."""
        return max(self.size.width - 2, 8)

    def learn(self, probes: Sequence[FileTimeRange]) -> None:
        """Knows what files say of themselves."""
        self.blocks.learn(probes)
        self.events.learn(probes)
        self.refresh()

    def tell(self, text: str = "", style: str = "busy") -> None:
        """Says what is being done, in place of the legend."""
        said = (printable(text), style) if text else None
        if said != self.said:
            self.said = said
            self.refresh()

    @property
    def chosen(self) -> bool:
        """Whether a place on the axis was chosen."""
        return self.axis.name in self._chosen

    def choose(self, axis: BlockAxis | EventTimeAxis) -> None:
        """Goes along this axis from now on."""
        self.axis = axis
        self.tell()
        self.refresh()

    def go(self, position: int) -> None:
        """Goes to a position, without saying so."""
        self.axis.go(position)
        self._chosen.add(self.axis.name)
        self.tell()
        self.refresh()

    def action_go(self, move: Move) -> None:
        """Goes along the axis; from now, the first step back goes before the newest."""
        if self.axis.move(move, self.track_width) or not self.chosen:
            self._tell_moved()

    def _tell_moved(self) -> None:
        self._chosen.add(self.axis.name)
        self.refresh()
        self.post_message(self.Moved())

    def action_say(self, what: str) -> None:
        """A key."""
        self.post_message(self.Pressed(what))

    def on_click(self, event: events.Click) -> None:
        """The mouse points at a place."""
        event.stop()
        offset = event.get_content_offset(self)
        self.post_message(self.Pressed("refocus"))
        if offset is not None:
            cell = max(0, min(offset.x - 1, self.track_width - 1))
            if self.axis.go(self.axis.position_at(cell, self.track_width)) or not self.chosen:
                self._tell_moved()

    @property
    def has_keys(self) -> bool:
        """Whether the keys go here; :attr:`has_focus` comes to know of it later."""
        return self.is_attached and self.screen.focused is self

    def on_focus(self) -> None:
        """The keys go here."""
        self.fit()

    def on_blur(self) -> None:
        """The keys go elsewhere: only the track stays."""
        self.fit()

    def fit(self) -> None:
        """As high as there is room for."""
        if not self.is_attached:
            return  # the slider was closed
        low = self.screen.size.height <= _LOW
        self._lines = (_SMALL if low else _WHOLE) if self.has_keys else _KEPT
        if self.styles.height is None or self.styles.height.value != self._lines:
            self.styles.height = self._lines
        self.reset()

    def on_mount(self) -> None:
        """As high as there is room for."""
        self.fit()

    def on_resize(self) -> None:
        """There is more room, or less."""
        self.fit()

    # --- Drawing ---

    def count(self) -> int:
        """Rule, bars, track, words; or some of them."""
        return self._lines

    def spans(self, index: int) -> Sequence[Span]:
        """A line."""
        lines = {
            _WHOLE: (self._rule, self._bars, self._track, self._words),
            _SMALL: (self._track, self._words),
        }
        found = lines.get(self._lines, (self._track,))
        return found[index]() if index < len(found) else ()

    def _rule(self) -> Sequence[Span]:
        """What moves along, and what the signs mean, in a rule."""
        axis = self.axis
        if self.said is not None:
            text, style = self.said
            said = ellipsize_middle(text, max(self.size.width - 8, 8))
            return [
                ("── ", "rule"),
                (said, style),
                (" " + "─" * max(self.size.width - 4 - cell_len(said), 0), "rule"),
            ]
        if isinstance(axis, BlockAxis):
            stops = axis.stops
            head = f" as at: {count_of(stops, 'block')} that brought rows "
        else:
            head = f" as of: event time, in steps of {_step_words(axis.unit)} "
        spans: list[Span] = [("──", "rule"), (head, "head")]
        signs = set(self.axis.marks(self.track_width).values())
        if signs or self.blocks.stops > MAX_PROBED:
            spans.append(("── ", "rule"))
            for sign in sorted(signs):
                spans += [(sign, _MARKS[sign]), (f" {_LEGEND[sign]} ", "muted")]
        if self.blocks.stops > MAX_PROBED:
            spans.append((f"as {format_count(MAX_PROBED)} files say ", "muted"))
        used = sum(cell_len(text) for text, _ in spans)
        return [*spans, ("─" * max(self.size.width - used, 0), "rule")]

    def _bars(self) -> Sequence[Span]:
        return [(" ", ""), ("".join(BARS[level] for level in self.axis.bars(self.track_width)), "muted")]

    def _track(self) -> Sequence[Span]:
        """What is over, where it is, and what is not known yet there."""
        width, axis = self.track_width, self.axis
        at = axis.cell_of(axis.position, width)
        marks = axis.marks(width)
        spans: list[Span] = [(" ", "")]
        for cell in range(width):
            if cell == at:
                spans.append(("●" if self.chosen else "○", "key" if self.has_keys else "strong"))
            elif cell in marks:
                spans.append((marks[cell], _MARKS[marks[cell]]))
            else:
                spans.append(("━", "name") if cell < at else ("┄", "rule"))
        return spans

    def _words(self) -> Sequence[Span]:
        """The ends of the track, and where it is between them."""
        first, last = self.axis.ends()
        here = self._here()
        room = self.size.width - 2
        middle = max(room - len(first) - len(last) - 4, 0)
        if len(here) > middle:  # both ends where there is room, else what matters
            return [(f" {fit_width(here, room)}", "strong")]
        before = (middle - len(here)) // 2
        after = middle - len(here) - before
        return [
            (f" {first}  {' ' * before}", "muted"),
            (here, "strong"),
            (f"{' ' * after}  {last}", "muted"),
        ]

    def _here(self) -> str:
        return self.axis.about() if self.chosen else "← → choose a time"


class TimePanel(Vertical):
    """The slider, and a line to type a time into.

    Attributes:
        dataset: id of the dataset.
        track: the slider.
        line: the line; hidden until a time is typed.
        order: the stops whose files are read next, for the marks of the slider.
        probed: how many files were read.
    """

    @dataclass
    class Typed(Message):
        """A time or a block was typed; empty: nothing."""

        text: str

    def __init__(self, dataset: str, blocks: BlockAxis, place: PointInTime | None) -> None:
        super().__init__(id="time-panel")
        self.dataset = dataset
        self.track = TimeSlider(blocks, place)
        self.order = probe_order(blocks.stops)
        self.probed = 0
        self.line = Input(id="time-text", compact=True)
        self.line.cursor_blink = False
        self.line.display = False

    def compose(self) -> ComposeResult:
        """Yield slider and line."""
        yield self.track
        yield self.line

    def ask(self) -> None:
        """Opens the line."""
        line = self.line
        of = isinstance(self.track.axis, EventTimeAxis)
        line.placeholder = "2026-03-01 14:00" + ("" if of else ", or a block: its number or hash")
        line.value = ""
        line.display = True
        self.screen.set_focus(line)

    def close_line(self) -> None:
        """Gives the keys back to the slider."""
        self.line.display = False
        self.screen.set_focus(self.track)

    def on_input_changed(self, event: Input.Changed) -> None:
        """It is nobody's filter."""
        event.stop()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Typed."""
        event.stop()
        self.post_message(self.Typed(event.value.strip()))

    def on_key(self, event: events.Key) -> None:
        """Escape takes back what was being typed."""
        if event.key == "escape" and self.line.has_focus:
            event.stop()
            event.prevent_default()
            self.post_message(self.Typed(""))

    def on_click(self, event: events.Click) -> None:
        """The pane itself would take the keys."""
        event.stop()


def _step_words(unit: int) -> str:
    """A length of event time."""
    for size, word in ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1000, "second")):
        if unit % size == 0:
            times = unit // size
            return f"{times} {word}s" if times > 1 else f"a {word}" if word != "hour" else "an hour"
    return f"{unit} ms"
