"""Queries whose rows can change at any time: their latest state is that of Spark's batch query."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.parquet as pq
import pytest

from odf_engine.base.progress import Reporter
from odf_engine.chain.compaction import CompactionPolicy, compact
from odf_engine.chain.schema_evolution import declared_schema
from odf_engine.derive.provenance.step import trace_back
from odf_engine.engines.contract import QueryInput
from odf_engine.engines.stateful.checkpoint import read_checkpoint
from odf_engine.errors import BadData, Unsupported, UsageError
from odf_engine.metadata.model import Sql, SqlQueryStep
from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.spark.stateful import incremental, kept_groups
from tests.derive.deriving import Deriving
from tests.derive.random_changes import compare_latest_state
from tests.derive.test_as_of_corrections import days, latest_state, recompute
from tests.derive.test_query_migration import becomes
from tests.derive.test_replay import check
from tests.derive.test_stateful import CF, CT, A, R

QUERIES = {
    "inner": "SELECT a.event_time, a.city, a.x, b.x AS y FROM a JOIN b ON a.city = b.city",
    "self": "SELECT p.event_time, p.city, p.x, q.x AS y FROM a p JOIN a q ON p.city = q.city "
    "AND p.x < q.x",
    "left": "SELECT a.event_time, a.city, a.x, b.x AS y FROM a LEFT JOIN b ON a.city = b.city",
    "right": "SELECT b.event_time, a.city, a.x, b.x AS y FROM a RIGHT JOIN b ON a.city = b.city "
    "AND a.x < b.x",
    "full": "SELECT coalesce(a.event_time, b.event_time) AS event_time, a.x, b.x AS y\nFROM a "
    "FULL JOIN b ON a.city = b.city",
    "unequal": "SELECT a.event_time, a.x, b.x AS y FROM a LEFT JOIN b ON a.x < b.x",
    "semi": "SELECT a.* FROM a LEFT SEMI JOIN b ON a.city = b.city",
    "anti": "SELECT a.* FROM a LEFT ANTI JOIN b ON a.city = b.city AND a.x <= b.x",
    "exists": "SELECT * FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.city = a.city AND b.x > a.x)",
    "in": "SELECT * FROM a WHERE city IN (SELECT city FROM b WHERE x > 2)",
    "in or": "SELECT * FROM a WHERE x > 7 OR city IN (SELECT city FROM b WHERE x > 2)",
    "not in": "SELECT * FROM a WHERE city NOT IN (SELECT city FROM b)",
    "not in of a join": "SELECT a.event_time, a.city, b.x AS y FROM a JOIN b ON a.x < b.x\n"
    "AND b.city NOT IN (SELECT if(x > 2, NULL, city) FROM a)",
    "not in of an outer join": "SELECT a.event_time, a.city, b.x AS y FROM a LEFT JOIN b ON a.x < b.x\n"
    "AND b.city NOT IN (SELECT if(x > 2, NULL, city) FROM a)",
    "not in of a semi join": "SELECT a.* FROM a LEFT SEMI JOIN b ON a.x < b.x\n"
    "AND a.city NOT IN (SELECT if(x > 7, NULL, city) FROM b)",
    "not in of an anti join": "SELECT a.* FROM a LEFT ANTI JOIN b ON a.x < b.x\n"
    "AND b.city NOT IN (SELECT if(x > 2, NULL, city) FROM a)",
    "in under not": "SELECT * FROM a WHERE NOT (x > 8 OR if(x > 2, NULL, city) IN (SELECT city FROM b))",
    "in under not in exists": "SELECT * FROM a WHERE EXISTS (SELECT 1 FROM a c WHERE c.x = a.x AND\n"
    "NOT (c.x > 8 OR if(c.x > 2, NULL, c.city) IN (SELECT city FROM b)))",
    "sorted subqueries": "SELECT *, (SELECT sum(x / 7) FROM b WHERE x > (SELECT avg(x / 3) FROM a)) AS s\n"
    "FROM a WHERE x < (SELECT max(n) FROM (SELECT row_number() OVER (ORDER BY x) AS n FROM b))",
    "lateral in scalar": "SELECT * FROM a WHERE (SELECT count(*) FROM (SELECT p.city, t.s FROM b p,\n"
    "LATERAL (SELECT sum(x) AS s FROM a q WHERE q.city = p.city) t) u WHERE u.city = a.city) > 1",
    "limited lateral": "SELECT a.event_time, a.city, t.x FROM a, LATERAL (SELECT x, event_time FROM b\n"
    "WHERE b.city = a.city ORDER BY x, event_time LIMIT 1) t",
    "correlated": "SELECT *, (SELECT max(x) FROM b WHERE b.city = a.city) AS m FROM a",
    "lateral": "SELECT a.event_time, a.city, t.s FROM a, LATERAL (SELECT sum(x) AS s FROM b WHERE "
    "b.city = a.city) t",
    "joined groups": "SELECT max(a.event_time) AS event_time, a.city, count(*) AS n, sum(b.x / 3) AS "
    "s\nFROM a JOIN b ON a.city = b.city GROUP BY a.city",
    "groups joined": "SELECT a.event_time, a.city, a.x, t.s FROM a JOIN (\nSELECT city, sum(x) AS s, "
    "max(x) AS m FROM b GROUP BY city) t ON a.city = t.city AND a.x <= t.m",
    "nested": "SELECT max(event_time) AS event_time, s, count(*) AS n FROM (\nSELECT city, "
    "sum(x) AS s, max(event_time) AS event_time FROM a GROUP BY city) GROUP BY s",
    "rollup": "SELECT min(event_time) AS event_time, city, sum(x) AS s, grouping_id() AS g FROM "
    "a\nGROUP BY ROLLUP (city)",
    "cube": "SELECT max(event_time) AS event_time, city, x, count(*) AS n FROM a GROUP BY CUBE "
    "(city, x)",
    "distinct sum": "SELECT max(event_time) AS event_time, city, sum(DISTINCT x) AS s, count(*) FILTER "
    "(WHERE x > 3) AS n\nFROM a GROUP BY city HAVING count(*) > 1",
    "moments": "SELECT min(event_time) AS event_time, city, stddev(x) AS d, corr(x, x * x) AS c, "
    "median(x) AS m FROM a\nGROUP BY city",
    "lag": "SELECT event_time, city, x, lag(x) OVER (PARTITION BY city ORDER BY event_time, "
    "x) AS p FROM a",
    "sliding": "SELECT event_time, city, x, sum(x) OVER (PARTITION BY city ORDER BY x\nROWS "
    "BETWEEN 1 PRECEDING AND 1 FOLLOWING) AS s, first_value(x) OVER (PARTITION BY city ORDER BY x) AS "
    "f FROM a",
    "ranks": "SELECT event_time, city, x, rank() OVER (ORDER BY x) AS r, ntile(3) OVER (ORDER "
    "BY x, event_time, city) AS t,\npercent_rank() OVER (PARTITION BY city ORDER BY x) AS p FROM a",
    "share": "SELECT event_time, city, x, x / sum(x) OVER () AS s FROM a",
    "union": "SELECT date_trunc('day', event_time) AS event_time, city FROM a UNION SELECT "
    "event_time, city FROM b",
    "intersect all": "SELECT event_time, city FROM a INTERSECT ALL SELECT event_time, city FROM b",
    "except": "SELECT city, event_time FROM a EXCEPT SELECT city, event_time FROM b",
    "except all": "SELECT event_time, city FROM a EXCEPT ALL SELECT event_time, city FROM b",
    "exploded groups": "SELECT event_time, city, e FROM (SELECT min(event_time) AS event_time, city,\n"
    "count(*) AS n FROM a GROUP BY city) LATERAL VIEW explode(sequence(1, n)) AS e",
    "unpivoted groups": "SELECT event_time, city, k, v FROM (SELECT min(event_time) AS event_time, city,\n"
    "count(*) AS n, sum(x) AS s FROM a GROUP BY city) UNPIVOT (v FOR k IN (n, s))",
    "pivot": "SELECT * FROM (SELECT date_trunc('day', event_time) AS event_time, city, x FROM "
    "a)\nPIVOT (sum(x) FOR city IN ('a', 'b'))",
    "unpivot": "SELECT event_time, k, v FROM (SELECT event_time, city, x, x * 2 AS y FROM "
    "a\nWHERE city IN (SELECT city FROM b)) UNPIVOT (v FOR k IN (x, y))",
    "limit": "SELECT * FROM a ORDER BY x DESC, event_time LIMIT 3",
    "cte": "WITH t AS (SELECT city, max(x) AS m FROM b GROUP BY city)\nSELECT a.event_time, "
    "a.city, m, (SELECT count(*) FROM t) AS n FROM a JOIN t ON a.city = t.city",
    "pipe": "FROM a |> WHERE x > 1 |> JOIN b ON a.city = b.city |> SELECT a.event_time, "
    "a.city, b.x",
    "three": "SELECT a.event_time, a.city, b.x, c.x AS y FROM a JOIN b ON a.city = b.city\nLEFT "
    "JOIN a c ON c.city = b.city AND c.x > b.x",
    "empty group": "SELECT max(event_time) AS event_time, count(*) AS n FROM a WHERE city IN (SELECT "
    "city FROM b)\nHAVING n > 0",
}  # fmt: skip


TIES = """
SELECT event_time, city, x, row_number() OVER (PARTITION BY city ORDER BY x % 2) AS n,
    sum(x / 7) OVER (ORDER BY x % 2) AS s, last_value(x) OVER (PARTITION BY city ORDER BY x % 3) AS l
