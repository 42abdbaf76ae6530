"""Arrow types as Spark knows them, and back.

Spark has no unsigned integers, no half floats and one precision of time stamps. A column of such a
type goes through Spark as the next wider type that holds every value; the slice's own type comes
back when the slice is written.
"""

from __future__ import annotations

from functools import partial

import pyarrow as pa
from pyspark.sql import types as st

from odf_engine.errors import InvalidSchema

_SIMPLE: tuple[tuple[pa.DataType, st.DataType], ...] = (
    (pa.bool_(), st.BooleanType()),
    (pa.int8(), st.ByteType()),
    (pa.int16(), st.ShortType()),
    (pa.int32(), st.IntegerType()),
    (pa.int64(), st.LongType()),
    (pa.uint8(), st.ShortType()),
    (pa.uint16(), st.IntegerType()),
    (pa.uint32(), st.LongType()),
    (pa.uint64(), st.DecimalType(20, 0)),
    (pa.float16(), st.FloatType()),
    (pa.float32(), st.FloatType()),
    (pa.float64(), st.DoubleType()),
    (pa.string(), st.StringType()),
    (pa.large_string(), st.StringType()),
    (pa.string_view(), st.StringType()),
    (pa.binary(), st.BinaryType()),
    (pa.large_binary(), st.BinaryType()),
    (pa.binary_view(), st.BinaryType()),
    (pa.date32(), st.DateType()),
    (pa.date64(), st.DateType()),
)
_TO_SPARK = dict(_SIMPLE)
_TO_ARROW: dict[type[st.DataType], pa.DataType] = {
    st.BooleanType: pa.bool_(),
    st.ByteType: pa.int8(),
    st.ShortType: pa.int16(),
    st.IntegerType: pa.int32(),
    st.LongType: pa.int64(),
    st.FloatType: pa.float32(),
    st.DoubleType: pa.float64(),
    st.BinaryType: pa.binary(),
    st.DateType: pa.date32(),
    st.TimestampType: pa.timestamp("us", "UTC"),
    st.TimestampNTZType: pa.timestamp("us"),
    st.TimeType: pa.time64("ns"),
    st.DayTimeIntervalType: pa.duration("us"),
    st.NullType: pa.null(),
}
_LARGEST_PRECISION = 38


def spark_schema(schema: pa.Schema) -> st.StructType:
    """The Spark schema whose values hold all values of an Arrow schema.

    Raises:
        InvalidSchema: a type that Spark cannot hold; the message names the column.
    """
    return st.StructType([spark_field(field, field.name) for field in schema])


def spark_field(field: pa.Field, path: str) -> st.StructField:
    """A column or member; ``path`` is how errors name it."""
    return st.StructField(field.name, spark_type(field.type, path), field.nullable)


def spark_type(kind: pa.DataType, path: str) -> st.DataType:
    """The Spark type that holds all values of an Arrow type."""
    if kind in _TO_SPARK:
        return _TO_SPARK[kind]
    if pa.types.is_timestamp(kind):
        return st.TimestampType() if kind.tz else st.TimestampNTZType()
    if pa.types.is_time(kind):
        return st.TimeType(6)
    if pa.types.is_duration(kind):
        return st.DayTimeIntervalType()
    if pa.types.is_fixed_size_binary(kind):
        return st.BinaryType()
    if pa.types.is_dictionary(kind):
        return spark_type(kind.value_type, path)
    if pa.types.is_decimal(kind) and kind.precision <= _LARGEST_PRECISION and kind.scale >= 0:
        return st.DecimalType(kind.precision, kind.scale)
    return _nested(kind, path)


def _nested(kind: pa.DataType, path: str) -> st.DataType:
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        item = kind.value_field
        return st.ArrayType(spark_type(item.type, f"{path}[]"), item.nullable)
    if pa.types.is_map(kind):
        key = spark_type(kind.key_type, f"{path}.key")
        return st.MapType(key, spark_type(kind.item_type, f"{path}.value"), kind.item_field.nullable)
    if pa.types.is_struct(kind):
        return st.StructType([spark_field(member, f"{path}.{member.name}") for member in kind])
    raise InvalidSchema(
        f"column `{path}` has the type {kind}, which Spark cannot hold",
        hint="decimals go up to 38 digits with a scale from 0; otherwise declare the column STRING",
    )


def arrow_schema(schema: st.StructType) -> pa.Schema:
    """The schema of the Arrow batches that Spark makes of a result.

    Raises:
        InvalidSchema: a type that has no place in a dataset; the message names the column.
    """
    return pa.schema([_arrow_field(field, field.name) for field in schema])


def _arrow_field(field: st.StructField, path: str) -> pa.Field:
    return pa.field(field.name, _arrow_type(field.dataType, path), field.nullable)


def _arrow_type(kind: st.DataType, path: str) -> pa.DataType:
    recurse = partial(_arrow_type, path=path)
    if type(kind) in _TO_ARROW:
        return _TO_ARROW[type(kind)]
    if isinstance(kind, st.StringType):
        return pa.string()
    if isinstance(kind, st.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, st.ArrayType):
        return pa.list_(pa.field("element", recurse(kind.elementType), kind.containsNull))
    if isinstance(kind, st.MapType):
        value = pa.field("value", recurse(kind.valueType), kind.valueContainsNull)
        return pa.map_(pa.field("key", recurse(kind.keyType), False), value)
    if isinstance(kind, st.StructType):
        return pa.struct([_arrow_field(member, f"{path}.{member.name}") for member in kind])
    raise InvalidSchema(
        f"column `{path}` has the type {kind.simpleString().upper()}, which a dataset cannot hold",
        hint=f"convert it in the query, such as CAST({path} AS STRING)",
    )
