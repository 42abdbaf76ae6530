"""Derivatives of a compacted root dataset: they continue, and are verified, without the old files."""

from __future__ import annotations

import pytest

from odf_engine.base.progress import Reporter
from odf_engine.chain.compaction import CompactionPolicy, compact
from odf_engine.derive.provenance.trace import Tracer
from odf_engine.derive.verify.integrity import verify
from odf_engine.derive.verify.replay import Replay
from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace
from tests.derive.deriving import Deriving


def verified(deriving: Deriving, entry: DatasetEntry, *, remember: bool = False) -> int:
    """How many transactions were replayed with the same rows; none differs."""
    workspace = Workspace(deriving.workspace.folder)  # nothing in memory
    entry = workspace.resolve(str(entry.id))
    known = workspace.index if remember else None
    replay = Replay(workspace, entry, deriving.engine, Reporter(), known)
    report = verify(entry.dataset, Reporter(), None, None, replay)
    assert (report.findings, report.unchecked) == ([], [])
    return report.transforms


def forget(entry: DatasetEntry) -> None:
    """Remove all files that the current chain does not need, as garbage collection does."""
    blocks = {str(stored.hash) for stored in entry.dataset.blocks()}
    slices = {str(row.physical_hash) for row in entry.dataset.slices()}
    for kind, needed in (("blocks", blocks), ("data", slices)):
        for path in (entry.dataset.folder / kind).iterdir():
            if path.name not in needed:
                path.unlink()
    for path in (entry.dataset.folder / "refs").glob("compacted-*"):
        path.unlink()


@pytest.mark.complete
def test_derivatives_continue_and_verify_after_input_compaction(
    deriving: Deriving, runtime: SparkRuntime
) -> None:
    root = deriving.root()
    plain = deriving.derivative("SELECT event_time, city, x FROM input WHERE x > 0", name="plain")
    windows = deriving.derivative(
        "SELECT window.start AS event_time, sum(x) AS x FROM input GROUP BY window(event_time, '1 day')",
        name="windows",
    )
    late = deriving.derivative(
        "SELECT window.start AS event_time, count(*) AS n FROM input GROUP BY window(event_time, '2 days')",
        name="behind",
    )
    for day in (1, 2, 3):
        deriving.rows(root, (day, "a", day), (day, "b", -day))
        if day > 1:
            deriving.rows(root, (day - 1.9, "late", 100))  # late for windows that are complete
        deriving.run(plain)
        deriving.run(windows)
        if day == 2:
            deriving.run(late)  # ends in the middle of a merged block
    assert [verified(deriving, plain, remember=True) for _ in range(2)] == [3, 0]
    rows = deriving.table(root)
    before = {each.alias: deriving.table(each) for each in (plain, windows, late)}

    outcome = compact(root.dataset, CompactionPolicy(), Reporter())

    assert (outcome.old_slices, outcome.new_slices) == (5, 1)
    assert deriving.table(root) == rows
    assert [verified(deriving, plain, remember=True) for _ in range(2)] == [3, 0]
    for keep_files in (True, False):
        if not keep_files:
            forget(root)
        assert verified(deriving, plain) == 3
        assert verified(deriving, windows) == 3
        assert verified(deriving, late) == 1
        # The row of a window is traced to rows of a merged slice.
        (feed,) = Tracer(deriving.workspace, lambda _: runtime, Reporter()).trace(windows, [(0, 0)]).feeds
        assert feed.runs == [(0, 1)]

    # Nothing is new for those up to date; the third continues within the merged block.
    assert (deriving.run(plain), deriving.run(windows), deriving.run(late)) == (0, 0, 1)
    deriving.rows(root, (6, "a", 6))
    deriving.rows(root, (7, "a", 7))
    assert [deriving.run(each) for each in (plain, windows, late)] == [1, 1, 1]
    assert all(
        deriving.table(each)[: len(before[each.alias])] == before[each.alias] for each in (plain, windows)
    )

    # A second compaction: positions in the first chain are mapped twice.
    fresh = deriving.derivative("SELECT event_time, city, x FROM input", name="fresh")
    deriving.run(fresh)
    outcome = compact(root.dataset, CompactionPolicy(), Reporter())
    assert (outcome.old_slices, outcome.new_slices) == (3, 1)
    forget(root)
    assert [verified(deriving, each) for each in (plain, windows, late, fresh)] == [4, 4, 3, 1]
    deriving.rows(root, (9, "z", 9))
    assert [deriving.run(each) for each in (plain, windows, late, fresh)] == [1, 1, 1, 1]
    assert [verified(deriving, each) for each in (windows, fresh)] == [5, 2]
    assert verify(root.dataset, Reporter(), None, None, None).valid
