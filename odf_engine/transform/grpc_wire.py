"""The engine protocol on the wire: gRPC messages of one field that holds a FlatBuffer.

There is one service with two methods, each of one request and a stream of responses: any number of
progress messages and then a last one. Without generated code: a message is its tag, a length, bytes.
"""

from __future__ import annotations

from typing import Final

SERVICE: Final = "engine.Engine"
RAW_QUERY: Final = "ExecuteRawQuery"
TRANSFORM: Final = "ExecuteTransform"
LARGEST_MESSAGE: Final = 256 << 20
"""A request names every slice of an increment, so it may well be larger than gRPC's usual 4 MB."""

_TAG: Final = 0x0A  # field 1, length-delimited
_LENGTH_DELIMITED: Final = 2
_FIXED: Final = {1: 8, 5: 4}


def wrap(data: bytes) -> bytes:
    """A message that holds these bytes; none for none, as protobuf leaves out defaults."""
    return bytes([_TAG]) + _varint(len(data)) + data if data else b""


def unwrap(message: bytes) -> bytes:
    """The bytes that a message holds; other fields are passed over.

    Raises:
        ValueError: this is no protobuf message.
    """
    found, at = b"", 0
    while at < len(message):
        tag, at = _read_varint(message, at)
        kind = tag & 7
        if kind == _LENGTH_DELIMITED:
            length, at = _read_varint(message, at)
            if at + length > len(message):
                raise ValueError("a field is longer than its message")
            found = message[at : at + length] if tag == _TAG else found
            at += length
        elif kind == 0:
            _, at = _read_varint(message, at)
        elif kind in _FIXED:
            at += _FIXED[kind]
        else:
            raise ValueError(f"a field of the unknown wire type {kind}")
    if at != len(message):
        raise ValueError("a field is longer than its message")
    return found


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 64:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("a number has no end")
