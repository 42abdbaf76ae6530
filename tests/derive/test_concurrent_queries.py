"""Queries with state of several datasets, run at the same time in one Spark."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.derive.deriving import Deriving


@pytest.mark.complete
def test_concurrent_queries_keep_separate_state(deriving: Deriving) -> None:
    root = deriving.root()
    made = [
        deriving.derivative(
            f"SELECT window.start AS event_time, sum(x) + {at} AS s FROM input\n"
            "GROUP BY window(event_time, '1 day')",
            name=f"made{at}",
        )
        for at in range(3)
    ]
    for day in (1, 3):
        deriving.rows(root, (day, "a", 1), (day + 1, "b", 2))
        with ThreadPoolExecutor(3) as pool:
            assert list(pool.map(deriving.run, made)) == [1, 1, 1]
    for at, entry in enumerate(made):
        assert deriving.result(entry, "s") == [(1 + at,), (2 + at,), (1 + at,)]
    checkpoints = {str(deriving.newest(entry).new_checkpoint) for entry in made}
    assert len(checkpoints) == 3
