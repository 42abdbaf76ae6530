"""``odf serve --flight``: the queries, errors and limits that clients of Flight SQL get."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import adbc_driver_flightsql.dbapi as flightsql
import adbc_driver_manager as adbc
import polars
import pyarrow as pa
import pytest
from adbc_driver_flightsql import DatabaseOptions
from pyarrow import flight

from odf_engine.base.progress import Reporter
from odf_engine.errors import InvalidQuery
from odf_engine.jobs.query import Query
from odf_engine.net.protobuf import encode_bytes
from odf_engine.sync.server.flight.messages import Message, wrap
from odf_engine.worker.client import run_job
from odf_engine.worker.job_log import read_journal
from odf_engine.worker.protocol import JobState
from odf_engine.workspace.tokens import Tokens
from odf_engine.workspace.workspace import Workspace
from tests.ingest.ftp_server import make_certificate
from tests.open_files import count_open_files
from tests.sync.builders import add_slices, make_root
from tests.waiting import send_to_another_thread, wait_until

pytestmark = pytest.mark.net

NUMBERS = "range(1000000)"
ENDLESS = f"SELECT count(*) FROM {NUMBERS} a, {NUMBERS} b, {NUMBERS} c WHERE a.range + b.range < c.range"
LARGE = "SELECT range AS n, repeat('x', 200) AS t FROM range(2000000)"


@contextmanager
def serving(workspace: Workspace, *options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run the command; yield its URL and its process."""
    command = [sys.executable, "-c", "from odf_tui.main import main; main()"]
    command += ["serve", "-w", str(workspace.folder), "--flight", "--port", "0", "--json", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())["url"], process
    finally:
        process.kill()
        process.communicate()


def make_workspace(folder: Path, **limits: float) -> Workspace:
    """Return a workspace with two datasets, and limits of the server."""
    workspace = Workspace.init(folder)
    if limits:
        workspace.config_path.write_text(f"serve: {json.dumps(limits)}\n")
    entry = make_root(workspace, "city.people", slices=2)
    add_slices(entry, 1, city="Rome")
    make_root(workspace, "hidden.people", slices=1)
    return workspace


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return make_workspace(tmp_path_factory.mktemp("flight") / "ws")


@pytest.fixture(scope="module")
def url(workspace: Workspace) -> Iterator[str]:
    with serving(workspace, "--dataset", "city.%") as (url, _):
        yield url


@pytest.fixture(scope="module")
def protected(workspace: Workspace) -> Iterator[tuple[str, str]]:
    _, text = Tokens(workspace.odf).create("reader")
    with serving(workspace, "--require-token") as (url, _):
        yield url, text


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    limits = {"queries": 1, "idleSeconds": 5, "querySeconds": 20, "maxQueryRows": 100_000}
    with serving(make_workspace(tmp_path_factory.mktemp("small") / "ws", **limits)) as (url, _):
        yield url


@pytest.fixture
def connection(url: str) -> Iterator[Any]:
    with flightsql.connect(url, autocommit=True) as connection:
        yield connection


def rows(connection: Any, sql: str, parameters: Any = None) -> list[dict[str, Any]]:
    """Return the rows of a query."""
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        return cursor.fetch_arrow_table().to_pylist()


def command(name: str, *fields: bytes) -> flight.FlightDescriptor:
    return flight.FlightDescriptor.for_command(wrap(name, b"".join(fields)))


def statement(sql: str) -> flight.FlightDescriptor:
    return command("CommandStatementQuery", encode_bytes(1, sql.encode()))


def read(client: flight.FlightClient, info: flight.FlightInfo) -> flight.FlightStreamReader:
    return client.do_get(info.endpoints[0].ticket)


