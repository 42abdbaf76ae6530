"""A workspace with a worker of real processes, whose jobs are pretended."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from odf_engine.base.progress import Reporter
from odf_engine.jobs.base import JobContext
from odf_engine.worker.client import Client
from odf_engine.worker.endpoint import WorkerEndpoint
from odf_engine.worker.job_log import JobLogReader, read_journal
from odf_engine.worker.protocol import Event, Job, JobChanged, Request, WorkerStatus
from tests.waiting import wait_until, wait_until_async

PROGRAMS = Path(__file__).with_name("programs.py")


def run_request(request: Request, context: JobContext, reporter: Reporter) -> Any:
    """Run a request, and return its result as the job log stores it."""
    return json.loads(msgspec.json.encode(request.run(context, reporter)))


@dataclass
class Home:
    """A workspace folder, and how to reach its worker."""

    folder: Path

    @property
    def odf(self) -> Path:
        return self.folder / ".odf"

    @property
    def files(self) -> WorkerEndpoint:
        return WorkerEndpoint(self.folder)

    @property
    def journal(self) -> JobLogReader:
        return read_journal(self.folder)

    def command(self, *settings: str) -> list[str]:
        return [sys.executable, str(PROGRAMS), str(self.folder), *settings]

    async def connect(self, *settings: str, **options: bool) -> Client:
        return await Client.connect(self.folder, command=self.command(*settings), **options)

    def kill(self) -> None:
        """As a crash or a full memory would."""
        pid = self.files.worker_pid()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not self.files.worker_alive())

    async def job(self, job_id: str, when: Callable[[Job], bool] = lambda job: job.state.final) -> Job:
        """The job, once it is as asked for (when it has ended, by itself)."""
        await wait_until_async(lambda: when(self.journal.job(job_id)), what=f"state of job {job_id}")
        return self.journal.job(job_id)


async def spark_state(client: Client, *states: str) -> WorkerStatus:
    """Wait until the Spark of a worker has one of some states; return the status of the worker."""

    async def is_reached() -> bool:
        return (await client.ping()).spark in states

    await wait_until_async(is_reached, what=f"Spark is {' or '.join(states)}")
    return client.status


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    (tmp_path / "home" / ".odf").mkdir(parents=True)
    home = Home(tmp_path / "home")
    yield home
    with contextlib.suppress(ProcessLookupError):
        if (pid := home.files.worker_pid()) is not None:
            os.kill(pid, signal.SIGKILL)


async def collect(client: Client, since: int | None, until: Callable[[Event], bool]) -> list[Event]:
    """Events up to the one that is waited for."""
    found: list[Event] = []
    async with asyncio.timeout(60), contextlib.aclosing(client.events(since)) as events:
        async for event in events:
            found.append(event)
            if until(event):
                break
    return found


@pytest.fixture
def follow() -> Callable[..., object]:
    """Follows a client's events until a job has ended, or until a condition holds."""

    def follow(client: Client, since: int | None, until: str | Callable[[Event], bool]) -> object:
        def ended(event: Event) -> bool:
            return isinstance(event, JobChanged) and event.job.id == until and event.job.state.final

        return collect(client, since, ended if isinstance(until, str) else until)

    return follow
