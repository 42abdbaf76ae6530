"""Row differences of two dataset versions, by partitioned comparison."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from odf_engine.base.atomic_files import atomic_file, evict_oldest
from odf_engine.base.files import ensure_folder
from odf_engine.base.progress import Reporter
from odf_engine.data.arrow_compute import hash_values, pc
from odf_engine.data.parquet.parquet_reader import parquet_errors
from odf_engine.data.parquet.slice_file import RowRange
from odf_engine.rows.as_at import PinnedVersion
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
    result_columns,
    to_comparable,
    values_differ,
)
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
        key=diff.key,
        added=diff.added,
        removed=diff.removed,
        changed=diff.changed,
        unchanged=diff.unchanged,
        rows=diff.added + diff.removed + diff.changed,
        file=str(diff.file),
        columns=diff.columns,
        by_column=diff.by_column,
        schema=schema,
        settings=settings,
        records=(records[0], records[1]),
        watermarks=(_text(marks[0]), _text(marks[1])),
        blocks=steps if sides.one_chain else None,
    )


def _text(value: object) -> str | None:
    return None if value is None else str(value)


COUNT_COLUMN: Final = "times"
_WEIGHT: Final = "weight"
_MAX_PARTITIONS: Final = 128
_NULL: Final = 0x9E3779B97F4A7C15
_AWAY: Final = pa.array([1, 2], pa.int64())


class DiffCounts(msgspec.Struct):
    """Numbers of rows, and for each column its number of changed rows."""

    added: int = 0
    removed: int = 0
    changed: int = 0
    unchanged: int = 0
    by_column: dict[str, int] = {}


class DiffInput(msgspec.Struct, frozen=True):
    """Rows of one side.

    Attributes:
        rows: all rows.
        ranges: the rows to read; None: all.
        selected: Boolean mask over all rows of those to compare; None: all that are read.
        weight: multiplicity of a row in a comparison of multisets; negative on the older side.
    """

    rows: Scan
    ranges: list[RowRange] | None = None
    selected: pa.Array | None = None
    weight: int = 1

    @property
    def read(self) -> int:
        """Number of rows to read."""
        return (
            self.rows.row_count if self.ranges is None else sum(stop - start for start, stop in self.ranges)
        )

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows to compare."""
        ranges = [(0, self.rows.row_count)] if self.ranges is None else self.ranges
        for start, stop in ranges:
            at = start
            for batch in self.rows.rows([(start, stop)]).batches():
                mask = None if self.selected is None else self.selected.slice(at, batch.num_rows)
                at += batch.num_rows
                yield batch if mask is None else batch.filter(mask)


def is_retracting(op: pa.Array) -> pa.Array:
    """Return a mask of the operations that retract a row."""
    return pc.is_in(op.cast(pa.int64()), _AWAY)


