"""A look at the first bytes of a file: what it is when it is not the text that was expected."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from odf_engine.errors import BadData

_HEAD: Final = 512
_BINARY: Final = (
    (b"\x1f\x8b", "gzip", "add a prepare step: {kind: Decompress, format: Gzip}"),
    (b"PK\x03\x04", "a zip archive", "add a prepare step: {kind: Decompress, format: Zip}"),
    (b"PAR1", "Parquet", "use read.kind Parquet"),
    (b"%PDF", "a PDF document", None),
    (b"BZh", "bzip2", "unpack it before the pull"),
    (b"\xfd7zXZ\x00", "xz", "unpack it before the pull"),
    (b"(\xb5/\xfd", "zstandard", "unpack it before the pull"),
)
_NO_TEXT: Final = re.compile(rb"[\x00-\x08\x0e-\x1a\x80-\xff]")


def check_is_text(path: Path, name: str, encoding: str | None = None) -> None:
    """Looks whether a text file may be the data that is expected.

    Raises:
        BadData: it is a web page, XML, or packed; the hint says what to do.
    """
    with path.open("rb") as file:
        head = file.read(_HEAD)
    for magic, kind, hint in _BINARY:
        if head.startswith(magic) and _NO_TEXT.search(head):
            raise BadData(f"is {kind}, not text", where=name, hint=hint)
    text = head.decode(encoding or "utf-8", "ignore").lstrip("\ufeff \t\r\n").lower()
    if text.startswith(("<!doctype html", "<html", "<head")):
        raise BadData(
            "is a web page (HTML), not data",
            where=name,
            hint="open the URL in a browser: it may be an error page",
        )
    if text.startswith(("<?xml", "<error", "<!doctype")):
        raise BadData("is XML, not data", where=name, hint="see what the source says in it")
