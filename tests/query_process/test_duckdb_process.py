"""Queries in the DuckDB process: values of all types, files of earlier schemas, and the spare process."""

from __future__ import annotations

import math
import os
import signal
import struct
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odf_engine.base.progress import Reporter
from odf_engine.data.parquet.slices import TableFiles
from odf_engine.errors import BadData, InvalidQuery, OdfError
from odf_engine.metadata.model import DEFAULT_VOCABULARY, SqlQueryStep
from odf_engine.query_process import client
from odf_engine.query_process.client import DUCKDB, QueryOptions, run_query

_FLOATS = st.sampled_from([0.0, -0.0, 1.5, math.nan, math.inf, -math.inf])
_TEXTS = st.sampled_from(["", "a", "ß", "a\0b", "'", "🙂"])
_TIMES = st.sampled_from([0, 1, -1, 2**40 + 123])
VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.sampled_from([-128, 0, 127]),
    pa.int64(): st.sampled_from([-(2**63), 0, 2**63 - 1]),
    pa.uint16(): st.sampled_from([0, 2**16 - 1]),
    pa.uint64(): st.sampled_from([0, 2**64 - 1]),
    pa.float32(): _FLOATS,
    pa.float64(): _FLOATS,
    pa.decimal128(38, 2): st.sampled_from([Decimal("0.00"), Decimal("-1.10"), Decimal(10) ** 35]),
    pa.string(): _TEXTS,
    pa.large_string(): _TEXTS,
    pa.binary(): st.sampled_from([b"", b"\0", b"\xff"]),
    pa.date32(): st.sampled_from([0, -1, 20000]),
    pa.timestamp("us", "UTC"): _TIMES,
    pa.timestamp("ms", "UTC"): _TIMES,
    pa.timestamp("ns", "UTC"): _TIMES,
    pa.timestamp("ns"): _TIMES,
    pa.timestamp("us"): _TIMES,
    pa.list_(pa.float64()): st.lists(st.none() | _FLOATS, max_size=2),
    pa.struct([("x y", pa.float64()), ("t", pa.string())]): st.fixed_dictionaries(
        {"x y": st.none() | _FLOATS, "t": st.none() | _TEXTS}
    ),
    pa.map_(pa.string(), pa.int32()): st.sampled_from([[], [("a", 1), ("b", None)]]),
}


@contextmanager
def _answer(sql: str, paths: Sequence[Path], schema: pa.Schema) -> Iterator[pa.Table]:
    table = TableFiles("my.table", paths, schema, DEFAULT_VOCABULARY)
    options = QueryOptions(program=DUCKDB, system_columns=False)
    with (
        tempfile.TemporaryDirectory() as folder,
        run_query([SqlQueryStep(query=sql)], [table], Path(folder), 1 << 30, Reporter(), options) as rows,
    ):
        yield pa.Table.from_batches(list(rows.batches), rows.schema)


def _query(sql: str, paths: Sequence[Path], schema: pa.Schema) -> pa.Table:
    with _answer(sql, paths, schema) as table:
        return table


def _bits(value: object) -> object:
    """Return a value that is equal to another one if and only if their bits are."""
    match value:
        case float():
            return "nan" if math.isnan(value) else struct.pack("<d", value)
        case list() | tuple():
            return [_bits(item) for item in value]
        case dict():
            return {name: _bits(item) for name, item in value.items()}
    return value


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_values_of_all_types_are_read_exactly(data: st.DataObject) -> None:
    types = data.draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=8, unique=True))
    count = data.draw(st.integers(0, 5))
    columns = [
        pa.array(data.draw(st.lists(st.none() | VALUES[kind], min_size=count, max_size=count)), kind)
        for kind in types
    ]
    table = pa.table(columns, names=[f"c {at}" for at in range(len(types))])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "slice"
        pq.write_table(table, path)
        result = _query('SELECT * FROM "my.table"', [path], table.schema)
    for at, kind in enumerate(types):
        cast = result.column(at) if pa.types.is_map(kind) else result.column(at).cast(kind)
        assert _bits(cast.to_pylist()) == _bits(columns[at].to_pylist()), kind


def test_nan_is_greater_than_every_number(tmp_path: Path) -> None:
    """The statistics of Parquet files do not count NaN."""
    table = pa.table({"n": [1, 2], "d": [1.0, math.nan], "s": [{"d": 1.0}, {"d": math.nan}]})
    pq.write_table(table, tmp_path / "a")
    for condition in ("d > 5", "d = 'nan'", "NOT d <= 1", "s.d > 5"):
        result = _query(f'SELECT n FROM "my.table" WHERE {condition}', [tmp_path / "a"], table.schema)
        assert result["n"].to_pylist() == [2], condition
    biggest = _query('SELECT max(d) AS d FROM "my.table"', [tmp_path / "a"], table.schema)
    assert math.isnan(biggest["d"].to_pylist()[0])