FROM a WHERE city IN (SELECT city FROM b)
"""
FLOATS = """
SELECT min(a.event_time) AS event_time, a.city, sum(a.x / 7) AS s, avg(b.x / 3) AS m, stddev(b.x) AS d,
    max_by(b.x, a.x) AS y
FROM a JOIN b ON a.city = b.city GROUP BY a.city
"""
KEPT = {
    "joined groups": "SELECT max(a.event_time) AS event_time, a.city, count(*) AS n, avg(b.x) AS s,\n"
    "min(b.x) AS m FROM a JOIN b ON a.city = b.city GROUP BY a.city",
    "total": "SELECT coalesce(max(a.event_time), TIMESTAMP'2024-01-01') AS event_time, count(b.x) AS n,\n"
    "sum(b.x) AS s, max(b.x) FILTER (WHERE a.x > 4) AS m FROM a JOIN b ON a.city = b.city",
    "subqueries": "SELECT p.event_time, p.city, p.n, q.n AS m FROM (\n"
    "SELECT max(event_time) AS event_time, city, count(*) AS n FROM a WHERE x >= (SELECT min(x) FROM b)\n"
    "GROUP BY city) p JOIN (\n"
    "SELECT max(event_time) AS event_time, city, count(*) AS n FROM a WHERE x >= (SELECT max(x) FROM b)\n"
    "GROUP BY city) q ON p.city = q.city",
}
"""Queries whose groups are kept in the checkpoint, as are those of some of :data:`QUERIES`."""
Row = tuple[int, str, int]


class Changing:
    """Roots whose rows are added, retracted and corrected at random.

    Attributes:
        roots: the roots by name.
    """

    def __init__(self, deriving: Deriving, seed: str, *names: str) -> None:
        self._deriving, self._random = deriving, Random(seed)
        self.roots = {name: deriving.root(name) for name in names}
        self._live: dict[str, list[Row]] = {name: [] for name in names}

    def step(self, *names: str, all_roots: bool = False) -> None:
        """Commit rows to these roots, or to some."""
        count = len(self.roots) if all_roots else self._random.randint(1, len(self.roots))
        for name in names or self._random.sample(sorted(self.roots), count):
            self._deriving.rows(self.roots[name], *self._changes(self._live[name]))

    def latest_states(self) -> dict[str, list[tuple[Any, ...]]]:
        """Return the latest state of each root."""
        return {
            name: [(datetime(2024, 1, day), city, x) for day, city, x in rows]
            for name, rows in self._live.items()
        }

    def _changes(self, live: list[Row]) -> list[tuple[Any, ...]]:
        random, rows = self._random, list[tuple[Any, ...]]()
        for _ in range(random.randint(1, 6)):
            kind = random.random() if live else 1.0
            old = live.pop(random.randrange(len(live))) if kind < 0.45 else None
            if old is not None and kind < 0.25:
                rows.append((*old, R))
                continue
            row = (random.randint(1, 4), random.choice("abcd"), random.randint(1, 9))
            rows += [row] if old is None else [(*old, CF), (*row, CT)]
            live.append(row)
        return rows


_RANDOM = (
    "semi", "exists", "in", "correlated", "lateral", "joined groups", "groups joined", "nested", "cube",
    "union", "except", "limit", "cte",
)  # fmt: skip
"""Shapes that the random queries have as well; other tests use these queries."""


@pytest.mark.parametrize("name", [name for name in QUERIES if name not in _RANDOM])
@pytest.mark.complete(after=2)
def test_latest_state_is_that_of_the_batch_query(
    deriving: Deriving, runtime: SparkRuntime, name: str
) -> None:
    inputs = ["a", "b"] if " b" in QUERIES[name] else ["a"]
    changing = Changing(deriving, name, *inputs)
    entry = deriving.derivative(QUERIES[name], *inputs)
    changing.step(all_roots=True)
    deriving.run(entry)
    for root in inputs:
        changing.step(root)
        deriving.run(entry)
    assert compare_latest_state(deriving, runtime, entry, QUERIES[name], changing.latest_states()) == []


SESSIONS = """
SELECT s.t AS event_time, s.city, s.n, b.x FROM (
    SELECT session_window.start AS t, city, count(*) AS n FROM a
    GROUP BY session_window(event_time, '30 hours'), city HAVING session_window.end > '2024-01-04'
) s JOIN b ON s.city = b.city AND s.t = b.event_time
"""


@pytest.mark.parametrize("kind", ["JOIN", "LEFT JOIN"])
def test_condition_on_a_session_applies_to_all_its_rows(deriving: Deriving, kind: str) -> None:
    a, b = deriving.root("a"), deriving.root("b")
    entry = deriving.derivative(SESSIONS.replace("JOIN", kind), "a", "b")
    deriving.rows(a, (1, "a", 1), (2, "a", 2), (1, "b", 1))
    deriving.rows(b, (1, "a", 7), (2, "a", 8))
    deriving.run(entry)
    deriving.rows(a, (3, "a", 3))
    deriving.rows(b, (1, "a", 9), (3, "a", 9))
    deriving.run(entry)
    assert sorted(deriving.result(entry, "op", "city", "n", "x")) == [(0, "a", 3, 7), (0, "a", 3, 9)]


@pytest.mark.parametrize(("query", "columns"), [(TIES, "xnsl"), (FLOATS, "smdy")])
@pytest.mark.complete(after=1)
def test_result_depends_neither_on_pulls_nor_on_the_division_of_work(
    deriving: Deriving, query: str, columns: str
) -> None:
    changing = Changing(deriving, query, "a", "b")
    once, parts = (deriving.derivative(query, "a", "b", name=name) for name in ("once", "parts"))
    for number in range(3):
        changing.step(all_roots=number == 0)
        if number == 1:
            compact(changing.roots["a"].dataset, CompactionPolicy(), Reporter())
        deriving.run(parts)
    deriving.run(once)
    states = [latest_state(days(deriving, entry, *columns)) for entry in (once, parts)]
    assert states[0] == states[1] and states[0]
    report = check(deriving, parts)
    assert (report.findings, report.unchecked) == ([], [])


@pytest.mark.complete
def test_changed_query_replaces_the_rows(deriving: Deriving, runtime: SparkRuntime) -> None:
    changing = Changing(deriving, "migration", "a", "b")
    entry = deriving.derivative(QUERIES["inner"], "a", "b")
    for number in range(2):
        changing.step(all_roots=number == 0)
        deriving.run(entry)
    left = QUERIES["left"].replace(" AS y", " AS y, a.x + 1 AS z")
    for choice, message in (("", "cannot continue"), ("flush", "cannot start with an empty state")):
        with pytest.raises(UsageError, match=message):
            becomes(deriving, entry, left, "a", "b", choice=choice, accept_columns=True)
    assert becomes(deriving, entry, left, "a", "b", choice="rebuild", accept_columns=True).state == "rebuilt"
    assert recompute(deriving, entry, runtime).differences == []
    changing.step(all_roots=True)
    deriving.run(entry)
    assert recompute(deriving, entry, runtime).differences == []
    assert check(deriving, entry).findings == []


ORIGINS = {
    "inner": [{0}, {2}], "joined groups": [{0, 1}, {2, 4}], "exists": [{0}, {2, 4}],
    "in": [{0}, {2, 4}], "anti": [{2}, set[int]()], "correlated": [{0}, {2, 4}], "lag": [{0, 1}],
    "limit": [{0}], "cube": [{0, 1, 2}],
    "union": [{0, 1}, {2}], "except": [{2}, set[int]()],
}  # fmt: skip
"""Offsets of the rows of each input that the first row of a query is derived from."""
REASONS = {
    "exists": "all rows with the keys",
    "lateral": "ambiguous",
    "cte": "a subquery in an expression",
    "share": "without PARTITION BY",
}


@pytest.mark.parametrize("name", ORIGINS | REASONS)
@pytest.mark.complete(after=1)
def test_rows_are_traced_to_the_rows_of_their_keys(
    deriving: Deriving, runtime: SparkRuntime, name: str
) -> None:
    roots = [deriving.root(each) for each in "ab"]
    deriving.rows(roots[0], (1, "a", 1), (1, "a", 2), (1, "c", 5))
    deriving.rows(roots[1], (1, "a", 3), (1, "b", 4), (1, "a", 3))
    deriving.rows(roots[1], (1, "a", 3, R), (2, "a", 6))
    entry = deriving.derivative(QUERIES[name], *("ab" if " b" in QUERIES[name] else "a"))
    deriving.run(entry)
    (trace,) = trace_back(deriving.workspace, entry, [(0, 0)], runtime, Reporter())
    assert REASONS.get(name, "None") in str(trace.reason)
    if name in ORIGINS:
        assert [offsets(runs) for _, _, runs in trace.feeds] == ORIGINS[name]


@pytest.mark.complete
def test_retracted_rows_are_traced_to_the_rows_before_the_transaction(
    deriving: Deriving, runtime: SparkRuntime
) -> None:
    roots = [deriving.root(each) for each in "ab"]
    deriving.rows(roots[0], (1, "a", 1), (1, "c", 5))
    deriving.rows(roots[1], (1, "a", 3))
    entry = deriving.derivative(QUERIES["joined groups"], "a", "b")
    deriving.run(entry)
    deriving.rows(roots[1], (1, "a", 3, CF), (1, "a", 4, CT))
    deriving.run(entry)
    assert [row[-1] for row in days(deriving, entry, "n")] == [A, R, A]
    _, trace = trace_back(deriving.workspace, entry, [(0, 2)], runtime, Reporter())
    assert [offsets(runs) for _, _, runs in trace.feeds] == [{0}, {0, 2}] and trace.exact
    assert trace.operations == ["joined: INNER JOIN ON (a.city = b.city)", "grouped by a.city"]


def offsets(runs: list[tuple[int, int]]) -> set[int]:
    return {offset for first, last in runs for offset in range(first, last + 1)}


@pytest.mark.parametrize("name", ["lag", "left"])
@pytest.mark.complete
def test_retraction_of_a_row_that_the_input_never_had_adds_no_row(
    deriving: Deriving, runtime: SparkRuntime, name: str
) -> None:
    a, b = deriving.root("a"), deriving.root("b")
    entry = deriving.derivative(QUERIES[name], *("ab" if " b" in QUERIES[name] else "a"))
    deriving.rows(b, (1, "a", 4))
    deriving.rows(a, (1, "a", 1), (1, "a", 2))
    deriving.run(entry)
    deriving.rows(a, (1, "a", 3, R), (2, "a", 5))
    deriving.run(entry)
    assert recompute(deriving, entry, runtime).differences == []


def test_row_without_event_time_is_reported(deriving: Deriving) -> None:
    changing = Changing(deriving, "null", "a", "b")
    changing.step(all_roots=True)
    query = "SELECT max(event_time) AS event_time FROM a WHERE x > 99 AND city IN (SELECT city FROM b)"
    entry = deriving.derivative(query, "a", "b")
    with pytest.raises(BadData, match="event time 'event_time' of a result row is null"):
        deriving.run(entry)


def test_limit_ordered_by_hidden_columns_of_a_lateral_subquery_is_reported(deriving: Deriving) -> None:
    changing = Changing(deriving, "lateral", "a", "b")
    changing.step(all_roots=True)
    query = """SELECT a.event_time, t.city FROM a,
