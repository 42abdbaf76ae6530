"""Column statistics: computed incrementally, cached for each version of a dataset."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from odf_engine.base.arrow import pa, pq, types
from odf_engine.base.atomic_files import evict_oldest, read_small_file, replace_file
from odf_engine.base.progress import Reporter
from odf_engine.data.arrow_compute import to_text
from odf_engine.data.column_sketch import ColumnSketch
from odf_engine.data.parquet.parquet_reader import parquet_errors
from odf_engine.errors import OdfError

if TYPE_CHECKING:
    from odf_engine.rows.scan import Scan


VERSION: Final = 1


class FrequentValue(msgspec.Struct, frozen=True):
    """A value as text, and its count."""

    value: str
    count: int


class ColumnStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of a column. Values are texts as in CSV; None is unknown.

    Attributes:
        nulls: number of nulls; ``not_numbers``: number of NaN values.
        distinct: number of distinct values; an estimate unless ``exact``.
        shortest, longest: characters of texts, bytes of binary values, items of lists.
        frequent: most frequent first. The counts are exact if ``exact``, otherwise too low by at most
            ``lost``.
        bins: counts in intervals of equal width of the range of numbers and times.
    """

    name: str
    type: str
    nulls: int | None = None
    not_numbers: int = 0
    distinct: int | None = None
    exact: bool = True
    least: str | None = None
    greatest: str | None = None
    mean: float | None = None
    shortest: int | None = None
    longest: int | None = None
    frequent: list[FrequentValue] = []
    lost: int = 0
    bins: list[int] = []


class Statistics(msgspec.Struct, frozen=True):
    """Statistics of all columns."""

    rows: int
    columns: list[ColumnStatistics]
    version: int = VERSION


def statistics_path(odf: Path, fingerprint: str) -> Path:
    """Return the path of the cached statistics of rows with a fingerprint."""
    return odf / "cache" / "statistics" / f"{fingerprint}.json"


def load_statistics(odf: Path, fingerprint: str) -> Statistics | None:
    """Return the cached statistics of rows, or None."""
    with suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        statistics = msgspec.json.decode(read_small_file(statistics_path(odf, fingerprint)), type=Statistics)
        return statistics if statistics.version == VERSION else None
    return None


_MAX_FREQUENT: Final = 20
_MAX_TEXT: Final = 200
_MAX_FILES: Final = 64
_FILES: Final = 200
_BYTES: Final = 200_000_000


class _Progress(msgspec.Struct):
    """Sketches of the first ``parts`` files; ``mark`` is the fingerprint of these."""

    parts: int
    mark: str
    sketches: list[bytes]


def compute_statistics(odf: Path, rows: Scan, reporter: Reporter, dataset: str | None = None) -> Statistics:
    """Compute statistics in one pass over all rows, or over those since the last computation.

    Args:
        odf: the workspace's ``.odf`` folder, which contains the cache.
        rows: the rows.
        reporter: receives rows, and can cancel.
        dataset: the name of the sketches stored for the next computation; by default none are stored.

    Raises:
        NotFound, BadData: rows cannot be read.
        Cancelled: the reporter was cancelled.
    """
    if (known := load_statistics(odf, rows.fingerprint)) is not None:
        return known
    reporter.phase("count")
    cache_file = None if dataset is None else odf / "cache" / "statistics" / f"{_digest(dataset)}.progress"
    sketches, parts = _load_progress(cache_file, rows)
    done = sum(part.rows for part in rows.files[:parts])
    for batch in rows.rows([(done, rows.row_count)]).batches():
        for sketch, column in zip(sketches, batch.columns, strict=True):
            sketch.add(column)
            reporter.raise_if_cancelled()
        done += batch.num_rows
        reporter.set_amounts(rows=done, total_rows=rows.row_count)
    statistics = Statistics(
        done, [_column_statistics(*pair) for pair in zip(rows.schema, sketches, strict=True)]
    )
    path = statistics_path(odf, rows.fingerprint)
    replace_file(path, msgspec.json.encode(statistics))
    if cache_file is not None:
        progress = _Progress(
            len(rows.files), _fingerprint(rows, len(rows.files)), [sketche.dump() for sketche in sketches]
        )
        replace_file(cache_file, msgspec.msgpack.encode(progress))
    evict_oldest(path.parent, _FILES, _BYTES)
    return statistics


