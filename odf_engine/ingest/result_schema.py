"""Schemas of ingested rows: match the result of the preprocess query with the columns of the dataset."""

from __future__ import annotations

import pyarrow as pa

from odf_engine.base.config import Config, SystemColumns
from odf_engine.chain.state import ChainState
from odf_engine.data.ddl import to_ddl, type_ddl
from odf_engine.data.odf_schema import attributes_of_step
from odf_engine.data.parquet.slices import slice_schema, with_kamu_types
from odf_engine.data.schema_enforcement import equal_except_precision, match_columns, with_timestamp_unit
from odf_engine.errors import InvalidSchema, NewColumns
from odf_engine.metadata.model import AddPushSource, DataSchema, DatasetVocabulary, SetPollingSource
from odf_engine.spark.sql_types import arrow_schema, spark_schema


def result_schema(
    result: pa.Schema,
    columns: pa.Schema | None,
    declared: pa.Schema | None,
    vocab: DatasetVocabulary,
    unit: str = "ms",
    system_columns: SystemColumns = "specification",
) -> pa.Schema:
    """Return the complete schema of the slice for a result.

    Args:
        result: schema of the result in Spark.
        columns: the columns as declared in the manifest, if there is no query. Spark has fewer types, and
            no NOT NULL.
        declared: schema of the dataset, which the result must have, or None for a new dataset.
        vocab: names of the system columns.
        unit: of timestamps in the result of a query. In Spark, all have microseconds.
        system_columns: types of the system columns of a new dataset.

    Raises:
        InvalidSchema: a column has the name of a system column, the event time is not a time, or the
            columns differ from the dataset's; the message lists the differences.
    """
    _check_clashes(result, vocab)
    source = columns
    if source is None:
        source = pa.schema(
            [field.with_nullable(True).with_type(with_timestamp_unit(field.type, unit)) for field in result]
        )
    if declared is None:
        schema = slice_schema(source, vocab)
        return with_kamu_types(schema, vocab) if system_columns == "kamu" else schema
    _check_same(source, declared, vocab)
    return declared


def adopt_declared_types(
    guessed: pa.Schema, declared: pa.Schema | None, vocab: DatasetVocabulary, *, subset: bool
) -> pa.Schema | None:
    """Return inferred columns with the types of the dataset, or None if the inferred types are to be used.

    Args:
        guessed: inferred columns.
        declared: schema of the dataset, or None for a new dataset.
        vocab: names of the system columns.
        subset: columns of the dataset may be missing, as in formats that omit null values.
    """
    if declared is None:
        return None
    columns = data_columns(declared, vocab)
    places = [place for place in match_columns(columns.names, guessed.names) if place is not None]
    missing = set(columns.names) - {columns.names[place] for place in places} - {vocab.event_time_column}
    if len(places) < len(guessed) or (missing and not subset):
        return None  # result_schema reports the difference.
    if missing:
        return columns
    fields = [columns.field(at).with_name(name) for at, name in zip(places, guessed.names, strict=True)]
    same = all(
        equal_except_precision(left.type, right.type) for left, right in zip(guessed, fields, strict=True)
    )
    return None if same else pa.schema(fields)


def operation_column(names: list[str], vocab: DatasetVocabulary) -> str | None:
    """Return the name of the column with operations as the rows spell it, or None if they have none."""
    (place,) = match_columns(names, [vocab.operation_type_column])
    return None if place is None else names[place]


def drop_column(schema: pa.Schema, name: str | None) -> pa.Schema:
    """Return the schema without a column of this name, ignoring case."""
    if name is None:
        return schema
    return pa.schema([field for field in schema if field.name.casefold() != name.casefold()])


def column_attributes(
    state: ChainState, source: SetPollingSource | AddPushSource, config: Config
) -> DataSchema | None:
    """Return the ODF schema that has the attributes of the dataset's columns, or of its first rows.

    The first rows have those that the source declares, unless a query makes other columns, or the
    schema is stored as Arrow schema, which has no attributes.

    Raises:
        InvalidSchema: the declaration of the source is malformed.
    """
    is_new = not state.has_schema and config.metadata.data_schema == "odf"
    return attributes_of_step(source.read) if is_new and source.preprocess is None else state.odf_schema


def data_columns(declared: pa.Schema, vocab: DatasetVocabulary) -> pa.Schema:
    """Return the event time and data columns of a dataset's schema."""
    system = (vocab.offset_column, vocab.operation_type_column, vocab.system_time_column)
    return pa.schema([field for field in declared if field.name not in system])


def _check_clashes(result: pa.Schema, vocab: DatasetVocabulary) -> None:
    """Check the names of columns and the type of the event time.

    Raises:
        InvalidSchema: a column has the name of a system column, or the event time is not a time.
    """
    keys = ("offsetColumn", "operationTypeColumn", "systemTimeColumn")
    names = (vocab.offset_column, vocab.operation_type_column, vocab.system_time_column)
    for key, name in zip(keys, names, strict=True):
        for column in result.names:
            if column.casefold() == name.casefold():
                raise InvalidSchema(
                    f"the data contains a column '{column}', which is a system column",
                    hint=(
                        f"rename it in the preprocess query, or rename the system column with {key} in"
                        " SetVocab"
                    ),
                )
    for field in result:
        if field.name.casefold() == vocab.event_time_column.casefold() and not (
            pa.types.is_timestamp(field.type) or pa.types.is_date(field.type) or pa.types.is_null(field.type)
        ):
            raise InvalidSchema(
                (
                    f"the event time column '{field.name}' is a {type_ddl(field.type)}, not a TIMESTAMP"
                    " or DATE"
                ),
                hint=f"cast it in the preprocess query: CAST({field.name} AS TIMESTAMP), or set another"
                " column in SetVocab.eventTimeColumn",
            )


def _check_same(source: pa.Schema, declared: pa.Schema, vocab: DatasetVocabulary) -> None:
    """Compare names and types of columns. Their order and nullability may differ.

    Raises:
        NewColumns: the source has further columns.
        InvalidSchema: the columns differ.
    """
    expected = data_columns(declared, vocab)
    spark_types = arrow_schema(spark_schema(expected))
    places = match_columns(source.names, expected.names)
    missing: list[str] = []
    changed: list[str] = []
    for field, in_spark, place in zip(expected, spark_types, places, strict=True):
        if place is None:
            if field.name != vocab.event_time_column:
                missing.append(f"column '{field.name}' is missing")
            continue
        kind = source.field(place).type
        if not (pa.types.is_null(kind) or equal_except_precision(kind, field.type) or kind == in_spark.type):
            changed.append(f"column '{field.name}' was {type_ddl(field.type)}, is {type_ddl(kind)}")
    new = [field for place, field in enumerate(source) if place not in places]
    differences = [*missing, *changed, *(f"column '{field.name}' is new" for field in new)]
    if not differences:
        return
    problem = "the columns differ from those of the dataset: " + "; ".join(differences)
    if not missing and not changed:
        raise NewColumns(problem)
    hint = "select the dataset's columns in the preprocess query, or create a new dataset for the others"
    if new and not changed:
        listed = ", ".join(to_ddl(pa.schema([field.with_nullable(True) for field in new])))
        hint = (
            f"select NULL for missing columns in the query, and add {listed} to the dataset: run odf add"
            " --update --accept-columns MANIFEST"
        )
    raise InvalidSchema(problem, hint=hint)
