"""Readers of CSV, JSON and Parquet files and data slices as strictly typed DataFrames."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import types as st

from odf_engine.base.progress import Reporter
from odf_engine.data.arrow_compute import is_list_like
from odf_engine.data.ddl import type_ddl, uuid_type
from odf_engine.data.parquet.parquet_reader import BatchLimits, open_parquet, parquet_errors, read_bounded
from odf_engine.data.schema_enforcement import with_timestamp_unit
from odf_engine.errors import BadData, InvalidManifest, InvalidSchema, NotFound
from odf_engine.metadata.model import Csv, DatasetVocabulary, Json, NdJson
from odf_engine.spark import sql_types
from odf_engine.spark.arrow_batches import arrow_batches, cancellable
from odf_engine.spark.csv_records import CsvRecords, Dialect
from odf_engine.spark.errors import clean_message, translate_errors
from odf_engine.spark.parquet_columns import (
    INT96_UNIT,
    ignored_columns,
    missing_column_error,
    with_distinct_columns,
)
from odf_engine.spark.parquet_files import parquet_frame
from odf_engine.spark.sql_types import (
    MAX_PRECISION,
    Formats,
    identifier,
    spark_schema,
    spark_type,
    string_literal,
)
from odf_engine.spark.text_files import (
    LINE_COLUMN,
    RECORD_COLUMN,
    JsonScan,
    PreparedTextFile,
    RecordLines,
    check_records,
    prepare_text_file,
    safe_link,
    spark_path,
)
from odf_engine.spark.time_digits import TimeDigits

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_MAX_ROW_GROUP_BYTES: Final = 128 << 20
"""Maximum size of a row group in bytes, uncompressed. Spark holds a few row groups in memory; larger ones are
split.
"""
_PARTITION_BYTES: Final = 16 << 20
_DECODED_BYTES: Final = 32 << 20
_MIN_PARTITION_BYTES: Final = 1 << 20
_BATCH_ROWS: Final = 16384
_UNKNOWN_TYPES: Final = ("FLOAT16", "UUID", "INTERVAL")
_UNKNOWN_CODECS: Final = ("BROTLI", "UNKNOWN")
"""Spark has no Brotli. An unknown codec is the deprecated LZ4, which writers frame in different ways."""
_UUID_DIGITS: Final = "'(.{8})(.{4})(.{4})(.{4})(.{12})'"


def prepare_parquet_file(
    path: Path, scratch: Path, name: str, reporter: Reporter, schema: pa.Schema | None = None
) -> tuple[Path, pq.FileMetaData]:
    """Return a file that Spark can read instead of a Parquet file, and the footer of the original.

    It is a link to the file, or a copy if the file has large row groups, or types or codecs that Spark cannot
    read.

    Args:
        path: the file.
        scratch: folder for a link or copy; the caller removes it after the job.
        name: name of the file in errors.
        reporter: checked for cancellation.
        schema: the declared columns.

    Raises:
        BadData: not a Parquet file, a damaged one, or one without columns.
        InvalidSchema: names of columns differ only in case.
    """
    try:
        with open_parquet(path) as file:
            fields = pa.schema(_file_fields(file.metadata))
        if not len(fields):
            raise BadData("the Parquet file has no columns", where=name)
        path = with_distinct_columns(path, fields, schema, scratch, name, reporter)
        with open_parquet(path) as file:
            footer = file.metadata
            largest = max((_row_group_bytes(footer, i) for i in range(footer.num_row_groups)), default=0)
            if largest <= _MAX_ROW_GROUP_BYTES and _is_readable_by_spark(footer):
                return safe_link(path, scratch, ".parquet"), footer
            copy = Path(tempfile.mkdtemp(prefix="parquet-", dir=scratch)) / "copy.parquet"
            _write_readable_copy(path, copy, reporter)
    except parquet_errors() as error:
        problem = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BadData(f"the Parquet file cannot be read: {problem}", where=name) from None
    return copy, footer


def _is_readable_by_spark(footer: pq.FileMetaData) -> bool:
    """Return whether Spark has the types and codecs of all columns of a file."""
    columns = [footer.schema.column(index) for index in range(footer.num_columns)]
    if any(_is_unknown_to_spark(column) for column in columns):
        return False
    groups = [footer.row_group(index) for index in range(footer.num_row_groups)]
    return not any(
        group.column(index).compression in _UNKNOWN_CODECS
        for group in groups
        for index in range(group.num_columns)
    )


def _is_unknown_to_spark(column: pq.ColumnSchema) -> bool:
    logical = column.logical_type
    match logical.type:
        case "TIME":
            about = json.loads(logical.to_json())
            return about["timeUnit"] == "milliseconds" or about["isAdjustedToUTC"]
        case "DECIMAL":
            return column.precision > MAX_PRECISION
    return logical.type in _UNKNOWN_TYPES or column.converted_type == "INTERVAL"


def convert_values(frame: DataFrame, footer: pq.FileMetaData, *, typed_nulls: bool = True) -> DataFrame:
    """Convert values that Spark reads in another type than the file's.

    Nanosecond timestamps, which it reads as numbers, become timestamps truncated to microseconds. UUIDs,
    which it reads as bytes, become text.

    Args:
        frame: the rows of a file from :func:`prepare_parquet_file`.
        footer: its footer.
        typed_nulls: columns without a type, whose values are all null, have the type INT; else VOID.
    """
    fields = _file_fields(footer)
    if len(fields) != len(frame.columns):
        return frame
    conversions = [
        "NULL"
        if pa.types.is_null(field.type) and not typed_nulls
        else _value_conversion(identifier(field.name), field.type, spark.dataType, 0)
        for field, spark in zip(fields, frame.schema, strict=True)
    ]
    if not any(conversions):
        return frame
    names = map(identifier, frame.columns)
    return frame.selectExpr(
        *(f"{value or name} AS {name}" for value, name in zip(conversions, names, strict=True))
    )


def _value_conversion(value: str, data_type: pa.DataType, spark: st.DataType, depth: int) -> str | None:
    """Return the conversion of a value at any depth, or None if it needs none.

    Args:
        value: expression of the value.
        data_type: its type in the file.
        spark: its type in Spark.
        depth: number of lists and maps around it.
    """
    match spark:
        case st.LongType() if pa.types.is_timestamp(data_type) and data_type.unit == "ns":
            return f"timestamp_micros(({value} - pmod({value}, 1000)) DIV 1000)"
        case st.IntegerType() if pa.types.is_time(data_type):
            return f"CAST(time_from_millis({value}) AS {spark_type(data_type, value).simpleString()})"
        case st.BinaryType() if isinstance(data_type, pa.UuidType):
            return f"regexp_replace(lower(hex({value})), {_UUID_DIGITS}, '$1-$2-$3-$4-$5')"
        case st.ArrayType() if is_list_like(data_type):
            item = f"item_{depth}"
            converted = _value_conversion(item, data_type.value_type, spark.elementType, depth + 1)
            return converted and f"transform({value}, {item} -> {converted})"
        case st.MapType() if pa.types.is_map(data_type):
            return _map_conversion(value, data_type, spark, depth)
        case st.StructType() if pa.types.is_struct(data_type) and len(spark) == data_type.num_fields:
            return _struct_conversion(value, data_type, spark, depth)
    return None


def _map_conversion(value: str, data_type: pa.DataType, spark: st.MapType, depth: int) -> str | None:
    key, item = f"key_{depth}", f"item_{depth}"
    keys = _value_conversion(key, data_type.key_type, spark.keyType, depth + 1)
    items = _value_conversion(item, data_type.item_type, spark.valueType, depth + 1)
    converted = f"transform_values({value}, ({key}, {item}) -> {items})" if items else value
    return f"transform_keys({converted}, ({key}, {item}) -> {keys})" if keys else items and converted


def _struct_conversion(value: str, data_type: pa.DataType, spark: st.StructType, depth: int) -> str | None:
    members = {field.name: f"{value}.{identifier(field.name)}" for field in data_type}
    converted = {
        field.name: _value_conversion(members[field.name], field.type, member.dataType, depth)
        for field, member in zip(data_type, spark, strict=True)
    }
    if not any(converted.values()):
        return None
    pairs = ", ".join(
        f"{string_literal(name)}, {converted[name] or member}" for name, member in members.items()
    )
    return f"if({value} IS NULL, NULL, named_struct({pairs}))"


def partition_bytes(footer: pq.FileMetaData, size: int) -> int:
    """Return the partition size in bytes for a file, such that the decoded rows fit into memory.

    Parquet compresses: 16 MB of a file may be several hundred MB in memory.

    Args:
        footer: footer of the file.
        size: size of the file in bytes.
    """
    decoded = sum(_row_group_bytes(footer, index) for index in range(footer.num_row_groups))
    return max(_MIN_PARTITION_BYTES, min(_PARTITION_BYTES, size * _DECODED_BYTES // max(decoded, 1)))


def _row_group_bytes(footer: pq.FileMetaData, group: int) -> int:
    """Return the least size of a row group in memory, in bytes. Dictionaries can make it much smaller on
    disk.
    """
    row_group = footer.row_group(group)
    return max(row_group.total_byte_size, row_group.num_rows * row_group.num_columns * 8)


def _write_readable_copy(path: Path, copy: Path, reporter: Reporter) -> None:
    """Copy a file with row groups of moderate size, in types and a codec that Spark can read.

    The rows have the same order; memory use is bounded.
    """
    with open_parquet(path) as file:
        fields = _file_fields(file.metadata)
    schema = pa.schema([field.with_type(_readable_type(field.type)) for field in fields])
    with pq.ParquetWriter(copy, schema, compression="lz4", version="2.6") as writer:
        batches: list[pa.RecordBatch] = []
        for batch in read_bounded(
            path,
            int96_unit=INT96_UNIT,
            limits=BatchLimits(max_rows=_BATCH_ROWS, max_bytes=_PARTITION_BYTES),
        ):
            reporter.raise_if_cancelled()
            batches.append(batch.cast(schema))
            if sum(batch.nbytes for batch in batches) >= _PARTITION_BYTES:
                writer.write_table(pa.Table.from_batches(batches))
                batches = []
        if batches:
            writer.write_table(pa.Table.from_batches(batches))


def _readable_type(data_type: pa.DataType) -> pa.DataType:
    """Return the type of values of a file in a copy for Spark."""
    if pa.types.is_nested(data_type):
        return _with_leaves(data_type, _readable_type)
    if pa.types.is_time(data_type):
        return pa.time64("ns" if data_type.unit == "ns" else "us")
    if pa.types.is_float16(data_type):
        return pa.float32()
    if pa.types.is_decimal(data_type) and data_type.precision > MAX_PRECISION:
        return pa.string()
    return data_type.storage_type if isinstance(data_type, pa.BaseExtensionType) else data_type


def _file_fields(footer: pq.FileMetaData) -> list[pa.Field]:
    """Return the columns of a file. UUIDs have their own type, and 96-bit timestamps are microseconds."""
    columns = (footer.schema.column(index) for index in range(footer.num_columns))

    def file_type(data_type: pa.DataType) -> pa.DataType:
        if pa.types.is_nested(data_type):
            return _with_leaves(data_type, file_type)
        column = next(columns)
        if column.physical_type == "INT96":
            return pa.timestamp(INT96_UNIT, "UTC")
        return pa.uuid() if column.logical_type.type == "UUID" else data_type

    return [field.with_type(file_type(field.type)) for field in footer.schema.to_arrow_schema()]


def _with_leaves(data_type: pa.DataType, convert: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Return a nested type with its inner types converted, in their order in the file."""
    if pa.types.is_map(data_type):
        key = convert(data_type.key_type)
        return pa.map_(key, data_type.item_field.with_type(convert(data_type.item_type)))
    if pa.types.is_struct(data_type):
        return pa.struct([field.with_type(convert(field.type)) for field in data_type])
    return pa.list_(data_type.value_field.with_type(convert(data_type.value_type)))


