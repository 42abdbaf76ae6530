"""The screen and a real worker process whose jobs are small programs: events, cancellation, crashes."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from odf_engine.api.model import DatasetRow
from odf_engine.api.workspace import Workspace as OpenWorkspace
from odf_engine.errors import NotFound, WorkerStalled
from odf_engine.worker.client import Client, WorkerLost
from odf_engine.worker.job_log import read_journal
from odf_engine.worker.protocol import JobState
from odf_engine.workspace.workspace import Workspace
from odf_tui.app import Workstation
from odf_tui.services import jobs_client
from tests.tui.conftest import Driven
from tests.tui.haven import dataset

pytestmark = pytest.mark.app

PROGRAMS = Path(__file__).resolve().parents[1] / "worker" / "programs.py"

# The name of a dataset selects what its job does, see programs.py.
SLOW, FOREVER, BAD = (dataset(name, id=name) for name in ("count:300/slow", "wait:0/forever", "bad:1/broken"))


class PretendedSource(OpenWorkspace):
    """Three datasets that do not exist, and a worker that pretends to pull them."""

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(workspace)
        self.links: list[Client] = []

    def datasets(self) -> list[DatasetRow]:
        return [SLOW, FOREVER, BAD]

    async def connect(self, *, start: bool = True) -> Client:
        """Connect to the worker; start it if it does not run."""
        command = [sys.executable, str(PROGRAMS), str(self.folder)]
        self.links.append(await Client.connect(self.folder, command=command, patience=2))
        return self.links[-1]


@pytest.fixture
def source(tmp_path: Path) -> PretendedSource:
    """Three datasets."""
    return PretendedSource(Workspace.init(tmp_path / "haven"))


@asynccontextmanager
async def opened(source: PretendedSource) -> AsyncIterator[Driven]:
    """Open a workstation, and wait until it is connected."""
    app = Workstation(source)
    async with app.run_test(size=(140, 40)) as pilot:
        drive = Driven(app, pilot, source)  # type: ignore[arg-type]
        await drive.until(lambda: app.bench.state.worker == "connected")
        await drive.settle()
        yield drive


@pytest.fixture(autouse=True)
async def _no_worker_is_left(source: PretendedSource) -> AsyncIterator[None]:
    yield
    try:
        client = await Client.connect(source.folder, start=False)
    except (WorkerLost, NotFound):
        return
    await client.stop()


async def test_worker_runs_retries_and_cancels_jobs_and_recovers_from_crash(source: PretendedSource) -> None:
    async with opened(source) as drive:
        book = drive.book
        # A job from its key to its end.
        await drive.press("colon", "=slow", "enter", "p")
        await drive.until(lambda: "1" in book.jobs and book.jobs["1"].progress.rows)
        await drive.until(lambda: drive.jobs_pane.view.job.state is JobState.done)  # type: ignore[union-attr]
        await drive.until(lambda: "row 300" in drive.text())
        assert len(book.logs["1"]) == 300
        # A job that fails, and the same request again.
        await drive.press("colon", "=broken", "enter", "p")
        await drive.until(lambda: "2" in book.jobs and book.jobs["2"].state.final)
        await drive.settle()
        assert "'x' is not a number" in drive.text()
        assert "file.csv:3" in drive.text()
        assert "correct it" in drive.text()
        await drive.press("4", "full_stop")
        await drive.until(lambda: "3" in book.jobs and book.jobs["3"].state.final)
        journal = read_journal(source.folder)
        assert journal.request("3") == journal.request("2")
        # A job that is cancelled. It stays, so its progress can be waited for on any machine.
        await drive.press("1", "colon", "=forever", "enter", "p")
        await drive.until(lambda: book.active_job_of(FOREVER.id))
        await drive.until(lambda: book.active_job_of(FOREVER.id).state is JobState.running)  # type: ignore[union-attr]
        await drive.until(lambda: "wait · 1 row" in drive.status())
        await drive.press("x", "y")
        await drive.until(lambda: book.jobs["4"].state is JobState.cancelled)
        # The worker is killed while a job runs, and started again.
        await drive.press("p")
        await drive.until(lambda: book.active_job_of(FOREVER.id))
        await drive.until(lambda: drive.worker_status is not None)
        os.kill(drive.worker_status.pid, signal.SIGKILL)  # type: ignore[union-attr]
        await drive.until(lambda: "no worker" in drive.status())
        await drive.until(lambda: book.jobs["5"].state is JobState.interrupted)
        await drive.settle()
        assert "worker stopped while this job was running" in drive.text()
        await drive.press("R")
        await drive.until(lambda: drive.worker_state == "connected")
        assert len(source.links) == 2
        await drive.press("colon", "=slow", "enter", "p")
        await drive.until(lambda: "6" in book.jobs)


async def test_stopped_worker_and_deleted_workspace_are_shown(source: PretendedSource) -> None:
    async with opened(source) as drive:
        await drive.press("colon", "=forever", "enter", "p")
        await drive.until(lambda: drive.book.active_job_of(FOREVER.id))
        await drive.until(lambda: drive.worker_status is not None)
        pid = drive.worker_status.pid  # type: ignore[union-attr]
        assert jobs_client._WATCH_SECONDS + jobs_client._REPLY_SECONDS < 5
        os.kill(pid, signal.SIGSTOP)
        try:
            await drive.until(lambda: "worker does not respond" in drive.status())
            await drive.press("4")
            await drive.until(lambda: f"continue it: kill -CONT {pid}" in drive.text())
            with pytest.raises(WorkerStalled):
                await source.connect()
        finally:
            os.kill(pid, signal.SIGCONT)
        await drive.until(lambda: drive.worker_state == "connected")
        await drive.until(lambda: "kill -CONT" not in drive.text())
        await drive.press("1", "x", "y")
        await drive.until(lambda: drive.book.jobs["1"].state is JobState.cancelled)
        shutil.rmtree(source.folder)
        await drive.until(lambda: "workspace deleted" in drive.status())
        await drive.press("4")
        await drive.until(lambda: "✗ the workspace folder was deleted" in drive.text())
        assert "the worker has ended" not in drive.text()
        await drive.press("q")
    assert not source.folder.exists()


@pytest.mark.complete
async def test_two_terminals_follow_jobs_that_continue_after_both_are_closed(source: PretendedSource) -> None:
    other = PretendedSource(Workspace(source.folder))
    async with opened(source) as drive:
        async with opened(other) as second:
            await second.press("colon", "=slow", "enter", "p")
            for each in (drive, second):
                await each.until(lambda each=each: "1" in each.book.jobs)
                await each.until(lambda each=each: len(each.book.logs.get("1", ())) >= 20)
        # One terminal is closed; the journal has what follows.
        await drive.until(lambda: drive.book.jobs["1"].state is JobState.done)
        assert len(drive.book.logs["1"]) == 300
        await drive.press("colon", "=forever", "enter", "p")
        await drive.until(lambda: drive.book.active_job_of(FOREVER.id))
        await drive.pilot.press("q")
        await drive.pilot.pause()
    assert "pull wait:0/forever continues" in drive.app.farewell
    # Another session finds the running job, and the log of the first one.
    async with opened(other) as again:
        await again.until(lambda: again.book.active_job_of(FOREVER.id))
        assert "▸ pull" in again.text()
        await again.press("4", "x", "y")
        await again.until(lambda: again.book.jobs["2"].state is JobState.cancelled)
        await again.press("j", "enter")
        await again.until(lambda: "row 300" in again.text())
        await again.press("g")
        assert "row 1\n" in "".join(line.rstrip(" │▐") + "\n" for line in again.text().splitlines())
