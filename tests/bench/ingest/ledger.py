"""Pull of new rows into a ledger with a long history, compared with a broadcast anti-join in bare Spark.

The history has 100 million rows of 8 columns; the source is a Parquet file of 100,000 rows, half of which are
in the history. The first pull builds the stored keys, and the next pulls are measured. Spark looks the new
keys up in the key column of all slices, removes the matches from the new rows, and writes nothing.
"""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from odf_engine.base.progress import Reporter
from odf_engine.data.arrow_schema import encode_schema
from odf_engine.ingest.polling_source import PullOptions, pull
from odf_engine.metadata.model import SetDataSchema
from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.workspace.workspace import Workspace
from tests.bench.common import SCHEMA, append_rows, commit, make_dataset, make_rows
from tests.bench.measure import Cost, Figure, Metric, Peaks, Size, best, cost
from tests.bench.spark import start_spark

SLICES = 10
METRICS = {
    "pull": Metric("pull into a ledger", "anti-join in Spark", "<= 0.3x"),
    "first": Metric("first pull, which builds the keys"),
    "memory": Metric("memory of the process and Java", unit="MB"),
}


def run(size: Size, folder: Path) -> list[Figure]:
    history, new, runs = size.pick(100_000_000, 100_000), size.pick(100_000, 1000), size.pick(3, 1)
    source = folder / "new.parquet"
    workspace = Workspace.init(folder / "ws")
    entry = make_dataset(workspace, "ledger", source, "kind: Parquet", "kind: Ledger, primaryKey: [id]")
    commit(entry, [SetDataSchema(encode_schema(SCHEMA))])
    for _ in range(SLICES):
        append_rows(entry, history // SLICES)
    costs: list[Cost] = []
    with start_spark(folder) as spark:

        def pull_once() -> None:
            records = pull(workspace, entry, spark, Reporter(), PullOptions(fetch_uncacheable=True)).records
            assert records == new // 2, f"{records:,} rows instead of {new // 2:,}"

        peaks = Peaks([os.getpid(), spark.pid or 0])
        with peaks.watch():
            for number in range(runs + 1):
                write_new_rows(source, history, new, number)
                costs.append(cost(pull_once))
        slices = [entry.dataset.slice_path(row) for row in entry.dataset.slices()]
        baseline = best([cost(lambda: anti_join(spark, slices, source)) for _ in range(runs)])
    return [
        METRICS["pull"].figure(best(costs[1:]), baseline),
        METRICS["first"].figure(costs[0]),
        METRICS["memory"].figure(peaks.together),
    ]


def write_new_rows(path: Path, history: int, count: int, number: int) -> None:
    """Write rows from all parts of the history, then as many new rows."""
    half = count // 2
    tables = [make_rows(number, half, history // half), make_rows(history + number * half, half)]
    pq.write_table(pa.concat_tables(tables), path)


def anti_join(spark: SparkRuntime, slices: list[Path], new: Path) -> None:
    """Compute the new rows whose keys are in none of the slices."""
    session = spark.session()
    session.read.parquet(str(new)).createOrReplaceTempView("new")
    session.read.schema("id bigint").parquet(*map(str, slices)).createOrReplaceTempView("ledger")
    session.sql(
        "SELECT /*+ BROADCAST(k) */ l.id FROM ledger l LEFT SEMI JOIN (SELECT id FROM new) k ON l.id = k.id"
    ).createOrReplaceTempView("known")
    query = "SELECT /*+ BROADCAST(d) */ n.* FROM new n LEFT ANTI JOIN known d ON n.id = d.id"
    session.sql(query).write.format("noop").mode("overwrite").save()
