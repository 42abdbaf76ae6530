"""Arrow types as Spark types, strict casts, and other SQL expressions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyarrow import types
from pyspark.sql import types as st

from odf_engine.data.ddl import field_type_ddl, max_length, uuid_type
from odf_engine.errors import InvalidManifest, InvalidSchema
from odf_engine.spark.errors import BAD_VALUE_PREFIX, SEPARATOR

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


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
MAX_PRECISION = 38


def spark_schema(schema: pa.Schema) -> st.StructType:
    """Return the Spark schema that holds all values of an Arrow schema.

    Raises:
        InvalidSchema: a type that Spark cannot hold; the message names the column.
    """
    return st.StructType([spark_field(field, field.name) for field in schema])


def spark_field(field: pa.Field, path: str) -> st.StructField:
    """Return the Spark field of a column or struct field; ``path`` is its name in errors."""
    return st.StructField(field.name, spark_type(field.type, path), field.nullable)


def spark_type(data_type: pa.DataType, path: str) -> st.DataType:
    """Return the Spark type that holds all values of an Arrow type.

    Raises:
        InvalidSchema: Spark has no such type.
    """
    if data_type in _TO_SPARK:
        return _TO_SPARK[data_type]
    if pa.types.is_timestamp(data_type):
        return st.TimestampType() if data_type.tz else st.TimestampNTZType()
    if pa.types.is_time(data_type):
        return st.TimeType(9 if data_type.unit == "ns" else 6)
    if pa.types.is_duration(data_type):
        return st.DayTimeIntervalType()
    if pa.types.is_fixed_size_binary(data_type):
        return st.BinaryType()
    if pa.types.is_dictionary(data_type):
        return spark_type(data_type.value_type, path)
    if pa.types.is_decimal(data_type) and data_type.precision <= MAX_PRECISION and data_type.scale >= 0:
        return st.DecimalType(data_type.precision, data_type.scale)
    return _nested_spark_type(data_type, path)


def _nested_spark_type(data_type: pa.DataType, path: str) -> st.DataType:
    if (
        pa.types.is_list(data_type)
        or pa.types.is_large_list(data_type)
        or pa.types.is_fixed_size_list(data_type)
    ):
        item = data_type.value_field
        return st.ArrayType(spark_type(item.type, f"{path}[]"), item.nullable)
    if pa.types.is_map(data_type):
        key = spark_type(data_type.key_type, f"{path}.key")
        return st.MapType(
            key, spark_type(data_type.item_type, f"{path}.value"), data_type.item_field.nullable
        )
    if pa.types.is_struct(data_type):
        return st.StructType([spark_field(member, f"{path}.{member.name}") for member in data_type])
    raise InvalidSchema(
        f"column `{path}` has the type {data_type}, which Spark does not support",
        hint="use a decimal of at most 38 digits and a scale of at least 0, or declare the column STRING",
    )


def arrow_schema(schema: st.StructType) -> pa.Schema:
    """Return the schema of the Arrow batches that Spark produces for a result.

    Raises:
        InvalidSchema: a type that a dataset cannot hold; the message names the column.
    """
    return pa.schema([_arrow_field(field, field.name) for field in schema])


def _arrow_field(field: st.StructField, path: str) -> pa.Field:
    return pa.field(field.name, _arrow_type(field.dataType, path), field.nullable)


def _arrow_type(data_type: st.DataType, path: str) -> pa.DataType:
    recurse = partial(_arrow_type, path=path)
    if type(data_type) in _TO_ARROW:
        return _TO_ARROW[type(data_type)]
    if isinstance(data_type, st.StringType):
        return pa.string()
    if isinstance(data_type, st.DecimalType):
        return pa.decimal128(data_type.precision, data_type.scale)
    if _is_empty_type(data_type):
        raise _unsupported_type(data_type, path)
    if isinstance(data_type, st.ArrayType):
        return pa.list_(pa.field("element", recurse(data_type.elementType), data_type.containsNull))
    if isinstance(data_type, st.MapType):
        value = pa.field("value", recurse(data_type.valueType), data_type.valueContainsNull)
        return pa.map_(pa.field("key", recurse(data_type.keyType), False), value)
    if isinstance(data_type, st.StructType):
        return pa.struct([_arrow_field(member, f"{path}.{member.name}") for member in data_type])
    raise _unsupported_type(data_type, path)


def _is_empty_type(data_type: st.DataType) -> bool:
    """Return whether a type has no field or no type of its elements, as ``struct()`` and ``array()``."""
    if isinstance(data_type, st.ArrayType):
        return isinstance(data_type.elementType, st.NullType) and not data_type.containsNull
    if isinstance(data_type, st.MapType):
        return isinstance(data_type.keyType, st.NullType)
    return isinstance(data_type, st.StructType) and not data_type.fields


def _unsupported_type(data_type: st.DataType, path: str) -> InvalidSchema:
    return InvalidSchema(
        f"column `{path}` has the type {data_type.simpleString().upper()}, which datasets do not support",
        hint=f"convert it in the query, such as CAST({path} AS STRING)",
    )


_MAX_VALUE_LENGTH: Final = 200
RAW_PREFIX: Final = "odf_raw_"
"""Prefix of the aliases of values as read, before their conversion."""
CONVERTED_PREFIX: Final = "odf_value_"
"""Prefix of the aliases of converted values."""
_FLOAT: Final = r"^\\s*[+-]?(([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]+)?|(?i:inf(inity)?|nan))\\s*$"
_ZERO: Final = r"^\\s*[+-]?[0.]+([eE].*)?\\s*$"
_INTEGER: Final = r"^\\s*[+-]?[0-9]+\\s*$"
_MIDNIGHT: Final = r"^\\d{4}-\\d{1,2}-\\d{1,2}([T ]00:00(:00([.]0+)?)?(Z|[+-]00:?00)?)?$"
_DATE_OR_TIME: Final = r"^\\d{4}-\\d{1,2}-\\d{1,2}([T ].*)?$"
_RFC3339: Final = r"^\\d{4}-\\d{2}-\\d{2}[Tt ]\\d{2}:\\d{2}:\\d{2}([.]\\d+)?([Zz]|[+-]\\d{2}:\\d{2})$"
_ZONE_NAME: Final = "[A-Za-z]{2}[A-Za-z0-9_/:+-]*"
_STRFTIME: Final = {
    "Y": "yyyy", "y": "yy", "m": "MM", "d": "dd", "e": "d", "H": "HH", "I": "hh", "M": "mm", "S": "ss",
    "f": "SSSSSS", "p": "a", "b": "MMM", "B": "MMMM", "a": "EEE", "A": "EEEE", "j": "DDD",
    "z": "xx", "Z": "VV", "F": "yyyy-MM-dd", "T": "HH:mm:ss", "%": "%",
}  # fmt: skip
_UNSIGNED: Final = {
    pa.uint8(): "TINYINT UNSIGNED",
    pa.uint16(): "SMALLINT UNSIGNED",
    pa.uint32(): "INT UNSIGNED",
    pa.uint64(): "BIGINT UNSIGNED",
}
_CASTABLE: Final = (
    (st.NumericType, st.NumericType),
    (st.DateType, st.TimestampType | st.TimestampNTZType),
    (st.TimestampType | st.TimestampNTZType, st.TimestampType | st.TimestampNTZType | st.DateType),
    (st.TimeType, st.TimeType),
    (st.DayTimeIntervalType, st.DayTimeIntervalType),
    (st.BinaryType, st.BinaryType),
    (st.AtomicType, st.StringType),
    (st.NullType, st.DataType),
)
"""Pairs of a source type and the target types that it can be cast to."""
_UNSIGNED_MAX: Final = {pa.uint8(): 255, pa.uint16(): 65535, pa.uint32(): 2**32 - 1, pa.uint64(): 2**64 - 1}


@dataclass(frozen=True)
class Formats:
    """Formats of dates and timestamps as Spark patterns, or None for ISO 8601.

    Attributes:
        date: format of dates.
        timestamp: format of timestamps.
        needs_offset: timestamps are as in RFC 3339: they have an offset, and may have a leap second.
    """

    date: str | None = None
    timestamp: str | None = None
    needs_offset: bool = False

    @classmethod
    def parse(cls, date: str | None, timestamp: str | None) -> Formats:
        """Parse the formats of a manifest: ``rfc3339``, a Spark pattern, or a strftime format.

        Raises:
            InvalidManifest: an unknown strftime directive.
        """
        needs_offset = timestamp is not None and timestamp.lower() == "rfc3339"
        return cls(_parse_pattern(date), _parse_pattern(timestamp), needs_offset)


def identifier(name: str) -> str:
    """Return a name as quoted SQL identifier."""
    return "`" + name.replace("`", "``") + "`"


def string_literal(value: str) -> str:
    """Return a text as SQL string literal."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def cast_to_schema(frame: DataFrame, schema: pa.Schema, formats: Formats) -> DataFrame:
    """Select the columns of a schema from a frame, in its order, cast without loss to the declared types.

    STRING columns of the frame are parsed as text.

    Raises:
        InvalidSchema: a column has a type that cannot be cast to the declared one.
    """
    source_types = {field.name.lower(): field.dataType for field in frame.schema}
    columns = [
        _Column.of(
            field, source_types[field.name.lower()], formats, f"{RAW_PREFIX}{i}", f"{CONVERTED_PREFIX}{i}"
        )
        for i, field in enumerate(schema)
    ]
    # All values are computed first, then checked, so that none is computed twice.
    values = frame.selectExpr(*(part for column in columns for part in column.select_value()))
    return values.selectExpr(*(column.select_checked() for column in columns))


