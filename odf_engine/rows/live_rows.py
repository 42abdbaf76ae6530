"""Finds the live rows of a changelog, now or as of an event time, by partitioned hash aggregation."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial, reduce
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyarrow import types

from odf_engine.base.progress import Reporter
from odf_engine.data.arrow_compute import hash_values, pc, python_values
from odf_engine.data.changelog import Op
from odf_engine.data.parquet.slice_file import RowRange
from odf_engine.errors import BadData, InvalidSchema
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.rows.scan import Scan, times_as_numbers, to_time_unit

_COMPACT_ROWS: Final = 1 << 17
_MAX_PARTITIONS: Final = 200  # one open file each
PARTITION_BYTES: Final = 24 << 20
"""Approximate size of the keys in memory; the aggregation needs several times as much."""
Combine = Callable[[pa.Table], pa.Table]
Writer = pa.ipc.RecordBatchStreamWriter


def max_by_key(table: pa.Table, keys: Sequence[str], values: Sequence[str]) -> pa.Table:
    """Return one row for each key, with the maximum of each value column.

    Raises:
        InvalidSchema: values of these columns cannot be compared.
    """
    try:
        # Threads aggregate separate tables and merge them: twice the work and memory.
        grouped = table.group_by(list(keys), use_threads=False)
        grouped = grouped.aggregate([(value, "max") for value in values])
    except pa.ArrowNotImplementedError as error:
        raise InvalidSchema(f"these columns cannot be a key: {error}") from error
    columns = {key: grouped.column(key) for key in keys}
    return pa.table(columns | {value: grouped.column(f"{value}_max") for value in values})


class HashAggregation:
    """Aggregates the rows of each key. If the state exceeds a limit, keys are partitioned to files.

    Args:
        keys: the columns of the key.
        combine: aggregates a table; also applied to its own results.
        folder: for temporary files.
        total: approximate number of rows.
        reporter: can cancel.
        partition_bytes: approximate size of the keys in memory.
    """

    def __init__(
        self,
        keys: Sequence[str],
        combine: Combine,
        folder: Path,
        total: int,
        reporter: Reporter,
        partition_bytes: int,
    ) -> None:
        self._keys = keys
        self._combine = combine
        self._folder = folder
        self._total = total
        self._reporter = reporter
        self._partition_bytes = partition_bytes

    def aggregate(self, tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """Yield the aggregated rows, one table for each partition of the keys.

        Raises:
            InvalidSchema: columns that cannot be a key.
            Cancelled: the reporter was cancelled.
        """
        source, done = iter(tables), 0

        def counted() -> Iterator[pa.Table]:
            nonlocal done
            for table in source:
                done += table.num_rows
                yield table

        last: pa.Table | None = None
        for state in self._states(counted()):
            if state.nbytes > self._partition_bytes:
                expected = state.nbytes * max(self._total, done) / done
                yield from self._aggregate_partitions(state, source, int(expected))
                return
            last = state
        if last is not None:
            yield last

    def _states(self, tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """Yield the aggregate of the rows so far, at intervals and at the end."""
        state: pa.Table | None = None
        waiting: list[pa.Table] = []
        rows = size = 0
        for table in tables:
            waiting.append(table)
            rows, size = rows + table.num_rows, size + table.nbytes
            known, known_size = (0, 0) if state is None else (state.num_rows, state.nbytes)
            if rows >= max(_COMPACT_ROWS, known) or size >= max(self._partition_bytes, known_size):
                state = self._combine(pa.concat_tables([*([] if state is None else [state]), *waiting]))
                waiting, rows, size = [], 0, 0
                yield state
        if waiting:
            yield self._combine(pa.concat_tables([*([] if state is None else [state]), *waiting]))

    def _aggregate_partitions(
        self, state: pa.Table, rest: Iterator[pa.Table], size: int
    ) -> Iterator[pa.Table]:
        partitions = min(max(2, -(-size // self._partition_bytes)), _MAX_PARTITIONS)
        with tempfile.TemporaryDirectory(dir=self._folder, prefix=".keys-") as temporary:
            files = [Path(temporary) / str(partition) for partition in range(partitions)]
            self._write_partitions(state, rest, files)
            for at, file in enumerate(files, 1):
                self._reporter.phase(f"find latest, part {at} of {partitions}")
                self._reporter.raise_if_cancelled()
                with pa.OSFile(str(file)) as source, pa.ipc.open_stream(source) as stream:
                    last: pa.Table | None = None
                    for state in self._states(pa.Table.from_batches([batch]) for batch in stream):
                        self._reporter.raise_if_cancelled()
                        last = state
                if last is not None:
                    yield last
                file.unlink()

    def _write_partitions(self, state: pa.Table, rest: Iterator[pa.Table], files: Sequence[Path]) -> None:
        """Write rows to files, all rows of a key to the same file."""
        with ExitStack() as stack:
            sinks = [stack.enter_context(pa.OSFile(str(file), "wb")) for file in files]
            writers = [stack.enter_context(pa.ipc.new_stream(sink, state.schema)) for sink in sinks]
            _write_by_partition(state, self._keys, writers)
            for table in rest:
                _write_by_partition(table.select(state.column_names), self._keys, writers)


def _write_by_partition(table: pa.Table, keys: Sequence[str], writers: Sequence[Writer]) -> None:
    """Write each row to the file of its key."""
    for first in range(0, table.num_rows, _COMPACT_ROWS):
        part = table.slice(first, _COMPACT_ROWS)
        partition = _partition_of(part, keys, len(writers))
        ordered = part.take(pc.sort_indices(partition))
        counts = pc.value_counts(partition)
        of = dict(zip(counts.field(0).to_pylist(), counts.field(1).to_pylist(), strict=True))
        at = 0
        for number, writer in enumerate(writers):
            if count := of.get(number, 0):
                writer.write_table(ordered.slice(at, count))
                at += count


def _partition_of(table: pa.Table, keys: Sequence[str], partitions: int) -> pa.Array:
    """Return the partition number of the key of each row."""
    mixed: pa.Array | None = None
    for key in keys:
        hashes = _hashes(table.column(key).combine_chunks())
        mixed = hashes if mixed is None else hash_values(pc.bit_wise_xor(mixed, hashes))
    assert mixed is not None
    high, of = pc.shift_right(mixed, pa.scalar(32, pa.uint64())), pa.scalar(partitions, pa.uint64())
    return pc.subtract(high, pc.multiply(pc.divide(high, of), of))


def _hashes(column: pa.Array) -> pa.Array:
    if pa.types.is_primitive(column.type):
        return hash_values(column)
    known = column.dictionary_encode(null_encoding="encode")  # hashing texts is slow, and they often repeat
    return hash_values(known.dictionary).take(known.indices)


_RETRACTED, _REPLACED, _ADDED = range(3)
_EFFECTS: Final = 4
"""``last`` is the offset of the last row of a key at an event time, times this, plus its effect."""


class KeyedAsOf:
    """Finds the rows of a keyed changelog that are live as of an event time.

    Args:
        keys: the columns of the key.
        until: the event time, in the unit of the column.
        events: whether a correction replaces a row regardless of its event time.
    """

    def __init__(self, keys: Sequence[str], until: int, *, events: bool) -> None:
        self._names = list(keys)
        self._until = until
        self._events = events

    def effects(self, tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """Yield the effect of each row until the event time on its key.

        Args:
            tables: the key, ``offset``, ``op`` and ``time`` (as a number) in the order of the offsets.
        """
        held: pa.Table | None = None
        for table in tables:
            # Only the next row decides whether the last row is half of a correction.
            known = table if held is None else pa.concat_tables([held, table])
            known = known.combine_chunks()
            if known.num_rows:
                held = known.slice(known.num_rows - 1)
                yield self._effects_of(known.slice(0, known.num_rows - 1), known.slice(1))
        if held is not None:
            yield self._effects_of(held, None)

    def combine(self, table: pa.Table) -> pa.Table:
        """Return one row for each key and event time."""
        return max_by_key(table, [*self._names, "time"], ["last", "add"])

    def live_offsets(self, table: pa.Table) -> pa.Array:
        """Return the offsets of the live rows, given the combined effects of all rows."""
        effect = pc.bit_wise_and(table.column("last"), _EFFECTS - 1)
        there, add = pc.is_valid(table.column("add")), table.column("add")
        ends = pc.and_(pc.equal(effect, _RETRACTED), pc.invert(there))
        kept = table.filter(pc.or_(ends, pc.and_(pc.equal(effect, _ADDED), there)))
        kept = kept.sort_by([("time", "ascending"), ("last", "ascending")])
        place = pa.array(range(kept.num_rows), pa.int64())
        newest = max_by_key(kept.append_column("place", place), self._names, ["place"])
        add = kept.column("add").take(newest.column("place"))
        return add.drop_null().combine_chunks()

    def _effects_of(self, table: pa.Table, following: pa.Table | None) -> pa.Table:
        """Return the effects of the rows until the event time; ``following`` has the next row of each."""
        op, time, offset = (table.column(name) for name in ("op", "time", "offset"))
        adds = pc.is_in(op, pa.array([Op.APPEND, Op.CORRECT_TO], op.type))
        effect = pc.if_else(adds, _ADDED, _RETRACTED)
        if following is not None:
            pair = is_correction_pair(table, following, self._names)
            still = pc.and_(pc.greater(following.column("time"), self._until), not self._events)
            effect = pc.if_else(pair, pc.if_else(pc.fill_null(still, False), _ADDED, _REPLACED), effect)
        last = pc.add(pc.multiply(offset, _EFFECTS), effect)
        columns = {name: table.column(name) for name in self._names}
        columns |= {"time": time, "last": last, "add": pc.if_else(adds, offset, pa.scalar(None, pa.int64()))}
        return pa.table(columns).filter(pc.less_equal(time, self._until))


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


class UnkeyedAsOf:
    """Finds the live rows of a changelog without a key: rows are equal if all columns are."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = list(names)

    def live_offsets(self, table: pa.Table) -> pa.Array:
        """Return the offsets of the live rows among all rows of some event times."""
        columns = {name: _comparable(table.column(name)) for name in self._names}
        changes = pa.table(
            columns | {"offset": table.column("offset"), "takes": is_retraction(table.column("op"))}
        )
        asked = [("offset", "list"), ("takes", "list"), ("takes", "sum"), ("takes", "count")]
        grouped = changes.group_by(self._names, use_threads=False).aggregate(asked)
        taken = grouped.column("takes_sum").cast(pa.int64())
        left = pc.subtract(grouped.column("takes_count"), pc.multiply(taken, 2))
        stays = pc.list_flatten(grouped.column("offset_list").filter(pc.equal(taken, 0))).combine_chunks()
        doubtful = grouped.filter(pc.and_(pc.greater(taken, 0), pc.greater(left, 0)))
        some: list[int] = []
        for offsets, kinds in zip(
            doubtful.column("offset_list").to_pylist(), doubtful.column("takes_list").to_pylist(), strict=True
        ):
            added = sorted(
                offset for offset, takes_back in zip(offsets, kinds, strict=True) if not takes_back
            )
            some += added[len(kinds) - len(added) :]
        return pa.concat_arrays([stays, pa.array(some, pa.int64())])


