"""Engines by the name that queries give; progress, cancelling and whole errors through gRPC."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odf_engine.base.config import Config
from odf_engine.base.progress import Reporter
from odf_engine.base.settings import load_config, save, set_value
from odf_engine.data.parquet.slices import slice_schema
from odf_engine.engines.contract import Engine, QueryInput
from odf_engine.engines.engine_router import EngineRouter
from odf_engine.engines.grpc_client import GrpcEngine
from odf_engine.engines.grpc_server import EngineServer
from odf_engine.engines.spark_engine import SparkEngine
from odf_engine.errors import Cancelled, InvalidManifest, InvalidQuery
from odf_engine.metadata.model import DEFAULT_VOCABULARY, Sql, SqlQueryStep
from odf_engine.metadata.yaml import read_manifests
from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.workspace.dataset_folders import list_late_rows
from odf_engine.workspace.dataset_summary import DatasetEntry
from tests.derive.deriving import DATA, DERIVATIVE, Deriving
from tests.waiting import wait_until

pytestmark = pytest.mark.net

# Much work for each row, so that they take a while.
SLOW = "sha2(repeat(city, 6000), 512) <> ''"
ROWS = f"SELECT event_time, x FROM input WHERE {SLOW}"
WINDOW = f"""
SELECT window.start AS event_time, count(*) AS n FROM input WHERE {SLOW} GROUP BY window(event_time, '1 day')
"""


@pytest.fixture
def served(runtime: SparkRuntime) -> Iterator[str]:
    server = EngineServer(runtime, "127.0.0.1:0")
    server.start()
    yield f"grpc://127.0.0.1:{server.port}"
    server.stop()


class Listening(Reporter):
    """Keeps what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[object] = []

    def set_amounts(self, **amounts: int | None) -> None:
        self.said.append(sorted(name for name, value in amounts.items() if value))

    def log(self, text: str, level: str = "info") -> None:
        self.said.append((text, level))


def test_query_runs_on_the_engine_it_names(
    deriving: Deriving, runtime: SparkRuntime, served: str, tmp_path: Path
) -> None:
    config = set_value(Config(), "engines.flink", f"{served}?folder={tmp_path / 'exchange'}")
    save(config, tmp_path / "config.yaml")
    assert load_config(tmp_path / "config.yaml") == config
    here = SparkEngine(runtime)
    engines = EngineRouter(config, {"spark": lambda: here})
    assert engines.get_engine("Spark") is here
    assert isinstance(engines.get_engine("FLINK"), GrpcEngine) and engines.get_engine(
        "flink"
    ) is engines.get_engine("FLINK")
    with pytest.raises(InvalidQuery, match="'risingwave', which is not configured") as error:
        engines.get_engine("risingwave")
    assert "datafusion or flink or spark" in str(error.value.hint)
    nobody = EngineRouter(set_value(config, "engines.spark", "grpc://127.0.0.1:9"), {"spark": lambda: here})
    assert nobody.get_engine("spark") is not here
    for wrong in ("127.0.0.1:1", "grpc://a", "grpc://a:1?folder=/x&other=1", "grpc://a:1?as=/x"):
        with pytest.raises(InvalidManifest):
            GrpcEngine(wrong)

    deriving.engine = engines
    root = deriving.root()
    deriving.rows(root, (1, "a", 1), (2, "b", 2))
    query = "SELECT window.end AS event_time, sum(x) AS s FROM input GROUP BY window(event_time, '1 day')"
    near = deriving.derivative(query, name="near")
    text = DERIVATIVE.replace("engine: spark", "engine: Flink")
    manifest = text.format(name="far", inputs="{datasetRef: input, alias: input}", tables="", query=query)
    deriving.workspace.config = config
    (far,) = deriving.workspace.add(read_manifests(manifest, "test"))
    for day in (3, 4):
        for made in (near, far):
            assert deriving.run(made) == 1
        columns = ("offset", "op", "event_time", "s")
        assert deriving.result(near, *columns) == deriving.result(far, *columns)
        deriving.rows(root, (day, "a", day))
    assert deriving.newest(far).prev_checkpoint is not None
    for name in ("in", "out"):
        assert list((tmp_path / "exchange" / name).iterdir()) == []


