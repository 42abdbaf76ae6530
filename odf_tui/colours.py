"""Colours on terminals that have few of them.

The usual way to 256 colours snaps each dark shade to black or navy, and panels vanish. This filter
picks the nearest of the 240 fixed colours instead.
"""

from __future__ import annotations

from functools import lru_cache

from rich.color import Color as RichColor
from rich.color import ColorType
from rich.palette import Palette
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter


@lru_cache(1)
def _fixed() -> Palette:
    # The first 16 are whatever the person's terminal makes of them.
    from rich._palettes import EIGHT_BIT_PALETTE

    colours = (EIGHT_BIT_PALETTE[number] for number in range(16, 256))
    return Palette([(each.red, each.green, each.blue) for each in colours])


@lru_cache(4096)
def nearest(color: RichColor) -> RichColor:
    """The fixed 8-bit colour that looks most like a 24-bit one; others stay as they are."""
    if color.type is not ColorType.TRUECOLOR or color.triplet is None:
        return color
    return RichColor.from_ansi(16 + _fixed().match(color.triplet))


@lru_cache(4096)
def _reduced(style: Style) -> Style:
    colours = [None if each is None else nearest(each) for each in (style.color, style.bgcolor)]
    return style + Style.from_color(*colours)


class NearestColours(LineFilter):
    """Maps 24-bit colours to the nearest 8-bit ones."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Maps a line."""
        return [
            Segment(text, None if style is None else _reduced(style), control)
            for text, style, control in segments
        ]
