"""Column statistics: computed incrementally, cached for each state of a dataset."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from odf_engine.errors import OdfError
from odf_engine.progress import Reporter
from odf_engine.storage.atomic_files import evict_oldest, read_small, replace_file

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from odf_engine.data.column_sketch import ColumnSketch
    from odf_engine.views.scan import Scan


VERSION: Final = 1


class FrequentValue(msgspec.Struct, frozen=True):
    """A value as text, and how often it is there."""

    value: str
    count: int


class ColumnStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to say of a column's values; values are texts as in CSV, None is not known.

    Attributes:
        nulls: how many values are missing, ``not_numbers``: how many are NaN.
        distinct: how many different values there are; an estimate unless ``exact``.
        shortest, longest: characters of texts, bytes of binary values, items of lists.
        frequent: most frequent first; their counts are right unless ``exact`` is false, and then too low
            by at most ``lost``.
        bins: counts in parts of equal width of the range of numbers and times.
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
    """Statistics of all columns of these rows."""

    rows: int
    columns: list[ColumnStatistics]
    version: int = VERSION


def statistics_path(odf: Path, mark: str) -> Path:
    """The file with the statistics of rows, by the mark that tells them apart."""
    return odf / "cache" / "statistics" / f"{mark}.json"


def load_statistics(odf: Path, mark: str) -> Statistics | None:
    """The statistics of rows, if somebody has computed them."""
    with suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        found = msgspec.json.decode(read_small(statistics_path(odf, mark)), type=Statistics)
        return found if found.version == VERSION else None
    return None


_MAX_FREQUENT: Final = 20
_MAX_TEXT: Final = 200
_MAX_FILES: Final = 64
_FILES: Final = 200
_BYTES: Final = 200_000_000


class _Progress(msgspec.Struct):
    """What was counted in the first ``parts`` files, which ``mark`` tells apart from all others."""

    parts: int
    mark: str
    sketches: list[bytes]


def compute_statistics(odf: Path, rows: Scan, reporter: Reporter, dataset: str | None = None) -> Statistics:
    """Computes statistics in one pass, or in one over what came since the last time.

    Args:
        odf: the workspace's ``.odf`` folder; its cache keeps the result.
        rows: what it is about.
        reporter: hears of rows, and is asked whether to stop.
        dataset: the name of what is kept for the next time; by default nothing is.

    Raises:
        NotFound, BadData: rows that cannot be read.
        Cancelled: the reporter was cancelled.
    """
    if (known := load_statistics(odf, rows.fingerprint)) is not None:
        return known
    reporter.phase("count")
    kept = None if dataset is None else odf / "cache" / "statistics" / f"{_digest(dataset)}.progress"
    sketches, parts = _resumed(kept, rows)
    done = sum(part.rows for part in rows.files[:parts])
    for batch in rows.rows([(done, rows.row_count)]).batches():
        for sketch, column in zip(sketches, batch.columns, strict=True):
            sketch.add(column)
            reporter.raise_if_cancelled()
        done += batch.num_rows
        reporter.set_amounts(rows=done, total_rows=rows.row_count)
    found = Statistics(done, [_said(*each) for each in zip(rows.schema, sketches, strict=True)])
    path = statistics_path(odf, rows.fingerprint)
    replace_file(path, msgspec.json.encode(found))
    if kept is not None:
        progress = _Progress(
            len(rows.files), _mark(rows, len(rows.files)), [each.dump() for each in sketches]
        )
        replace_file(kept, msgspec.msgpack.encode(progress))
    evict_oldest(path.parent, _FILES, _BYTES)
    return found


def _resumed(kept: Path | None, rows: Scan) -> tuple[list[ColumnSketch], int]:
    """What was counted before, and of how many files it is."""
    import pyarrow as pa

    from odf_engine.data.column_sketch import ColumnSketch

    if kept is not None and kept.is_file():
        with suppress(OSError, ValueError, pa.ArrowException, msgspec.MsgspecError, OdfError, RecursionError):
            progress = msgspec.msgpack.decode(kept.read_bytes(), type=_Progress)
            if progress.parts <= len(rows.files) and progress.mark == _mark(rows, progress.parts):
                pairs = zip(rows.schema, progress.sketches, strict=True)
                return [ColumnSketch.load(field.type, data) for field, data in pairs], progress.parts
    return [ColumnSketch(field.type) for field in rows.schema], 0


def _mark(rows: Scan, parts: int) -> str:
    names = [f"{field.name}\0{field.type}" for field in rows.schema]
    return _digest(str(VERSION), *names, *(part.fingerprint for part in rows.files[:parts]))


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0\0".join(texts).encode()).hexdigest()[:40]


def _said(field: pa.Field, sketch: ColumnSketch) -> ColumnStatistics:
    distinct, exact = sketch.distinct() or (None, True)
    values, counts = sketch.heavy_hitters(_MAX_FREQUENT)
    least, greatest = [None, None] if sketch.ends is None else _short(sketch.ends)
    return ColumnStatistics(
        name=field.name,
        type=str(field.type),
        nulls=sketch.nulls,
        not_numbers=sketch.not_numbers,
        distinct=distinct,
        exact=exact,
        least=least,
        greatest=greatest,
        mean=sketch.mean(),
        shortest=sketch.shortest,
        longest=sketch.longest,
        frequent=[
            FrequentValue(text or "", count) for text, count in zip(_short(values), counts, strict=True)
        ],
        lost=sketch.lost,
        bins=sketch.histogram.counts(),
    )


def _short(values: pa.Array) -> Sequence[str | None]:
    from odf_engine.data.arrow_compute import to_text

    return [text and text[:_MAX_TEXT] for text in to_text(values).to_pylist()]


# --- Without looking at rows -----------------------------------------------------------------------


def statistics_from_footers(rows: Scan) -> Statistics:
    """What files tell of themselves: missing values, and ends of numbers and times, where all tell them."""
    from odf_engine.data.parquet_reader import UNREADABLE  # loads Arrow: not for the first paint

    told: list[pq.FileMetaData] = []
    try:
        for part in rows.files[:_MAX_FILES]:
            with part.open() as file:
                told.append(file.metadata)
    except OdfError:  # reading rows will tell what is wrong; the columns are known all the same
        told.clear()
    whole = len(told) == len(rows.files)
    columns: list[ColumnStatistics] = []
    for field in rows.schema:
        try:
            columns.append(_told(field, told if whole else None))
        except (*UNREADABLE, ValueError, OverflowError):  # texts that are not UTF-8, dates that there are not
            columns.append(_told(field, None))
    return Statistics(rows.row_count, columns)


def _told(field: pa.Field, told: Sequence[pq.FileMetaData] | None) -> ColumnStatistics:
    import pyarrow as pa
    from pyarrow import types

    from odf_engine.data.arrow_compute import to_text

    silent = ColumnStatistics(name=field.name, type=str(field.type))
    if told is None:
        return silent
    nulls = 0
    ends: list[Any] = []
    for metadata in told:
        names = metadata.schema.to_arrow_schema().names
        groups = [metadata.row_group(at) for at in range(metadata.num_row_groups)]
        if field.name not in names:
            nulls += metadata.num_rows
            continue
        for group in groups:
            found = next((each for each in _chunks(group) if each.path_in_schema == field.name), None)
            about = found.statistics if found is not None else None
            if about is None or not about.has_null_count:
                return silent
            nulls += about.null_count
            if about.has_min_max:
                ends += [about.min, about.max]
            elif about.null_count < group.num_rows:
                ends = [None]
    silent = replace(silent, nulls=nulls)
    # Ends of texts may have been cut, and those of floating point numbers say nothing of NaN.
    exact = types.is_integer(field.type) or types.is_temporal(field.type) or types.is_decimal(field.type)
    if not exact or not ends or None in ends:
        return silent
    least, greatest = to_text(pa.array([min(ends), max(ends)], field.type)).to_pylist()
    return replace(silent, least=least, greatest=greatest)


def _chunks(group: pq.RowGroupMetaData) -> Iterator[pq.ColumnChunkMetaData]:
    return (group.column(at) for at in range(group.num_columns))
