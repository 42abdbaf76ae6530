"""Attempts of a merge: which plan follows which failure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from odf_engine.data.parquet.slices import WrittenSlice
from odf_engine.errors import BadData
from odf_engine.ingest.merge.key_file import CorruptKeyFile, NullKey, RepeatedKey
from odf_engine.ingest.merge.merge_plan import MergePlan, MergeRows, PendingKeys, PreparedMerge, run_merge
from odf_engine.spark.row_order import UnsortedResult
from tests.ingest.recorder import Recorder

BATCH = pa.RecordBatch.from_pydict({"id": [1, 2]})
KEYS = PendingKeys(cast("Any", None), Path("keys"))


class Script:
    """A merge whose attempts fail as told, after some rows."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.plans: list[MergePlan] = []
        self.removed = 0
        self.written: list[list[pa.RecordBatch]] = []
        self.reporter = Recorder()

    def rows(self, plan: MergePlan) -> MergeRows:
        self.plans.append(plan)
        yield BATCH
        if self.failures:
            raise self.failures.pop(0)
        yield BATCH
        return KEYS

    def remove(self) -> None:
        self.removed += 1

    def write(self, rows: Iterator[pa.RecordBatch]) -> list[WrittenSlice]:
        self.written.append([])
        for batch in rows:
            self.written[-1].append(batch)
        return []

    def run(self) -> PendingKeys | None:
        return run_merge(PreparedMerge(self.rows, self.remove), self.write, self.reporter).keys


def test_the_first_plan_is_the_fast_one() -> None:
    script = Script()
    assert script.run() is KEYS
    assert script.plans == [MergePlan(sort=False, check_keys=False, index_rebuilt=False)]
    assert script.written == [[BATCH, BATCH]]
    assert script.reporter.lines == []


@pytest.mark.parametrize(
    ("failure", "plan", "lines", "removed"),
    [
        (
            UnsortedResult(),
            MergePlan(sort=True),
            [("info", "the rows are not ordered by event time: sorting them")],
            0,
        ),
        (NullKey(), MergePlan(check_keys=True), [], 0),
        (RepeatedKey(), MergePlan(check_keys=True), [], 0),
        (
            CorruptKeyFile(),
            MergePlan(index_rebuilt=True),
            [("warning", "the key index is damaged: rebuilding it")],
            1,
        ),
    ],
)
def test_a_failure_changes_one_part_of_the_plan(
    failure: Exception, plan: MergePlan, lines: list[tuple[str, str]], removed: int
) -> None:
    script = Script(failure)
    assert script.run() is KEYS
    assert script.plans == [MergePlan(), plan]
    assert script.written == [[BATCH], [BATCH, BATCH]]
    assert (script.reporter.lines, script.removed) == (lines, removed)


def test_plan_changes_of_several_failures_accumulate() -> None:
    script = Script(CorruptKeyFile(), UnsortedResult(), RepeatedKey())
    assert script.run() is KEYS
    assert script.plans[1:] == [
        MergePlan(index_rebuilt=True),
        MergePlan(sort=True, index_rebuilt=True),
        MergePlan(sort=True, check_keys=True, index_rebuilt=True),
    ]
    assert script.removed == 1


@pytest.mark.parametrize("first", [NullKey, RepeatedKey])
def test_invalid_keys_after_the_key_check_mean_nondeterministic_query(first: type[Exception]) -> None:
    script = Script(first(), RepeatedKey())
    with pytest.raises(BadData, match="not deterministic") as caught:
        script.run()
    assert caught.value.hint == "remove random functions from the preprocess query"
    assert len(script.plans) == 2


def test_corrupt_rebuilt_index_fails_the_merge() -> None:
    script = Script(CorruptKeyFile(), NullKey(), CorruptKeyFile())
    with pytest.raises(CorruptKeyFile):
        script.run()
    assert (len(script.plans), script.removed) == (3, 1)


def test_other_errors_end_the_merge() -> None:
    script = Script(BadData("a value"))
    with pytest.raises(BadData, match="a value"):
        script.run()
    assert len(script.plans) == 1