def test_columns_and_types_of_earlier_slices_become_those_of_the_table(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": pa.array([1], pa.int32())}), tmp_path / "a [b]*")
    pq.write_table(pa.table({"m": ["x"], "n": pa.array([2**40])}), tmp_path / "b")
    schema = pa.schema([("n", pa.int64()), ("m", pa.string()), ("later", pa.list_(pa.date32()))])
    paths = [tmp_path / "a [b]*", tmp_path / "b"]
    result = _query('SELECT * FROM "my.table" ORDER BY n', paths, schema)
    assert result.to_pylist() == [
        {"n": 1, "m": None, "later": None},
        {"n": 2**40, "m": "x", "later": None},
    ]
    empty = _query('SELECT * FROM "my.table"', [], schema)
    assert empty.num_rows == 0 and empty.schema.names == ["n", "m", "later"]


def test_decimals_of_more_than_38_digits_are_texts(tmp_path: Path) -> None:
    value = Decimal("12345678901234567890123456789012345678901234567.25")
    table = pa.table({"d": pa.array([value, None], pa.decimal256(60, 2)), "n": [1, 2]})
    pq.write_table(table, tmp_path / "a")
    result = _query('SELECT d, n FROM "my.table"', [tmp_path / "a"], table.schema)
    assert result.to_pylist() == [{"d": str(value), "n": 1}, {"d": None, "n": 2}]


def test_columns_whose_names_differ_in_case_are_an_error(tmp_path: Path) -> None:
    table = pa.table({"city": ["a"], "City": ["b"]})
    pq.write_table(table, tmp_path / "a")
    with pytest.raises(InvalidQuery, match="the columns 'city' and 'City' of my") as error:
        _query("SELECT 1", [tmp_path / "a"], table.schema)
    assert error.value.hint == "use the engine spark"


def test_a_query_over_2500_columns_is_planned_in_seconds(tmp_path: Path) -> None:
    table = pa.table({f"c{at}": [float(at)] for at in range(2500)})
    pq.write_table(table, tmp_path / "a")
    sums = ", ".join(f"sum(c{at} + 1) AS c{at}" for at in range(2500))
    result = _query(f'SELECT {sums} FROM "my.table"', [tmp_path / "a"], table.schema)
    assert result["c2499"].to_pylist() == [2500.0]


def test_a_lost_spare_process_is_replaced() -> None:
    schema = pa.schema([("n", pa.int64())])
    for _ in range(2):
        assert _query("SELECT 1 AS n", [], schema)["n"].to_pylist() == [1]
        spare = client._spare._waiting[0]
        os.kill(spare.process.pid, signal.SIGKILL)
        os.waitid(os.P_PID, spare.process.pid, os.WEXITED | os.WNOWAIT)
    client._spare.end()
    assert client._spare.take() is None


def test_a_query_that_fails_after_its_first_rows_is_not_complete(tmp_path: Path) -> None:
    """The process is kept for the next query, so its exit code does not tell that this one failed."""
    sql = "SELECT CASE WHEN n = 900000 THEN CAST('x' || n AS INT) ELSE 1 END AS n FROM range(1000000) AS r(n)"
    options = QueryOptions(program=DUCKDB, keeps_process=True)

    def read(text: str) -> Iterator[int]:
        step = SqlQueryStep(query=text)
        with run_query([step], [], tmp_path, 1 << 30, Reporter(), options) as rows:
            yield from (batch.num_rows for batch in rows.batches)

    client._spare.end()
    counts = read(sql)
    assert next(counts)
    with pytest.raises(BadData, match="Could not convert string 'x900000' to INT32"):
        list(counts)
    assert sum(read("SELECT * FROM range(1000000)")) == 1_000_000
    assert [started.queries for started in client._spare._waiting if started.queries] == [1]
    client._spare.end()


@pytest.mark.parametrize("damage", ["cut", "page", "footer", "empty"])
def test_a_damaged_file_is_named(tmp_path: Path, damage: str) -> None:
    table = pa.table({"n": list(range(50_000)), "t": [f"text {n}" for n in range(50_000)]})
    path = tmp_path / "slice"
    pq.write_table(table, path, compression="zstd")
    data = bytearray(path.read_bytes())
    if damage == "page":
        data[60_000:62_000] = bytes(2000)
    elif damage == "footer":
        start = len(data) - pq.read_metadata(path).serialized_size
        data[start : start + 30] = bytes(30)
    path.write_bytes(data[: len(data) // 2] if damage == "cut" else b"" if damage == "empty" else data)
    with pytest.raises(OdfError) as error:
        _query('SELECT max(t), sum(n) FROM "my.table"', [path], table.schema)
    assert "slice" in str(error.value) and "verify the datasets" in (error.value.hint or "")
