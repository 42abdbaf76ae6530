"""Rows of a large dataset as a stream: seconds and memory of the Python API, with PyArrow as the baseline.

``python -m tests.bench.bench_scan [ROWS]`` writes a dataset of 10 million rows in slices of one million.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow.dataset as pds

import odf_engine as odf
from tests.bench.common import append_rows, make_empty, table, verdict

_SLICE = 1_000_000
_GOAL_MIB = 300


def main(rows: int) -> None:
    """Measure, and print a table."""
    with tempfile.TemporaryDirectory() as folder:
        workspace = odf.init(Path(folder) / "ws")
        entry = make_empty(workspace._workspace, "my.rows")
        for _ in range(rows // _SLICE):
            append_rows(entry, _SLICE)
        command = [sys.executable, "-m", "tests.api.streaming", str(workspace.folder), "my.rows"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        steps = json.loads(done.stdout)
        paths = [str(entry.dataset.slice_path(each)) for each in entry.dataset.slices()]
        began = time.perf_counter()
        count = sum(batch.num_rows for batch in pds.dataset(paths).to_batches())
        baseline = time.perf_counter() - began
    assert count == rows and all(found == rows for _, found, _ in steps.values())
    start = steps["open"][0]
    lines = []
    for name in ("batches", "duckdb"):
        peak, _, seconds = steps[name]
        ratio = verdict(seconds / baseline, 2.0)
        lines.append((f"{name}: time", f"{seconds:.1f} s", f"{baseline:.1f} s (PyArrow)", ratio))
        goal = verdict((peak - start) / _GOAL_MIB, 1.0)
        lines.append((f"{name}: memory", f"{peak - start:.0f} MiB", f"{_GOAL_MIB} MiB", goal))
    lines.append(("a table of all rows: memory", f"{steps['table'][0] - start:.0f} MiB", "", ""))
    table(f"{rows:,} rows", lines)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000)
