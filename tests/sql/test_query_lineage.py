"""Which columns feed which: what queries of every shape say."""

from __future__ import annotations

import subprocess
import sys

import pytest

from odf_engine.metadata.model import SqlQueryStep
from odf_engine.sql.lineage_model import ANY_COLUMN, ColumnLineage
from odf_engine.sql.query_lineage import trace_columns

SYSTEM = ["offset", "op", "system_time", "event_time"]
INPUTS = {
    "t": ["k", "a", "b", "xs", "m", "s"],
    "U": ["k", "A", "y"],
    "input": [*SYSTEM, "city", "x", "y"],
    "trades": ["event_time", "city", "x"],
    "rates": ["event_time", "city", "x"],
    "far.away": ["q r", "interval"],
    "gone": None,
    "lost": None,
}
MARKS = {"identity": "", "transformation": "~", "aggregation": "+", "unknown": "?"}


def followed(*queries: str, outputs: list[str] | None = None) -> ColumnLineage:
    steps = [SqlQueryStep(alias=f"s{at}", query=query) for at, query in enumerate(queries[:-1], 1)]
    return trace_columns([*steps, SqlQueryStep(query=queries[-1])], INPUTS, outputs=outputs)


def told(columns: ColumnLineage) -> dict[str, str]:
    """Outputs as `~t.a`, the mark before it says how."""
    assert columns.problem is None, columns.problem
    return {
        name: " ".join(f"{MARKS[each.how]}{each.input}.{each.column}" for each in value)
        for name, value in columns.outputs.items()
    }


def rows(columns: ColumnLineage) -> set[str]:
    return {f"{row.how} {row.input}.{row.column}" for row in columns.rows}


