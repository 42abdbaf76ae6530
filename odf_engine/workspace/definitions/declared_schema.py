"""The schema of slices that a definition declares, merged with the declared columns of the dataset."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from odf_engine.base.arrow import pa
from odf_engine.data.ddl import parse_ddl, timestamp_type, to_ddl, type_ddl
from odf_engine.data.odf_schema import declared_types, nullable_type
from odf_engine.data.parquet.slice_rows import check_system_columns
from odf_engine.data.parquet.slices import slice_schema
from odf_engine.data.schema_enforcement import equal_except_precision, match_columns, slice_type
from odf_engine.errors import InvalidSchema
from odf_engine.metadata.model import DataSchema, DatasetVocabulary


def schema_from_ddl(ddl: Sequence[str], declared: pa.Schema | None, vocab: DatasetVocabulary) -> pa.Schema:
    """Return the schema of slices with exactly these data columns, in this order.

    Args:
        ddl: all data columns; the event time may be omitted.
        declared: the current schema of the dataset, or None.
        vocab: names of the system columns.

    Raises:
        InvalidSchema: a malformed or invalid column.
    """
    columns = parse_ddl(ddl)
    new_schema = slice_schema(columns, vocab)
    if declared is None:
        return new_schema
    positions = dict(zip(columns.names, match_columns(declared.names, columns.names), strict=True))
    system = _system_names(vocab)
    spelling = {name.casefold(): name for name in columns.names}
    fields = [
        _evolve_field(field, columns.field(spelling[field.name.casefold()]), vocab)
        if field.name.casefold() in spelling
        else field
        for field in declared
        if field.name in system
    ]
    for column in columns:
        position = positions[column.name]
        if position is None:
            fields.append(new_schema.field(column.name))
        elif declared.field(position).name not in system:
            fields.append(_evolve_field(declared.field(position), column, vocab))
    return pa.schema(fields, declared.metadata)


def schema_from_odf(schema: DataSchema, declared: pa.Schema | None, vocab: DatasetVocabulary) -> pa.Schema:
    """Return the schema of slices that an ODF schema in a definition declares.

    If it lists no system columns, the columns of the dataset or of a new one are added.

    Raises:
        InvalidSchema: an invalid column, or a type that slices cannot store.
    """
    columns = declared_types(schema)
    system = (vocab.offset_column, vocab.operation_type_column, vocab.system_time_column)
    listed = [name for name in system if name in columns.names]
    data = pa.schema([field for field in columns if field.name not in system])
    new_schema = slice_schema(data, vocab)  # raises for columns that are invalid
    for field in data:
        stored = slice_type(field.type)
        if nullable_type(stored) != nullable_type(field.type):
            raise InvalidSchema(
                f"column '{field.name}': slices store {field.type} as {stored}",
                hint="declare the column with the stored type",
            )
    if listed:
        check_system_columns(columns, vocab)
        return columns
    event_time = vocab.event_time_column
    known = new_schema if declared is None else declared
    first = [known.field(name) for name in system]
    time = columns if event_time in columns.names else known
    rest = [field for field in columns if field.name != event_time]
    return pa.schema([*first, time.field(event_time), *rest])


def add_source_columns(
    declared: pa.Schema, columns: Iterable[pa.Field], removed: Collection[str], vocab: DatasetVocabulary
) -> pa.Schema:
    """Return the schema with the columns of a source; missing columns are appended.

    Args:
        declared: the current schema of the dataset.
        columns: the columns that the source reads now.
        removed: the columns that it no longer reads.
        vocab: names of the system columns.

    Raises:
        InvalidSchema: an invalid column.
    """
    source_schema = pa.schema(columns)
    new_schema = slice_schema(source_schema, vocab)
    fields: list[pa.Field] = list(declared)
    for column, position in zip(
        source_schema, match_columns(declared.names, source_schema.names), strict=True
    ):
        if position is None:
            fields.append(new_schema.field(column.name))
        else:
            fields[position] = _evolve_field(fields[position], column, vocab)
    dropped = {name.casefold() for name in removed}
    return pa.schema([field for field in fields if field.name.casefold() not in dropped], declared.metadata)


def data_ddl(declared: pa.Schema, vocab: DatasetVocabulary) -> list[str] | None:
    """Return the data columns of a schema as DDL for :func:`schema_from_ddl`, or None if DDL cannot express
    them.
    """
    system = _system_names(vocab) - {vocab.event_time_column}
    fields = [
        field
        for field in declared
        if field.name not in system
        and (field.name != vocab.event_time_column or field.type != timestamp_type())
    ]
    ddl = to_ddl(pa.schema(fields))
    try:
        same = schema_from_ddl(ddl, declared, vocab).equals(declared, check_metadata=True)
    except InvalidSchema:
        return None
    return ddl if same else None


def _evolve_field(old: pa.Field, column: pa.Field, vocab: DatasetVocabulary) -> pa.Field:
    """Return the dataset's column with the type and nullability that are declared now."""
    is_event_time = old.name == vocab.event_time_column  # always in milliseconds
    same = type_ddl(column.type) == type_ddl(old.type) or (
        is_event_time and equal_except_precision(column.type, old.type)
    )
    data_type = old.type if same else slice_type(column.type)
    # Rows always have an event time, so a manifest cannot change its nullability.
    nullable = old.nullable if is_event_time else column.nullable
    return old.with_type(data_type).with_nullable(nullable)


def _system_names(vocab: DatasetVocabulary) -> set[str]:
    return {
        vocab.offset_column,
        vocab.operation_type_column,
        vocab.system_time_column,
        vocab.event_time_column,
    }
