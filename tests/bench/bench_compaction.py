"""Compaction of many slices, against reading, writing and hashing the same rows with pyarrow.

    python tests/bench/bench_compaction.py [SLICES] [ROWS]
    python tests/bench/bench_compaction.py commits [COMMITS] [TRANSACTIONS]

The first form (1000 slices of 10,000 rows by default) runs both sides in processes of their own, in turns.
The baseline reads each file with pyarrow, writes one file with the same compression, and computes SHA3-256 of
all input files, of the output, and of the buffers of all columns. Memory is the maximum resident size of the
process without that after the imports. The second form compacts 100,000 commits of 2 rows, with a derivative
dataset that has read them in 20 transactions, removes the old files and verifies the derivative.
"""

from __future__ import annotations

import hashlib
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from odf_engine.chain.compaction import CompactionPolicy, compact
from odf_engine.data.arrow_schema import encode_schema
from odf_engine.data.slices import slice_schema, write_slice
from odf_engine.identity.names import DatasetAlias
from odf_engine.metadata.model import DEFAULT_VOCABULARY, AddData, DatasetKind, DataSlice, SetDataSchema
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.metadata.yaml import read_manifests
from odf_engine.progress import Reporter
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace
from tests.bench.common import verdict

ROUNDS = 3
START = Timestamp.parse("2024-05-01T00:00:00Z")
NUMBERS = [f"v{number}" for number in range(6)]
TIME = pa.timestamp("ms", "UTC")
COLUMNS = [("event_time", TIME), *((name, pa.int64()) for name in NUMBERS), ("t", pa.string())]
SCHEMA = slice_schema(pa.schema(COLUMNS), DEFAULT_VOCABULARY)
DERIVATIVE = """
kind: DatasetSnapshot
version: 1
content:
  name: derived
  kind: Derivative
  metadata:
    - kind: SetTransform
      inputs: [{datasetRef: numbers, alias: numbers}]
      transform: {kind: Sql, engine: datafusion, query: "SELECT event_time, v0 + 1 AS v FROM numbers"}
"""


def make_root(workspace: Workspace) -> DatasetEntry:
    events = [SetDataSchema(encode_schema(SCHEMA))]
    return workspace.create_dataset(DatasetAlias.parse("numbers"), DatasetKind.Root, events, START)


def add(entry: DatasetEntry, slices: int, rows: int) -> None:
    """Commits slices, one block each, in one step; without waiting for the disk."""
    state = entry.dataset.state()
    first = 0 if state.last_offset is None else state.last_offset + 1
    mark, last, events = state.system_time, state.last_offset, []
    for number in range(slices):
        offsets = pa.array(range(first, first + rows), pa.int64())
        values = [pc.bit_wise_xor(offsets, pc.multiply(offsets, 7919 * n + 1)) for n in range(len(NUMBERS))]
        times = pc.add(offsets, START.ms).cast(TIME)
        texts = pa.array([f"text {row % 977}" for row in range(first, first + rows)])
        batch = pa.record_batch([times, *values, texts], ["event_time", *NUMBERS, "t"])
        mark = mark.shifted(ms=1 if number else 1000)
        written = write_slice(
            [batch], schema=SCHEMA, vocab=DEFAULT_VOCABULARY, path=entry.dataset.staging_path("data"),
            first_offset=first, system_time=mark, fallback_event_time=mark, reporter=Reporter(),
        )  # fmt: skip
        assert written is not None
        written.path.rename(entry.dataset.folder / "data" / str(written.physical_hash))
        data = DataSlice(written.logical_hash, written.physical_hash, written.offset_interval, written.size)
        events.append(AddData(prev_offset=last, new_data=data, new_watermark=mark))
        last, first = data.offset_interval.end, data.offset_interval.end + 1
    entry.dataset.commit(events, system_time=mark, expected_head=state.head)