def is_castable(name: str, data_type: st.DataType, formats: Formats) -> str:
    """Return the SQL condition that a text value can be inferred to be of a type; null for null.

    Stricter than :func:`cast_to_schema`: 007, +4930123, 1E5 and numbers with too many digits for a DOUBLE
    are not numbers, and 1 is not a BOOLEAN.
    """
    column = identifier(name)
    value, guard = _from_text(data_type, column, f"try_cast({column} AS {data_type.simpleString()})", formats)
    condition = f"{value.format(column)} IS NOT NULL" + (f" AND ({guard})" if guard else "")
    match data_type:
        case st.BooleanType():
            condition = f"lower(trim({column})) IN ('true', 'false')"
        case st.LongType() | st.DoubleType():
            unsafe = r"^ *-?0\\d|^ *[+]|^ *\\d+[eE]\\d+ *$|\\d{16}\\d*[.eE]|\\d{19}"
            condition = f"{condition} AND {column} NOT RLIKE '{unsafe}'"
    return f"if({column} IS NULL, NULL, {condition})"


@dataclass(frozen=True)
class _Column:
    """The conversion of one column to its declared type.

    Attributes:
        field: the declaration.
        raw: alias of the column as read.
        converted: alias of the converted value.
        value: expression over the column of the frame, or "" if the column needs no conversion.
        guard: condition over ``raw`` and ``converted`` that a value must meet, or "" for none.
        type_name: name of the declared type in errors.
    """

    field: pa.Field
    raw: str
    converted: str
    value: str
    guard: str
    type_name: str

    @classmethod
    def of(cls, field: pa.Field, source: st.DataType, formats: Formats, raw: str, converted: str) -> _Column:
        target = spark_type(field.type, field.name)
        if _is_nested(source) or _is_nested(target):
            column = identifier(field.name)
            value = _field_conversion(column, field.with_nullable(True), source, formats, field.name, 0)
            return cls(field, raw, converted, "" if value == column else _escape_braces(value), "", "")
        value, guard = _conversion(field.type, target, source, formats, field.name, raw, converted)
        if limit := _length_condition(converted, field):
            value, guard = value or "{}", f"{guard} AND {limit}" if guard else limit
        return cls(field, raw, converted, value, guard, field_type_name(field, target))

    def select_value(self) -> list[str]:
        """Return the select items: the column and, if it is converted, the value."""
        column = identifier(self.field.name)
        parts = [f"{column} AS {self.raw}"]
        return [*parts, f"{self.value.format(column)} AS {self.converted}"] if self.value else parts

    def select_checked(self) -> str:
        """Return the select item of the value, which raises an error if the value is invalid."""
        missing = "NULL" if self.field.nullable else _raise_error(self.field.name, "NOT NULL", "''")
        result = self.raw if self.field.nullable else f"coalesce({self.raw}, {missing})"
        if self.value:
            valid = f"{self.converted} IS NOT NULL" + (f" AND {self.guard}" if self.guard else "")
            error = _raise_error(self.field.name, self.type_name, self.raw) if self.type_name else "NULL"
            result = f"if({valid}, {self.converted}, if({self.raw} IS NULL, {missing}, {error}))"
        return f"{result} AS {identifier(self.field.name)}"


