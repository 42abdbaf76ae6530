"""Services of a worker: their start, what they are told, and their end."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from odf_engine.base.config import WorkerConfig
from odf_engine.jobs.pull import Pull
from odf_engine.worker import process as worker_module
from odf_engine.worker.process import Worker
from odf_engine.worker.protocol import Committed, JobChanged
from odf_engine.worker.services import SERVICES, Service
from odf_engine.workspace.workspace import Workspace
from tests.waiting import wait_until
from tests.worker.programs import FakeSpark, run

reports: list[str] = []


class Reporting(Service):
    """Submits a job of about 0.1 seconds, then one with a commit, and reports what it is told."""

    @property
    def active(self) -> bool:
        return reports.count("done") < 2

    async def serve(self) -> None:
        reports.append(f"starts in {self._odf.name}")
        self._submit(Pull("count:50"), "a", {})
        await asyncio.Event().wait()

    async def stop(self) -> None:
        reports.append("stopped")

    def notify(self, event: JobChanged | Committed) -> None:
        reports.append(event.block if isinstance(event, Committed) else event.job.state.value)
        if reports.count("done") == 1 and reports[-1] == "done":
            self._submit(Pull("commit:1"), "a", {})


def test_service_starts_with_its_folder_and_hears_of_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker is idle, but it runs as long as the service is active."""
    reports.clear()
    monkeypatch.setattr(worker_module, "_CHECK_SECONDS", 0.02)
    monkeypatch.setitem(SERVICES, "notes", f"{__name__}:Reporting")
    odf = Workspace.init(tmp_path).odf
    worker = Worker(
        tmp_path,
        start_spark=lambda begin: FakeSpark(tmp_path),
        executor=run,
        config=WorkerConfig(idle_minutes=0.1 / 60),
        spark_later=True,
    )
    monkeypatch.setattr(worker, "_idle", lambda: 0.1 if reports else 0.0)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        (odf / "notes").mkdir()
        wait_until(lambda: not thread.is_alive())
    finally:
        worker.stop()
        thread.join()
    first, second = ["queued", "running", "done"], ["queued", "running", "block0", "done"]
    assert reports == ["starts in .odf", *first, *second, "stopped"]


@pytest.mark.parametrize("folder", SERVICES)
def test_services_are_found_by_name(folder: str) -> None:
    assert issubclass(worker_module.resolve_name(SERVICES[folder]), Service)
