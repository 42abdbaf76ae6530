"""A look at the first bytes of a file: what it is when it is not the text that was expected."""

from __future__ import annotations

import codecs
from pathlib import Path
from typing import Final

from odf_engine.errors import BadData

_HEAD: Final = 512
_CHUNK: Final = 1 << 20
_BINARY: Final = (
    (b"\x1f\x8b", "gzip", "add a prepare step: {kind: Decompress, format: Gzip}"),
    (b"PK\x03\x04", "a zip archive", "add a prepare step: {kind: Decompress, format: Zip}"),
    (b"PAR1", "Parquet", "use read.kind Parquet"),
    (b"%PDF", "a PDF document", None),
    (b"BZh", "bzip2", "unpack it before the pull"),
    (b"\xfd7zXZ\x00", "xz", "unpack it before the pull"),
    (b"(\xb5/\xfd", "zstandard", "unpack it before the pull"),
)


def check_is_text(path: Path, name: str) -> None:
    """Looks whether a text file may be the data that is expected.

    Raises:
        BadData: it is a web page, XML, or packed; the hint says what to do.
    """
    head = _head(path)
    for magic, kind, hint in _BINARY:
        if head.startswith(magic):
            raise BadData(f"is {kind}, not text", where=name, hint=hint)
    text = head.removeprefix(codecs.BOM_UTF8).lstrip().lower()
    if text.startswith((b"<!doctype html", b"<html", b"<head")):
        raise BadData(
            "is a web page (HTML), not data",
            where=name,
            hint="open the URL in a browser: it may be an error page",
        )
    if text.startswith((b"<?xml", b"<error", b"<!doctype")):
        raise BadData("is XML, not data", where=name, hint="see what the source says in it")


def encoding_of(path: Path, declared: str | None) -> str | None:
    """The encoding to read a file with: a byte order mark of UTF-8 is no part of the text."""
    if declared is None and _head(path).startswith(codecs.BOM_UTF8):
        return "utf-8-sig"
    return declared


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_HEAD)


def bad_bytes(path: Path, name: str, encoding: str) -> BadData:
    """The error for a file that has bytes which its encoding does not know, with the first of them."""
    decoder = codecs.getincrementaldecoder(encoding)()
    line, offset, problem = 1, 0, ""
    with path.open("rb") as file:
        while not problem:
            chunk = file.read(_CHUNK)
            pending = len(decoder.getstate()[0])
            try:
                line += decoder.decode(chunk, final=not chunk).count("\n")
            except UnicodeDecodeError as error:
                line += error.object[: error.start].count(b"\n")
                problem = f"byte 0x{error.object[error.start]:02x} at {offset - pending + error.start:,}"
            if not chunk:
                break
            offset += len(chunk)
    return BadData(
        f"{problem} is not {encoding.removesuffix('-sig').upper()} text",
        where=f"{name}: line {line}",
        hint="set read.encoding in the manifest, such as windows-1252",
    )
