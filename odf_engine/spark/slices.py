"""Data slices as a frame: the rows of an input as a query sees them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as sf

from odf_engine.data.parquet_reader import UNREADABLE, open_parquet, read_bounded, read_parquet_schema
from odf_engine.errors import BadData, NotFound
from odf_engine.metadata.model import DatasetVocabulary
from odf_engine.spark.casts import identifier
from odf_engine.spark.errors import translated
from odf_engine.spark.readers import spark_path
from odf_engine.spark.types import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MOST_IN_ORDER: Final = 16


def slices_frame(
    session: SparkSession, paths: Sequence[Path], schema: pa.Schema, vocab: DatasetVocabulary
) -> DataFrame:
    """The rows of slices; nothing is read yet.

    The offset is a BIGINT and the operation an INT, whatever their stored types. Columns that an older
    slice does not have are null. Up to 16 slices come in their order, more in any.

    Args:
        session: the job's own.
        paths: files, oldest first; none gives a frame without rows.
        schema: of the input.
        vocab: the input's column names.

    Raises:
        NotFound, BadData: a slice is missing or damaged.
    """
    plain = plain_schema(schema, vocab)
    with translated():
        if not paths:
            return session.createDataFrame([], spark_schema(plain))
        wide = [_is_wide(path, vocab) for path in paths]
        if len(paths) > _MOST_IN_ORDER and not any(wide):
            return _read(session, paths, plain)
        frames = [
            _read_wide(session, path, plain, vocab) if is_wide else _read(session, [path], plain)
            for path, is_wide in zip(paths, wide, strict=True)
        ]
        return reduce(lambda left, right: left.union(right), frames)


def plain_schema(schema: pa.Schema, vocab: DatasetVocabulary) -> pa.Schema:
    """The schema as a query sees it: the offset is a BIGINT and the operation an INT."""
    return pa.schema([field.with_type(_PLAIN.get(_role(field.name, vocab), field.type)) for field in schema])


def plain_slice(path: Path, vocab: DatasetVocabulary, copy: Path) -> Path:
    """A file of the rows of a slice that can be read with the plain schema: the slice, or a copy.

    Raises:
        NotFound, BadData: the slice is missing or damaged.
    """
    if not _is_wide(path, vocab):
        return path
    schema = read_parquet_schema(path)
    at = schema.get_field_index(vocab.offset_column)
    schema = schema.set(at, schema.field(at).with_type(pa.int64()))
    with pq.ParquetWriter(copy, schema) as writer:
        for batch in read_bounded(path):
            writer.write_batch(batch.cast(schema))
    return copy


_PLAIN: Final = {"offset": pa.int64(), "operation": pa.int32()}


def _role(name: str, vocab: DatasetVocabulary) -> str:
    return {vocab.offset_column: "offset", vocab.operation_type_column: "operation"}.get(name, "")


def _read(session: SparkSession, paths: Sequence[Path], schema: pa.Schema) -> DataFrame:
    return session.read.schema(spark_schema(schema)).parquet(*map(spark_path, paths))


def _read_wide(session: SparkSession, path: Path, schema: pa.Schema, vocab: DatasetVocabulary) -> DataFrame:
    at = schema.get_field_index(vocab.offset_column)
    unsigned = schema.set(at, schema.field(at).with_type(pa.uint64()))
    frame = _read(session, [path], unsigned)
    name = vocab.offset_column
    return frame.withColumn(name, sf.col(identifier(name)).cast("bigint"))


def _is_wide(path: Path, vocab: DatasetVocabulary) -> bool:
    """Whether offsets are unsigned and in a dictionary, which Spark cannot take for a BIGINT."""
    try:
        with open_parquet(path) as file:
            metadata = file.metadata
    except FileNotFoundError:
        raise NotFound("a data slice is missing", where=str(path), hint="see: odf verify") from None
    except UNREADABLE as error:
        raise BadData(f"the data slice cannot be read: {error}", where=str(path)) from error
    if not metadata.num_row_groups:
        return False
    for at in range(metadata.num_columns):
        column = metadata.row_group(0).column(at)
        if column.path_in_schema == vocab.offset_column:
            unsigned = pa.types.is_uint64(metadata.schema.to_arrow_schema().field(vocab.offset_column).type)
            return unsigned and any("DICTIONARY" in encoding for encoding in column.encodings)
    return False
