"""Running jobs to their end, as a command does that waits for them."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from odf_engine.coordinator.connection import Client, read_journal
from odf_engine.coordinator.protocol import Event, Job, JobChanged, Request, WorkerStatus
from odf_engine.coordinator.requests import needs_spark
from odf_engine.errors import Cancelled, OdfError


def run_jobs(
    workspace: Path,
    requests: Sequence[tuple[Request, str]],
    on_event: Callable[[Event], None] = lambda event: None,
    *,
    command: Sequence[str] | None = None,
) -> list[Job]:
    """Submits requests (with their targets), follows them until all have ended, and returns their jobs.

    ``on_event`` is told what happens to these jobs and to the worker. The first ^C cancels them and waits
    for their end, a second one leaves at once.

    Raises:
        Cancelled: the second ^C; the jobs are being cancelled in the background.
        OdfError: no worker can be had, or it does not take a request.
    """
    return asyncio.run(_Run(workspace, on_event).run(requests, command))


class _Run:
    def __init__(self, workspace: Path, on_event: Callable[[Event], None]) -> None:
        self._workspace = workspace
        self._on_event = on_event
        self._jobs: dict[str, Job | None] = {}
        self._interrupts = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, requests: Sequence[tuple[Request, str]], command: Sequence[str] | None) -> list[Job]:
        warm = any(needs_spark(request) for request, _ in requests)
        client = await Client.connect(self._workspace, command=command, warm=warm)
        self._client = client
        try:
            since = client.status.last_seq
            with self._on_interrupt():
                await self._submit(requests)
                await self._follow(since)
            return [job for job in self._jobs.values() if job is not None]
        finally:
            await client.close()

    async def _submit(self, requests: Sequence[tuple[Request, str]]) -> None:
        try:
            for request, target in requests:
                if self._interrupts:
                    raise Cancelled
                self._jobs[await self._client.submit(request, target)] = None
        except BaseException:
            # All or nothing: whoever asked for these jobs gets an error instead of their results.
            await self._cancel()
            raise

    async def _follow(self, since: int) -> None:
        if not self._jobs:
            return
        follow = asyncio.ensure_future(self._listen(since))
        self._following = follow
        try:
            await follow
        except asyncio.CancelledError:
            if self._interrupts > 1:
                raise Cancelled("left; the jobs are being cancelled in the background") from None
            raise
        for job_id, job in self._jobs.items():
            if job is None or not job.state.final:  # the worker is gone: the journal shows how it left them
                job = read_journal(self._workspace).job(job_id)
                self._jobs[job_id] = job
                self._on_event(JobChanged(since, job))

    async def _listen(self, since: int) -> None:
        async with contextlib.aclosing(self._client.events(since)) as events:
            async for event in events:
                if isinstance(event, JobChanged):
                    if event.job.id not in self._jobs:
                        continue
                    self._jobs[event.job.id] = event.job
                elif not isinstance(event, WorkerStatus) and getattr(event, "job", None) not in self._jobs:
                    continue
                self._on_event(event)
                if all(job is not None and job.state.final for job in self._jobs.values()):
                    return

    async def _cancel(self) -> None:
        for job_id, job in list(self._jobs.items()):
            if job is None or not job.state.final:
                with contextlib.suppress(OdfError):  # it ended meanwhile
                    await self._client.cancel(job_id)

    def _interrupted(self) -> None:
        self._interrupts += 1
        if self._interrupts == 1:
            task = asyncio.ensure_future(self._cancel())
            self._tasks.add(task)
        elif (following := getattr(self, "_following", None)) is not None:
            following.cancel()

    @contextmanager
    def _on_interrupt(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._interrupted)
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGINT)
