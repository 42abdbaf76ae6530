"""The tasks of flows: their fields in the definition, and their work.

A new kind of task is a class here, and a part of :data:`AnyTask`. The runner knows none of them.
"""

from __future__ import annotations

import asyncio
import shlex
import shutil
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

import msgspec

from odf_engine.automation.flows.programs import run_program
from odf_engine.base.files import ensure_folder
from odf_engine.base.settings import load_workspace
from odf_engine.chain.references import follow_head
from odf_engine.derive.promotion import promote
from odf_engine.errors import NotFound, OdfError, UsageError
from odf_engine.jobs import JOB_KINDS
from odf_engine.metadata.model import DatasetKind
from odf_engine.storage.refs import is_branch_name
from odf_engine.workspace.discovery import ODF_FOLDER
from odf_engine.workspace.documents.document import Kind
from odf_engine.workspace.documents.private_source import local_state
from odf_engine.workspace.documents.values import DurationText
from odf_engine.workspace.environment import resolve_variable
from odf_engine.workspace.remotes import Remotes, resolve_address
from odf_engine.workspace.trust import Trust
from odf_engine.workspace.workspace import Workspace

if TYPE_CHECKING:
    from odf_engine.chain.dataset import Dataset
    from odf_engine.workspace.dataset_summary import DatasetEntry

_PLACEHOLDER: Final = "{name}"
Requests = list[tuple["DatasetEntry", dict[str, Any]]]
"""Datasets, each with the other fields of the request of its job."""


class PlanContext(Protocol):
    """What a task reads to plan its work."""

    @property
    def folder(self) -> Path:
        """The folder of the workspace."""
        ...

    @property
    def is_trial(self) -> bool:
        """Whether nothing may be run or changed."""
        ...

    @property
    def on_warning(self) -> Literal["continue", "fail"]:
        """Whether warnings fail the run."""
        ...

    @property
    def entries(self) -> Sequence[DatasetEntry]:
        """The targets of the flow, inputs first."""
        ...

    def is_ingested(self, dataset: Dataset) -> bool:
        """Return whether an earlier attempt of the run has committed to a dataset."""
        ...


class TaskContext(PlanContext, Protocol):
    """The environment of a task, which the worker provides."""

    @property
    def flow_name(self) -> str:
        """The name of the flow."""
        ...

    async def run_jobs(self, kind: str, requests: Requests) -> object:
        """Run jobs, and wait for all of them.

        Args:
            kind: the kind of the jobs.
            requests: the datasets, and the other fields of the requests.

        Raises:
            OdfError: at least one failed, or has warnings and the flow fails on them.
        """
        ...

    async def notify_datasets_changed(self) -> None:
        """Notify the clients of the worker of changes without a job."""
        ...

    def add_output(self, command: Sequence[str], output: str) -> None:
        """Add the output of a program to the run."""
        ...


@dataclass
class TrialContext:
    """The environment of a trial: nothing is run or changed.

    Attributes:
        workspace: the workspace.
        on_warning, entries: as in :class:`PlanContext`.
        created: the names of the branches that the earlier tasks would create.
    """

    workspace: Workspace
    on_warning: Literal["continue", "fail"]
    entries: Sequence[DatasetEntry]
    created: set[str] = field(default_factory=set)
    is_trial: bool = True

    @property
    def folder(self) -> Path:
        """The folder of the workspace."""
        return self.workspace.folder

    def is_ingested(self, dataset: Dataset) -> bool:
        """Return False: a trial has no earlier attempt."""
        return False


class Task(Kind, frozen=True):
    """A task."""

    async def run(self, context: TaskContext) -> None:
        """Run the task.

        Raises:
            OdfError: it failed.
        """
        raise NotImplementedError

    def preview(self, context: TrialContext) -> list[str]:
        """Return the equivalent commands, and check their prerequisites.

        Raises:
            OdfError: the task cannot run.
        """
        raise NotImplementedError


