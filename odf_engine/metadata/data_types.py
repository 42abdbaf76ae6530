"""Meaning of ODF schemas (RFC-016): equality, custom attributes that are not stored, descriptions.

Imports no Arrow, so that a chain can be opened without it. :mod:`odf_engine.data.odf_schema` converts to and
from Arrow.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec.structs import replace

from odf_engine.metadata.model import (
    Binary,
    DataField,
    DataSchema,
    Decimal,
    Duration,
    ExtraAttributes,
    List,
    Map,
    Option,
    Struct,
    Time,
    TimestampType,
    TimeUnit,
)

BUFFER_ENCODING: Final = "arrow.apache.org/bufferEncoding"
DATE_ENCODING: Final = "arrow.apache.org/dateEncoding"
DECIMAL_ENCODING: Final = "arrow.apache.org/decimalEncoding"
ENCODINGS: Final = (BUFFER_ENCODING, DATE_ENCODING, DECIMAL_ENCODING)
"""Attributes that describe the layout of values in Arrow, not their type."""
DESCRIPTION: Final = "opendatafabric.org/description"


MAX_PRECISION: Final = 76
"""The maximum number of digits of a decimal."""


def find_type_problem(data_type: Any) -> tuple[str, str, str] | None:
    """Return the invalid property of a data type, what is wrong, and a hint, or None if the type is valid.

    Nested types are not examined.
    """
    match data_type:
        case Decimal(precision=precision) if not 1 <= precision <= MAX_PRECISION:
            return (
                "precision",
                f"the precision {precision} is not in 1 to {MAX_PRECISION}",
                "count all digits",
            )
        case Decimal(precision=precision, scale=scale) if not -MAX_PRECISION <= scale <= precision:
            message = f"the scale {scale} is greater than the precision {precision}"
            if scale < 0:
                message = f"the scale {scale} is less than -{MAX_PRECISION}"
            return "scale", message, "the precision counts all digits, the scale those after the point"
        case Binary(fixed_length=0) | List(fixed_length=0):
            return "fixed_length", "fixedLength is 0", "remove it, or use a length of 1 or more"
        case Struct(fields=[]):
            return "fields", "a Struct has no fields", "add a field, or remove the column"
        case Struct(fields=fields) if len({field.name for field in fields}) < len(fields):
            return "fields", "two fields of the Struct have the same name", "rename one of them"
        case Option(inner=Option()):
            return "inner", "an Option of an Option", "use a single Option"
        case Map(key_type=Option()):
            return "key_type", "the keys of a Map cannot be null", "use the type without Option"
        case _:
            return None


def same_type(left: Any, right: Any) -> bool:
    """Return whether two data types have the same meaning: absent properties equal their defaults."""
    return _canonical(_normalize_type(left)) == _canonical(_normalize_type(right))


def same_meaning(left: DataSchema, right: DataSchema) -> bool:
    """Return whether two schemas have the same columns and attributes, apart from omitted defaults."""
    return _canonical(_normalize(left)) == _canonical(_normalize(right))


def _canonical(value: Any) -> bytes:
    # JSON distinguishes 1, 1.0 and true, which are equal in Python.
    return msgspec.json.encode(value, order="sorted")


def _normalize(schema: DataSchema) -> DataSchema:
    return DataSchema(list(map(_normalize_field, schema.fields)), _normalize_extra(schema.extra))


def _normalize_field(field: DataField) -> DataField:
    return DataField(field.name, _normalize_type(field.type), _normalize_extra(field.extra))


def _normalize_extra(extra: ExtraAttributes | None) -> ExtraAttributes | None:
    return extra if extra is not None and extra.entries else None


def _normalize_type(data_type: Any) -> Any:
    match data_type:
        case TimestampType():
            unit = data_type.unit or TimeUnit.Millisecond
            return TimestampType(unit, "UTC" if data_type.timezone is None else data_type.timezone)
        case Time() | Duration():
            return replace(data_type, unit=data_type.unit or TimeUnit.Millisecond)
        case List():
            return replace(data_type, item_type=_normalize_type(data_type.item_type))
        case Map():
            key, value = _normalize_type(data_type.key_type), _normalize_type(data_type.value_type)
            return Map(key, value, bool(data_type.keys_sorted))
        case Option():
            return Option(_normalize_type(data_type.inner))
        case Struct():
            return Struct(list(map(_normalize_field, data_type.fields)))
        case _:
            return data_type


def strip_encodings(schema: DataSchema) -> DataSchema:
    """Return the schema without the attributes that describe the layout of values in Arrow.

    Like other implementations, it descends into Option and Struct, but not into List and Map.
    """
    return replace(schema, fields=list(map(_strip_field, schema.fields)))


def _strip_field(field: DataField) -> DataField:
    entries = {} if field.extra is None else field.extra.entries
    left = {key: value for key, value in entries.items() if key not in ENCODINGS}
    extra = field.extra if len(left) == len(entries) else ExtraAttributes(left) if left else None
    return DataField(field.name, _strip_type(field.type), extra)


def _strip_type(data_type: Any) -> Any:
    match data_type:
        case Option():
            return Option(_strip_type(data_type.inner))
        case Struct():
            return Struct(list(map(_strip_field, data_type.fields)))
        case _:
            return data_type


def adopt_attributes(schema: DataSchema, previous: DataSchema, *, spelling: bool = True) -> DataSchema:
    """Return a schema with the attributes of a previous one, matched by the names of columns and members.

    Args:
        schema: the columns.
        previous: the schema with attributes.
        spelling: whether columns of the same type keep its exact spelling, and thus their bytes.
    """

    def adopt_fields(fields: list[DataField], before: list[DataField]) -> list[DataField]:
        known = {field.name: field for field in before}
        return [
            DataField(field.name, adopt_type(field.type, known[field.name].type), known[field.name].extra)
            if field.name in known
            else field
            for field in fields
        ]

    def adopt_type(new: Any, before: Any) -> Any:
        if spelling and same_type(new, before):
            return before
        match new, before:
            case Option(), Option():
                return Option(adopt_type(new.inner, before.inner))
            case Option(), _:
                return Option(adopt_type(new.inner, before))
            case List(), List():
                return replace(new, item_type=adopt_type(new.item_type, before.item_type))
            case Struct(), Struct():
                return Struct(adopt_fields(new.fields, before.fields))
            case _:
                return new

    return DataSchema(adopt_fields(schema.fields, previous.fields), previous.extra)


def schema_descriptions(schema: DataSchema | None) -> dict[str, str]:
    """Return the descriptions of columns and of members of structs, by names such as ``subject.id``."""
    descriptions: dict[str, str] = {}

    def visit(field: DataField, path: str) -> None:
        text = None if field.extra is None else field.extra.entries.get(DESCRIPTION)
        if isinstance(text, str) and text.strip():
            descriptions[path] = text.strip()
        inner: Any = field.type
        while isinstance(inner, Option | List):
            inner = inner.inner if isinstance(inner, Option) else inner.item_type
        for member in inner.fields if isinstance(inner, Struct) else ():
            visit(member, f"{path}.{member.name}")

    for field in () if schema is None else schema.fields:
        visit(field, field.name)
    return descriptions
