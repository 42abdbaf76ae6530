"""Encodings of text files: which one a file has, and where it has bytes that do not belong to it."""

from __future__ import annotations

import codecs
from pathlib import Path
from typing import Final

from odf_engine.errors import BadData, InvalidManifest

_HEAD: Final = 4096
_CHUNK: Final = 1 << 20
_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # begins like the mark of UTF-16
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_UNICODE: Final = ("utf-8", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be")


def encoding_of(path: Path, declared: str | None) -> str | None:
    """The encoding to read a file with, as Python names it; None for UTF-8.

    What is declared counts; a byte order mark tells where nothing is, or which form of Unicode it is.
    UTF-16 without a mark is recognised by the zero bytes of its ASCII characters.

    Raises:
        InvalidManifest: an encoding that nobody knows.
    """
    with path.open("rb") as file:
        head = file.read(_HEAD)
    marked = next((name for mark, name in _MARKS if head.startswith(mark)), None)
    if declared is None:
        return marked
    name = codec_of(declared).name
    if marked is not None and name in _UNICODE and name[:5] == marked[:5]:
        return marked
    if name == "utf-16":
        return "utf-16-le" if head[1::2].count(0) > head[::2].count(0) else "utf-16-be"
    if name == "utf-32":
        return "utf-32-le" if head[1::4].count(0) == len(head[1::4]) and head[:1] != b"\0" else "utf-32-be"
    return None if name == "utf-8" else name


def codec_of(encoding: str) -> codecs.CodecInfo:
    """The codec of a name.

    Raises:
        InvalidManifest: nobody knows the name, or it is not about text.
    """
    try:
        "".encode(encoding)  # refuses codecs that are not about text
        return codecs.lookup(encoding)
    except (LookupError, ValueError):
        raise InvalidManifest(
            f"nobody knows the encoding '{encoding}'",
            where="read.encoding",
            hint="write it like `utf-8`, `utf-16`, `latin1`, `windows-1251`, `shift_jis` or `gb18030`",
        ) from None


def bad_bytes(path: Path, name: str, encoding: str) -> BadData:
    """The error for a file that has bytes which its encoding does not know, with the first of them."""
    decoder = codecs.getincrementaldecoder(encoding)()
    line, offset, problem = 1, 0, "what it has"
    start = b""
    with path.open("rb") as file:
        while True:
            chunk = file.read(_CHUNK)
            start = start or chunk[:2]
            pending = len(decoder.getstate()[0])
            try:
                line += decoder.decode(chunk, final=not chunk).count("\n")
            except UnicodeDecodeError as error:
                # The name in the error also says the order of bytes.
                codec = error.encoding if error.encoding.startswith("utf") else encoding
                line += error.object[: error.start].decode(codec, "ignore").count("\n")
                problem = f"byte 0x{error.object[error.start]:02x} at {offset - pending + error.start:,}"
                break
            if not chunk:
                break
            offset += len(chunk)
    hint = "set read.encoding in the manifest, such as windows-1252"
    if start in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        hint = "it begins like UTF-16: set read.encoding to utf-16 in the manifest"
    shown = encoding.removesuffix("-sig").upper()
    return BadData(f"{problem} is not {shown} text", where=f"{name}: line {line}", hint=hint)
