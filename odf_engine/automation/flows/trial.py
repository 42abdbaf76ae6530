"""Trials of flows: what a run would do, whether it can, and its next times. Nothing is run or changed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from odf_engine.automation.flows.definition import Flow, Inputs, Interval, RemoteTrigger, Schedule
from odf_engine.automation.flows.scheduler import next_time
from odf_engine.automation.flows.targets import find_inputs, find_targets
from odf_engine.automation.flows.tasks import AnyTask, TrialContext
from odf_engine.errors import OdfError
from odf_engine.workspace.remotes import Remotes

if TYPE_CHECKING:
    from odf_engine.workspace.dataset_summary import DatasetEntry
    from odf_engine.workspace.workspace import Workspace

_TIMES: Final = 3


class TriedTask(NamedTuple):
    """A task of a trial.

    Attributes:
        kind: its kind, such as ``Pull``.
        commands: the equivalent odf commands, or the programs to run, in order.
        problem: why the task cannot run, or None if it can.
    """

    kind: str
    commands: Sequence[str]
    problem: OdfError | None = None


class FlowTrial(NamedTuple):
    """The result of a trial.

    Attributes:
        tasks: the tasks in order.
        times: at most three upcoming times of the schedules and intervals, in seconds since 1970.
        warnings: the triggers that cannot start a run.
    """

    tasks: Sequence[TriedTask]
    times: Sequence[float]
    warnings: Sequence[str]

    @property
    def problems(self) -> list[OdfError]:
        """The problems of the tasks."""
        return [task.problem for task in self.tasks if task.problem is not None]


def try_flow(workspace: Workspace, flow: Flow, now: float) -> FlowTrial:
    """Return what a run of a flow would do.

    Args:
        workspace: the workspace.
        flow: the flow, which need not be stored.
        now: the time in seconds since 1970.

    Raises:
        NotFound: a target matches no dataset.
        OdfError: a dataset cannot be read.
    """
    entries = find_targets(workspace, flow.spec.targets)
    context = TrialContext(workspace, flow.spec.on_warning, entries)
    tasks = [_try_task(task, context) for task in flow.spec.tasks]
    times = list(islice(_upcoming_times(flow, now), _TIMES))
    return FlowTrial(tasks, times, list(_useless_triggers(workspace, flow, entries)))


def _try_task(task: AnyTask, context: TrialContext) -> TriedTask:
    kind = str(task.__struct_config__.tag)
    try:
        return TriedTask(kind, task.preview(context))
    except OdfError as error:
        return TriedTask(kind, [], error)


def _upcoming_times(flow: Flow, now: float) -> Iterator[float]:
    """Yield the next times of schedules and intervals. An interval begins now: its flow never ran."""
    triggers = [trigger for trigger in flow.spec.triggers if isinstance(trigger, Schedule | Interval)]
    times = [now if isinstance(trigger, Interval) else next_time(trigger, now) for trigger in triggers]
    while (first := min(times, default=math.inf)) < math.inf:
        yield first
        for at, trigger in enumerate(triggers):
            if times[at] == first:
                is_timer = isinstance(trigger, Interval)
                times[at] = first + trigger.every.seconds if is_timer else next_time(trigger, first)


def _useless_triggers(workspace: Workspace, flow: Flow, entries: Sequence[DatasetEntry]) -> Iterator[str]:
    """Yield the triggers that can never start a run."""
    for trigger in flow.spec.triggers:
        if isinstance(trigger, Inputs) and not find_inputs(workspace, flow.spec.targets):
            yield "trigger Inputs never starts a run: the targets have no inputs"
        elif isinstance(trigger, RemoteTrigger):
            remotes = Remotes(workspace.odf)
            if not any(remotes.get(entry.id).pull for entry in entries):
                yield "trigger Remote never starts a run: no target is pulled from a remote"
