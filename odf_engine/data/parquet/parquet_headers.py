"""Reads page headers and checks footers of Parquet files: structs in Thrift's compact protocol.

Arrow has no interface for page headers, and its interface for footers ends the process if a column of a
damaged footer is accessed. Anything that Arrow could decode differently from this module is rejected.
"""

from __future__ import annotations

import io
import struct
from typing import Any, BinaryIO, Final, NamedTuple

from odf_engine.base.arrow import pa, pq

WIDTHS: Final = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
"""Bytes of a value by physical type."""
DATA_PAGES: Final = (0, 3)
DICTIONARY_PAGE: Final = 2

_Struct = dict[int, Any]
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _STRUCT = 1, 2, 3, 4, 5, 6, 7, 8, 9, 12
_SKIPPED: Final = {_TRUE: 0, _FALSE: 0, _BYTE: 1, _DOUBLE: 8}
"""Bytes of values that are skipped."""
_MAX_DEPTH: Final = 12
_MAX_BYTES: Final = 16 << 20
_MAX_LIST: Final = 1 << 20
_FOOTER_END: Final = struct.Struct("<I4s")


_PAGE_PARTS: Final = {0: 5, 2: 7, 3: 8}
"""The field of a page header with the struct of its type."""
_ENCODINGS: Final = {0: 2, 2: 2, 3: 4}


class PageHeader(NamedTuple):
    """The header of a page.

    Attributes:
        type: 0 and 3 for pages with values, 2 for a dictionary.
        size: decompressed size in bytes.
        packed: size in the file in bytes.
        values: declared number of values.
        encoding: encoding of the values.
    """

    type: int
    size: int
    packed: int
    values: int
    encoding: int


def read_page_header(raw: BinaryIO) -> PageHeader:
    """Read the header at the current position of a file.

    Raises:
        pa.ArrowInvalid: it is malformed.
    """
    header = _read_struct(raw)
    kind, size, packed = (_number(header, field) for field in (1, 2, 3))
    if kind not in _PAGE_PARTS:
        return PageHeader(kind, size, packed, 0, 0)
    part = header.get(_PAGE_PARTS[kind])
    if not isinstance(part, dict):
        raise _malformed()
    return PageHeader(kind, size, packed, _number(part, 1), _number(part, _ENCODINGS[kind]))


_ROW_GROUPS, _COLUMNS, _META = 4, 1, 3
_TYPE, _CODEC, _STATISTICS, _SIZES = 1, 4, 12, 16
_TYPES: Final = (
    "BOOLEAN",
    "INT32",
    "INT64",
    "INT96",
    "FLOAT",
    "DOUBLE",
    "BYTE_ARRAY",
    "FIXED_LEN_BYTE_ARRAY",
)
_MAX_CODEC: Final = 7
_MIN_AND_MAX: Final = (1, 2, 5, 6)


def check_footer(raw: BinaryIO, metadata: pq.FileMetaData) -> None:
    """Check that all columns of all row groups in ``metadata`` can be accessed.

    Raises:
        pa.ArrowInvalid: Arrow would end the process.
    """
    raw.seek(-_FOOTER_END.size, io.SEEK_END)
    size, _ = _FOOTER_END.unpack(raw.read(_FOOTER_END.size))
    raw.seek(-_FOOTER_END.size - size, io.SEEK_END)
    footer = _read_struct(io.BytesIO(raw.read(size)))
    groups = _structs(footer.get(_ROW_GROUPS, []), metadata.num_row_groups)
    for at, group in enumerate(groups):
        for number, column in enumerate(_structs(group.get(_COLUMNS), metadata.row_group(at).num_columns)):
            about = column.get(_META)
            if number >= metadata.num_columns or not isinstance(about, dict):
                raise _malformed()
            _check_column(about, metadata.schema.column(number))


