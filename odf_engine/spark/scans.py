"""What a file of text is asked while it is looked through, chunk by chunk, at the speed of the disk."""

from __future__ import annotations

import codecs
import json
from dataclasses import dataclass
from pathlib import Path

from odf_engine.errors import BadData
from odf_engine.spark.errors import RejectedRow, shortened


@dataclass(frozen=True)
class Dialect:
    """How a CSV file is written; every part is one ASCII character, except the separator.

    Attributes:
        separator: between values.
        quote: around values; empty where quotes mean nothing.
        escape: before a quote within quotes; equal to ``quote`` where it is doubled instead.
    """

    separator: str = ","
    quote: str = '"'
    escape: str = '"'


def not_text(encoding: str, line: int, name: str, start: bytes = b"") -> BadData:
    """The error for bytes that are not text; ``start`` is how the file or the bytes begin."""
    hint = "set `encoding` in the read step, such as `windows-1252`"
    if start in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        hint = "it begins like UTF-16: set `encoding: utf-16` in the read step"
    return BadData(f"bytes that are not {encoding.upper()} text", where=f"{name}, line {line}", hint=hint)


class Utf8Scan:
    """Checks that a file is UTF-8: Spark would make question marks of what is not.

    Args:
        path: the file, to find the line of a wrong byte.
        name: how errors name it.
    """

    def __init__(self, path: Path, name: str) -> None:
        self._path = path
        self._name = name
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._offset = 0

    def feed(self, chunk: bytes) -> None:
        """The next part of the file.

        Raises:
            BadData: it is not UTF-8.
        """
        if self._decoder.getstate()[0] or not chunk.isascii():
            self._decode(chunk, final=False)
        self._offset += len(chunk)

    def finish(self) -> None:
        """The file has ended; raises as :meth:`feed` does."""
        self._decode(b"", final=True)

    def _decode(self, chunk: bytes, *, final: bool) -> None:
        pending = len(self._decoder.getstate()[0])
        try:
            self._decoder.decode(chunk, final)
        except UnicodeDecodeError as error:
            with self._path.open("rb") as file:
                before = file.read(self._offset - pending + error.start)
            start = before[:2] or error.object[:2]
            raise not_text("utf-8", before.count(b"\n") + 1, self._name, start) from None


class QuoteScan:
    """Finds out whether a line holds an odd number of quotes: only then may a line end be quoted.

    Attributes:
        found: whether line ends may stand within quotes, after :meth:`finish`.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._quote = dialect.quote.encode()
        self._escape = dialect.escape.encode() if dialect.escape != dialect.quote else b""
        self._others = bytes(set(range(256)) - set(self._quote) - {0x0A})
        self._rest = b""
        self._quotes = self._odd = self._lone = False
        self.found = False

    def feed(self, chunk: bytes) -> None:
        """The next part of the file."""
        if not self._lone and b"\r" in chunk:
            # One that ends the chunk may belong to a line end: the rare false alarm costs little.
            self._lone = chunk.count(b"\r") != chunk.count(b"\r\n")
        if self._odd or (not self._rest and self._quote not in chunk):
            return
        self._quotes = True
        lines, end, rest = (self._rest + chunk).rpartition(b"\n")
        self._count(lines + end)
        # What begins a line and has no quote yet does not matter to the count.
        self._rest = rest if self._quote in rest else b""

    def finish(self) -> None:
        """The file has ended."""
        self._count(self._rest)
        self.found = self._odd or (self._lone and self._quotes)

    def _count(self, lines: bytes) -> None:
        if self._escape:
            lines = lines.replace(self._escape * 2, b"").replace(self._escape + self._quote, b"")
        left = lines.translate(None, self._others).replace(self._quote * 2, b"")
        self._odd = self._odd or self._quote in left


class JsonScan:
    """Finds lines that are not exactly one JSON object: Spark would read the first and drop the rest.

    A line that ends with a brace and has no brace opened right after one was closed is left to
    Spark, which finds every other fault.

    Args:
        name: how errors name the file.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._rest = b""
        self._lines = 0

    def feed(self, chunk: bytes) -> None:
        """The next part of the file.

        Raises:
            RejectedRow: a line that is not one object.
        """
        lines, end, self._rest = (self._rest + chunk).rpartition(b"\n")
        self._check(lines + end)
        self._lines += lines.count(b"\n") + len(end)

    def finish(self) -> None:
        """The file has ended."""
        self._check(self._rest)

    def _check(self, block: bytes) -> None:
        ended = block.count(b"}\n") + block.count(b"}\r\n")
        if ended == block.count(b"\n") and block.endswith(b"\n") and not _reopened(block):
            return
        for number, line in enumerate(block.split(b"\n"), self._lines + 1):
            line = line.strip(b" \t\r")
            if line and (not line.endswith(b"}") or _reopened(line)):
                self._check_line(line.decode().removeprefix("\ufeff"), number)

    def _check_line(self, line: str, number: int) -> None:
        try:
            problem = "" if isinstance(json.loads(line), dict) else "it is another kind of value"
        except ValueError as error:
            problem = str(error).partition(": line ")[0]
        if problem:
            raise RejectedRow(
                f"a line is not one JSON object: {problem}",
                where=f"{self._name}, line {number}",
                hint=f"the line begins {shortened(line, 60)}",
                record=line,
            )


def _reopened(text: bytes) -> bool:
    return b"}{" in text or b"} {" in text or b"}\t{" in text
