"""Alignment of the columns of two compared versions, and comparison of values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from decimal import Context, Decimal
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyarrow import types

from odf_engine.data.arrow_compute import pc, python_values, replace_types
from odf_engine.data.schema_enforcement import match_columns
from odf_engine.errors import InvalidSchema
from odf_engine.rows.database import comparable
from odf_engine.rows.diff import CHANGE_COLUMN, DiffColumn
from odf_engine.rows.scan import Scan

_HIGHEST: Final = (1 << 63) - 1
_HALF: Final = 1 << 255
_EXACT: Final = Context(prec=77)


class AlignedColumn(msgspec.Struct, frozen=True):
    """A column of both sides.

    Attributes:
        name: its name on the newer side.
        old, new: its name in the rows of each side, or None if the side lacks it.
        old_type, new_type: its types there.
        type: the common type for comparison; None: values are compared as text.
        key: whether it belongs to the key.
        counts: whether a different value makes a row changed.
    """

    name: str
    old: str | None
    new: str | None
    old_type: pa.DataType | None
    new_type: pa.DataType | None
    type: pa.DataType | None
    key: bool
    counts: bool

    @property
    def names(self) -> dict[str, str]:
        """Its name in the rows of a side, by ``old`` and ``new``; without a side that lacks it."""
        names = {"old": self.old, "new": self.new}
        return {side: name for side, name in names.items() if name is not None}

    @property
    def is_cast(self) -> bool:
        """Whether values are compared in another type than they have."""
        return self.old is not None and self.new is not None and self.old_type != self.new_type

    @property
    def is_nested(self) -> bool:
        """Whether values are compared in a nested type, which has no order."""
        return self.type is not None and types.is_nested(self.type)


def align_columns(old: Scan, new: Scan, key: Sequence[str], *, same: bool) -> list[AlignedColumn]:
    """Return the columns of both sides without system columns, key columns first.

    Event times are aligned regardless of their names. A column that only one side has does not
    make rows differ, unless both are versions of the same dataset; then it is null on the other side.

    Args:
        old, new: the rows.
        key: names of columns. Empty: all columns that both sides have are the key.
        same: whether both are of the same dataset.

    Raises:
        InvalidSchema: a column of the key is missing on a side, or its values cannot be compared.
    """
    befores = {name: name for name in old.schema.names if name not in old.system_columns}
    event = old.vocabulary.event_time_column
    if event in befores and new.vocabulary.event_time_column not in befores:
        befores = {new.vocabulary.event_time_column if name == event else name: name for name in befores}
    afters = [name for name in new.schema.names if name not in new.system_columns]
    places = match_columns(list(befores), afters)
    called = list(befores)
    matched = {name: called[place] for name, place in zip(afters, places, strict=True) if place is not None}
    lone = [name for name in called if name not in matched.values()]
    rows = [(name, befores[matched[name]] if name in matched else None, name) for name in afters]
    rows += [(name, befores[name], None) for name in lone]
    keys = _key_names([name for name, *_ in rows], key)
    aligned = [_align(row, old.schema, new.schema, keys, same=same) for row in rows]
    if rows and not any(column.old and column.new for column in aligned):
        raise InvalidSchema("no common columns", hint="run odf show NAME to list the columns")
    for column in aligned:
        if column.key and key:
            _check_key(column)
    return sorted(aligned, key=lambda column: keys.index(column.name) if column.name in keys else len(keys))


def _key_names(available: list[str], key: Sequence[str]) -> list[str]:
    names: list[str] = []
    for name, place in zip(key, match_columns(available, list(key)), strict=True):
        if place is None:
            raise InvalidSchema(f"column '{name}' not found", hint=f"columns: {', '.join(available)}")
        names.append(available[place])
    return list(dict.fromkeys(names))


def _align(
    row: tuple[str, str | None, str | None], old: pa.Schema, new: pa.Schema, keys: list[str], *, same: bool
) -> AlignedColumn:
    name, before, after = row
    old_type = None if before is None else old.field(before).type
    new_type = None if after is None else new.field(after).type
    both = old_type is not None and new_type is not None
    return AlignedColumn(
        name, before, after, old_type, new_type, _common_type(old_type, new_type),
        key=name in keys if keys else both, counts=both or same,
    )  # fmt: skip


def _check_key(column: AlignedColumn) -> None:
    if column.old is None or column.new is None:
        side = "newer" if column.new is None else "older"
        raise InvalidSchema(
            f"column '{column.name}' not found on the {side} side", hint="use a key that both sides have"
        )
    data_type = column.type
    if data_type is None or types.is_nested(data_type):
        raise InvalidSchema(
            f"column '{column.name}' cannot be a key: {column.old_type} and {column.new_type}",
            hint="use a key of the same type on both sides",
        )


def _common_type(old: pa.DataType | None, new: pa.DataType | None) -> pa.DataType | None:
    if old is None or new is None or old == new:
        return old if new is None else new
    if types.is_nested(old) or types.is_nested(new):
        return None
    sides = [pa.schema([pa.field("x", kind)]) for kind in (old, new)]
    try:
        return pa.unify_schemas(sides, promote_options="permissive").field(0).type
    except pa.ArrowException:
        return None


def common_values(array: pa.Array, data_type: pa.DataType | None) -> pa.Array:
    """Return values in the common type of both sides, or as text if there is none."""
    if data_type is not None:
        return array if array.type == data_type else array.cast(data_type, safe=False)
    if not types.is_nested(array.type):
        try:
            return array.cast(pa.string())
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
            pass
    return pa.array([None if value is None else repr(value) for value in python_values(array)], pa.string())


def encode_values(array: pa.Array) -> pa.Array:
    """Return values in a type that DuckDB stores without a loss, compares and sorts.

    Codes are equal if and only if the bits of the values are; all NaN are equal. The codes have the order of
    the values, unless these are nested.
    """
    data_type = array.type
    if types.is_floating(data_type):
        doubles = array.cast(pa.float64())
        return _flip(pc.if_else(pc.is_nan(doubles), math.nan, doubles).view(pa.int64()))
    if types.is_decimal256(data_type):
        numbers = (_shift(value, data_type.scale) for value in array.to_pylist())
        codes = [None if number is None else (int(number) + _HALF).to_bytes(32, "big") for number in numbers]
        return pa.array(codes, pa.binary())
    if types.is_nested(data_type):
        values = array.cast(replace_types(data_type, _plain_type)).to_pylist()
        codes = [None if value is None else msgspec.msgpack.encode(value) for value in values]
        return pa.array(codes, pa.binary())
    return comparable(array)


def decode_values(codes: pa.Array, data_type: pa.DataType) -> pa.Array:
    """Return the values of :func:`encode_values`."""
    if types.is_floating(data_type):
        return _flip(codes).view(pa.float64()).cast(data_type)
    if types.is_decimal256(data_type):
        numbers = (
            None if code is None else int.from_bytes(code, "big") - _HALF for code in codes.to_pylist()
        )
        return pa.array([_shift(number, -data_type.scale) for number in numbers], data_type)
    if types.is_nested(data_type):
        values = [
            None if code is None else _tuples(msgspec.msgpack.decode(code)) for code in codes.to_pylist()
        ]
        return pa.array(values, replace_types(data_type, _plain_type)).cast(data_type)
    if types.is_null(data_type):
        return pa.nulls(len(codes))
    is_view = types.is_temporal(data_type) or types.is_string(data_type)
    return codes.view(data_type) if is_view else codes.cast(data_type)


def _flip(bits: pa.Array) -> pa.Array:
    """Return the bits of floats as numbers in the order of the floats, and the reverse."""
    return pc.if_else(pc.less(bits, 0), pc.bit_wise_xor(bits, _HIGHEST), bits)


def _shift(number: Decimal | int | None, digits: int) -> Decimal | None:
    return None if number is None else Decimal(number).scaleb(digits, _EXACT)


def _plain_type(data_type: pa.DataType) -> pa.DataType:
    """Return a type whose Python values MessagePack supports."""
    if types.is_temporal(data_type):
        return pa.int32() if data_type.bit_width == 32 else pa.int64()
    return pa.string() if types.is_decimal(data_type) else data_type


def _tuples(value: Any) -> Any:
    """Return a nested value with tuples instead of lists: Arrow expects tuples in a map."""
    if isinstance(value, dict):
        return {name: _tuples(item) for name, item in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def values_differ(old: pa.Array, new: pa.Array, data_type: pa.DataType | None) -> pa.Array:
    """Return a mask of the values that differ, as :func:`encode_values` compares them."""
    before, after = (encode_values(common_values(values, data_type)) for values in (old, new))
    both = pc.and_(before.is_valid(), after.is_valid())
    return pc.if_else(both, pc.not_equal(before, after), pc.xor(before.is_valid(), after.is_valid()))


def result_columns(columns: Sequence[AlignedColumn]) -> list[DiffColumn]:
    """Return the columns of a difference file."""
    taken = {CHANGE_COLUMN}
    diff_columns: list[DiffColumn] = []
    for column in columns:
        kinds = _type_name(column.old_type), _type_name(column.new_type)
        if column.key:
            name = _unique_name(column.name, taken)
            diff_columns.append(DiffColumn(column.name, True, kinds[0], kinds[1], name, name))
            continue
        old = None if column.old is None else _unique_name(f"old_{column.name}", taken)
        new = None if column.new is None else _unique_name(f"new_{column.name}", taken)
        diff_columns.append(DiffColumn(column.name, False, kinds[0], kinds[1], old, new, column.counts))
    return diff_columns


def offset_names(columns: Sequence[DiffColumn]) -> tuple[str, str]:
    """Return the names of the columns with the offsets in a difference file."""
    taken = {CHANGE_COLUMN, *(name for column in columns for name in (column.old, column.new) if name)}
    return _unique_name("old_offset", taken), _unique_name("new_offset", taken)


def _type_name(data_type: pa.DataType | None) -> str | None:
    return None if data_type is None else str(data_type)


def _unique_name(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def changed_cells(table: pa.Table, columns: Iterable[DiffColumn]) -> Mapping[str, pa.Array]:
    """Return for each column a mask of the values that differ in changed rows.

    Args:
        table: rows of a difference file with :data:`CHANGE_COLUMN` and these columns.
        columns: any of its columns.
    """
    changed = pc.equal(table.column(CHANGE_COLUMN), "changed").combine_chunks()
    cells: dict[str, Any] = {}
    for column in columns:
        if column.key or not column.counts:
            continue
        old, new = _column_of(table, column.old), _column_of(table, column.new)
        kind = _common_type(None if old is None else old.type, None if new is None else new.type)
        old, new = (pa.nulls(table.num_rows, kind) if side is None else side for side in (old, new))
        cells[column.name] = pc.and_(changed, values_differ(old, new, kind))
    return cells


def _column_of(table: pa.Table, name: str | None) -> pa.Array | None:
    return None if name is None else table.column(name).combine_chunks()
