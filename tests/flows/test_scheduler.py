"""The decisions of the scheduler, with a simulated clock."""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from odf_engine.automation.flows.clock import SteadyClock
from odf_engine.automation.flows.definition import Flow, Retry, Schedule
from odf_engine.automation.flows.scheduler import FlowScheduler, last_time, next_time, retry_delay
from odf_engine.automation.flows.store import FILE, FlowStore, Run
from odf_engine.base.progress import JobWarning
from odf_engine.errors import OdfError
from odf_engine.workspace.documents.document import read_document
from odf_engine.workspace.documents.values import Cron, Zone

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0
START = datetime(2026, 3, 20, tzinfo=UTC).timestamp()  # the summer time of Europe begins on 29 March


def flow(name: str, triggers: str, more: str = "") -> Flow:
    text = f"headers: {{name: {name}}}\nspec:\n  target: a\n  tasks: [{{kind: Pull}}]\n"
    return read_document(f"{text}  triggers: [{triggers}]\n{more}".encode(), name, Flow)


class Simulation:
    """Flows of one workspace, whose worker can crash, and whose runs take simulated time."""

    def __init__(self, folder: Path, *flows: Flow, now: float = START) -> None:
        self.folder, self.flows, self.now = folder, flows, now
        self.running: dict[int, Run] = {}
        self.started: list[Run] = []
        self.begin()

    def begin(self) -> None:
        """Start the worker, also after a crash."""
        self.running.clear()
        self.store = FlowStore(self.folder)
        self.scheduler = FlowScheduler(self.store, self._start, random.Random(1))
        self.scheduler.recover(self.flows, self.now)

    def crash(self) -> None:
        self.store.close()

    def _start(self, flow: Flow, run: Run) -> None:
        assert run.flow not in {each.flow for each in self.running.values()}
        self.running[run.id] = run
        self.started.append(run)

    def until(self, when: float) -> None:
        """Let the time pass without any run taking time."""
        while (due := self.scheduler.tick(self.now)) <= when or self.running:
            for run in list(self.running.values()):
                self.end(run)
            self.now = max(self.now, min(due, when))
        self.now = when
        self.scheduler.tick(when)

    def end(self, run: Run, error: str | None = None) -> None:
        del self.running[run.id]
        self.scheduler.end_run(run, error, self.now)


def times(simulation: Simulation) -> list[str]:
    return [datetime.fromtimestamp(run.due, UTC).strftime("%d %H:%M") for run in simulation.started]


def test_schedule_times_follow_time_zone_and_summer_time() -> None:
    oslo = Schedule(Cron.parse("30 2 * * *"), Zone("Europe/Oslo"))
    at = datetime(2026, 3, 28, 12, tzinfo=UTC).timestamp()
    first = next_time(oslo, at)
    # 02:30 does not exist on the day on which the summer time begins: the run starts at 03:00.
    assert datetime.fromtimestamp(first, UTC) == datetime(2026, 3, 29, 1, 0, tzinfo=UTC)
    assert next_time(oslo, first) == datetime(2026, 3, 30, 0, 30, tzinfo=UTC).timestamp()
    hourly = Schedule(Cron.parse("@hourly"))
    assert last_time(hourly, START + 30 * MINUTE) == START == last_time(hourly, START)
    assert next_time(hourly, START) == START + HOUR


@pytest.mark.parametrize(
    ("zone", "cron", "start", "run"),
    [
        ("Africa/Cairo", "59 23 L * *", "2024-10-12 09:55", "2024-10-31 20:59"),
        ("America/St_Johns", "30 1 * * *", "2025-11-02 04:48", "2025-11-03 05:00"),
    ],
)
def test_run_starts_once_at_the_end_of_summer_time(
    tmp_path: Path, zone: str, cron: str, start: str, run: str
) -> None:
    begun, due = (datetime.fromisoformat(f"{text}+00:00").timestamp() for text in (start, run))
    trigger = f"{{kind: Schedule, cron: '{cron}', timezone: {zone}}}"
    simulation = Simulation(tmp_path, flow("a", trigger), now=begun)
    assert simulation.scheduler.tick(begun) == due
    simulation.now = due + MINUTE  # the library is wrong in this minute
    simulation.until(due + MINUTE)
    assert [each.due for each in simulation.started] == [due]


