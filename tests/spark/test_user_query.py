"""Queries: what is let through, and what people read when theirs is wrong."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from odf_engine.errors import InvalidQuery, OdfError
from odf_engine.metadata.model import SqlQueryStep
from odf_engine.spark.errors import QueryError, RejectedRow
from odf_engine.spark.runtime.spark_conf import FIXED
from odf_engine.spark.user_query import AdHocQuery, run_query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from odf_engine.spark.runtime.session import SparkRuntime

Query = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def query(session: SparkSession, rows: Callable[[DataFrame], Any]) -> Query:
    """``query(text)`` or ``query((alias, text), …)`` over a view ``input`` of one row."""

    def run(*steps: str | tuple[str | None, str]) -> list[dict[str, Any]]:
        view = session.sql("SELECT 1 AS id, 'x' AS name")
        pairs = [(None, step) if isinstance(step, str) else step for step in steps]
        return rows(run_query(session, {"input": view}, [SqlQueryStep(alias=a, query=q) for a, q in pairs]))

    return run


def test_single_step_query_returns_its_rows(query: Query) -> None:
    assert query("SELECT id + 1 AS next FROM input") == [{"next": 2}]
    assert query("-- why\nWITH a AS (SELECT * FROM input)\nSELECT name FROM a;\n ; ") == [{"name": "x"}]
    assert query("VALUES (1), (2)") == [{"col1": 1}, {"col1": 2}]


def test_query_steps_see_earlier_aliases(query: Query) -> None:
    assert query(
        ("b", "SELECT id + 1 AS i FROM input"), ("c d", "SELECT i * 2 AS i FROM b"), "SELECT i FROM `c d`"
    ) == [{"i": 4}]


def test_view_names_with_dots_and_dashes_are_queried(
    session: SparkSession, rows: Callable[[DataFrame], Any]
) -> None:
    views = {"com.example.a-b": session.sql("SELECT 1 AS x")}
    assert rows(run_query(session, views, [SqlQueryStep(query="SELECT x FROM `com.example.a-b`")])) == [
        {"x": 1}
    ]


def test_missing_and_invalid_step_aliases_are_rejected(query: Query) -> None:
    for steps, message in (
        ([], "no steps"),
        ([("a", "SELECT 1")], "last step .* has the alias `a`"),
        (["SELECT 1", "SELECT 2"], "step 1 of the query has no alias"),
        ([("Input", "SELECT 1"), "SELECT 2"], "alias `Input` of step 1 already exists"),
    ):
        with pytest.raises(InvalidQuery, match=message):
            query(*steps)


COMMANDS = [
    "DROP TABLE input", "INSERT INTO input VALUES (1, 'y')", "SET spark.sql.ansi.enabled = false",
    "CREATE TABLE t AS SELECT 1", "CREATE OR REPLACE TEMPORARY VIEW input AS SELECT 2 AS id",
    "EXPLAIN SELECT 1", "SHOW TABLES", "DESCRIBE input", "CACHE TABLE input", "CALL f()", "USE x",
    "BEGIN SELECT 1; END",
    "EXECUTE IMMEDIATE 'DROP TABLE x'", "FROM input INSERT INTO t SELECT 1", "ADD JAR '/x.jar'",
    "REFRESH input", "TRUNCATE TABLE input", "ALTER TABLE input ADD COLUMN x INT", "DECLARE VARIABLE x INT",
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_are_refused(query: Query, command: str) -> None:
    with pytest.raises(InvalidQuery, match=f"only a single SELECT is allowed, not {command.split()[0]}"):
        query(command)
    assert query("SELECT id FROM input") == [{"id": 1}]


WRONG = [
    ("SELEC 1", (1, 1), "syntax error at or near 'SELEC'", None),
    ("SELECT 1; SELECT 2", (1, 9), "only one statement is allowed", None),
    ("", (1, 1), "empty statement", None),
    ("SELECT id\nFROM input\nWHERE id >", (3, 11), "end of input", None),
    ("SELECT\n  nam\nFROM input", (2, 3), "column `nam` not found", "did you mean `name`"),
    ("SELECT id FROM inputs", (1, 16), "table or view `inputs` not found", "use one of: `input`"),
    ("SELECT * FROM csv.`/etc/passwd`", (1, 15), "table or view", "use one of: `input`"),
    ("SELECT nofun(id) FROM input", (1, 8), "function `nofun` not found", None),
    ("SELECT TUMBLE(id, 1) FROM input", (1, 8), "function `TUMBLE` not found", "window(event_time, '1 day')"),
    ("SELECT reflect('java.lang.System', 'exit', 1)", (1, 8), "function `reflect` not found", None),
    ("SELECT from_xml(name, 'a INT', map()) FROM input", (1, 8), "function `from_xml` not found", None),
    ("SELECT input_file_name() FROM input", (1, 8), "function `input_file_name` not found", None),
    ("SELECT IDENTIFIER('reflect')('a', 'b')", (1, 8), "function `reflect` not found", None),
    ("SELECT TRANSFORM(id) USING 'id' AS x FROM input", (1, 1), "programs are not allowed", "a Pipe step"),
    ("FROM input\nMAP id USING 'id' AS x", (2, 1), "programs are not allowed", None),
    (
        "WITH a AS (SELECT 1 AS b) SELECT b + (SELECT max(x) FROM (SELECT TRANSFORM(id) USING 'id' AS x"
        " FROM input)) FROM a",
        (1, 59),
        "programs are not allowed",
        None,
    ),
    (
        "WITH a AS (WITH b AS (FROM input REDUCE id USING 'id' AS x) SELECT * FROM b) SELECT 1",
        (1, 34),
        "programs are not allowed",
        None,
    ),
    ("SELECT * FROM IDENTIFIER('csv.`/etc/passwd`')", (1, 15), "table or view", "`input`"),
    (
        "SELECT * FROM IDENTIFIER('csv.' || '`/x`')",
        (1, 15),
        "cannot name a table",
        "write the name of the table",
    ),
    ("SELECT * FROM input VERSION AS OF 1", (1, 21), "no earlier versions", None),
    (
        "SELECT EXISTS(SELECT 1 FROM spark_catalog.default.t)",
        (1, 29),
        "`spark_catalog`.`default`.`t`",
        "`input`",
    ),
    ("SELECT * FROM explode(TABLE(SELECT * FROM global_temp.t))", (1, 43), "`global_temp`.`t`", "`input`"),
    ("SELECT java_method('a', 'b')", (1, 8), "function `java_method` not found", None),
    ("SELECT id + array(1) FROM input", (1, 8), r"cannot resolve \"\(id \+ array\(1\)\)\"", None),
    ("SELECT date_format(id) FROM input", (1, 8), r"in `date_format\(id\)`", None),
    ("SELECT sum(id) FROM input GROUP BY name HAVING nme > 1", (1, 48), "column `nme` not found", None),
]


@pytest.mark.parametrize(("text", "place", "message", "hint"), WRONG, ids=[case[0][:30] for case in WRONG])
def test_invalid_queries_are_reported_with_line_and_column(
    query: Query, text: str, place: tuple[int, int], message: str, hint: str | None
) -> None:
    with pytest.raises(QueryError, match=message) as caught:
        query(text)
    error = caught.value
    assert (error.line, error.column) == place
    assert error.where == f"query, line {place[0]}, column {place[1]}"
    assert (hint or "") in (error.hint or "")
    for noise in ("SQLSTATE", "org.apache", "\n", "["):
        assert noise not in error.message


def test_functions_of_spark_are_those_that_were_reviewed(session: SparkSession) -> None:
    """After a change compare `SHOW FUNCTIONS` of both versions: `check_repeatable` lists the functions whose
    value differs between runs, sessions or builds.
    """
    names = sorted(str(row[0]) for row in session.sql("SHOW FUNCTIONS").collect())
    digest = hashlib.sha256("\n".join(names).encode()).hexdigest()
    assert (len(names), digest[:16]) == (581, "376c2c2a273d9f16")


def test_view_and_cte_names_are_case_insensitive(query: Query) -> None:
    text = (
        "WITH a AS (SELECT id FROM INPUT), B AS (SELECT id FROM a) SELECT b.id FROM b JOIN `Input` USING (id)"
    )
    assert query(text) == [{"id": 1}]
    assert query(
        ("one", "FROM input |> SELECT id"), "SELECT transform(array(id), x -> x + 1) AS a FROM ONE"
    ) == [{"a": [2]}]


@pytest.mark.parametrize(
    ("condition", "expected"),
    [("session_window.end <= timestamp_seconds(15)", []),
     ("session_window.start > timestamp_seconds(5)", [(120, 132, 2)]),
     ("e >= timestamp_seconds(30)", [(0, 31, 22), (120, 132, 2)]),
     ("session_window = struct(timestamp_seconds(0), timestamp_seconds(31))", [(0, 31, 22)])],
)  # fmt: skip
def test_condition_on_a_session_applies_to_all_its_rows(
    session: SparkSession, condition: str, expected: list[tuple[int, int, int]]
) -> None:
    sql = f"""
        SELECT unix_timestamp(session_window.start) AS s, unix_timestamp(session_window.end) AS u, n FROM (
            SELECT session_window, session_window.end AS e, count(DISTINCT x) AS n FROM (
                SELECT x, timestamp_seconds(x) AS t FROM explode(sequence(0, 122)) AS r (x)
                WHERE x < 22 OR x IN (120, 122)
            ) GROUP BY session_window(t, '10 seconds') HAVING {condition}
        ) ORDER BY s"""
    frame = AdHocQuery(sql, []).run(session, lambda name, call: pytest.fail(f"reads {name}"))
    assert [tuple(row) for row in frame.collect()] == expected


def test_error_names_the_failing_query_step(query: Query) -> None:
    with pytest.raises(QueryError) as caught:
        query(("b", "SELECT 1 AS i"), ("c", "SELECT j FROM b"), "SELECT * FROM c")
    assert caught.value.where == "query step 2 of 3, line 1, column 8"


VALUES = [
    ("SELECT\n  1 / 0 FROM input", "line 2, column 3", "division by zero, in `1 / 0`", "try_divide"),
    ("SELECT CAST(name AS INT) FROM input", "line 1, column 8", "the value 'x' is not an INT", "try_cast"),
    ("SELECT CAST(id + 1000 AS TINYINT) FROM input", None, "the value 1001 is not a TINYINT", "try_cast"),
    (
        "SELECT CAST(id + 123.45 AS DECIMAL(4,2)) FROM input",
        "line 1, column 8",
        r"the value 124.45 is not a DECIMAL\(4,2\)",
        "try_cast",
    ),
    ("SELECT array(1)[id + 5] FROM input", "line 1, column 8", "index 6 is out of bounds", "get"),
]


@pytest.mark.parametrize(("text", "place", "message", "hint"), VALUES, ids=[case[0][:30] for case in VALUES])
def test_failing_expressions_are_reported_with_a_hint(
    query: Query, text: str, place: str | None, message: str, hint: str
) -> None:
    with pytest.raises(RejectedRow, match=message) as caught:
        query(text)
    assert caught.value.where == (f"query, {place}" if place else None)
    assert hint in str(caught.value.hint)
    assert "spark.sql" not in str(caught.value.hint)


def test_error_raised_by_the_query_is_reported(query: Query) -> None:
    with pytest.raises(RejectedRow, match="the query raised an error: no x today"):
        query("SELECT raise_error(concat('no ', name, ' today')) FROM input")


def test_queries_cannot_read_the_environment(query: Query) -> None:
    for name in ("env:HOME", "system:user.home", "spark:spark.master", "hiveconf:a", "spark.master"):
        with pytest.raises(QueryError, match=rf"cannot contain the variable \$\{{{name}\}}") as caught:
            query(f"SELECT id\nFROM input WHERE name = '${{{name}}}'")
        assert caught.value.where == "query, line 2, column 26"
        assert "concat('$', '{…}')" in str(caught.value.hint)
    assert query("SELECT concat('$', '{env:HOME}') AS a, '${name}' AS b") == [
        {"a": "${env:HOME}", "b": "${name}"}
    ]


def test_fixed_settings_are_in_effect_in_the_thread_of_a_job(runtime: SparkRuntime) -> None:
    """Not only in the session: Spark's parser and some expressions read those of the thread."""
    values: dict[str, str] = {}
    name = "spark.sql.optimizer.maxIterations"

    def run() -> None:
        job: Any = runtime.session()
        job.conf.set(name, "123")
        java: Any = job._jvm
        settings = java.org.apache.spark.sql.internal.SQLConf.get()
        values.update({each: settings.getConfString(each) for each in (*fixed, name)})
        parser = job._jsparkSession.sessionState().sqlParser()
        values["parsed"] = parser.parsePlan("SELECT '${spark.master}'").toString()

    fixed = {each: value for each, value in FIXED.items() if each.startswith("spark.sql.")}
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert "${spark.master}" in values.pop("parsed")
    assert values == {**fixed, name: "123"}


