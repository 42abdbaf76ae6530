"""Transactions of a derivative dataset against bare Spark: large, small, replayed, and their planning.

    python tests/bench/bench_transform.py [ROWS]

The input is one slice of so many rows (10 million by default). Baselines run in the same Java: a bare
Spark query over the same Parquet file that writes Parquet in many files; for 100 rows a bare query to
Arrow and a pyarrow write. Replaying 100 transactions is compared with making them; planning at 100,000
blocks of an input with planning at 100.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq

from odf_engine.metadata.model import (
    AddData,
    MetadataEvent,
    SourceState,
)
from odf_engine.metadata.yaml import read_manifests
from odf_engine.progress import Reporter
from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.spark.runtime.spark_conf import SparkOptions
from odf_engine.transform.engines.spark_engine import SparkEngine
from odf_engine.transform.plan import plan_transaction
from odf_engine.transform.run import transform
from odf_engine.verify.integrity import verify
from odf_engine.verify.replay import Replay
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.bench.common import append_rows, commit, make_empty, median, table, timed, verdict

QUERY = (
    "SELECT event_time, id, device, temperature * 1.8 + 32 AS fahrenheit, visits "
    "FROM input WHERE visits % 2 = 0"
)
DERIVATIVE = """
kind: DatasetSnapshot
version: 1
content:
  name: {name}
  kind: Derivative
  metadata:
    - kind: SetTransform
      inputs: [{{datasetRef: {source}, alias: input}}]
      transform: {{kind: Sql, engine: spark, query: "{query}"}}
"""
SMALL, SMALL_RUNS, REPLAYED = 100, 15, 100


class Bench:
    """A workspace, an engine, and bare Spark in the same Java."""

    def __init__(self, root: Path, runtime: SparkRuntime) -> None:
        self.root = root
        self.workspace = Workspace.init(root / "ws")
        self.runtime = runtime
        self.engine = SparkEngine(runtime)

    def source(self, name: str) -> DatasetEntry:
        """A root dataset without rows."""
        return make_empty(self.workspace, name)

    def derivative(self, name: str, source: str, query: str = QUERY) -> DatasetEntry:
        """A derivative of one input."""
        text = DERIVATIVE.format(name=name, source=source, query=query)
        return self.workspace.add(read_manifests(text, name))[0]

    def run(self, entry: DatasetEntry) -> None:
        """Brings a derivative up to date."""
        transform(self.workspace, entry, self.engine, Reporter())

    def bare(self, paths: list[Path]) -> object:
        """The query over files in bare Spark."""
        session = self.runtime.session()
        session.read.parquet(*map(str, paths)).createOrReplaceTempView("input")
        return session.sql(QUERY)


def large(bench: Bench, rows: int) -> tuple[str, str, str, str]:
    source = bench.source("large")
    append_rows(source, rows)
    path = bench.root / "large.parquet"
    link(source, path)
    out = bench.root / "bare"

    def bare() -> None:
        bench.bare([path]).write.mode("overwrite").parquet(str(out))  # type: ignore[attr-defined]

    bare()
    ours: list[float] = []
    theirs: list[float] = []
    for number in range(3):
        theirs.append(timed(bare))
        made = bench.derivative(f"large.made{number}", "large")
        ours.append(timed(lambda entry=made: bench.run(entry)))
    shutil.rmtree(out)
    return row(f"map and filter, {rows:,} rows", min(ours), min(theirs), 1.3)


def small(bench: Bench) -> tuple[str, str, str, str]:
    source, made = bench.source("small"), bench.derivative("small.made", "small")
    path, out = bench.root / "small.parquet", bench.root / "small.out.parquet"

    def ours() -> float:
        append_rows(source, SMALL)
        return timed(lambda: bench.run(made))

    def bare() -> None:
        table: pa.Table = bench.bare([path]).toArrow()  # type: ignore[attr-defined]
        pq.write_table(table, out)

    for _ in range(5):
        ours()
    link(source, path)
    median(bare, 5)
    times = sorted(ours() for _ in range(SMALL_RUNS))
    return row(f"{SMALL} rows, warm", times[len(times) // 2], median(bare, SMALL_RUNS), 4.0)


def replay(bench: Bench) -> tuple[str, str, str, str]:
    source, made = bench.source("replayed"), bench.derivative("replayed.made", "replayed")

    def one() -> float:
        append_rows(source, 1000)
        return timed(lambda: bench.run(made))

    making = sum(one() for _ in range(REPLAYED))
    check = Replay(bench.workspace, made, bench.engine, Reporter())
    reports = []
    checking = timed(lambda: reports.append(verify(made.dataset, Reporter(), None, None, check)))
    assert reports[0].valid and reports[0].transforms == REPLAYED
    return row(f"replay of {REPLAYED} transactions, and making them", checking, making, 0.55)


def planning(bench: Bench) -> tuple[str, str, str, str]:
    def planned(name: str, blocks: int) -> DatasetEntry:
        source, made = bench.source(name), bench.derivative(f"{name}.made", name)
        append_rows(source, 100)
        with mock.patch("os.fsync", lambda descriptor: None):
            while (count := source.dataset.state().blocks) < blocks:
                more = range(count, min(blocks, count + 1000))
                state = source.dataset.state()
                events: list[MetadataEvent] = [
                    AddData(
                        prev_offset=state.last_offset,
                        new_watermark=state.watermark,
                        new_source_state=SourceState("default", "odf/etag", str(at)),
                    )
                    for at in more
                ]
                commit(source, events)
            bench.run(made)
            for _ in range(10):
                append_rows(source, 100)
        return made

    short, long = planned("short", 100), planned("long", 100_000)

    def plan(entry: DatasetEntry) -> object:
        fresh = Workspace(bench.workspace.folder)
        return plan_transaction(fresh, fresh.resolve(str(entry.id)), fresh.config.transform.most_rows)

    assert plan(short) and plan(long)
    times = {entry.id: median(lambda entry=entry: plan(entry), 50) for entry in (short, long)}
    return row("planning 10 new blocks at 100,000 and at 100", times[long.id], times[short.id], 1.3)


def link(source: DatasetEntry, path: Path) -> None:
    """The newest slice by a name that Spark takes for a Parquet file."""
    newest = source.dataset.slices()[-1]
    shutil.copyfile(source.dataset.slice_path(newest), path)


def row(what: str, ours: float, theirs: float, goal: float) -> tuple[str, str, str, str]:
    """A line of the table."""
    return what, f"{ours:.3f} s", f"{theirs:.3f} s", verdict(ours / theirs, goal)


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000
    root = Path(tempfile.mkdtemp(prefix="odf-bench-"))
    runtime = SparkRuntime(SparkOptions(), root / "spark.log", root / "cache")
    runtime.start()
    try:
        bench = Bench(root, runtime)
        found = [small(bench), replay(bench), planning(bench), large(bench, rows)]
        table("Transformations", found)
    finally:
        runtime.stop()
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