def _check_column(about: _Struct, column: pq.ColumnSchema) -> None:
    kind = column.physical_type
    if _number(about, _CODEC) > _MAX_CODEC or _number(about, _TYPE) >= len(_TYPES):
        raise _malformed()
    if _TYPES[_number(about, _TYPE)] != kind:
        raise _malformed()
    statistics, sizes = about.get(_STATISTICS, {}), about.get(_SIZES, {})
    if not isinstance(statistics, dict) or not isinstance(sizes, dict):
        raise _malformed()
    width = column.length if kind == "FIXED_LEN_BYTE_ARRAY" else WIDTHS.get(kind, 0)
    for field in _MIN_AND_MAX:
        value = statistics.get(field, bytes(width))
        if not isinstance(value, bytes) or len(value) < width:
            raise _malformed()
    if 1 in sizes and kind != "BYTE_ARRAY":
        raise _malformed()
    for field, levels in ((2, column.max_repetition_level), (3, column.max_definition_level)):
        counts = sizes.get(field, [])
        if not isinstance(counts, list) or len(counts) not in (0, levels + 1):
            raise _malformed()


def _structs(value: object, count: int) -> list[_Struct]:
    if (
        not isinstance(value, list)
        or len(value) != count
        or not all(isinstance(item, dict) for item in value)
    ):
        raise _malformed()
    return value


def _read_struct(raw: BinaryIO, depth: int = 0) -> _Struct:
    """Read the fields of a struct by their numbers: 32-bit integers, bytes, lists and structs.

    Other values are None, so that a 64-bit integer is never read as 32 bits; neither does Arrow.
    """
    if depth > _MAX_DEPTH:
        raise _malformed()
    fields: _Struct = {}
    number = 0
    while (head := _read_byte(raw)) != 0:
        number = number + (head >> 4) if head >> 4 else _zigzag(_read_varint(raw))
        # Of two fields with the same number, Arrow would use either, or parts of both.
        if not 0 < number < 1 << 15 or number in fields:
            raise _malformed()
        fields[number] = None if head & 15 in (_TRUE, _FALSE) else _read_value(raw, head & 15, depth)
    return fields


def _read_value(raw: BinaryIO, kind: int, depth: int) -> Any:
    if kind == _I32:
        return _zigzag(_read_varint(raw))
    if kind == _STRUCT:
        return _read_struct(raw, depth + 1)
    if kind == _BINARY:
        return _read_bytes(raw, _read_varint(raw))
    if kind == _LIST:
        head = _read_byte(raw)
        count = _read_varint(raw) if head >> 4 == 15 else head >> 4
        if count > _MAX_LIST:
            raise _malformed()
        return [_read_value(raw, head & 15, depth + 1) for _ in range(count)]
    if kind in (_I16, _I64):
        _read_varint(raw)
    elif kind in (_BYTE, _DOUBLE):
        _read_bytes(raw, 1 if kind == _BYTE else 8)
    else:
        raise _malformed()
    return None


def _number(fields: _Struct, number: int) -> int:
    value = fields.get(number)
    if not isinstance(value, int) or not 0 <= value < 1 << 31:
        raise _malformed()
    return value


def _read_bytes(raw: BinaryIO, size: int) -> bytes:
    data = raw.read(size) if size <= _MAX_BYTES else b""
    if len(data) < size:
        raise _malformed()
    return data


def _read_byte(raw: BinaryIO) -> int:
    data = raw.read(1)
    if not data:
        raise _malformed()
    return data[0]


def _read_varint(raw: BinaryIO) -> int:
    value = byte = _read_byte(raw)
    if byte < 0x80:
        return value
    value &= 0x7F
    for shift in range(7, 70, 7):
        byte = _read_byte(raw)
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value
    raise _malformed()


def _zigzag(value: int) -> int:
    return (value >> 1) ^ -(value & 1)


def _malformed() -> pa.ArrowInvalid:
    return pa.ArrowInvalid("malformed page header or footer")
