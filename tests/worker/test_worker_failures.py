"""What goes wrong around a worker, in a sentence with what to do; real processes where that is cheap."""

from __future__ import annotations

import os
import socket

import pytest

from odf_engine.errors import OdfError
from odf_engine.worker.client import Client
from odf_engine.worker.endpoint import WorkerEndpoint

ROOT = os.getuid() == 0


@pytest.mark.skipif(not ROOT, reason="only root gives files away")
@pytest.mark.parametrize("name", ["worker.sock", "worker.pid"])
async def test_client_rejects_a_worker_of_another_user(home, name):
    path = home.odf / name
    with socket.socket(socket.AF_UNIX) as server:
        if name == "worker.sock":
            server.bind(str(path))
            server.listen()
        else:
            path.touch()
        os.chown(path, 65534, -1)
        with pytest.raises(OdfError, match="belongs to another user") as caught:
            await home.connect()
        assert str(path) == caught.value.where
        assert home.journal.jobs() == []


async def test_unwritable_worker_log_is_reported(home):
    (home.odf / "worker.log").mkdir()
    with pytest.raises(OdfError, match="the worker cannot be started: is a directory") as caught:
        await home.connect()
    assert caught.value.hint


async def test_unwritable_job_log_is_reported(home):
    (home.odf / "jobs.sqlite").mkdir()
    with pytest.raises(OdfError) as caught:
        await Client.connect(home.folder)  # the usual worker: nothing of it gets as far as Spark
    message = str(caught.value)
    assert "exited right after its start" in message
    assert "cannot write to" in message and "unable to open database file" in message
    assert "Traceback" not in message
    assert "browsing works" in (caught.value.hint or "")


async def test_stale_worker_files_are_ignored(home):
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(home.odf / "worker.sock"))
    (home.odf / "worker.pid").write_text("1\n")
    (home.odf / "worker.address").write_text(str(home.odf / "nowhere.sock"))
    client = await home.connect()
    assert client.status.pid == home.files.worker_pid() != 1
    await client.stop()


def test_unreadable_lock_counts_as_a_running_worker(home, monkeypatch):
    def forbid(*_: object) -> int:
        raise PermissionError

    monkeypatch.setattr(os, "open", forbid)
    assert WorkerEndpoint(home.folder).worker_alive()
