"""Statistics, the current state by key and exports of many rows: seconds, processor seconds, memory.

    python tests/bench/bench_looking.py [ROWS] [FOLDER]

A file of ten columns (10 million rows by default) is looked at in every way, each in a process of its own, as
the worker would. Memory is the most that the process ever had; 300 MB are what a worker may take for
statistics. Where keys are no more than some thousands, those that are known need little; where every row
has its own, they are shared out to files.
"""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from odf_engine.data.arrow_compute import pc
from odf_engine.progress import Reporter
from odf_engine.views.export import Format, export
from odf_engine.views.projection import write_projection
from odf_engine.views.scan import Scan
from odf_engine.views.statistics import compute_statistics

GROUP = 1 << 17
STATIONS = 997
WAYS = (
    ("statistics of all columns", "describe", 300),
    (f"current state by one of {STATIONS} keys", "project:station", 300),
    ("current state, every row its own key", "project:sensor", None),
    ("export to CSV", "export:csv", 300),
    ("export to JSON lines", "export:ndjson", 300),
    ("export to Parquet", "export:parquet", 300),
)


def main() -> None:
    if len(sys.argv) > 3:
        look(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
        return
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000
    folder = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(tempfile.mkdtemp(prefix="odf-bench-"))
    try:
        path = folder / "rows.parquet"
        fill(path, rows)
        print(f"Looking at {rows:,} rows of ten columns")
        print(f"{'what':<38}{'clock':>9}{'processor':>11}{'memory':>9}  goal")
        for title, way, most in WAYS:
            measure(title, way, path, folder, most)
    finally:
        if len(sys.argv) <= 2:
            shutil.rmtree(folder)


def fill(path: Path, rows: int) -> None:
    """Numbers, times and texts, of few different values and of many."""
    noise = pa.array([(number * 2654435761 % 2**32) / 2**32 for number in range(GROUP)])
    writer: pq.ParquetWriter | None = None
    for start in range(0, rows, GROUP):
        count = min(GROUP, rows - start)
        number = pa.array(range(start, start + count), pa.int64())
        station = pc.subtract(number, pc.multiply(pc.divide(number, STATIONS), STATIONS))
        columns = {
            "offset": number.cast(pa.uint64()),
            "op": pc.multiply(station, 0).cast(pa.uint8()),
            "system_time": pc.multiply(station, 0).cast(pa.timestamp("ms", "UTC")),
            "event_time": pc.multiply(number, 1000).cast(pa.timestamp("ms", "UTC")),
            "station": pc.binary_join_element_wise("s-", station.cast(pa.string()), ""),
            "pm25": noise.slice(0, count),
            "no2": pc.bit_wise_and(number, 63).cast(pa.int32()),
            "sensor": pc.binary_join_element_wise("sensor-", number.cast(pa.string()), ""),
            "ok": pc.equal(pc.bit_wise_and(number, 1), 1),
            "ratio": pc.divide(number.cast(pa.float64()), 7.0),
        }
        group = pa.table(columns)
        writer = writer or pq.ParquetWriter(path, group.schema, compression="zstd", compression_level=1)
        writer.write_table(group, row_group_size=GROUP)
    if writer is not None:
        writer.close()


def measure(title: str, way: str, path: Path, folder: Path, most: int | None) -> None:
    """A way to look, in a process of its own; prints what it took."""
    began = time.perf_counter()
    command = [sys.executable, __file__, way, str(path), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    wall = time.perf_counter() - began
    processor, memory = map(float, done.stdout.split())
    goal = "" if most is None else f"<= {most} MB: {'met' if memory <= most else 'MISSED'}"
    print(f"{title:<38}{wall:>7.1f} s{processor:>9.1f} s{memory:>6.0f} MB  {goal}")


def look(way: str, path: Path, folder: Path) -> None:
    """Looks, and prints processor seconds and megabytes."""
    rows, (what, _, how) = Scan.of_file(path), way.partition(":")
    if what == "describe":
        compute_statistics(folder, rows, Reporter())
    elif what == "project":
        write_projection(folder / "state.parquet", rows, [how], Reporter())
    else:
        forms: dict[str, Format] = {"csv": "csv", "ndjson": "ndjson", "parquet": "parquet"}
        export(rows, folder / "export", forms[how], Reporter(), replace=True)
        (folder / "export").unlink()
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


if __name__ == "__main__":
    main()
