"""A pull on a standalone cluster whose executors write the slices, by two workers and by one.

Each worker has one executor of one core. The rows are a Parquet file, which Spark reads quickly. The
executors have pulled other rows before: a new Java process compiles its code at first, on all cores.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq

from odf_engine.base.config import Config, SlicesConfig
from odf_engine.base.progress import Reporter
from odf_engine.ingest.polling_source import pull
from odf_engine.metadata.yaml import read_manifests
from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.workspace.workspace import Workspace
from tests.bench.common import MANIFEST, STEP, make_rows
from tests.bench.measure import Figure, Metric, Size, timed
from tests.spark.cluster import Cluster

METRICS = {
    "pull": Metric("pull of 20M rows by two workers of one core", "one worker", "<= 0.59x"),
}


def run(size: Size, folder: Path) -> list[Figure]:
    sources = [folder / "first.parquet", folder / "rows.parquet"]
    for source, rows in zip(
        sources, (size.pick(4_000_000, 500_000), size.pick(20_000_000, 1_000_000)), strict=True
    ):
        make_parquet(source, rows)
    one, two = (measure(folder / f"{workers}-workers", sources, workers) for workers in (1, 2))
    return [METRICS["pull"].figure(two, one)]


def make_parquet(path: Path, rows: int) -> None:
    first = make_rows(0, 1)
    with pq.ParquetWriter(path, first.schema) as writer:
        for start in range(0, rows, STEP):
            writer.write_table(make_rows(start, min(STEP, rows - start)))


def measure(folder: Path, sources: Sequence[Path], workers: int) -> float:
    """Return the seconds of the last pull, each into a new dataset."""
    folder.mkdir()
    workspace = Workspace.init(folder / "ws")
    workspace.config = Config(slices=SlicesConfig(target_records=1_000_000))
    with Cluster(folder / "cluster", workers, "1500m") as cluster:
        options = cluster.options(spark_executor_memory="1g")
        runtime = SparkRuntime(options, folder / "spark.log", folder / "cache")
        runtime.start()
        try:
            read, merge, seconds = "kind: Parquet", "kind: Append", 0.0
            for source in sources:
                text = MANIFEST.format(name=source.stem, file=source, read=read, merge=merge)
                (entry,) = workspace.add(read_manifests(text, source.stem))
                seconds = timed(lambda: pull(workspace, entry, runtime, Reporter()))  # noqa: B023
            return seconds
        finally:
            runtime.stop()
