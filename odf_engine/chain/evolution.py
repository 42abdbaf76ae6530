"""Which changes of a dataset's schema its readers survive (specification: Schema Evolution)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa


class Breaking(NamedTuple):
    """A change that breaks readers, as one sentence, and what to do instead, as another."""

    problem: str
    advice: str


def breaking_change(old: bytes, new: bytes) -> Breaking | None:
    """What in ``new`` would break a reader of ``old``; None when nothing would.

    Both are Arrow schemas as SetDataSchema holds them. Columns may be added if they may be null, may
    change their places and their metadata; they may not vanish, change type, or change whether they
    may be null.

    Raises:
        InvalidSchema: bytes that are no schema.
    """
    before, after = read_schema(old), read_schema(new)
    for field in before:
        found = after.get_all_field_indices(field.name)
        if len(found) > 1:
            return Breaking(f"column '{field.name}' is in it more than once", "name each column once")
        breaking = _gone(field) if not found else _changed(field, after.field(found[0]))
        if breaking is not None:
            return breaking
    for field in after:
        if field.name not in before.names and not field.nullable:
            return Breaking(
                f"the new column '{field.name}' may not be null, and older records have no value for it",
                "declare it without NOT NULL",
            )
    return None


def _gone(field: pa.Field) -> Breaking:
    kept = f"CAST(NULL AS {_ddl(field)}) AS {field.name}"
    advice = f"keep it, as {kept} in the preprocess query" if field.nullable else "keep it"
    return Breaking(f"column '{field.name}' is not in it", f"{advice}, or make a new dataset")


def _changed(old: pa.Field, new: pa.Field) -> Breaking | None:
    name = old.name
    if new.type != old.type:
        was, now = _ddl(old), _ddl(new)
        if was == now:  # types that DDL has one word for
            was, now = str(old.type), str(new.type)
        return Breaking(
            f"column '{name}' was {was} and became {now}",
            f"keep '{name}' as {was} and give the new values under another name in the preprocess query,"
            " or make a new dataset",
        )
    if new.nullable != old.nullable:
        was = "without NOT NULL" if old.nullable else "NOT NULL"
        return Breaking(
            f"column '{name}' {_may(old)} be null before and {_may(new)} now",
            f"declare it {was}, as it was, or make a new dataset",
        )
    return None


def same_schema(old: bytes, new: bytes) -> bool:
    """Whether both say the same: columns, order, types, nullability and metadata.

    Raises:
        InvalidSchema: bytes that are no schema.
    """
    return old == new or read_schema(old).equals(read_schema(new), check_metadata=True)


def read_schema(schema: bytes) -> pa.Schema:
    """The Arrow schema that a SetDataSchema holds.

    Raises:
        InvalidSchema: bytes that are no schema.
    """
    # Here and not above: chains are opened by screens that should not wait for Arrow to load.
    from odf_engine.data.arrow_schema import decode_schema

    return decode_schema(schema)


def _ddl(field: pa.Field) -> str:
    from odf_engine.data.ddl import type_ddl

    return type_ddl(field.type)


def _may(field: pa.Field) -> str:
    return "could" if field.nullable else "could not"