class JobTask(Task, frozen=True):
    """A task that runs a job for each target. Its tag is the capitalized kind of the job."""

    @classmethod
    def job_kind(cls) -> str:
        """Return the kind of the jobs."""
        return str(cls.__struct_config__.tag).lower()

    async def run(self, context: TaskContext) -> None:
        await context.run_jobs(self.job_kind(), await asyncio.to_thread(self.requests, context))

    def requests(self, context: PlanContext) -> Requests:
        """Return the datasets, and the fields of their requests. By default, the fields of the task.

        Raises:
            OdfError: the task cannot run.
        """
        return [(entry, msgspec.structs.asdict(self)) for entry in context.entries]

    def preview(self, context: TrialContext) -> list[str]:
        commands: list[str] = []
        for entry, fields in self.requests(context):
            request = JOB_KINDS[self.job_kind()](dataset=str(entry.id), **fields)  # type: ignore[call-arg]
            name = str(entry.alias)
            words = request.command(lambda _, name=name: name) or [self.job_kind(), name]
            commands.append(shlex.join(["odf", *words]))
        return commands


class _BranchTask(JobTask, frozen=True):
    """A task for the heads of the targets, or for a branch.

    Attributes:
        branch: name of the branch, or "" for the heads.
    """

    branch: str = ""

    def __post_init__(self) -> None:
        if self.branch:
            _check_branch(self.branch)

    def preview(self, context: TrialContext) -> list[str]:
        _require_branch(context, self.branch)
        return super().preview(context)


class PullTask(_BranchTask, frozen=True, tag="Pull"):
    """Pulls the targets, inputs first.

    A branch is created. It is moved to the head first, unless it has blocks that the head lacks.

    Attributes:
        inputs: the branch that derivative datasets read of the inputs that have it, or "" for the heads.
        force: fetch also sources that report no change.
        fetch_uncacheable: fetch also sources that cannot report changes.
        reset_on_divergence: rebuild a target if its input was reset or replaced.
    """

    inputs: str = ""
    force: bool = False
    fetch_uncacheable: bool = False
    reset_on_divergence: bool = False

    def requests(self, context: PlanContext) -> Requests:
        """Return the requests, inputs first.

        A repeated run does not fetch a source that cannot report changes again, if an earlier attempt has
        ingested it: its rows would be appended twice.
        """

        requests: Requests = []
        for entry in context.entries:
            if self.branch and not context.is_trial:
                follow_head(entry.dataset, self.branch)
            is_missing = context.is_trial and self.branch not in _references(entry)
            dataset = entry.dataset if is_missing else entry.on_branch(self.branch, moves=True).dataset
            changes = {
                "after": [str(upstream.id) for upstream, _ in requests],
                "on_warning": context.on_warning,
                "fetch_uncacheable": self.fetch_uncacheable and not context.is_ingested(dataset),
            }
            requests.append((entry, msgspec.structs.asdict(self) | changes))
        return requests

    def preview(self, context: TrialContext) -> list[str]:
        for entry in context.entries:
            _check_pull(context.workspace, entry)
        context.created.add(self.branch)
        return super().preview(context)


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


class PromoteTask(Task, frozen=True, tag="Promote"):
    """Moves the heads of the targets to the newest blocks of a branch."""

    branch: str

    def __post_init__(self) -> None:
        _check_branch(self.branch)

    def preview(self, context: TrialContext) -> list[str]:
        _require_branch(context, self.branch)
        return [
            shlex.join(["odf", "branch", str(entry.alias), "--promote", self.branch])
            for entry in context.entries
        ]

    async def run(self, context: TaskContext) -> None:
        """Move the heads.

        Raises:
            OdfError: at least one head could not be moved. The others have been moved.
        """
        failures = await asyncio.to_thread(self._promote, context)
        await context.notify_datasets_changed()
        if failures:
            raise OdfError("; ".join(failures))

    def _promote(self, context: TaskContext) -> list[str]:
        failures: list[str] = []
        with closing(Workspace.find(explicit=context.folder)) as workspace:
            for entry in context.entries:
                try:
                    promote(workspace, entry, self.branch)
                except OdfError as error:
                    failures.append(f"promote {entry.alias}: {error}")
        return failures


def _references(entry: DatasetEntry) -> Sequence[str]:
    """Return the names of the branches and tags of a dataset, and "" for its head."""
    entry.dataset.refresh_branches()
    return ("", *entry.dataset.branch_names(), *entry.dataset.tag_names())


def _require_branch(context: TrialContext, name: str) -> None:
    """Check that the targets have a branch, unless an earlier task of the flow creates it."""
    for entry in context.entries if name not in context.created else ():
        entry.on_branch(name)


