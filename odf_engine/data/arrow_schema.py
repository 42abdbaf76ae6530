"""Codec of the bare Arrow schema in SetDataSchema (FlatBuffers without IPC framing)."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Final

import flatbuffers
import pyarrow as pa
from pyarrow import types

from odf_engine.errors import InvalidSchema

_UNITS: Final = {"s": 0, "ms": 1, "us": 2, "ns": 3}
_MAX_DEPTH: Final = 32

# The slots of a table that holds a type: (slot, width in bits, value, default).
_Slots = list[tuple[int, int, int, int]]

# Number in the union of types, and the slots in the order in which they are written.
_FIXED: Final[list[tuple[Callable[[pa.DataType], bool], int, Callable[[pa.DataType], _Slots]]]] = [
    (types.is_boolean, 6, lambda kind: []),
    (types.is_string, 5, lambda kind: []),
    (types.is_large_string, 20, lambda kind: []),
    (types.is_string_view, 24, lambda kind: []),
    (types.is_binary, 4, lambda kind: []),
    (types.is_large_binary, 19, lambda kind: []),
    (types.is_binary_view, 23, lambda kind: []),
    (types.is_fixed_size_binary, 15, lambda kind: [(0, 32, kind.byte_width, 0)]),
    (
        types.is_decimal,
        7,
        lambda kind: [(0, 32, kind.precision, 0), (1, 32, kind.scale, 0), (2, 32, kind.bit_width, 128)],
    ),
    (types.is_date32, 8, lambda kind: [(0, 16, 0, 1)]),
    (types.is_date64, 8, lambda kind: [(0, 16, 1, 1)]),
    (types.is_time, 9, lambda kind: [(1, 32, kind.bit_width, 32), (0, 16, _UNITS[kind.unit], 1)]),
]
_NESTED: Final[list[tuple[Callable[[pa.DataType], bool], int, Callable[[pa.DataType], _Slots]]]] = [
    (types.is_list, 12, lambda kind: []),
    (types.is_large_list, 21, lambda kind: []),
    (types.is_fixed_size_list, 16, lambda kind: [(0, 32, kind.list_size, 0)]),
    (types.is_struct, 13, lambda kind: []),
]


def encode_schema(schema: pa.Schema) -> bytes:
    """The schema as a bare FlatBuffers table.

    Raises:
        InvalidSchema: a column whose type data slices do not hold (such as a dictionary or map).
    """
    builder = flatbuffers.Builder(1024)
    fields = _vector(builder, [_field(builder, field, field.name, 0) for field in schema])
    metadata = _metadata(builder, schema.metadata)
    builder.StartObject(4)
    builder.PrependUOffsetTRelativeSlot(1, fields, 0)
    if metadata is not None:
        builder.PrependUOffsetTRelativeSlot(2, metadata, 0)
    builder.Finish(builder.EndObject())
    return bytes(builder.Output())


def _field(builder: flatbuffers.Builder, field: pa.Field, column: str, depth: int) -> int:
    if depth > _MAX_DEPTH:
        raise InvalidSchema(f"column '{column}' is nested too deeply")
    metadata = _metadata(builder, field.metadata)
    name = builder.CreateString(field.name)
    number, kind, children = _type(builder, field.type, column, depth)
    builder.StartObject(7)
    builder.PrependUOffsetTRelativeSlot(0, name, 0)
    builder.PrependUint8Slot(2, number, 0)
    builder.PrependBoolSlot(1, field.nullable, False)
    builder.PrependUOffsetTRelativeSlot(5, children, 0)
    builder.PrependUOffsetTRelativeSlot(3, kind, 0)
    if metadata is not None:
        builder.PrependUOffsetTRelativeSlot(6, metadata, 0)
    return builder.EndObject()


def _type(builder: flatbuffers.Builder, kind: pa.DataType, column: str, depth: int) -> tuple[int, int, int]:
    """Number in the union, the type's table, and the vector of child fields."""
    if types.is_integer(kind):
        children = _vector(builder, [])
        signed = types.is_signed_integer(kind)
        return 2, _table(builder, [(1, 8, signed, 0), (0, 32, kind.bit_width, 0)]), children
    if types.is_floating(kind):
        children = _vector(builder, [])
        precision = {16: 0, 32: 1, 64: 2}[kind.bit_width]
        return 3, _table(builder, [(0, 16, precision, 0)]), children
    if types.is_timestamp(kind):
        return 10, _timestamp(builder, kind), _vector(builder, [])
    for test, number, slots in _FIXED:
        if test(kind):
            return number, _table(builder, slots(kind)), _vector(builder, [])
    for test, number, slots in _NESTED:
        if test(kind):
            inner = [kind.field(index) for index in range(kind.num_fields)]
            fields = [_field(builder, field, f"{column}.{field.name}", depth + 1) for field in inner]
            return number, _table(builder, slots(kind)), _vector(builder, fields)
    raise InvalidSchema(f"column '{column}' has type {kind}, which a data slice cannot hold")


