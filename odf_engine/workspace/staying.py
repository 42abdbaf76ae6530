"""Which rows of a changelog belong to a projection of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa

from odf_engine.data.changelog import Op
from odf_engine.data.kernels import pc
from odf_engine.errors import BadData, InvalidSchema
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.progress import Reporter
from odf_engine.workspace.as_of import AsOf, Left, corrected, in_units, numbers, takes
from odf_engine.workspace.by_key import ByKey, greatest
from odf_engine.workspace.stored import Range, StoredRows

_WAITING: Final = 1 << 22


class Staying:
    """The offsets that stay, and where to find them.

    Args:
        rows: the changelog.
        reporter: hears of rows, and is asked whether to stop.
    """

    def __init__(self, rows: StoredRows, reporter: Reporter) -> None:
        self._rows = rows
        self._reporter = reporter
        self._stays = pc.fill_null(pa.nulls(rows.offsets, pa.bool_()), False)
        self._waiting: list[pa.Array] = []
        self._batches: list[tuple[int, int, int]] = []  # rows, least and greatest offset

    def read(self, names: Sequence[str], event_time: str | None = None) -> Iterator[pa.Table]:
        """Some columns as ``k0``, ``k1``, …, with ``offset``, ``op`` and, as a number, ``time``."""
        offset, op = self._rows.vocabulary.offset_column, self._rows.vocabulary.operation_type_column
        wanted = [*names, offset, op] if event_time is None else [*names, offset, op, event_time]
        self._batches, done = [], 0
        for batch in self._rows.batches(list(dict.fromkeys(wanted))):
            columns = {f"k{at}": batch.column(name) for at, name in enumerate(names)}
            columns |= {"offset": batch.column(offset).cast(pa.int64()), "op": batch.column(op)}
            if event_time:
                columns["time"] = numbers(batch.column(event_time))
            self._note(columns["offset"])
            done += batch.num_rows
            self._reporter.amount(rows=done, total_rows=self._rows.row_count)
            self._reporter.check()
            yield pa.table(columns)

    def add(self, offsets: pa.Array) -> None:
        """These stay."""
        self._waiting.append(offsets)
        if sum(map(len, self._waiting)) > _WAITING:
            self._settle()

    def mask(self, offsets: pa.Array) -> pa.Array:
        """For each of the offsets, which were read before, whether it stays."""
        self._settle()
        return self._stays.take(offsets)

    def ranges(self) -> list[Range]:
        """The rows among which those are that stay."""
        self._settle()
        found: list[Range] = []
        at = 0
        for count, least, most in self._batches:
            if pc.any(self._stays.slice(least, most - least + 1)).as_py():
                start = found.pop()[0] if found and found[-1][1] == at else at
                found.append((start, at + count))
            at += count
        return found

    def _settle(self) -> None:
        offsets = pa.concat_arrays([pa.array([], pa.int64()), *self._waiting])
        self._waiting = []
        if len(offsets):
            more = pc.scatter(pa.repeat(True, len(offsets)), offsets, max_index=self._rows.offsets - 1)
            self._stays = pc.or_(self._stays, pc.fill_null(more, False))

    def _note(self, offsets: pa.Array) -> None:
        bounds = pc.min_max(offsets).as_py()
        least, most = bounds["min"], bounds["max"]
        if offsets.null_count or (most is not None and (least < 0 or most >= self._rows.offsets)):
            raise BadData(
                "rows have offsets that their blocks do not say",
                hint="odf verify shows everything that is wrong",
            )
        if most is not None:
            self._batches.append((len(offsets), least, most))


def rows_now(
    rows: StoredRows, key: Sequence[str], folder: Path, reporter: Reporter, share_bytes: int
) -> Staying:
    """The newest row of each key, unless it takes the key away.

    Args:
        rows: the changelog.
        key: its columns.
        folder: where temporary files may lie.
        reporter: hears of rows, and is asked whether to stop.
        share_bytes: about how many bytes of keys are looked at at once.
    """
    stays = Staying(rows, reporter)
    names = _key_names(rows, key)
    newest = partial(greatest, keys=names, values=["last"])
    by_key = ByKey(names, newest, folder, rows.row_count, reporter, share_bytes)
    for table in by_key.combined(_newest(stays.read(key), names)):
        there = pc.equal(pc.bit_wise_and(table.column("last"), 1), 1)
        stays.add(pc.shift_right(table.column("last").filter(there), 1).combine_chunks())
    return stays


def _newest(tables: Iterable[pa.Table], names: Sequence[str]) -> Iterator[pa.Table]:
    """Of each row its offset, twice, and one more when it is there; without those corrected at once."""
    for table in tables:
        if table.num_rows > 1:
            pair = corrected(table.slice(0, table.num_rows - 1), table.slice(1), names)
            pair = pa.chunked_array([*pair.chunks, pa.array([False])])
            table = table.filter(pc.invert(pair))
        op = table.column("op")
        there = pc.is_in(op, pa.array([Op.APPEND, Op.CORRECT_TO], op.type)).cast(pa.int64())
        last = pc.add(pc.shift_left(table.column("offset"), 1), there)
        yield pa.table({name: table.column(name) for name in names} | {"last": last})


def rows_as_of(
    rows: StoredRows,
    key: Sequence[str],
    as_of: Timestamp,
    folder: Path,
    reporter: Reporter,
    share_bytes: int,
    *,
    events: bool,
) -> Staying:
    """What was the state at an event time, with all corrections known (:mod:`odf_engine.workspace.as_of`)."""
    stays, name = Staying(rows, reporter), _event_time(rows)
    kind = rows.columns.field(name).type
    names = _key_names(rows, key)
    work = AsOf(names, in_units(as_of, kind), events=events)
    # A key at one of its event times is what is combined: shares are of the key alone.
    by_key = ByKey(names, work.combine, folder, rows.row_count, reporter, share_bytes)
    for table in by_key.combined(work.rows(stays.read(key, name))):
        stays.add(work.found(table))
    return stays


def rows_left(
    rows: StoredRows, as_of: Timestamp, folder: Path, reporter: Reporter, share_bytes: int
) -> Staying:
    """All rows until an event time that were not taken back."""
    stays, name = Staying(rows, reporter), _event_time(rows)
    until = in_units(as_of, rows.columns.field(name).type)
    taken = False
    for table in stays.read([], name):
        table = table.filter(pc.less_equal(table.column("time"), until))
        takes_back = takes(table.column("op"))
        taken = taken or pc.any(takes_back).as_py() or False
        stays.add(table.column("offset").filter(pc.invert(takes_back)).combine_chunks())
    if not taken:
        return stays
    return _without_taken(rows, until, name, folder, reporter, share_bytes)


def _without_taken(
    rows: StoredRows, until: int, event_time: str, folder: Path, reporter: Reporter, share_bytes: int
) -> Staying:
    """The same where rows take others back: those of the same event times are compared, share by share."""
    stays = Staying(rows, reporter)
    columns = [name for name in rows.columns.names if name not in rows.system_columns]
    left = Left([f"k{at}" for at in range(len(columns))])
    reporter.phase("find what was taken back")
    found = [
        table.filter(pc.and_(takes(table.column("op")), pc.less_equal(table.column("time"), until)))
        for table in stays.read([], event_time)
    ]
    wanted = pc.unique(pa.concat_tables(found).column("time"))

    def doubtful() -> Iterator[pa.Table]:
        for table in stays.read(columns, event_time):
            table = table.filter(pc.less_equal(table.column("time"), until))
            maybe = pc.is_in(table.column("time"), wanted)
            stays.add(table.column("offset").filter(pc.invert(maybe)).combine_chunks())
            yield table.filter(maybe)

    by_key = ByKey(["time"], lambda table: table, folder, rows.row_count, reporter, share_bytes)
    for table in by_key.combined(doubtful()):
        stays.add(left.found(table))
    return stays


def _key_names(rows: StoredRows, key: Sequence[str]) -> list[str]:
    """What the columns of the key are called while they are compared."""
    for name in key:
        kind = rows.columns.field(name).type
        if pa.types.is_nested(kind):
            raise InvalidSchema(f"'{name}' cannot be a key: its values are {kind}")
    return [f"k{at}" for at in range(len(key))]


def _event_time(rows: StoredRows) -> str:
    name = rows.vocabulary.event_time_column
    if name not in rows.columns.names:
        raise InvalidSchema(f"there is no event time: the dataset has no column '{name}'")
    return name
