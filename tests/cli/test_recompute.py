"""`odf verify --recompute` finds rows of earlier rules, and `odf pull --rederive` corrects them."""

from __future__ import annotations

import pytest

from odf_engine.chain.normal_form import spark_engine_version
from tests.cli.conftest import Odf

MANIFEST = f"""
kind: DatasetSnapshot
version: 1
content:
  name: amounts
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: default
      read: {{kind: Csv, header: true, schema: [event_time TIMESTAMP, id BIGINT, currency STRING, n BIGINT]}}
      merge: {{kind: UpsertStream, primaryKey: [id]}}
---
kind: DatasetSnapshot
version: 1
content:
  name: rates
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: default
      read: {{kind: Csv, header: true, schema: [event_time TIMESTAMP, currency STRING, rate BIGINT]}}
      merge: {{kind: Ledger, primaryKey: [event_time, currency]}}
---
kind: DatasetSnapshot
version: 1
content:
  name: converted
  kind: Derivative
  metadata:
    - kind: SetTransform
      inputs: [{{datasetRef: amounts, alias: amounts}}, {{datasetRef: rates, alias: rates}}]
      transform:
        kind: Sql
        engine: spark
        version: {spark_engine_version("+odf3")}
        temporalTables: [{{name: rates, primaryKey: [currency]}}]
        query: >
          SELECT a.event_time, a.id, a.n * r.rate AS value FROM amounts AS a
          JOIN rates FOR SYSTEM_TIME AS OF a.event_time AS r ON a.currency = r.currency
"""
RATES = "event_time,currency,rate\n" + "".join(f"2026-01-0{day}T00:00:00Z,EUR,{day}\n" for day in range(1, 6))


@pytest.mark.complete
def test_wrong_rates_of_a_correction_are_found_and_derived_again(fresh: Odf) -> None:
    assert fresh("add", "-", input=MANIFEST).code == 0
    assert fresh("ingest", "rates", input=RATES).code == 0
    header = "event_time,id,currency,n\n"
    fresh(
        "ingest",
        "amounts",
        input=f"{header}2026-01-01T00:00:00Z,1,EUR,100\n2026-01-04T00:00:00Z,2,EUR,100\n",
    )
    fresh("pull", "converted")
    fresh("ingest", "amounts", input=f"{header}2026-01-01T00:00:00Z,1,EUR,150\n")
    fresh("pull", "converted")

    assert fresh("verify", "converted").code == 0  # a replay repeats the fault
    found = fresh("verify", "--recompute", "converted")
    assert found.code == 3
    assert "converted: DIFFERS from its query" in found.out
    assert "extra: offset 3: event_time=2026-01-01 00:00:00, id=1, value=600" in found.out
    assert "missing: event_time=2026-01-01 00:00:00, id=1, value=150" in found.out
    assert "odf pull --rederive converted" in found.err
    (report,) = fresh("verify", "--recompute", "converted", "--json").json["datasets"]
    assert report["recomputed"]["missing"] == report["recomputed"]["extra"] == 1
    assert (report["valid"], report["head"]) == (False, None)

    assert fresh("pull", "--rederive", "converted").code == 0
    assert fresh("verify", "--recompute", "converted").code == 0
    assert "150" in fresh("tail", "converted").out
    refused = fresh("pull", "--rederive", "rates")
    assert refused.code != 0 and "only derivative datasets" in refused.err
    assert fresh("verify", "--recompute", "--integrity", "converted").code == 2
