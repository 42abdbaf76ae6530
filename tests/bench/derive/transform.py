"""Transactions of a derivative dataset, compared with bare Spark in the same Java.

A filter over one slice of 10 million rows is compared with the same query over the Parquet file, and a
transaction of 100 rows with a query to Arrow and a PyArrow write. Replaying 100 transactions is compared with
their first run, and planning for an input of 100,000 blocks with planning for 100 blocks.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from odf_engine.base.progress import Reporter
from odf_engine.derive.plan import plan_transaction
from odf_engine.derive.verify.integrity import verify
from odf_engine.derive.verify.replay import Replay
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace
from tests.bench.common import append_blocks, append_rows
from tests.bench.measure import Cost, Figure, Metric, Size, best, cost, median, timed
from tests.bench.spark import Derivations, copy_newest_slice, start_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

QUERY = (
    "SELECT event_time, id, device, temperature * 1.8 + 32 AS fahrenheit, visits "
    "FROM input WHERE visits % 2 = 0"
)
METRICS = {
    "small": Metric("transaction of 100 rows", "Spark to Arrow, PyArrow write", "<= 4x"),
    "replay": Metric("replay of 100 transactions", "their first run", "<= 0.55x"),
    "planning": Metric("plan 10 new blocks of a long input", "input of 100 blocks", "<= 1.3x"),
    "large": Metric("filter of a large slice", "Spark", "<= 1.3x"),
}


def run(size: Size, folder: Path) -> list[Figure]:
    with start_spark(folder) as spark:
        derivations = Derivations(folder, spark)
        return [
            measure_small(derivations, size.pick(15, 3)),
            measure_replay(derivations, size.pick(100, 5)),
            measure_planning(derivations, size.pick(100_000, 1000)),
            measure_large(derivations, size.pick(10_000_000, 100_000), size.pick(3, 1)),
        ]


def query_file(derivations: Derivations, path: Path) -> DataFrame:
    """Return the query over a file in bare Spark."""
    session = derivations.runtime.session()
    session.read.parquet(str(path)).createOrReplaceTempView("input")
    return session.sql(QUERY)


def measure_small(derivations: Derivations, runs: int) -> Figure:
    source, entry = derivations.source("small"), derivations.derivative("small.derived", QUERY, "small")
    path, target = derivations.folder / "small.parquet", derivations.folder / "small.out.parquet"
    times = [append_and_run(derivations, source, entry, 100) for _ in range(5 + runs)]
    copy_newest_slice(source, path)

    def bare() -> None:
        pq.write_table(query_file(derivations, path).toArrow(), target)

    median(bare, 5)
    return METRICS["small"].figure(statistics.median(times[5:]), median(bare, runs))


def append_and_run(derivations: Derivations, source: DatasetEntry, entry: DatasetEntry, rows: int) -> float:
    """Append rows to the input, and return the seconds of the transaction."""
    append_rows(source, rows)
    return timed(lambda: derivations.run(entry))


def measure_replay(derivations: Derivations, transactions: int) -> Figure:
    source = derivations.source("replayed")
    entry = derivations.derivative("replayed.derived", QUERY, "replayed")
    first_run = sum(append_and_run(derivations, source, entry, 1000) for _ in range(transactions))
    replay = Replay(derivations.workspace, entry, derivations.engine, Reporter())
    reports = []
    replaying = timed(lambda: reports.append(verify(entry.dataset, Reporter(), None, None, replay)))
    assert reports[0].valid and reports[0].transforms == transactions
    return METRICS["replay"].figure(replaying, first_run)


def measure_planning(derivations: Derivations, blocks: int) -> Figure:
    def make(name: str, blocks: int) -> DatasetEntry:
        source, entry = derivations.source(name), derivations.derivative(f"{name}.derived", QUERY, name)
        append_rows(source, 100)
        append_blocks(source, blocks)
        derivations.run(entry)
        for _ in range(10):
            append_rows(source, 100)
        return entry

    def plan(entry: DatasetEntry) -> None:
        workspace = Workspace(derivations.workspace.folder)
        dataset = workspace.resolve(str(entry.id))
        assert plan_transaction(workspace, dataset, workspace.config.transform.most_rows)

    short, long = make("short", 100), make("long", blocks)
    plan(short)
    plan(long)
    return METRICS["planning"].figure(median(lambda: plan(long), 50), median(lambda: plan(short), 50))


def measure_large(derivations: Derivations, rows: int, runs: int) -> Figure:
    source = derivations.source("large")
    append_rows(source, rows)
    path = derivations.folder / "large.parquet"
    copy_newest_slice(source, path)

    def bare() -> None:
        target = str(derivations.folder / "bare")
        query_file(derivations, path).write.mode("overwrite").parquet(target)

    bare()
    ours: list[Cost] = []
    baseline: list[Cost] = []
    for number in range(runs):
        baseline.append(cost(bare))
        entry = derivations.derivative(f"large.derived{number}", QUERY, "large")
        ours.append(cost(lambda entry=entry: derivations.run(entry)))
    return METRICS["large"].figure(best(ours), best(baseline))