def _timestamp(builder: flatbuffers.Builder, kind: pa.DataType) -> int:
    zone = builder.CreateString(kind.tz or "")
    builder.StartObject(2)
    builder.PrependInt16Slot(0, _UNITS[kind.unit], 0)
    if kind.tz:
        builder.PrependUOffsetTRelativeSlot(1, zone, 0)
    return builder.EndObject()


def _table(builder: flatbuffers.Builder, slots: _Slots) -> int:
    builder.StartObject(max((slot + 1 for slot, *_ in slots), default=0))
    for slot, width, value, default in slots:
        prepend = {8: builder.PrependUint8Slot, 16: builder.PrependInt16Slot, 32: builder.PrependInt32Slot}
        prepend[width](slot, value, default)
    return builder.EndObject()


def _vector(builder: flatbuffers.Builder, offsets: list[int]) -> int:
    builder.StartVector(4, len(offsets), 4)
    for offset in reversed(offsets):
        builder.PrependUOffsetTRelative(offset)
    return builder.EndVector()


def _metadata(builder: flatbuffers.Builder, metadata: Mapping[bytes, bytes] | None) -> int | None:
    if not metadata:
        return None
    entries: list[int] = []
    for key, value in sorted(metadata.items()):
        key_at, value_at = builder.CreateString(key), builder.CreateString(value)
        builder.StartObject(2)
        builder.PrependUOffsetTRelativeSlot(0, key_at, 0)
        builder.PrependUOffsetTRelativeSlot(1, value_at, 0)
        entries.append(builder.EndObject())
    return _vector(builder, entries)


def decode_schema(data: bytes) -> pa.Schema:
    """Reads what :func:`encode_schema` or another implementation wrote; any bytes are safe.

    Raises:
        InvalidSchema: not a bare Arrow schema.
    """
    if len(data) < 8:
        raise InvalidSchema(f"{len(data)} bytes are no Arrow schema")
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(_message(data)))
        for field in schema:
            check_field(field)
    except (pa.ArrowException, UnicodeDecodeError, struct.error, OSError) as error:
        raise InvalidSchema(f"the bytes are no Arrow schema: {error}") from error
    return schema


def _message(data: bytes) -> bytes:
    """An IPC message around the bare table: pyarrow reads (and verifies) only whole messages.

    The 32-byte header is a ``Message`` table at 16 with its vtable at 6: version V5 at +8, kind of
    header (1, a schema) at +10, and at +4 the reference to the embedded root.
    """
    (root,) = struct.unpack_from("<I", data)
    reference = 32 + root - 20
    header = struct.pack("<I2xHHHHHiIhB5x", 16, 10, 12, 8, 10, 4, 10, reference & 0xFFFFFFFF, 4, 1)
    padding = bytes(-len(data) % 8)
    return struct.pack("<Ii", 0xFFFFFFFF, 32 + len(data) + len(padding)) + header + data + padding


def check_field(field: pa.Field, depth: int = 0) -> None:
    """Check the names and the depth of a field that another implementation wrote.

    Raises:
        InvalidSchema: it has no name, or is nested too deeply.
        UnicodeDecodeError: a name in it, or a time zone, is not UTF-8.
    """
    if depth > _MAX_DEPTH:
        raise InvalidSchema("the schema is nested too deeply")
    if not isinstance(field.name, str):
        raise InvalidSchema("a column has no name")
    if types.is_timestamp(field.type):
        _ = field.type.tz  # is decoded here
    for index in range(field.type.num_fields):
        check_field(field.type.field(index), depth + 1)
