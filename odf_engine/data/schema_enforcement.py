"""Schema enforcement: matches columns by name and casts values losslessly to slice types."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

from odf_engine.base.arrow import pa, pc, types
from odf_engine.data.arrow_compute import decode_array, decoded_type, is_list_like
from odf_engine.data.ddl import timestamp_type, type_ddl, uuid_type
from odf_engine.errors import BadData, InvalidSchema

_UNITS: Final = ("s", "ms", "us", "ns")
_UNIT_NAMES: Final = {"ms": "millisecond", "us": "microsecond"}


def slice_type(data_type: pa.DataType) -> pa.DataType:
    """Return the type that a slice stores for values of ``data_type``.

    Timestamps are in UTC, with milliseconds or microseconds. In-memory encodings are removed. A type that
    Parquet cannot store becomes the type that a reader returns, so that a slice has the same hash when it is
    read.
    """
    data_type = decoded_type(data_type)
    if types.is_timestamp(data_type):
        return pa.timestamp("us", "UTC") if data_type.unit in ("us", "ns") else timestamp_type()
    if types.is_date(data_type):
        return pa.date32()
    if types.is_time32(data_type):
        return pa.time32("ms")
    if types.is_large_string(data_type) or types.is_string_view(data_type):
        return pa.string()
    if types.is_large_binary(data_type) or types.is_binary_view(data_type):
        return pa.binary()
    if types.is_decimal(data_type) and data_type.precision <= 38:
        return pa.decimal128(data_type.precision, data_type.scale)
    if is_list_like(data_type):
        return pa.list_(slice_type(data_type.value_type))
    if types.is_struct(data_type):
        # NOT NULL is enforced for columns, not for members of structs.
        return pa.struct([(field.name, slice_type(field.type)) for field in data_type])
    return data_type


def without_layout(data_type: pa.DataType) -> pa.DataType:
    """Return a type without the layout of texts, binaries and lists, the names of items and nullability.

    Slices of one dataset may differ in these.
    """
    if types.is_large_string(data_type) or types.is_string_view(data_type):
        return pa.string()
    if types.is_large_binary(data_type) or types.is_binary_view(data_type):
        return pa.binary()
    if is_list_like(data_type) and not types.is_fixed_size_list(data_type):
        return pa.list_(pa.field("item", without_layout(data_type.value_type)))
    if types.is_struct(data_type):
        return pa.struct([pa.field(field.name, without_layout(field.type)) for field in data_type])
    return data_type


def find_mismatch(schema: pa.Schema, declared: pa.Schema) -> str | None:
    """Return why rows with these columns do not belong to a dataset, as a clause, or None if they do.

    Number, names and order of columns are the same. Types are the same apart from layouts. Whether required
    values are null is checked with the rows (:func:`cast_lossless`).
    """
    if schema.names != declared.names:
        return f"columns are {', '.join(schema.names)}, expected {', '.join(declared.names)}"
    for field, expected in zip(schema, declared, strict=True):
        if without_layout(field.type) != without_layout(expected.type):
            return f"column '{field.name}' is {field.type}, expected {expected.type}"
    return None


def with_timestamp_unit(data_type: pa.DataType, unit: str) -> pa.DataType:
    """Return a type with all timestamps in it, at any depth, in UTC and in this unit."""
    if types.is_timestamp(data_type):
        return pa.timestamp(unit, "UTC")
    if is_list_like(data_type):
        return pa.list_(data_type.value_field.with_type(with_timestamp_unit(data_type.value_type, unit)))
    if types.is_struct(data_type):
        return pa.struct([field.with_type(with_timestamp_unit(field.type, unit)) for field in data_type])
    return data_type


def finest_timestamp_unit(data_types: Iterable[pa.DataType]) -> str:
    """Return the unit of the most precise timestamp at any depth: "ms", "us" or "ns"."""
    finest = "ms"
    for data_type in data_types:
        inner = [data_type.field(index).type for index in range(data_type.num_fields)]
        unit = (
            data_type.unit
            if types.is_timestamp(data_type)
            else finest_timestamp_unit(inner)
            if inner
            else "s"
        )
        finest = max(finest, unit, key=_UNITS.index)
    return finest


def equal_except_precision(left: pa.DataType, right: pa.DataType) -> bool:
    """Return whether slices store values of two types alike, apart from the precision of timestamps.

    The precision that a dataset declares applies to its rows, not the source's.
    """
    left, right = slice_type(left), slice_type(right)
    return with_timestamp_unit(left, "ms") == with_timestamp_unit(right, "ms")


def match_columns(available: list[str], wanted: list[str]) -> list[int | None]:
    """Return for each requested name its index among the available names, or None: exact, else ignoring case.

    Raises:
        InvalidSchema: a name is ambiguous.
    """
    exact: dict[str, list[int]] = {}
    folded: dict[str, list[int]] = {}
    for index, name in enumerate(available):
        exact.setdefault(name, []).append(index)
        folded.setdefault(name.casefold(), []).append(index)
    positions: list[int | None] = []
    for name in wanted:
        places = exact.get(name) or folded.get(name.casefold()) or []
        if len(places) > 1:
            names = " and ".join(f"'{available[place]}'" for place in places)
            raise InvalidSchema(f"ambiguous column '{name}': {names}", hint="rename one of them in the query")
        positions.append(places[0] if places else None)
    return positions


def cast_lossless(array: pa.Array, target: pa.Field, row: int) -> pa.Array:
    """Return ``array`` in the type of ``target``.

    Args:
        array: values of a column.
        target: the column's name, type and nullability.
        row: number of rows before these, for errors.

    Raises:
        InvalidSchema: the types are unrelated.
        BadData: a value does not fit, or is null in a column that is NOT NULL; ``where`` is its row, from 1.
    """
    array = decode_array(array)
    if not target.nullable and array.null_count:
        place = pc.index(array.is_null(), True).as_py()
        raise BadData(f"column '{target.name}' is NOT NULL but has no value", where=f"row {row + place + 1}")
    cast = _caster(array.type, target.type)
    if cast is None:
        raise InvalidSchema(
            f"column '{target.name}' is {type_ddl(array.type)}, but {type_ddl(target.type)} in"
            " the schema of the dataset",
            hint=f"cast it in the preprocess query: CAST({target.name} AS {type_ddl(target.type)})",
        )
    try:
        values = cast(array)
    except pa.ArrowInvalid as error:
        raise _misfit(array, cast, target, row) from error
    if _has_required_parts(target.type) and (place := _find_missing_part(values)) is not None:
        raise BadData(
            f"column '{target.name}' contains null, but its items or members are required",
            where=f"row {row + place + 1}",
            hint="filter out the null values in the preprocess query, or declare them as Option",
        )
    return values


def is_required(field: pa.Field) -> bool:
    """Whether a value of a column, or an item or member in it, must not be null."""
    return not field.nullable or _has_required_parts(field.type)


def _has_required_parts(data_type: pa.DataType) -> bool:
    """Whether an item of a list or a member of a struct, at any depth, must not be null."""
    pending = [data_type]
    while pending:
        current = pending.pop()
        parts = [current.field(at) for at in range(current.num_fields)]
        if not all(part.nullable for part in parts):
            return True
        pending += [part.type for part in parts]
    return False


def _find_missing_part(array: pa.Array) -> int | None:
    """Return the first row with a null in an item or member that is required; a cast does not check it."""
    places: list[int] = []
    if is_list_like(array.type):
        items, rows = array.flatten(), pc.list_parent_indices(array)
        parts = [(array.type.value_field, items, None)]
    elif types.is_struct(array.type):
        rows = None
        parts = [(field, pc.struct_field(array, at), array) for at, field in enumerate(array.type)]
    else:
        return None
    for field, part, parent in parts:
        if not field.nullable and part.null_count:
            missing = part.is_null() if parent is None else pc.and_(part.is_null(), parent.is_valid())
            place = pc.index(missing, True).as_py()
            places += [place] if place >= 0 else []
        if (place := _find_missing_part(part)) is not None:
            places.append(place)
    if not places:
        return None
    return min(places) if rows is None else rows[min(places)].as_py()


_Cast: TypeAlias = "Callable[[pa.Array], pa.Array]"


def _caster(source: pa.DataType, target: pa.DataType) -> _Cast | None:
    if source == target:
        return _valid_text if types.is_string(source) else lambda array: array
    if types.is_timestamp(source) and types.is_timestamp(target):
        return lambda array: _to_timestamp(array, target)
    if types.is_string(slice_type(source)) and target == uuid_type():
        return _to_uuid
    if types.is_integer(source) and types.is_decimal(target):
        # Arrow requires a precision for any integer. Here only these values must fit.
        return lambda array: array.cast(pa.decimal128(20, 0)).cast(target)
    if not _related(source, target):
        return None
    if types.is_nested(target):
        return lambda array: _to_nested(array, target)
    return lambda array: array.cast(target)


def _related(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether each value of ``source`` has an equal value in ``target``, or its cast fails."""
    source, target = slice_type(source), slice_type(target)
    if equal_except_precision(source, target) or types.is_null(source):
        return True
    if is_list_like(source):
        return is_list_like(target) and _related(source.value_type, target.value_type)
    if types.is_struct(source):
        return (
            types.is_struct(target)
            and [field.name for field in source] == [field.name for field in target]
            and all(_related(left.type, right.type) for left, right in zip(source, target, strict=True))
        )
    if types.is_floating(target):
        return types.is_integer(source) or (
            types.is_floating(source) and source.bit_width <= target.bit_width
        )
    return any(
        left(source) and right(target)
        for left, right in (
            (_is_number, types.is_integer),
            (types.is_decimal, types.is_decimal),
            (types.is_time, types.is_time),
            (types.is_date, types.is_timestamp),
            (types.is_fixed_size_binary, types.is_binary),
            (types.is_binary, types.is_fixed_size_binary),
        )
    )


