"""Arrow types through Spark and back."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as st

from odf_engine.errors import InvalidSchema
from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.spark.sql_types import arrow_schema, spark_schema, spark_type, typed_null

SAME = [
    pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(),
    pa.binary(), pa.date32(), pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.duration("us"),
    pa.decimal128(38, 18), pa.decimal128(1, 0), pa.time64("ns"),
]  # fmt: skip


@pytest.mark.parametrize("kind", SAME, ids=str)
def test_supported_types_round_trip_through_spark(kind: pa.DataType) -> None:
    schema = pa.schema([pa.field("a", kind), pa.field("b", kind, nullable=False)])
    assert arrow_schema(spark_schema(schema)) == schema


@pytest.mark.parametrize(
    ("kind", "wider"),
    [
        (pa.uint8(), pa.int16()),
        (pa.uint16(), pa.int32()),
        (pa.uint32(), pa.int64()),
        (pa.uint64(), pa.decimal128(20, 0)),
        (pa.float16(), pa.float32()),
        (pa.large_string(), pa.string()),
        (pa.binary(4), pa.binary()),
        (pa.date64(), pa.date32()),
        (pa.timestamp("ms", "UTC"), pa.timestamp("us", "UTC")),
        (pa.timestamp("ns", "Europe/Paris"), pa.timestamp("us", "UTC")),
        (pa.time32("s"), pa.time64("ns")),
        (pa.dictionary(pa.int8(), pa.string()), pa.string()),
        (pa.decimal256(20, 2), pa.decimal128(20, 2)),
    ],
    ids=str,
)
def test_unsupported_types_become_the_next_wider_type(kind: pa.DataType, wider: pa.DataType) -> None:
    assert arrow_schema(spark_schema(pa.schema([("a", kind)]))).field("a").type == wider


def test_nested_types_are_widened() -> None:
    kind = pa.struct(
        [pa.field("x", pa.list_(pa.field("element", pa.uint8()))), ("m", pa.map_(pa.string(), pa.int32()))]
    )
    back = arrow_schema(spark_schema(pa.schema([("a", kind)]))).field("a").type
    assert back.field("x").type.value_type == pa.int16()
    assert back.field("m").type.item_type == pa.int32()


def test_typed_null_of_a_struct_quotes_its_field_names(runtime: SparkRuntime) -> None:
    inner = pa.struct([("x>y", pa.string()), ("m", pa.map_(pa.string(), pa.int32()))])
    kind = pa.struct([("a b", pa.int64()), ("a:`b", pa.list_(inner)), ("struct<", pa.decimal128(9, 2))])
    frame = runtime.session().sql(f"SELECT {typed_null(kind, 'a')} AS a")
    assert frame.schema["a"].dataType == spark_type(kind, "a")


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        (pa.month_day_nano_interval(), "`a`"),
        (pa.decimal256(60, 2), "`a`"),
        (pa.struct([("deep", pa.list_(pa.decimal128(10, -2)))]), r"`a\.deep\[\]`"),
    ],
    ids=str,
)
def test_types_that_spark_cannot_hold_are_rejected(kind: pa.DataType, named: str) -> None:
    with pytest.raises(InvalidSchema, match=named) as caught:
        spark_schema(pa.schema([("a", kind)]))
    assert caught.value.hint


def test_types_that_a_dataset_cannot_hold_are_rejected() -> None:
    months = st.StructType([st.StructField("m", st.YearMonthIntervalType())])
    with pytest.raises(InvalidSchema, match=r"`m` has the type INTERVAL YEAR TO MONTH") as caught:
        arrow_schema(months)
    assert "CAST(m AS STRING)" in str(caught.value.hint)


@pytest.mark.parametrize(
    "value", ["struct()", "array()", "map()", "array(struct())", "named_struct('a', array())"]
)
def test_types_without_content_are_reported(session: SparkSession, value: str) -> None:
    with pytest.raises(InvalidSchema, match="which datasets do not support") as caught:
        arrow_schema(session.sql(f"SELECT {value} AS v").schema)
    assert "CAST(v" in str(caught.value.hint)


def test_null_and_array_of_null_keep_their_types(session: SparkSession) -> None:
    schema = arrow_schema(session.sql("SELECT NULL AS a, array(NULL) AS b").schema)
    assert schema.types == [pa.null(), pa.list_(pa.field("element", pa.null()))]
