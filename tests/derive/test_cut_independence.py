"""Results that must not depend on how the rows of an input are divided into pulls."""

from __future__ import annotations

from collections import Counter

import pytest
from msgspec import UNSET

from odf_engine.engines.stateful.checkpoint import read_checkpoint_metadata
from odf_engine.errors import BadData, Unsupported
from tests.derive.deriving import Deriving
from tests.derive.test_as_of_corrections import days, latest_state
from tests.derive.test_replay import check
from tests.derive.test_stateful import A, R
from tests.log_lines import LogLines

SESSIONS = (
    "SELECT w.start AS event_time, w.end AS until, city, s FROM (\n"
    "SELECT session_window(event_time, '12 hours') AS w, city, sum(x) AS s\n"
    "FROM input GROUP BY session_window(event_time, '12 hours'), city)"
)
BOUND = (
    "SELECT b.event_time, a.city, b.x FROM a JOIN b ON a.city = b.city\n"
    "AND b.event_time BETWEEN a.event_time AND "
)


@pytest.mark.complete
def test_event_at_the_end_of_a_session_extends_it(deriving: Deriving) -> None:
    root = deriving.root()
    once, parts = (deriving.derivative(SESSIONS, name=name) for name in ("once", "parts"))
    deriving.rows(root, (1, "a", 1), (1.5, "b", 5))  # the watermark is the end of the first session
    deriving.run(parts)
    deriving.rows(root, (1.5, "a", 2))
    deriving.run(parts, lines := LogLines())
    deriving.rows(root, watermark="2024-02-01T00:00:00Z")
    deriving.run(parts)
    deriving.run(once)
    expected = Counter({(1, "a", 3): 1, (1.5, "b", 5): 1})
    for entry in (once, parts):
        assert latest_state(days(deriving, entry, "city", "s")) == expected
        assert check(deriving, entry).findings == []
    assert lines.warnings == []


@pytest.mark.parametrize(
    ("query", "is_final"),
    [
        (f"{BOUND}timestamp_seconds(a.x)", False),
        (f"{BOUND}timestamp_seconds(a.x) AND b.event_time <= a.event_time + INTERVAL 1 HOUR", True),
        (
            "SELECT a.event_time, b.x FROM a JOIN b ON a.city = b.city\n"
            "AND a.event_time = timestamp_seconds(b.x)",
            False,
        ),
        ("SELECT a.event_time, b.x FROM a JOIN b ON a.city = b.city AND a.event_time = b.event_time", True),
        ("SELECT a.* FROM a LEFT SEMI JOIN b ON a.city = b.city AND a.event_time = b.event_time", False),
        ("SELECT a.* FROM a LEFT ANTI JOIN b ON a.city = b.city AND a.event_time = b.event_time", False),
        (
            "SELECT coalesce(event_time, TIMESTAMP'2100-01-01') AS event_time, city, sum(x) AS s FROM a\n"
            "WHERE x < 5 GROUP BY ROLLUP (event_time, city)",
            False,
        ),
        (
            "SELECT coalesce(window.start, TIMESTAMP'2100-01-01') AS event_time, city, sum(x) AS s FROM a\n"
            "GROUP BY GROUPING SETS ((window(event_time, '1 day')), (city))",
            False,
        ),
    ],
)
@pytest.mark.complete(after=2)
def test_rows_that_are_never_complete_are_not_final(deriving: Deriving, query: str, is_final: bool) -> None:
    for name in "ab":
        deriving.rows(deriving.root(name), (1, "a", 1))
    entry = deriving.derivative(query, *"ab" if "JOIN" in query else "a")
    deriving.run(entry)
    checkpoint = deriving.newest(entry).new_checkpoint
    assert checkpoint is not None
    metadata = read_checkpoint_metadata(entry.dataset.checkpoint_path(checkpoint.physical_hash))
    assert (metadata.result is UNSET) == is_final


