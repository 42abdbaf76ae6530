"""Roots whose columns are declared as ODF schema (RFC-016), and the forms of their own schemas."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from odf_engine.base.config import MetadataConfig
from odf_engine.chain.schema_evolution import declared_schema
from odf_engine.errors import BadData, InvalidManifest, InvalidSchema
from odf_engine.metadata import model
from odf_engine.metadata.model import DataField, Option
from tests.ingest.pulling import Pulled

SOURCE = """
fetch: {{kind: FilesGlob, path: '*.{ext}'}}
read:
  kind: {reader}
  schema:
    fields:
{fields}
merge: {{kind: Append}}
"""
COLUMNS = """
      - {name: id, type: int64}
      - {name: name, type: {kind: option, inner: string}}
      - {name: at, type: {kind: Option, inner: timestamp}}
      - {name: price, type: {kind: option, inner: {kind: decimal, precision: 18, scale: 4}}}
      - {name: day, type: {kind: option, inner: date}}
      - {name: small, type: {kind: option, inner: uint8}}
      - {name: tags, type: {kind: option, inner: {kind: list, itemType: string}}}
"""
NDJSON = (
    '{"id": 1, "name": "a", "at": "2024-01-01T00:00:00Z", "price": 1.5, "day": "2024-01-01", "small": 255,'
    ' "tags": ["x", "y"]}\n'
)


def source(reader: str, columns: str = COLUMNS, ext: str = "json") -> str:
    return SOURCE.format(reader=reader, fields=columns.strip("\n"), ext=ext)


def set_forms(pulled: Pulled, data_schema: Any = "arrow", system_columns: Any = "specification") -> None:
    config = pulled.workspace.config
    forms = MetadataConfig(data_schema, system_columns)
    pulled.workspace.__dict__["config"] = replace(config, metadata=forms)


def types(pulled: Pulled) -> dict[str, str]:
    schema = declared_schema(pulled.dataset.state())
    assert schema is not None
    return {
        field.name: str(field).removeprefix(f"pyarrow.Field<{field.name}: ").rstrip(">") for field in schema
    }


def test_each_reader_takes_the_columns_of_an_odf_schema(pulled: Pulled) -> None:
    """In the read step, ``schema`` has the columns; a bare type is required."""
    features = '{"type": "Feature", "properties": {"id": 1, "name": "a"}, "geometry": null}'
    table = pa.table({"id": pa.array([1], pa.int32()), "name": ["a"]})
    two = "\n".join(COLUMNS.strip("\n").splitlines()[:2])
    pq.write_table(table, pulled.workspace.folder / "Parquet.data")
    for reader, text in {
        "Csv": "1,a\n",
        "NdJson": '{"id": 1, "name": "a"}\n',
        "Json": '[{"id": 1, "name": "a"}]',
        "NdGeoJson": features + "\n",
        "GeoJson": '{"type": "FeatureCollection", "features": [' + features + "]}",
        "Parquet": None,
    }.items():  # fmt: skip
        if text is not None:
            pulled.write(f"{reader}.data", text)
        pulled.add(source(reader, two).replace("*.json", f"{reader}.data"), name=reader.lower())
        assert pulled.dataset.state().polling_source.read.odf_schema is not None  # type: ignore[union-attr]
        pulled.pull()
        assert pulled.table().select(["id", "name"]).to_pylist() == [{"id": 1, "name": "a"}]
        assert types(pulled)["id"] == "int64 not null"


def test_odf_types_are_stored_and_required_values_enforced(pulled: Pulled) -> None:
    """A missing value of a required column is an error with its row and column."""
    set_forms(pulled, "odf", "kamu")
    pulled.write("1.json", NDJSON)
    pulled.add(source("NdJson"))
    pulled.pull()
    time = model.TimestampType(model.TimeUnit.Millisecond, "UTC")
    assert pulled.dataset.state().odf_schema == model.DataSchema([
        DataField("offset", model.Int64()), DataField("op", model.Int32()),
        DataField("system_time", time), DataField("event_time", time),
        DataField("id", model.Int64()), DataField("name", Option(model.String())),
        DataField("at", Option(time)), DataField("price", Option(model.Decimal(18, 4))),
        DataField("day", Option(model.Date())), DataField("small", Option(model.UInt8())),
        DataField("tags", Option(model.List(Option(model.String())))),
    ])  # fmt: skip
    assert types(pulled)["event_time"] == "timestamp[ms, tz=UTC] not null"
    file = pq.ParquetFile(pulled.dataset.slice_path(pulled.dataset.slices()[0]))
    assert [file.schema.column(at).physical_type for at in range(2)] == ["INT64", "INT32"]
    for text, problem in (
        (NDJSON.replace('"id": 1', '"id": null'), ("line 1", 'column "id"')),
        (NDJSON + NDJSON.replace('"id": 1, ', ""), ("line 2", 'column "id"')),
        (NDJSON.replace("255", "256"), ("line 1", "small")),
    ):
        pulled.write("2.json", text)
        pulled.fails(BadData, *problem)
    # The dataset keeps its form and types, whatever new ones have.
    set_forms(pulled)
    pulled.write("2.json", NDJSON.replace('"id": 1', '"id": 2'))
    pulled.pull()
    table = pulled.table()
    assert table.column("id").to_pylist() == [1, 2]
    assert table.schema.field("offset").type == pa.int64() and table.schema.field("op").type == pa.int32()
    assert [row.kind for row in pulled.dataset.list_blocks(9)].count("SetDataSchema") == 1


def test_comments_become_descriptions(pulled: Pulled) -> None:
    """Only of an ODF schema, and of columns as they are read."""
    read = "read: {kind: NdJson, schema: [\"id INT COMMENT 'number'\", x STRING]}\nmerge: {kind: Append}\n"
    read += "fetch: {kind: FilesGlob, path: '*.json'}\n"
    query = "preprocess: {kind: Sql, engine: spark, query: SELECT 2 * id AS id FROM input}"
    pulled.write("1.json", '{"id": 1, "x": "a"}\n')
    described = model.ExtraAttributes({"opendatafabric.org/description": "number"})
    set_forms(pulled, "odf")
    for name, text, extra in (("plain", read, described), ("doubled", read + query, None)):
        pulled.add(text, name=name)
        pulled.pull()
        schema = pulled.dataset.state().odf_schema
        assert schema is not None and schema.fields[4] == DataField("id", Option(model.Int32()), extra)


def test_unsupported_odf_schema_is_rejected(pulled: Pulled) -> None:
    for columns, message in (
        (
            "      - {name: a, type: {kind: option, inner: {kind: option, inner: int8}}}",
            "Option of an Option",
        ),
        ("      - {name: a, type: int8}\n      - {name: A, type: int8}", "'A' is defined twice"),
        ("      - {name: a, type: {kind: timestamp, unit: nanosecond}}", "at most 6 digits"),
        ("      - {name: offset, type: int8}", "system column"),
        ("      - {name: a, type: {kind: map, keyType: string, valueType: int8}}", "column 'a'"),
    ):
        with pytest.raises((InvalidManifest, InvalidSchema), match=message):
            pulled.add(source("NdJson", columns))