def _raise_error(path: str, type_name: str, value: str) -> str:
    message = string_literal(SEPARATOR.join((BAD_VALUE_PREFIX, path, type_name, "")))
    return f"raise_error(concat({message}, left(CAST({value} AS STRING), {_MAX_VALUE_LENGTH})))"


def declared_type_name(declared: pa.DataType, target: st.DataType) -> str:
    """Return the name of a declared type in errors, given its type in Spark."""
    return "UUID" if declared == uuid_type() else _UNSIGNED.get(declared, target.simpleString().upper())


def field_type_name(field: pa.Field, target: st.DataType) -> str:
    """Return the name of the declared type of a field in errors, given its type in Spark."""
    if _length_condition("", field) or _is_nested(target):
        return field_type_ddl(field)
    return declared_type_name(field.type, target)


def _is_nested(kind: st.DataType) -> bool:
    return isinstance(kind, st.StructType | st.ArrayType | st.MapType)


def _field_conversion(
    value: str, field: pa.Field, source: st.DataType, formats: Formats, path: str, depth: int
) -> str:
    """Return the conversion of the value of a struct field or list item, with the limits that it declares."""
    converted = _nested_conversion(value, field.type, source, formats, path, depth)
    if limit := _length_condition(converted, field):
        error = _raise_error(path, field_type_ddl(field), converted)
        converted = f"if({converted} IS NULL OR {limit}, {converted}, {error})"
    missing = _raise_error(path, "NOT NULL", "''")
    return converted if field.nullable else f"coalesce({converted}, {missing})"


