"""Makes a text file fit for Spark: UTF-8, and records that end where Spark thinks they do.

Spark cuts text into lines before it looks at quotes, decodes wrong bytes into question marks, and
takes hidden names, wildcards and suffixes of a path as instructions. So every file is looked through
once (as fast as the disk), given a harmless name, and copied only where it needs to be changed.
"""

from __future__ import annotations

import codecs
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from odf_engine.errors import BadData
from odf_engine.progress import Reporter
from odf_engine.spark.encodings import bad_bytes, encoding_of
from odf_engine.spark.scans import Dialect, JsonScan, LineScan, QuoteScan, Utf8Scan

_CHUNK: Final = 4 << 20
_LONGEST_RECORD: Final = 256 << 20
_ONE_OBJECT: Final = "every line has to be one object; for one document with an array use read.kind Json"
_NO_LINES: Final = "check whether this is CSV, and what ends its lines"
_MARKS: Final = b"\x1e\x1f\x1d\x1c\x02\x03\x04\x05\x06"
"""Characters that may end a record where line ends cannot; the first that a file lacks is taken."""


@dataclass(frozen=True)
class Prepared:
    """A file to give to Spark.

    Attributes:
        path: where it is.
        line_separator: what ends its records; None for any line end.
    """

    path: Path
    line_separator: str | None = None


def prepare(
    path: Path,
    scratch: Path,
    *,
    name: str,
    encoding: str | None = None,
    dialect: Dialect | None = None,
    objects: JsonScan | None = None,
    reporter: Reporter | None = None,
) -> Prepared:
    """Checks a file and gives it a form that Spark reads right.

    Args:
        path: the file.
        scratch: a folder for copies; whoever calls removes it after the job.
        name: how errors name the file.
        encoding: of the file, when it is not UTF-8.
        dialect: for CSV.
        objects: for one JSON object a line; it learns what keys there are.
        reporter: is asked whether to stop.

    Raises:
        BadData: bytes that are not text in this encoding, a quote that is never closed, a line that
            is not one object.
        InvalidManifest: an encoding that nobody knows.
    """
    reporter = reporter or Reporter()
    folder = Path(tempfile.mkdtemp(prefix="text-", dir=scratch))
    codec = encoding_of(path, encoding)
    if codec not in (None, "utf-8-sig"):
        copy = folder / "utf8.txt"
        _transcode(path, copy, codec, name, reporter)
        path = copy
    quotes = QuoteScan(dialect) if dialect is not None and dialect.quote else None
    utf8 = Utf8Scan(path, name) if codec in (None, "utf-8-sig") else None
    lines = LineScan(name, _ONE_OBJECT if objects is not None else _NO_LINES)
    scans = [scan for scan in (lines, utf8, quotes, objects) if scan is not None]
    for chunk in _chunks(path, reporter):
        for scan in scans:
            scan.feed(chunk)
    for scan in scans:
        scan.finish()
    if dialect is not None and quotes is not None and quotes.found:
        marked = folder / "records.txt"
        return Prepared(marked, _mark_records(path, marked, dialect, name, reporter))
    return Prepared(linked(path, folder, ".txt"))


def linked(path: Path, folder: Path, suffix: str) -> Path:
    """Another name for a file: one that Spark takes for nothing but a name."""
    link = Path(tempfile.mkdtemp(prefix="link-", dir=folder)) / f"input{suffix}"
    link.symlink_to(path.resolve())
    return link


def spark_path(path: Path) -> str:
    """A path as Spark's readers take it: a folder's name may hold `[`, `{` or `*` and means itself."""
    return re.sub(r"([\[\]{}*?\\])", r"\\\1", str(path))


def _chunks(path: Path, reporter: Reporter) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            reporter.check()
            yield chunk


def _transcode(path: Path, copy: Path, encoding: str, name: str, reporter: Reporter) -> None:
    decoder = codecs.getincrementaldecoder(encoding)()
    with copy.open("wb") as out:
        try:
            for chunk in _chunks(path, reporter):
                out.write(decoder.decode(chunk).encode("utf-8", "surrogatepass"))
            out.write(decoder.decode(b"", final=True).encode("utf-8", "surrogatepass"))
        except UnicodeError:
            raise bad_bytes(path, name, encoding) from None


def _mark_records(source: Path, target: Path, dialect: Dialect, name: str, reporter: Reporter) -> str:
    """Copies a file with every line end that is not quoted replaced by one mark, which is returned."""
    mark = _free_mark(source, name, reporter)
    token = _token(dialect)
    lines = 1
    rest = b""
    with source.open("rb") as file, target.open("wb") as out:
        while True:
            reporter.check()
            # What is left of a long record is looked at again: the more of it, the more at once.
            chunk = file.read(max(_CHUNK, len(rest)))
            rest += chunk
            done = _mark_chunk(rest, token, mark, out, last=not chunk)
            lines += rest.count(b"\n", 0, done)
            rest = rest[done:]
            if not chunk or len(rest) > _LONGEST_RECORD:
                break
    if rest:
        raise BadData(
            "a quote is opened and never closed",
            where=f"{name}: line {lines}",
            hint="close it, or set `quote` or `escape` in the read step",
        )
    return mark.decode()


def _mark_chunk(data: bytes, token: re.Pattern[bytes], mark: bytes, out: BinaryIO, *, last: bool) -> int:
    """Writes the whole records at the start of ``data``; returns how many bytes they were."""
    done = 0
    for match in token.finditer(data):
        if match.lastgroup == "open":
            return done
        if match.lastgroup == "end":
            if match.end() == len(data) and not last:
                return done  # the other half of a line end may follow
            out.write(data[done : match.start()])
            out.write(mark)
            done = match.end()
    if last:
        out.write(data[done:])
        return len(data)
    return done


def _token(dialect: Dialect) -> re.Pattern[bytes]:
    """Matches a quoted value (which starts right after a separator or line end), or a line end."""
    separator, quote = re.escape(dialect.separator.encode()), re.escape(dialect.quote.encode())
    inner = rb"[^" + quote + rb"]|" + quote * 2
    if dialect.escape not in ("", dialect.quote):
        escape = re.escape(dialect.escape.encode())
        inner = rb"[^" + quote + escape + rb"]|" + escape + rb".|" + quote * 2
    start = rb"(?:\A|(?<=[\r\n])|(?<=" + separator + rb")|(?<=\A\xef\xbb\xbf))" + quote
    body = rb"(?:" + inner + rb")*+"
    return re.compile(start + body + rb"(?:" + quote + rb"|(?P<open>\Z))|(?P<end>\r\n|\n|\r)", re.DOTALL)


def _free_mark(path: Path, name: str, reporter: Reporter) -> bytes:
    free = set(_MARKS)
    for chunk in _chunks(path, reporter):
        free = {mark for mark in free if mark not in chunk}
    for mark in _MARKS:
        if mark in free:
            return bytes([mark])
    raise BadData("the file is full of control characters: it is not text", where=name)
