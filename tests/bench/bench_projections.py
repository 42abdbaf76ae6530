"""The current state of a changelog by key, the first time and once there is a state file, and as at a block.

    python tests/bench/bench_projections.py [ROWS] [FOLDER]

A changelog of 10 million rows by default, of 8 columns, in slices of half a million: a row of each of a
tenth as many keys, then corrections of them, -C and +C. The baseline is bare Spark that reads the slices and
takes the newest row of each key by row_number(), with the number of partitions that serves it best; it writes
nothing, where ours writes the file of the state. Where others use the machine, the seconds of processor say
more. The state is made from the beginning, asked for again, and after one row in a hundred more. Then, in a
thousand slices of 2,000 rows: the state as at the block in the middle against the state of all, and how many
files were opened for it; and all rows up to there.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import pyarrow as pa

from odf_engine.data.arrow_compute import pc
from odf_engine.data.slices import write_slice
from odf_engine.metadata.model import DEFAULT_VOCABULARY, AddData, DataSlice
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.progress import Reporter
from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.spark.runtime.spark_conf import SparkOptions
from odf_engine.views import scan
from odf_engine.views.as_at import resolve_as_at
from odf_engine.views.projection import Projection, build_projection
from odf_engine.views.scan import Scan
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.bench.common import SCHEMA, Peaks, commit, make_empty, make_rows, median, table, timed, verdict

RUNS = 3
STEP = 500_000
PARTITIONS = (8, 32)
SLICES, SLICE_ROWS = 1000, 2000


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000
    root = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(tempfile.mkdtemp(prefix="odf-bench-"))
    root.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(root / "ws", ignore_errors=True)
    workspace = Workspace.init(root / "ws")
    try:
        by_key(workspace, root, rows)
        as_at(workspace)
    finally:
        if len(sys.argv) <= 2:
            shutil.rmtree(root)


# --- The current state -------------------------------------------------------------------------------


def by_key(workspace: Workspace, root: Path, rows: int) -> None:
    """The current state against Spark, and what the state file saves."""
    entry, keys = make_empty(workspace, "changelog"), rows // 10
    grow(entry, keys, rows, STEP)
    paths = [str(entry.dataset.slice_path(row)) for row in entry.dataset.slices()]
    peaks, me = Peaks([os.getpid()]), os.getpid()
    cold: list[Cost] = []
    with peaks.watch():
        for _ in range(RUNS):
            shutil.rmtree(workspace.odf / "cache" / "projections", ignore_errors=True)
            cold.append(cost(lambda: state(workspace, entry), me))
        warm = median(lambda: state(workspace, entry), 5)
        found = state(workspace, entry)
        grow(entry, keys, rows + rows // 100, STEP)
        more = min(after_more(workspace, entry, me) for _ in range(RUNS))
        half = Timestamp.from_ms(1_700_000_000_000 + rows // 2 * 1000)
        of = cost(lambda: build_projection(workspace.odf, entry.dataset, ["id"], Reporter(), as_of=half), me)
    bare = in_spark(root, paths, found.rows)
    spark, first = min(each for costs in bare.values() for each in costs), min(cold)
    goal = verdict(first.clock / spark.clock, 0.5)
    table(
        f"Current state of {rows:,} rows, {found.rows:,} keys, {os.cpu_count()} cores; best of {RUNS}",
        [
            ("from the beginning, vs row_number() in bare Spark", str(first), str(spark), goal),
            ("the same, processor seconds", f"{first.processor:.1f} s", f"{spark.processor:.1f} s",
             f"{first.processor / spark.processor:.2f}x"),
            ("asked for again, vs Spark", f"{warm * 1000:.0f} ms", str(spark),
             verdict(warm / spark.clock, 0.01)),
            ("after 1 % more rows, vs from the beginning", str(more), str(first),
             verdict(more.clock / first.clock, 0.5)),
            ("as of an event time in the middle, vs Spark", str(of), str(spark),
             f"{of.clock / spark.clock:.2f}x"),
            ("memory of the worker, peak", f"{peaks.mib[me]:.0f} MiB", "", ""),
        ],
    )  # fmt: skip
    print("from the beginning:", ", ".join(map(str, cold)))
    print("bare, by partitions:", {count: ", ".join(map(str, costs)) for count, costs in bare.items()})


def after_more(workspace: Workspace, entry: DatasetEntry, pid: int) -> Cost:
    """What the state takes from the one before the newest slices; its file goes again."""
    made: list[Projection] = []
    found = cost(lambda: made.append(state(workspace, entry)), pid)
    made[0].file.unlink()
    return found


class Cost(NamedTuple):
    """Seconds by the clock, and of a process."""

    clock: float
    processor: float

    def __str__(self) -> str:
        return f"{self.clock:.1f} s ({self.processor:.1f} s of processor)"


def cost(work: Callable[[], object], pid: int) -> Cost:
    """What it takes in a process, which may be another one that does the work."""
    before, clock = processor(pid), timed(work)
    return Cost(clock, processor(pid) - before)


def processor(pid: int) -> float:
    """Seconds that a process has had."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def state(workspace: Workspace, entry: DatasetEntry, until: int | None = None) -> Projection:
    """The current state by the number of a row."""
    return build_projection(workspace.odf, entry.dataset, ["id"], Reporter(), last_offset=until)


