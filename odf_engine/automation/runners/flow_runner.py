"""Runs the flows of a workspace in its worker: waits for their times, and runs their tasks as jobs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from odf_engine.automation.documents import Documents, Selector, Target, matches_target
from odf_engine.automation.flows.clock import SteadyClock
from odf_engine.automation.flows.definition import (
    CheckTask,
    CommandTask,
    CompactTask,
    ExportTask,
    Flow,
    Inputs,
    PromoteTask,
    PullTask,
    PushTask,
    VerifyTask,
)
from odf_engine.automation.flows.scheduler import FlowScheduler
from odf_engine.automation.flows.store import FlowStore, Run
from odf_engine.automation.runners import command_guard
from odf_engine.base.files import ensure_folder
from odf_engine.base.progress import count_of
from odf_engine.coordinator.endpoint import notify_datasets_changed
from odf_engine.coordinator.protocol import Committed, Job, JobChanged, JobState, Request
from odf_engine.coordinator.services import Service, Submit
from odf_engine.errors import NotFound, OdfError
from odf_engine.jobs.check import Check, CheckResult
from odf_engine.jobs.compact import Compact
from odf_engine.jobs.export import Export
from odf_engine.jobs.pull import Pull
from odf_engine.jobs.push import Push
from odf_engine.jobs.remotes import Compare, CompareResult
from odf_engine.jobs.verify import Verify, VerifyResult
from odf_engine.metadata.model import DatasetKind
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.workspace.dataset_graph import DatasetGraph
from odf_engine.workspace.remotes import Remotes, resolve_address

if TYPE_CHECKING:
    from odf_engine.chain.dataset import Dataset
    from odf_engine.workspace.dataset_summary import DatasetEntry
    from odf_engine.workspace.workspace import Workspace

_POLL_SECONDS: Final = 1.0
"""Seconds between two checks of files and state, which other processes change."""
_MAX_OUTPUT: Final = 2000
"""Characters of a failed program's output that are stored."""
_KILL_SECONDS: Final = 5.0
_FAILURE_SECONDS: Final = 60.0
"""Seconds until the state of the flows is read or written again after a failure."""
_PLACEHOLDER: Final = "{name}"

_log = logging.getLogger(__name__)


class _Failed(Exception):
    """A task failed; the message is the reason."""


