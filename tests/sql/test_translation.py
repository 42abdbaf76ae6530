"""Queries of other engines in Spark SQL: constructs, changed results, and what has no translation."""

# ruff: noqa: E501 (queries)

from __future__ import annotations

import pytest

from odf_engine.errors import InvalidQuery
from odf_engine.metadata.model import Sql, SqlQueryStep
from odf_engine.metadata.yaml import read_manifests
from odf_engine.sql.manifest_translation import translate_manifest
from odf_engine.sql.translation import Columns, Translation, translate_query

TYPES: Columns = {
    "event_time": "TIMESTAMP",
    "k": "STRING",
    "i": "INT",
    "b": "BIGINT",
    "d": "DOUBLE",
    "f": "FLOAT",
}


def translated(
    engine: str, query: str, *, continuous: bool = True, types: Columns | None = None
) -> Translation:
    inputs = None if types is None else {"t": types}
    return translate_query(Sql(engine=engine, query=query), continuous=continuous, inputs=inputs)


def text(engine: str, query: str, *, continuous: bool = True) -> str:
    """The translated query on one line; its result does not change."""
    translation = translated(engine, query, continuous=continuous, types=TYPES)
    assert translation.changes == []
    return " ".join((translation.transform.query or "").split())


FLINK = [
    ("SELECT `i`, k AS `a.b` FROM t", "SELECT `i`, k AS `a.b` FROM t"),
    ("SELECT i / b AS x, i / i AS y, d / i AS z FROM t",
     "SELECT i DIV b AS x, CAST(i DIV i AS INT) AS y, d / i AS z FROM t"),
    ("SELECT sum(i) AS a, sum(b) AS b, avg(i) AS c, avg(d) AS d, count(*) AS n FROM t GROUP BY k",
     "SELECT CAST(sum(i) AS INT) AS a, sum(b) AS b, CAST(avg(i) AS INT) AS c, avg(d) AS d, count(*) AS n"
     " FROM t GROUP BY k"),
    ("SELECT TUMBLE_END(event_time, INTERVAL '1' HOUR) AS e, TUMBLE_ROWTIME(event_time, INTERVAL '1' HOUR) AS r"
     " FROM t GROUP BY TUMBLE(event_time, INTERVAL '1' HOUR)",
     "SELECT window.end AS e, window.end - INTERVAL '1' MILLISECOND AS r FROM t GROUP BY"
     " window(event_time, '1 hour')"),
    ("SELECT HOP_START(event_time, INTERVAL '5' MINUTE, INTERVAL '1' HOUR) AS s FROM t"
     " GROUP BY HOP(event_time, INTERVAL '5' MINUTE, INTERVAL '1' HOUR)",
     "SELECT window.start AS s FROM t GROUP BY window(event_time, '1 hour', '5 minute')"),
    ("SELECT SESSION_END(event_time, INTERVAL '1' HOUR) AS e FROM t GROUP BY SESSION(event_time, INTERVAL '1' HOUR)",
     "SELECT session_window.end AS e FROM t GROUP BY session_window(event_time, '1 hour')"),
    ("SELECT window_start, w.k, sum(d) AS s FROM TABLE(TUMBLE(TABLE t, DESCRIPTOR(event_time), INTERVAL '1' DAY))"
     " AS w GROUP BY window_start, window_end, k",
     "SELECT window.start AS window_start, w.k, sum(d) AS s FROM t AS w GROUP BY window(event_time, '1 day'), k"),
    ("SELECT a.k FROM t AS a LEFT JOIN u AS b ON a.k = b.k AND b.event_time BETWEEN a.event_time"
     " AND a.event_time + INTERVAL '2' DAY",
     "SELECT a.k FROM t AS a LEFT JOIN u AS b ON a.k = b.k AND b.event_time BETWEEN a.event_time"
     " AND a.event_time + INTERVAL '2' DAY"),
    ("SELECT t.k, r.x FROM t LEFT JOIN r FOR SYSTEM_TIME AS OF t.event_time AS r ON t.k = r.k AND r.x > 1",
     "SELECT t.k, r.x FROM t LEFT JOIN r FOR SYSTEM_TIME AS OF t.event_time AS r ON t.k = r.k AND r.x > 1"),
    ("SELECT t.k, q.x FROM t, LATERAL TABLE(r(t.event_time)) AS q WHERE t.k = q.k",
     "SELECT t.k, q.x FROM t JOIN r FOR SYSTEM_TIME AS OF t.event_time AS q ON t.k = q.k"),
    ("SELECT sum(d) OVER (PARTITION BY k ORDER BY event_time ROWS UNBOUNDED PRECEDING) AS s FROM t",
     "SELECT sum(d) OVER ( PARTITION BY k ORDER BY event_time ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW )"
     " AS s FROM t"),
    ("SELECT CAST(event_time AS TIMESTAMP(3)) AS e, CAST(i AS VARCHAR) AS v, FLOOR(event_time TO DAY) AS f,"
     " EXTRACT(YEAR FROM event_time) AS y, IFNULL(k, 'x\\y') AS n FROM t",
     "SELECT CAST(event_time AS TIMESTAMP) AS e, CAST(i AS STRING) AS v, date_trunc('day', event_time) AS f,"
     " CAST(EXTRACT(YEAR FROM event_time) AS BIGINT) AS y, nvl(k, 'x\\\\y') AS n FROM t"),
]  # fmt: skip
RISINGWAVE = [
    ("select window_end - interval '1 second' as e, sum(i)::bigint as s from tumble(t, event_time, interval '1 day')"
     " group by window_end emit on window close",
     "SELECT window.end - INTERVAL '1' SECOND AS e, CAST(sum(i) AS BIGINT) AS s FROM t GROUP BY"
     " window(event_time, '1 day')"),
    ("select window_start + interval '1 day' as e, k, count(*) as n from hop(t, event_time, interval '1 hour',"
     " interval '1 day') group by 1, 2, window_end emit on window close",
     "SELECT window.start + INTERVAL '1' DAY AS e, k, count(*) AS n FROM t GROUP BY"
     " window(event_time, '1 day', '1 hour'), 2"),
    ('select "i", concat(k, \'a\') as c from "t" order by k desc',
     "SELECT `i`, concat_ws('', k, 'a') AS c FROM `t` ORDER BY k DESC NULLS FIRST"),
]  # fmt: skip
DATAFUSION = [
    ("select to_timestamp_seconds(b) as e, arrow_cast(i, 'Int64') as x, X'ab' as h from t order by k",
     "SELECT timestamp_seconds(b) AS e, CAST(i AS BIGINT) AS x, X'ab' AS h FROM t ORDER BY k NULLS LAST"),
    ("select op, k from a union all select op, k from b", "SELECT op, k FROM a UNION ALL SELECT op, k FROM b"),
    ("select json_get_int(k, 'a', 0) as x, try_cast(k as double) as y, event.to as `to` from t",
     "SELECT CAST(get_json_object(k, '$.a[0]') AS BIGINT) AS x, TRY_CAST(k AS DOUBLE) AS y, event.to AS `to`"
     " FROM t"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("engine", "query", "expected"),
    [
        (engine, *case)
        for engine, cases in (("flink", FLINK), ("risingwave", RISINGWAVE), ("datafusion", DATAFUSION))
        for case in cases
    ],
)
def test_constructs_are_translated_to_spark_sql(engine: str, query: str, expected: str) -> None:
    assert text(engine, query) == expected


def test_row_numbers_are_bigint() -> None:
    ranked = "select * from (select k, row_number() over (partition by 1 order by d desc) as p from t) as r"
    expected = (
        "SELECT k, CAST(p AS BIGINT) AS p FROM ( SELECT k, row_number() OVER (ORDER BY d DESC NULLS FIRST) AS p"
        " FROM t ) AS r WHERE p <= 2"
    )
    assert text("risingwave", f"{ranked} where p <= 2") == expected
    steps = [
        SqlQueryStep(query=f"create materialized view v as {ranked}"),
        SqlQueryStep(query="select * from v"),
    ]
    found = translate_query(Sql(engine="RisingWave", queries=steps), continuous=True, inputs={"t": TYPES})
    assert [step.alias for step in found.transform.queries or []] == ["v", None]
    assert (found.transform.engine, found.changes) == ("spark", [])


CHANGES = [
    ("flink", "SELECT sum(x) AS s, avg(x) AS a, x / y AS q FROM t",
     ["column 8: sum of an INT is INT in Flink and BIGINT in Spark",
      "column 21: avg of integers is an integer in Flink and DOUBLE in Spark",
      "column 34: `/` truncates integers in Flink and returns DOUBLE in Spark"]),
    ("flink", "SELECT CAST(k AS VARCHAR(3)) AS v FROM t", ["VARCHAR(3) cuts the text"]),
    ("risingwave", "select count(*) from tumble(t, event_time, interval '1 day') group by window_start",
     ["without EMIT ON WINDOW CLOSE"]),
    ("risingwave", "select avg(b) as a, sum(b) as s from t emit on window close",
     ["avg of integers is NUMERIC in RisingWave", "sum of a BIGINT is NUMERIC in RisingWave"]),
]  # fmt: skip


@pytest.mark.parametrize(("engine", "query", "expected"), CHANGES)
def test_changed_results_are_named(engine: str, query: str, expected: list[str]) -> None:
    types = {"b": "BIGINT", "k": "STRING"}
    changes = translated(engine, query, types=types).changes
    assert len(changes) == len(expected)
    for each in expected:
        assert any(each in change for change in changes), changes


PROBLEMS = [
    ("flink", "SELECT event_time,\n  PROCTIME() AS p FROM t", "line 2, column 3", "PROCTIME is not deterministic"),
    ("flink", "SELECT CURRENT_TIMESTAMP FROM t", "column 8", "CURRENT_TIMESTAMP is not deterministic"),
    ("flink", "SELECT my_function(k) FROM t", "column 8", "the function my_function has no known equivalent"),
    ("flink", "SELECT 1 FROM t GROUP BY CUMULATE(event_time, INTERVAL '1' HOUR, INTERVAL '1' DAY)", "column 26",
     "CUMULATE"),
    ("flink", "SELECT k, K FROM t", "column 11", "two columns are named 'k'"),
    ("flink", 'SELECT "k" FROM t', "line 1", "cannot be parsed"),
    ("flink", "DELETE FROM t", "query", "not a single SELECT"),
    ("risingwave", "select date_bin('1 day', event_time) from t", "column 8", "date_bin"),
    ("datafusion", "select a.k from a join b on a.k = b.k", "column 24", "a join: DataFusion"),
    ("datafusion", "select k, count(*) as n from t group by k", "column", "an aggregation: DataFusion"),
    ("datafusion", "select cast(k as bigint unsigned) from t", "", "unsigned"),
    ("other", "select 1", "transform", "queries for 'other' cannot be translated"),
]  # fmt: skip


@pytest.mark.parametrize(("engine", "query", "where", "message"), PROBLEMS)
def test_untranslatable_queries_are_rejected_with_their_location(
    engine: str, query: str, where: str, message: str
) -> None:
    with pytest.raises(InvalidQuery) as caught:
        translated(engine, query, types=TYPES)
    assert where in str(caught.value.where) and message in caught.value.message and caught.value.hint


def test_preprocess_queries_may_aggregate_and_use_current_time() -> None:
    # They run once over rows that arrive, so aggregations and the current time are possible.
    assert text("datafusion", "select max(i) as m, now() as n from t group by k", continuous=False) == (
        "SELECT max(i) AS m, current_timestamp() AS n FROM t GROUP BY k"
    )
    with pytest.raises(InvalidQuery, match="OVER without ORDER BY"):
        translated("datafusion", "select row_number() over () as n from t", continuous=False)


MANIFEST = """\
kind: DatasetSnapshot
version: 1
content:
  name: a
  kind: Derivative
  metadata:
    # The query.
    - kind: SetTransform
      inputs: [{datasetRef: x, alias: t}]
      transform: {QUERY}
    # The end.
    - {kind: SetInfo, description: text}
"""
LAYOUTS = [
    "{kind: Sql, engine: flink, version: '1.16', query: 'SELECT event_time, ''a'' AS x FROM t'}",
    '\n        kind: Sql\n        engine: "flink"\n        query: >\n          SELECT event_time,\n\n          k FROM t\n',
    "\n        query: SELECT event_time\n          FROM t\n        engine: flink\n        kind: Sql",
    "\n        kind: Sql\n        engine: flink\n        queries:\n          - alias: b\n            query: |\n"
    "              SELECT * FROM t\n          - {query: SELECT event_time FROM b}",
]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_translated_manifest_of_any_layout_keeps_its_comments(layout: str) -> None:
    manifest = MANIFEST.replace("{QUERY}", layout)
    found = translate_manifest(manifest, "test", lambda ref: None)
    assert "# The query.\n" in found.text and "    # The end.\n    - {kind: SetInfo" in found.text
    assert "Translated from flink" in found.text and read_manifests(found.text, "test") == found.snapshots
    again = translate_manifest(found.text, "test", lambda ref: None)
    assert again.queries == [] and again.text == found.text
