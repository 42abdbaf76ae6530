"""Which changes of a dataset's schema its readers survive (specification: Schema Evolution)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


def breaking_change(old: bytes, new: bytes) -> str | None:
    """What in ``new`` would break a reader of ``old``, as one sentence; None when nothing would.

    Both are Arrow schemas as SetDataSchema holds them. Columns may be added if they may be null, may
    change their places and their metadata; they may not vanish, change type, or change whether they
    may be null.

    Raises:
        InvalidSchema: bytes that are no schema.
    """
    before, after = read_schema(old), read_schema(new)
    names = after.names
    for field in before:
        found = names.count(field.name)
        if found != 1:
            return f"column '{field.name}' is " + ("not in it" if not found else "in it more than once")
        now = after.field(field.name)
        if now.type != field.type:
            return f"column '{field.name}' was {field.type} and became {now.type}"
        if now.nullable != field.nullable:
            return f"column '{field.name}' {_may(field)} be null before and {_may(now)} now"
    for field in after:
        if field.name not in before.names and not field.nullable:
            return f"the new column '{field.name}' may not be null, and older records have no value for it"
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


def _may(field: pa.Field) -> str:
    return "could" if field.nullable else "could not"