def test_a_flow_that_is_not_accepted_for_a_while_stays_paused(tmp_path: Path) -> None:
    simulation = Simulation(tmp_path, flow("a", "{kind: Schedule, cron: '@hourly'}"))
    FlowStore(tmp_path).change("a", simulation.now, paused=True, requested=True)
    simulation.scheduler.load([], simulation.now)
    simulation.scheduler.tick(simulation.now)
    simulation.scheduler.load(simulation.flows, simulation.now)
    simulation.scheduler.tick(simulation.now)
    assert [run.trigger for run in simulation.started] == ["request"]
    assert simulation.store.states()["a"].paused


def test_removed_flow_is_not_run(tmp_path: Path) -> None:
    gone, kept = (flow(name, "{kind: Schedule, cron: '@hourly'}") for name in ("gone", "kept"))
    simulation = Simulation(tmp_path, gone, kept)
    simulation.scheduler.load([kept], simulation.now)
    simulation.until(START + HOUR)
    assert [run.flow for run in simulation.started] == ["kept"]


def test_outputs_are_deleted_with_their_runs_and_added_to_earlier_files(tmp_path: Path) -> None:
    simulation = Simulation(tmp_path, flow("a", "{kind: Schedule, cron: '@hourly'}"))
    simulation.until(START + 2 * HOUR)
    simulation.crash()
    with closing(sqlite3.connect(tmp_path / FILE)) as file:  # as an earlier version has written it
        file.executescript("DROP TRIGGER delete_output; DROP TABLE outputs")
        file.executescript("DROP TRIGGER delete_warnings; DROP TABLE warnings")
    simulation.begin()
    newest, oldest = runs = simulation.store.runs("a")
    assert simulation.store.outputs(runs) == {}
    for text in ("half", "whole"):
        simulation.store.set_output(oldest.id, text)
    assert simulation.store.outputs(runs) == {oldest.id: "whole"}
    warning = JobWarning("late-rows", "2 late rows", 2, "my.rows")
    simulation.store.set_warnings(oldest.id, [warning])
    assert simulation.store.warnings(runs) == {oldest.id: [warning]}
    with closing(sqlite3.connect(tmp_path / FILE)) as file, file:
        file.execute("DELETE FROM runs WHERE id = ?", (oldest.id,))
    assert simulation.store.outputs([newest, oldest]) == simulation.store.warnings([newest, oldest]) == {}


def test_failed_writes_are_retried(tmp_path: Path) -> None:
    """What cannot be stored is tried again."""
    simulation = Simulation(tmp_path, flow("a", "{kind: Schedule, cron: '@hourly'}"))
    disk = sqlite3.connect(tmp_path / FILE, isolation_level=None)
    disk.execute("CREATE TRIGGER full BEFORE INSERT ON runs BEGIN SELECT RAISE(ABORT, 'full'); END")
    with pytest.raises(OdfError, match="cannot be read or written: full"):
        simulation.scheduler.tick(START + HOUR)
    disk.execute("DROP TRIGGER full")
    simulation.scheduler.tick(START + HOUR)
    (run,) = simulation.started
    disk.execute("CREATE TRIGGER full BEFORE UPDATE ON runs BEGIN SELECT RAISE(ABORT, 'full'); END")
    with pytest.raises(OdfError, match="full"):
        simulation.scheduler.end_run(run, "no network", START + HOUR)
    disk.execute("DROP TRIGGER full")
    assert simulation.scheduler.running == 1
    simulation.scheduler.end_run(run, "no network", START + HOUR)
    assert simulation.store.runs("a")[0].state == "failed"
    assert simulation.store.states()["a"].failures == 1
    disk.execute("ALTER TABLE flows RENAME TO others")
    with pytest.raises(OdfError, match="no such table"):
        simulation.scheduler.load([flow("b", "{kind: Inputs}")], START + HOUR)
    assert not simulation.scheduler.active  # the flows are those of before
    disk.close()