DAY = "GROUP BY window(event_time, '1 day')"
SHAPES: list[tuple[str, dict[str, str], set[str]]] = [
    # Names: no case, backquotes, aliases, stars.
    ("SELECT T.A AS z, `b` FROM t", {"z": "t.a", "b": "t.b"}, set()),
    ("SELECT `far.away`.`q r` FROM `far.away`", {"q r": "far.away.q r"}, set()),
    ("SELECT * EXCEPT (xs, M, s), u.* FROM t, u",
     {"k": "t.k U.k", "a": "t.a U.A", "b": "t.b", "y": "U.y"}, set()),
    ("SELECT c AS d FROM t AS v(z, c, e, f, g, h)", {"d": "t.a"}, set()),
    ("SELECT a + 1 AS n, n * b AS o FROM t", {"n": "~t.a", "o": "~t.a ~t.b"}, set()),
    ("SELECT a + b, 'x' FROM t", {"a + b": "~t.a ~t.b", "'x'": ""}, set()),
    # What decides about rows.
    ("SELECT count(*) AS n, sum(a) FILTER (WHERE b > 0) AS s FROM t WHERE k = 1 HAVING max(m) > 2 ORDER BY "
     "n, 2",
     {"n": "", "s": "+t.a +t.b"}, {"filter t.k", "filter t.m", "sort t.a", "sort t.b"}),
    ("SELECT a AS g, sum(b) FROM t GROUP BY g, 1, k % 2", {"g": "t.a", "sum(b)": "+t.b"},
     {"group_by t.a", "group_by t.k"}),
    ("SELECT a, sum(b) AS s FROM t GROUP BY ALL", {"a": "t.a", "s": "+t.b"}, {"group_by t.a"}),
    ("SELECT a FROM t GROUP BY GROUPING SETS ((a, b), ROLLUP (k))", {"a": "t.a"},
     {"group_by t.a", "group_by t.b", "group_by t.k"}),
    ("SELECT DISTINCT a + b AS c FROM t", {"c": "~t.a ~t.b"}, {"group_by t.a", "group_by t.b"}),
    # Windows of time and of rows.
    (f"SELECT window.start AS event_time, city, avg(x) AS s FROM input {DAY}, city",
     {"event_time": "~input.event_time", "city": "input.city", "s": "+input.x"},
     {"window input.event_time", "group_by input.city"}),
    ("SELECT session_window.end AS e, window.x FROM (SELECT *, struct(x) AS window FROM input) "
     "GROUP BY session_window(event_time, '1 hour'), window.x", {"e": "~input.event_time", "x": "input.x"},
     {"window input.event_time", "group_by input.x"}),
    ("SELECT row_number() OVER (PARTITION BY city ORDER BY x) AS n, lag(y) OVER w AS l FROM input "
     "WINDOW w AS (PARTITION BY op ORDER BY offset)", {"n": "+input.x", "l": "+input.y"},
     {"window input.city", "window input.x", "window input.op", "window input.offset"}),
    ("SELECT sum(x) OVER (ORDER BY y ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS s FROM input",
     {"s": "+input.x"}, {"window input.y"}),
    # Joins.
    ("SELECT k, t.a, u.a AS other FROM t LEFT JOIN u USING (K) JOIN input ON input.x = b AND y > 0",
     {"k": "t.k U.k", "a": "t.a", "other": "U.A"},
     {"join t.k", "join U.k", "join input.x", "join t.b", "join U.y", "join input.y"}),
    ("SELECT * FROM t NATURAL JOIN u", {"k": "t.k U.k", "a": "t.a U.A", "b": "t.b", "xs": "t.xs", "m": "t.m",
     "s": "t.s", "y": "U.y"}, {"join t.k", "join U.k", "join t.a", "join U.A"}),
    ("SELECT * FROM u LEFT SEMI JOIN t ON t.k = u.k", {"k": "U.k", "A": "U.A", "y": "U.y"},
     {"join t.k", "join U.k"}),
    ("SELECT z.b FROM (t JOIN u ON t.k = u.k) JOIN t AS z ON z.a = y", {"b": "t.b"},
     {"join t.k", "join U.k", "join t.a", "join U.y"}),
    ("SELECT t.event_time, t.x * r.x AS c FROM trades AS t\nJOIN rates FOR SYSTEM_TIME AS OF t.event_time "
     "AS r "
     "ON t.city = r.city", {"event_time": "trades.event_time", "c": "~trades.x ~rates.x"},
     {"join trades.event_time", "join trades.city", "join rates.city"}),
    # Unions go by place.
    ("SELECT a, b AS c FROM t UNION ALL SELECT y, k + 1 FROM u ORDER BY c", {"a": "t.a U.y", "c": "t.b ~U.k"},
     {"sort t.b", "sort U.k"}),
    ("SELECT a FROM t UNION SELECT y FROM u", {"a": "t.a U.y"}, {"group_by t.a", "group_by U.y"}),
    ("SELECT a FROM t EXCEPT ALL (SELECT y FROM u WHERE k > 1)", {"a": "t.a"},
     {"filter t.a", "filter U.y", "filter U.k"}),
    # Subqueries, also those that look out.
    ("WITH t AS (SELECT a AS x FROM t WHERE b > 0), w(z) AS (SELECT x FROM t) SELECT w.z FROM w",
     {"z": "t.a"}, {"filter t.b"}),
    ("SELECT a FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.k = t.k) AND b IN (SELECT y FROM u)",
     {"a": "t.a"},
     {"filter U.k", "filter t.k", "filter t.b", "filter U.y"}),
    ("SELECT (SELECT max(y) FROM u WHERE u.k = t.m) AS z FROM t",
     {"z": "+U.y"}, {"filter U.k", "filter t.m"}),
    ("SELECT a AS x FROM t WHERE EXISTS (SELECT k AS s FROM u WHERE s = 1)", {"x": "t.a"},
     {"filter U.k", "filter t.s"}),
    ("SELECT q.z FROM t, LATERAL (SELECT t.a + y AS z FROM u) AS q", {"z": "~t.a ~U.y"}, set()),
    # Structures, lambdas, generators.
    ("SELECT n.p, n.*, n AS w FROM (SELECT named_struct('P', a, 'q', b + 1) AS n FROM t)",
     {"p": "t.a", "q": "~t.b", "w": "~t.a ~t.b"}, set()),
    ("SELECT s.f.g AS h, m['x'] AS i, xs[0].y AS j FROM t", {"h": "~t.s", "i": "~t.m", "j": "~t.xs"}, set()),
    ("SELECT transform(xs, (a, i) -> A.f + i + b) AS r, aggregate(xs, k, (acc, e) -> acc + e.k) AS q, "
     "exists(xs, e -> e > m) AS o FROM t", {"r": "~t.xs ~t.b", "q": "~t.xs ~t.k", "o": "~t.xs ~t.m"}, set()),
    ("SELECT k2, v + a AS v, e FROM t LATERAL VIEW OUTER explode(m) mm AS k2, v LATERAL VIEW explode(xs) AS "
     "e",
     {"k2": "~t.m", "v": "~t.m ~t.a", "e": "~t.xs"}, set()),
    ("SELECT explode(m) AS (p, q), stack(2, a, b) AS r FROM t",
     {"p": "~t.m", "q": "~t.m", "r": "~t.a ~t.b"}, set()),
    ("SELECT v.b AS c FROM t JOIN VALUES (1, 2) AS v(a, b)", {"c": ""}, set()),
    # What could get lost on the way.
    ("SELECT array(a, b)[0] AS c, timestampdiff(HOUR, s, m) AS d, decode(k, 1, a) AS e, CAST(a AS DATE) AS "
     "f, "
     "max_by(a, b) AS g, percentile_cont(0.5) WITHIN GROUP (ORDER BY b) AS h FROM t",
     {"c": "~t.a ~t.b", "d": "~t.s ~t.m", "e": "~t.k ~t.a", "f": "~t.a", "g": "+t.a +t.b", "h": "+t.b"},
     set()),
    ("SELECT count(DISTINCT a, b) AS n, hash(*) AS h FROM (SELECT a, b FROM t)",
     {"n": "+t.a +t.b", "h": "~t.a ~t.b"}, set()),
]  # fmt: skip


