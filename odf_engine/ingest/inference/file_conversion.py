"""Conversions: the filter that turns a file into one that a reader can read."""

from __future__ import annotations

import csv
import io
import re
import tarfile
import zipfile
from collections import Counter
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import BinaryIO, Final, NamedTuple
from xml.parsers import expat

from odf_engine.base.progress import count_of
from odf_engine.errors import BadData
from odf_engine.filters.filter_process import run_contained
from odf_engine.filters.json_filter import find_items

FORMATS: Final = {
    ".csv": "Csv", ".tsv": "Csv", ".txt": "Csv", ".json": "Json", ".ndjson": "NdJson", ".jsonl": "NdJson",
    ".parquet": "Parquet", ".geojson": "GeoJson", ".geojsonl": "NdGeoJson",
    ".xlsx": "Csv", ".xlsm": "Csv", ".xlsb": "Csv", ".xls": "Csv", ".ods": "Csv", ".xml": "NdJson",
}  # fmt: skip
"""Kinds of read steps by suffix. A filter converts spreadsheets and XML for them."""
SHEETS: Final = (".xlsx", ".xlsm", ".xlsb", ".xls", ".ods")
"""Suffixes of spreadsheets."""
WITH_HEADER: Final = frozenset({".csv", ".tsv"})
"""Suffixes of files whose header an archive may repeat."""
LINE_FORMATS: Final = frozenset({".ndjson", ".jsonl", ".geojsonl"})
"""Suffixes of files whose lines are rows."""
_READABLE: Final = frozenset(FORMATS) - {*SHEETS, ".xml", ".parquet"}
_NOTES: Final = re.compile(
    r"(?i)(.*[_ -])?(read[_ -]?me|licen[cs]e|copying|notice|changelog|terms|about)([_ -].*)?"
)
"""Names of text files about the data."""
_MAX_HEADER: Final = 4096
_MAX_DEPTH: Final = 100
_OLE: Final = b"\xd0\xcf\x11\xe0"
_COMPRESSED: Final = (b"BZh", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd")
_TAR_MARK: Final = slice(257, 262)
_HEAD: Final = 512
_MAX_BYTES: Final = 8 << 20
_MAX_NAMES: Final = 5
_MIN_HEADER_NAMES: Final = 2
_NO_TEXT: Final = b"\xef\xbb\xbf\xff\xfe \r\n\t"
"""Bytes of marks and space before a text."""


class Conversion(NamedTuple):
    """A filter, and the kind of the file that it writes.

    Attributes:
        kind: kind of the read step, or "" if the content of the written file has to show it.
        filter: the arguments of ``odf filter``.
        evidence: why the file needs the filter.
    """

    kind: str
    filter: tuple[str, ...]
    evidence: str


def find_conversion(stream: BinaryIO) -> Conversion | None:
    """Return the filter for a file, or None if its format needs none. Leaves the stream at its beginning.

    Raises:
        BadData: the file is damaged, or too large to be inspected.
    """
    try:
        head = stream.read(_HEAD)
        stream.seek(0)
        text = head.lstrip(_NO_TEXT).replace(b"\0", b"")
        if head.startswith(_OLE) or (head.startswith(b"PK") and is_workbook(stream)):
            return _sheet_conversion(stream)
        if head.startswith(_COMPRESSED) or head[_TAR_MARK] == b"ustar":
            return _archive_conversion(stream)
        if text.startswith(b"<?xml") or (text.startswith(b"<") and not _is_html(text)):
            return _xml_conversion(stream)
        return None
    finally:
        stream.seek(0)


def is_workbook(stream: BinaryIO) -> bool:
    """Return whether a zip archive is a workbook of Excel or OpenDocument."""
    try:
        with zipfile.ZipFile(stream) as archive:
            names = archive.namelist()
            if any(name.startswith("xl/") for name in names):
                return True
            return "mimetype" in names and b"spreadsheet" in archive.read("mimetype")[:_HEAD]
    except (zipfile.BadZipFile, OSError, RuntimeError, NotImplementedError, ValueError):
        return False
    finally:
        stream.seek(0)


def _is_html(text: bytes) -> bool:
    return text[:_HEAD].lower().startswith((b"<!doctype html", b"<html", b"<head"))


def _sheet_conversion(stream: BinaryIO) -> Conversion:
    """Return a filter for the sheet with the largest table."""
    output = io.BytesIO()
    run_contained(("sheet", "--list"), stream, output)
    _, *rows = csv.reader(io.StringIO(output.getvalue().decode(), newline=""))
    sizes = {name: (int(table_values), int(values)) for name, values, table_values in rows}
    name = max(sizes, key=lambda name: sizes[name], default="")
    if not name or not any(sizes[name]):
        raise BadData("the spreadsheet has no values", hint="choose a file with at least one row")
    evidence = f"the table is in sheet {name}"
    if len(sizes) > 1:
        evidence = f"the largest table of {len(sizes)} sheets is in {name}: {listed(list(sizes))}"
    return Conversion("Csv", ("sheet", "--sheet", name, "--all-rows"), evidence)


def listed(names: Sequence[str]) -> str:
    """Return the first names for a message."""
    more = len(names) - _MAX_NAMES
    return ", ".join(names[:_MAX_NAMES]) + (f" and {more} more" if more > 0 else "")


def _archive_conversion(stream: BinaryIO) -> Conversion:
    """Return a filter for a compressed file, or for the members of an archive that are one table.

    Members are one table if they are CSV with the same header.

    Raises:
        BadData: there are several tables, or none.
    """
    try:
        with tarfile.open(fileobj=stream) as archive:
            members = [member for member in archive if member.isfile()]
            data = [
                member for member in members
                if _suffix(member.name) in _READABLE and not is_note(member.name)
            ]  # fmt: skip
            if not data:
                names = listed([member.name for member in members])
                raise BadData("the archive has no CSV, JSON or GeoJSON", hint=f"members: {names}")
            headers: set[bytes] = set()
            for member in data:
                with archive.extractfile(member) or io.BytesIO() as content:
                    headers.add(content.readline(_MAX_HEADER).rstrip())
    except (tarfile.TarError, EOFError, OSError):
        return Conversion("", ("unpack",), "a compressed file")
    suffix = _suffix(data[0].name)
    is_table = len(headers) == 1 and {_suffix(member.name) for member in data} == {suffix} <= WITH_HEADER
    names = [member.name for member in data]
    if is_table or len(data) == 1:
        matches = [member for member in members if member.name.endswith(suffix)]
        is_exact = len(data) > 1 and matches == data
        return members_conversion(names, [f"*{suffix}"] if is_exact else list(map(escaped_pattern, names)))
    raise BadData(
        f"the archive has {len(data)} data files: {listed(sorted(names))}",
        hint="choose one, or a pattern: odf new --from ARCHIVE --member NAME",
    )


def is_note(name: str) -> bool:
    """Return whether a file is about the data, such as ``readme.txt``."""
    return _NOTES.fullmatch(PurePosixPath(name).stem) is not None


def _suffix(name: str) -> str:
    return PurePosixPath(name).suffix.lower()


def members_conversion(names: Sequence[str], patterns: Sequence[str]) -> Conversion:
    """Return a filter that writes the members of an archive one after the other.

    Args:
        names: the members.
        patterns: the patterns that match them.
    """
    evidence = f"{count_of(len(names), 'member')} of the archive: {listed(names)}"
    options = [word for pattern in patterns for word in ("--member", pattern)]
    return Conversion(FORMATS[_suffix(names[0])], ("unpack", *options), evidence)


def escaped_pattern(name: str) -> str:
    """Return a pattern that only a name matches."""
    return "".join(f"[{char}]" if char in "*?[" else char for char in name)


def _xml_conversion(stream: BinaryIO) -> Conversion:
    """Return a filter for the outermost elements that occur several times and have attributes or children."""
    search = _XmlSearch()
    try:
        while (chunk := stream.read(1 << 16)) and stream.tell() < _MAX_BYTES:
            search.parser.Parse(chunk, False)
    except (expat.ExpatError, ValueError, LookupError) as error:
        line = getattr(error, "lineno", None)
        reason = expat.errors.messages[error.code] if isinstance(error, expat.ExpatError) else str(error)
        raise BadData(f"invalid XML: {reason}", where=line and f"line {line}") from None
    path = search.row_path()
    if not path:
        raise BadData(
            "not a data file: XML without repeated elements",
            hint="check the content; it may be an error message of the server",
        )
    count = count_of(search.counts[path], "element")
    return Conversion(
        "NdJson", ("xml", "--row", "/".join(path)), f"{count} named {path[-1]} in the XML document"
    )


class _XmlSearch:
    """Counts the elements of a document by their paths.

    Attributes:
        counts: the number of elements by their path.
    """

    def __init__(self) -> None:
        self.parser = expat.ParserCreate(namespace_separator="}")
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.StartDoctypeDeclHandler = self._refuse
        self.parser.EntityDeclHandler = self._refuse
        self.counts: Counter[tuple[str, ...]] = Counter()
        self._with_members: set[tuple[str, ...]] = set()
        self._path: tuple[str, ...] = ()

    def row_path(self) -> tuple[str, ...]:
        """Return the path of the elements that are rows, or ()."""
        repeated = [path for path in self._with_members if self.counts[path] > 1]
        shortest = min(map(len, repeated), default=0)
        paths = [path for path in repeated if len(path) == shortest]
        return max(paths, key=lambda path: self.counts[path], default=())

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if self._path:
            self._with_members.add(self._path)
        self._path = (*self._path, name.rpartition("}")[2])
        if len(self._path) > _MAX_DEPTH:
            raise BadData("elements are nested too deeply", where=f"line {self.parser.CurrentLineNumber}")
        self.counts[self._path] += 1
        if attributes:
            self._with_members.add(self._path)

    def _end(self, _: str) -> None:
        self._path = self._path[:-1]

    def _refuse(self, *_: object) -> None:
        line = self.parser.CurrentLineNumber
        raise BadData("the document declares a document type or entities", where=f"line {line}")


def json_conversion(document: object) -> Conversion | None:
    """Return a filter for a document whose list is inside a list, or whose items are lists below a header.

    Args:
        document: the document.

    Returns:
        The filter, or None if the readers can read the document.
    """
    if isinstance(document, list) and document and all(isinstance(item, list) for item in document):
        return _rows_conversion(document, "")
    if isinstance(document, list) and any(isinstance(item, list) for item in document):
        paths = [str(at) for at, item in enumerate(document) if isinstance(item, list)]
        items = find_items(document, paths[0])
        if len(paths) == 1 and items and all(isinstance(item, dict) for item in items):
            return items_conversion(paths[0])
    if isinstance(document, dict):
        lists = [(name, value) for name, value in document.items() if isinstance(value, list)]
        for name, value in lists:
            if value and all(isinstance(item, list) for item in value):
                return _rows_conversion(value, name)
    return None


def _rows_conversion(rows: Sequence[Sequence[object]], path: str) -> Conversion | None:
    header, *data = rows
    names = [name for name in header if isinstance(name, str) and name.strip()]
    is_header = len(names) == len(set(names)) == len(header) >= _MIN_HEADER_NAMES
    if not is_header or not data or any(len(row) != len(header) for row in data):
        return None
    return items_conversion(path)


def items_conversion(path: str) -> Conversion:
    """Return a filter for the list at a path of a JSON document, or for the document if the path is ""."""
    return Conversion(
        "NdJson", ("json", *(("--items", path) if path else ())), "a list inside a JSON document"
    )


def converted_beginning(stream: BinaryIO, conversion: Conversion, limit: int) -> tuple[bytes, bool]:
    """Return the first bytes that the filter writes, and whether they are all.

    Args:
        stream: the file.
        conversion: the filter.
        limit: the maximum number of bytes.

    Raises:
        BadData: the file is damaged.
    """
    output = io.BytesIO()
    run_contained(conversion.filter, stream, output, limit)
    return output.getvalue()[:limit], output.tell() <= limit
