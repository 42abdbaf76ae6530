"""Descriptors of model types (fields, slots, unions), and the JSON Schema generated from them."""

from __future__ import annotations

import inspect
import types
import typing
from enum import Enum
from functools import cache
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

import msgspec

from odf_engine.identity.did import DatasetId
from odf_engine.identity.multiformats import Multihash
from odf_engine.metadata import model
from odf_engine.metadata.model import Model
from odf_engine.metadata.timestamp import Timestamp

# Format characters of :mod:`struct` for the scalar types in ``Meta``.
_FORMATS: Final = {"u64": "Q", "i64": "q", "u32": "I", "i32": "i", "i16": "h"}
_BITS: Final = {"Q": 64, "q": 63, "I": 32, "i": 31, "h": 15}
_SHORT_UNIONS: Final = ("DataType", "EventTimeSource", "SourceCaching")
MAX_DEPTH: Final = 64
"""Maximum nesting of tables in an encoded block. Only data types and JSON are recursive."""
MAX_TEXT_DEPTH: Final = 2 * MAX_DEPTH + 16
"""Maximum nesting of YAML: sufficient for every value within ``MAX_DEPTH``."""


class IntegerType(msgspec.Struct, frozen=True):
    """An integer; ``format`` is its format character of :mod:`struct`."""

    format: str

    @property
    def high(self) -> int:
        """The largest value."""
        return 2 ** _BITS[self.format] - 1

    @property
    def low(self) -> int:
        """The smallest value."""
        return -self.high - 1 if self.format.islower() else 0


class BoolType(msgspec.Struct, frozen=True):
    """A boolean."""


class EnumType(msgspec.Struct, frozen=True):
    """A member of an enum; ``format`` is the format character of its number."""

    enum: type[Enum]
    format: str


class StringType(msgspec.Struct, frozen=True):
    """Text; with ``is_ref`` a dataset reference, whose ids are written in canonical form."""

    is_ref: bool


class JsonType(msgspec.Struct, frozen=True):
    """A JSON object, stored as text."""


class BytesType(msgspec.Struct, frozen=True):
    """Bytes, or a value (``Multihash``, ``DatasetId``) that is stored as bytes."""

    type: type[bytes] | type[Multihash] | type[DatasetId]


class InstantType(msgspec.Struct, frozen=True):
    """A point in time, stored inline in its table."""


class TableType(msgspec.Struct, frozen=True):
    """A nested table."""

    type: type[model.Model]


class UnionType(msgspec.Struct, frozen=True):
    """One of several tables; the number of the first member is 1."""

    name: str
    members: tuple[type[model.Model], ...]

    @property
    def has_short_form(self) -> bool:
        """Whether YAML accepts the name of a member that needs no fields instead of a mapping (0.38)."""
        return self.name in _SHORT_UNIONS


class VectorType(msgspec.Struct, frozen=True):
    """A list of texts, tables or unions."""

    item: FieldType


FieldType = (
    IntegerType
    | BoolType
    | EnumType
    | StringType
    | JsonType
    | BytesType
    | InstantType
    | TableType
    | UnionType
    | VectorType
)


class FieldDescriptor(msgspec.Struct, frozen=True):
    """Descriptor of a field.

    Attributes:
        name: name of the attribute.
        key: key in YAML, as in ODF 0.34.1.
        newer_key: key in YAML since a later specification that renamed the field.
        slot: first slot in the table; -1 for a field that only exists in text.
        shape: type of the field.
        optional: whether the field may be absent.
        is_newer: whether the later specification added the field, under the old key of another one.
    """

    name: str
    key: str
    newer_key: str
    slot: int
    shape: FieldType
    optional: bool
    is_newer: bool

    @property
    def keys(self) -> tuple[str, ...]:
        """The accepted keys in YAML. A newer field may use the old key of another field."""
        if self.is_newer or self.key == self.newer_key:
            return (self.newer_key,)
        return (self.key, self.newer_key)


class TableDescriptor(msgspec.Struct, frozen=True):
    """Descriptor of a table.

    Attributes:
        type: the model class.
        tag: the value of ``kind`` for a member of a union, otherwise None.
        fields: the fields in order.
        slots: number of slots; a union has two.
        text_fields: fields without a slot, which only exist in the text of definitions.
    """

    type: type[model.Model]
    tag: str | None
    fields: tuple[FieldDescriptor, ...]
    slots: int
    text_fields: tuple[FieldDescriptor, ...] = ()


