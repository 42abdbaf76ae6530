"""The database for groups and joins: equality of values, bounded memory, errors and cancellation."""

from __future__ import annotations

import struct
import threading
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odf_engine.base.progress import Reporter
from odf_engine.errors import BadData, Cancelled, OdfError
from odf_engine.rows.database import comparable, open_database

_TEXTS = st.sampled_from(["", "a", "A", "á", "a\u0301", "ß", "ss", "a\0", "a\0b"])
_FLOATS = st.sampled_from([0.0, -0.0, 1.5, float("nan"), float("inf"), float("-inf")])
_TIMES = st.sampled_from([0, 1, -1, 2**62])
_WIDE = st.sampled_from([Decimal(0), Decimal(10) ** 60, Decimal(10) ** 60 + 1])
VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.string(): _TEXTS,
    pa.large_string(): _TEXTS,
    pa.dictionary(pa.int32(), pa.string()): _TEXTS,
    pa.binary(): st.sampled_from([b"", b"\0", b"\xff", b"a"]),
    pa.binary(2): st.sampled_from([b"\0\0", b"\0\1"]),
    pa.float64(): _FLOATS,
    pa.float32(): _FLOATS,
    pa.int8(): st.sampled_from([-128, 0, 127]),
    pa.uint64(): st.sampled_from([0, 1, 2**64 - 1]),
    pa.bool_(): st.booleans(),
    pa.decimal128(38, 2): st.sampled_from([Decimal("0.00"), Decimal("1.10"), Decimal(10) ** 35]),
    pa.decimal256(70, 0): _WIDE,
    pa.date32(): st.sampled_from([0, 1, 20000]),
    pa.timestamp("ns", "UTC"): _TIMES,
    pa.timestamp("us"): _TIMES,
    pa.time64("ns"): st.sampled_from([0, 1]),
    pa.list_(pa.int64()): st.sampled_from([[], [1], [1, None], [None]]),
    pa.struct([("x", pa.float64())]): st.sampled_from([{"x": None}, {"x": 0.0}, {"x": 1.0}]),
    pa.null(): st.none(),
}


def bits(value: object) -> object:
    """A value that is equal to another one if their bits are."""
    return struct.pack("<d", value) if isinstance(value, float) else repr(value)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_values_are_grouped_by_their_bits(data: st.DataObject) -> None:
    data_type = data.draw(st.sampled_from(list(VALUES)))
    values = data.draw(st.lists(st.none() | VALUES[data_type], max_size=30))
    parts = [pa.array(values[:7], data_type), pa.array(values[7:], data_type)]
    with open_database(Path("/tmp"), Reporter()) as database:
        tables = (pa.table({"value": comparable(part)}) for part in parts)
        sql = "SELECT count(*) AS rows FROM t GROUP BY value"
        counts = [row for batch in database.query(sql, t=tables) for row in batch.column("rows").to_pylist()]
    assert sorted(counts) == sorted(Counter(map(bits, values)).values())


def _rows(parts: int, error: Exception | None = None) -> Iterator[pa.Table]:
    for part in range(parts):
        first = part * 100_000
        yield pa.table({"key": [f"key {number}".encode() for number in range(first, first + 100_000)]})
    if error is not None:
        raise error


def test_groups_exceed_the_memory_and_leave_no_files(tmp_path: Path) -> None:
    with open_database(tmp_path, Reporter(), memory=64 << 20) as database:
        sql = "SELECT key, count(*) AS rows FROM t GROUP BY key"
        groups, has_files = 0, False
        for batch in database.query(sql, t=_rows(15)):
            groups += batch.num_rows
            has_files = has_files or any(path.is_file() for path in tmp_path.rglob("*"))
    assert groups == 1_500_000 and has_files
    assert not list(tmp_path.iterdir())


def test_error_of_a_stream_is_raised_as_it_is(tmp_path: Path) -> None:
    damaged = BadData("a slice is damaged", where="slice 1234")
    with open_database(tmp_path, Reporter()) as database:
        with pytest.raises(BadData) as caught:
            list(database.query("SELECT count(*) FROM t", t=_rows(2, damaged)))
        assert caught.value is damaged
        assert list(database.query("SELECT count(*) FROM t", t=_rows(1)))  # the database is usable


def test_query_that_needs_too_much_memory_is_an_error(tmp_path: Path) -> None:
    sql = "SELECT list(key) FROM t"
    with (
        open_database(tmp_path, Reporter(), memory=16 << 20) as database,
        pytest.raises(OdfError, match="cannot be grouped or sorted") as caught,
    ):
        list(database.query(sql, t=_rows(15)))
    assert "memory" in str(caught.value.hint) and "\n" not in caught.value.message


def test_long_query_is_cancelled(tmp_path: Path) -> None:
    reporter = Reporter()
    sql = "SELECT count(*) FROM t a, t2 b WHERE a.key <> b.key"
    timer = threading.Timer(0.3, reporter.cancel)
    timer.start()
    with open_database(tmp_path, reporter) as database, pytest.raises(Cancelled):
        list(database.query(sql, t=_rows(3), t2=_rows(3)))
    timer.join()


def test_queries_have_no_access_to_files(tmp_path: Path) -> None:
    (tmp_path / "secret.csv").write_text("a\n1\n")
    with open_database(tmp_path, Reporter()) as database, pytest.raises(OdfError, match="disabled"):
        list(database.query(f"SELECT * FROM '{tmp_path / 'secret.csv'}'", t=_rows(1)))
