"""A terminal's screen, rebuilt from the bytes that a program writes to it."""

from __future__ import annotations

import re

from rich.cells import split_graphemes

_SEQUENCE = re.compile(
    r"\x1b\[(?P<values>[0-9;]*)(?P<name>[A-Za-z])|\x1b\[[?<>=][0-9;$]*[A-Za-z]|\x1b\][^\x07]*\x07|[\r\n]"
)
_ENDS = {"22": {"1", "2"}, "23": {"3"}, "24": {"4"}, "25": {"5"}, "27": {"7"}, "29": {"9"}}
Cell = tuple[str, frozenset[str], str, str]


class TerminalScreen:
    """The cells of a terminal: character, attributes, colour and background."""

    def __init__(self, width: int, height: int) -> None:
        self._width = width
        self.cells: list[list[Cell]] = [[("", frozenset(), "", "")] * width for _ in range(height)]
        self._x = self._y = 0
        self._attributes, self._colour, self._ground = frozenset[str](), "39", "49"

    def feed(self, data: str) -> None:
        """Apply what was written."""
        at = 0
        for match in _SEQUENCE.finditer(data):
            self._print(data[at : match.start()])
            at = match.end()
            self._control(match["name"] or "", (match["values"] or "").split(";"))
        self._print(data[at:])

    def _control(self, name: str, values: list[str]) -> None:
        if name == "H":
            self._y, self._x = int(values[0] or 1) - 1, int(values[-1] or 1) - 1
        elif name == "G":
            self._x = int(values[0] or 1) - 1
        elif name == "C":
            self._x += max(int(values[0] or 1), 1)
        elif name == "m":
            self._style(values)

    def _style(self, codes: list[str]) -> None:
        codes = list(codes)
        while codes:
            code = codes.pop(0) or "0"
            if code in ("38", "48"):
                count = 2 if codes[0] == "5" else 4
                colour = ";".join([code, *codes[:count]])
                del codes[:count]
                if code == "38":
                    self._colour = colour
                else:
                    self._ground = colour
            elif code == "0":
                self._attributes, self._colour, self._ground = frozenset(), "39", "49"
            elif code in _ENDS:
                self._attributes -= _ENDS[code]
            elif len(code) == 1:
                self._attributes |= {code}
            elif code[:-1] in ("3", "9"):
                self._colour = code
            else:
                self._ground = code

    def _print(self, text: str) -> None:
        for start, end, size in split_graphemes(text)[0]:
            if not size or self._x >= self._width:
                continue
            letter = text[start:end]
            attributes, colour = self._attributes, self._colour
            if letter == " " and attributes.isdisjoint("479"):  # its colour is not seen
                attributes, colour = frozenset[str](), ""
            for at in range(self._x, min(self._x + size, self._width)):
                shown = letter if at == self._x else ""
                self.cells[self._y][at] = (shown, attributes, colour, self._ground)
            self._x += size
