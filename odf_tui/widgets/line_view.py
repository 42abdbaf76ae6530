"""Scrollable views that render lines on demand: with a cursor, wrapped, or static."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from rich.segment import Segment
from textual import events
from textual.geometry import Offset, Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from odf_tui.text.format import MAX_LINES, Span, wrapped
from odf_tui.theming.themes import palette_of

_MIN_WIDTH: Final = 20
_DEFAULT_WIDTH: Final = 72
MARK: Final = "▌"
"""The first cell of the selected line."""
MOVES = ("down", "above", "left", "right", "first", "last", "page_down", "page_up")


class LineScroll(ScrollView, can_focus=False):
    """A scrollable view of lines of spans. Subclasses return the number of lines, and each line.

    Attributes:
        ground: the style of the background.
        headed: whether the first row of the window is a header.
    """

    ground: str = "base"
    headed: ClassVar[bool] = False
    _drawing_size: Size | None = None  # the cached room, while lines are drawn

    def count(self) -> int:
        """Return the number of lines."""
        return 0

    def spans(self, index: int) -> Sequence[Span]:
        """Return the spans of a line."""
        return ()

    def header(self) -> Sequence[Span]:
        """Return the spans of the header of a ``headed`` view."""
        return ()

    def empty(self) -> Sequence[Sequence[Span]]:
        """Return the lines to show instead if there are none."""
        return ()

    def widest(self) -> int:
        """Return the width of the longest line in cells if the view scrolls sideways; else 0."""
        return 0

    @property
    def room(self) -> Size:
        """The size in cells without border, scroll bars and header."""
        if self._drawing_size is not None:
            return self._drawing_size
        region = self.scrollable_content_region
        return Size(region.width, max(region.height - self.headed, 0))

    def render_lines(self, crop: Region) -> list[Strip]:
        """Render some lines. The size is computed once for all of them."""
        self._drawing_size = self.room
        try:
            return super().render_lines(crop)
        finally:
            self._drawing_size = None

    def reset(self) -> None:
        """Update the virtual size, and repaint, after the lines have changed."""
        size = Size(self.widest(), self.count() + self.headed)
        if self.styles.auto_dimensions:
            self.virtual_size = size  # lays out the complete screen
        elif size != self.virtual_size:
            self.set_reactive(ScrollView.virtual_size, size)  # type: ignore[arg-type]
            self._scroll_update(size)
        self.refresh()

    def move(self, move: str) -> None:
        """Scroll by a move of :data:`MOVES`."""
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
        """Return the style of a complete line, or "" for the background's."""
        return ""

    def render_line(self, y: int) -> Strip:
        """Render a row of the window."""
        x, top = self.scroll_offset
        if self.headed and y == 0:
            return self._strip(self.header(), "", 0)
        index = top + y - self.headed
        count = self.count()
        if index < count:
            return self._strip(self.spans(index), self.style_of(index), x)
        room = max(self.room.width - 1, _MIN_WIDTH)
        lines = [piece for line in self.empty() for piece in wrapped(line, room)] if not count else ()
        at = index - 1  # below an empty line
        return self._strip(lines[at] if 0 <= at < len(lines) else (), "", 0)

    def _strip(self, spans: Sequence[Span], line_style: str, x: int) -> Strip:
        mix, ground = palette_of(self.app).mix, self.ground
        base = mix(ground, line_style, "")
        if line_style == "cursor":  # colours of spans are not readable on it
            segments = [Segment(text, base) for text, _ in spans]
        else:
            segments = [Segment(text, mix(ground, line_style, name)) for text, name in spans]
        return Strip(segments).crop_extend(x, x + self.room.width, base).simplify()


