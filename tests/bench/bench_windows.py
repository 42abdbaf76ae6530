"""Windows over streams against bare Spark.

    python tests/bench/bench_windows.py [ROWS]

So many rows (10 million by default) come in ten increments; each is a transaction of a derivative that
sums up days by region. They are compared with one bare Spark batch over all files that writes Parquet,
and the tenth increment with the second. Increments of 100 rows are compared with a bare stream over the
same rows (`availableNow`, tuned in the same way, with its state in a folder of its own).
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.spark.runtime.spark_conf import SparkOptions

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.bench.bench_transform import SMALL, SMALL_RUNS, Bench, link, row
from tests.bench.common import append_rows, measured, table

SETTINGS = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.stateStore.minDeltasForSnapshot": "1",
    "spark.sql.streaming.stateStore.unloadOnCommit": "true",
    "spark.sql.streaming.fileSource.log.compactInterval": "1",
    "spark.sql.streaming.minBatchesToRetain": "1",
    "spark.sql.streaming.pollingDelay": "1ms",
}
"""Settings of the bare stream."""

QUERY = (
    "SELECT window.start AS event_time, region, sum(visits) AS visits, count(*) AS n "
    "FROM input GROUP BY window(event_time, '1 day'), region"
)
SCHEMA = (
    "offset BIGINT, op INT, system_time TIMESTAMP, event_time TIMESTAMP, id BIGINT, device STRING, "
    "region STRING, temperature DOUBLE, humidity DOUBLE, visits BIGINT, note STRING"
)
PARTS = 10
DERIVATIVES = 2

Cost = tuple[float, float]
"""Seconds on the clock, and seconds of all processors."""


def increments(bench: Bench, rows: int) -> list[tuple[str, str, str, str]]:
    """Measure increments of equal derivatives, of which the fastest counts, and batches."""
    source = bench.source("large")
    made = [bench.derivative(f"large.made{number}", "large", QUERY) for number in range(DERIVATIVES)]
    # Java has learned what it does before it is measured.
    append_rows(source, 100_000)
    for each in made:
        bench.run(each)
    files = bench.root / "large"
    files.mkdir()
    times: list[Cost] = []
    for number in range(PARTS):
        append_rows(source, rows // PARTS)
        link(source, files / f"{number}.parquet")
        times.append(least([measured(lambda entry=each: bench.run(entry)) for each in made]))

    def bare() -> None:
        session = bench.runtime.session()
        session.read.schema(SCHEMA).parquet(str(files)).createOrReplaceTempView("input")
        session.sql(QUERY).write.mode("overwrite").parquet(str(bench.root / "bare"))

    batch = least([measured(bare) for _ in range(2 * DERIVATIVES)])
    total = (sum(wall for wall, _ in times), sum(processor for _, processor in times))
    return [
        *rows_of(f"{rows:,} rows in {PARTS} increments, and one batch", total, batch, 2.0),
        *rows_of(f"increment {PARTS}, and the second", times[-1], times[1], 1.2),
    ]


def small(bench: Bench) -> list[tuple[str, str, str, str]]:
    source, made = bench.source("small"), bench.derivative("small.made", "small", QUERY)
    files, state = bench.root / "stream", bench.root / "state"
    files.mkdir()

    def bare() -> None:
        session = bench.runtime.session()
        for name, value in SETTINGS.items():
            session.conf.set(name, value)
        session.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "true")
        stream: Any = session.readStream.schema(SCHEMA).option("fileNameOnly", "true").parquet(str(files))
        stream.withWatermark("event_time", "0 seconds").createOrReplaceTempView("input")
        writer = session.sql(QUERY).writeStream.foreachBatch(lambda frame, number: frame.collect())
        query = writer.option("checkpointLocation", str(state)).trigger(availableNow=True).start()
        query.awaitTermination()

    ours: list[Cost] = []
    theirs: list[Cost] = []
    for number in range(5 + SMALL_RUNS):
        append_rows(source, SMALL)
        link(source, files / f"{number}.parquet")
        ours.append(measured(lambda: bench.run(made)))
        theirs.append(measured(bare))
    return rows_of(f"{SMALL} rows, warm", middle(ours[5:]), middle(theirs[5:]), 0.6)


def least(costs: list[Cost]) -> Cost:
    return min(wall for wall, _ in costs), min(processor for _, processor in costs)


def middle(costs: list[Cost]) -> Cost:
    return statistics.median(wall for wall, _ in costs), statistics.median(each for _, each in costs)


def rows_of(what: str, ours: Cost, theirs: Cost, goal: float) -> list[tuple[str, str, str, str]]:
    """Lines of the table: time, and processor time of Java and Python."""
    return [
        row(what, ours[0], theirs[0], goal),
        row("  processor time", ours[1], theirs[1], goal),
    ]


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000
    root = Path(tempfile.mkdtemp(prefix="odf-bench-"))
    runtime = SparkRuntime(SparkOptions(), root / "spark.log", root / "cache")
    runtime.start()
    try:
        bench = Bench(root, runtime)
        found = [*small(bench), *increments(bench, rows)]
        table("Windows over streams", found)
    finally:
        runtime.stop()
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
