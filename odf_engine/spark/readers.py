"""Files as frames of Spark, with their rows in the order of the file and every value of its type.

Nothing here is lenient: a row with too few or too many values, a value that does not fit its
declared type, a null where NOT NULL was said stops the job with an error that says which. Columns of
text are read as text first and then made their type (:mod:`odf_engine.spark.casts`), so that CSV
and JSON agree about what a number or a date is.

Each function reads one file, because Spark gives no promise about the order of several. Temporary
copies and links go to ``scratch``, which must stay until the frame is done with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import types as st

from odf_engine.data.ddl import UUID, type_ddl
from odf_engine.errors import InvalidManifest, InvalidSchema
from odf_engine.metadata.model import Csv, Json, NdJson
from odf_engine.progress import Reporter
from odf_engine.spark import casts, parquet
from odf_engine.spark.casts import Formats
from odf_engine.spark.errors import clean, shortened, translated
from odf_engine.spark.frames import arrow_batches, cancellable
from odf_engine.spark.scans import Dialect, JsonScan
from odf_engine.spark.text import prepare, spark_path
from odf_engine.spark.types import spark_schema, spark_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
    text = prepare(
        path, scratch, name=name or path.name, encoding=step.encoding, dialect=dialect, reporter=reporter
    )
    options = _csv_options(step, dialect, text.line_separator)
    reporter = reporter or Reporter()
    reader = session.read.options(**options)
    if schema is None:
        with cancellable(session, reporter):
            frame = reader.csv(spark_path(text.path))
        with translated(reporter):
            return _guessed(frame, formats, reporter) if step.infer_schema else frame
    with translated(reporter):
        frame = reader.schema(_all_text(schema)).csv(spark_path(text.path))
        return casts.declared(frame, schema, formats)


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
    text = prepare(path, scratch, name=name, encoding=step.encoding, objects=scan, reporter=reporter)
    if scan.spelled:
        others = [f"'{written}' as `{'.'.join(path)}`" for path, written in scan.spelled.items()]
        reporter.line(f"{name}: names are found in another case: {', '.join(others)}")
    if on_keys is not None:
        on_keys(scan.keys)
    reader = session.read.options(**_JSON_OPTIONS, **_format_options(formats))
    if schema is None:
        with cancellable(session, reporter):
            return reader.json(spark_path(text.path))
    with translated(reporter):
        held = st.StructType([_json_field(field, (field.name,), scan.spelled) for field in schema])
        frame = reader.schema(held).json(spark_path(text.path)).toDF(*schema.names)
        return casts.declared(frame, schema, formats)


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
    file, footer = parquet.prepare(path, scratch, name, reporter)
    with translated(reporter):
        at_once = parquet.bytes_at_once(footer, path.stat().st_size)
        session.conf.set("spark.sql.files.maxPartitionBytes", str(at_once))
        try:
            frame = parquet.with_moments(session.read.parquet(spark_path(file)), footer)
        except AnalysisException as error:
            raise InvalidSchema(f"Spark cannot read this file: {clean(str(error))}", where=name) from None
        if schema is None:
            return frame
        declared = {field.name.lower() for field in schema}
        if left_out := [each for each in frame.columns if each.lower() not in declared]:
            reporter.line(f"{name}: not in read.schema, left out: {shortened(', '.join(left_out))}")
        return _projected(frame, schema, name)


def _formats(session: SparkSession, step: Csv | NdJson | Json) -> Formats:
    """Checked before anything is read: a wrong pattern would look like wrong data."""
    formats = Formats.of(step.date_format, step.timestamp_format)
    for option, pattern in (("dateFormat", formats.date), ("timestampFormat", formats.timestamp)):
        if pattern is None:
            continue
        try:
            session.sql(f"SELECT try_to_timestamp('', {casts.text(pattern)})").collect()
        except PySparkException as error:
            raise InvalidManifest(
                f"`{option}` cannot be understood: {clean(str(error))}",
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
        f"coalesce(bool_and({casts.fits(name, kind, formats)}), false)" for name in names for kind in _GUESSES
    ]
    _, batches = arrow_batches(frame.selectExpr(*tests), reporter, progress=False)
    answers = [column[0].as_py() for batch in batches for column in batch.columns]
    fields = []
    for i, name in enumerate(names):
        fitting = answers[i * len(_GUESSES) : (i + 1) * len(_GUESSES)]
        kind = next((kind for kind, fits in zip(_ARROW_GUESSES, fitting, strict=True) if fits), pa.string())
        fields.append(pa.field(name, kind))
    return casts.declared(frame, pa.schema(fields), formats)


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
        return casts.declared(frame, schema, Formats())
    except InvalidSchema as error:
        error.where = error.where or name
        raise
