"""Snapshot strategy: the difference to the latest state, by primary key."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import date, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from odf_engine.base.progress import Reporter, count_of
from odf_engine.data.arrow_compute import pc
from odf_engine.data.changelog import Op
from odf_engine.data.schema_enforcement import cast_lossless, match_columns
from odf_engine.errors import BadData, InvalidSchema
from odf_engine.ingest.merge.base import (
    POSITION,
    KeyedMerge,
    MergeInputs,
    check_null_keys,
    event_time_filler,
    key_columns,
    stored_rows_at,
    times_as_numbers,
)
from odf_engine.ingest.merge.key_file import COMPARED, KEY, OFFSET, SECOND, TIME, VALUES, KeySorter, array_of
from odf_engine.ingest.merge.key_index import KeyIndex
from odf_engine.ingest.merge.merge_plan import MergePlan, MergeRows, PreparedMerge
from odf_engine.metadata.model import DatasetVocabulary, Snapshot
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.spark import sql_types
from odf_engine.spark.row_order import SortOrder, Step, external_sort, map_batches, sorted_batches

if TYPE_CHECKING:
    from odf_engine.spark import DataFrame

_OP: Final = pa.int32()
_OLDER_SHARE: Final = 0.9
"""Min share of older rows among the retracted ones in a moving window, whose rows can also be withdrawn."""


def keyed_snapshot(strategy: Snapshot, inputs: MergeInputs) -> KeyedMerge:
    """Return the merge by the primary key of the strategy."""
    keys = key_columns(strategy.primary_key, inputs)
    compared = [name for name in _compared(strategy, keys, inputs) if name != inputs.vocab.event_time_column]
    return KeyedMerge(
        inputs, keys, compared=compared if strategy.compare_columns is not None else None, live=True
    )


def merge_snapshot(strategy: Snapshot, inputs: MergeInputs) -> PreparedMerge:
    """Prepare the merge. A changed row becomes a correction of two adjacent rows."""
    keyed = keyed_snapshot(strategy, inputs)
    compares_time = inputs.vocab.event_time_column in _compared(strategy, keyed.keys, inputs)
    comparison = SnapshotComparison.of(keyed, compares_time=compares_time)
    return PreparedMerge(lambda plan: _rows(keyed, comparison, plan), keyed.remove_index)


def _compared(strategy: Snapshot, keys: list[str], inputs: MergeInputs) -> list[str]:
    """Return the changed columns of a row.

    Raises:
        InvalidSchema: ``compareColumns`` is empty, or has an unknown column.
    """
    if strategy.compare_columns is None:
        return [name for name in inputs.names if name not in keys]
    if not strategy.compare_columns:
        raise InvalidSchema("compareColumns is empty", where="merge.compareColumns")
    names: list[str] = []
    for name, place in zip(
        strategy.compare_columns, match_columns(inputs.names, strategy.compare_columns), strict=True
    ):
        if place is None:
            raise InvalidSchema(
                f"column '{name}' of compareColumns not found",
                where="merge.compareColumns",
                hint=f"columns: {', '.join(inputs.names)}",
            )
        names.append(inputs.names[place])
    return names


def _rows(keyed: KeyedMerge, comparison: SnapshotComparison, plan: MergePlan) -> MergeRows:
    """Yield the rows to write in the order of key and operation; return their keys."""
    index, sorter = keyed.open_index(), keyed.key_sorter()
    if not index.rows:
        return (yield from keyed.split_keys(_first_rows(keyed, comparison, plan), index, sorter))
    window = _MovingWindow(keyed.inputs.vocab)
    changes = sort_changes(keyed, _find_changes(keyed, comparison, plan, index, sorter, window))
    keys = yield from keyed.split_keys(changes, index, sorter)
    window.report(keyed.inputs.reporter)  # An abandoned attempt does not get here.
    return keys


def _first_rows(
    keyed: KeyedMerge, comparison: SnapshotComparison, plan: MergePlan
) -> Iterator[pa.RecordBatch]:
    """Return all rows of the first snapshot, in the order of the key."""

    def step(batch: pa.RecordBatch) -> pa.RecordBatch:
        check_null_keys(batch)
        return comparison.fill(batch)

    def start(sort: bool) -> tuple[DataFrame, Step]:
        keys = sql_types.columns(keyed.keys) if sort else None
        return keyed.frame(check_keys=plan.check_keys, order=keys), step

    order = SortOrder(tuple(keyed.keys), extra=(POSITION,) if plan.check_keys else (), passes=True)
    return sorted_batches(start, order, keyed.inputs.reporter, sort=plan.sort)


def sort_changes(keyed: KeyedMerge, changes: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return rows with operations in the order of key and operation: each -C precedes its +C."""
    inputs = keyed.inputs
    op = inputs.vocab.operation_type_column
    return external_sort(changes, SortOrder((*keyed.keys, op)), inputs.scratch / "changes.arrow")


