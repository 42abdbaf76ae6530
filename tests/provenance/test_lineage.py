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


def test_windows_with_late_rows(deriving: Deriving, runtime: SparkRuntime) -> None:
    root = deriving.root()
    made = deriving.derivative(
        "SELECT window.start AS event_time, city, sum(x) AS s, count(*) AS n\n"
        "FROM input GROUP BY window(event_time, '1 day'), city HAVING sum(x) > 1"
    )
    deriving.rows(root, (1, "a", 1), (1.5, "b", 2))
    deriving.run(made)
    deriving.rows(root, (1.75, "a", 5), (1.75, "a", 5), (2.5, "a", 7))
    deriving.run(made)
    deriving.rows(root, (1.25, "a", 100), (2.75, "b", 3))  # the first came too late
    deriving.rows(root, (6, "a", 1), watermark="2024-01-09T00:00:00Z")
    deriving.run(made)
    assert deriving.result(made, "city", "s") == [("a", 11), ("b", 2), ("a", 7), ("b", 3)]
    assert [of_row(deriving, runtime, made, offset) for offset in range(4)] == [
        [[(0, 0), (2, 3)]], [[(1, 1)]], [[(4, 4)]], [[(6, 6)]],
    ]  # fmt: skip
    many = asked(deriving, runtime, made, (0, 3))
    assert [(each.exact, each.feeds[0][2]) for each in many] == [
        (True, [(0, 3)]), (True, [(4, 4), (6, 6)]),
    ]  # fmt: skip


def test_groups_without_a_window(deriving: Deriving, runtime: SparkRuntime) -> None:
    root = deriving.root()
    made = deriving.derivative(
        "SELECT max(event_time) AS event_time, city, sum(x) AS s, count(*) AS n FROM input\n"
        "GROUP BY city HAVING count(*) < 4"
    )
    deriving.rows(root, (1, "a", 1), (2, "b", 2))
    deriving.run(made)
    deriving.rows(root, (3, "a", 5), (4, "c", 7))
    deriving.rows(root, (5, "b", 2, R), (6, "c", 7, CF), (6, "c", 8, CT))
    deriving.rows(root, (7, "a", 1), (7, "a", 1), (8, "b", 9), (9, "c", 0))
    deriving.run(made)
    assert deriving.result(made, "op", "city", "s", "n") == [
        (A, "a", 1, 1), (A, "b", 2, 1),
        (CF, "a", 1, 1), (CT, "a", 6, 2), (A, "c", 7, 1),
        (R, "b", 2, 1), (CF, "c", 7, 1), (CT, "c", 8, 1),
        (R, "a", 6, 2), (A, "b", 9, 1), (CF, "c", 8, 1), (CT, "c", 8, 2),
    ]  # fmt: skip
    assert [of_row(deriving, runtime, made, offset)[0] for offset in range(12)] == [
        [(0, 0)], [(1, 1)], [(0, 0), (2, 2)], [(0, 0), (2, 2)], [(3, 3)], [(1, 1), (4, 4)],
        [(3, 3), (5, 6)], [(3, 3), (5, 6)], [(0, 0), (2, 2), (7, 8)], [(1, 1), (4, 4), (9, 9)],
        [(3, 3), (5, 6), (10, 10)], [(3, 3), (5, 6), (10, 10)],
    ]  # fmt: skip
