"""Joins Parquet files with parts of the same rows into the file that one writer would write.

A row group depends only on its rows, except for its position and number in the footer. Footers are Thrift
structs in the compact protocol, which Arrow can read but not change.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from odf_engine.base.arrow import pa
from odf_engine.identity.multiformats import varint_encode

_MAGIC: Final = b"PAR1"
_END: Final = struct.Struct("<I4s")
_READ_BYTES: Final = 4 << 20
_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = 1, 2, 3, 7, 8, 9, 10, 12
_INTEGERS: Final = (4, 5, 6)
_FILE_ROWS, _FILE_GROUPS = 3, 4
_GROUP_COLUMNS, _GROUP_OFFSET, _GROUP_NUMBER = 1, 5, 7
_COLUMN_OFFSET, _COLUMN_METADATA = 2, 3
_PAGE_OFFSETS: Final = (9, 10, 11)
"""Fields of a column's metadata: positions of the first data page, index page and dictionary page."""


class Field(NamedTuple):
    """A field of a Thrift struct: its number, its type in the compact protocol, and its value."""

    number: int
    type: int
    value: Any


class Items(NamedTuple):
    """A Thrift list or set: the type of the items, and their values."""

    type: int
    values: list[Any]


def join_files(paths: Sequence[Path], write: Callable[[bytes], object]) -> None:
    """Write the row groups of files as one file.

    Args:
        paths: Parquet files without page indexes, all with the same columns and options; at least one.
        write: receives the bytes of the file, in order.

    Raises:
        pa.ArrowInvalid: a file is malformed.
        OSError: a file cannot be read.
    """
    position = len(_MAGIC)
    write(_MAGIC)
    first: list[Field] | None = None
    groups: list[list[Field]] = []
    rows = 0
    for path in paths:
        with path.open("rb", buffering=0) as file:
            footer, end = _read_footer(file)
            first = first or footer
            rows += _field(footer, _FILE_ROWS)
            shift = position - len(_MAGIC)
            for group in _field(footer, _FILE_GROUPS).values:
                groups.append(_moved(group, shift, len(groups)))
            file.seek(len(_MAGIC))
            left = end - len(_MAGIC)
            position += left
            while left:
                piece = file.read(min(left, _READ_BYTES))
                left -= len(piece)
                write(piece)
    assert first is not None
    new = {_FILE_ROWS: rows, _FILE_GROUPS: Items(_STRUCT, groups)}
    encoded = encode_struct([item._replace(value=new.get(item.number, item.value)) for item in first])
    write(encoded + _END.pack(len(encoded), _MAGIC))


def _read_footer(file: BinaryIO) -> tuple[list[Field], int]:
    """Return the footer of a Parquet file, and its position."""
    file.seek(-_END.size, os.SEEK_END)
    size, magic = _END.unpack(file.read(_END.size))
    if magic != _MAGIC:
        raise pa.ArrowInvalid("not a Parquet file")
    end = file.seek(-_END.size - size, os.SEEK_END)
    return decode_struct(file.read(size)), end


def _field(fields: list[Field], number: int) -> Any:
    return next(field.value for field in fields if field.number == number)


def _moved(group: list[Field], shift: int, number: int) -> list[Field]:
    """Return a row group with other positions and another number."""

    def column(fields: list[Field]) -> list[Field]:
        return _changed(fields, {
            _COLUMN_OFFSET: lambda value: value + shift if value else 0,
            _COLUMN_METADATA: lambda value: _changed(
                value, dict.fromkeys(_PAGE_OFFSETS, lambda place: place + shift)
            ),
        })  # fmt: skip

    return _changed(group, {
        _GROUP_COLUMNS: lambda columns: columns._replace(values=[column(item) for item in columns.values]),
        _GROUP_OFFSET: lambda value: value + shift,
        _GROUP_NUMBER: lambda _: number,
    })  # fmt: skip


def _changed(fields: list[Field], changes: dict[int, Callable[[Any], Any]]) -> list[Field]:
    return [
        field._replace(value=changes[field.number](field.value)) if field.number in changes else field
        for field in fields
    ]


def decode_struct(data: bytes) -> list[Field]:
    """Return the fields of a Thrift struct in the compact protocol.

    Raises:
        pa.ArrowInvalid: it is malformed.
    """
    try:
        return _Reader(data).struct()
    except (IndexError, ValueError, RecursionError):
        raise pa.ArrowInvalid("malformed footer") from None


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def struct(self) -> list[Field]:
        fields: list[Field] = []
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._integer()
            fields.append(Field(number, head & 15, self._value(head & 15)))
        return fields

    def _value(self, kind: int) -> Any:
        if kind in (_TRUE, _FALSE):
            return None  # the type is the value
        if kind == _BYTE:
            return self._byte()
        if kind in _INTEGERS:
            return self._integer()
        if kind in (_DOUBLE, _BINARY):
            return self._bytes(8 if kind == _DOUBLE else self._varint())
        if kind in (_LIST, _SET):
            head = self._byte()
            count, kind = (head >> 4, head & 15) if head >> 4 < 15 else (self._varint(), head & 15)
            read = self._byte if kind in (_TRUE, _FALSE) else lambda: self._value(kind)
            return Items(kind, [read() for _ in range(count)])
        if kind == _STRUCT:
            return self.struct()
        raise ValueError(kind)

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _bytes(self, count: int) -> bytes:
        self._at += count
        return self._data[self._at - count : self._at]

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def _integer(self) -> int:
        value = self._varint()
        return value >> 1 ^ -(value & 1)


def encode_struct(fields: list[Field]) -> bytes:
    """Return a Thrift struct in the compact protocol."""
    out = bytearray()
    _write_struct(out, fields)
    return bytes(out)


def _write_struct(out: bytearray, fields: list[Field]) -> None:
    before = 0
    for number, kind, value in fields:
        if 0 < number - before < 16:
            out.append(number - before << 4 | kind)
        else:
            out.append(kind)
            out += varint_encode(_zigzag(number))
        before = number
        _write_value(out, kind, value)
    out.append(0)


def _write_value(out: bytearray, kind: int, value: Any) -> None:
    if kind == _BYTE:
        out.append(value)
    elif kind in _INTEGERS:
        out += varint_encode(_zigzag(value))
    elif kind == _DOUBLE:
        out += value
    elif kind == _BINARY:
        out += varint_encode(len(value)) + value
    elif kind in (_LIST, _SET):
        count = len(value.values)
        out.append(min(count, 15) << 4 | value.type)
        out += varint_encode(count) if count >= 15 else b""
        for item in value.values:
            _write_value(out, _BYTE if value.type in (_TRUE, _FALSE) else value.type, item)
    elif kind == _STRUCT:
        _write_struct(out, value)


def _zigzag(value: int) -> int:
    return value << 1 if value >= 0 else ~value << 1 | 1
