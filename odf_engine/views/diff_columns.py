"""Column alignment of two compared versions, and comparison of values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from odf_engine.data.arrow_compute import pc
from odf_engine.data.schema_enforcement import match_columns
from odf_engine.errors import InvalidSchema
from odf_engine.views.diff import CHANGE_COLUMN, DiffColumn
from odf_engine.views.scan import Scan


class AlignedColumn(msgspec.Struct, frozen=True):
    """A column of both sides.

    Attributes:
        name: as the newer side calls it.
        old, new: what it is called in the rows of each side; None where it is not there.
        old_type, new_type: its types there.
        type: in which its values are compared; None: as text.
        key: whether it tells rows apart.
        counts: whether another value makes the row another one.
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
    """The columns of both sides without those of the system, those of the key first.

    Event times are laid beside each other whatever they are called. A column that only one side has does
    not make rows others, unless both are versions of the same dataset (where it is null then).

    Args:
        key: names; empty for none, and then all columns that both sides have tell rows apart.
        same: whether they are of the same dataset.

    Raises:
        InvalidSchema: the key is not in both, or its values cannot be equal.
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
    found = [_beside(each, old.schema, new.schema, keys, same=same) for each in rows]
    if rows and not any(each.old and each.new for each in found):
        raise InvalidSchema("the two have no column in common", hint="odf show NAME lists the columns")
    for each in found:
        if each.key and key:
            _check_key(each)
    return sorted(found, key=lambda each: keys.index(each.name) if each.name in keys else len(keys))


def _key_names(available: list[str], key: Sequence[str]) -> list[str]:
    found: list[str] = []
    for name, place in zip(key, match_columns(available, list(key)), strict=True):
        if place is None:
            raise InvalidSchema(f"there is no column '{name}'", hint=f"there are {', '.join(available)}")
        found.append(available[place])
    return list(dict.fromkeys(found))


def _beside(
    row: tuple[str, str | None, str | None], old: pa.Schema, new: pa.Schema, keys: list[str], *, same: bool
) -> AlignedColumn:
    name, before, after = row
    old_type = None if before is None else old.field(before).type
    new_type = None if after is None else new.field(after).type
    both = old_type is not None and new_type is not None
    return AlignedColumn(
        name, before, after, old_type, new_type, _common(old_type, new_type),
        key=name in keys if keys else both, counts=both or same,
    )  # fmt: skip


def _check_key(each: AlignedColumn) -> None:
    if each.old is None or each.new is None:
        where = "newer" if each.new is None else "older"
        raise InvalidSchema(
            f"the {where} side has no column '{each.name}'", hint="choose a key that both have"
        )
    data_type = each.type
    if data_type is None or pa.types.is_nested(data_type):
        raise InvalidSchema(
            f"column '{each.name}' cannot tell rows apart: it is {each.old_type} and {each.new_type}",
            hint="choose a key of the same type on both sides",
        )


def _common(old: pa.DataType | None, new: pa.DataType | None) -> pa.DataType | None:
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
    """Values in the type in which they are compared; as text where there is none, or Arrow has no order."""
    if data_type is not None and not pa.types.is_nested(data_type):
        cast = array if array.type == data_type else array.cast(data_type, safe=False)
        return (
            pc.add(cast, pa.scalar(0, data_type)) if pa.types.is_floating(data_type) else cast
        )  # minus zero is zero
    if not pa.types.is_nested(array.type):
        try:
            return array.cast(pa.string())
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
            pass
    texts = [None if value is None else repr(value) for value in array.to_pylist()]
    return pa.array(texts, pa.string())


def values_differ(old: pa.Array, new: pa.Array, data_type: pa.DataType | None) -> pa.Array:
    """Which values are others, as Boolean; null is equal to null, and NaN to NaN."""
    before, after = to_comparable(old, data_type), to_comparable(new, data_type)
    equal = pc.equal(before, after)
    if pa.types.is_floating(before.type):
        equal = pc.or_(equal, pc.and_(pc.is_nan(before), pc.is_nan(after)))
    valid = pc.is_valid(before), pc.is_valid(after)
    return pc.if_else(pc.and_(*valid), pc.invert(equal).fill_null(False), pc.xor(*valid))


# --- In the file -------------------------------------------------------------------------------------


def result_columns(columns: Sequence[AlignedColumn]) -> list[DiffColumn]:
    """What the columns are called in a file of differences."""
    taken = {CHANGE_COLUMN}
    found: list[DiffColumn] = []
    for each in columns:
        kinds = _said(each.old_type), _said(each.new_type)
        if each.key:
            name = _fresh(each.name, taken)
            found.append(DiffColumn(each.name, True, kinds[0], kinds[1], name, name))
            continue
        old = None if each.old is None else _fresh(f"old_{each.name}", taken)
        new = None if each.new is None else _fresh(f"new_{each.name}", taken)
        found.append(DiffColumn(each.name, False, kinds[0], kinds[1], old, new, each.counts))
    return found


def _said(data_type: pa.DataType | None) -> str | None:
    return None if data_type is None else str(data_type)


def _fresh(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def changed_cells(table: pa.Table, columns: Iterable[DiffColumn]) -> Mapping[str, pa.Array]:
    """Which values of changed rows are others, by the names of their columns.

    Args:
        table: rows of a file of differences, with :data:`CHANGE_COLUMN` and the columns that are asked for.
        columns: any of its columns.
    """
    changed = pc.equal(table.column(CHANGE_COLUMN), "changed").combine_chunks()
    found: dict[str, Any] = {}
    for each in columns:
        if each.key or not each.counts:
            continue
        old, new = _side(table, each.old), _side(table, each.new)
        kind = _common(None if old is None else old.type, None if new is None else new.type)
        old, new = (pa.nulls(table.num_rows, kind) if side is None else side for side in (old, new))
        found[each.name] = pc.and_(changed, values_differ(old, new, kind))
    return found


def _side(table: pa.Table, name: str | None) -> pa.Array | None:
    return None if name is None else table.column(name).combine_chunks()