class TestCatalog:
    def test_tables_are_the_selected_datasets_with_their_columns(self, connection: Any) -> None:
        (catalog,) = connection.adbc_get_objects(depth="columns").read_all().to_pylist()
        (schema,) = catalog["catalog_db_schemas"]
        (table,) = schema["db_schema_tables"]
        assert (catalog["catalog_name"], schema["db_schema_name"]) == ("odf", "datasets")
        assert (table["table_name"], table["table_type"]) == ("city.people", "TABLE")
        names = [column["column_name"] for column in table["table_columns"]]
        assert names == ["offset", "op", "system_time", "event_time", "city", "people"]

    def test_schema_of_a_table_is_the_schema_of_its_rows(self, connection: Any) -> None:
        schema = connection.adbc_get_table_schema("city.people")
        with connection.cursor() as cursor:
            cursor.execute("SELECT * FROM city.people")
            assert cursor.fetch_arrow_table().schema == schema

    @pytest.mark.parametrize(
        ("pattern", "expected"), [("city%", 1), ("CITY%", 0), ("city_people", 1), ("city", 0), ("hidden%", 0)]
    )
    def test_tables_are_filtered_by_pattern(self, connection: Any, pattern: str, expected: int) -> None:
        objects = connection.adbc_get_objects(depth="tables", table_name_filter=pattern)
        (catalog,) = objects.read_all().to_pylist()
        tables = [table for part in catalog["catalog_db_schemas"] for table in part["db_schema_tables"] or ()]
        assert len(tables) == expected

    def test_info_names_the_server(self, connection: Any) -> None:
        info = connection.adbc_get_info()
        assert info["vendor_name"] == "odf"
        assert info["vendor_arrow_version"] == pa.__version__

    def test_key_of_a_dataset_without_one_is_empty(self, url: str) -> None:
        with flight.connect(url) as client:
            info = client.get_flight_info(command("CommandGetPrimaryKeys", encode_bytes(3, b"city.people")))
            assert info.schema.names[-2:] == ["key_sequence", "key_name"]
            assert read(client, info).read_all().num_rows == 0