def _load_progress(cache_file: Path | None, rows: Scan) -> tuple[list[ColumnSketch], int]:
    """Return stored sketches, and the number of files that they contain."""
    if cache_file is not None and cache_file.is_file():
        with suppress(OSError, ValueError, pa.ArrowException, msgspec.MsgspecError, OdfError, RecursionError):
            progress = msgspec.msgpack.decode(cache_file.read_bytes(), type=_Progress)
            if progress.parts <= len(rows.files) and progress.mark == _fingerprint(rows, progress.parts):
                pairs = zip(rows.schema, progress.sketches, strict=True)
                return [ColumnSketch.load(field.type, data) for field, data in pairs], progress.parts
    return [ColumnSketch(field.type) for field in rows.schema], 0


def _fingerprint(rows: Scan, parts: int) -> str:
    names = [f"{field.name}\0{field.type}" for field in rows.schema]
    return _digest(str(VERSION), *names, *(part.fingerprint for part in rows.files[:parts]))


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0\0".join(texts).encode()).hexdigest()[:40]


def _column_statistics(field: pa.Field, sketch: ColumnSketch) -> ColumnStatistics:
    distinct, exact = sketch.distinct() or (None, True)
    values, counts = sketch.heavy_hitters(_MAX_FREQUENT)
    low, high = [None, None] if sketch.ends is None else _truncated_texts(sketch.ends)
    return ColumnStatistics(
        name=field.name,
        type=str(field.type),
        nulls=sketch.nulls,
        not_numbers=sketch.not_numbers,
        distinct=distinct,
        exact=exact,
        least=low,
        greatest=high,
        mean=sketch.mean(),
        shortest=sketch.shortest,
        longest=sketch.longest,
        frequent=[
            FrequentValue(text or "", count)
            for text, count in zip(_truncated_texts(values), counts, strict=True)
        ],
        lost=sketch.lost,
        bins=sketch.histogram.counts(),
    )


def _truncated_texts(values: pa.Array) -> Sequence[str | None]:
    return [text and text[:_MAX_TEXT] for text in to_text(values).to_pylist()]


def statistics_from_footers(rows: Scan) -> Statistics:
    """Return the statistics in the footers of files, without decoding rows.

    These are nulls, and bounds of numbers and times, if all files declare them.
    """
    footers: list[pq.FileMetaData] = []
    try:
        for part in rows.files[:_MAX_FILES]:
            with part.open() as file:
                footers.append(file.metadata)
    except OdfError:  # readers of the rows raise it; the columns are known anyway
        footers.clear()
    whole = len(footers) == len(rows.files)
    columns: list[ColumnStatistics] = []
    for field in rows.schema:
        try:
            columns.append(_footer_statistics(field, footers if whole else None))
        except (*parquet_errors(), ValueError, OverflowError):  # texts that are not UTF-8, dates out of range
            columns.append(_footer_statistics(field, None))
    return Statistics(rows.row_count, columns)


def _footer_statistics(field: pa.Field, footers: Sequence[pq.FileMetaData] | None) -> ColumnStatistics:
    unknown = ColumnStatistics(name=field.name, type=str(field.type))
    if footers is None:
        return unknown
    nulls = 0
    ends: list[Any] = []
    for metadata in footers:
        names = metadata.schema.to_arrow_schema().names
        groups = [metadata.row_group(at) for at in range(metadata.num_row_groups)]
        if field.name not in names:
            nulls += metadata.num_rows
            continue
        for group in groups:
            entry = next((chunk for chunk in _chunks(group) if chunk.path_in_schema == field.name), None)
            about = entry.statistics if entry is not None else None
            if about is None or not about.has_null_count:
                return unknown
            nulls += about.null_count
            if about.has_min_max:
                ends += [about.min, about.max]
            elif about.null_count < group.num_rows:
                ends = [None]
    unknown = replace(unknown, nulls=nulls)
    # Bounds of texts may be truncated, and those of floating point numbers ignore NaN.
    exact = types.is_integer(field.type) or types.is_temporal(field.type) or types.is_decimal(field.type)
    if not exact or not ends or None in ends:
        return unknown
    low, high = to_text(pa.array([min(ends), max(ends)], field.type)).to_pylist()
    return replace(unknown, least=low, greatest=high)


def _chunks(group: pq.RowGroupMetaData) -> Iterator[pq.ColumnChunkMetaData]:
    return (group.column(at) for at in range(group.num_columns))
