"""Chooses the merge strategy; append, and pushed changelogs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from odf_engine.data.arrow_compute import pc
from odf_engine.data.changelog import Op
from odf_engine.data.schema_enforcement import match_columns
from odf_engine.errors import BadData, InvalidQuery, Unsupported
from odf_engine.ingest.merge.base import (
    EXAMPLES,
    NEW,
    POSITION,
    KeyedMerge,
    MergeInputs,
    PreparedMerge,
    default_event_time,
    event_time_filler,
    normalized_rows_sql,
    sort_time_sql,
    times_as_numbers,
    uuid_texts,
)
from odf_engine.ingest.merge.key_file import KEY, OFFSET, SECOND, TIME, VALUES, array_of
from odf_engine.ingest.merge.key_index import RowHasher
from odf_engine.ingest.merge.merge_ledger import keyed_ledger, merge_ledger
from odf_engine.ingest.merge.merge_snapshot import keyed_snapshot, merge_snapshot
from odf_engine.ingest.read.error_location import shorten
from odf_engine.metadata.model import Append, Ledger, MergeStrategy, Snapshot, kind_of
from odf_engine.spark import sql_types
from odf_engine.spark.arrow_batches import arrow_batches
from odf_engine.spark.row_order import SortOrder, Step, sort_by_all_columns, sorted_batches

if TYPE_CHECKING:
    from odf_engine.spark import DataFrame


CODE: Final = "odf_op"
SAID: Final = "odf_op_said"
ROW_POSITION: Final = "position"
_TAKES: Final = pa.array([Op.RETRACT, Op.CORRECT_FROM], pa.int32())
_GIVES: Final = pa.array([Op.APPEND, Op.CORRECT_TO], pa.int32())
FAULTS: Final = {
    1: "{said} is not an operation (+A, -R, -C, +C or 0 to 3)",
    2: "its primary key has no value",
    3: "a row with its primary key is there already",
    4: "no such row is there to be taken back",
    5: "the row that is there is another one",
    6: "a -C has to be followed by the +C of the same row",
    7: "a +C has to follow the -C of the same row",
}


def merge_changelog(strategy: Append | Ledger | Snapshot, inputs: MergeInputs) -> PreparedMerge:
    """Prepares the merge.

    Raises:
        InvalidSchema: key columns that are not there, or cannot be keys.
        InvalidQuery: the rows come in no order of their own.
    """
    if inputs.unordered:
        raise InvalidQuery(
            f"the preprocess query joins or groups rows, so that their operations ('{inputs.changelog}') come"
            " in no order",
            hint="take the column of operations out, or only compute values row by row",
        )
    if isinstance(strategy, Ledger | Snapshot):
        by_ledger = isinstance(strategy, Ledger)
        keyed = keyed_ledger(strategy, inputs) if by_ledger else keyed_snapshot(strategy, inputs)
        return PreparedMerge(
            lambda how: KeyedChangelog(keyed).rows(),
            inputs.reporter,
            keep=keyed.commit_keys,
            forget=keyed.forget,
        )
    return PreparedMerge(lambda how: UnkeyedChangelog(inputs).rows(), inputs.reporter)


class Changelog(ABC):
    """One attempt to write rows with operations; ``hashes`` tell rows apart."""

    def __init__(self, inputs: MergeInputs, hashes: RowHasher) -> None:
        self._inputs = inputs
        self._hashes = hashes
        self._path = inputs.scratch / "changelog.arrows"
        self._event_time = inputs.vocab.event_time_column

    @abstractmethod
    def _look_up(self, rows: pa.Table) -> pa.Table:
        """Some rows, with what has to be known of the dataset to judge them."""

    @abstractmethod
    def _judge(self, rows: pa.Table) -> tuple[pa.Array, pa.Array]:
        """For each row which of ``FAULTS`` it has, or 0, and the event time of the row to take back."""

    @abstractmethod
    def _pairs_alike(self, rows: pa.Table) -> pa.Array:
        """Whether a row may be the second of a correction whose first one is the row before."""

    @abstractmethod
    def _written(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows without their hashes."""

    def rows(self) -> Iterator[pa.RecordBatch]:
        """The rows to write.

        Raises:
            BadData: operations that do not go with what is there; the message shows the first ones.
        """
        rows = self._held()
        if rows is None:
            return
        faults, times = self._judge(rows)
        unpaired = self._unpaired(rows)
        faults = pc.if_else(pc.greater(unpaired, 0), unpaired, faults)
        wrong = pc.indices_nonzero(pc.greater(faults, 0))
        if len(wrong):
            self._refuse(wrong, faults)
        yield from self._written(self._finished(times))

    def _held(self) -> pa.Table | None:
        """Writes the rows to a file; returns their hashes and operations with what is there already."""
        parts: list[pa.Table] = []
        writer = None
        for batch in arrow_batches(self._frame(), self._inputs.reporter)[1]:
            writer = writer or pa.ipc.new_stream(str(self._path), batch.schema)
            writer.write_batch(batch)
            columns = {name: batch.column(name) for name in [CODE, *self._hashes.names]}
            columns[TIME] = times_as_numbers(batch.column(self._event_time))
            parts.append(self._look_up(pa.table(columns)))
        if writer is None:
            return None
        writer.close()
        rows = pa.concat_tables(parts).combine_chunks()
        position = pc.cumulative_sum(pa.repeat(pa.scalar(1, pa.int64()), rows.num_rows))
        return rows.append_column(ROW_POSITION, position)

    def _unpaired(self, rows: pa.Table) -> pa.Array:
        """What is wrong with operations by themselves: 0 where nothing is."""
        op = array_of(rows, CODE)
        alike = self._pairs_alike(rows)
        start, end = (pc.fill_null(pc.equal(op, pa.scalar(code, op.type)), False) for code in (2, 3))
        pair = pc.and_(pc.and_(end, alike), pc.fill_null(_shifted(start, 1), False))
        followed = pc.fill_null(_shifted(pair, -1), False)
        return _first_of({1: op.is_null(), 6: pc.and_not(start, followed), 7: pc.and_not(end, pair)})

    def _frame(self) -> DataFrame:
        names = sql_types.columns(self._inputs.names)
        said = f"upper(trim(CAST({SAID} AS STRING)))"
        cases = " ".join(f"WHEN {said} IN ('{op.code}', '{op:d}') THEN {op:d}" for op in Op)
        query = f"SELECT {names}, CAST(CASE {cases} END AS INT) AS {CODE}, CAST({SAID} AS STRING) AS {SAID}"
        assert self._inputs.changelog is not None
        new = normalized_rows_sql(self._inputs, {SAID: sql_types.column(self._inputs.changelog)})
        return self._inputs.select({"n": new}, f"{query}, {self._hashes.hash_new_rows()} FROM n")

    def _batches(self) -> Iterator[pa.RecordBatch]:
        with pa.OSFile(str(self._path)) as file, pa.ipc.open_stream(file) as stream:
            yield from stream

    def _finished(self, times: pa.Array) -> Iterator[pa.RecordBatch]:
        """The rows with their operations; those that take back with the event time of what they take."""
        inputs = self._inputs
        fill = event_time_filler(inputs, self._event_time)
        kind = inputs.schema.field(self._event_time).type
        at = 0
        for batch in self._batches():
            place = batch.schema.get_field_index(self._event_time)
            given = fill(batch).column(place)
            known = _as_time(times[at : at + batch.num_rows], kind)
            takes = pc.and_(pc.is_in(batch.column(CODE), _TAKES), batch.column(place).is_null())
            batch = batch.set_column(place, self._event_time, pc.if_else(takes, known, given))
            at += batch.num_rows
            names = [
                inputs.vocab.operation_type_column if name == CODE else name for name in batch.schema.names
            ]
            yield batch.rename_columns(names).drop_columns([SAID])

    def _refuse(self, wrong: pa.Array, faults: pa.Array) -> None:
        """Raises the error that shows the first rows that are wrong."""
        first = wrong[:EXAMPLES].to_pylist()
        texts: list[str] = []
        at = 0
        for batch in self._batches():
            for place in first:
                if at <= place < at + batch.num_rows:
                    row = batch.slice(place - at, 1).to_pylist()[0]
                    problem = FAULTS[faults[place].as_py()].format(said=_quoted(row[SAID]))
                    values = ", ".join(f"{name}={row[name]}" for name in self._inputs.names)
                    texts.append(f"row {place + 1} ({row[SAID] or '?'}: {shorten(values)}): {problem}")
            at += batch.num_rows
        count = f"{len(wrong):,} rows do" if len(wrong) > 1 else "a row does"
        raise BadData(
            f"{count} not go with what the dataset has: {' | '.join(texts)}",
            hint="nothing was committed; see `odf tail` for the rows that are there",
        )


