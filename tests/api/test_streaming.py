"""Rows as Arrow streams: other libraries read them, with bounded memory."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import odf_engine as odf
from tests.api import streaming
from tests.bench.common import append_rows, make_empty

ROWS = 1_500_000
_LIMIT_MIB = 120


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> odf.Workspace:
    """A workspace with a dataset of 100 rows in four slices, written without Spark."""
    opened = odf.init(tmp_path_factory.mktemp("streams") / "ws")
    entry = make_empty(opened._workspace, "my.rows")
    for _ in range(4):
        append_rows(entry, 25)
    return opened


def _from_pandas(rows: odf.Rows) -> list[int]:
    stream = pa.RecordBatchReader.from_stream(rows)
    return pd.concat([batch.to_pandas() for batch in stream])["id"].tolist()


READERS: dict[str, Callable[[Any], list[int]]] = {
    "duckdb": lambda rows: [each for (each,) in duckdb.sql("SELECT id FROM rows ORDER BY id").fetchall()],
    "polars": lambda rows: pl.DataFrame(rows)["id"].to_list(),
    "polars series": lambda rows: pl.from_arrow(rows.to_reader())["id"].to_list(),  # type: ignore[call-overload]
    "pandas": lambda rows: pd.DataFrame.from_arrow(rows)["id"].tolist(),
    "pandas by batch": _from_pandas,
    "pyarrow": lambda rows: pa.table(rows)["id"].to_pylist(),
}


@pytest.mark.parametrize("library", READERS)
def test_libraries_read_a_stream(library: str, workspace: odf.Workspace) -> None:
    if library == "pandas" and not hasattr(pd.DataFrame, "from_arrow"):
        pytest.skip("pandas 2 has no reader of Arrow streams")
    rows = workspace["my.rows"].scan(columns=["id", "region", "event_time"])
    assert READERS[library](rows) == list(range(100))
    assert READERS[library](rows) == list(range(100))  # they can be read again


def test_duckdb_joins_datasets_and_earlier_versions(workspace: odf.Workspace) -> None:
    connection = duckdb.connect()
    connection.register("now", workspace["my.rows"].scan())
    connection.register("before", workspace["my.rows"].scan(offsets=(None, 25)))
    found = connection.execute("SELECT count(*) FROM now ANTI JOIN before USING (id)").fetchall()
    assert found == [(75,)]


def test_requested_arrow_schema_is_applied(workspace: odf.Workspace) -> None:
    rows = workspace["my.rows"].scan(columns=["region"])
    wanted = pa.schema([pa.field("region", pa.large_string())])
    assert pa.table(rows, schema=wanted).schema.field("region").type == pa.large_string()


@pytest.mark.complete
def test_memory_is_bounded(tmp_path: Path) -> None:
    opened = odf.init(tmp_path / "ws")
    append_rows(make_empty(opened._workspace, "my.rows"), ROWS)
    command = [sys.executable, "-m", streaming.__name__, str(opened.folder), "my.rows"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    steps = json.loads(done.stdout)
    assert [count for _, count, _ in steps.values()] == [ROWS] * 4
    peaks = {name: peak for name, (peak, _, _) in steps.items()}
    assert peaks["batches"] - peaks["open"] < _LIMIT_MIB
    assert peaks["duckdb"] - peaks["open"] < _LIMIT_MIB
    assert peaks["table"] - peaks["open"] > _LIMIT_MIB  # all rows exceed the limit
