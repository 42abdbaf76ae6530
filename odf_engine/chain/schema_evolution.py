"""Schema evolution: changes that are compatible with existing readers, and merging of declared columns.

Specification: "Dataset Evolution".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from odf_engine.chain.state import ChainState
from odf_engine.errors import InvalidSchema, Unsupported
from odf_engine.metadata.model import DatasetVocabulary

if TYPE_CHECKING:
    import pyarrow as pa


class BreakingChange(NamedTuple):
    """An incompatible change, as one sentence, and advice on what to do instead, as another."""

    problem: str
    advice: str


def find_breaking_change(old: bytes, new: bytes) -> BreakingChange | None:
    """Return the first change in ``new`` that breaks readers of ``old``, or None.

    Nullable columns may be added. Columns may be reordered and change their metadata. They may not be removed
    or change their type or nullability.

    Args:
        old: Arrow schema as stored in SetDataSchema.
        new: likewise.

    Raises:
        InvalidSchema: the bytes are not a schema.
    """
    before, after = read_schema(old), read_schema(new)
    for field in before:
        indices = after.get_all_field_indices(field.name)
        if len(indices) > 1:
            return BreakingChange(f"duplicate column '{field.name}'", "use each column name once")
        breaking = _removal(field) if not indices else _find_field_change(field, after.field(indices[0]))
        if breaking is not None:
            return breaking
    for field in after:
        if field.name not in before.names and not field.nullable:
            return BreakingChange(
                f"the new column '{field.name}' is NOT NULL, but existing rows have no value for it",
                "declare it without NOT NULL",
            )
    return None


def _removal(field: pa.Field) -> BreakingChange:
    expression = f"CAST(NULL AS {_ddl(field)}) AS {field.name}"
    advice = f"keep it, as {expression} in the preprocess query" if field.nullable else "keep it"
    return BreakingChange(f"column '{field.name}' is missing", f"{advice}, or create a new dataset")


def _find_field_change(old: pa.Field, new: pa.Field) -> BreakingChange | None:
    name = old.name
    if new.type != old.type:
        old_type, new_type = _ddl(old), _ddl(new)
        if old_type == new_type:  # types with the same DDL
            old_type, new_type = str(old.type), str(new.type)
        return BreakingChange(
            f"column '{name}' changed from {old_type} to {new_type}",
            f"keep '{name}' as {old_type} and add the new values under another name in the preprocess query,"
            " or create a new dataset",
        )
    if new.nullable != old.nullable:
        old_type = "without NOT NULL" if old.nullable else "NOT NULL"
        return BreakingChange(
            f"column '{name}' changed from {_nullability(old)} to {_nullability(new)}",
            f"declare it {old_type}, as before, or create a new dataset",
        )
    return None


def same_schema(old: bytes, new: bytes) -> bool:
    """Return whether columns, order, types, nullability and metadata are equal.

    Raises:
        InvalidSchema: the bytes are not a schema.
    """
    return old == new or read_schema(old).equals(read_schema(new), check_metadata=True)


def read_schema(schema: bytes) -> pa.Schema:
    """Decode the Arrow schema stored in SetDataSchema.

    Raises:
        InvalidSchema: the bytes are not a schema.
    """
    # Deferred, as everywhere in this module: Arrow is slow to import, and opening a chain does not need it.
    from odf_engine.data.arrow_schema import decode_schema

    return decode_schema(schema)


def _ddl(field: pa.Field) -> str:
    from odf_engine.data.ddl import type_ddl

    return type_ddl(field.type)


def _nullability(field: pa.Field) -> str:
    return "nullable" if field.nullable else "NOT NULL"


def declared_schema(state: ChainState) -> pa.Schema | None:
    """Return the schema that the chain declares for slices; None before the first data.

    Raises:
        Unsupported: the schema is only available in terms of a newer specification.
    """
    from odf_engine.data.arrow_schema import decode_schema

    if state.schema is not None:
        return decode_schema(state.schema)
    if state.has_schema:
        raise Unsupported(
            "the dataset's schema is from a newer specification",
            hint="its data can be read and verified, but not extended",
        )
    return None


def schema_from_ddl(ddl: Sequence[str], declared: pa.Schema | None, vocab: DatasetVocabulary) -> pa.Schema:
    """Return the schema of slices with exactly these data columns, in this order.

    Args:
        ddl: all data columns; the event time may be omitted.
        declared: the current schema of the dataset, or None.
        vocab: names of the system columns.

    Raises:
        InvalidSchema: a malformed or invalid column.
    """
    import pyarrow as pa

    from odf_engine.data.ddl import parse_ddl
    from odf_engine.data.schema_enforcement import match_columns
    from odf_engine.data.slices import slice_schema

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
    import pyarrow as pa

    from odf_engine.data.schema_enforcement import match_columns
    from odf_engine.data.slices import slice_schema

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
    """Return the data columns of a schema as DDL for :func:`schema_from_ddl`; None if DDL cannot express
    them.
    """
    import pyarrow as pa

    from odf_engine.data.ddl import TIMESTAMP, to_ddl

    system = _system_names(vocab) - {vocab.event_time_column}
    fields = [
        field
        for field in declared
        if field.name not in system and (field.name != vocab.event_time_column or field.type != TIMESTAMP)
    ]
    ddl = to_ddl(pa.schema(fields))
    try:
        same = schema_from_ddl(ddl, declared, vocab).equals(declared, check_metadata=True)
    except InvalidSchema:
        return None
    return ddl if same else None


def _evolve_field(old: pa.Field, column: pa.Field, vocab: DatasetVocabulary) -> pa.Field:
    """Return the dataset's column with the type and nullability that are declared now."""
    from odf_engine.data.ddl import type_ddl
    from odf_engine.data.schema_enforcement import equal_except_precision, slice_type

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