_INFERRED_ARROW_TYPES: Final = (
    pa.int64(), pa.float64(), pa.bool_(), pa.date32(), pa.timestamp("us", "UTC")
)  # fmt: skip
_JSON_OPTIONS: Final = {
    "mode": "FAILFAST",
    "allowSingleQuotes": False,
    "maxStringLen": 1 << 28,  # Spark's default is 20 million characters; geometries may have more
    "maxNumLen": 1 << 20,  # Spark's default is 1,000 digits
}
_MARK_INVALID: Final = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": RECORD_COLUMN}
_INFERRED_TYPES: Final = tuple(spark_type(kind, "") for kind in _INFERRED_ARROW_TYPES)


@dataclasses.dataclass(frozen=True)
class ReadContext:
    """How a text file is read, whatever its format.

    Attributes:
        scratch: folder for temporary files.
        name: name of the file in errors; its base name by default.
        reporter: receives log lines; checked for cancellation.
        selected: the records to read, instead of all of them.
        lines: numbers the records. The frame is then for :func:`odf_engine.spark.plan_rewrite.invalid_rows`.
        digits: receives the rows, to count times that lose digits.
    """

    scratch: Path
    name: str | None = None
    reporter: Reporter = dataclasses.field(default_factory=Reporter)
    selected: PreparedTextFile | None = None
    lines: RecordLines | None = None
    digits: TimeDigits | None = None