def partition_count(places: Sequence[DiffInput], partition_bytes: int) -> int:
    """Return the number of partitions, estimated from the first rows."""
    size = 0.0
    for place in places:
        first = next(place.batches(), None) if place.read else None
        if first is not None and first.num_rows:
            size += first.nbytes / first.num_rows * place.read
    return min(max(1, -(-int(size) // partition_bytes)), _MAX_PARTITIONS)


class ComparisonLayout(msgspec.Struct, frozen=True):
    """Layout of rows for comparison.

    Columns of the key are named ``k0``, ``k1``, …, in their common type; all others ``v`` and their number.
    For multisets, ``v`` also has the values of the key that are compared as text, and there is a weight.

    Attributes:
        columns: the aligned columns.
        old: whether the rows have the column names of the older side.
        multisets: whether rows are compared as multisets.
    """

    columns: Sequence[AlignedColumn]
    old: bool
    multisets: bool

    def arrange_rows(self, batch: pa.RecordBatch, place: DiffInput) -> pa.Table:
        """Return rows in this layout."""
        columns: dict[str, Any] = {}
        for at, aligned in enumerate(self.columns):
            name = aligned.old if self.old else aligned.new
            if name is None or (self.multisets and not aligned.key):
                continue
            values = batch.column(name)
            if aligned.key:
                columns[f"k{at}"] = to_comparable(values, aligned.type)
            if not aligned.key or (self.multisets and _as_text(aligned)):
                columns[f"v{at}"] = values
        if self.multisets:
            away = is_retracting(batch.column(place.rows.vocabulary.operation_type_column))
            weights = [pa.scalar(weight, pa.int64()) for weight in (-place.weight, place.weight)]
            columns[_WEIGHT] = pc.if_else(away, *weights)
        return pa.table(columns)


def partition_rows(
    place: DiffInput, layout: ComparisonLayout, folder: Path, partitions: int, reporter: Reporter
) -> list[Path]:
    """Write rows to files, all rows of a key to the same file. Return the files."""
    files = [folder / str(partition) for partition in range(partitions)]
    done, total = 0, place.read
    with ExitStack() as stack:
        writers: list[pa.ipc.RecordBatchStreamWriter] = []
        for table in (layout.arrange_rows(batch, place) for batch in _with_empty_batch(place)):
            if not writers:
                for file in files:
                    sink = stack.enter_context(pa.OSFile(str(file), "wb"))
                    writers.append(stack.enter_context(pa.ipc.new_stream(sink, table.schema)))
            partition = _partition_of(table, partitions) if partitions > 1 else None
            for at, writer in enumerate(writers):
                mine = (
                    table
                    if partition is None
                    else table.filter(pc.equal(partition, pa.scalar(at, pa.uint64())))
                )
                writer.write_table(mine)
            done += table.num_rows
            reporter.set_amounts(rows=min(done, total), total_rows=total)
            reporter.raise_if_cancelled()
    return files


def _with_empty_batch(place: DiffInput) -> Iterator[pa.RecordBatch]:
    """Yield an empty batch before the rows, so that files have columns even without rows."""
    schema = place.rows.schema
    yield pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
    yield from place.batches()


def _as_text(column: AlignedColumn) -> bool:
    """Whether values are compared as text although both sides have a common type."""
    return column.type is not None and pa.types.is_nested(column.type)


def _partition_of(table: pa.Table, partitions: int) -> pa.Array:
    """Return the partition number of each row."""
    mixed: pa.Array | None = None
    for name in table.column_names:
        if not name.startswith("k"):
            continue
        hashes = _hashes(table.column(name).combine_chunks())
        mixed = hashes if mixed is None else hash_values(pc.bit_wise_xor(mixed, hashes))
    assert mixed is not None
    high = pc.shift_right(mixed, pa.scalar(32, pa.uint64()))
    of = pa.scalar(partitions, pa.uint64())
    return pc.subtract(high, pc.multiply(pc.divide(high, of), of))


def _hashes(array: pa.Array) -> pa.Array:
    """Return hashes of values; distinct texts are hashed once."""
    data_type = array.type
    if not (pa.types.is_string(data_type) or pa.types.is_large_string(data_type)):
        return hash_values(array)
    encoded = array.dictionary_encode()
    return pc.fill_null(hash_values(encoded.dictionary).take(encoded.indices), pa.scalar(_NULL, pa.uint64()))


def compare_keyed(
    before: pa.Table, after: pa.Table, columns: Sequence[AlignedColumn], counted: DiffCounts
) -> pa.Table:
    """Return the rows of two states that differ, in the columns of the file, and count them."""
    keys = [name for name in before.column_names if name.startswith("k")]
    index = pa.concat_tables(
        [_numbered(before.select(keys), "a", "b"), _numbered(after.select(keys), "b", "a")]
    )
    grouped = index.group_by(keys).aggregate([("a", "max"), ("b", "max")])
    old, new = (grouped.column(f"{name}_max").combine_chunks() for name in "ab")
    both = pc.and_(pc.is_valid(old), pc.is_valid(new))
    arranged: dict[str, Any] = {}
    changed = pc.and_(both, False)
    for at, column in enumerate(columns):
        if column.key:
            arranged[f"k{at}"] = grouped.column(f"k{at}")
            continue
        values = _values(before, old, column.old, at, column), _values(after, new, column.new, at, column)
        if column.old is not None:
            arranged[f"old{at}"] = values[0]
        if column.new is not None:
            arranged[f"new{at}"] = values[1]
        if column.counts:
            mask = pc.and_(both, values_differ(*values, column.type))
            counted.by_column[column.name] = counted.by_column.get(column.name, 0) + _count(mask)
            changed = pc.or_(changed, mask)
    lone = pc.if_else(pc.is_null(old), "added", "removed")
    table = pa.table({CHANGE_COLUMN: pc.if_else(both, "changed", lone), **arranged})
    counted.changed += _count(changed)
    counted.added += _count(pc.is_null(old))
    counted.removed += _count(pc.is_null(new))
    counted.unchanged += _count(both) - _count(changed)
    return table.filter(pc.or_(changed, pc.invert(both)))


def _numbered(table: pa.Table, mine: str, theirs: str) -> pa.Table:
    rows = table.num_rows
    columns = {mine: pa.array(range(rows), pa.int64()), theirs: pa.nulls(rows, pa.int64())}
    for name in "ab":
        table = table.append_column(name, columns[name])
    return table


def _values(table: pa.Table, places: pa.Array, name: str | None, at: int, column: AlignedColumn) -> pa.Array:
    """Return the values of a column of one side by row, null if the side lacks the row."""
    if name is None:
        return pa.nulls(len(places), column.type)
    return table.column(f"v{at}").combine_chunks().take(places)


def compare_multisets(
    parts: Sequence[pa.Table], columns: Sequence[AlignedColumn], counted: DiffCounts
) -> pa.Table:
    """Return the rows that one side has more often, with how often, and count them."""
    table = pa.concat_tables(parts)
    keys = [name for name in table.column_names if name.startswith("k")]
    index = table.select([*keys, _WEIGHT]).append_column("row", pa.array(range(table.num_rows), pa.int64()))
    grouped = index.group_by(keys).aggregate([(_WEIGHT, "sum"), ("row", "min")])
    weights = grouped.column(f"{_WEIGHT}_sum").combine_chunks()
    differ = pc.not_equal(weights, 0)
    rows = grouped.column("row_min").combine_chunks().filter(differ)
    weights = weights.filter(differ)
    selected = table.take(rows)
    more = pc.greater(weights, 0)
    times = pc.abs(weights)
    counted.added += pc.sum(times.filter(more)).as_py() or 0
    counted.removed += pc.sum(times.filter(pc.invert(more))).as_py() or 0
    values = {
        f"k{at}": selected.column(f"v{at}" if _as_text(column) else f"k{at}")
        for at, column in enumerate(columns)
        if column.key
    }
    return pa.table({CHANGE_COLUMN: pc.if_else(more, "added", "removed"), **values, COUNT_COLUMN: times})


def _count(mask: pa.Array) -> int:
    return pc.sum(mask).as_py() or 0


PARTITION_BYTES: Final = 48 << 20
"""Approximate size of the rows in memory; the comparison needs several times as much."""
_SORTED_BYTES: Final = 192 << 20
_NEAR: Final = 1 << 15
_FILES: Final = 20
_BYTES: Final = 1 << 30
_METADATA_KEY: Final = b"odf.difference"
_VERSION: Final = "1"


class RowDiff(msgspec.Struct, frozen=True):
    """Numbers of rows that differ, and their file; see :class:`odf_engine.rows.diff.Difference`."""

    file: Path
    key: list[str]
    added: int
    removed: int
    changed: int
    unchanged: int
    by_column: dict[str, int]
    columns: list[DiffColumn]


class _FileMetadata(msgspec.Struct):
    key: list[str]
    counted: DiffCounts
    columns: list[DiffColumn]


def compare_rows(
    odf: Path,
    sides: DiffSides,
    key: Sequence[str],
    reporter: Reporter,
    partition_bytes: int = PARTITION_BYTES,
) -> RowDiff:
    """Compare the rows of two sides, or return the result from the cache.

    Args:
        odf: the workspace's ``.odf`` folder, which contains the cache.
        sides: the versions.
        key: columns of the key, or () for the common key of both datasets.
        reporter: receives rows, and can cancel.
        partition_bytes: approximate size of the rows in memory.

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
    ensure_folder(path.parent)
    with (
        atomic_file(path) as temporary,
        tempfile.TemporaryDirectory(dir=path.parent, prefix=".rows-") as folder,
    ):
        work = _Comparison(Path(folder), columns, reporter, partition_bytes)
        if names:
            keys = ([column.old or "" for column in columns if column.key], names)
            if old.row_count:
                old = _latest_state(odf, sides.old, sides.old_pin, keys[0], reporter)
            if new.row_count:
                new = _latest_state(odf, sides.new, sides.new_pin, keys[1], reporter)
            counted = work.by_key(old, new, one_chain=sides.one_chain)
        else:
            counted = work.compare_multisets(old, new, sides)
        schema = result_columns(columns if names else [column for column in columns if column.key])
        work.write(temporary, schema, _FileMetadata(names, counted, schema))
    evict_oldest(path.parent, _FILES, _BYTES)
    return _row_diff(path, _FileMetadata(names, counted, schema))


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
    odf: Path, entry: DatasetEntry, place: PinnedVersion, key: list[str], reporter: Reporter
) -> Scan:
    projection = build_projection(odf, entry.dataset, key, reporter, last_offset=place.scan_offset)
    return Scan.of_file(projection.file, entry.dataset.state().vocabulary)


def _cache_path(odf: Path, sides: DiffSides, columns: Sequence[AlignedColumn], key: Sequence[str]) -> Path:
    about = [_VERSION, sides.old_pin.block, sides.new_pin.block, *map(str, columns), *key]
    mark = hashlib.sha256("\0".join(about).encode()).hexdigest()[:40]
    return odf / "cache" / "differences" / f"{mark}.parquet"


def _read_cached(path: Path) -> RowDiff | None:
    with suppress(*parquet_errors(), msgspec.MsgspecError, KeyError, RecursionError):
        metadata = pq.read_metadata(path).metadata or {}
        return _row_diff(path, msgspec.json.decode(metadata[_METADATA_KEY], type=_FileMetadata))
    return None


def _row_diff(path: Path, about: _FileMetadata) -> RowDiff:
    total = about.counted
    by_column = {name: count for name, count in total.by_column.items() if count}
    return RowDiff(
        path,
        about.key,
        total.added,
        total.removed,
        total.changed,
        total.unchanged,
        by_column,
        about.columns,
    )


class _Comparison:
    """One comparison: partitions the rows of both sides, and collects those that differ in files."""

    def __init__(
        self, folder: Path, columns: Sequence[AlignedColumn], reporter: Reporter, partition_bytes: int
    ) -> None:
        self._folder, self._columns, self._reporter = folder, columns, reporter
        self._partition_bytes = partition_bytes
        self._parts: list[Path] = []

    def by_key(self, old: Scan, new: Scan, *, one_chain: bool) -> DiffCounts:
        """Compare two states with unique keys."""
        counted = DiffCounts()
        places = DiffInput(old), DiffInput(new)
        if one_chain:
            self._reporter.phase("find candidates")
            places = self._unshared_rows(old, new)
            counted.unchanged = old.row_count - (pc.sum(places[0].selected).as_py() or 0)
        for before, after in self._partitions(places, multisets=False):
            self._spill(compare_keyed(before, after, self._columns, counted))
        return counted

    def _unshared_rows(self, old: Scan, new: Scan) -> tuple[DiffInput, DiffInput]:
        """Return the rows whose offsets the other side lacks: rows of a changelog are immutable."""
        there = [self._offsets(rows) for rows in (old, new)]
        wanted = [_not_among(there[at], there[1 - at]) for at in (0, 1)]
        return DiffInput(old, _ranges_of(wanted[0]), wanted[0]), DiffInput(
            new, _ranges_of(wanted[1]), wanted[1]
        )

    def _offsets(self, rows: Scan) -> pa.Array:
        offsets: list[pa.Array] = [pa.array([], pa.int64())]
        for batch in rows.select([rows.vocabulary.offset_column]).batches(self._reporter):
            offsets.append(batch.column(0).cast(pa.int64()))
        return pa.concat_arrays(offsets)

    def compare_multisets(self, old: Scan, new: Scan, sides: DiffSides) -> DiffCounts:
        """Compare rows as multisets."""
        counted = DiffCounts()
        if not self._columns:  # without a schema there are no rows
            self._spill(
                pa.table({CHANGE_COLUMN: pa.array([], pa.string()), COUNT_COLUMN: pa.array([], pa.int64())})
            )
            return counted
        self._reporter.phase("count")
        before = self._count_live(old)
        if sides.one_chain:  # versions of one changelog differ only by the rows between them
            less, more = sorted((old.row_count, new.row_count))
            longer = new if new.row_count == more else old
            between = [(less, more)] if less < more else []
            places = (DiffInput(longer, between, weight=1 if longer is new else -1),)
        else:
            places = DiffInput(old, weight=-1), DiffInput(new)
        for parts in self._partitions(places, multisets=True):
            self._spill(compare_multisets(parts, self._columns, counted))
        counted.unchanged = max(before - counted.removed, 0)
        return counted

    def _count_live(self, rows: Scan) -> int:
        """Return the number of rows without retracted ones."""
        total = 0
        if not rows.row_count:
            return total
        for batch in rows.select([rows.vocabulary.operation_type_column]).batches(self._reporter):
            away = (
                pc.sum(pc.is_in(batch.column(0).cast(pa.int64()), pa.array([1, 2], pa.int64()))).as_py() or 0
            )
            total += batch.num_rows - 2 * away
        return total

    def _partitions(self, places: Sequence[DiffInput], *, multisets: bool) -> Iterator[list[pa.Table]]:
        """Yield the rows of all inputs partition by partition. Equal rows are in the same partition."""
        partitions = partition_count(places, self._partition_bytes)
        files: list[list[Path]] = []
        for at, place in enumerate(places):
            self._reporter.phase(("read older", "read newer")[at] if len(places) == 2 else "read")
            folder = self._folder / f"side-{at}"
            folder.mkdir()
            layout = ComparisonLayout(self._columns, old=len(places) == 2 and at == 0, multisets=multisets)
            files.append(partition_rows(place, layout, folder, partitions, self._reporter))
        for partition in range(partitions):
            self._reporter.phase(
                "compare" if partitions == 1 else f"compare, part {partition + 1} of {partitions}"
            )
            self._reporter.raise_if_cancelled()
            yield [_table(listed[partition]) for listed in files]

    def _spill(self, table: pa.Table) -> None:
        path = self._folder / f"part-{len(self._parts)}"
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        self._parts.append(path)

    def write(self, path: Path, columns: Sequence[DiffColumn], about: _FileMetadata) -> None:
        """Write all rows that differ, sorted by the key if they fit in memory."""
        self._reporter.phase("write")
        names = [CHANGE_COLUMN]
        for column in columns:
            names += [column.new or ""] if column.key else [name for name in (column.old, column.new) if name]
        done = 0
        metadata = {_METADATA_KEY: msgspec.json.encode(about)}
        writer: pq.ParquetWriter | None = None
        keys = [column.new or "" for column in columns if column.key]
        try:
            for table in self._spilled_tables():
                for piece in _sorted_pieces(table, names, keys):
                    if writer is None:
                        schema = piece.schema.with_metadata(metadata)
                        writer = pq.ParquetWriter(path, schema, compression="zstd", compression_level=1)
                    writer.write_table(piece.replace_schema_metadata(metadata), row_group_size=GROUP_ROWS)
                    done += piece.num_rows
                    self._reporter.set_amounts(rows=done)
                    self._reporter.raise_if_cancelled()
        finally:
            if writer is not None:
                writer.close()

    def _spilled_tables(self) -> Iterator[pa.Table]:
        if sum(path.stat().st_size for path in self._parts) <= _SORTED_BYTES:
            yield pa.concat_tables([_table(path) for path in self._parts])
            return
        yield from map(_table, self._parts)


def _table(path: Path) -> pa.Table:
    with pa.OSFile(str(path)) as source, pa.ipc.open_stream(source) as stream:
        return stream.read_all()


def _not_among(offsets: pa.Array, others: pa.Array) -> pa.Array:
    """Return a mask of the offsets that are not among the others."""
    if not len(offsets) or not len(others):
        return pc.fill_null(pa.nulls(len(offsets), pa.bool_()), True)
    max_offset = max(pc.max(offsets).as_py(), pc.max(others).as_py())
    true = pc.fill_null(pa.nulls(len(others), pa.bool_()), True)
    there = pc.fill_null(pc.scatter(true, others, max_index=max_offset), False)
    return pc.invert(pc.take(there, offsets))


def _ranges_of(mask: pa.Array) -> list[RowRange]:
    """Return ranges that contain all true rows. Small gaps are not worth a new range."""
    row_ranges: list[RowRange] = []
    for row in pc.indices_nonzero(mask).to_pylist():
        if row_ranges and row - row_ranges[-1][1] < _NEAR:
            row_ranges[-1] = (row_ranges[-1][0], row + 1)
        else:
            row_ranges.append((row, row + 1))
    return row_ranges


def _sorted_pieces(table: pa.Table, names: Sequence[str], keys: Sequence[str]) -> Iterator[pa.Table]:
    """Yield rows of the file, sorted by the key, each repeated by its count."""
    times = table.column(COUNT_COLUMN) if COUNT_COLUMN in table.column_names else None
    table = table.drop_columns([COUNT_COLUMN]) if times is not None else table
    table = table.rename_columns(list(names))
    by = [(name, "ascending") for name in keys if not pa.types.is_nested(table.schema.field(name).type)]
    order = pc.sort_indices(table, sort_keys=[*by, (CHANGE_COLUMN, "descending")])
    for start in range(0, max(len(order), 1), GROUP_ROWS):
        rows = order.slice(start, GROUP_ROWS)
        piece = table.take(rows)
        many = None if times is None else times.take(rows).to_pylist()
        if many is None or all(count == 1 for count in many):
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
