"""Scrollable views that render lines on demand: with a cursor, wrapped, or static."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from rich.segment import Segment
from textual import events
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from odf_tui.text.format import Span, wrapped
from odf_tui.theming.themes import palette_of

_MIN_WIDTH: Final = 20
_DEFAULT_WIDTH: Final = 72
MOVES = ("down", "above", "left", "right", "first", "last", "page_down", "page_up")


class LineScroll(ScrollView, can_focus=False):
    """Scrolls over lines of spans. Subclasses say how many there are and what is in each."""

    ground: ClassVar[str] = "base"
    headed: ClassVar[bool] = False  # whether the first line is a header, which stays on top
    _drawing_size: Size | None = None  # the room, while lines are being drawn

    def count(self) -> int:
        """How many lines there are."""
        return 0

    def spans(self, index: int) -> Sequence[Span]:
        """What line ``index`` shows."""
        return ()

    def header(self) -> Sequence[Span]:
        """The line that stays on top, when the view is ``headed``."""
        return ()

    def empty(self) -> Sequence[Sequence[Span]]:
        """What to show when there are no lines."""
        return ()

    def widest(self) -> int:
        """Cells of the longest line, when lines may be longer than the window; else 0."""
        return 0

    @property
    def room(self) -> Size:
        """Cells for lines: without border, scroll bars and header."""
        if self._drawing_size is not None:
            return self._drawing_size
        region = self.scrollable_content_region
        return Size(region.width, max(region.height - self.headed, 0))

    def render_lines(self, crop: Region) -> list[Strip]:
        """Draws some lines; the size is looked up once for all of them."""
        self._drawing_size = self.room
        try:
            return super().render_lines(crop)
        finally:
            self._drawing_size = None

    def reset(self) -> None:
        """What there is to show has changed."""
        size = Size(self.widest(), self.count() + self.headed)
        if self.styles.auto_dimensions:
            self.virtual_size = size  # lays out the whole screen anew
        elif size != self.virtual_size:
            self.set_reactive(ScrollView.virtual_size, size)  # type: ignore[arg-type]
            self._scroll_update(size)
        self.refresh()

    def move(self, move: str) -> None:
        """Scrolls by a move of :data:`MOVES`."""
        page = max(self.room.height - 1, 1)
        x, y = self.scroll_offset
        steps = {
            "down": (x, y + 1),
            "above": (x, y - 1),
            "left": (x - 8, y),
            "right": (x + 8, y),
            "first": (0, 0),
            "last": (x, self.virtual_size.height),
            "page_down": (x, y + page),
            "page_up": (x, y - page),
        }
        if move in steps:
            self.scroll_to(*steps[move], animate=False)

    def style_of(self, index: int) -> str:
        """The style of a whole line; empty: that of the ground."""
        return ""

    def render_line(self, y: int) -> Strip:
        """Draws line ``y`` of the window."""
        x, top = self.scroll_offset
        if self.headed and y == 0:
            return self._strip(self.header(), "", 0)
        index = top + y - self.headed
        count = self.count()
        if index < count:
            return self._strip(self.spans(index), self.style_of(index), x)
        room = max(self.room.width - 1, _MIN_WIDTH)
        lines = [piece for line in self.empty() for piece in wrapped(line, room)] if not count else ()
        at = index - 1  # one line of air above
        return self._strip(lines[at] if 0 <= at < len(lines) else (), "", 0)

    def _strip(self, spans: Sequence[Span], line_style: str, x: int) -> Strip:
        mix, ground = palette_of(self.app).mix, self.ground
        base = mix(ground, line_style, "")
        if line_style == "cursor":  # the colours of the parts would not be readable on it
            segments = [Segment(text, base) for text, _ in spans]
        else:
            segments = [Segment(text, mix(ground, line_style, name)) for text, name in spans]
        return Strip(segments).crop_extend(x, x + self.room.width, base).simplify()


class LineView(LineScroll):
    """Lines with a cursor on one of them."""

    class Moved(Message):
        """The cursor stands on another line, or on another thing in the same line."""

        def __init__(self, view: LineView) -> None:
            super().__init__()
            self.view = view

        @property
        def control(self) -> LineView:
            """The view."""
            return self.view

    class Opened(Message):
        """A line was clicked twice."""

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self.cursor = 0
        self.active = False

    def set_active(self, active: bool) -> None:
        """Whether the keys go here: the cursor looks different then."""
        if active != self.active:
            self.active = active
            self.refresh()

    def style_of(self, index: int) -> str:
        """The cursor's line."""
        return "" if index != self.cursor else "cursor" if self.active else "idle"

    def reset(self) -> None:
        """What there is to show has changed."""
        self.cursor = max(min(self.cursor, self.count() - 1), 0)
        super().reset()

    def move(self, move: str) -> None:
        """Moves the cursor."""
        page = max(self.room.height - 1, 1)
        target = {
            "down": self.cursor + 1,
            "above": self.cursor - 1,
            "first": 0,
            "last": self.count() - 1,
            "page_down": self.cursor + page,
            "page_up": self.cursor - page,
        }.get(move, self.cursor)
        self.go(target)

    def go(self, index: int) -> None:
        """Puts the cursor on a line."""
        index = max(min(index, self.count() - 1), 0)
        if index != self.cursor:
            before, self.cursor = self.cursor, index
            offset = int(self.headed)
            self.refresh_line(before + offset)
            self.refresh_line(index + offset)
            self.post_message(self.Moved(self))
        self.show(index)

    def show(self, index: int) -> None:
        """Scrolls as little as needed to have a line in the window."""
        top, height = self.scroll_offset.y, self.room.height
        if index < top:
            self.scroll_to(y=index, animate=False)
        elif height and index >= top + height:
            self.scroll_to(y=index - height + 1, animate=False)

    def scroll_to_cursor(self) -> None:
        """Scrolls to the cursor, after the window became another one."""
        self.show(self.cursor)

    def click_at(self, x: int, y: int) -> bool:
        """Puts the cursor at a cell of the window; whether there is something."""
        line = y + self.scroll_offset.y - self.headed
        if not 0 <= line < self.count():
            return False
        self.go(line)
        return True

    # Textual calls the handlers of every class of a widget: what subclasses change is above.

    def on_resize(self) -> None:
        """The window has another size."""
        self.scroll_to_cursor()

    def on_click(self, event: events.Click) -> None:
        """The mouse points at something; twice opens it."""
        offset = event.get_content_offset(self)
        if offset is not None and self.click_at(offset.x, offset.y) and event.chain == 2:
            self.post_message(self.Opened())


