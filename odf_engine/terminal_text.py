"""Text on its way to a terminal: control characters of foreign text become visible escapes.

Control characters drive a terminal (they move the cursor, set its title, write its clipboard), and
bidirectional controls make text read in another order than it has.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from typing import Any, Final, TextIO

_BEYOND_ASCII: Final = "\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
# A lone surrogate stands for a byte that is not UTF-8, in an argument or a file name: no stream encodes it.
_UNSAFE: Final = re.compile(f"[\x00-\x08\x0b\x0c\x0e-\x1f{_BEYOND_ASCII}\ud800-\udfff]|\r(?!\n)")
_UNSAFE_IN_JSON: Final = re.compile(f"[{_BEYOND_ASCII}]")


def escape_controls(text: str) -> str:
    """Return ``text`` with control characters as ``\\x1b`` or ``\\u202e``; tabs and ends of lines stay."""
    return text if text.isprintable() else _UNSAFE.sub(_escape, text)


def escape_json(document: str) -> str:
    """Return a JSON document without control characters; its values stay the same."""
    return _UNSAFE_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", document)


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


class EscapingStream:
    """A text stream that escapes the control characters of what is written to it.

    Args:
        stream: where the text goes. Sequences of the program itself are written to it directly.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write text; return its length."""
        self.stream.write(escape_controls(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def escape_standard_streams() -> None:
    """Make standard output and standard error escape control characters, for the rest of the process."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, EscapingStream):
            setattr(sys, name, EscapingStream(stream))


def unescaped(stream: TextIO) -> TextIO:
    """Return the stream beneath, for data, and for control sequences of the program itself."""
    return stream.stream if isinstance(stream, EscapingStream) else stream
