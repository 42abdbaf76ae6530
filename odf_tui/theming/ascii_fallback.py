"""Replaces characters that a terminal lacks with ASCII of the same width."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from typing import Final

from rich.cells import cell_len
from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

from odf_tui.text.format import ASCII as ASCII
from odf_tui.text.format import ENTER as ENTER

_CONSOLE_FONT: Final = frozenset("§─│┌┐└┘├┤┬┴┼═║╔╗╚╝╠╣╦╩╬█▄▀▌▐░▒▓■◆·÷±≥≤≈∞µ°√→←↑↓«»×")
_CONSOLE: Final[dict[str, str]] = {
    **{letter: letter for letter in _CONSOLE_FONT},
    **{chr(code): chr(code) for code in range(0xC0, 0x100)},  # Latin letters
    "╭": "┌", "╮": "┐", "╰": "└", "╯": "┘", "◇": "○", "✓": "√", "●": "•", "◦": "°", "▸": "►",
    "⇣": "↓", "⇡": "↑",
    "▃": "▄", "▅": "▄", "▆": "█", "▇": "█",
    **dict(zip("━┃┏┓┗┛┣┫┳┻╋", "═║╔╗╚╝╠╣╦╩╬", strict=True)),
}  # fmt: skip
"""Characters in the font of the Linux console, and the closest ones for others."""

_FILLER: Final = re.compile(r"[ \-─]{6,}")
_ENTER_EXTRA: Final = len("enter") - 1


class _Table(dict[int, str]):
    """A table for ``str.translate``. Missing entries are computed once."""

    def __missing__(self, code: int) -> str:
        letter = chr(code)
        self[code] = replacement = letter if code < 0x80 else _closest_ascii(letter)
        return replacement


def _closest_ascii(letter: str) -> str:
    """Return ASCII of the same width for a character: its base letter, else question marks."""
    cells = cell_len(letter)
    base = unicodedata.normalize("NFKD", letter)[:1]
    if cells == 1 and base.isascii() and base.isprintable():
        return base
    if 0x2500 <= ord(letter) < 0x25A0:  # boxes and blocks that are not listed above
        return "+" if ord(letter) < 0x2580 else "#"
    return "?" * cells


def _translation_table(letters: Mapping[str, str]) -> _Table:
    return _Table((ord(letter), shown) for letter, shown in letters.items())


_TABLES: Final = {"ascii": _translation_table(ASCII), "console": _translation_table(ASCII | _CONSOLE)}


def with_ascii(text: str, characters: str = "ascii") -> str:
    """Return a text of the same width with the characters of a terminal.

    Args:
        text: the text.
        characters: ``ascii``, or ``console`` for the font of the Linux console.
    """
    return text if text.isascii() else text.translate(_TABLES[characters])


class CharacterFallback(LineFilter):
    """Replaces the characters that the terminal lacks; see :func:`with_ascii`."""

    def __init__(self, characters: str) -> None:
        super().__init__()
        self._characters = characters

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Replace the characters of a line."""
        if any(ENTER in text for text, _, _ in segments):
            segments = _spell_enter(segments)
        return [
            Segment(with_ascii(text, self._characters), style, control) for text, style, control in segments
        ]


def _spell_enter(segments: list[Segment]) -> list[Segment]:
    """Return the line with ``enter`` as a word, if blanks or rules can be shortened for it.

    No single ASCII character denotes that key.
    """
    line = list(segments)
    for at, (text, _, _) in enumerate(segments):
        for _ in range(text.count(ENTER)):
            if not _shorten(line, at):
                return line
            line[at] = _with_text(line[at], line[at].text.replace(ENTER, "enter", 1))
    return line


def _shorten(segments: list[Segment], at: int) -> bool:
    """Shorten blanks or rules by the cells that the word needs.

    They are removed at the end of the line, else from the longest filler after segment ``at``, else from one
    before it.

    Returns:
        whether the line was shortened.
    """
    line = "".join(text for text, _, _ in segments)
    if len(line) - len(line.rstrip(" ")) >= _ENTER_EXTRA:
        remaining = _ENTER_EXTRA
        for number in range(len(segments) - 1, -1, -1):
            text = segments[number].text
            cut = min(remaining, len(text))
            segments[number] = _with_text(segments[number], text[: len(text) - cut])
            remaining -= cut
        return True
    candidates = [number for number, (text, _, _) in enumerate(segments) if _FILLER.search(text)]
    if not candidates:
        return False
    shortened = min(candidates, key=lambda number: (number < at, -len(segments[number].text)))
    text = segments[shortened].text
    end = max(_FILLER.finditer(text), key=lambda match: len(match[0])).end()
    segments[shortened] = _with_text(segments[shortened], text[: end - _ENTER_EXTRA] + text[end:])
    return True


def _with_text(segment: Segment, text: str) -> Segment:
    return Segment(text, segment.style, segment.control)