class WrappedLines(LineScroll):
    """Lines that are given once; those that are longer than the window go on in the next line."""

    def __init__(self, lines: Sequence[Sequence[Span]] = (), id: str | None = None) -> None:
        super().__init__(id=id)
        self.source_lines = lines
        self._lines: list[list[Span]] = []

    def set(self, lines: Sequence[Sequence[Span]]) -> None:
        """Shows other lines."""
        self.source_lines = lines
        width = max(self.room.width or _DEFAULT_WIDTH, _MIN_WIDTH)
        self._lines = [part for line in lines for part in wrapped(line, width)]
        self.reset()

    def on_mount(self) -> None:
        """Shows the lines."""
        self.set(self.source_lines)

    def on_resize(self) -> None:
        """Breaks the lines anew."""
        self.set(self.source_lines)

    def count(self) -> int:
        """Lines."""
        return len(self._lines)

    def spans(self, index: int) -> Sequence[Span]:
        """A line."""
        return self._lines[index]


class StaticLines(LineScroll):
    """Lines that are given once."""

    def __init__(self, lines: Sequence[Sequence[Span]] = (), id: str | None = None) -> None:
        super().__init__(id=id)
        self.lines = lines

    def on_mount(self) -> None:
        """Shows the lines."""
        self.reset()

    def set(self, lines: Sequence[Sequence[Span]]) -> None:
        """Shows other lines."""
        self.lines = lines
        self.reset()

    def count(self) -> int:
        """Lines."""
        return len(self.lines)

    def widest(self) -> int:
        """The longest line."""
        return max((sum(len(text) for text, _ in line) for line in self.lines), default=0)

    def spans(self, index: int) -> Sequence[Span]:
        """A line."""
        return self.lines[index]
