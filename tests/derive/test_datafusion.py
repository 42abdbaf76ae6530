"""Transactions of the engine DataFusion, and the same rows as Spark's."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from odf_engine.base.progress import Reporter
from odf_engine.chain.normal_form import engine_version
from odf_engine.data.parquet.slices import WrittenSlice
from odf_engine.derive.plan import plan_transaction
from odf_engine.derive.run import execute_transaction, make_request
from odf_engine.derive.verify.integrity import verify
from odf_engine.derive.verify.replay import Replay
from odf_engine.engines.engine_router import EngineRouter, built_in_engines, engines_for
from odf_engine.errors import BadData, Cancelled, InvalidQuery, OdfError, Unsupported
from odf_engine.metadata.model import DatasetSnapshot, OffsetInterval, TransformRequest
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.metadata.yaml import read_manifests
from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.definitions.column_lineage import dataset_lineage
from odf_engine.workspace.trust import ORIGIN_FILE
from odf_engine.workspace.workspace import Workspace
from tests.derive.deriving import DERIVATIVE, Deriving
from tests.log_lines import LogLines

A, R, CF, CT = 0, 1, 2, 3


def no_spark() -> Any:
    raise AssertionError("Spark is not needed")


class Fused(Deriving):
    """Derivatives of the engine DataFusion, in a process without Spark."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.engine = EngineRouter(workspace.config, built_in_engines(workspace, no_spark))

    def derivative(self, query: str, *inputs: str, name: str = "output", **keys: str) -> DatasetEntry:
        return self.add_unchecked(snapshot(query, *inputs, name=name))


def snapshot(query: str, *inputs: str, name: str = "output", engine: str = "datafusion") -> DatasetSnapshot:
    listed = ", ".join(f"{{datasetRef: {each}, alias: {each}}}" for each in inputs or ("input",))
    indented = query.strip().replace("\n", "\n          ")
    text = DERIVATIVE.format(name=name, inputs=listed, tables="", query=indented)
    text = text.replace("engine: spark", f"engine: {engine}").replace("        temporalTables: []\n", "")
    (found,) = read_manifests(text, "test")
    return found


@pytest.fixture
def fused(tmp_path: Path) -> Fused:
    return Fused(Workspace.init(tmp_path / "a [b] {c}*d 100%"))


def test_rows_keep_operations_and_input_order(fused: Fused) -> None:
    left, right = fused.root("com.acme.left"), fused.root("com.acme.right")
    union = fused.derivative(
        'SELECT event_time, city AS "City", x + 1 AS y FROM "com.acme.right" WHERE x <> 7\n'
        'UNION ALL SELECT event_time, upper(city), x FROM "com.acme.left"',
        "com.acme.left",
        "com.acme.right",
    )
    passed = fused.derivative('SELECT * FROM "com.acme.right" WHERE x < 6', "com.acme.right", name="passed")
    ordered = fused.derivative(
        'SELECT event_time, x FROM "com.acme.right" ORDER BY city DESC', "com.acme.right", name="ordered"
    )
    fused.rows(left, (1, "a", 1), (2, "b", 2), watermark="2024-01-05T00:00:00Z")
    fused.rows(right, (3, "c", 3), (4, "d", 7))
    assert [fused.run(each) for each in (union, passed, ordered)] == [1, 1, 1]
    # The inputs in the order of declaration, not of the query.
    assert fused.result(union, "offset", "op", "City", "y") == [
        (0, A, "A", 1),
        (1, A, "B", 2),
        (2, A, "c", 4),
    ]
    copied = fused.derivative("SELECT * FROM output UNION ALL SELECT * FROM output", "output", name="copied")
    assert fused.run(copied) == 1
    assert fused.result(copied, "City", "y") == [
        ("A", 1), ("A", 1), ("B", 2), ("B", 2), ("c", 4), ("c", 4),
    ]  # fmt: skip
    assert fused.table(union).schema.names == ["offset", "op", "system_time", "event_time", "City", "y"]
    assert fused.result(ordered, "x") == [(7,), (3,)]
    first = fused.newest(union)
    assert first.new_watermark is not None and str(first.new_watermark) == "2024-01-04T00:00:00Z"
    # Corrections are carried; where the filter drops one side, the other becomes a retraction or an addition.
    fused.rows(right, (3, "c", 3, CF), (3, "c", 5, CT), (3, "c", 5, CF), (3, "c", 6, CT))
    assert fused.run(passed) == 1
    assert fused.result(passed, "op", "x") == [(A, 3), (CF, 3), (CT, 5), (R, 5)]
    assert fused.run(ordered) == 1
    assert [op for op, _ in fused.result(ordered, "op", "x")[2:]] == [R, A, R, A]
    # Only a watermark: a block without rows.
    fused.rows(right, watermark="2024-01-06T00:00:00Z")
    assert fused.run(passed) == 1 and fused.newest(passed).new_data is None


