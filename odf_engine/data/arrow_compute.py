"""Arrow compute helpers: kernels, decoding of encoded arrays, value hashes, text, CSV and JSON forms."""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any, Final
from zlib import crc32

from odf_engine.base.arrow import pa, pc, types


def decoded_type(data_type: pa.DataType) -> pa.DataType:
    """Return a type without its in-memory encoding: dictionary, run-end encoding or extension."""
    if isinstance(data_type, pa.BaseExtensionType):
        return decoded_type(data_type.storage_type)
    if types.is_dictionary(data_type) or types.is_run_end_encoded(data_type):
        return decoded_type(data_type.value_type)
    return data_type


def is_list_like(data_type: pa.DataType) -> bool:
    """Whether a type is a list, in any encoding."""
    return (
        types.is_list(data_type)
        or types.is_large_list(data_type)
        or types.is_fixed_size_list(data_type)
        or types.is_list_view(data_type)
        or types.is_large_list_view(data_type)
    )


def decode_array(array: pa.Array) -> pa.Array:
    """Return an array without dictionary, run-end encoding or extension type."""
    if isinstance(array, pa.ExtensionArray):
        return decode_array(array.storage)
    if types.is_dictionary(array.type):
        return decode_array(array.dictionary_decode())
    if types.is_run_end_encoded(array.type):
        return decode_array(pc.run_end_decode(array))
    return array


_NULL: Final = 0x9E3779B97F4A7C15
_STEPS: Final = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


def hash_values(array: pa.Array) -> pa.Array:
    """Return a hash of each value as ``uint64``, evenly distributed. Equal values have equal hashes.

    Suitable for estimates and for partitioning. Different texts may have the same hash.

    Raises:
        pa.ArrowNotImplementedError: the values cannot be cast to text.
    """
    array = decode_array(array)
    data_type = array.type
    if types.is_floating(data_type):
        array = pc.add(array.cast(pa.float64()), 0.0).view(pa.uint64())  # -0.0 equals 0.0
    elif types.is_boolean(data_type) or types.is_integer(data_type):
        array = array.cast(pa.int64() if not types.is_unsigned_integer(data_type) else pa.uint64())
        array = array.view(pa.uint64())
    elif types.is_primitive(data_type) and data_type.bit_width in (32, 64):
        array = array.view(pa.int64() if data_type.bit_width == 64 else pa.int32()).cast(pa.int64())
        array = array.view(pa.uint64())
    else:
        values = array if _is_bytes(data_type) else array.cast(pa.string())
        raw = values.cast(pa.large_binary()).to_pylist()
        array = pa.array([None if value is None else crc32(value) for value in raw], pa.uint64())
    return _mixed(pc.fill_null(array, pa.scalar(_NULL, pa.uint64())))


def _mixed(array: pa.Array) -> pa.Array:
    """Mix every bit of a value into every bit of the result. Different numbers stay different."""
    array = pc.add(array, pa.scalar(_NULL, pa.uint64()))
    for shift, factor in _STEPS:
        array = _shifted(array, shift)
        array = pc.multiply(array, pa.scalar(factor, pa.uint64()))
    return _shifted(array, 31)


def _shifted(array: pa.Array, by: int) -> pa.Array:
    return pc.bit_wise_xor(array, pc.shift_right(array, pa.scalar(by, pa.uint64())))


_CSV_SPECIAL: Final = '[",\r\n]|^$|^ | $'
_JSON_SPECIAL: Final = r'["\\\x00-\x1f\x7f]'


def to_text(array: pa.Array) -> pa.Array:
    """Return each value as text; null stays null."""
    array = decode_array(array)
    data_type = array.type
    if types.is_timestamp(data_type):
        return _moments(array)
    if is_list_like(data_type) or types.is_struct(data_type) or types.is_map(data_type):
        return pa.array(
            [None if value is None else _json(value) for value in python_values(array)], pa.string()
        )
    if _is_bytes(data_type):
        return pa.array([None if item is None else item.hex() for item in array.to_pylist()], pa.string())
    if types.is_time(data_type):
        return _trimmed(array.cast(pa.string()))
    try:
        return array.cast(pa.string())
    except pa.ArrowNotImplementedError:  # only results of queries have such types, slices do not
        return pa.array([None if item is None else str(item) for item in array.to_pylist()], pa.string())


