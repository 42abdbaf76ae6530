"""Which rows of its inputs made a row of a derivative dataset."""

from __future__ import annotations

import pyarrow as pa
import pytest

from odf_engine.base.progress import Reporter
from odf_engine.derive.provenance.model import OffsetRange
from odf_engine.derive.provenance.offset_set import OffsetSet
from odf_engine.derive.provenance.step import TransactionTrace, trace_back
from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.trust import Trust
from tests.derive.deriving import Deriving

A, R, CF, CT = 0, 1, 2, 3


def asked(
    deriving: Deriving, runtime: SparkRuntime, entry: DatasetEntry, *runs: OffsetRange
) -> list[TransactionTrace]:
    """What made rows."""
    return trace_back(deriving.workspace, entry, list(runs), runtime, Reporter())


def exactly(
    deriving: Deriving, runtime: SparkRuntime, entry: DatasetEntry, *runs: OffsetRange
) -> list[list[OffsetRange]]:
    """The rows of each input that made rows of one transaction, which is to be exact."""
    (found,) = asked(deriving, runtime, entry, *runs)
    assert found.exact, found.reason
    return [runs for _, _, runs in found.feeds]


def test_row_by_row_query_is_traced_exactly(deriving: Deriving, runtime: SparkRuntime) -> None:
    left, right = deriving.root("l"), deriving.root("r")
    made = deriving.derivative(
        "SELECT event_time, city, x FROM l WHERE x > 1 UNION ALL SELECT event_time, city, -x AS x FROM r",
        "l", "r",
    )  # fmt: skip
    deriving.rows(left, (1, "a", 1), (1, "a", 2), (1, "a", 2), (2, "b", 3))
    deriving.rows(right, (1, "a", -2), (3, "c", 1))
    deriving.run(made)
    # The same row three times: of 1 and 2 of the left, and of 0 of the right.
    assert [row[1] for row in deriving.result(made, "city", "x")] == [2, 2, 3, 2, -1]
    deriving.rows(left, (1, "a", 2, CF), (2, "a", 9, CT), (2, "b", 3, CF), (4, "b", 1, CT), (1, "a", 2, R))
    deriving.run(made)
    assert deriving.result(made, "op", "x")[5:] == [(CF, 2), (CT, 9), (R, 3), (R, 2)]
    assert exactly(deriving, runtime, made, (3, 3)) == [[], [(0, 0)]]
    both = asked(deriving, runtime, made, (1, 1), (4, 5), (7, 7))
    # A row that corrects has both rows of the correction; one that was torn off it has its own alone.
    assert [(each.made.runs, [runs for _, _, runs in each.feeds], each.exact) for each in both] == [
        ([(1, 1), (4, 4)], [[(2, 2)], [(1, 1)]], True), ([(5, 5), (7, 7)], [[(4, 6)], []], True),
    ]  # fmt: skip
    assert both[0].feeds[0][:2] == ("l", str(left.id)) and both[0].made.engine.startswith("spark")


@pytest.mark.complete
def test_window_row_excludes_late_input_rows(deriving: Deriving, runtime: SparkRuntime) -> None:
    root = deriving.root()
    made = deriving.derivative(
        "SELECT window.start AS event_time, city, sum(x) AS s, count(*) AS n\n"
        "FROM input GROUP BY window(event_time, '1 day'), city HAVING sum(x) > 1"
    )
    deriving.rows(root, (1, "a", 1), (1.5, "b", 2))
    deriving.run(made)
    deriving.rows(root, (1.75, "a", 5), (1.75, "a", 5), (2.5, "a", 7))
    deriving.rows(root, (1.25, "a", 100), (2.75, "b", 3))  # the first came too late
    deriving.rows(root, (6, "a", 1), watermark="2024-01-09T00:00:00Z")
    deriving.run(made)
    assert deriving.result(made, "city", "s") == [("a", 11), ("b", 2), ("a", 7), ("b", 3)]
    assert exactly(deriving, runtime, made, (0, 0), (3, 3)) == [[(0, 0), (2, 3), (6, 6)]]