def read_csv(
    session: SparkSession,
    path: Path,
    step: Csv,
    schema: pa.Schema | None,
    context: ReadContext,
    names: Sequence[str] = (),
) -> DataFrame:
    """Read a CSV file.

    Columns of the schema are assigned by position; a header is skipped. An empty value is null, quoted or
    not. With a ``nullValue`` that text is null too, and a quoted empty value is an empty string. A doubled
    quote in quotes is a quote. Quoted values may contain line breaks. Blank lines are skipped. Without a
    schema all columns are STRING. With ``inferSchema`` a column has the first of the types BIGINT, DOUBLE,
    BOOLEAN, DATE and TIMESTAMP that holds every value; numbers with leading zeros stay STRING.

    Args:
        session: session of the job.
        path: the file, uncompressed.
        step: dialect and formats; its schema is ignored.
        schema: the declared columns.
        context: names in errors, and what else is done with the records.
        names: names of the columns without a schema, to number the records.

    Raises:
        BadData: the file is not text, or a value is invalid.
        InvalidManifest: an option is invalid.
        InvalidSchema: a type that CSV cannot hold.
    """
    dialect = _dialect(step)
    formats = _formats(session, step)
    name, reporter, digits = context.name or path.name, context.reporter, context.digits
    if schema is not None:
        _require_scalars(schema)
    text = context.selected or prepare_text_file(
        path, context.scratch, name=name, encoding=step.encoding, dialect=dialect, reporter=reporter
    )
    options = _csv_options(step, dialect, text.line_separator)
    reader = session.read.options(**options)
    records = CsvRecords(name, dialect, names if schema is None else schema.names)
    if context.lines is None:
        check_records(text, records, reporter)
    else:
        numbered = context.lines.number_csv(text, records, reporter, header=bool(step.header))
        reader = reader.options(**_MARK_INVALID, header=False)
        columns = schema or pa.schema([pa.field(name, pa.string()) for name in names])
        with translate_errors(reporter):
            read_schema = _numbered_schema(_text_schema(columns), st.StringType())
            frame = reader.schema(read_schema).csv(spark_path(numbered.path))
            if schema is None and step.infer_schema:
                valid = frame.where(f"{identifier(RECORD_COLUMN)} IS NULL").select(
                    *map(identifier, columns.names)
                )
                columns = sql_types.arrow_schema(_cast_inferred(valid, formats, reporter).schema)
            return sql_types.cast_to_schema(frame, columns, formats)
    if schema is None:
        with cancellable(session, reporter):
            frame = reader.csv(spark_path(text.path))
        with translate_errors(reporter):
            if not step.infer_schema:
                return frame
            converted = _cast_inferred(frame, formats, reporter)
            if digits is not None and _may_have_digits(text, formats):
                inferred = sql_types.arrow_schema(converted.schema)
                stored = [field.with_type(with_timestamp_unit(field.type, "ms")) for field in inferred]
                digits.set_frame(frame, pa.schema(stored), formats)
            return converted
    with translate_errors(reporter):
        frame = reader.schema(_text_schema(schema)).csv(spark_path(text.path))
        if digits is not None and _may_have_digits(text, formats):
            digits.set_frame(frame, schema, formats)
        return sql_types.cast_to_schema(frame, schema, formats)


