"""Decides when flows run: due times, coalesced and missed runs, retries, pauses.

Nothing here reads a clock or waits. The caller passes the time, in seconds since 1970, so that tests can
simulate months, and reports when the clock was set.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Final, NamedTuple

import msgspec
from cronsim import CronSim

from odf_engine.automation.flows.definition import (
    Flow,
    Inputs,
    Interval,
    RemoteTrigger,
    Retry,
    Schedule,
    Trigger,
)
from odf_engine.automation.flows.store import REQUEST, FlowState, FlowStore, Run
from odf_engine.errors import OdfError

GRACE_SECONDS: Final = 60.0
"""A time of a schedule counts as missed if it is noticed later than this."""
_SET_BACK: Final = 86_400.0
"""If the clock is set back by more than this, it was wrong: schedules continue from the new time."""
_MAX_INTERRUPTIONS: Final = 2
"""Maximum number of repetitions of a run that the end of the worker interrupts."""
_UNKNOWN_RECORDS: Final = 1 << 62
"""An unknown number of new rows: more than any trigger awaits."""
CLOCK: Final = "Clock"
"""Trigger of the entry in the history that the clock was set back."""
REMOTES_UNCHANGED: Final = "remotes are unchanged"


def next_time(schedule: Schedule, after: float) -> float:
    """Return the first time of a schedule after ``after``, or infinity if no time follows."""
    start = datetime.fromtimestamp(after, UTC).astimezone(schedule.timezone.info)
    times = (moment.timestamp() for moment in CronSim(schedule.cron.fields, start))
    # At the end of the summer time, some times that the library returns are before the start.
    return next((time for time in times if time > after), math.inf)


def last_time(schedule: Schedule, until: float) -> float:
    """Return the last time of a schedule up to and including ``until``, or minus infinity."""
    start = datetime.fromtimestamp(math.floor(until) + 1, UTC).astimezone(schedule.timezone.info)
    moment = next(CronSim(schedule.cron.fields, start, reverse=True), None)
    return -math.inf if moment is None else moment.timestamp()


def retry_delay(retry: Retry, attempt: int, chance: random.Random) -> float:
    """Return the delay in seconds before repetition number ``attempt``, from 1 on."""
    delay = retry.min_delay.seconds
    match retry.backoff:
        case "Linear":
            return delay * attempt
        case "Exponential":
            return delay * 2 ** (attempt - 1)
        case "ExponentialWithJitter":
            return delay * 2 ** (attempt - 1) * chance.uniform(0.5, 1.5)
        case _:
            return delay


class Pending:
    """New rows of inputs that no run has seen.

    Attributes:
        records: their number.
        since: when the first one was committed.
    """

    def __init__(self, records: int, since: float) -> None:
        self.records, self.since = records, since


class Rewind(NamedTuple):
    """The times of schedules that come again after the clock was set back.

    Attributes:
        handled_until: all times up to this one have been handled.
        handled: the later ones that have been handled.
    """

    handled_until: float
    handled: frozenset[float]

    def next_time(self, schedule: Schedule) -> float:
        """Return the first time of a schedule that has not been handled."""
        time = next_time(schedule, self.handled_until)
        while time in self.handled:
            time = next_time(schedule, time)
        return time

    def last_time(self, schedule: Schedule, until: float) -> float:
        """Return the last time of a schedule up to ``until`` that has not been handled."""
        time = last_time(schedule, until)
        while time in self.handled:
            time = last_time(schedule, time - 1)
        return time


def due_time(
    flow: Flow,
    state: FlowState,
    now: float,
    *,
    running: bool = False,
    pending: Pending | None = None,
    rewind: Rewind | None = None,
) -> float:
    """Return when a flow is due next; infinite if nothing is planned.

    Args:
        flow: the flow.
        state: its state.
        now: the time.
        running: a run is running. Only times of schedules are due then.
        pending: new rows of inputs.
        rewind: the times that come again, or None for none.
    """
    if state.requested and not running:
        return now
    if state.paused:
        return math.inf
    if rewind is None:
        handled = now if state.handled_until - now > _SET_BACK else state.handled_until
        rewind = Rewind(handled, frozenset())
    times = [rewind.next_time(trigger) for trigger in flow.spec.triggers if isinstance(trigger, Schedule)]
    if not running:
        times += [_other_time(trigger, state, pending, now) for trigger in flow.spec.triggers]
        if state.retry_at is not None:
            times.append(state.retry_at)
    return min(times, default=math.inf)


def _other_time(trigger: Trigger, state: FlowState, pending: Pending | None, now: float) -> float:
    """Return when a trigger without a schedule is due."""
    match trigger:
        case Interval(every) | RemoteTrigger(every):
            if state.last_start is None or state.last_start > now:
                return now
            return state.last_start + every.seconds
        case Inputs(minimum, patience) if pending is not None:
            if pending.records >= minimum or patience is None:
                return now
            return pending.since + patience.seconds
    return math.inf


class FlowScheduler:
    """Starts runs of flows when they are due. One flow never runs twice at the same time.

    Args:
        store: states and runs.
        start: starts a run; it must return immediately. The end is reported with :meth:`end_run`.
        chance: randomness of retry delays.
    """

    def __init__(
        self, store: FlowStore, start: Callable[[Flow, Run], None], chance: random.Random | None = None
    ) -> None:
        self._store = store
        self._start = start
        self._chance = chance or random.Random()
        self._flows: dict[str, Flow] = {}
        self._states: dict[str, FlowState] = {}
        self._running: dict[str, Run] = {}
        self._pending: dict[str, Pending] = {}
        self._rewinds: dict[str, Rewind] = {}
        self._due: list[tuple[float, str]] = []
        self._next: dict[str, float] = {}
        self._version = -1

    def recover(self, flows: Iterable[Flow], now: float) -> None:
        """Load the flows when the worker starts, and end the runs that the end of the last one interrupted.

        Interrupted runs are repeated immediately, unless their schedule skips missed runs. Inputs may have
        new rows since then, so flows with such a trigger run once.
        """
        flows = list(flows)
        self.load(flows, now)
        for run in self._store.open_runs():
            state = self._states.get(run.flow)
            reason = "the worker stopped"
            flow = self._flows.get(run.flow)
            if state is None or flow is None:
                self._store.end(run, "interrupted", reason, now, FlowState(run.flow, now, paused=True))
                continue
            skips = run.trigger == "Schedule" and all(
                trigger.misfire == "skip" for trigger in flow.spec.triggers if isinstance(trigger, Schedule)
            )
            if not skips and state.attempt < max(_MAX_INTERRUPTIONS, flow.spec.retry.max_attempts):
                state.attempt, state.retry_at = state.attempt + 1, now
            self._store.end(run, "interrupted", reason, now, state)
            self._plan(run.flow, now)
        for name, flow in self._flows.items():
            if any(isinstance(trigger, Inputs) for trigger in flow.spec.triggers):
                self.add_records(name, _UNKNOWN_RECORDS, now)

    def load(self, flows: Iterable[Flow], now: float) -> None:
        """Replace the definitions. Runs in progress continue, and the states of other flows stay stored."""
        before, self._flows = self._flows, {flow.name: flow for flow in flows}
        states = self._states
        changed = {name for name, flow in self._flows.items() if before.get(name) != flow}
        self._states = {name: state for name, state in states.items() if name not in changed}
        try:
            self._read_states(now)
        except OdfError:
            self._flows, self._states = before, states
            raise

    def _read_states(self, now: float) -> None:
        """Read the states that other processes may have changed, and plan the flows that have changed."""
        version = self._store.version()
        stored = self._store.states()
        new = {name: FlowState(name, now) for name in self._flows.keys() - stored.keys()}
        if new:
            self._store.save(new.values())
        self._version = version
        before, self._states = self._states, {name: stored.get(name) or new[name] for name in self._flows}
        for name, state in self._states.items():
            if state != before.get(name):
                self._plan(name, now)
        for name in before.keys() - self._flows.keys():
            self._next.pop(name, None)
            self._rewinds.pop(name, None)

    def _refresh(self, now: float) -> None:
        if self._store.version() != self._version:
            self._read_states(now)

    @property
    def running(self) -> int:
        """Number of runs in progress."""
        return len(self._running)

    @property
    def active(self) -> bool:
        """Whether a trigger can start a run in future."""
        return any(flow.spec.triggers and not self._states[name].paused for name, flow in self._flows.items())

    def next_start(self, name: str) -> float:
        """Return when a flow is due next; infinite if nothing is planned."""
        return self._next.get(name, math.inf)

    def tick(self, now: float) -> float:
        """Start the runs that are due, and return when the next run is due, or infinity."""
        self._refresh(now)
        while self._due and self._due[0][0] <= now:
            due, name = heapq.heappop(self._due)
            if self._next.get(name) == due:
                del self._next[name]
                state, pending = msgspec.structs.replace(self._states[name]), self._pending.get(name)
                rewind = self._rewinds.get(name)
                try:
                    self._handle(name, now)
                except OdfError:  # not stored, so the next call tries it again
                    self._states[name] = state
                    if rewind is not None:
                        self._rewinds[name] = rewind
                    if pending is not None:
                        self._pending[name] = pending
                    raise
                finally:
                    self._plan(name, now)
        return self._due[0][0] if self._due else math.inf

    def clock_changed(self, step: float, now: float) -> None:
        """Plan all flows again after the clock was set by ``step`` seconds, to ``now``.

        Intervals and delays count the elapsed time. Times of schedules that come again are not handled again.

        Raises:
            OdfError: nothing was changed.
        """
        self._refresh(now)
        states = {
            name: msgspec.structs.replace(
                state,
                last_start=None if state.last_start is None else max(0.0, state.last_start + step),
                retry_at=None if state.retry_at is None else state.retry_at + step,
            )
            for name, state in self._states.items()
        }
        self._store.save(states.values())
        self._states = states
        for pending in self._pending.values():
            pending.since += step
        self._rewinds.clear()
        for name, state in states.items():
            if step < 0 and _has_schedule(self._flows[name]):
                text = f"the clock was set back by {-step:,.0f} s"
                self._store.skip(state, CLOCK, now, now, f"{text}; times that were handled are not repeated")
            self._plan(name, now)

    def _plan(self, name: str, now: float) -> None:
        """Compute when a flow is due next."""
        due = math.inf
        if name in self._flows:
            state = self._states[name]
            if state.handled_until - now > _SET_BACK:
                state.handled_until = now
            if state.handled_until <= now:
                self._rewinds.pop(name, None)
            elif name not in self._rewinds:
                self._rewinds[name] = Rewind(now, frozenset(self._store.times_after(name, now)))
            due = due_time(
                self._flows[name],
                state,
                now,
                running=name in self._running,
                pending=self._pending.get(name),
                rewind=self._rewinds.get(name),
            )
        if due == math.inf:
            self._next.pop(name, None)
        elif self._next.get(name) != due:
            self._next[name] = due
            heapq.heappush(self._due, (due, name))

    def _handle(self, name: str, now: float) -> None:
        """Start a run, or store why none starts."""
        flow, state = self._flows[name], self._states[name]
        if state.requested and name not in self._running:
            state.requested = False
            return self._begin(flow, REQUEST, now, now)
        fired: list[tuple[float, str]] = []
        rewind = self._rewinds.get(name) or Rewind(state.handled_until, frozenset())
        for trigger in flow.spec.triggers:
            if isinstance(trigger, Schedule):
                first = rewind.next_time(trigger)
                if first > now:
                    continue
                # In a few time zones the library, going back, does not find the first time.
                due = max(first, rewind.last_time(trigger, now))
                if now - due > GRACE_SECONDS and trigger.misfire == "skip":
                    missed = f"missed from {_format(first)} on; the schedule skips missed runs"
                    self._advance(state, due)
                    self._store.skip(state, "Schedule", due, now, missed)
                else:
                    fired.append((due, "Schedule"))
            elif name not in self._running:
                due = _other_time(trigger, state, self._pending.get(name), now)
                if due <= now:
                    fired.append((due, str(trigger.__struct_config__.tag)))
        if state.retry_at is not None and state.retry_at <= now and name not in self._running:
            fired.append((state.retry_at, "retry"))
        if not fired:
            return None
        due, trigger_name = max(fired, key=lambda candidate: (candidate[1] != "retry", candidate[0]))
        self._advance(state, now)
        if name in self._running:
            reason = f"run {self._running[name].id} is still running"
            self._store.skip(state, trigger_name, due, now, reason)
            return None
        return self._begin(flow, trigger_name, due, now)

    def _advance(self, state: FlowState, until: float) -> None:
        """Mark the times of schedules up to ``until`` as handled."""
        state.handled_until = max(state.handled_until, until)
        if (rewind := self._rewinds.get(state.name)) is not None:
            self._rewinds[state.name] = rewind._replace(handled_until=until)

    def _begin(self, flow: Flow, trigger: str, due: float, now: float) -> None:
        state = self._states[flow.name]
        state.retry_at, state.last_start = None, now
        if trigger != "retry":
            state.attempt = 0
        self._pending.pop(flow.name, None)
        run = self._store.begin(state, trigger, due, now)
        self._running[flow.name] = run
        self._start(flow, run)

    def add_records(self, name: str, records: int, now: float) -> None:
        """Report new rows of inputs of a flow's targets."""
        pending = self._pending.setdefault(name, Pending(0, now))
        pending.records += records
        self._plan(name, now)

    def end_run(self, run: Run, error: str | None, now: float, *, unchanged: bool = False) -> None:
        """Report the end of a run.

        Args:
            run: the run.
            error: why it failed, or None if it succeeded.
            now: the time.
            unchanged: the tasks did not run, since the remotes have no new blocks.

        Raises:
            OdfError: the end cannot be stored, and can be reported again.
        """
        self._refresh(now)
        state = self._states.get(run.flow) or FlowState(run.flow, now)
        state = msgspec.structs.replace(state)  # it is kept when it has been stored
        flow = self._flows.get(run.flow)
        if error is None:
            state.failures = state.attempt = 0
            outcome, reason = ("skipped", REMOTES_UNCHANGED) if unchanged else ("done", "")
            self._store.end(run, outcome, reason, now, state)
        else:
            pause = ""
            if flow is not None and state.attempt < flow.spec.retry.max_attempts:
                state.attempt += 1
                state.retry_at = now + retry_delay(flow.spec.retry, state.attempt, self._chance)
            else:
                state.failures += 1
                state.attempt = 0
                limit = flow.spec.stop_after_failures if flow is not None else 0
                if limit and state.failures >= limit:
                    runs = f"{state.failures} failed runs in a row" if state.failures > 1 else "a failed run"
                    state.paused, pause = True, f"paused after {runs}"
                    state.pause_reason = pause
            self._store.end(run, "failed", error, now, state, pause=pause)
        if flow is not None:
            self._states[run.flow] = state
        del self._running[run.flow]
        self._plan(run.flow, now)


def _has_schedule(flow: Flow) -> bool:
    return any(isinstance(trigger, Schedule) for trigger in flow.spec.triggers)


def _format(when: float) -> str:
    return datetime.fromtimestamp(when, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
