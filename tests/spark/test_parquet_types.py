"""Parquet files with all types, encodings and codecs, as other programs write them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID as Uuid

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odf_engine.data.ddl import uuid_type
from odf_engine.spark.readers import read_parquet
from tests.data.crafted_parquet import (
    BYTE_ARRAY,
    INT64,
    PLAIN,
    REPEATED,
    REQUIRED,
    Column,
    levels,
    page,
    parquet,
    run,
    texts,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Read = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def read(session: SparkSession, rows: Callable[[DataFrame], Any], tmp_path: Path) -> Read:
    """The rows of a file, with the types of its columns in Spark as the last one."""

    def read(file: Path, schema: pa.Schema | None = None) -> list[dict[str, Any]]:
        frame = read_parquet(session, file, schema, scratch=tmp_path)
        return [*rows(frame), {each.name: each.dataType.simpleString() for each in frame.schema}]

    return read


def _uuids(*values: int) -> pa.Array:
    return pa.ExtensionArray.from_storage(
        pa.uuid(), pa.array([Uuid(int=x).bytes for x in values], pa.binary(16))
    )


NOON = datetime(2020, 1, 2, 12, 0, 0, 123456, UTC)
NAIVE = NOON.replace(tzinfo=None)
BEFORE = datetime(1969, 12, 31, 23, 59, 59, 999999, UTC)
FIVE, SIX = (str(Uuid(int=number)) for number in (5, 6))
DECIMAL = Decimal("-1.50")
NS = pa.timestamp("ns", "UTC")
DEEP = pa.struct([("a", pa.struct([("b", pa.float16())]))])
VALUES: dict[str, tuple[pa.Array, str, Any]] = {
    "i8": (pa.array([-8], pa.int8()), "tinyint", -8),
    "i16": (pa.array([-16], pa.int16()), "smallint", -16),
    "i32": (pa.array([-32], pa.int32()), "int", -32),
    "i64": (pa.array([-64], pa.int64()), "bigint", -64),
    "u8": (pa.array([2**8 - 1], pa.uint8()), "smallint", 2**8 - 1),
    "u16": (pa.array([2**16 - 1], pa.uint16()), "int", 2**16 - 1),
    "u32": (pa.array([2**32 - 1], pa.uint32()), "bigint", 2**32 - 1),
    "u64": (pa.array([2**64 - 1], pa.uint64()), "decimal(20,0)", Decimal(2**64 - 1)),
    "f16": (pa.array([1.5], pa.float16()), "float", 1.5),
    "f32": (pa.array([1.5], pa.float32()), "float", 1.5),
    "f64": (pa.array([0.1]), "double", 0.1),
    "bool": (pa.array([True]), "boolean", True),
    "text": (pa.array(["ä"]), "string", "ä"),
    "category": (pa.array(["ä"]).dictionary_encode(), "string", "ä"),
    "bytes": (pa.array([b"\0"]), "binary", b"\0"),
    "fixed": (pa.array([b"\0\1"], pa.binary(2)), "binary", b"\0\1"),
    "uuid": (_uuids(5), "string", FIVE),
    "uuids": (pa.ListArray.from_arrays([0, 2], _uuids(5, 6)), "array<string>", [FIVE, SIX]),
    "json": (pa.ExtensionArray.from_storage(pa.json_(), pa.array(["{}"])), "string", "{}"),
    "nothing": (pa.nulls(1), "int", None),
    "date": (pa.array([date(1500, 1, 1)]), "date", date(1500, 1, 1)),
    "s": (pa.array([NAIVE], pa.timestamp("s")), "timestamp_ntz", NAIVE.replace(microsecond=0)),
    "ms": (pa.array([NOON], pa.timestamp("ms", "UTC")), "timestamp", NOON.replace(microsecond=123000)),
    "us": (pa.array([NAIVE], pa.timestamp("us")), "timestamp_ntz", NAIVE),
    "zone": (pa.array([NOON], pa.timestamp("us", "Europe/Berlin")), "timestamp", NOON),
    "ns": (pa.array([NOON], NS), "timestamp", NOON),
    "before": (pa.array([-1], pa.timestamp("ns")), "timestamp", BEFORE),
    "time": (pa.array([time(1, 2, 3, 4000)], pa.time32("ms")), "time(6)", time(1, 2, 3, 4000)),
    "time_us": (pa.array([time(1, 2, 3, 4)], pa.time64("us")), "time(6)", time(1, 2, 3, 4)),
    "time_ns": (pa.array([time(1, 2, 3, 4)], pa.time64("ns")), "time(9)", time(1, 2, 3, 4)),
    "d32": (pa.array([DECIMAL], pa.decimal128(9, 2)), "decimal(9,2)", DECIMAL),
    "d64": (pa.array([DECIMAL], pa.decimal128(18, 2)), "decimal(18,2)", DECIMAL),
    "d128": (pa.array([DECIMAL], pa.decimal128(38, 2)), "decimal(38,2)", DECIMAL),
    "d256": (pa.array([DECIMAL], pa.decimal256(50, 2)), "string", "-1.50"),
    "list": (pa.array([[1, None]]), "array<bigint>", [1, None]),
    "large": (pa.array([[1]], pa.large_list(pa.int64())), "array<bigint>", [1]),
    "array": (pa.array([[1, 2]], pa.list_(pa.int32(), 2)), "array<int>", [1, 2]),
    "struct": (pa.array([{"a": {"b": 1.5}}], DEEP), "struct<a:struct<b:float>>", {"a": {"b": 1.5}}),
    "map": (pa.array([[("k", NOON)]], pa.map_("string", NS)), "map<string,timestamp>", [("k", NOON)]),
    "maps": (
        pa.array([[[(NOON, 1)]]], pa.list_(pa.map_(NS, pa.int64()))),
        "array<map<timestamp,bigint>>",
        [[(NOON, 1)]],
    ),
}
"""Of each column its values, its type in Spark and its value there."""
FOREIGN = ("f16", "uuid", "uuids", "time", "d256", "struct")
"""Columns whose types Spark does not have, so that the file is copied."""
PLAIN_TYPES = [name for name in VALUES if name not in FOREIGN]
DELTA = {
    "i32": "DELTA_BINARY_PACKED", "i64": "DELTA_BINARY_PACKED", "us": "DELTA_BINARY_PACKED",
    "text": "DELTA_BYTE_ARRAY", "bytes": "DELTA_LENGTH_BYTE_ARRAY", "d128": "DELTA_BYTE_ARRAY",
    "f32": "BYTE_STREAM_SPLIT", "f64": "BYTE_STREAM_SPLIT", "fixed": "BYTE_STREAM_SPLIT", "bool": "RLE",
}  # fmt: skip


WRITERS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "dictionaries": (list(VALUES), {}),
    "gzip": (PLAIN_TYPES, {"compression": "gzip", "store_decimal_as_integer": True, "store_schema": False}),
    "lz4": (PLAIN_TYPES, {"compression": "lz4", "use_dictionary": False, "column_encoding": DELTA}),
    "zstd": (
        PLAIN_TYPES,
        {
            "compression": "zstd",
            "use_dictionary": False,
            "column_encoding": DELTA,
            "data_page_version": "2.0",
        },
    ),
    "brotli": (
        list(VALUES),
        {
            "compression": "brotli",
            "store_schema": False,
            "write_time_adjusted_to_utc": True,
            "use_compliant_nested_type": False,
        },
    ),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_all_types_are_read_from_each_encoding(read: Read, tmp_path: Path, writer: str) -> None:
    columns, options = WRITERS[writer]
    table = pa.table({name: VALUES[name][0] for name in columns})
    nulls = pa.table([pa.nulls(1, field.type) for field in table.schema], schema=table.schema)
    pq.write_table(pa.concat_tables([table, nulls]), tmp_path / "x.parquet", **options)
    row, empty, types = read(tmp_path / "x.parquet")
    assert types == {name: VALUES[name][1] for name in columns}
    assert row == {name: VALUES[name][2] for name in columns}
    assert set(empty.values()) == {None}


@pytest.mark.parametrize("compression", ["snappy", "brotli"])
def test_int96_timestamps_are_read(read: Read, tmp_path: Path, compression: str) -> None:
    """As Spark, Hive and Impala write them. Nanoseconds of 64 bits end in the year 2262."""
    moments = [datetime(1, 1, 1), NAIVE, datetime(9999, 12, 31, 23, 59, 59, 999999)]
    file = tmp_path / "x.parquet"
    table = pa.table({"t": moments, "n": [[{"t": moment}] for moment in moments], "i": [1, 2, 3]})
    pq.write_table(table, file, use_deprecated_int96_timestamps=True, compression=compression)
    *found, types = read(file)
    assert types == {"t": "timestamp", "n": "array<struct<t:timestamp>>", "i": "bigint"}
    expected = [moment.replace(tzinfo=UTC) for moment in moments]
    assert [row["t"] for row in found] == [row["n"][0]["t"] for row in found] == expected
    *found, _ = read(file, pa.schema([("t", pa.timestamp("ms", "UTC"))]))
    assert [row["t"] for row in found] == expected


@pytest.mark.parametrize("codec", ["snappy", "lz4"])
def test_legacy_files_written_by_spark_are_read(
    session: SparkSession, read: Read, tmp_path: Path, codec: str
) -> None:
    """The codec LZ4 is that of Hadoop, and the legacy form of lists and decimals that of Hive."""
    session.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
    session.conf.set("spark.sql.parquet.writeLegacyFormat", "true")
    query = """
        SELECT TIMESTAMP '0001-01-01' AS old, TIMESTAMP '2020-01-02 12:00:00.123456' AS t,
            DATE '0001-01-01' AS d, array(named_struct('t', TIMESTAMP '9999-01-01')) AS l, map('a', 1) AS m,
            1.5BD AS small, CAST(1.5 AS DECIMAL(30, 2)) AS big, TIME '01:02:03' AS time,
            array(1, NULL) AS numbers"""
    session.sql(query).write.option("compression", codec).parquet(str(tmp_path / "spark"))
    (file,) = (tmp_path / "spark").glob("*.parquet")
    row, types = read(file)
    assert row == {
        "old": datetime(1, 1, 1, tzinfo=UTC), "t": NOON, "d": date(1, 1, 1),
        "l": [{"t": datetime(9999, 1, 1, tzinfo=UTC)}], "m": [("a", 1)], "small": Decimal("1.5"),
        "big": Decimal("1.50"), "time": time(1, 2, 3), "numbers": [1, None],
    }  # fmt: skip
    assert (types["t"], types["small"], types["big"]) == ("timestamp", "decimal(2,1)", "decimal(30,2)")


def test_variable_length_decimals_and_hive_lists_are_read(read: Read, tmp_path: Path) -> None:
    decimal = {1: BYTE_ARRAY, 3: REQUIRED, 4: b"d", 6: 5, 7: 2, 8: 20}
    bag: list[dict[int, Any]] = [
        {3: REQUIRED, 4: b"l", 5: 1, 6: 3},
        {3: REPEATED, 4: b"bag", 5: 1},
        {1: INT64, 3: REQUIRED, 4: b"array_element"},
    ]
    items = levels(run(1, 0), run(1, 1)) + levels(run(2, 1)) + struct.pack("<2q", 7, 8)
    file = tmp_path / "x.parquet"
    file.write_bytes(
        parquet(
            1,
            Column("d", BYTE_ARRAY, 1, page(1, PLAIN, texts(b"\xff\x6a")), schema=[decimal]),
            Column("l", INT64, 2, page(2, PLAIN, items), schema=bag, path=("l", "bag", "array_element")),
        )
    )
    assert read(file) == [{"d": Decimal("-1.50"), "l": [7, 8]}, {"d": "decimal(20,2)", "l": "array<bigint>"}]


def test_declared_types_convert_nulls_uuids_and_decimals(read: Read, tmp_path: Path) -> None:
    """A column of nulls only has any type; a UUID is one, or text."""
    file = tmp_path / "x.parquet"
    pq.write_table(
        pa.table(
            {"n": pa.nulls(1), "m": pa.nulls(1), "u": _uuids(5), "v": _uuids(5), "d": VALUES["d256"][0]}
        ),
        file,
    )
    schema = pa.schema(
        [
            ("n", pa.date32()),
            ("m", pa.list_(pa.int8())),
            ("u", uuid_type()),
            ("v", pa.string()),
            ("d", pa.decimal128(5, 2)),
        ]
    )
    row, _ = read(file, schema)
    assert row == {"n": None, "m": None, "u": Uuid(int=5).bytes, "v": str(Uuid(int=5)), "d": Decimal("-1.50")}
