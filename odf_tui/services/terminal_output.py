"""What the terminal shows, and the shortest output that changes it into what an update paints."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Final, NamedTuple

from rich.cells import split_graphemes
from rich.color import Color, ColorSystem
from rich.console import Console
from rich.style import Style
from textual._compositor import ChopsUpdate, CompositorUpdate, LayoutUpdate
from textual.geometry import Size
from textual.strip import SGR_STYLES, Strip

_GAP: Final = 4
"""Gaps of at most this many unchanged cells are written again: moving the cursor takes as many bytes."""
_END_CODES: Final = {"1": "22", "2": "22", "3": "23", "4": "24", "5": "25", "7": "27", "9": "29"}
_VISIBLE_ON_BLANKS: Final = frozenset(("4", "7", "9", "21", "51", "52", "53"))


class _Look(NamedTuple):
    """The codes of a style. A blank has no colour, unless it is underlined or reversed."""

    attributes: frozenset[str]
    colour: str
    ground: str


_PLAIN: Final = _Look(frozenset(), "39", "49")


@lru_cache(4096)
def _look(style: Style | None, system: ColorSystem, is_blank: bool) -> _Look:
    """Return the look of characters, or of blanks. Equal looks are the same object."""
    if style is None:
        return _unique(frozenset(), "" if is_blank else "39", "49")
    bits = style._attributes & style._set_attributes
    attributes = frozenset(code for bit, code in enumerate(SGR_STYLES) if bits & (1 << bit))
    colour, ground = _colour_code(style.color, system, True), _colour_code(style.bgcolor, system, False)
    if is_blank and _VISIBLE_ON_BLANKS.isdisjoint(attributes):
        attributes, colour = frozenset(), ""
    return _unique(attributes, colour, ground)


@lru_cache(4096)
def _unique(attributes: frozenset[str], colour: str, ground: str) -> _Look:
    return _Look(attributes, colour, ground)


def _colour_code(colour: Color | None, system: ColorSystem, foreground: bool) -> str:
    if colour is None:
        return "39" if foreground else "49"
    return ";".join(colour.downgrade(system).get_ansi_codes(foreground))


@lru_cache(4096)
def _transition(before: _Look, after: _Look) -> tuple[str, _Look]:
    """Return the sequence between two looks, and the look that the terminal has then."""
    colour, codes = after.colour or before.colour, list[str]()
    attributes = after.attributes
    if not after.colour and _VISIBLE_ON_BLANKS.isdisjoint(before.attributes):
        attributes = before.attributes
    if ended := before.attributes - attributes:
        if not ended <= _END_CODES.keys():
            codes, before = ["0"], _PLAIN
        else:
            codes = sorted({_END_CODES[code] for code in ended})
            kept = before.attributes - ended
            before = before._replace(attributes=kept - {"1", "2"} if "22" in codes else kept)
    codes += sorted(attributes - before.attributes)
    codes += [colour] * (colour != before.colour) + [after.ground] * (after.ground != before.ground)
    sequence = f"\x1b[{';'.join(codes)}m" if codes else ""
    return sequence, _unique(attributes, colour, after.ground)


class _Line:
    """A line of the terminal: the character of each cell, and its look.

    A character in several cells is followed by "".
    """

    def __init__(self, width: int) -> None:
        self.texts = ["?"] * width
        self.looks = [_PLAIN] * width

    def is_regular(self) -> bool:
        """Return whether each cell has one simple character."""
        return "" not in self.texts and len("".join(self.texts)) == len(self.texts)

    def put(self, x: int, texts: list[str], looks: list[_Look]) -> list[tuple[int, int]]:
        """Set cells. Returns the spans to write: the complete line if terminals may disagree on widths."""
        end = x + len(texts)
        old_texts, old_looks = self.texts[x:end], self.looks[x:end]
        if texts == old_texts and looks == old_looks:
            return []
        was_regular = self.is_regular()
        self.texts[x:end], self.looks[x:end] = texts, looks
        if not (was_regular and self.is_regular()):
            return [(0, len(self.texts))]
        cells = zip(range(x, end), texts, old_texts, looks, old_looks, strict=True)
        return [
            (at, at + 1) for at, text, old_text, look, old_look in cells
            if text != old_text or look is not old_look
        ]  # fmt: skip


class TerminalOutput:
    """Translates updates of the compositor to sequences that write only the cells that change."""

    def __init__(self) -> None:
        self._lines: list[_Line] = []
        self._size = Size()

    def forget(self) -> None:
        """Forget what the terminal shows, after something else has changed it."""
        self._lines, self._size = [], Size()

    def shows(self, size: Size) -> bool:
        """Return whether the content of a terminal with this size is known."""
        return size == self._size

    def render(self, update: LayoutUpdate | ChopsUpdate, system: ColorSystem) -> str:
        """Return the sequence for an update. The first one must be of the complete screen."""
        complete = False
        if isinstance(update, LayoutUpdate):
            complete = not self.shows(update.region.size)
            if complete:
                self._size = update.region.size
                self._lines = [_Line(self._size.width) for _ in range(self._size.height)]
        spans: dict[int, list[tuple[int, int]]] = {}
        for y, x, strip in _strips_of(update):
            if y < len(self._lines):
                line = self._lines[y]
                texts, looks = _cells_of(strip, system, self._size.width - x)
                spans.setdefault(y, []).extend(line.put(x, texts, looks))
        if complete:
            spans = {y: [(0, self._size.width)] for y in range(self._size.height)}
        return self._write(spans)

    def _write(self, spans: dict[int, list[tuple[int, int]]]) -> str:
        parts: list[str] = []
        look = _PLAIN
        for y, ranges in sorted(spans.items()):
            line = self._lines[y]
            at = -1
            for start, end in sorted(ranges, key=lambda span: (span[0], -span[1])):
                if at < 0:
                    parts.append(f"\x1b[{y + 1};{start + 1}H")
                elif start > at + _GAP:
                    parts.append(f"\x1b[{start - at}C")
                else:
                    start = at
                at = max(at, end)
                for x in range(start, end):
                    if not (text := line.texts[x]):
                        continue
                    if line.looks[x] is not look:
                        sequence, now = _transition(look, line.looks[x])
                        parts.append(sequence)
                        look = now
                    parts.append(text)
                    is_wide = x + 1 < end and not line.texts[x + 1]
                    if is_wide or len(text) > 1:  # the terminal may know another width
                        after = next((cell for cell in range(x + 1, end) if line.texts[cell]), end)
                        parts.append(f"\x1b[{after + 1}G" if after < end else "")
        if look is not _PLAIN:
            parts.append("\x1b[m")
        return "".join(parts)


class ScreenUpdate(CompositorUpdate):
    """An update that writes only what differs from the content of the terminal."""

    def __init__(self, output: TerminalOutput, update: LayoutUpdate | ChopsUpdate) -> None:
        self._output, self._update = output, update

    def render_segments(self, console: Console) -> str:
        """Return the sequence for the update."""
        return self._output.render(self._update, console._color_system or ColorSystem.TRUECOLOR)


def _strips_of(update: LayoutUpdate | ChopsUpdate) -> Iterator[tuple[int, int, Strip]]:
    """Yield the strips of an update with their lines and first cells."""
    if isinstance(update, LayoutUpdate):
        for y, strips in enumerate(update.strips, update.region.y):
            x = update.region.x
            for strip in strips:
                yield y, x, strip
                x += strip.cell_length
        return
    for y, left, right in update.spans:
        for end, (x, strip) in zip(update.chop_ends[y], update.chops[y].items(), strict=False):
            if strip is not None and x <= right and end > left:
                yield y, x, strip


def _cells_of(strip: Strip, system: ColorSystem, width: int) -> tuple[list[str], list[_Look]]:
    """Return the characters and the looks of at most ``width`` cells."""
    texts: list[str] = []
    looks: list[_Look] = []
    for text, style, _ in strip:
        look, blank = _look(style, system, False), _look(style, system, True)
        if text.isascii():
            cells = list(text)
        else:
            cells = list[str]()
            for start, end, size in split_graphemes(text)[0]:
                if size:
                    cells += [text[start:end], *[""] * (size - 1)]
        texts += cells
        looks += [blank if cell == " " else look for cell in cells]
    return texts[:width], looks[:width]
