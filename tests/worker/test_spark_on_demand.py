"""Jobs that exchange datasets do not wait for Spark, and do not start it."""

from __future__ import annotations

import pytest

import odf_engine
from odf_engine.jobs.pull import Pull
from odf_engine.jobs.push import Push
from odf_engine.worker.protocol import JobState, WorkerStatus


@pytest.mark.parametrize("who", ["a job", "a screen"])
async def test_spark_starts_when_it_is_needed(home, follow, who):
    client = await home.connect("--spark-later", warm=False)
    job = await client.submit(Push("count:3", "file:///x/"), "numbers")
    await home.job(job)
    job = await client.submit(Pull("count:3", url="file:///x/"), "numbers")
    await home.job(job)
    assert (await client.ping()).spark == "off"
    await (await home.connect(warm=False)).close()
    assert (await client.ping()).spark == "off"
    if who == "a job":
        await client.submit(Pull("count:3"), "numbers")
    else:
        await (await home.connect()).close()
    assert (await client.ping()).spark in ("starting", "ready")
    events = await follow(
        client, None, lambda event: isinstance(event, WorkerStatus) and event.spark == "ready"
    )
    assert events[-1].spark_detail == "a pretended Spark"
    await client.close()


async def test_workstation_starts_spark_only_if_the_settings_ask_so(home):
    await (await home.connect("--spark-later", warm=False)).close()
    client = await odf_engine.open(home.folder).connect()
    assert (await client.ping()).spark == "off"
    await client.close()
    (home.odf / "config.yaml").write_text("worker: {startSpark: true}\n")
    client = await odf_engine.open(home.folder).connect()
    assert (await client.ping()).spark in ("starting", "ready")
    await client.close()


async def test_exchange_jobs_do_not_wait_for_spark_jobs(home):
    client = await home.connect()
    waiting = [await client.submit(Pull(f"wait:0/{name}"), name) for name in "abc"]
    for job in waiting[:2]:
        await home.job(job, lambda job: job.state is JobState.running)
    for request in (Push("count:1", "file:///x/"), Pull("count:1", url="file:///x/")):
        assert (await home.job(await client.submit(request, "numbers"))).state is JobState.done
    same = await client.submit(Push("wait:0/a", "file:///x/"), "a")  # never two of one dataset
    other = await client.submit(Push("count:1", "file:///x/"), "numbers")
    await home.job(other)
    states = [home.journal.job(job).state for job in (*waiting, same)]
    assert states == [JobState.running, JobState.running, JobState.queued, JobState.queued]
    for job in (*waiting, same):
        await client.cancel(job)
    await client.close()
