"""Flight SQL: a result for an ADBC client, and the first answer of small queries.

The dataset has 10 million rows of 8 columns in 20 slices. The server is `odf serve --flight`, the client
runs in this process. The baseline is DuckDB in this process, which reads the same slices to Arrow.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
from adbc_driver_flightsql import dbapi

from odf_engine.workspace.workspace import Workspace
from tests.bench.common import COLUMNS, append_rows, make_empty, no_fsync
from tests.bench.measure import Figure, Metric, Size, median

RUNS = 5
METRICS = {
    "rows": Metric("10M rows of 8 columns by ADBC", "DuckDB in this process", "<= 1.3x"),
    "first": Metric("first answer of a new small query", goal="<= 0.05 s"),
    "again": Metric("answer of a prepared small query"),
}


def run(size: Size, folder: Path) -> list[Figure]:
    workspace = Workspace.init(folder / "ws")
    entry = make_empty(workspace, "numbers")
    rows, slices = size.pick(10_000_000, 100_000), 20
    with no_fsync():
        for _ in range(slices):
            append_rows(entry, rows // slices)
    paths = [str(entry.dataset.slice_path(row)) for row in entry.dataset.slices()]
    columns = ", ".join(column.split()[0] for column in COLUMNS)
    with serving(workspace) as url, dbapi.connect(url, autocommit=True) as client, client.cursor() as cursor:
        query(cursor, "SELECT 1")
        remote = median(lambda: query(cursor, f"SELECT {columns} FROM numbers"), RUNS)
        numbers = iter(range(1000))
        small = "SELECT count(*) AS n, {} AS k FROM numbers"
        first = median(lambda: query(cursor, small.format(next(numbers))), 20)
        again = median(lambda: query(cursor, small.format(0)), 20)
    with duckdb.connect() as connection:
        connection.execute(f"CREATE VIEW numbers AS FROM read_parquet({paths})")
        alone = median(
            lambda: drain(connection.sql(f"SELECT {columns} FROM numbers").to_arrow_reader()), RUNS
        )
    return [
        METRICS["rows"].figure(remote, alone),
        METRICS["first"].figure(first),
        METRICS["again"].figure(again),
    ]


@contextmanager
def serving(workspace: Workspace) -> Iterator[str]:
    """Run the server; yield its URL."""
    command = [sys.executable, "-c", "from odf_tui.main import main; main()", "serve", "--flight", "--json"]
    process = subprocess.Popen([*command, "--port", "0"], cwd=workspace.folder, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())["url"]
    finally:
        process.terminate()
        process.wait()


def query(cursor: Any, sql: str) -> None:
    cursor.execute(sql)
    drain(cursor.fetch_record_batch())


def drain(reader: Any) -> None:
    for _ in reader:
        pass
