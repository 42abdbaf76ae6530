"""The exported JSON Schema accepts what the reader accepts."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from odf_engine.metadata import model
from odf_engine.metadata.descriptors import build_json_schema, build_manifest_schema

EXAMPLE: dict[str, Any] = {
    "kind": "DatasetSnapshot",
    "version": 1,
    "content": {
        "name": "airports",
        "kind": "root",
        "metadata": [
            {
                "kind": "setPollingSource",
                "fetch": {"kind": "filesGlob", "path": "*.csv", "order": "byname", "cache": None},
                "read": {"kind": "csv", "ddlSchema": ["a INT"], "schema": {"fields": []}, "header": True},
                "merge": {"kind": "Snapshot", "primaryKey": ["a"]},
            },
            {"kind": "SetDataSchema", "schema": "AQ=="},
            {
                "kind": "SetDataSchema",
                "schema": {
                    "fields": [
                        {"name": "a", "type": {"kind": "List", "itemType": {"kind": "Int8"}}},
                        {"name": "b", "type": "uInt64", "extra": {"a.b/c": 1}},
                    ]
                },
            },
            {"kind": "Seed", "datasetId": "did:odf:fed01", "datasetKind": "Derivative"},
            {"kind": "AddData", "prevOffset": 2**64 - 1, "extra": {"a.b/x": [1]}},
        ],
    },
}


def valid(schema: dict[str, Any], value: Any, root: dict[str, Any]) -> bool:
    """The part of JSON Schema that the export uses."""
    types = {
        "object": dict, "array": list, "string": str, "integer": int, "boolean": bool, "null": type(None),
    }  # fmt: skip
    for word, rule in schema.items():
        match word:
            case "$ref":
                name = rule.removeprefix("#/$defs/")
                good = valid(root["$defs"][name], value, root)
            case "type":
                good = isinstance(value, types[rule]) and (rule == "boolean" or not isinstance(value, bool))
            case "enum":
                good = value in rule
            case "const":
                good = value == rule
            case "anyOf":
                good = any(valid(part, value, root) for part in rule)
            case "oneOf":
                good = sum(valid(part, value, root) for part in rule) == 1
            case "items":
                good = all(valid(rule, item, root) for item in value)
            case "properties":
                good = all(valid(rule[key], item, root) for key, item in value.items() if key in rule)
            case "additionalProperties":
                good = set(value) <= set(schema["properties"])
            case "required":
                good = set(rule) <= set(value)
            case "propertyNames":
                good = all(valid(rule, key, root) for key in value)
            case "minimum":
                good = value >= rule
            case "maximum":
                good = value <= rule
            case "pattern":
                good = re.search(rule, value) is not None
            case "$schema" | "$defs" | "description" | "format" | "contentEncoding":
                good = True
            case _:
                raise AssertionError(f"unexpected word {word}")
        if not good:
            return False
    return True


def test_an_example_is_valid():
    schema = build_manifest_schema("DatasetSnapshot", 1, model.DatasetSnapshot)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert valid(schema, EXAMPLE, schema)
    assert json.loads(json.dumps(schema)) == schema


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("version",), 2),
        (("content", "kind"), "rOOT"),
        (("content", "extra"), 1),
        (("content", "metadata", 0, "kind"), "SetPolling"),
        (("content", "metadata", 0, "fetch", "path"), None),
        (("content", "metadata", 0, "read", "header"), "yes"),
        (("content", "metadata", 0, "merge"), {"kind": "Snapshot"}),
        (("content", "metadata", 1), {"kind": "SetDataSchema"}),
        (("content", "metadata", 2, "schema", "fields", 0, "type", "itemType"), {"kind": "Int9"}),
        (("content", "metadata", 2, "schema", "fields", 1, "type"), "decimal"),
        (("content", "metadata", 2, "schema", "fields", 1, "type"), "UINT64"),
        (("content", "metadata", 2, "schema", "fields", 1, "extra"), {"c": 1}),
        (("content", "metadata", 3, "datasetId"), "fed01"),
        (("content", "metadata", 4, "prevOffset"), 2**64),
        (("content", "metadata", 4, "prevOffset"), -1),
    ],
)
def test_mistakes_are_not_valid(path: tuple[str | int, ...], value: Any):
    schema = build_manifest_schema("DatasetSnapshot", 1, model.DatasetSnapshot)
    example: Any = json.loads(json.dumps(EXAMPLE))
    place = example
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    assert not valid(schema, example, schema)


def test_every_table_has_a_description():
    schema = build_json_schema(model.MetadataBlock)
    assert schema["$ref"] == "#/$defs/MetadataBlock"
    tables = {name: part for name, part in schema["$defs"].items() if "properties" in part}
    assert {"MetadataEvent.AddData", "ReadStep.Csv", "DataType.Struct", "Checkpoint"} <= set(tables)
    assert all(part["description"] for part in tables.values())
