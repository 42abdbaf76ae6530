"""Selection of the merge strategy; the append strategy, and pushed changelogs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from odf_engine.data.arrow_compute import pc
from odf_engine.data.changelog import Op
from odf_engine.data.parquet_reader import UNREADABLE, open_parquet, read_bounded, read_parquet_schema
from odf_engine.data.schema_enforcement import match_columns
from odf_engine.errors import BadData, InvalidQuery, InvalidSchema, Unsupported
from odf_engine.ingest.merge.base import (
    EXAMPLES,
    NEW,
    POSITION,
    KeyedMerge,
    MergeInputs,
    default_event_time,
    event_time_filler,
    normalized_rows_sql,
    sort_time_sql,
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
from odf_engine.ingest.merge.merge_ledger import keyed_ledger, merge_ledger
from odf_engine.ingest.merge.merge_plan import MergePlan, MergeRows, PreparedMerge
from odf_engine.ingest.merge.merge_snapshot import keyed_snapshot, merge_snapshot
from odf_engine.ingest.read.error_location import shorten
from odf_engine.metadata.model import Append, Ledger, MergeStrategy, Snapshot, kind_of
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.progress import Reporter, count_of
from odf_engine.spark import sql_types
from odf_engine.spark.arrow_batches import arrow_batches
from odf_engine.spark.row_order import FrameFactory, SortOrder, Step, sort_by_all_columns, sorted_batches

if TYPE_CHECKING:
    from odf_engine.spark import DataFrame


_MAX_COMPARED: Final = 1_000_000
"""Number of rows up to which an append is compared with earlier rows."""
_OP_TEXT: Final = "odf_op_text"
"""Column with the operation as the source has it."""


def merge_changelog(strategy: Append | Ledger | Snapshot, inputs: MergeInputs) -> PreparedMerge:
    """Prepare the merge of rows with a column of operations.

    Raises:
        InvalidSchema: a key column is missing, or cannot be a key.
        InvalidQuery: the order of the rows is not deterministic.
    """
    if inputs.unordered:
        raise InvalidQuery(
            "the preprocess query joins or groups rows, so the order of the operations"
            f" ('{inputs.changelog}') is undefined",
            hint="remove the operation column from the query, or use row-by-row expressions only",
        )
    if isinstance(strategy, Append):
        return PreparedMerge(lambda plan: UnkeyedChangelog(inputs).rows())
    by_ledger = isinstance(strategy, Ledger)
    keyed = keyed_ledger(strategy, inputs) if by_ledger else keyed_snapshot(strategy, inputs)
    return PreparedMerge(
        lambda plan: KeyedChangelog(keyed).rows(),
        keyed.remove_index,
    )


class Changelog(ABC):
    """Validates and writes rows with operations, in the order of the source.

    Args:
        inputs: of the merge.
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
        invalid = pc.indices_nonzero(pc.greater(faults, 0))
        if len(invalid):
            self._reject(invalid, faults)
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
        names = sql_types.columns(self._inputs.names)
        text = f"CAST({_OP_TEXT} AS STRING)"
        cases = " ".join(f"WHEN upper(trim({text})) IN ('{op.code}', '{op:d}') THEN {op:d}" for op in Op)
        query = f"SELECT {names}, CAST(CASE {cases} END AS INT) AS {CODE}, {text} AS {_OP_TEXT}"
        assert self._inputs.changelog is not None
        new = normalized_rows_sql(self._inputs, {_OP_TEXT: sql_types.column(self._inputs.changelog)})
        return self._inputs.select({"n": new}, f"{query}, {self._hashes.hash_new_rows()} FROM n")

    def _batches(self) -> Iterator[pa.RecordBatch]:
        """Read the file of :meth:`_spill`."""
        with pa.OSFile(str(self._path)) as file, pa.ipc.open_stream(file) as stream:
            yield from stream

    def _complete(self, times: pa.Array) -> Iterator[pa.RecordBatch]:
        """Read the rows from the file. A retraction without event time gets that of the retracted row."""
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
            yield batch.rename_columns(names).drop_columns([_OP_TEXT])

    def _reject(self, invalid: pa.Array, faults: pa.Array) -> None:
        """Raise a BadData that shows the first invalid rows."""
        first = invalid[:EXAMPLES].to_pylist()
        texts: list[str] = []
        at = 0
        for batch in self._batches():
            for place in first:
                if at <= place < at + batch.num_rows:
                    row = batch.slice(place - at, 1).to_pylist()[0]
                    problem = FAULTS[faults[place].as_py()].format(op=_quoted(row[_OP_TEXT]))
                    values = ", ".join(f"{name}={row[name]}" for name in self._inputs.names)
                    texts.append(f"row {place + 1} ({row[_OP_TEXT] or '?'}: {shorten(values)}): {problem}")
            at += batch.num_rows
        count = count_of(len(invalid), "invalid row")
        raise BadData(
            f"{count}: {' | '.join(texts)}",
            hint="nothing was committed; use `odf tail` to show the existing rows",
        )


