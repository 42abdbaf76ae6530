"""Rows of Parquet files are read in bounded memory, and are the same as those that Arrow reads."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odf_engine.data.parquet import parquet_reader
from odf_engine.data.parquet.parquet_reader import (
    BatchLimits,
    parquet_errors,
    read_bounded,
    read_parquet_schema,
)
from odf_engine.errors import InvalidSchema
from tests.data import crafted_parquet as crafted


def _table(rows: int) -> pa.Table:
    return pa.table(
        {
            "n": pa.array(range(rows), pa.int64()),
            "city": [None if at % 7 == 0 else f"city {at % 5}" for at in range(rows)],
            "long": ["x" * (at * 37 % 900) for at in range(rows)],
            "flag": [at % 3 == 0 for at in range(rows)],
            "raw": pa.array([b"0123"] * rows, pa.binary(4)),
            "large": pa.array([f"large {at % 3}" for at in range(rows)], pa.large_string()),
            "list": [None if at % 5 == 0 else ["a", "bb", None][: at % 4] for at in range(rows)],
            "struct": [None if at % 6 == 0 else {"x": at, "y": f"y {at % 2}"} for at in range(rows)],
            "map": pa.array(
                [[("k", f"v {at % 3}")] for at in range(rows)], pa.map_(pa.string(), pa.string())
            ),
            "money": pa.array([at * 10 for at in range(rows)], pa.decimal128(12, 2)),
            "uuid": pa.ExtensionArray.from_storage(pa.uuid(), pa.array([bytes(16)] * rows, pa.binary(16))),
            "empty": pa.nulls(rows),
        }
    )


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"use_dictionary": False},
        {"data_page_version": "2.0", "compression": "zstd"},
        {"dictionary_pagesize_limit": 16},  # pages with and without a dictionary in one column
        {"store_schema": False, "compression": "none", "max_rows_per_page": 3},
        {
            "use_dictionary": False,
            "column_encoding": {"long": "DELTA_BYTE_ARRAY", "n": "DELTA_BINARY_PACKED"},
        },
        {"use_dictionary": False, "column_encoding": {"city": "DELTA_LENGTH_BYTE_ARRAY"}},
    ],
    ids=str,
)
@pytest.mark.parametrize("max_bytes", [1, 2000, 1 << 26])
def test_rows_match_the_arrow_reader(tmp_path: Path, options: dict[str, object], max_bytes: int) -> None:
    path = tmp_path / "rows.parquet"
    table = _table(50)
    pq.write_table(table, path, row_group_size=20, **options)
    schema = read_parquet_schema(path)
    batches = list(read_bounded(path, limits=BatchLimits(max_bytes=max_bytes)))
    assert pa.Table.from_batches(batches, schema).equals(pq.read_table(path))
    if max_bytes < 1 << 20:
        assert all(batch.num_rows == 1 or batch.nbytes < max_bytes + 4000 for batch in batches)
    columns = ["struct", "city"]
    some = pa.Table.from_batches(read_bounded(path, columns, limits=BatchLimits(max_bytes=max_bytes)))
    assert some.select(columns).equals(pq.read_table(path, columns=columns).select(columns))


def test_a_column_that_was_a_dictionary_is_read_as_its_values(tmp_path: Path) -> None:
    texts = pa.array(["a", None, "b", "a"])
    table = pa.table({"d": texts.dictionary_encode(), "v": texts.cast(pa.string_view())})
    pq.write_table(table, tmp_path / "d")
    assert read_parquet_schema(tmp_path / "d").field("d").type == pa.string()
    (batch,) = read_bounded(tmp_path / "d")
    assert batch.schema == read_parquet_schema(tmp_path / "d").remove_metadata()
    assert batch.column("d").to_pylist() == batch.column("v").to_pylist() == texts.to_pylist()


@pytest.mark.parametrize(
    ("start", "count"),
    [(0, 5), (0, 35), (0, 99), (8, 4), (9, 1), (10, 10), (29, 6), (34, 1), (35, 5), (3, 0)],
)
@pytest.mark.parametrize("max_rows", [3, 100])
def test_rows_can_be_read_by_number(tmp_path: Path, start: int, count: int, max_rows: int) -> None:
    pq.write_table(pa.table({"n": range(35)}), tmp_path / "n", row_group_size=10)
    batches = read_bounded(tmp_path / "n", ["n"], start, start + count, limits=BatchLimits(max_rows=max_rows))
    rows = [number for batch in batches for number in batch["n"].to_pylist()]
    assert rows == list(range(35))[start : start + count]


def test_only_the_row_groups_that_are_needed_are_read(tmp_path: Path) -> None:
    path = tmp_path / "n"
    pq.write_table(pa.table({"n": range(35)}), path, row_group_size=10, compression="none")
    data = bytearray(path.read_bytes())
    first = pq.read_metadata(path).row_group(0).column(0)
    start = first.dictionary_page_offset
    data[start : start + first.total_compressed_size] = bytes(first.total_compressed_size)
    path.write_bytes(data)
    assert [batch["n"].to_pylist() for batch in read_bounded(path, start=10, stop=12)] == [[10, 11]]
    with pytest.raises(pa.ArrowInvalid, match="malformed page header or footer"):
        list(read_bounded(path))


def test_empty_column_selection_keeps_the_row_count(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": range(35)}), tmp_path / "n", row_group_size=10)
    assert sum(batch.num_rows for batch in read_bounded(tmp_path / "n", [], 5, 30)) == 25


def test_millions_of_equal_values_are_read_in_pieces(tmp_path: Path) -> None:
    rows = 20_000_000
    number = crafted.repeated("n", crafted.INT64, struct.pack("<q", 7), rows)
    (tmp_path / "n").write_bytes(crafted.parquet(rows, number))
    seen = 0
    for batch in read_bounded(tmp_path / "n"):
        assert batch.nbytes <= 1 << 26
        seen += batch.num_rows
    assert seen == rows


def test_a_long_text_that_repeats_is_read_in_pieces(tmp_path: Path) -> None:
    text = b"x" * 100_000
    for name, column in {
        "dictionary": crafted.repeated("t", crafted.BYTE_ARRAY, crafted.texts(text), 5000),
        "prefix": crafted.shared_prefix("t", text, 5000),
    }.items():
        (tmp_path / name).write_bytes(crafted.parquet(5000, column))
        batches = read_bounded(tmp_path / name, limits=BatchLimits(max_bytes=1 << 20))
        for number, batch in enumerate(batches):
            assert batch.nbytes <= 1 << 20, name
            assert number or batch["t"][0].as_py() == text
        # Rows before those that are asked for are passed over.
        (last,) = read_bounded(tmp_path / name, start=4999)
        assert last["t"].to_pylist() == [text]


@pytest.mark.parametrize(
    "column",
    [
        crafted.one_list("x", 1 << 26),
        crafted.many_entries("x", 1 << 26),
        crafted.wide("x", 10, 1 << 30),
        crafted.Column("x", crafted.INT64, 10, crafted.page(10, crafted.PLAIN, bytes(80), size=1 << 30)),
        crafted.Column("x", crafted.BYTE_ARRAY, 1 << 27, crafted.page(1 << 27, crafted.DELTA_LENGTH, b"")),
    ],
    ids=["list", "entries", "width", "page", "lengths"],
)
def test_oversized_page_or_row_is_rejected(tmp_path: Path, column: crafted.Column) -> None:
    (tmp_path / "x").write_bytes(crafted.parquet(10, column))
    with pytest.raises(pa.ArrowInvalid, match=r"declares [\d,]+ bytes for a page or a row of 'x"):
        next(read_bounded(tmp_path / "x"))


def test_size_limit_grows_with_the_file_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_reader, "_ALLOWED_BYTES", 1000)
    pq.write_table(pa.table({"t": ["abc" * 5000]}), tmp_path / "t", compression="zstd")
    assert next(read_bounded(tmp_path / "t"))["t"].to_pylist() == ["abc" * 5000]
    pq.write_table(pa.table({"t": ["x" * 3_000_000]}), tmp_path / "t", compression="zstd")
    with pytest.raises(pa.ArrowInvalid, match="the limit is"):
        next(read_bounded(tmp_path / "t"))


_NUMBERS = crafted.page(10, crafted.PLAIN, bytes(80))


@pytest.mark.parametrize(
    "header",
    [
        {},
        {1: 0, 2: 80, 3: 80},  # no part for its type
        {1: 0, 2: 80, 3: 80, 5: 7},
        {1: 0, 2: 80, 3: 80, 5: {1: 10}},  # no encoding
        {1: 0, 2: -1, 3: 80, 5: {1: 10, 2: 0, 3: 3, 4: 3}},
        {1: 0, 2: 80, 3: crafted.Long(80), 5: {1: 10, 2: 0, 3: 3, 4: 3}},  # 64 bits: not this field
        {1: 0, 2: 80, 3: 80, 5: {1: 1 << 40, 2: 0, 3: 3, 4: 3}},
        {1: 0, 2: 80, 3: 80, 5: {5: {1: {1: {1: {1: {1: 1}}}}}}},
        {1: 0, 2: 80, 3: 80, 70000: 1},
    ],
    ids=str,
)
def test_a_malformed_page_header_is_refused(tmp_path: Path, header: dict[int, object]) -> None:
    data = crafted.thrift(header) + _NUMBERS
    (tmp_path / "x").write_bytes(crafted.parquet(10, crafted.Column("x", crafted.INT64, 10, data)))
    with pytest.raises(pa.ArrowInvalid, match="malformed page header or footer"):
        next(read_bounded(tmp_path / "x"))


def test_page_with_fewer_values_than_declared_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(crafted.parquet(20, crafted.Column("x", crafted.INT64, 20, _NUMBERS)))
    with pytest.raises(pa.ArrowInvalid, match="column 'x' has fewer values than the footer declares"):
        next(read_bounded(tmp_path / "x"))


def test_non_utf8_column_name_is_rejected(tmp_path: Path) -> None:
    for table in (pa.table({"name": [1]}), pa.table({"s": [{"name": 1}]})):
        sink = io.BytesIO()
        pq.write_table(table, sink, store_schema=False)
        (tmp_path / "x").write_bytes(sink.getvalue().replace(b"name", b"na\xffe"))
        with pytest.raises(parquet_errors()):
            read_parquet_schema(tmp_path / "x")
        with pytest.raises(parquet_errors()):
            next(read_bounded(tmp_path / "x"))


def test_deeply_nested_column_is_rejected(tmp_path: Path) -> None:
    kind: pa.DataType = pa.int64()
    for _ in range(40):
        kind = pa.struct([("x", kind)])
    pq.write_table(pa.table({"x": pa.nulls(1, kind)}), tmp_path / "x")
    with pytest.raises(InvalidSchema, match="nested too deeply"):
        read_parquet_schema(tmp_path / "x")
