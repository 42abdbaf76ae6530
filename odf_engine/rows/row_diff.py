"""Row differences of two dataset versions, compared in DuckDB."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from itertools import chain
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from odf_engine.base.atomic_files import atomic_file, evict_oldest
from odf_engine.base.progress import Reporter
from odf_engine.data.arrow_compute import pc
from odf_engine.data.parquet.parquet_reader import parquet_errors
from odf_engine.rows import PinnedVersion
from odf_engine.rows.database import Database, open_database
from odf_engine.rows.diff import (
    CHANGE_COLUMN,
    DiffColumn,
    Difference,
    DiffSides,
    column_changes,
    resolve_sides,
    setting_changes,
    settings_at,
    watermark_at,
)
from odf_engine.rows.diff_columns import (
    AlignedColumn,
    align_columns,
    common_values,
    decode_values,
    encode_values,
    offset_names,
    result_columns,
)
from odf_engine.rows.live_rows import LiveRowSet, is_retraction
from odf_engine.rows.projection import build_projection, dataset_key
from odf_engine.rows.query_results import GROUP_ROWS
from odf_engine.rows.scan import Scan
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace


def diff_datasets(
    workspace: Workspace,
    dataset: str,
    other: str = "",
    *,
    as_at: str | None = None,
    other_as_at: str | None = None,
    key: Sequence[str] = (),
    reporter: Reporter,
) -> Difference:
    """Compare the versions that :func:`resolve_sides` returns.

    Args:
        workspace: its cache stores the rows that differ.
        dataset, other, as_at, other_as_at: as in :func:`resolve_sides`.
        key: columns of the key; by default the common key of both datasets.
        reporter: receives phases and rows, and can cancel.

    Raises:
        OdfError: a side does not exist, both are the same, there is no such key, rows cannot be read, or the
            file cannot be written.
        Cancelled: the reporter was cancelled.
    """

    sides = resolve_sides(workspace, dataset, other, as_at, other_as_at)
    reporter.phase("compare blocks")
    old, new = (settings_at(chain, place.sequence_number) for chain, place in sides.versions)
    names = {entry.id: str(entry.alias) for entry in workspace.datasets()}
    schema, settings = column_changes(old, new), setting_changes(old, new, names)
    marks = [watermark_at(chain, place.sequence_number) for chain, place in sides.versions]
    diff = compare_rows(workspace.odf, sides, key, reporter)
    steps = sides.new_pin.sequence_number - sides.old_pin.sequence_number
    records = [0 if place.last_offset is None else place.last_offset + 1 for _, place in sides.versions]
    return Difference(
        old=sides.old_pin,
        new=sides.new_pin,
        rows=diff.added + diff.removed + diff.changed,
        schema=schema,
        settings=settings,
        records=(records[0], records[1]),
        watermarks=(_text(marks[0]), _text(marks[1])),
        blocks=steps if sides.one_chain else None,
        **msgspec.structs.asdict(diff),
    )


def _text(value: object) -> str | None:
    return None if value is None else str(value)


_MEMORY: Final = 256 << 20
"""Limit of the memory of the comparison in bytes, for few rows."""
_BYTES_OF_ROW: Final = 6
"""Memory that a join needs for each row, although it uses temporary files."""
_SIDES: Final = ("old", "new")
_FILES: Final = 20
_BYTES: Final = 1 << 30
_METADATA_KEY: Final = b"odf.difference"
_VERSION: Final = "3"


class RowDiff(msgspec.Struct, frozen=True, omit_defaults=True):
    """Numbers of rows that differ, and their file; see :class:`odf_engine.rows.diff.Difference`.

    The metadata of the file contains it without the path.
    """

    key: list[str]
    columns: list[DiffColumn]
    added: int
    removed: int
    changed: int
    unchanged: int
    by_column: dict[str, int]
    offsets: tuple[str, str] | None = None
    file: str = ""


def compare_rows(odf: Path, sides: DiffSides, key: Sequence[str], reporter: Reporter) -> RowDiff:
    """Compare the rows of two sides, or return the result from the cache.

    Args:
        odf: the workspace's ``.odf`` folder, which contains the cache.
        sides: the versions.
        key: columns of the key, or () for the common key of both datasets.
        reporter: receives rows, and can cancel.

    Raises:
        InvalidSchema: the key does not exist, or cannot be a key.
        NotFound, BadData: rows cannot be read.
        OdfError: the file cannot be written.
        Cancelled: the reporter was cancelled.
    """
    old, new = _scan_version(sides.old, sides.old_pin), _scan_version(sides.new, sides.new_pin)
    old, new = _with_columns_of(old, new), _with_columns_of(new, old)
    wanted = list(key) or (common_key(sides) if new.schema.names else [])
    columns = align_columns(old, new, wanted, same=sides.same)
    names = [column.name for column in columns if column.key] if wanted else []
    path = _cache_path(odf, sides, columns, names)
    known = _read_cached(path)
    if known is not None:
        with suppress(OSError):
            os.utime(path)  # for eviction of the least recently used
        return known
    if names:
        end = max(old.end_offset, new.end_offset)
        old_key = [column.old or "" for column in columns if column.key]
        if old.row_count:
            old = _latest_state(odf, sides.old, sides.old_pin, old_key, end, reporter)
        if new.row_count:
            new = _latest_state(odf, sides.new, sides.new_pin, names, end, reporter)
    memory = max(_MEMORY, _BYTES_OF_ROW * min(old.row_count, new.row_count))
    with atomic_file(path) as temporary, open_database(path.parent, reporter, memory) as database:
        if names:
            work, total = _Comparison(columns, reporter), old.row_count
            batches = work.compare_states(database, old, new, one_chain=sides.one_chain)
        else:
            work = _Comparison([column for column in columns if column.key], reporter)
            total = _count_live(old, reporter)
            batches = work.compare_multisets(database, old, new, one_chain=sides.one_chain)
        with closing(batches):
            diff = work.write(temporary, batches, names, total)
    evict_oldest(path.parent, _FILES, _BYTES)
    return msgspec.structs.replace(diff, file=str(path))


def common_key(sides: DiffSides) -> list[str]:
    """Return the key that both datasets have, or [] if they have none, or different ones."""
    keys = [dataset_key(entry.dataset) for entry in (sides.old, sides.new)]
    return keys[1] if [name.casefold() for name in keys[0]] == [name.casefold() for name in keys[1]] else []


def _scan_version(entry: DatasetEntry, place: PinnedVersion) -> Scan:
    return Scan.of_dataset(entry.dataset, place.scan_offset)


def _with_columns_of(rows: Scan, other: Scan) -> Scan:
    """Return the same rows; if there never were any, with the columns of the other side."""
    return rows if rows.schema.names else Scan(other.schema, other.vocabulary, [], rows.fingerprint)


def _latest_state(
    odf: Path, entry: DatasetEntry, place: PinnedVersion, key: list[str], end: int, reporter: Reporter
) -> Scan:
    projection = build_projection(odf, entry.dataset, key, reporter, last_offset=place.scan_offset)
    rows = Scan.of_file(projection.file, entry.dataset.state().vocabulary)
    return Scan(rows.schema, rows.vocabulary, rows.files, rows.fingerprint, end)


def _cache_path(odf: Path, sides: DiffSides, columns: Sequence[AlignedColumn], key: Sequence[str]) -> Path:
    about = [_VERSION, sides.old_pin.block, sides.new_pin.block, *map(str, columns), *key]
    mark = hashlib.sha256("\0".join(about).encode()).hexdigest()[:40]
    return odf / "cache" / "differences" / f"{mark}.parquet"


def _read_cached(path: Path) -> RowDiff | None:
    with suppress(*parquet_errors(), msgspec.MsgspecError, KeyError, RecursionError):
        metadata = pq.read_metadata(path).metadata or {}
        diff = msgspec.json.decode(metadata[_METADATA_KEY], type=RowDiff)
        return msgspec.structs.replace(diff, file=str(path))
    return None


def _count_live(rows: Scan, reporter: Reporter) -> int:
    """Return the number of rows without retracted ones."""
    if not rows.row_count:
        return 0
    reporter.phase("count")
    operations = rows.select([rows.vocabulary.operation_type_column])
    retracted = (pc.sum(is_retraction(batch.column(0))).as_py() for batch in operations.batches(reporter))
    return rows.row_count - 2 * sum(retracted)


def _unshared_rows(sides: Sequence[Scan], reporter: Reporter) -> list[LiveRowSet]:
    """Find the rows of each side whose offsets the other lacks: rows of a changelog are immutable."""
    old, new = unshared = [LiveRowSet(rows, reporter) for rows in sides]
    for rows in unshared:
        for table in rows.read([]):
            rows.add(table.column("offset").combine_chunks())
    old.discard_shared(new)
    return unshared


class _Comparison:
    """Compares the rows of two versions in a database, and writes those that differ.

    Args:
        columns: the compared columns. In the database, columns of the key are named ``k0``, ``k1``, …, in
            their common type. The others are ``v`` and their number, and ``c`` with the values to compare if
            both sides have different types.
        reporter: receives rows, and can cancel.
    """

    def __init__(self, columns: Sequence[AlignedColumn], reporter: Reporter) -> None:
        self._columns, self._reporter = list(columns), reporter
        self._keys = [f"k{at}" for at, column in enumerate(columns) if column.key]
        nested = [f"k{at}" for at, column in enumerate(columns) if column.key and column.is_nested]
        order = [f"{key} NULLS LAST" for key in self._keys if key not in nested]
        self._order = ", ".join([*order, "change DESC", *nested])

    def compare_states(
        self, database: Database, old: Scan, new: Scan, *, one_chain: bool
    ) -> Generator[pa.RecordBatch]:
        """Yield the rows that differ in two states with unique keys."""
        unshared: Sequence[LiveRowSet | None] = (None, None)
        if one_chain and old.row_count and new.row_count:
            self._reporter.phase("find candidates")
            unshared = _unshared_rows((old, new), self._reporter)
        outputs = [f"coalesce(old.{key}, new.{key}) AS {key}" for key in self._keys]
        outputs += ["old.old_offset", "new.new_offset"]
        differ = ["change <> 'changed'"]
        for at, column in enumerate(self._columns):
            if column.key:
                continue
            outputs += [f"{side}.v{at} AS {side}{at}" for side in column.names]
            if column.counts:
                name = f"c{at}" if column.is_cast else f"v{at}"
                before, after = (f"{side}.{name}" if side in column.names else "NULL" for side in _SIDES)
                outputs.append(f"old.here AND new.here AND {before} IS DISTINCT FROM {after} AS differs{at}")
                differ.append(f"differs{at}")
        smaller, bigger = sorted(_SIDES, key=lambda side: (old if side == "old" else new).row_count)
        sql = f"""
            SELECT * FROM (
                SELECT CASE WHEN old.here IS NULL THEN 'added' WHEN new.here IS NULL THEN 'removed'
                    ELSE 'changed' END AS change, {", ".join(outputs)}
                FROM (SELECT *, TRUE AS here FROM {bigger}) AS {bigger}
                FULL JOIN (SELECT *, TRUE AS here FROM {smaller}) AS {smaller}
                ON {" AND ".join(f"old.{key} IS NOT DISTINCT FROM new.{key}" for key in self._keys)})
            WHERE {" OR ".join(differ)} ORDER BY {self._order}"""
        tables = {
            side: self._stream(side, rows, selected)
            for side, rows, selected in zip(_SIDES, (old, new), unshared, strict=True)
        }
        yield from database.query(sql, **tables)

    def compare_multisets(
        self, database: Database, old: Scan, new: Scan, *, one_chain: bool
    ) -> Generator[pa.RecordBatch]:
        """Yield the rows that one side has more often, repeated by how often."""
        if not self._columns:  # without a schema there are no rows
            return
        if one_chain:  # versions of one changelog differ only by the rows between them
            low, high = sorted((old.row_count, new.row_count))
            old, new = old.rows([(low, high)]), new.rows([(low, high)])
        streams = self._stream("old", old, sign=-1), self._stream("new", new, sign=1)
        keys = ", ".join(self._keys)
        sql = f"""
            SELECT CASE WHEN weight > 0 THEN 'added' ELSE 'removed' END AS change, {keys},
                old_offset, new_offset, abs(weight)::BIGINT AS times
            FROM (
                SELECT {keys}, sum(weight) AS weight, max(old_offset) AS old_offset,
                    max(new_offset) AS new_offset FROM rows GROUP BY {keys})
            WHERE weight <> 0 ORDER BY {self._order}"""
        for batch in database.query(sql, rows=chain.from_iterable(streams)):
            yield from _repeat_rows(batch)

    def _stream(
        self, side: str, rows: Scan, selected: LiveRowSet | None = None, sign: int = 0
    ) -> Iterator[pa.Table]:
        """Yield the rows of one side for the database; the first table is empty.

        Args:
            side: ``old`` or ``new``.
            rows: its rows.
            selected: the rows to compare; by default all.
            sign: adds a column ``weight``: this number, or its negative for a retraction.
        """
        offset, operation, _ = rows.system_columns
        names = [column.names[side] for column in self._columns if side in column.names]
        scan = rows.select([*names, offset, operation])
        yield self._encode(side, pa.RecordBatch.from_pylist([], scan.schema), rows, sign)
        if selected is not None:
            scan = scan.rows(selected.ranges())
        self._reporter.phase("read older" if side == "old" else "read newer")
        done = 0
        for batch in scan.batches(self._reporter):
            done += batch.num_rows
            if selected is not None:
                batch = batch.filter(selected.mask(batch.column(offset)))
            yield self._encode(side, batch, rows, sign)
            self._reporter.set_amounts(rows=done, total_rows=scan.row_count)

    def _encode(self, side: str, batch: pa.RecordBatch, rows: Scan, sign: int) -> pa.Table:
        offset, operation, _ = rows.system_columns
        offsets = {side: batch.column(offset).cast(pa.int64())}
        if sign:  # both sides are parts of one table
            offsets = {name: offsets.get(name, pa.nulls(len(batch), pa.int64())) for name in _SIDES}
        table: dict[str, Any] = {f"{name}_offset": values for name, values in offsets.items()}
        for at, column in enumerate(self._columns):
            if side not in column.names:
                continue
            values = batch.column(column.names[side])
            if not column.key:
                table[f"v{at}"] = encode_values(values)
            if column.key or column.is_cast:
                table[f"{'k' if column.key else 'c'}{at}"] = encode_values(common_values(values, column.type))
        if sign:
            retracts = is_retraction(batch.column(operation))
            table["weight"] = pc.if_else(retracts, pa.scalar(-sign, pa.int64()), pa.scalar(sign, pa.int64()))
        return pa.table(table)

    def write(self, path: Path, batches: Iterable[pa.RecordBatch], key: list[str], total: int) -> RowDiff:
        """Write the rows that differ, and return their numbers.

        Args:
            path: the file.
            batches: the rows.
            key: the columns of the key, or [] for multisets.
            total: number of rows of the older side.
        """
        columns = result_columns(self._columns)
        offsets = offset_names(columns)
        fields = dict(self._fields(columns, offsets))
        compared = [(at, column) for at, column in enumerate(columns) if column.counts and not column.key]
        schema = pa.schema(list(fields.values()))
        counts, by_column = Counter[str](), Counter[str]()
        with pq.ParquetWriter(path, schema, compression="zstd", compression_level=1) as writer:
            for batch in batches:
                if not counts:
                    self._reporter.phase("write")
                values = [decode_values(batch.column(name), field.type) for name, field in fields.items()]
                writer.write_table(pa.table(values, schema), row_group_size=GROUP_ROWS)
                for entry in pc.value_counts(batch.column(CHANGE_COLUMN)).to_pylist():
                    counts[entry["values"]] += entry["counts"]
                for at, column in compared:
                    by_column[column.name] += pc.sum(batch.column(f"differs{at}")).as_py() or 0
                self._reporter.set_amounts(rows=counts.total())
            added, removed, changed = (counts[change] for change in ("added", "removed", "changed"))
            unchanged = max(total - removed - changed, 0)
            diff = RowDiff(key, columns, added, removed, changed, unchanged, dict(+by_column), offsets)
            writer.add_key_value_metadata({_METADATA_KEY: msgspec.json.encode(diff)})
        return diff

    def _fields(
        self, columns: Sequence[DiffColumn], offsets: Sequence[str]
    ) -> Iterator[tuple[str, pa.Field]]:
        """Yield the columns of the file by their names in the database."""
        yield "change", pa.field(CHANGE_COLUMN, pa.string())
        for at, (column, result) in enumerate(zip(self._columns, columns, strict=True)):
            if column.key:
                yield f"k{at}", pa.field(str(result.new), column.type or pa.string())
                continue
            if result.old is not None:
                yield f"old{at}", pa.field(result.old, column.old_type)
            if result.new is not None:
                yield f"new{at}", pa.field(result.new, column.new_type)
        for side, name in zip(_SIDES, offsets, strict=True):
            yield f"{side}_offset", pa.field(name, pa.int64())


def _repeat_rows(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield every row as often as its column ``times`` says."""
    ends = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(batch.column("times"))])
    indices = pc.list_parent_indices(pa.LargeListArray.from_arrays(ends, pa.nulls(ends[-1].as_py())))
    for start in range(0, len(indices), GROUP_ROWS):
        yield batch.take(indices.slice(start, GROUP_ROWS))
