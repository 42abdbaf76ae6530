"""Both hashes of a data slice, against raw SHA3-256 over the same bytes on one core.

    python tests/bench/bench_hash.py [ROWS] [FOLDER]

The slice has 8 data columns (10 million rows by default). "The same bytes" are the bytes of its Parquet
file, for the physical hash, and those of its columns in Arrow's memory, for the logical hash; the baseline
feeds them to hashlib.sha3_256 in large pieces. Both sides find file and columns in memory, except in the
last rows, where the whole way from the file is measured, Parquet decoding included.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from odf_engine.data.ddl import parse_ddl
from odf_engine.data.digest import LogicalHasher, SerialExecutors, digest_file, physical_hash
from odf_engine.data.slices import WrittenSlice, read_batches, slice_schema, write_slice
from odf_engine.metadata.model import DatasetVocabulary
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.progress import Reporter

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.bench.common import COLUMNS, make_csv, table, verdict

ROUNDS = 5
CORES = os.cpu_count() or 1
VOCAB = DatasetVocabulary("offset", "op", "system_time", "event_time")
SCHEMA = slice_schema(parse_ddl(COLUMNS), VOCAB)


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000
    folder = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(tempfile.mkdtemp(prefix="odf-bench-"))
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / f"{rows}.csv"
    if not source.exists():
        make_csv(source, rows)
    try:
        report(source, folder / "slice.parquet", rows)
    finally:
        if len(sys.argv) <= 2:
            shutil.rmtree(folder)


def report(source: Path, path: Path, rows: int) -> None:
    written = write(source_batches(source), path)
    batches = list(read_batches(path))
    columns = buffers(batches)
    file = [pa.py_buffer(path.read_bytes())]
    in_file, in_arrow = size(file) / 1e6, size(columns) / 1e6

    costs = least(
        raw_columns=lambda: raw_hash(columns),
        raw_both=lambda: raw_hash([*file, *columns]),
        one=lambda: logical(batches, written, 1),
        all=lambda: logical(batches, written, CORES),
        both=lambda: both_hashes(batches, path, written),
        whole=lambda: digest_file(path),
        bare=lambda: bare_write(batches, path.with_suffix(".bare")),
        write=lambda: write(data_columns(batches), path.with_suffix(".again")),
    )
    table(
        f"Hashes of {rows:,} rows on {CORES} cores: Parquet {in_file:.0f} MB, Arrow {in_arrow:.0f} MB;"
        " throughput against sha3_256 on one core",
        [
            line("logical + physical", in_file + in_arrow, costs["both"], costs["raw_both"], 1.0),
            line("logical", in_arrow, costs["all"], costs["raw_columns"]),
            line("logical, one thread", in_arrow, costs["one"], costs["raw_columns"]),
            line("from the file, decoding it", in_file + in_arrow, costs["whole"], costs["raw_both"]),
            idle(costs["both"], costs["raw_both"]),
        ],
    )
    bare, again = costs["bare"].wall, costs["write"].wall
    table(
        "Writing the slice from memory, with both hashes and fsync, against a bare ParquetWriter",
        [("write_slice", f"{again:.2f} s", f"{bare:.2f} s", f"{again / bare:.2f}x")],
    )


class Cost(NamedTuple):
    """Seconds on the clock, and seconds of all processors together."""

    wall: float
    processor: float


def least(**works: Callable[[], object]) -> dict[str, Cost]:
    """The least cost of each, taken in turns: the machine may have other work to do."""
    rounds = [{name: cost(work) for name, work in works.items()} for _ in range(ROUNDS)]
    return {
        name: Cost(min(each[name].wall for each in rounds), min(each[name].processor for each in rounds))
        for name in works
    }


def cost(work: Callable[[], object]) -> Cost:
    wall, processor = time.perf_counter(), time.process_time()
    work()
    return Cost(time.perf_counter() - wall, time.process_time() - processor)


def size(pieces: Sequence[pa.Buffer]) -> int:
    return sum(piece.size for piece in pieces)


def raw_hash(pieces: Sequence[pa.Buffer]) -> bytes:
    hasher = hashlib.sha3_256()
    for piece in pieces:
        hasher.update(piece)
    return hasher.digest()


def buffers(batches: Sequence[pa.RecordBatch]) -> list[pa.Buffer]:
    """The memory of all columns: values, offsets and validity."""
    found = [
        buffer
        for batch in batches
        for column in batch.columns
        for buffer in column.buffers()
        if buffer is not None
    ]
    expected = sum(batch.nbytes for batch in batches)
    check(abs(size(found) / expected - 1) < 0.02)  # no buffer is shared between batches
    return found


def both_hashes(batches: Sequence[pa.RecordBatch], path: Path, written: WrittenSlice) -> None:
    physical = threading.Thread(target=lambda: check(physical_hash(path)[0] == written.physical_hash))
    physical.start()
    logical(batches, written, CORES)
    physical.join()


def logical(batches: Sequence[pa.RecordBatch], written: WrittenSlice, threads: int) -> None:
    with SerialExecutors(threads) as executors, LogicalHasher(SCHEMA, executors) as hasher:
        for batch in batches:
            hasher.update(batch)
        check(hasher.finish() == written.logical_hash)


def check(equal: bool) -> None:
    if not equal:
        raise SystemExit("the measurement is wrong")


def source_batches(source: Path) -> Iterator[pa.RecordBatch]:
    fields = parse_ddl(COLUMNS)
    options = pyarrow.csv.ConvertOptions(column_types=fields, strings_can_be_null=True)
    with pyarrow.csv.open_csv(source, convert_options=options) as reader:
        yield from reader


def data_columns(batches: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.select(["event_time", *SCHEMA.names[4:]])


def write(batches: Iterator[pa.RecordBatch], path: Path) -> WrittenSlice:
    result = write_slice(
        batches,
        schema=SCHEMA,
        vocab=VOCAB,
        path=path,
        first_offset=0,
        system_time=Timestamp.parse("2024-05-01T00:00:00Z"),
        fallback_event_time=Timestamp.parse("2024-05-01T00:00:00Z"),
        reporter=Reporter(),
    )
    assert result is not None
    return result


def bare_write(batches: Sequence[pa.RecordBatch], path: Path) -> None:
    with pq.ParquetWriter(path, SCHEMA, compression="snappy") as writer:
        for batch in batches:
            writer.write_batch(batch)


def idle(found: Cost, baseline: Cost) -> tuple[str, str, str, str]:
    """What the first line would be if nothing else ran: by processor time, spread over the cores."""
    seconds = found.processor / CORES
    ratio = baseline.processor / seconds
    return (
        "logical + physical, idle machine",
        f"{seconds:.2f} s",
        f"{baseline.processor:.2f} s",
        f"{ratio:.2f}x by processor time",
    )


def line(
    what: str, megabytes: float, found: Cost, baseline: Cost, goal: float | None = None
) -> tuple[str, str, str, str]:
    ratio = baseline.wall / found.wall
    return (
        what,
        f"{megabytes / found.wall:.0f} MB/s ({found.wall:.2f} s; processors {found.processor:.2f} s)",
        f"{megabytes / baseline.wall:.0f} MB/s ({baseline.wall:.2f} s)",
        verdict(ratio, goal, at_most=False) if goal else f"{ratio:.2f}x",
    )


if __name__ == "__main__":
    main()
