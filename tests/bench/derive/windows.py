"""Windows over streams, compared with bare Spark in the same Java.

10 million rows arrive in ten increments, each of which is a transaction that sums up days by region. They are
compared with one batch over all files, and the last increment with the second. Increments of 100 rows are
compared with a bare stream over the same rows, and an increment over a million open keys with reading all
columns of the stored state.
"""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.bench.common import append_rows
from tests.bench.measure import Cost, Figure, Metric, Size, best, cost, middle
from tests.bench.spark import Derivations, copy_newest_slice, start_spark

STREAM_SETTINGS = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.stateStore.minDeltasForSnapshot": "1",
    "spark.sql.streaming.stateStore.unloadOnCommit": "true",
    "spark.sql.streaming.fileSource.log.compactInterval": "1",
    "spark.sql.streaming.minBatchesToRetain": "1",
    "spark.sql.streaming.pollingDelay": "1ms",
    "spark.sql.streaming.noDataMicroBatches.enabled": "true",
}
"""Settings of the bare stream, tuned as the engine is."""

QUERY = (
    "SELECT window.start AS event_time, region, sum(visits) AS visits, count(*) AS n "
    "FROM input GROUP BY window(event_time, '1 day'), region"
)
KEYS_QUERY = (
    "SELECT window.start AS event_time, id, sum(visits) AS visits, count(*) AS n "
    "FROM input GROUP BY window(event_time, '40000 days'), id"
)
SCHEMA = (
    "offset BIGINT, op INT, system_time TIMESTAMP, event_time TIMESTAMP, id BIGINT, device STRING, "
    "region STRING, temperature DOUBLE, humidity DOUBLE, visits BIGINT, note STRING"
)
INCREMENTS = 10
METRICS = {
    "small": Metric("windows, increment of 100 rows", "bare stream", "<= 0.6x"),
    "increments": Metric("windows, ten increments", "one batch", "<= 2x"),
    "last": Metric("windows, the tenth increment", "the second", "<= 1.2x"),
    "state": Metric("1,000 rows over a million open keys", "read of the state", "<= 2x"),
}


def run(size: Size, folder: Path) -> list[Figure]:
    with start_spark(folder) as spark:
        derivations = Derivations(folder, spark)
        return [
            measure_small(derivations, size.pick(15, 1)),
            *measure_increments(derivations, size.pick(10_000_000, 20_000)),
            measure_state(derivations, size.pick(1_000_000, 1000), size.pick(5, 1)),
        ]


def measure_small(derivations: Derivations, runs: int) -> Figure:
    source, entry = derivations.source("small"), derivations.derivative("small.windows", QUERY, "small")
    files, state = derivations.folder / "stream", derivations.folder / "stream.state"
    files.mkdir()

    def bare() -> None:
        session = derivations.runtime.session()
        for name, value in STREAM_SETTINGS.items():
            session.conf.set(name, value)
        stream: Any = session.readStream.schema(SCHEMA).option("fileNameOnly", "true").parquet(str(files))
        stream.withWatermark("event_time", "0 seconds").createOrReplaceTempView("input")
        writer = session.sql(QUERY).writeStream.foreachBatch(lambda frame, number: frame.collect())
        query = writer.option("checkpointLocation", str(state)).trigger(availableNow=True).start()
        query.awaitTermination()

    ours: list[Cost] = []
    baseline: list[Cost] = []
    for number in range(5 + runs):
        append_rows(source, 100)
        copy_newest_slice(source, files / f"{number}.parquet")
        ours.append(cost(lambda: derivations.run(entry)))
        baseline.append(cost(bare))
    return METRICS["small"].figure(middle(ours[5:]), middle(baseline[5:]))


def measure_increments(derivations: Derivations, rows: int) -> list[Figure]:
    """Measure the increments of two equal derivatives, of which the faster one counts."""
    source, files = derivations.source("large"), derivations.folder / "large"
    entries = [derivations.derivative(f"large.windows{number}", QUERY, "large") for number in range(2)]
    files.mkdir()
    append_rows(source, rows // 100)  # warms Java up
    for entry in entries:
        derivations.run(entry)
    costs: list[Cost] = []
    for number in range(INCREMENTS):
        append_rows(source, rows // INCREMENTS)
        copy_newest_slice(source, files / f"{number}.parquet")
        costs.append(best([cost(lambda entry=entry: derivations.run(entry)) for entry in entries]))

    def bare() -> None:
        session = derivations.runtime.session()
        session.read.schema(SCHEMA).parquet(str(files)).createOrReplaceTempView("input")
        session.sql(QUERY).write.mode("overwrite").parquet(str(derivations.folder / "bare"))

    batch = best([cost(bare) for _ in range(4)])
    total = Cost(sum(wall for wall, _ in costs), sum(processor for _, processor in costs))
    return [METRICS["increments"].figure(total, batch), METRICS["last"].figure(costs[-1], costs[1])]


def measure_state(derivations: Derivations, keys: int, runs: int) -> Figure:
    source, entry = derivations.source("keys"), derivations.derivative("keys.windows", KEYS_QUERY, "keys")
    append_rows(source, keys)
    derivations.run(entry)
    ours: list[Cost] = []
    for _ in range(runs):
        append_rows(source, 1000)
        ours.append(cost(lambda: derivations.run(entry)))
    checkpoint = entry.dataset.state().last_checkpoint
    assert checkpoint is not None
    path, folder = entry.dataset.checkpoint_path(checkpoint.physical_hash), derivations.folder / "state"
    with (
        pa.input_stream(str(path), compression="zstd") as packed,
        tarfile.open(fileobj=packed, mode="r|") as tar,  # type: ignore[call-overload]
    ):
        tar.extractall(folder, filter="data")
    files = [str(file) for file in folder.rglob("*.parquet")]

    def read() -> None:
        session = derivations.runtime.session()
        session.read.parquet(*files).write.format("noop").mode("overwrite").save()

    read()
    return METRICS["state"].figure(best(ours), best([cost(read) for _ in range(runs)]))
