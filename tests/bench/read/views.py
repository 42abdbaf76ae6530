"""Statistics, the current state by key, and exports of 10 million rows of ten columns: time and memory.

Each view is computed in a new process, as the worker would. The memory is the maximum of the process. A state
by a key that every row has for itself is sorted in files, and its memory has no goal.
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pyarrow as pa
import pyarrow.parquet as pq

from odf_engine.base.progress import Reporter
from odf_engine.data.arrow_compute import pc
from odf_engine.rows.export import Format, export
from odf_engine.rows.projection import write_projection
from odf_engine.rows.scan import Scan
from odf_engine.rows.statistics import compute_statistics
from tests.bench.measure import Figure, Metric, Size, max_memory, run_in_process, timed

GROUP = 1 << 17
STATIONS = 997
VIEWS = {
    "statistics": "statistics of all columns",
    "state station": f"current state by one of {STATIONS} keys",
    "state sensor": "current state, a key for each row",
    "export csv": "export to CSV",
    "export ndjson": "export to JSON lines",
    "export parquet": "export to Parquet",
}
METRICS = {
    name: metric
    for view, what in VIEWS.items()
    for name, metric in (
        (view, Metric(what)),
        (
            f"{view}: memory",
            Metric(f"{what}: memory", "", "" if view == "state sensor" else "<= 300 MiB", "MiB"),
        ),
    )
}


def run(size: Size, folder: Path) -> list[Figure]:
    write_rows(folder / "rows.parquet", size.pick(10_000_000, 50_000))
    figures: list[Figure] = []
    for view in VIEWS:
        seconds, memory = run_in_process(compute, view, folder)
        figures += [METRICS[view].figure(seconds), METRICS[f"{view}: memory"].figure(memory)]
    return figures


def compute(view: str, folder: Path) -> tuple[float, float]:
    """Compute a view. Returns the seconds, and the maximum memory of this process in MiB."""
    rows = Scan.of_file(folder / "rows.parquet")
    kind, _, name = view.partition(" ")

    def work() -> None:
        if kind == "statistics":
            compute_statistics(folder, rows, Reporter())
        elif kind == "state":
            write_projection(folder / "state.parquet", rows, [name], Reporter())
        else:
            export(rows, folder / "export", cast("Format", name), Reporter(), replace=True)

    return timed(work), max_memory() * 1e6 / (1 << 20)


def write_rows(path: Path, rows: int) -> None:
    """Write numbers, times and texts, of few different values and of many."""
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
    assert writer is not None
    writer.close()