LATERAL (SELECT city FROM b WHERE b.x = a.x ORDER BY b.event_time LIMIT 1) t"""
    entry = deriving.derivative(query, "a", "b")
    with pytest.raises(Unsupported, match="ORDER BY has columns that are not selected") as raised:
        deriving.run(entry)
    assert raised.value.where == "line 1, column 29"


def test_query_that_spark_cannot_plan_is_refused_before_a_pull(deriving: Deriving) -> None:
    changing = Changing(deriving, "lateral", "a")
    changing.step(all_roots=True)
    query = (
        "SELECT max(event_time) AS event_time, listagg(city, ',') WITHIN GROUP (ORDER BY city) AS cities,\n"
    )
    query += "count(DISTINCT x) AS n, count(DISTINCT city, x) AS m FROM a GROUP BY event_time"
    state = deriving.workspace.resolve("a").dataset.state()
    schema = declared_schema(state)
    assert schema is not None
    transform = Sql(engine="spark", queries=[SqlQueryStep(query=query)])
    with pytest.raises(Unsupported, match="Spark cannot plan the query") as raised:
        deriving.engine.validate(
            transform, [QueryInput("a", schema, state.vocabulary)], state.vocabulary, None
        )
    assert raised.value.where == "query" and raised.value.hint


@pytest.mark.parametrize(
    ("name", "large", "most"),
    [
        ("joined groups", 2, 1_000_000),
        ("groups joined", 2, 1_000_000),
        ("nested", 2, 1_000_000),
        ("total", 2, 1_000_000),
        ("subqueries", 2, 2),
    ],
)
@pytest.mark.complete
def test_kept_groups_give_the_rows_of_the_batch_query(
    deriving: Deriving,
    runtime: SparkRuntime,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    large: int,
    most: int,
) -> None:
    monkeypatch.setattr(incremental, "_LARGE_STATE", large)
    monkeypatch.setattr(kept_groups, "MAX_KEPT_GROUPS", most)
    query = (QUERIES | KEPT)[name]
    changing = Changing(deriving, name, "a", "b")
    entry = deriving.derivative(query, *("ab" if " b" in query else "a"))
    for number in range(4):
        changing.step(all_roots=number == 0)
        deriving.run(entry)
    result = recompute(deriving, entry, runtime)
    assert (result.missing, result.extra, result.differences) == (0, 0, [])


def test_groups_are_kept_in_the_checkpoint(deriving: Deriving, tmp_path: Path) -> None:
    a, b = deriving.root("a"), deriving.root("b")
    entry = deriving.derivative(KEPT["joined groups"], "a", "b")
    for number, rows in enumerate([[(1, "a", 1), (1, "b", 2)], [(2, "c", 3), (2, "a", 4)], [(1, "b", 2, R)]]):
        deriving.rows(a, *rows)
        deriving.rows(b, *rows)
        deriving.run(entry)
        checkpoint = deriving.newest(entry).new_checkpoint
        assert checkpoint is not None
        folder = tmp_path / str(number)
        read_checkpoint(entry.dataset.checkpoint_path(checkpoint.physical_hash), folder)
        (path,) = folder.glob("state/groups-*.parquet")
        groups = pq.read_table(path).sort_by("k0").select(["k0", "n"]).to_pylist()
        expected = [[("a", 1), ("b", 1)], [("a", 4), ("b", 1), ("c", 1)], [("a", 4), ("c", 1)]]
        assert [(row["k0"], row["n"]) for row in groups] == expected[number]