class TestQueries:
    def test_rows_of_a_dataset(self, connection: Any) -> None:
        query = "SELECT city, count(*) AS n FROM city.people GROUP BY city ORDER BY city"
        assert rows(connection, query) == [{"city": "Bern", "n": 6}, {"city": "Rome", "n": 3}]

    def test_name_with_catalog_and_schema(self, connection: Any) -> None:
        query = 'SELECT max(t."people") AS n FROM odf.datasets."city.people" AS t'
        assert rows(connection, query) == [{"n": 8}]

    def test_as_at_reads_an_earlier_version(self, connection: Any) -> None:
        assert rows(connection, "SELECT count(*) AS n FROM as_at(city.people, 2)") == [{"n": 3}]

    def test_prepared_query_runs_with_other_parameters(self, connection: Any) -> None:
        query = "SELECT count(*) AS n FROM city.people WHERE people >= ? AND city = ?"
        with connection.cursor() as cursor:
            assert cursor.adbc_prepare(query).names == ["1", "2"]
            for values, count in [((0, "Bern"), 6), ((4, "Bern"), 2), ((4, "Rome"), 3)]:
                cursor.execute(query, values)
                assert cursor.fetchall() == [(count,)]

    def test_wrong_number_of_parameters(self, connection: Any) -> None:
        with pytest.raises(adbc.Error, match="parameters is 1, but the number of values 2"):
            rows(connection, "SELECT ? + 1", (1, 2))
        with pytest.raises(adbc.Error, match="parameters is 1, but the number of values 0"):
            rows(connection, "SELECT $name + 1")

    def test_result_has_plain_types(self, connection: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 'a' AS t, 'b'::BLOB AS b, 1::HUGEINT AS h, INTERVAL 1 DAY AS i, [1] AS l")
            types = cursor.fetch_arrow_table().schema.types
        assert types == [pa.string(), pa.binary(), pa.decimal128(38), pa.string(), pa.list_(pa.int32())]

    def test_schema_of_a_query_without_running_it(self, url: str) -> None:
        with flight.connect(url) as client:
            assert client.get_schema(statement(ENDLESS + " LIMIT 1")).schema.names == ["count_star()"]

    @pytest.mark.parametrize(
        ("sql", "count"),
        [
            ("WITH a AS (FROM city.people), b AS (FROM a) SELECT * FROM b JOIN A USING (\"offset\")", 9),
            ("WITH RECURSIVE t AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM t WHERE n < 4) FROM t", 4),
            ("FROM city.people AS a ASOF JOIN city.people AS b ON a.people >= b.people", 9),
            ("SELECT p.people, u FROM city.people AS p, LATERAL (SELECT unnest([p.people, 0]) AS u)", 18),
            ("SELECT sum(people) OVER w FROM city.people WINDOW w AS (ORDER BY people) QUALIFY true", 9),
            ("FROM (PIVOT (FROM city.people) ON city IN ('Bern', 'Rome') USING sum(people) GROUP BY op)", 1),
            ("SELECT * FROM (VALUES (1), (2)) AS t(n) UNION ALL SELECT * FROM generate_series(1, 3)", 5),
            ("SUMMARIZE SELECT * FROM city.people", 6),
            ("SELECT * RENAME (people AS n) FROM city.people", 9),
            ("SELECT * REPLACE (people + 1 AS people) FROM city.people", 9),
            ("SELECT key FROM json_each('{\"a\": 1, \"b\": 2}')", 2),
            ("SELECT 'duckdb_views' AS pg_class, [x + 1 FOR x IN range(3)] FROM repeat(1, 3)", 3),
            pytest.param(f"SELECT {'+ people ' * 500} AS n FROM city.people", 9, id="500 levels"),
        ],
    )  # fmt: skip
    def test_queries_of_the_allowed_syntax(self, connection: Any, sql: str, count: int) -> None:
        assert len(rows(connection, sql)) == count

    def test_polars_reads_over_the_connection(self, connection: Any) -> None:
        frame = polars.read_database("SELECT sum(people) AS n FROM city.people", connection)
        assert frame["n"].to_list() == [36]

    def test_large_result_is_complete(self, connection: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute(LARGE)
            total = sum(sum(batch["n"].to_pylist()) for batch in cursor.fetch_record_batch())
        assert total == sum(range(2_000_000))

    def test_32_clients_at_the_same_time(self, url: str) -> None:
        def run(number: int) -> list[int]:
            with flightsql.connect(url, autocommit=True) as connection:
                query = "SELECT people + ? AS n FROM city.people, range(20000) ORDER BY n"
                return [row["n"] for row in rows(connection, query, (number,))]

        with ThreadPoolExecutor(32) as pool:
            for number, values in enumerate(pool.map(run, range(32))):
                assert values == [number + value for value in range(9) for _ in range(20000)]


class TestRefusals:
    @pytest.mark.parametrize(
        ("sql", "message"),
        [
            ("COPY (SELECT 1) TO '/tmp/x.csv'", "a query must be one SELECT"),
            ("-- SELECT 1", "a query must be one SELECT"),
            ("SELECT 1) AS t, duckdb_views(), (SELECT 1", "syntax error"),
            ("SELECT 1; SELECT 2", "a query must be one SELECT"),
            ("INSERT INTO city.people VALUES (1)", "a query must be one SELECT"),
            ("SELECT * FROM read_csv('/etc/passwd')", "clients cannot call the table function 'read_csv'"),
            ("SELECT * FROM '/etc/passwd'", "a client cannot read files"),
            ("SELECT * FROM city.people, duckdb_views()", "table function 'duckdb_views'"),
            ('SELECT * FROM city.people, "DUCKDB_VIEWS"()', "table function 'duckdb_views'"),
            ("SELECT * FROM information_schema.views", "reads the catalog of this server"),
            ("SELECT current_setting('allowed_paths')", "reads the catalog of this server"),
            ("SELECT * FROM query('SELECT sql FROM duckdb_' || 'views()')", "table function 'query'"),
            ("SELECT * FROM query_table('duckdb_views')", "table function 'query_table'"),
            ("SELECT * FROM pg_settings", "reads the catalog"),
            ("SELECT pg_get_viewdef(1) FROM city.people", "reads the catalog"),
            ("SHOW DATABASES", "cannot be listed in SQL"),
            ("SELECT * FROM (SHOW ALL TABLES)", "cannot be listed in SQL"),
            ("FROM (PIVOT city.people ON city IN ('Bern') USING sum(op))", "dataset 'city.people' cannot"),
            ("SELECT 1 +", "query, line 1, column 1"),
            ("SELECT * FROM city.persons", "dataset 'city.persons' not found"),
            ("SELECT * FROM hidden.people", "dataset 'hidden.people' not found"),
            ("SELECT * FROM odf.datasets.\"hidden.people\"", "dataset 'hidden.people' not found"),
            ("SELECT * FROM as_at(hidden.people, 1)", "dataset 'hidden.people' not found"),
            ("SELECT nothing FROM city.people", "line 1, column 8: column 'nothing' not found"),
            ("SELECT 'x'::INT + offset FROM city.people", "Could not convert string"),
        ],
    )  # fmt: skip
    def test_refused_query(self, connection: Any, sql: str, message: str) -> None:
        with pytest.raises(adbc.Error) as error:
            rows(connection, sql)
        assert message in str(error.value)
        assert "Traceback" not in str(error.value) and ".odf" not in str(error.value)

    def test_hint_does_not_name_a_hidden_dataset(self, connection: Any) -> None:
        with pytest.raises(adbc.Error) as error:
            rows(connection, "SELECT * FROM people")
        assert "did you mean" not in str(error.value) or "city.people" in str(error.value)
        assert "hidden" not in str(error.value)

    def test_ingestion_is_refused(self, url: str) -> None:
        table = pa.table({"people": [1]})
        with flight.connect(url) as client:
            writer, _ = client.do_put(command("CommandStatementIngest"), table.schema)
            with pytest.raises(flight.FlightUnauthorizedError, match="the datasets are read-only"):
                writer.close()

    def test_transactions_are_refused(self, url: str) -> None:
        action = flight.Action("BeginTransaction", wrap("ActionBeginTransactionRequest", b""))
        with flight.connect(url) as client, pytest.raises(flight.FlightUnauthorizedError, match="read-only"):
            list(client.do_action(action))

    def test_malformed_command(self, url: str) -> None:
        with flight.connect(url) as client, pytest.raises(flight.FlightServerError, match="is malformed"):
            client.get_flight_info(flight.FlightDescriptor.for_command(b"\x0a\xff"))


class TestErrors:
    @pytest.mark.parametrize(
        ("sql", "message"),
        [
            ("SELEC 1", "query, line 1, column 1: syntax error at or near"),
            ("SELECT 1,\n x FROM city.people", "line 2, column 2: column"),
            ("SELECT 'x'::INT", "Could not convert string 'x'"),
            ("SELECT * FROM duckdb_views()", "cannot call the table function"),
            ("SELECT 1\nFROM city.persons", "query, line 2, column 6: dataset"),
            ("SELECT * FROM as_at(city.persons, 1)", "dataset 'city.persons' not found"),
            ("INSERT INTO t VALUES (1)", "data can only be read: write a SELECT"),
            ("SELECT ?", "the number of parameters is 1, but the number of values 0"),
        ],
    )  # fmt: skip
    def test_invalid_query_has_its_status(self, url: str, connection: Any, sql: str, message: str) -> None:
        with pytest.raises(adbc.ProgrammingError) as error:
            rows(connection, sql)
        assert error.value.status_code == adbc.AdbcStatusCode.INVALID_ARGUMENT
        assert message in str(error.value)
        assert "Traceback" not in str(error.value) and ".py" not in str(error.value)
        with flight.connect(url) as client, pytest.raises(pa.ArrowInvalid) as other:
            client.get_flight_info(statement(sql))
        assert message in str(other.value)
        assert "Traceback" not in str(other.value) and ".py" not in str(other.value)

    def test_value_larger_than_a_message_is_an_error(self, connection: Any) -> None:
        query = "SELECT n, repeat('x', n) AS text FROM (VALUES (1), (20000000)) AS t(n)"
        message = r"a row has 20,000,\d+ bytes, and the limit is 16,711,680 \(hint: select a part of column"
        with pytest.raises(adbc.ProgrammingError, match=message):
            rows(connection, query)
        assert len(rows(connection, query.replace("20000000", "16700000"))) == 2

    def test_batches_with_large_rows_are_split(self, connection: Any) -> None:
        size = "CASE WHEN range BETWEEN 50 AND 55 THEN 7000000 ELSE 1 END"
        query = f"SELECT range AS n, repeat('x', {size}) AS t FROM range(10000)"
        assert [len(row["t"]) for row in rows(connection, query)[49:57]] == [1, *[7_000_000] * 6, 1]

    def test_adbc_ingest_is_refused(self, connection: Any) -> None:
        for mode in ("create", "append"):
            with (
                connection.cursor() as cursor,
                pytest.raises(adbc.ProgrammingError, match="the datasets are read-only") as error,
            ):
                cursor.adbc_ingest("city.people", pa.table({"people": [1]}), mode=mode)
            assert error.value.status_code == adbc.AdbcStatusCode.UNAUTHORIZED

    def test_unknown_action_is_unsupported(self, url: str) -> None:
        action = flight.Action("CreatePreparedSubstraitPlan", b"")
        with (
            flight.connect(url) as client,
            pytest.raises(pa.ArrowNotImplementedError, match="CreatePrepared"),
        ):
            list(client.do_action(action))


class TestTokens:
    def test_bearer_token(self, protected: tuple[str, str]) -> None:
        url, token = protected
        header = {DatabaseOptions.AUTHORIZATION_HEADER.value: f"Bearer {token}"}
        with flightsql.connect(url, header, autocommit=True) as connection:
            assert rows(connection, "SELECT 1 AS n") == [{"n": 1}]

    def test_token_as_password(self, protected: tuple[str, str]) -> None:
        url, token = protected
        with flightsql.connect(url, {"username": "me", "password": token}, autocommit=True) as connection:
            assert rows(connection, "SELECT count(*) AS n FROM city.people") == [{"n": 9}]

    @pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer no"}, {"authorization": "Basic !"}])
    def test_without_a_valid_token_nothing_is_answered(
        self, protected: tuple[str, str], headers: dict[str, str]
    ) -> None:
        options = flight.FlightCallOptions(headers=[(key.encode(), headers[key].encode()) for key in headers])
        with flight.connect(protected[0]) as client:
            for call in (
                lambda: client.get_flight_info(statement("SELECT 1"), options),
                lambda: client.get_schema(statement("SELECT 1"), options),
                lambda: client.do_get(flight.Ticket(wrap("CommandGetTables", b"")), options).read_all(),
                lambda: list(client.do_action(flight.Action("CancelFlightInfo", b""), options)),
                lambda: client.list_actions(options),
            ):
                with pytest.raises(
                    (flight.FlightUnauthenticatedError, OSError), match="Unauthenticated"
                ) as error:
                    call()
                assert "token" in str(error.value)

    def test_wrong_password(self, protected: tuple[str, str]) -> None:
        with pytest.raises(adbc.Error, match=r"(?i)unauthenticated"):
            flightsql.connect(protected[0], {"username": "me", "password": "odf_x"}, autocommit=True)

    def test_revoked_token_is_rejected_immediately(
        self, workspace: Workspace, protected: tuple[str, str]
    ) -> None:
        _, token = Tokens(workspace.odf).create("short")
        options = flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {token}".encode())])
        with flight.connect(protected[0]) as client:
            client.get_flight_info(statement("SELECT 1"), options)
            Tokens(workspace.odf).revoke("short")
            with pytest.raises(flight.FlightUnauthenticatedError):
                client.get_flight_info(statement("SELECT 1"), options)

    def test_result_belongs_to_its_token(self, workspace: Workspace, protected: tuple[str, str]) -> None:
        _, other = Tokens(workspace.odf).create("other", ["hidden.%"])
        own, foreign = (
            flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {token}".encode())])
            for token in (protected[1], other)
        )
        with flight.connect(protected[0]) as client:
            info = client.get_flight_info(statement("SELECT sum(people) AS n FROM city.people"), own)
            ticket = info.endpoints[0].ticket
            with pytest.raises(flight.FlightServerError, match="expired"):
                client.do_get(ticket, foreign).read_all()
            assert client.do_get(ticket, own).read_all().to_pylist() == [{"n": 36}]

    def test_token_reads_only_its_datasets(self, workspace: Workspace, protected: tuple[str, str]) -> None:
        hidden = workspace.resolve("hidden.people")
        for name, pattern, allowed, other in [
            ("by-name", "city.%", "city.people", "hidden.people"),
            ("by-id", str(hidden.id), "hidden.people", "city.people"),
        ]:
            _, token = Tokens(workspace.odf).create(name, [pattern])
            header = {DatabaseOptions.AUTHORIZATION_HEADER.value: f"Bearer {token}"}
            with flightsql.connect(protected[0], header, autocommit=True) as connection:
                (catalog,) = connection.adbc_get_objects(depth="tables").read_all().to_pylist()
                (schema,) = catalog["catalog_db_schemas"]
                assert [table["table_name"] for table in schema["db_schema_tables"]] == [allowed]
                assert rows(connection, f"SELECT count(*) > 0 AS n FROM {allowed}") == [{"n": True}]
                assert connection.adbc_get_table_schema(allowed).names
                entry = workspace.resolve(other)
                for query in (other, f"as_at({other}, 1)", f'"{entry.id}"'):
                    with pytest.raises(adbc.Error, match="not found") as error:
                        rows(connection, f"SELECT * FROM {query}")
                    assert f"did you mean {other}" not in str(error.value)
                with pytest.raises(adbc.Error):
                    connection.adbc_get_table_schema(other)
            options = flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {token}".encode())])
            keys = flight.Ticket(wrap("CommandGetPrimaryKeys", encode_bytes(3, other.encode())))
            with flight.connect(protected[0]) as client, pytest.raises(pa.ArrowException, match="not found"):
                client.do_get(keys, options).read_all()


class TestClients:
    """The server runs two queries at a time: each client one."""

    def test_client_with_unread_results_does_not_stop_others(self, tmp_path: Path) -> None:
        workspace = make_workspace(tmp_path / "ws", queries=2, idleSeconds=600)
        tokens = [Tokens(workspace.odf).create(name)[1] for name in ("first", "second")]
        first, second = ([(b"authorization", f"Bearer {token}".encode())] for token in tokens)
        options = flight.FlightCallOptions(headers=first)
        with serving(workspace, "--require-token") as (url, _), flight.connect(url) as client:
            large = client.get_flight_info(statement(LARGE), options)
            with pytest.raises(flight.FlightTimedOutError):
                client.get_flight_info(statement(LARGE), flight.FlightCallOptions(timeout=2, headers=first))
            limited = flight.FlightCallOptions(timeout=60, headers=second)
            small = client.get_flight_info(statement("SELECT 1 AS n"), limited)
            assert client.do_get(small.endpoints[0].ticket, limited).read_all().to_pylist() == [{"n": 1}]
            with ThreadPoolExecutor(1) as pool:
                waiting = pool.submit(client.get_flight_info, statement("SELECT 2 AS n"), options)
                assert client.do_get(large.endpoints[0].ticket, options).read_all().num_rows == 2_000_000
                info = waiting.result(60)
            assert client.do_get(info.endpoints[0].ticket, options).read_all().to_pylist() == [{"n": 2}]

    def test_client_with_many_results_does_not_drop_results_of_others(self, tmp_path: Path) -> None:
        workspace = make_workspace(tmp_path / "ws")
        tokens = [Tokens(workspace.odf).create(name)[1] for name in ("first", "second")]
        first, second = (
            flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {token}".encode())])
            for token in tokens
        )
        with serving(workspace, "--require-token") as (url, _), flight.connect(url) as client:
            kept = client.get_flight_info(statement("SELECT 3 AS n"), second)
            infos = [client.get_flight_info(statement("SELECT 1 AS n"), first) for _ in range(257)]
            assert client.do_get(kept.endpoints[0].ticket, second).read_all().to_pylist() == [{"n": 3}]
            with pytest.raises(flight.FlightServerError, match="the result was read or has expired"):
                client.do_get(infos[0].endpoints[0].ticket, first).read_all()
            assert client.do_get(infos[-1].endpoints[0].ticket, first).read_all().num_rows == 1


class TestLimits:
    """Only one query runs at a time, so that a query that was not freed would block the next one."""

    def check_free(self, url: str) -> None:
        with flightsql.connect(url, autocommit=True) as connection:
            assert rows(connection, "SELECT 1 AS n") == [{"n": 1}]

    def test_client_that_drops_in_the_middle(self, small: str) -> None:
        with flight.connect(small) as client:
            stream = read(client, client.get_flight_info(statement(LARGE)))
            assert stream.read_chunk().data.num_rows
            stream.cancel()
        self.check_free(small)

    def test_client_that_disconnects_before_the_first_row(self, small: str) -> None:
        with flight.connect(small) as client, pytest.raises(flight.FlightTimedOutError):
            client.get_flight_info(statement(ENDLESS), flight.FlightCallOptions(timeout=1))
        self.check_free(small)

    def test_client_that_never_reads_its_stream(self, small: str) -> None:
        with flight.connect(small) as client:
            stream = read(client, client.get_flight_info(statement(LARGE)))
            self.check_free(small)
            with pytest.raises(flight.FlightTimedOutError, match="the client read no rows for 5 seconds"):
                stream.read_all()

    def test_result_that_is_never_claimed(self, small: str) -> None:
        with flight.connect(small) as client:
            info = client.get_flight_info(statement(LARGE))
            self.check_free(small)
            with pytest.raises(flight.FlightError, match="read no rows for 5 seconds"):
                read(client, info).read_all()

    def test_cancelled_query(self, small: str) -> None:
        with flight.connect(small) as client:
            info = client.get_flight_info(statement(LARGE))
            action = flight.Action("CancelFlightInfo", encode_bytes(1, info.serialize()))
            (answer,) = client.do_action(action)
            assert Message(answer.body.to_pybytes()).numbers(1) == [1]  # CANCELLED
            with pytest.raises(flight.FlightServerError, match="the result was read or has expired"):
                read(client, info).read_all()
        self.check_free(small)

    def test_too_many_rows(self, small: str) -> None:
        with flightsql.connect(small, autocommit=True) as connection:
            with pytest.raises(adbc.Error, match="more than 100,000 rows, the limit of this server"):
                rows(connection, "SELECT * FROM range(100001)")
            assert len(rows(connection, "SELECT * FROM range(100000)")) == 100_000

    def test_too_many_seconds(self, small: str) -> None:
        with (
            flightsql.connect(small, autocommit=True) as connection,
            pytest.raises(adbc.Error, match="more than 20 seconds, the limit of this server"),
        ):
            rows(connection, ENDLESS)


SPARK = {"adbc.flight.sql.rpc.call_header.odf-engine": "spark"}
ENDLESS_IN_SPARK = "SELECT count(*) FROM range(10000000000) WHERE pow(id, 3) + sin(id) < 0"


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Workspace, str, int]]:
    workspace = make_workspace(tmp_path_factory.mktemp("spark") / "ws", spark=True, maxQueryRows=100_000)
    with serving(workspace, "--dataset", "city.%") as (url, process):
        yield workspace, url, process.pid
    subprocess.run([sys.executable, "-m", "odf_tui", "-w", workspace.folder, "worker", "stop"], check=True)


