"""Slices of inputs, and their division into batches by the watermarks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from odf_engine.base.progress import Reporter
from odf_engine.data.arrow_compute import pc
from odf_engine.data.parquet.parquet_reader import open_parquet, parquet_errors, read_bounded
from odf_engine.data.parquet.slices import copy_rows, read_batches
from odf_engine.errors import BadData, NotFound
from odf_engine.metadata.model import DatasetVocabulary, TransformRequestInput
from odf_engine.spark.stateful.stateful_query import StreamingPlan

END_OF_TIME: Final = 253_402_300_799_000
"""A watermark in milliseconds after all rows: the end of the year 9999."""
_MILLISECOND = datetime(1970, 1, 1, microsecond=1000) - datetime(1970, 1, 1)


@dataclass(frozen=True)
class Slice:
    """A slice of an input.

    Attributes:
        path: path of the file.
        input_index: index of the input.
        added: system time of its commit, in milliseconds.
        earliest: minimum event time in milliseconds, or None without rows.
        changes: whether it has retractions or corrections.
        rows: number of its rows.
    """

    path: Path
    input_index: int
    added: int
    earliest: int | None
    changes: bool
    rows: int


@dataclass(frozen=True)
class Batch:
    """The slices of one batch.

    Attributes:
        slices: the slices in the order of their commits.
        watermark: watermark after them, in milliseconds, or None if unknown.
    """

    slices: Sequence[Slice]
    watermark: int | None


@dataclass(frozen=True)
class Watermarks:
    """The latest watermark of each input, by its alias, in milliseconds."""

    by_alias: Mapping[str, int]

    def combined(self, aliases: Sequence[str]) -> int | None:
        """Return the minimum of the watermarks, or None if an input has none."""
        watermarks = [self.by_alias.get(alias) for alias in aliases]
        known = [watermark for watermark in watermarks if watermark is not None]
        return min(known, default=None) if len(known) == len(watermarks) else None

    def after(self, inputs: Sequence[TransformRequestInput], until: int | None) -> Watermarks:
        """Return the watermarks just before a time, or None for the end of the transaction."""
        updated = dict(self.by_alias)
        for query_input in inputs:
            for watermark in query_input.explicit_watermarks:
                if until is None or watermark.system_time.ms < until:
                    alias = query_input.query_alias
                    updated[alias] = max(updated.get(alias, watermark.event_time.ms), watermark.event_time.ms)
        return Watermarks(updated)


def read_slices(inputs: Sequence[TransformRequestInput]) -> list[Slice]:
    """Read the properties of a transaction's slices, in the order of their commits.

    A slice with the rows of several commits is copied to one file for each: results can depend on commits.

    Raises:
        NotFound, BadData: a slice is missing or damaged.
    """
    slices = [
        item
        for index, input in enumerate(inputs)
        for path in input.data_paths
        for item in _slices_of_commits(Path(path), index, input)
    ]
    return sorted(slices, key=lambda data_slice: data_slice.added)


def batches_by_slice(
    slices: Sequence[Slice], inputs: Sequence[TransformRequestInput], before: Watermarks, *, separate: bool
) -> Iterator[Batch]:
    """Yield the batches of a transaction. Larger batches produce the same rows as single slices.

    Args:
        slices: in order.
        inputs: the inputs, with the new watermarks.
        before: watermarks at the start.
        separate: every slice must be a separate batch.
    """
    aliases = [item.query_alias for item in inputs]
    watermark_before = before.combined(aliases)
    pending: list[Slice] = []
    for added, group in groupby(slices, key=lambda item: item.added):
        new = list(group)
        watermark = before.after(inputs, added).combined(aliases)
        if watermark is None or (watermark_before is not None and watermark <= watermark_before):
            watermark = watermark_before
        late = (
            watermark is not None
            and watermark != watermark_before
            and any(is_late(item, watermark) for item in new)
        )
        if late or (separate and pending):
            if pending or not separate:
                yield Batch(pending, watermark)
            pending, watermark_before = [], watermark
        pending += new
    last = before.after(inputs, None).combined(aliases)
    if pending or (last != watermark_before and not separate):
        yield Batch(pending, last)


def batches_by_watermark(
    slices: Sequence[Slice], inputs: Sequence[TransformRequestInput], before: Watermarks, *, separate: bool
) -> Iterator[Batch]:
    """Yield the batches for queries that emit rows when the watermark reaches their time (as-of joins).

    Also for queries whose output depends on each commit.

    Args:
        slices: in order.
        inputs: the inputs, with the new watermarks.
        before: watermarks at the start.
        separate: every commit must be a separate batch, even one with a watermark alone.
    """
    aliases = [item.query_alias for item in inputs]
    batch_watermark = reached = before.combined(aliases)
    pending: list[Slice] = []
    times = {item.added for item in slices}
    times |= {watermark.system_time.ms for item in inputs for watermark in item.explicit_watermarks}
    for time in sorted(times):
        new = [item for item in slices if item.added == time]
        # A version may arrive for the exact time up to which rows were emitted.
        late = reached is not None and any(is_late(item, reached + 1) for item in new)
        if (late or separate) and (pending or reached != batch_watermark):
            yield Batch(pending, reached)
            pending, batch_watermark = [], reached
        pending += new
        watermark = before.after(inputs, time + 1).combined(aliases)
        reached = watermark if reached is None or (watermark is not None and watermark > reached) else reached
    if pending or reached != batch_watermark:
        yield Batch(pending, reached)


def split_batches(
    slices: Sequence[Slice],
    inputs: Sequence[TransformRequestInput],
    before: Watermarks,
    query: StreamingPlan,
    *,
    as_of: bool,
) -> list[Batch]:
    """Return the batches of a transaction of a query; ``as_of`` if it has as-of joins.

    The other arguments are as for :func:`batches_by_watermark`.
    """
    split = batches_by_watermark if as_of or query.by_commit else batches_by_slice
    return list(split(slices, inputs, before, separate=query.by_commit or query.mode == "update"))


def is_late(slice: Slice, watermark: int) -> bool:
    """Return whether a slice has rows before a watermark in milliseconds."""
    return slice.earliest is not None and slice.earliest < watermark


def _slices_of_commits(path: Path, input_index: int, input: TransformRequestInput) -> Iterator[Slice]:
    """Yield a slice, or the rows of each commit in it. Each commit has one system time."""
    vocab = input.vocab
    data_slice, last_added = read_slice(path, input_index, vocab)
    if data_slice.added == last_added:
        yield data_slice
        return
    times = pa.chunked_array([batch.column(0) for batch in read_batches(path, [vocab.system_time_column])])
    in_milliseconds = times.cast(pa.timestamp("ms", "UTC"), safe=False).combine_chunks()
    ends = pc.run_end_encode(in_milliseconds).run_ends.to_pylist()
    for first, stop in pairwise([0, *ends]):
        copy = Path(input.schema_file).with_name(f"{input_index}-{path.stem[-16:]}-commit-{first}.parquet")
        if not copy.exists():
            copy_rows(path, copy, (first, stop), vocab=vocab, reporter=Reporter())
        yield read_slice(copy, input_index, vocab)[0]


def read_slice(path: Path, input_index: int, vocab: DatasetVocabulary) -> tuple[Slice, int]:
    """Return a slice, and the latest system time of its rows in milliseconds."""
    names = (vocab.system_time_column, vocab.event_time_column, vocab.operation_type_column)
    try:
        with open_parquet(path) as file:
            rows = file.metadata.num_rows
            ranges = _ranges_from_statistics(file, names) or _ranges_from_rows(path, names)
    except FileNotFoundError:
        raise NotFound(
            "slice is missing", where=str(path), hint="run odf verify to find all errors"
        ) from None
    except parquet_errors() as error:
        raise BadData(f"the data slice cannot be read: {error}", where=str(path)) from error
    added, times, operations = ranges
    data_slice = Slice(
        path,
        input_index,
        _to_milliseconds(added[0]) or 0,
        _to_milliseconds(times[0]),
        operations[1] is not None and operations[1] > 0,
        rows,
    )
    return data_slice, _to_milliseconds(added[1]) or 0


def _ranges_from_statistics(file: pq.ParquetFile, names: Sequence[str]) -> list[tuple[Any, Any]] | None:
    """Return minimum and maximum of columns from the file's statistics, or None without statistics."""
    metadata = file.metadata
    column_indexes = {metadata.schema.column(index).path: index for index in range(metadata.num_columns)}
    ranges: list[tuple[Any, Any]] = []
    for name in names:
        parts = [
            metadata.row_group(group).column(column_indexes[name]).statistics
            for group in range(metadata.num_row_groups)
        ]
        if not parts or not all(part is not None and part.has_min_max for part in parts):
            return None
        ranges.append((min(part.min for part in parts), max(part.max for part in parts)))
    return ranges


def _ranges_from_rows(path: Path, names: Sequence[str]) -> list[tuple[Any, Any]]:
    ranges: list[tuple[Any, Any]] = []
    for name in names:
        ends = [pc.min_max(batch.column(0)) for batch in read_bounded(path, [name])]
        minima = [end["min"].as_py() for end in ends if end["min"].is_valid]
        greatest = [end["max"].as_py() for end in ends if end["max"].is_valid]
        ranges.append((min(minima, default=None), max(greatest, default=None)))
    return ranges


def _to_milliseconds(value: date | datetime | None) -> int | None:
    if value is None:
        return None
    if not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day, tzinfo=UTC)
    if value.tzinfo is None:
        value = value.replace(tzinfo=UTC)
    return (value - datetime(1970, 1, 1, tzinfo=UTC)) // _MILLISECOND


def late_slices(batches: Iterable[Batch], watermarks: Iterable[int | None]) -> Iterator[Slice]:
    """Yield the slices with rows at or before the watermark before their batch, in milliseconds."""
    for batch, watermark in zip(batches, watermarks, strict=False):
        if watermark is not None:
            yield from (data_slice for data_slice in batch.slices if is_late(data_slice, watermark + 1))
