"""Definitions of flows: the YAML files in ``.odf/flows``, close to ``flow/v1alpha1/Flow`` of RFC-018.

Example::

    headers: {name: nightly}
    spec:
      target: my.%
      triggers:
        - {kind: Schedule, cron: 0 3 * * *, timezone: Europe/Oslo}
      tasks:
        - {kind: Pull}
        - {kind: Push, to: backup}
      retry: {maxAttempts: 3, minDelay: 1min, backoff: Exponential}
      stopAfterFailures: 5
"""

from __future__ import annotations

from typing import Literal

import msgspec

from odf_engine.automation.flows.tasks import AnyTask
from odf_engine.workspace.documents.document import Document, Kind, Part, TargetedSpec
from odf_engine.workspace.documents.values import Cron, DurationText, Zone


class Schedule(Kind, frozen=True, tag="Schedule"):
    """Starts runs at the times of a cron expression.

    Attributes:
        cron: the expression.
        timezone: zone of the expression.
        misfire: how times that were missed because the worker was off are handled: ``once`` starts one
            run for all of them, ``skip`` starts none.
    """

    cron: Cron
    timezone: Zone = Zone("UTC")
    misfire: Literal["once", "skip"] = "once"


class Interval(Kind, frozen=True, tag="Interval"):
    """Starts a run after each interval ``every``, counted from the start of the previous run."""

    every: DurationText


class Inputs(Kind, frozen=True, tag="Inputs"):
    """Starts a run when inputs of a target have new rows.

    Attributes:
        min_records_to_await: number of new rows that starts a run.
        max_await_interval: maximum delay of the run after the first new row.
    """

    min_records_to_await: int = 1
    max_await_interval: DurationText | None = None

    def __post_init__(self) -> None:
        if self.min_records_to_await < 1:
            raise ValueError("minRecordsToAwait must be at least 1")
        if self.min_records_to_await > 1 and self.max_await_interval is None:
            raise ValueError("minRecordsToAwait requires maxAwaitInterval")


class RemoteTrigger(Kind, frozen=True, tag="Remote"):
    """Compares targets with their remotes each ``every``; starts a run if a remote has new blocks."""

    every: DurationText


class Retry(Part, frozen=True):
    """Repetition of failed runs.

    Attributes:
        max_attempts: maximum number of repetitions.
        min_delay: delay before the first repetition.
        backoff: growth of the delay with the number of the repetition.
    """

    max_attempts: int = 0
    min_delay: DurationText = DurationText("1min")
    backoff: Literal["Fixed", "Linear", "Exponential", "ExponentialWithJitter"] = "Fixed"

    def __post_init__(self) -> None:
        if not 0 <= self.max_attempts <= 100:
            raise ValueError("maxAttempts must be between 0 and 100")


Trigger = Schedule | Interval | Inputs | RemoteTrigger


class FlowSpec(TargetedSpec, frozen=True, kw_only=True):
    """The content of a flow.

    Attributes:
        target: names of datasets, patterns such as ``my.%``, or selectors by labels.
        triggers: what starts runs; with none, only ``odf flow run``.
        tasks: run one after the other.
        retry: repetition of failed runs.
        stop_after_failures: number of consecutive failed runs that pauses the flow; 0: never.
        on_warning: ``fail``: a job with warnings fails the run, and pulls do not commit what has warnings.
    """

    tasks: list[AnyTask]
    triggers: list[Trigger] = msgspec.field(default_factory=list)
    retry: Retry = Retry()
    stop_after_failures: int = 1
    on_warning: Literal["continue", "fail"] = "continue"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.tasks:
            raise ValueError("a flow must have at least one task")
        if self.stop_after_failures < 0:
            raise ValueError("stopAfterFailures must be 0 or more")


class Flow(Document[FlowSpec], frozen=True):
    """A flow. It runs only if the user has accepted it, since it runs programs."""

    word = "flow"
    accept_command = "resume"
