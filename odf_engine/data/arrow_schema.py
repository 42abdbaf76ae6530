"""Codec of the bare Arrow schema in SetDataSchema (FlatBuffers without IPC framing)."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Final, TypeAlias

from odf_engine.base.arrow import pa, types
from odf_engine.errors import InvalidSchema

if TYPE_CHECKING:
    import flatbuffers

_UNITS: Final = {"s": 0, "ms": 1, "us": 2, "ns": 3}
_MAX_DEPTH: Final = 32

# Slots of the table of a type: (slot, width in bits, value, default).
_Slots = list[tuple[int, int, int, int]]
_Tables: TypeAlias = "list[tuple[Callable[[pa.DataType], bool], int, Callable[[pa.DataType], _Slots]]]"


@cache
def _fixed() -> _Tables:
    """Return tests of types, their numbers in the union of types, and the slots in the order of writing."""
    return [
        (types.is_null, 1, lambda data_type: []),
        (types.is_boolean, 6, lambda data_type: []),
        (types.is_string, 5, lambda data_type: []),
        (types.is_large_string, 20, lambda data_type: []),
        (types.is_string_view, 24, lambda data_type: []),
        (types.is_binary, 4, lambda data_type: []),
        (types.is_large_binary, 19, lambda data_type: []),
        (types.is_binary_view, 23, lambda data_type: []),
        (types.is_fixed_size_binary, 15, lambda data_type: [(0, 32, data_type.byte_width, 0)]),
        (
            types.is_decimal,
            7,
            lambda data_type: [
                (0, 32, data_type.precision, 0),
                (1, 32, data_type.scale, 0),
                (2, 32, data_type.bit_width, 128),
            ],
        ),
        (types.is_date32, 8, lambda data_type: [(0, 16, 0, 1)]),
        (types.is_date64, 8, lambda data_type: [(0, 16, 1, 1)]),
        (
            types.is_time,
            9,
            lambda data_type: [(1, 32, data_type.bit_width, 32), (0, 16, _UNITS[data_type.unit], 1)],
        ),
        (types.is_duration, 18, lambda data_type: [(0, 16, _UNITS[data_type.unit], 1)]),
    ]


@cache
def _nested() -> _Tables:
    return [
        (types.is_list, 12, lambda data_type: []),
        (types.is_large_list, 21, lambda data_type: []),
        (types.is_fixed_size_list, 16, lambda data_type: [(0, 32, data_type.list_size, 0)]),
        (types.is_list_view, 25, lambda data_type: []),
        (types.is_large_list_view, 26, lambda data_type: []),
        (types.is_struct, 13, lambda data_type: []),
        (types.is_map, 17, lambda data_type: [(0, 8, data_type.keys_sorted, 0)]),
        (types.is_run_end_encoded, 22, lambda data_type: []),
    ]


def encode_schema(schema: pa.Schema) -> bytes:
    """Return a schema as a bare FlatBuffers table.

    Raises:
        InvalidSchema: a column has a type that ODF does not have: a dictionary, an interval or a union.
    """
    import flatbuffers

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
    number, type_table, children = _type(builder, field.type, column, depth)
    builder.StartObject(7)
    builder.PrependUOffsetTRelativeSlot(0, name, 0)
    builder.PrependUint8Slot(2, number, 0)
    builder.PrependBoolSlot(1, field.nullable, False)
    builder.PrependUOffsetTRelativeSlot(5, children, 0)
    builder.PrependUOffsetTRelativeSlot(3, type_table, 0)
    if metadata is not None:
        builder.PrependUOffsetTRelativeSlot(6, metadata, 0)
    return builder.EndObject()


def _type(
    builder: flatbuffers.Builder, data_type: pa.DataType, column: str, depth: int
) -> tuple[int, int, int]:
    """Return the number in the union, the table of the type, and the vector of child fields."""
    if types.is_integer(data_type):
        children = _vector(builder, [])
        signed = types.is_signed_integer(data_type)
        return 2, _table(builder, [(1, 8, signed, 0), (0, 32, data_type.bit_width, 0)]), children
    if types.is_floating(data_type):
        children = _vector(builder, [])
        precision = {16: 0, 32: 1, 64: 2}[data_type.bit_width]
        return 3, _table(builder, [(0, 16, precision, 0)]), children
    if types.is_timestamp(data_type):
        return 10, _timestamp(builder, data_type), _vector(builder, [])
    for test, number, slots in _fixed():
        if test(data_type):
            return number, _table(builder, slots(data_type)), _vector(builder, [])
    for test, number, slots in _nested():
        if test(data_type):
            inner = [data_type.field(index) for index in range(data_type.num_fields)]
            fields = [_field(builder, field, f"{column}.{field.name}", depth + 1) for field in inner]
            return number, _table(builder, slots(data_type)), _vector(builder, fields)
    raise InvalidSchema(f"column '{column}' has type {data_type}, which ODF does not support")


def _timestamp(builder: flatbuffers.Builder, data_type: pa.DataType) -> int:
    zone = builder.CreateString(data_type.tz or "")
    builder.StartObject(2)
    builder.PrependInt16Slot(0, _UNITS[data_type.unit], 0)
    if data_type.tz:
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
    """Decode the output of :func:`encode_schema` or of another implementation. Safe for any bytes.

    Raises:
        InvalidSchema: not a bare Arrow schema.
    """
    if len(data) < 8:
        raise InvalidSchema(f"invalid Arrow schema: {len(data)} bytes")
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(_message(data)))
        for field in schema:
            check_field(field)
    except (pa.ArrowException, UnicodeDecodeError, struct.error, OSError) as error:
        raise InvalidSchema(f"invalid Arrow schema: {error}") from error
    return schema


def _message(data: bytes) -> bytes:
    """Wrap the bare table in an IPC message, since pyarrow reads and verifies only complete messages.

    The 32-byte header is a ``Message`` table at 16 with its vtable at 6: version V5 at +8, kind of
    header (1, a schema) at +10, and at +4 the reference to the embedded root.
    """
    (root,) = struct.unpack_from("<I", data)
    reference = 32 + root - 20
    header = struct.pack("<I2xHHHHHiIhB5x", 16, 10, 12, 8, 10, 4, 10, reference & 0xFFFFFFFF, 4, 1)
    padding = bytes(-len(data) % 8)
    return struct.pack("<Ii", 0xFFFFFFFF, 32 + len(data) + len(padding)) + header + data + padding


def check_field(field: pa.Field, depth: int = 0) -> None:
    """Check the names and the nesting depth of a field written by another implementation.

    Raises:
        InvalidSchema: it has no name, or is nested too deeply.
        UnicodeDecodeError: a name in it, or a time zone, is not UTF-8.
    """
    if depth > _MAX_DEPTH:
        raise InvalidSchema("the schema is nested too deeply")
    if not isinstance(field.name, str):
        raise InvalidSchema("a column in the schema has no name")
    if types.is_timestamp(field.type):
        _ = field.type.tz  # decoding may raise
    for index in range(field.type.num_fields):
        check_field(field.type.field(index), depth + 1)
