"""Every place of a query where a program could stand is found, and every other query passes."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from odf_engine.metadata.model import SqlQueryStep
from odf_engine.spark.errors import QueryError
from odf_engine.spark.user_query import _ALLOWED, _nodes, _walker, check_analyzed, check_confined, run_query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROGRAMS = (
    "SELECT TRANSFORM(1) USING 'cat' AS (a INT)",
    "SELECT TRANSFORM(id) ROW FORMAT DELIMITED FIELDS TERMINATED BY ',' USING 'cat' FROM range(1)",
    "FROM range(1) MAP id USING 'cat' AS a",
    "FROM range(1) REDUCE id USING 'cat' AS a",
)
HARMLESS = "SELECT 1 AS a"

EXPRESSIONS = """\
SELECT {e}
SELECT DISTINCT {e} AS x
SELECT struct({e} AS x), (1, {e}), array({e})[{e}], named_struct('a', {e}).a
SELECT -{e}, NOT {e}, {e} + 1, {e} << 1, {e} || 'x', {e} AND true, {e} = 1
SELECT CASE {e} WHEN 1 THEN 2 END
SELECT CASE WHEN 1 = {e} THEN 2 END
SELECT CASE WHEN true THEN {e} END
SELECT CASE WHEN true THEN 1 ELSE {e} END
SELECT CAST({e} AS STRING)
SELECT TRY_CAST({e} AS STRING)
SELECT {e}::STRING
SELECT 'a' COLLATE UTF8_BINARY = {e}
SELECT {e} COLLATE UTF8_BINARY
SELECT {e}:a.b
SELECT {e} BETWEEN 1 AND 2
SELECT 1 BETWEEN 0 AND {e}
SELECT {e} IN (1, 2)
SELECT 1 IN (2, {e})
SELECT {e} IN (SELECT 1)
SELECT 'a' LIKE {e}
SELECT 'a' LIKE 'b' ESCAPE '/' OR {e} LIKE 'b'
SELECT 'a' LIKE ANY ('b', {e})
SELECT 'a' NOT ILIKE ALL ('b', {e})
SELECT 'a' RLIKE {e}
SELECT {e} IS NOT NULL, {e} IS TRUE
SELECT 1 IS DISTINCT FROM {e}
SELECT EXTRACT(DAY FROM {e})
SELECT TRIM(BOTH {e} FROM 'a')
SELECT TRIM(LEADING 'a' FROM {e})
SELECT SUBSTRING('abc' FROM {e} FOR 1)
SELECT SUBSTRING('abc' FROM 1 FOR {e})
SELECT OVERLAY('abc' PLACING {e} FROM 1 FOR 2)
SELECT OVERLAY('abc' PLACING 'b' FROM 1 FOR {e})
SELECT POSITION({e} IN 'abc')
SELECT TIMESTAMPADD(DAY, {e}, DATE'2020-01-01')
SELECT TIMESTAMPDIFF(DAY, DATE'2020-01-01', {e})
SELECT INTERVAL '1' DAY * {e}
SELECT FIRST({e}) IGNORE NULLS
SELECT LAST({e})
SELECT ANY_VALUE({e})
SELECT abs({e})
SELECT ceil({e}, 1), floor({e})
SELECT transform(array(1), x -> x + {e})
SELECT transform(array({e}), (x, i) -> x)
SELECT mask('a', upperChar => {e})
SELECT count(DISTINCT {e})
SELECT sum(id) FILTER (WHERE {e} > 0) FROM range(1)
SELECT listagg(id) WITHIN GROUP (ORDER BY {e}) FROM range(1)
SELECT percentile_cont({e}) WITHIN GROUP (ORDER BY id DESC) FROM range(1)
SELECT IDENTIFIER('s' || 'um')(id) FILTER (WHERE {e} > 0) FROM range(1)
SELECT IDENTIFIER('listagg' || '')(id) WITHIN GROUP (ORDER BY {e}) FROM range(1)
SELECT IDENTIFIER('s' || 'um')(id) OVER (PARTITION BY {e}) FROM range(1)
SELECT IDENTIFIER({e}) FROM range(1)
SELECT IDENTIFIER({e})(1) FROM range(1)
SELECT sum(id) OVER (PARTITION BY {e}) FROM range(1)
SELECT sum(id) OVER (ORDER BY {e} DESC) FROM range(1)
SELECT sum(id) OVER (DISTRIBUTE BY {e} SORT BY id) FROM range(1)
SELECT sum(id) OVER (CLUSTER BY {e}) FROM range(1)
SELECT sum({e}) OVER w FROM range(1) WINDOW w AS (PARTITION BY id)
SELECT sum(id) OVER w FROM range(1) WINDOW w AS (PARTITION BY {e})
SELECT sum(id) OVER (w) FROM range(1) WINDOW w AS (ORDER BY {e})
SELECT 1 FROM range(1) WINDOW unused AS (PARTITION BY {e})
SELECT 1 FROM range(1) WINDOW a AS (PARTITION BY {e}), b AS (a)
SELECT id FROM range(1) WHERE {e} > 0
SELECT id FROM range(1) GROUP BY id HAVING {e} > 0
SELECT id FROM range(1) HAVING {e} > 0
SELECT id FROM range(1) QUALIFY row_number() OVER (ORDER BY {e}) = 1
SELECT id FROM range(1) QUALIFY {e} > 0
SELECT 1 FROM range(1) GROUP BY {e}
SELECT 1 FROM range(1) GROUP BY id, ROLLUP (id, {e})
SELECT 1 FROM range(1) GROUP BY CUBE ({e})
SELECT 1 FROM range(1) GROUP BY GROUPING SETS ((id), ({e}, id))
SELECT 1 FROM range(1) GROUP BY {e} WITH ROLLUP
SELECT 1 FROM range(1) GROUP BY id, {e} GROUPING SETS ((id))
SELECT id FROM range(1) ORDER BY {e} NULLS LAST
SELECT id FROM range(1) SORT BY {e}
SELECT id FROM range(1) DISTRIBUTE BY {e}
SELECT id FROM range(1) DISTRIBUTE BY {e} SORT BY {e}
SELECT id FROM range(1) CLUSTER BY {e}
SELECT id FROM range(1) ORDER BY ALL LIMIT {e}
SELECT id FROM range(1) LIMIT ALL OFFSET {e}
SELECT /*+ REPARTITION({e}) */ id FROM range(1)
SELECT /*+ COALESCE(1), BROADCAST({e}) */ id FROM range(1)
SELECT 1 FROM range(1) a JOIN range(1) b ON a.id = {e}
SELECT 1 FROM range(1) a LEFT ANTI JOIN range(1) b ON {e} > 0
SELECT 1 FROM range(1) a JOIN range(1) b APPROX NEAREST 2 BY DISTANCE {e}
SELECT 1 FROM range(1) a LEFT JOIN range(1) b EXACT NEAREST BY SIMILARITY {e}
SELECT 1 FROM range(1) LATERAL VIEW explode(array({e})) t AS x
SELECT 1 FROM range(1) LATERAL VIEW OUTER explode(array({e})) t AS x
SELECT * FROM VALUES (1, {e}) AS t (a, b)
VALUES ({e})
VALUES 1, {e}
SELECT * FROM range({e})
SELECT * FROM range(1, {e}) AS t (x)
SELECT * FROM explode(collection => array({e}))
SELECT * FROM range(1), LATERAL explode(array({e}))
SELECT * FROM range(1) JOIN LATERAL explode(array({e})) ON true
SELECT * FROM UNNEST(array(1), array({e})) WITH ORDINALITY AS t (a, b, c)
SELECT * FROM JSON_TABLE({e}, '$' COLUMNS (a INT PATH '$.a')) AS t
SELECT * FROM f(TABLE(SELECT 1 AS a) PARTITION BY {e} ORDER BY a)
SELECT * FROM f(TABLE(SELECT 1 AS a) PARTITION BY (a, {e}) ORDER BY {e})
SELECT * FROM f(TABLE(SELECT 1 AS a) WITH SINGLE PARTITION ORDER BY {e})
SELECT * FROM f(a => {e})
SELECT * FROM range(1) PIVOT (sum({e}) AS s FOR id IN (1, 2))
SELECT * FROM range(1) PIVOT (sum(id) FOR id IN (1 AS a, {e} AS b))
SELECT * FROM range(1) PIVOT (sum(id) FOR (id, id) IN ((1, {e})))
SELECT * FROM (SELECT 1 AS a, {e} AS b) UNPIVOT INCLUDE NULLS (v FOR n IN (a AS x, b))
SELECT * FROM range(1) WATERMARK {e} AS x DELAY OF INTERVAL 1 DAY
FROM range(1) SELECT {e}
FROM range(1) |> SELECT {e}
FROM range(1) |> EXTEND {e} AS x
FROM range(1) |> SET id = {e}
FROM range(1) |> WHERE {e} > 0
FROM range(1) |> AGGREGATE sum({e})
FROM range(1) |> AGGREGATE sum(id) GROUP BY {e}
FROM range(1) |> AGGREGATE GROUP BY {e}
FROM range(1) |> ORDER BY {e}
FROM range(1) |> SORT BY {e}
FROM range(1) |> DISTRIBUTE BY {e}
FROM range(1) |> CLUSTER BY {e}
FROM range(1) |> LIMIT {e}
FROM range(1) |> LIMIT 1 OFFSET {e}
FROM range(1) |> PIVOT (sum({e}) FOR id IN (1))
FROM range(1) |> PIVOT (sum(id) FOR id IN ({e}))
FROM (SELECT 1 AS a, {e} AS b) |> UNPIVOT (v FOR n IN (a, b))
FROM range(1) |> EXTEND sum(id) OVER w AS s WINDOW w AS (ORDER BY {e})
FROM range(1) |> SELECT sum(id) OVER w AS s WINDOW w AS (ORDER BY {e})
FROM range(1) |> JOIN range(1) r ON r.id = {e}
FROM range(1) |> LEFT JOIN LATERAL explode(array({e}))
FROM range(1) |> TABLESAMPLE (1 ROWS) |> WHERE {e} > 0
FROM range(1) |> AS t |> DROP id |> EXTEND {e} AS x
SELECT * EXCEPT (id), {e} FROM range(1)
SELECT CURRENT_DATE, {e}
SELECT * FROM input TABLESAMPLE ({e} ROWS)
SELECT * FROM input TABLESAMPLE (1 PERCENT) WHERE {e} > 0
SELECT * FROM input BIN BY (RANGE a TO b BIN WIDTH {e} DISTRIBUTE UNIFORM (c))
SELECT * FROM input BIN BY (RANGE a TO b BIN WIDTH 1 ALIGN TO {e} DISTRIBUTE UNIFORM (c))
FROM input |> BIN BY (RANGE a TO b BIN WIDTH {e} DISTRIBUTE UNIFORM (c))
SELECT * FROM STREAM input WHERE {e} > 0
SELECT * FROM STREAM range({e})
"""
"""A query in each line, with ``{e}`` wherever Spark's grammar has an expression."""

