"""The current state of a changelog by key, compared with bare Spark, and the state as at a block.

The changelog has 10 million rows of 8 columns in slices of half a million: one row of a million keys, then
corrections. Spark reads the slices and selects the newest row of each key by row_number(), with the number of
partitions that is best, and writes nothing. Another dataset has 1,000 slices of 2,000 rows.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from unittest import mock

import pyarrow as pa

from odf_engine.base.progress import Reporter
from odf_engine.data.arrow_compute import pc
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.rows import scan
from odf_engine.rows.as_at import resolve_as_at
from odf_engine.rows.projection import Projection, build_projection
from odf_engine.rows.scan import Scan
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace
from tests.bench.common import append_slice, make_empty, make_rows, no_fsync
from tests.bench.measure import Cost, Figure, Metric, Peaks, Size, best, cost, median
from tests.bench.spark import start_spark

RUNS = 3
PARTITIONS = (8, 32)
METRICS = {
    "first": Metric("current state, computed from all rows", "row_number() in Spark", "<= 0.5x"),
    "again": Metric("current state, requested again", "row_number() in Spark", "<= 0.01x"),
    "more": Metric("current state, after 1 % more rows", "computed from all rows", "<= 0.5x"),
    "as of": Metric("state as of an event time in the middle", "row_number() in Spark"),
    "memory": Metric("memory of the states above", unit="MB"),
    "rows at": Metric("rows as at the block in the middle", "all rows", "<= 0.6x"),
    "rows at: files": Metric("rows as at the block in the middle: slices", "all rows", unit="files"),
    "state at": Metric("state as at the block in the middle", "of all rows", "<= 0.6x"),
    "state at: files": Metric("state as at the block in the middle: slices", "of all rows", unit="files"),
    "resolve": Metric("find the block of a time"),
}


def run(size: Size, folder: Path) -> list[Figure]:
    workspace = Workspace.init(folder / "ws")
    return [
        *measure_states(workspace, folder, size.pick(10_000_000, 100_000), size.pick(500_000, 20_000)),
        *measure_as_at(workspace, size.pick(1000, 10), 2000),
    ]


def measure_states(workspace: Workspace, folder: Path, rows: int, slice_rows: int) -> list[Figure]:
    entry, keys = make_empty(workspace, "changelog"), rows // 10
    grow(entry, keys, rows, slice_rows)
    paths = [str(entry.dataset.slice_path(row)) for row in entry.dataset.slices()]
    peaks = Peaks([os.getpid()])
    with peaks.watch():
        first = best([cost(lambda: build_without_cache(workspace, entry)) for _ in range(RUNS)])
        again = median(lambda: build(workspace, entry), 5)
        count = build(workspace, entry).rows
        grow(entry, keys, rows + rows // 100, slice_rows)
        more = best([measure_increment(workspace, entry) for _ in range(RUNS)])
        half = Timestamp.from_ms(1_700_000_000_000 + rows // 2 * 1000)
        as_of = cost(lambda: build_projection(workspace.odf, entry.dataset, ["id"], Reporter(), as_of=half))
    spark = measure_spark(folder, paths, count)
    return [
        METRICS["first"].figure(first, spark),
        METRICS["again"].figure(again, spark.wall),
        METRICS["more"].figure(more, first),
        METRICS["as of"].figure(as_of, spark),
        METRICS["memory"].figure(peaks.together),
    ]


def build(workspace: Workspace, entry: DatasetEntry, until: int | None = None) -> Projection:
    return build_projection(workspace.odf, entry.dataset, ["id"], Reporter(), last_offset=until)


def build_without_cache(workspace: Workspace, entry: DatasetEntry, until: int | None = None) -> None:
    shutil.rmtree(workspace.odf / "cache" / "projections", ignore_errors=True)
    build(workspace, entry, until)


def measure_increment(workspace: Workspace, entry: DatasetEntry) -> Cost:
    """Return the cost of a state that continues the state before the newest slices; its file is removed."""
    states: list[Projection] = []
    spent = cost(lambda: states.append(build(workspace, entry)))
    states[0].file.unlink()
    return spent


def measure_spark(folder: Path, paths: Sequence[str], rows: int) -> Cost:
    """Return the least cost of bare Spark, over the numbers of partitions."""
    query = """
        SELECT * EXCEPT (odf_number) FROM (
            SELECT *, row_number() OVER (PARTITION BY id ORDER BY offset DESC) AS odf_number FROM changelog
        ) WHERE odf_number = 1 AND op IN (0, 3)
    """
    costs: list[Cost] = []
    with start_spark(folder) as spark:
        session = spark.session()
        session.read.parquet(*paths).createOrReplaceTempView("changelog")
        assert session.sql(query).count() == rows
        for count in PARTITIONS:
            session.conf.set("spark.sql.shuffle.partitions", str(count))
            write = session.sql(query).write.format("noop").mode("overwrite")
            costs += [cost(write.save) for _ in range(2)]
    return best(costs)


def measure_as_at(workspace: Workspace, slices: int, slice_rows: int) -> list[Figure]:
    entry = make_empty(workspace, "slices")
    grow(entry, slices * slice_rows // 10, slices * slice_rows, slice_rows)
    middle = entry.dataset.slices()[slices // 2 - 1]
    at = resolve_as_at(entry, str(entry.dataset.block(middle.sequence_number).hash))
    assert at.last_offset == middle.end
    resolving = median(lambda: resolve_as_at(entry, str(middle.system_time)), 20)
    return [
        *compare("rows at", lambda until: read(entry, until), middle.end),
        *compare("state at", lambda until: build_without_cache(workspace, entry, until), middle.end),
        METRICS["resolve"].figure(resolving),
    ]


def compare(name: str, work: Callable[[int | None], None], until: int) -> list[Figure]:
    """Compare the work up to an offset with the work on all rows, in turns; count the slices of both."""
    costs: dict[int | None, list[Cost]] = {until: [], None: []}
    for _ in range(RUNS):
        for end, spent in costs.items():
            spent.append(cost(lambda end=end: work(end)))
    opened: dict[int | None, set[Path]] = {until: set(), None: set()}
    for end, files in opened.items():
        with recording_slices(files):
            work(end)
    return [
        METRICS[name].figure(best(costs[until]), best(costs[None])),
        METRICS[f"{name}: files"].figure(len(opened[until]), len(opened[None])),
    ]


def read(entry: DatasetEntry, until: int | None) -> None:
    for _ in Scan.of_dataset(entry.dataset, until).batches():
        pass


def recording_slices(paths: set[Path]) -> mock._patch:  # type: ignore[type-arg]
    """Return a context that records the slices that are opened."""
    original = scan.ScanFile.open

    def open_and_record(part: scan.ScanFile, *, complete: bool = False):
        if part.path.parent.name == "data":
            paths.add(part.path)
        return original(part, complete=complete)

    return mock.patch.object(scan.ScanFile, "open", open_and_record)


def grow(entry: DatasetEntry, keys: int, rows: int, slice_rows: int) -> None:
    """Extend a changelog to a number of rows: first a row for each key, then corrections."""
    with no_fsync():
        while (first := entry.dataset.state().records) < rows:
            stop = keys if first < keys else rows
            append_slice(entry, make_changes(first, min(stop, first + slice_rows), keys))


def make_changes(first: int, stop: int, keys: int) -> Iterator[pa.RecordBatch]:
    """Return rows of the changelog by their offsets."""
    if first < keys:
        added = make_rows(first, stop - first)
        yield from added.append_column("op", pa.repeat(pa.scalar(0, pa.uint8()), added.num_rows)).to_batches()
        return
    pair = (first - keys) // 2
    old = make_rows(pair, (stop - first) // 2)
    both = pa.concat_tables([old, make_rows(pair + keys, old.num_rows)])
    places = pa.array(range(both.num_rows), pa.int64())
    ops = pc.if_else(pc.less(places, old.num_rows), 2, 3)
    both = both.set_column(1, "id", modulo(both.column("id"), keys))
    both = both.append_column("op", ops.cast(pa.uint8()))
    keyed = pa.table({"pair": modulo(places, old.num_rows), "op": ops})
    order = pc.sort_indices(keyed, sort_keys=[("pair", "ascending"), ("op", "ascending")])
    yield from both.take(order).combine_chunks().to_batches()


def modulo(number: pa.Array, by: int) -> pa.Array:
    return pc.subtract(number, pc.multiply(pc.divide(number, by), by))
