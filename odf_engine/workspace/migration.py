"""From the columns that a definition lists to the schema that a dataset gets next.

Columns that a dataset has already stay exactly as its chain declares them, whoever wrote that; what is
new takes the types that slices hold. Whether readers survive the result is for the chain's rules.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import pyarrow as pa

from odf_engine.data.conform import find_columns, stored_type
from odf_engine.data.ddl import TIMESTAMP, parse_ddl, to_ddl, type_ddl
from odf_engine.data.slices import slice_schema
from odf_engine.errors import InvalidSchema
from odf_engine.metadata.model import DatasetVocabulary


def listed_schema(ddl: Sequence[str], declared: pa.Schema | None, vocab: DatasetVocabulary) -> pa.Schema:
    """The schema of slices with exactly these data columns, in their order.

    Args:
        ddl: all data columns; the event time may be left out.
        declared: the schema that the dataset has; None when it has none.
        vocab: names of the system columns.

    Raises:
        InvalidSchema: a malformed or impossible column.
    """
    columns = parse_ddl(ddl)
    fresh = slice_schema(columns, vocab)
    if declared is None:
        return fresh
    places = dict(zip(columns.names, find_columns(declared.names, columns.names), strict=True))
    system = _system_names(vocab)
    given = {name.casefold(): name for name in columns.names}
    fields = [
        _evolved(field, columns.field(given[field.name.casefold()]), vocab)
        if field.name.casefold() in given
        else field
        for field in declared
        if field.name in system
    ]
    for column in columns:
        place = places[column.name]
        if place is None:
            fields.append(fresh.field(column.name))
        elif declared.field(place).name not in system:
            fields.append(_evolved(declared.field(place), column, vocab))
    return pa.schema(fields, declared.metadata)


def grown_schema(
    declared: pa.Schema, columns: Iterable[pa.Field], gone: Collection[str], vocab: DatasetVocabulary
) -> pa.Schema:
    """The schema with the columns of a source: those that it lacks are put at its end.

    Args:
        declared: the schema that the dataset has.
        columns: the columns that the source reads now.
        gone: those that it read before and does not read any more.
        vocab: names of the system columns.

    Raises:
        InvalidSchema: an impossible column.
    """
    told = pa.schema(columns)
    fresh = slice_schema(told, vocab)
    fields: list[pa.Field] = list(declared)
    for column, place in zip(told, find_columns(declared.names, told.names), strict=True):
        if place is None:
            fields.append(fresh.field(column.name))
        else:
            fields[place] = _evolved(fields[place], column, vocab)
    dropped = {name.casefold() for name in gone}
    return pa.schema([field for field in fields if field.name.casefold() not in dropped], declared.metadata)


def data_ddl(declared: pa.Schema, vocab: DatasetVocabulary) -> list[str] | None:
    """The data columns of a schema as :func:`listed_schema` takes them; None if DDL cannot say them."""
    system = _system_names(vocab) - {vocab.event_time_column}
    fields = [
        field
        for field in declared
        if field.name not in system and (field.name != vocab.event_time_column or field.type != TIMESTAMP)
    ]
    ddl = to_ddl(pa.schema(fields))
    try:
        same = listed_schema(ddl, declared, vocab).equals(declared, check_metadata=True)
    except InvalidSchema:
        return None
    return ddl if same else None


def _evolved(old: pa.Field, column: pa.Field, vocab: DatasetVocabulary) -> pa.Field:
    """The column of the dataset as it is declared now."""
    kind = old.type if type_ddl(column.type) == type_ddl(old.type) else stored_type(column.type)
    # Rows always have an event time: whether it may be null is not for a manifest to say.
    nullable = old.nullable if old.name == vocab.event_time_column else column.nullable
    return old.with_type(kind).with_nullable(nullable)


def _system_names(vocab: DatasetVocabulary) -> set[str]:
    return {
        vocab.offset_column,
        vocab.operation_type_column,
        vocab.system_time_column,
        vocab.event_time_column,
    }