@pytest.mark.parametrize("where", ["here", "elsewhere"])
@pytest.mark.complete(after=1)
def test_cancelling_stops_spark(deriving: Deriving, runtime: SparkRuntime, served: str, where: str) -> None:
    root = deriving.root()
    deriving.rows(root, *((1 + number / 1e6, "a", number) for number in range(100_000)))
    if where == "elsewhere":
        deriving.engine = GrpcEngine(served)
    for name, query in (("rows", ROWS), ("window", WINDOW))[where == "elsewhere" :]:
        made = deriving.derivative(query, name=name)
        reporter, outcome = Listening(), list[object]()

        def run(made: DatasetEntry, reporter: Reporter, outcome: list[object]) -> None:
            try:
                outcome.append(deriving.run(made, reporter))
            except Cancelled as error:
                outcome.append(error)

        thread = threading.Thread(target=run, args=(made, reporter, outcome))
        thread.start()
        wait_until(lambda outcome=outcome: runtime.tasks_running or outcome)
        assert not outcome
        reporter.cancel()
        thread.join(60)
        assert isinstance(outcome[0], Cancelled)
        wait_until(lambda: not runtime.tasks_running)
        assert made.dataset.state().last_inputs is None


def test_cancel_callbacks_run_innermost_first() -> None:
    reporter, stopped = Reporter(), list[str]()
    with (
        reporter.on_cancel(lambda: stopped.append("stream")),
        reporter.on_cancel(lambda: stopped.append("job")),
    ):
        reporter.cancel()
    assert stopped == ["job", "stream"]


@pytest.mark.complete
def test_remote_engine_forwards_warnings_progress_and_error_positions(
    deriving: Deriving, served: str
) -> None:
    deriving.engine = GrpcEngine(served)
    root = deriving.root()
    deriving.rows(root, *((day, "a", day) for day in (1, 5)))
    query = "SELECT window.end AS event_time, count(*) AS n FROM input GROUP BY window(event_time, '1 day')"
    made = deriving.derivative(query)
    deriving.run(made)
    deriving.rows(root, (2, "late", 1), (9, "a", 1))
    reporter = Listening()
    deriving.run(made, reporter)
    assert ("late rows dropped: 1 (input: 1)", "warning") in reporter.said
    (late,) = list_late_rows(made.dataset)
    assert pq.read_table(late.path).column("city").to_pylist() == ["late"]
    # A state with merged values only is computed again.
    smallest = deriving.derivative(query.replace("count(*) AS n", "min(x) AS n"), name="smallest")
    deriving.run(smallest)
    deriving.rows(root, (9.25, "a", 3), (9.5, "a", 2))
    deriving.run(smallest)
    deriving.rows(root, (9, "a", 1, 1), (11, "a", 4))
    deriving.run(smallest)
    assert deriving.result(smallest, "n") == [(1,), (5,), (2,)]
    # The watermark of joined rows is behind.
    deriving.rows(deriving.root("more"), (1, "a", 1), (11, "a", 4))
    joined = deriving.derivative(
        "SELECT a.event_time, a.x FROM more a LEFT JOIN more b ON a.city = b.city "
        "AND b.event_time BETWEEN a.event_time AND a.event_time + INTERVAL 1 DAY",
        "more",
        name="joined",
    )
    deriving.run(joined)
    assert str(joined.dataset.state().watermark) == "2024-01-10T00:00:00Z"
    assert ["bytes", "rows"] in reporter.said
    wrong = deriving.derivative("SELECT event_time,\n  nothing FROM input", name="wrong")
    with pytest.raises(InvalidQuery) as error:
        deriving.run(wrong)
    assert error.value.where == "query, line 2, column 3" and error.value.excerpt and error.value.hint


def test_remote_and_local_validation_agree(runtime: SparkRuntime, served: str) -> None:
    near: Engine = SparkEngine(runtime)
    far = GrpcEngine(served)
    inputs = [QueryInput("input", slice_schema(DATA, DEFAULT_VOCABULARY), DEFAULT_VOCABULARY)]

    def looked(engine: Engine, query: str, declared: pa.Schema | None = None) -> object:
        transform = Sql(engine="spark", queries=[SqlQueryStep(query=query)])
        return engine.validate(transform, inputs, DEFAULT_VOCABULARY, declared)

    query = "SELECT window.end AS event_time, sum(x) AS s FROM input GROUP BY window(event_time, '1 day')"
    for each in (query, "SELECT event_time, x FROM input"):
        assert looked(far, each) == looked(near, each)
    with pytest.raises(InvalidQuery, match="nothing"):
        looked(far, "SELECT event_time, nothing FROM input")