class KeyedChangelog(Changelog):
    """Rows that have a primary key."""

    def __init__(self, keyed: KeyedMerge) -> None:
        super().__init__(keyed.inputs, keyed.hashes)
        self._keyed = keyed
        self._index = keyed.open()

    def _look_up(self, rows: pa.Table) -> pa.Table:
        """With the values and event time of the live row of each row's key, null when there is none."""
        keys, seconds = (pc.fill_null(array_of(rows, name), 0) for name in (KEY, SECOND))
        known = self._index.find(keys, seconds)
        known = known.filter(pc.greater_equal(known.column(OFFSET), 0))
        at = array_of(known, "row")
        for name in (VALUES, TIME):
            live = pc.scatter(array_of(known, name), at, max_index=rows.num_rows - 1)
            rows = rows.append_column(f"live {name}", live)
        return rows

    def _judge(self, rows: pa.Table) -> tuple[pa.Array, pa.Array]:
        order = pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in (KEY, SECOND, ROW_POSITION)])
        rows = rows.take(order)
        op, time = array_of(rows, CODE), array_of(rows, TIME)
        again = _same_key(rows)
        after = pc.is_in(_before(rows, CODE), _GIVES)  # What the row before left: itself, or nothing.
        values = pc.if_else(after, _before(rows, VALUES), None)
        values = pc.if_else(again, values, array_of(rows, f"live {VALUES}"))
        moment = times_as_numbers(pa.repeat(default_event_time(self._inputs), 1))[0]
        live = pc.if_else(after, pc.fill_null(_before(rows, TIME), moment), None)
        live = pc.if_else(again, live, array_of(rows, f"live {TIME}"))
        other = pc.or_(
            pc.not_equal(array_of(rows, VALUES), values), pc.fill_null(pc.not_equal(time, live), False)
        )
        takes = pc.is_in(op, _TAKES)
        faults = _first_of(
            {
                2: array_of(rows, KEY).is_null(),
                3: pc.and_(pc.equal(op, pa.scalar(Op.APPEND, op.type)), values.is_valid()),
                4: pc.and_(takes, values.is_null()),
                5: pc.and_(takes, other),
            }
        )
        places = order.cast(pa.int64())
        faults, live = (pc.scatter(each, places, max_index=len(order) - 1) for each in (faults, live))
        return faults, live

    def _pairs_alike(self, rows: pa.Table) -> pa.Array:
        return _same_key(rows)

    def _written(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self._keyed.written(batches, self._keyed.spool(unique=False), taken=True)


class UnkeyedChangelog(Changelog):
    """Rows without a key: the one that is taken back is found by its values."""

    def __init__(self, inputs: MergeInputs) -> None:
        names = tuple(name for name in inputs.names if name != inputs.vocab.event_time_column)
        super().__init__(inputs, RowHasher(inputs.schema, names, (), None, uuid_texts(inputs), nullable=True))

    def _look_up(self, rows: pa.Table) -> pa.Table:
        return rows

    def _judge(self, rows: pa.Table) -> tuple[pa.Array, pa.Array]:
        takes = rows.filter(pc.is_in(rows.column(CODE), _TAKES)).select([KEY, SECOND])
        live: dict[tuple[int, int], list[int]] = {}
        for row in self._history(takes):
            copies = live.setdefault((row[KEY], row[SECOND]), [])
            if row[OFFSET] >= 0:
                copies.append(row[TIME])
            elif row[TIME] in copies:
                copies.remove(row[TIME])
        moment = times_as_numbers(pa.repeat(default_event_time(self._inputs), 1))[0].as_py()
        faults: list[int] = [0] * rows.num_rows
        times: list[int | None] = [None] * rows.num_rows
        for at in pc.indices_nonzero(pc.is_in(rows.column(KEY), array_of(takes, KEY))).to_pylist():
            row = rows.slice(at, 1).to_pylist()[0]
            copies, time = live.setdefault((row[KEY], row[SECOND]), []), row[TIME]
            if row[CODE] in (Op.APPEND, Op.CORRECT_TO):
                copies.append(moment if time is None else time)
            elif not copies or (time is not None and time not in copies):
                faults[at] = 5 if copies else 4
            else:
                times[at] = copies[-1] if time is None else time
                copies.remove(times[at])  # pyright: ignore[reportArgumentType]
        return pa.array(faults, pa.int32()), pa.array(times, pa.int64())

    def _history(self, takes: pa.Table) -> list[dict[str, int]]:
        """The rows that are equal to those to take back, in their order."""
        inputs, slices = self._inputs, self._inputs.dataset.slices()
        if not slices or not takes.num_rows:
            return []
        path = inputs.scratch / "takes.parquet"
        pq.write_table(takes, path)
        vocab = inputs.vocab
        columns = self._hashes.hash_slice_rows(
            vocab.offset_column, vocab.operation_type_column, vocab.event_time_column
        )
        frames = {"odf_history": inputs.history(slices), "odf_takes": inputs.read([path], takes.schema)}
        rows = inputs.rows(
            {"h": f"SELECT {columns} FROM odf_history"},
            f"SELECT /*+ BROADCAST(t) */ h.* FROM h LEFT SEMI JOIN odf_takes t "
            f"ON {sql_types.equal_not_null((KEY, SECOND), 'h', 't')}",
            frames,
        )
        return sorted(rows, key=lambda row: max(row[OFFSET], ~row[OFFSET]))

    def _pairs_alike(self, rows: pa.Table) -> pa.Array:
        return pa.repeat(True, rows.num_rows)

    def _written(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return (batch.drop_columns(self._hashes.names) for batch in batches)


def _quoted(said: str | None) -> str:
    return "nothing" if said is None else f"'{said}'"


def _first_of(cases: dict[int, pa.Array]) -> pa.Array:
    """The number of the first case that is true, or 0."""
    conditions = pc.make_struct(*(pc.fill_null(each, False) for each in cases.values()))
    return pc.case_when(conditions, *(pa.scalar(number, pa.int32()) for number in (*cases, 0)))


def _before(rows: pa.Table, name: str) -> pa.Array:
    """What stands in the row before; null in the first one."""
    return _shifted(array_of(rows, name), 1)


def _shifted(column: pa.Array, by: int) -> pa.Array:
    """Each value one row later (1) or earlier (-1)."""
    edge = pa.nulls(1, column.type)
    return pa.concat_arrays([edge, column[:-1]] if by > 0 else [column[1:], edge])


def _same_key(rows: pa.Table) -> pa.Array:
    """Whether a row has the key of the row before."""
    equal = [pc.equal(array_of(rows, name), _before(rows, name)) for name in (KEY, SECOND)]
    return pc.fill_null(pc.and_(*equal), False)


def _as_time(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Numbers of days or milliseconds as event times."""
    if pa.types.is_date(kind):
        return values.cast(pa.int32()).cast(pa.date32()).cast(kind)
    return values.cast(pa.timestamp("ms", "UTC")).cast(kind)


def merge(strategy: MergeStrategy, inputs: MergeInputs) -> PreparedMerge:
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


def _append(inputs: MergeInputs) -> PreparedMerge:
    """All rows as they are: without a query of our own in between, a small pull is twice as fast."""
    name = _event_time_in(inputs)
    if inputs.unordered:
        return _append_unordered(inputs, name)

    fill = event_time_filler(inputs, name)

    def make(sort: bool) -> tuple[DataFrame, Step]:
        if not sort or name is None:
            return inputs.new, fill
        placed = f"SELECT *, monotonically_increasing_id() AS {POSITION} FROM {NEW}"
        columns, order = sql_types.columns(inputs.new.columns), f"{sort_time_sql(inputs, name)}, {POSITION}"
        query = f"SELECT {columns} FROM placed ORDER BY {order}"
        return inputs.select({"placed": placed}, query), fill

    order = SortOrder(() if name is None else (name,), passes=True)
    return PreparedMerge(
        lambda how: sorted_batches(make, order, inputs.reporter, sort=how.sort), inputs.reporter
    )


def _append_unordered(inputs: MergeInputs, name: str | None) -> PreparedMerge:
    """Rows of the same time by every other column. What fits into memory is sorted there, unless there
    are nested values, which Arrow does not compare: Spark takes several times as long."""
    kinds = {field.name: field.dataType.typeName() for field in inputs.new.schema}
    flat = not {"array", "struct"} & set(kinds.values())
    keys = [column for column, kind in kinds.items() if kind != "void"] if flat else []
    by_spark, fill = _in_order(inputs, name), event_time_filler(inputs, name)

    def make(sort: bool) -> tuple[DataFrame, Step]:
        return by_spark if sort or not keys else inputs.new, fill

    order = SortOrder(tuple(sorted(keys, key=lambda column: column != name)))
    return PreparedMerge(
        lambda how: sorted_batches(make, order, inputs.reporter, sort=how.sort), inputs.reporter
    )


def _in_order(inputs: MergeInputs, name: str | None) -> DataFrame:
    """The new rows by event time and then by every other column."""
    return sort_by_all_columns(inputs.new, None if name is None else sort_time_sql(inputs, name))


def _event_time_in(inputs: MergeInputs) -> str | None:
    """What the new rows call the event time; None when they have none."""
    (place,) = match_columns(inputs.new.columns, [inputs.vocab.event_time_column])
    if place is None or inputs.new.schema[place].dataType.typeName() == "void":
        return None
    return inputs.new.columns[place]
