"""Schemas and bounds of Apache Iceberg."""

from __future__ import annotations

import math
import struct
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any, Final

from odf_engine.base.arrow import pa, types
from odf_engine.tables.table_files import MAX_TEXT, ColumnBounds, truncate_upper
from odf_engine.tables.table_types import is_list, type_names, unsupported_type

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EXACT: Final = Context(prec=76)  # more digits than any value has
_FORMATS: Final = {"int": "<i", "date": "<i", "long": "<q", "float": "<f", "double": "<d"}


class IcebergSchemas:
    """The schemas of a table, oldest first. A column has the same id in all of them.

    Attributes:
        schemas: the schemas in the form of JSON.
        last_id: the largest id of a column.
    """

    def __init__(self) -> None:
        self.schemas: list[dict[str, Any]] = []
        self.last_id = 0
        self._ids: dict[tuple[str, ...], int] = {}

    def add(self, schema: pa.Schema) -> None:
        """Add a schema. All columns are optional, as older slices may lack them.

        Raises:
            Unsupported: Iceberg does not have the type of a column.
        """
        fields = [self._field(field, (field.name,)) for field in schema]
        self.schemas.append({"type": "struct", "schema-id": len(self.schemas), "fields": fields})

    def name_mapping(self) -> list[dict[str, Any]]:
        """Return the ids of the columns by name: the slices have no ids."""
        fields = {field["id"]: field for schema in self.schemas for field in schema["fields"]}
        return [_mapping(field["id"], field["name"], field["type"]) for field in fields.values()]

    def _id(self, path: tuple[str, ...]) -> int:
        if path not in self._ids:
            self.last_id += 1
            self._ids[path] = self.last_id
        return self._ids[path]

    def _field(self, field: pa.Field, path: tuple[str, ...]) -> dict[str, Any]:
        number = self._id(path)
        return {"id": number, "name": field.name, "required": False, "type": self._type(field.type, path)}

    def _type(self, data_type: pa.DataType, path: tuple[str, ...]) -> Any:
        if (names := type_names(data_type)) is not None:
            return names.iceberg
        if types.is_map(data_type):
            key, value = (*path, "key"), (*path, "value")
            return {
                "type": "map",
                "key-id": self._id(key),
                "key": self._type(data_type.key_type, key),
                "value-id": self._id(value),
                "value": self._type(data_type.item_type, value),
                "value-required": False,
            }
        if types.is_struct(data_type):
            return {"type": "struct", "fields": [self._field(part, (*path, part.name)) for part in data_type]}
        if is_list(data_type):
            item = (*path, "element")
            number, element = self._id(item), self._type(data_type.value_type, item)
            return {"type": "list", "element-id": number, "element": element, "element-required": False}
        raise unsupported_type(".".join(path), data_type, "Iceberg")


def _mapping(number: int, name: str, data_type: Any) -> dict[str, Any]:
    mapping: dict[str, Any] = {"field-id": number, "names": [name]}
    match data_type:
        case {"type": "struct"}:
            mapping["fields"] = [
                _mapping(part["id"], part["name"], part["type"]) for part in data_type["fields"]
            ]
        case {"type": "list"}:
            mapping["fields"] = [_mapping(data_type["element-id"], "element", data_type["element"])]
        case {"type": "map"}:
            parts = [_mapping(data_type[f"{part}-id"], part, data_type[part]) for part in ("key", "value")]
            mapping["fields"] = parts
    return mapping


def encode_bounds(column: ColumnBounds, data_type: Any) -> tuple[bytes, bytes] | None:
    """Return the bounds of a column in the binary form of Iceberg, or None if they have no such form."""
    smallest, largest = column.min, column.max
    if data_type == "string" and isinstance(smallest, str) and isinstance(largest, str):
        upper = truncate_upper(largest)
        return None if upper is None else (smallest[:MAX_TEXT].encode(), upper.encode())
    try:
        lower, upper = _encode_value(smallest, data_type), _encode_value(largest, data_type)
    except (struct.error, OverflowError):  # a slice with another type
        return None
    return None if lower is None or upper is None else (lower, upper)


def _encode_value(value: Any, data_type: Any) -> bytes | None:
    match value:
        case bool():
            return bytes([value]) if data_type == "boolean" else None
        case int() if data_type in ("int", "long"):
            return struct.pack(_FORMATS[data_type], value)
        case float() if data_type in ("float", "double") and not math.isnan(value):
            return struct.pack(_FORMATS[data_type], value)
        case datetime() if data_type in ("timestamp", "timestamptz"):
            moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
            return struct.pack("<q", (moment - _EPOCH) // timedelta(microseconds=1))
        case date() if data_type == "date":
            return struct.pack("<i", (value - _EPOCH.date()).days)
        case Decimal() if str(data_type).startswith("decimal"):
            unscaled = int(value.scaleb(int(data_type[:-1].split(", ")[1]), _EXACT))
            return unscaled.to_bytes((unscaled.bit_length() + 8) // 8, "big", signed=True)
        case _:
            return None
