"""What the declaration in ``metadata.model`` says about every field, worked out once.

The encoder, the decoder, the YAML reader and writer and the JSON Schema all go by these shapes;
there is no second list of fields anywhere.
"""

from __future__ import annotations

import types
import typing
from enum import Enum
from functools import cache
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

import msgspec

from odf_engine.identity.did import DatasetId
from odf_engine.identity.multiformats import Multihash
from odf_engine.metadata import model
from odf_engine.metadata.timestamp import Timestamp

# struct format characters of the scalars that ``Meta`` may name.
_FORMATS: Final = {"u64": "Q", "i64": "q", "u32": "I", "i32": "i", "i16": "h"}
_BITS: Final = {"Q": 64, "q": 63, "I": 32, "i": 31, "h": 15}

MAX_DEPTH: Final = 64
"""How deep tables may nest in bytes; only data types and JSON nest without end."""

MAX_TEXT_DEPTH: Final = 2 * MAX_DEPTH + 16
"""How deep YAML may nest: enough for any value that ``MAX_DEPTH`` allows."""


class Number(msgspec.Struct, frozen=True):
    """A whole number; ``format`` is its ``struct`` character."""

    format: str

    @property
    def high(self) -> int:
        """The largest value it can hold."""
        return 2 ** _BITS[self.format] - 1

    @property
    def low(self) -> int:
        """The smallest value it can hold."""
        return -self.high - 1 if self.format.islower() else 0


class Flag(msgspec.Struct, frozen=True):
    """A truth value."""


class Choice(msgspec.Struct, frozen=True):
    """One of an enum's members; ``format`` is the ``struct`` character of its number."""

    enum: type[Enum]
    format: str


class Text(msgspec.Struct, frozen=True):
    """Text; with ``is_ref`` a dataset reference, whose ids have one written form."""

    is_ref: bool


class Json(msgspec.Struct, frozen=True):
    """A JSON object that is kept as text."""


class Blob(msgspec.Struct, frozen=True):
    """Bytes, or a value (``Multihash``, ``DatasetId``) that is stored as bytes."""

    type: type[bytes] | type[Multihash] | type[DatasetId]


class Moment(msgspec.Struct, frozen=True):
    """A point in time, stored within its table."""


class Table(msgspec.Struct, frozen=True):
    """A table of its own."""

    type: type[model.Model]


class Union(msgspec.Struct, frozen=True):
    """One of several tables; the first member's number is 1."""

    name: str
    members: tuple[type[model.Model], ...]


class Vector(msgspec.Struct, frozen=True):
    """Any number of items: text, tables or unions."""

    item: Shape


Shape = Number | Flag | Choice | Text | Json | Blob | Moment | Table | Union | Vector


class Field(msgspec.Struct, frozen=True):
    """A field: name of its attribute, key in texts, first slot in the table, shape.

    ``newer_key`` is its key in texts since the specification that renamed it; the field that this
    specification brought along ``is_newer``.
    """

    name: str
    key: str
    newer_key: str
    slot: int
    shape: Shape
    optional: bool
    is_newer: bool

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that texts may use: a newer field has taken over an older one's."""
        if self.is_newer or self.key == self.newer_key:
            return (self.newer_key,)
        return (self.key, self.newer_key)


class Layout(msgspec.Struct, frozen=True):
    """All fields of a table in order; ``slots`` is how many it has (a union takes two).

    ``text_fields`` have no slot: they are there in the text of definitions alone.
    """

    type: type[model.Model]
    tag: str | None
    fields: tuple[Field, ...]
    slots: int
    text_fields: tuple[Field, ...] = ()


@cache
def layout_of(kind: type[model.Model]) -> Layout:
    """The layout of a table, from its declaration."""
    hints = get_type_hints(kind, include_extras=True)
    fields: list[Field] = []
    text_fields: list[Field] = []
    slot = 0
    for name, key in zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True):
        shape, optional = shape_of(hints[name])
        if name in kind.TEXT_ONLY:
            key = kind.TEXT_ONLY[name]
            text_fields.append(Field(name, key, key, -1, shape, optional, False))
            continue
        newer_key = kind.NEWER_NAMES.get(key) or key
        is_newer = newer_key != key and newer_key in kind.NEWER_NAMES
        fields.append(Field(name, key, newer_key, slot, shape, optional, is_newer))
        slot += 2 if isinstance(shape, Union) else 1
    return Layout(kind, tag_of(kind), tuple(fields), slot, tuple(text_fields))


def shape_of(hint: Any) -> tuple[Shape, bool]:
    """The shape that a type hint stands for, and whether it may be None."""
    if get_origin(hint) not in (typing.Union, types.UnionType):
        return _plain_shape(hint), False
    members = tuple(part for part in get_args(hint) if part is not types.NoneType)
    optional = len(members) < len(get_args(hint))
    if len(members) == 1:
        return _plain_shape(members[0]), optional
    return Union(_union_names()[members], members), optional


def _plain_shape(hint: Any) -> Shape:
    wire = None
    if get_origin(hint) is Annotated:
        hint, meta = get_args(hint)
        wire = meta.extra["wire"]
    if wire == "json":
        return Json()
    if get_origin(hint) is list:
        item, _ = shape_of(get_args(hint)[0])
        return Vector(item)
    if hint is str:
        return Text(is_ref=wire == "ref")
    if hint is bool:
        return Flag()
    if hint is int:
        return Number(_FORMATS[wire or ""])
    if hint is Timestamp:
        return Moment()
    if hint in (bytes, Multihash, DatasetId):
        return Blob(hint)
    if issubclass(hint, Enum):
        return Choice(hint, _FORMATS[wire or "i32"])
    if tag_of(hint) is not None:
        return Union(_union_names()[(hint,)], (hint,))
    return Table(hint)


def tag_of(kind: type[msgspec.Struct]) -> str | None:
    """The text that stands for a union's member under ``kind``; None for other tables."""
    tag = kind.__struct_config__.tag
    return tag if isinstance(tag, str) else None


def spellings(name: str) -> tuple[str, ...]:
    """The accepted ways to write a kind or an enum's member: ``NdJson``, ``ndJson``, ``ndjson``."""
    return tuple(dict.fromkeys((name, name[0].lower() + name[1:], name.lower())))


@cache
def union_of(member: type[model.Model]) -> Union:
    """The union that a tagged struct belongs to."""
    for members, name in _union_names().items():
        if member in members:
            return Union(name, members)
    raise TypeError(f"{member.__name__} belongs to no union")


@cache
def _union_names() -> dict[tuple[type[model.Model], ...], str]:
    names: dict[tuple[type[model.Model], ...], str] = {}
    for name, value in vars(model).items():
        if get_origin(value) in (typing.Union, types.UnionType):
            members = get_args(value)
        elif isinstance(value, type) and name != value.__name__:
            members = (value,)  # a union that has one member so far, such as Transform
        else:
            continue
        if all(isinstance(part, type) and issubclass(part, model.Model) for part in members):
            names[members] = name
    return names


def json_depth(value: Any) -> int:
    """How deep JSON nests: 1 for an object of scalars. Looks no deeper than ``MAX_DEPTH`` + 1."""
    depth = 0
    level = [value]
    while depth <= MAX_DEPTH:
        level = [item for item in level if isinstance(item, dict | list)]
        if not level:
            break
        depth += 1
        level = [child for item in level for child in (item.values() if isinstance(item, dict) else item)]
    return depth
