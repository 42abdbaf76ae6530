"""Fields of protobuf messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from odf_engine.identity.multiformats import varint_encode

_LENGTH_DELIMITED: Final = 2
_FIXED: Final = {1: 8, 5: 4}


def encode_bytes(number: int, data: bytes) -> bytes:
    """Return a field with bytes, a string or a message; an empty one is omitted, as protobuf does."""
    return varint_encode(number << 3 | _LENGTH_DELIMITED) + varint_encode(len(data)) + data if data else b""


def encode_number(number: int, value: int) -> bytes:
    """Return a field with an unsigned number, a truth value or an enum; 0 is omitted."""
    return varint_encode(number << 3) + varint_encode(value) if value else b""


def read_fields(message: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Yield the numbers and values of the fields; fixed-size numbers are skipped.

    Raises:
        ValueError: not a protobuf message.
    """
    position = 0
    while position < len(message):
        tag, position = read_varint(message, position)
        start, wire_type = position, tag & 7
        if wire_type == 0:
            number, position = read_varint(message, position)
            yield tag >> 3, number
            continue
        if wire_type == _LENGTH_DELIMITED:
            length, start = read_varint(message, position)
            position = start + length
        elif wire_type in _FIXED:
            position += _FIXED[wire_type]
        else:
            raise ValueError(f"a field of the unknown wire type {wire_type}")
        if position > len(message):
            raise ValueError("a field is longer than its message")
        if wire_type == _LENGTH_DELIMITED:
            yield tag >> 3, message[start:position]


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Return the number at a position, and the position after it.

    Raises:
        ValueError: the number has no end.
    """
    value = shift = 0
    while position < len(data) and shift < 64:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise ValueError("a number has no end")