class FlowRunner(Service):
    """Runs flows."""

    def __init__(self, odf: Path, submit: Submit) -> None:
        super().__init__(odf, submit)
        self._folder = odf.parent
        self._documents = Documents(odf, Flow)
        self._clock = SteadyClock()
        self._step_seconds = 0.0
        self._scheduler: FlowScheduler | None = None
        self._store: FlowStore | None = None
        self._seen: object = None
        self._waiting: dict[str, asyncio.Future[Job]] = {}
        self._runs: set[asyncio.Task[None]] = set()
        self._inputs: dict[str, set[str]] = {}

    @property
    def active(self) -> bool:
        """Whether a run is in progress, or a trigger can start one in the future."""
        return self._scheduler is not None and (self._scheduler.active or self._scheduler.running > 0)

    async def serve(self) -> None:
        """Start runs when they are due, until this task is cancelled."""
        while True:
            try:
                due = await self._step()
            except Exception as error:  # a failure never ends the scheduler
                _log.exception("flows cannot run: %s", error)
                await asyncio.sleep(_FAILURE_SECONDS)
                continue
            await asyncio.sleep(min(max(due - self._clock.now(), 0.0), _POLL_SECONDS))

    async def stop(self) -> None:
        """Cancel the runs. Their end is stored when the next worker starts."""
        for task in self._runs:
            task.cancel()
        await asyncio.gather(*self._runs, return_exceptions=True)
        if self._store is not None:
            self._store.close()

    def notify(self, event: JobChanged | Committed) -> None:
        """Continue the run that waits for a job, or report new rows of inputs to the scheduler."""
        if isinstance(event, Committed):
            if self._scheduler is not None and event.rows:
                for name in self._inputs.get(event.dataset, ()):
                    self._scheduler.add_records(name, event.rows, self._clock.now())
        elif event.job.state.final:
            waiting = self._waiting.pop(event.job.id, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(event.job)

    async def _step(self) -> float:
        seen = self._documents.stamps(), self._documents.accepted()
        if seen != self._seen and (seen[0] or self._scheduler is not None):
            await self._load()
            self._seen = seen
        if self._scheduler is None:
            return self._clock.now() + _POLL_SECONDS
        now = self._clock.now()
        self._step_seconds += self._clock.take_step()
        if step := self._step_seconds:
            _log.warning("the clock was set %s by %.0f s", "back" if step < 0 else "forward", abs(step))
            self._scheduler.clock_changed(step, now)
            self._step_seconds = 0.0
        return self._scheduler.tick(now)

    async def _load(self) -> None:
        flows = self._documents.active()
        self._inputs = await asyncio.to_thread(self._find_inputs, flows)
        if self._scheduler is None:
            self._store = self._store or FlowStore(self._odf)
            scheduler = FlowScheduler(self._store, self._start)
            scheduler.recover(flows, self._clock.now())
            self._clock.take_step()  # the stored times are compared with the present one
            self._scheduler = scheduler
        else:
            self._scheduler.load(flows, self._clock.now())
        _log.info("%d flows can run", len(flows))

    def _find_inputs(self, flows: Iterable[Flow]) -> dict[str, set[str]]:
        """Return the names of the flows by the id of a dataset that is an input of their targets."""
        flow_names: dict[str, set[str]] = {}
        batched = [
            flow for flow in flows if any(isinstance(trigger, Inputs) for trigger in flow.spec.triggers)
        ]
        if not batched:
            return flow_names
        with contextlib.closing(_Targets(self._folder)) as targets:
            for flow in batched:
                with contextlib.suppress(OdfError):  # its run reports the error
                    for dataset in targets.inputs(flow.spec.targets):
                        flow_names.setdefault(dataset, set()).add(flow.name)
        return flow_names

    def _start(self, flow: Flow, run: Run) -> None:
        _log.info("flow %s: run %d starts (%s)", flow.name, run.id, run.trigger)
        task = asyncio.get_running_loop().create_task(self._run(flow, run), name=f"flow-{flow.name}")
        self._runs.add(task)
        task.add_done_callback(self._runs.discard)

    async def _run(self, flow: Flow, run: Run) -> None:
        error: str | None = None
        unchanged = False
        try:
            unchanged = run.trigger == "Remote" and not await self._remotes_changed(flow, run)
            if not unchanged:
                for task in flow.spec.tasks:
                    await self._run_task(flow, run, task)
        except (_Failed, OdfError) as failure:
            error = str(failure)
        except Exception as failure:  # a run never ends the scheduler
            _log.exception("flow %s: run %d failed", flow.name, run.id)
            error = f"unexpected error: {failure}"
        assert self._scheduler is not None
        while True:
            try:
                self._scheduler.end_run(run, error, self._clock.now(), unchanged=unchanged)
                break
            except OdfError as failure:
                _log.exception("flow %s: the end of run %d cannot be stored: %s", flow.name, run.id, failure)
                await asyncio.sleep(_FAILURE_SECONDS)
        _log.info("flow %s: run %d ended: %s", flow.name, run.id, error or "done")

    async def _run_task(self, flow: Flow, run: Run, task: object) -> None:
        entries = await asyncio.to_thread(self._entries, flow.spec.targets)
        match task:
            case PullTask():
                await self._run_pull(flow, run, task, entries)
            case VerifyTask():
                await self._run_verify(flow, run, task, entries)
            case CheckTask():
                await self._run_check(flow, run, task, entries)
            case PromoteTask(branch):
                await asyncio.to_thread(_promote, entries, branch)
                await asyncio.to_thread(notify_datasets_changed, self._folder)
            case PushTask():
                await self._run_push(flow, run, task, entries)
            case ExportTask():
                await self._run_export(flow, run, task, entries)
            case CompactTask():
                roots = await asyncio.to_thread(_root_datasets, entries)
                await self._run_jobs(
                    flow, run, "compact", [(Compact(str(entry.id)), entry) for entry in roots]
                )
            case CommandTask():
                await self._run_commands(flow, task, entries)

    async def _run_pull(self, flow: Flow, run: Run, task: PullTask, entries: Sequence[DatasetEntry]) -> None:
        if task.branch:
            await asyncio.to_thread(_follow_heads, entries, task.branch)
        requests = await asyncio.to_thread(self._pull_requests, flow, run, task, entries)
        await self._run_jobs(flow, run, "pull", list(zip(requests, entries, strict=True)))

    async def _run_verify(
        self, flow: Flow, run: Run, task: VerifyTask, entries: Sequence[DatasetEntry]
    ) -> None:
        jobs = [
            (
                Verify(
                    str(entry.id),
                    integrity=task.integrity,
                    branch=task.branch,
                    recompute=task.recompute,
                ),
                entry,
            )
            for entry in entries
        ]
        for entry, job in await self._run_jobs(flow, run, "verify", jobs):
            result = job.result_of(Verify) or VerifyResult()
            if not result.valid:
                raise _Failed(f"verify: {entry.alias} {_describe_findings(result)} (job {job.id})")

    async def _run_check(
        self, flow: Flow, run: Run, task: CheckTask, entries: Sequence[DatasetEntry]
    ) -> None:
        jobs = [(Check(str(entry.id), task.branch), entry) for entry in entries]
        for entry, job in await self._run_jobs(flow, run, "check", jobs):
            checked = job.result_of(Check) or CheckResult()
            if checked.failed:
                raise _Failed(f"check {entry.alias}: {checked.failed[0].text} (job {job.id})")

    async def _run_push(self, flow: Flow, run: Run, task: PushTask, entries: Sequence[DatasetEntry]) -> None:
        urls = await asyncio.to_thread(self._addresses, task.to, entries)
        jobs = [
            (Push(str(entry.id), url, task.force), entry) for entry, url in zip(entries, urls, strict=True)
        ]
        await self._run_jobs(flow, run, "push", jobs)

    async def _run_export(
        self, flow: Flow, run: Run, task: ExportTask, entries: Sequence[DatasetEntry]
    ) -> None:
        if len(entries) > 1 and _PLACEHOLDER not in task.path:
            raise _Failed(f"export: several datasets require {_PLACEHOLDER} in the path")
        jobs: list[tuple[Request, DatasetEntry]] = []
        for entry in entries:
            target = self._folder / task.path.replace(_PLACEHOLDER, str(entry.alias).replace("/", "."))
            await asyncio.to_thread(ensure_folder, target.parent)
            request = Export(str(entry.id), str(target), task.format, replace=True)
            jobs.append((request, entry))
        await self._run_jobs(flow, run, "export", jobs)

    async def _run_commands(self, flow: Flow, task: CommandTask, entries: Sequence[DatasetEntry]) -> None:
        """Run the command of a task for each dataset, or once if it names no dataset."""
        names = [str(entry.alias) for entry in entries]
        if not any(_PLACEHOLDER in argument for argument in task.run):
            names = [""]
        for name in names:
            command = [argument.replace(_PLACEHOLDER, name) for argument in task.run]
            await self._run_command(flow, command, task.timeout.seconds)

    def _pull_requests(
        self, flow: Flow, run: Run, task: PullTask, entries: Sequence[DatasetEntry]
    ) -> list[Pull]:
        """Return the requests of a task, inputs first.

        A repeated run does not fetch a source that cannot report changes again, if an earlier attempt has
        ingested it: its rows would be appended twice.
        """
        requests: list[Pull] = []
        for entry in entries:
            dataset = entry.on_branch(task.branch).dataset
            requests.append(
                Pull(
                    str(entry.id),
                    after=[request.dataset for request in requests],
                    force=task.force,
                    fetch_uncacheable=task.fetch_uncacheable and not self._is_ingested(run, dataset),
                    reset_on_divergence=task.reset_on_divergence,
                    branch=task.branch,
                    on_warning=flow.spec.on_warning,
                )
            )
        return requests

    def _is_ingested(self, run: Run, dataset: Dataset) -> bool:
        """Return whether an earlier attempt of a run has committed to a dataset."""
        assert self._store is not None
        if not run.attempt:
            return False
        begun = int(self._store.first_attempt(run) * 1000)  # blocks have milliseconds
        return dataset.state().system_time >= Timestamp.from_ms(begun)

    async def _run_jobs(
        self, flow: Flow, run: Run, verb: str, jobs: Sequence[tuple[Request, DatasetEntry]]
    ) -> list[tuple[DatasetEntry, Job]]:
        """Run jobs, and wait for all of them.

        Raises:
            _Failed: at least one failed, or has warnings and the flow fails on them.
        """
        assert self._store is not None
        waiting: list[tuple[DatasetEntry, asyncio.Future[Job]]] = []
        for request, entry in jobs:
            job = self._submit(request, str(entry.alias), {})
            self._store.add_job(run.id, job.id)
            ended = asyncio.get_running_loop().create_future()
            self._waiting[job.id] = ended
            waiting.append((entry, ended))
        finished = [(entry, await ended) for entry, ended in waiting]
        for entry, job in finished:
            if job.state is not JobState.done:
                reason = job.error.message if job.error is not None else job.state.value
                raise _Failed(f"{verb} {entry.alias}: {reason} (job {job.id})")
            if job.warnings and flow.spec.on_warning == "fail":
                warnings = f"{count_of(len(job.warnings), 'warning')}: {job.warnings[0].text}"
                raise _Failed(f"{verb} {entry.alias}: {warnings} (job {job.id})")
        return finished

    async def _remotes_changed(self, flow: Flow, run: Run) -> bool:
        """Return whether a remote of a target has new blocks.

        Raises:
            _Failed: no target has a remote, or a remote cannot be reached.
        """
        entries = await asyncio.to_thread(self._entries, flow.spec.targets)
        ended = await self._run_jobs(
            flow, run, "compare", [(Compare(str(entry.id)), entry) for entry in entries]
        )
        results = [job.result_of(Compare) or CompareResult() for _, job in ended]
        for problem in (problem for result in results for problem in result.problems):
            raise _Failed(f"compare {problem.label}: {problem.message}")
        seen = [status for result in results for status in result.seen]
        if not seen:
            raise _Failed("no target has a remote")
        return any(status.theirs for status in seen)

    async def _run_command(self, flow: Flow, arguments: Sequence[str], seconds: float) -> None:
        """Run a program in the folder of the workspace.

        Raises:
            _Failed: it cannot be started, fails, or takes too long.
        """
        environment = os.environ | {"ODF_FLOW": flow.name}
        guard = [sys.executable, "-I", "-S", command_guard.__file__, str(_KILL_SECONDS)]
        try:
            process = await asyncio.create_subprocess_exec(
                *guard,
                *arguments,
                cwd=self._folder,
                env=environment,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise _Failed(f"{arguments[0]}: {error.strerror or error}") from None
        tail, code = "", None
        try:
            async with asyncio.timeout(seconds):
                assert process.stdout is not None
                while data := await process.stdout.read(1 << 16):
                    tail = (tail + data.decode(errors="replace"))[-_MAX_OUTPUT:]
                code = await process.wait()
        except TimeoutError:
            raise _Failed(f"{arguments[0]} was terminated after {seconds:g} s") from None
        finally:
            if code is None:  # it, or a program that it started, still runs
                await _terminate(process)
        if code == command_guard.NOT_STARTED:
            raise _Failed(f"{arguments[0]}: {tail.strip() or 'cannot be started'}")
        if code:
            raise _Failed(f"{arguments[0]} ended with exit code {code}: {tail.strip()}".rstrip(": "))

    def _entries(self, targets: Sequence[Target]) -> list[DatasetEntry]:
        with contextlib.closing(_Targets(self._folder)) as matcher:
            return matcher.entries(targets)

    def _addresses(self, to: str, entries: Sequence[DatasetEntry]) -> list[str]:
        remotes = Remotes(self._odf)
        return [resolve_address(remotes, to, entry.alias, len(entries) > 1) for entry in entries]


class _Targets:
    """Finds the targets of flows among the datasets of a workspace."""

    def __init__(self, folder: Path) -> None:
        # Deferred, as in the handlers of jobs: the worker responds before it loads the engine.
        from odf_engine.workspace.workspace import Workspace

        self._workspace: Workspace = Workspace.find(explicit=folder)

    def close(self) -> None:
        """Close the index."""
        self._workspace.index.close()

    def _match(self, targets: Sequence[Target]) -> list[DatasetEntry]:
        """Return the datasets that match.

        Raises:
            NotFound: a target matches nothing.
        """
        entries = self._workspace.match([target for target in targets if isinstance(target, str)])
        for target in (selector for selector in targets if isinstance(selector, Selector)):
            config = self._workspace.config
            matches = [
                entry
                for entry in self._workspace.datasets()
                if matches_target(target, entry.alias, entry.id, config)
            ]
            if not matches:
                raise NotFound(f"no dataset matches: {target}", hint="odf list shows the labels of datasets")
            entries += matches
        return entries

    def entries(self, targets: Sequence[Target]) -> list[DatasetEntry]:
        """Return the datasets that match, inputs first.

        Raises:
            NotFound: a target matches nothing.
        """
        entries = {entry.id: entry for entry in self._match(targets)}
        graph = DatasetGraph(self._workspace.summaries())
        return [entries[dataset] for dataset in graph.order(entries) if dataset in entries]

    def inputs(self, targets: Sequence[Target]) -> set[str]:
        """Return the ids of the inputs of the targets that are not targets themselves."""
        graph = DatasetGraph(self._workspace.summaries())
        datasets = {entry.id for entry in self._match(targets)}
        return {
            str(input_id)
            for dataset in datasets
            for input_id in graph.inputs(dataset)
            if input_id not in datasets
        }


def _root_datasets(entries: Sequence[DatasetEntry]) -> list[DatasetEntry]:
    """Return the datasets that can be compacted."""
    return [entry for entry in entries if entry.dataset.state().kind is DatasetKind.Root]


def _follow_heads(entries: Sequence[DatasetEntry], branch: str) -> None:
    """Create the branch in each dataset, or move it to the head if the head has its blocks."""
    from odf_engine.chain.references import follow_head  # deferred, as below: few flows need it

    for entry in entries:
        follow_head(entry.dataset, branch)


def _describe_findings(result: VerifyResult) -> str:
    match result.verdict if result.findings else "invalid":
        case "differs" if result.recomputed:
            return f"differs from its query: {result.recomputed.text}"
        case "not confirmed":
            return "is not confirmed"
        case "invalid changelog":
            return "has an invalid changelog"
        case _:
            return "is invalid"


def _promote(entries: Sequence[DatasetEntry], branch: str) -> None:
    """Move the heads to the newest blocks of the branch.

    Raises:
        _Failed: at least one head could not be moved. The others have been moved.
    """
    from odf_engine.chain.references import promote_branch

    failures: list[str] = []
    for entry in entries:
        try:
            promote_branch(entry.dataset, branch)
        except OdfError as error:
            failures.append(f"promote {entry.alias}: {error}")
    if failures:
        raise _Failed("; ".join(failures))


async def _terminate(process: asyncio.subprocess.Process) -> None:
    """End a program and those that it started; with SIGKILL if they still run after the grace period."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_KILL_SECONDS):
                await process.wait()