class KeyedChangelog(Changelog):
    """Rows with a primary key."""

    def __init__(self, keyed: KeyedMerge) -> None:
        super().__init__(keyed.inputs, keyed.hashes)
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
        return check_keyed_rows(rows, _default_time(self._inputs))

    def _drop_hashes(self, batches: Iterator[pa.RecordBatch]) -> MergeRows:
        keyed = self._keyed
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


def merge(strategy: MergeStrategy, inputs: MergeInputs) -> PreparedMerge:
    """Prepare the merge: choose by the strategy, and by whether the new rows have operations.

    Nothing runs yet. See :func:`run_merge` for the plans of its attempts.

    Raises:
        InvalidSchema: a key column is missing, or cannot be a key.
        InvalidQuery: the rows have operations, and their order is not deterministic.
        Unsupported: the strategy is one of a newer specification.
    """
    if inputs.changelog is not None and isinstance(strategy, Append | Ledger | Snapshot):
        return merge_changelog(strategy, inputs)
    if isinstance(strategy, Append):
        return merge_append(inputs)
    if isinstance(strategy, Ledger):
        if inputs.unordered:
            inputs = replace(inputs, new=_in_total_order(inputs, _event_time_in(inputs)))
        return merge_ledger(strategy, inputs)
    if isinstance(strategy, Snapshot):
        return merge_snapshot(strategy, inputs)
    raise Unsupported(
        f"unknown merge strategy: {kind_of(strategy)}",  # type: ignore[arg-type]
        hint="use Append, Ledger or Snapshot",
    )


def merge_append(inputs: MergeInputs) -> PreparedMerge:
    """Prepare the append strategy: all rows, in the order of event time."""
    name = _event_time_in(inputs)
    start, order = (_start_unordered if inputs.unordered else _start_ordered)(inputs, name)

    def rows(plan: MergePlan) -> MergeRows:
        yield from sorted_batches(start, order, inputs.reporter, sort=plan.sort)
        return None

    return PreparedMerge(rows)


def repeats_stored_rows(
    new: Path,
    stored: Sequence[Path],
    system: Collection[str],
    event_time: tuple[str, Timestamp],
    reporter: Reporter,
) -> bool:
    """Return whether the rows of a new slice occur in stored ones.

    The first rows of the slice are compared with the newest stored rows. For most slices one column is read,
    because the first row is new.

    Args:
        new: the slice, which has rows.
        stored: the stored slices, newest first.
        system: names of columns that differ in each slice.
        event_time: name of the event time column, and its value in rows without one, which is not compared.
        reporter: its cancellation ends the comparison.
    """
    try:
        names = [name for name in read_parquet_schema(new).names if name not in system]
        first = next(read_bounded(new, names, stop=1)).to_pylist()[0]
        time, default = event_time
        if isinstance(first.get(time), datetime) and Timestamp.from_datetime(first[time]).ms == default.ms:
            names.remove(time)
        compared: list[Path] = []
        rows = _count_rows(new)
        for path in stored:
            rows += _count_rows(path)
            if rows > _MAX_COMPARED or not set(names) <= set(read_parquet_schema(path).names):
                break
            compared.append(path)
        if not any(_has_row(path, {name: first[name] for name in names}, reporter) for path in compared):
            return False
        missing = set(_row_hashes(new, names, reporter))
        for path in compared:
            missing.difference_update(_row_hashes(path, names, reporter))
            if not missing:
                return True
    except (OSError, InvalidSchema, *UNREADABLE):
        pass  # A stored slice is damaged, which is an error of verification, not of this pull.
    return False


