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

from odf_engine.automation.documents import (
    Cron,
    Document,
    DurationText,
    Kind,
    Part,
    TargetedSpec,
    Zone,
)
from odf_engine.storage.refs import is_branch_name


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


class _BranchTask(Kind, frozen=True):
    """A task for the heads of the targets, or for a branch.

    Attributes:
        branch: name of the branch, or "" for the heads.
    """

    branch: str = ""

    def __post_init__(self) -> None:
        if self.branch:
            _check_branch(self.branch)


class PullTask(_BranchTask, frozen=True, tag="Pull"):
    """Pulls the targets, inputs first.

    A branch is created. It is moved to the head first, unless it has blocks that the head lacks.

    Attributes:
        force: fetch also sources that report no change.
        fetch_uncacheable: fetch also sources that cannot report changes.
        reset_on_divergence: rebuild a target if its input was reset or replaced.
    """

    force: bool = False
    fetch_uncacheable: bool = False
    reset_on_divergence: bool = False


class VerifyTask(_BranchTask, frozen=True, tag="Verify"):
    """Verifies the targets; an invalid dataset fails the run.

    Attributes:
        integrity: do not replay transactions.
        recompute: instead of a replay, compare derivative datasets with their query over the latest state of
            the inputs.
    """

    integrity: bool = False
    recompute: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.integrity and self.recompute:
            raise ValueError("integrity and recompute exclude each other")


class CheckTask(_BranchTask, frozen=True, tag="Check"):
    """Evaluates the checks of the targets on their rows; a violated rule fails the run."""


class PromoteTask(Kind, frozen=True, tag="Promote"):
    """Moves the heads of the targets to the newest blocks of a branch."""

    branch: str

    def __post_init__(self) -> None:
        _check_branch(self.branch)


def _check_branch(name: str) -> None:
    if not is_branch_name(name):
        raise ValueError(f"'{name}' is not a valid name of a branch")


class PushTask(Kind, frozen=True, tag="Push"):
    """Pushes the targets ``to`` a repository or URL."""

    to: str
    force: bool = False


class ExportTask(Kind, frozen=True, tag="Export"):
    """Writes the rows of the targets to files; ``{name}`` in ``path`` is the name of the dataset."""

    path: str
    format: Literal["csv", "json", "ndjson", "parquet"] = "csv"


class CompactTask(Kind, frozen=True, tag="Compact"):
    """Merges small slices of the root datasets among the targets."""


class CommandTask(Kind, frozen=True, tag="Command"):
    """Runs a program without a shell, once for each target if an argument has ``{name}``, else once.

    Attributes:
        run: the program and its arguments.
        timeout: the program is terminated after this time.
    """

    run: list[str]
    timeout: DurationText = DurationText("1h")

    def __post_init__(self) -> None:
        if not self.run or not self.run[0]:
            raise ValueError("run must list a program and its arguments")


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
Task = PullTask | VerifyTask | CheckTask | PromoteTask | PushTask | ExportTask | CompactTask | CommandTask


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

    tasks: list[Task]
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
