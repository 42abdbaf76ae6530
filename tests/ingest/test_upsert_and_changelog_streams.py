"""Polled and pushed streams of upserts and changes. See test_merge_rows for the rows that they write."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odf_engine.data.changelog import Op
from odf_engine.derive.provenance.root_origins import root_origin
from odf_engine.derive.verify.integrity import verify
from odf_engine.errors import BadData, InvalidManifest, InvalidQuery, InvalidSchema
from odf_engine.ingest.push_source import PushOptions, push
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.metadata.yaml import read_manifests
from odf_engine.rows.projection import primary_key
from odf_engine.workspace.workspace import Workspace
from tests.ingest.pulling import Pulled
from tests.ingest.recorder import Recorder

UPSERT = "merge: {kind: UpsertStream, primaryKey: [year, city]}"
A, R, F, T = (op.code for op in Op)
DECLARED = f"""
fetch: {{kind: FilesGlob, path: "csv/*", order: ByName}}
read:
  kind: Csv
  header: true
  schema: [op STRING, year INT, city STRING, population BIGINT NOT NULL]
{UPSERT}
"""
INFERRED = f"""
fetch: {{kind: FilesGlob, path: "json/*", order: ByName}}
read: {{kind: NdJson}}
{UPSERT}
"""


def test_polled_upserts_insert_update_and_retract_by_key(pulled: Pulled) -> None:
    pulled.write("csv/1.csv", "op,year,city,population\n,2020,van,1\n+A,2020,sea,2\n0,2020,kyiv,3\n")
    pulled.write("csv/2.csv", "op,year,city,population\n 3 ,2020,van,9\n-r,2020,sea,0\n-R,2020,x,0\n")
    pulled.write("json/1.json", '{"year": 2020, "city": "van", "population": 1}\n')
    pulled.write("json/2.json", '{"year": 2020, "city": "van", "op": 1}\n{"year": 2020, "city": "sea"}\n')
    pulled.add(DECLARED)
    pulled.pull()
    rows = pulled.rows("op", "city", "population")
    assert [(Op(op).code, city, number) for op, city, number in rows] == [
        (A, "kyiv", 3), (A, "sea", 2), (A, "van", 1), (R, "sea", 2), (F, "van", 1), (T, "van", 9),
    ]  # fmt: skip
    assert primary_key(pulled.dataset.state()) == ["year", "city"]
    state = pulled.state_after(pulled.dataset.state().head, ["year", "city"])
    assert [(row["city"], row["population"]) for row in state.to_pylist()] == [("kyiv", 3), ("van", 9)]
    assert verify(pulled.dataset, Recorder()).valid
    origin = root_origin(pulled.dataset, [(5, 5)], Recorder())
    (source,) = origin.sources
    assert "inserted or updated by year, city" in str(source)
    assert origin.superseded == [(2, 2)]
    # A file without a change commits the state of the source only. An invalid file commits nothing.
    pulled.write("csv/3.csv", "op,year,city,population\n+A,2020,van,9\n")
    assert pulled.pull().records == 0
    pulled.write("csv/4.csv", "op,year,city,population\n+A,2020,van,9\nupdate,2020,van,8\n+A,2020,,8\n")
    pulled.fails(BadData, "2 invalid rows", "row 2 ", "column op", "'update'", "row 3 ", "key is null")

    pulled.add(INFERRED, name="inferred")
    pulled.pull()
    rows = pulled.rows("op", "city", "population")
    assert [(Op(op).code, city, number) for op, city, number in rows] == [
        (A, "van", 1), (A, "sea", None), (R, "van", 1),
    ]  # fmt: skip
    query = "SELECT year, city, max(op) AS op, max(population) AS population FROM input GROUP BY year, city"
    grouped = DECLARED + f"preprocess: {{kind: Sql, engine: spark, query: '{query}'}}\n"
    pulled.add(grouped, name="grouped")
    pulled.fails(InvalidQuery, "order of the operations")
    pulled.add(grouped.replace("max(op) AS op, ", ""), name="unordered")
    with pytest.raises(BadData, match=r"row . .*key is null"):
        pulled.pull()
    assert pulled.rows("city", "population")[3:] == [("sea", 2), ("sea", 0), ("van", 1), ("van", 9), ("x", 0)]


SOURCE = """
kind: DatasetSnapshot
version: 1
content:
  name: {name}
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: default
      read: {{kind: NdJson{schema}}}
      merge: {{kind: {merge}, primaryKey: [path]}}
