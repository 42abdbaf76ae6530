"""Results of queries and the queries that were asked: what is kept of them, and for how long."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

from odf_engine.api.readers.query_history import MAX_QUERIES, add_to_history, load_history
from odf_engine.errors import BadData, NotFound
from odf_engine.rows.query_results import GROUP_ROWS, MAX_RESULTS, ResultRows, new_result, sweep, write

ROWS = pa.table({"n": list(range(3 * GROUP_ROWS)), "text": ["x"] * (3 * GROUP_ROWS)})


def test_result_rows_are_read_in_order_from_any_offset(tmp_path: Path) -> None:
    path = tmp_path / "r.parquet"
    batches = ROWS.to_batches(max_chunksize=1000)
    assert write(path, ROWS.schema, batches, ROWS.num_rows) == (ROWS.num_rows, False)
    rows = ResultRows(path)
    assert rows.row_count == ROWS.num_rows
    for start in (0, GROUP_ROWS - 2, 2 * GROUP_ROWS + 17, ROWS.num_rows - 3):
        assert rows.window(start, 5) == ROWS.slice(start, 5)
    across = rows.window(GROUP_ROWS - 1, GROUP_ROWS + 2, ["n"])
    assert across == ROWS.select(["n"]).slice(GROUP_ROWS - 1, GROUP_ROWS + 2)
    assert rows.window(ROWS.num_rows, 5) == ROWS.slice(0, 0)
    assert write(path, ROWS.schema, [], 5) == (0, False)
    assert ResultRows(path).window(0, 5) == ROWS.slice(0, 0)


def test_reading_stops_at_the_row_limit(tmp_path: Path) -> None:
    taken = []

    def batches():
        for batch in ROWS.to_batches(max_chunksize=1000):
            taken.append(batch)
            yield batch

    assert write(tmp_path / "r.parquet", ROWS.schema, batches(), 1500) == (1500, True)
    assert len(taken) == 2
    assert write(tmp_path / "r.parquet", ROWS.schema, ROWS.slice(0, 1500).to_batches(), 1500) == (1500, False)


def test_newest_results_are_kept_and_partial_ones_removed(tmp_path: Path) -> None:
    made: list[Path] = []
    for number in range(MAX_RESULTS + 3):
        with new_result(tmp_path) as (part, target):
            part.write_bytes(b"0" * 10)
        os.utime(target, (number, number))
        made.append(target)
    path = made[-1]
    sweep(tmp_path)
    folder = tmp_path / "cache" / "queries"
    assert len(list(folder.iterdir())) == MAX_RESULTS
    assert path.exists()
    sweep(tmp_path, kept_bytes=35)
    assert len(list(folder.iterdir())) == 3
    sweep(tmp_path, kept_bytes=1)
    assert list(folder.iterdir()) == [path]  # the newest stays, however large it is
    with pytest.raises(ZeroDivisionError), new_result(tmp_path) as (part, _):
        part.write_bytes(b"half")
        raise ZeroDivisionError
    assert list(folder.iterdir()) == [path]


def test_missing_or_invalid_result_is_reported(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="was removed"):
        ResultRows(tmp_path / "gone.parquet")
    (tmp_path / "bad.parquet").write_bytes(b"no parquet")
    with pytest.raises(BadData, match="cannot be read"):
        ResultRows(tmp_path / "bad.parquet")


def test_query_history_has_unique_queries_newest_last(tmp_path: Path) -> None:
    assert load_history(tmp_path) == []
    for sql in ("SELECT 1", "SELECT 'ä\n2'", " SELECT 1\n"):
        add_to_history(tmp_path, sql)
    assert load_history(tmp_path) == ["SELECT 'ä\n2'", "SELECT 1"]
    path = tmp_path / "cache" / "sql-history.jsonl"
    path.write_bytes(b'{"sql": \xff\n[1]\n{"sql": 7}\n' + path.read_bytes())
    assert load_history(tmp_path) == ["SELECT 'ä\n2'", "SELECT 1"]
    path.write_text("".join(f'{{"sql": "SELECT {number}"}}\n' for number in range(MAX_QUERIES)))
    add_to_history(tmp_path, "SELECT x")
    assert len(load_history(tmp_path)) == MAX_QUERIES
    assert load_history(tmp_path)[0] == "SELECT 1"
