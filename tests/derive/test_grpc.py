"""The engine contract over gRPC: our engine as a service, and engines that break the contract."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as structs_replace

from odf_engine.base.progress import Reporter
from odf_engine.derive.verify.integrity import verify
from odf_engine.derive.verify.recompute import recompute_dataset
from odf_engine.derive.verify.replay import Replay
from odf_engine.engines.contract import InputRows
from odf_engine.engines.grpc_client import EngineTimeout, GrpcEngine
from odf_engine.engines.grpc_messages import (
    RAW_QUERY,
    SERVICE,
    TRANSFORM,
    ResponseExtension,
    decode_field,
    encode,
    encode_fields,
)
from odf_engine.engines.grpc_server import EngineServer
from odf_engine.errors import BadData, InvalidManifest, InvalidQuery, SourceUnavailable, Unsupported
from odf_engine.metadata.flatbuffers import decode_table, encode_table
from odf_engine.metadata.model import (
    DEFAULT_VOCABULARY,
    DataField,
    DataSchema,
    DatasetSnapshot,
    Int32,
    Int64,
    OffsetInterval,
    Option,
    RawQueryInvalidQuery,
    RawQueryProgress,
    RawQueryRequest,
    RawQueryResponse,
    RawQuerySuccess,
    SetDataSchema,
    SetTransform,
    Sql,
    SqlQueryStep,
    String,
    TimestampType,
    TimeUnit,
    TransformRequest,
    TransformSuccess,
)
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.workspace.definitions.definition import current_definition
from tests.derive.deriving import Deriving
from tests.waiting import send_to_another_thread


@pytest.fixture
def served(runtime: SparkRuntime) -> Iterator[str]:
    server = EngineServer(runtime, "127.0.0.1:0")
    server.start()
    yield f"grpc://127.0.0.1:{server.port}"
    server.stop()


@pytest.mark.net
def test_grpc_and_embedded_transactions_give_equal_rows(deriving: Deriving, served: str) -> None:
    root = deriving.root()
    query = "SELECT event_time, city, x + 1 AS y FROM input WHERE x > 0"
    near, far = deriving.derivative(query, name="near"), deriving.derivative(query, name="far")
    wrong = deriving.derivative("SELECT event_time, nothing FROM input", name="wrong")
    window = deriving.derivative(
        "SELECT window.start AS event_time, sum(x) AS s FROM input GROUP BY window(event_time, '1 day')",
        name="window",
    )
    embedded, remote = deriving.engine, GrpcEngine(served)
    for day in (1, 2):
        deriving.rows(root, (day, "a", day), (day, "b", 0))
        for made, engine in ((near, embedded), (far, remote)):
            deriving.engine = engine
            assert deriving.run(made) == 1
        assert deriving.run(window) == 1
    assert deriving.result(window, "s") == [(1,)]  # the second day has not ended
    assert deriving.newest(window).prev_checkpoint is not None
    slices = [[row.logical_hash.code for row in made.dataset.slices()] for made in (near, far)]
    assert slices[0] == slices[1]
    columns = ("offset", "op", "event_time", "city", "y")
    assert deriving.result(near, *columns) == deriving.result(far, *columns)
    assert far.dataset.state().watermark == near.dataset.state().watermark
    deriving.engine = remote
    with pytest.raises(InvalidQuery, match="nothing"):
        deriving.run(wrong)


@pytest.mark.net
def test_earlier_rows_are_passed_over_grpc(deriving: Deriving, served: str) -> None:
    root = deriving.root()
    query = "SELECT p.event_time, p.city, q.x FROM input p JOIN input q ON p.city = q.city"
    near, far = deriving.derivative(query, name="near"), deriving.derivative(query, name="far")
    embedded, remote = deriving.engine, GrpcEngine(served)
    for day in (1, 2, 3):
        deriving.rows(root, (day, "a", day), (day, "b", 0))
        for made, engine in ((near, embedded), (far, remote)):
            deriving.engine = engine
            assert deriving.run(made) == 1
    assert len(deriving.result(near, "x")) == 18
    assert deriving.result(near, "event_time", "city", "x") == deriving.result(far, "event_time", "city", "x")


@pytest.mark.net
def test_result_is_recomputed_over_grpc(deriving: Deriving, served: str, runtime: SparkRuntime) -> None:
    root, made = deriving.root(), deriving.derivative("SELECT event_time, city, x * 2 AS y FROM input")
    deriving.rows(root, (1, "a", 1), (2, "b", 2))
    deriving.run(made)
    found = recompute_dataset(deriving.workspace, made, GrpcEngine(served), runtime.session(), Reporter())
    assert (found.rows, found.differences) == (2, [])


@pytest.mark.net
def test_raw_query_over_grpc_writes_rows_or_reports_errors(served: str, tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1, 2, 3]}), tmp_path / "in.parquet")

    def ask(query: str) -> object:
        request = RawQueryRequest(
            input_data_paths=[str(tmp_path / "in.parquet")],
            transform=Sql(engine="spark", queries=[SqlQueryStep(query=query)]),
            output_data_path=str(tmp_path / "out.parquet"),
        )
        with grpc.insecure_channel(served.removeprefix("grpc://")) as channel:
            method = channel.unary_stream(f"/{SERVICE}/{RAW_QUERY}")
            found = method(encode_fields(encode_table(request)))
            answers = [decode_table(decode_field(each), RawQueryResponse) for each in found]
        assert all(isinstance(answer, RawQueryProgress) for answer in answers[:-1])
        return answers[-1]

    assert ask("SELECT sum(x) AS total FROM input") == RawQuerySuccess(1)
    assert pq.read_table(tmp_path / "out.parquet").to_pylist() == [{"total": 6}]
    (tmp_path / "out.parquet").unlink()
    assert ask("SELECT x FROM input WHERE x > 5") == RawQuerySuccess(0)
    assert not (tmp_path / "out.parquet").exists()
    assert isinstance(ask("SELECT y FROM input"), RawQueryInvalidQuery)


@contextmanager
def lying(
    work: Callable[[TransformRequest], TransformSuccess | tuple[TransformSuccess, ResponseExtension] | None],
    folder: Path | None = None,
    seconds: float | None = None,
) -> Iterator[GrpcEngine]:
    """An engine that answers with whatever ``work`` says; it sees all files, or only a folder's."""

    def answers(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        answer = work(decode_table(decode_field(request), TransformRequest))
        if isinstance(answer, tuple):
            yield encode_fields(encode_table(answer[0]), encode(answer[1]))
        elif answer is not None:
            yield encode_fields(encode_table(answer))

    handler = grpc.unary_stream_rpc_method_handler(answers)
    server = grpc.server(ThreadPoolExecutor(1))
    handlers = grpc.method_handlers_generic_handler(SERVICE, {TRANSFORM: handler})
    server.add_generic_rpc_handlers((handlers,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield GrpcEngine(
            f"grpc://127.0.0.1:{port}" + (f"?folder={folder}" if folder else ""), seconds=seconds
        )
    finally:
        server.stop(0)


def test_output_that_breaks_the_contract_is_refused(deriving: Deriving, tmp_path: Path) -> None:
    root = deriving.root()
    made = deriving.derivative("SELECT event_time, city, x FROM input")
    deriving.rows(root, (1, "a", 1), (1, "b", 2))
    head = made.dataset.head()

    def copied(request: TransformRequest, end: int) -> TransformSuccess:
        shutil.copyfile(request.query_inputs[0].data_paths[0], request.new_data_path)
        return TransformSuccess(OffsetInterval(0, end))

    def changed(request: TransformRequest, column: str, values: list[object]) -> TransformSuccess:
        table = pq.read_table(request.query_inputs[0].data_paths[0])
        at = table.schema.get_field_index(column)
        made = pa.array(values, table.schema.field(at).type)
        pq.write_table(
            table.set_column(at, table.schema.field(at).with_nullable(True), made), request.new_data_path
        )
        return TransformSuccess(OffsetInterval(0, 1))

    def other_columns(request: TransformRequest) -> TransformSuccess:
        pq.write_table(pa.table({"x": [1]}), request.new_data_path)
        return TransformSuccess(OffsetInterval(0, 0))

    def link(request: TransformRequest) -> TransformSuccess:
        Path(request.new_data_path).symlink_to(request.query_inputs[0].data_paths[0])
        return TransformSuccess(OffsetInterval(0, 1))

    def pipe(request: TransformRequest) -> TransformSuccess:
        os.mkfifo(request.new_data_path)
        return TransformSuccess(OffsetInterval(0, 1))

    for work, text in (
        (lambda request: TransformSuccess(OffsetInterval(0, 1)), "wrote no file"),
        (lambda request: copied(request, 5), "it reported offsets 0 to 5"),
        (other_columns, "its columns begin with x"),
        (lambda request: None, "without a response"),
        (lambda request: changed(request, "op", [0, 4]), "row 1 has invalid operation 4"),
        (lambda request: changed(request, "op", [2, 0]), "row 1 follows a -C, but is not a [+]C"),
        (lambda request: changed(request, "op", [0, 2]), "row 1 is a -C without a following [+]C"),
        (lambda request: changed(request, "op", [0, 1]), "retracts a row that is not in the dataset: row 1"),
        (lambda request: changed(request, "op", [0, None]), "row 1 has no operation"),
        (lambda request: changed(request, "offset", [0, 2]), "its offsets do not continue"),
        (lambda request: changed(request, "event_time", [0, None]), "without an event time"),
        (lambda request: changed(request, "system_time", [0, 1 << 50]), "a later system time"),
        (link, "not a regular file: data"),
        (pipe, "not a regular file: data"),
    ):
        with lying(work, tmp_path / "exchange") as engine:
            deriving.engine = engine
            with pytest.raises(BadData, match=text):
                deriving.run(made)
        assert made.dataset.head() == head
        assert list(made.dataset.folder.glob("data/*")) == []
    with lying(lambda request: copied(request, 1)) as engine:
        deriving.engine = engine
        assert deriving.run(made) == 1
        with pytest.raises(Unsupported, match="it can only run queries"):
            engine.validate(Sql(engine="spark"), [], DEFAULT_VOCABULARY, None)
    assert deriving.result(made, "offset", "x") == [(0, 1), (1, 2)]


def test_output_must_have_the_declared_types_and_required_values(deriving: Deriving) -> None:
    """Layouts may differ; types may not, and required values are checked."""
    root = deriving.root()
    made = deriving.derivative("SELECT event_time, city, x FROM input")
    time = TimestampType(TimeUnit.Millisecond, "UTC")
    fields = [
        DataField("offset", Int64()), DataField("op", Int32()), DataField("system_time", time),
        DataField("event_time", time), DataField("city", Option(String())), DataField("x", Int64()),
    ]  # fmt: skip
    deriving.commit(made, [SetDataSchema(odf_schema=DataSchema(fields))])
    deriving.rows(root, (1, "a", 1), (1, "b", 2))
    head = made.dataset.head()

    def write(request: TransformRequest, **changes: pa.Array) -> TransformSuccess:
        table = pq.read_table(request.query_inputs[0].data_paths[0])
        kinds = {"offset": pa.int64(), "op": pa.int32(), "city": pa.large_string()}
        columns = {name: table.column(name).cast(kinds.get(name, table.column(name).type))
                   for name in table.column_names}  # fmt: skip
        pq.write_table(pa.table({**columns, **changes}), request.new_data_path)
        return TransformSuccess(OffsetInterval(0, 1))

    for changes, text in (
        ({"x": pa.array([1, None], pa.int64())}, "row 2: column 'x' is NOT NULL"),
        ({"x": pa.array([1, 2], pa.int32())}, "column 'x' is int32, expected int64"),
        ({"city": pa.array([1, 2], pa.int32())}, "column 'city' is int32, expected string"),
        ({"more": pa.array([1, 2])}, "columns are offset, op, system_time, event_time, city, x, more"),
    ):
        with lying(lambda request, changes=changes: write(request, **changes)) as engine:
            deriving.engine = engine
            with pytest.raises(BadData, match=text):
                deriving.run(made)
        assert made.dataset.head() == head
    with lying(write) as engine:
        deriving.engine = engine
        assert deriving.run(made) == 1
    stored = pq.read_schema(made.dataset.slice_path(made.dataset.slices()[0]))
    assert stored.field("city").type == pa.large_string()
    assert verify(made.dataset, Reporter()).valid


def test_reported_watermark_never_decreases_or_exceeds_the_inputs(deriving: Deriving) -> None:
    root = deriving.root()
    made = deriving.derivative("SELECT event_time, city, x FROM input")
    day = {number: Timestamp.parse(f"2024-01-0{number}T00:00:00Z") for number in range(1, 6)}
    reported: Timestamp | None = None

    def work(request: TransformRequest) -> TransformSuccess:
        (path,) = request.query_inputs[0].data_paths
        table = pq.read_table(path)
        offsets = pa.array([request.next_offset], table.schema.field(0).type)
        pq.write_table(table.set_column(0, table.schema.field(0), offsets), request.new_data_path)
        return TransformSuccess(OffsetInterval(request.next_offset, request.next_offset), reported)

    with lying(work) as engine:
        deriving.engine = engine
        for number, answer, expected in (
            (2, day[1], day[1]),
            (3, None, day[3]),
            (4, day[1], day[3]),  # a watermark never becomes earlier
            (5, Timestamp.parse("2030-01-01T00:00:00Z"), day[5]),
        ):
            reported = answer
            deriving.rows(root, (number, "a", number))
            deriving.run(made)
            assert made.dataset.state().watermark == expected
        replay = Replay(deriving.workspace, made, engine, Reporter())
        findings = verify(made.dataset, Reporter(), replay=replay).findings
    assert [finding.kind for finding in findings] == ["transform-watermark"] * 2  # it reports later ones now


def test_reported_engine_version_is_recorded_and_enforced(deriving: Deriving) -> None:
    root = deriving.root()
    made = deriving.derivative("SELECT event_time, city, x FROM input")
    transform = made.dataset.state().transform
    assert transform is not None
    deriving.commit(
        made,
        [
            structs_replace(
                transform, transform=structs_replace(transform.transform, engine="flink", version=None)
            )
        ],
    )
    late: list[InputRows] = []
    version: str | None = None

    def work(request: TransformRequest) -> tuple[TransformSuccess, ResponseExtension]:
        (path,) = request.query_inputs[0].data_paths
        table = pq.read_table(path)
        offsets = pa.array([request.next_offset], table.schema.field(0).type)
        pq.write_table(table.set_column(0, table.schema.field(0), offsets), request.new_data_path)
        success = TransformSuccess(OffsetInterval(request.next_offset, request.next_offset))
        return success, ResponseExtension(version, late)

    def recorded() -> str | None:
        found = made.dataset.state().transform
        assert found is not None
        return found.transform.version

    with lying(work) as engine:
        deriving.engine = engine
        for number, reported, expected in (
            (1, None, None),
            (2, "1.16\x1b", "1.16\ufffd"),
            (3, None, "1.16\ufffd"),
        ):
            version = reported
            deriving.rows(root, (number, "a", number))
            deriving.run(made)
            assert recorded() == expected
        deriving.rows(root, (4, "a", 4))
        version = "1.20"
        with pytest.raises(Unsupported, match=r"for version 1\.16. of the engine, but this is 1\.20"):
            deriving.run(made)
        version = None
        for wrong in (
            [InputRows("input", [OffsetInterval(2, 3)])],
            [InputRows("other", [OffsetInterval(3, 3)])],
        ):
            late = wrong
            with pytest.raises(BadData, match="late rows that are not in the input"):
                deriving.run(made)
        # A definition that does not mention a version leaves it unchanged.
        assert deriving.workspace.update([_without_version(current_definition(made))])[0].events == []


def _without_version(definition: DatasetSnapshot) -> DatasetSnapshot:
    transform = definition.metadata[0]
    assert isinstance(transform, SetTransform)
    plain = structs_replace(transform.transform, version=None)
    return structs_replace(definition, metadata=[structs_replace(transform, transform=plain)])


def test_invalid_or_unreachable_engine_address_is_reported(
    deriving: Deriving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("odf_engine.engines.grpc_client._CONNECT_SECONDS", 0.5)
    for address in ("127.0.0.1:2884", "grpc://127.0.0.1", "http://127.0.0.1:1"):
        with pytest.raises(InvalidManifest):
            GrpcEngine(address)
    root = deriving.root()
    deriving.rows(root, (1, "a", 1))
    made = deriving.derivative("SELECT event_time FROM input")
    deriving.engine = GrpcEngine("grpc://127.0.0.1:9")
    with pytest.raises(SourceUnavailable, match="does not respond"):
        deriving.run(made)


def test_slow_engine_call_times_out(deriving: Deriving) -> None:
    deriving.rows(deriving.root(), (1, "a", 1))
    made = deriving.derivative("SELECT event_time FROM input")
    over = threading.Event()
    with lying(lambda request: over.wait() and None, seconds=0.1) as engine:
        deriving.engine = engine
        with pytest.raises(EngineTimeout, match=r"ran longer than 0\.1 s"):
            deriving.run(made)
        over.set()


@pytest.mark.spark
@pytest.mark.parametrize("at_socket", [False, True])
def test_served_engine_ends_at_a_signal_and_at_the_end_of_its_input(tmp_path: Path, at_socket: bool) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    place = ["--socket", str(tmp_path / "engine")] if at_socket else ["--port", "0"]
    command = [sys.executable, "-m", "odf_engine.engines.grpc_server", "--scratch", str(scratch), *place]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdin is not None
        assert any("listens at grpc://" in line for line in process.stdout)
        if at_socket:
            process.stdin.close()
        else:
            send_to_another_thread(process.pid, signal.SIGTERM)
        assert process.wait(60) == 0
    assert not list(scratch.iterdir())


@given(st.binary(max_size=300))
def test_message_fields_round_trip(data: bytes) -> None:
    assert decode_field(encode_fields(data)) == data
    other = b"\x10\x01" + encode_fields(data) + b"\x1a\x01a"  # fields that this version does not know
    assert decode_field(other) == data
