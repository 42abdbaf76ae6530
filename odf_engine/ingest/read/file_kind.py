"""Recognizes the kind of a file by its first bytes."""

from __future__ import annotations

import codecs
import re
from contextlib import suppress
from pathlib import Path
from typing import Final

from odf_engine.data.zip_archive import ARCHIVE_ERRORS, ZipArchive
from odf_engine.errors import BadData

_CONVERT: Final = "add a prepare step: {kind: Pipe, command: [odf, filter, sheet]}"
_UNPACK: Final = "add a prepare step: {kind: Pipe, command: [odf, filter, unpack]}"
_HEAD: Final = 512
_BINARY: Final = (
    (b"\x1f\x8b", "gzip", "add a prepare step: {kind: Decompress, format: Gzip}"),
    (b"PK\x03\x04", "zip archive", "add a prepare step: {kind: Decompress, format: Zip}"),
    (b"\xd0\xcf\x11\xe0", "Excel workbook, or another document of an old Office version", _CONVERT),
    (b"SQLite format 3\x00", "SQLite database", "export a table as CSV"),
    (b"PAR1", "Parquet", "use read.kind Parquet"),
    (b"%PDF", "PDF document", None),
    (b"BZh", "bzip2", _UNPACK),
    (b"\xfd7zXZ\x00", "xz", _UNPACK),
    (b"(\xb5/\xfd", "zstandard", _UNPACK),
)
_NOT_TEXT: Final = re.compile(rb"[\x00-\x08\x0e-\x1a\x80-\xff]")


def reject_binary(path: Path, name: str, encoding: str | None = None) -> None:
    """Check the first bytes of a text file.

    Raises:
        BadData: the file is a web page, XML, compressed, a workbook or a database.
    """
    with path.open("rb") as file:
        head = file.read(_HEAD)
    for magic, kind, hint in _BINARY:
        if head.startswith(magic) and _NOT_TEXT.search(head):
            if kind == "zip archive" and (workbook := _workbook_kind(path)):
                kind, hint = workbook, _CONVERT
            raise BadData(f"not a text file: {kind}", where=name, hint=hint)
    text = head.decode(encoding or "utf-8", "ignore").lstrip("\ufeff \t\r\n").lower()
    if text.startswith(("<!doctype html", "<html", "<head")):
        raise BadData(
            "not a data file: HTML page",
            where=name,
            hint="open the URL in a browser; it may be an error page",
        )
    if text.startswith(("<?xml", "<error", "<!doctype")):
        raise BadData(
            "not a data file: XML",
            where=name,
            hint="check the content; it may be an error message of the server",
        )


def _workbook_kind(path: Path) -> str:
    """Return the kind of a workbook, which is a zip archive, or "" for another archive."""
    with suppress(*ARCHIVE_ERRORS, BadData, OSError), ZipArchive(path) as archive:
        names = archive.namelist()
        if any(name.startswith("xl/") for name in names):
            return "Excel workbook"
        if "mimetype" in names:
            with archive.open("mimetype") as file:
                return "OpenDocument spreadsheet" if b"spreadsheet" in file.read(100) else ""
    return ""


def sniff_kind(data: bytes) -> str:
    """Return the kind of the read step for the beginning of a file whose name does not have it."""
    start = data.removeprefix(codecs.BOM_UTF8).lstrip()[:1]
    if data.startswith(b"PAR1"):
        return "Parquet"
    return "Json" if start in (b"{", b"[") else "Csv"
