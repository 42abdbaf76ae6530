"""The manifest's own queries over what was read: steps, errors with their place, order of rows."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import patch

import grpc
import pytest
from msgspec.structs import replace

from odf_engine.base.progress import Reporter
from odf_engine.base.settings import save, set_value, workspace_user_file
from odf_engine.chain import normal_form
from odf_engine.chain.normal_form import spark_engine_version
from odf_engine.data.arrow_schema import decode_schema
from odf_engine.engines.engine_router import engines_for
from odf_engine.engines.grpc_messages import (
    RAW_QUERY,
    SERVICE,
    Line,
    ProgressMessage,
    ResponseExtension,
    decode_field,
    encode,
    encode_fields,
)
from odf_engine.engines.grpc_server import EngineServer
from odf_engine.errors import BadData, Cancelled, InvalidQuery, InvalidSchema, OdfError
from odf_engine.jobs.base import JobContext
from odf_engine.jobs.ingest import Ingest
from odf_engine.jobs.preview import Preview
from odf_engine.jobs.pull import Pull
from odf_engine.metadata.flatbuffers import decode_table, encode_table
from odf_engine.metadata.model import (
    RawQueryInternalError,
    RawQueryInvalidQuery,
    RawQueryProgress,
    RawQueryRequest,
    RawQuerySuccess,
    SetPollingSource,
    Sql,
)
from odf_engine.metadata.yaml import read_manifests
from odf_engine.mirror.catalog import ORIGIN_FILE
from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.workspace.definitions.definition import current_definition
from odf_engine.workspace.trust import Trust
from tests.derive.engine_image import ImageStandIn
from tests.ingest.pulling import Pulled

SOURCE = """
fetch: {{kind: Url, url: in.csv, eventTime: {{kind: FromMetadata}}}}
read: {{kind: Csv, header: true, schema: ["day DATE", "town STRING", "n BIGINT"]}}
preprocess: {preprocess}
merge: {merge}
"""
ROWS = [("2024-01-02", "b", 1), ("2024-01-01", "b", 2), ("2024-01-02", "a", 3), ("2024-01-01", "a", 4)]
TEXT = "day,town,n\n" + "".join(f"{day},{town},{n}\n" for day, town, n in ROWS)


def add(pulled: Pulled, *queries: str, merge: str = "{kind: Append}", name: str = "data") -> None:
    """A dataset with these queries; all but the last are called s1, s2, …"""
    steps = [{"query": query} | ({"alias": f"s{at}"} if at < len(queries) else {})
             for at, query in enumerate(queries, 1)]  # fmt: skip
    preprocess = json.dumps({"kind": "Sql", "engine": "spark", "queries": steps})
    pulled.add(SOURCE.format(preprocess=preprocess, merge=merge), name=name)


def day(number: int) -> datetime:
    return datetime(2024, 1, number, tzinfo=UTC)


def test_query_steps_see_the_input_and_earlier_steps(pulled: Pulled) -> None:
    pulled.write("in.csv", TEXT)
    add(
        pulled,
        "SELECT CAST(day AS TIMESTAMP) AS event_time, town, n FROM input;",
        # A CTE may take the name of what it reads.
        "WITH s1 AS (SELECT * FROM s1 WHERE n < 4) "
        "SELECT *, sum(n) OVER (PARTITION BY town ORDER BY n) AS total FROM s1",
        "SELECT event_time, s2.town, s2.n, total, (SELECT count(*) FROM input) AS lines "
        "FROM s2 LEFT JOIN s1 USING (event_time, town)",
    )
    pulled.pull()
    assert pulled.rows("event_time", "town", "n", "total", "lines") == [
        (day(1), "b", 2, 3, 4), (day(2), "a", 3, 3, 4), (day(2), "b", 1, 1, 4),
    ]  # fmt: skip


def test_condition_on_a_session_applies_to_all_its_rows(pulled: Pulled) -> None:
    pulled.write("in.csv", TEXT)
    add(
        pulled,
        "SELECT session_window.start AS event_time, town, count(*) AS n FROM input "
        "GROUP BY session_window(CAST(day AS TIMESTAMP), '30 hours'), town HAVING session_window.end < "
        "'2024-01-03'",
        "SELECT TIMESTAMP'2024-01-05' AS event_time, count(*) AS n FROM s1",
    )
    pulled.pull()
    assert pulled.rows("n") == [(0,)]


def test_invalid_queries_are_reported_with_their_location(pulled: Pulled) -> None:
    pulled.write("in.csv", TEXT)
    add(pulled, "SELECT * FROM input", "SELECT\n  town,\n  SUM(n FROM s1", name="syntax")
    error = pulled.fails(InvalidQuery, "query step 2 of 2")
    assert "line 3" in str(error.where)
    add(pulled, "SELECT town, m FROM input", "SELECT * FROM s1", name="column")
    pulled.fails(InvalidQuery, "query step 1 of 2", "m")
    add(pulled, "SELECT * FROM s1", "SELECT * FROM s1", name="later")
    pulled.fails(InvalidQuery, "query step 1 of 2", "`input`")
    add(pulled, "DROP TABLE input", name="command")
    pulled.fails(InvalidQuery, "only a single SELECT is allowed")
    pulled.add(SOURCE.format(merge="{kind: Append}", preprocess='{kind: Sql, engine: spark, queries: '
               '[{alias: Input, query: "SELECT 1"}, {query: "SELECT 2"}]}'), name="shadow")  # fmt: skip
    pulled.fails(InvalidQuery, "the alias `Input` of step 1 already exists")
    # Chains of others may have such a query; `odf add` refuses it.
    spark = "{kind: Sql, engine: spark, query: SELECT 1}"
    pulled.add(SOURCE.format(merge="{kind: Append}", preprocess=spark), name="engine")
    state = pulled.dataset.state()
    assert state.polling_source is not None and isinstance(state.polling_source.preprocess, Sql)
    flink = replace(state.polling_source, preprocess=replace(state.polling_source.preprocess, engine="flink"))
    pulled.dataset.commit([flink], system_time=state.system_time, expected_head=state.head)
    pulled.fails(InvalidQuery, "'flink', which is not configured", "use datafusion or spark")
    add(pulled, "SELECT town AS event_time, n FROM input", name="time")
    pulled.fails(
        InvalidSchema, "in.csv", "event time column 'event_time' is a STRING", "CAST(event_time AS TIMESTAMP)"
    )
    add(pulled, "SELECT n, town AS N FROM input", name="twice")
    pulled.fails(InvalidSchema, "'n' and 'N' have the same name")
    add(pulled, "SELECT n AS offset FROM input", name="system")
    pulled.fails(InvalidSchema, "'offset'", "offsetColumn in SetVocab")


def test_query_without_rows_commits_only_the_source_state(pulled: Pulled) -> None:
    path = pulled.write("in.csv", TEXT)
    add(pulled, "SELECT * FROM input WHERE n > 100")
    assert pulled.pull().records == 0
    assert pulled.kinds()[-1] == "AddData"
    assert pulled.newest().new_source_state is not None
    assert pulled.pull().status == "up-to-date"
    path.write_text("day,town,n\n2024-01-05,c,101\n")
    assert pulled.pull().records == 1
    assert pulled.kinds()[-2:] == ["SetDataSchema", "AddData"]


@pytest.mark.parametrize("merge", ["{kind: Append}", "{kind: Ledger, primaryKey: [town, n]}"])
def test_grouped_rows_are_sorted_deterministically(pulled: Pulled, merge: str) -> None:
    # Keys in an order in which no hash would put them; times that are null are those of the file.
    numbers = [(7 * at) % 40 for at in range(40)]
    pulled.write("in.csv", "day,town,n\n" + "".join(f"2024-01-0{1 + n % 3},t{n:02},{n}\n" for n in numbers))
    query = (
        "SELECT if(n % 3 = 2, NULL, CAST(day AS TIMESTAMP)) AS event_time, n, town, count(*) AS c{more} "
        "FROM input GROUP BY ALL"
    )
    add(pulled, query.format(more=""), merge=merge)
    pulled.pull()
    expected = sorted(range(40), key=lambda n: (n % 3, n))
    assert [n for (n,) in pulled.rows("n")] == expected
    if "Append" in merge:  # by Spark, which compares nested values too
        add(pulled, query.format(more=", collect_list(n) AS list"), name="nested")
        pulled.pull()
        assert [n for (n,) in pulled.rows("n")] == expected


def test_filtered_and_exploded_rows_keep_the_file_order(pulled: Pulled) -> None:
    pulled.write("in.csv", TEXT)
    add(pulled, "SELECT n, explode(array(town, upper(town))) AS town FROM input WHERE n <> 2")
    pulled.pull()
    assert pulled.rows("n", "town") == [(1, "b"), (1, "B"), (3, "a"), (3, "A"), (4, "a"), (4, "A")]


@pytest.mark.complete
def test_datafusion_queries_run_and_report_their_errors(pulled: Pulled) -> None:
    path = pulled.write("in.csv", TEXT)
    first = 'SELECT CAST("day" AS TIMESTAMP) AS event_time, town AS "Town", n FROM input'
    second = "SELECT *, arrow_cast(n, 'UInt64') AS u, 7 / 2 AS half FROM \"some rows\" WHERE n <> 2"
    steps = [{"alias": "some rows", "query": first}, {"query": second}]
    preprocess = json.dumps({"kind": "Sql", "engine": "DataFusion", "queries": steps})
    pulled.add(SOURCE.format(preprocess=preprocess, merge="{kind: Append}"))
    pulled.pull()
    expected = [(day(1), "a", 4, 3), (day(2), "b", 1, 3), (day(2), "a", 3, 3)]
    assert pulled.rows("event_time", "Town", "n", "half") == expected
    schema = decode_schema(pulled.dataset.state().schema)
    assert [str(schema.field(name).type) for name in ("event_time", "u")] == [
        "timestamp[ms, tz=UTC]",
        "uint64",
    ]
    path.write_text(f"{TEXT}2024-01-03,c,x\n")
    pulled.fails(BadData, 'in.csv: line 6, column "n"', "'x' is not a BIGINT")
    grouped = "SELECT CAST(min(day) AS TIMESTAMP) AS event_time, town, sum(n) AS n FROM input GROUP BY town"
    path.write_text(TEXT)
    for name, query in {"grouped": grouped, "union": f"{grouped} UNION ALL {grouped}"}.items():
        preprocess = json.dumps({"kind": "Sql", "engine": "datafusion", "query": query})
        pulled.add(SOURCE.format(preprocess=preprocess, merge="{kind: Append}"), name=name)
        pulled.pull()
        assert list(dict.fromkeys(pulled.rows("town", "n"))) == [("a", 7), ("b", 3)]
    for query, kind, parts in (
        (
            "SELECT n, CAST(town AS INT) AS t FROM input",
            BadData,
            ["Cannot cast string 'b' to value of Int32"],
        ),
        ("SELECT n FROM input WHERE N > 1", InvalidQuery, ["column 'N' not found", "case-sensitive"]),
        ("COPY input TO '/tmp/x.csv'", InvalidQuery, ["must be a SELECT, not COPY"]),
    ):
        preprocess = json.dumps({"kind": "Sql", "engine": "datafusion", "query": query})
        pulled.add(SOURCE.format(preprocess=preprocess, merge="{kind: Append}"), name=f"bad{len(query)}")
        pulled.fails(kind, *parts)


@pytest.fixture
def served(runtime: SparkRuntime) -> Iterator[str]:
    server = EngineServer(runtime, "127.0.0.1:0")
    server.start()
    yield f"grpc://127.0.0.1:{server.port}"
    server.stop()


def set_address(pulled: Pulled, engine: str, address: str) -> None:
    pulled.workspace.config = set_value(pulled.workspace.config, f"engines.{engine}", address)


def add_external(
    pulled: Pulled, query: str, engine: str = "flink", *, address: str, merge: str = "{kind: Append}"
) -> None:
    """A dataset whose preprocess query runs in an engine at an address."""
    set_address(pulled, engine, address)
    preprocess = json.dumps({"kind": "Sql", "engine": engine, "query": query})
    pulled.add(SOURCE.format(preprocess=preprocess, merge=merge))


@contextmanager
def external(pulled: Pulled, runtime: SparkRuntime) -> Iterator[dict[str, object]]:
    """The options of a pull with the external engines of the workspace, for one job."""
    with engines_for(pulled.workspace, pulled.entry, lambda: runtime) as engines:
        yield {"find_engine": engines.find_external}


def recorded(pulled: Pulled) -> str | None:
    """The version of the engine in the source of the chain."""
    source = pulled.dataset.state().polling_source
    assert source is not None and source.preprocess is not None
    return source.preprocess.version


@pytest.mark.net
@pytest.mark.parametrize("exchange", [False, True])
def test_external_engine_runs_the_query_and_its_version_is_recorded(
    pulled: Pulled, runtime: SparkRuntime, served: str, tmp_path: Path, exchange: bool
) -> None:
    path = pulled.write("in.csv", TEXT)
    query = "SELECT CAST(day AS TIMESTAMP) AS event_time, town, n * 2 AS n FROM input WHERE n <> 2"
    add_external(pulled, query, address=f"{served}?folder={tmp_path / 'shared'}" if exchange else served)
    assert recorded(pulled) is None
    with external(pulled, runtime) as options:
        assert pulled.pull(**options).records == 3
        assert pulled.rows("event_time", "town", "n") == [
            (day(1), "a", 8), (day(2), "b", 2), (day(2), "a", 6),
        ]  # fmt: skip
        assert recorded(pulled) == spark_engine_version()
        assert pulled.kinds() == ["Seed", "SetPollingSource", "SetPollingSource", "SetDataSchema", "AddData"]
        # No rows, with known columns: the engine writes no file.
        path.write_text("day,town,n\n2024-01-05,c,2\n")
        assert pulled.pull(**options).records == 0
        path.write_text("day,town,n\n2024-01-06,c,5\n")
        assert pulled.pull(**options).records == 1
        assert pulled.kinds()[5:] == ["AddData", "AddData"]  # the version is in the chain already
    if exchange:
        assert [list((tmp_path / "shared" / name).iterdir()) for name in ("in", "out")] == [[], []]


@pytest.mark.net
def test_snapshot_without_rows_from_an_external_engine_retracts_all(
    pulled: Pulled, runtime: SparkRuntime, served: str
) -> None:
    path = pulled.write("in.csv", "day,town,n\n2024-01-05,c,2\n")
    query = "SELECT CAST(day AS TIMESTAMP) AS event_time, town, n FROM input WHERE n < 4"
    add_external(pulled, query, address=served, merge="{kind: Snapshot, primaryKey: [town]}")
    with external(pulled, runtime) as options:
        pulled.pull(**options)
        path.write_text("day,town,n\n2024-01-05,c,9\n")
        pulled.pull(**options)
    assert pulled.rows("op", "town", "n") == [(0, "c", 2), (1, "c", 2)]


@pytest.mark.net
def test_errors_of_an_external_engine_have_their_position(
    pulled: Pulled, runtime: SparkRuntime, served: str
) -> None:
    pulled.write("in.csv", TEXT)
    add_external(pulled, "SELECT town,\n  nothing FROM input", address=served)
    with external(pulled, runtime) as options:
        error = pulled.fails(InvalidQuery, "nothing", **options)
    assert error.where == "query, line 2, column 3" and error.excerpt


Answer = Callable[[RawQueryRequest, grpc.ServicerContext], Iterator[bytes]]


@contextmanager
def answering(answer: Answer) -> Iterator[str]:
    """An engine of another implementation; yield its address."""

    def handle(message: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        yield from answer(decode_table(decode_field(message), RawQueryRequest), context)

    server = grpc.server(ThreadPoolExecutor(1))
    handler = grpc.unary_stream_rpc_method_handler(handle)
    handlers = grpc.method_handlers_generic_handler(SERVICE, {RAW_QUERY: handler})
    server.add_generic_rpc_handlers((handlers,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"grpc://127.0.0.1:{port}"
    finally:
        server.stop(0)


def test_result_that_breaks_the_contract_is_refused(
    pulled: Pulled, runtime: SparkRuntime, tmp_path: Path
) -> None:
    pulled.write("in.csv", TEXT)
    add_external(pulled, "SELECT * FROM input", address="grpc://127.0.0.1:9")

    def copied(request: RawQueryRequest, rows: int) -> RawQuerySuccess:
        shutil.copyfile(request.input_data_paths[0], request.output_data_path)
        return RawQuerySuccess(rows)

    def linked(request: RawQueryRequest) -> RawQuerySuccess:
        Path(request.output_data_path).symlink_to(request.input_data_paths[0])
        return RawQuerySuccess(4)

    def text(request: RawQueryRequest) -> RawQuerySuccess:
        Path(request.output_data_path).write_text("text")
        return RawQuerySuccess(4)

    for index, (work, kind, said) in enumerate((
        (lambda request: RawQuerySuccess(4), BadData, "reported 4 rows, but wrote 0"),
        (lambda request: copied(request, 3), BadData, "reported 3 rows, but wrote 4"),
        (linked, BadData, "not a regular file"),
        (text, BadData, "its data cannot be read"),
        (lambda request: RawQueryInvalidQuery("no such column"), InvalidQuery, "no such column"),
        (lambda request: RawQueryInternalError("no memory"), OdfError, "the engine failed: no memory"),
    )):  # fmt: skip

        def answer(request: RawQueryRequest, context: grpc.ServicerContext, work=work) -> Iterator[bytes]:
            yield encode_fields(encode_table(RawQueryProgress()))
            yield encode_fields(encode_table(work(request)))

        # In a folder of its own, and where the engine sees all files.
        folder = f"?folder={tmp_path / 'shared'}" if index % 2 else ""
        with answering(answer) as address:
            set_address(pulled, "flink", address + folder)
            with external(pulled, runtime) as options:
                pulled.fails(kind, said, **options)


def test_cancelled_pull_ends_the_request_of_an_external_engine(pulled: Pulled, runtime: SparkRuntime) -> None:
    pulled.write("in.csv", TEXT)
    ended = threading.Event()

    def answer(request: RawQueryRequest, context: grpc.ServicerContext) -> Iterator[bytes]:
        context.add_callback(ended.set)
        yield encode_fields(encode_table(RawQueryProgress()))
        pulled.reporter.cancel()
        ended.wait(30)

    with answering(answer) as address:
        add_external(pulled, "SELECT * FROM input", address=address)
        with external(pulled, runtime) as options:
            pulled.fails(Cancelled, **options)
    assert ended.is_set()


def test_upgraded_external_engine_continues_and_is_recorded(pulled: Pulled, runtime: SparkRuntime) -> None:
    path = pulled.write("in.csv", TEXT)
    version = "1.16"

    def answer(request: RawQueryRequest, context: grpc.ServicerContext) -> Iterator[bytes]:
        shutil.copyfile(request.input_data_paths[0], request.output_data_path)
        rows = len(path.read_text().splitlines()) - 1
        progress = ProgressMessage("shuffle", {"rows": 7}, [Line("half done")])
        yield encode_fields(encode_table(RawQueryProgress()), encode(progress))
        yield encode_fields(encode_table(RawQuerySuccess(rows)), encode(ResponseExtension(version)))

    with answering(answer) as address:
        add_external(pulled, "SELECT * FROM input", address=address)
        with external(pulled, runtime) as options:
            pulled.pull(**options)
            assert recorded(pulled) == "1.16"
            assert ("info", "half done") in pulled.reporter.lines
            assert " query shuffle merge " in " ".join(pulled.reporter.phases)
            version = "1.20"
            path.write_text("day,town,n\n2024-01-06,c,5\n")
            assert pulled.pull(**options).records == 1
            assert recorded(pulled) == "1.20"
            assert pulled.kinds()[-2:] == ["SetPollingSource", "AddData"]
            # A changed source of a third party would have to be trusted again.
            (pulled.dataset.folder / ORIGIN_FILE).write_text("https://example.org/data")
            trust = Trust(pulled.workspace)
            trust.grant(pulled.entry)
            version = "1.21"
            path.write_text("day,town,n\n2024-01-07,c,6\n")
            assert pulled.pull(**options).records == 1
            assert recorded(pulled) == "1.20" and trust.is_trusted(pulled.entry)


@pytest.mark.net
@pytest.mark.complete
def test_container_runs_preprocess_queries_by_its_recorded_image(
    pulled: Pulled, runtime: SparkRuntime, served: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    podman = ImageStandIn(tmp_path / "bin", monkeypatch, served)
    path = pulled.write("in.csv", TEXT)
    add_external(pulled, "SELECT CAST(day AS TIMESTAMP) AS event_time, n FROM input", address="container")
    for digest, records in (("a", 4), ("b", 1)):  # the tag moves
        (podman.folder / "digest").write_text(digest * 64)
        with external(pulled, runtime) as options:
            assert pulled.pull(**options).records == records
        assert str(recorded(pulled)).endswith("@sha256:" + "a" * 64)
        assert podman.calls("run")[-1][-1] == recorded(pulled)
        path.write_text("day,town,n\n2024-01-06,c,5\n")
    assert podman.running == []


def test_version_of_a_built_in_engine_is_recorded_and_updated_with_rows(pulled: Pulled) -> None:
    path = pulled.write("in.csv", TEXT)
    with patch.dict(normal_form._PACKAGES, {normal_form.SPARK: ("pyspark", 5)}):
        add(pulled, "SELECT * FROM input")
        old = spark_engine_version()
    assert recorded(pulled) == old != spark_engine_version()
    # The definition of users has no version, and does not change the one in the chain.
    definition = current_definition(pulled.entry)
    source = definition.metadata[0]
    assert isinstance(source, SetPollingSource) and source.preprocess is not None
    assert source.preprocess.version is None
    assert pulled.workspace.update([definition])[0].events == []
    pulled.pull()
    assert recorded(pulled) == spark_engine_version()
    assert pulled.kinds() == ["Seed", "SetPollingSource", "SetPollingSource", "SetDataSchema", "AddData"]
    path.write_text("day,town,n\n2024-01-06,c,5\n")
    pulled.pull()
    assert pulled.kinds()[5:] == ["AddData"]


PUSH = """
kind: DatasetSnapshot
version: 1
content:
  name: pushed
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: default
      read: {kind: Csv, header: true, schema: ["day DATE", "town STRING", "n BIGINT"]}
      preprocess: {kind: Sql, engine: spark, query: "SELECT * FROM input WHERE n > 0"}
      merge: {kind: Append}