QUERIES = """\
{q}
({q})
(({q}) ORDER BY 1)
SELECT * FROM ({q})
SELECT * FROM ({q}) AS t (x)
SELECT * FROM ({q} LIMIT 1) TABLESAMPLE (1 ROWS) AS t
SELECT * FROM (range(1) JOIN ({q}) AS t ON true) AS u
SELECT * FROM range(1), ({q})
SELECT * FROM range(1) CROSS JOIN ({q})
SELECT * FROM range(1) NATURAL JOIN ({q})
SELECT * FROM range(1) FULL JOIN ({q}) USING (a)
SELECT * FROM range(1), LATERAL ({q})
SELECT * FROM range(1) LEFT JOIN LATERAL ({q}) ON true
SELECT * FROM range(1) a JOIN ({q}) b APPROX NEAREST BY DISTANCE 1
SELECT * FROM ({q}) PIVOT (sum(a) FOR a IN (1))
SELECT * FROM ({q}) UNPIVOT (v FOR n IN (a))
SELECT * FROM ({q}) LATERAL VIEW explode(array(1)) t AS x
SELECT * FROM ({q}) BIN BY (RANGE a TO b BIN WIDTH 1 DISTRIBUTE UNIFORM (c))
SELECT * FROM ({q}) WATERMARK a DELAY OF INTERVAL 1 DAY
SELECT 1 UNION ALL {q}
({q}) UNION SELECT 1
({q}) INTERSECT SELECT 1
SELECT 1 INTERSECT ALL ({q})
SELECT 1 EXCEPT ({q})
({q}) MINUS ALL SELECT 1
SELECT 1 UNION (SELECT 2 UNION ({q}) LIMIT 1)
WITH t AS ({q}) SELECT * FROM t
WITH t (x) AS ({q}) SELECT * FROM t
WITH t AS ({q}) SELECT 1
WITH t AS (WITH u AS ({q}) SELECT * FROM u) SELECT 1
WITH RECURSIVE t (x) AS (SELECT 1 UNION ALL ({q})) SELECT * FROM t
WITH RECURSIVE t (x) MAX RECURSION LEVEL 3 AS ({q}) SELECT * FROM t
SELECT * FROM (WITH t AS ({q}) SELECT * FROM t)
SELECT (WITH t AS ({q}) SELECT max(a) FROM t)
SELECT EXISTS ({q})
SELECT 1 WHERE NOT EXISTS ({q})
SELECT 1 IN ({q})
SELECT (1, 2) NOT IN ({q})
SELECT ({q})
SELECT array(({q}))
SELECT * FROM explode(TABLE({q}))
SELECT * FROM f(TABLE({q}) PARTITION BY a)
SELECT * FROM f(t => TABLE({q}) WITH SINGLE PARTITION)
SELECT * FROM f(t => ({q}))
FROM ({q}) SELECT *
FROM ({q}) |> SELECT *
({q}) |> WHERE true
FROM range(1) |> UNION ALL ({q})
FROM range(1) |> EXCEPT ({q})
FROM range(1) |> INTERSECT ({q})
FROM range(1) |> JOIN ({q}) ON true
FROM range(1) |> CROSS JOIN LATERAL ({q})
WITH t AS ({q} |> WHERE true) FROM t |> SELECT *
TABLE input |> UNION ALL ({q})
WITH t AS (VALUES (1)) SELECT * FROM t JOIN ({q})
"""
"""A query in each line, with ``{q}`` where Spark's grammar has a query."""

