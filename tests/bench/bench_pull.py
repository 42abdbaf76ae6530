"""A large pull and a small one with a warm worker, against bare Spark over the same file.

    python tests/bench/bench_pull.py [ROWS] [FOLDER]

The large file has 8 columns (10 million rows by default, 940 MB). Baselines run in the same Java with the
same memory and schema: one ordered Parquet file with an offset column (coalesce(1) and
monotonically_increasing_id), and Spark's unordered many-file write. The small file has 100 rows; its
baseline is a bare Spark read to Arrow and a pyarrow write.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from odf_engine.coordinator.client import Client, run_jobs
from odf_engine.coordinator.protocol import JobState, Pull
from odf_engine.progress import Reporter
from odf_engine.spark.arrow_batches import arrow_batches
from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.bench.common import (
    COLUMNS,
    Peaks,
    children,
    make_csv,
    make_dataset,
    median,
    table,
    timed,
    verdict,
)

RUNS = 2


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000
    root = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(tempfile.mkdtemp(prefix="odf-bench-"))
    root.mkdir(parents=True, exist_ok=True)
    large, small = root / f"{rows}.csv", root / "100.csv"
    if not large.exists():
        make_csv(large, rows)
    make_csv(small, 100)
    shutil.rmtree(root / "ws", ignore_errors=True)
    workspace = Workspace.init(root / "ws")
    try:
        report(workspace, rows, large, small, root)
    finally:
        asyncio.run(_stop(workspace))


def report(workspace: Workspace, rows: int, large: Path, small: Path, root: Path) -> None:
    pull(workspace, make_dataset(workspace, "warm", small))  # the worker starts and Spark warms up
    worker = asyncio.run(_ping(workspace))
    java = children(worker)
    peaks = Peaks([worker, *java])
    pulls: list[float] = []
    with peaks.watch():
        for run in range(RUNS):
            entry = make_dataset(workspace, f"large-{run}", large)
            pulls.append(timed(lambda entry=entry: pull(workspace, entry)))
            workspace.delete(entry)
    little = iter([make_dataset(workspace, f"small-{run}", small) for run in range(15)])
    small_pull = median(lambda: pull(workspace, next(little)), 15)
    asyncio.run(_stop(workspace))

    spark = SparkRuntime(workspace.config.spark, root / "spark.log", root / "cache")
    spark.start()
    bare_small = bare_to_arrow(spark, small, root)
    ordered = [timed(lambda: bare_ordered(spark, large, root)) for _ in range(RUNS)]
    unordered = [timed(lambda: bare_unordered(spark, large, root)) for _ in range(RUNS)]
    spark.stop()

    mine = min(pulls)
    memory = " + ".join(f"{mib:.0f} MiB" for mib in peaks.mib.values())
    table(
        f"A pull of {rows:,} rows, 8 columns, {large.stat().st_size / 1e6:.0f} MB, warm worker,"
        f" {os.cpu_count()} cores; best of {RUNS}",
        [
            ("pull, hashed and committed, vs one ordered file", f"{mine:.1f} s", f"{min(ordered):.1f} s",
             verdict(mine / min(ordered), 0.7)),
            ("… vs unordered many files", f"{mine:.1f} s", f"{min(unordered):.1f} s",
             verdict(mine / min(unordered), 1.3)),
            ("memory of worker + Java, peak", memory, "", "(goal <= 1 GB + 2 GB)"),
            ("100-row pull vs bare read to Arrow and pyarrow write", f"{small_pull * 1e3:.0f} ms",
             f"{bare_small * 1e3:.0f} ms", verdict(small_pull / bare_small, 4)),
        ],
    )  # fmt: skip
    print("all large pulls:", ", ".join(f"{each:.1f} s" for each in pulls))


def pull(workspace: Workspace, entry: DatasetEntry) -> None:
    (job,) = run_jobs(workspace.folder, [(Pull(dataset=str(entry.id)), str(entry.alias))])
    if job.state is not JobState.done:
        raise SystemExit(f"{entry.alias}: {job.state.value}: {job.error}")


async def _ping(workspace: Workspace) -> int:
    client = await Client.connect(workspace.folder)
    try:
        return (await client.ping()).pid
    finally:
        await client.close()


async def _stop(workspace: Workspace) -> None:
    try:
        client = await Client.connect(workspace.folder, start=False)
    except Exception:
        return
    await client.stop()


def _read(spark: SparkRuntime, file: Path) -> object:
    types = ", ".join(COLUMNS).replace(" NOT NULL", "")
    return spark.session().read.schema(types).option("header", True).csv(str(file))


def bare_ordered(spark: SparkRuntime, file: Path, root: Path) -> None:
    frame = _read(spark, file).coalesce(1)
    frame = frame.selectExpr("monotonically_increasing_id() AS offset", "*")
    frame.write.mode("overwrite").parquet(str(root / "ordered"))


def bare_unordered(spark: SparkRuntime, file: Path, root: Path) -> None:
    _read(spark, file).write.mode("overwrite").parquet(str(root / "unordered"))


def bare_to_arrow(spark: SparkRuntime, file: Path, root: Path) -> float:
    def once() -> None:
        schema, batches = arrow_batches(_read(spark, file), Reporter())
        with pq.ParquetWriter(root / "small.parquet", schema) as writer:
            for batch in batches:
                writer.write_table(pa.Table.from_batches([batch]))

    for _ in range(5):
        once()
    return median(once, 15)


if __name__ == "__main__":
    main()