@pytest.mark.parametrize(
    "change",
    [
        "flows SET handled_until = -1e300",
        "flows SET paused = 'x'",
        "runs SET jobs = '{'",
        "runs SET begun = 9e99",
    ],
)
def test_damaged_state_is_reported(tmp_path: Path, change: str) -> None:
    simulation = Simulation(tmp_path, flow("a", "{kind: Schedule, cron: '@hourly'}"))
    simulation.until(START + HOUR)
    with sqlite3.connect(tmp_path / FILE) as other:
        other.execute(f"UPDATE {change}")
    other.close()
    with pytest.raises(OdfError, match="damaged"):
        simulation.store.states()
        simulation.store.runs()


def test_missed_runs_are_run_once_or_skipped(tmp_path: Path) -> None:
    once = flow("once", "{kind: Schedule, cron: 0 6 * * *}")
    skip = flow("skip", "{kind: Schedule, cron: 0 6 * * *, misfire: skip}")
    simulation = Simulation(tmp_path, once, skip)
    simulation.until(START + 7 * HOUR)
    assert Counter(run.flow for run in simulation.started) == {"once": 1, "skip": 1}
    simulation.crash()
    simulation.now = START + 3 * DAY + 12 * HOUR
    simulation.begin()
    simulation.until(simulation.now + MINUTE)
    assert Counter(run.flow for run in simulation.started) == {"once": 2, "skip": 1}
    (skipped, _) = simulation.store.runs("skip")
    assert (skipped.state, "missed from 2026-03-21T06:00:00Z" in skipped.reason) == ("skipped", True)


def test_run_is_skipped_while_the_previous_one_runs(tmp_path: Path) -> None:
    simulation = Simulation(tmp_path, flow("a", "{kind: Schedule, cron: '*/10 * * * *'}"))
    simulation.now += 10 * MINUTE
    simulation.scheduler.tick(simulation.now)
    (run,) = simulation.started
    simulation.now += 10 * MINUTE
    simulation.scheduler.tick(simulation.now)
    assert len(simulation.started) == 1
    assert simulation.store.runs("a")[0].reason == f"run {run.id} is still running"
    simulation.end(run)
    simulation.until(simulation.now + 10 * MINUTE)
    assert len(simulation.started) == 2


def test_failed_runs_are_retried_and_pause_the_flow(tmp_path: Path) -> None:
    more = "  retry: {maxAttempts: 2, minDelay: 1min, backoff: Exponential}\n  stopAfterFailures: 2\n"
    simulation = Simulation(tmp_path, flow("a", "{kind: Schedule, cron: '@hourly'}", more))
    starts = []
    while simulation.now < START + 5 * HOUR:
        simulation.now = min(simulation.scheduler.tick(simulation.now), START + 5 * HOUR)
        simulation.scheduler.tick(simulation.now)
        for run in list(simulation.running.values()):
            starts.append((simulation.now - START) / MINUTE)
            simulation.end(run, "no network")
    assert starts == [60, 61, 63, 120, 121, 123]
    assert simulation.store.states()["a"].pause_reason == "paused after 2 failed runs in a row"
    other = FlowStore(tmp_path)  # the command line
    other.change("a", simulation.now, paused=False, failures=0, handled_until=simulation.now, requested=True)
    simulation.scheduler.tick(simulation.now)
    assert [run.trigger for run in simulation.running.values()] == ["request"]
    assert not other.states()["a"].requested


