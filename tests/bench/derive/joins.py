"""Joins in time of a derivative dataset, compared with bare Spark in the same Java.

The as-of join has a million rows, 100,000 versions and 50 keys; Spark computes the last version with a window
over a union of both sides. The join within 100 seconds has ten increments of 100,000 rows in both inputs;
Spark joins all files in one batch, and compares all rows of the same device, 50 million pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace
from tests.bench.common import append_rows
from tests.bench.derive.windows import SCHEMA
from tests.bench.measure import Cost, Figure, Metric, Size, best, cost
from tests.bench.spark import Derivations, copy_newest_slice, start_spark
from tests.derive.deriving import DATA, Deriving

AS_OF = """
SELECT t.event_time, t.city, t.x, r.x AS rate FROM trades AS t
JOIN rates FOR SYSTEM_TIME AS OF t.event_time AS r ON t.city = r.city
"""
BARE_AS_OF = """
SELECT time, city, x, version.x AS rate FROM (
    SELECT time, city, x, side, last(rate, true) OVER (PARTITION BY city ORDER BY time) AS version FROM (
        SELECT event_time AS time, city, 0 AS side, NULL AS x, struct(x, event_time) AS rate FROM rates
        UNION ALL SELECT event_time, city, 1, x, NULL FROM trades
    )
) WHERE side = 1 AND version IS NOT NULL
"""
WITHIN = (
    "SELECT l.event_time, l.id, l.visits, r.temperature FROM l JOIN r ON l.device = r.device "
    "AND r.event_time BETWEEN l.event_time - INTERVAL 100 SECONDS AND l.event_time + INTERVAL 100 SECONDS"
)
START, PERIOD, JITTER = 1_700_000_000_000, 10_000_000_000, 60_000
KEYS = 50
INCREMENTS = 10
METRICS = {
    "as of": Metric("as-of join", "window over a union in Spark", "<= 1.5x"),
    "within": Metric("join within 100 seconds, ten increments", "one batch in Spark", "<= 3x"),
}


def run(size: Size, folder: Path) -> list[Figure]:
    with start_spark(folder) as spark:
        return [
            measure_as_of(folder / "as-of", spark, size.pick(1_000_000, 10_000), size.pick(3, 1)),
            measure_within(folder / "within", spark, size.pick(100_000, 1000)),
        ]


def measure_as_of(folder: Path, spark: SparkRuntime, rows: int, runs: int) -> Figure:
    deriving = Deriving(Workspace.init(folder / "ws"), spark)
    sources = {name: deriving.root(name) for name in ("trades", "rates")}
    add_rows(deriving, sources["trades"], rows)
    add_rows(deriving, sources["rates"], rows // 10)
    for name, source in sources.items():
        (folder / name).mkdir()
        copy_newest_slice(source, folder / name / "0.parquet")
    ours: list[Cost] = []
    baseline: list[Cost] = []
    for number in range(runs):
        entry = deriving.derivative(AS_OF, *sources, name=f"output{number}", rates="city")
        ours.append(cost(lambda entry=entry: deriving.run(entry)))
        baseline.append(cost(lambda: query_files(spark, folder, tuple(sources), BARE_AS_OF)))
    return METRICS["as of"].figure(best(ours), best(baseline))


def add_rows(deriving: Deriving, entry: DatasetEntry, count: int) -> None:
    """Commit a slice of rows, which are nearly in the order of their times."""
    random = np.random.default_rng(3 + count)
    times = np.sort(random.integers(0, PERIOD, count)) + random.integers(0, JITTER, count)
    cities = pa.array([f"city {key}" for key in range(KEYS)])
    columns = [
        pa.array(START + times, pa.int64()).cast(DATA.field(0).type),
        cities.take(pa.array(random.integers(0, KEYS, count))),
        pa.array(random.integers(0, 1000, count), pa.int64()),
    ]
    deriving.batch(entry, pa.record_batch(columns, schema=DATA), START + PERIOD + JITTER)


def measure_within(folder: Path, spark: SparkRuntime, rows: int) -> Figure:
    folder.mkdir()
    derivations = Derivations(folder, spark)
    sources = {name: derivations.source(name) for name in ("l", "r")}
    entry = derivations.derivative("joined", WITHIN, *sources)
    for name, source in sources.items():
        (folder / name).mkdir()
        append_rows(source, 1000)
    derivations.run(entry)  # warms Java up
    costs: list[Cost] = []
    for number in range(INCREMENTS):
        for name, source in sources.items():
            append_rows(source, rows)
            copy_newest_slice(source, folder / name / f"{number}.parquet")
        costs.append(cost(lambda: derivations.run(entry)))
    total = Cost(sum(wall for wall, _ in costs), sum(processor for _, processor in costs))
    return METRICS["within"].figure(total, cost(lambda: query_files(spark, folder, tuple(sources), WITHIN)))


def query_files(spark: SparkRuntime, folder: Path, names: Sequence[str], query: str) -> None:
    """Run a query over the Parquet files of folders in bare Spark, and write the result."""
    session = spark.session()
    for name in names:
        reader = session.read.schema(SCHEMA) if query != BARE_AS_OF else session.read
        reader.parquet(str(folder / name)).createOrReplaceTempView(name)
    session.sql(query).write.mode("overwrite").parquet(str(folder / "bare"))
