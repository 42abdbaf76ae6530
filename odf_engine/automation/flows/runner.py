"""Runs the flows of a workspace in its worker: waits for their times, and runs their tasks as jobs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from odf_engine.automation.flows.clock import SteadyClock
from odf_engine.automation.flows.definition import Flow, Inputs
from odf_engine.automation.flows.run import FlowRun
from odf_engine.automation.flows.scheduler import FlowScheduler
from odf_engine.automation.flows.store import FlowStore, Run
from odf_engine.automation.flows.targets import find_inputs
from odf_engine.errors import OdfError
from odf_engine.worker.protocol import Committed, Job, JobChanged, Request
from odf_engine.worker.services import Service, Submit
from odf_engine.workspace.documents.store import Documents
from odf_engine.workspace.workspace import Workspace

_POLL_SECONDS: Final = 1.0
"""Seconds between two checks of files and state, which other processes change."""
_FAILURE_SECONDS: Final = 60.0
"""Seconds until the state of the flows is read or written again after a failure."""

_log = logging.getLogger(__name__)


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
        # Deferred: the worker responds before it loads the engine.

        with contextlib.closing(Workspace.find(explicit=self._folder)) as workspace:
            for flow in batched:
                with contextlib.suppress(OdfError):  # its run reports the error
                    for dataset in find_inputs(workspace, flow.spec.targets):
                        flow_names.setdefault(dataset, set()).add(flow.name)
        return flow_names

    def _start(self, flow: Flow, run: Run) -> None:
        _log.info("flow %s: run %d starts (%s)", flow.name, run.id, run.trigger)
        task = asyncio.get_running_loop().create_task(self._run(flow, run), name=f"flow-{flow.name}")
        self._runs.add(task)
        task.add_done_callback(self._runs.discard)

    async def _run(self, flow: Flow, run: Run) -> None:
        assert self._scheduler is not None and self._store is not None
        error: str | None = None
        unchanged = False
        try:
            flow_run = FlowRun(self._folder, flow, run, self._store, self._start_job)
            unchanged = run.trigger == "Remote" and not await flow_run.remotes_changed()
            if not unchanged:
                await flow_run.run_tasks()
        except OdfError as failure:
            error = str(failure)
        except Exception as failure:  # a run never ends the scheduler
            _log.exception("flow %s: run %d failed", flow.name, run.id)
            error = f"unexpected error: {failure}"
        while True:
            try:
                self._scheduler.end_run(run, error, self._clock.now(), unchanged=unchanged)
                break
            except OdfError as failure:
                _log.exception("flow %s: the end of run %d cannot be stored: %s", flow.name, run.id, failure)
                await asyncio.sleep(_FAILURE_SECONDS)
        _log.info("flow %s: run %d ended: %s", flow.name, run.id, error or "done")

    def _start_job(self, request: Request, target: str) -> tuple[Job, asyncio.Future[Job]]:
        job = self._submit(request, target, {})
        end = self._waiting[job.id] = asyncio.get_running_loop().create_future()
        return job, end
