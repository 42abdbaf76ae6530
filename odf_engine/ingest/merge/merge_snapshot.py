"""Snapshot strategy: the difference to the current state, by primary key."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from odf_engine.data.arrow_compute import pc
from odf_engine.data.changelog import Op
from odf_engine.data.schema_enforcement import cast_lossless, match_columns
from odf_engine.errors import BadData, InvalidSchema
from odf_engine.ingest.merge.base import (
    POSITION,
    KeyedMerge,
    MergeAttempt,
    MergeInputs,
    PreparedMerge,
    check_null_keys,
    event_time_filler,
    key_columns,
    recheck_keys,
    stored_rows_at,
    times_as_numbers,
)
from odf_engine.ingest.merge.key_file import COMPARED, KEY, OFFSET, SECOND, TIME, VALUES, KeySorter, array_of
from odf_engine.ingest.merge.key_index import KeyIndex
from odf_engine.metadata.model import Snapshot
from odf_engine.spark import sql_types
from odf_engine.spark.row_order import SortOrder, Step, external_sort, map_batches, sorted_batches

if TYPE_CHECKING:
    from odf_engine.spark import DataFrame

_CHANGES: Final = "odf_changes"
_OP: Final = pa.int32()


def keyed_snapshot(strategy: Snapshot, inputs: MergeInputs) -> KeyedMerge:
    """The rows by the strategy's key."""
    keys = key_columns(strategy.primary_key, inputs)
    compared = [name for name in _compared(strategy, keys, inputs) if name != inputs.vocab.event_time_column]
    return KeyedMerge(
        inputs, keys, compared=compared if strategy.compare_columns is not None else None, live=True
    )


def merge_snapshot(strategy: Snapshot, inputs: MergeInputs) -> PreparedMerge:
    """Prepares the merge; rows of one key that differ become a correction, its two rows together."""
    keyed = keyed_snapshot(strategy, inputs)
    event_time = inputs.vocab.event_time_column
    by_time = event_time in _compared(strategy, keyed.keys, inputs) and event_time not in keyed.keys
    return PreparedMerge(
        lambda how: _Run(keyed, how, by_time).rows(),
        inputs.reporter,
        keep=keyed.commit_keys,
        forget=keyed.forget,
    )


def _compared(strategy: Snapshot, keys: list[str], inputs: MergeInputs) -> list[str]:
    """The columns whose change makes a row another one."""
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
                f"the column '{name}' to compare is not there",
                where="merge.compareColumns",
                hint=f"the columns are {', '.join(inputs.names)}",
            )
        names.append(inputs.names[place])
    return names


