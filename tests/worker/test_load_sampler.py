"""How busy the worker is: samples while jobs run, none while they do not."""

from __future__ import annotations

from datetime import datetime

from odf_engine.jobs.pull import Pull
from odf_engine.spark.runtime.session import Memory, read_resident_memory
from odf_engine.worker.protocol import JobChanged, Progress, Rate, Sample, Samples, WorkerStatus
from odf_engine.worker.spark_service import LoadSampler, rate_between


def test_rates_are_computed_within_a_phase():
    half = 0.5
    assert rate_between(Progress("read", rows=10), Progress("read", rows=20), half) == Rate(20.0)
    assert rate_between(Progress("read", rows=10), Progress("write", rows=20), half) == Rate(40.0)
    assert rate_between(Progress("read", rows=10), Progress("read", rows=4), half) == Rate(8.0)
    assert rate_between(None, Progress("read", bytes=100, files=1), half) == Rate(0.0, 200.0, 2.0)
    assert rate_between(Progress("read", rows=10), Progress("commit"), half) == Rate()


def test_sampling_stops_when_no_job_runs():
    told: list[Sample] = []
    amounts = {"7": Progress("read", rows=0)}

    def busy() -> bool:
        amounts["7"] = Progress("read", rows=100 * len(told))
        return len(told) < 3

    sampler = LoadSampler(lambda: dict(amounts), lambda: Memory(5, 9, 100), busy, told.append, seconds=0.01)
    sampler.start()
    assert sampler._thread is not None
    sampler._thread.join(60)
    assert len(told) == 3 == len(sampler.samples)
    assert (told[0].heap, told[0].heap_max) == (5, 9)
    assert told[0].memory > 100
    assert told[2].rates["7"].rows > told[0].rates["7"].rows == 0
    assert read_resident_memory() > 1_000_000 and read_resident_memory(999_999_999) == 0


async def test_late_client_gets_earlier_samples_and_none_when_idle(home, follow):
    client = await home.connect()
    job = await client.submit(Pull("wait"), "wait")
    events = await follow(client, None, lambda event: isinstance(event, Samples))
    assert isinstance(events[0], WorkerStatus)
    assert [job] == list(events[-1].samples[-1].rates)
    assert events[-1].samples[-1].heap == 300_000_000
    events = await follow(client, None, lambda event: isinstance(event, Samples))
    assert isinstance(events[1], Samples)  # without waiting for the next one
    await client.cancel(job)
    ended = datetime.fromisoformat((await home.job(job)).ended).timestamp()
    last = await follow(client, None, lambda event: isinstance(event, Samples))
    assert sum(sample.at > ended for sample in last[-1].samples) <= 2
    assert not any(isinstance(event, JobChanged) for event in last)
    await client.close()
