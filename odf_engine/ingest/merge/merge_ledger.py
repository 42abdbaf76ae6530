"""Ledger strategy: rows whose primary key was not seen before, and corrections of changed rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from odf_engine.base.progress import count_of
from odf_engine.data.arrow_compute import pc, python_rows
from odf_engine.data.changelog import Op
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
from odf_engine.ingest.merge.key_file import KEY, OFFSET, SECOND, TIME, VALUES, RepeatedKey, array_of
from odf_engine.ingest.merge.key_index import KeyIndex
from odf_engine.ingest.merge.merge_plan import MergePlan, MergeRows, PreparedMerge
from odf_engine.ingest.merge.merge_snapshot import (
    SnapshotComparison,
    operations_of,
    sort_changes,
    stored_changes,
)
from odf_engine.ingest.read.text_file import shorten
from odf_engine.metadata.model import Ledger
from odf_engine.spark.row_order import SortOrder, Step, sorted_batches

if TYPE_CHECKING:
    from odf_engine.spark import DataFrame


def keyed_ledger(strategy: Ledger, inputs: MergeInputs) -> KeyedMerge:
    """Return the merge by the primary key of the strategy."""
    return KeyedMerge(inputs, key_columns(strategy.primary_key, inputs), compared=None, live=False)


def merge_ledger(strategy: Ledger, files: Sequence[MergeInputs]) -> PreparedMerge:
    """Prepare the merge of one or several files.

    The rows of each file are in the order of event time. With several files, a changed row or a key in two of
    them is an error.

    :attr:`MergeInputs.on_conflict` defines whether a row with a known key and other values is a warning, an
    error, or a correction of the stored row.
    """
    keyed = [keyed_ledger(strategy, inputs) for inputs in files]
    return PreparedMerge(lambda plan: _new_rows(keyed, plan), keyed[0].remove_index)


def _new_rows(files: Sequence[KeyedMerge], plan: MergePlan) -> MergeRows:
    """Yield the rows with new keys in the order of event time, then corrections; return the keys."""
    keyed = files[0]
    inputs, event_time = keyed.inputs, keyed.inputs.vocab.event_time_column
    index = keyed.open_index()
    corrections = Corrections(keyed) if inputs.on_conflict == "correct" else None
    new_keys = NewKeyFilter(index, inputs.names, keyed.keys, event_time, corrections)
    if len(files) == 1:
        rows = _sorted_rows(keyed, new_keys, plan)
    else:
        rows = chain.from_iterable(_sorted_rows_of_file(file, new_keys, plan) for file in files)
    if corrections is not None:
        rows = chain(rows, corrections.rows())
    keys = yield from keyed.split_keys(rows, index, keyed.key_sorter())
    new_keys.check_unique()
    if new_keys.changed:
        _report_changes(inputs, keyed.keys, new_keys)
    return keys


def _sorted_rows(keyed: KeyedMerge, new_keys: NewKeyFilter, plan: MergePlan) -> Iterator[pa.RecordBatch]:
    """Yield the rows with new keys in the order of event time."""
    inputs, event_time = keyed.inputs, keyed.inputs.vocab.event_time_column
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
    return sorted_batches(start, order, inputs.reporter, sort=plan.sort)


def _sorted_rows_of_file(
    keyed: KeyedMerge, new_keys: NewKeyFilter, plan: MergePlan
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one of several files with new keys.

    Raises:
        BadData: a key is null, occurs in two files, or has a stored row with other values.
        RepeatedKey: two rows of the file have the same known key.
    """
    if plan.check_keys:
        raise BadData("a primary key is null, or occurs twice")
    yield from _sorted_rows(keyed, new_keys, plan)
    new_keys.check_unique()
    if new_keys.changed:
        raise BadData("a row differs from the stored row with its key")


