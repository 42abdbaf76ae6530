"""JSON Schema (2020-12) of the text forms, from the declaration of the model."""

from __future__ import annotations

import inspect
from enum import Enum
from typing import Any, Final

from odf_engine.identity.did import DatasetId
from odf_engine.metadata.model import Model
from odf_engine.metadata.wire import (
    Blob,
    Choice,
    Field,
    Flag,
    Json,
    Moment,
    Number,
    Shape,
    Table,
    Text,
    Union,
    Vector,
    layout_of,
    shape_of,
    spellings,
    tag_of,
)

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def json_schema(kind: Any) -> dict[str, Any]:
    """The schema of what may be written for ``kind``: a table, a union or an enum of the model.

    Kinds and members of enums are accepted in their three spellings, and renamed fields under both
    names, as the reader does.
    """
    builder = _Builder()
    shape, _ = shape_of(kind)
    return {"$schema": _DIALECT, **builder.schema(shape), "$defs": builder.definitions}


def manifest_schema(name: str, version: int, content: Any) -> dict[str, Any]:
    """The schema of a manifest, such as ``DatasetSnapshot`` version 1, around its content."""
    inner = json_schema(content)
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
    """Gathers one definition for each table, union and enum that is met."""

    def __init__(self) -> None:
        self.definitions: dict[str, Any] = {}

    def schema(self, shape: Shape) -> dict[str, Any]:
        match shape:
            case Table(kind):
                return self._ref(kind.__name__, lambda: self._table(kind))
            case Union(name, members):
                return self._ref(name, lambda: {"oneOf": [self._member(name, kind) for kind in members]})
            case Choice(enum):
                return self._ref(enum.__name__, lambda: _enum(enum))
            case Vector(item):
                return {"type": "array", "items": self.schema(item)}
            case Number():
                return {"type": "integer", "minimum": shape.low, "maximum": shape.high}
            case Flag():
                return {"type": "boolean"}
            case Json():
                return {"type": "object"}
            case Moment():
                return {"type": "string", "format": "date-time"}
            case Text():
                return {"type": "string"}
            case Blob(kind) if issubclass(kind, bytes):
                return {"type": "string", "contentEncoding": "base64"}
            case Blob(kind):
                prefix = "did:odf:" if kind is DatasetId else ""
                return {"type": "string", "pattern": f"^{prefix}[fFbBzmuU][A-Za-z0-9+/=_-]+$"}

    def _ref(self, name: str, build: Any) -> dict[str, Any]:
        if name not in self.definitions:
            self.definitions[name] = {}  # before its parts, which may lead back to it
            self.definitions[name] = build()
        return {"$ref": f"#/$defs/{name}"}

    def _member(self, union: str, kind: type[Model]) -> dict[str, Any]:
        return self._ref(f"{union}.{tag_of(kind)}", lambda: self._table(kind))

    def _table(self, kind: type[Model]) -> dict[str, Any]:
        layout = layout_of(kind)
        properties: dict[str, Any] = {}
        required: list[str] = []
        if layout.tag is not None:
            properties["kind"] = {"enum": list(spellings(layout.tag))}
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

    def _field(self, field: Field) -> dict[str, Any]:
        schema = self.schema(field.shape)
        return {"anyOf": [schema, {"type": "null"}]} if field.optional else schema


def _enum(enum: type[Enum]) -> dict[str, Any]:
    names = [spelling for member in enum for spelling in spellings(member.name)]
    return {"description": inspect.getdoc(enum), "enum": names}