@pytest.mark.parametrize(
    ("backoff", "delays"), [("Fixed", [2, 2, 2]), ("Linear", [2, 4, 6]), ("Exponential", [2, 4, 8])]
)
def test_retry_delay_follows_the_backoff(backoff: str, delays: list[float]) -> None:
    text = f"retry: {{maxAttempts: 3, minDelay: 2s, backoff: {backoff}}}"
    retry = flow("a", "", f"  {text}\n").spec.retry
    assert isinstance(retry, Retry)
    assert [retry_delay(retry, attempt, random.Random()) for attempt in (1, 2, 3)] == delays


def test_new_input_rows_trigger_flows_by_count_or_interval(tmp_path: Path) -> None:
    batched = flow("batched", "{kind: Inputs, minRecordsToAwait: 100, maxAwaitInterval: 1h}")
    simulation = Simulation(tmp_path, batched, flow("direct", "{kind: Inputs}"))
    simulation.until(START + MINUTE)  # what happened before the start is unknown: both run once
    assert Counter(run.flow for run in simulation.started) == {"batched": 1, "direct": 1}
    for name in ("batched", "direct"):
        simulation.scheduler.add_records(name, 60, simulation.now)
    simulation.until(simulation.now + MINUTE)
    assert simulation.started[-1].flow == "direct"
    simulation.scheduler.add_records("batched", 40, simulation.now)
    simulation.until(simulation.now + MINUTE)
    assert simulation.started[-1].flow == "batched"
    simulation.scheduler.add_records("batched", 1, simulation.now)
    simulation.until(simulation.now + 59 * MINUTE)
    assert len(simulation.started) == 4
    simulation.until(simulation.now + MINUTE)
    assert len(simulation.started) == 5


def test_clock_changes_neither_repeat_nor_block_runs(tmp_path: Path) -> None:
    simulation = Simulation(tmp_path, flow("a", "{kind: Schedule, cron: '@hourly'}"))
    simulation.until(START + 2 * HOUR)
    simulation.now -= 90 * MINUTE  # set back: 01:00 and 02:00 come again
    simulation.until(START + 3 * HOUR)
    assert times(simulation) == ["20 01:00", "20 02:00", "20 03:00"]
    simulation.now = START + 400 * DAY  # a wrong clock, then corrected
    simulation.scheduler.tick(simulation.now)
    simulation.until(simulation.now)
    simulation.now = START + 4 * HOUR + MINUTE
    simulation.scheduler.load(simulation.flows, simulation.now)
    simulation.scheduler.tick(simulation.now)
    simulation.crash()
    simulation.begin()
    simulation.until(START + 5 * HOUR)
    assert times(simulation)[-1] == "20 05:00"


YEAR = 365 * DAY


class FakeClock:
    """A wall clock that is wrong for a while, and the elapsed time."""

    def __init__(self) -> None:
        self.elapsed, self.error = 0.0, 0.0
        self.steady = SteadyClock(lambda: START + self.elapsed + self.error, lambda: self.elapsed)