def _check_pull(workspace: Workspace, entry: DatasetEntry) -> None:
    """Check what a pull needs besides the source itself: a source, trust, inputs, environment variables."""
    if Remotes(workspace.odf).get(entry.id).pull:
        return
    trust, state = Trust(workspace), local_state(entry.dataset)
    trust.require_trust(entry)
    for dataset in state.inputs():
        try:
            workspace.resolve(str(dataset))
        except NotFound:
            raise NotFound(f"an input of {entry.alias} is not in this workspace: {dataset}") from None
    if state.kind is DatasetKind.Root and state.polling_source is None:
        raise UsageError(
            f"{entry.alias} has no source to pull from",
            hint="odf ingest pushes rows; omit it from the target",
        )
    allowed = load_workspace(workspace.odf).allowed_for(str(entry.id), str(entry.alias))
    for execution in trust.list_executions(entry):
        if execution.kind == "variable":
            resolve_variable(execution.text, {}, allowed, str(entry.alias))


def _check_branch(name: str) -> None:
    if not is_branch_name(name):
        raise ValueError(f"'{name}' is not a valid name of a branch")


class PushTask(JobTask, frozen=True, tag="Push"):
    """Pushes the targets ``to`` a repository or URL."""

    to: str
    force: bool = False

    def requests(self, context: PlanContext) -> Requests:
        remotes, several = Remotes(context.folder / ODF_FOLDER), len(context.entries) > 1
        return [
            (entry, {"url": resolve_address(remotes, self.to, entry.alias, several), "force": self.force})
            for entry in context.entries
        ]


class ExportTask(JobTask, frozen=True, tag="Export"):
    """Writes the rows of the targets to files; ``{name}`` in ``path`` is the name of the dataset."""

    path: str
    format: Literal["csv", "json", "ndjson", "parquet"] = "csv"

    def requests(self, context: PlanContext) -> Requests:
        if len(context.entries) > 1 and _PLACEHOLDER not in self.path:
            raise UsageError(f"export: several datasets require {_PLACEHOLDER} in the path")
        requests: Requests = []
        for entry in context.entries:
            path = context.folder / self.path.replace(_PLACEHOLDER, str(entry.alias).replace("/", "."))
            if not context.is_trial:
                ensure_folder(path.parent)
            requests.append((entry, {"path": str(path), "format": self.format, "replace": True}))
        return requests


class CompactTask(JobTask, frozen=True, tag="Compact"):
    """Merges small slices of the root datasets among the targets."""

    def requests(self, context: PlanContext) -> Requests:
        return [(entry, {}) for entry in context.entries if entry.dataset.state().kind is DatasetKind.Root]


class CommandTask(Task, frozen=True, tag="Command"):
    """Runs a program without a shell, once for each target if an argument has ``{name}``, else once.

    Attributes:
        arguments: the program and its arguments, in YAML ``run``.
        timeout: the program is terminated after this time.
    """

    arguments: list[str] = msgspec.field(name="run")
    timeout: DurationText = DurationText("1h")

    def __post_init__(self) -> None:
        if not self.arguments or not self.arguments[0]:
            raise ValueError("run must list a program and its arguments")

    def _commands(self, context: PlanContext) -> list[list[str]]:
        names = [str(entry.alias) for entry in context.entries]
        if not any(_PLACEHOLDER in argument for argument in self.arguments):
            names = [""]
        return [[argument.replace(_PLACEHOLDER, name) for argument in self.arguments] for name in names]

    def preview(self, context: TrialContext) -> list[str]:
        commands = self._commands(context)
        for program, *_ in commands:
            path = str(context.folder / program) if "/" in program else program
            if shutil.which(path) is None:
                raise NotFound(
                    f"program '{program}' not found",
                    hint="correct the first entry of run, or install it; a shell needs run: [sh, -c, …]",
                )
        return list(map(shlex.join, commands))

    async def run(self, context: TaskContext) -> None:
        variables: Mapping[str, str] = {"ODF_FLOW": context.flow_name}
        for command in self._commands(context):
            add_output = partial(context.add_output, command)
            await run_program(command, context.folder, variables, self.timeout.seconds, add_output)


AnyTask = PullTask | VerifyTask | CheckTask | PromoteTask | PushTask | ExportTask | CompactTask | CommandTask
"""The type of a task in a definition."""