@pytest.mark.parametrize(("query", "outputs", "deciding"), SHAPES, ids=[shape[0][:40] for shape in SHAPES])
def test_output_columns_trace_to_input_columns(
    query: str, outputs: dict[str, str], deciding: set[str]
) -> None:
    found = followed(query)
    assert told(found) == outputs
    assert rows(found) == deciding


def test_steps_see_inputs_and_the_steps_before_them() -> None:
    found = followed(
        "SELECT k, a + b AS c FROM t WHERE m > 0", "SELECT S1.C, y FROM s1 JOIN u USING (k)", "FROM s2"
    )
    assert told(found) == {"C": "~t.a ~t.b", "y": "U.y"}
    assert rows(found) == {"filter t.m", "join t.k", "join U.k"}


def test_columns_of_unknown_inputs_are_taken_from_the_query() -> None:
    assert told(followed("SELECT p, g.q.r AS z, a FROM t JOIN gone AS g ON t.k = h")) == {
        "p": "gone.p", "z": "~gone.q", "a": "t.a"
    }  # fmt: skip
    assert told(followed("SELECT p FROM gone JOIN lost")) == {"p": "?gone.p ?lost.p"}
    # Whatever it has: the result's own columns say it, where they are known.
    assert told(followed("SELECT *, a AS z FROM gone, t")) | {"k": ""} == {
        ANY_COLUMN: "?gone.*", "k": "", "a": "t.a", "b": "t.b",
        "xs": "t.xs", "m": "t.m", "s": "t.s", "z": "t.a"
    }  # fmt: skip
    assert told(followed("SELECT * FROM gone WHERE p > 0", outputs=["p", "q"])) == {
        "p": "gone.p",
        "q": "gone.q",
    }
    assert told(followed("SELECT a, * FROM t PIVOT (sum(b) FOR k IN (1, 2))", outputs=["one"]))[
        "one"
    ].startswith("+t.")


def test_temporal_table_time_is_a_join_column() -> None:
    query = (
        "SELECT t.x FROM trades AS t JOIN rates FOR SYSTEM_TIME AS OF t.event_time AS r ON t.city = r.city"
    )
    found = trace_columns([SqlQueryStep(query=query)], INPUTS, times={"rates": "event_time"})
    assert rows(found) >= {"join trades.event_time", "join rates.event_time"}


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("SELECT a FROM", "line 1"),
        ("SELECT a FROM t; SELECT b FROM t", "not a single SELECT"),
        ("DROP TABLE t", "not a single SELECT"),
        ("SELECT nothing FROM t", "column 'nothing' not found"),
        ("SELECT t.nothing FROM t", "column 't.nothing' not found"),
        ("SELECT a FROM nowhere", "input 'nowhere' not found"),
        ("SELECT a FROM t UNION SELECT a, k FROM u", "different numbers of columns"),
        ("WITH RECURSIVE r AS (SELECT a FROM t) SELECT * FROM r", "RECURSIVE"),
        ("FROM t |> SELECT a", "|>"),
        ("SELECT interval + 1 AS i FROM `far.away`", "`interval`"),
        ("SELECT " + "(" * 400 + "a" + ")" * 400 + " FROM t", "nested"),
        ("SELECT a FROM t" + " JOIN u" * 30, "more than 12 joins have no condition"),
    ],
)
def test_unsupported_query_traces_to_all_input_columns(query: str, words: str) -> None:
    found = followed(query, outputs=["one", "two"])
    assert words in (found.problem or "")
    everything = [(name, column) for name, columns in INPUTS.items() for column in columns or [ANY_COLUMN]]
    for value in (*found.outputs.values(), found.rows):
        assert [(each.input, each.column) for each in value] == everything
        assert {each.how for each in value} == {"unknown"}
    assert list(found.outputs) == ["one", "two"]
    assert list(followed(query).outputs) == [ANY_COLUMN]


def test_lineage_model_does_not_import_sqlglot() -> None:
    code = (
        "import sys, odf_engine.sql.lineage_model, odf_engine.workspace.definitions.column_lineage\n"
        "assert 'sqlglot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_unnamed_columns_are_matched_by_their_spark_names() -> None:
    found = told(followed("SELECT (a + b) * k, upper(m) FROM t", outputs=["((a + b) * k)", "upper(m)"]))
    assert found == {"((a + b) * k)": "~t.a ~t.b ~t.k", "upper(m)": "~t.m"}
    found = told(followed("SELECT a + 1, b + 1, m FROM t", outputs=["what", "m"]))
    assert found == {"what": "?t.a ?t.b", "m": "t.m"}
