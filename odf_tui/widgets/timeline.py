"""The slider below the rows of pane 3: the history of a dataset, and where in it the rows are seen.

Imported when it is opened first: the first paint does not need it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from rich.cells import cell_len
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import Input

from odf_tui.humane import clip, count, plain, shorten
from odf_tui.timeline import BARS, MOST_PROBED, BlockAxis, EventAxis, Move, Place, Probe, probing_order
from odf_tui.widgets.lines import LineScroll, Span

_MARKS: Final = {"c": "warn", "s": "name", "x": "warn"}
_LEGEND: Final = {"c": "corrections", "s": "new schema", "x": "both"}
_LOW: Final = 18
"""Lines of the screen up to which the slider is as low as it can be."""
_WHOLE, _SMALL, _KEPT = 4, 2, 1


class TimeTrack(LineScroll, can_focus=True):
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

    def __init__(self, blocks: BlockAxis, place: Place | None) -> None:
        super().__init__(id="time-track")
        self.blocks, self.events = blocks, EventAxis()
        self.axis: BlockAxis | EventAxis = blocks
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

    def learn(self, probes: Sequence[Probe]) -> None:
        """Knows what files say of themselves."""
        self.blocks.learn(probes)
        self.events.learn(probes)
        self.refresh()

    def tell(self, text: str = "", style: str = "busy") -> None:
        """Says what is being done, in place of the legend."""
        said = (plain(text), style) if text else None
        if said != self.said:
            self.said = said
            self.refresh()

    @property
    def chosen(self) -> bool:
        """Whether a place on the axis was chosen."""
        return self.axis.name in self._chosen

    def choose(self, axis: BlockAxis | EventAxis) -> None:
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
            said = shorten(text, max(self.size.width - 8, 8))
            return [
                ("── ", "rule"),
                (said, style),
                (" " + "─" * max(self.size.width - 4 - cell_len(said), 0), "rule"),
            ]
        if isinstance(axis, BlockAxis):
            stops = axis.stops
            head = f" as at: {count(stops)} {'block' if stops == 1 else 'blocks'} that brought rows "
        else:
            head = f" as of: event time, in steps of {_step_words(axis.unit)} "
        spans: list[Span] = [("──", "rule"), (head, "head")]
        signs = set(self.axis.marks(self.track_width).values())
        if signs or self.blocks.stops > MOST_PROBED:
            spans.append(("── ", "rule"))
            for sign in sorted(signs):
                spans += [(sign, _MARKS[sign]), (f" {_LEGEND[sign]} ", "muted")]
        if self.blocks.stops > MOST_PROBED:
            spans.append((f"as {count(MOST_PROBED)} files say ", "muted"))
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
            return [(f" {clip(here, room)}", "strong")]
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
    """The slider, and the line to type a time into."""

    @dataclass
    class Typed(Message):
        """A time or a block was typed; empty: nothing."""

        text: str

    def __init__(self, dataset: str, blocks: BlockAxis, place: Place | None) -> None:
        super().__init__(id="time-panel")
        self.dataset = dataset
        self.track = TimeTrack(blocks, place)
        self.order = probing_order(blocks.stops)
        self.probed = 0
        self.closed = False  # it is about to be gone

    def compose(self) -> ComposeResult:
        """Both."""
        yield self.track
        line = Input(id="time-text", compact=True)
        line.cursor_blink = False
        line.display = False
        yield line

    @property
    def line(self) -> Input:
        """Where a time is typed."""
        return self.query_one("#time-text", Input)

    def ask(self) -> None:
        """Opens the line."""
        line = self.line
        of = isinstance(self.track.axis, EventAxis)
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