def read_json(
    session: SparkSession,
    path: Path,
    step: NdJson | Json,
    schema: pa.Schema | None,
    context: ReadContext,
    on_keys: Callable[[Mapping[str, int]], None] | None = None,
) -> DataFrame:
    """Read a file with one JSON object per line.

    A missing key is null; keys that are not in the schema are ignored. Names match case-insensitively, also
    those of struct fields. Numbers may be strings. An object or array declared as STRING is read as its JSON
    text. Without a schema Spark infers one from the entire file: columns in alphabetical order, dates and
    timestamps as STRING.

    Args:
        session: session of the job.
        path: the file, uncompressed.
        step: formats; its schema is ignored.
        schema: the declared columns.
        context: names in errors, and what else is done with the records. Its reporter logs names in another
            case.
        on_keys: receives the keys of all objects, each with the line of its first occurrence.

    Raises:
        BadData: the file is not text, a line is not an object, or a column's name occurs in several
            spellings.
        InvalidManifest: an option is invalid.
        InvalidSchema: a type that Spark cannot hold.
    """
    formats, reporter = _formats(session, step), context.reporter
    name, scratch, selected = context.name or path.name, context.scratch, context.selected
    lines, digits = context.lines, context.digits
    scan = JsonScan(name, schema)
    encoding = step.encoding
    if lines is not None:
        whole = prepare_text_file(path, scratch, name=name, encoding=encoding, reporter=reporter)
        selected = lines.number_json(whole, name, reporter)
    if selected is not None:
        path, encoding = selected.path, None
    text = prepare_text_file(path, scratch, name=name, encoding=encoding, objects=scan, reporter=reporter)
    if scan.spelled:
        respelled = [f"'{written}' as `{'.'.join(path)}`" for path, written in scan.spelled.items()]
        reporter.log(f"{name}: names differ in case: {', '.join(respelled)}")
    if on_keys is not None and lines is None:
        on_keys(scan.keys)
    reader = session.read.options(**_JSON_OPTIONS, **_format_options(formats))
    if lines is not None:
        reader = reader.options(**_MARK_INVALID)
    if schema is None:
        with cancellable(session, reporter):
            frame = reader.json(spark_path(text.path))
        return frame if lines is None else _hide_lines(frame)
    with translate_errors(reporter):
        read_schema = st.StructType([_json_field(field, (field.name,), scan.spelled) for field in schema])
        names = schema.names
        if lines is not None:
            read_schema = _numbered_schema(read_schema, st.LongType())
            names = [LINE_COLUMN, *names, RECORD_COLUMN]
        frame = reader.schema(read_schema).json(spark_path(text.path)).toDF(*names)
        if digits is not None and _may_have_digits(text, formats):
            digits.set_frame(frame, schema, formats)
        return sql_types.cast_to_schema(frame, schema, formats)


