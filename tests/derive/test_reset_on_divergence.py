"""Derivative datasets whose inputs were reset or replaced: told, and made anew on demand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec import to_builtins

from odf_engine.base.progress import Reporter
from odf_engine.derive.plan import Diverged
from odf_engine.derive.run import reset_dataset
from odf_engine.derive.verify.integrity import verify
from odf_engine.derive.verify.replay import Replay
from odf_engine.errors import UsageError
from odf_engine.jobs.base import JobContext
from odf_engine.jobs.pull import Pull
from odf_engine.metadata.model import SetInfo
from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.workspace.dataset_summary import DatasetEntry
from tests.derive.deriving import Deriving

WINDOWS = """SELECT window.start AS event_time, count(*) AS n, sum(y) AS s FROM rows
GROUP BY window(event_time, '1 day')"""


class Home:
    """What the worker has for a job."""

    def __init__(self, folder: Path, runtime: SparkRuntime) -> None:
        self.folder = folder
        self._runtime = runtime

    def spark(self, reporter: Reporter) -> SparkRuntime:
        return self._runtime


def begin_again(deriving: Deriving, root: DatasetEntry) -> None:
    """Sets a root back to its schema, and gives it other rows."""
    blocks = list(root.dataset.blocks(newest_first=False))
    (root.dataset.folder / "refs" / "head").write_text(str(blocks[1].hash))
    deriving.rows(root, (1, "a", 7), (3, "b", 8))


def diverged(deriving: Deriving) -> list[str]:
    return [summary.name for summary in deriving.workspace.summaries() if summary.diverged]


@pytest.mark.complete
def test_datasets_downstream_of_a_reset_are_rebuilt_on_request(
    deriving: Deriving, runtime: SparkRuntime
) -> None:
    root = deriving.root()
    first = deriving.derivative("SELECT event_time, city, x * 10 AS y FROM input", name="rows")
    second = deriving.derivative(WINDOWS, "rows", name="windows")
    deriving.commit(second, [SetInfo("sums by day", ["sums"])])
    for day in (1, 2):
        deriving.rows(root, (day, "a", day))
        deriving.run(first)
        deriving.run(second)
    assert diverged(deriving) == []

    begin_again(deriving, root)
    assert diverged(deriving) == ["rows"]
    old = {entry.id: entry.dataset.state() for entry in (first, second)}
    with pytest.raises(Diverged) as caught:
        deriving.run(first)
    assert caught.value.exit_code == 4 and "--reset-on-divergence" in (caught.value.hint or "")
    assert first.dataset.head() == old[first.id].head

    result = anew(deriving, runtime, first)
    assert result["old_head"] == str(old[first.id].head) and result["new_head"] == str(first.dataset.head())
    assert (result["status"], result["records"], result["blocks"]) == ("updated", 2, 3)
    assert deriving.result(first, "offset", "y") == [(0, 70), (1, 80)]
    assert diverged(deriving) == ["windows"]
    anew(deriving, runtime, second)
    assert diverged(deriving) == []
    assert deriving.result(second, "offset", "n", "s") == [(0, 1, 70)]

    for entry in (first, second):
        state, before = entry.dataset.state(), old[entry.id]
        assert (state.dataset_id, state.transform, state.info) == (entry.id, before.transform, before.info)
        kept = entry.dataset.folder / "refs" / f"before-reset-{before.head.abbreviated}"
        assert kept.read_text() == str(before.head)
        assert entry.dataset.block(before.head).block.sequence_number == before.sequence_number
        replay = Replay(deriving.workspace, entry, deriving.engine, Reporter())
        report = verify(entry.dataset, Reporter(), replay=replay)
        assert (report.findings, report.transforms) == ([], 1)
        # What did not diverge goes on as ever.
        assert anew(deriving, runtime, entry)["status"] == "up-to-date"
    assert deriving.run(second) == 0
    with pytest.raises(UsageError):
        reset_dataset(deriving.workspace, root)


def anew(deriving: Deriving, runtime: SparkRuntime, entry: DatasetEntry) -> dict[str, Any]:
    """Run a pull that resets the dataset; return its result as JSON has it."""
    context = JobContext(Home(deriving.workspace.folder, runtime))
    return to_builtins(Pull(str(entry.id), reset_on_divergence=True).run(context, Reporter()))
