"""Converts ODF schemas (RFC-016) to Arrow schemas and back."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final, TypeAlias

from msgspec.structs import replace

from odf_engine.base.arrow import pa, types
from odf_engine.data.ddl import parse_comments, parse_ddl
from odf_engine.errors import InvalidSchema
from odf_engine.metadata import model
from odf_engine.metadata.data_types import (
    BUFFER_ENCODING,
    DATE_ENCODING,
    DECIMAL_ENCODING,
    DESCRIPTION,
    ENCODINGS,
    MAX_PRECISION,
    strip_encodings,
)
from odf_engine.metadata.descriptors import accepted_spellings
from odf_engine.metadata.model import DataField, DataSchema, ExtraAttributes, Option, TimeUnit

_MAX_DEPTH: Final = 32
_MAX_LENGTH: Final = 2**31 - 1
_ARROW_UNITS: Final = {
    TimeUnit.Second: "s",
    TimeUnit.Millisecond: "ms",
    TimeUnit.Microsecond: "us",
    TimeUnit.Nanosecond: "ns",
}
_ODF_UNITS: Final = {unit: name for name, unit in _ARROW_UNITS.items()}


@cache
def _plain_types() -> dict[type[model.Model], pa.DataType]:
    return {
        model.Bool: pa.bool_(),
        model.Int8: pa.int8(),
        model.Int16: pa.int16(),
        model.Int32: pa.int32(),
        model.Int64: pa.int64(),
        model.UInt8: pa.uint8(),
        model.UInt16: pa.uint16(),
        model.UInt32: pa.uint32(),
        model.UInt64: pa.uint64(),
        model.Float16: pa.float16(),
        model.Float32: pa.float32(),
        model.Float64: pa.float64(),
        model.Null: pa.null(),
        model.String: pa.string(),
        model.Date: pa.date32(),
    }


@cache
def _plain_models() -> dict[pa.DataType, type[model.Model]]:
    return {arrow: odf for odf, arrow in _plain_types().items()}


def to_arrow(schema: DataSchema) -> pa.Schema:
    """Return the Arrow schema of an ODF schema, in the layouts that its encoding attributes choose.

    Without them, texts, binaries and lists have offsets of 32 bits. Only Option is nullable.

    Raises:
        InvalidSchema: a type that Arrow cannot have, or an attribute that does not fit its type.
    """
    return pa.schema([_arrow_field(field, field.name, 0) for field in schema.fields])


def declared_types(schema: DataSchema) -> pa.Schema:
    """Return the Arrow schema of the rows of a dataset; encoding attributes have no effect.

    Raises:
        InvalidSchema: a type that Arrow cannot have.
    """
    return to_arrow(strip_encodings(schema))


def columns_of_step(step: model.ReadStep) -> pa.Schema | None:
    """Return the columns that a read step declares as DDL or ODF schema, or None if it declares none.

    Raises:
        InvalidSchema: the declaration is malformed, or repeats a column.
    """
    if step.schema:
        return parse_ddl(step.schema)
    if step.odf_schema is None or not step.odf_schema.fields:
        return None
    columns = declared_types(step.odf_schema)
    folded = [name.casefold() for name in columns.names]
    duplicate = next((name for at, name in enumerate(columns.names) if folded[at] in folded[:at]), None)
    if duplicate is not None:
        raise InvalidSchema(f"column '{duplicate}' is defined twice", where="read.schema")
    return columns


def attributes_of_step(step: model.ReadStep) -> DataSchema | None:
    """Return the columns that a read step declares, with the attributes that a chain stores.

    The comments of DDL are descriptions. None if the step declares no columns.

    Raises:
        InvalidSchema: the declaration is malformed.
    """
    if not step.schema:
        return None if step.odf_schema is None else strip_encodings(step.odf_schema)
    comments = parse_comments(step.schema)
    return DataSchema(
        [
            replace(field, extra=ExtraAttributes({DESCRIPTION: comments[field.name]}))
            if field.name in comments
            else field
            for field in stored_schema(parse_ddl(step.schema)).fields
        ]
    )


def _arrow_field(field: DataField, path: str, depth: int) -> pa.Field:
    data_type, nullable = _arrow_type(field.type, path, depth)
    entries = {} if field.extra is None else field.extra.entries
    for key in ENCODINGS:
        if key in entries:
            data_type = _encode(data_type, key, entries[key], path)
    return pa.field(field.name, data_type, nullable)


def _arrow_type(data_type: Any, path: str, depth: int) -> tuple[pa.DataType, bool]:
    """Return the type of a value, and whether it may be null."""
    if depth > _MAX_DEPTH:
        raise InvalidSchema(f"column '{path}' is nested too deeply")
    if not isinstance(data_type, Option):
        return _required_type(data_type, path, depth), isinstance(data_type, model.Null)
    if isinstance(data_type.inner, Option):
        raise InvalidSchema(f"column '{path}' is an Option of an Option", hint="use a single Option")
    return _required_type(data_type.inner, path, depth), True


def _required_type(data_type: Any, path: str, depth: int) -> pa.DataType:
    plain = _plain_types().get(type(data_type))
    if plain is not None:
        return plain
    match data_type:
        case model.Binary():
            length = _length(data_type.fixed_length, 1, path)
            return pa.binary() if length is None else pa.binary(length)
        case model.Decimal():
            return _decimal(data_type.precision, data_type.scale, path)
        case model.Time():
            unit = _unit(data_type)
            return pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit)
        case model.TimestampType():
            zone = data_type.timezone
            return pa.timestamp(_unit(data_type), "UTC" if zone is None else zone)
        case model.Duration():
            return pa.duration(_unit(data_type))
        case model.List():
            item = pa.field("item", *_arrow_type(data_type.item_type, f"{path}[]", depth + 1))
            length = _length(data_type.fixed_length, 0, path)
            return pa.list_(item) if length is None else pa.list_(item, length)
        case model.Map():
            return _map(data_type, path, depth)
        case model.Struct():
            return pa.struct(
                [_arrow_field(field, f"{path}.{field.name}", depth + 1) for field in data_type.fields]
            )
    raise InvalidSchema(f"the type of column '{path}' is from a newer specification")


def _unit(data_type: model.Time | model.TimestampType | model.Duration) -> str:
    return _ARROW_UNITS[data_type.unit or TimeUnit.Millisecond]


def _length(length: int | None, min_length: int, path: str) -> int | None:
    if length is not None and not min_length <= length <= _MAX_LENGTH:
        raise InvalidSchema(f"column '{path}': fixedLength {length} is not in {min_length} to {_MAX_LENGTH}")
    return length


def _decimal(precision: int, scale: int, path: str) -> pa.DataType:
    if not 1 <= precision <= MAX_PRECISION or not -MAX_PRECISION <= scale <= precision:
        raise InvalidSchema(
            f"column '{path}': invalid type Decimal with precision {precision} and scale {scale}",
            hint=f"use a precision from 1 to {MAX_PRECISION} and a scale up to the precision",
        )
    return pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)


def _map(data_type: model.Map, path: str, depth: int) -> pa.DataType:
    key, nullable = _arrow_type(data_type.key_type, f"{path}.keys", depth + 1)
    if nullable:
        raise InvalidSchema(f"column '{path}': the keys of a Map cannot be an Option")
    value = pa.field("values", *_arrow_type(data_type.value_type, f"{path}.values", depth + 1))
    return pa.map_(pa.field("keys", key, nullable=False), value, keys_sorted=bool(data_type.keys_sorted))


_Layouts: TypeAlias = "dict[tuple[str, str | int | None], pa.DataType]"


def _encode(data_type: pa.DataType, key: str, value: Any, path: str) -> pa.DataType:
    """Return a type in the layout of an encoding attribute."""
    encoded = None
    if key == DATE_ENCODING and types.is_date(data_type):
        encoded = {"day": pa.date32(), "millisecond": pa.date64()}.get(
            _word(value, "unit", "Day", "Millisecond")
        )
    elif key == DECIMAL_ENCODING and types.is_decimal(data_type):
        encoded = _encode_decimal(data_type, value)
    elif key == BUFFER_ENCODING:
        layout = (_word(value, "kind", "Contiguous", "View"), _property(value, "offsetBitWidth", 32))
        encoded = _layouts(data_type).get(layout)
    if encoded is None:
        raise InvalidSchema(
            f"column '{path}': the attribute {key} does not fit the type {data_type}: {value}",
            hint="remove the attribute",
        )
    return encoded


def _layouts(data_type: pa.DataType) -> _Layouts:
    """Return the layouts of a type by the kind and the bit width of the attribute."""
    variants: list[pa.DataType] = []
    if types.is_string(data_type):
        variants = [pa.string(), pa.large_string(), pa.string_view()]
    elif types.is_binary(data_type):
        variants = [pa.binary(), pa.large_binary(), pa.binary_view()]
    elif types.is_list(data_type):
        item = data_type.value_field
        variants = [pa.list_(item), pa.large_list(item), pa.list_view(item), pa.large_list_view(item)]
    keys: list[tuple[str, str | int | None]] = [
        ("contiguous", 32),
        ("contiguous", 64),
        ("view", 32),
        ("view", 64),
    ]
    return dict(zip(keys, variants, strict=False))


def _encode_decimal(data_type: pa.DataType, value: Any) -> pa.DataType | None:
    widths: dict[Any, tuple[int, Callable[[int, int], pa.DataType]]] = {
        32: (9, pa.decimal32),
        64: (18, pa.decimal64),
        128: (38, pa.decimal128),
        256: (MAX_PRECISION, pa.decimal256),
    }
    limit, make = widths.get(_property(value, "bitWidth", None), (0, pa.decimal256))
    return make(data_type.precision, data_type.scale) if data_type.precision <= limit else None


def _property(value: Any, key: str, default: int | None) -> str | int | None:
    item = value.get(key, default) if isinstance(value, dict) else None
    return item if isinstance(item, str | int) else None


def _word(value: Any, key: str, *words: str) -> str:
    """Return a word of an attribute in lower case, or "" if it is another one."""
    written = _property(value, key, None)
    return next((word.lower() for word in words if written in accepted_spellings(word)), "")


def nullable_type(data_type: pa.DataType) -> pa.DataType:
    """Return a type whose members, items and values are nullable at all levels; keys of maps are not."""
    if types.is_list(data_type):
        return pa.list_(_nullable_field(data_type.value_field))
    if types.is_fixed_size_list(data_type):
        return pa.list_(_nullable_field(data_type.value_field), data_type.list_size)
    if types.is_map(data_type):
        key = data_type.key_field.with_type(nullable_type(data_type.key_type))
        return pa.map_(key, _nullable_field(data_type.item_field), keys_sorted=data_type.keys_sorted)
    if types.is_struct(data_type):
        return pa.struct(list(map(_nullable_field, data_type)))
    return data_type


def _nullable_field(field: pa.Field) -> pa.Field:
    return field.with_nullable(True).with_type(nullable_type(field.type))


def from_arrow(schema: pa.Schema) -> DataSchema:
    """Return the ODF schema of an Arrow schema. Layouts become attributes of columns and members.

    The metadata of Arrow and the layouts of items in lists and maps are lost. A timestamp without a time
    zone becomes one in UTC.

    Raises:
        InvalidSchema: a type without an equivalent: a dictionary, an interval or a union.
    """
    return DataSchema([_odf_field(field, field.name, 0) for field in schema])


def stored_schema(schema: pa.Schema) -> DataSchema:
    """Return the ODF schema that a chain stores for rows in an Arrow schema: without layouts.

    Raises:
        InvalidSchema: a type without an equivalent, or one that other implementations cannot read.
    """
    return strip_encodings(from_arrow(schema))


def _odf_field(field: pa.Field, path: str, depth: int) -> DataField:
    if depth > _MAX_DEPTH:
        raise InvalidSchema(f"column '{path}' is nested too deeply")
    data_type, extra = _odf_type(field.type, path, depth)
    if field.nullable:
        data_type = Option(data_type)
    return DataField(field.name, data_type, None if extra is None else ExtraAttributes(extra))


def _odf_item(field: pa.Field, path: str, depth: int) -> Any:
    return _odf_field(field, path, depth + 1).type


def _odf_type(data_type: pa.DataType, path: str, depth: int) -> tuple[Any, dict[str, Any] | None]:
    """Return the type and its encoding attribute."""
    plain = _plain_models().get(data_type)
    if types.is_run_end_encoded(data_type):
        inner, _ = _odf_type(data_type.value_type, path, depth)
        return inner, _buffers("RunEnd", data_type.run_end_type.bit_width, "runEndsBitWidth")
    if plain is not None and not types.is_string(data_type):
        return plain(), None
    for test, make in _conversions():
        if test(data_type):
            return make(data_type, path, depth)
    raise InvalidSchema(
        f"column '{path}' has the type {data_type}, which an ODF schema does not have",
        hint="cast it in the query",
    )


def _buffers(kind: str, width: int, key: str = "offsetBitWidth") -> dict[str, Any]:
    return {BUFFER_ENCODING: {"kind": kind, key: width}}


def _odf_decimal(data_type: pa.DataType, path: str, depth: int) -> tuple[Any, dict[str, Any]]:
    if data_type.precision == 39:
        # Other implementations read it as a decimal of 128 bits, which has 38 digits.
        raise InvalidSchema(
            f"column '{path}': decimals with a precision of 39 cannot be exchanged",
            hint="cast it to a precision up to 38, or from 40 to 76",
        )
    decimal = model.Decimal(data_type.precision, data_type.scale)
    return decimal, {DECIMAL_ENCODING: {"bitWidth": data_type.bit_width}}


def _odf_map(data_type: pa.DataType, path: str, depth: int) -> tuple[Any, None]:
    key = _odf_item(data_type.key_field, f"{path}.keys", depth)
    value = _odf_item(data_type.item_field, f"{path}.values", depth)
    return model.Map(key, value, data_type.keys_sorted), None


def _odf_struct(data_type: pa.DataType, path: str, depth: int) -> tuple[Any, None]:
    return model.Struct([_odf_field(field, f"{path}.{field.name}", depth + 1) for field in data_type]), None


_Make: TypeAlias = "Callable[[pa.DataType, str, int], tuple[Any, dict[str, Any] | None]]"


def _texts(kind: type[model.Model], layout: str, width: int) -> _Make:
    return lambda data_type, path, depth: (kind(), _buffers(layout, width))


def _lists(layout: str, width: int) -> _Make:
    return lambda data_type, path, depth: (
        model.List(_odf_item(data_type.value_field, f"{path}[]", depth)),
        _buffers(layout, width),
    )


@cache
def _conversions() -> list[tuple[Callable[[pa.DataType], bool], _Make]]:
    return [
        (types.is_string, _texts(model.String, "Contiguous", 32)),
        (types.is_large_string, _texts(model.String, "Contiguous", 64)),
        (types.is_string_view, _texts(model.String, "View", 32)),
        (types.is_binary, _texts(model.Binary, "Contiguous", 32)),
        (types.is_large_binary, _texts(model.Binary, "Contiguous", 64)),
        (types.is_binary_view, _texts(model.Binary, "View", 32)),
        (types.is_fixed_size_binary, lambda kind, path, depth: (model.Binary(kind.byte_width), None)),
        (types.is_date64, lambda kind, path, depth: (model.Date(), {DATE_ENCODING: {"unit": "Millisecond"}})),
        (types.is_time, lambda kind, path, depth: (model.Time(_ODF_UNITS[kind.unit]), None)),
        (
            types.is_timestamp,
            lambda kind, path, depth: (model.TimestampType(_ODF_UNITS[kind.unit], kind.tz), None),
        ),
        (types.is_duration, lambda kind, path, depth: (model.Duration(_ODF_UNITS[kind.unit]), None)),
        (types.is_decimal, _odf_decimal),
        (types.is_list, _lists("Contiguous", 32)),
        (types.is_large_list, _lists("Contiguous", 64)),
        (types.is_list_view, _lists("View", 32)),
        (types.is_large_list_view, _lists("View", 64)),
        (
            types.is_fixed_size_list,
            lambda kind, path, depth: (
                model.List(_odf_item(kind.value_field, f"{path}[]", depth), kind.list_size),
                None,
            ),
        ),
        (types.is_struct, _odf_struct),
        (types.is_map, _odf_map),
    ]
