"""Alignment of the columns of two compared versions, and comparison of values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from odf_engine.data.arrow_compute import pc, python_values
from odf_engine.data.schema_enforcement import match_columns
from odf_engine.errors import InvalidSchema
from odf_engine.rows.diff import CHANGE_COLUMN, DiffColumn
from odf_engine.rows.scan import Scan


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
    if data_type is None or pa.types.is_nested(data_type):
        raise InvalidSchema(
            f"column '{column.name}' cannot be a key: {column.old_type} and {column.new_type}",
            hint="use a key of the same type on both sides",
        )


def _common_type(old: pa.DataType | None, new: pa.DataType | None) -> pa.DataType | None:
    if old is None or new is None or old == new:
        return old if new is None else new
    if pa.types.is_nested(old) or pa.types.is_nested(new):
        return None
    sides = [pa.schema([pa.field("x", kind)]) for kind in (old, new)]
    try:
        return pa.unify_schemas(sides, promote_options="permissive").field(0).type
    except pa.ArrowException:
        return None


def to_comparable(array: pa.Array, data_type: pa.DataType | None) -> pa.Array:
    """Return values in the type of the comparison.

    They become text if there is no common type, or Arrow cannot compare it.
    """
    if data_type is not None and not pa.types.is_nested(data_type):
        cast = array if array.type == data_type else array.cast(data_type, safe=False)
        return (
            pc.add(cast, pa.scalar(0, data_type)) if pa.types.is_floating(data_type) else cast
        )  # -0.0 equals 0.0
    if not pa.types.is_nested(array.type):
        try:
            return array.cast(pa.string())
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
            pass
    texts = [None if value is None else repr(value) for value in python_values(array)]
    return pa.array(texts, pa.string())


def values_differ(old: pa.Array, new: pa.Array, data_type: pa.DataType | None) -> pa.Array:
    """Return a Boolean mask of the values that differ. Null equals null, and NaN equals NaN."""
    before, after = to_comparable(old, data_type), to_comparable(new, data_type)
    equal = pc.equal(before, after)
    if pa.types.is_floating(before.type):
        equal = pc.or_(equal, pc.and_(pc.is_nan(before), pc.is_nan(after)))
    valid = pc.is_valid(before), pc.is_valid(after)
    return pc.if_else(pc.and_(*valid), pc.invert(equal).fill_null(False), pc.xor(*valid))


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