PLACES = [
    *(line.replace("{e}", "(SELECT max(a) FROM ({q}))") for line in EXPRESSIONS.splitlines()),
    *QUERIES.splitlines(),
]


def refused(session: SparkSession, query: str) -> bool:
    """Whether a query is refused since it runs a program."""
    try:
        check_confined(session, parsed(session, query), ["input"])
    except QueryError as error:
        return "programs are not allowed" in error.message
    return False


def parsed(session: SparkSession, query: str) -> Any:
    java: Any = session._jsparkSession
    return java.sessionState().sqlParser().parsePlan(query)


@pytest.mark.complete
def test_programs_are_found_everywhere(session: SparkSession) -> None:
    assert len(PLACES) > 180
    queries = [place.replace("{q}", PROGRAMS[0]) for place in PLACES]
    # Each place within another one.
    for at, place in enumerate(PLACES):
        other = PLACES[(at + 7) % len(PLACES)].replace("{q}", PROGRAMS[-1])
        queries.append(place.replace("{q}", f"SELECT * FROM ({other})"))
    queries += [f"SELECT * FROM ({program})" for program in PROGRAMS]
    assert [query for query in queries if not refused(session, query)] == []


def test_other_queries_pass(session: SparkSession) -> None:
    kinds: set[str] = set()
    for place in PLACES:
        plan = parsed(session, place.replace("{q}", HARMLESS))
        check_confined(session, plan, ["input"])
        kinds |= {kind for kind, _ in _nodes(session, plan)}
    # The grammar of ASOF JOIN is disabled by default.
    assert _ALLOWED - kinds == {"AsOfJoin"}