class _MovingWindow:
    """Notices a file that holds only recent rows: the rows that left it are older than its first row.

    Rows without an event time in the file do not count.
    """

    def __init__(self, vocab: DatasetVocabulary) -> None:
        self._time = vocab.event_time_column
        self._op = vocab.operation_type_column
        self._first: int | None = None
        self._is_date = False
        self._retracted = self._older = 0

    def add_new(self, batch: pa.RecordBatch) -> None:
        """Add rows of the file."""
        times = batch.column(self._time).drop_null()
        if len(times):
            first = pc.min(times_as_numbers(times)).as_py()
            self._first = first if self._first is None else min(self._first, first)
            self._is_date = pa.types.is_date(times.type)

    def add_stored(self, batch: pa.RecordBatch) -> None:
        """Add retracted rows, after all rows of the file."""
        if self._first is None:
            return
        is_retracted = pc.equal(batch.column(self._op), pa.scalar(Op.RETRACT, _OP))
        times = times_as_numbers(batch.column(self._time).filter(is_retracted))
        self._retracted += len(times)
        self._older += pc.sum(pc.less(times, self._first), min_count=0).as_py()

    def report(self, reporter: Reporter) -> None:
        """Warn if nearly all retracted rows are older than the file."""
        if self._first is None or not self._older or self._older < _OLDER_SHARE * self._retracted:
            return
        if self._is_date:
            first = str(date(1970, 1, 1) + timedelta(days=self._first))
        else:
            first = str(Timestamp.from_ms(self._first)).removesuffix("T00:00:00Z")
        was, older = "was", "it is"
        if self._retracted > 1:
            was = "were"
            older = "all are" if self._older == self._retracted else f"{self._older:,} are"
        reporter.warn(
            f"{count_of(self._retracted, 'row')} left the file and {was} retracted; {older} older than its"
            f" first row of {first}; if the file holds only recent rows, use merge UpsertStream:"
            " set merge.kind in the manifest, and run odf add --update",
            "moving-window",
            self._retracted,
        )


def _find_changes(
    keyed: KeyedMerge,
    comparison: SnapshotComparison,
    plan: MergePlan,
    index: KeyIndex,
    sorter: KeySorter,
    window: _MovingWindow,
) -> Iterator[pa.RecordBatch]:
    """Yield new and changed rows, then the stored rows that are corrected or retracted.

    The keys of retracted rows are added to the sorter.

    Raises:
        NullKey: the key of a row is null.
        RepeatedKey: two rows have the same known key.
    """
    inputs = keyed.inputs
    known: list[pa.Array] = []
    offsets: list[pa.Array] = []
    frame = keyed.frame(check_keys=plan.check_keys)
    with closing(map_batches(frame, lambda batch: batch, inputs.reporter)) as batches:
        for batch in batches:
            window.add_new(batch)
            compared = comparison.compare(batch, index)
            known.append(compared.known)
            offsets.append(compared.corrected)
            if compared.rows.num_rows:
                yield compared.rows
    ops = [operations_of(Op.CORRECT_FROM, len(part)) for part in offsets]
    for missing in index.live_keys_except(known):
        retracted = missing.column(OFFSET)
        keyed.add_retracted(sorter, missing.column(KEY), missing.column(SECOND), retracted)
        offsets.append(retracted)
        ops.append(operations_of(Op.RETRACT, missing.num_rows))
    if offsets:
        for batch in stored_changes(inputs, comparison, pa.concat_arrays(offsets), pa.concat_arrays(ops)):
            window.add_stored(batch)
            yield batch


def stored_changes(
    inputs: MergeInputs, comparison: SnapshotComparison, offsets: pa.Array, ops: pa.Array
) -> Iterator[pa.RecordBatch]:
    """Yield rows of the dataset with the operations that correct or retract them."""
    order = pc.sort_indices(offsets)
    offsets, ops = offsets.take(order), ops.take(order)
    at = 0
    for batch in stored_rows_at(inputs, offsets):
        zeros = [pa.repeat(pa.scalar(0, pa.int64()), batch.num_rows)] * len(comparison.hashes)
        yield comparison.batch(batch.columns, ops[at : at + batch.num_rows], zeros)
        at += batch.num_rows


