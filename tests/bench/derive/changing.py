"""Results whose rows can change at any time, compared with one batch in the same Java.

Ten million readings are joined with 20,000 devices, without a time bound. Then 10,000 readings and 20
devices, which have 10,000 earlier readings, are added, and one transaction adds their rows. Spark joins all
rows in one batch. The other query sums up the joined rows of each device.
"""

from __future__ import annotations

from pathlib import Path

from odf_engine.workspace.dataset_summary import DatasetEntry
from tests.bench.common import append_rows
from tests.bench.derive.joins import query_files
from tests.bench.measure import Cost, Figure, Metric, Size, best, cost
from tests.bench.spark import Derivations, copy_newest_slice, start_spark

JOIN = "SELECT l.event_time, l.id, l.visits, r.temperature FROM l JOIN r ON l.device = r.device"
TOTALS = (
    "SELECT min(l.event_time) AS event_time, r.device, count(*) AS n, sum(l.visits) AS visits "
    "FROM l JOIN r ON l.device = r.device GROUP BY r.device"
)
DEVICES = 20_000
METRICS = {
    "join": Metric("10,000 rows in an unbounded join", "one batch in Spark", "<= 0.3x"),
    "totals": Metric("10,000 rows in totals of the join", "one batch in Spark", "<= 0.5x"),
}


def run(size: Size, folder: Path) -> list[Figure]:
    rows, new, runs = size.pick(10_000_000, 20_000), size.pick(10_000, 10), size.pick(3, 1)
    with start_spark(folder) as spark:
        derivations = Derivations(folder, spark)
        sources = {name: derivations.source(name) for name in ("l", "r")}
        entries = {
            name: derivations.derivative(name, query, *sources)
            for name, query in (("join", JOIN), ("totals", TOTALS))
        }
        _append(folder, sources, rows, DEVICES)
        for entry in entries.values():
            derivations.run(entry)
        costs: dict[str, list[Cost]] = {name: [] for name in entries}
        for _ in range(runs):
            _append(folder, sources, new, new * DEVICES // rows)
            for name, entry in entries.items():
                costs[name].append(cost(lambda entry=entry: derivations.run(entry)))
        figures: list[Figure] = []
        for name, query in (("join", JOIN), ("totals", TOTALS)):
            bare = [cost(lambda query=query: query_files(spark, folder, tuple(sources), query))
                    for _ in range(runs)]  # fmt: skip
            figures.append(METRICS[name].figure(best(costs[name]), best(bare)))
        return figures


def _append(folder: Path, sources: dict[str, DatasetEntry], *counts: int) -> None:
    for (name, source), count in zip(sources.items(), counts, strict=True):
        append_rows(source, count)
        (folder / name).mkdir(exist_ok=True)
        copy_newest_slice(source, folder / name / f"{len(source.dataset.slices())}.parquet")
