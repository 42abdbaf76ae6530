"""The answers of Flight SQL about the served datasets and the server."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from importlib.metadata import version
from itertools import accumulate
from typing import Any, Final

import pyarrow as pa

from odf_engine.data.schema_enforcement import slice_type
from odf_engine.errors import OdfError
from odf_engine.rows.execution import columns_at, resolve_pin
from odf_engine.rows.projection import dataset_key
from odf_engine.sync.server.flight.clients import Client
from odf_engine.sync.server.flight.messages import Message
from odf_engine.sync.server.flight.queries import CATALOG, SCHEMA, find_served
from odf_engine.workspace.dataset_summary import DatasetEntry

_TABLE: Final = "TABLE"


def _required(name: str, kind: pa.DataType | None = None) -> pa.Field:
    """Return a column without nulls, of texts by default."""
    return pa.field(name, kind or pa.string(), nullable=False)


_NAMES: Final = [pa.field("catalog_name", pa.string()), pa.field("db_schema_name", pa.string())]
_TABLE_FIELDS: Final = [*_NAMES, _required("table_name"), _required("table_type")]
_KEY_FIELDS: Final = [*_NAMES, _required("table_name"), _required("column_name")]
_KEY_FIELDS_END: Final = [_required("key_sequence", pa.int32()), pa.field("key_name", pa.string())]
_FOREIGN_KEYS: Final = pa.schema(
    [
        *(
            pa.field(f"{side}_{field.name}", field.type, field.nullable)
            for side in ("pk", "fk")
            for field in _KEY_FIELDS
        ),
        _required("key_sequence", pa.int32()),
        pa.field("fk_key_name", pa.string()),
        pa.field("pk_key_name", pa.string()),
        _required("update_rule", pa.uint8()),
        _required("delete_rule", pa.uint8()),
    ]
)
_INFO_VALUES: Final = {
    "string_value": pa.string(),
    "bool_value": pa.bool_(),
    "bigint_value": pa.int64(),
    "int32_bitmask": pa.int32(),
    "string_list": pa.list_(pa.string()),
    "int32_to_int32_list_map": pa.map_(pa.int32(), pa.list_(pa.int32())),
}
_INFO_SCHEMA: Final = pa.schema(
    [
        _required("info_name", pa.uint32()),
        _required("value", pa.dense_union([pa.field(name, kind) for name, kind in _INFO_VALUES.items()])),
    ]
)
_SCHEMAS: Final = {
    "CommandGetCatalogs": pa.schema([_required("catalog_name")]),
    "CommandGetDbSchemas": pa.schema([_NAMES[0], _required("db_schema_name")]),
    "CommandGetTableTypes": pa.schema([_required("table_type")]),
    "CommandGetPrimaryKeys": pa.schema([*_KEY_FIELDS, *_KEY_FIELDS_END]),
    "CommandGetExportedKeys": _FOREIGN_KEYS,
    "CommandGetImportedKeys": _FOREIGN_KEYS,
    "CommandGetCrossReference": _FOREIGN_KEYS,
    "CommandGetSqlInfo": _INFO_SCHEMA,
}
_INFO: Final[dict[int, str | bool | int]] = {
    0: "odf",
    2: pa.__version__,
    3: True,  # read-only
    4: True,  # SQL
    5: False,  # Substrait
    8: 0,  # no transactions
    9: True,  # cancellation
    500: False,  # no DDL for catalogs, schemas and tables
    501: False,
    502: False,
    503: 1,  # case-insensitive names
    504: '"',
    505: 1,
}
"""Values of SqlInfo by their numbers."""


def answer_schema(command: Message) -> pa.Schema | None:
    """Return the schema of the answer to a command, or None for unknown commands."""
    if command.name == "CommandGetTables":
        schema = [_required("table_schema", pa.binary())] if command.numbers(5) else []
        return pa.schema([*_TABLE_FIELDS, *schema])
    return _SCHEMAS.get(command.name)


def answer(client: Client, command: Message) -> pa.Table:
    """Return the answer for a client to a command that :func:`answer_schema` knows."""
    schema = answer_schema(command)
    assert schema is not None
    match command.name:
        case "CommandGetSqlInfo":
            return _info(command.numbers(1))
        case "CommandGetCatalogs":
            rows: Iterable[tuple[Any, ...]] = [(CATALOG,)]
        case "CommandGetTableTypes":
            rows = [(_TABLE,)]
        case "CommandGetDbSchemas":
            rows = [(CATALOG, SCHEMA)] if _has_schema(command) else []
        case "CommandGetTables":
            rows = _tables(client, command)
        case "CommandGetPrimaryKeys":
            rows = _primary_keys(client, command)
        case _:
            rows = []
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)


def _has_schema(command: Message) -> bool:
    return command.text(1) in (None, CATALOG) and _is_like(SCHEMA, command.text(2))


def _tables(client: Client, command: Message) -> Iterable[tuple[Any, ...]]:
    types = command.texts(4)
    if not _has_schema(command) or (types and _TABLE not in types):
        return
    for entry in client.datasets():
        if _is_like(str(entry.alias), command.text(3)):
            schema = [_table_schema(entry).serialize().to_pybytes()] if command.numbers(5) else []
            yield CATALOG, SCHEMA, str(entry.alias), _TABLE, *schema


def _table_schema(entry: DatasetEntry) -> pa.Schema:
    """Return the columns of a dataset with the types of a query result; none before its first rows."""
    try:
        columns = columns_at(entry, resolve_pin(entry, None))
    except OdfError:
        return pa.schema([])
    names = entry.dataset.state().vocabulary
    types = {names.offset_column: pa.int64(), names.operation_type_column: pa.int32()}
    return pa.schema(
        [pa.field(field.name, types.get(field.name) or result_type(field.type)) for field in columns]
    )


def result_type(data_type: pa.DataType) -> pa.DataType:
    """Return the type of the values of a column in the result of a query."""
    data_type = slice_type(data_type)
    if pa.types.is_timestamp(data_type):
        return pa.timestamp("us", "UTC")
    if pa.types.is_time(data_type) or pa.types.is_decimal256(data_type):
        return pa.string()
    return data_type


def _primary_keys(client: Client, command: Message) -> Iterable[tuple[Any, ...]]:
    if command.text(1) in (None, CATALOG) and command.text(2) in (None, SCHEMA):
        entry = find_served(client, command.text(3) or "")
        for number, column in enumerate(dataset_key(entry.dataset), start=1):
            yield CATALOG, SCHEMA, str(entry.alias), column, number, None


def _is_like(text: str, pattern: str | None) -> bool:
    """Return whether a text matches a pattern of LIKE; without a pattern, it does.

    Takes time in proportion to the product of the lengths, unlike a regular expression.
    """
    if pattern is None:
        return True
    matches = [True, *[False] * len(text)]  # by the length of the beginning of the text
    for char in pattern:
        if char == "%":
            matches = list(accumulate(matches, operator.or_))
        else:
            matches = [False, *(matches[at] and char in ("_", text[at]) for at in range(len(text)))]
    return matches[-1]


def _info(numbers: list[int]) -> pa.Table:
    known = _INFO | {1: version("odf-workstation")}
    chosen = [number for number in numbers or known if number in known]
    kinds = {str: 0, bool: 1, int: 3}
    values: list[list[Any]] = [[] for _ in _INFO_VALUES]
    types, offsets = [], []
    for number in chosen:
        kind = kinds[type(known[number])]
        types.append(kind)
        offsets.append(len(values[kind]))
        values[kind].append(known[number])
    children = [pa.array(part, kind) for part, kind in zip(values, _INFO_VALUES.values(), strict=True)]
    union = pa.UnionArray.from_dense(
        pa.array(types, pa.int8()), pa.array(offsets, pa.int32()), children, list(_INFO_VALUES)
    )
    return pa.Table.from_arrays([pa.array(chosen, pa.uint32()), union], schema=_INFO_SCHEMA)