def test_missing_datafusion_is_reported_with_install_hint(
    fused: Fused, monkeypatch: pytest.MonkeyPatch
) -> None:
    fused.rows(fused.root(), (1, "a", 1))
    made = fused.derivative("SELECT event_time, x FROM input")
    install = "install it: pip install 'odf-workstation[datafusion]'"
    for name in ("workspace.definitions.query_check.engine_version", "chain.normal_form.engine_version"):
        monkeypatch.setattr(f"odf_engine.{name}", lambda _: None)
    with pytest.raises(InvalidQuery, match="the engine datafusion is not installed") as refused:
        fused.workspace.add([snapshot("SELECT event_time, x FROM input", name="other")])
    assert refused.value.hint == install
    monkeypatch.undo()
    monkeypatch.setattr("odf_engine.query_process.client.find_spec", lambda _: None)
    with pytest.raises(Unsupported, match="the engine datafusion is not installed") as failed:
        fused.run(made)
    assert failed.value.hint == install


@pytest.mark.complete
def test_replay_reports_rows_that_differ_by_version(fused: Fused, monkeypatch: pytest.MonkeyPatch) -> None:
    fused.rows(fused.root(), (1, "a", 1), (2, "b", 2))
    (made,) = fused.workspace.add([snapshot("SELECT event_time, x, system_time() AS made FROM input")])
    transform = made.dataset.state().transform
    assert transform is not None and transform.transform.version == engine_version("datafusion")
    assert str(transform.transform.version).startswith("55.") and "+odf" in str(transform.transform.version)
    assert fused.run(made) == 1
    replay = Replay(fused.workspace, made, fused.engine, Reporter())
    report = verify(made.dataset, Reporter(), None, None, replay)
    assert report.findings == [] and report.engines[0].engine == "datafusion"
    # Another version that gives other rows is reported as such.
    engine = "odf_engine.engines.datafusion_engine"
    monkeypatch.setattr(f"{engine}.engine_version", lambda *_: "99.0+odf1")
    changed = "odf_engine.engines.output_contract.repair_correction_pairs"
    monkeypatch.setattr(changed, lambda batches, *_: [next(iter(batches)).slice(1)])
    replay = Replay(fused.workspace, made, fused.engine, Reporter())
    report = verify(made.dataset, Reporter(), None, None, replay)
    (finding,) = report.findings
    assert finding.kind == "transform-version" and "replayed by 99.0+odf1" in finding.message


