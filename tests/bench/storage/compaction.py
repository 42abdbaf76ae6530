"""Compaction of many slices, compared with reading, writing and hashing the same rows with PyArrow.

There are 1,000 slices of 10,000 rows. The baseline reads each file, writes one file with the same
compression, and computes SHA3-256 of all files and of the buffers of all columns. Both sides run in new
processes, in turns. Further figures are about 100,000 commits of 2 rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from odf_engine.base.progress import Reporter
from odf_engine.chain.compaction import CompactionPolicy, compact
from odf_engine.data.parquet.slices import slice_schema
from odf_engine.derive.verify.integrity import verify
from odf_engine.metadata.model import DEFAULT_VOCABULARY
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace
from tests.bench.common import append_slice, make_empty, no_fsync
from tests.bench.measure import Cost, Figure, Metric, Size, best, cost, max_memory, run_in_process

START_MS = 1_714_521_600_000
NUMBERS = [f"v{number}" for number in range(6)]
TIME = pa.timestamp("ms", "UTC")
COLUMNS = [("event_time", TIME), *((name, pa.int64()) for name in NUMBERS), ("t", pa.string())]
SCHEMA = slice_schema(pa.schema(COLUMNS), DEFAULT_VOCABULARY)
METRICS = {
    "time": Metric("compaction of 1,000 slices", "read, write and hash with PyArrow", "<= 1.5x"),
    "rate": Metric("compaction, values per second", "", ">= 100 MB/s", "MB/s"),
    "memory": Metric("compaction, additional memory", "", "<= 300 MB", "MB"),
    "commits": Metric("compaction of 100,000 commits"),
    "slices": Metric("slices of 100,000 commits", "", "<= 100", "slices"),
}


def run(size: Size, folder: Path) -> list[Figure]:
    return [
        *compact_slices(folder / "slices", size.pick(1000, 20), 10_000, size.pick(3, 1)),
        *compact_commits(folder / "commits", size.pick(100_000, 200)),
    ]


def compact_slices(folder: Path, slices: int, rows: int, rounds: int) -> list[Figure]:
    workspace = Workspace.init(folder)
    entry = make_root(workspace, slices, rows)
    plain = slices * pq.read_table(entry.dataset.slice_path(entry.dataset.slices()[0])).nbytes
    old = entry.dataset.head()
    assert old is not None
    workspace.index.close()
    ours: list[tuple[Cost, float]] = []
    baseline: list[tuple[Cost, float]] = []
    for _ in range(rounds):
        baseline.append(run_in_process(measure, rewrite, folder))
        ours.append(run_in_process(measure, run_compaction, folder))
        dataset = Workspace(folder).resolve("numbers").dataset
        head = dataset.head()
        assert head is not None and head != old
        dataset.reset(old, expected_head=head)
    shortest = best([cost for cost, _ in ours])
    return [
        METRICS["time"].figure(shortest, best([cost for cost, _ in baseline])),
        METRICS["rate"].figure(plain / 1e6 / shortest.wall),
        METRICS["memory"].figure(max(memory for _, memory in ours)),
    ]


def compact_commits(folder: Path, commits: int) -> list[Figure]:
    dataset = make_root(Workspace.init(folder), commits, 2).dataset
    compaction = cost(lambda: compact(dataset, CompactionPolicy(), Reporter()))
    assert verify(dataset, Reporter()).valid
    return [METRICS["commits"].figure(compaction), METRICS["slices"].figure(dataset.state().slices)]


def make_root(workspace: Workspace, slices: int, rows: int) -> DatasetEntry:
    """Create a dataset with slices, one block each, without waiting for the disk."""
    with no_fsync():
        entry = make_empty(workspace, "numbers", SCHEMA)
        for number in range(slices):
            append_slice(entry, [make_batch(number * rows, rows)], SCHEMA)
    return entry


def make_batch(first: int, rows: int) -> pa.RecordBatch:
    offsets = pa.array(range(first, first + rows), pa.int64())
    values = [pc.bit_wise_xor(offsets, pc.multiply(offsets, 7919 * n + 1)) for n in range(len(NUMBERS))]
    times = pc.add(offsets, START_MS).cast(TIME)
    texts = pa.array([f"text {row % 977}" for row in range(first, first + rows)])
    return pa.record_batch([times, *values, texts], ["event_time", *NUMBERS, "t"])


def measure(work: Callable[[Path], None], folder: Path) -> tuple[Cost, float]:
    """Return the cost of a call, and the additional memory of this process."""
    before = max_memory()
    return cost(lambda: work(folder)), max_memory() - before


def run_compaction(folder: Path) -> None:
    dataset = Workspace(folder).resolve("numbers").dataset
    compact(dataset, CompactionPolicy(max_rows=10**9, max_bytes=1 << 40), Reporter())


def rewrite(folder: Path) -> None:
    """Do the work of a compaction with PyArrow and hashlib."""
    dataset = Workspace(folder).resolve("numbers").dataset
    paths = [dataset.slice_path(row) for row in dataset.slices()]
    physical, logical, target = hashlib.sha3_256(), hashlib.sha3_256(), folder / "baseline.parquet"
    schema = pq.read_schema(paths[0])
    with pq.ParquetWriter(target, schema, compression="zstd", compression_level=1) as writer:
        for path in paths:
            physical.update(path.read_bytes())
            table = pq.read_table(path)
            for column in table.columns:
                for chunk in column.chunks:
                    for buffer in chunk.buffers():
                        logical.update(buffer or b"")
            writer.write_table(table)
    physical.update(target.read_bytes())
