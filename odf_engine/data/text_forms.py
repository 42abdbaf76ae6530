"""Values of Arrow columns as text that other programs read: plain, as CSV has them, and as JSON.

Times are RFC 3339, bytes are hexadecimal digits, lists and structs JSON. Numbers have as many digits as
it takes to read the same number back; in JSON decimals are text, since most programs would round them.
"""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
from pyarrow import types

from odf_engine.data.kernels import pc
from odf_engine.data.value_bytes import decoded, is_any_list

_CSV_SPECIAL: Final = '[",\r\n]|^$|^ | $'
_JSON_SPECIAL: Final = r'["\\\x00-\x1f\x7f]'
_TEXT: Final = pa.string()


def texts(array: pa.Array) -> pa.Array:
    """Each value as text; null stays null."""
    array = decoded(array)
    kind = array.type
    if types.is_timestamp(kind):
        return _moments(array)
    if is_any_list(kind) or types.is_struct(kind) or types.is_map(kind):
        return pa.array([None if each is None else _json(each) for each in array.to_pylist()], _TEXT)
    if _is_bytes(kind):
        return pa.array([None if each is None else each.hex() for each in array.to_pylist()], _TEXT)
    if types.is_time(kind):
        return _trimmed(array.cast(_TEXT))
    try:
        return array.cast(_TEXT)
    except pa.ArrowNotImplementedError:  # a slice has no such types, but what a query gave may have
        return pa.array([None if each is None else str(each) for each in array.to_pylist()], _TEXT)


def csv_cells(array: pa.Array) -> pa.Array:
    """Each value as a field of RFC 4180: a null is empty, an empty text a pair of quotes."""
    found = texts(array)
    if _never_special(decoded(array).type):
        return pc.fill_null(found, "")
    special = pc.match_substring_regex(found, _CSV_SPECIAL)
    if pc.any(special).as_py():
        doubled = pc.replace_substring(found, '"', '""')
        quoted = pc.binary_join_element_wise('"', doubled, '"', "")
        found = pc.if_else(special, quoted, found)
    return pc.fill_null(found, "")


def json_cells(array: pa.Array) -> pa.Array:
    """Each value as JSON; what JSON has no number for is null."""
    array = decoded(array)
    kind = array.type
    if types.is_floating(kind):
        array = pc.if_else(pc.is_finite(array), array, None)
    found = texts(array)
    if not (_is_plain_json(kind) or is_any_list(kind) or types.is_struct(kind) or types.is_map(kind)):
        found = _quoted(found, kind)
    return pc.fill_null(found, "null")


def _quoted(found: pa.Array, kind: pa.DataType) -> pa.Array:
    if not _never_special(kind):
        special = pc.fill_null(pc.match_substring_regex(found, _JSON_SPECIAL), False)
        if pc.any(special).as_py():
            escaped = [
                json.dumps(text, ensure_ascii=False)[1:-1] for text in found.filter(special).to_pylist()
            ]
            found = pc.replace_with_mask(found, special, pa.array(escaped, _TEXT))
    return pc.binary_join_element_wise('"', found, '"', "")


def _is_plain_json(kind: pa.DataType) -> bool:
    return types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)


def _never_special(kind: pa.DataType) -> bool:
    """Whether texts of values of this type need no quotes."""
    return (
        _is_plain_json(kind)
        or types.is_decimal(kind)
        or types.is_temporal(kind)
        or (_is_bytes(kind) and types.is_fixed_size_binary(kind))
    )


def _is_bytes(kind: pa.DataType) -> bool:
    return types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind)


def _moments(array: pa.Array) -> pa.Array:
    # By Arrow, because Python has no years beyond 9999 and no nanoseconds.
    found = array.cast(pa.timestamp(array.type.unit)).cast(_TEXT)
    found = _trimmed(pc.replace_substring(found, " ", "T"))
    return pc.binary_join_element_wise(found, "Z" if array.type.tz else "", "")


def _trimmed(found: pa.Array) -> pa.Array:
    """Times with no more of a fraction than milli-, micro- or nanoseconds need."""
    found = pc.replace_substring_regex(found, r"\.0+$", "")
    return pc.replace_substring_regex(found, r"(\.[0-9]{3}|\.[0-9]{6})(000)+$", r"\1")


def _json(value: Any) -> str:
    return json.dumps(_plain(value), ensure_ascii=False)


def _plain(value: Any) -> Any:
    match value:
        case datetime() if value.tzinfo is not None:
            return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
        case date() | time():
            return value.isoformat()
        case Decimal():
            return str(value)
        case bytes():
            return value.hex()
        case float():
            return value if value - value == 0 else None
        case list() | tuple():
            return [_plain(item) for item in value]
        case dict():
            return {key: _plain(item) for key, item in value.items()}
    return value


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