@pytest.mark.parametrize(
    "query",
    [
        "SELECT max(event_time) AS event_time, city COLLATE UTF8_LCASE AS city, sum(x) AS s FROM input\n"
        "GROUP BY city COLLATE UTF8_LCASE",
        "SELECT max(event_time) AS event_time, x, max(city COLLATE UTF8_LCASE) AS city FROM input GROUP BY x",
        "SELECT DISTINCT event_time, city COLLATE UNICODE_CI AS city FROM input",
        "SELECT event_time, x FROM (SELECT *, row_number() OVER (\n"
        "PARTITION BY city COLLATE UTF8_LCASE ORDER BY x) AS n FROM input) WHERE n <= 2",
    ],
)
def test_collations_in_stateful_operators_are_refused(deriving: Deriving, query: str) -> None:
    deriving.rows(deriving.root(), (1, "a", 1))
    with pytest.raises(Unsupported, match="collation"):
        deriving.run(deriving.derivative(query))


@pytest.mark.complete
def test_grouping_sets_that_all_have_the_time_are_complete(deriving: Deriving) -> None:
    root = deriving.root()
    entry = deriving.derivative(
        "SELECT window.start AS event_time, city, sum(x) AS s FROM input\n"
        "GROUP BY GROUPING SETS ((window(event_time, '1 day'), city), (window(event_time, '1 day')))"
    )
    deriving.rows(root, (1, "a", 1), (1, "b", 2), (3, "a", 4))
    deriving.run(entry)
    rows = days(deriving, entry, "city", "s")
    assert Counter(rows) == Counter([(1, "a", 1, A), (1, "b", 2, A), (1, None, 3, A)])


@pytest.mark.complete
def test_group_whose_rows_are_all_retracted_leaves_the_result(deriving: Deriving) -> None:
    root = deriving.root()
    entry = deriving.derivative(
        "SELECT min(event_time) AS event_time, city, count(*) AS n FROM input GROUP BY city"
    )
    deriving.rows(root, (1, "a", 1), (1, "b", 1))
    deriving.rows(root, (1, "a", 1, R))
    deriving.run(entry)
    assert latest_state(days(deriving, entry, "city", "n")) == Counter({(1, "b", 1): 1})
    assert days(deriving, entry, "city", "n")[-1] == (1, "a", 1, R)
    assert days(deriving, entry, "city", "n")[0][-1] == A


def test_overflow_of_a_sum_does_not_quote_internal_queries(deriving: Deriving) -> None:
    root = deriving.root()
    entry = deriving.derivative(
        "SELECT max(event_time) AS event_time, city,\n"
        "sum(CAST(x AS DECIMAL(38, 0)) * 1000000000000000000) AS s FROM input GROUP BY city"
    )
    deriving.rows(root, *((1, "a", 9 * 10**18) for _ in range(30)))
    with pytest.raises(BadData, match="overflows its type") as caught:
        deriving.run(entry)
    assert "odf_" not in f"{caught.value} {caught.value.excerpt}" and caught.value.where == "query"


ZERO = "IF(x = 0, -0.0D, 0.0D)"


@pytest.mark.parametrize(
    "query",
    [
        f"SELECT window.start AS event_time, city, min({ZERO}) AS m FROM a\n"
        "GROUP BY window(event_time, '1 day'), city",
        f"SELECT min(event_time) AS event_time, city, min({ZERO}) AS m FROM a GROUP BY city",
        f"SELECT min(event_time) AS event_time, city, max({ZERO}) AS m FROM a\n"
        "WHERE city IN (SELECT city FROM a) GROUP BY city",
        f"SELECT event_time, min({ZERO}) OVER (PARTITION BY city) AS m FROM a",
    ],
)
@pytest.mark.complete(after=1)
def test_min_and_max_of_zeros_do_not_depend_on_the_order_of_rows(deriving: Deriving, query: str) -> None:
    root, entry = deriving.root("a"), deriving.derivative(query, "a")
    deriving.rows(root, (1, "a", 0), (1, "b", 1))
    deriving.run(entry)
    deriving.rows(root, (1, "a", 1), (1, "b", 0), watermark="2024-02-01T00:00:00Z")
    deriving.run(entry)
    assert {str(m) for (m,) in deriving.result(entry, "m")} == {"0.0"}