class ComparedRows(NamedTuple):
    """A batch of new rows, compared with the latest state.

    Attributes:
        rows: those to write, with their operations.
        known: positions in the key index of the known keys.
        corrected: offsets of the stored rows that differ.
    """

    rows: pa.RecordBatch
    known: pa.Array
    corrected: pa.Array


@dataclass(frozen=True)
class SnapshotComparison:
    """Compares new rows with the latest state by their hashes.

    Attributes:
        schema: the schema of the slice.
        vocab: names of the system columns.
        names: event time and data columns.
        hashes: columns of hashes.
        compared: the hash that differs for a changed row.
        compares_time: a row with another event time is changed; a null event time is equal to any.
        fill: converts the event time, see :func:`event_time_filler`.
    """

    schema: pa.Schema
    vocab: DatasetVocabulary
    names: list[str]
    hashes: list[str]
    compared: str
    compares_time: bool
    fill: Callable[[pa.RecordBatch], pa.RecordBatch]

    @classmethod
    def of(cls, keyed: KeyedMerge, *, compares_time: bool) -> SnapshotComparison:
        """Return the comparison of a merge, where the event time is compared unless it is part of the key."""
        inputs = keyed.inputs
        event_time = inputs.vocab.event_time_column
        return cls(
            schema=inputs.schema,
            vocab=inputs.vocab,
            names=inputs.names,
            hashes=keyed.hashes.names,
            compared=COMPARED if keyed.hashes.compared is not None else VALUES,
            compares_time=compares_time and event_time not in keyed.keys,
            fill=event_time_filler(inputs, event_time),
        )

    def compare(self, batch: pa.RecordBatch, index: KeyIndex) -> ComparedRows:
        """Select the new and the changed rows of a batch.

        Raises:
            NullKey: the key of a row is null.
            BadData: a value does not fit the type of its column.
        """
        check_null_keys(batch)
        known = index.find(batch.column(KEY), batch.column(SECOND))
        known = known.filter(pc.greater_equal(known.column(OFFSET), 0)).combine_chunks()
        rows = array_of(known, "row")
        changed = pc.not_equal(batch.column(self.compared).take(rows), array_of(known, self.compared))
        if self.compares_time:
            times = times_as_numbers(batch.column(self.vocab.event_time_column)).take(rows)
            moved = pc.fill_null(pc.not_equal(times, array_of(known, TIME)), False)
            changed = pc.or_(changed, moved)
        changes = pc.scatter(changed, rows, max_index=batch.num_rows - 1)
        ops = pc.if_else(changes.is_null(), pa.scalar(Op.APPEND, _OP), pa.scalar(Op.CORRECT_TO, _OP))
        is_written = pc.fill_null(changes, True)
        return ComparedRows(
            rows=self.to_slice_types(batch.filter(is_written), ops.filter(is_written)),
            known=array_of(known, "place"),
            corrected=array_of(known, OFFSET).filter(changed),
        )

    def batch(self, columns: list[pa.Array], ops: pa.Array, hashes: list[pa.Array]) -> pa.RecordBatch:
        """Return rows in the schema of the slice, with operations and hashes."""
        fields = [self.schema.field(name).with_nullable(True) for name in self.names]
        fields.append(pa.field(self.vocab.operation_type_column, _OP))
        fields += [pa.field(name, pa.int64()) for name in self.hashes]
        return pa.RecordBatch.from_arrays([*columns, ops, *hashes], schema=pa.schema(fields))

    def to_slice_types(self, batch: pa.RecordBatch, ops: pa.Array) -> pa.RecordBatch:
        """Return new rows in the schema of the slice, with operations and hashes.

        Raises:
            BadData: a value does not fit the type of its column.
        """
        batch = self.fill(batch)
        try:
            columns = [cast_lossless(batch.column(name), self.schema.field(name), 0) for name in self.names]
        except BadData as error:
            error.where = None  # Its row number is that among the selected rows.
            raise
        return self.batch(columns, ops, [batch.column(name) for name in self.hashes])


def operations_of(op: Op, count: int) -> pa.Array:
    """Return a column with the same operation in all rows."""
    return pa.repeat(pa.scalar(op, _OP), count)