@pytest.mark.complete
def test_group_row_traces_rows_up_to_its_change(deriving: Deriving, runtime: SparkRuntime) -> None:
    root = deriving.root()
    made = deriving.derivative(
        "SELECT max(event_time) AS event_time, city, max(x) AS m FROM input WHERE op = 0\n"
        "GROUP BY city HAVING count(*) < 5"
    )
    deriving.rows(root, (1, "a", 5), (2, "b", 1))
    deriving.run(made)
    deriving.rows(root, (0.5, "a", 3))  # changes nothing
    deriving.rows(root, (0.5, "a", 9), (2, "b", 0))
    deriving.rows(root, (3, "a", 1))
    deriving.rows(root, (4, "a", 1))
    deriving.run(made)
    assert deriving.result(made, "op", "city", "m") == [
        (A, "a", 5), (A, "b", 1), (CF, "a", 5), (CT, "a", 9), (CF, "a", 9), (CT, "a", 9), (R, "a", 9),
    ]  # fmt: skip
    # Up to the commit that changed the row, that one as well for what it took back.
    assert exactly(deriving, runtime, made, (3, 3)) == [[(0, 0), (2, 3)]]
    assert exactly(deriving, runtime, made, (6, 6)) == [[(0, 0), (2, 3), (5, 6)]]


@pytest.mark.complete
def test_joins_deduplication_and_windows_are_traced_exactly(
    deriving: Deriving, runtime: SparkRuntime
) -> None:
    roots = {name: deriving.root(name) for name in ("l", "r")}
    made = deriving.derivative(
        "WITH pairs AS (SELECT l.event_time, l.city, r.x FROM l JOIN r ON l.city = r.city\n"
        "AND r.event_time BETWEEN l.event_time AND l.event_time + INTERVAL 12 HOURS),\n"
        "different AS (SELECT DISTINCT event_time, city, x FROM pairs),\n"
        "half AS (SELECT window AS w, city, sum(x) AS s FROM different\n"
        "GROUP BY window(event_time, '12 hours'), city)\n"
        "SELECT window.start AS event_time, sum(s) AS s, count(*) AS n FROM half GROUP BY window(w, '1 day')",
        "l", "r",
    )  # fmt: skip
    deriving.rows(roots["l"], (1, "a", 1), (1.25, "b", 2), (1.5, "c", 3))
    deriving.rows(roots["r"], (1.125, "a", 10), (1.25, "z", 11), (1.125, "a", 10))
    deriving.run(made)
    deriving.rows(roots["l"], (2, "a", 4), (9, "q", 1))
    deriving.rows(roots["r"], (1.75, "c", 12), (2.125, "a", 13), (9, "p", 1))
    deriving.run(made)
    assert deriving.result(made, "s", "n") == [(22, 2), (13, 1)]
    assert exactly(deriving, runtime, made, (0, 0)) == [[(0, 0), (2, 2)], [(0, 0), (2, 3)]]


@pytest.mark.complete
def test_as_of_join_traces_the_matching_version(deriving: Deriving, runtime: SparkRuntime) -> None:
    rates, trades = deriving.root("rates"), deriving.root("trades")
    made = deriving.derivative(
        "SELECT t.event_time, t.city, t.x * r.x AS y FROM trades AS t\n"
        "JOIN rates FOR SYSTEM_TIME AS OF t.event_time AS r ON t.city = r.city",
        "trades", "rates", rates="city",
    )  # fmt: skip
    deriving.rows(rates, (1, "a", 2), (1, "b", 3), watermark="2024-01-05T00:00:00Z")
    deriving.rows(trades, (1, "a", 5), (1.5, "b", 7))
    deriving.rows(trades, (1, "a", 5, CF), (3, "a", 6, CT), watermark="2024-01-05T00:00:00Z")
    deriving.run(made)
    assert deriving.result(made, "op", "y") == [(A, 10), (A, 21), (CF, 10), (CT, 12)]
    assert exactly(deriving, runtime, made, (1, 1)) == [[(1, 1)], [(1, 1)]]
    assert exactly(deriving, runtime, made, (3, 3)) == [[(2, 3)], [(0, 0)]]


def test_untrusted_query_traces_to_all_rows_of_the_transaction(
    deriving: Deriving, runtime: SparkRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, made = deriving.root(), deriving.derivative("SELECT * FROM input WHERE x > 1")
    deriving.rows(root, (1, "a", 1), (1, "a", 2))
    deriving.run(made)
    deriving.rows(root, (1, "a", 1), (1, "a", 2))
    deriving.run(made)
    monkeypatch.setattr(Trust, "is_trusted", lambda *_: False)
    (found,) = asked(deriving, runtime, made, (1, 1))
    assert not found.exact and found.reason is not None and "odf trust" in found.reason
    assert [runs for _, _, runs in found.feeds] == [[(2, 3)]]
    assert asked(deriving, runtime, made, (2, 9)) == []


def test_offsets_fold_into_runs() -> None:
    folding = OffsetSet()
    folding.add(pa.array([5, 3, 4, 9, 3], pa.int64()))
    folding.add_ranges([(10, 12), (0, 1)])
    folding.add(pa.array([2], pa.int64()))
    assert folding.ranges() == [(0, 5), (9, 12)] and not folding.scattered
