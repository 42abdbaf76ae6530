"""Comparison of derivative datasets with their query over the latest state of the inputs."""

from __future__ import annotations

from random import Random

import pytest

from odf_engine.base.progress import Reporter
from odf_engine.derive.verify.recompute import Recomputed, recompute_dataset
from odf_engine.errors import NotFound, Unsupported, UsageError
from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.engine_versions import other_versions
from tests.derive.deriving import Deriving, earlier_rules
from tests.derive.test_as_of_corrections import random_changes
from tests.derive.test_stateful import R

BOUNDED = (
    "SELECT t.event_time, t.city, t.x, r.x AS rate FROM trades t LEFT JOIN rates r ON t.city = r.city\n"
    "AND r.event_time BETWEEN t.event_time - INTERVAL 1 DAY AND t.event_time + INTERVAL 1 DAY"
)
QUERIES = {
    "stateless": "SELECT event_time, city, x * 2 AS y FROM trades WHERE x > 2",
    "window": "SELECT window.start AS event_time, city, sum(x) AS s, avg(x) AS m FROM trades\n"
    "GROUP BY window(event_time, '1 day'), city",
    "session": "SELECT w.start AS event_time, city, n FROM (\n"
    "SELECT session_window(event_time, '25 hours') AS w, city, count(*) AS n FROM trades\n"
    "GROUP BY session_window(event_time, '25 hours'), city) WHERE w.end > '2024-01-02'",
    "grouping": "SELECT max(event_time) AS event_time, city, min(x) AS low, avg(x / 3) AS m FROM trades\n"
    "GROUP BY city",
    "left join": BOUNDED,
    "running": "SELECT event_time, city, sum(x) OVER (PARTITION BY city ORDER BY event_time, x) AS s\n"
    "FROM trades",
    "ranked": "SELECT event_time, city, x, n FROM (SELECT *, row_number() OVER (PARTITION BY city\n"
    "ORDER BY x DESC, event_time) AS n FROM trades) WHERE n <= 2",
}


def recompute(deriving: Deriving, entry: DatasetEntry, runtime: SparkRuntime) -> Recomputed:
    return recompute_dataset(deriving.workspace, entry, deriving.engine, runtime.session(), Reporter())


@pytest.mark.parametrize("name", QUERIES)
@pytest.mark.complete(after=2)
def test_derived_rows_equal_the_query_over_the_latest_state(
    deriving: Deriving, runtime: SparkRuntime, name: str
) -> None:
    random = Random(name)
    inputs = ["rates", "trades"] if name == "left join" else ["trades"]
    roots = {each: deriving.root(each) for each in inputs}
    entry = deriving.derivative(QUERIES[name], *inputs)
    # The other queries drop late rows.
    accepts_late = name in ("stateless", "grouping", "ranked")
    live: dict[str, list[tuple[object, ...]]] = {each: [] for each in inputs}
    for step in range(4):
        for each in inputs:
            deriving.rows(roots[each], *random_changes(random, live[each], 4), advances=accepts_late)
        if step % 2:
            deriving.run(entry)
    found = recompute(deriving, entry, runtime)
    assert (found.missing, found.extra, found.differences) == (0, 0, [])
    for root in roots.values():
        day = 6 if accepts_late else 4 if name == "session" else 3
        deriving.rows(root, watermark=f"2024-01-0{day}T00:00:00Z")
    deriving.run(entry)
    found = recompute(deriving, entry, runtime)
    assert (found.missing, found.extra, found.differences) == (0, 0, [])
    assert found.rows > 0


def test_sums_that_differ_in_the_last_digits_are_equal(deriving: Deriving, runtime: SparkRuntime) -> None:
    root = deriving.root()
    entry = deriving.derivative(
        "SELECT max(event_time) AS event_time, city, sum(x / 7) AS s FROM input GROUP BY city"
    )
    random = Random(1)
    for _ in range(6):
        deriving.rows(root, *((1, "a", random.randrange(10**9)) for _ in range(20)))
        deriving.run(entry)
    found = recompute(deriving, entry, runtime)
    assert found.is_equal and found.rows == 1


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("SELECT event_time, x, system_time() AS now FROM input", "system_time"),
        ("SELECT event_time, x FROM input WHERE op = 0", "operations"),
    ],
)
def test_results_that_depend_on_transactions_cannot_be_recomputed(
    deriving: Deriving, runtime: SparkRuntime, query: str, reason: str
) -> None:
    root = deriving.root()
    entry = deriving.derivative(query)
    with pytest.raises(NotFound, match="no transactions"):
        recompute(deriving, entry, runtime)
    with pytest.raises(UsageError, match="root dataset"):
        recompute(deriving, root, runtime)
    deriving.rows(root, (1, "a", 1), (1, "a", 1, R))
    deriving.run(entry)
    with pytest.raises(Unsupported, match=reason):
        recompute(deriving, entry, runtime)


def test_versions_of_rows_are_those_of_queries_that_ran(deriving: Deriving) -> None:
    root = deriving.root()
    with earlier_rules(5) as old:
        made = deriving.derivative("SELECT * FROM input")
        deriving.rows(root, (1, "a", 1))
        deriving.run(made)
    deriving.set_version(made, old.replace("odf5", "odf4"))  # no rows yet
    deriving.rows(root, (2, "a", 2))
    deriving.run(made)
    assert other_versions(root.dataset, ()) == []
    assert other_versions(made.dataset, ["flink"]) == [f"spark {old}"]
    assert other_versions(made.dataset, ["Spark"]) == []  # a configured engine replaces the built-in one
