"""Rows with operations: checks, order, and the changelog stream strategy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from odf_engine.base.progress import count_of
from odf_engine.data.arrow_compute import pc, python_rows
from odf_engine.data.changelog import Op
from odf_engine.errors import BadData, InvalidQuery, InvalidSchema
from odf_engine.ingest.merge.base import (
    EXAMPLES,
    KeyedMerge,
    MergeInputs,
    default_event_time,
    event_time_filler,
    key_columns,
    normalized_rows_sql,
    times_as_numbers,
    uuid_texts,
)
from odf_engine.ingest.merge.changelog_check import (
    CODE,
    FAULTS,
    LIVE,
    RETRACTING,
    ROW_POSITION,
    check_keyed_rows,
    check_unkeyed_rows,
)
from odf_engine.ingest.merge.key_file import KEY, OFFSET, SECOND, TIME, VALUES, array_of
from odf_engine.ingest.merge.key_index import RowHasher
from odf_engine.ingest.merge.merge_ledger import keyed_ledger
from odf_engine.ingest.merge.merge_plan import MergeRows, PreparedMerge
from odf_engine.ingest.merge.merge_snapshot import keyed_snapshot
from odf_engine.ingest.read.text_file import shorten
from odf_engine.metadata.model import Append, ChangelogStream, Ledger, Snapshot
from odf_engine.spark import sql_types
from odf_engine.spark.arrow_batches import arrow_batches
from odf_engine.spark.row_order import SortOrder, external_sort

if TYPE_CHECKING:
    from odf_engine.spark import DataFrame


OP_TEXT: Final = "odf_op_text"
"""Column with the operation as the source has it."""


def merge_changelog(
    strategy: Append | Ledger | Snapshot | ChangelogStream, inputs: MergeInputs
) -> PreparedMerge:
    """Prepare the merge of rows with a column of operations.

    A changelog stream is written in the order of the key. The changes of a key keep their order. For other
    strategies, all rows keep their order.

    Raises:
        InvalidSchema: a key column is missing, or cannot be a key; or a changelog stream has no operations.
        InvalidQuery: the order of the rows is not deterministic.
    """
    check_operation_order(inputs)
    match strategy:
        case Append():
            return PreparedMerge(lambda plan: UnkeyedChangelog(inputs).rows())
        case Ledger():
            keyed = keyed_ledger(strategy, inputs)
        case Snapshot():
            keyed = keyed_snapshot(strategy, inputs)
        case ChangelogStream():
            keyed = _keyed_stream(strategy, inputs)
    by_key = isinstance(strategy, ChangelogStream)
    return PreparedMerge(lambda plan: KeyedChangelog(keyed, by_key=by_key).rows(), keyed.remove_index)


def _keyed_stream(strategy: ChangelogStream, inputs: MergeInputs) -> KeyedMerge:
    op = inputs.vocab.operation_type_column
    if inputs.changelog is None:
        raise InvalidSchema(
            f"a ChangelogStream requires the column '{op}' with the operation of each row",
            where="merge",
            hint=f"add {op} STRING to read.schema, or use UpsertStream for rows without operations",
        )
    return KeyedMerge(inputs, key_columns(strategy.primary_key, inputs), compared=None, live=True)


def check_operation_order(inputs: MergeInputs) -> None:
    """Check that rows with operations have a defined order.

    Raises:
        InvalidQuery: they have none.
    """
    if inputs.unordered and inputs.changelog is not None:
        raise InvalidQuery(
            "the preprocess query joins or groups rows, so the order of the operations"
            f" ('{inputs.changelog}') is undefined",
            hint="remove the operation column from the query, or use row-by-row expressions only",
        )


def operations_frame(inputs: MergeInputs, hashes: RowHasher) -> DataFrame:
    """Return the new rows with their hashes, their operations in ``CODE``, and the text of these."""
    names = sql_types.columns(inputs.names)
    text = f"nullif(trim(CAST({OP_TEXT} AS STRING)), '')"
    cases = " ".join(f"WHEN upper({text}) IN ('{op.code}', '{op:d}') THEN {op:d}" for op in Op)
    query = f"SELECT {names}, CAST(CASE {cases} END AS INT) AS {CODE}, {text} AS {OP_TEXT}"
    assert inputs.changelog is not None
    new = normalized_rows_sql(inputs, {OP_TEXT: sql_types.column(inputs.changelog)})
    return inputs.select({"n": new}, f"{query}, {hashes.hash_new_rows()} FROM n")


def reject_invalid_rows(batches: Iterator[pa.RecordBatch], faults: pa.Array, inputs: MergeInputs) -> None:
    """Raise an error that shows the first invalid rows.

    Args:
        batches: all new rows, with the text of their operations if they have any.
        faults: for each row its key in ``FAULTS``, or 0.
        inputs: the inputs of the merge.

    Raises:
        BadData: a row is invalid.
    """
    invalid = pc.indices_nonzero(pc.greater(faults, 0))
    if not len(invalid):
        return
    first = invalid[:EXAMPLES].to_pylist()
    texts: list[str] = []
    at = 0
    for batch in batches:
        for place in first:
            if at <= place < at + batch.num_rows:
                (row,) = python_rows(batch.slice(place - at, 1))
                op = row.get(OP_TEXT)
                problem = FAULTS[faults[place].as_py()].format(op=_quoted(op), column=inputs.changelog)
                shown = shorten(", ".join(f"{name}={row[name]}" for name in inputs.names))
                shown = f"{op or '?'}: {shown}" if OP_TEXT in row else shown
                texts.append(f"row {place + 1} ({shown}): {problem}")
        at += batch.num_rows
    raise BadData(
        f"{count_of(len(invalid), 'invalid row')}: {' | '.join(texts)}",
        hint="nothing was committed; use `odf tail` to show the existing rows",
    )


class Changelog(ABC):
    """Validates and writes rows with operations, in the order of the source.

    Args:
        inputs: the inputs of the merge.
        hashes: identify a row by its key, or by its values.
    """

    def __init__(self, inputs: MergeInputs, hashes: RowHasher) -> None:
        self._inputs = inputs
        self._hashes = hashes
        self._path = inputs.scratch / "changelog.arrows"
        self._event_time = inputs.vocab.event_time_column

    @abstractmethod
    def _join_live_rows(self, rows: pa.Table) -> pa.Table:
        """Return new rows with the columns of live rows that :meth:`_check` needs."""

    @abstractmethod
    def _check(self, rows: pa.Table) -> tuple[pa.Array, pa.Array]:
        """Return for each row its key in ``FAULTS``, or 0, and the event time of the row it retracts."""

    @abstractmethod
    def _drop_hashes(self, batches: Iterator[pa.RecordBatch]) -> MergeRows:
        """Yield the rows without their hashes; return their keys."""

    def rows(self) -> MergeRows:
        """Yield the rows to write; return their keys.

        Raises:
            BadData: operations contradict each other or the dataset; the message shows the first rows.
        """
        rows = self._spill()
        if rows is None:
            return None
        faults, times = self._check(rows)
        reject_invalid_rows(self._batches(), faults, self._inputs)
        return (yield from self._drop_hashes(self._complete(times)))

    def _spill(self) -> pa.Table | None:
        """Write the rows to a file; return their hashes and operations, joined with the live rows."""
        parts: list[pa.Table] = []
        writer = None
        for batch in arrow_batches(self._frame(), self._inputs.reporter)[1]:
            writer = writer or pa.ipc.new_stream(str(self._path), batch.schema)
            writer.write_batch(batch)
            columns = {name: batch.column(name) for name in [CODE, *self._hashes.names]}
            columns[TIME] = times_as_numbers(batch.column(self._event_time))
            parts.append(self._join_live_rows(pa.table(columns)))
        if writer is None:
            return None
        writer.close()
        rows = pa.concat_tables(parts).combine_chunks()
        position = pc.cumulative_sum(pa.repeat(pa.scalar(1, pa.int64()), rows.num_rows))
        return rows.append_column(ROW_POSITION, position)

    def _frame(self) -> DataFrame:
        """Return the new rows with their operations and hashes."""
        return operations_frame(self._inputs, self._hashes)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        """Read the file of :meth:`_spill`."""
        with pa.OSFile(str(self._path)) as file, pa.ipc.open_stream(file) as stream:
            yield from stream

    def _complete(self, times: pa.Array) -> Iterator[pa.RecordBatch]:
        """Read the rows from the file. A retraction without event time gets the retracted row's."""
        inputs = self._inputs
        fill = event_time_filler(inputs, self._event_time)
        kind = inputs.schema.field(self._event_time).type
        at = 0
        for batch in self._batches():
            place = batch.schema.get_field_index(self._event_time)
            filled = fill(batch).column(place)
            retracted = _as_time(times[at : at + batch.num_rows], kind)
            inherits = pc.and_(pc.is_in(batch.column(CODE), RETRACTING), batch.column(place).is_null())
            batch = batch.set_column(place, self._event_time, pc.if_else(inherits, retracted, filled))
            at += batch.num_rows
            names = [
                inputs.vocab.operation_type_column if name == CODE else name for name in batch.schema.names
            ]
            yield batch.rename_columns(names).drop_columns([OP_TEXT])


