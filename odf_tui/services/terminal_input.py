"""Input of the terminal as keys, mouse events and pastes.

Textual's parser takes the characters of an unknown control sequence for keys, so that a reply of the
terminal, which can arrive late, would run actions. Here, input is divided into sequences as ECMA-48 describes
them, and unknown ones are dropped.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from contextlib import suppress
from typing import Final

from textual import constants, events
from textual._xterm_parser import (
    BRACKETED_PASTE_END,
    BRACKETED_PASTE_START,
    SPECIAL_SEQUENCES,
    XTermParser,
    _re_cursor_position,
    _re_in_band_window_resize,
    _re_mouse_event,
    _re_terminal_mode_response,
)
from textual.message import Message

_ESCAPE: Final = "\x1b"
_SEQUENCE: Final = re.compile(
    r"""
    \x1b\[M[^\x1b]{3}                    # mouse event with bytes for its coordinates
    |\x1b\[\[?[0-?]*[ -/]*[@-~]          # control sequence; function keys of the Linux console
    |\x1bO[0-?]*[@-~]                    # single shift 3: keys of a keypad
    |\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)   # operating system command
    |\x1b[PX^_][^\x1b]*\x1b\\            # strings of device control, applications and privacy
    |\x1b[ -/]+[0-~]                     # other escape sequences
    """,
    re.VERBOSE,
)
_INCOMPLETE: Final = re.compile(
    r"\x1b(?:\[M[^\x1b]{0,2}|\[\[?[0-?]*[ -/]*|O[0-?]*|\][^\x07\x1b]*\x1b?|[PX^_][^\x1b]*\x1b?|[ -/]*)\Z"
)
_DAMAGED: Final = re.compile(r"\x1b(?:\[\[?[0-?]*[ -/]*|O[0-?]*|\][^\x07\x1b]*|[PX^_][^\x1b]*)")
"""The start of a sequence, without the following character, which cannot be in it."""
_REST_OF_REPLY: Final = re.compile(r"\[[<-?]|\]\d|P[0-9>]")
"""The start of a reply whose escape character has arrived before, and was taken for a key."""
_BACKGROUND: Final = re.compile(
    r"\x1b\]11;rgba?:([0-9a-f]{2})[0-9a-f]*/([0-9a-f]{2})[0-9a-f]*/([0-9a-f]{2})", re.I
)
_LIGHT: Final = 128
_REPLY_SECONDS: Final = 1.0
_MAX_SEQUENCE: Final = 1 << 16
_MIN_PASTE: Final = 64
"""Number of characters in one read that a person does not type."""


class BackgroundColour(Message):
    """The reply of a terminal to the request for its background colour (OSC 11).

    Attributes:
        is_light: whether dark text suits the colour.
    """

    def __init__(self, is_light: bool) -> None:
        super().__init__()
        self.is_light = is_light


class TerminalInput:
    """Divides input into messages. The time passes in seconds of any clock."""

    def __init__(self) -> None:
        self._parser = XTermParser()
        self._rest = ""
        self._since = 0.0
        self._escaped = float("-inf")
        self._paste: list[str] | None = None

    def feed(self, data: str, now: float) -> Iterator[Message]:
        """Yield the messages of the next characters.

        Args:
            data: the characters.
            now: the time at which they were read.
        """
        if now - self._escaped < _REPLY_SECONDS and not self._rest and _REST_OF_REPLY.match(data):
            data = _ESCAPE + data
        self._escaped = float("-inf")
        data, self._rest = self._rest + data, ""
        self._since = now
        while data:
            if self._paste is not None:
                data = yield from self._continue_paste(data)
            elif data[0] == _ESCAPE:
                data = yield from self._read_sequence(data)
            else:
                text, escape, data = data.partition(_ESCAPE)
                data = escape + data
                yield from self._read_text(text)

    def tick(self, now: float) -> Iterator[Message]:
        """Yield the messages of characters that nothing has followed for long enough.

        An escape character is then a key. The start of a sequence is dropped.

        Args:
            now: the time.
        """
        rest, waited = self._rest, now - self._since
        if self._paste is not None or not rest:
            return
        if rest == _ESCAPE and waited >= constants.ESCAPE_DELAY:
            self._rest, self._escaped = "", now
            yield events.Key("escape", _ESCAPE)
        elif waited >= _REPLY_SECONDS:
            self._rest = ""
            if len(rest) == 2:
                yield from self._with_alt(rest[1])

    @property
    def is_waiting(self) -> bool:
        """Whether :meth:`tick` will yield a message or drop characters."""
        return bool(self._rest) and self._paste is None

    def _read_sequence(self, data: str) -> Generator[Message, None, str]:
        """Read the sequence at the start; return the following characters."""
        if (match := _SEQUENCE.match(data)) is not None:
            yield from self._translate(match[0])
            return data[match.end() :]
        if _INCOMPLETE.match(data) is not None:
            self._rest = data if len(data) <= _MAX_SEQUENCE else ""
            return ""
        if data[1] == _ESCAPE:
            yield events.Key("escape", _ESCAPE)
            return data[1:]
        if (match := _DAMAGED.match(data)) is not None:
            return data[match.end() :]
        yield from self._with_alt(data[1])
        return data[2:]

    def _translate(self, sequence: str) -> Iterator[Message]:
        """Yield the messages of a complete sequence, if it is known."""
        if sequence == BRACKETED_PASTE_START:
            self._paste = []
        elif (colour := _BACKGROUND.match(sequence)) is not None:
            red, green, blue = (int(part, 16) for part in colour.groups())
            yield BackgroundColour(0.299 * red + 0.587 * green + 0.114 * blue >= _LIGHT)
        elif self._is_known(sequence):
            with suppress(ValueError, OverflowError):  # codes that are no characters
                yield from self._parser.feed(sequence)

    def _is_known(self, sequence: str) -> bool:
        patterns = (
            _re_in_band_window_resize,
            _re_cursor_position,
            _re_mouse_event,
            _re_terminal_mode_response,
        )
        if sequence in SPECIAL_SEQUENCES or any(pattern.fullmatch(sequence) for pattern in patterns):
            return True
        with suppress(ValueError, OverflowError):
            return any(True for _ in self._parser._sequence_to_key_events(sequence))
        return False

    def _with_alt(self, character: str) -> Iterator[Message]:
        known = list(self._parser._sequence_to_key_events(_ESCAPE + character))
        for key in known or self._parser._sequence_to_key_events(character, alt=True):
            name = key.key
            yield key if known or name.startswith("alt+") else events.Key(f"alt+{name}", None)

    def _read_text(self, text: str) -> Iterator[Message]:
        if len(text) >= _MIN_PASTE and len(set(text)) > 2:  # not a key that is held down
            yield events.Paste(_with_newlines(text))
            return
        printable = "".join(char for char in text if not 0x80 <= ord(char) < 0xA0)
        if printable:
            yield from self._parser.feed(printable)

    def _continue_paste(self, data: str) -> Generator[Message, None, str]:
        """Read pasted text; return the characters after its end."""
        assert self._paste is not None
        pasted, end, after = data.partition(BRACKETED_PASTE_END)
        if end:
            yield events.Paste(_with_newlines("".join([*self._paste, pasted])))
            self._paste = None
            return after
        start = data.rfind(_ESCAPE, max(0, len(data) - len(BRACKETED_PASTE_END)))
        end_of_text = start if start >= 0 and BRACKETED_PASTE_END.startswith(data[start:]) else len(data)
        self._paste.append(data[:end_of_text])
        self._rest = data[end_of_text:]
        return ""


def _with_newlines(text: str) -> str:
    """Return pasted text with the line ends that editors expect. Terminals send carriage returns."""
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\x00", "")