def _is_number(data_type: pa.DataType) -> bool:
    return types.is_integer(data_type) or types.is_floating(data_type) or types.is_decimal(data_type)


def _valid_text(array: pa.Array) -> pa.Array:
    array.validate(full=True)  # engines do not check UTF-8, other readers do
    return array


def _to_timestamp(array: pa.Array, target: pa.DataType) -> pa.Array:
    is_finer = _UNITS.index(array.type.unit) > _UNITS.index(target.unit)
    if is_finer and target.unit in _UNIT_NAMES and _before_1970(array):
        # A cast alone rounds negative values up.
        array = pc.floor_temporal(array, unit=_UNIT_NAMES[target.unit])
    return pc.cast(array, options=pc.CastOptions(target, allow_time_truncate=True))


def _to_nested(array: pa.Array, target: pa.DataType) -> pa.Array:
    # Arrow also casts the items of a list outside of the slice. A copy has only those inside.
    inside = array.filter(pa.repeat(True, len(array)))
    return pc.cast(inside, options=pc.CastOptions(target, allow_time_truncate=True))


def _before_1970(array: pa.Array) -> bool:
    earliest = pc.min(array.cast(pa.int64())).as_py()
    return earliest is not None and earliest < 0


def _to_uuid(array: pa.Array) -> pa.Array:
    digits = pc.replace_substring(array.cast(pa.string()), "-", "")
    if pc.all(pc.match_substring_regex(digits, "^[0-9a-fA-F]{32}$")).as_py() is False:
        raise pa.ArrowInvalid("invalid UUID")
    text = "".join(value or "0" * 32 for value in digits.to_pylist())
    raw = pa.Array.from_buffers(uuid_type(), len(array), [None, pa.py_buffer(bytes.fromhex(text))])
    return pc.if_else(array.is_null(), pa.scalar(None, uuid_type()), raw) if array.null_count else raw


def _misfit(array: pa.Array, cast: _Cast, target: pa.Field, row: int) -> BadData:
    """Return the error for the first value that does not fit, found by bisection."""
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
    except (ValueError, OverflowError):  # a time out of the range of datetime
        text = str(value.cast(pa.int64()).as_py())
    return f"'{text if len(text) <= 80 else text[:79] + '…'}'"
