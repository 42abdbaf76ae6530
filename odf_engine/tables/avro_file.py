"""Avro files with one record in each block, so that records can be moved between files undecoded."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

_MAGIC: Final = b"Obj\x01"
_SYNC_BYTES: Final = 16


def encode_file(schema: Mapping[str, Any], metadata: Mapping[str, str], records: Iterable[bytes]) -> bytes:
    """Return the content of a file with encoded records."""
    text = msgspec.json.encode(schema).decode()
    header = {"avro.schema": text, "avro.codec": "null", **metadata}
    parts = [_MAGIC, _encode_long(len(header))]
    for key, value in header.items():
        parts += [_encode_bytes(key.encode()), _encode_bytes(value.encode())]
    sync = hashlib.sha256(text.encode()).digest()[:_SYNC_BYTES]
    parts += [b"\0", sync]
    for record in records:
        parts += [b"\x02", _encode_long(len(record)), record, sync]
    return b"".join(parts)


def split_records(data: bytes) -> Iterator[bytes]:
    """Yield the encoded records of the output of :func:`encode_file`.

    Raises:
        IndexError: the data are truncated.
    """
    at = len(_MAGIC)
    count, at = decode_long(data, at)
    for _ in range(2 * count):
        length, at = decode_long(data, at)
        at += length
    at += 1 + _SYNC_BYTES
    while at < len(data):
        _, at = decode_long(data, at)  # the number of records is 1
        length, at = decode_long(data, at)
        if at + length + _SYNC_BYTES > len(data):
            raise IndexError("the file is truncated")
        yield data[at : at + length]
        at += length + _SYNC_BYTES


def encode_record(schema: Any, value: Any) -> bytes:
    """Encode a value by an Avro schema. Unions have the form ``["null", type]``."""
    parts: list[bytes] = []
    _encode(schema, value, parts)
    return b"".join(parts)


def _encode(schema: Any, value: Any, parts: list[bytes]) -> None:
    kind = schema["type"] if isinstance(schema, dict) else schema
    if isinstance(kind, list):
        parts.append(b"\0" if value is None else b"\x02")
        if value is not None:
            _encode(kind[1], value, parts)
    elif kind == "record":
        for field in schema["fields"]:
            _encode(field["type"], value[field["name"]], parts)
    elif kind == "array":
        if value:
            parts.append(_encode_long(len(value)))
            for item in value:
                _encode(schema["items"], item, parts)
        parts.append(b"\0")
    elif kind in ("int", "long"):
        parts.append(_encode_long(value))
    else:  # string or bytes
        parts.append(_encode_bytes(value.encode() if isinstance(value, str) else value))


def _encode_bytes(value: bytes) -> bytes:
    return _encode_long(len(value)) + value


def _encode_long(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def decode_long(data: bytes, at: int) -> tuple[int, int]:
    """Decode a number; return it and the position after it.

    Raises:
        IndexError: the data are truncated.
    """
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
