"""The Python API: one workspace, its dataset, its rows; in this process and through the worker."""

from __future__ import annotations

import doctest
import json
import os
import signal
import subprocess
import sys
import threading
from datetime import UTC, date, datetime
from importlib.util import find_spec
from pathlib import Path

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import odf_engine as odf
from odf_engine.errors import AlreadyExists, BadData, InvalidQuery, NotFound, Unsupported, UsageError
from odf_engine.spark.runtime import spark_conf
from odf_engine.spark.runtime.session import SparkRuntime
from tests.api import given_session
from tests.api.conftest import POPULATION, fill, on_runtime
from tests.waiting import wait_until

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("module", ["dataset", "workspace", "rows"])
@pytest.mark.complete
def test_docstring_examples_run(module: str, workspace: odf.Workspace) -> None:
    found = __import__(f"odf_engine.api.{module}", fromlist=["x"])
    finder, runner = doctest.DocTestFinder(), doctest.DocTestRunner()
    for example in finder.find(found, extraglobs={"workspace": workspace, "odf": odf}):
        if example.examples:
            fill(workspace)
            runner.run(example)
    assert runner.failures == 0


def test_the_import_loads_neither_spark_nor_arrow() -> None:
    script = (
        "import sys, odf_engine as odf; odf.OdfError; names = dir(odf); assert 'open' in names;"
        "print(*(name for name in ('pyspark', 'pyarrow', 'py4j') if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_rows_can_be_sliced_selected_and_converted_to_arrow(workspace: odf.Workspace) -> None:
    rows = workspace["city.population"].scan()
    assert rows.columns[:3] == ["offset", "op", "system_time"] and len(rows) == 3
    assert rows[1:].select(["city"]).to_arrow().to_pydict() == {"city": ["Rome", "Oslo"]}
    assert pa.table(rows).equals(rows.to_arrow())  # by the Arrow PyCapsule interface
    assert sum(batch.num_rows for batch in rows.batches()) == 3
    assert "Rome" in repr(rows) and "<td>Rome</td>" in rows._repr_html_()
    with pytest.raises(KeyError):
        rows.select(["country"])
    with pytest.raises(ValueError, match="step"):
        rows[::2]


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_rows_convert_to_pandas_and_polars(library: str, workspace: odf.Workspace) -> None:
    convert = getattr(workspace["city.population"].scan(), f"to_{library}")
    if find_spec(library) is None:
        with pytest.raises(Unsupported, match=f"{library} is not installed"):
            convert()
    else:
        assert list(convert()["population"]) == [700000, 2800000, 710000]


def test_scan_accepts_versions_and_time_ranges(workspace: odf.Workspace) -> None:
    dataset = workspace["city.population"]
    before = len(dataset.blocks()) - 1
    dataset.ingest([{"event_time": "2024-03-01T00:00:00Z", "city": "Rome", "population": 2}])
    assert [len(dataset.scan(as_at=version)) for version in (None, before, dataset.head)] == [4, 3, 4]
    february = dataset.scan(event_time=(date(2024, 2, 1), datetime(2024, 3, 1, tzinfo=UTC)))
    assert february.to_arrow()["city"].to_pylist() == ["Rome", "Oslo"]
    then = dataset.as_of(date(2024, 2, 14), ["city"]).to_arrow()
    assert then["population"].to_pylist() == [700000, 2800000]
    assert dataset.latest(["city"], as_at=before).to_arrow().num_rows == 2
    with pytest.raises(UsageError, match="time zone"):
        dataset.as_of(datetime(2024, 1, 1), ["city"])
    with pytest.raises(NotFound):
        dataset.scan(as_at=99)


def test_ingest_accepts_tables_frames_rows_and_files(workspace: odf.Workspace, tmp_path: Path) -> None:
    dataset = workspace["city.population"]
    times = pa.array([datetime(2025, 1, day, tzinfo=UTC) for day in (1, 2)], pa.timestamp("ms", "UTC"))
    table = pa.table({"event_time": times, "city": ["a", "b"], "population": pa.array([1, 2], pa.int32())})
    assert dataset.ingest(table).records == 2
    assert dataset.ingest(pd.DataFrame(table.to_pandas())).records == 0  # a ledger has each row once
    assert dataset.ingest(pl.from_arrow(table)).records == 0
    assert dataset.ingest(dataset.scan(columns=["event_time", "city", "population"])).records == 0
    path = tmp_path / "rows.ndjson"
    path.write_text('{"event_time": "2025-02-01T00:00:00Z", "city": "c", "population": 3}\n')
    assert dataset.ingest(path).records == 1
    assert dataset.ingest([str(path)]).records == 0
    with pytest.raises(UsageError, match="int"):
        dataset.ingest(7)
    with pytest.raises(UsageError, match="empty"):
        dataset.ingest([])
    path.write_text('{"event_time": "2025-02-01T00:00:00Z", "city": "d", "population": "many"}\n')
    with pytest.raises(BadData, match="many"):
        dataset.ingest(path)
    assert dataset.verify().valid


def test_derivative_can_be_added_pulled_queried_and_traced(workspace: odf.Workspace) -> None:
    with pytest.raises(AlreadyExists):
        workspace.add(POPULATION)
    with pytest.raises(KeyError):
        workspace["city.weather"]
    (derived,) = workspace.add(
        {
            "kind": "DatasetSnapshot",
            "version": 1,
            "content": {
                "name": "city.large",
                "kind": "Derivative",
                "metadata": [
                    {
                        "kind": "SetTransform",
                        "inputs": [{"datasetRef": "city.population", "alias": "p"}],
                        "transform": {
                            "kind": "Sql",
                            "engine": "spark",
                            "query": "SELECT event_time, city, population FROM p WHERE population > 1000000",
                        },
                    }
                ],
            },
        }
    )
    assert derived.kind == "derivative" and derived.pull().records == 1
    assert "city.population" in derived.definition
    found = derived.provenance(0)
    assert found.tree().splitlines()[0] == "city.large 0"
    assert any(line.strip().startswith("city.population 1") for line in found.tree().splitlines())
    total = workspace.sql("SELECT sum(population) AS n FROM city.large")
    assert total.to_arrow().to_pydict() == {"n": [2800000]}
    with pytest.raises(InvalidQuery):
        workspace.sql("SELECT nothing FROM city.large")
    # A function that only DuckDB has.
    query = 'SELECT typeof(max(population)) AS kind FROM "city.large"'
    assert workspace.sql(query, engine="duckdb").to_arrow().to_pydict() == {"kind": ["INTEGER"]}
    with pytest.raises(UsageError, match="unknown engine 'flink'"):
        workspace.sql(query, engine="flink")  # type: ignore[arg-type]


def test_the_engine_of_queries_is_a_setting(tmp_path: Path) -> None:
    config = odf.init(tmp_path).folder / ".odf" / "config.yaml"
    (tmp_path / "a.csv").write_text("n\n1\n2\n")
    with odf.open(tmp_path, in_process=True) as workspace:
        files = workspace.sql(f"SELECT sum(n)::INT AS n FROM '{tmp_path / 'a.csv'}'")
        assert files.to_arrow()["n"].to_pylist() == [3]
    for engine in ("duckdb", "datafusion"):  # the second one is a setting of earlier versions
        config.write_text(f"sql: {{engine: {engine}}}\n")
        with odf.open(tmp_path, in_process=True) as workspace:
            assert workspace.sql("SELECT typeof(1) AS kind").to_arrow()["kind"].to_pylist() == ["INTEGER"]


@pytest.mark.complete
def test_external_spark_session_gives_the_same_results(tmp_path: Path, runtime: SparkRuntime) -> None:
    own = on_runtime(odf.init(tmp_path / "own", in_process=True), runtime)
    expected = given_session.report(own, tmp_path)
    command = [sys.executable, given_session.__file__, own.folder, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found, findings, after = json.loads(done.stdout)
    assert "SQLQueryContextLogger" not in done.stderr  # errors are raised, not logged
    assert found == json.loads(json.dumps(expected))
    assert findings == [[], []]  # replaying the transactions gives the hashes of the other Spark
    given = on_runtime(odf.open(tmp_path / "ws", in_process=True), runtime)
    assert [dataset.verify().findings for dataset in given] == [[], []]
    assert after == {
        "settings stay": True,
        "it is the active session": True,
        "views stay": True,
        "checksum files": [],
        "not stopped": True,
        "xml": after["xml"],
        "view": "dataset 'noted' not found",
        "a second one": "use it: odf.open(path, spark=session), or let the worker run jobs: in_process=False",
        "stopped": "the given Spark session was stopped",
    }
    assert "xpath_string" in after["xml"]


def test_unsuitable_spark_session_is_rejected(workspace: odf.Workspace, runtime: SparkRuntime) -> None:
    session = runtime.session()
    with pytest.raises(UsageError, match="worker"):
        odf.open(workspace.folder, spark=session, in_process=False)
    with pytest.raises(Unsupported, match="not a Spark session"):
        odf.open(workspace.folder, spark=object())  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patched:
        fixed = {**spark_conf.FIXED, "spark.sql.catalogImplementation": "hive"}
        patched.setattr("odf_engine.spark.runtime.given_session.FIXED", fixed)
        with pytest.raises(UsageError, match="catalogImplementation=in-memory") as caught:
            odf.open(workspace.folder, spark=session)
    assert "with spark.sql.catalogImplementation=hive" in str(caught.value.hint)
    with pytest.MonkeyPatch.context() as patched:  # another static setting in the place of the extensions
        patched.setattr("odf_engine.spark.runtime.given_session._EXTENSIONS", "spark.sql.warehouse.dir")
        with pytest.raises(UsageError, match="can change results") as caught:
            odf.open(workspace.folder, spark=session)
    assert "without spark.sql.warehouse.dir" in str(caught.value.hint)
    assert odf.open(workspace.folder, spark=session).sql("SELECT 1 AS n").to_arrow()["n"].to_pylist() == [1]


@pytest.mark.complete
def test_an_interrupt_cancels_the_job(workspace: odf.Workspace, runtime: SparkRuntime) -> None:
    def interrupt() -> None:
        wait_until(lambda: runtime.tasks_running)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in background processes
    try:
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            workspace.sql("SELECT sum(a.id % b.id) FROM range(10000000) a, range(1, 10000000) b")
        thread.join()
    finally:
        signal.signal(signal.SIGINT, handler)
    assert workspace.sql("SELECT 1 AS n").to_arrow().to_pydict() == {"n": [1]}  # Spark still runs