class NewKeyFilter:
    """Selects the rows whose primary key is new, and counts known keys with other values.

    Args:
        index: the keys of the dataset.
        names: event time and data columns.
        keys: the primary key.
        event_time: name of the event time column.
        corrections: receives the rows with a known key and other values; None to count them only.

    Attributes:
        changed: number of rows with a known key and other values that are left out: all of them, or those
            whose key is retracted if the others are corrected.
        examples: the first of these, each with the offset of the stored row.
    """

    def __init__(
        self,
        index: KeyIndex,
        names: Sequence[str],
        keys: Sequence[str],
        event_time: str,
        corrections: Corrections | None = None,
    ) -> None:
        self._corrections = corrections
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
        if self._corrections is not None:
            self._corrections.restart()

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
        if self._corrections is not None:
            is_live = pc.greater_equal(known.column(OFFSET), 0)
            live, known = known.filter(is_live), known.filter(pc.invert(is_live))
            self._corrections.add(batch.take(live.column("row").combine_chunks()), array_of(live, OFFSET))
        self.changed += known.num_rows
        if known.num_rows and len(self.examples) < EXAMPLES:
            first = known.sort_by("row").slice(0, EXAMPLES - len(self.examples))
            new = python_rows(batch.take(first.column("row").combine_chunks()).select(self._names))
            offsets = first.column(OFFSET).to_pylist()
            self.examples += zip((at if at >= 0 else ~at for at in offsets), new, strict=True)


class Corrections:
    """The new rows that correct stored ones; the rows are written to a file.

    Args:
        keyed: the merge.
    """

    def __init__(self, keyed: KeyedMerge) -> None:
        self._keyed = keyed
        self._comparison = SnapshotComparison.of(keyed, compares_time=True)
        self._path = keyed.inputs.scratch / "corrections.arrows"
        self._writer: pa.RecordBatchStreamWriter | None = None
        self._offsets: list[pa.Array] = []

    def restart(self) -> None:
        """Discard all rows."""
        if self._writer is not None:
            self._writer.close()
        self._writer = None
        self._offsets.clear()

    def add(self, rows: pa.RecordBatch, offsets: pa.Array) -> None:
        """Add new rows with their hashes, and the offsets of the rows that they correct.

        Raises:
            BadData: a value does not fit the type of its column.
        """
        if not rows.num_rows:
            return
        batch = self._comparison.to_slice_types(rows, operations_of(Op.CORRECT_TO, rows.num_rows))
        if self._writer is None:
            self._writer = pa.ipc.new_stream(str(self._path), batch.schema)
        self._writer.write_batch(batch)
        self._offsets.append(offsets)

    def rows(self) -> Iterator[pa.RecordBatch]:
        """Yield the corrections in the order of the key: each stored row, then the new one."""
        if self._writer is None:
            return
        self._writer.close()
        count = sum(map(len, self._offsets))
        yield from sort_changes(self._keyed, self._changes(count))
        self._keyed.inputs.reporter.log(f"{count_of(count, 'changed row')} corrected")

    def _changes(self, count: int) -> Iterator[pa.RecordBatch]:
        with pa.OSFile(str(self._path)) as file, pa.ipc.open_stream(file) as stream:
            yield from stream
        offsets = pa.concat_arrays(self._offsets)
        ops = operations_of(Op.CORRECT_FROM, count)
        yield from stored_changes(self._keyed.inputs, self._comparison, offsets, ops)


def _report_changes(inputs: MergeInputs, keys: list[str], new_keys: NewKeyFilter) -> None:
    """Report the number of changed rows, with examples.

    Raises:
        BadData: :attr:`MergeInputs.on_conflict` is ``fail``.
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
    if inputs.on_conflict == "fail":
        raise BadData(
            message,
            hint="nothing was committed; to keep the existing rows, run without --strict, with the setting "
            "onConflict.NAME at warn; to correct them, set it to correct",
        )
    inputs.reporter.warn(message, "changed-rows", new_keys.changed)


def _difference(old: dict[str, Any], new: dict[str, Any], keys: list[str], event_time: str) -> str:
    """Return the key and the changed values of a row as text."""
    key = ", ".join(f"{name}={old[name]}" for name in keys)
    changed = [
        f"{name} was {old[name]}, is {new[name]}"
        for name in old
        if name not in keys and old[name] != new[name] and not (name == event_time and new[name] is None)
    ]
    return f"{key}: {'; '.join(changed)}"
