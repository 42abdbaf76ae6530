"""Shapes of queries that go together: unions, the changes of a snapshot, as-of joins before windows.

Each takes the same data in at once, in three transactions and in one for each commit.
"""

from __future__ import annotations

import pytest

from tests.derive.deriving import Deriving
from tests.derive.test_as_of_join import fed as fed_as_of
from tests.derive.test_stateful import CF, CT, A, R, Step, fed, hashed
from tests.log_lines import LogLines

SIDES: list[Step] = [
    ("l", [(1, "a", 1), (1.5, "b", 2)], None),
    ("r", [(1.25, "a", 10), (2, "c", 20)], None),
    ("l", [(2.5, "a", 3)], "2024-01-04T00:00:00Z"),
    ("r", [(2.75, "a", 30), (4, "a", 40)], None),
]
UNION = "SELECT event_time, city, x FROM l UNION ALL SELECT event_time, city, -x AS x FROM r"


def test_union_of_inputs_does_not_depend_on_increments(deriving: Deriving) -> None:
    made = fed(deriving, UNION, SIDES, "l", "r")
    assert deriving.result(made[0], "city", "x") == [
        ("a", 1), ("b", 2), ("a", 3), ("a", -10), ("c", -20), ("a", -30), ("a", -40)
    ]  # fmt: skip
    # A transaction has its rows input by input: so the order depends on what came together.
    assert len({hashed(deriving, each, ordered=False) for each in made}) == 1


@pytest.mark.complete
def test_windows_over_a_union_do_not_depend_on_increments(deriving: Deriving) -> None:
    query = (
        f"WITH both AS ({UNION})\n"
        "SELECT window.start AS event_time, city, sum(x) AS s FROM both\n"
        "GROUP BY window(event_time, '1 day'), city"
    )
    made = fed(deriving, query, SIDES, "l", "r")
    assert deriving.result(made[0], "city", "s") == [("a", -9), ("b", 2), ("a", -27), ("c", -20)]
    assert len({hashed(deriving, each) for each in made}) == 1


SNAPSHOTS: list[Step] = [
    ("input", [(1, "a", 10), (1, "b", 20), (1, "c", 30)], None),
    ("input", [(1, "b", 20, CF), (1.5, "b", 25, CT)], None),
    ("input", [(1, "a", 10, CF), (1.75, "a", 11, CT), (1, "c", 30, R), (1.75, "d", 5)], None),
    ("input", [(1.5, "b", 25, CF), (3, "b", 26, CT)], None),
]
"""What a list that is put out anew each time becomes."""


def test_map_over_a_snapshot_emits_corrections_and_retractions(deriving: Deriving) -> None:
    made = fed(deriving, "SELECT event_time, city, x * 2 AS y FROM input WHERE x > 10", SNAPSHOTS)
    assert deriving.result(made[0], "op", "city", "y") == [
        (A, "b", 40), (A, "c", 60),
        (CF, "b", 40), (CT, "b", 50),
        (A, "a", 22), (R, "c", 60),
        (CF, "b", 50), (CT, "b", 52),
    ]  # fmt: skip
    assert len({hashed(deriving, each) for each in made}) == 1


def test_windowed_sum_over_a_snapshot_applies_corrections(deriving: Deriving) -> None:
    query = (
        "SELECT window.start AS event_time, sum(x) AS s, count(*) AS n FROM input\n"
        "GROUP BY window(event_time, '1 day')"
    )
    made = fed(deriving, query, SNAPSHOTS)
    # The day ends with what was said of it by then and still holds: a's new number and d; b has moved on.
    assert deriving.result(made[0], "op", "s", "n") == [(A, 16, 2)]
    assert len({hashed(deriving, each) for each in made}) == 1


TRADES: list[Step] = [
    ("trades", [(1, "a", 1), (1, "a", 1), (1.5, "b", 2)], None),
    ("rates", [(0.5, "a", 10), (1.25, "b", 20)], None),
    ("trades", [(1.75, "a", 3), (2.5, "a", 4)], None),
    ("rates", [(2, "a", 11), (5, "z", 0)], None),
    ("trades", [(5, "a", 0)], None),
]


@pytest.mark.complete
def test_as_of_join_deduplication_and_sliding_windows_can_be_chained(deriving: Deriving) -> None:
    query = (
        "WITH priced AS (SELECT t.event_time, t.city, t.x * r.x AS cost FROM trades AS t\n"
        "JOIN rates FOR SYSTEM_TIME AS OF t.event_time AS r ON t.city = r.city),\n"
        "different AS (SELECT DISTINCT event_time, city, cost FROM priced)\n"
        "SELECT window.end AS event_time, city, sum(cost) AS s FROM different\n"
        "GROUP BY window(event_time, '2 days', '1 day'), city"
    )
    made = fed_as_of(deriving, query, TRADES, LogLines(), rates="city")
    assert [
        (row[0].day, *row[1:]) for row in deriving.result(made[0], "event_time", "city", "s")
    ] == [(2, "a", 40), (2, "b", 40), (3, "a", 84), (3, "b", 40), (4, "a", 44)]  # fmt: skip
    assert len({hashed(deriving, each) for each in made}) == 1
