"""Pulls of a large and a small CSV file with a running worker, compared with bare Spark over the same files.

The large file has 10 million rows of 8 columns (940 MB), the small one 100 rows. Spark runs with the same
memory and schema.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from odf_engine.base.progress import Reporter
from odf_engine.spark.arrow_batches import arrow_batches
from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.workspace.workspace import Workspace
from tests.bench.common import COLUMNS, make_csv, make_dataset
from tests.bench.measure import Figure, Metric, Peaks, Size, children, median, timed
from tests.bench.spark import start_spark
from tests.bench.worker import pull, read_worker_status, stopping_worker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

METRICS = {
    "ordered": Metric("pull of a large file, hashed and committed", "Spark, one ordered file", "<= 0.7x"),
    "unordered": Metric("pull of a large file", "Spark, many unordered files", "<= 1.3x"),
    "worker": Metric("pull of a large file: memory of the worker", "", "<= 1000 MB", "MB"),
    "java": Metric("pull of a large file: memory of Java", "", "<= 2000 MB", "MB"),
    "small": Metric("pull of 100 rows", "Spark to Arrow, PyArrow write", "<= 4x"),
}


def run(size: Size, folder: Path) -> list[Figure]:
    large, small = folder / "large.csv", folder / "small.csv"
    make_csv(large, size.pick(10_000_000, 50_000))
    make_csv(small, 100)
    runs, small_runs = size.pick(2, 1), size.pick(15, 3)
    workspace = Workspace.init(folder / "ws")
    with stopping_worker(workspace):
        pull(workspace, make_dataset(workspace, "warm", small))
        worker = read_worker_status(workspace).pid
        peaks = Peaks([worker, *children(worker)])
        pulls: list[float] = []
        with peaks.watch():
            for number in range(runs):
                entry = make_dataset(workspace, f"large-{number}", large)
                pulls.append(pull(workspace, entry))
                workspace.delete(entry)
        entries = iter([make_dataset(workspace, f"small-{number}", small) for number in range(small_runs)])
        small_pull = median(lambda: pull(workspace, next(entries)), small_runs)
    with start_spark(folder) as spark:
        bare_small = measure_small(spark, small, folder / "small.parquet", small_runs)
        ordered = min(timed(lambda: write_ordered(spark, large, folder)) for _ in range(runs))
        unordered = min(timed(lambda: write_unordered(spark, large, folder)) for _ in range(runs))
    return [
        METRICS["ordered"].figure(min(pulls), ordered),
        METRICS["unordered"].figure(min(pulls), unordered),
        METRICS["worker"].figure(peaks.alone[0]),
        METRICS["java"].figure(sum(peaks.alone[1:])),
        METRICS["small"].figure(small_pull, bare_small),
    ]


def read(spark: SparkRuntime, file: Path) -> DataFrame:
    types = ", ".join(COLUMNS).replace(" NOT NULL", "")
    return spark.session().read.schema(types).option("header", True).csv(str(file))


def write_ordered(spark: SparkRuntime, file: Path, folder: Path) -> None:
    frame = read(spark, file).coalesce(1).selectExpr("monotonically_increasing_id() AS offset", "*")
    frame.write.mode("overwrite").parquet(str(folder / "ordered"))


def write_unordered(spark: SparkRuntime, file: Path, folder: Path) -> None:
    read(spark, file).write.mode("overwrite").parquet(str(folder / "unordered"))


def measure_small(spark: SparkRuntime, file: Path, target: Path, runs: int) -> float:
    """Return the median seconds of a read into Arrow and a write by PyArrow."""

    def copy() -> None:
        schema, batches = arrow_batches(read(spark, file), Reporter())
        with pq.ParquetWriter(target, schema) as writer:
            for batch in batches:
                writer.write_table(pa.Table.from_batches([batch]))

    median(copy, 5)
    return median(copy, runs)