def python_values(array: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return Python values. A value with times that Python does not support has its times as text.

    Python has no years beyond 9999, and no nanoseconds.
    """
    # `to_pylist` would truncate nanoseconds.
    if _is_nanosecond_time(array.type):
        return to_text(array).to_pylist()
    exact = _with_text_times(array.type, _is_nanosecond_time)
    if exact != array.type:
        array = array.cast(exact)
    try:
        return array.to_pylist()
    except (OverflowError, ValueError):
        return [_python_value(array.slice(at, 1)) for at in range(len(array))]


def _python_value(array: pa.Array | pa.ChunkedArray) -> Any:
    try:
        return array.to_pylist()[0]
    except (OverflowError, ValueError):
        if types.is_temporal(array.type):
            return to_text(array).to_pylist()[0]
        return array.cast(_with_text_times(array.type, types.is_temporal)).to_pylist()[0]


def python_rows(rows: pa.RecordBatch | pa.Table) -> list[dict[str, Any]]:
    """Return rows with Python values as :func:`python_values` returns them."""
    columns = map(python_values, rows.columns)
    return [dict(zip(rows.schema.names, values, strict=True)) for values in zip(*columns, strict=True)]


def _is_nanosecond_time(data_type: pa.DataType) -> bool:
    return types.is_time64(data_type) and data_type.unit == "ns"


def _with_text_times(data_type: pa.DataType, is_text: Callable[[pa.DataType], bool]) -> pa.DataType:
    """Return a type with text instead of some types of times, at any depth."""
    return replace_types(data_type, lambda leaf: pa.string() if is_text(leaf) else leaf)


def replace_types(data_type: pa.DataType, replace: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Return a type with other types of the values that are not nested, at any depth."""
    if is_list_like(data_type):
        item = replace_types(data_type.value_type, replace)
        return data_type if item == data_type.value_type else pa.list_(item)
    if types.is_struct(data_type):
        return pa.struct([field.with_type(replace_types(field.type, replace)) for field in data_type])
    if types.is_map(data_type):
        return pa.map_(
            replace_types(data_type.key_type, replace), replace_types(data_type.item_type, replace)
        )
    return replace(data_type)


_MAX_ROW_TEXT: Final = 300


def describe_row(row: pa.RecordBatch | pa.Table, hidden: Container[str] = ()) -> str:
    """Return the first of some rows as text for a message, shortened to 300 characters.

    Args:
        row: has at least one row.
        hidden: columns to leave out.
    """
    parts: list[str] = []
    for name, column in zip(row.schema.names, row.columns, strict=True):
        if name not in hidden:
            (value,) = to_text(column.slice(0, 1)).to_pylist()
            parts.append(f"{name}={'null' if value is None else value}")
    text = ", ".join(parts)
    return text if len(text) <= _MAX_ROW_TEXT else text[: _MAX_ROW_TEXT - 1] + "…"


def to_csv_fields(array: pa.Array) -> pa.Array:
    """Return each value as a field of RFC 4180. Null is empty, an empty text is a pair of quotes."""
    texts = to_text(array)
    if _never_special(decode_array(array).type):
        return pc.fill_null(texts, "")
    special = pc.match_substring_regex(texts, _CSV_SPECIAL)
    if pc.any(special).as_py():
        doubled = pc.replace_substring(texts, '"', '""')
        quoted = pc.binary_join_element_wise('"', doubled, '"', "")
        texts = pc.if_else(special, quoted, texts)
    return pc.fill_null(texts, "")


def to_json_values(array: pa.Array) -> pa.Array:
    """Return each value as JSON. Numbers that JSON cannot express (NaN, infinity) are null."""
    array = decode_array(array)
    data_type = array.type
    if types.is_floating(data_type):
        array = pc.if_else(pc.is_finite(array), array, None)
    texts = to_text(array)
    if not (
        _is_plain_json(data_type)
        or is_list_like(data_type)
        or types.is_struct(data_type)
        or types.is_map(data_type)
    ):
        texts = _quoted(texts, data_type)
    return pc.fill_null(texts, "null")


def _quoted(texts: pa.Array, data_type: pa.DataType) -> pa.Array:
    if not _never_special(data_type):
        special = pc.fill_null(pc.match_substring_regex(texts, _JSON_SPECIAL), False)
        if pc.any(special).as_py():
            escaped = [
                json.dumps(text, ensure_ascii=False)[1:-1] for text in texts.filter(special).to_pylist()
            ]
            texts = pc.replace_with_mask(texts, special, pa.array(escaped, pa.string()))
    return pc.binary_join_element_wise('"', texts, '"', "")


def _is_plain_json(data_type: pa.DataType) -> bool:
    return types.is_integer(data_type) or types.is_floating(data_type) or types.is_boolean(data_type)


def _never_special(data_type: pa.DataType) -> bool:
    """Whether texts of values of this type never need quotes."""
    return (
        _is_plain_json(data_type)
        or types.is_decimal(data_type)
        or types.is_temporal(data_type)
        or (_is_bytes(data_type) and types.is_fixed_size_binary(data_type))
    )


def _is_bytes(data_type: pa.DataType) -> bool:
    return (
        types.is_binary(data_type)
        or types.is_large_binary(data_type)
        or types.is_fixed_size_binary(data_type)
    )


def _moments(array: pa.Array) -> pa.Array:
    # By Arrow, because Python has no years beyond 9999 and no nanoseconds.
    texts = array.cast(pa.timestamp(array.type.unit)).cast(pa.string())
    texts = _trimmed(pc.replace_substring(texts, " ", "T"))
    return pc.binary_join_element_wise(texts, "Z" if array.type.tz else "", "")


def _trimmed(texts: pa.Array) -> pa.Array:
    """Return times with a fraction of 0, 3, 6 or 9 digits, as few as possible."""
    texts = pc.replace_substring_regex(texts, r"\.0+$", "")
    return pc.replace_substring_regex(texts, r"(\.[0-9]{3}|\.[0-9]{6})(000)+$", r"\1")


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


def check_regex(pattern: str) -> None:
    """Check a regular expression in the syntax of RE2, which matches in linear time.

    Raises:
        ValueError: it is invalid; the message states why.
    """
    try:
        pc.match_substring_regex(pa.array([""]), pattern)
    except pa.ArrowInvalid as error:
        reason = str(error).removeprefix("Invalid regular expression: ")
        raise ValueError(f"invalid regular expression: {reason}") from None


def sort_indexes(table: pa.Table, keys: Sequence[str]) -> pa.Array:
    """Return the indexes that sort the rows by columns. The sort is stable, with nulls first."""
    columns: list[pa.ChunkedArray] = []
    for key in keys:
        column = table.column(key)
        columns += [column.is_valid(), column] if column.null_count else [column]
    names = [str(index) for index in range(len(columns))]
    sort_keys = [(name, "ascending") for name in names]
    return pc.sort_indices(pa.table(columns, names=names), sort_keys=sort_keys)