def _count_rows(path: Path) -> int:
    with open_parquet(path) as file:
        return file.metadata.num_rows


def _has_row(path: Path, row: Mapping[str, object], reporter: Reporter) -> bool:
    """Return whether a slice has a row, without a comparison of nested values."""
    found: pa.ChunkedArray | None = None
    for name, value in row.items():
        reporter.raise_if_cancelled()
        values = pa.chunked_array([batch.column(0) for batch in read_bounded(path, [name])])
        if pa.types.is_nested(values.type):
            continue
        same = values.is_null() if value is None else pc.equal(values, pa.scalar(value, values.type))
        found = same if found is None else pc.and_(found, same)
        if not pc.any(found).as_py():
            return False
    return found is not None


def _row_hashes(path: Path, names: list[str], reporter: Reporter) -> Iterator[int]:
    for batch in read_bounded(path, names):
        reporter.raise_if_cancelled()
        columns = [
            map(repr, column.to_pylist()) if pa.types.is_nested(column.type) else column.to_pylist()
            for column in batch.columns
        ]
        yield from map(hash, zip(*columns, strict=True))


def _start_ordered(inputs: MergeInputs, name: str | None) -> tuple[FrameFactory, SortOrder]:
    """Return rows that keep the order of the source where their event times are equal.

    There is no further query around the rows, which makes a small pull twice as fast.
    """
    fill = event_time_filler(inputs, name)

    def start(sort: bool) -> tuple[DataFrame, Step]:
        if not sort or name is None:
            return inputs.new, fill
        placed = f"SELECT *, monotonically_increasing_id() AS {POSITION} FROM {NEW}"
        columns, order = sql_types.columns(inputs.new.columns), f"{sort_time_sql(inputs, name)}, {POSITION}"
        query = f"SELECT {columns} FROM placed ORDER BY {order}"
        return inputs.select({"placed": placed}, query), fill

    return start, SortOrder(() if name is None else (name,), passes=True)


def _start_unordered(inputs: MergeInputs, name: str | None) -> tuple[FrameFactory, SortOrder]:
    """Return rows that are sorted by event time and then by all other columns.

    Rows that fit in memory are sorted by Arrow, since Spark takes several times as long. Arrow does not
    compare nested values.
    """
    kinds = {field.name: field.dataType.typeName() for field in inputs.new.schema}
    is_flat = not {"array", "struct"} & set(kinds.values())
    keys = [column for column, kind in kinds.items() if kind != "void"] if is_flat else []
    by_spark, fill = _in_total_order(inputs, name), event_time_filler(inputs, name)

    def start(sort: bool) -> tuple[DataFrame, Step]:
        return by_spark if sort or not keys else inputs.new, fill

    return start, SortOrder(tuple(sorted(keys, key=lambda column: column != name)))


def _in_total_order(inputs: MergeInputs, name: str | None) -> DataFrame:
    """Return the new rows sorted by event time and then by all other columns."""
    return sort_by_all_columns(inputs.new, *([] if name is None else [sort_time_sql(inputs, name)]))


def _event_time_in(inputs: MergeInputs) -> str | None:
    """Return the name of the event time column in the new rows; None if they have none."""
    (place,) = match_columns(inputs.new.columns, [inputs.vocab.event_time_column])
    if place is None or inputs.new.schema[place].dataType.typeName() == "void":
        return None
    return inputs.new.columns[place]
