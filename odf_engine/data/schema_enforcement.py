"""Schema enforcement: matches columns by name and casts values losslessly to slice types."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import pyarrow as pa
from pyarrow import types

from odf_engine.data.arrow_compute import decode_array, decoded_type, is_list_like, pc
from odf_engine.data.ddl import TIMESTAMP, UUID, type_ddl
from odf_engine.errors import BadData, InvalidSchema

_MS_DIGITS: Final = ("us", "ns")


def slice_type(kind: pa.DataType) -> pa.DataType:
    """The type in which a slice stores values of ``kind``.

    Timestamps become milliseconds in UTC. In-memory encodings go away, and what Parquet has no type for
    becomes what a reader would get back, so that a slice that is read has the hash of what was written.
    """
    kind = decoded_type(kind)
    if types.is_timestamp(kind):
        return TIMESTAMP
    if types.is_date(kind):
        return pa.date32()
    if types.is_time32(kind):
        return pa.time32("ms")
    if types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if types.is_large_binary(kind) or types.is_binary_view(kind):
        return pa.binary()
    if types.is_decimal(kind) and kind.precision <= 38:
        return pa.decimal128(kind.precision, kind.scale)
    if is_list_like(kind):
        return pa.list_(slice_type(kind.value_type))
    if types.is_struct(kind):
        # NOT NULL is enforced for columns, not for members of structs.
        return pa.struct([(field.name, slice_type(field.type)) for field in kind])
    return kind


def match_columns(available: list[str], wanted: list[str]) -> list[int | None]:
    """For each wanted name its place among the available ones, or None: exact, else ignoring case.

    Raises:
        InvalidSchema: a name that is there twice.
    """
    exact: dict[str, list[int]] = {}
    folded: dict[str, list[int]] = {}
    for index, name in enumerate(available):
        exact.setdefault(name, []).append(index)
        folded.setdefault(name.casefold(), []).append(index)
    found: list[int | None] = []
    for name in wanted:
        places = exact.get(name) or folded.get(name.casefold()) or []
        if len(places) > 1:
            names = " and ".join(f"'{available[place]}'" for place in places)
            raise InvalidSchema(
                f"column '{name}' is there more than once, as {names}", hint="rename one of them in the query"
            )
        found.append(places[0] if places else None)
    return found


def cast_lossless(array: pa.Array, target: pa.Field, row: int) -> pa.Array:
    """``array`` in the type of ``target``.

    Args:
        array: values of a column.
        target: the column's name, type and nullability.
        row: how many rows came before, for errors.

    Raises:
        InvalidSchema: the types have nothing to do with each other.
        BadData: a value that does not fit, or a null that may not be; ``where`` is its row, from 1.
    """
    array = decode_array(array)
    if not target.nullable and array.null_count:
        place = pc.index(array.is_null(), True).as_py()
        raise BadData(f"column '{target.name}' has no value and is NOT NULL", where=f"row {row + place + 1}")
    cast = _caster(array.type, target.type)
    if cast is None:
        raise InvalidSchema(
            f"column '{target.name}' is {type_ddl(array.type)}, and the dataset's schema has it as"
            f" {type_ddl(target.type)}",
            hint=f"cast it in the preprocess query: CAST({target.name} AS {type_ddl(target.type)})",
        )
    try:
        return cast(array)
    except pa.ArrowInvalid as error:
        raise _misfit(array, cast, target, row) from error


_Cast = Callable[[pa.Array], pa.Array]


def _caster(source: pa.DataType, target: pa.DataType) -> _Cast | None:
    if source == target:
        return _valid_text if types.is_string(source) else lambda array: array
    if types.is_timestamp(source) and types.is_timestamp(target):
        return lambda array: _to_timestamp(array, target)
    if types.is_string(slice_type(source)) and target == UUID:
        return _to_uuid
    if types.is_integer(source) and types.is_decimal(target):
        # Arrow asks for a precision that would hold any integer; what counts is that these fit.
        return lambda array: array.cast(pa.decimal128(20, 0)).cast(target)
    if not _related(source, target):
        return None
    if types.is_nested(target):
        return lambda array: _to_nested(array, target)
    return lambda array: array.cast(target)


def _related(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether every value of ``source`` either has its equal in ``target`` or makes a cast fail."""
    source, kind = slice_type(source), slice_type(target)
    if source == kind or types.is_null(source):
        return True
    if is_list_like(source):
        return is_list_like(kind) and _related(source.value_type, kind.value_type)
    if types.is_struct(source):
        return (
            types.is_struct(kind)
            and [field.name for field in source] == [field.name for field in kind]
            and all(_related(left.type, right.type) for left, right in zip(source, kind, strict=True))
        )
    if types.is_floating(kind):
        return types.is_integer(source) or (types.is_floating(source) and source.bit_width <= kind.bit_width)
    return any(
        left(source) and right(kind)
        for left, right in (
            (_is_number, types.is_integer),
            (types.is_decimal, types.is_decimal),
            (types.is_time, types.is_time),
            (types.is_date, types.is_timestamp),
            (types.is_fixed_size_binary, types.is_binary),
            (types.is_binary, types.is_fixed_size_binary),
        )
    )


