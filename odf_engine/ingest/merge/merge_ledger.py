"""Ledger strategy: rows whose primary key was not seen before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from odf_engine.data.arrow_compute import pc
from odf_engine.errors import BadData
from odf_engine.ingest.merge.base import (
    EXAMPLES,
    POSITION,
    KeyedMerge,
    MergeInputs,
    check_null_keys,
    event_time_filler,
    example_rows,
    key_columns,
    sort_time_sql,
    times_as_numbers,
)
from odf_engine.ingest.merge.key_file import KEY, OFFSET, SECOND, TIME, VALUES, RepeatedKey
from odf_engine.ingest.merge.key_index import KeyIndex
from odf_engine.ingest.merge.merge_plan import MergePlan, MergeRows, PreparedMerge
from odf_engine.ingest.read.error_location import shorten
from odf_engine.metadata.model import Ledger
from odf_engine.progress import count_of
from odf_engine.spark.row_order import SortOrder, Step, sorted_batches

if TYPE_CHECKING:
    from odf_engine.spark import DataFrame


def keyed_ledger(strategy: Ledger, inputs: MergeInputs) -> KeyedMerge:
    """Return the merge by the primary key of the strategy."""
    return KeyedMerge(inputs, key_columns(strategy.primary_key, inputs), compared=None, live=False)


def merge_ledger(strategy: Ledger, inputs: MergeInputs) -> PreparedMerge:
    """Prepare the merge. A known key with other values is a warning, or an error in strict mode."""
    keyed = keyed_ledger(strategy, inputs)
    return PreparedMerge(lambda plan: _new_rows(keyed, plan), keyed.remove_index)


def _new_rows(keyed: KeyedMerge, plan: MergePlan) -> MergeRows:
    """Yield the rows with new keys in the order of event time; return their keys."""
    inputs, event_time = keyed.inputs, keyed.inputs.vocab.event_time_column
    index = keyed.open_index()
    new_keys = NewKeyFilter(index, inputs.names, keyed.keys, event_time)
    fill = event_time_filler(inputs, event_time)

    def start(sort: bool) -> tuple[DataFrame, Step]:
        # A result that exceeds the memory limit is read again, sorted by Spark.
        new_keys.restart()
        time = f"{sort_time_sql(inputs, event_time)}, {POSITION}" if sort else None
        frame = keyed.frame(check_keys=plan.check_keys, order=time)
        return frame, lambda batch: fill(new_keys.apply(batch))

    order = SortOrder((event_time,), passes=True)
    if plan.check_keys:  # The check changes the order of the rows.
        order = SortOrder((event_time, POSITION), extra=(POSITION,))
    rows = sorted_batches(start, order, inputs.reporter, sort=plan.sort)
    keys = yield from keyed.split_keys(rows, index, keyed.key_sorter())
    new_keys.check_unique()
    if new_keys.changed:
        _report_changes(inputs, keyed.keys, new_keys)
    return keys


class NewKeyFilter:
    """Selects the rows whose primary key is new, and counts known keys with other values.

    Args:
        index: the keys of the dataset.
        names: event time and data columns.
        keys: the primary key.
        event_time: name of the event time column.

    Attributes:
        changed: number of rows with a known key and other values.
        examples: the first of these, each with the offset of the stored row.
    """

    def __init__(self, index: KeyIndex, names: Sequence[str], keys: Sequence[str], event_time: str) -> None:
        self._index = index
        self._names = list(names)
        self._event_time = event_time
        self._compares_time = event_time not in keys
        self._known: list[pa.Array] = []
        self.changed = 0
        self.examples: list[tuple[int, dict[str, Any]]] = []

    def restart(self) -> None:
        """Reset the counts before the first batch."""
        self._known.clear()
        self.changed = 0
        self.examples.clear()

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of a batch whose key is new.

        Raises:
            NullKey: the key of a row is null.
        """
        check_null_keys(batch)
        known = self._index.find(batch.column(KEY), batch.column(SECOND))
        if not known.num_rows:
            return batch
        self._known.append(known.column("place").combine_chunks())
        self._count_changes(batch, known)
        rows = known.column("row").combine_chunks()
        is_known = pc.scatter(pa.repeat(True, len(rows)), rows, max_index=batch.num_rows - 1)
        return batch.filter(is_known.is_null())

    def check_unique(self) -> None:
        """Check all batches so far; the keys of new rows are checked when they are sorted.

        Raises:
            RepeatedKey: two rows have the same known key.
        """
        if self._known and pc.count_distinct(pa.chunked_array(self._known)).as_py() < sum(
            map(len, self._known)
        ):
            raise RepeatedKey

    def _count_changes(self, batch: pa.RecordBatch, known: pa.Table) -> None:
        """Compare rows that have a known key. A null event time is equal to any."""
        rows = known.column("row")
        changed = pc.not_equal(batch.column(VALUES).take(rows), known.column(VALUES))
        if self._compares_time:
            times = times_as_numbers(batch.column(self._event_time)).take(rows)
            moved = pc.fill_null(pc.not_equal(times, known.column(TIME)), False)
            changed = pc.or_(changed, moved)
        known = known.filter(changed)
        self.changed += known.num_rows
        if known.num_rows and len(self.examples) < EXAMPLES:
            first = known.sort_by("row").slice(0, EXAMPLES - len(self.examples))
            new = batch.take(first.column("row").combine_chunks()).select(self._names).to_pylist()
            offsets = first.column(OFFSET).to_pylist()
            self.examples += zip((at if at >= 0 else ~at for at in offsets), new, strict=True)


def _report_changes(inputs: MergeInputs, keys: list[str], new_keys: NewKeyFilter) -> None:
    """Report the number of changed rows, with examples.

    Raises:
        BadData: the merge is strict.
    """
    stored = example_rows(inputs, [offset for offset, _ in new_keys.examples])
    event_time = inputs.vocab.event_time_column
    texts = [
        shorten(_difference(old, new, keys, event_time))
        for old, (_, new) in zip(stored, new_keys.examples, strict=True)
    ]
    message = (
        f"{count_of(new_keys.changed, 'row')} with an existing primary key and different"
        f" values; a ledger keeps the existing rows. Examples: {' | '.join(texts)}"
    )
    if inputs.strict:
        raise BadData(message, hint="nothing was committed; run without --strict to keep the existing rows")
    inputs.reporter.log(message, "warning")


def _difference(old: dict[str, Any], new: dict[str, Any], keys: list[str], event_time: str) -> str:
    """Return the key and the changed values of a row as text."""
    key = ", ".join(f"{name}={old[name]}" for name in keys)
    changed = [
        f"{name} was {old[name]}, is {new[name]}"
        for name in old
        if name not in keys and old[name] != new[name] and not (name == event_time and new[name] is None)
    ]
    return f"{key}: {'; '.join(changed)}"