def _numbered_schema(schema: st.StructType, line: st.DataType) -> st.StructType:
    """Return the schema to read numbered records with."""
    invalid = st.StructField(RECORD_COLUMN, st.StringType())
    return st.StructType([st.StructField(LINE_COLUMN, line), *schema, invalid])


def _hide_lines(frame: DataFrame) -> DataFrame:
    """Return the inferred columns of numbered records, over a frame with their lines."""
    names = [identifier(column) for column in frame.columns if column not in (LINE_COLUMN, RECORD_COLUMN)]
    if RECORD_COLUMN not in frame.columns:
        frame = frame.selectExpr("*", f"CAST(NULL AS STRING) AS {identifier(RECORD_COLUMN)}")
    return frame.selectExpr(*names)


def read_parquet(
    session: SparkSession,
    path: Path,
    schema: pa.Schema | None,
    *,
    scratch: Path,
    name: str | None = None,
    reporter: Reporter | None = None,
    digits: TimeDigits | None = None,
) -> DataFrame:
    """Read a Parquet file. With a schema: its columns by name, in its order, cast to its types.

    Raises:
        BadData: not a Parquet file.
        InvalidSchema: a column is missing, or a type is incompatible.
    """
    name, reporter = name or path.name, reporter or Reporter()
    file, footer = prepare_parquet_file(path, scratch, name, reporter, schema)
    with translate_errors(reporter):
        max_bytes = partition_bytes(footer, path.stat().st_size)
        session.conf.set("spark.sql.files.maxPartitionBytes", str(max_bytes))
        try:
            read = parquet_frame(session, [file])
            frame = convert_values(read, footer, typed_nulls=schema is None)
        except AnalysisException as error:
            raise InvalidSchema(
                f"Spark cannot read the file: {clean_message(str(error))}", where=name
            ) from None
        if schema is None:
            return frame
        fields = _file_fields(footer)
        if digits is not None and len(fields) == len(frame.columns):
            digits.set_frame(read, schema, stored=pa.schema(fields))
        declared = {field.name.lower() for field in schema}
        if left_out := [column for column in frame.columns if column.lower() not in declared]:
            reporter.log(ignored_columns(name, left_out))
        return _select_columns(frame, schema, name)