"""


@pytest.mark.net
def test_jobs_send_preprocess_queries_to_the_configured_engine(
    pulled: Pulled, runtime: SparkRuntime, tmp_path: Path
) -> None:
    path = pulled.write("in.csv", TEXT)
    sent: list[str] = []

    class Host:
        folder = pulled.workspace.folder

        def spark(self, reporter: Reporter) -> SparkRuntime:
            return runtime

    def answer(request: RawQueryRequest, context: grpc.ServicerContext) -> Iterator[bytes]:
        sent.append((request.transform.queries or [])[0].query)
        shutil.copyfile(request.input_data_paths[0], request.output_data_path)
        yield encode_fields(encode_table(RawQuerySuccess(4)), encode(ResponseExtension("1.16")))

    with answering(answer) as address:
        add_external(pulled, "SELECT * FROM input", engine="spark", address=address)
        (pushed,) = pulled.workspace.add(read_manifests(PUSH, "test.yaml"))
        settings = workspace_user_file(pulled.workspace.odf)
        settings.parent.mkdir(parents=True, exist_ok=True)
        save(pulled.workspace.config, settings)
        context = JobContext(Host())
        assert Preview(str(pulled.entry.id)).run(context, Reporter()).rows == 4
        assert Pull(str(pulled.entry.id)).run(context, Reporter()).records == 4
        assert Ingest(str(pushed.id), [str(path)]).run(context, Reporter()).records == 4
    assert sent == ["SELECT * FROM input"] * 2 + ["SELECT * FROM input WHERE n > 0"]
    source = pushed.dataset.state().push_sources["default"]
    assert source.preprocess is not None and (source.preprocess.version, recorded(pulled)) == ("1.16", "1.16")