@cache
def describe_table(kind: type[model.Model]) -> TableDescriptor:
    """Return the descriptor of a table, derived from its declaration."""
    hints = get_type_hints(kind, include_extras=True)
    fields: list[FieldDescriptor] = []
    text_fields: list[FieldDescriptor] = []
    slot = 0
    for name, key in zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True):
        shape, optional = field_type_of(hints[name])
        if name in kind.TEXT_ONLY:
            key = kind.TEXT_ONLY[name]
            text_fields.append(FieldDescriptor(name, key, key, -1, shape, optional, False))
            continue
        newer_key = kind.NEWER_NAMES.get(key) or key
        is_newer = newer_key != key and newer_key in kind.NEWER_NAMES
        fields.append(FieldDescriptor(name, key, newer_key, slot, shape, optional, is_newer))
        slot += 2 if isinstance(shape, UnionType) else 1
    return TableDescriptor(kind, union_tag(kind), tuple(fields), slot, tuple(text_fields))


def field_type_of(hint: Any) -> tuple[FieldType, bool]:
    """Return the field type of a type hint, and whether the value may be None."""
    if get_origin(hint) not in (typing.Union, types.UnionType):
        return _single_field_type(hint), False
    members = tuple(part for part in get_args(hint) if part is not types.NoneType)
    optional = len(members) < len(get_args(hint))
    if len(members) == 1:
        return _single_field_type(members[0]), optional
    return UnionType(_union_names()[members], members), optional


def _single_field_type(hint: Any) -> FieldType:
    wire = None
    if get_origin(hint) is Annotated:
        hint, meta = get_args(hint)
        wire = meta.extra["wire"]
    if wire == "json":
        return JsonType()
    if get_origin(hint) is list:
        item, _ = field_type_of(get_args(hint)[0])
        return VectorType(item)
    if hint is str:
        return StringType(is_ref=wire == "ref")
    if hint is bool:
        return BoolType()
    if hint is int:
        return IntegerType(_FORMATS[wire or ""])
    if hint is Timestamp:
        return InstantType()
    if hint in (bytes, Multihash, DatasetId):
        return BytesType(hint)
    if issubclass(hint, Enum):
        return EnumType(hint, _FORMATS[wire or "i32"])
    if union_tag(hint) is not None:
        return UnionType(_union_names()[(hint,)], (hint,))
    return TableType(hint)


def union_tag(kind: type[msgspec.Struct]) -> str | None:
    """Return the value of ``kind`` for a member of a union, or None for other tables."""
    tag = kind.__struct_config__.tag
    return tag if isinstance(tag, str) else None


def accepted_spellings(name: str) -> tuple[str, ...]:
    """Return the accepted spellings of a kind or an enum member: ``NdJson``, ``ndJson``, ``ndjson``."""
    return tuple(dict.fromkeys((name, name[0].lower() + name[1:], name.lower())))


@cache
def find_union(member: type[model.Model]) -> UnionType:
    """Return the union that a table is a member of.

    Raises:
        TypeError: it is not a member of a union.
    """
    for members, name in _union_names().items():
        if member in members:
            return UnionType(name, members)
    raise TypeError(f"{member.__name__} belongs to no union")


@cache
def _union_names() -> dict[tuple[type[model.Model], ...], str]:
    names: dict[tuple[type[model.Model], ...], str] = {}
    for name, value in vars(model).items():
        if get_origin(value) in (typing.Union, types.UnionType):
            members = get_args(value)
        elif isinstance(value, type) and name != value.__name__:
            members = (value,)  # a union with one member, such as Transform
        else:
            continue
        if all(isinstance(part, type) and issubclass(part, model.Model) for part in members):
            names[members] = name
    return names


def json_depth(value: Any) -> int:
    """Return the nesting depth of JSON, at most ``MAX_DEPTH`` + 1; an object of scalars has depth 1."""
    depth = 0
    level = [value]
    while depth <= MAX_DEPTH:
        level = [item for item in level if isinstance(item, dict | list)]
        if not level:
            break
        depth += 1
        level = [child for item in level for child in (item.values() if isinstance(item, dict) else item)]
    return depth


def required_keys(member: type[model.Model]) -> list[str]:
    """Return the keys of the fields that a table must have."""
    return [field.key for field in describe_table(member).fields if not field.optional]


