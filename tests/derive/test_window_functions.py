"""Running totals and the first rows of each key: the rows they emit, and how they change."""

from __future__ import annotations

import pytest

from tests.derive.deriving import Deriving
from tests.derive.test_replay import check
from tests.derive.test_stateful import CF, CT, A, R, Step, fed, hashed
from tests.log_lines import LogLines

TOTALS = (
    "SELECT event_time, city, x, sum(x) OVER (PARTITION BY city ORDER BY event_time\n"
    "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS s,\n"
    "avg(x) OVER (PARTITION BY city ORDER BY event_time) AS r FROM input"
)


def test_running_totals_follow_event_time_order(deriving: Deriving) -> None:
    steps: list[Step] = [
        ("input", [(2, "a", 1), (1, "b", 2), (2, "a", 3)], None),
        ("input", [(3, "a", 5), (1.5, "b", 100), (2.5, None, 6), (2.25, "a", 4)], None),  # 100 is late
        ("input", [(3.5, "b", 7)], None),
    ]
    lines = LogLines()
    made = fed(deriving, TOTALS, steps, reporter=lines)
    assert deriving.result(made[1], "op", "city", "x", "s", "r") == [
        (A, "b", 2, 2, 2.0), (A, "a", 1, 1, 2.0), (A, "a", 3, 4, 2.0),
        (A, "a", 4, 8, 8 / 3), (A, None, 6, 6, 6.0), (A, "a", 5, 13, 3.25), (A, "b", 7, 9, 4.5),
    ]  # fmt: skip
    assert lines.warnings == ["late rows dropped: 1 (input: 1)"]
    assert len({hashed(deriving, each) for each in made}) == 1


@pytest.mark.complete
def test_retractions_change_running_totals(deriving: Deriving) -> None:
    steps: list[Step] = [
        ("input", [(1, "a", 1), (2, "a", 2), (2, "b", 8), (3, "a", 4)], None),
        ("input", [(2, "a", 2, R), (1, "a", 1, CF), (1, "a", 16, CT)], None),
        ("input", [(4, "a", 32)], None),
    ]
    made = fed(deriving, TOTALS, steps)
    assert deriving.result(made[1], "op", "city", "x", "s") == [
        (A, "a", 1, 1), (A, "a", 2, 3), (A, "b", 8, 8), (A, "a", 4, 7),
        (R, "a", 1, 1), (R, "a", 2, 3), (R, "a", 4, 7), (A, "a", 16, 16), (A, "a", 4, 20),
        (A, "a", 32, 52),
    ]  # fmt: skip
    assert len({hashed(deriving, each) for each in made}) == 1
    report = check(deriving, made[1])
    assert (report.valid, report.transforms, report.findings) == (True, 2, [])


@pytest.mark.complete
def test_top_n_rows_are_retracted_and_replaced(deriving: Deriving) -> None:
    # The changes are those of the RisingWave engine.
    query = (
        "SELECT place, event_time, city, x FROM (\n"
        "SELECT *, row_number() OVER (ORDER BY x DESC) AS place FROM input) WHERE place <= 2"
    )
    steps: list[Step] = [
        ("input", [(1, "Alice", 100), (1, "Bob", 80)], None),
        ("input", [(2, "Alice", 70), (2, "Charlie", 90)], None),
        ("input", [(3, "Bob", 60), (3, "Charlie", 110)], None),
        ("input", [(3, "Charlie", 110, R), (1, "Alice", 100, CF), (1, "Alice", 85, CT)], None),
    ]
    made = fed(deriving, query, steps)
    assert deriving.result(made[1], "op", "place", "city", "x") == [
        (A, 1, "Alice", 100), (A, 2, "Bob", 80),
        (R, 2, "Bob", 80), (A, 2, "Charlie", 90),
        (R, 1, "Alice", 100), (R, 2, "Charlie", 90), (A, 1, "Charlie", 110), (A, 2, "Alice", 100),
        (R, 1, "Charlie", 110), (R, 2, "Alice", 100), (A, 1, "Charlie", 90), (A, 2, "Alice", 85),
    ]  # fmt: skip
    assert len({hashed(deriving, each) for each in made}) == 1
    report = check(deriving, made[1])
    assert (report.valid, report.transforms, report.findings) == (True, 2, [])


