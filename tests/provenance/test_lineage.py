"""Which rows of its inputs made a row of a derivative dataset."""

from __future__ import annotations

from odf_engine.progress import Reporter
from odf_engine.provenance.step import StepOf, step
from odf_engine.spark.session import SparkRuntime
from odf_engine.workspace.traced import Run
from odf_engine.workspace.workspace import DatasetEntry
from tests.transform.deriving import Deriving

A, R, CF, CT = 0, 1, 2, 3


def asked(deriving: Deriving, runtime: SparkRuntime, entry: DatasetEntry, *runs: Run) -> list[StepOf]:
    """What made rows."""
    return step(deriving.workspace, entry, list(runs), runtime, Reporter())


def of_row(deriving: Deriving, runtime: SparkRuntime, entry: DatasetEntry, offset: int) -> list[list[Run]]:
    """The rows of each input that made one row, which is to be exact."""
    (found,) = asked(deriving, runtime, entry, (offset, offset))
    assert found.exact, found.reason
    return [runs for _, _, runs in found.feeds]


def test_row_by_row(deriving: Deriving, runtime: SparkRuntime) -> None:
    left, right = deriving.root("l"), deriving.root("r")
    made = deriving.derivative(
        "SELECT event_time, city, x FROM l WHERE x > 1 UNION ALL SELECT event_time, city, -x AS x FROM r",
        "l", "r",
    )  # fmt: skip
    deriving.rows(left, (1, "a", 1), (1, "a", 2), (1, "a", 2), (2, "b", 3))
    deriving.rows(right, (1, "a", -2), (3, "c", 1))
    deriving.run(made)
    # The same row three times: 0 and 1 of the left, 2 of the right.
    assert [row[1] for row in deriving.result(made, "city", "x")] == [2, 2, 3, 2, -1]
    deriving.rows(left, (1, "a", 2, CF), (2, "a", 9, CT), (2, "b", 3, CF), (4, "b", 1, CT), (1, "a", 2, R))
    deriving.run(made)
    assert deriving.result(made, "op", "x")[5:] == [(CF, 2), (CT, 9), (R, 3), (R, 2)]
    found = [of_row(deriving, runtime, made, offset) for offset in range(9)]
    assert found == [
        [[(1, 1)], []], [[(2, 2)], []], [[(3, 3)], []], [[], [(0, 0)]], [[], [(1, 1)]],
        [[(4, 5)], []], [[(4, 5)], []], [[(6, 6)], []], [[(8, 8)], []],
    ]  # fmt: skip
    both = asked(deriving, runtime, made, (1, 1), (4, 6))
    assert [(each.runs, [runs for _, _, runs in each.feeds], each.exact) for each in both] == [
        ([(1, 1), (4, 4)], [[(2, 2)], [(1, 1)]], True), ([(5, 6)], [[(4, 5)], []], True),
    ]  # fmt: skip
    assert both[0].feeds[0][:2] == ("l", str(left.id)) and both[0].engine.startswith("spark")
    many = asked(deriving, runtime, made, (0, 8))
    assert [[runs for _, _, runs in each.feeds] for each in many] == [
        [[(1, 3)], [(0, 1)]], [[(4, 6), (8, 8)], []],
    ]  # fmt: skip