@pytest.mark.spark
class TestSpark:
    def test_header_selects_the_engine_and_its_dialect(self, spark: tuple[Workspace, str, int]) -> None:
        _, url, _ = spark
        query = "SELECT city, people, system_time FROM city.people ORDER BY offset"
        with (
            flightsql.connect(url, SPARK, autocommit=True) as spark_connection,
            flightsql.connect(url, autocommit=True) as duckdb_connection,
        ):
            assert rows(spark_connection, query) == rows(duckdb_connection, query)
            assert rows(spark_connection, "SELECT typeof(1L) AS t") == [{"t": "bigint"}]
            assert len(rows(spark_connection, "SELECT * FROM as_at(city.people, 3)")) == 6
            assert spark_connection.adbc_get_objects(depth="tables").read_all().num_rows == 1

    def test_schema_of_a_query(self, spark: tuple[Workspace, str, int]) -> None:
        options = flight.FlightCallOptions(headers=[(b"odf-engine", b"spark")])
        with flight.connect(spark[1]) as client:
            schema = client.get_schema(statement("SELECT 1L AS n, current_date() AS d"), options).schema
        assert schema.names == ["n", "d"]
        assert schema.types == [pa.int64(), pa.date32()]

    @pytest.mark.parametrize(
        ("query", "parameters", "message"),
        [
            ("SELECT * FROM hidden.people", None, "'hidden.people' not found .hint: list the tables"),
            ("SELECT * FROM current(hidden.people, city)", None, "'hidden.people' not found"),
            ("TABLE hidden.people", None, "not found"),
            ("SELECT nothing FROM city.people", None, "line 1, column 8: column `nothing` not found"),
            ("SELECT * FROM parquet.`/etc/passwd`", None, "not found"),
            ("CREATE TABLE t (n INT)", None, "only a single SELECT is allowed"),
            ("SELECT ? AS n", [1], r"cannot have parameters.*hint: write the values"),
            ("SELECT * FROM range(100001)", None, "more than 100,000 rows, the limit of this server"),
        ],
    )
    def test_refused_queries(
        self, spark: tuple[Workspace, str, int], query: str, parameters: Any, message: str
    ) -> None:
        with (
            flightsql.connect(spark[1], SPARK, autocommit=True) as connection,
            pytest.raises(adbc.Error, match=message),
        ):
            rows(connection, query, parameters)

    def test_disconnected_client_ends_its_job(self, spark: tuple[Workspace, str, int]) -> None:
        workspace, url, _ = spark
        options = flight.FlightCallOptions(timeout=5, headers=[(b"odf-engine", b"spark")])
        with flight.connect(url) as client, pytest.raises(flight.FlightTimedOutError):
            client.get_flight_info(statement(ENDLESS_IN_SPARK), options)

        def states() -> list[JobState]:
            jobs = read_journal(workspace.folder).jobs()
            return [job.state for job in jobs if job.target.startswith(ENDLESS_IN_SPARK[:50])]

        wait_until(lambda: states() == [JobState.cancelled], what=lambda: str(states()))
        assert not list((workspace.odf / "cache").glob("query-*/*"))

    @pytest.mark.complete
    def test_killed_server_ends_its_job(self, spark: tuple[Workspace, str, int]) -> None:
        workspace = spark[0]
        headers = [(b"odf-engine", b"spark")]
        query = ENDLESS_IN_SPARK.replace("(*)", "(*) AS killed")

        def states() -> list[JobState]:
            jobs = read_journal(workspace.folder).jobs()
            return [job.state for job in jobs if "killed" in job.target]

        with serving(workspace, "--dataset", "city.%") as (url, process), flight.connect(url) as client:
            with ThreadPoolExecutor(1) as pool:
                options = flight.FlightCallOptions(headers=headers)
                call = pool.submit(client.get_flight_info, statement(query), options)
                wait_until(lambda: states() == [JobState.running], what=lambda: str(states()))
                process.kill()
                with pytest.raises(flight.FlightError):
                    call.result()
            wait_until(lambda: states() == [JobState.cancelled], what=lambda: str(states()))

    def test_cancelled_result_is_removed(self, spark: tuple[Workspace, str, int]) -> None:
        workspace, url, pid = spark
        options = flight.FlightCallOptions(headers=[(b"odf-engine", b"spark")])
        query = statement("SELECT repeat('x', 200) AS t FROM range(50000)")
        with flight.connect(url) as client:
            info = client.get_flight_info(query, options)
            assert count_open_files(workspace.odf / "cache", pid) == 1
            list(client.do_action(flight.Action("CancelFlightInfo", encode_bytes(1, info.serialize()))))
        assert count_open_files(workspace.odf / "cache", pid) == 0

    @pytest.mark.complete
    def test_query_in_spark_does_not_occupy_the_slots_of_duckdb(
        self, spark: tuple[Workspace, str, int]
    ) -> None:
        options = flight.FlightCallOptions(timeout=20, headers=[(b"odf-engine", b"spark")])
        with flight.connect(spark[1]) as client, ThreadPoolExecutor(5) as pool:
            calls = [
                pool.submit(client.get_flight_info, statement(ENDLESS_IN_SPARK), options) for _ in range(5)
            ]
            with flightsql.connect(spark[1], autocommit=True) as connection:
                assert rows(connection, "SELECT 1 AS n") == [{"n": 1}]
            assert not any(call.done() for call in calls)
            for call in calls:
                with pytest.raises(flight.FlightTimedOutError):
                    call.result()

    def test_rows_with_too_many_bytes(self, spark: tuple[Workspace, str, int]) -> None:
        request = Query("SELECT repeat('x', 1000) AS t FROM range(100)", engine="duckdb", max_bytes=10_000)
        with pytest.raises(InvalidQuery, match="more than 10,000 bytes"):
            run_job(spark[0].folder, request, "query", Reporter())

    def test_header_is_refused_without_the_setting(self, url: str) -> None:
        with (
            flightsql.connect(url, SPARK, autocommit=True) as connection,
            pytest.raises(adbc.NotSupportedError, match="omit the header odf-engine"),
        ):
            rows(connection, "SELECT 1")

    def test_unknown_engine(self, url: str) -> None:
        with (
            flightsql.connect(url, {**SPARK, next(iter(SPARK)): "flink"}, autocommit=True) as connection,
            pytest.raises(adbc.Error, match=r"unknown engine 'flink' .hint: the header odf-engine is"),
        ):
            rows(connection, "SELECT 1")


