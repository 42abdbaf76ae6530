"""The engine protocol on the wire: gRPC messages of fields that hold bytes.

There is one service with two methods, each of one request and a stream of responses: any number of
progress messages and then a last one. Without generated code: a message is its tag, a length, bytes.

For what the FlatBuffers have no place for, our messages have a second field, a JSON document
(:mod:`odf_engine.transform.grpc_documents`). Peers that do not know it pass over it, and messages
without it are understood. The service ``odf.engine.v1.Engine`` is our own, for the operations that the
specification names and gives no wire: its messages have the first field alone, with a JSON document.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

SERVICE: Final = "engine.Engine"
RAW_QUERY: Final = "ExecuteRawQuery"
TRANSFORM: Final = "ExecuteTransform"
OWN_SERVICE: Final = "odf.engine.v1.Engine"
VALIDATE: Final = "ValidateQuery"
MIGRATE: Final = "MigrateQuery"
PROVENANCE: Final = "DeriveProvenance"
OUTCOME: Final = "ComputeOutcome"
LARGEST_MESSAGE: Final = 256 << 20
"""A request names every slice of an increment, so it may well be larger than gRPC's usual 4 MB."""

CONTENT: Final = 1
FURTHER: Final = 2
"""Numbers of the fields of a message."""

_LENGTH_DELIMITED: Final = 2
_FIXED: Final = {1: 8, 5: 4}


def wrap(data: bytes, further: bytes = b"") -> bytes:
    """A message of these fields; an empty one is left out, as protobuf leaves out defaults."""
    return _field(CONTENT, data) + _field(FURTHER, further)


def unwrap(message: bytes, field: int = CONTENT) -> bytes:
    """The bytes that a field of a message holds; none when it is not there. Other fields are passed over.

    Raises:
        ValueError: this is no protobuf message.
    """
    found = b""
    for tag, data in _fields(message):
        found = data if tag == field << 3 | _LENGTH_DELIMITED else found
    return found


def _field(number: int, data: bytes) -> bytes:
    return bytes([number << 3 | _LENGTH_DELIMITED]) + _varint(len(data)) + data if data else b""


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Tags and bytes; none for numbers."""
    at = 0
    while at < len(message):
        tag, at = _read_varint(message, at)
        begin, kind = at, tag & 7
        if kind == _LENGTH_DELIMITED:
            length, begin = _read_varint(message, at)
            at = begin + length
        elif kind == 0:
            _, at = _read_varint(message, at)
        elif kind in _FIXED:
            at += _FIXED[kind]
        else:
            raise ValueError(f"a field of the unknown wire type {kind}")
        if at > len(message):
            raise ValueError("a field is longer than its message")
        yield tag, message[begin:at] if kind == _LENGTH_DELIMITED else b""


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
