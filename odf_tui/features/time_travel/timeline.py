"""The axes of the timeline of a dataset, and the slider over them."""

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

from odf_engine.api import Timestamp
from odf_engine.api.model import FileTimeRange
from odf_engine.api.text import count_of, format_count, printable
from odf_tui.text.format import Span, ellipsize_middle, fit_width
from odf_tui.widgets.line_view import LineScroll

if TYPE_CHECKING:
    from odf_engine.api.readers.row_reader import RowTimeline


AxisName = Literal["at", "of"]
Move = Literal["back", "on", "cell_back", "cell_on", "page_back", "page_on", "first", "last"]
MAX_PROBED: Final = 4000
"""Maximum number of files to read for the signs of one slider."""
BARS: Final = " ▁▂▃▄▅▆▇█"
_HIGHEST: Final = 6  # full blocks would dominate the slider below them
_PAGES: Final = 10
_SECOND: Final = 1000
_DAY: Final = 86_400 * _SECOND
_UNITS: Final = (
    1, 10, 100, _SECOND, 10 * _SECOND, 60 * _SECOND, 600 * _SECOND, 3600 * _SECOND, 21_600 * _SECOND,
    _DAY, 7 * _DAY, 30 * _DAY, 365 * _DAY,
)  # fmt: skip
_STEPS: Final = 150
"""Approximate number of steps on the axis of event time."""
_PARTS: Final = 8


class PointInTime(msgspec.Struct, frozen=True):
    """A point in time whose rows are shown.

    Attributes:
        axis: ``at`` for as at a block, ``of`` for as of an event time.
        moment: system time of the block, or the event time, in milliseconds since 1970.
        block, rows, head: number of the block, number of rows up to it, number of the newest block when
            the point was chosen, or 0 for event times.
        precision: precision of the moment in texts, see :func:`format_moment`.
        key: key columns of the state to show, or None for all rows as at a block, or for the default key as
            of an event time.
        history: hash of the block, if it is of an earlier history; otherwise empty.
    """

    axis: AxisName
    moment: int
    block: int = 0
    rows: int = 0
    head: int = 0
    precision: int = 0
    key: tuple[str, ...] | None = None
    history: str = ""

    @property
    def label(self) -> str:
        """Text for titles."""
        moment = format_moment(self.moment, self.precision)
        if self.axis == "of":
            return f"as of {moment}"
        if self.history:
            return f"as at {moment} · block {format_count(self.block)}, another history"
        return f"as at {moment} · block {format_count(self.block)} of {format_count(self.head)}"

    @property
    def is_prefix(self) -> bool:
        """Whether the rows are a prefix of the changelog."""
        return self.axis == "at" and self.key is None

    @property
    def as_of(self) -> str | None:
        """The event time in RFC 3339, or None for a block."""
        return str(Timestamp.from_ms(self.moment)) if self.axis == "of" else None


def format_moment(ms: int, precision: int = 0) -> str:
    """Format a moment in UTC with minutes (precision 0), seconds (1) or milliseconds (2)."""
    try:
        moment = datetime.fromtimestamp(ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):  # out of range of datetime
        return f"{ms} ms"
    if precision > 1:
        return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{ms % _SECOND:03d}"
    return moment.strftime("%Y-%m-%d %H:%M:%S" if precision else "%Y-%m-%d %H:%M")