class TestProcess:
    def test_next_run_of_a_prepared_query_reads_new_rows(self, tmp_path: Path) -> None:
        workspace = make_workspace(tmp_path / "ws")
        query = "SELECT count(*) FROM city.people"
        with (
            serving(workspace) as (url, _),
            flightsql.connect(url, autocommit=True) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(query)
            assert cursor.fetchall() == [(9,)]
            add_slices(workspace.resolve("city.people"), 1)
            cursor.execute(query)
            assert cursor.fetchall() == [(12,)]

    def test_interrupt_ends_the_server_with_a_running_query(self, workspace: Workspace) -> None:
        with serving(workspace) as (url, process), flight.connect(url) as client:
            stream = read(client, client.get_flight_info(statement(LARGE)))
            send_to_another_thread(process.pid, signal.SIGINT)
            assert process.wait(60) == 0
            with pytest.raises((flight.FlightError, pa.ArrowException)):
                stream.read_all()
        assert not list((workspace.odf / "cache").glob("query-*"))

    def test_tls(self, workspace: Workspace, tmp_path: Path) -> None:
        file = make_certificate(tmp_path / "pem")
        with serving(workspace, "--tls-cert", str(file), "--tls-key", str(file)) as (url, _):
            assert url.startswith("grpc+tls://")
            options = {DatabaseOptions.TLS_ROOT_CERTS.value: file.read_text()}
            with flightsql.connect(url, options, autocommit=True) as connection:
                assert rows(connection, "SELECT 1 AS n") == [{"n": 1}]

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--flight", "--allow-push"], "--allow-push does not apply to --flight"),
            (["--require-token"], "--require-token applies to --flight only"),
            (["--flight", "--tls-cert", "x"], "TLS requires both files"),
        ],
    )
    def test_unsuitable_options(self, workspace: Workspace, options: list[str], message: str) -> None:
        command = [sys.executable, "-c", "from odf_tui.main import main; main()", "serve", *options]
        result = subprocess.run(command, cwd=workspace.folder, capture_output=True, text=True)
        assert result.returncode == 2
        assert message in result.stderr