@pytest.fixture
def server() -> Iterator[tuple[str, list[str]]]:
    """The address of an HTTP server on this machine, and the paths that were requested from it."""
    requests: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(self.path)
            self.send_error(404)

        def log_message(self, format: str, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", requests
        server.shutdown()


XPATH = [
    "",
    *(f"_{kind}" for kind in ("boolean", "short", "int", "long", "float", "double", "number", "string")),
]
EXTERNAL = [
    '<!DOCTYPE a SYSTEM "{address}"><a/>',
    '<!DOCTYPE a PUBLIC "-//X//DTD//EN" "{address}"><a/>',
    '<!DOCTYPE a SYSTEM "file:///etc/hostname"><a/>',
]


@pytest.mark.net
def test_xml_in_a_value_requests_nothing(query: Query, server: tuple[str, list[str]]) -> None:
    address, requests = server
    for document in EXTERNAL:
        for name in XPATH if document == EXTERNAL[0] else XPATH[-1:]:
            with pytest.raises(RejectedRow, match="external DTD"):
                query(
                    f"SELECT xpath{name}(concat('{document.format(address=address)}', id), '/a') FROM input"
                )
    entities = (
        f'<!DOCTYPE a [<!ENTITY x SYSTEM "{address}/x"><!ENTITY % y SYSTEM "{address}/y"> %y;'
        ' <!ENTITY z "inside">]><a>&x;&z;</a>'
    )
    assert query(f"SELECT xpath_string('{entities}', '/a') AS a") in ([{"a": ""}], [{"a": "inside"}])
    for function in ("document", "doc", "unparsed-text"):
        with pytest.raises(OdfError):
            query(f"""SELECT xpath_string('<a/>', '{function}("{address}")')""")
    assert requests == []
    assert query("""SELECT xpath_string('<!DOCTYPE a [<!ENTITY x "b">]><a>&x;</a>', '/a') AS a""") == [
        {"a": "b"}
    ]


def test_xml_entity_expansion_is_bounded(query: Query) -> None:
    entities = "".join(f'<!ENTITY e{at} "{f"&e{at - 1};" * 10}">' for at in range(1, 10))
    with pytest.raises(RejectedRow, match="entity expansions"):
        query(f"""SELECT xpath_string('<!DOCTYPE a [<!ENTITY e0 "x">{entities}]><a>&e9;</a>', '/a')""")


def test_sessions_do_not_see_each_other(runtime: SparkRuntime, query: Query) -> None:
    query("SELECT 1")
    other = runtime.session()
    with pytest.raises(InvalidQuery, match="table or view `input` not found"):
        run_query(other, {}, [SqlQueryStep(query="SELECT * FROM input")])
