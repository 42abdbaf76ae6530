"""Statistics of columns: computed once for each state of a dataset, and kept in the workspace's cache.

Beside what people read there is, for each dataset, what was counted up to its newest slice: when rows
come, only theirs are looked at.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import replace
from pyarrow import types

from odf_engine.data.parquet_reader import UNREADABLE
from odf_engine.data.sketch import Sketch
from odf_engine.data.text_forms import texts
from odf_engine.errors import OdfError
from odf_engine.progress import Reporter
from odf_engine.workspace.described import (
    VERSION,
    ColumnStatistics,
    Frequent,
    Statistics,
    known_statistics,
    statistics_path,
)
from odf_engine.workspace.kept import keep_newest, write_whole
from odf_engine.workspace.stored import StoredRows, file_metadata

_MOST_FREQUENT: Final = 20
_LONGEST_TEXT: Final = 200
_MOST_FILES: Final = 64
_FILES: Final = 200
_BYTES: Final = 200_000_000


class _Progress(msgspec.Struct):
    """What was counted in the first ``parts`` files, which ``mark`` tells apart from all others."""

    parts: int
    mark: str
    sketches: list[bytes]


def describe(odf: Path, rows: StoredRows, reporter: Reporter, dataset: str | None = None) -> Statistics:
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
    if (known := known_statistics(odf, rows.mark)) is not None:
        return known
    reporter.phase("count")
    kept = None if dataset is None else odf / "cache" / "statistics" / f"{_digest(dataset)}.progress"
    sketches, parts = _resumed(kept, rows)
    done = sum(part.rows for part in rows.parts[:parts])
    for batch in rows.batches(first_part=parts):
        for sketch, column in zip(sketches, batch.columns, strict=True):
            sketch.add(column)
            reporter.check()
        done += batch.num_rows
        reporter.amount(rows=done, total_rows=rows.row_count)
    found = Statistics(done, [_said(*each) for each in zip(rows.columns, sketches, strict=True)])
    path = statistics_path(odf, rows.mark)
    write_whole(path, msgspec.json.encode(found))
    if kept is not None:
        progress = _Progress(
            len(rows.parts), _mark(rows, len(rows.parts)), [each.dump() for each in sketches]
        )
        write_whole(kept, msgspec.msgpack.encode(progress))
    keep_newest(path.parent, _FILES, _BYTES)
    return found


def _resumed(kept: Path | None, rows: StoredRows) -> tuple[list[Sketch], int]:
    """What was counted before, and of how many files it is."""
    if kept is not None and kept.is_file():
        with suppress(OSError, ValueError, pa.ArrowException, msgspec.MsgspecError, OdfError, RecursionError):
            progress = msgspec.msgpack.decode(kept.read_bytes(), type=_Progress)
            if progress.parts <= len(rows.parts) and progress.mark == _mark(rows, progress.parts):
                pairs = zip(rows.columns, progress.sketches, strict=True)
                return [Sketch.load(field.type, data) for field, data in pairs], progress.parts
    return [Sketch(field.type) for field in rows.columns], 0


def _mark(rows: StoredRows, parts: int) -> str:
    names = [f"{field.name}\0{field.type}" for field in rows.columns]
    return _digest(str(VERSION), *names, *(part.mark for part in rows.parts[:parts]))


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0\0".join(texts).encode()).hexdigest()[:40]


def _said(field: pa.Field, sketch: Sketch) -> ColumnStatistics:
    distinct, exact = sketch.distinct() or (None, True)
    values, counts = sketch.frequent(_MOST_FREQUENT)
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
        frequent=[Frequent(text or "", count) for text, count in zip(_short(values), counts, strict=True)],
        lost=sketch.lost,
        bins=sketch.histogram.counts(),
    )


def _short(values: pa.Array) -> Sequence[str | None]:
    return [text and text[:_LONGEST_TEXT] for text in texts(values).to_pylist()]


# --- Without looking at rows -----------------------------------------------------------------------


def told_by_files(rows: StoredRows) -> Statistics:
    """What files tell of themselves: missing values, and ends of numbers and times, where all tell them."""
    try:
        told = [file_metadata(part) for part in rows.parts[:_MOST_FILES]]
    except OdfError:  # reading rows will tell what is wrong; the columns are known all the same
        told = []
    whole = len(told) == len(rows.parts)
    columns: list[ColumnStatistics] = []
    for field in rows.columns:
        try:
            columns.append(_told(field, told if whole else None))
        except (*UNREADABLE, ValueError, OverflowError):  # texts that are not UTF-8, dates that there are not
            columns.append(_told(field, None))
    return Statistics(rows.row_count, columns)


def _told(field: pa.Field, told: Sequence[pq.FileMetaData] | None) -> ColumnStatistics:
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
    least, greatest = texts(pa.array([min(ends), max(ends)], field.type)).to_pylist()
    return replace(silent, least=least, greatest=greatest)


def _chunks(group: pq.RowGroupMetaData) -> Iterator[pq.ColumnChunkMetaData]:
    return (group.column(at) for at in range(group.num_columns))