def _find_precision(times: Sequence[int]) -> int:
    """Return the lowest precision that distinguishes consecutive times."""
    for precision, unit in ((0, 60 * _SECOND), (1, _SECOND)):
        if all(after // unit > before // unit or after == before for before, after in pairwise(times)):
            return precision
    return 2


def bar_heights(amounts: Sequence[float]) -> list[int]:
    """Return heights from 0 to 6 on a logarithmic scale. Amounts above zero are visible."""
    highest = log1p(max(amounts, default=0))
    return [0 if amount <= 0 else max(1, ceil(_HIGHEST * log1p(amount) / highest)) for amount in amounts]


def probe_order(stops: int) -> Iterator[int]:
    """Yield all stops: the ends first, then the others, evenly spread at any time."""
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
    """The axis of blocks that added rows. Its position is the index of a block, called a stop."""

    name: AxisName = "at"

    def __init__(self, line: RowTimeline) -> None:
        self.line = line
        self.position = max(len(line.blocks) - 1, 0)
        self._precision = _find_precision(line.times)
        self._corrected_stops: list[int] = []

    def add_probes(self, probes: Sequence[FileTimeRange]) -> None:
        """Add the event times that were read from files."""
        self._corrected_stops = sorted(
            {*self._corrected_stops, *(probe.stop for probe in probes if probe.changes)}
        )

    @property
    def stops(self) -> int:
        """The number of stops."""
        return len(self.line.blocks)

    def move(self, move: Move, width: int) -> bool:
        """Move the position. Returns whether it changed."""
        cell = max(self.stops // max(width, 1), 1)
        page = max(self.stops // _PAGES, 1)
        steps = {"back": -1, "on": 1, "cell_back": -cell, "cell_on": cell, "page_back": -page,
                 "page_on": page, "first": -self.stops, "last": self.stops}  # fmt: skip
        return self.go(self.position + steps[move])

    def go(self, stop: int) -> bool:
        """Go to a stop, limited to the axis. Returns whether the position changed."""
        before, self.position = self.position, max(0, min(stop, self.stops - 1))
        return self.position != before

    def stop_at(self, moment: int) -> int:
        """Return the last stop at or before a system time in milliseconds, or -1 if absent."""
        return bisect_right(self.line.times, moment) - 1

    def stop_of_block(self, block: int) -> int:
        """Return the last stop at or before a block number, or -1 if absent."""
        return bisect_right(self.line.blocks, block) - 1

    def point_in_time(self, key: tuple[str, ...] | None) -> PointInTime:
        """Return the point in time of the position."""
        line, at = self.line, self.position
        return PointInTime(
            "at", line.times[at], line.blocks[at], line.rows[at], line.head, self._precision, key
        )

    def contains(self, point: PointInTime) -> bool:
        """Return whether a point in time is part of this history. Every history contains every event time,
        and blocks of earlier histories remain readable.
        """
        stop, line = self.stop_of_block(point.block), self.line
        if point.axis == "of" or point.history:
            return True
        known = (point.block, point.rows, point.moment)
        return stop >= 0 and (line.blocks[stop], line.rows[stop], line.times[stop]) == known

    def added_rows(self, stop: int) -> int:
        """Return the number of rows that a stop added."""
        return self.line.rows[stop] - (self.line.rows[stop - 1] if stop else 0)

    def cell_of(self, stop: int, width: int) -> int:
        """Return the cell of a stop."""
        return 0 if self.stops < 2 else round(stop * (width - 1) / (self.stops - 1))

    def position_at(self, cell: int, width: int) -> int:
        """Return the stop of a cell."""
        return 0 if self.stops < 2 else round(cell * (self.stops - 1) / max(width - 1, 1))

    def bars(self, width: int) -> list[int]:
        """Return the height of the bar of each cell: the number of added rows."""
        amounts = [0.0] * width
        if self.stops <= 8 * width:
            for stop in range(self.stops):
                amounts[self.cell_of(stop, width)] += self.added_rows(stop)
        else:
            ends = [self.line.rows[(cell + 1) * self.stops // width - 1] for cell in range(width)]
            amounts = [float(after - before) for before, after in zip([0, *ends], ends, strict=False)]
        return bar_heights(amounts)

    def marks(self, width: int) -> dict[int, str]:
        """Return the signs by cell: s for a new schema, c for retractions or corrections, x for both."""
        schemas = {self.cell_of(stop, width) for stop in self.line.schemas}
        changing = {self.cell_of(stop, width) for stop in self._corrected_stops}
        return {
            cell: "x" if cell in schemas and cell in changing else "s" if cell in schemas else "c"
            for cell in schemas | changing
        }

    def end_labels(self) -> tuple[str, str]:
        """Return the first and the last time as texts."""
        times = self.line.times
        precision = min(self._precision, 1)
        return format_moment(times[0], precision), format_moment(times[-1], precision)

    def describe_position(self) -> str:
        """Describe the block of the position."""
        stop = self.position
        rows = self.added_rows(stop)
        words = [f"block {format_count(self.line.blocks[stop])} · +{count_of(rows, 'row')}"]
        if _includes(self._corrected_stops, stop):
            words.append("corrections")
        if _includes(self.line.schemas, stop):
            words.append("new schema")
        return ", ".join(words)


class EventTimeAxis:
    """The axis of event time. Its position is a moment in milliseconds since 1970."""

    name: AxisName = "of"

    def __init__(self) -> None:
        self.least = self.greatest = self.position = 0
        self.has_range = False
        self._pinned = False
        self._grain = _DAY
        self._groups: list[tuple[int, int, int]] = []
        self._moments: set[int] = set()

    def add_probes(self, probes: Sequence[FileTimeRange]) -> None:
        """Add the event times that were read from files. The axis only grows."""
        new = [group for probe in probes for group in probe.groups]
        for probe in probes:
            self._moments.update(probe.moments)
        if not new:
            return
        self._groups += new
        for bound in {bound for group in new for bound in group[1:]}:
            while bound % self._grain:  # the largest unit that divides all event times
                self._grain = max(unit for unit in _UNITS if unit < self._grain)
        min_time, max_time = min(group[1] for group in new), max(group[2] for group in new)
        self.least = min(self.least, min_time) if self.has_range else min_time
        self.greatest = max(self.greatest, max_time) if self.has_range else max_time
        self.has_range = True
        if not self._pinned:
            self.position = self.greatest

    def pin(self, moment: int) -> None:
        """Go to a moment, and keep it when the axis grows."""
        self.position, self._pinned = moment, True

    @property
    def unit(self) -> int:
        """The size of a step in milliseconds."""
        span = max(self.greatest - self.least, 1)
        return max(self._grain, max((unit for unit in _UNITS if unit * _STEPS <= span), default=1))

    def move(self, move: Move, width: int) -> bool:
        """Move the position to a multiple of the unit. Returns whether it changed."""
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
        """Go to a moment, limited to the axis. Returns whether the position changed."""
        before, self._pinned = self.position, True
        self.position = max(self.least, min(moment, self.greatest))
        return self.position != before

    def point_in_time(self, key: tuple[str, ...] | None) -> PointInTime:
        """Return the point in time of the position."""
        ms = self.position
        return PointInTime(
            "of", ms, precision=0 if ms % (60 * _SECOND) == 0 else 1 if ms % _SECOND == 0 else 2, key=key
        )

    def cell_of(self, moment: int, width: int) -> int:
        """Return the cell of a moment."""
        span = self.greatest - self.least
        if span <= 0:
            return width - 1
        return max(0, min((moment - self.least) * (width - 1) // span, width - 1))

    def position_at(self, cell: int, width: int) -> int:
        """Return the moment of a cell."""
        position = self.least + cell * (self.greatest - self.least) // max(width - 1, 1)
        return position if cell >= width - 1 else position // self.unit * self.unit

    def bars(self, width: int) -> list[int]:
        """Return the height of the bar of each cell: the number of rows in the files read so far."""
        parts = width * _PARTS
        changes = [0.0] * (parts + 1)
        for rows, min_time, max_time in self._groups:
            first, last = self.cell_of(min_time, parts), self.cell_of(max_time, parts)
            changes[first] += rows / (last - first + 1)
            changes[last + 1] -= rows / (last - first + 1)
        amounts = list(accumulate(changes[:parts]))
        cells = (sum(amounts[cell * _PARTS : (cell + 1) * _PARTS]) for cell in range(width))
        return bar_heights([round(amount, 6) for amount in cells])

    def marks(self, width: int) -> dict[int, str]:
        """Return the signs by cell: c for retractions or corrections."""
        return {self.cell_of(moment, width): "c" for moment in self._moments}

    def end_labels(self) -> tuple[str, str]:
        """Return the first and the last time as texts."""
        return format_moment(self.least), format_moment(self.greatest)

    def describe_position(self) -> str:
        """Describe the moment of the position."""
        words = format_moment(self.position, self.point_in_time(None).precision)
        return f"{words} · newest" if self.position >= self.greatest else words


def _includes(numbers: Sequence[int], number: int) -> bool:
    at = bisect_left(numbers, number)
    return at < len(numbers) and numbers[at] == number


_MARKS: Final = {"c": "warn", "s": "name", "x": "warn"}
_LEGEND: Final = {"c": "corrections", "s": "new schema", "x": "both"}
_LOW: Final = 18
"""Height of the screen up to which the slider has its lowest height."""
_FULL_LINES, _LOW_LINES, _BLURRED_LINES = 4, 2, 1


class TimeSlider(LineScroll, can_focus=True):
    """The slider over one of the two axes. It posts messages, and reads nothing."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "go('back')", show=False),
        Binding("right,l", "go('on')", show=False),
        Binding("left_square_bracket", "go('cell_back')", show=False),
        Binding("right_square_bracket", "go('cell_on')", show=False),
        Binding("pageup", "go('page_back')", show=False),
        Binding("pagedown", "go('page_on')", show=False),
        Binding("home", "go('first')", show=False),
        Binding("end", "go('last')", show=False),
        Binding("t", "send('type')", show=False),
        Binding("enter", "send('keep')", show=False),
        Binding("escape", "send('now')", show=False),
    ]

    @dataclass
    class Moved(Message):
        """Posted when the user moved the slider."""

    @dataclass
    class SliderCommand(Message):
        """Posted for a command: ``type``, ``keep`` or ``now``; ``refocus`` after a click."""

        command: str

    def __init__(self, blocks: BlockAxis, point: PointInTime | None) -> None:
        super().__init__(id="time-track")
        self.blocks, self.events = blocks, EventTimeAxis()
        self.axis: BlockAxis | EventTimeAxis = blocks
        self._lines = _BLURRED_LINES
        self._chosen: set[str] = set()
        if point is not None:
            self._chosen.add(point.axis)
        if point is not None and point.axis == "of":
            self.axis = self.events
            self.events.pin(point.moment)
        elif point is not None:
            blocks.go(blocks.stop_of_block(point.block))
        self.status: Span | None = None

    @property
    def track_width(self) -> int:
        """Width of the track in cells."""
        return max(self.size.width - 2, 8)

    def add_probes(self, probes: Sequence[FileTimeRange]) -> None:
        """Add the event times that were read from files."""
        self.blocks.add_probes(probes)
        self.events.add_probes(probes)
        self.refresh()

    def show_status(self, text: str = "", style: str = "busy") -> None:
        """Show a status instead of the legend. An empty text shows the legend."""
        status = (printable(text), style) if text else None
        if status != self.status:
            self.status = status
            self.refresh()

    @property
    def chosen(self) -> bool:
        """Whether the user chose a position on the axis."""
        return self.axis.name in self._chosen

    def choose(self, axis: BlockAxis | EventTimeAxis) -> None:
        """Switch to an axis."""
        self.axis = axis
        self.show_status()
        self.refresh()

    def go(self, position: int) -> None:
        """Go to a position without posting a message."""
        self.axis.go(position)
        self._chosen.add(self.axis.name)
        self.show_status()
        self.refresh()

    def action_go(self, move: Move) -> None:
        """Move along the axis. The first step back from the newest rows goes before the newest block."""
        if self.axis.move(move, self.track_width) or not self.chosen:
            self._notify_moved()

    def _notify_moved(self) -> None:
        self._chosen.add(self.axis.name)
        self.refresh()
        self.post_message(self.Moved())

    def action_send(self, command: str) -> None:
        """Post a command."""
        self.post_message(self.SliderCommand(command))

    def on_click(self, event: events.Click) -> None:
        """Go to the clicked position."""
        event.stop()
        offset = event.get_content_offset(self)
        self.post_message(self.SliderCommand("refocus"))
        if offset is not None:
            cell = max(0, min(offset.x - 1, self.track_width - 1))
            if self.axis.go(self.axis.position_at(cell, self.track_width)) or not self.chosen:
                self._notify_moved()

    @property
    def has_keys(self) -> bool:
        """Whether it has the focus. Unlike :attr:`has_focus`, it changes immediately."""
        return self.is_attached and self.screen.focused is self

    def on_focus(self) -> None:
        """Show all lines."""
        self.fit_height()

    def on_blur(self) -> None:
        """Show only the track."""
        self.fit_height()

    def fit_height(self) -> None:
        """Set the height that fits the screen and the focus."""
        if not self.is_attached:
            return  # the slider was closed
        low = self.screen.size.height <= _LOW
        self._lines = (_LOW_LINES if low else _FULL_LINES) if self.has_keys else _BLURRED_LINES
        if self.styles.height is None or self.styles.height.value != self._lines:
            self.styles.height = self._lines
        self.reset()

    def on_mount(self) -> None:
        """Set the height."""
        self.fit_height()

    def on_resize(self) -> None:
        """Set the height."""
        self.fit_height()

    def count(self) -> int:
        """Return the number of lines."""
        return self._lines

    def spans(self, index: int) -> Sequence[Span]:
        """Return a line."""
        lines = {
            _FULL_LINES: (self._rule, self._bars, self._track, self._labels),
            _LOW_LINES: (self._track, self._labels),
        }
        widgets = lines.get(self._lines, (self._track,))
        return widgets[index]() if index < len(widgets) else ()

    def _rule(self) -> Sequence[Span]:
        """Return the rule with the name of the axis and the legend, or with the status."""
        axis = self.axis
        if self.status is not None:
            text, style = self.status
            status = ellipsize_middle(text, max(self.size.width - 8, 8))
            return [
                ("── ", "rule"),
                (status, style),
                (" " + "─" * max(self.size.width - 4 - cell_len(status), 0), "rule"),
            ]
        if isinstance(axis, BlockAxis):
            stops = axis.stops
            head = f" as at: {count_of(stops, 'block')} with new rows "
        else:
            head = f" as of: event time, in steps of {_format_step(axis.unit)} "
        spans: list[Span] = [("──", "rule"), (head, "head")]
        signs = set(self.axis.marks(self.track_width).values())
        if signs or self.blocks.stops > MAX_PROBED:
            spans.append(("── ", "rule"))
            for sign in sorted(signs):
                spans += [(sign, _MARKS[sign]), (f" {_LEGEND[sign]} ", "muted")]
        if self.blocks.stops > MAX_PROBED:
            spans.append((f"from {format_count(MAX_PROBED)} files ", "muted"))
        used = sum(cell_len(text) for text, _ in spans)
        return [*spans, ("─" * max(self.size.width - used, 0), "rule")]

    def _bars(self) -> Sequence[Span]:
        return [(" ", ""), ("".join(BARS[level] for level in self.axis.bars(self.track_width)), "muted")]

    def _track(self) -> Sequence[Span]:
        """Return the track: before the position, the position, after it, and the signs."""
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

    def _labels(self) -> Sequence[Span]:
        """Return the line with the ends of the axis, and the position between them."""
        first, last = self.axis.end_labels()
        position = self._position_text()
        room = self.size.width - 2
        middle = max(room - len(first) - len(last) - 4, 0)
        if len(position) > middle:  # no room for the ends
            return [(f" {fit_width(position, room)}", "strong")]
        before = (middle - len(position)) // 2
        after = middle - len(position) - before
        return [
            (f" {first}  {' ' * before}", "muted"),
            (position, "strong"),
            (f"{' ' * after}  {last}", "muted"),
        ]

    def _position_text(self) -> str:
        return self.axis.describe_position() if self.chosen else "← → choose a time"


class TimePanel(Vertical):
    """The slider, and an input for a time or a block.

    Attributes:
        dataset: id of the dataset.
        track: the slider.
        line: the input; hidden until it is opened.
        order: the stops whose files are read next, for the signs of the slider.
        probed: the number of files read.
    """

    @dataclass
    class Typed(Message):
        """Posted with the typed time or block, or "" if the input was cancelled."""

        text: str

    def __init__(self, dataset: str, blocks: BlockAxis, point: PointInTime | None) -> None:
        super().__init__(id="time-panel")
        self.dataset = dataset
        self.track = TimeSlider(blocks, point)
        self.order = probe_order(blocks.stops)
        self.probed = 0
        self.line = Input(id="time-text", compact=True)
        self.line.cursor_blink = False
        self.line.display = False

    def compose(self) -> ComposeResult:
        """Yield slider and line."""
        yield self.track
        yield self.line

    def open_line(self) -> None:
        """Open the input."""
        line = self.line
        of = isinstance(self.track.axis, EventTimeAxis)
        line.placeholder = "2026-03-01 14:00" + ("" if of else ", or a block: its number or hash")
        line.value = ""
        line.display = True
        self.screen.set_focus(line)

    def close_line(self) -> None:
        """Close the input, and focus the slider."""
        self.line.display = False
        self.screen.set_focus(self.track)

    def on_input_changed(self, event: Input.Changed) -> None:
        """Stop the message: it is not the filter of the pane."""
        event.stop()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Post the typed text."""
        event.stop()
        self.post_message(self.Typed(event.value.strip()))

    def on_key(self, event: events.Key) -> None:
        """Cancel the input on escape."""
        if event.key == "escape" and self.line.has_focus:
            event.stop()
            event.prevent_default()
            self.post_message(self.Typed(""))

    def on_click(self, event: events.Click) -> None:
        """Stop the message, which would focus the pane."""
        event.stop()


def _format_step(unit: int) -> str:
    """Format a length of event time."""
    for size, word in ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1000, "second")):
        if unit % size == 0:
            times = unit // size
            return f"{times} {word}s" if times > 1 else f"a {word}" if word != "hour" else "an hour"
    return f"{unit} ms"
