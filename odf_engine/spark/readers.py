"""Reads CSV, JSON, Parquet files and data slices as strict DataFrames."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from odf_engine.data.ddl import UUID, type_ddl
from odf_engine.data.parquet_reader import UNREADABLE, open_parquet, read_bounded, read_parquet_schema
from odf_engine.errors import BadData, InvalidManifest, InvalidSchema, NotFound
from odf_engine.metadata.model import Csv, DatasetVocabulary, Json, NdJson
from odf_engine.progress import Reporter
from odf_engine.spark import sql_types
from odf_engine.spark.arrow_batches import arrow_batches, cancellable
from odf_engine.spark.errors import clean_message, translate_errors, truncate
from odf_engine.spark.sql_types import Formats, identifier, spark_schema, spark_type, string_literal
from odf_engine.spark.text_files import Dialect, JsonScan, prepare_text_file, safe_link, spark_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_MAX_PIECE: Final = 128 << 20
"""Spark holds the rows of a few row groups at once; larger ones (in bytes, unpacked) are divided."""
_PIECE: Final = 16 << 20
_UNPACKED: Final = 32 << 20
_MIN_AT_ONCE: Final = 1 << 20
_BATCH_ROWS: Final = 16384


def prepare_parquet_file(
    path: Path, scratch: Path, name: str, reporter: Reporter
) -> tuple[Path, pq.FileMetaData]:
    """A file to give to Spark in place of this one, and the footer of this one.

    Args:
        path: the file.
        scratch: a folder for a link or copy; whoever calls removes it after the job.
        name: how errors name the file.
        reporter: is asked whether to stop.

    Raises:
        BadData: it is not a Parquet file, or it is damaged.
    """
    try:
        with open_parquet(path) as file:
            footer = file.metadata
            largest = max((_size(footer, i) for i in range(footer.num_row_groups)), default=0)
            if largest <= _MAX_PIECE:
                return safe_link(path, scratch, ".parquet"), footer
            copy = Path(tempfile.mkdtemp(prefix="parquet-", dir=scratch)) / "divided.parquet"
            _divide(path, copy, reporter)
    except UNREADABLE as error:
        problem = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BadData(f"this is not a Parquet file that can be read: {problem}", where=name) from None
    return copy, footer


def convert_nanoseconds(frame: DataFrame, footer: pq.FileMetaData) -> DataFrame:
    """Time stamps of nanoseconds, which Spark gives as numbers, as time stamps cut to microseconds."""
    made = [_moments(identifier(field.name), field.type, 0) for field in footer.schema.to_arrow_schema()]
    if len(made) != len(frame.columns) or not any(made):
        return frame
    names = map(identifier, frame.columns)
    return frame.selectExpr(*(f"{value or name} AS {name}" for value, name in zip(made, names, strict=True)))


def _moments(value: str, kind: pa.DataType, depth: int) -> str | None:
    """An expression for a value at any depth with its time stamps; None where it has no such ones."""
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return f"timestamp_micros(({value} - pmod({value}, 1000)) DIV 1000)"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        item = f"item_{depth}"
        made = _moments(item, kind.value_type, depth + 1)
        return made and f"transform({value}, {item} -> {made})"
    if pa.types.is_struct(kind):
        members = {field.name: f"{value}.{identifier(field.name)}" for field in kind}
        made = {field.name: _moments(members[field.name], field.type, depth) for field in kind}
        if any(made.values()):
            pairs = ", ".join(
                f"{string_literal(name)}, {made[name] or member}" for name, member in members.items()
            )
            return f"if({value} IS NULL, NULL, named_struct({pairs}))"
    return None


def partition_bytes(footer: pq.FileMetaData, size: int) -> int:
    """How many bytes of the file Spark should take for one partition, so that memory holds its rows:
    Parquet packs, and 16 MB of it may be some hundred in memory.

    Args:
        footer: of the file.
        size: of the file, in bytes.
    """
    unpacked = sum(_size(footer, at) for at in range(footer.num_row_groups))
    return max(_MIN_AT_ONCE, min(_PIECE, size * _UNPACKED // max(unpacked, 1)))


def _size(footer: pq.FileMetaData, group: int) -> int:
    """Bytes of a row group in memory, at least: dictionaries may make it look much smaller on disk."""
    found = footer.row_group(group)
    return max(found.total_byte_size, found.num_rows * found.num_columns * 8)


def _divide(path: Path, copy: Path, reporter: Reporter) -> None:
    """Copies a file with row groups of moderate size, in bounded memory and the same order."""
    schema = read_parquet_schema(path)
    with pq.ParquetWriter(copy, schema, compression="lz4", version="2.6") as writer:
        batches: list[pa.RecordBatch] = []
        for batch in read_bounded(path, max_rows=_BATCH_ROWS, max_bytes=_PIECE):
            reporter.raise_if_cancelled()
            batches.append(batch)
            if sum(each.nbytes for each in batches) >= _PIECE:
                writer.write_table(pa.Table.from_batches(batches))
                batches = []
        if batches:
            writer.write_table(pa.Table.from_batches(batches))


_ARROW_GUESSES: Final = (
    pa.int64(), pa.float64(), pa.bool_(), pa.date32(), pa.timestamp("us", "UTC")
)  # fmt: skip
_JSON_OPTIONS: Final = {
    "mode": "FAILFAST",
    "allowSingleQuotes": False,
    "maxStringLen": 1 << 28,  # by default 20 million characters: shapes may have more
}
_GUESSES: Final = tuple(spark_type(kind, "") for kind in _ARROW_GUESSES)


def read_csv(
    session: SparkSession,
    path: Path,
    step: Csv,
    schema: pa.Schema | None,
    *,
    scratch: Path,
    name: str | None = None,
    reporter: Reporter | None = None,
) -> DataFrame:
    """A CSV file.

    Columns of the schema go by position, whatever a header says. An empty value is null, quoted or
    not; with a ``nullValue`` that text is null too, and a quoted empty value is an empty text. A doubled
    quote within quotes is a quote; line ends may be quoted. Blank lines are skipped. Without a
    schema all columns are STRING, or with ``inferSchema`` the first of BIGINT, DOUBLE, BOOLEAN,
    DATE and TIMESTAMP that holds every value (numbers with leading zeros stay STRING).

    Args:
        session: of the job.
        path: the file, uncompressed.
        step: its dialect and formats; the schema in it is not looked at.
        schema: the declared columns.
        scratch: folder for temporary files.
        name: how errors name the file; by default its name.
        reporter: is asked whether to stop while the file is looked through.

    Raises:
        BadData: the file is not text, or a quote is never closed.
        InvalidManifest: an option that makes no sense.
        InvalidSchema: a type that CSV cannot hold.
    """
    dialect = _dialect(step)
    formats = _formats(session, step)
    if schema is not None:
        _only_scalars(schema)
    text = prepare_text_file(
        path, scratch, name=name or path.name, encoding=step.encoding, dialect=dialect, reporter=reporter
    )
    options = _csv_options(step, dialect, text.line_separator)
    reporter = reporter or Reporter()
    reader = session.read.options(**options)
    if schema is None:
        with cancellable(session, reporter):
            frame = reader.csv(spark_path(text.path))
        with translate_errors(reporter):
            return _guessed(frame, formats, reporter) if step.infer_schema else frame
    with translate_errors(reporter):
        frame = reader.schema(_all_text(schema)).csv(spark_path(text.path))
        return sql_types.cast_to_schema(frame, schema, formats)


def read_json(
    session: SparkSession,
    path: Path,
    step: NdJson | Json,
    schema: pa.Schema | None,
    *,
    scratch: Path,
    name: str | None = None,
    reporter: Reporter | None = None,
    on_keys: Callable[[Mapping[str, int]], None] | None = None,
) -> DataFrame:
    """A file with one JSON object a line.

    A key that is missing is null; keys that the schema does not name are left out. Names are found
    without regard to case, those of members of structs too. Numbers may be written as strings, and an
    object or array that is declared STRING is its JSON text. Without a schema Spark looks at the whole
    file: columns in alphabetical order, dates and time stamps as STRING.

    Args:
        session: of the job.
        path: the file, uncompressed.
        step: its formats; the schema in it is not looked at.
        schema: the declared columns.
        scratch: folder for temporary files.
        name: how errors name the file; by default its name.
        reporter: hears of names in another case, and is asked whether to stop.
        on_keys: is told the keys of all objects, each with the line where it comes first.

    Raises:
        BadData: the file is not text, a line is not one object, or a column's name is written in
            several ways.
        InvalidManifest: an option that makes no sense.
        InvalidSchema: a type that Spark cannot hold.
    """
    formats, reporter = _formats(session, step), reporter or Reporter()
    name = name or path.name
    scan = JsonScan(name, schema)
    text = prepare_text_file(
        path, scratch, name=name, encoding=step.encoding, objects=scan, reporter=reporter
    )
    if scan.spelled:
        others = [f"'{written}' as `{'.'.join(path)}`" for path, written in scan.spelled.items()]
        reporter.log(f"{name}: names are found in another case: {', '.join(others)}")
    if on_keys is not None:
        on_keys(scan.keys)
    reader = session.read.options(**_JSON_OPTIONS, **_format_options(formats))
    if schema is None:
        with cancellable(session, reporter):
            return reader.json(spark_path(text.path))
    with translate_errors(reporter):
        held = st.StructType([_json_field(field, (field.name,), scan.spelled) for field in schema])
        frame = reader.schema(held).json(spark_path(text.path)).toDF(*schema.names)
        return sql_types.cast_to_schema(frame, schema, formats)


def read_parquet(
    session: SparkSession,
    path: Path,
    schema: pa.Schema | None,
    *,
    scratch: Path,
    name: str | None = None,
    reporter: Reporter | None = None,
) -> DataFrame:
    """A Parquet file; the columns of the schema by name, in its order, as its types.

    Raises:
        BadData: it is not a Parquet file.
        InvalidSchema: a column that the file does not have, or a type that does not fit.
    """
    name, reporter = name or path.name, reporter or Reporter()
    file, footer = prepare_parquet_file(path, scratch, name, reporter)
    with translate_errors(reporter):
        at_once = partition_bytes(footer, path.stat().st_size)
        session.conf.set("spark.sql.files.maxPartitionBytes", str(at_once))
        try:
            frame = convert_nanoseconds(session.read.parquet(spark_path(file)), footer)
        except AnalysisException as error:
            raise InvalidSchema(
                f"Spark cannot read this file: {clean_message(str(error))}", where=name
            ) from None
        if schema is None:
            return frame
        declared = {field.name.lower() for field in schema}
        if left_out := [each for each in frame.columns if each.lower() not in declared]:
            reporter.log(f"{name}: not in read.schema, left out: {truncate(', '.join(left_out))}")
        return _projected(frame, schema, name)


def _formats(session: SparkSession, step: Csv | NdJson | Json) -> Formats:
    """Checked before anything is read: a wrong pattern would look like wrong data."""
    formats = Formats.of(step.date_format, step.timestamp_format)
    for option, pattern in (("dateFormat", formats.date), ("timestampFormat", formats.timestamp)):
        if pattern is None:
            continue
        try:
            session.sql(f"SELECT try_to_timestamp('', {sql_types.string_literal(pattern)})").collect()
        except PySparkException as error:
            raise InvalidManifest(
                f"`{option}` cannot be understood: {clean_message(str(error))}",
                hint="write it like `yyyy-MM-dd HH:mm:ss`, or leave it out for ISO 8601",
            ) from None
    return formats


def _dialect(step: Csv) -> Dialect:
    quote = '"' if step.quote is None else step.quote
    escape = step.escape or quote
    separator = "," if step.separator is None else step.separator.replace("\\t", "\t")
    for option, value in (("quote", quote), ("escape", escape)):
        if len(value) > 1 or not value.isascii():
            raise InvalidManifest(f"`{option}` is '{value}', and has to be one ASCII character")
    if not separator or separator in (quote, "\n", "\r"):
        raise InvalidManifest(f"`separator` cannot be '{separator}'", hint="write one like ',' or ';'")
    return Dialect(separator, quote, escape)


def _only_scalars(schema: pa.Schema) -> None:
    for field in schema:
        if pa.types.is_nested(field.type):
            raise InvalidSchema(
                f"column `{field.name}` has the type {type_ddl(field.type)}, which a CSV file cannot hold",
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


def _all_text(schema: pa.Schema) -> st.StructType:
    spark_schema(schema)  # names a type that Spark cannot hold
    return st.StructType([st.StructField(name, st.StringType()) for name in schema.names])


def _guessed(frame: DataFrame, formats: Formats, reporter: Reporter) -> DataFrame:
    """The frame with every column of text as the first type that holds all its values."""
    names = frame.columns
    tests = [
        f"coalesce(bool_and({sql_types.is_castable(name, kind, formats)}), false)"
        for name in names
        for kind in _GUESSES
    ]
    _, batches = arrow_batches(frame.selectExpr(*tests), reporter, progress=False)
    answers = [column[0].as_py() for batch in batches for column in batch.columns]
    fields = []
    for i, name in enumerate(names):
        fitting = answers[i * len(_GUESSES) : (i + 1) * len(_GUESSES)]
        kind = next((kind for kind, fits in zip(_ARROW_GUESSES, fitting, strict=True) if fits), pa.string())
        fields.append(pa.field(name, kind))
    return sql_types.cast_to_schema(frame, pa.schema(fields), formats)


def _json_field(
    field: pa.Field, path: tuple[str, ...], spelled: Mapping[tuple[str, ...], str]
) -> st.StructField:
    return st.StructField(spelled.get(path, field.name), _json_held(field.type, path, spelled))


def _json_held(
    kind: pa.DataType, path: tuple[str, ...], spelled: Mapping[tuple[str, ...], str]
) -> st.DataType:
    """Scalars are read as text at any depth; Spark itself makes values of binary columns."""
    wanted = spark_type(kind, ".".join(path))
    if isinstance(wanted, st.StructType):
        return st.StructType([_json_field(member, (*path, member.name), spelled) for member in kind])
    if isinstance(wanted, st.ArrayType):
        return st.ArrayType(_json_held(kind.value_type, path, spelled))
    return wanted if isinstance(wanted, st.BinaryType) and kind != UUID else st.StringType()


def _format_options(formats: Formats) -> dict[str, str]:
    options = {"dateFormat": formats.date, "timestampFormat": formats.timestamp}
    return {name: value for name, value in options.items() if value}


def _projected(frame: DataFrame, schema: pa.Schema, name: str) -> DataFrame:
    held = {name.lower() for name in frame.columns}
    for field in schema:
        if field.name.lower() not in held:
            raise InvalidSchema(
                f"the file has no column `{field.name}`",
                where=name,
                hint=f"its columns are {', '.join(f'`{other}`' for other in frame.columns)}",
            )
    try:
        return sql_types.cast_to_schema(frame, schema, Formats())
    except InvalidSchema as error:
        error.where = error.where or name
        raise


_MAX_IN_ORDER: Final = 16


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
    plain = query_schema(schema, vocab)
    with translate_errors():
        if not paths:
            return session.createDataFrame([], spark_schema(plain))
        wide = [_is_wide(path, vocab) for path in paths]
        if len(paths) > _MAX_IN_ORDER and not any(wide):
            return _read(session, paths, plain)
        frames = [
            _read_wide(session, path, plain, vocab) if is_wide else _read(session, [path], plain)
            for path, is_wide in zip(paths, wide, strict=True)
        ]
        return reduce(lambda left, right: left.union(right), frames)


def query_schema(schema: pa.Schema, vocab: DatasetVocabulary) -> pa.Schema:
    """The schema as a query sees it: the offset is a BIGINT and the operation an INT."""
    return pa.schema([field.with_type(_PLAIN.get(_role(field.name, vocab), field.type)) for field in schema])


def readable_slice(path: Path, vocab: DatasetVocabulary, copy: Path) -> Path:
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
