"""Escapes control characters in text that is written to a terminal.

Control characters of untrusted text could move the cursor, set the window title or write the clipboard.
Bidirectional controls change the order of displayed text.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Final, TextIO

_BEYOND_ASCII: Final = "\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
# A lone surrogate is a byte of an argument or a file name that is not UTF-8. No stream can encode it.
_UNSAFE: Final = re.compile(f"[\x00-\x08\x0b\x0c\x0e-\x1f{_BEYOND_ASCII}\ud800-\udfff]|\r(?!\n)")
_UNSAFE_IN_JSON: Final = re.compile(f"[{_BEYOND_ASCII}]")
_NOT_ASCII: Final = re.compile("[^\x00-\x7f]")
_replacements: Mapping[str, str] | None = None


def use_ascii(replacements: Mapping[str, str] | None) -> None:
    """Make the functions of this module return ASCII only, or any characters for None.

    Args:
        replacements: ASCII for the characters that the program draws. Others are escaped.
    """
    global _replacements
    _replacements = replacements


def is_ascii_only() -> bool:
    """Return whether :func:`use_ascii` restricts texts to ASCII."""
    return _replacements is not None


def escape_controls(text: str) -> str:
    """Return ``text`` with control characters as ``\\x1b`` or ``\\u202e``.

    Tabs and line ends are not escaped.
    """
    clean = text if text.isprintable() else _UNSAFE.sub(_escape, text)
    if _replacements is None or clean.isascii():
        return clean
    known = _replacements
    return _NOT_ASCII.sub(lambda match: known.get(match[0]) or _escape(match), clean)


def has_controls(text: str) -> bool:
    """Return whether ``text`` has control characters that :func:`escape_controls` escapes."""
    return _UNSAFE.search(text) is not None


def escape_json(document: str) -> str:
    """Return a JSON document with control characters as JSON escapes; its values are unchanged."""
    return (_UNSAFE_IN_JSON if _replacements is None else _NOT_ASCII).sub(_escape_in_json, document)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _escape_in_json(match: re.Match[str]) -> str:
    return json.dumps(match[0])[1:-1]


class EscapingStream:
    """A text stream that escapes the control characters of the text written to it.

    Args:
        stream: the underlying stream. The program writes its own control sequences to it directly.
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
    """Make standard output and standard error escape control characters for the rest of the process."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, EscapingStream):
            setattr(sys, name, EscapingStream(stream))


def unwrap_stream(stream: TextIO) -> TextIO:
    """Return the underlying stream, for data and for the program's own control sequences."""
    return stream.stream if isinstance(stream, EscapingStream) else stream
