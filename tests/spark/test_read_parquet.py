"""Parquet: columns by name, and casts that lose nothing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odf_engine.base.progress import Reporter
from odf_engine.errors import BadData, InvalidSchema
from odf_engine.spark import readers as parquet_files
from odf_engine.spark.errors import RejectedRow
from odf_engine.spark.readers import read_parquet
from odf_engine.spark.runtime.jvm import SparkFailed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TABLE = pa.table(
    {
        "id": pa.array([1, 300, None]),
        "u": pa.array([1, 2, 2**64 - 1], pa.uint64()),
        "f": pa.array([1.0, 2.5, None]),
        "s": ["1", "x", None],
        "t": pa.array([-1, 1500, None], pa.timestamp("ns")),
        "z": pa.array([1, 2, 3], pa.timestamp("us", "UTC")),
        "a.b": [1, 2, 3],
        "n": pa.array(
            [{"l": [1, None], "t": 1500}, None, {"l": None, "t": None}],
            pa.struct([("l", pa.list_(pa.int64())), ("t", pa.timestamp("ns"))]),
        ),
        "o": [[{"x": 1, "d": 0.5}], [], None],
    }
)


@pytest.fixture
def parquet(
    session: SparkSession, rows: Callable[[DataFrame], Any], tmp_path: Path
) -> Callable[[pa.Schema | None], pa.Table]:
    """What comes back of TABLE with a schema."""
    file = tmp_path / "_x[1].parquet"
    pq.write_table(TABLE, file)
    return lambda schema: rows(read_parquet(session, file, schema, scratch=tmp_path))


Reader = Callable[[pa.Schema | None], list[dict[str, Any]]]


def test_all_columns_are_read_without_a_schema(parquet: Reader) -> None:
    rows = parquet(None)
    assert list(rows[0]) == TABLE.column_names
    assert [row["u"] for row in rows] == [1, 2, Decimal(2**64 - 1)]
    assert [row["t"].microsecond if row["t"] else None for row in rows] == [999_999, 1, None]


def test_columns_match_by_name_in_schema_order(parquet: Reader) -> None:
    schema = pa.schema([("a.b", pa.int8()), ("ID", pa.decimal128(5, 2)), ("T", pa.timestamp("ms", "UTC"))])
    rows = parquet(schema)
    assert list(rows[0]) == ["a.b", "ID", "T"]
    assert [row["ID"] for row in rows] == [Decimal("1.00"), Decimal("300.00"), None]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (pa.field("id", pa.int8()), "300"),
        (pa.field("id", pa.int64(), False), None),
        (pa.field("f", pa.int32()), "2.5"),
        (pa.field("s", pa.int32()), "x"),
        (pa.field("u", pa.int64()), str(2**64 - 1)),
    ],
)
def test_values_that_do_not_fit_their_type_are_rejected(
    parquet: Reader, field: pa.Field, value: str | None
) -> None:
    with pytest.raises(RejectedRow) as caught:
        parquet(pa.schema([field]))
    assert (caught.value.column, caught.value.value) == (field.name, value)


@pytest.mark.parametrize(
    ("stored", "value", "declared", "fits"),
    [
        (pa.decimal256(50, 20), Decimal("1.00000000000000000001"), pa.decimal128(38, 2), False),
        (pa.decimal256(50, 20), Decimal("1.5"), pa.decimal128(38, 2), True),
        (pa.decimal256(76, 50), Decimal("1e-50"), pa.decimal128(38, 38), False),
        (pa.decimal128(38, 10), Decimal("9" * 28 + ".9"), pa.decimal128(38, 0), False),
        (pa.decimal128(38, 10), Decimal("9" * 28), pa.decimal128(38, 0), True),
        (pa.float64(), 1e300, pa.float32(), False),
        (pa.float64(), float("inf"), pa.float32(), True),
    ],
)
def test_numbers_are_converted_exactly_or_rejected(
    session: SparkSession,
    rows: Callable[[DataFrame], list[dict[str, Any]]],
    tmp_path: Path,
    stored: pa.DataType,
    value: Decimal | float,
    declared: pa.DataType,
    fits: bool,
) -> None:
    pq.write_table(pa.table({"n": pa.array([value], stored)}), tmp_path / "n.parquet")
    frame = read_parquet(session, tmp_path / "n.parquet", pa.schema([("n", declared)]), scratch=tmp_path)
    if fits:
        assert rows(frame) == [{"n": value}]
        return
    with pytest.raises(RejectedRow, match="column `n`"):
        rows(frame)


def test_missing_column_is_rejected(parquet: Reader) -> None:
    with pytest.raises(InvalidSchema, match="no column `nope`") as caught:
        parquet(pa.schema([("nope", pa.int64())]))
    assert "`id`, `u`" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("column", "kind", "shown"),
    [
        ("s", pa.list_(pa.int64()), "STRING in the data, which cannot be converted to ARRAY<BIGINT>"),
        ("id", pa.timestamp("ms", "UTC"), "BIGINT in the data, which cannot be converted to TIMESTAMP"),
        ("z", pa.int64(), "TIMESTAMP in the data, which cannot be converted to BIGINT"),
        ("n", pa.struct([("q", pa.int32())]), "column `n` has no field `q`"),
    ],
)
def test_unsupported_casts_are_rejected(parquet: Reader, column: str, kind: pa.DataType, shown: str) -> None:
    with pytest.raises(InvalidSchema, match=shown) as caught:
        parquet(pa.schema([(column, kind)]))
    assert caught.value.where == "_x[1].parquet"


SAME_NAMES: list[tuple[list[str], pa.Schema | None, str, str]] = [
    (["A", "a"], None, "`A` and `a` in the file differ only in case", "exact spelling"),
    (["A", "a"], pa.schema([("b", pa.int64())]), "the file has no column `b`", "`A`, `a`, `n`"),
    (["AB", "Ab"], pa.schema([("ab", pa.int64())]), "several columns `ab`: `AB` and `Ab`", "exact spelling"),
    (["AB", "ab\u200b"], pa.schema([("Id", pa.int64())]), "the file has no column `Id`", "`AB`"),
    (["ID\u2060", "id "], pa.schema([("id", pa.int64())]), "'ID\\u2060' in the file looks like", "rename it"),
    (["a", "a"], pa.schema([("a", pa.int64())]), "several columns `a`: `a` and `a`", "rename"),
    (["b", "c"], None, "`X` and `x` in the file differ only in case", "rename"),
]


@pytest.mark.parametrize(("names", "schema", "problem", "hint"), SAME_NAMES)
def test_names_that_differ_only_in_case_are_ambiguous(
    session: SparkSession, tmp_path: Path, names: list[str], schema: pa.Schema | None, problem: str, hint: str
) -> None:
    nested = pa.array([{"X": 1, "x": 2}])
    pq.write_table(pa.table([pa.array([1]), pa.array([2]), nested], [*names, "n"]), tmp_path / "f.parquet")
    with pytest.raises(InvalidSchema) as caught:
        read_parquet(session, tmp_path / "f.parquet", schema, scratch=tmp_path)
    assert problem in caught.value.message
    assert hint in (caught.value.hint or "")
    assert caught.value.where == "f.parquet"


def test_the_declared_spelling_selects_one_of_several_columns(
    session: SparkSession, rows: Callable[[DataFrame], Any], tmp_path: Path
) -> None:
    day = datetime(3000, 1, 1)
    key = UUID(int=7)
    table = pa.table({
        "A": [1, 2], "a": [3, 4], "T": pa.array([day] * 2, pa.timestamp("us")), "t": [0, 0],
        "U": pa.array([key.bytes] * 2, pa.uuid()), "u": [0, 0],
    })  # fmt: skip
    pq.write_table(table, tmp_path / "f.parquet", use_deprecated_int96_timestamps=True)
    kinds = {"a": pa.int64(), "T": pa.timestamp("us", "UTC"), "U": pa.string()}
    frame = read_parquet(session, tmp_path / "f.parquet", pa.schema(kinds.items()), scratch=tmp_path)
    stamp = day.replace(tzinfo=UTC)
    assert rows(frame) == [{"a": number, "T": stamp, "U": str(key)} for number in (3, 4)]


def test_a_file_without_columns_is_rejected(session: SparkSession, tmp_path: Path) -> None:
    pq.write_table(pa.table({}), tmp_path / "f.parquet")
    with pytest.raises(BadData, match="the Parquet file has no columns"):
        read_parquet(session, tmp_path / "f.parquet", None, scratch=tmp_path)


def test_nested_values_are_converted(parquet: Reader) -> None:
    moment = pa.timestamp("ms", "UTC")
    schema = pa.schema(
        [
            ("n", pa.struct([("L", pa.list_(pa.int8())), ("t", moment)])),
            pa.field("o", pa.list_(pa.struct([("x", pa.string()), ("d", pa.decimal128(5, 2))]))),
        ]
    )
    assert parquet(schema) == [
        {
            "n": {"L": [1, None], "t": datetime(1970, 1, 1, 0, 0, 0, 1, UTC)},
            "o": [{"x": "1", "d": Decimal("0.50")}],
        },
        {"n": None, "o": []},
        {"n": {"L": None, "t": None}, "o": None},
    ]
    assert parquet(pa.schema([("n", pa.string()), ("o", pa.string())]))[0] == {
        "n": '{"l":[1,null],"t":"1970-01-01T00:00:00.000Z"}', "o": '[{"x":1,"d":0.5}]',
    }  # fmt: skip
    with pytest.raises(RejectedRow) as caught:
        parquet(pa.schema([("o", pa.list_(pa.struct([("d", pa.int32())])))]))
    assert (caught.value.column, caught.value.value) == ("o[].d", "0.5")


def test_large_row_groups_are_divided(
    session: SparkSession, rows: Callable[[DataFrame], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "x.parquet"
    ids = pa.array(range(20_000))
    pq.write_table(pa.table({"id": ids, "t": ids.cast(pa.timestamp("ns"))}), file)
    monkeypatch.setattr(parquet_files, "_MAX_ROW_GROUP_BYTES", 1 << 18)
    monkeypatch.setattr(parquet_files, "_PARTITION_BYTES", 1 << 15)
    monkeypatch.setattr(parquet_files, "_BATCH_ROWS", 2048)
    copy, _ = parquet_files.prepare_parquet_file(file, tmp_path, "x", Reporter())
    assert pq.read_metadata(copy).num_row_groups > 5
    frame = read_parquet(session, file, None, scratch=tmp_path)
    assert frame.schema.simpleString() == "struct<id:bigint,t:timestamp>"
    assert [row["id"] for row in rows(frame)] == ids.to_pylist()


def test_damaged_parquet_is_rejected_with_a_readable_message(
    session: SparkSession, rows: Callable[[DataFrame], Any], tmp_path: Path
) -> None:
    file = tmp_path / "x.parquet"
    pq.write_table(pa.table({"id": list(range(10_000))}), file, compression="zstd")
    data = bytearray(file.read_bytes())
    data[4:2000] = bytes(1996)
    file.write_bytes(data)
    with pytest.raises((BadData, SparkFailed)) as caught:
        rows(read_parquet(session, file, None, scratch=tmp_path))
    assert "Exception" not in caught.value.message


def test_file_that_is_not_parquet_is_rejected(session: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "x.parquet"
    for data in (b"", b"<html>", b"PAR1 and no more"):
        file.write_bytes(data)
        with pytest.raises(BadData, match="the Parquet file cannot be read") as caught:
            read_parquet(session, file, None, scratch=tmp_path, name="what people call it")
        assert caught.value.where == "what people call it"