def _length_condition(value: str, field: pa.Field) -> str:
    """Return the condition that a value has the declared length, or "" if any length is valid."""
    if pa.types.is_fixed_size_binary(field.type) and field.type != uuid_type():
        return f"(octet_length({value}) = {field.type.byte_width})"
    if (length := max_length(field)) is None:
        return ""
    function = "octet_length" if pa.types.is_binary(field.type) else "char_length"
    return f"({function}({value}) <= {length})"


def _nested_conversion(
    value: str, declared: pa.DataType, source: st.DataType, formats: Formats, path: str, depth: int
) -> str:
    """Return the conversion of a value at any depth to its declared type; ``value`` if none is needed."""
    target = spark_type(declared, path)
    if isinstance(source, st.NullType):
        return typed_null(declared, path)
    if isinstance(source, st.StructType) and isinstance(target, st.StructType):
        return _struct_conversion(value, declared, source, formats, path, depth)
    if isinstance(source, st.ArrayType) and isinstance(target, st.ArrayType):
        item = f"item_{depth}"
        converted = _field_conversion(
            item, declared.value_field, source.elementType, formats, f"{path}[]", depth + 1
        )
        return value if converted == item else f"transform({value}, {item} -> {converted})"
    if _is_nested(source) and isinstance(target, st.StringType):
        return f"to_json({value})"
    if source != target and (_is_nested(source) or _is_nested(target)):
        raise _incompatible_types(path, source, declared_type_name(declared, target))
    template, _ = _conversion(declared, target, source, formats, path, value, "")
    if not template:
        return value
    converted = template.format(value)
    _, guard = _conversion(declared, target, source, formats, path, value, converted)
    valid = f"{converted} IS NOT NULL" + (f" AND {guard}" if guard else "")
    error = _raise_error(path, declared_type_name(declared, target), value)
    return f"if({value} IS NULL, NULL, if({valid}, {converted}, {error}))"


def _struct_conversion(
    value: str, declared: pa.DataType, source: st.StructType, formats: Formats, path: str, depth: int
) -> str:
    source_fields = {field.name.casefold(): field for field in source}
    unchanged, members = source.names == [field.name for field in declared], []
    for field in declared:
        if (source_field := source_fields.get(field.name.casefold())) is None:
            names = ", ".join(f"`{name}`" for name in source.names)
            raise InvalidSchema(f"column `{path}` has no field `{field.name}`", hint=f"fields: {names}")
        member = f"{value}.{identifier(source_field.name)}"
        converted = _field_conversion(
            member, field, source_field.dataType, formats, f"{path}.{field.name}", depth
        )
        unchanged = unchanged and converted == member
        members.append(f"{string_literal(field.name)}, {converted}")
    return value if unchanged else f"if({value} IS NULL, NULL, named_struct({', '.join(members)}))"