class KeyedChangelog(Changelog):
    """Rows with a primary key.

    Args:
        keyed: the merge.
        by_key: write the rows in the order of the key. The two rows of a correction may then have changes of
            other keys between them.
    """

    def __init__(self, keyed: KeyedMerge, *, by_key: bool = False) -> None:
        super().__init__(keyed.inputs, keyed.hashes)
        self._by_key = by_key
        self._keyed = keyed
        self._index = keyed.open_index()

    def _join_live_rows(self, rows: pa.Table) -> pa.Table:
        keys, seconds = (pc.fill_null(array_of(rows, name), 0) for name in (KEY, SECOND))
        known = self._index.find(keys, seconds)
        known = known.filter(pc.greater_equal(known.column(OFFSET), 0))
        at = array_of(known, "row")
        for name in (VALUES, TIME):
            live = pc.scatter(array_of(known, name), at, max_index=rows.num_rows - 1)
            rows = rows.append_column(f"{LIVE}{name}", live)
        return rows

    def _check(self, rows: pa.Table) -> tuple[pa.Array, pa.Array]:
        return check_keyed_rows(rows, _default_time(self._inputs), by_key=self._by_key)

    def _drop_hashes(self, batches: Iterator[pa.RecordBatch]) -> MergeRows:
        keyed = self._keyed
        if self._by_key:  # The sort is stable.
            batches = external_sort(
                batches, SortOrder(tuple(keyed.keys)), self._inputs.scratch / "changes.arrow"
            )
        return keyed.split_keys(batches, self._index, keyed.key_sorter(unique=False), retracted=True)


