"""How jobs meet Spark: it starts beside them, they wait for it, a lost one is replaced."""

from __future__ import annotations

import asyncio

from odf_engine.coordinator.protocol import JobState, Progress, Pull, WorkerStatus


async def spark_state(client, *states: str) -> WorkerStatus:
    async with asyncio.timeout(60):
        while (status := await client.ping()).spark not in states:
            await asyncio.sleep(0.02)
    return status


async def test_jobs_wait_for_a_spark_that_is_starting(home, follow):
    client = await home.connect("--spark", "slow")
    assert client.status.spark == "starting"
    job = await client.submit(Pull("spark"), "a")
    # It says that it waits.
    await follow(client, 0, lambda event: getattr(event, "progress", Progress()).phase == "starting Spark")
    (home.folder / "spark-may-start").touch()
    events = await follow(client, 0, job)
    assert events[-1].job.state is JobState.done
    told = [event.spark for event in events if isinstance(event, WorkerStatus)]
    assert told[-1] == "ready"
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


async def test_a_spark_that_does_not_start(home):
    client = await home.connect("--spark", "none")
    status = await spark_state(client, "failed")
    assert status.spark_detail == "there is no Java"
    job = await client.submit(Pull("spark"), "a")
    error = (await home.job(job)).error
    assert (error.message, error.hint) == ("there is no Java", "install one")
    await client.close()


async def test_a_spark_that_starts_the_second_time(home):
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
    assert "started again" in (home.odf / "worker.log").read_text()
    await client.close()


async def test_tasks_that_do_not_heed_a_cancelled_job(home):
    client = await home.connect()
    await spark_state(client, "ready")
    (home.folder / "spark-is-busy").touch()
    other = await client.submit(Pull("wait:1"), "b")
    job = await client.submit(Pull("wait:2"), "a")
    for each in (other, job):
        await home.job(each, lambda job: job.state is JobState.running)
    await client.cancel(job)
    assert (await home.job(job)).state is JobState.cancelled
    await asyncio.sleep(2)
    assert (home.folder / "spark-is-busy").exists()  # the other job may need this Spark
    await client.cancel(other)
    async with asyncio.timeout(60):
        while (home.folder / "spark-is-busy").exists():
            await asyncio.sleep(0.02)
    await spark_state(client, "ready")
    assert "does not leave Spark" in (home.odf / "worker.log").read_text()
    await client.close()