def _conversion(
    declared: pa.DataType,
    target: st.DataType,
    source: st.DataType,
    formats: Formats,
    path: str,
    raw: str,
    converted: str,
) -> tuple[str, str]:
    """Return the conversion of a scalar type, and the condition that ``converted`` and ``raw`` must meet.

    The expression has ``{}`` instead of the value, and is empty if no conversion is needed.
    """
    if target == source and declared not in _UNSIGNED_MAX:
        return "", ""
    value, guards = f"try_cast({{}} AS {target.simpleString()})", []
    if isinstance(source, st.StringType) and declared == uuid_type():
        value, guards = "try_to_binary(replace({}, '-', ''), 'hex')", [f"octet_length({converted}) = 16"]
    elif isinstance(source, st.StringType):
        value, guard = _from_text(target, raw, converted, formats)
        guards.append(f"{raw} RLIKE '{_INTEGER}'" if pa.types.is_uint64(declared) else guard)
    elif not any(isinstance(source, left) and isinstance(target, right) for left, right in _CASTABLE):
        raise _incompatible_types(path, source, declared_type_name(declared, target))
    elif isinstance(target, st.DateType):
        guards.append(f"CAST({converted} AS TIMESTAMP) = {raw}")
    elif isinstance(source, st.DecimalType) and isinstance(target, st.DecimalType):
        # The common type of both may not hold the value.
        guards.append(f"try_cast({converted} AS {source.simpleString()}) = {raw}")
    elif isinstance(source, st.FractionalType) and isinstance(target, st.IntegralType | st.DecimalType):
        guards.append(f"{converted} = {raw}")
    elif isinstance(source, st.DoubleType) and isinstance(target, st.FloatType):
        guards.append(f"abs({converted}) < CAST('Infinity' AS FLOAT) OR isnan({raw}) OR {converted} = {raw}")
    elif isinstance(source, st.IntegralType) and isinstance(target, st.FloatType | st.DoubleType):
        guards.append(f"try_cast({converted} AS DECIMAL(20, 0)) = {raw}")
    if (largest := _UNSIGNED_MAX.get(declared)) is not None:
        guards.append(f"{converted} >= 0 AND {converted} <= {largest}")
    return value, " AND ".join(f"({guard})" for guard in guards if guard)


def _from_text(target: st.DataType, raw: str, value: str, formats: Formats) -> tuple[str, str]:
    """Return the conversion from text, with ``{}`` instead of the column, and the condition on its result.

    Guards accept the usual spelling without a regular expression, for speed.
    """
    sql = target.simpleString()
    cast = f"try_cast({{}} AS {sql})"
    match target:
        case st.DateType() if formats.date:
            return f"try_to_date({{}}, {_escaped_literal(formats.date)})", ""
        case st.DateType():
            usual = f"instr({raw}, '-') = 5 AND octet_length({raw}) >= 8 AND octet_length({raw}) <= 10"
            return cast, f"{usual} OR trim({raw}) RLIKE '{_MIDNIGHT}'"
        case st.TimestampType() | st.TimestampNTZType() if formats.timestamp:
            return f"try_cast(try_to_timestamp({{}}, {_escaped_literal(formats.timestamp)}) AS {sql})", ""
        case st.TimestampType() if formats.needs_offset:
            leap_second = "if({0} RLIKE ':60[.zZ+-]', INTERVAL 1 SECOND, INTERVAL 0 SECOND)"
            without = "regexp_replace(upper({0}), ':60(?=[.Z+-])', ':59')"
            return f"try_cast({without} AS {sql}) + {leap_second}", f"trim({raw}) RLIKE '{_RFC3339}'"
        case st.TimestampType() | st.TimestampNTZType():
            usual = f"instr({raw}, '-') = 5 AND octet_length({raw}) >= 8"
            is_written = f"({usual}) OR trim({raw}) RLIKE '{_DATE_OR_TIME}'"
            return cast, f"({is_written}) AND ({_is_unique_time(raw, value)})"
        case st.DecimalType():
            return cast, _is_exact_decimal(raw, target.scale)
        case st.DoubleType() | st.FloatType():
            # Java also accepts 1d, 1f and 0x1p3.
            usual = f"right({raw}, 1) BETWEEN '0' AND '9' AND instr({raw}, 'x') = 0 AND instr({raw}, 'X') = 0"
            is_written = f"({usual}) OR {raw} RLIKE '{_FLOAT}'"
            is_infinite = f"isnan({value}) OR lower(trim({raw})) LIKE '%inf%'"
            in_range = f"(abs({value}) < CAST('Infinity' AS {sql}) OR {is_infinite})"
            return cast, f"({is_written}) AND {in_range} AND ({value} <> 0 OR {raw} RLIKE '{_ZERO}')"
        case st.BinaryType():
            return "CAST({} AS BINARY)", ""
    return cast, ""


