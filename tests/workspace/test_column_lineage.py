"""Columns through a workspace: what chains say of schemas, vocabularies, sources and temporal tables."""

from __future__ import annotations

import shutil

import pyarrow as pa

from odf_engine.base.settings import set_value
from odf_engine.metadata.yaml import read_manifests
from odf_engine.sql.lineage_model import ColumnLineage
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.definitions.column_lineage import (
    ROWS,
    ColumnRef,
    build_column_graph,
    dataset_lineage,
    read_columns,
    source_id,
)
from odf_engine.workspace.workspace import Workspace
from tests.workspace.conftest import Append

ROOT = """
kind: DatasetSnapshot
version: 1
content:
  name: {name}
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: default
      read: {{kind: {read}}}
      merge: {{kind: Append}}
{more}
"""
MADE = """
kind: DatasetSnapshot
version: 1
content:
  name: {name}
  kind: Derivative
  metadata:
    - kind: SetTransform
      inputs: [{inputs}]
      transform:
        kind: Sql
        engine: {engine}
        {tables}
        query: |
          {query}
{more}
"""
VOCAB = """    - kind: SetVocab
      offsetColumn: nr
      eventTimeColumn: day"""
SCHEMA = "NdJson, schema: [event_time TIMESTAMP, city STRING, x INT]"


def root(workspace: Workspace, name: str, read: str = SCHEMA, more: str = "") -> DatasetEntry:
    return workspace.add(read_manifests(ROOT.format(name=name, read=read, more=more), name))[0]


def made(
    workspace: Workspace,
    name: str,
    query: str,
    *inputs: str,
    engine: str = "spark",
    tables: str = "",
    more: str = "",
) -> DatasetEntry:
    listed = ", ".join(f"{{datasetRef: {each}, alias: {each}}}" for each in inputs)
    text = MADE.format(name=name, inputs=listed, engine=engine, tables=tables, query=query, more=more)
    return workspace.add(read_manifests(text, name))[0]


def told(columns: ColumnLineage) -> dict[str, str]:
    marks = {"identity": "", "transformation": "~", "aggregation": "+", "unknown": "?"}
    return {
        name: " ".join(f"{marks[each.how]}{each.input}.{each.column}" for each in value)
        for name, value in columns.outputs.items()
    }


def rows(columns: ColumnLineage) -> set[str]:
    return {f"{row.how} {row.input}.{row.column}" for row in columns.rows}


def test_lineage_is_known_before_there_is_data(workspace: Workspace) -> None:
    root(workspace, "a")
    made(workspace, "b", "SELECT *, x + 1 AS y FROM a WHERE city <> ''", "a")
    last = made(workspace, "c", "SELECT event_time, sum(y) AS s FROM b GROUP BY event_time", "b")
    # `event_time` comes where the chain would have it, offset and system_time are made anew.
    assert told(dataset_lineage(workspace, workspace.resolve("b"))) == {
        "offset": "", "op": "a.op", "system_time": "", "event_time": "a.event_time", "city": "a.city",
        "x": "a.x", "y": "~a.x",
    }  # fmt: skip
    found = dataset_lineage(workspace, last)
    assert told(found) == {
        "offset": "",
        "op": "~b.op",
        "system_time": "",
        "event_time": "b.event_time",
        "s": "+b.y",
    }
    assert rows(found) == {"group_by b.event_time"}


def test_column_graph_reaches_all_upstream_and_downstream_columns(workspace: Workspace) -> None:
    first = root(workspace, "a")
    made(workspace, "b", "SELECT *, x + 1 AS y FROM a WHERE city <> ''", "a")
    last = made(workspace, "c", "SELECT event_time, sum(y) AS s FROM b GROUP BY event_time", "b")
    root(workspace, "aside")
    graph = build_column_graph(workspace, [last.id])
    assert {dataset.name for dataset in graph.datasets.values()} == {"a", "b", "c"}
    reached = graph.upstream(ColumnRef(str(last.id), "s"))
    assert {(place.column, reach.how, reach.steps) for place, reach in reached.items()} == {
        ("y", "aggregation", 1), ("x", "aggregation", 2), ("x", "aggregation", 3)
    }  # fmt: skip
    assert ColumnRef(source_id(str(first.id)), "x") in reached
    # City has no part in a value, and yet decides which rows there are.
    down = graph.downstream(ColumnRef(str(first.id), "city"))
    assert {(place.column, reach.how) for place, reach in down.items()} == {
        ("city", "identity"),
        (ROWS, "filter"),
    }
    assert {graph.datasets[place.dataset].name for place in down} == {"b"}


def test_lineage_uses_vocabulary_and_schema_of_the_chain(workspace: Workspace, append: Append) -> None:
    source = root(workspace, "a", "NdJson, schema: [day TIMESTAMP, v INT]", VOCAB)
    table = pa.table({"day": pa.array([0], pa.timestamp("ms", "UTC")), "v": [1], "Late R": ["x"]})
    append(source.dataset, table)
    star = made(workspace, "star", "SELECT * FROM a", "a", more=VOCAB)
    assert told(dataset_lineage(workspace, star)) == {
        "nr": "", "op": "a.op", "system_time": "", "day": "a.day", "v": "a.v", "Late R": "a.Late R"
    }  # fmt: skip
    own = made(workspace, "own", "SELECT day AS event_time, nr AS number, op * 1 AS how FROM a", "a")
    assert told(dataset_lineage(workspace, own)) | {"event_time": ""} == {
        "offset": "", "op": "a.op", "system_time": "", "event_time": "", "number": "a.nr", "how": "~a.op"
    }  # fmt: skip
    # `nr` is no offset where the dataset calls that otherwise, but what merely comes through is dropped.
    other = made(
        workspace, "other", "SELECT day AS event_time, `late r` || v AS z, * EXCEPT (day) FROM a", "a"
    )
    assert told(dataset_lineage(workspace, other)) == {
        "offset": "", "op": "a.op", "system_time": "", "event_time": "a.day", "z": "~a.Late R ~a.v",
        "v": "a.v", "Late R": "a.Late R",
    }  # fmt: skip