@pytest.mark.complete
def test_joins_and_deduplication_apply_retractions(deriving: Deriving) -> None:
    query = (
        "SELECT 'join' AS step, l.event_time, l.city, l.x, r.x AS y FROM l LEFT JOIN r ON l.city = r.city\n"
        "AND r.event_time BETWEEN l.event_time AND l.event_time + INTERVAL 12 HOURS\n"
        "UNION ALL SELECT 'distinct', event_time, city, x, NULL FROM\n"
        "(SELECT DISTINCT event_time, city, x % 2 AS x FROM l)\n"
        "UNION ALL SELECT 'last', event_time, city, x, NULL FROM (SELECT *, row_number() OVER\n"
        "(PARTITION BY city, window(event_time, '1 day') ORDER BY event_time DESC, x DESC) AS n FROM l)\n"
        "WHERE n = 1"
    )
    roots = {name: deriving.root(name) for name in ("l", "r")}
    made = [deriving.derivative(query, "l", "r", name=name) for name in ("once", "parts")]
    steps: list[Step] = [
        ("l", [(2, "a", 1), (2, "a", 3), (2.25, "b", 2)], None),
        ("r", [(2.25, "a", 10), (2.5, "b", 20)], None),
        ("l", [(2, "a", 1, R), (2.25, "b", 2, CF), (2.5, "b", 4, CT)], None),
        ("r", [(2.25, "a", 10, R)], "2024-01-05T00:00:00Z"),
        ("l", [], "2024-01-05T00:00:00Z"),
    ]
    for number, (name, rows, watermark) in enumerate(steps):
        deriving.rows(roots[name], *rows, watermark=watermark or "2024-01-01T12:00:00Z", advances=False)
        if number in (1, 4):
            deriving.run(made[1])
    deriving.run(made[0])
    rows = deriving.result(made[0], "op", "step", "city", "x", "y")
    assert [row for row in rows if row[1] == "join"] == [
        (A, "join", "a", 1, 10), (A, "join", "a", 3, 10), (A, "join", "b", 2, 20),
        (R, "join", "a", 1, 10), (R, "join", "b", 2, 20), (A, "join", "b", 4, 20),
        (R, "join", "a", 3, 10), (A, "join", "a", 3, None),
    ]  # fmt: skip
    assert [row[:4] for row in rows if row[1] == "distinct"] == [
        (A, "distinct", "a", 1), (A, "distinct", "b", 0), (R, "distinct", "b", 0), (A, "distinct", "b", 0),
    ]  # fmt: skip
    assert [row[:4] for row in rows if row[1] == "last"] == [
        (A, "last", "a", 3), (A, "last", "b", 2), (R, "last", "b", 2), (A, "last", "b", 4),
    ]  # fmt: skip
    assert len({hashed(deriving, each) for each in made}) == 1


def test_window_functions_keep_struct_fields_that_need_quotes(deriving: Deriving) -> None:
    query = (
        "SELECT event_time, city, pair.`a b` AS y, s FROM (SELECT event_time, city, pair,\n"
        "sum(x) OVER (PARTITION BY city ORDER BY event_time\n"
        "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS s\n"
        "FROM (SELECT *, named_struct('a b', x) AS pair FROM input))"
    )
    steps: list[Step] = [("input", [(1, "a", 1)], None), ("input", [(2, "a", 2)], None)]
    made = fed(deriving, query, steps)
    assert deriving.result(made[1], "city", "y", "s") == [("a", 1, 1), ("a", 2, 3)]