STATEFUL = {
    "SELECT event_time, count(*) AS n FROM input GROUP BY event_time": "an aggregation",
    "SELECT event_time, x FROM input WHERE x IN (SELECT x FROM input)": "a subquery",
    "SELECT a.event_time, b.x FROM input a JOIN input b ON a.x = b.x": "a join",
    "SELECT DISTINCT event_time FROM input": "DISTINCT",
    "SELECT event_time, row_number() OVER (ORDER BY x) AS n FROM input": "a window function",
    'SELECT event_time, x FROM input AS "i" LIMIT 1': "a LIMIT",
    "SELECT event_time FROM input UNION SELECT event_time FROM input": "UNION without ALL",
}
DENIED = {
    "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION '/etc/passwd'": "must be a SELECT, not CREATE",
    "COPY (SELECT event_time FROM input) TO '{0}/stolen.csv'": "must be a SELECT, not COPY",
    "SET datafusion.catalog.information_schema = true": "must be a SELECT, not SET",
    "SELECT event_time FROM '/etc/passwd'": "table '/etc/passwd' not found",
    "SELECT event_time FROM 'http://127.0.0.1:9/a.csv'": "not found",
    "SELECT event_time, now() AS n FROM input": "not deterministic",
    "SELECT event_time, version() AS v FROM input": "version() is not deterministic",
    "SELECT event_time, CAST('now' AS TIMESTAMP) AS n FROM input": "error parsing timestamp from 'now'",
    "SELECT x FROM input": "returns no event time",
    "SELECT CAST(city AS INT) AS y, event_time FROM input": "Cannot cast string 'a'",
}


@pytest.mark.complete
def test_stateful_and_unsafe_queries_are_refused(fused: Fused, tmp_path: Path) -> None:
    fused.rows(fused.root(), (1, "a", 1))
    for query, reason in STATEFUL.items():
        with pytest.raises(Unsupported, match=f"the query has {reason}"):
            fused.workspace.add([snapshot(query)])
    with pytest.raises(InvalidQuery, match="is not deterministic"):
        fused.workspace.add([snapshot('SELECT event_time, now() AS "n" FROM "input"')])
    # Chains of others may have such queries.
    for number, (query, reason) in enumerate((*list(STATEFUL.items())[:1], *DENIED.items())):
        made = fused.derivative(query.format(tmp_path), name=f"made{number}")
        with pytest.raises(OdfError) as error:
            fused.run(made)
        assert reason.lower() in error.value.message.lower(), query
        kind = Unsupported if query in STATEFUL else BadData if "CAST" in query else InvalidQuery
        assert isinstance(error.value, kind), query
        assert made.dataset.state().last_offset is None
    assert not (tmp_path / "stolen.csv").exists()
    assert list((fused.workspace.odf / "cache").glob("transform-*")) == []
    made = fused.derivative("SELECT event_time, x FROM\n  input WERE x > 1", name="position")
    with pytest.raises(InvalidQuery) as error:
        fused.run(made)
    assert error.value.where == "query, line 2, column 14" and error.value.excerpt[1].endswith("^")


def test_an_untrusted_query_runs_in_a_sandbox(fused: Fused) -> None:
    root = fused.root()
    made = fused.derivative("SELECT event_time, x * 2 AS y FROM input")
    wrong = fused.derivative("SELECT event_time, y FROM input", name="wrong")
    for each in (made, wrong):
        (each.dataset.folder / ORIGIN_FILE).write_text("https://example.com/output.yaml")
    fused.rows(root, (1, "a", 1), (2, "b", 2))
    reporter = LogLines()
    with engines_for(fused.workspace, made, no_spark) as fused.engine:
        assert fused.run(made, reporter) == 1
    assert fused.result(made, "y") == [(2,), (4,)]
    assert any("output is untrusted: its query runs in a sandbox" in line for line in reporter.lines)
    with engines_for(fused.workspace, wrong, no_spark) as fused.engine, pytest.raises(InvalidQuery) as error:
        fused.run(wrong)
    assert error.value.message == "column 'y' not found"