def test_temporal_join_keys_and_times_decide_about_rows(workspace: Workspace) -> None:
    root(workspace, "trades")
    root(workspace, "rates", "NdJson, schema: [day TIMESTAMP, city STRING, x INT]", VOCAB)
    query = (
        "SELECT t.event_time, t.x * r.x AS cost FROM trades AS t "
        "JOIN rates FOR SYSTEM_TIME AS OF t.event_time AS r ON t.city = r.city"
    )
    tables = "temporalTables: [{name: rates, primaryKey: [city]}]"
    with_step = "WITH p AS (SELECT day AS event_time, city, x FROM rates) " + query.replace("rates", "p")
    for name, text in {"rates": query, "p": with_step}.items():
        declared = tables.replace("rates", name)
        entry = made(workspace, f"priced-{name}", text, "trades", "rates", tables=declared)
        found = dataset_lineage(workspace, entry)
        assert told(found)["cost"] == "~trades.x ~rates.x"
        assert rows(found) == {
            "join trades.city", "join rates.city", "join trades.event_time", "join rates.day"
        }  # fmt: skip


def test_root_lineage_starts_at_its_source_columns(workspace: Workspace, append: Append) -> None:
    plain = root(workspace, "plain")
    assert told(dataset_lineage(workspace, plain))["city"] == "input.city"
    query = """      preprocess:
        kind: Sql
        engine: spark
        queries:
          - alias: dated
            query: SELECT at AS event_time, * EXCEPT (at) FROM input WHERE n > 0
          - query: SELECT event_time, upper(name) AS city, n AS x FROM dated"""
    known = root(workspace, "known", "NdJson, schema: [at TIMESTAMP, name STRING, n INT]", query)
    found = dataset_lineage(workspace, known)
    assert told(found) == {
        "offset": "", "op": "", "system_time": "", "event_time": "input.at", "city": "~input.name",
        "x": "input.n",
    }  # fmt: skip
    assert rows(found) == {"filter input.n"}
    keyed = "Ledger, primaryKey: [City]"
    text = ROOT.format(name="keyed", read=SCHEMA, more="").replace("Append", keyed)
    ledger = workspace.add(read_manifests(text.replace("city", "city STRING, op"), "keyed"))[0]
    assert rows(dataset_lineage(workspace, ledger)) == {"filter input.city"}
    assert told(dataset_lineage(workspace, ledger))["op"] == "input.op"
    # What has no schema has the columns that are asked of it.
    star = query.replace("SELECT event_time, upper(name) AS city, n AS x", "SELECT *, 1 AS one")
    silent = root(workspace, "silent", "Parquet", star)
    assert told(dataset_lineage(workspace, silent))["*"] == "?input.*"
    append(
        silent.dataset,
        pa.table({"event_time": pa.array([0], pa.timestamp("ms")), "q": ["x"], "one": [1]}),
    )
    assert told(dataset_lineage(workspace, silent)) == {
        "offset": "", "op": "", "system_time": "", "event_time": "input.at", "q": "input.q", "one": ""
    }  # fmt: skip


def test_missing_input_keeps_its_columns_in_the_lineage(workspace: Workspace) -> None:
    source = root(workspace, "a")
    last = made(workspace, "b", "SELECT event_time, X AS y FROM a", "a")
    shutil.rmtree(source.dataset.folder)
    workspace = Workspace(workspace.folder)
    assert told(dataset_lineage(workspace, last)) == {
        "offset": "", "op": "a.op", "system_time": "", "event_time": "a.event_time", "y": "a.X"
    }  # fmt: skip
    graph = build_column_graph(workspace)
    assert not graph.is_in_workspace(str(source.id)) and graph.is_in_workspace(str(last.id))
    assert graph.datasets[str(source.id)].name == "a"


def test_unsupported_engine_and_damaged_dataset_are_lineage_problems(workspace: Workspace) -> None:
    root(workspace, "a")
    workspace.config = set_value(workspace.config, "engines.flink", "grpc://127.0.0.1:1")
    foreign = made(workspace, "foreign", "SELECT STREAM x FROM a", "a", engine="flink")
    found = dataset_lineage(workspace, foreign)
    assert found.problem == "unsupported query engine 'flink': lineage unknown"
    assert told(found)["*"] == "?a.offset ?a.op ?a.system_time ?a.event_time ?a.city ?a.x"
    after = made(workspace, "after", "SELECT event_time, n FROM foreign", "foreign")
    assert told(dataset_lineage(workspace, after))["n"] == "foreign.n"
    # A damaged dataset has no columns, and the others have theirs.
    head = after.dataset.folder / "refs" / "head"
    head.write_text("nothing")
    found_all = {column.name: column for column in read_columns(Workspace(workspace.folder))}
    assert found_all["after"].lineage.problem and not found_all["after"].columns
    assert found_all["a"].columns
