"""Reader of dBASE tables (.dbf)."""

from __future__ import annotations

import codecs
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from odf_engine.base.arrow import pa
from odf_engine.errors import BadData

_HEADER: Final = struct.Struct("<4xIHH17xB2x")
_FIELD: Final = struct.Struct("<11sc4xBB14x")
_END_OF_FIELDS: Final = b"\r"
_DELETED: Final = b"*"
_MAX_DIGITS: Final = 38
_BIGINT_DIGITS: Final = 18
_CHUNK: Final = 1 << 20
_ANSI: Final = "cp1252"
_UNKNOWN_LANGUAGES: Final = (0x00, 0x57)  # Not set, or the code page of the Windows that wrote the file.
_CODE_PAGES: Final = {
    0x01: "cp437", 0x02: "cp850", 0x03: "cp1252", 0x04: "mac_roman", 0x08: "cp865", 0x09: "cp437",
    0x0A: "cp850", 0x0B: "cp437", 0x0D: "cp437", 0x0E: "cp850", 0x0F: "cp437", 0x10: "cp850",
    0x11: "cp437", 0x12: "cp850", 0x13: "cp932", 0x14: "cp850", 0x15: "cp437", 0x16: "cp850",
    0x17: "cp865", 0x18: "cp437", 0x19: "cp437", 0x1A: "cp850", 0x1B: "cp437", 0x1C: "cp863",
    0x1D: "cp850", 0x1F: "cp852", 0x22: "cp852", 0x23: "cp852", 0x24: "cp860", 0x25: "cp850",
    0x26: "cp866", 0x37: "cp850", 0x40: "cp852", 0x4D: "cp936", 0x4E: "cp949", 0x4F: "cp950",
    0x50: "cp874", 0x57: "cp1252", 0x58: "cp1252", 0x59: "cp1252", 0x64: "cp852", 0x65: "cp866",
    0x66: "cp865",
    0x67: "cp861", 0x6A: "cp737", 0x6B: "cp857", 0x78: "cp950", 0x79: "cp949", 0x7A: "cp936",
    0x7B: "cp932", 0x7C: "cp874", 0x7D: "cp1255", 0x7E: "cp1256", 0x86: "cp737", 0x87: "cp852",
    0x88: "cp857", 0x96: "mac_cyrillic", 0x97: "mac_latin2", 0x98: "mac_greek", 0xC8: "cp1250",
    0xC9: "cp1251", 0xCA: "cp1254", 0xCB: "cp1253", 0xCC: "cp1257",
}  # fmt: skip
"""Code pages by the language byte of the header."""
_ENCODING: Final = "check the .cpg file, or the language byte in the header"
_MAX_EXPONENT: Final = 400
"""Numbers with larger exponents fit no type. Written without exponent, they would need gigabytes."""
_TRUTHS: Final = {"t": "true", "y": "true", "f": "false", "n": "false", "?": None}


class DbfColumn(NamedTuple):
    """A column: its name, letter of its type, width in bytes, and number of decimal digits."""

    name: str
    kind: str
    width: int
    decimals: int

    @property
    def type(self) -> pa.DataType | None:
        """Arrow type of the values, or None for a type that is not supported.

        Numbers without decimals are BIGINT, or DECIMAL if they can have more digits than BIGINT.
        """
        match self.kind:
            case "C":
                return pa.string()
            case "D":
                return pa.date32()
            case "L":
                return pa.bool_()
            case "N" | "F" if self.decimals == 0 and self.kind == "N" and self.width <= _BIGINT_DIGITS:
                return pa.int64()
            case "N" if self.decimals == 0 and self.width <= _MAX_DIGITS:
                return pa.decimal128(self.width, 0)
            case "N" | "F":
                return pa.float64()
        return None