def in_spark(root: Path, paths: Sequence[str], rows: int) -> dict[int, list[Cost]]:
    """What Spark alone takes, by the number of partitions."""
    spark = SparkRuntime(SparkOptions(), root / "spark.log", root / "cache")
    spark.start()
    query = """
        SELECT * EXCEPT (odf_number) FROM (
            SELECT *, row_number() OVER (PARTITION BY id ORDER BY offset DESC) AS odf_number FROM changelog
        ) WHERE odf_number = 1 AND op IN (0, 3)
    """
    found: dict[int, list[Cost]] = {}
    try:
        session = spark.session()
        session.read.parquet(*paths).createOrReplaceTempView("changelog")
        assert session.sql(query).count() == rows
        for count in PARTITIONS:
            session.conf.set("spark.sql.shuffle.partitions", str(count))
            write = session.sql(query).write.format("noop").mode("overwrite")
            found[count] = [cost(write.save, spark.pid or 0) for _ in range(2)]
    finally:
        spark.stop()
    return found


# --- As at a block -----------------------------------------------------------------------------------


def as_at(workspace: Workspace) -> None:
    """The state as at the block in the middle, against that of all."""
    entry = make_empty(workspace, "slices")
    keys = SLICES * SLICE_ROWS // 10
    grow(entry, keys, SLICES * SLICE_ROWS, SLICE_ROWS)
    middle = entry.dataset.slices()[SLICES // 2 - 1]
    at = resolve_as_at(entry, str(entry.dataset.block(middle.sequence_number).hash))
    assert at.last_offset == middle.end
    found = {
        "rows": in_turn(lambda until: read(entry, until), middle.end),
        "state (keys are as many)": in_turn(lambda until: state_anew(workspace, entry, until), middle.end),
    }
    resolved = median(lambda: resolve_as_at(entry, str(middle.system_time)), 20)
    rows: list[tuple[str, str, str, str]] = []
    for what, ((part, opened), (whole, all_opened)) in found.items():
        text = f"{what} as at the middle, vs of all; files opened"
        ours, base = f"{part}, {opened}", f"{whole}, {all_opened}"
        rows.append((text, ours, base, verdict(part.clock / whole.clock, 0.6)))
    rows.append(("finding the block of a time", f"{resolved * 1000:.1f} ms", "", ""))
    table(f"As at a block, {SLICES:,} slices of {SLICE_ROWS:,} rows; best of {RUNS}", rows)


def in_turn(work: Callable[[int | None], None], until: int) -> tuple[tuple[Cost, int], tuple[Cost, int]]:
    """Best time of both, up to an offset and of all, one after the other; and how many slices each opens."""
    times: dict[int | None, list[Cost]] = {until: [], None: []}
    opened: dict[int | None, set[Path]] = {until: set(), None: set()}
    for _ in range(RUNS):
        for end, costs in times.items():
            costs.append(cost(lambda end=end: work(end), os.getpid()))
    for end, files in opened.items():
        with watched(files):
            work(end)
    return (min(times[until]), len(opened[until])), (min(times[None]), len(opened[None]))


def state_anew(workspace: Workspace, entry: DatasetEntry, until: int | None) -> None:
    """The state from the beginning."""
    shutil.rmtree(workspace.odf / "cache" / "projections", ignore_errors=True)
    state(workspace, entry, until)


def read(entry: DatasetEntry, until: int | None) -> None:
    """All rows."""
    for _ in Scan.of_dataset(entry.dataset, until).batches():
        pass


def watched(opened: set[Path]) -> mock._patch:  # type: ignore[type-arg]
    """Notes the slices that are opened."""
    before = scan.ScanFile.open

    def noting(part: scan.ScanFile, *, complete: bool = False):
        if part.path.parent.name == "data":
            opened.add(part.path)
        return before(part, complete=complete)

    return mock.patch.object(scan.ScanFile, "open", noting)


# --- Making changelogs -------------------------------------------------------------------------------


def grow(entry: DatasetEntry, keys: int, until: int, step: int) -> None:
    """Appends slices until there are so many rows: first one of each key, then corrections."""
    with mock.patch("os.fsync", lambda descriptor: None):
        while (first := entry.dataset.state().records) < until:
            stop = keys if first < keys else until
            append(entry, first, changes(first, min(stop, first + step), keys))


def append(entry: DatasetEntry, first: int, batches: Iterator[pa.RecordBatch]) -> None:
    """Commits one slice."""
    state, now = entry.dataset.state(), Timestamp.now()
    staged = entry.dataset.staging_path("data")
    written = write_slice(
        batches, schema=SCHEMA, vocab=DEFAULT_VOCABULARY, path=staged, first_offset=first,
        system_time=now, fallback_event_time=now, reporter=Reporter(),
    )  # fmt: skip
    assert written is not None
    data = DataSlice(written.logical_hash, written.physical_hash, written.offset_interval, written.size)
    mark = written.max_event_time
    assert mark is not None
    mark = max(mark, state.watermark or mark)
    commit(entry, [AddData(prev_offset=state.last_offset, new_data=data, new_watermark=mark)], staged)


def changes(first: int, stop: int, keys: int) -> Iterator[pa.RecordBatch]:
    """Rows of the changelog by their offsets."""
    if first < keys:
        added = make_rows(first, stop - first)
        yield from added.append_column("op", pa.repeat(pa.scalar(0, pa.uint8()), added.num_rows)).to_batches()
        return
    pair = (first - keys) // 2
    old = make_rows(pair, (stop - first) // 2)
    new = make_rows(pair + keys, old.num_rows)
    both = pa.concat_tables([old, new])
    ops = pc.if_else(pc.less(pc.cast(places(both.num_rows), pa.int64()), old.num_rows), 2, 3)
    both = both.set_column(1, "id", remainder(both.column("id"), keys))
    both = both.append_column("op", ops.cast(pa.uint8()))
    order = pc.sort_indices(pa.table({"at": remainder(places(both.num_rows), old.num_rows), "op": ops}),
                            sort_keys=[("at", "ascending"), ("op", "ascending")])  # fmt: skip
    yield from both.take(order).combine_chunks().to_batches()


def places(count: int) -> pa.Array:
    return pa.array(range(count), pa.int64())


def remainder(number: pa.Array, by: int) -> pa.Array:
    return pc.subtract(number, pc.multiply(pc.divide(number, by), by))


if __name__ == "__main__":
    main()
