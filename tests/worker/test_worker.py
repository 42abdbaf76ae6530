"""The worker as clients meet it: real processes, real sockets, pretended jobs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from odf_engine.errors import NotFound, OdfError
from odf_engine.jobs.pull import Pull
from odf_engine.jobs.verify import Verify
from odf_engine.worker.client import Client, VersionMismatch, WorkerLost
from odf_engine.worker.endpoint import notify_datasets_changed
from odf_engine.worker.protocol import (
    Committed,
    DatasetsChanged,
    JobChanged,
    JobProgress,
    JobState,
    LogLine,
    Subscribe,
    WorkerStatus,
    encode_line,
)
from tests.waiting import is_running, wait_until_async
from tests.worker.conftest import spark_state

QUEUED, RUNNING, DONE = JobState.queued, JobState.running, JobState.done


def states(events, job_id):
    return [event.job.state for event in events if isinstance(event, JobChanged) and event.job.id == job_id]


def lines(events):
    return [event.text for event in events if isinstance(event, LogLine)]


def numbers(events):
    return [event.seq for event in events if hasattr(event, "seq")]


async def cut_off(home):
    """Waits until the worker waits no longer for a client that does not read."""
    await wait_until_async(lambda: "disconnected a client" in (home.odf / "worker.log").read_text())


async def received_all(home, events):
    """Wait until a client that follows the events from the first on has received all that there are."""
    await wait_until_async(lambda: numbers(events)[-1:] == [home.journal.last_seq()])


async def test_client_receives_progress_log_and_result_of_a_job(home, follow):
    client = await home.connect()
    began = time.monotonic()
    job = await client.submit(Pull("count:300"), "counted")
    events = await follow(client, 0, job)
    took = time.monotonic() - began
    assert isinstance(events[0], WorkerStatus)
    assert states(events, job) == [QUEUED, RUNNING, DONE]
    assert lines(events) == [f"row {number}" for number in range(1, 301)]
    assert numbers(events) == list(range(1, 304))
    amounts = [event.progress for event in events if isinstance(event, JobProgress)]
    assert 1 <= len(amounts) <= 2 + 4 * took  # four a second, and the last
    assert all(amount.phase == "count" and amount.total_rows == 300 for amount in amounts)
    assert [amount.rows for amount in amounts] == sorted(amount.rows for amount in amounts)
    last = events[-1].job
    assert last.progress.rows == 300
    assert json.loads(last.result) == {"name": "count:300", "count": 300}
    assert home.journal.job(job) == last
    await client.close()


async def test_the_worker_is_a_process_of_its_own(home):
    client = await home.connect()
    pid = client.status.pid
    assert pid == home.files.worker_pid() != os.getpid()
    assert os.getsid(pid) == pid
    assert os.getpriority(os.PRIO_PROCESS, pid) >= 10
    mode = (home.odf / "worker.sock").stat().st_mode
    assert stat.S_ISSOCK(mode) and stat.S_IMODE(mode) == 0o600
    await client.stop()
    assert not home.files.worker_alive()
    assert not (home.odf / "worker.sock").exists()
    assert client.closed


async def test_two_starters_get_one_worker(home):
    clients = await asyncio.gather(*(home.connect() for _ in range(2)))
    script = (
        "import asyncio, sys; from pathlib import Path; from odf_engine.worker.client import Client\n"
        "client = asyncio.run(Client.connect(Path(sys.argv[1]), command=sys.argv[2:]))\n"
        "print(client.status.pid)"
    )
    command = [sys.executable, "-c", script, str(home.folder), *home.command()]
    for client in clients:
        await client.stop()
    others = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    pids = {int(other.communicate()[0]) for other in others}
    assert len(pids) == 1 and clients[0].status.pid == clients[1].status.pid not in pids
    assert (home.odf / "worker.log").read_text().count(" started in ") == 2


async def test_connect_without_start_fails_when_no_worker_runs(home, tmp_path):
    with pytest.raises(WorkerLost, match="no worker is running"):
        await home.connect(start=False)
    assert not home.files.worker_alive()
    with pytest.raises(NotFound, match="not a workspace"):
        await Client.connect(tmp_path)


async def test_worker_that_dies_at_start_is_reported(home):
    with pytest.raises(OdfError, match="exited right after its start: this worker has a defect") as caught:
        await home.connect("--die")
    assert "worker.log" in caught.value.hint


async def test_queued_and_running_jobs_can_be_cancelled(home, follow):
    client = await home.connect()
    running = await client.submit(Pull("wait"), "a")
    queued = await client.submit(Pull("wait"), "a")
    await home.job(running, lambda job: job.state is RUNNING)
    await client.cancel(queued)
    assert home.journal.job(queued).state is JobState.cancelled
    assert home.journal.job(running).state is RUNNING
    await client.cancel(running)
    events = await follow(client, 0, running)
    assert states(events, running) == [QUEUED, RUNNING, JobState.cancelled]
    assert states(events, queued) == [QUEUED, JobState.cancelled]
    for job in (running, queued):
        with pytest.raises(OdfError, match="it is already cancelled"):
            await client.cancel(job)
    with pytest.raises(OdfError, match="job '99' not found"):
        await client.cancel("99")
    await client.close()


async def test_a_killed_worker_leaves_interrupted_jobs(home, follow):
    client = await home.connect()
    running = await client.submit(Pull("wait"), "a")
    queued = await client.submit(Pull("wait"), "a")
    await home.job(running, lambda job: job.state is RUNNING)
    received = []
    told = asyncio.create_task(follow(client, 0, received.append))
    await received_all(home, received)
    home.kill()
    events = await told  # ends by itself
    assert client.closed and states(events, running) == [QUEUED, RUNNING]
    with pytest.raises(WorkerLost):
        await client.submit(Pull("count:1"), "a")
    assert {job.state for job in home.journal.jobs()} == {JobState.interrupted}

    seen = numbers(events)[-1]
    again = await home.connect()
    assert again.status.pid != client.status.pid
    events = await follow(again, seen, queued)
    assert [(event.job.id, event.job.state) for event in events[1:]] == [
        (running, JobState.interrupted),
        (queued, JobState.interrupted),
    ]
    assert "run it again" in home.journal.job(running).error.hint
    await again.close()


async def test_job_outlives_its_client_and_no_event_is_lost(home, follow):
    script = """
