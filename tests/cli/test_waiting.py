"""Results that wait for an input: `odf pull`, `odf status`, and inputs that do not change."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Odf

MANIFEST = """
kind: DatasetSnapshot
version: 1
content:
  name: cases
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: default
      read: {kind: Csv, header: true, schema: [event_time TIMESTAMP, region STRING, n BIGINT]}
      merge: {kind: Append}
---
kind: DatasetSnapshot
version: 1
content:
  name: population
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: default
      read: {kind: Csv, header: true, schema: [event_time TIMESTAMP, region STRING, people STRING]}
      preprocess:
        kind: Sql
        engine: spark
        query: SELECT event_time, region, CAST(people AS BIGINT) AS people FROM input
      merge: {kind: Append}
---
kind: DatasetSnapshot
version: 1
content:
  name: rates
  kind: Derivative
  metadata:
    - kind: SetTransform
      inputs: [{datasetRef: cases, alias: cases}, {datasetRef: population, alias: population}]
      transform:
        kind: Sql
        engine: spark
        temporalTables: [{name: population, primaryKey: [region]}]
        query: |
          SELECT c.event_time, c.region, c.n, p.people FROM cases AS c
          LEFT JOIN population FOR SYSTEM_TIME AS OF c.event_time AS p ON c.region = p.region
"""


def status_of(odf: Odf, name: str) -> dict[str, object]:
    (found,) = [each for each in odf("status", "--json").json["datasets"] if each["name"] == name]
    return found


@pytest.mark.complete
def test_waiting_results_are_shown_until_the_input_is_static(fresh: Odf) -> None:
    assert fresh("add", "-", input=MANIFEST).code == 0
    rows = "event_time,region,n\n2024-01-01,a,1\n2024-01-02,a,2\n2024-01-03,a,3\n"
    assert fresh("ingest", "cases", input=rows).code == 0
    text = "waits for the first rows of population"
    assert fresh("pull", "rates").out == f"rates: {text}\n"
    (entry,) = fresh("pull", "rates", "--json").json
    awaited = {"name": "population", "watermark": None, "reason": "no-rows"}
    assert entry["waiting"] == {"inputs": [awaited], "rows": None}
    shown = fresh("status")
    assert text in shown.out and "everything is up to date" not in shown.out
    # An empty table with the columns of its source.
    assert fresh("pull", "population", "--set-watermark", "2024-01-01T00:00:00Z").code == 0
    assert "people BIGINT" in fresh("schema", "population").out
    waiting = "2 rows wait for population, complete up to 2024-01-01"
    assert fresh("pull", "rates").out == f"rates: 1 row; {waiting}\n"
    assert fresh("pull", "rates").out == f"rates: {waiting}\n"
    status = status_of(fresh, "rates")
    assert (status["reason"], status["hint"]) == (waiting, "odf pull population --set-watermark TIME")
    later = "event_time,region,people\n2024-01-02,a,5000\n"
    assert fresh("ingest", "population", input=later).code == 0
    assert fresh("config", "set", "watermark.static.population", "true").code == 0
    assert fresh("pull", "population").code == 0
    assert "watermark → 9999-12-31" in fresh("log", "population", "-n", "1").out
    assert fresh("pull", "population").out == "population: up to date\n"
    assert fresh("pull", "rates").out == "rates: 2 rows\n"
    assert [each["people"] for each in fresh("tail", "rates", "--json").json] == [None, 5000, 5000]
    assert status_of(fresh, "rates")["waiting"] is None
    assert fresh("verify", "rates").code == 0
    assert fresh("config", "set", "watermark.static.rates", "true").code == 0
    assert "watermark.static.rates has no effect" in fresh("pull", "rates").err
