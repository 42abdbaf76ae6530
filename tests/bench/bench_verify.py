"""Integrity verification of slices, against `openssl dgst -sha3-256` over the same files, two at once.

    python tests/bench/bench_verify.py [MEGABYTES] [FOLDER]

Slices of numbers that do not compress (2000 MB by default) are committed to a dataset. Its first verification
decodes all rows, checks them and computes their logical hashes, which takes the longer the better data
compress; later ones read and hash all bytes, and know their rows. Both sides find the files in memory, if
they fit there, and take turns. The last column also has the ratio by processor time, which is what it
would be on a machine that does nothing else.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from odf_engine.chain.block_index import BlockIndex
from odf_engine.chain.dataset import Dataset
from odf_engine.data.arrow_schema import encode_schema
from odf_engine.data.slices import slice_schema, write_slice
from odf_engine.identity.did import DatasetId
from odf_engine.metadata.model import (
    DEFAULT_VOCABULARY,
    AddData,
    DatasetKind,
    DataSlice,
    MetadataEvent,
    Seed,
    SetDataSchema,
)
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.progress import Reporter
from odf_engine.verify.integrity import verify
from odf_engine.verify.report import Report

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.bench.common import table, verdict

ROUNDS = 5
ROWS = 2_000_000
NAMES = [f"measured{number}" for number in range(6)]
COLUMNS = pa.schema([("event_time", pa.timestamp("ms", "UTC")), *((name, pa.int64()) for name in NAMES)])
SCHEMA = slice_schema(COLUMNS, DEFAULT_VOCABULARY)


def main() -> None:
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    folder = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(tempfile.mkdtemp(prefix="odf-bench-"))
    index = BlockIndex(folder / "index.sqlite")
    dataset = Dataset(folder / "dataset", index)
    try:
        fill(dataset, megabytes)
        report(dataset, index)
    finally:
        index.close()
        if len(sys.argv) <= 2:
            shutil.rmtree(folder)


def fill(dataset: Dataset, megabytes: int) -> None:
    """Commits slices until there is so much; what a folder has already counts."""
    if dataset.head() is None:
        dataset.folder.mkdir(parents=True)
        seed = Seed(DatasetId(bytes(32)), DatasetKind.Root)
        commit(dataset, None, seed, SetDataSchema(encode_schema(SCHEMA)))
    while dataset.state().data_size < megabytes * 1_000_000:
        state = dataset.state()
        first = 0 if state.last_offset is None else state.last_offset + 1
        written = write_slice(
            [rows(first)],
            schema=SCHEMA,
            vocab=DEFAULT_VOCABULARY,
            path=dataset.staging_path("data"),
            first_offset=first,
            system_time=Timestamp.now(),
            fallback_event_time=Timestamp.now(),
            reporter=Reporter(),
        )
        assert written is not None
        data = DataSlice(written.logical_hash, written.physical_hash, written.offset_interval, written.size)
        event = AddData(prev_offset=state.last_offset, new_data=data, new_watermark=written.max_event_time)
        commit(dataset, written.path, event)


def rows(first: int) -> pa.RecordBatch:
    """An increasing time and six random numbers a row."""
    times = pa.array(range(first, first + ROWS), pa.timestamp("ms", "UTC"))
    columns = (pa.py_buffer(os.urandom(8 * ROWS)) for _ in NAMES)
    numbers = [pa.Array.from_buffers(pa.int64(), ROWS, [None, values]) for values in columns]
    return pa.record_batch([times, *numbers], COLUMNS)


def commit(dataset: Dataset, data: Path | None, *events: MetadataEvent) -> None:
    dataset.commit(events, system_time=Timestamp.now(), expected_head=dataset.head(), data=data)


def report(dataset: Dataset, index: BlockIndex) -> None:
    files = [dataset.slice_path(row) for row in dataset.slices()]
    megabytes = sum(path.stat().st_size for path in files) / 1e6
    openssl(files)  # brings them to memory
    first = cost(lambda: check(verify(dataset, Reporter(), known=index), known=None))
    rounds: list[tuple[Cost, Cost]] = []
    for _ in range(ROUNDS):
        ours = cost(lambda: check(verify(dataset, Reporter(), known=index), known=len(files)))
        rounds.append((ours, cost(lambda: openssl(files))))
    again = least([ours for ours, _ in rounds])
    theirs = least([baseline for _, baseline in rounds])
    title = f"Integrity of {len(files)} slices, {megabytes:.0f} MB, {len(files) * ROWS:,} rows; "
    table(
        title + f"{os.cpu_count()} cores, against openssl, two files at once",
        [
            line("bytes; rows known from before", megabytes, again, theirs, 1.2),
            line("the first time: rows and logical hashes too", megabytes, first, theirs, None),
        ],
    )


class Cost(NamedTuple):
    """Seconds on the clock, and seconds of all processors together, also of child processes."""

    wall: float
    processor: float


def cost(work: Callable[[], object]) -> Cost:
    wall, before = time.perf_counter(), processors()
    work()
    return Cost(time.perf_counter() - wall, processors() - before)


def processors() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def least(costs: list[Cost]) -> Cost:
    return Cost(min(each.wall for each in costs), min(each.processor for each in costs))


def check(found: Report, known: int | None) -> None:
    if not found.valid or (known is not None and found.rows_known != known):
        raise SystemExit(f"the measurement is wrong: {found.findings or found.rows_known}")


def openssl(files: list[Path]) -> None:
    """Two processes at once, each for the half of the bytes."""
    running = [
        subprocess.Popen(["openssl", "dgst", "-sha3-256", *half], stdout=subprocess.DEVNULL)
        for half in halves(files)
    ]
    if any(process.wait() for process in running):
        raise SystemExit("openssl failed")


def halves(files: list[Path]) -> Iterator[list[Path]]:
    """The largest file first, each to the smaller half."""
    parts: list[list[Path]] = [[], []]
    sizes = [0, 0]
    for path in sorted(files, key=lambda each: -each.stat().st_size):
        at = sizes.index(min(sizes))
        parts[at].append(path)
        sizes[at] += path.stat().st_size
    yield from filter(None, parts)


def line(
    what: str, megabytes: float, found: Cost, baseline: Cost, goal: float | None
) -> tuple[str, str, str, str]:
    ratio = found.wall / baseline.wall
    idle = f"{found.processor / baseline.processor:.2f}x by processor time"
    return (
        what,
        f"{found.wall:.2f} s, {megabytes / found.wall:.0f} MB/s",
        f"{baseline.wall:.2f} s, {megabytes / baseline.wall:.0f} MB/s",
        f"{verdict(ratio, goal) if goal else f'{ratio:.2f}x'}; {idle}",
    )


if __name__ == "__main__":
    main()
