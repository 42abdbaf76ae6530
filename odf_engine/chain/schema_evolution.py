"""Schema evolution: changes that are compatible with existing readers, and merging of declared columns.

Specification: "Dataset Evolution".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, Protocol

from odf_engine.chain.state import ChainState
from odf_engine.errors import InvalidSchema, Unsupported
from odf_engine.metadata.data_types import adopt_attributes, same_meaning, schema_descriptions
from odf_engine.metadata.model import DataSchema, DatasetVocabulary, SetDataSchema

if TYPE_CHECKING:
    import pyarrow as pa


class BreakingChange(NamedTuple):
    """An incompatible change, as one sentence, and advice on what to do instead, as another."""

    problem: str
    advice: str


class Declaration(Protocol):
    """A declaration of the columns of a dataset: the state of a chain, or SetDataSchema."""

    @property
    def schema(self) -> bytes | None:
        """Arrow schema, as in ODF 0.34.1."""
        ...

    @property
    def odf_schema(self) -> DataSchema | None:
        """ODF schema (RFC-016), which has precedence."""
        ...


def read_declaration(declaration: Declaration) -> pa.Schema | None:
    """Return the declared columns as Arrow schema, or None if nothing is declared.

    Raises:
        InvalidSchema: the declaration is invalid.
    """
    # Deferred, as everywhere in this module: Arrow is slow to import, and opening a chain does not need it.
    if declaration.odf_schema is not None:
        from odf_engine.data.odf_schema import declared_types

        return declared_types(declaration.odf_schema)
    return None if declaration.schema is None else read_schema(declaration.schema)


def odf_declaration(declaration: Declaration) -> DataSchema | None:
    """Return the declared columns as ODF schema, converted from Arrow if necessary, or None without columns.

    Raises:
        InvalidSchema: the declaration is invalid, or ODF does not have the type of a column.
    """
    if declaration.odf_schema is not None or declaration.schema is None:
        return declaration.odf_schema
    from odf_engine.data.odf_schema import stored_schema

    return stored_schema(read_schema(declaration.schema))


def declare_schema(
    schema: pa.Schema, before: Declaration | None, *, odf: bool, described: DataSchema | None = None
) -> SetDataSchema:
    """Return the event that declares columns, in the form of the chain.

    Args:
        schema: all columns.
        before: the current declaration, whose custom attributes are copied.
        odf: whether a chain without a declaration gets an ODF schema, not an Arrow schema.
        described: columns whose attributes the first ODF schema of the chain has.

    Raises:
        InvalidSchema: a column has a type that the form does not have.
    """
    from odf_engine.data.arrow_schema import encode_schema
    from odf_engine.data.odf_schema import stored_schema

    previous = None if before is None else before.odf_schema
    if previous is not None:
        return SetDataSchema(odf_schema=adopt_attributes(stored_schema(schema), previous))
    if odf and (before is None or before.schema is None):
        columns = stored_schema(schema)
        if described is not None:
            columns = adopt_attributes(columns, described, spelling=False)
        return SetDataSchema(odf_schema=columns)
    return SetDataSchema(encode_schema(schema))


def find_breaking_change(old: Declaration, new: Declaration) -> BreakingChange | None:
    """Return the first change in ``new`` that breaks readers of ``old``, or None.

    Nullable columns may be added. Columns may be reordered and change their metadata. They may not be removed
    or change their type or nullability. Only the first ODF schema after an Arrow schema may change
    nullability, since Arrow schemas often had a wrong one.

    Raises:
        InvalidSchema: a declaration is invalid.
    """
    before, after = _comparable(old, new), _comparable(new, old)
    if before is None or after is None:
        return None
    check_nullability = old.odf_schema is not None or new.odf_schema is None
    if not check_nullability:
        before = [_nullable(field) for field in before]
    names = {field.name for field in before}
    for field in before:
        indices = after.get_all_field_indices(field.name)
        if len(indices) > 1:
            return BreakingChange(f"duplicate column '{field.name}'", "use each column name once")
        if not indices:
            return _removal(field)
        new_field = after.field(indices[0])
        if not check_nullability:
            new_field = _nullable(new_field)
        breaking = _find_field_change(field, new_field)
        if breaking is not None:
            return breaking
    for field in after:
        if field.name not in names and not field.nullable:
            return BreakingChange(
                f"the new column '{field.name}' is NOT NULL, but existing rows have no value for it",
                "declare it without NOT NULL",
            )
    return None


def _comparable(declaration: Declaration, other: Declaration) -> pa.Schema | None:
    """Return the columns; if the other declaration is an ODF schema, with the types of ODF."""
    if declaration.odf_schema is None and other.odf_schema is None:
        return read_declaration(declaration)
    from odf_engine.data.odf_schema import declared_types

    schema = odf_declaration(declaration)
    return None if schema is None else declared_types(schema)


def _nullable(field: pa.Field) -> pa.Field:
    """Return a field that is nullable at all levels."""
    from odf_engine.data.odf_schema import nullable_type

    return field.with_nullable(True).with_type(nullable_type(field.type))


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


def same_declaration(old: Declaration, new: Declaration) -> bool:
    """Return whether columns, order, types, nullability and attributes have the same meaning.

    Raises:
        InvalidSchema: a declaration is invalid.
    """
    if old.odf_schema is None and new.odf_schema is None:
        if old.schema == new.schema:
            return True
        before, after = read_declaration(old), read_declaration(new)
        return before is not None and after is not None and before.equals(after, check_metadata=True)
    left, right = odf_declaration(old), odf_declaration(new)
    return left is not None and right is not None and same_meaning(left, right)


def read_schema(schema: bytes) -> pa.Schema:
    """Decode the Arrow schema stored in SetDataSchema.

    Raises:
        InvalidSchema: the bytes are not a schema.
    """
    from odf_engine.data.arrow_schema import decode_schema

    return decode_schema(schema)


def _ddl(field: pa.Field) -> str:
    from odf_engine.data.ddl import type_ddl

    return type_ddl(field.type)


def _nullability(field: pa.Field) -> str:
    return "nullable" if field.nullable else "NOT NULL"


def declared_schema(state: ChainState) -> pa.Schema | None:
    """Return the schema that the chain declares for slices, or None before the first data.

    Raises:
        InvalidSchema: the declaration is invalid.
        Unsupported: the schema has types of a newer specification.
    """
    schema = read_declaration(state)
    if schema is None and state.has_schema:
        raise Unsupported(
            "the dataset's schema is from a newer specification",
            hint="use a newer version of odf to add rows; existing data can be read and verified",
        )
    return schema


def column_descriptions(state: ChainState) -> dict[str, str]:
    """Return the descriptions of columns, by name; members of structs have names such as ``subject.id``.

    They are comments in the DDL of a source, and attributes in ODF schemas. The dataset's
    descriptions have precedence over its sources' descriptions.
    """
    descriptions: dict[str, str] = {}
    for source in (state.polling_source, *state.push_sources.values()):
        read = getattr(source, "read", None)
        ddl = getattr(read, "schema", None) or ()
        if any("COMMENT" in entry.upper() for entry in ddl):
            from odf_engine.data.ddl import parse_comments

            with suppress(InvalidSchema):  # Reading the source reports it.
                descriptions |= parse_comments(ddl)
        descriptions |= schema_descriptions(getattr(read, "odf_schema", None))
    descriptions |= schema_descriptions(state.odf_schema)
    return {name: text for name, text in descriptions.items() if text}


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
    from odf_engine.data.parquet.slices import slice_schema
    from odf_engine.data.schema_enforcement import match_columns

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
    import pyarrow as pa

    from odf_engine.data.odf_schema import declared_types, nullable_type
    from odf_engine.data.parquet.slices import check_system_columns, slice_schema
    from odf_engine.data.schema_enforcement import slice_type

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
    import pyarrow as pa

    from odf_engine.data.parquet.slices import slice_schema
    from odf_engine.data.schema_enforcement import match_columns

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
