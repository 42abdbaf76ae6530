"""Engines elsewhere are asked where rows come from: they know it of queries that go row by row."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from odf_engine.base.progress import Reporter
from odf_engine.derive.plan import plan_transaction
from odf_engine.derive.run import make_request
from odf_engine.engines.contract import InputRows, RowProvenance
from odf_engine.engines.grpc_client import GrpcEngine
from odf_engine.engines.grpc_messages import OWN_SERVICE, PROVENANCE, encode, encode_fields
from odf_engine.engines.grpc_server import EngineServer
from odf_engine.errors import BadData, Unsupported
from odf_engine.metadata.model import ExecuteTransform, OffsetInterval, TransformRequest
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.workspace.dataset_summary import DatasetEntry
from tests.derive.deriving import Deriving

pytestmark = pytest.mark.net

CF, CT = 2, 3


@pytest.fixture
def served(runtime: SparkRuntime) -> Iterator[str]:
    server = EngineServer(runtime, "127.0.0.1:0")
    server.start()
    yield f"grpc://127.0.0.1:{server.port}"
    server.stop()


def request_of(deriving: Deriving, entry: DatasetEntry, folder: Path) -> TransformRequest:
    transaction = plan_transaction(deriving.workspace, entry, 1_000_000)
    assert transaction is not None
    folder.mkdir()
    return make_request(transaction, folder, folder / "data", Timestamp.now(), Reporter())


def runs(derived: RowProvenance) -> dict[str, list[tuple[int, int]]]:
    return {feed.alias: [(row.start, row.end) for row in feed.rows] for feed in derived.feeds}


def test_remote_engine_traces_stateless_queries_exactly(
    deriving: Deriving, served: str, tmp_path: Path
) -> None:
    far = GrpcEngine(f"{served}?folder={tmp_path / 'exchange'}")
    left, right = deriving.root("l"), deriving.root("r")
    deriving.rows(left, (1, "a", 1), (2, "b", 2), (2, "c", 3))
    deriving.rows(right, (1, "x", 10), (1, "x", 10, CF), (3, "x", -5, CT))
    both = "SELECT event_time, city, x FROM l WHERE x <> 2 UNION ALL SELECT event_time, city, x FROM r"
    asked = request_of(deriving, deriving.derivative(both, "l", "r"), tmp_path / "first")

    def of(*rows: tuple[int, int]) -> dict[str, list[tuple[int, int]]]:
        found = far.provenance(asked, [OffsetInterval(*row) for row in rows], Reporter())
        assert (found.exact, found.reason) == (True, None)
        return runs(found)

    assert of((0, 1)) == {"l": [(0, 0), (2, 2)]}
    assert of((1, 1), (2, 2)) == {"l": [(2, 2)], "r": [(0, 0)]}
    assert of((4, 4)) == {"r": [(1, 2)]}  # both halves of the correction
    backwards = "SELECT event_time, x FROM l ORDER BY x DESC"
    asked = request_of(deriving, deriving.derivative(backwards, "l", name="back"), tmp_path / "second")
    assert of((0, 0)) == {"l": [(2, 2)]}
    assert not (tmp_path / "second" / "data").exists()


def test_remote_engine_does_not_trace_stateful_queries_exactly(
    deriving: Deriving, served: str, tmp_path: Path
) -> None:
    root = deriving.root()
    deriving.rows(root, (1, "a", 1), (5, "a", 2))
    query = "SELECT window.end AS event_time, count(*) AS n FROM input GROUP BY window(event_time, '1 day')"
    made = deriving.derivative(query)
    asked = request_of(deriving, made, tmp_path / "first")
    found = GrpcEngine(served).provenance(asked, [OffsetInterval(0, 0)], Reporter())
    assert (runs(found), found.exact) == ({"input": [(0, 1)]}, False)
    assert found.reason == "the query is stateful"
    deriving.run(made)
    assert isinstance(deriving.newest(made), ExecuteTransform)
    deriving.rows(root, (9, "a", 3))
    later = request_of(deriving, made, tmp_path / "second")
    with pytest.raises(Unsupported, match="its rows also depend on earlier transactions"):
        GrpcEngine(served).provenance(later, [OffsetInterval(1, 1)], Reporter())


def test_engine_that_reports_rows_outside_its_input_is_rejected(deriving: Deriving, tmp_path: Path) -> None:
    root = deriving.root()
    deriving.rows(root, (1, "a", 1))
    asked = request_of(deriving, deriving.derivative("SELECT event_time, x FROM input"), tmp_path / "first")
    answer = encode(RowProvenance([InputRows("input", [OffsetInterval(0, 1)])]))
    server = grpc.server(ThreadPoolExecutor(1))
    method = grpc.unary_stream_rpc_method_handler(lambda _, __: iter([encode_fields(answer)]))
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(OWN_SERVICE, {PROVENANCE: method}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with pytest.raises(BadData, match="it reported rows of 'input' that are not in the input"):
        GrpcEngine(f"grpc://127.0.0.1:{port}").provenance(asked, [OffsetInterval(0, 0)], Reporter())
    server.stop(0)
