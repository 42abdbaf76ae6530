"""The worker of a workspace, as the commands use it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator

from odf_engine.errors import OdfError
from odf_engine.jobs.pull import Pull
from odf_engine.worker.client import Client, run_jobs
from odf_engine.worker.protocol import JobState, Request, WorkerStatus
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace


def run_job(workspace: Workspace, entry: DatasetEntry, request: Request) -> float:
    """Run a job in the worker, which is started if necessary. Returns its seconds."""
    began = time.perf_counter()
    (job,) = run_jobs(workspace.folder, [(request, str(entry.alias))])
    assert job.state is JobState.done, f"{entry.alias}: {job.state.value}: {job.error}"
    return time.perf_counter() - began


def pull(workspace: Workspace, entry: DatasetEntry) -> float:
    """Pull a dataset in the worker. Returns the seconds."""
    return run_job(workspace, entry, Pull(dataset=str(entry.id)))


def read_worker_status(workspace: Workspace) -> WorkerStatus:
    """Return the status of the running worker."""

    async def ping() -> WorkerStatus:
        client = await Client.connect(workspace.folder, start=False)
        try:
            return await client.ping()
        finally:
            await client.close()

    return asyncio.run(ping())


@contextlib.contextmanager
def stopping_worker(*workspaces: Workspace) -> Iterator[None]:
    """Stop the workers of workspaces at the end."""

    async def stop(workspace: Workspace) -> None:
        client = await Client.connect(workspace.folder, start=False)
        await client.stop()

    try:
        yield
    finally:
        for workspace in workspaces:
            with contextlib.suppress(OdfError):  # no worker runs
                asyncio.run(stop(workspace))