def _formats(session: SparkSession, step: Csv | NdJson | Json) -> Formats:
    """Return the formats of a step. Patterns are checked first, since an invalid one would be reported
    as invalid data.
    """
    formats = Formats.parse(step.date_format, step.timestamp_format)
    for option, pattern in (("dateFormat", formats.date), ("timestampFormat", formats.timestamp)):
        if pattern is None:
            continue
        try:
            session.sql(f"SELECT try_to_timestamp('', {sql_types.string_literal(pattern)})").collect()
        except PySparkException as error:
            raise InvalidManifest(
                f"`{option}` is invalid: {clean_message(str(error))}",
                hint="use a pattern such as `yyyy-MM-dd HH:mm:ss`, or omit it for ISO 8601",
            ) from None
    return formats


def _dialect(step: Csv) -> Dialect:
    quote = '"' if step.quote is None else step.quote
    escape = step.escape or quote
    separator = "," if step.separator is None else step.separator.replace("\\t", "\t")
    for option, value in (("quote", quote), ("escape", escape)):
        if len(value) > 1 or not value.isascii():
            raise InvalidManifest(f"`{option}` is '{value}', but must be one ASCII character")
    if not separator or separator in (quote, "\n", "\r"):
        raise InvalidManifest(
            f"invalid `separator`: '{separator}'", hint="use a separator such as ',' or ';'"
        )
    return Dialect(separator, quote, escape)


def _require_scalars(schema: pa.Schema) -> None:
    for field in schema:
        if pa.types.is_nested(field.type):
            raise InvalidSchema(
                f"column `{field.name}` has the type {type_ddl(field.type)}, which CSV does not support",
                where="read.schema",
                hint=f"declare `{field.name}` STRING and use from_json in the preprocess query",
            )


def _csv_options(step: Csv, dialect: Dialect, line_separator: str | None) -> dict[str, str | bool]:
    ends: dict[str, str | bool] = {"lineSep": line_separator} if line_separator else {}
    return {
        "mode": "FAILFAST",
        "header": bool(step.header),
        "sep": dialect.separator,
        "quote": dialect.quote,
        "escape": dialect.escape,
        "nullValue": step.null_value or "",
        "ignoreLeadingWhiteSpace": False,
        "ignoreTrailingWhiteSpace": False,
        **ends,
    }


def _text_schema(schema: pa.Schema) -> st.StructType:
    spark_schema(schema)  # reports a type that Spark cannot hold
    return st.StructType([st.StructField(name, st.StringType()) for name in schema.names])