@pytest.mark.complete
def test_cancellation_kills_the_process(fused: Fused) -> None:
    root = fused.root()
    fused.rows(root, *((1, "a", number) for number in range(20_000)))
    cases = " ".join(
        f"WHEN regexp_like(concat(city, CAST(x AS STRING)), '(a|b)*x{each}$') THEN 0" for each in range(4000)
    )
    made = fused.derivative(f"SELECT event_time, CASE {cases} ELSE 1 END AS y FROM input")
    reporter = Reporter()
    timer = threading.Timer(1, reporter.cancel)
    timer.start()
    with pytest.raises(Cancelled):
        fused.run(made, reporter)
    assert made.dataset.state().last_offset is None
    assert list((fused.workspace.odf / "cache").glob("transform-*")) == []


EQUAL = {
    "filter": "SELECT event_time, city, x FROM {a} WHERE x > 1 AND city IS NOT NULL",
    "expressions": "SELECT event_time, x + 1 AS y, x * 1.5E0 AS z, -x AS m, city || '!' AS b,"
    " CAST(x AS INT) AS i, CAST(x AS STRING) AS s, CAST(x AS DECIMAL(10, 2)) AS n,"
    " coalesce(city, 'none') AS f, upper(city) AS u,"
    " CASE WHEN x > 2 THEN 'big' WHEN city IS NULL THEN city ELSE 'small' END AS c FROM {a}",
    "dates": "SELECT date_trunc('month', event_time) AS event_time, CAST(event_time AS DATE) AS d,"
    " event_time + INTERVAL '1' DAY AS t FROM {a}",
    "union": "WITH some AS (SELECT event_time, city, x, x % 2 AS odd FROM {a})"
    " SELECT event_time, city, x FROM {b} WHERE x <> 2"
    " UNION ALL SELECT event_time, city, x FROM some WHERE odd = 1"
    " UNION ALL SELECT event_time, lower(city), x + 0 FROM {a}",
}


@pytest.mark.complete
def test_rows_and_lineage_equal_those_from_spark(
    deriving: Deriving, runtime: SparkRuntime, tmp_path: Path
) -> None:
    workspace = deriving.workspace
    roots = [deriving.root("com.acme.a"), deriving.root("com.acme.b")]
    deriving.rows(roots[0], (1, "a", 1), (2.5, None, 2), (3.7, "C", 3), (2, "d", 4))
    deriving.rows(roots[1], (1, "b", 1), (2, "b", 2), (9, None, 3))
    deriving.rows(roots[0], (1, "a", 1, CF), (1, "z", 3, CT), (3.7, "C", 3, R))
    engines = EngineRouter(workspace.config, built_in_engines(workspace, lambda: runtime))
    time = Timestamp.now()

    requests: dict[str, TransformRequest] = {}

    def run(name: str, query: str, engine: str, quoted: str) -> WrittenSlice:
        text = query.format(a=quoted.format("a"), b=quoted.format("b"))
        inputs = ("com.acme.a", "com.acme.b")
        (made,) = workspace.add([snapshot(text, *inputs, name=f"{name}.{engine}", engine=engine)])
        transaction = plan_transaction(workspace, made, 1000)
        assert transaction is not None
        folder = tmp_path / f"{name}.{engine}"
        folder.mkdir()
        requests[engine] = request = make_request(transaction, folder, folder / "data", time, Reporter())
        written = execute_transaction(workspace, engines, transaction, request, Reporter()).written
        assert written is not None
        return written

    for name, query in EQUAL.items():
        spark = run(name, query, "spark", "`com.acme.{}`")
        other = run(name, query, "datafusion", '"com.acme.{}"')
        assert pq.read_table(spark.path) == pq.read_table(other.path), name
        assert spark.logical_hash == other.logical_hash, name
    # Rows and columns are traced as on Spark.
    traced = [
        engines.provenance(requests[engine], [OffsetInterval(0, 3), OffsetInterval(6, 6)], Reporter())
        for engine in ("spark", "datafusion")
    ]
    assert traced[0] == traced[1] and traced[0].exact
    spark_lineage, other_lineage = (
        dataset_lineage(workspace, workspace.resolve(f"union.{engine}")) for engine in requests
    )
    assert other_lineage.problem is None and other_lineage == spark_lineage
