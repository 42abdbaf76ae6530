"""Integrity verification of slices, compared with ``openssl dgst -sha3-256`` in two processes.

The dataset has 2 GB of numbers that do not compress. Its first verification hashes the bytes of the files,
decodes all rows and computes their logical hashes. Its baseline hashes as many bytes: the files, and files
with the size of all values. Later verifications only hash the bytes of the files. The files are in the page
cache if they fit into memory.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from odf_engine.base.progress import Reporter
from odf_engine.chain.block_index import BlockIndex
from odf_engine.data.parquet.slices import slice_schema
from odf_engine.derive.verify.integrity import verify
from odf_engine.metadata.model import DEFAULT_VOCABULARY
from odf_engine.workspace.workspace import Workspace
from tests.bench.common import append_slice, make_empty
from tests.bench.measure import Figure, Metric, Size, best, cost, require

NAMES = [f"measured{number}" for number in range(6)]
COLUMNS = pa.schema([("event_time", pa.timestamp("ms", "UTC")), *((name, pa.int64()) for name in NAMES)])
SCHEMA = slice_schema(COLUMNS, DEFAULT_VOCABULARY)
METRICS = {
    "again": Metric("verify files whose rows were verified before", "openssl", "<= 1.2x"),
    "first": Metric("verify rows and logical hashes too", "openssl, both inputs", "<= 1.25x"),
}


def run(size: Size, folder: Path) -> list[Figure]:
    require("openssl")
    workspace = Workspace.init(folder / "ws")
    entry, slices = make_empty(workspace, "numbers", SCHEMA), 0
    rows = size.pick(2_000_000, 100_000)
    while entry.dataset.state().data_size < size.pick(2_000_000_000, 10_000_000):
        append_slice(entry, [random_rows(slices * rows, rows)], SCHEMA)
        slices += 1
    paths = [entry.dataset.slice_path(row) for row in entry.dataset.slices()]

    values = [make_values(folder / f"values{number}", rows) for number in range(slices)]

    def check(known: BlockIndex | None, rows_known: int) -> None:
        report = verify(entry.dataset, Reporter(), known=known)
        assert report.valid and report.rows_known == rows_known, report.findings

    run_openssl([*paths, *values])  # reads the files into the page cache
    check(workspace.index, 0)
    turns = [
        (
            cost(lambda: check(workspace.index, slices)),
            cost(lambda: run_openssl(paths)),
            cost(lambda: check(None, 0)),
            cost(lambda: run_openssl([*paths, *values])),
        )
        for _ in range(size.pick(5, 1))
    ]
    again, bytes_only, first, both = (best(costs) for costs in zip(*turns, strict=True))
    return [METRICS["again"].figure(again, bytes_only), METRICS["first"].figure(first, both)]


def make_values(path: Path, rows: int) -> Path:
    """Make a file with the size of the values of some rows. Hashing takes as long whatever its bytes are."""
    with path.open("wb") as file:
        file.truncate(rows * sum(field.type.bit_width // 8 for field in SCHEMA))
    return path


def random_rows(first: int, count: int) -> pa.RecordBatch:
    """Return rows with an increasing time and six random numbers."""
    times = pa.array(range(first, first + count), pa.timestamp("ms", "UTC"))
    columns = (pa.py_buffer(os.urandom(8 * count)) for _ in NAMES)
    numbers = [pa.Array.from_buffers(pa.int64(), count, [None, values]) for values in columns]
    return pa.record_batch([times, *numbers], COLUMNS)


def run_openssl(paths: Sequence[Path]) -> None:
    """Hash all files in two processes, each of which hashes half of the bytes."""
    parts: tuple[list[Path], list[Path]] = ([], [])
    sizes = [0, 0]
    for path in sorted(paths, key=lambda path: -path.stat().st_size):
        smaller = sizes.index(min(sizes))
        parts[smaller].append(path)
        sizes[smaller] += path.stat().st_size
    command = ["openssl", "dgst", "-sha3-256"]
    running = [subprocess.Popen([*command, *part], stdout=subprocess.DEVNULL) for part in parts if part]
    codes = [process.wait() for process in running]
    assert not any(codes)
