"""Scroll bars as thin lines: a full block beside every pane would shout."""

from __future__ import annotations

from rich.color import Color
from rich.segment import Segment, Segments
from rich.style import Style
from textual.scrollbar import ScrollBarRender

_GLYPHS = {True: "▐", False: "▂"}


class ThinBar(ScrollBarRender):
    """A thumb of thin glyphs on an empty track; pointing works as with the usual one."""

    @classmethod
    def render_bar(
        cls,
        size: int = 25,
        virtual_size: float = 50,
        window_size: float = 20,
        position: float = 0,
        thickness: int = 1,
        vertical: bool = True,
        back_color: Color | None = None,
        bar_color: Color | None = None,
    ) -> Segments:
        """Draws the bar, ``size`` cells long."""
        ground = Style(bgcolor=back_color)
        cells = [Segment(" " * (thickness if vertical else 1), ground)] * size
        if window_size and size and virtual_size > window_size:
            length = max(1, round(size * window_size / virtual_size))
            start = round((size - length) * position / (virtual_size - window_size))
            start = max(0, min(start, size - length))
            before = Segment(cells[0].text, ground + Style(meta={"@mouse.down": "scroll_up"}))
            after = Segment(cells[0].text, ground + Style(meta={"@mouse.down": "scroll_down"}))
            style = Style(color=bar_color, bgcolor=back_color, meta={"@mouse.down": "grab"})
            thumb = Segment(_GLYPHS[vertical] * (thickness if vertical else 1), style)
            cells = [before] * start + [thumb] * length + [after] * (size - start - length)
        if vertical:
            return Segments(cells, new_lines=True)
        return Segments([*cells, Segment.line()] * thickness, new_lines=False)