def _may_have_digits(text: PreparedTextFile, formats: Formats) -> bool:
    """Return whether a time in a file may have more than three digits of a second."""
    return text.has_fractions if formats.timestamp is None else "SSSS" in formats.timestamp


def _cast_inferred(frame: DataFrame, formats: Formats, reporter: Reporter) -> DataFrame:
    """Return the frame with each text column cast to the first type that holds all of its values."""
    names = frame.columns
    tests = [
        f"coalesce(bool_and({sql_types.is_castable(name, data_type, formats)}), false)"
        for name in names
        for data_type in _INFERRED_TYPES
    ]
    _, batches = arrow_batches(frame.selectExpr(*tests), reporter, progress=False)
    results = [column[0].as_py() for batch in batches for column in batch.columns]
    fields = []
    for i, name in enumerate(names):
        castable = results[i * len(_INFERRED_TYPES) : (i + 1) * len(_INFERRED_TYPES)]
        data_type = next(
            (
                data_type
                for data_type, is_castable in zip(_INFERRED_ARROW_TYPES, castable, strict=True)
                if is_castable
            ),
            pa.string(),
        )
        fields.append(pa.field(name, data_type))
    return sql_types.cast_to_schema(frame, pa.schema(fields), formats)


def _json_field(
    field: pa.Field, path: tuple[str, ...], spelling: Mapping[tuple[str, ...], str]
) -> st.StructField:
    return st.StructField(spelling.get(path, field.name), _json_read_type(field.type, path, spelling))


def _json_read_type(
    data_type: pa.DataType, path: tuple[str, ...], spelling: Mapping[tuple[str, ...], str]
) -> st.DataType:
    """Return the type to read a JSON value with: text for scalars at any depth, except binary columns."""
    spark = spark_type(data_type, ".".join(path))
    if isinstance(spark, st.StructType):
        return st.StructType([_json_field(member, (*path, member.name), spelling) for member in data_type])
    if isinstance(spark, st.ArrayType):
        return st.ArrayType(_json_read_type(data_type.value_type, path, spelling))
    return spark if isinstance(spark, st.BinaryType) and data_type != uuid_type() else st.StringType()


def _format_options(formats: Formats) -> dict[str, str]:
    options = {"dateFormat": formats.date, "timestampFormat": formats.timestamp}
    return {name: value for name, value in options.items() if value}


def _select_columns(frame: DataFrame, schema: pa.Schema, name: str) -> DataFrame:
    available = {name.lower() for name in frame.columns}
    for field in schema:
        if field.name.lower() not in available:
            raise missing_column_error(field.name, frame.columns, name)
    try:
        return sql_types.cast_to_schema(frame, schema, Formats())
    except InvalidSchema as error:
        error.where = error.where or name
        raise


_MAX_IN_ORDER: Final = 16


def slices_frame(
    session: SparkSession,
    paths: Sequence[Path],
    schema: pa.Schema,
    vocab: DatasetVocabulary,
    *,
    ordered: bool = True,
) -> DataFrame:
    """Return a lazy frame of the rows of slices.

    The offset is a BIGINT and the operation an INT, independent of their stored types. Columns that an older
    slice lacks are null.

    Args:
        session: session of the job.
        paths: files, oldest first; a frame without rows for an empty list.
        schema: schema of the input.
        vocab: column names of the input.
        ordered: keep the order of up to 16 slices. Otherwise, and for more slices, the order is undefined.

    Raises:
        NotFound, BadData: a slice is missing or damaged.
    """
    query_types = query_schema(schema, vocab)
    with translate_errors():
        if not paths:
            return session.createDataFrame([], spark_schema(query_types))
        read_types = [_read_types(path, query_types, vocab) for path in paths]
        if ordered and len(paths) <= _MAX_IN_ORDER:
            frames = [
                _read(session, [path], query_types, types)
                for path, types in zip(paths, read_types, strict=True)
            ]
        else:
            frames = [
                _read(session, [path for path, own in zip(paths, read_types, strict=True) if own == types],
                      query_types, types)
                for types in dict.fromkeys(read_types)
            ]  # fmt: skip
        return reduce(lambda left, right: left.union(right), frames)


