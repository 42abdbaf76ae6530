"""Inputs that never had rows: empty tables up to their watermark; what results wait for."""

from __future__ import annotations

import pytest

from odf_engine.workspace.dataset_summary import find_waiting
from tests.derive.deriving import Deriving
from tests.derive.test_replay import check

AS_OF = (
    "SELECT t.event_time, t.city, t.x, r.x AS rate FROM trades t\n"
    "LEFT JOIN rates FOR SYSTEM_TIME AS OF t.event_time AS r ON t.city = r.city"
)
INTERVAL = (
    "SELECT t.event_time, t.city, t.x, r.x AS rate FROM trades t LEFT JOIN rates r ON t.city = r.city\n"
    "AND r.event_time BETWEEN t.event_time AND t.event_time + INTERVAL 1 DAY"
)
UNION = "SELECT event_time, city, x, 0 AS rate FROM trades UNION ALL SELECT event_time, city, 0, x FROM rates"


def waiting(deriving: Deriving, name: str = "output") -> str:
    """What a dataset waits for."""
    summaries = {summary.id: summary for summary in deriving.workspace.summaries()}
    found = find_waiting(summaries[deriving.workspace.resolve(name).id], summaries)
    return "" if found is None else found.text


@pytest.mark.complete
@pytest.mark.parametrize(
    ("query", "first", "later"),
    [
        (AS_OF, [("a", 1, None), ("b", 2, None)], [("a", 3, 30)]),
        (INTERVAL, [("a", 1, None)], [("b", 2, 20), ("a", 3, 30)]),
        (UNION, [("a", 1, 0), ("b", 2, 0)], [("a", 3, 0), ("b", 0, 20), ("a", 0, 30)]),
    ],
    ids=["as-of", "interval", "union"],
)
def test_input_without_rows_is_an_empty_table_up_to_its_watermark(
    deriving: Deriving, query: str, first: list[tuple], later: list[tuple]
) -> None:
    trades, rates = deriving.root("trades"), deriving.root("rates")
    keys = {"rates": "city"} if query is AS_OF else {}
    made = deriving.derivative(query, "trades", "rates", **keys)
    deriving.rows(trades, (1, "a", 1), (3, "b", 2))
    assert deriving.run(made) == 0
    assert waiting(deriving) == "waits for the first rows of rates"
    deriving.rows(rates, watermark="2024-01-03T00:00:00Z")
    assert waiting(deriving) == ""
    assert deriving.run(made) == 1
    assert deriving.result(made, "city", "x", "rate") == first
    (interval,) = [each for each in deriving.newest(made).query_inputs if each.dataset_id == rates.id]
    assert interval.new_block_hash is not None and interval.new_offset is None
    # The first rows continue from there.
    deriving.rows(rates, (3.5, "b", 20), (4.5, "a", 30))
    deriving.rows(trades, (4.5, "a", 3))
    deriving.rows(rates, watermark="2024-01-09T00:00:00Z")
    deriving.rows(trades, watermark="2024-01-09T00:00:00Z")
    assert deriving.run(made) == 1
    assert deriving.result(made, "city", "x", "rate")[len(first) :] == later
    assert check(deriving, made).valid


def test_derivative_without_rows_is_an_input_too(deriving: Deriving) -> None:
    root = deriving.root()
    rare = deriving.derivative("SELECT event_time, city, x FROM input WHERE x > 100", name="rare")
    made = deriving.derivative("SELECT event_time, x FROM rare UNION ALL SELECT event_time, x FROM input",
                               "input", "rare")  # fmt: skip
    deriving.rows(root, (1, "a", 1))
    assert (deriving.run(rare), deriving.run(made)) == (1, 1)
    assert rare.dataset.state().records == 0
    deriving.rows(root, (2, "a", 200))
    assert (deriving.run(rare), deriving.run(made)) == (1, 1)
    assert sorted(deriving.result(made, "x")) == [(1,), (200,), (200,)]
    assert check(deriving, made).valid and check(deriving, rare).valid


@pytest.mark.complete
def test_waiting_rows_name_the_slow_input(deriving: Deriving) -> None:
    trades, rates = deriving.root("trades"), deriving.root("rates")
    made = deriving.derivative(AS_OF, "trades", "rates", rates="city")
    deriving.rows(rates, (1, "a", 10))
    deriving.rows(trades, (1, "a", 1), (2, "a", 2), (3, "a", 3))
    deriving.run(made)
    assert waiting(deriving) == "2 rows wait for rates, complete up to 2024-01-01"
    deriving.rows(rates, watermark="2024-01-02T12:00:00Z")
    assert waiting(deriving) == ""  # stale, not waiting
    deriving.run(made)
    assert waiting(deriving) == "1 row waits for rates, complete up to 2024-01-02T12:00:00Z"
    deriving.rows(rates, watermark="2024-01-03T00:00:00Z")
    deriving.run(made)
    assert waiting(deriving) == ""
    windows = deriving.derivative(INTERVAL, "trades", "rates", name="joined")
    deriving.rows(trades, (9, "a", 3))
    deriving.run(windows)
    assert waiting(deriving, "joined") == "results wait for rates, complete up to 2024-01-03"
    totals = deriving.derivative(
        "SELECT max(event_time) AS event_time, city, count(*) AS n FROM"
        " (SELECT * FROM trades UNION ALL SELECT * FROM rates) GROUP BY city",
        "trades", "rates", name="totals",
    )  # fmt: skip
    deriving.run(totals)
    assert waiting(deriving, "totals") == ""  # running totals do not wait
