"""The queries of Nexmark in increments, compared with Spark's batch query and verified by replay."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.workspace.workspace import Workspace
from tests.bench.auction_events import SCHEMAS, START, AuctionEvents, side_input
from tests.bench.derive.nexmark import QUERIES, append_events, inputs_of
from tests.derive.deriving import Deriving
from tests.derive.test_as_of_corrections import recompute
from tests.derive.test_replay import check

EVENTS, RATE, INCREMENTS = 1000, 45, 2
_SIMILAR = ("q0", "q1", "q2", "q16", "q17", "q20", "q22")
"""Queries of the kinds of others; the benchmark runs them too."""


class AuctionHouse(Deriving):
    """A workspace whose roots have the events; each query reads one increment after the other."""

    def __init__(self, workspace: Workspace, runtime: SparkRuntime) -> None:
        super().__init__(workspace, runtime)
        self._roots = {name: self.root(name, schema) for name, schema in SCHEMAS.items()}
        self.batch(self._roots["side"], side_input(), START)
        self._heads = [self._append(number * EVENTS) for number in range(INCREMENTS)]

    def _append(self, first: int) -> dict[str, str]:
        append_events(self, self._roots, AuctionEvents(first, EVENTS, RATE))
        return {name: str(root.dataset.head()) for name, root in self._roots.items()}

    def increments(self) -> Iterator[None]:
        """Set the roots to the end of each increment."""
        for heads in self._heads:
            for name, head in heads.items():
                (self._roots[name].dataset.folder / "refs" / "head").write_text(head)
            yield


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory, runtime: SparkRuntime) -> AuctionHouse:
    return AuctionHouse(Workspace.init(tmp_path_factory.mktemp("nexmark") / "ws"), runtime)


@pytest.mark.parametrize("name", [name for name in QUERIES if name not in _SIMILAR])
@pytest.mark.complete
def test_latest_state_is_that_of_the_batch_query(
    house: AuctionHouse, runtime: SparkRuntime, name: str
) -> None:
    query = QUERIES[name]
    entry = house.derivative(query, *inputs_of(query), name=name)
    for _ in house.increments():
        assert house.run(entry) == 1
    found = recompute(house, entry, runtime)
    assert (found.missing, found.extra, found.differences) == (0, 0, [])
    assert found.rows
    report = check(house, entry)
    assert (report.findings, report.transforms) == ([], INCREMENTS)
    # Spark puts the sets of values of several count(DISTINCT) in any order, so the fingerprint varies.
    assert {each.kind for each in report.unchecked} <= (
        {"checkpoint-other"} if "DISTINCT" in query else set()
    )
