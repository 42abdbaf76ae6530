"""Schemas and statistics of Delta Lake."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import msgspec

from odf_engine.base.arrow import pa, types
from odf_engine.tables.table_files import MAX_TEXT, TableFile, truncate_upper
from odf_engine.tables.table_types import is_list, type_names, unsupported_type


def delta_schema(schema: pa.Schema) -> str:
    """Return the schema of a table as text. All columns are nullable, as older slices may lack them.

    Raises:
        Unsupported: Delta Lake does not have the type of a column.
    """
    fields = [_delta_field(field, field.name) for field in schema]
    return msgspec.json.encode({"type": "struct", "fields": fields}).decode()


def _delta_field(field: pa.Field, path: str) -> dict[str, Any]:
    return {"name": field.name, "type": _delta_type(field.type, path), "nullable": True, "metadata": {}}


def _delta_type(data_type: pa.DataType, path: str) -> Any:
    names = type_names(data_type)
    if names is not None and names.delta is not None:
        return names.delta
    if types.is_map(data_type):
        key, value = data_type.key_type, data_type.item_type
        return {
            "type": "map",
            "keyType": _delta_type(key, f"{path}.key"),
            "valueType": _delta_type(value, f"{path}.value"),
            "valueContainsNull": True,
        }
    if types.is_struct(data_type):
        return {"type": "struct", "fields": [_delta_field(part, f"{path}.{part.name}") for part in data_type]}
    if is_list(data_type):
        item = _delta_type(data_type.value_type, f"{path}.element")
        return {"type": "array", "elementType": item, "containsNull": True}
    raise unsupported_type(path, data_type, "Delta Lake")


def delta_statistics(file: TableFile) -> str:
    """Return the statistics of a data file as text.

    Decimals, booleans and binaries have no bounds: a decimal in JSON may lose digits, and the others are not
    part of the format.
    """
    minima: dict[str, Any] = {}
    maxima: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for name, column in file.bounds.items():
        if column.nulls is not None:
            nulls[name] = column.nulls
        smallest, largest = _as_json(column.min), _as_json(column.max)
        if isinstance(column.min, str) and isinstance(column.max, str):
            smallest, largest = column.min[:MAX_TEXT], truncate_upper(column.max)
        if smallest is not None and largest is not None:
            minima[name], maxima[name] = smallest, largest
    statistics = {"numRecords": file.rows, "minValues": minima, "maxValues": maxima, "nullCount": nulls}
    return msgspec.json.encode(statistics).decode()


def _as_json(value: Any) -> Any:
    """Return a bound in the form of JSON, or None if there is no such form."""
    match value:
        case bool():
            return None
        case float():
            return None  # readers order NaN after all numbers, and bounds leave it out
        case int() | str():
            return value
        case datetime():
            moment = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
            return moment.isoformat(timespec="microseconds") + ("" if value.tzinfo is None else "Z")
        case date():
            return value.isoformat()
        case _:
            return None
