"""`odf verify` reports rows of earlier rules, and `odf pull --rederive` corrects them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from odf_engine.base.progress import Reporter
from odf_engine.chain.normal_form import spark_engine_version
from odf_engine.data.parquet.slice_rows import SliceProperties
from odf_engine.data.parquet.slices import write_slice
from odf_engine.engines.contract import Engine, TransactionResult
from odf_engine.metadata.model import TransformRequest
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.workspace.workspace import Workspace
from tests.cli.conftest import Odf
from tests.derive.deriving import Deriving, earlier_rules

OLD = spark_engine_version().replace("odf6", "odf3")
MANIFEST = """
kind: DatasetSnapshot
version: 1
content:
  name: amounts
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: default
      read: {kind: Csv, header: true, schema: [event_time TIMESTAMP, id BIGINT, currency STRING, n BIGINT]}
      merge: {kind: UpsertStream, primaryKey: [id]}
---
kind: DatasetSnapshot
version: 1
content:
  name: rates
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: default
      read: {kind: Csv, header: true, schema: [event_time TIMESTAMP, currency STRING, rate BIGINT]}
      merge: {kind: Ledger, primaryKey: [event_time, currency]}
---
kind: DatasetSnapshot
version: 1
content:
  name: converted
  kind: Derivative
  metadata:
    - kind: SetTransform
      inputs: [{datasetRef: amounts, alias: amounts}, {datasetRef: rates, alias: rates}]
      transform:
        kind: Sql
        engine: spark
        temporalTables: [{name: rates, primaryKey: [currency]}]
        query: >
          SELECT a.event_time, a.id, a.n * r.rate AS value FROM amounts AS a
          JOIN rates FOR SYSTEM_TIME AS OF a.event_time AS r ON a.currency = r.currency
"""
FLOW = """
headers: {name: compare}
spec: {target: [converted, rates], tasks: [{kind: Verify, recompute: true}], stopAfterFailures: 0}
"""
RATES = "event_time,currency,rate\n" + "".join(f"2026-01-0{day}T00:00:00Z,EUR,{day}\n" for day in range(1, 6))


class FaultyEngine:
    """Corrects the first row with the wrong rate, as as-of joins before ``+odf4`` did."""

    def run(
        self, operation: str, request: TransformRequest, declared: pa.Schema | None, reporter: Reporter
    ) -> TransactionResult:
        assert declared is not None
        rows = {"event_time": [datetime(2026, 1, 1, tzinfo=UTC)] * 2, "id": [1, 1], "value": [100, 600]}
        columns = {name: pa.array(values, declared.field(name).type) for name, values in rows.items()}
        written = write_slice(
            [pa.record_batch({"op": pa.array([2, 3], pa.int32()), **columns})],
            SliceProperties(
                schema=declared,
                vocab=request.vocab,
                first_offset=request.next_offset,
                system_time=request.system_time,
                fallback_event_time=Timestamp.from_ms(0),
            ),
            path=Path(request.new_data_path),
            reporter=reporter,
        )
        return TransactionResult(written, declared, None, version=OLD)


def rows_check(odf: Odf) -> Any:
    (check,) = (each for each in odf("doctor", "--json").json["checks"] if each["name"] == "rows")
    return check


@pytest.mark.complete
def test_wrong_rates_of_a_correction_are_found_and_derived_again(
    fresh: Odf, tmp_path: Path, runtime: SparkRuntime
) -> None:
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
    deriving = Deriving(Workspace(tmp_path), runtime)
    deriving.engine = cast("Engine", FaultyEngine())
    converted = deriving.workspace.resolve("converted")
    with earlier_rules(3):
        deriving.set_version(converted, OLD)
        assert deriving.run(converted) == 1

    assert rows_check(fresh)["message"].endswith("written by another version of the engine: converted")
    replayed = fresh("verify", "converted")
    assert replayed.code == 3
    assert f"stored by {OLD}, replayed by {spark_engine_version()}" in replayed.out
    assert "converted: NOT CONFIRMED" in replayed.out
    assert f"(spark {OLD}): odf verify --recompute converted compares the rows" in replayed.out
    (report,) = fresh("verify", "--integrity", "converted", "--json").json["datasets"]
    assert report["written_by"] == [f"spark {OLD}"]
    assert "written_by" not in fresh("verify", "rates", "--json").json["datasets"][0]
    found = fresh("verify", "--recompute", "converted")
    assert found.code == 3
    assert "converted: DIFFERS from its query" in found.out
    assert "extra: offset 3: event_time=2026-01-01 00:00:00, id=1, value=600" in found.out
    assert "missing: event_time=2026-01-01 00:00:00, id=1, value=150" in found.out
    assert "another version" not in found.out
    assert "odf pull --rederive converted" in found.err
    (tmp_path / "compare.yaml").write_text(FLOW)
    assert fresh("flow", "add", "compare.yaml").code == 0
    assert fresh("flow", "run", "compare").code == 1
    (run,) = fresh("flow", "history", "compare", "--json").json
    assert "verify converted: differs from its query" in run["reason"]
    assert "1 row is missing and 1 row is extra" in run["reason"]
    assert {"job": run["jobs"][-1], "kind": "verify", "dataset": "converted", "text": "2 differing rows"} in (
        run["results"]
    )
    (report,) = fresh("verify", "--recompute", "converted", "--json").json["datasets"]
    assert report["recomputed"]["missing"] == report["recomputed"]["extra"] == 1
    assert (report["valid"], report["head"]) == (False, None)

    assert fresh("pull", "--rederive", "converted").code == 0
    assert fresh("verify", "--recompute", "converted").code == 0
    assert fresh("flow", "run", "compare").code == 0
    assert "another version" not in fresh("verify", "converted").out
    assert rows_check(fresh)["hint"] == ""
    assert "150" in fresh("tail", "converted").out
    refused = fresh("pull", "--rederive", "rates")
    assert refused.code != 0 and "only derivative datasets" in refused.err
    assert fresh("verify", "--recompute", "--integrity", "converted").code == 2
