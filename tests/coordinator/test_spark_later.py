"""A worker that was started only to exchange: Spark starts when something needs it, not before."""

from __future__ import annotations

import pytest

from odf_engine.coordinator.protocol import Pull, Push, WorkerStatus


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
