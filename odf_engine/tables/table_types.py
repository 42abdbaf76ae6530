"""Types of columns in Delta Lake and Apache Iceberg."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final, NamedTuple

from odf_engine.base.arrow import pa, types
from odf_engine.errors import Unsupported

_MAX_PRECISION: Final = 38


class TypeNames(NamedTuple):
    """The names of a type that is not nested, or None if a format does not have it."""

    delta: str | None
    iceberg: str


@cache
def _plain_types() -> Mapping[pa.DataType, TypeNames]:
    return {
        pa.bool_(): TypeNames("boolean", "boolean"),
        pa.int8(): TypeNames("byte", "int"),
        pa.int16(): TypeNames("short", "int"),
        pa.int32(): TypeNames("integer", "int"),
        pa.int64(): TypeNames("long", "long"),
        pa.uint8(): TypeNames("integer", "int"),
        pa.uint16(): TypeNames("integer", "int"),
        pa.uint32(): TypeNames("long", "long"),
        pa.uint64(): TypeNames("long", "long"),  # larger values are refused when a file is described
        pa.float32(): TypeNames("float", "float"),
        pa.float64(): TypeNames("double", "double"),
        pa.date32(): TypeNames("date", "date"),
        pa.date64(): TypeNames("date", "date"),
        pa.time64("us"): TypeNames(None, "time"),
    }


def type_names(data_type: pa.DataType) -> TypeNames | None:
    """Return the names of a type, or None if it is nested or no format has it."""
    if (plain := _plain_types().get(data_type)) is not None:
        return plain
    if types.is_string(data_type) or types.is_large_string(data_type) or types.is_string_view(data_type):
        return TypeNames("string", "string")
    if types.is_binary(data_type) or types.is_large_binary(data_type) or types.is_binary_view(data_type):
        return TypeNames("binary", "binary")
    if types.is_timestamp(data_type) and data_type.unit != "ns":
        has_zone = data_type.tz is not None
        return TypeNames("timestamp", "timestamptz") if has_zone else TypeNames("timestamp_ntz", "timestamp")
    if types.is_decimal(data_type) and data_type.precision <= _MAX_PRECISION and data_type.scale >= 0:
        precision, scale = data_type.precision, data_type.scale
        return TypeNames(f"decimal({precision},{scale})", f"decimal({precision}, {scale})")
    return None


def is_list(data_type: pa.DataType) -> bool:
    """Return whether a type is a list of any kind."""
    return types.is_list(data_type) or types.is_large_list(data_type) or types.is_fixed_size_list(data_type)


def unsupported_type(column: str, data_type: pa.DataType, format: str) -> Unsupported:
    """Return the error for a type that a format does not have."""
    return Unsupported(
        f"column '{column}' has the type {data_type}, which {format} does not have",
        hint="cast the column in a derivative dataset, and use its table",
    )
