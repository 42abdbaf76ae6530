"""Which columns a slice has: from the first result, and ever after as the chain declares them."""

from __future__ import annotations

import pyarrow as pa

from odf_engine.chain.state import ChainState
from odf_engine.data.arrow_schema import decode_schema
from odf_engine.data.conform import find_columns, stored_type
from odf_engine.data.ddl import to_ddl, type_ddl
from odf_engine.data.slices import slice_schema
from odf_engine.errors import InvalidSchema, Unsupported
from odf_engine.metadata.model import DatasetVocabulary
from odf_engine.spark.types import arrow_schema, spark_schema


def declared_schema(state: ChainState) -> pa.Schema | None:
    """The schema that the chain declares for slices; None before the first data.

    Raises:
        Unsupported: it is only there in the terms of a newer specification.
    """
    if state.schema is not None:
        return decode_schema(state.schema)
    if state.has_schema:
        raise Unsupported(
            "the dataset's schema is written in terms of a newer specification",
            hint="its data can be read and verified, but not added to",
        )
    return None


def schema_for(
    result: pa.Schema, columns: pa.Schema | None, declared: pa.Schema | None, vocab: DatasetVocabulary
) -> pa.Schema:
    """The complete schema of the slice for a result.

    Args:
        result: columns as they come out of Spark.
        columns: the same as the manifest declares them, when no query comes in between; Spark knows
            fewer types, and nothing of NOT NULL.
        declared: the dataset's schema, which the result has to have then.
        vocab: names of the system columns.

    Raises:
        InvalidSchema: a clash with a system column, an event time that is no time, or columns that
            are not those of the dataset; the message lists the differences.
    """
    _check_clashes(result, vocab)
    source = columns if columns is not None else pa.schema([field.with_nullable(True) for field in result])
    if declared is None:
        return slice_schema(source, vocab)
    _check_same(source, declared, vocab)
    return declared


def as_declared(
    guessed: pa.Schema, declared: pa.Schema | None, vocab: DatasetVocabulary, *, subset: bool
) -> pa.Schema | None:
    """Columns whose types were guessed, in the types of the dataset; None to leave them as they are.

    Without ``subset`` the names have to be all those of the dataset; with it some may be missing, as
    in files where a value that is null is not written at all.
    """
    if declared is None:
        return None
    columns = data_columns(declared, vocab)
    places = [place for place in find_columns(columns.names, guessed.names) if place is not None]
    missing = set(columns.names) - {columns.names[place] for place in places} - {vocab.event_time_column}
    if len(places) < len(guessed) or (missing and not subset):
        return None  # a difference that is said later
    if missing:
        return columns
    found = [columns.field(at).with_name(name) for at, name in zip(places, guessed.names, strict=True)]
    same = all(stored_type(left.type) == right.type for left, right in zip(guessed, found, strict=True))
    return None if same else pa.schema(found)


def find_operations(names: list[str], vocab: DatasetVocabulary) -> str | None:
    """What the rows call the column with operations (``op``); None when they have none."""
    (place,) = find_columns(names, [vocab.operation_type_column])
    return None if place is None else names[place]


def without(schema: pa.Schema, name: str | None) -> pa.Schema:
    """The schema without a column of this name, in whatever case."""
    if name is None:
        return schema
    return pa.schema([field for field in schema if field.name.casefold() != name.casefold()])


def data_columns(declared: pa.Schema, vocab: DatasetVocabulary) -> pa.Schema:
    system = (vocab.offset_column, vocab.operation_type_column, vocab.system_time_column)
    return pa.schema([field for field in declared if field.name not in system])


def _check_clashes(result: pa.Schema, vocab: DatasetVocabulary) -> None:
    keys = ("offsetColumn", "operationTypeColumn", "systemTimeColumn")
    names = (vocab.offset_column, vocab.operation_type_column, vocab.system_time_column)
    for key, name in zip(keys, names, strict=True):
        for column in result.names:
            if column.casefold() == name.casefold():
                raise InvalidSchema(
                    f"the data has a column '{column}', which is the name of a system column",
                    hint=f"rename it in the preprocess query, or give the system column another name: "
                    f"SetVocab with {key}",
                )
    for field in result:
        if field.name.casefold() == vocab.event_time_column.casefold() and not (
            pa.types.is_timestamp(field.type) or pa.types.is_date(field.type) or pa.types.is_null(field.type)
        ):
            raise InvalidSchema(
                f"the event time column '{field.name}' is {type_ddl(field.type)}, not TIMESTAMP or DATE",
                hint=f"convert it in the preprocess query: CAST({field.name} AS TIMESTAMP), "
                "or name another column in SetVocab.eventTimeColumn",
            )


def _check_same(source: pa.Schema, declared: pa.Schema, vocab: DatasetVocabulary) -> None:
    """Names and types have to be equal; the order and nullability of columns do not matter."""
    wanted = data_columns(declared, vocab)
    held = arrow_schema(spark_schema(wanted))  # the same columns as Spark has them
    places = find_columns(source.names, wanted.names)
    missing: list[str] = []
    changed: list[str] = []
    for field, in_spark, place in zip(wanted, held, places, strict=True):
        if place is None:
            if field.name != vocab.event_time_column:
                missing.append(f"column '{field.name}' is missing")
            continue
        kind = source.field(place).type
        if not (pa.types.is_null(kind) or stored_type(kind) == field.type or kind == in_spark.type):
            changed.append(f"column '{field.name}' was {type_ddl(field.type)}, is {type_ddl(kind)}")
    new = [field for place, field in enumerate(source) if place not in places]
    told = [*missing, *changed, *(f"column '{field.name}' is new" for field in new)]
    if not told:
        return
    hint = "give the dataset's columns in the preprocess query, or start a new dataset for the others"
    if new and not changed:
        listed = ", ".join(to_ddl(pa.schema([field.with_nullable(True) for field in new])))
        hint = (
            f"add {listed} to the dataset: list all columns under SetDataSchema in its manifest, which"
            " odf show --manifest prints, and run odf add --update; or leave them out in the query"
        )
        if missing:
            hint += ", which can also give NULL for what is missing"
    raise InvalidSchema("the columns are not those of the dataset: " + "; ".join(told), hint=hint)
