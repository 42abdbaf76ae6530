"""Names of the columns of a schema, without Arrow, for which lists should not wait."""

from __future__ import annotations

import struct
from typing import Final

from odf_engine.metadata.model import DataSchema

_FIELDS_SLOT: Final = 1
_NAME_SLOT: Final = 0


def column_names(schema: bytes | None, odf_schema: DataSchema | None) -> list[str] | None:
    """The names, from a bare Arrow schema or one in the specification's own terms; None for other bytes."""
    if schema is None:
        return None if odf_schema is None else [field.name for field in odf_schema.fields]
    try:
        (root,) = struct.unpack_from("<I", schema)
        vector = _follow(schema, _field(schema, root, _FIELDS_SLOT))
        (number,) = struct.unpack_from("<I", schema, vector)
        if number > len(schema) // 4:
            return None
        return [_name(schema, vector + 4 + 4 * at) for at in range(number)]
    except (struct.error, UnicodeDecodeError, LookupError):
        return None


def _name(data: bytes, at: int) -> str:
    start = _follow(data, _field(data, _follow(data, at), _NAME_SLOT))
    (length,) = struct.unpack_from("<I", data, start)
    if start + 4 + length > len(data):
        raise LookupError("longer than the bytes that are left")
    return str(data[start + 4 : start + 4 + length], "utf-8")


def _follow(data: bytes, at: int) -> int:
    return at + int(struct.unpack_from("<I", data, at)[0])


def _field(data: bytes, table: int, slot: int) -> int:
    """Where a table has a field."""
    (back,) = struct.unpack_from("<i", data, table)
    vtable = table - back
    if vtable < 0 or 4 + 2 * slot >= struct.unpack_from("<H", data, vtable)[0]:
        raise LookupError("the table has no such field")
    (offset,) = struct.unpack_from("<H", data, vtable + 4 + 2 * slot)
    if not offset:
        raise LookupError("the field is not there")
    return table + int(offset)