_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def build_json_schema(kind: Any) -> dict[str, Any]:
    """Return the JSON Schema of the YAML form of ``kind``: a table, a union or an enum of the model.

    Like the reader, it accepts three spellings of kinds and enum members, and both names of renamed fields.
    """
    builder = _Builder()
    shape, _ = field_type_of(kind)
    return {"$schema": _DIALECT, **builder.schema(shape), "$defs": builder.definitions}


def build_manifest_schema(name: str, version: int, content: Any) -> dict[str, Any]:
    """Return the JSON Schema of a manifest with this kind and version."""
    inner = build_json_schema(content)
    definitions = inner.pop("$defs")
    inner.pop("$schema")
    properties = {"kind": {"const": name}, "version": {"const": version}, "content": inner}
    return {"$schema": _DIALECT, **_object(properties, list(properties)), "$defs": definitions}


def _object(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


class _Builder:
    """Builds one definition for each table, union and enum."""

    def __init__(self) -> None:
        self.definitions: dict[str, Any] = {}

    def schema(self, shape: FieldType) -> dict[str, Any]:
        match shape:
            case TableType(kind) if kind is model.ExtraAttributes:
                keys = {"pattern": f"^{model.ExtraAttributes.KEY}$"}
                return {"type": "object", "propertyNames": keys}
            case TableType(kind):
                return self._ref(kind.__name__, lambda: self._table(kind))
            case UnionType(name):
                return self._ref(name, lambda: self._union(shape))
            case EnumType(enum):
                return self._ref(enum.__name__, lambda: _enum(enum))
            case VectorType(item):
                return {"type": "array", "items": self.schema(item)}
            case IntegerType():
                return {"type": "integer", "minimum": shape.low, "maximum": shape.high}
            case BoolType():
                return {"type": "boolean"}
            case JsonType():
                return {"type": "object"}
            case InstantType():
                return {"type": "string", "format": "date-time"}
            case StringType():
                return {"type": "string"}
            case BytesType(kind) if issubclass(kind, bytes):
                return {"type": "string", "contentEncoding": "base64"}
            case BytesType(kind):
                prefix = "did:odf:" if kind is DatasetId else ""
                return {"type": "string", "pattern": f"^{prefix}[fFbBzmuU][A-Za-z0-9+/=_-]+$"}

    def _ref(self, name: str, build: Any) -> dict[str, Any]:
        if name not in self.definitions:
            self.definitions[name] = {}  # first, since its parts may refer to it
            self.definitions[name] = build()
        return {"$ref": f"#/$defs/{name}"}

    def _union(self, union: UnionType) -> dict[str, Any]:
        choices = [self._member(union.name, kind) for kind in union.members]
        if union.has_short_form:
            short = [union_tag(kind) or "" for kind in union.members if not required_keys(kind)]
            choices.append({"enum": [spelling for name in short for spelling in accepted_spellings(name)]})
        return {"oneOf": choices}

    def _member(self, union: str, kind: type[Model]) -> dict[str, Any]:
        return self._ref(f"{union}.{union_tag(kind)}", lambda: self._table(kind))

    def _table(self, kind: type[Model]) -> dict[str, Any]:
        layout = describe_table(kind)
        properties: dict[str, Any] = {}
        required: list[str] = []
        if layout.tag is not None:
            properties["kind"] = {"enum": list(accepted_spellings(layout.tag))}
            required.append("kind")
        for field in (*layout.fields, *layout.text_fields):
            for key in field.keys:
                schema = self._field(field)
                earlier = properties.get(key)
                properties[key] = schema if earlier is None else {"anyOf": [earlier, schema]}
            if not field.optional:
                required.append(field.key)
        table = {"description": inspect.getdoc(kind), **_object(properties, required)}
        if kind.NEEDS_ONE_OF:
            needed = [field for field in layout.fields if field.name in kind.NEEDS_ONE_OF]
            keys = dict.fromkeys(key for field in needed for key in field.keys)
            table["anyOf"] = [{"required": [key]} for key in keys]
        return table

    def _field(self, field: FieldDescriptor) -> dict[str, Any]:
        schema = self.schema(field.shape)
        return {"anyOf": [schema, {"type": "null"}]} if field.optional else schema


def _enum(enum: type[Enum]) -> dict[str, Any]:
    names = [spelling for member in enum for spelling in accepted_spellings(member.name)]
    return {"description": inspect.getdoc(enum), "enum": names}