def memory() -> int:
    """Maximum resident size of this process in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def run_compaction(folder: Path) -> None:
    before = memory()
    dataset = Workspace(folder).resolve("numbers").dataset
    dataset.state()
    started, processor = time.perf_counter(), time.process_time()
    compact(dataset, CompactionPolicy(max_rows=10**9, max_bytes=1 << 40), Reporter())
    print(time.perf_counter() - started, memory() - before, time.process_time() - processor)


def run_baseline(folder: Path) -> None:
    before = memory()
    dataset = Workspace(folder).resolve("numbers").dataset
    paths = [dataset.slice_path(row) for row in dataset.slices()]
    started, processor = time.perf_counter(), time.process_time()
    physical, logical, target = hashlib.sha3_256(), hashlib.sha3_256(), folder / "baseline.parquet"
    with pq.ParquetWriter(
        target, pq.read_schema(paths[0]), compression="zstd", compression_level=1
    ) as writer:
        for path in paths:
            physical.update(path.read_bytes())
            table = pq.read_table(path)
            for column in table.columns:
                for chunk in column.chunks:
                    for buffer in chunk.buffers():
                        logical.update(buffer or b"")
            writer.write_table(table)
    physical.update(target.read_bytes())
    print(time.perf_counter() - started, memory() - before, time.process_time() - processor)


class Measured(NamedTuple):
    """Seconds, additional bytes of memory, and seconds of processor time."""

    seconds: float
    memory: float
    processor: float


def measure(kind: str, folder: Path) -> Measured:
    command = [sys.executable, __file__, kind, str(folder)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return Measured(*map(float, done.stdout.split()))


def compare(slices: int, rows: int) -> None:
    with tempfile.TemporaryDirectory(prefix="odf-bench-") as name:
        folder = Path(name)
        with mock.patch("os.fsync", lambda descriptor: None):
            entry = make_root(workspace := Workspace.init(folder))
            add(entry, slices, rows)
        found = entry.dataset.slices()
        size = sum(row.size for row in found)
        plain = sum(pq.read_table(entry.dataset.slice_path(row)).nbytes for row in found[:1]) * len(found)
        old = entry.dataset.head()
        workspace.index.close()
        own, other = list[Measured](), list[Measured]()
        for _ in range(ROUNDS):
            other.append(measure("baseline", folder))
            own.append(measure("compact", folder))
            dataset = Workspace(folder).resolve("numbers").dataset
            head = dataset.head()
            assert old is not None and head is not None
            dataset.reset(old, expected_head=head)
        print(f"{slices:,} slices of {rows:,} rows: {size / 1e6:.0f} MB, {plain / 1e6:.0f} MB of values")
        for what in ("seconds", "processor"):
            best, baseline = (min(getattr(each, what) for each in side) for side in (own, other))
            speed = verdict(plain / 1e8 / best, 1, False)
            print(f"{what}: compaction {best:.1f}, baseline {baseline:.1f}, {verdict(best / baseline, 1.5)}")
            print(f"  {plain / 1e6 / best:.0f} MB/s of values; of 100 MB/s: {speed}")
        most = max(each.memory for each in own)
        print(f"memory {most / 1e6:.0f} MB; of 300 MB: {verdict(most / 300e6, 1)}")


def commits(number: int, transactions: int) -> None:
    from odf_engine.transform.engines.engine_router import engines_for
    from odf_engine.transform.run import transform
    from odf_engine.verify.integrity import verify
    from odf_engine.verify.replay import Replay
    from odf_engine.workspace.fsck import collect_garbage

    def no_spark() -> None:
        raise AssertionError("the query needs no Spark")

    with tempfile.TemporaryDirectory(prefix="odf-bench-") as name:
        workspace = Workspace.init(Path(name))
        with mock.patch("os.fsync", lambda descriptor: None):
            entry = make_root(workspace)
            (derived,) = workspace.add(read_manifests(DERIVATIVE, "bench"))
            with engines_for(workspace, derived, no_spark) as engine:  # type: ignore[arg-type]
                for _ in range(transactions):
                    add(entry, number // transactions, 2)
                    transform(workspace, derived, engine, Reporter())
        print(f"{entry.dataset.state().slices:,} slices, {derived.dataset.state().slices} transactions")
        started = time.perf_counter()
        outcome = compact(entry.dataset, CompactionPolicy(), Reporter())
        print(f"compacted to {outcome.new_slices} slices in {time.perf_counter() - started:.1f} s")
        with mock.patch("odf_engine.config.Config.retention_of", lambda *names: (0, 0, True)):
            collect_garbage(workspace, [entry], Reporter(), dry_run=False, now=True)
        print(f"{len(list((entry.dataset.folder / 'data').iterdir()))} files of data remain")
        workspace = Workspace(Path(name))
        derived, entry = workspace.resolve("derived"), workspace.resolve("numbers")
        started = time.perf_counter()
        with engines_for(workspace, derived, no_spark) as engine:  # type: ignore[arg-type]
            replay = Replay(workspace, derived, engine, Reporter())
            report = verify(derived.dataset, Reporter(), replay=replay)
        seconds = time.perf_counter() - started
        print(f"derivative: valid {report.valid}, {report.transforms} replayed, {seconds:.1f} s")
        assert report.valid and report.transforms == derived.dataset.state().slices
        started = time.perf_counter()
        root = verify(entry.dataset, Reporter())
        seconds = time.perf_counter() - started
        print(f"root with record: valid {root.valid}, {seconds:.1f} s, {memory() / 1e6:.0f} MB")
        assert root.valid
        print(f"slices of 100: {verdict(outcome.new_slices / 100, 1)}")


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if arguments[:1] == ["compact"]:
        run_compaction(Path(arguments[1]))
    elif arguments[:1] == ["baseline"]:
        run_baseline(Path(arguments[1]))
    elif arguments[:1] == ["commits"]:
        commits(*map(int, (arguments[1:] + ["100000", "20"][len(arguments) - 1 :])))
    else:
        compare(*map(int, (arguments + ["1000", "10000"][len(arguments) :])))
