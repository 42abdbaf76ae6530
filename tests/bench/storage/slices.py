"""Writing of the same rows as five slices, compared with one slice, and the memory of both.

The memory of a process that writes 10 million rows in slices is compared with half of the rows. Pairs of
runs alternate, because the machine may be busy.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pyarrow as pa

from odf_engine.base.progress import Reporter
from odf_engine.data.parquet.row_groups import SliceLimits
from odf_engine.data.parquet.slice_rows import SliceProperties
from odf_engine.data.parquet.slices import slice_schema, write_slices
from odf_engine.metadata.model import DEFAULT_VOCABULARY
from odf_engine.metadata.timestamp import Timestamp
from tests.bench.measure import Cost, Figure, Metric, Size, best, cost, max_memory, run_in_process

NOW = Timestamp.parse("2024-06-01T00:00:00Z")
DATA = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("t", pa.string())])
BATCH = 1 << 16
METRICS = {
    "time": Metric("write narrow rows as 5 slices", "as 1 slice", "<= 1.1x"),
    "memory": Metric("memory of writing slices", "half of the rows", "<= 1.25x", "MB"),
}


def run(size: Size, folder: Path) -> list[Figure]:
    rows = size.pick(10_000_000, 1_000_000)
    one: list[Cost] = []
    several: list[Cost] = []
    for _ in range(size.pick(3, 1)):
        one.append(cost(lambda: write(folder, rows, rows)))
        several.append(cost(lambda: write(folder, rows, rows // 5)))
    small, large = (run_in_process(write, folder, count, rows // 10) for count in (rows // 2, rows))
    return [METRICS["time"].figure(best(several), best(one)), METRICS["memory"].figure(large, small)]


def write(folder: Path, rows: int, slice_rows: int) -> float:
    """Write rows in slices. Returns the maximum memory of the process."""
    out, numbers = folder / "slices", count()
    out.mkdir()
    write_slices(
        make_batches(rows),
        SliceProperties(
            schema=slice_schema(DATA, DEFAULT_VOCABULARY),
            vocab=DEFAULT_VOCABULARY,
            first_offset=0,
            system_time=NOW,
            fallback_event_time=NOW,
        ),
        new_path=lambda: out / str(next(numbers)),
        reporter=Reporter(),
        limits=SliceLimits(slice_rows, 1 << 40),
    )
    shutil.rmtree(out)
    return max_memory()


def make_batches(rows: int) -> Iterator[pa.RecordBatch]:
    texts = pa.array([f"station-{n % 977}" for n in range(BATCH)])
    for start in range(0, rows, BATCH):
        length = min(BATCH, rows - start)
        ids = pa.array(range(start, start + length), pa.int64())
        yield pa.record_batch([ids, ids, texts.slice(0, length)], schema=DATA)
