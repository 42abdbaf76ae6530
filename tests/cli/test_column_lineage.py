"""`odf graph --columns`: text, JSON and Graphviz."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Odf, Ran, call_odf

MANIFESTS = """
kind: DatasetSnapshot
version: 1
content:
  name: harbour.readings
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: default
      read: {kind: NdJson, schema: [at TIMESTAMP, station STRING, "`pm <25>` DOUBLE"]}
      preprocess: {kind: Sql, engine: spark, query: "SELECT at AS event_time, station, `pm <25>` FROM input"}
      merge: {kind: Append}
---
kind: DatasetSnapshot
version: 1
content:
  name: by-day
  kind: Derivative
  metadata:
    - kind: SetTransform
      inputs: [{datasetRef: harbour.readings, alias: readings}]
      transform:
        kind: Sql
        engine: spark
        query: |
          SELECT window.start AS event_time, station, avg(`pm <25>`) AS mean FROM readings
          WHERE station <> 'x' GROUP BY window(event_time, '1 day'), station
---
kind: DatasetSnapshot
version: 1
content:
  name: odd
  kind: Derivative
  metadata:
    - kind: SetTransform
      inputs: [{datasetRef: by-day, alias: by_day}]
      transform: {kind: Sql, engine: spark, query: "SELECT nothing FROM by_day"}
"""


@pytest.fixture
def odf(tmp_path: Path) -> Odf:
    def run(*arguments: str) -> Ran:
        return call_odf(*arguments, cwd=tmp_path)

    (tmp_path / "all.yaml").write_text(MANIFESTS)
    assert run("init").code == 0
    assert run("add", "all.yaml").code == 0
    return run


def test_column_lineage_is_printed_as_a_table(odf: Odf) -> None:
    shown = odf("graph", "--columns", "by-day")
    lines = [" ".join(line.split()) for line in shown.out.splitlines()]
    assert lines[0] == "DATASET COLUMN FROM TYPE"
    assert "mean harbour.readings: pm <25> aggregate" in lines
    assert "station harbour.readings: station copy" in lines
    assert "(rows) harbour.readings: station filter" in lines
    assert "harbour.readings: event_time window" in lines
    everything = odf("graph", "--columns")
    assert "source of harbour.readings: at" in everything.out
    assert "odd: column 'nothing' not found" in everything.err


def test_column_lineage_is_printed_as_json(odf: Odf) -> None:
    found = {each["name"]: each for each in odf("graph", "--columns", "--json").json["datasets"]}
    columns = {each["name"]: each["from"] for each in found["by-day"]["columns"]}
    assert list(columns) == ["offset", "op", "system_time", "event_time", "station", "mean"]
    source = {"dataset": "harbour.readings", "id": found["harbour.readings"]["id"]}
    assert columns["mean"] == [{**source, "column": "pm <25>", "how": "aggregation"}]
    assert {**source, "column": "event_time", "how": "window"} in found["by-day"]["rows"]
    columns = {each["name"]: each["from"] for each in found["harbour.readings"]["columns"]}
    assert columns["event_time"] == [{"source": True, "column": "at", "how": "identity"}]
    assert found["odd"]["problem"] == "column 'nothing' not found"


def test_column_lineage_is_printed_as_graphviz(odf: Odf) -> None:
    document = odf("graph", "--columns", "by-day", "--dot").out
    assert document.startswith("digraph {") and document.endswith("}\n")
    assert "pm &lt;25&gt;</TD>" in document and "<B>harbour.readings</B>" in document
    ports = [line for line in document.splitlines() if " -> " in line]
    assert any(line.endswith("[style=bold];") for line in ports)
    assert any('label="filter"' in line for line in ports)
    for line in ports:  # every port is one of a table
        for end in line.strip().split(" [")[0].split(" -> "):
            node, port, _ = end.rsplit(":", 2)
            table = next(each for each in document.splitlines() if each.startswith(f"  {node} [label"))
            assert f'PORT="{port}"' in table


def test_invalid_options_are_rejected(odf: Odf) -> None:
    assert "NAMES require --columns" in odf("graph", "by-day").err
    assert "dataset 'nowhere' not found" in odf("graph", "--columns", "nowhere").err
    assert "--json and --dot exclude each other" in odf("graph", "--columns", "--json", "--dot").err
