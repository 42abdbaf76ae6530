"""The lines of a job's log: one after the other, wrapped or cut, with what was searched for marked."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from rich.cells import cell_len, chop_cells
from textual.geometry import Size
from textual.scroll_view import ScrollView

from odf_engine.coordinator.protocol import Committed
from odf_tui.humane import plain
from odf_tui.logs import Entry, is_commit, shown_text
from odf_tui.widgets.lines import LineScroll, Span, wrapped

_INDENT: Final = 11  # time and sign
_LEAST: Final = 8
_SIDEWAYS: Final = 8
_SPARE: Final = 1000
_SIGNS: Final = {"debug": ("· ", "muted"), "warning": ("! ", "warn"), "error": ("✗ ", "bad")}
_STYLES: Final = {"debug": "muted", "warning": "warn", "error": "bad"}


class LogLines(LineScroll):
    """A part of a log, and below it what the job's end says. It follows its end unless it was scrolled up.

    Attributes:
        wrap: whether long lines go on in the next one; else they are cut, and left and right move.
        needle: what is searched for.
        found: the journal number of the line that the search is at, 0 for none.
    """

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self.lines: Sequence[Entry] = ()
        self.end: Sequence[Sequence[Span]] = ()
        self.wrap = True
        self.needle = ""
        self.found = 0
        self._left = 0
        self._width = _LEAST  # for what lines say, when they were measured
        self._starts: list[int] = []
        self._heights: dict[int, int] = {}
        self._end: list[list[Span]] = []
        self._follows = True

    @property
    def follows(self) -> bool:
        """Whether the end stays in sight as lines come."""
        return self._follows

    def set(self, lines: Sequence[Entry], end: Sequence[Sequence[Span]] = ()) -> None:
        """Shows these lines. What one reads stays where it is, unless the end is followed."""
        (seq, part), end_before, rows = self._seen(), self.end, self.count()
        self.lines, self.end = lines, end
        self._measure()
        if self._follows or not seq:
            self.reset()
            if self._follows:
                self._to_end()
            return
        top = self._row(bisect_left(lines, seq, key=_seq)) + part
        bottom = self.scroll_offset.y + self.room.height
        if top == self.scroll_offset.y and bottom <= rows - len(self._end) and list(end) == list(end_before):
            self.grow()  # more lines below what is in sight
        else:
            self.reset()
            self.scroll_to(y=top, animate=False)

    def grow(self) -> None:
        """There are more lines; nothing but the scroll bar looks different."""
        size = Size(0, self.count())
        self.set_reactive(ScrollView.virtual_size, size)  # type: ignore[arg-type]
        self._scroll_update(size)

    def _seen(self) -> tuple[int, int]:
        """The first line in sight, and how many of its rows are above."""
        line = self.line_at(self.scroll_offset.y)
        if not 0 <= line < len(self.lines):
            return 0, 0
        return self.lines[line].seq, self.scroll_offset.y - self._row(line)

    def _measure(self) -> None:
        width = max(self.room.width, _INDENT + _LEAST)
        self._end = [part for line in self.end for part in wrapped(line, width)]
        if width - _INDENT != self._width or len(self._heights) > 2 * len(self.lines) + _SPARE:
            self._heights = {}
        self._width = width - _INDENT
        self._starts = list(accumulate(map(self._height, self.lines), initial=0)) if self.wrap else [0]

    def _height(self, line: Entry) -> int:
        """The rows of a line; known ones are not measured again, since lines come by the thousand."""
        height = self._heights.get(line.seq)
        if height is None:
            height = self._heights[line.seq] = _rows_of(shown_text(line), self._width)
        return height

    def _row(self, line: int) -> int:
        """The first row of a line."""
        return self._starts[min(line, len(self._starts) - 1)] if self.wrap else line

    def line_at(self, row: int) -> int:
        """The line that a row belongs to."""
        return bisect_right(self._starts, row) - 1 if self.wrap else row

    @property
    def _rows(self) -> int:
        return self._starts[-1] if self.wrap and self._starts else len(self.lines)

    def _to_end(self) -> None:
        self.scroll_to(y=self.max_scroll_y, animate=False)

    def follow(self) -> None:
        """Goes to the end, and stays there."""
        self._follows = True
        self._to_end()

    def turn_wrap(self) -> None:
        """Wraps, or cuts."""
        self.wrap, self._left = not self.wrap, 0
        self.set(self.lines, self.end)

    def go(self, line: int) -> None:
        """Shows a line, with some of those before it."""
        self._follows = False
        self.scroll_to(y=max(self._row(line) - self.room.height // 3, 0), animate=False)
        self.refresh()

    def move(self, move: str) -> None:
        """Scrolls; at the end it follows again."""
        if move in ("left", "right"):
            if not self.wrap:
                self._left = max(self._left + (_SIDEWAYS if move == "right" else -_SIDEWAYS), 0)
                self.refresh()
            return
        super().move(move)
        self._follows = move == "last" or self.scroll_offset.y >= self.max_scroll_y

    def on_mouse_scroll_up(self) -> None:
        """The mouse scrolls away from the end."""
        self._follows = False

    def on_mouse_scroll_down(self) -> None:
        """The mouse may have come to the end."""
        self.call_after_refresh(self._look)

    def _look(self) -> None:
        self._follows = self._follows or self.scroll_offset.y >= self.max_scroll_y

    def on_resize(self) -> None:
        """Breaks the lines anew."""
        self.set(self.lines, self.end)

    def on_mount(self) -> None:
        """Shows what there is."""
        self.set(self.lines, self.end)

    def count(self) -> int:
        """Rows."""
        return self._rows + len(self._end)

    def spans(self, index: int) -> Sequence[Span]:
        """A row."""
        rows = self._rows
        if index >= rows:
            return self._end[index - rows]
        at = self.line_at(index)
        entry = self.lines[at]
        text, style = plain(shown_text(entry)), style_of(entry)
        if self.wrap:
            part = index - self._row(at)
            piece = _pieces(text, self._width)[part]
        else:
            part, piece = 0, text[self._left :]
        head = head_of(entry) if part == 0 else [(" " * _INDENT, "")]
        return [*head, *marked(piece, style, self.needle, entry.seq == self.found)]


def head_of(entry: Entry) -> list[Span]:
    """Time and sign of a line."""
    if isinstance(entry, Committed):
        return [(" " * 9, ""), ("◆ ", "good")]
    time = (f"{entry.time[11:19]} ", "muted")
    return [time, ("◆ ", "good") if is_commit(entry) else _SIGNS.get(entry.level, ("  ", ""))]


def style_of(entry: Entry) -> str:
    """The style of what a line says."""
    return "good" if is_commit(entry) else _STYLES.get(getattr(entry, "level", ""), "")


def marked(text: str, style: str, needle: str, here: bool) -> list[Span]:
    """A text with what is searched for marked; ``here``: the search is at this line."""
    if not needle:
        return [(text, style)]
    spans: list[Span] = []
    low, at = text.lower(), 0
    while (start := low.find(needle.lower(), at)) >= 0 and needle:
        end = start + len(needle)
        spans += [(text[at:start], style), (text[start:end], "cursor" if here else "lineage")]
        at = end
    return [*spans, (text[at:], style)]


def _seq(entry: Entry) -> int:
    return entry.seq


def _rows_of(text: str, room: int) -> int:
    if text.isascii() and len(text) <= room:
        return 1
    return len(_pieces(plain(text), room))


def _pieces(text: str, room: int) -> list[str]:
    """A text in pieces of at most ``room`` cells, broken between words where these are not too long."""
    if cell_len(text) <= room:
        return [text]
    if not text.isascii():
        return chop_cells(text, room)
    pieces: list[str] = []
    start = 0
    while len(text) - start > room:
        cut = text.rfind(" ", start + room // 2, start + room + 1) + 1 or start + room
        pieces.append(text[start:cut].rstrip(" ") or " ")
        start = cut
    return [*pieces, text[start:]]