def _is_unique_time(raw: str, value: str) -> str:
    """Return the condition that a time in a named zone exists once: not in a gap or overlap of its clock."""
    is_offset = f"right({raw}, 1) BETWEEN '0' AND '9' OR (right({raw}, 1) = 'Z' AND right({raw}, 2) <> 'NZ')"
    zone = f"regexp_extract({raw}, '{_ZONE_NAME}', 0)"
    clock = f"try_cast(regexp_replace({raw}, ' *{_ZONE_NAME}', '') AS TIMESTAMP)"
    # Spark takes the first of two times. The offset of the second one applies a day later.
    later = f"{value} + INTERVAL 1 DAY"
    second = f"{clock} - (from_utc_timestamp({later}, {zone}) - ({later}))"
    is_single = f"{second} = {value} OR from_utc_timestamp({second}, {zone}) <> {clock}"
    in_zone = f"from_utc_timestamp({value}, {zone}) = {clock} AND ({is_single})"
    # Spark evaluates common parts of OR for all values, but those of IF only where they are needed.
    return f"if({is_offset} OR NOT {raw} RLIKE '{_ZONE_NAME}', true, {in_zone})"


def _is_exact_decimal(raw: str, scale: int) -> str:
    """Return the condition that a text is a number without digits beyond a scale; the cast would round it."""
    plain = rf"^\\s*[+-]?[0-9]*+([.][0-9]{{0,{scale}}}0*+)?\\s*$"
    written = r"^\\s*[+-]?([0-9]*+[.]?[0-9]*+)[eE]([+-]?[0-9]+)\\s*$"
    mantissa, exponent = (f"regexp_extract({raw}, '{written}', {group})" for group in (1, 2))
    digits = f"length(TRIM(TRAILING '0' FROM replace({mantissa}, '.', '')))"
    integral = f"instr(concat({mantissa}, '.'), '.') - 1 + try_cast({exponent} AS INT)"
    fits = f"{digits} = 0 OR {digits} - ({integral}) <= {scale}"
    # As IF, since Spark evaluates common parts of OR for all values.
    return f"if({raw} RLIKE '{plain}', true, if({raw} RLIKE '{written}', {fits}, false))"


def _incompatible_types(path: str, source: st.DataType, type_name: str) -> InvalidSchema:
    return InvalidSchema(
        f"column `{path}` is {source.simpleString().upper()} in the data, which cannot be converted to "
        f"{type_name}",
        hint=f"declare `{path}` with the type in the data, and convert it in the preprocess query",
    )


def _escape_braces(expression: str) -> str:
    return expression.replace("{", "{{").replace("}", "}}")


def _escaped_literal(pattern: str) -> str:
    return _escape_braces(string_literal(pattern))


def _parse_pattern(written: str | None) -> str | None:
    if not written or written.lower() == "rfc3339":
        return None
    if "%" not in written:
        return written
    parts = []
    for percent, letter, literal in re.findall(r"(%)(?:[-.]?\d?)(.)|([^%]+)", written):
        if not percent:
            parts.append(
                "'" + literal.replace("'", "''") + "'" if re.search("[A-Za-z']", literal) else literal
            )
        elif letter in _STRFTIME:
            parts.append(_STRFTIME[letter])
        else:
            raise InvalidManifest(
                f"the format '{written}' has an unknown directive: %{letter}",
                hint="use a Spark pattern such as `yyyy-MM-dd HH:mm:ss`",
            )
    return "".join(parts)


