"""Warnings of transactions: their kind and number, and transactions that are not committed with them."""

from __future__ import annotations

import pytest

from odf_engine.base.progress import Reporter
from odf_engine.errors import JobWarned
from tests.derive.deriving import Deriving

WINDOWS = "SELECT window.start AS event_time, count(*) AS n FROM input GROUP BY window(event_time, '1 day')"


class Strict(Reporter):
    """Fails on warnings, as a job with ``on_warning: fail``."""

    def __init__(self) -> None:
        super().__init__()
        self.warned: list[tuple[str, int | None]] = []

    def warn(self, text: str, kind: str, count: int | None = None) -> None:
        self.warned.append((kind, count))

    def raise_if_warned(self) -> None:
        if self.warned:
            raise JobWarned("warned")


@pytest.mark.complete
def test_transaction_with_late_rows_is_not_committed_on_request(deriving: Deriving) -> None:
    root, made = deriving.root(), deriving.derivative(WINDOWS)
    deriving.rows(root, (1, "a", 1), (3, "a", 1))
    assert deriving.run(made, Strict()) == 1
    head = made.dataset.head()
    deriving.rows(root, (1.5, "a", 1), (1.6, "a", 1))
    strict = Strict()
    with pytest.raises(JobWarned):
        deriving.run(made, strict)
    assert (strict.warned, made.dataset.head()) == ([("late-rows", 2)], head)
    assert deriving.run(made) == 1
