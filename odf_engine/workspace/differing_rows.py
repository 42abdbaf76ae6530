"""Which rows differ between two sides, found with little memory and written to a Parquet file.

Rows are shared out to files by what tells them apart, so that one part after the other fits into the memory.
Of two versions of a dataset, only what can differ is read: without a key the rows between them, with a key
those rows of both states that are not at the same offset.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from odf_engine.data.kernels import pc
from odf_engine.data.parquet_reader import UNREADABLE
from odf_engine.progress import Reporter
from odf_engine.workspace.differing import ComparedColumn, Sides
from odf_engine.workspace.differing_columns import CHANGE, Beside, beside, in_file
from odf_engine.workspace.differing_parts import (
    TIMES,
    Counted,
    Lay,
    Side,
    compared_by_key,
    compared_whole,
    shared_out,
    shares_for,
)
from odf_engine.workspace.kept import begun, keep_newest
from odf_engine.workspace.pins import Pin
from odf_engine.workspace.projecting import key_of, project
from odf_engine.workspace.results import GROUP_ROWS
from odf_engine.workspace.stored import Range, StoredRows
from odf_engine.workspace.workspace import DatasetEntry

SHARE_BYTES: Final = 48 << 20
"""About how many bytes of rows are compared at once; that takes several times as much memory."""
_SORTED_BYTES: Final = 192 << 20
_NEAR: Final = 1 << 15
_FILES: Final = 20
_BYTES: Final = 1 << 30
_ABOUT: Final = b"odf.difference"
_VERSION: Final = "1"


class Found(msgspec.Struct, frozen=True):
    """How many rows differ, and the file that has them; described with ``differing.Difference``."""

    file: Path
    key: list[str]
    added: int
    removed: int
    changed: int
    unchanged: int
    by_column: dict[str, int]
    columns: list[ComparedColumn]


class _About(msgspec.Struct):
    key: list[str]
    counted: Counted
    columns: list[ComparedColumn]


def compare_rows(
    odf: Path, sides: Sides, key: Sequence[str], reporter: Reporter, share_bytes: int = SHARE_BYTES
) -> Found:
    """Compares the rows of two sides; what was compared before is taken from the cache.

    Args:
        odf: the workspace's ``.odf`` folder; its cache keeps the file.
        sides: what is compared.
        key: columns that tell rows apart; empty for what both datasets have as theirs.
        reporter: hears of rows, and is asked whether to stop.
        share_bytes: about how many bytes of rows are compared at once.

    Raises:
        InvalidSchema: the key is not there, or cannot be one.
        NotFound, BadData: rows that cannot be read.
        OdfError: the file cannot be written.
        Cancelled: the reporter was cancelled.
    """
    old, new = _stored(sides.old, sides.old_pin), _stored(sides.new, sides.new_pin)
    old, new = _like(old, new), _like(new, old)
    wanted = list(key) or (key_of_both(sides) if new.columns.names else [])
    columns = beside(old, new, wanted, same=sides.same)
    names = [each.name for each in columns if each.key] if wanted else []
    path = _path(odf, sides, columns, names)
    known = _known(path)
    if known is not None:
        with suppress(OSError):
            os.utime(path)  # it was used just now
        return known
    path.parent.mkdir(parents=True, exist_ok=True)
    with begun(path) as temporary, tempfile.TemporaryDirectory(dir=path.parent, prefix=".rows-") as folder:
        work = _Work(Path(folder), columns, reporter, share_bytes)
        if names:
            keys = ([each.old or "" for each in columns if each.key], names)
            if old.row_count:
                old = _state(odf, sides.old, sides.old_pin, keys[0], reporter)
            if new.row_count:
                new = _state(odf, sides.new, sides.new_pin, keys[1], reporter)
            counted = work.by_key(old, new, same=sides.same)
        else:
            counted = work.whole(old, new, sides)
        made = in_file(columns if names else [each for each in columns if each.key])
        work.write(temporary, made, _About(names, counted, made))
    keep_newest(path.parent, _FILES, _BYTES)
    return _found(path, _About(names, counted, made))


def key_of_both(sides: Sides) -> list[str]:
    """The key that both datasets have; empty when they have none, or not the same."""
    keys = [key_of(entry.dataset) for entry in (sides.old, sides.new)]
    return keys[1] if [name.casefold() for name in keys[0]] == [name.casefold() for name in keys[1]] else []


def _stored(entry: DatasetEntry, place: Pin) -> StoredRows:
    return StoredRows.of_dataset(entry.dataset, until=_until(place))


def _until(place: Pin) -> int:
    return -1 if place.last_offset is None else place.last_offset


def _like(rows: StoredRows, other: StoredRows) -> StoredRows:
    """The same rows; where there never were any, in the columns of the other side."""
    return rows if rows.columns.names else StoredRows(other.columns, other.vocabulary, [], rows.mark)


def _state(odf: Path, entry: DatasetEntry, place: Pin, key: list[str], reporter: Reporter) -> StoredRows:
    projection = project(odf, entry.dataset, key, reporter, until=_until(place))
    return StoredRows.of_file(projection.file, entry.dataset.state().vocabulary)


def _path(odf: Path, sides: Sides, columns: Sequence[Beside], key: Sequence[str]) -> Path:
    about = [_VERSION, sides.old_pin.block, sides.new_pin.block, *map(str, columns), *key]
    mark = hashlib.sha256("\0".join(about).encode()).hexdigest()[:40]
    return odf / "cache" / "differences" / f"{mark}.parquet"


def _known(path: Path) -> Found | None:
    with suppress(*UNREADABLE, msgspec.MsgspecError, KeyError, RecursionError):
        metadata = pq.read_metadata(path).metadata or {}
        return _found(path, msgspec.json.decode(metadata[_ABOUT], type=_About))
    return None


def _found(path: Path, about: _About) -> Found:
    told = about.counted
    by_column = {name: count for name, count in told.by_column.items() if count}
    return Found(
        path, about.key, told.added, told.removed, told.changed, told.unchanged, by_column, about.columns
    )


class _Work:
    """One comparison: parts of rows in, files of rows that differ out."""

    def __init__(self, folder: Path, columns: Sequence[Beside], reporter: Reporter, share_bytes: int) -> None:
        self._folder, self._columns, self._reporter = folder, columns, reporter
        self._share_bytes = share_bytes
        self._parts: list[Path] = []

    def by_key(self, old: StoredRows, new: StoredRows, *, same: bool) -> Counted:
        """Compares two states in which each key is there once."""
        counted = Counted()
        places = Side(old), Side(new)
        if same:
            self._reporter.phase("find what can differ")
            places = self._apart(old, new)
            counted.unchanged = old.row_count - (pc.sum(places[0].wanted).as_py() or 0)
        for before, after in self._shares(places, whole=False):
            self._keep(compared_by_key(before, after, self._columns, counted))
        return counted

    def _apart(self, old: StoredRows, new: StoredRows) -> tuple[Side, Side]:
        """What is not at the same offset: a row of a changelog never changes."""
        there = [self._offsets(rows) for rows in (old, new)]
        wanted = [_not_among(there[at], there[1 - at]) for at in (0, 1)]
        return Side(old, _runs(wanted[0]), wanted[0]), Side(new, _runs(wanted[1]), wanted[1])

    def _offsets(self, rows: StoredRows) -> pa.Array:
        found: list[pa.Array] = [pa.array([], pa.int64())]
        for batch in rows.batches([rows.vocabulary.offset_column]):
            self._reporter.check()
            found.append(batch.column(0).cast(pa.int64()))
        return pa.concat_arrays(found)

    def whole(self, old: StoredRows, new: StoredRows, sides: Sides) -> Counted:
        """Compares rows as a whole."""
        counted = Counted()
        if not self._columns:  # there never was a schema, and so no rows
            self._keep(pa.table({CHANGE: pa.array([], pa.string()), TIMES: pa.array([], pa.int64())}))
            return counted
        self._reporter.phase("count")
        before = self._net(old)
        if sides.same:  # of one changelog, only what lies between them makes a difference
            less, more = sorted((old.row_count, new.row_count))
            longer = new if new.row_count == more else old
            between = [(less, more)] if less < more else []
            places = (Side(longer, between, weight=1 if longer is new else -1),)
        else:
            places = Side(old, weight=-1), Side(new)
        for parts in self._shares(places, whole=True):
            self._keep(compared_whole(parts, self._columns, counted))
        counted.unchanged = max(before - counted.removed, 0)
        return counted

    def _net(self, rows: StoredRows) -> int:
        """How many rows are there, without those that were taken away."""
        total = 0
        if not rows.row_count:
            return total
        for batch in rows.batches([rows.vocabulary.operation_type_column]):
            self._reporter.check()
            away = (
                pc.sum(pc.is_in(batch.column(0).cast(pa.int64()), pa.array([1, 2], pa.int64()))).as_py() or 0
            )
            total += batch.num_rows - 2 * away
        return total

    def _shares(self, places: Sequence[Side], *, whole: bool) -> Iterator[list[pa.Table]]:
        """Rows of all places, a part at a time: all rows that could be equal are in the same one."""
        shares = shares_for(places, self._share_bytes)
        files: list[list[Path]] = []
        for at, place in enumerate(places):
            self._reporter.phase(("read older", "read newer")[at] if len(places) == 2 else "read")
            folder = self._folder / f"side-{at}"
            folder.mkdir()
            lay = Lay(self._columns, old=len(places) == 2 and at == 0, whole=whole)
            files.append(shared_out(place, lay, folder, shares, self._reporter))
        for share in range(shares):
            self._reporter.phase("compare" if shares == 1 else f"compare, part {share + 1} of {shares}")
            self._reporter.check()
            yield [_table(listed[share]) for listed in files]

    def _keep(self, table: pa.Table) -> None:
        path = self._folder / f"part-{len(self._parts)}"
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        self._parts.append(path)

    def write(self, path: Path, columns: Sequence[ComparedColumn], about: _About) -> None:
        """Writes all rows that differ; in the order of the key, where that many fit into the memory."""
        self._reporter.phase("write")
        names = [CHANGE]
        for each in columns:
            names += [each.new or ""] if each.key else [name for name in (each.old, each.new) if name]
        done = 0
        metadata = {_ABOUT: msgspec.json.encode(about)}
        writer: pq.ParquetWriter | None = None
        keys = [each.new or "" for each in columns if each.key]
        try:
            for table in self._in_order():
                for piece in _pieces(table, names, keys):
                    if writer is None:
                        schema = piece.schema.with_metadata(metadata)
                        writer = pq.ParquetWriter(path, schema, compression="zstd", compression_level=1)
                    writer.write_table(piece.replace_schema_metadata(metadata), row_group_size=GROUP_ROWS)
                    done += piece.num_rows
                    self._reporter.amount(rows=done)
                    self._reporter.check()
        finally:
            if writer is not None:
                writer.close()

    def _in_order(self) -> Iterator[pa.Table]:
        if sum(path.stat().st_size for path in self._parts) <= _SORTED_BYTES:
            yield pa.concat_tables([_table(path) for path in self._parts])
            return
        yield from map(_table, self._parts)


def _table(path: Path) -> pa.Table:
    with pa.OSFile(str(path)) as source, pa.ipc.open_stream(source) as stream:
        return stream.read_all()


def _not_among(offsets: pa.Array, others: pa.Array) -> pa.Array:
    """Which offsets are not among the others."""
    if not len(offsets) or not len(others):
        return pc.fill_null(pa.nulls(len(offsets), pa.bool_()), True)
    most = max(pc.max(offsets).as_py(), pc.max(others).as_py())
    true = pc.fill_null(pa.nulls(len(others), pa.bool_()), True)
    there = pc.fill_null(pc.scatter(true, others, max_index=most), False)
    return pc.invert(pc.take(there, offsets))


def _runs(mask: pa.Array) -> list[Range]:
    """Runs of rows that hold all true ones; what lies between them is long enough to be worth leaving out."""
    found: list[Range] = []
    for row in pc.indices_nonzero(mask).to_pylist():
        if found and row - found[-1][1] < _NEAR:
            found[-1] = (found[-1][0], row + 1)
        else:
            found.append((row, row + 1))
    return found


def _pieces(table: pa.Table, names: Sequence[str], keys: Sequence[str]) -> Iterator[pa.Table]:
    """Rows as they stand in the file, in the order of the key: each as often as it is there."""
    times = table.column(TIMES) if TIMES in table.column_names else None
    table = table.drop_columns([TIMES]) if times is not None else table
    table = table.rename_columns(list(names))
    by = [(name, "ascending") for name in keys if not pa.types.is_nested(table.schema.field(name).type)]
    order = pc.sort_indices(table, sort_keys=[*by, (CHANGE, "descending")])
    for start in range(0, max(len(order), 1), GROUP_ROWS):
        rows = order.slice(start, GROUP_ROWS)
        piece = table.take(rows)
        many = None if times is None else times.take(rows).to_pylist()
        if many is None or all(each == 1 for each in many):
            yield piece
        else:
            yield from _repeated(piece, many)


def _repeated(table: pa.Table, times: Sequence[int]) -> Iterator[pa.Table]:
    waiting: list[int] = []
    for row, many in enumerate(times):
        left = many
        while left:
            taken = min(left, GROUP_ROWS - len(waiting))
            waiting += [row] * taken
            left -= taken
            if len(waiting) == GROUP_ROWS:
                yield table.take(pa.array(waiting, pa.int64()))
                waiting = []
    if waiting:
        yield table.take(pa.array(waiting, pa.int64()))