def is_retraction(op: pa.Array) -> pa.Array:
    """Return a mask of the operations that retract another row."""
    return pc.is_in(op, pa.array([Op.RETRACT, Op.CORRECT_FROM], op.type))


def _is_flat(data_type: pa.DataType) -> bool:
    return not types.is_nested(data_type)


def _comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return values in a type that Arrow can group by."""
    if _is_flat(column.type):
        return column
    return pa.chunked_array([pa.array([repr(value) for value in python_values(column)], pa.string())])


_MAX_PENDING: Final = 1 << 22


class LiveRowSet:
    """The offsets of live rows, and the row ranges that contain them.

    Args:
        rows: the changelog.
        reporter: receives rows, and can cancel.
    """

    def __init__(self, rows: Scan, reporter: Reporter) -> None:
        self._rows = rows
        self._reporter = reporter
        self._live = pc.fill_null(pa.nulls(rows.end_offset, pa.bool_()), False)
        self._pending: list[pa.Array] = []
        self._batches: list[tuple[int, int, int]] = []  # number of rows, minimum and maximum offset

    def read(self, names: Sequence[str], event_time: str | None = None) -> Iterator[pa.Table]:
        """Yield columns as ``k0``, ``k1``, …, with ``offset``, ``op`` and optionally ``time`` as a number."""
        offset, op = self._rows.vocabulary.offset_column, self._rows.vocabulary.operation_type_column
        wanted = [*names, offset, op] if event_time is None else [*names, offset, op, event_time]
        self._batches, done = [], 0
        for batch in self._rows.select(list(dict.fromkeys(wanted))).batches(self._reporter):
            columns = {f"k{at}": batch.column(name) for at, name in enumerate(names)}
            columns |= {"offset": batch.column(offset).cast(pa.int64()), "op": batch.column(op)}
            if event_time:
                columns["time"] = times_as_numbers(batch.column(event_time))
            self._add_batch(columns["offset"])
            done += batch.num_rows
            self._reporter.set_amounts(rows=done, total_rows=self._rows.row_count)
            yield pa.table(columns)

    def add(self, offsets: pa.Array) -> None:
        """Add offsets of live rows."""
        self._pending.append(offsets)
        if sum(map(len, self._pending)) > _MAX_PENDING:
            self._apply_pending()

    def mask(self, offsets: pa.Array) -> pa.Array:
        """Return for each offset that was read whether it is live."""
        self._apply_pending()
        return self._live.take(offsets)

    def ranges(self) -> list[RowRange]:
        """Return row ranges that contain all live rows."""
        self._apply_pending()
        row_ranges: list[RowRange] = []
        at = 0
        for count, low, high in self._batches:
            if pc.any(self._live.slice(low, high - low + 1)).as_py():
                start = row_ranges.pop()[0] if row_ranges and row_ranges[-1][1] == at else at
                row_ranges.append((start, at + count))
            at += count
        return row_ranges

    def _apply_pending(self) -> None:
        offsets = pa.concat_arrays([pa.array([], pa.int64()), *self._pending])
        self._pending = []
        if len(offsets):
            more = pc.scatter(pa.repeat(True, len(offsets)), offsets, max_index=self._rows.end_offset - 1)
            self._live = pc.or_(self._live, pc.fill_null(more, False))

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


def current_rows(
    rows: Scan, key: Sequence[str], folder: Path, reporter: Reporter, partition_bytes: int
) -> LiveRowSet:
    """Find the latest row of each key, without retracted keys.

    Args:
        rows: the changelog.
        key: its columns.
        folder: for temporary files.
        reporter: receives rows, and can cancel.
        partition_bytes: approximate size of the keys in memory.
    """
    live = LiveRowSet(rows, reporter)
    names = _key_names(rows, key)
    newest = partial(max_by_key, keys=names, values=["last"])
    by_key = HashAggregation(names, newest, folder, rows.row_count, reporter, partition_bytes)
    for table in by_key.aggregate(_newest(live.read(key), names)):
        there = pc.equal(pc.bit_wise_and(table.column("last"), 1), 1)
        live.add(pc.shift_right(table.column("last").filter(there), 1).combine_chunks())
    return live


def _newest(tables: Iterable[pa.Table], names: Sequence[str]) -> Iterator[pa.Table]:
    """Yield for each row twice its offset, plus one if it is an addition.

    Rows that the next row corrects are left out.
    """
    for table in tables:
        if table.num_rows > 1:
            pair = is_correction_pair(table.slice(0, table.num_rows - 1), table.slice(1), names)
            pair = pa.chunked_array([*pair.chunks, pa.array([False])])
            table = table.filter(pc.invert(pair))
        op = table.column("op")
        there = pc.is_in(op, pa.array([Op.APPEND, Op.CORRECT_TO], op.type)).cast(pa.int64())
        last = pc.add(pc.shift_left(table.column("offset"), 1), there)
        yield pa.table({name: table.column(name) for name in names} | {"last": last})


def rows_as_of(
    rows: Scan,
    key: Sequence[str],
    as_of: Timestamp,
    folder: Path,
    reporter: Reporter,
    partition_bytes: int,
    *,
    events: bool,
) -> LiveRowSet:
    """Find the state as of an event time, with all corrections known now."""
    live, name = LiveRowSet(rows, reporter), _event_time(rows)
    data_type = rows.schema.field(name).type
    names = _key_names(rows, key)
    work = KeyedAsOf(names, to_time_unit(as_of, data_type), events=events)
    # Rows are combined by key and event time, but partitioned by the key alone.
    by_key = HashAggregation(names, work.combine, folder, rows.row_count, reporter, partition_bytes)
    for table in by_key.aggregate(work.effects(live.read(key, name))):
        live.add(work.live_offsets(table))
    return live


def unretracted_rows(
    rows: Scan, as_of: Timestamp, folder: Path, reporter: Reporter, partition_bytes: int
) -> LiveRowSet:
    """Find all rows until an event time that are not retracted."""
    live, name = LiveRowSet(rows, reporter), _event_time(rows)
    until = to_time_unit(as_of, rows.schema.field(name).type)
    taken = False
    for table in live.read([], name):
        table = table.filter(pc.less_equal(table.column("time"), until))
        takes_back = is_retraction(table.column("op"))
        taken = taken or pc.any(takes_back).as_py() or False
        live.add(table.column("offset").filter(pc.invert(takes_back)).combine_chunks())
    if not taken:
        return live
    return _without_retracted(rows, until, name, folder, reporter, partition_bytes)


def _without_retracted(
    rows: Scan, until: int, event_time: str, folder: Path, reporter: Reporter, partition_bytes: int
) -> LiveRowSet:
    """Find the rows that are not retracted, where there are retractions.

    Rows of the event times of retractions are compared, partition by partition.
    """
    live = LiveRowSet(rows, reporter)
    columns = [name for name in rows.schema.names if name not in rows.system_columns]
    unkeyed = UnkeyedAsOf([f"k{at}" for at in range(len(columns))])
    reporter.phase("find retracted rows")
    tables = [
        table.filter(pc.and_(is_retraction(table.column("op")), pc.less_equal(table.column("time"), until)))
        for table in live.read([], event_time)
    ]
    wanted = pc.unique(pa.concat_tables(tables).column("time"))

    def doubtful() -> Iterator[pa.Table]:
        for table in live.read(columns, event_time):
            table = table.filter(pc.less_equal(table.column("time"), until))
            maybe = pc.is_in(table.column("time"), wanted)
            live.add(table.column("offset").filter(pc.invert(maybe)).combine_chunks())
            yield table.filter(maybe)

    by_key = HashAggregation(["time"], lambda table: table, folder, rows.row_count, reporter, partition_bytes)
    for table in by_key.aggregate(doubtful()):
        live.add(unkeyed.live_offsets(table))
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