class LineView(LineScroll):
    """Lines with a cursor on one of them.

    Attributes:
        cursor: the number of the line under the cursor.
        active: whether the view has the focus.
    """

    class Moved(Message):
        """The cursor moved, to another line or within its line."""

        def __init__(self, view: LineView) -> None:
            super().__init__()
            self.view = view

        @property
        def control(self) -> LineView:
            """The view, for ``@on`` selectors."""
            return self.view

    class Opened(Message):
        """A line was double-clicked."""

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self.cursor = 0
        self.active = False

    def set_active(self, active: bool) -> None:
        """Set whether the view has the focus, which changes the style of the cursor."""
        if active != self.active:
            self.active = active
            self.refresh()

    def style_of(self, index: int) -> str:
        """Return the style of the line under the cursor, or "" for other lines."""
        return "" if index != self.cursor else "cursor" if self.active else "idle"

    @property
    def cursor_cell(self) -> Offset:
        """The first cell of the selected line, from the upper left corner of the screen."""
        line = self.cursor + self.headed - self.scroll_offset.y
        return self.content_region.offset + Offset(0, line)

    @property
    def selection_mark(self) -> Span:
        """The mark in the first cell of the selected line."""
        return MARK, "mark" if self.active else "idle-mark"

    def _strip(self, spans: Sequence[Span], line_style: str, x: int) -> Strip:
        strip = super()._strip(spans, line_style, x)
        if not line_style or not (x or strip.text.startswith(" ")):  # a mark of the line stays visible
            return strip
        text, name = self.selection_mark
        mark = Segment(text, palette_of(self.app).mix(self.ground, line_style, name))
        return Strip.join([Strip([mark], 1), strip.crop(1)])

    def reset(self) -> None:
        """Update the virtual size, and repaint, after the lines have changed."""
        self.cursor = max(min(self.cursor, self.count() - 1), 0)
        super().reset()

    def move(self, move: str) -> None:
        """Move the cursor by a move of :data:`MOVES`."""
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
        """Move the cursor to a line, and scroll it into the window."""
        index = max(min(index, self.count() - 1), 0)
        if index != self.cursor:
            before, self.cursor = self.cursor, index
            offset = int(self.headed)
            self.refresh_line(before + offset)
            self.refresh_line(index + offset)
            self.post_message(self.Moved(self))
        self.show(index)

    def show(self, index: int) -> None:
        """Scroll a line into the window, as little as needed."""
        top, height = self.scroll_offset.y, self.room.height
        if index < top:
            self.scroll_to(y=index, animate=False)
        elif height and index >= top + height:
            self.scroll_to(y=index - height + 1, animate=False)

    def scroll_to_cursor(self) -> None:
        """Scroll the cursor into the window, after a resize."""
        self.show(self.cursor)

    def click_at(self, x: int, y: int) -> bool:
        """Move the cursor to a cell of the window. Returns whether the cell has a line."""
        line = y + self.scroll_offset.y - self.headed
        if not 0 <= line < self.count():
            return False
        self.go(line)
        return True

    # Textual calls the handlers of every base class, so subclasses override the methods above instead.

    def on_resize(self) -> None:
        """Keep the cursor in the window."""
        self.scroll_to_cursor()

    def on_click(self, event: events.Click) -> None:
        """Move the cursor to the mouse; a double click opens the line."""
        offset = event.get_content_offset(self)
        if offset is not None and self.click_at(offset.x, offset.y) and event.chain == 2:
            self.post_message(self.Opened())


class WrappedLines(LineScroll):
    """Fixed lines, wrapped to the width of the window.

    Attributes:
        max_lines: the maximum number of lines that a line is wrapped to.
        source_lines: the lines before wrapping.
    """

    max_lines: ClassVar[int] = MAX_LINES

    def __init__(self, lines: Sequence[Sequence[Span]] = (), id: str | None = None) -> None:
        super().__init__(id=id)
        self.source_lines = lines
        self._lines: list[list[Span]] = []

    def set(self, lines: Sequence[Sequence[Span]]) -> None:
        """Replace the lines."""
        self.source_lines = lines
        width = max(self.room.width or _DEFAULT_WIDTH, _MIN_WIDTH)
        self._lines = [part for line in lines for part in wrapped(line, width, self.max_lines)]
        self.reset()

    def on_mount(self) -> None:
        """Show the lines."""
        self.set(self.source_lines)

    def on_resize(self) -> None:
        """Wrap the lines to the new width."""
        self.set(self.source_lines)

    def count(self) -> int:
        """Return the number of lines."""
        return len(self._lines)

    def spans(self, index: int) -> Sequence[Span]:
        """Return the spans of a line."""
        return self._lines[index]


class StaticLines(LineScroll):
    """Fixed lines that are not wrapped; the view scrolls sideways.

    Attributes:
        lines: the lines.
    """

    def __init__(self, lines: Sequence[Sequence[Span]] = (), id: str | None = None) -> None:
        super().__init__(id=id)
        self.lines = lines

    def on_mount(self) -> None:
        """Show the lines."""
        self.reset()

    def set(self, lines: Sequence[Sequence[Span]]) -> None:
        """Replace the lines."""
        self.lines = lines
        self.reset()

    def count(self) -> int:
        """Return the number of lines."""
        return len(self.lines)

    def widest(self) -> int:
        """Return the width of the longest line."""
        return max((sum(len(text) for text, _ in line) for line in self.lines), default=0)

    def spans(self, index: int) -> Sequence[Span]:
        """Return the spans of a line."""
        return self.lines[index]