def query_schema(schema: pa.Schema, vocab: DatasetVocabulary) -> pa.Schema:
    """Return the schema that a query reads: the offset is a BIGINT and the operation an INT."""
    types = {vocab.offset_column: pa.int64(), vocab.operation_type_column: pa.int32()}
    return pa.schema([field.with_type(types.get(field.name, field.type)) for field in schema])


def _read(
    session: SparkSession, paths: Sequence[Path], schema: pa.Schema, read_types: pa.Schema
) -> DataFrame:
    """Read slices in the types of :func:`_read_types`, and convert their rows to ``schema``."""
    frame = parquet_frame(session, paths, spark_schema(read_types))
    if read_types == schema:
        return frame
    return frame.selectExpr(
        *(
            f"{_query_value(field, read_type.type)} AS {identifier(field.name)}"
            for field, read_type in zip(schema, read_types, strict=True)
        )
    )


def _query_value(field: pa.Field, read_type: pa.DataType) -> str:
    name = identifier(field.name)
    if pa.types.is_uint64(read_type):
        return f"CAST({name} AS BIGINT)"
    return _value_conversion(name, field.type, spark_type(read_type, field.name), 0) or name


def _read_types(path: Path, schema: pa.Schema, vocab: DatasetVocabulary) -> pa.Schema:
    """Return the types that Spark reads the columns of a slice as: ``schema``, with two exceptions.

    Dictionary-encoded unsigned offsets are unsigned. Times in milliseconds are numbers.
    """
    footer = _slice_footer(path)
    stored = {field.name: field.type for field in footer.schema.to_arrow_schema()}
    types = {name: _read_type(schema.field(name).type, stored.get(name)) for name in schema.names}
    if vocab.offset_column in types and _has_wide_offsets(footer, vocab):
        types[vocab.offset_column] = pa.uint64()
    return pa.schema([field.with_type(types[field.name]) for field in schema])


def _read_type(data_type: pa.DataType, stored: pa.DataType | None) -> pa.DataType:
    """Return a type with numbers for those times in it that a slice stores in milliseconds."""
    if stored is None:
        return data_type
    if pa.types.is_time(data_type) and pa.types.is_time32(stored):
        return pa.int32()
    if is_list_like(data_type) and is_list_like(stored):
        item = data_type.value_field
        return pa.list_(item.with_type(_read_type(item.type, stored.value_type)))
    if pa.types.is_map(data_type) and pa.types.is_map(stored):
        item = _read_type(data_type.item_type, stored.item_type)
        return pa.map_(_read_type(data_type.key_type, stored.key_type), data_type.item_field.with_type(item))
    if pa.types.is_struct(data_type) and pa.types.is_struct(stored):
        types = {field.name: field.type for field in stored}
        return pa.struct(
            [field.with_type(_read_type(field.type, types.get(field.name))) for field in data_type]
        )
    return data_type


def _slice_footer(path: Path) -> pq.FileMetaData:
    try:
        with open_parquet(path) as file:
            return file.metadata
    except FileNotFoundError:
        raise NotFound(
            "slice is missing", where=str(path), hint="run odf verify to find all errors"
        ) from None
    except parquet_errors() as error:
        raise BadData(f"the data slice cannot be read: {error}", where=str(path)) from error


def _has_wide_offsets(footer: pq.FileMetaData, vocab: DatasetVocabulary) -> bool:
    """Return whether the offsets are unsigned and dictionary-encoded, which Spark cannot read as BIGINT."""
    if not footer.num_row_groups:
        return False
    for index in range(footer.num_columns):
        column = footer.row_group(0).column(index)
        if column.path_in_schema == vocab.offset_column:
            unsigned = pa.types.is_uint64(footer.schema.to_arrow_schema().field(vocab.offset_column).type)
            return unsigned and any("DICTIONARY" in encoding for encoding in column.encodings)
    return False
