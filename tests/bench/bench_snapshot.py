"""A pull of a snapshot of which one row in a hundred changed, against the bare difference in Spark.

    python tests/bench/bench_snapshot.py [ROWS] [FOLDER]

The state has 10 million rows by default, of 8 columns; the source is a Parquet file of about as many.
Each pull brings other changes: of ten rows that are concerned nine have other values, and one has another
key, so that a row is gone and a new one is there. The whole pull counts: fetch, read, merge, write, commit.
The baseline joins the same two frames (full outer) in bare Spark and makes the rows of the changelog in one
pass, as inline(CASE …), with as much memory and the number of partitions that serves it best; it writes
nothing.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from odf_engine.ingest.polling_source import pull
from odf_engine.metadata.yaml import read_manifests
from odf_engine.progress import Reporter
from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.spark.runtime.spark_conf import SparkOptions
from odf_engine.workspace.workspace import Workspace

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.bench.common import Peaks, make_rows, table, timed, verdict

RUNS = 3
STEP = 500_000
PARTITIONS = (2, 8, 32)
MANIFEST = """\
kind: DatasetSnapshot
version: 1
content:
  name: snapshot
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch: {{kind: Url, url: "file:{file}"}}
      read: {{kind: Parquet}}
      merge: {{kind: Snapshot, primaryKey: [id]}}
"""
VALUES = ("event_time", "device", "region", "temperature", "humidity", "visits", "note")


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000
    root = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(tempfile.mkdtemp(prefix="odf-bench-"))
    root.mkdir(parents=True, exist_ok=True)
    source = root / "source.parquet"
    shutil.rmtree(root / "ws", ignore_errors=True)
    workspace = Workspace.init(root / "ws")
    (entry,) = workspace.add(read_manifests(MANIFEST.format(file=source), "bench"))
    spark = SparkRuntime(SparkOptions(), root / "spark.log", root / "cache")
    spark.start()
    try:
        make(source, rows, 0)
        first = timed(lambda: pull(workspace, entry, spark, Reporter()))
        base = entry.dataset.slice_path(entry.dataset.slices()[0])
        changes: list[int] = []
        pulls: list[float] = []
        peaks = Peaks([os.getpid(), spark.pid or 0])
        with peaks.watch():
            for run in range(1, RUNS + 1):
                make(source, rows, run)
                pulls.append(timed(lambda: changes.append(pull(workspace, entry, spark, Reporter()).records)))
        bare = {
            count: [bare_difference(spark, base, source, count) for _ in range(2)] for count in PARTITIONS
        }
    finally:
        spark.stop()
    best = min(min(times) for times in bare.values())
    memory = " + ".join(f"{mib:.0f} MiB" for mib in peaks.mib.values())
    table(
        f"Snapshot of {rows:,} rows, {changes[-1]:,} rows of changes, {os.cpu_count()} cores; best of {RUNS}",
        [
            ("pull, from fetch to commit, vs bare one-pass difference", f"{min(pulls):.1f} s",
             f"{best:.1f} s", verdict(min(pulls) / best, 1.0)),
            ("memory of worker + Java, peak", memory, "", ""),
        ],
    )  # fmt: skip
    print(f"the first pull: {first:.1f} s; all others:", ", ".join(f"{each:.1f} s" for each in pulls))
    print(
        "bare, by partitions:", {count: [round(each, 1) for each in times] for count, times in bare.items()}
    )


def make(path: Path, rows: int, run: int) -> None:
    """The source after so many rounds of changes."""
    writer: pq.ParquetWriter | None = None
    for first in range(0, rows, STEP):
        batch = changed(make_rows(first, min(STEP, rows - first)), run, rows)
        writer = writer or pq.ParquetWriter(path, batch.schema, compression="zstd", compression_level=1)
        writer.write_table(batch)
    assert writer is not None
    writer.close()


def changed(batch: pa.Table, run: int, rows: int) -> pa.Table:
    """One row in a hundred, another one in each round: most with other values, few gone or renamed."""
    number = batch.column("id")
    kind = pc.subtract(number, pc.multiply(pc.divide(number, 1000), 1000))
    for round_ in range(1, run + 1):
        concerned = pc.and_(pc.greater_equal(kind, 10 * round_), pc.less(kind, 10 * round_ + 10))
        visits = pc.if_else(concerned, pc.add(batch.column("visits"), round_), batch.column("visits"))
        batch = batch.set_column(batch.schema.get_field_index("visits"), "visits", visits)
        renamed = pc.equal(kind, 10 * round_ + 9)
        ids = pc.if_else(renamed, pc.add(batch.column("id"), rows), batch.column("id"))
        batch = batch.set_column(batch.schema.get_field_index("id"), "id", ids)
    return batch


def bare_difference(spark: SparkRuntime, state: Path, new: Path, partitions: int) -> float:
    """Seconds for the difference of two frames."""
    session = spark.session()
    session.conf.set("spark.sql.shuffle.partitions", str(partitions))
    session.read.parquet(str(state)).createOrReplaceTempView("state")
    session.read.parquet(str(new)).createOrReplaceTempView("new")

    def row(op: int, side: str) -> str:
        return (
            "named_struct("
            + ", ".join([f"'op', {op}", f"'id', {side}.id", *(f"'{v}', {side}.{v}" for v in VALUES)])
            + ")"
        )

    same = " AND ".join(f"n.{name} <=> s.{name}" for name in VALUES)
    query = (
        f"SELECT inline(CASE WHEN s.id IS NULL THEN array({row(0, 'n')}) "
        f"WHEN n.id IS NULL THEN array({row(1, 's')}) ELSE array({row(2, 's')}, {row(3, 'n')}) END) "
        f"FROM new n FULL OUTER JOIN state s ON n.id = s.id "
        f"WHERE n.id IS NULL OR s.id IS NULL OR NOT ({same})"
    )
    return timed(lambda: session.sql(query).write.format("noop").mode("overwrite").save())


if __name__ == "__main__":
    main()
