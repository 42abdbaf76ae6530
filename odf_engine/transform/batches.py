"""How a transaction of a query with state is cut into batches.

What a row is late for is said by the watermark that its input had when the row was added. So a
transaction that takes in several slices gives the same rows as one transaction for each of them: a
batch ends before a slice that has rows from before the watermark known by then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq

from odf_engine.data.kernels import pc
from odf_engine.data.parquet_reader import UNREADABLE, open_parquet, read_bounded
from odf_engine.errors import BadData, NotFound
from odf_engine.metadata.model import DatasetVocabulary, TransformRequestInput

END_OF_TIME: Final = 253_402_300_799_000
"""A watermark in milliseconds behind which there are no rows: the end of the year 9999."""


@dataclass(frozen=True)
class Slice:
    """A slice of an input.

    Attributes:
        path: its file.
        at: number of the input.
        added: when it was committed, in milliseconds.
        earliest: the least event time in milliseconds; None when it has no rows.
        changes: whether it has retractions or corrections.
    """

    path: Path
    at: int
    added: int
    earliest: int | None
    changes: bool


@dataclass(frozen=True)
class Batch:
    """What is read at once.

    Attributes:
        slices: in the order in which they were added.
        watermark: up to when time is complete after them, in milliseconds; None when that is not known.
    """

    slices: Sequence[Slice]
    watermark: int | None


@dataclass(frozen=True)
class Marks:
    """The newest watermark of each input, by its alias, in milliseconds."""

    known: Mapping[str, int]

    def least(self, aliases: Sequence[str]) -> int | None:
        """The watermark of all inputs together; None while one has none."""
        found = [self.known.get(alias) for alias in aliases]
        return None if None in found else min(mark for mark in found if mark is not None)

    def after(self, inputs: Sequence[TransformRequestInput], until: int | None) -> Marks:
        """What is known just before a moment; None for the end of the transaction."""
        known = dict(self.known)
        for each in inputs:
            for mark in each.explicit_watermarks:
                if until is None or mark.system_time.ms < until:
                    alias = each.query_alias
                    known[alias] = max(known.get(alias, mark.event_time.ms), mark.event_time.ms)
        return Marks(known)


def read_slices(inputs: Sequence[TransformRequestInput]) -> list[Slice]:
    """What the slices of a transaction are like, in the order in which they were added.

    Raises:
        NotFound, BadData: a slice is missing or damaged.
    """
    found = [_slice(Path(path), at, each.vocab) for at, each in enumerate(inputs) for path in each.data_paths]
    return sorted(found, key=lambda each: each.added)


def batches(
    slices: Sequence[Slice], inputs: Sequence[TransformRequestInput], before: Marks, *, each: bool
) -> Iterator[Batch]:
    """The batches of a transaction, of which each gives what it would give by itself.

    Args:
        slices: in order.
        inputs: with the watermarks that the transaction brings.
        before: the watermarks at its beginning.
        each: every slice has to be a batch of its own.
    """
    aliases = [item.query_alias for item in inputs]
    reached = before.least(aliases)
    held: list[Slice] = []
    for added, group in groupby(slices, key=lambda item: item.added):
        new = list(group)
        mark = before.after(inputs, added).least(aliases)
        if mark is None or (reached is not None and mark <= reached):
            mark = reached
        late = mark is not None and mark != reached and any(_is_late(item, mark) for item in new)
        if late or (each and held):
            if held or not each:
                yield Batch(held, mark)
            held, reached = [], mark
        held += new
    last = before.after(inputs, None).least(aliases)
    if held or (last != reached and not each):
        yield Batch(held, last)


def batches_by_watermark(
    slices: Sequence[Slice], inputs: Sequence[TransformRequestInput], before: Marks, *, each: bool
) -> Iterator[Batch]:
    """The same for queries whose rows come out when the watermark reaches their time (as-of joins), and
    for those where what comes out depends on each commit.

    Args:
        slices: in order.
        inputs: with the watermarks that the transaction brings.
        before: the watermarks at its beginning.
        each: every commit to an input has to be a batch of its own, also one of a watermark alone.
    """
    aliases = [item.query_alias for item in inputs]
    done = reached = before.least(aliases)
    held: list[Slice] = []
    moments = {item.added for item in slices}
    moments |= {mark.system_time.ms for item in inputs for mark in item.explicit_watermarks}
    for moment in sorted(moments):
        new = [item for item in slices if item.added == moment]
        # A version may come for the very time up to which rows came out.
        late = reached is not None and any(_is_late(item, reached + 1) for item in new)
        if (late or each) and (held or reached != done):
            yield Batch(held, reached)
            held, done = [], reached
        held += new
        mark = before.after(inputs, moment + 1).least(aliases)
        reached = mark if reached is None or (mark is not None and mark > reached) else reached
    if held or reached != done:
        yield Batch(held, reached)


def _is_late(slice: Slice, mark: int) -> bool:
    return slice.earliest is not None and slice.earliest < mark


def _slice(path: Path, at: int, vocab: DatasetVocabulary) -> Slice:
    names = (vocab.system_time_column, vocab.event_time_column, vocab.operation_type_column)
    try:
        with open_parquet(path) as file:
            ranges = _recorded(file, names) or _computed(path, names)
    except FileNotFoundError:
        raise NotFound("a data slice is missing", where=str(path), hint="see: odf verify") from None
    except UNREADABLE as error:
        raise BadData(f"the data slice cannot be read: {error}", where=str(path)) from error
    added, times, operations = ranges
    return Slice(
        path,
        at,
        _milliseconds(added[0]) or 0,
        _milliseconds(times[0]),
        operations[1] is not None and operations[1] > 0,
    )


def _recorded(file: pq.ParquetFile, names: Sequence[str]) -> list[tuple[Any, Any]] | None:
    """Least and greatest values as the file itself says; None when it does not."""
    metadata = file.metadata
    places = {metadata.schema.column(at).path: at for at in range(metadata.num_columns)}
    found: list[tuple[Any, Any]] = []
    for name in names:
        parts = [
            metadata.row_group(group).column(places[name]).statistics
            for group in range(metadata.num_row_groups)
        ]
        if not parts or not all(part is not None and part.has_min_max for part in parts):
            return None
        found.append((min(part.min for part in parts), max(part.max for part in parts)))
    return found


def _computed(path: Path, names: Sequence[str]) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    for name in names:
        ends = [pc.min_max(batch.column(0)) for batch in read_bounded(path, [name])]
        least = [each["min"].as_py() for each in ends if each["min"].is_valid]
        greatest = [each["max"].as_py() for each in ends if each["max"].is_valid]
        found.append((min(least, default=None), max(greatest, default=None)))
    return found


def _milliseconds(value: date | datetime | None) -> int | None:
    if value is None:
        return None
    if not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day, tzinfo=UTC)
    if value.tzinfo is None:
        value = value.replace(tzinfo=UTC)
    return (value - datetime(1970, 1, 1, tzinfo=UTC)) // _MILLISECOND


_MILLISECOND = datetime(1970, 1, 1, microsecond=1000) - datetime(1970, 1, 1)
