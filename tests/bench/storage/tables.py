"""Updates of Delta Lake and Iceberg tables after a commit, compared with reading the state of the head.

The chain has 10,000 blocks, each with a slice of 10 rows. The update adds one version.
"""

from __future__ import annotations

import statistics
from pathlib import Path

from odf_engine.chain.block_index import BlockIndex
from odf_engine.chain.dataset import Dataset
from odf_engine.tables import TableFormat
from odf_engine.tables.dataset_tables import remove_table, update_tables, write_table
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace
from tests.bench.common import append_slice, make_empty, make_rows, no_fsync
from tests.bench.measure import Figure, Metric, Size, median, timed

METRICS = {
    f"{table_format} {part}": metric
    for table_format in ("delta", "iceberg")
    for part, metric in {
        "update": Metric(f"update of the {table_format} table", "", "<= 50 ms", "ms"),
        "ratio": Metric(f"update of the {table_format} table", "state of the head"),
        "write": Metric(f"{table_format} table of 10,000 blocks"),
    }.items()
}


def run(size: Size, folder: Path) -> list[Figure]:
    with no_fsync():
        entry = make_empty(Workspace.init(folder), "numbers")
        for _ in range(size.pick(10_000, 20)):
            append(entry)
    path = folder / "state.sqlite"
    Dataset(entry.dataset.folder, BlockIndex(path)).state()
    state = median(lambda: Dataset(entry.dataset.folder, BlockIndex(path)).state(), 5)
    return [
        *measure_updates(entry.dataset, "delta", size, state),
        *measure_updates(entry.dataset, "iceberg", size, state),
    ]


def measure_updates(dataset: Dataset, table_format: TableFormat, size: Size, state: float) -> list[Figure]:
    """Measure updates, without the commits before them."""
    write = timed(lambda: write_table(dataset, table_format, lambda done, total: None))
    entry = Workspace(dataset.folder.parents[2]).resolve("numbers")
    plain = Dataset(dataset.folder, BlockIndex(":memory:"))  # does not update the table
    times: list[float] = []
    for _ in range(size.pick(20, 3)):
        append(DatasetEntry(entry.id, entry.alias, plain))
        entry.dataset.state()
        times.append(timed(lambda: update_tables(entry.dataset)))
    remove_table(dataset, table_format)
    update = statistics.median(times)
    return [
        METRICS[f"{table_format} update"].figure(1000 * update),
        METRICS[f"{table_format} ratio"].figure(update, state),
        METRICS[f"{table_format} write"].figure(write),
    ]


def append(entry: DatasetEntry) -> None:
    """Commit a slice of 10 rows."""
    append_slice(entry, make_rows(0, 10).to_batches())
