"""Upsert stream strategy: rows that insert, update or retract the row of their primary key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from odf_engine.base.progress import count_of
from odf_engine.data.arrow_compute import pc
from odf_engine.data.changelog import Op
from odf_engine.ingest.merge.base import KeyedMerge, MergeInputs, key_columns
from odf_engine.ingest.merge.changelog_check import CODE, first_true
from odf_engine.ingest.merge.key_file import KEY, OFFSET, SECOND, KeySorter, array_of
from odf_engine.ingest.merge.key_index import KeyIndex
from odf_engine.ingest.merge.merge_changelog import (
    OP_TEXT,
    check_operation_order,
    operations_frame,
    reject_invalid_rows,
)
from odf_engine.ingest.merge.merge_plan import MergeRows, PreparedMerge
from odf_engine.ingest.merge.merge_snapshot import (
    SnapshotComparison,
    operations_of,
    sort_changes,
    stored_changes,
)
from odf_engine.metadata.model import UpsertStream
from odf_engine.spark.arrow_batches import arrow_batches

if TYPE_CHECKING:
    from odf_engine.spark import DataFrame


def merge_upsert(strategy: UpsertStream, inputs: MergeInputs) -> PreparedMerge:
    """Prepare the merge.

    The last row of each key in the input counts. A row without an operation, or with +A or +C, inserts or
    updates; -R retracts; -C is ignored, and the row after it has the new values.

    Raises:
        InvalidSchema: a key column is missing, or cannot be a key.
        InvalidQuery: the rows have operations, and their order is not deterministic.
    """
    check_operation_order(inputs)
    keyed = KeyedMerge(inputs, key_columns(strategy.primary_key, inputs), compared=None, live=True)
    return PreparedMerge(lambda plan: Upsert(keyed).rows(), keyed.remove_index)


class Upsert:
    """Writes the difference that the rows of an upsert stream make to the latest state.

    Args:
        keyed: the merge.
    """

    def __init__(self, keyed: KeyedMerge) -> None:
        self._keyed = keyed
        self._inputs = keyed.inputs
        self._comparison = SnapshotComparison.of(keyed, compares_time=True)
        self._path = keyed.inputs.scratch / "upserts.arrows"

    def rows(self) -> MergeRows:
        """Yield the rows to write in the order of key and operation; return their keys.

        Raises:
            BadData: a key is null, or an operation is invalid; the message shows the first rows.
        """
        is_last = self._spill()
        if is_last is None:
            return None
        keyed = self._keyed
        index, sorter = keyed.open_index(), keyed.key_sorter()
        changes = sort_changes(keyed, self._find_changes(is_last, index, sorter))
        return (yield from keyed.split_keys(changes, index, sorter))

    def _frame(self) -> DataFrame:
        """Return the new rows with their hashes, and with their operations if they have any."""
        if self._inputs.changelog is None:
            return self._keyed.frame(check_keys=False)
        return operations_frame(self._inputs, self._keyed.hashes)

    def _spill(self) -> pa.Array | None:
        """Write the rows to a file; return for each whether it is the last one of its key.

        The hashes of the keys are held in memory. Returns None if there are no rows.

        Raises:
            BadData: a row is invalid.
        """
        parts: list[pa.RecordBatch] = []
        faults: list[pa.Array] = []
        writer = None
        for batch in arrow_batches(self._frame(), self._inputs.reporter)[1]:
            writer = writer or pa.ipc.new_stream(str(self._path), batch.schema)
            writer.write_batch(batch)
            names = [KEY, SECOND, *([CODE] if CODE in batch.schema.names else [])]
            parts.append(batch.select(names))
            faults.append(_faults_of(batch))
        if writer is None:
            return None
        writer.close()
        rows = pa.Table.from_batches(parts).combine_chunks()
        parts.clear()
        # A stable sort: the rows of a key keep their order.
        order = pc.sort_indices(rows, sort_keys=[(KEY, "ascending"), (SECOND, "ascending")])
        keys, seconds = (array_of(rows, name).take(order) for name in (KEY, SECOND))
        repeated = pc.and_(pc.equal(keys[:-1], keys[1:]), pc.equal(seconds[:-1], seconds[1:]))
        is_last = pa.concat_arrays([pc.invert(pc.fill_null(repeated, False)), pa.array([True])])
        is_last = pc.scatter(is_last, order.cast(pa.int64()), max_index=len(order) - 1)
        invalid = pa.concat_arrays(faults)
        if CODE in rows.column_names:
            starts = pc.fill_null(_is_op(array_of(rows, CODE), Op.CORRECT_FROM), False)
            unpaired = pc.if_else(pc.and_(starts, is_last), 6, 0).cast(invalid.type)
            invalid = pc.if_else(pc.greater(invalid, 0), invalid, unpaired)
        reject_invalid_rows(self._batches(), invalid, self._inputs)
        if superseded := len(is_last) - pc.sum(is_last).as_py():
            self._inputs.reporter.log(
                f"{count_of(superseded, 'row')} superseded by later rows of the same key"
            )
        return is_last

    def _batches(self) -> Iterator[pa.RecordBatch]:
        """Read the file of :meth:`_spill`."""
        with pa.OSFile(str(self._path)) as file, pa.ipc.open_stream(file) as stream:
            yield from stream

    def _find_changes(
        self, is_last: pa.Array, index: KeyIndex, sorter: KeySorter
    ) -> Iterator[pa.RecordBatch]:
        """Yield new and changed rows, then the stored rows that are corrected or retracted.

        The keys of retracted rows are added to the sorter.
        """
        offsets: list[pa.Array] = []
        ops: list[pa.Array] = []
        at = unknown = 0
        for batch in self._batches():
            self._inputs.reporter.raise_if_cancelled()
            rows = batch.filter(is_last[at : at + batch.num_rows])
            at += batch.num_rows
            if CODE in rows.schema.names:
                retracts = pc.fill_null(_is_op(rows.column(CODE), Op.RETRACT), False)
                retracted = self._retract(rows.filter(retracts), index, sorter)
                offsets.append(retracted)
                ops.append(operations_of(Op.RETRACT, len(retracted)))
                unknown += pc.sum(retracts, min_count=0).as_py() - len(retracted)
                rows = rows.filter(pc.invert(retracts))
            compared = self._comparison.compare(rows, index)
            offsets.append(compared.corrected)
            ops.append(operations_of(Op.CORRECT_FROM, len(compared.corrected)))
            if compared.rows.num_rows:
                yield compared.rows
        if unknown:
            self._inputs.reporter.log(f"{count_of(unknown, 'retraction')} of unknown keys ignored")
        yield from stored_changes(
            self._inputs, self._comparison, pa.concat_arrays(offsets), pa.concat_arrays(ops)
        )

    def _retract(self, rows: pa.RecordBatch, index: KeyIndex, sorter: KeySorter) -> pa.Array:
        """Return the offsets of the live rows with these keys, and add the keys to the sorter."""
        known = index.find(rows.column(KEY), rows.column(SECOND))
        known = known.filter(pc.greater_equal(known.column(OFFSET), 0))
        places, offsets = array_of(known, "row"), array_of(known, OFFSET)
        keys, seconds = (rows.column(name).take(places) for name in (KEY, SECOND))
        self._keyed.add_retracted(sorter, keys, seconds, offsets)
        return offsets


def _is_op(codes: pa.Array, op: Op) -> pa.Array:
    return pc.equal(codes, pa.scalar(op, codes.type))


def _faults_of(batch: pa.RecordBatch) -> pa.Array:
    """Return for each row its key in ``FAULTS``, or 0. A row without an operation is an upsert."""
    cases = {2: batch.column(KEY).is_null()}
    if CODE in batch.schema.names:
        cases = {1: pc.and_(batch.column(CODE).is_null(), batch.column(OP_TEXT).is_valid()), **cases}
    return first_true(cases)
