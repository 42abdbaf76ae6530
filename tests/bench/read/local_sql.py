"""SQL without Spark: queries of DuckDB over a dataset, and the first look at a data file.

The dataset has 10 million rows of 8 columns in 100 slices. The queries run in the worker of the workspace, as
in the shell and the SQL pane. The file is a CSV of 1 GB; the baseline is DuckDB's own reader, which converts
the same columns in this process.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import DEVNULL

import duckdb
from pyarrow import csv

from odf_engine.api import Reporter, open_file_table
from odf_engine.api.readers.file_rows import describe_rows
from odf_engine.api.workspace import open as open_workspace
from odf_engine.workspace.workspace import Workspace
from tests.bench.common import append_slice, make_empty, make_rows, no_fsync
from tests.bench.measure import Figure, Metric, Size, median, timed

RUNS = 5
METRICS = {
    "count": Metric("count of 10M rows, the second query", goal="<= 0.15 s"),
    "group": Metric("sum of 10M rows by 1,000 groups", "DuckDB in this process"),
    "command": Metric("odf sql, the command, with a running worker"),
    "cold": Metric("the same query, with the start of the worker"),
    "first": Metric("first rows of a CSV of 1 GB", goal="<= 1 s"),
    "all": Metric("all rows of the CSV", "DuckDB in this process"),
    "statistics": Metric("statistics of all its columns", "SUMMARIZE of DuckDB", "<= 1.2x"),
}
COUNT = "SELECT count(*) AS n FROM numbers"
GROUPS = "SELECT id % 1000 AS k, sum(id) AS n FROM numbers GROUP BY 1"


def run(size: Size, folder: Path) -> list[Figure]:
    return [*measure_queries(size, folder), *measure_file(size, folder)]


def measure_queries(size: Size, folder: Path) -> list[Figure]:
    workspace = Workspace.init(folder / "ws")
    entry = make_empty(workspace, "numbers")
    rows, slice_rows = size.pick(10_000_000, 100_000), size.pick(100_000, 10_000)
    with no_fsync():
        for first in range(0, rows, slice_rows):
            append_slice(entry, make_rows(first, slice_rows).to_batches())
    paths = [str(entry.dataset.slice_path(row)) for row in entry.dataset.slices()]
    odf = [sys.executable, "-c", "from odf_tui.main import main; main()", "sql", "--engine", "duckdb", COUNT]
    with open_workspace(workspace.folder, in_process=False, progress=False) as opened:
        started = timed(lambda: opened.sql(COUNT, engine="duckdb"))
        count = quiet_median(lambda: opened.sql(COUNT, engine="duckdb"))
        group = quiet_median(lambda: opened.sql(GROUPS, engine="duckdb"))
        command = quiet_median(lambda: subprocess.run(odf, cwd=workspace.folder, check=True, stdout=DEVNULL))
    with duckdb.connect() as connection:
        connection.execute(f"CREATE VIEW numbers AS FROM read_parquet({paths})")
        alone = median(lambda: connection.sql(GROUPS).fetchall(), RUNS)
    return [
        METRICS["count"].figure(count),
        METRICS["group"].figure(group, alone),
        METRICS["command"].figure(command),
        METRICS["cold"].figure(started),
    ]


def quiet_median(work: Callable[[], object]) -> float:
    """Return the median time of work, with pauses in which the next process starts."""
    times: list[float] = []
    for _ in range(RUNS):
        time.sleep(0.7)
        times.append(timed(work))
    return statistics.median(times)


def measure_file(size: Size, folder: Path) -> list[Figure]:
    path = folder / "rows.csv"
    with csv.CSVWriter(path, make_rows(0, 1).schema) as writer:
        for first in range(0, size.pick(10_000_000, 100_000), 100_000):
            writer.write_table(make_rows(first, 100_000))
    with open_file_table([str(path)], None, folder / "cache") as table:
        times: list[float] = []
        started = time.perf_counter()
        rows = table.read(Reporter(), on_first=lambda _: times.append(time.perf_counter() - started))
        times.append(time.perf_counter() - started)
        statistics_time = timed(lambda: describe_rows(rows, folder, Reporter()))
        with duckdb.connect() as connection:
            target = folder / "alone.parquet"
            options = "FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1"
            alone = timed(lambda: connection.execute(f"COPY (FROM '{path}') TO '{target}' ({options})"))
            summary = timed(lambda: connection.sql(f"SUMMARIZE FROM '{rows.path}'").fetchall())
    return [
        METRICS["first"].figure(times[0]),
        METRICS["all"].figure(times[1], alone),
        METRICS["statistics"].figure(statistics_time, summary),
    ]