def run_with_clock(
    folder: Path, *flows: Flow, seconds: int, errors: Mapping[int, float], suspended: float = 0.0
) -> tuple[Simulation, dict[str, list[float]]]:
    """Run flows once a second; return the seconds at which they started.

    ``errors`` has the errors of the clock from these seconds on. The computer is suspended in the middle.
    """
    clock = FakeClock()
    simulation = Simulation(folder, *flows)
    starts: dict[str, list[float]] = {flow.name: [] for flow in flows}
    for second in range(seconds):
        clock.error = errors.get(second, clock.error)
        clock.elapsed += 1 + (suspended if second == seconds // 2 else 0)
        simulation.now = clock.steady.now()
        if step := clock.steady.take_step():
            simulation.scheduler.clock_changed(step, simulation.now)
        simulation.scheduler.tick(simulation.now)
        for run in list(simulation.running.values()):
            starts[run.flow].append(clock.elapsed)
            simulation.end(run)
    return simulation, starts


EACH_MINUTE = "{kind: Schedule, cron: '* * * * *'}"


@pytest.mark.parametrize("error", [5.0, -5.0, 3 * HOUR, -3 * HOUR, YEAR, -YEAR])
@pytest.mark.parametrize("length", [5, 90])
def test_flows_follow_the_elapsed_time_when_the_clock_is_wrong(
    tmp_path: Path, error: float, length: int
) -> None:
    often, cron = flow("often", "{kind: Interval, every: 2s}"), flow("cron", EACH_MINUTE)
    simulation, starts = run_with_clock(
        tmp_path, often, cron, seconds=900, errors={290: error, 290 + length: 0.0}
    )
    assert starts["often"] == [float(second) for second in range(1, 900, 2)]
    if length == 5:
        assert starts["cron"] == [60.0 * number for number in range(1, 16)]
    dues = [run.due for run in simulation.started if run.flow == "cron"]
    assert len(dues) == len(set(dues)), "a time was handled twice"
    after = [start for start in starts["cron"] if start >= 290 + length + 60]
    assert after == [60.0 * number for number in range(6 if length == 5 else 8, 16)], "a run is missing"
    for number in range(1, 15):
        assert any(60 * number <= start < 60 * number + 121 for start in starts["cron"])
    notes = [run.reason for run in simulation.store.runs("cron") if run.trigger == "Clock"]
    assert bool(notes) is (length == 90)
    assert all(note.startswith("the clock was set back by ") for note in notes)


def test_a_suspended_computer_runs_once_for_all_missed_times(tmp_path: Path) -> None:
    often, cron = flow("often", "{kind: Interval, every: 2s}"), flow("cron", EACH_MINUTE)
    simulation, starts = run_with_clock(tmp_path, often, cron, seconds=300, errors={}, suspended=2 * HOUR)
    assert starts["often"][74:77] == [149.0, 151.0 + 2 * HOUR, 153.0 + 2 * HOUR]
    assert starts["cron"] == [60.0, 120.0, 151 + 2 * HOUR, 180 + 2 * HOUR, 240 + 2 * HOUR, 300 + 2 * HOUR]
    assert not [run for run in simulation.store.runs() if run.trigger == "Clock"]


@pytest.mark.parametrize("zone", ["Europe/Oslo", "America/New_York"])
@pytest.mark.parametrize(
    "change", ["2026-03-08 06:00", "2026-03-29 00:00", "2026-10-25 00:00", "2026-11-01 05:00"]
)
@pytest.mark.parametrize("step", [-5.0, 5.0, 40 * MINUTE, -40 * MINUTE])
def test_clock_changes_at_summer_time_lose_and_repeat_no_run(
    tmp_path: Path, zone: str, change: str, step: float
) -> None:
    """The clock is set while the local time changes, and set again two hours later."""
    trigger = f"{{kind: Schedule, cron: '*/15 * * * *', timezone: {zone}}}"
    start = datetime.fromisoformat(change).replace(tzinfo=UTC).timestamp()
    simulation = Simulation(tmp_path, flow("a", trigger), now=start)
    for minute in range(1, 361):
        simulation.now += MINUTE
        if minute in (50, 170):
            moved = step if minute == 50 else -step
            simulation.now += moved
            simulation.scheduler.clock_changed(moved, simulation.now)
        simulation.scheduler.tick(simulation.now)
        for run in list(simulation.running.values()):
            simulation.end(run)
    dues = sorted(run.due for run in simulation.started)
    assert len(dues) == len(set(dues))
    schedule = simulation.flows[0].spec.triggers[0]
    assert isinstance(schedule, Schedule)
    expected, when = [], next_time(schedule, start)
    while when <= simulation.now:
        expected.append(when)
        when = next_time(schedule, when)
    coalesced = set(expected) - set(dues)
    assert len(coalesced) <= (2 if abs(step) > MINUTE else 0) and set(dues) <= set(expected)


def test_the_time_of_a_restart_after_a_wrong_clock_is_not_lost(tmp_path: Path) -> None:
    simulation = Simulation(tmp_path, flow("a", "{kind: Schedule, cron: '@hourly'}"))
    simulation.now = START + 5 * HOUR + MINUTE  # wrong, until the worker is restarted
    simulation.scheduler.tick(simulation.now)
    simulation.end(simulation.started[0])
    simulation.crash()
    simulation.now = START + 2 * MINUTE
    simulation.begin()
    simulation.until(START + 7 * HOUR)
    assert times(simulation) == ["20 05:00", *(f"20 0{hour}:00" for hour in (1, 2, 3, 4, 6, 7))]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.complete
def test_every_scheduled_time_is_covered_despite_crashes_and_clock_jumps(tmp_path: Path, seed: int) -> None:
    """Every time of a schedule is covered by exactly one run or stored decision."""
    chance = random.Random(seed)
    crons = ["*/15 * * * *", "0 * * * *", "30 2 * * *", "0 6 * * 1-5", "0 0 1 * *", "*/7 8-17 * * *"]
    zones = ["UTC", "Europe/Oslo", "America/New_York"]
    flows = [
        flow(
            f"f{number}",
            f"{{kind: Schedule, cron: '{cron}', timezone: {zones[number % 3]}}}",
            "  stopAfterFailures: 0\n  retry: {maxAttempts: 1, minDelay: 3min}\n",
        )
        for number, cron in enumerate(crons)
    ]
    simulation = Simulation(tmp_path, *flows)
    ends: dict[int, float] = {}
    finished: list[Run] = []
    stop = START + 30 * DAY
    while simulation.now < stop:
        due = simulation.scheduler.tick(simulation.now)
        for run in simulation.running.values():
            ends.setdefault(run.id, simulation.now + chance.choice((1, 30, 300, 1500)))
        simulation.now = min([due, stop, *(ends[number] for number in simulation.running)])
        event = chance.random()
        if event < 0.01:
            simulation.crash()
            simulation.now += chance.choice((0.0, 30.0, 2 * HOUR, 9 * HOUR))
            simulation.begin()
        elif event < 0.015:
            step = chance.choice((-HOUR, -20.0, 3 * HOUR))
            simulation.now += step
            simulation.scheduler.clock_changed(step, simulation.now)
        for number in [number for number in simulation.running if ends[number] <= simulation.now]:
            run = simulation.running[number]
            simulation.end(run, "failed" if chance.random() < 0.05 else None)
            finished.append(run)
    for each in flows:
        trigger = each.spec.triggers[0]
        assert isinstance(trigger, Schedule)
        rows = [run for run in simulation.store.runs(each.name, 10_000) if run.trigger == "Schedule"]
        dues = sorted(run.due for run in rows)
        assert len(dues) == len(set(dues)), "a time was handled twice"
        decided = sorted((run.due, run.begun) for run in rows)
        covered, time = 0, next_time(trigger, START)
        # A decision covers all times since the last one, up to its own.
        for due, begun in decided:
            assert due <= begun + 1e-6
            while time <= due:
                covered, time = covered + 1, next_time(trigger, time)
        late = stop - 2 * DAY  # the end may lie in a jump of the clock
        assert time > late or next_time(trigger, late) > stop, f"{each.name} has missed a time"
        assert covered >= len(dues)


@pytest.mark.complete
def test_scheduler_handles_ten_thousand_flows(tmp_path: Path) -> None:
    flows = [
        flow(f"f{number}", f"{{kind: Schedule, cron: '{number % 60} 3 * * *'}}") for number in range(10_000)
    ]
    simulation = Simulation(tmp_path, *flows)
    assert simulation.scheduler.tick(simulation.now) == START + 3 * HOUR
    assert not simulation.started