import asyncio, sys
from pathlib import Path
from odf_engine.worker.client import Client
from odf_engine.jobs.pull import Pull
async def main():
    client = await Client.connect(Path(sys.argv[1]), command=sys.argv[2:])
    await client.submit(Pull("count:400"), "a")
    async for event in client.events(0):
        if hasattr(event, "seq"):
            print(event.seq, flush=True)
asyncio.run(main())
"""
    command = [sys.executable, "-c", script, str(home.folder), *home.command()]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    seen = [int(first.stdout.readline()) for _ in range(20)]
    os.killpg(first.pid, signal.SIGKILL)  # what becomes of a terminal that is closed
    first.communicate()
    later = await home.connect()
    events = await follow(later, seen[-1], "1")
    assert seen == list(range(1, 21))
    assert numbers(events) == list(range(21, 404))
    assert events[-1].job.state is DONE
    await later.close()


async def test_subscription_without_number_skips_earlier_events(home, follow):
    client = await home.connect()
    first = await client.submit(Pull("count:5"), "a")
    await home.job(first)
    events = []
    following = asyncio.create_task(follow(client, None, events.append))
    await wait_until_async(lambda: events, what="the events are subscribed")
    second = await client.submit(Pull("commit:3"), "a")
    await wait_until_async(lambda: DONE in states(events, second))
    following.cancel()
    assert {event.job for event in events if isinstance(event, Committed)} == {second}
    assert states(events, first) == []
    await client.close()


async def test_an_idle_worker_ends_itself(home):
    client = await home.connect("--idle", "0.7")
    job = await client.submit(Pull("count:400"), "a")  # longer than that: a job keeps it
    done = await home.job(job)
    assert done.state is DONE and done.ended is not None
    await wait_until_async(lambda: not home.files.worker_alive())
    assert datetime.now(UTC) - datetime.fromisoformat(done.ended) > timedelta(seconds=0.4)
    with pytest.raises(WorkerLost):
        await client.ping()
    assert client.closed


async def test_a_worker_without_its_workspace_ends(home):
    client = await home.connect("--idle", "600")
    pid = client.status.pid
    shutil.rmtree(home.folder)
    await wait_until_async(lambda: not is_running(pid))
    assert not home.folder.exists()


def test_a_worker_of_a_replaced_workspace_leaves_the_files_of_its_successor(home):
    old, new = home.files, home.files
    with new_worker(old):
        assert old.workspace_exists()
        shutil.rmtree(home.odf)
        assert not old.workspace_exists()
        home.odf.mkdir()
        successor = new_worker(new)
        successor.__enter__()
        assert not old.workspace_exists()
        assert new.workspace_exists()
    assert Path(new.address()).exists()
    successor.__exit__(None, None, None)
    assert not Path(new.address()).exists()


@contextlib.contextmanager
def new_worker(files):
    """Hold the lock and the socket, as a worker does."""
    with files.locked() as acquired, files.listen():
        assert acquired
        yield


async def test_an_idle_spark_stops_and_starts_again(home):
    client = await home.connect("--spark-idle", "0.5")
    assert (await home.job(await client.submit(Pull("spark:0"), "a"))).state is DONE
    assert "idle" in (await spark_state(client, "off")).spark_detail
    assert (await home.job(await client.submit(Pull("spark:0"), "a"))).state is DONE
    await client.stop()


async def test_stopping_cancels_what_runs(home, follow):
    client = await home.connect()
    jobs = [await client.submit(Pull(name), name) for name in ("wait", "wait/b", "wait/c")]
    await home.job(jobs[1], lambda job: job.state is RUNNING)
    received = []
    told = asyncio.create_task(follow(client, 0, received.append))
    await received_all(home, received)
    os.kill(client.status.pid, signal.SIGTERM)
    events = await told
    assert client.closed
    assert [states(events, job)[-1] for job in jobs] == [JobState.cancelled] * 3
    assert not home.files.worker_alive()


async def test_jobs_of_one_dataset_run_one_at_a_time(home, follow):
    client = await home.connect()
    jobs = [await client.submit(Pull("count:60"), "a") for _ in range(2)]
    others = [await client.submit(Verify(f"count:60/{name}"), name) for name in "bc"]
    events = await follow(client, 0, others[-1])
    if DONE not in states(events, jobs[-1]):
        events += await follow(client, numbers(events)[-1], jobs[-1])
    running, most = set(), 0
    for event in events:
        if isinstance(event, JobChanged):
            (running.add if event.job.state is RUNNING else running.discard)(event.job.id)
            most = max(most, len(running))
            assert not running >= set(jobs)
    assert most == 2
    await client.close()


async def test_failures_have_message_location_and_hint(home):
    client = await home.connect()
    names = ("bad", "bug", "full", "broken")
    bad, bug, full, broken = [await client.submit(Pull(verb), verb) for verb in names]
    error = (await home.job(bad)).error
    assert (error.where, error.message, error.hint) == ("file.csv:3", "'x' is not a number", "correct it")
    assert error.excerpt == ["3 | 1,x"]
    assert not [line for line in home.journal.events(job=bad) if isinstance(line, LogLine)]

    error = (await home.job(bug)).error
    assert error.message == "pull failed unexpectedly: ZeroDivisionError: in a job"
    assert f"odf logs {bug} -v" in error.hint
    logged = [line for line in home.journal.events(job=bug) if isinstance(line, LogLine)]
    assert {line.level for line in logged} == {"debug"}
    assert logged[0].text.startswith("Traceback") and any("programs.py" in line.text for line in logged)

    error = (await home.job(full)).error
    assert (error.message, error.where) == ("the disk is full", "/data/slice")
    error = (await home.job(broken)).error
    assert (error.message, error.where) == (
        "a file cannot be read or written: Input/output error",
        "/data/slice",
    )
    assert error.hint == "check the disk, then try again"
    assert (await client.ping()).running == 0
    await client.close()


async def test_client_that_does_not_read_does_not_block_others(home, follow):
    client = await home.connect("--patience", "0.5")
    slow = socket.socket(socket.AF_UNIX)
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow.connect(home.files.address())
    slow.sendall(encode_line(Subscribe(0)))
    job = await client.submit(Pull("flood:3000"), "a")
    events = await follow(client, 0, job)
    assert len(lines(events)) == 3000
    await client.ping()
    await cut_off(home)
    # When it comes back, it goes on where it was.
    slow.settimeout(60)
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while chunk := slow.recv(1 << 16):
            received += chunk
    slow.close()
    seen = [json.loads(line) for line in received.split(b"\n")[:-1]]
    last = max(event.get("seq", 0) for event in seen)
    assert 0 < last < 3000
    rest = await follow(client, last, job)
    assert numbers(rest) == list(range(last + 1, 3004))
    await client.close()


async def test_slow_reader_of_events_reconnects_automatically(home):
    client = await home.connect("--patience", "0.3")
    job = await client.submit(Pull("flood:3000"), "a")
    seen = []
    async with asyncio.timeout(60), contextlib.aclosing(client.events(0)) as events:
        async for event in events:
            if not seen:
                await cut_off(home)
            seen += numbers([event])
            if isinstance(event, JobChanged) and event.job.state.final:
                break
    assert seen == list(range(1, 3004)) and not client.closed
    assert (await client.ping()).running == 0 and home.journal.job(job).state is DONE
    await client.close()


async def test_worker_stops_despite_jobs_that_ignore_cancellation(home, follow):
    client = await home.connect()
    job = await client.submit(Pull("stubborn:60"), "a")
    await home.job(job, lambda job: job.state is RUNNING)
    await client.stop()
    assert home.journal.job(job).state is JobState.interrupted


@pytest.mark.parametrize("given", [True, False])
async def test_worker_socket_works_in_a_very_long_path(home, monkeypatch, given):
    with tempfile.TemporaryDirectory() as runtime:  # shorter than tmp_path
        monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
        if given:
            monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
        home.folder = home.folder / ("long" * 20) / ("path" * 20)
        home.odf.mkdir(parents=True)
        client = await home.connect()
        address = Path(home.files.address())
        assert len(str(address)) < 108 and address.is_relative_to(runtime) == given
        assert stat.S_IMODE(address.stat().st_mode) == 0o600
        assert stat.S_IMODE(address.parent.stat().st_mode) == 0o700
        monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)  # as in another login
        second = await home.connect(start=False)
        assert second.status.pid == client.status.pid
        await client.stop()
        assert not address.exists() and not (home.odf / "worker.address").exists()


async def test_worker_of_another_version_is_replaced_when_idle(home):
    process = subprocess.Popen(home.command("--version", "0.0.1"))

    async def connect_to_old():
        with contextlib.suppress(WorkerLost):
            return await home.connect(start=False)

    old = await wait_until_async(connect_to_old)
    assert old.status.version == "0.0.1"
    job = await old.submit(Pull("wait"), "a")
    with pytest.raises(OdfError, match=r"version 0\.0\.1 is busy") as caught:
        await home.connect()
    assert "odf worker stop" in caught.value.hint
    assert isinstance(caught.value, VersionMismatch) and caught.value.jobs == 1
    await old.cancel(job)
    await home.job(job)
    new = await home.connect()
    assert new.status.version != "0.0.1" and process.wait(60) == 0
    await new.close()
    await old.close()


async def test_allowed_variables_reach_the_job_and_are_never_stored(home, follow, monkeypatch):
    secret = "s3cr3t-of-the-harbour"
    monkeypatch.setenv("HARBOUR_KEY", secret)
    monkeypatch.setenv("OTHER_KEY", secret + "-other")
    config = "allowedEnv: {Variables: [HARBOUR_KEY, NOT_SET], 'did:odf:other': [OTHER_KEY]}\n"
    (home.odf / "config.yaml").write_text(config)
    monkeypatch.delenv("HARBOUR_KEY")
    client = await home.connect()  # the worker itself does not have it
    monkeypatch.setenv("HARBOUR_KEY", secret)
    job = await client.submit(Pull("variables"), "variables")
    events = await follow(client, 0, job)
    assert json.loads((await home.job(job)).result) == {"lengths": {"HARBOUR_KEY": len(secret)}}
    assert "['HARBOUR_KEY']" in lines(events)[0]
    other = await client.submit(Pull("variables/2"), "else")
    assert json.loads((await home.job(other)).result) == {"lengths": {}}
    await client.stop()
    for path in home.odf.rglob("*"):
        assert not path.is_file() or secret.encode() not in path.read_bytes(), path


async def test_clients_are_notified_of_changes_without_a_job(home, follow):
    notify_datasets_changed(home.folder)  # nobody is there
    client = await home.connect()
    heard = []
    following = asyncio.create_task(follow(client, None, heard.append))
    await wait_until_async(lambda: heard, what="the events are subscribed")
    await asyncio.to_thread(notify_datasets_changed, home.folder)
    await wait_until_async(lambda: isinstance(heard[-1], DatasetsChanged))
    following.cancel()
    assert home.journal.last_seq() == 0
    await client.stop()
