"""Declared columns, and changes of them that are compatible with existing readers.

Specification: "Dataset Evolution".
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple, Protocol

from odf_engine.base.arrow import pa
from odf_engine.chain.state import ChainState
from odf_engine.data.arrow_schema import decode_schema, encode_schema
from odf_engine.data.ddl import parse_comments, type_ddl
from odf_engine.data.odf_schema import declared_types, nullable_type, stored_schema
from odf_engine.errors import InvalidSchema, Unsupported
from odf_engine.metadata.data_types import adopt_attributes, same_meaning, schema_descriptions
from odf_engine.metadata.model import DataSchema, SetDataSchema


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
    if declaration.odf_schema is not None:
        return declared_types(declaration.odf_schema)
    return None if declaration.schema is None else decode_schema(declaration.schema)


def odf_declaration(declaration: Declaration) -> DataSchema | None:
    """Return the declared columns as ODF schema, converted from Arrow if necessary, or None without columns.

    Raises:
        InvalidSchema: the declaration is invalid, or ODF does not have the type of a column.
    """
    if declaration.odf_schema is not None or declaration.schema is None:
        return declaration.odf_schema
    return stored_schema(decode_schema(declaration.schema))


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
    schema = odf_declaration(declaration)
    return None if schema is None else declared_types(schema)


def _nullable(field: pa.Field) -> pa.Field:
    """Return a field that is nullable at all levels."""
    return field.with_nullable(True).with_type(nullable_type(field.type))


def _removal(field: pa.Field) -> BreakingChange:
    expression = f"CAST(NULL AS {type_ddl(field.type)}) AS {field.name}"
    advice = f"keep it, as {expression} in the preprocess query" if field.nullable else "keep it"
    return BreakingChange(f"column '{field.name}' is missing", f"{advice}, or create a new dataset")


def _find_field_change(old: pa.Field, new: pa.Field) -> BreakingChange | None:
    name = old.name
    if new.type != old.type:
        old_type, new_type = type_ddl(old.type), type_ddl(new.type)
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
            with suppress(InvalidSchema):  # Reading the source reports it.
                descriptions |= parse_comments(ddl)
        descriptions |= schema_descriptions(getattr(read, "odf_schema", None))
    descriptions |= schema_descriptions(state.odf_schema)
    return {name: text for name, text in descriptions.items() if text}
