"""Groups without a window: up to which batch a row of the changelog was made of the rows of its group.

Each batch in which a group has rows may change its row, and so may have given one entry of the
changelog: an addition, a retraction, or a correction. Where all of them did, the entries and the
batches stand side by side; else the group's row is computed after each of the batches, and those count
that changed it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from odf_engine.data.changelog import Op
from odf_engine.data.conform import find_columns
from odf_engine.errors import Unsupported
from odf_engine.provenance.step_rows import Sought
from odf_engine.spark.casts import identifier
from odf_engine.spark.lineage import BATCH, KEY, Lineage
from odf_engine.spark.lineage_match import as_stored, narrowed, within
from odf_engine.spark.lineage_prefix import PREFIX
from odf_engine.spark.stateful import ROWS

if TYPE_CHECKING:
    from odf_engine.spark.frames import DataFrame

Take = Callable[["DataFrame"], Iterator[pa.RecordBatch]]
Group = tuple[Any, ...]
_WANTED: Final = "odf_wanted"
_MOST: Final = 200_000


@dataclass
class Entries:
    """A group: what its changelog has, and the batches in which it had rows.

    Attributes:
        wanted: of each entry, whether it is asked for.
        batches: in ascending order.
        retracts: whether a row that is asked for takes back another one.
    """

    wanted: list[bool] = field(default_factory=list[bool])
    batches: list[int] = field(default_factory=list[int])
    retracts: bool = False


@dataclass(frozen=True)
class Groups:
    """The groups of rows that are asked for.

    Attributes:
        entries: by their values.
        keys: ``g0``, … and ``odf_key_0``, …: of each the values as they are compared, and as they are.
    """

    entries: dict[Group, Entries]
    keys: DataFrame


def groups_of(lineage: Lineage, sought: Sought, rows: DataFrame, first: int, last: int, take: Take) -> Groups:
    """The groups of the rows that are sought.

    Args:
        lineage: the query, followed.
        sought: the rows.
        rows: those of their slice.
        first, last: the batches of the transaction.
        take: runs a frame.

    Raises:
        Unsupported: there are too many.
    """
    names, under = lineage.group_columns or [], lineage.rows_under()
    keys = [f"{KEY}{at}" for at in range(len(names))]
    columns = [f"g{at}" for at in range(len(names))]
    theirs = compared_groups(names, rows)
    ours = compared_groups(names, rows, keys)
    offset, operation = sought.vocab.offset_column, sought.vocab.operation_type_column
    asked = within(identifier(offset), sought.runs)
    under = under.selectExpr(*ours, *keys, BATCH)
    log = rows.selectExpr(
        *theirs, f"{identifier(offset)} AS place", f"{identifier(operation)} AS op", f"{asked} AS {_WANTED}"
    )
    if columns:
        under, log = narrowed(rows.sparkSession, under, log, columns)
    touched = under.where(f"{BATCH} BETWEEN {first} AND {last}").select(*columns, BATCH).distinct()
    entries: dict[Group, Entries] = {}
    _read_log(_few(take, log.sort("place")), columns, entries)
    for batch in _few(take, touched.sort(BATCH)):
        for row in batch.to_pylist():
            found = entries.get(_group(row, columns))
            if found is not None:
                found.batches.append(row[BATCH])
    return Groups(entries, under.select(*columns, *keys).distinct() if columns else under.limit(0))


def compared_groups(names: Sequence[str], rows: DataFrame, keys: Sequence[str] | None = None) -> list[str]:
    """What tells groups apart as columns ``g0``, …, in the form in which slices keep it.

    Args:
        names: the columns of the result for it.
        rows: of a slice.
        keys: other columns that have the same values.
    """
    found: list[str] = []
    places = find_columns(rows.columns, list(names))
    for at, (name, place) in enumerate(zip(names, places, strict=True)):
        kind = rows.schema[rows.columns[place or 0]].dataType
        found.append(f"{as_stored(identifier(keys[at] if keys else name), kind)} AS g{at}")
    return found


def _read_log(
    batches: Iterator[pa.RecordBatch], columns: Sequence[str], entries: dict[Group, Entries]
) -> None:
    for batch in batches:
        for row in batch.to_pylist():
            group = entries.setdefault(_group(row, columns), Entries())
            if row["op"] == Op.CORRECT_TO and group.wanted:
                group.wanted[-1] = group.wanted[-1] or row[_WANTED]
            else:
                group.wanted.append(row[_WANTED])
            gone = row["op"] in (Op.RETRACT, Op.CORRECT_FROM)
            group.retracts = group.retracts or (row[_WANTED] and gone)


def cut_of(entries: Entries, batches: Sequence[int]) -> int | None:
    """The batch of the last entry that is asked for; None where entries and batches do not go together."""
    if len(entries.wanted) != len(batches):
        return None
    return max(batch for batch, asked in zip(batches, entries.wanted, strict=True) if asked)


def changing_batches(values: Sequence[tuple[int, dict[str, Any]]], first: int) -> list[int]:
    """Those of the batches in which the row of a group changed.

    Args:
        values: the group's row after batches, in their order.
        first: the transaction's first batch.
    """
    emitted: dict[str, Any] | None = None
    found: list[int] = []
    for batch, row in values:
        alive = row[ROWS] > 0
        own = {name: value for name, value in row.items() if name not in (ROWS, PREFIX)}
        changes = emitted is not None if not alive else emitted is None or not _same(own, emitted)
        if changes and batch >= first:
            found.append(batch)
        if changes:
            emitted = own if alive else None
    return found


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return (
            math.isclose(one, other, rel_tol=1e-12) or one == other or (math.isnan(one) and math.isnan(other))
        )
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    return one == other


def group_of_row(row: dict[str, Any], columns: Sequence[str]) -> Group:
    """The values of a group as they are compared."""
    return _group(row, columns)


def _group(row: dict[str, Any], columns: Sequence[str]) -> Group:
    values = (row[name] for name in columns)
    return tuple("NaN" if isinstance(value, float) and math.isnan(value) else value for value in values)


def _few(take: Take, frame: DataFrame) -> Iterator[pa.RecordBatch]:
    count = 0
    for batch in take(frame):
        count += batch.num_rows
        if count > _MOST:
            raise Unsupported(f"the groups of these rows changed more than {_MOST:,} times")
        yield batch
