"""Rows of a dataset as a stream of the Python API: time compared with PyArrow, and memory.

The dataset has 10 million rows in slices of one million. It is read in a separate process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow.dataset as pds

import odf_engine as odf
from tests.bench.common import append_rows, make_empty
from tests.bench.measure import Figure, Metric, Size, timed

METRICS = {
    "batches": Metric("rows as record batches", "PyArrow", "<= 2x"),
    "batches: memory": Metric("rows as record batches, additional memory", "", "<= 300 MiB", "MiB"),
    "duckdb": Metric("aggregation with DuckDB", "PyArrow", "<= 2x"),
    "duckdb: memory": Metric("aggregation with DuckDB, additional memory", "", "<= 300 MiB", "MiB"),
    "table: memory": Metric("a table of all rows, additional memory", unit="MiB"),
}


def run(size: Size, folder: Path) -> list[Figure]:
    slices, rows = size.pick(10, 2), size.pick(1_000_000, 50_000)
    workspace = odf.init(folder / "ws")
    entry = make_empty(workspace._workspace, "my.rows")
    for _ in range(slices):
        append_rows(entry, rows)
    command = [sys.executable, "-m", "tests.api.streaming", str(workspace.folder), "my.rows"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    steps = json.loads(done.stdout)
    counts = [count for _, count, _ in steps.values()]
    paths = [str(entry.dataset.slice_path(row)) for row in entry.dataset.slices()]
    baseline = timed(lambda: counts.extend(batch.num_rows for batch in pds.dataset(paths).to_batches()))
    assert set(counts[: len(steps)]) == {slices * rows} == {sum(counts[len(steps) :])}
    figures = []
    for name, metric in METRICS.items():
        step, _, is_memory = name.partition(": ")
        peak, _, seconds = steps[step]
        memory = peak - steps["open"][0]
        figures.append(metric.figure(memory) if is_memory else metric.figure(seconds, baseline))
    return figures
