"""Writes the same rows as one slice and as several; checks that the peak memory does not grow with the rows.

    python tests/bench/bench_slices.py [ROWS] [FOLDER]

Pairs of runs alternate, because the machine may be busy. Each memory measurement is a process of its own.
"""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from odf_engine.data.row_groups import SliceLimits
from odf_engine.data.slices import slice_schema, write_slices
from odf_engine.metadata.model import DEFAULT_VOCABULARY
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.progress import Reporter

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.bench.common import table, timed, verdict

NOW = Timestamp.parse("2024-06-01T00:00:00Z")
DATA = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("t", pa.string())])
BATCH = 1 << 16
RUNS = 3


def main() -> None:
    if len(sys.argv) > 3:
        write(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
        return
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000
    folder = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(tempfile.mkdtemp(prefix="odf-bench-"))
    one: list[float] = []
    several: list[float] = []
    for _ in range(RUNS):
        one.append(timed(lambda: write(rows, folder, rows)))
        several.append(timed(lambda: write(rows, folder, rows // 5)))
    small, large = (peak(count, folder, rows // 10) for count in (rows // 2, rows))
    table(
        f"{rows:,} narrow rows, best of {RUNS}",
        [
            ("5 slices vs 1 slice", f"{min(several):.2f} s", f"{min(one):.2f} s",
             verdict(min(several) / min(one), 1.1)),
            ("peak memory, all rows vs half of them", f"{large} MiB", f"{small} MiB",
             verdict(large / small, 1.25)),
        ],
    )  # fmt: skip


def peak(rows: int, folder: Path, target: int) -> int:
    """Return the peak memory of a process that writes rows, in MiB."""
    command = [sys.executable, __file__, str(rows), str(folder), str(target)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def write(rows: int, folder: Path, target: int) -> None:
    """Write rows in slices of ``target`` rows."""
    out = folder / "slices"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    names = iter(range(1 << 20))
    write_slices(
        batches(rows),
        schema=slice_schema(DATA, DEFAULT_VOCABULARY),
        vocab=DEFAULT_VOCABULARY,
        new_path=lambda: out / str(next(names)),
        first_offset=0,
        system_time=NOW,
        fallback_event_time=NOW,
        reporter=Reporter(),
        limits=SliceLimits(target, 1 << 40),
    )
    shutil.rmtree(out)


def batches(rows: int) -> Iterator[pa.RecordBatch]:
    """Yield narrow rows."""
    texts = pa.array([f"station-{n % 977}" for n in range(BATCH)])
    for start in range(0, rows, BATCH):
        count = min(BATCH, rows - start)
        ids = pa.array(range(start, start + count), pa.int64())
        yield pa.record_batch([ids, ids, texts.slice(0, count)], schema=DATA)


if __name__ == "__main__":
    main()