class _Run:
    """One attempt; ``by_time``: another event time makes a row another one."""

    def __init__(self, keyed: KeyedMerge, how: MergeAttempt, by_time: bool) -> None:
        self._keyed = keyed
        self._inputs = keyed.inputs
        self._how = how
        self._by_time = by_time
        self._op = self._inputs.vocab.operation_type_column
        self._event_time = self._inputs.vocab.event_time_column
        self._fill = event_time_filler(self._inputs, self._event_time)
        self._values = COMPARED if keyed.hashes.compared is not None else VALUES

    def rows(self) -> Iterator[pa.RecordBatch]:
        """The rows to write, in order, with their operations."""
        keyed, inputs = self._keyed, self._inputs
        index, spool = keyed.open(), keyed.spool()
        if not index.rows:
            order = SortOrder(tuple(keyed.keys), extra=(POSITION,) if self._how.check else (), passes=True)
            rows = sorted_batches(self._first, order, inputs.reporter, sort=self._how.sort)
        else:
            order = SortOrder((*keyed.keys, self._op))
            path = inputs.scratch / "changes.parquet"
            rows = external_sort(self._changes(index, spool), order, path, self._sorted, inputs.reporter)
        yield from keyed.written(rows, spool)

    def _first(self, sort: bool) -> tuple[DataFrame, Step]:
        """All rows of the first snapshot."""

        def step(batch: pa.RecordBatch) -> pa.RecordBatch:
            check_null_keys(batch)
            return self._fill(batch)

        return self._keyed.frame(self._how, sql_types.columns(self._keyed.keys) if sort else None), step

    def _sorted(self, schema: pa.Schema) -> DataFrame:
        changes = self._inputs.read([self._inputs.scratch / "changes.parquet"], schema)
        order = sql_types.columns([*self._keyed.keys, self._op])
        return self._inputs.select({}, f"SELECT * FROM {_CHANGES} ORDER BY {order}", {_CHANGES: changes})

    def _changes(self, index: KeyIndex, spool: KeySorter) -> Iterator[pa.RecordBatch]:
        """The rows to write as they are found: first the new ones, then those that they replace."""
        seen: list[pa.Array] = []
        replaced: list[pa.Array] = []

        def step(batch: pa.RecordBatch) -> pa.RecordBatch:
            return self._compare(batch, index, seen, replaced)

        with closing(map_batches(self._keyed.frame(self._how), step, self._inputs.reporter)) as batches:
            for batch in batches:
                if batch.num_rows:
                    yield batch
        offsets, ops = list(replaced), [_ops(Op.CORRECT_FROM, len(part)) for part in replaced]
        with recheck_keys():
            for gone in index.live_keys_except(seen):
                zeros = [_zeros(gone.num_rows)] * (len(self._keyed.hashes.columns) - 3)
                place = gone.column(OFFSET)
                spool.add([gone.column(KEY), gone.column(SECOND), pc.bit_wise_not(place), *zeros])
                offsets.append(place)
                ops.append(_ops(Op.RETRACT, gone.num_rows))
        if offsets:
            yield from self._old(pa.concat_arrays(offsets), pa.concat_arrays(ops))

    def _compare(
        self, batch: pa.RecordBatch, index: KeyIndex, seen: list[pa.Array], replaced: list[pa.Array]
    ) -> pa.RecordBatch:
        """The rows that are new or other than before; adds where the old ones are."""
        check_null_keys(batch)
        known = index.find(batch.column(KEY), batch.column(SECOND))
        known = known.filter(pc.greater_equal(known.column(OFFSET), 0)).combine_chunks()
        rows = array_of(known, "row")
        changed = pc.not_equal(batch.column(self._values).take(rows), array_of(known, self._values))
        if self._by_time:
            # A source that gives no event time says nothing about a change of it.
            times = times_as_numbers(batch.column(self._event_time)).take(rows)
            moved = pc.fill_null(pc.not_equal(times, array_of(known, TIME)), False)
            changed = pc.or_(changed, moved)
        seen.append(array_of(known, "place"))
        replaced.append(array_of(known, OFFSET).filter(changed))
        changes = pc.scatter(changed, rows, max_index=batch.num_rows - 1)
        ops = pc.if_else(changes.is_null(), pa.scalar(Op.APPEND, _OP), pa.scalar(Op.CORRECT_TO, _OP))
        stays = pc.fill_null(changes, True)
        return self._fitted(batch.filter(stays), ops.filter(stays))

    def _fitted(self, batch: pa.RecordBatch, ops: pa.Array) -> pa.RecordBatch:
        """Rows in the types of the slice, with their operations."""
        batch = self._fill(batch)
        try:
            columns = [
                cast_lossless(batch.column(name), self._inputs.schema.field(name), 0)
                for name in self._inputs.names
            ]
        except BadData as error:
            error.where = None  # its row is one of those that are left
            raise
        hashes = [batch.column(name) for name in self._keyed.hashes.names]
        return self._batch(columns, ops, hashes)

    def _old(self, offsets: pa.Array, ops: pa.Array) -> Iterator[pa.RecordBatch]:
        """Rows that the dataset has, with operations that take them back."""
        order = pc.sort_indices(offsets)
        offsets, ops = offsets.take(order), ops.take(order)
        at = 0
        for batch in stored_rows_at(self._inputs, offsets):
            zeros = [_zeros(batch.num_rows)] * len(self._keyed.hashes.names)
            yield self._batch(batch.columns, ops[at : at + batch.num_rows], zeros)
            at += batch.num_rows

    def _batch(self, columns: list[pa.Array], ops: pa.Array, hashes: list[pa.Array]) -> pa.RecordBatch:
        fields = [self._inputs.schema.field(name).with_nullable(True) for name in self._inputs.names]
        fields.append(pa.field(self._op, _OP))
        fields += [pa.field(name, pa.int64()) for name in self._keyed.hashes.names]
        return pa.RecordBatch.from_arrays([*columns, ops, *hashes], schema=pa.schema(fields))


def _ops(op: Op, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(op, _OP), count)


def _zeros(count: int) -> pa.Array:
    return pa.repeat(pa.scalar(0, pa.int64()), count)
