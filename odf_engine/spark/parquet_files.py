"""Parquet files for Spark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from odf_engine.spark.sql_types import identifier
from odf_engine.spark.text_files import spark_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def parquet_frame(
    session: SparkSession, paths: Sequence[Path], schema: StructType | None = None
) -> DataFrame:
    """Return a lazy frame of the rows of Parquet files, in an undefined order.

    Spark skips row groups by their statistics. These do not count NaN, and may treat -0.0 as less than 0.0.
    In a query, NaN is greater than every number, and the two zeros are equal. Filters of floating point
    columns are therefore not passed to the reader: they would lose rows.

    Args:
        session: session of the job.
        paths: the files.
        schema: the columns to read; by default all columns of the files.
    """
    reader = session.read if schema is None else session.read.schema(schema)
    frame = reader.parquet(*map(spark_path, paths))
    names = {
        field.name: identifier(field.name)
        for field in frame.schema
        if field.dataType.typeName() in ("double", "float")
    }
    if not names:
        return frame
    return frame.selectExpr(
        *(
            f"nanvl({names[name]}, {names[name]}) AS {names[name]}" if name in names else identifier(name)
            for name in frame.columns
        )
    )
