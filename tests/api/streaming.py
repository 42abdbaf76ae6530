"""Reads a dataset as streams, and prints the largest resident memory in MiB after each step.

Usage: ``python streaming.py WORKSPACE DATASET``. Steps: open, batches, duckdb, table.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from pathlib import Path

import odf_engine as odf


def peak() -> float:
    """The largest resident memory of this process since :func:`reset_peak`, in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def reset_peak() -> None:
    """Start a new measurement."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")


def main(workspace: str, dataset: str) -> None:
    """Print peaks, row counts and seconds of all steps as JSON."""
    import duckdb
    import pyarrow.compute  # noqa: F401

    def aggregate(rows: odf.Rows) -> int:
        return duckdb.sql("SELECT count(*), sum(visits), max(note) FROM rows").fetchall()[0][0]

    opened = odf.open(workspace)[dataset]
    rows = opened.scan()
    next(iter(rows[:10].batches()))
    duckdb.sql("SELECT 1").fetchall()
    found: dict[str, tuple[float, int, float]] = {"open": (peak(), len(rows), 0.0)}
    steps = {
        "batches": lambda: sum(batch.num_rows for batch in rows.batches()),
        "duckdb": lambda: aggregate(rows),
        "table": lambda: rows.to_arrow().num_rows,
    }
    for name, step in steps.items():
        reset_peak()
        began = time.monotonic()
        count = step()
        found[name] = (peak(), count, time.monotonic() - began)
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
