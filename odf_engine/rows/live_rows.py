"""Finds the live rows of a changelog, now or as of an event time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from itertools import chain
from pathlib import Path
from typing import Final, Literal

import pyarrow as pa

from odf_engine.base.progress import Reporter
from odf_engine.data.arrow_compute import pc
from odf_engine.data.changelog import Op
from odf_engine.data.parquet.slice_file import RowRange
from odf_engine.errors import BadData, InvalidSchema
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.rows.database import Database, comparable, open_database
from odf_engine.rows.scan import Scan, times_as_numbers, to_time_unit

History = Literal["events", "states", "snapshots"]
"""What the rows of a changelog are: events, states of keys, or states from complete lists of the keys."""
_RETRACTED, _REPLACED, _ADDED, _ENDED = range(4)
_EFFECTS: Final = 4
"""``last`` is the offset of the last row of a key at an event time, times this, plus its effect."""
_WORD_BITS: Final = 64
_WORDS_SQL: Final = """
    SELECT live // 64 AS word, bit_or(1::UBIGINT << (live % 64)::UBIGINT) AS bits
    FROM (SELECT live::BIGINT AS live FROM ({})) GROUP BY word"""


class KeyedAsOf:
    """Finds the rows of a keyed changelog that are live as of an event time.

    Args:
        keys: the columns of the key.
        until: the event time, in the unit of the column.
        history: what the rows are. A correction of an event replaces it regardless of its event time. The
            retraction of a key by a snapshot has the event time of the retracted row; it takes effect when
            the snapshot was published.
        published: for snapshots, their ``commit`` and ``time``.
    """

    def __init__(
        self, keys: Sequence[str], until: int, history: History, published: pa.Table | None = None
    ) -> None:
        self._names = list(keys)
        self._until = until
        self._history = history
        self._published = published

    @property
    def query(self) -> str:
        """The query that returns the offsets of the live rows from ``effects``."""
        keys, rows = ", ".join(self._names), "effects"
        if self._published is not None:
            # A row after a retraction of its key takes effect no earlier than the retraction.
            rows = f"""(
                SELECT * REPLACE (greatest(time, coalesce(ended, time)) AS time) FROM (
                    SELECT *, max(CASE WHEN ends THEN time END) OVER (
                        PARTITION BY {keys} ORDER BY last ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
                    ) AS ended FROM effects WHERE time IS NOT NULL))"""
        return f"""
            WITH changes AS (
                SELECT {keys}, time, max(last) AS last, max(add) AS add
                FROM {rows} WHERE time <= {self._until} GROUP BY {keys}, time
            ), kept AS (
                SELECT * REPLACE (CASE WHEN last % {_EFFECTS} = {_ADDED} THEN add END AS add) FROM changes
                WHERE last % {_EFFECTS} = {_ENDED} OR (last % {_EFFECTS} = {_RETRACTED} AND add IS NULL)
                    OR (last % {_EFFECTS} = {_ADDED} AND add IS NOT NULL)
            ), newest AS (
                SELECT arg_max_null(add, {{'time': time, 'last': last}}) AS live FROM kept GROUP BY {keys}
            )
            SELECT live FROM newest WHERE live IS NOT NULL"""

    def effects(self, tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """Yield the effect of each row until the event time on its key.

        Args:
            tables: the key, ``offset``, ``op``, ``time`` and ``commit`` in the order of the offsets.
        """
        held: pa.Table | None = None
        for table in tables:
            # Only the next row decides whether the last row is half of a correction.
            known = table if held is None else pa.concat_tables([held, table])
            known = known.combine_chunks()
            if known.num_rows:
                held = known.slice(known.num_rows - 1)
            rest = max(known.num_rows - 1, 0)
            yield self._effects_of(known.slice(0, rest), known.slice(min(known.num_rows, 1)))
        if held is not None:
            yield self._effects_of(held, None)

    def _effects_of(self, table: pa.Table, following: pa.Table | None) -> pa.Table:
        """Return the effects of the rows until the event time; ``following`` has the next row of each."""
        op, time, offset = (table.column(name) for name in ("op", "time", "offset"))
        adds = pc.is_in(op, pa.array([Op.APPEND, Op.CORRECT_TO], op.type))
        effect = pc.if_else(adds, _ADDED, _RETRACTED)
        if following is not None:
            pair = is_correction_pair(table, following, self._names)
            still = pc.and_(pc.greater(following.column("time"), self._until), self._history != "events")
            effect = pc.if_else(pair, pc.if_else(pc.fill_null(still, False), _ADDED, _REPLACED), effect)
        ends = pc.equal(op, pa.scalar(Op.RETRACT, op.type))
        if self._published is not None:
            effect = pc.if_else(ends, _ENDED, effect)
        last = pc.add(pc.multiply(offset, _EFFECTS), effect)
        columns = {name: table.column(name) for name in self._names}
        columns |= {"last": last, "add": pc.if_else(adds, offset, pa.scalar(None, pa.int64()))}
        if self._published is None:
            return pa.table(columns | {"time": time}).filter(pc.less_equal(time, self._until))
        place = pc.index_in(table.column("commit"), self._published.column("commit").combine_chunks())
        published = self._published.column("time").take(place)
        time = pc.if_else(ends, pc.max_element_wise(time, published), time)
        return pa.table(columns | {"time": time, "ends": ends})


def is_correction_pair(table: pa.Table, following: pa.Table, names: Sequence[str]) -> pa.ChunkedArray:
    """Return a mask of the rows that are, with the following row, a correction of the same key."""
    op, after = table.column("op"), following.column("op")
    next_offset = pc.add(table.column("offset"), 1)
    same = [
        pc.equal(op, pa.scalar(Op.CORRECT_FROM, op.type)),
        pc.equal(after, pa.scalar(Op.CORRECT_TO, after.type)),
        pc.equal(next_offset, following.column("offset")),
    ]
    for name in names:
        mine, other = table.column(name), following.column(name)
        equal = pc.fill_null(pc.equal(mine, other), False)
        same.append(pc.or_(equal, pc.and_(mine.is_null(), other.is_null())))
    return pc.fill_null(reduce(pc.and_, same), False)


def is_retraction(op: pa.Array) -> pa.Array:
    """Return a mask of the operations that retract another row."""
    return pc.is_in(op, pa.array([Op.RETRACT, Op.CORRECT_FROM], op.type))


class LiveRowSet:
    """A bit set of the offsets of live rows, and the row ranges that contain them.

    Args:
        rows: the changelog.
        reporter: receives rows, and can cancel.
    """

    def __init__(self, rows: Scan, reporter: Reporter) -> None:
        self._rows = rows
        self._reporter = reporter
        self._words = bytearray(8 * -(-rows.end_offset // _WORD_BITS))
        self._batches: list[tuple[int, int, int]] = []  # number of rows, minimum and maximum offset

    def read(self, names: Sequence[str], event_time: str | None = None) -> Iterator[pa.Table]:
        """Yield columns as ``k0``, ``k1``, …, with ``offset``, ``op``; with ``event_time``, also times.

        The times are numbers: ``time`` and ``recorded``, the system time, in the unit of the event time;
        ``commit`` is the system time in its own unit. The first table is empty.
        """
        offset, op, system_time = self._rows.system_columns
        wanted = [*names, offset, op, *([event_time, system_time] if event_time else ())]
        self._batches, done = [], 0
        scan = self._rows.select(list(dict.fromkeys(wanted)))
        empty = pa.RecordBatch.from_pylist([], scan.schema)
        for batch in chain([empty], scan.batches(self._reporter)):
            columns = {f"k{at}": comparable(batch.column(name)) for at, name in enumerate(names)}
            columns |= {"offset": batch.column(offset).cast(pa.int64()), "op": batch.column(op)}
            if event_time:
                time, recorded = batch.column(event_time), batch.column(system_time)
                columns["time"] = times_as_numbers(time)
                columns["recorded"] = times_as_numbers(recorded.cast(time.type, safe=False))
                columns["commit"] = times_as_numbers(recorded)
            self._add_batch(columns["offset"])
            done += batch.num_rows
            self._reporter.set_amounts(rows=done, total_rows=self._rows.row_count)
            yield pa.table(columns)

    def add(self, offsets: pa.Array) -> None:
        """Add offsets of live rows. The memory depends on the distance of the lowest from the highest."""
        if not len(offsets):
            return
        bounds = pc.min_max(offsets).as_py()
        first, end = bounds["min"] // _WORD_BITS, bounds["max"] // _WORD_BITS + 1
        places = pc.subtract(offsets, first * _WORD_BITS)
        last = (end - first) * _WORD_BITS - 1
        more = pc.fill_null(pc.scatter(pa.repeat(True, len(offsets)), places, max_index=last), False)
        self._store(pc.or_(self._bits(first, end), more), first, end)

    def add_result(self, database: Database, sql: str, **tables: Iterable[pa.Table]) -> None:
        """Add the offsets of a query's result, its column ``live``, in any order.

        Args:
            database: runs the query.
            sql: the query.
            tables: see :meth:`Database.query`.
        """
        words = memoryview(self._words).cast("Q")
        for batch in database.query(_WORDS_SQL.format(sql), **tables):
            for word, bits in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                words[word] |= bits

    def discard_shared(self, other: LiveRowSet) -> None:
        """Remove the offsets that are in both sets from both. Both sets must have the same size."""
        end = len(self._words) // 8
        shared = pc.and_(self._bits(0, end), other._bits(0, end))
        for rows in (self, other):
            rows._store(pc.and_not(rows._bits(0, end), shared), 0, end)

    def mask(self, offsets: pa.Array) -> pa.Array:
        """Return for each offset that was read whether it is live."""
        return self._bits(0, len(self._words) // 8).take(offsets)

    def ranges(self) -> list[RowRange]:
        """Return row ranges that contain all live rows."""
        live = self._bits(0, len(self._words) // 8)
        row_ranges: list[RowRange] = []
        at = 0
        for count, low, high in self._batches:
            if pc.any(live.slice(low, high - low + 1)).as_py():
                start = row_ranges.pop()[0] if row_ranges and row_ranges[-1][1] == at else at
                row_ranges.append((start, at + count))
            at += count
        return row_ranges

    def _bits(self, first: int, end: int) -> pa.BooleanArray:
        """Return the bits of some words, without a copy."""
        data = pa.py_buffer(memoryview(self._words)[8 * first : 8 * end])
        return pa.BooleanArray.from_buffers(pa.bool_(), (end - first) * _WORD_BITS, [None, data])

    def _store(self, bits: pa.BooleanArray, first: int, end: int) -> None:
        self._words[8 * first : 8 * end] = memoryview(bits.buffers()[1])[: 8 * (end - first)]

    def _add_batch(self, offsets: pa.Array) -> None:
        bounds = pc.min_max(offsets).as_py()
        low, high = bounds["min"], bounds["max"]
        if offsets.null_count or (high is not None and (low < 0 or high >= self._rows.end_offset)):
            raise BadData(
                "the offsets of the rows differ from those of their blocks",
                hint="run odf verify to find all errors",
            )
        if high is not None:
            self._batches.append((len(offsets), low, high))


def current_rows(rows: Scan, key: Sequence[str], folder: Path, reporter: Reporter) -> LiveRowSet:
    """Find the latest row of each key, without retracted keys.

    Args:
        rows: the changelog.
        key: its columns.
        folder: for temporary files.
        reporter: receives rows, and can cancel.
    """
    live, names = LiveRowSet(rows, reporter), _key_names(rows, key)
    adds = f"op IN ({Op.APPEND:d}, {Op.CORRECT_TO:d})"
    sql = f"""
        SELECT last // 2 AS live
        FROM (SELECT max("offset" * 2 + ({adds})::INTEGER) AS last FROM changes GROUP BY {", ".join(names)})
        WHERE last % 2 = 1"""
    with open_database(folder, reporter) as database:
        live.add_result(database, sql, changes=live.read(key))
    return live


def rows_as_of(
    rows: Scan, key: Sequence[str], as_of: Timestamp, folder: Path, reporter: Reporter, history: History
) -> LiveRowSet:
    """Find the state as of an event time, with all corrections known now."""
    live, name = LiveRowSet(rows, reporter), _event_time(rows)
    names, until = _key_names(rows, key), to_time_unit(as_of, rows.schema.field(name).type)
    with open_database(folder, reporter) as database:
        published = _publication_times(database, live.read([], name)) if history == "snapshots" else None
        work = KeyedAsOf(names, until, history, published)
        live.add_result(database, work.query, effects=work.effects(live.read(key, name)))
    return live


def _publication_times(database: Database, changes: Iterable[pa.Table]) -> pa.Table | None:
    """Return when the snapshots with retractions were published, by their commits, or None without any.

    This is the newest event time of the rows that the snapshot and those before it added. A snapshot that
    only retracts rows was published at its system time.
    """
    adds = f"op IN ({Op.APPEND:d}, {Op.CORRECT_TO:d})"
    sql = f"""
        SELECT "commit",
            CASE WHEN newest IS NULL THEN recorded ELSE max(newest) OVER (ORDER BY "commit") END AS time
        FROM (
            SELECT "commit", max(time) FILTER ({adds}) AS newest, max(recorded) AS recorded,
                bool_or(op = {Op.RETRACT:d}) AS ends FROM changes GROUP BY "commit")
        QUALIFY ends"""
    batches = list(database.query(sql, changes=changes))
    return pa.Table.from_batches(batches) if any(batch.num_rows for batch in batches) else None


def unretracted_rows(rows: Scan, as_of: Timestamp, folder: Path, reporter: Reporter) -> LiveRowSet:
    """Find all rows until an event time that are not retracted."""
    live, name = LiveRowSet(rows, reporter), _event_time(rows)
    until = to_time_unit(as_of, rows.schema.field(name).type)
    taken: list[pa.ChunkedArray] = []
    for table in live.read([], name):
        table = table.filter(pc.less_equal(table.column("time"), until))
        takes_back = is_retraction(table.column("op"))
        taken.append(table.filter(takes_back).column("time"))
        live.add(table.column("offset").filter(pc.invert(takes_back)).combine_chunks())
    times = pc.unique(pa.chunked_array([chunk for column in taken for chunk in column.chunks], pa.int64()))
    return _without_retracted(rows, until, times, folder, reporter) if len(times) else live


def _without_retracted(
    rows: Scan, until: int, times: pa.Array, folder: Path, reporter: Reporter
) -> LiveRowSet:
    """Find the rows that are not retracted; ``times`` are the event times of the retractions.

    A retraction takes back the oldest row that is equal in all columns.
    """
    live = LiveRowSet(rows, reporter)
    columns = [name for name in rows.schema.names if name not in rows.system_columns]
    names = ", ".join(f"k{at}" for at in range(len(columns)))
    reporter.phase("find retracted rows")

    def doubtful() -> Iterator[pa.Table]:
        for table in live.read(columns, _event_time(rows)):
            table = table.filter(pc.less_equal(table.column("time"), until))
            maybe = pc.is_in(table.column("time"), times)
            live.add(table.column("offset").filter(pc.invert(maybe)).combine_chunks())
            rest = table.filter(maybe)
            yield rest.append_column("takes", is_retraction(rest.column("op")))

    sql = f"""
        SELECT live FROM (
            SELECT "offset" AS live, takes, count_if(takes) OVER (PARTITION BY {names}) AS taken,
                row_number() OVER (PARTITION BY {names} ORDER BY takes, "offset") AS number FROM changes)
        WHERE NOT takes AND number > taken"""
    with open_database(folder, reporter) as database:
        live.add_result(database, sql, changes=doubtful())
    return live


def _key_names(rows: Scan, key: Sequence[str]) -> list[str]:
    """Return the names of the key columns during comparison."""
    for name in key:
        data_type = rows.schema.field(name).type
        if pa.types.is_nested(data_type):
            raise InvalidSchema(f"column '{name}' cannot be a key: its type is {data_type}")
    return [f"k{at}" for at in range(len(key))]


def _event_time(rows: Scan) -> str:
    name = rows.vocabulary.event_time_column
    if name not in rows.schema.names:
        raise InvalidSchema(f"event time column '{name}' not found")
    return name
