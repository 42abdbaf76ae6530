"""Results of checks that run in threads, and of replays, as one report. No Spark runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from odf_engine.chain.state import ChainState
from odf_engine.derive.verify import integrity
from odf_engine.derive.verify.integrity import Done, run_in_order, verify
from odf_engine.derive.verify.model import EngineReport, IntegrityFinding, IntegrityReport
from odf_engine.derive.verify.replay import Replay
from odf_engine.derive.verify.report import ReplayResult
from odf_engine.errors import Cancelled
from odf_engine.metadata.model import ExecuteTransform, SetTransform, Sql, SqlQueryStep
from odf_engine.metadata.timestamp import Timestamp
from tests.ingest.recorder import Recorder
from tests.verify.conftest import Builder


def test_results_are_in_the_order_of_the_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(integrity, "_THREADS", 2)
    ended = [threading.Event() for _ in range(40)]

    def task(number: int) -> Callable[[], int]:
        def run() -> int:
            if number % 3 == 0 and (number + 1) % 5:  # the next task ends first
                assert ended[number + 1].wait(60)
            ended[number].set()
            return number

        return run

    tasks = [Done(number) if number % 5 == 0 else task(number) for number in range(40)]
    assert list(run_in_order(tasks)) == list(range(40))


def test_a_result_is_there_before_the_next_task_is_requested() -> None:
    used: list[int] = []

    def tasks() -> Iterator[Done[int]]:
        for number in range(5):
            assert used == list(range(number))
            yield Done(number)

    for number in run_in_order(tasks()):
        used.append(number)
    assert used == list(range(5))


def test_an_error_waits_for_the_tasks_that_run() -> None:
    started, ended = threading.Event(), threading.Event()

    def slow() -> int:
        started.set()
        time.sleep(0.1)
        ended.set()
        return 1

    def tasks() -> Iterator[Callable[[], int]]:
        yield slow
        assert started.wait(60)
        raise Cancelled

    with pytest.raises(Cancelled):
        list(run_in_order(tasks()))
    assert ended.is_set()


QUERY = Sql(engine="spark", queries=[SqlQueryStep(query="SELECT 1")])


class FakeReplay:
    """Gives prepared results. Stateless transactions run at the same time, and end in reverse order."""

    def __init__(self, results: list[ReplayResult], *, stateless: bool) -> None:
        self._results = results
        self._ended = [threading.Event() for _ in results]
        self._stateless = stateless
        self._times: list[Timestamp] = []
        self.running_threads: list[str] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        yield

    def is_stateless(self, state: ChainState, event: ExecuteTransform) -> bool:
        return self._stateless

    def check(self, state: ChainState, event: ExecuteTransform, system_time: Timestamp) -> ReplayResult:
        self.running_threads.append(threading.current_thread().name)
        number = state.sequence_number - 2
        if self._stateless and number + 1 < len(self._results):
            assert self._ended[number + 1].wait(60)
        self._ended[number].set()
        return self._results[number]


@pytest.mark.parametrize("stateless", [True, False])
def test_a_report_has_the_results_of_all_replays(
    empty: Builder, monkeypatch: pytest.MonkeyPatch, stateless: bool
) -> None:
    for name in ("_THREADS", "_AHEAD"):
        monkeypatch.setattr(integrity, name, 6)
    use = EngineReport("spark", "3.5", "4.0", 1, 10)
    results = [
        ReplayResult(engine=use),
        ReplayResult(skipped=("input-missing", "no input")),
        ReplayResult([("transform-data", "other rows"), ("transform-checkpoint", "other state")], engine=use),
        ReplayResult(doubts=[("checkpoint-other", "other bytes")], engine=use),
        ReplayResult(skipped=("input-missing", "no input")),
        ReplayResult(engine=EngineReport("flink", None, None, 1, 5)),
    ]
    empty.block(SetTransform([], QUERY))
    blocks = [str(empty.block(ExecuteTransform([]))) for _ in results]
    reporter, replay = Recorder(), FakeReplay(results, stateless=stateless)
    report: IntegrityReport = verify(empty.dataset, reporter, replay=cast("Replay", replay))
    replayed = [
        finding
        for finding in report.findings
        if finding.kind.startswith("transform-") and finding.message.startswith("other")
    ]
    assert replayed == [
        IntegrityFinding("transform-data", blocks[2], "other rows"),
        IntegrityFinding("transform-checkpoint", blocks[2], "other state"),
    ]
    assert report.unchecked == [
        IntegrityFinding("checkpoint-other", blocks[3], "other bytes"),
        IntegrityFinding("input-missing", blocks[1], "no input"),
        IntegrityFinding("input-missing", blocks[4], "no input"),
    ]
    assert report.transforms == 4
    assert report.engines == [
        EngineReport("spark", "3.5", "4.0", 3, 30),
        EngineReport("flink", None, None, 1, 5),
    ]
    assert reporter.warnings == ["created by spark 3.5, replayed by 4.0", "not replayed: no input"]
    in_main = [name == threading.main_thread().name for name in replay.running_threads]
    assert len(in_main) == len(results)
    assert any(in_main) is not stateless


def test_transactions_after_a_lost_block_are_not_replayed(empty: Builder) -> None:
    lost = empty.block(SetTransform([], QUERY))
    blocks = [str(empty.block(ExecuteTransform([]))) for _ in range(2)]
    (empty.dataset.folder / "blocks" / str(lost)).write_bytes(b"damaged")
    reporter = Recorder()
    report = verify(empty.dataset, reporter, replay=cast("Any", FakeReplay([], stateless=True)))
    reason = "blocks before it are lost or damaged"
    assert report.unchecked == [IntegrityFinding("before-lost", block, reason) for block in blocks]
    assert report.transforms == 0
    assert reporter.warnings == [f"not replayed: {reason}"]