def _is_number(kind: pa.DataType) -> bool:
    return types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)


def _valid_text(array: pa.Array) -> pa.Array:
    array.validate(full=True)  # engines pass on bytes that are not UTF-8; other readers refuse them
    return array


def _to_timestamp(array: pa.Array, target: pa.DataType) -> pa.Array:
    if array.type.unit in _MS_DIGITS and target.unit == "ms" and _before_1970(array):
        array = pc.floor_temporal(array, unit="millisecond")  # a cast alone rounds these up
    return pc.cast(array, options=pc.CastOptions(target, allow_time_truncate=True))


def _to_nested(array: pa.Array, target: pa.DataType) -> pa.Array:
    # Arrow casts all items behind a slice, those outside of it too: copy what is inside first.
    inside = array.filter(pa.repeat(True, len(array)))
    return pc.cast(inside, options=pc.CastOptions(target, allow_time_truncate=True))


def _before_1970(array: pa.Array) -> bool:
    least = pc.min(array.cast(pa.int64())).as_py()
    return least is not None and least < 0


def _to_uuid(array: pa.Array) -> pa.Array:
    digits = pc.replace_substring(array.cast(pa.string()), "-", "")
    if pc.all(pc.match_substring_regex(digits, "^[0-9a-fA-F]{32}$")).as_py() is False:
        raise pa.ArrowInvalid("not a UUID")
    text = "".join(value or "0" * 32 for value in digits.to_pylist())
    raw = pa.Array.from_buffers(UUID, len(array), [None, pa.py_buffer(bytes.fromhex(text))])
    return pc.if_else(array.is_null(), pa.scalar(None, UUID), raw) if array.null_count else raw


def _misfit(array: pa.Array, cast: _Cast, target: pa.Field, row: int) -> BadData:
    """The error for the first value that does not fit, found by halving."""
    start, stop = 0, len(array)
    while stop - start > 1:
        middle = (start + stop) // 2
        try:
            cast(array[start:middle])
            start = middle
        except pa.ArrowInvalid:
            stop = middle
    return BadData(
        f"column '{target.name}': the value {_quoted(array[start])} does not fit {type_ddl(target.type)}",
        where=f"row {row + start + 1}",
    )


def _quoted(value: pa.Scalar) -> str:
    try:
        text = re.sub(r"\s+", " ", str(value.as_py()))
    except UnicodeDecodeError:
        text = str(value.as_buffer().to_pybytes())
    except (ValueError, OverflowError):  # a time that Python has no word for
        text = str(value.cast(pa.int64()).as_py())
    return f"'{text if len(text) <= 80 else text[:79] + '…'}'"