def test_queries_can_be_checked_concurrently(session: SparkSession) -> None:
    plan = parsed(session, HARMLESS)
    together = threading.Barrier(4)

    def check(_: int) -> None:
        together.wait()
        for _ in range(2):
            check_confined(session, plan, [])

    _walker.cache_clear()
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(check, range(4)))


def test_programs_in_an_analysed_plan_are_found(session: SparkSession) -> None:
    for query in (PROGRAMS[0], f"SELECT 1 WHERE 1 IN ({PROGRAMS[0]})"):
        with pytest.raises(QueryError, match="programs are not allowed"):
            check_analyzed(session, session.sql(query))
    check_analyzed(session, session.sql(HARMLESS))


def test_a_program_in_a_named_window_does_not_run(session: SparkSession, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    program = f"SELECT TRANSFORM(1) USING 'touch {ran}' AS (a INT)"
    query = f"SELECT sum(id) OVER w FROM input WINDOW w AS (PARTITION BY (SELECT max(a) FROM ({program})))"
    with pytest.raises(QueryError, match="programs are not allowed") as caught:
        run_query(session, {"input": session.sql("SELECT 1 AS id")}, [SqlQueryStep(query=query)]).collect()
    assert caught.value.where == "query, line 1, column 81"
    assert not ran.exists()


def test_unknown_plan_nodes_are_refused(session: SparkSession) -> None:
    plan = parsed(session, "DROP TABLE input")
    with pytest.raises(QueryError, match="a query cannot contain DropTable"):
        check_confined(session, plan, ["input"])
    with pytest.raises(QueryError, match="no history of changes"):
        check_confined(session, parsed(session, "SELECT * FROM input CHANGES FROM VERSION 1"), ["input"])
