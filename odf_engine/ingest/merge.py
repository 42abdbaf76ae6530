"""Merge phase: new rows against what the dataset already holds (specification: MergeStrategy).

What comes out is a changelog in the order in which rows get their offsets:

- Append: all rows, by event time, those of the same time as they came;
- Ledger: rows whose primary key was never seen, in the same order;
- Snapshot: the difference to the state so far, by primary key and then operation, so that the two
  rows of a correction stand together.

Rows without an event time get the one of their source before they are sorted. Null and duplicate
keys within one input are errors; copies of a row that are alike in every column count as one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odf_engine.data.conform import find_columns
from odf_engine.errors import Unsupported
from odf_engine.ingest import sql
from odf_engine.ingest.merge_base import POSITION, Inputs, Merged, filler, normal, time_of
from odf_engine.ingest.merge_ledger import merge_ledger
from odf_engine.ingest.merge_snapshot import merge_snapshot
from odf_engine.ingest.ordering import Order
from odf_engine.metadata.model import Append, Ledger, MergeStrategy, Snapshot, kind_of

if TYPE_CHECKING:
    from odf_engine.spark.frames import DataFrame


def merge(strategy: MergeStrategy, inputs: Inputs) -> Merged:
    """Prepares the merge; nothing runs yet.

    Raises:
        InvalidSchema: key columns that are not there, or cannot be keys.
        Unsupported: a strategy of a newer specification.
    """
    if isinstance(strategy, Append):
        return _append(inputs)
    if isinstance(strategy, Ledger):
        return merge_ledger(strategy, inputs)
    if isinstance(strategy, Snapshot):
        return merge_snapshot(strategy, inputs)
    raise Unsupported(
        f"the merge strategy {kind_of(strategy)} is not known",  # type: ignore[arg-type]
        hint="use Append, Ledger or Snapshot",
    )


def _append(inputs: Inputs) -> Merged:
    def make(new: str, sort: bool) -> DataFrame:
        order = f" ORDER BY {time_of(inputs)}, {POSITION}" if sort else ""
        return inputs.select({"n": new}, f"SELECT {sql.columns(inputs.names)} FROM n{order}")

    place = find_columns(inputs.new.columns, [inputs.vocab.event_time_column])[0]
    keys = (inputs.vocab.event_time_column,) if place is not None else ()
    return Merged(make, Order(keys, passes=True), filler(inputs), normal(inputs))