class UnkeyedChangelog(Changelog):
    """Rows without a primary key. A retracted row is found by its values."""

    def __init__(self, inputs: MergeInputs) -> None:
        names = tuple(name for name in inputs.names if name != inputs.vocab.event_time_column)
        super().__init__(inputs, RowHasher(inputs.schema, names, (), None, uuid_texts(inputs), nullable=True))

    def _join_live_rows(self, rows: pa.Table) -> pa.Table:
        return rows

    def _check(self, rows: pa.Table) -> tuple[pa.Array, pa.Array]:
        retractions = rows.filter(pc.is_in(rows.column(CODE), RETRACTING)).select([KEY, SECOND])
        return check_unkeyed_rows(rows, self._history(retractions), _default_time(self._inputs).as_py())

    def _history(self, retractions: pa.Table) -> list[dict[str, int]]:
        """Return the stored rows with the values of a retraction, by offset.

        Args:
            retractions: the two hashes of each.
        """
        inputs, slices = self._inputs, self._inputs.dataset.slices()
        if not slices or not retractions.num_rows:
            return []
        path = inputs.scratch / "retractions.parquet"
        pq.write_table(retractions, path)
        vocab = inputs.vocab
        columns = self._hashes.hash_slice_rows(
            vocab.offset_column, vocab.operation_type_column, vocab.event_time_column
        )
        frames = {
            "odf_history": inputs.history(slices),
            "odf_retractions": inputs.read(path, retractions.schema),
        }
        rows = inputs.rows(
            {"h": f"SELECT {columns} FROM odf_history"},
            f"SELECT /*+ BROADCAST(r) */ h.* FROM h LEFT SEMI JOIN odf_retractions r "
            f"ON {sql_types.equal_not_null((KEY, SECOND), 'h', 'r')}",
            frames,
        )
        return sorted(rows, key=lambda row: max(row[OFFSET], ~row[OFFSET]))

    def _drop_hashes(self, batches: Iterator[pa.RecordBatch]) -> MergeRows:
        for batch in batches:
            yield batch.drop_columns(self._hashes.names)
        return None


def _default_time(inputs: MergeInputs) -> pa.Scalar:
    """Return the event time of rows that have none, as a 64-bit integer."""
    return times_as_numbers(pa.repeat(default_event_time(inputs), 1))[0]


def _quoted(text: str | None) -> str:
    return "NULL" if text is None else f"'{text}'"


def _as_time(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return event times; the inverse of :func:`times_as_numbers`."""
    if pa.types.is_date(kind):
        return values.cast(pa.int32()).cast(pa.date32()).cast(kind)
    return values.cast(pa.timestamp("ms", "UTC")).cast(kind)
