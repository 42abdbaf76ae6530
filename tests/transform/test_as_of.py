"""As-of joins: each row with the version of its key at its event time, however the inputs were taken in."""

from __future__ import annotations

from typing import Any

import pytest

from tests.transform.deriving import Deriving
from tests.transform.test_stateful import CF, CT, Lines, R, Step, hashed

JOIN = (
    "SELECT t.event_time, t.city, t.x, r.x AS rate, r.event_time AS since FROM trades AS t\n"
    "{kind} rates FOR SYSTEM_TIME AS OF t.event_time AS r ON t.city = r.city"
)
STEPS: list[Step] = [
    ("trades", [(1, "a", 1), (2.5, "a", 2), (2, "b", 3)], None),
    ("rates", [(1.5, "a", 10), (2, "b", 20)], None),
    ("rates", [(3, "a", 11), (2.25, "a", 12)], None),  # the second for a row that has not come out
    ("trades", [(3, "a", 4), (3.5, "c", 5), (1.75, "a", 6), (4, "b", 7)], None),  # 1.75 is late
    ("rates", [(3.75, "b", 20, R), (6, "a", 13)], None),
    ("trades", [(5, "a", 8), (7, "a", 9)], None),
    ("rates", [(6.5, "a", 13, CF), (6.5, "a", 14, CT), (5, "z", 0)], "2024-01-08T00:00:00Z"),
]


def fed(deriving: Deriving, query: str, steps: list[Step], *inputs: str, **more: Any) -> list[Any]:
    roots = {name: deriving.root(name) for name in inputs}
    keys = more.get("keys", {"rates": "city"})
    once, each, parts = (
        deriving.derivative(query, *inputs, name=name, **keys) for name in ("once", "each", "parts")
    )
    for number, (name, rows, watermark) in enumerate(steps):
        deriving.rows(roots[name], *rows, watermark=watermark)
        deriving.run(each)
        if number in (len(steps) // 3, len(steps) - 2, len(steps) - 1):
            deriving.run(parts)
    deriving.run(once, more.get("reporter"))
    return [once, each, parts]


@pytest.mark.parametrize("kind", ["JOIN", "LEFT JOIN"])
def test_rows_have_the_version_at_their_time(deriving: Deriving, kind: str) -> None:
    lines = Lines()
    made = fed(deriving, JOIN.format(kind=kind), STEPS, "trades", "rates", reporter=lines)
    assert [line[:28] for line in lines.warnings] == ["1 rows came so late that the"]
    expected = [
        (1, "a", 1, None),
        (2, "b", 3, 20),
        (2.5, "a", 2, 12),
        (1.75, "a", 6, 12),  # 10 is no longer known
        (3, "a", 4, 11),
        (3.5, "c", 5, None),
        (4, "b", 7, None),
        (5, "a", 8, 11),
        (7, "a", 9, 14),
    ]
    found = [
        ((row[0].timestamp() - 1704067200) / 86400 + 1, *row[1:])
        for row in deriving.result(made[0], "event_time", "city", "x", "rate")
    ]
    assert found == [row for row in expected if kind == "LEFT JOIN" or row[3] is not None]
    assert len({hashed(deriving, each) for each in made}) == 1
