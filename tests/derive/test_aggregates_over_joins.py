"""A join with a time bound, then windows or a grouping: the orders that were not shipped completely."""

from __future__ import annotations

from typing import Any

import pytest

from odf_engine.metadata.model import ExecuteTransform
from odf_engine.workspace.dataset_summary import DatasetEntry
from tests.derive.deriving import Deriving
from tests.derive.test_replay import check
from tests.derive.test_stateful import CF, CT, A, Step, fed, hashed

JOIN = """WITH shipped AS (
  SELECT o.event_time AS order_time, o.city AS order_id, o.x AS ordered,
  CAST(s.event_time AS TIMESTAMP) AS shipped_at, coalesce(s.x, 0) AS quantity
  FROM orders o LEFT JOIN shipments s ON o.city = s.city
  AND s.event_time BETWEEN o.event_time AND o.event_time + INTERVAL '2' DAY)
"""
OVERDUE = f"""{JOIN}, days AS (
  SELECT window.start AS event_time, order_id, count(*) AS num_shipments,
  min(shipped_at) AS first_shipment, max(shipped_at) AS last_shipment,
  max(ordered) AS order_quantity, sum(quantity) AS shipped_quantity_total
  FROM shipped GROUP BY window(order_time, '1 day'), order_id)
SELECT * FROM days WHERE order_quantity <> shipped_quantity_total"""
STEPS: list[Step] = [
    ("orders", [(1, "1", 10), (1, "2", 120), (5, "3", 9), (10, "4", 110)], None),
    ("shipments", [(1, "1", 4), (2, "1", 6), (2, "2", 120), (8, "3", 9), (11, "4", 50), (13, "4", 6)], None),
    ("orders", [], "2024-01-13T00:00:00Z"),
]


def watermarks(entry: DatasetEntry) -> list[str]:
    """The watermarks of the transactions, oldest first."""
    events = [stored.block.event for stored in entry.dataset.blocks()]
    return [str(event.new_watermark)[:19] for event in events[::-1] if isinstance(event, ExecuteTransform)]


@pytest.mark.complete
def test_windows_over_a_time_bounded_join_find_overdue_orders(deriving: Deriving) -> None:
    made = fed(deriving, OVERDUE, STEPS, "orders", "shipments")
    table = deriving.table(made[0]).drop_columns(["offset", "op", "system_time"])
    rows = [[getattr(value, "day", value) for value in row.values()] for row in table.to_pylist()]
    assert rows == [[5, "3", 1, None, None, 9, 0], [10, "4", 1, 11, 11, 110, 50]]
    assert watermarks(made[0]) == ["2024-01-11T00:00:00"]
    assert watermarks(made[1]) == ["2024-01-08T00:00:00", "2024-01-11T00:00:00"]
    assert hashed(deriving, made[0]) == hashed(deriving, made[1])
    assert check(deriving, made[1]).findings == []


@pytest.mark.complete
def test_groups_over_a_time_bounded_join_are_corrected(deriving: Deriving) -> None:
    query = f"{JOIN}SELECT max(order_time) AS event_time, order_id, count(*) AS n, sum(quantity / 4) AS s "
    steps = [
        *STEPS[:2],
        ("orders", [(12, "4", 1)], "2024-01-16T00:00:00Z"),
        ("shipments", [(14, "4", 7)], None),
    ]
    made = fed(deriving, f"{query}FROM shipped GROUP BY order_id", steps, "orders", "shipments")
    expected: list[tuple[Any, ...]] = [
        (A, "1", 2, 2.5), (A, "2", 1, 30.0), (A, "3", 1, 0.0), (A, "4", 1, 12.5),
        (CF, "4", 1, 12.5), (CT, "4", 2, 14.0), (CF, "4", 2, 14.0), (CT, "4", 3, 15.75),
    ]  # fmt: skip
    assert deriving.result(made[0], "op", "order_id", "n", "s") == expected
    assert hashed(deriving, made[0]) == hashed(deriving, made[1])
    assert check(deriving, made[1]).findings == []
