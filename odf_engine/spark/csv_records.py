"""Records of CSV files: quoted values, line ends, and values that are invalid."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import BinaryIO, Final

from odf_engine.spark.errors import RejectedRow, truncate

_MAX_RECORD: Final = 256 << 20
LINE_END: Final = re.compile(rb"\r\n|\n|\r")


@dataclass(frozen=True)
class Dialect:
    """The dialect of a CSV file; each part except the separator is one ASCII character.

    Attributes:
        separator: between values.
        quote: around values, or "" if quotes have no meaning.
        escape: before a quote within quotes; equal to ``quote`` if quotes are doubled.
    """

    separator: str = ","
    quote: str = '"'
    escape: str = '"'


class QuoteScan:
    """Detects quoted values that do not end within their line: it is invalid, or a line break is quoted.

    Attributes:
        found: whether there may be such a value, after :meth:`finish`. A false positive only costs time.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._quote = dialect.quote.encode()
        end = rb"(?!" + re.escape(self._quote) + _end_of_value(dialect) + rb")"
        self._pattern = re.compile(_quoted_text(dialect, excluded=rb"\r\n") + end, re.DOTALL)
        self._line_start = b""
        self.found = False

    def feed(self, chunk: bytes) -> None:
        """Scan the next chunk of the file."""
        if self.found:
            return
        data = self._line_start + chunk
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        self._scan(data[:end])
        self._line_start = data[end:]

    def finish(self) -> None:
        """Scan the end of the file."""
        self._scan(self._line_start)

    def _scan(self, lines: bytes) -> None:
        self.found = self.found or (self._quote in lines and self._pattern.search(lines) is not None)


class NulScan:
    """Detects bytes 0x00, which Spark drops or reads as a blank.

    Attributes:
        found: whether there is one.
    """

    def __init__(self) -> None:
        self.found = False

    def feed(self, chunk: bytes) -> None:
        """Scan the next chunk of the file."""
        self.found = self.found or b"\0" in chunk

    def finish(self) -> None:
        """Do nothing at the end of the file."""


def separate_chunk(
    data: bytes, dialect: Dialect, separator: bytes, out: BinaryIO, *, last: bool
) -> tuple[int, bool]:
    """Write the complete records at the start of ``data``.

    Returns:
        Their length in bytes, and whether their quoted values are valid.
    """
    token, margin = _record_pattern(dialect), len(dialect.separator.encode()) + 1
    start = position = 0
    is_valid = True
    while (match := token.search(data, position)) is not None:
        end: re.Match[bytes] | None = match
        if match.lastgroup != "end":
            position = match.end()
            if match.lastgroup is None:
                continue
            is_open = match.lastgroup == "open" and len(data) <= _MAX_RECORD
            if not last and (is_open or len(data) - position < margin):
                break  # the end of the value may follow
            is_valid = False
            end = LINE_END.search(data, match.start())
        if end is None or (end.end() == len(data) and not last):
            break  # the line end, or its second half, may follow
        out.write(data[start : end.start()])
        out.write(separator)
        start = position = end.end()
    if last:
        out.write(data[start:])
        return len(data), is_valid
    return start, is_valid


@cache
def _record_pattern(dialect: Dialect) -> re.Pattern[bytes]:
    """Return a pattern of a quoted value, or of a line end.

    A value that is not closed has the group ``open``, one with text after its closing quote ``stray``.
    """
    end = re.escape(dialect.quote.encode()) + _end_of_value(dialect)
    value = _quoted_text(dialect) + rb"(?:" + end + rb"|(?P<open>\Z)|(?P<stray>))"
    return re.compile(value + rb"|(?P<end>\r\n|\n|\r)", re.DOTALL)


def _end_of_value(dialect: Dialect) -> bytes:
    """Return a pattern of the position after the closing quote of a value."""
    return rb"(?=" + re.escape(dialect.separator.encode()) + rb"|[\r\n]|\Z)"


def _quoted_text(dialect: Dialect, *, excluded: bytes = b"") -> bytes:
    """Return a pattern of a quote after a separator or line end, and the text up to the closing quote.

    Args:
        dialect: the dialect of the file.
        excluded: characters that the text does not have.
    """
    quote, separator = re.escape(dialect.quote.encode()), re.escape(dialect.separator.encode())
    places = (rb"\A", rb"[\r\n]", separator, rb"\A\xef\xbb\xbf")
    start = quote + rb"(?:" + b"|".join(rb"(?<=" + place + quote + rb")" for place in places) + rb")"
    escape, escaped = b"", quote * 2
    if dialect.escape not in ("", dialect.quote):
        escape = re.escape(dialect.escape.encode())
        escaped = escape + (rb"[^" + excluded + rb"]" if excluded else rb".")
    plain = rb"[^" + quote + escape + excluded + rb"]*+"
    return start + plain + rb"(?:" + escaped + plain + rb")*+"


def invalid_value(record: bytes, dialect: Dialect) -> tuple[int, str] | None:
    """Return the position of the first invalid value of a CSV record, from 0, and the reason.

    A value is invalid if it begins with a quote and has text after the closing quote or no closing quote, or
    if it has a byte 0x00.
    """
    places: list[tuple[int, str]] = []
    if (nul := record.find(b"\0")) >= 0:
        places.append((nul, "byte 0x00 is not text"))
    if dialect.quote:
        for match in _record_pattern(dialect).finditer(record):
            if match.lastgroup in ("open", "stray"):
                text = truncate(record[match.start() :].decode("utf-8", "replace"), 60)
                is_open = match.lastgroup == "open"
                reason = "a quote is not closed" if is_open else "text follows a closing quote"
                places.append((match.start(), f"{reason}: {text}"))
                break
    if not places:
        return None
    place, reason = min(places)
    before, separator = record[:place], dialect.separator.encode()
    if dialect.quote:
        before = _record_pattern(dialect).sub(b"", before)
    return before.count(separator), reason


@dataclass(frozen=True)
class CsvRecords:
    """Checks the records of a CSV file.

    Attributes:
        name: name of the file in errors.
        dialect: dialect of the file.
        columns: names of its columns.
    """

    name: str
    dialect: Dialect
    columns: Sequence[str]

    def error(self, line: int, record: bytes) -> RejectedRow | None:
        """Return the error for the first invalid value of a record."""
        problem = invalid_value(record, self.dialect)
        if problem is None:
            return None
        at, reason = problem
        column = self.columns[at] if at < len(self.columns) else None
        hint = "close the quote, double quotes within a value, or set read.quote or read.escape"
        if b"\0" in record:
            hint = "if the file is UTF-16 or UTF-32, set read.encoding, such as utf-16"
        elif b'\\"' in record and self.dialect.escape == self.dialect.quote:
            hint = "if a backslash escapes quotes, set read.escape to '\\'"
        place = f"{self.name}: line {line}" + (f', column "{column}"' if column else "")
        text = record.decode("utf-8", "replace")
        return RejectedRow(reason, where=place, record=text, column=column, hint=hint)
