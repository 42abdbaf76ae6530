"""Pull of a snapshot in which one row in a hundred has changed, compared with the difference in bare Spark.

The state has 10 million rows of 8 columns; the source is a Parquet file. Of ten changed rows, nine have other
values, and one has another key. Spark joins the same two frames, computes the rows of the changelog in one
pass, with the number of partitions that is best, and writes nothing.
"""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from odf_engine.base.progress import Reporter
from odf_engine.ingest.polling_source import pull
from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.workspace.workspace import Workspace
from tests.bench.common import STEP, make_dataset, make_rows
from tests.bench.measure import Cost, Figure, Metric, Peaks, Size, best, cost
from tests.bench.spark import start_spark

PARTITIONS = (2, 8, 32)
VALUES = ("event_time", "device", "region", "temperature", "humidity", "visits", "note")
METRICS = {
    "pull": Metric("pull of a snapshot, 1 % changed", "difference in Spark", "<= 1.0x"),
    "first": Metric("first pull"),
    "memory": Metric("memory of the process and Java", unit="MB"),
}


def run(size: Size, folder: Path) -> list[Figure]:
    rows, source = size.pick(10_000_000, 50_000), folder / "source.parquet"
    workspace = Workspace.init(folder / "ws")
    entry = make_dataset(workspace, "snapshot", source, "kind: Parquet", "kind: Snapshot, primaryKey: [id]")
    costs: list[Cost] = []
    with start_spark(folder) as spark:
        peaks = Peaks([os.getpid(), spark.pid or 0])
        with peaks.watch():
            for rounds in range(size.pick(3, 1) + 1):
                write_source(source, rows, rounds)
                costs.append(cost(lambda: pull(workspace, entry, spark, Reporter())))
        state = entry.dataset.slice_path(entry.dataset.slices()[0])
        baseline = [cost(lambda n=n: write_changes(spark, state, source, n)) for n in PARTITIONS * 2]
    return [
        METRICS["pull"].figure(best(costs[1:]), best(baseline)),
        METRICS["first"].figure(costs[0]),
        METRICS["memory"].figure(peaks.together),
    ]


def write_source(path: Path, rows: int, rounds: int) -> None:
    """Write the source after a number of rounds of changes."""
    writer: pq.ParquetWriter | None = None
    for first in range(0, rows, STEP):
        batch = change_rows(make_rows(first, min(STEP, rows - first)), rounds, rows)
        writer = writer or pq.ParquetWriter(path, batch.schema, compression="zstd", compression_level=1)
        writer.write_table(batch)
    assert writer is not None
    writer.close()


def change_rows(batch: pa.Table, rounds: int, rows: int) -> pa.Table:
    """Change one row in a hundred per round: in most rows the value, in some the key."""
    number = batch.column("id")
    kind = pc.subtract(number, pc.multiply(pc.divide(number, 1000), 1000))
    for turn in range(1, rounds + 1):
        changed = pc.and_(pc.greater_equal(kind, 10 * turn), pc.less(kind, 10 * turn + 10))
        visits = pc.if_else(changed, pc.add(batch.column("visits"), turn), batch.column("visits"))
        batch = batch.set_column(batch.schema.get_field_index("visits"), "visits", visits)
        renamed = pc.equal(kind, 10 * turn + 9)
        ids = pc.if_else(renamed, pc.add(batch.column("id"), rows), batch.column("id"))
        batch = batch.set_column(batch.schema.get_field_index("id"), "id", ids)
    return batch


def write_changes(spark: SparkRuntime, state: Path, new: Path, partitions: int) -> None:
    """Compute the changes from the state to the new rows."""
    session = spark.session()
    session.conf.set("spark.sql.shuffle.partitions", str(partitions))
    session.read.parquet(str(state)).createOrReplaceTempView("state")
    session.read.parquet(str(new)).createOrReplaceTempView("new")

    def row(op: int, side: str) -> str:
        values = ", ".join(f"'{name}', {side}.{name}" for name in ("id", *VALUES))
        return f"named_struct('op', {op}, {values})"

    same = " AND ".join(f"n.{name} <=> s.{name}" for name in VALUES)
    query = (
        f"SELECT inline(CASE WHEN s.id IS NULL THEN array({row(0, 'n')}) "
        f"WHEN n.id IS NULL THEN array({row(1, 's')}) ELSE array({row(2, 's')}, {row(3, 'n')}) END) "
        f"FROM new n FULL OUTER JOIN state s ON n.id = s.id "
        f"WHERE n.id IS NULL OR s.id IS NULL OR NOT ({same})"
    )
    session.sql(query).write.format("noop").mode("overwrite").save()