"""
COLUMNS = ', schema: ["op INT", "path STRING NOT NULL", "ref STRING NOT NULL"]'


def define(pulled: Pulled, name: str, merge: str, schema: str = COLUMNS) -> None:
    text = SOURCE.format(name=name, merge=merge, schema=schema)
    (pulled.entry,) = pulled.workspace.add(read_manifests(text, "test.yaml"))


def row(op: int | str, path: str, ref: str) -> dict[str, Any]:
    return {"op": op, "path": path, "ref": ref}


def push_rows(pulled: Pulled, *rows: dict[str, Any] | pa.Table) -> int:
    path = pulled.write(
        "rows.ndjson", "".join(json.dumps(row) + "\n" for row in rows if isinstance(row, dict))
    )
    if isinstance(rows[0], pa.Table):
        path = path.with_suffix(".parquet")
        pq.write_table(rows[0], path)
    before = Timestamp.parse("2024-06-01T00:00:00Z")
    options = PushOptions(event_time=before)
    done = push(pulled.workspace, pulled.entry, pulled.runtime, Recorder(), [path], options)
    return done.update.records


def operations(pulled: Pulled) -> list[tuple[str, str, str]]:
    return [(Op(op).code, path, ref) for op, path, ref in pulled.rows("op", "path", "ref")]


def test_pushed_changelog_and_upsert_streams_are_merged_by_key(pulled: Pulled) -> None:
    define(pulled, "files", "ChangelogStream")
    assert push_rows(pulled, row(0, "b", "1"), row(0, "a", "1")) == 2
    changes = pa.table(
        {"op": pa.array([2, 3, 1], pa.uint8()), "path": ["b", "b", "b"], "ref": ["1", "2", "2"]}
    )
    assert push_rows(pulled, changes) == 3
    assert operations(pulled) == [
        (A, "a", "1"), (A, "b", "1"), (F, "b", "1"), (T, "b", "2"), (R, "b", "2"),
    ]  # fmt: skip
    for bad, message in (
        ([row(4, "c", "1")], "column op: invalid operation '4'"),
        ([{"path": "c", "ref": "1"}], "requires the column 'op'"),
        ([row(1, "b", "2")], "row 1 .*does not exist"),
    ):
        with pytest.raises((BadData, InvalidSchema), match=message):
            push_rows(pulled, *bad)
    assert verify(pulled.dataset, Recorder()).valid

    # Without a declared schema, the operations are codes or numbers. A retraction requires the key only.
    define(pulled, "states", "UpsertStream", "")
    assert push_rows(pulled, row("+A", "b", "1"), row("+A", "a", "1")) == 2
    first = [row("+C", "a", "2"), {"op": "-R", "path": "b"}, {"path": "c", "ref": "1"}]
    assert push_rows(pulled, *first) == 4
    assert push_rows(pulled, *first) == 0
    assert push_rows(pulled, row("0", "a", "1")) == 2
    assert push_rows(pulled, *first) == 2  # The same file is a change after another one.
    assert operations(pulled)[2:] == [
        (F, "a", "1"), (T, "a", "2"), (R, "b", "1"), (A, "c", "1"),
        (F, "a", "2"), (T, "a", "1"), (F, "a", "1"), (T, "a", "2"),
    ]  # fmt: skip


def test_invalid_stream_definitions_are_rejected(workspace: Workspace) -> None:
    for schema, key, message in (
        ('["path STRING"]', "path", "column 'op' is not in the schema"),
        ('["op INT", "path STRING"]', "name", "column 'name' is not in the schema"),
        ('["op INT", "path STRING"]', "", "the primary key of the merge strategy has no column"),
    ):
        text = SOURCE.format(name="data", merge="ChangelogStream", schema=", schema: " + schema)
        with pytest.raises((InvalidManifest, InvalidSchema), match=message):
            workspace.add(read_manifests(text.replace("[path]}", f"[{key}]}}"), "test.yaml"))
