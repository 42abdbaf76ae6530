"""One run of a flow: its tasks, one after the other, and the jobs that they submit."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from odf_engine.automation.flows.definition import Flow
from odf_engine.automation.flows.programs import BoundedText
from odf_engine.automation.flows.store import FlowStore, Run
from odf_engine.automation.flows.targets import find_targets
from odf_engine.base.progress import JobWarning, count_of
from odf_engine.errors import OdfError
from odf_engine.jobs import JOB_KINDS
from odf_engine.jobs.remotes import Compare
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.worker.endpoint import notify_datasets_changed
from odf_engine.worker.protocol import Job, JobState, Request
from odf_engine.workspace.workspace import Workspace

if TYPE_CHECKING:
    from odf_engine.chain.dataset import Dataset
    from odf_engine.workspace.dataset_summary import DatasetEntry

_MAX_WARNINGS: Final = 100
"""Warnings of a task that are stored."""
_MAX_COMMAND: Final = 200
_log = logging.getLogger(__name__)
T = TypeVar("T")
StartJob = Callable[[Request, str], tuple[Job, asyncio.Future[Job]]]
"""Creates a job from a request and the name of its target; returns the job, and its end."""


class FlowRun:
    """A run of a flow. It is the environment of the tasks.

    Args:
        folder: folder of the workspace.
        flow: the flow.
        run: the run.
        store: the stored runs.
        start_job: creates a job.
    """

    is_trial = False

    def __init__(self, folder: Path, flow: Flow, run: Run, store: FlowStore, start_job: StartJob) -> None:
        self.folder = folder
        self.entries: Sequence[DatasetEntry] = ()
        self._flow, self._run, self._store, self._start_job = flow, run, store, start_job
        self._outputs: list[BoundedText] = []
        self._warnings: list[JobWarning] = []

    @property
    def flow_name(self) -> str:
        """The name of the flow."""
        return self._flow.name

    @property
    def on_warning(self) -> Literal["continue", "fail"]:
        """Whether warnings fail the run."""
        return self._flow.spec.on_warning

    async def run_tasks(self) -> None:
        """Run the tasks. Each task finds the targets again, since the one before may have added datasets.

        Raises:
            OdfError: a task failed. The tasks after it have not run.
        """
        for task in self._flow.spec.tasks:
            self._outputs.append(BoundedText())
            await self._find_targets()
            await task.run(self)

    async def remotes_changed(self) -> bool:
        """Return whether a remote of a target has new blocks.

        Raises:
            OdfError: no target has a remote, or a remote cannot be reached.
        """
        await self._find_targets()
        results = await self.run_jobs(Compare.kind(), [(entry, {}) for entry in self.entries])
        seen = [status for result in results for status in result.seen]
        if not seen:
            raise OdfError("no target has a remote")
        return any(status.theirs for status in seen)

    async def _find_targets(self) -> None:
        # Deferred: the worker responds before it loads the engine.

        def find() -> list[DatasetEntry]:
            with contextlib.closing(Workspace.find(explicit=self.folder)) as workspace:
                return find_targets(workspace, self._flow.spec.targets)

        self.entries = await asyncio.to_thread(find)

    def is_ingested(self, dataset: Dataset) -> bool:
        """Return whether an earlier attempt of the run has committed to a dataset."""
        if not self._run.attempt:
            return False
        begun = int(self._store.first_attempt(self._run) * 1000)  # blocks have milliseconds
        return dataset.state().system_time >= Timestamp.from_ms(begun)

    async def notify_datasets_changed(self) -> None:
        """Notify the clients of the worker of changes without a job."""
        await asyncio.to_thread(notify_datasets_changed, self.folder)

    def add_output(self, command: Sequence[str], output: str) -> None:
        """Add the output of a program to the run. A failure does not fail the run.

        Args:
            command: the program and its arguments.
            output: what it wrote to standard output and standard error.
        """
        if not output:
            return
        title = " ".join(shlex.join(command).encode(errors="replace").decode().split())
        if len(title) > _MAX_COMMAND:
            title = title[:_MAX_COMMAND] + "…"
        self._outputs[-1].add(f"$ {title}\n{output}\n")
        self._store_log(self._store.set_output, "".join(map(str, self._outputs)))

    def _add_warnings(self, jobs: Sequence[Job]) -> None:
        """Add the warnings of the jobs of a task to the run. A failure does not fail the run."""
        warnings = [warning for job in jobs for warning in job.warnings]
        if warnings:
            self._warnings += warnings[:_MAX_WARNINGS]
            self._store_log(self._store.set_warnings, self._warnings)

    def _store_log(self, store: Callable[[int, T], None], content: T) -> None:
        try:
            store(self._run.id, content)
        except OdfError as error:
            _log.warning("the output or the warnings of run %d cannot be stored: %s", self._run.id, error)

    async def run_jobs(
        self, kind: str, requests: Sequence[tuple[DatasetEntry, Mapping[str, Any]]]
    ) -> list[Any]:
        """Run jobs, and wait for all of them; return their results.

        Args:
            kind: the kind of the jobs.
            requests: the datasets, and the other fields of the requests.

        Raises:
            OdfError: at least one failed, or has warnings and the flow fails on them.
        """
        request_type = JOB_KINDS[kind]
        started: list[asyncio.Future[Job]] = []
        for entry, fields in requests:
            job, end = self._start_job(request_type(dataset=str(entry.id), **fields), str(entry.alias))  # type: ignore[call-arg]  # every kind has the field
            self._store.add_job(self._run.id, job.id)
            started.append(end)
        ended = [await end for end in started]
        self._add_warnings(ended)
        return [self._result(job) for job in ended]

    def _result(self, job: Job) -> Any:
        """Return the result of a job that has ended.

        Raises:
            OdfError: it failed, or has warnings and the flow fails on them.
        """
        request_type = JOB_KINDS[job.kind]
        result = None
        if job.state is not JobState.done:
            problem = job.error.message if job.error is not None else job.state.value
        elif job.warnings and self.on_warning == "fail":
            problem = f"{count_of(len(job.warnings), 'warning')}: {job.warnings[0].text}"
        else:
            result = job.result_of(request_type)
            problem = "no result" if result is None else request_type.failure(result)
        if problem:
            raise OdfError(f"{job.kind} {job.target}: {problem} (job {job.id})")
        return result