def columns(names: Iterable[str], table: str = "") -> str:
    """Return column references separated by commas, qualified by a table if one is given."""
    return ", ".join(column(name, table) for name in names)


def column(name: str, table: str = "") -> str:
    """Return a column reference, qualified by a table or struct if one is given."""
    return f"{table}.{identifier(name)}" if table else identifier(name)


def struct(values: Iterable[tuple[str, str]]) -> str:
    """Return a struct of named expressions."""
    return "named_struct(" + ", ".join(f"{string_literal(name)}, {value}" for name, value in values) + ")"


def null_safe_equal(names: Iterable[str], left: str, right: str) -> str:
    """Return the condition that columns of two tables are equal; nulls equal nulls, and NaN equals NaN."""
    pairs = (f"{column(name, left)} <=> {column(name, right)}" for name in names)
    return "(" + (" AND ".join(pairs) or "TRUE") + ")"


def equal_not_null(names: Iterable[str], left: str, right: str) -> str:
    """Return the condition that columns of two tables are equal and not null."""
    return " AND ".join(f"{column(name, left)} = {column(name, right)}" for name in names)


def any_null(names: Iterable[str]) -> str:
    """Return the condition that one of the columns is null."""
    return "(" + " OR ".join(f"{column(name)} IS NULL" for name in names) + ")"


def replace_values(frame: DataFrame, columns: Sequence[str], values: Mapping[str, str]) -> DataFrame:
    """Return the rows with other texts in some columns: those that are keys of ``values``.

    Args:
        frame: the rows.
        columns: names of columns of type string, ignoring case; other names are ignored.
        values: new texts by old ones.
    """
    if not values or not columns:
        return frame
    folded = {name.casefold() for name in columns}
    keys, new = (", ".join(map(string_literal, texts)) for texts in (values, values.values()))
    known = f"map_from_arrays(array({keys}), array({new}))"
    return frame.selectExpr(
        *(
            f"coalesce(element_at({known}, {column(name)}), {column(name)}) AS {column(name)}"
            if name.casefold() in folded
            else column(name)
            for name in frame.columns
        )
    )


def typed_null(data_type: pa.DataType, name: str) -> str:
    """Return a typed null."""
    return f"CAST(NULL AS {sql_type(spark_type(data_type, name))})"


def sql_type(data_type: st.DataType) -> str:
    """Return a type in SQL with quoted field names."""
    match data_type:
        case st.StructType():
            fields = (f"{identifier(field.name)}: {sql_type(field.dataType)}" for field in data_type)
            return f"STRUCT<{', '.join(fields)}>"
        case st.ArrayType():
            return f"ARRAY<{sql_type(data_type.elementType)}>"
        case st.MapType():
            return f"MAP<{sql_type(data_type.keyType)}, {sql_type(data_type.valueType)}>"
    return data_type.simpleString()


def truncate_timestamps(value: str, data_type: pa.DataType, depth: int = 0) -> str:
    """Return an expression with all timestamps in UTC and in the precision of a slice with that type."""
    if not _has_timestamp(data_type):
        return value
    if types.is_timestamp(data_type):
        timestamp = f"CAST({value} AS TIMESTAMP)"  # has microseconds
        is_finer = data_type.unit in ("us", "ns")
        return timestamp if is_finer else f"timestamp_millis(unix_millis({timestamp}))"
    if types.is_struct(data_type):
        members = [
            (member.name, truncate_timestamps(column(member.name, value), member.type, depth))
            for member in data_type
        ]
        return f"if({value} IS NULL, NULL, {struct(members)})"
    item = f"x{depth}"
    return f"transform({value}, {item} -> {truncate_timestamps(item, data_type.value_type, depth + 1)})"


def _has_timestamp(data_type: pa.DataType) -> bool:
    if types.is_struct(data_type):
        return any(_has_timestamp(member.type) for member in data_type)
    if types.is_list(data_type) or types.is_large_list(data_type):
        return _has_timestamp(data_type.value_type)
    return types.is_timestamp(data_type)
