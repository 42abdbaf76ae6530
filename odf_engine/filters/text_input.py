"""Decodes the text that a filter reads."""

from __future__ import annotations

import codecs
import io
from typing import BinaryIO, Final

from odf_engine.errors import BadData, UsageError

_SAMPLE: Final = 1 << 20
_MIN_SPECIAL: Final = 100
_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def open_text(source: BinaryIO, encoding: str = "") -> io.TextIOWrapper:
    """Decode a stream. Line ends stay as they are.

    Args:
        source: the stream.
        encoding: its encoding, or "" to detect it: a byte order mark, UTF-8, else the most probable one.

    Raises:
        UsageError: the encoding is unknown.
        BadData: the stream is not text.
    """
    sample = source.read(_SAMPLE)
    if not encoding:
        encoding = _detect(sample)
    try:
        codec = codecs.lookup(encoding).name
    except LookupError:
        raise UsageError(f"unknown encoding '{encoding}'", hint="use a name such as windows-1252") from None
    stream = io.BufferedReader(_Rest(sample, source), _SAMPLE)
    return io.TextIOWrapper(stream, "utf-8-sig" if codec == "utf-8" else codec, newline="")


def decoding_error(error: UnicodeDecodeError, lines: int) -> BadData:
    """Return the error for bytes that are not of the encoding; ``lines`` lines were read before."""
    byte = error.object[error.start]
    lines += error.object.count(b"\n", 0, error.start)  # the bytes after these lines are decoded together
    return BadData(
        f"byte 0x{byte:02x} is not {error.encoding} text",
        where=f"line {lines + 1}",
        hint="set --encoding, such as windows-1252",
    )


def _detect(sample: bytes) -> str:
    for mark, encoding in _MARKS:
        if sample.startswith(mark):
            return encoding
    try:
        codecs.getincrementaldecoder("utf-8")().decode(sample)
    except UnicodeDecodeError:
        return _legacy_encoding(sample)
    if b"\0" in sample:
        hint = "use odf filter sheet for spreadsheets, and odf filter unpack for archives"
        raise BadData("not a text file", hint=hint)
    return "utf-8"


def _legacy_encoding(sample: bytes) -> str:
    """Return the most probable encoding of a text that is not UTF-8."""
    special = sample.translate(None, bytes(range(128)))
    if len(special) < _MIN_SPECIAL:  # too few to distinguish languages
        return "cp1252" if any(byte < 0xA0 for byte in special) else "latin-1"
    from charset_normalizer import from_bytes  # takes 50 ms

    best = from_bytes(sample[: 1 << 16]).best()
    return "latin-1" if best is None else best.encoding


class _Rest(io.RawIOBase):
    """A stream whose beginning was read."""

    def __init__(self, head: bytes, source: BinaryIO) -> None:
        self._head = memoryview(head)
        self._source = source

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        data, self._head = self._head[: len(buffer)], self._head[len(buffer) :]
        if not data:
            data = self._source.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)
