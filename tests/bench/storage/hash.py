"""Both hashes of a data slice, compared with raw SHA3-256 over the same bytes on one core.

The slice has 8 data columns and 10 million rows. The baseline feeds the bytes of the Parquet file (for the
physical hash) and of the Arrow columns (for the logical hash) to hashlib in large pieces. File and columns
are in memory, except where the slice is read from the file and decoded.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from odf_engine.base.progress import Reporter
from odf_engine.data.ddl import parse_ddl
from odf_engine.data.digest import LogicalHasher, SerialExecutors, digest_file, physical_hash
from odf_engine.data.parquet.slice_rows import SliceProperties
from odf_engine.data.parquet.slices import WrittenSlice, read_batches, slice_schema, write_slice
from odf_engine.metadata.model import DEFAULT_VOCABULARY
from odf_engine.metadata.timestamp import Timestamp
from tests.bench.common import COLUMNS, make_csv
from tests.bench.measure import Cost, Figure, Metric, Size, best, cost

CORES = os.cpu_count() or 1
SCHEMA = slice_schema(parse_ddl(COLUMNS), DEFAULT_VOCABULARY)
NOW = Timestamp.parse("2024-05-01T00:00:00Z")
METRICS = {
    "both": Metric("logical and physical hash", "sha3_256, both inputs", "<= 1.0x"),
    "all": Metric("logical hash", "sha3_256, columns"),
    "one": Metric("logical hash, one thread", "sha3_256, columns"),
    "file": Metric("both hashes from the file, with decoding", "sha3_256, both inputs"),
    "write": Metric("write_slice, with hashes and fsync", "ParquetWriter"),
}


def run(size: Size, folder: Path) -> list[Figure]:
    source, path = folder / "rows.csv", folder / "slice.parquet"
    make_csv(source, size.pick(10_000_000, 100_000))
    written = write(read_csv(source), path)
    batches = list(read_batches(path))
    columns, file = buffers(batches), pa.py_buffer(path.read_bytes())
    costs = measure_in_turns(
        size.pick(5, 1),
        {
            "raw columns": lambda: raw_hash(columns),
            "raw both": lambda: raw_hash([file, *columns]),
            "both": lambda: both_hashes(batches, path, written),
            "all": lambda: logical_hash(batches, written, CORES),
            "one": lambda: logical_hash(batches, written, 1),
            "file": lambda: digest_file(path),
            "bare write": lambda: bare_write(batches, folder / "bare.parquet"),
            "write": lambda: write(without_system_columns(batches), folder / "again.parquet"),
        },
    )
    baselines = {"all": "raw columns", "one": "raw columns", "write": "bare write"}
    return [
        metric.figure(costs[name], costs[baselines.get(name, "raw both")]) for name, metric in METRICS.items()
    ]


def measure_in_turns(rounds: int, works: dict[str, Callable[[], object]]) -> dict[str, Cost]:
    """Return the minimal costs, measured in turns since other programs may use the machine."""
    costs = [{name: cost(work) for name, work in works.items()} for _ in range(rounds)]
    return {name: best([turn[name] for turn in costs]) for name in works}


def raw_hash(pieces: Sequence[pa.Buffer]) -> bytes:
    hasher = hashlib.sha3_256()
    for piece in pieces:
        hasher.update(piece)
    return hasher.digest()


def buffers(batches: Sequence[pa.RecordBatch]) -> list[pa.Buffer]:
    """Return the memory of all columns: values, offsets and validity."""
    columns = (column for batch in batches for column in batch.columns)
    pieces = [buffer for column in columns for buffer in column.buffers() if buffer is not None]
    expected = sum(batch.nbytes for batch in batches)
    assert abs(sum(piece.size for piece in pieces) / expected - 1) < 0.02, "batches share a buffer"
    return pieces


def both_hashes(batches: Sequence[pa.RecordBatch], path: Path, written: WrittenSlice) -> None:
    hashes: list[object] = []
    physical = threading.Thread(target=lambda: hashes.append(physical_hash(path)[0]))
    physical.start()
    logical_hash(batches, written, CORES)
    physical.join()
    assert hashes == [written.physical_hash]


def logical_hash(batches: Sequence[pa.RecordBatch], written: WrittenSlice, threads: int) -> None:
    with SerialExecutors(threads) as executors, LogicalHasher(SCHEMA, executors) as hasher:
        for batch in batches:
            hasher.update(batch)
        assert hasher.finish() == written.logical_hash


def read_csv(source: Path) -> Iterator[pa.RecordBatch]:
    options = pyarrow.csv.ConvertOptions(column_types=parse_ddl(COLUMNS), strings_can_be_null=True)
    with pyarrow.csv.open_csv(source, convert_options=options) as reader:
        yield from reader


def without_system_columns(batches: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return (batch.select(["event_time", *SCHEMA.names[4:]]) for batch in batches)


def write(batches: Iterable[pa.RecordBatch], path: Path) -> WrittenSlice:
    written = write_slice(
        batches,
        SliceProperties(
            schema=SCHEMA, vocab=DEFAULT_VOCABULARY, first_offset=0, system_time=NOW, fallback_event_time=NOW
        ),
        path=path,
        reporter=Reporter(),
    )
    assert written is not None
    return written


def bare_write(batches: Sequence[pa.RecordBatch], path: Path) -> None:
    with pq.ParquetWriter(path, SCHEMA, compression="snappy") as writer:
        for batch in batches:
            writer.write_batch(batch)
