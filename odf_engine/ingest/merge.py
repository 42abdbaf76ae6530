"""Merge phase: new rows against what the dataset already holds (specification: MergeStrategy).

What comes out is a changelog in the order in which rows get their offsets:

- Append: all rows, by event time, those of the same time as they came (or, where a query joined or
  grouped them so that they came in no order, by every other column);
- Ledger: rows whose primary key was never seen, in the same order;
- Snapshot: the difference to the state so far, by primary key and then operation, so that the two
  rows of a correction stand together.

Rows without an event time get the one of their source before they are sorted. Null and duplicate
keys within one input are errors; copies of a row that are alike in every column count as one. Rows that
bring their own operations are written as they came, if they go with what is there.

What the dataset has is known by hashes that are kept beside it, so that a merge costs what is new: the
new rows are read once and looked up as they come; only rows that are taken back are read again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from odf_engine.data.conform import find_columns
from odf_engine.errors import Unsupported
from odf_engine.ingest import sql
from odf_engine.ingest.merge_base import NEW, POSITION, Inputs, Merged, filler, time_of
from odf_engine.ingest.merge_changelog import merge_changelog
from odf_engine.ingest.merge_ledger import merge_ledger
from odf_engine.ingest.merge_snapshot import merge_snapshot
from odf_engine.ingest.ordering import Order, Step, in_order
from odf_engine.metadata.model import Append, Ledger, MergeStrategy, Snapshot, kind_of
from odf_engine.spark.plans import by_all_columns

if TYPE_CHECKING:
    from odf_engine.spark.frames import DataFrame


def merge(strategy: MergeStrategy, inputs: Inputs) -> Merged:
    """Prepares the merge; nothing runs yet.

    Raises:
        InvalidSchema: key columns that are not there, or cannot be keys.
        Unsupported: a strategy of a newer specification.
    """
    if inputs.changelog is not None and isinstance(strategy, Append | Ledger | Snapshot):
        return merge_changelog(strategy, inputs)
    if isinstance(strategy, Append):
        return _append(inputs)
    if isinstance(strategy, Ledger):
        if inputs.unordered:
            inputs = replace(inputs, new=_in_order(inputs, _event_time_in(inputs)))
        return merge_ledger(strategy, inputs)
    if isinstance(strategy, Snapshot):
        return merge_snapshot(strategy, inputs)
    raise Unsupported(
        f"the merge strategy {kind_of(strategy)} is not known",  # type: ignore[arg-type]
        hint="use Append, Ledger or Snapshot",
    )


def _append(inputs: Inputs) -> Merged:
    """All rows as they are: without a query of our own in between, a small pull is twice as fast."""
    name = _event_time_in(inputs)
    if inputs.unordered:
        return _append_unordered(inputs, name)

    fill = filler(inputs, name)

    def make(sort: bool) -> tuple[DataFrame, Step]:
        if not sort or name is None:
            return inputs.new, fill
        placed = f"SELECT *, monotonically_increasing_id() AS {POSITION} FROM {NEW}"
        columns, order = sql.columns(inputs.new.columns), f"{time_of(inputs, name)}, {POSITION}"
        query = f"SELECT {columns} FROM placed ORDER BY {order}"
        return inputs.select({"placed": placed}, query), fill

    order = Order(() if name is None else (name,), passes=True)
    return Merged(lambda how: in_order(make, order, inputs.reporter, sort=how.sort), inputs.reporter)


def _append_unordered(inputs: Inputs, name: str | None) -> Merged:
    """Rows of the same time by every other column. What fits into memory is sorted there, unless there
    are nested values, which Arrow does not compare: Spark takes several times as long."""
    kinds = {field.name: field.dataType.typeName() for field in inputs.new.schema}
    flat = not {"array", "struct"} & set(kinds.values())
    keys = [column for column, kind in kinds.items() if kind != "void"] if flat else []
    by_spark, fill = _in_order(inputs, name), filler(inputs, name)

    def make(sort: bool) -> tuple[DataFrame, Step]:
        return by_spark if sort or not keys else inputs.new, fill

    order = Order(tuple(sorted(keys, key=lambda column: column != name)))
    return Merged(lambda how: in_order(make, order, inputs.reporter, sort=how.sort), inputs.reporter)


def _in_order(inputs: Inputs, name: str | None) -> DataFrame:
    """The new rows by event time and then by every other column."""
    return by_all_columns(inputs.new, None if name is None else time_of(inputs, name))


def _event_time_in(inputs: Inputs) -> str | None:
    """What the new rows call the event time; None when they have none."""
    (place,) = find_columns(inputs.new.columns, [inputs.vocab.event_time_column])
    if place is None or inputs.new.schema[place].dataType.typeName() == "void":
        return None
    return inputs.new.columns[place]
