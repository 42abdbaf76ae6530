"""How jobs meet Spark: it starts beside them, they wait for it, a lost one is replaced."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from odf_engine.jobs.pull import Pull
from odf_engine.worker.protocol import JobState, Progress
from odf_engine.workspace.workspace import Workspace
from tests.waiting import wait_until, wait_until_async
from tests.worker.conftest import spark_state

ROOT = Path(__file__).resolve().parents[2]


async def test_jobs_wait_for_a_spark_that_is_starting(home, follow):
    client = await home.connect("--spark", "slow")
    assert client.status.spark == "starting"
    job = await client.submit(Pull("spark"), "a")
    # It says that it waits.
    await follow(client, 0, lambda event: getattr(event, "progress", Progress()).phase == "starting Spark")
    (home.folder / "spark-may-start").touch()
    events = await follow(client, 0, job)
    assert events[-1].job.state is JobState.done
    assert "goes on with replay" in [getattr(event, "text", "") for event in events]
    await spark_state(client, "ready")  # the event of the worker may follow that of the job
    await client.close()


async def test_a_job_without_spark_does_not_wait(home):
    client = await home.connect("--spark", "slow")
    job = await client.submit(Pull("count:1"), "a")
    await home.job(job)
    assert (await client.ping()).spark == "starting"
    await client.close()


async def test_waiting_for_spark_can_be_cancelled(home):
    client = await home.connect("--spark", "slow")
    job = await client.submit(Pull("spark"), "a")
    await home.job(job, lambda job: job.state is JobState.running)
    await client.cancel(job)
    assert (await home.job(job)).state is JobState.cancelled
    assert (await client.ping()).spark == "starting"
    await client.close()


async def test_job_fails_with_the_error_of_the_spark_start(home):
    client = await home.connect("--spark", "none")
    status = await spark_state(client, "failed")
    assert status.spark_detail == "there is no Java"
    job = await client.submit(Pull("spark"), "a")
    error = (await home.job(job)).error
    assert (error.message, error.hint) == ("there is no Java", "install one")
    await client.close()


async def test_next_job_retries_a_failed_spark_start(home):
    client = await home.connect("--spark", "once")
    await spark_state(client, "failed")
    job = await client.submit(Pull("spark"), "a")
    assert (await home.job(job)).state is JobState.done
    assert (await client.ping()).spark_detail == "a pretended Spark"
    await client.close()


async def test_a_spark_that_died_is_started_again(home):
    client = await home.connect()
    await spark_state(client, "ready")
    (home.folder / "spark-dies").touch()
    job = await client.submit(Pull("spark"), "a")
    assert (await home.job(job)).state is JobState.done
    assert not (home.folder / "spark-dies").exists()
    assert "restarting Spark" in (home.odf / "worker.log").read_text()
    await client.close()


async def test_spark_restarts_when_cancelled_tasks_do_not_stop(home):
    client = await home.connect()
    await spark_state(client, "ready")
    (home.folder / "spark-is-busy").touch()
    other = await client.submit(Pull("wait:1"), "b")
    job = await client.submit(Pull("wait:2"), "a")
    for each in (other, job):
        await home.job(each, lambda job: job.state is JobState.running)
    await client.cancel(job)
    assert (await home.job(job)).state is JobState.cancelled
    # Read every 10 ms: for longer than the tasks have to stop.
    reads = home.folder / "spark-tasks-read"
    await wait_until_async(lambda: reads.exists() and reads.stat().st_size > 30)
    assert (home.folder / "spark-is-busy").exists()  # the other job may need this Spark
    await client.cancel(other)
    await wait_until_async(lambda: not (home.folder / "spark-is-busy").exists())
    await spark_state(client, "ready")
    assert "tasks of a cancelled job do not stop" in (home.odf / "worker.log").read_text()
    await client.close()


def java_processes(folder: Path) -> list[str]:
    """The numbers of the Java processes that name this folder in their arguments."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (process / "cmdline").read_bytes()
        except OSError:
            continue  # it has ended
        if os.fsencode(folder) in arguments and b"SparkSubmit" in arguments:
            found.append(process.name)
    return found


def run_folders(folder: Path) -> list[Path]:
    """The folders of a Spark that starts or runs in the workspace."""
    return list((folder / "home" / ".odf" / "cache").glob("spark/run-*"))


@pytest.mark.spark
@pytest.mark.parametrize(
    "moment",
    [
        pytest.param(lambda folder: None, id="at once"),
        pytest.param(lambda folder: wait_until(lambda: run_folders(folder)), id="with its folder"),
        pytest.param(lambda folder: wait_until(lambda: java_processes(folder)), id="with Java"),
    ],
)
def test_worker_stopped_during_spark_start_leaves_no_processes(
    tmp_path: Path, moment: Callable[[Path], None]
) -> None:
    odf = Workspace.init(tmp_path / "home").odf
    worker = subprocess.Popen(
        [sys.executable, "-P", "-m", "odf_engine.worker.process", str(tmp_path / "home")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    log = odf / "worker.log"
    wait_until(lambda: log.exists() and " started in " in log.read_text())
    moment(tmp_path)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert java_processes(tmp_path) == []
    assert run_folders(tmp_path) == []