@dataclass(frozen=True)
class DbfTable:
    """A dBASE table.

    Attributes:
        path: the file.
        name: its name in messages.
        columns: all columns, in the order of the file.
        count: number of rows, including deleted ones.
        encoding: the encoding of its text, a codec of Python.
        guessed: the encoding is a guess.
    """

    path: Path
    name: str
    columns: tuple[DbfColumn, ...]
    count: int
    encoding: str
    guessed: bool
    _begin: int
    _width: int

    @classmethod
    def open(cls, path: Path, name: str, code_page: str | None) -> DbfTable:
        """Read the header.

        Args:
            path: the file.
            name: its name in messages.
            code_page: content of its .cpg file, or None if absent.

        Raises:
            BadData: the file is not a dBASE table, or is truncated.
        """
        with path.open("rb") as file:
            head = file.read(_HEADER.size)
            if len(head) < _HEADER.size:
                raise BadData("not a dBASE table: file too short", where=name)
            count, begin, width, language = _HEADER.unpack(head)
            raw = list(_fields(file, name))
        if sum(rest[1] for _, rest in raw) + 1 != width or begin < _HEADER.size + len(raw) * _FIELD.size:
            raise BadData("not a dBASE table: inconsistent header", where=name, hint="fetch the file again")
        if path.stat().st_size < begin + count * width:
            complete = max(path.stat().st_size - begin, 0) // width
            raise BadData(
                f"truncated file: {complete:,} of {count:,} rows",
                where=name,
                hint="fetch the file again",
            )
        encoding, guessed = _encoding(code_page, language, path, begin)
        try:
            columns = tuple(DbfColumn(_decode(text, encoding), *rest) for text, rest in raw)
        except UnicodeError as error:
            raise BadData(
                f"a column name is not valid {encoding.upper()}", where=name, hint=_ENCODING
            ) from error
        return cls(path, name, columns, count, encoding, guessed, begin, width)

    def rows(self) -> Iterator[list[str | None] | None]:
        """Yield the values of each row as text, in the order of the columns, or None for a deleted row.

        Raises:
            BadData: a value is not of its type or encoding; ``where`` has the row.
        """
        with self.path.open("rb") as file:
            file.seek(self._begin)
            for number in range(1, self.count + 1):
                record = file.read(self._width)
                yield None if record[:1] == _DELETED else self._values(record, number)

    def _values(self, record: bytes, number: int) -> list[str | None]:
        values, at = [], 1
        for column in self.columns:
            raw = record[at : at + column.width]
            at += column.width
            try:
                values.append(_value(column.kind, raw, self.encoding))
            except ValueError as error:
                place = f'{self.name}: record {number}, column "{column.name}"'
                if isinstance(error, UnicodeError):
                    problem = f"{raw.rstrip()!r} is not valid {self.encoding.upper()}"
                    raise BadData(problem, where=place, hint=_ENCODING) from None
                raise BadData(str(error), where=place) from None
        return values


def _fields(file: BinaryIO, name: str) -> Iterator[tuple[bytes, tuple[str, int, int]]]:
    while (raw := file.read(_FIELD.size))[:1] != _END_OF_FIELDS:
        if len(raw) < _FIELD.size:
            raise BadData("not a dBASE table: incomplete header", where=name)
        label, kind, width, decimals = _FIELD.unpack(raw)
        if kind == b"C":
            width, decimals = width + 256 * decimals, 0  # The encoding of long widths.
        yield label.partition(b"\0")[0].strip(), (kind.decode("latin-1"), width, decimals)


def _value(kind: str, raw: bytes, encoding: str) -> str | None:
    if kind == "C":
        return _decode(raw.partition(b"\0")[0].rstrip(b" "), encoding) or None
    text = raw.decode("latin-1").partition("\0")[0].strip()
    match kind:
        case "N" | "F":
            return None if set(text) <= {"*"} else _number(text)
        case "D" if set(text) <= {"0", " "}:
            return None
        case "D":
            if not re.fullmatch(r"\d{8}", text):
                raise ValueError(f"'{text}' is not a date in the format 20240131")
            return f"{text[:4]}-{text[4:6]}-{text[6:]}"
        case "L":
            if text and text.lower() not in _TRUTHS:
                raise ValueError(f"'{text}' is not a Boolean such as T or F")
            return _TRUTHS.get(text.lower())
    return None


def _number(text: str) -> str:
    """Return a number without padding zeros and exponent, which any type can parse."""
    if text.isdecimal():
        return text
    try:
        value = Decimal(text)
    except InvalidOperation:
        return text  # The cast to the type of the column reports the error.
    if abs(value.adjusted()) > _MAX_EXPONENT:
        return text
    number = format(value, "f")
    return number.rstrip("0").rstrip(".") if "." in number else number


def _decode(raw: bytes, encoding: str) -> str:
    # Programs truncate long texts by bytes: an incomplete character at the end is dropped.
    return codecs.getincrementaldecoder(encoding)().decode(raw)


def _encoding(code_page: str | None, language: int, path: Path, begin: int) -> tuple[str, bool]:
    """Return the encoding, and whether it is a guess."""
    for text in _codec_names((code_page or "").strip().strip("\0")):
        try:
            b"  ".decode(text)  # Fails for codecs that are not for text.
            codecs.getincrementaldecoder(text)
            return codecs.lookup(text).name, False
        except (LookupError, ValueError):
            continue
    # A file that is valid UTF-8 is almost never of another encoding.
    if language in _UNKNOWN_LANGUAGES and _is_utf8(path, begin):
        return "utf-8", False
    return _CODE_PAGES.get(language, _ANSI), language not in _CODE_PAGES


def _codec_names(code_page: str) -> Iterator[str]:
    """Yield Python codecs for the content of a .cpg file, such as `1252`, `ANSI 1252`, `ISO 88591`."""
    word = re.sub(r"(?i)^(ansi|oem|windows)[ _-]*", "", code_page)
    if (latin := re.fullmatch(r"(?i)(?:iso[ _-]*)?8859[ _-]*(\d+)", word)) is not None:
        yield f"iso8859-{latin[1]}"
    elif word == "65001":
        yield "utf-8"
    elif word.isdecimal():
        yield f"cp{word}"
    yield from (word, code_page) if code_page else ()


def _is_utf8(path: Path, begin: int) -> bool:
    decoder = codecs.getincrementaldecoder("utf-8")()
    with path.open("rb") as file:
        file.seek(begin)
        try:
            while chunk := file.read(_CHUNK):
                decoder.decode(chunk)
        except UnicodeDecodeError:
            return False
    return True
