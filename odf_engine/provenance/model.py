"""The provenance tree: steps, input rows, sources, and offset ranges."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Literal

import msgspec
from msgspec.structs import replace

if TYPE_CHECKING:
    import pyarrow as pa


OffsetRange = tuple[int, int]
"""Offsets of rows that follow each other: of the first and of the last."""


class ProducingTransaction(msgspec.Struct, frozen=True, omit_defaults=True):
    """A transaction that made some of the rows.

    Attributes:
        block: its hash.
        sequence_number: of the block.
        system_time: of the block, as RFC 3339.
        runs: which of the rows it made.
        query: the steps of the query, as (alias, SQL); the last one's alias is empty. None for roots.
        engine: its name and version; empty for roots.
    """

    block: str
    sequence_number: int
    system_time: str
    runs: list[OffsetRange]
    query: list[tuple[str, str]] = []
    engine: str = ""


class RowSource(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where rows of a root dataset came from.

    Attributes:
        block: the hash of the block that took them in.
        kind: ``polling`` or ``push``; ``unknown`` where the chain does not say.
        name: of the push source.
        place: a URL, a file, a command, a topic; empty for rows that were pushed.
        ingested: when, as RFC 3339.
        state: what the source said of its version (ETag, time of change), as text.
        steps: what was done to the data since, in words: prepare, read, preprocess, merge.
        runs: which of the rows.
    """

    block: str
    kind: Literal["polling", "push", "unknown"]
    name: str
    place: str
    ingested: str
    state: str
    steps: list[str]
    runs: list[OffsetRange]


class InputRows(msgspec.Struct, frozen=True, omit_defaults=True):
    """Rows of an input that made the rows of a step.

    Attributes:
        alias: what the query calls the input.
        dataset: its id.
        name: how the workspace calls it; its alias where it is not here.
        runs: which rows, oldest first.
        rows: how many.
        columns: those of its columns that made the value that was asked for, and how (``identity``,
            ``transformation``, ``aggregation``, or ``unknown``); empty when whole rows were asked for.
        missing: it is not in the workspace.
        step: where these rows came from, when that was asked for as well.
    """

    alias: str
    dataset: str
    name: str
    runs: list[OffsetRange]
    rows: int
    columns: list[tuple[str, str]] = []
    missing: bool = False
    step: TraceStep | None = None


class TraceStep(msgspec.Struct, frozen=True, omit_defaults=True):
    """Rows of a dataset, and how they came to be.

    Attributes:
        dataset: its id.
        name: how the workspace calls it.
        kind: ``root`` or ``derivative``.
        runs: which rows.
        rows: how many.
        made: the transactions that made them, oldest first.
        how: the same in words, a line for each thing that was done.
        exact: whether the rows of ``feeds`` are those that made them and no others; else they are all
            that could have.
        reason: why they are not exact.
        feeds: rows of inputs, in the order of the query's inputs.
        sources: of the rows of a root dataset.
        earlier: rows of the same dataset that were taken back or replaced by these, such as what a
            correction corrects.
        problem: why it goes no further from here, and what to do about it.
    """

    dataset: str
    name: str
    kind: Literal["root", "derivative"]
    runs: list[OffsetRange]
    rows: int
    made: list[ProducingTransaction] = []
    how: list[str] = []
    exact: bool = True
    reason: str | None = None
    feeds: list[InputRows] = []
    sources: list[RowSource] = []
    earlier: list[OffsetRange] = []
    problem: str | None = None


class TraceResult(TraceStep, frozen=True, omit_defaults=True):
    """Result of a trace job: the trace, and the lines of its check if one was requested."""

    checked: list[str] | None = None


def to_ranges(offsets: Iterable[int]) -> list[OffsetRange]:
    """Offsets in ascending order as runs."""
    runs: list[OffsetRange] = []
    for offset in offsets:
        if runs and offset <= runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], max(offset, runs[-1][1]))
        else:
            runs.append((offset, offset))
    return runs


def row_count(runs: Iterable[OffsetRange]) -> int:
    """How many rows there are in runs."""
    return sum(last - first + 1 for first, last in runs)


MAX_TRACE_RANGES: Final = 20_000
MAX_SOURCES: Final = 1_000


def truncate_trace(step: TraceStep) -> TraceStep:
    """The same; where rows are too many and too scattered, those nearest to each other are taken as one run.

    Such an answer is not exact any more, and says so; how many rows there are stays as it was.
    """
    feeds = [_feed(each) for each in step.feeds]
    changes: dict[str, object] = {
        "feeds": feeds,
        "runs": merge_nearest_ranges(step.runs),
        "earlier": merge_nearest_ranges(step.earlier),
    }
    if any(len(new.runs) < len(old.runs) for new, old in zip(feeds, step.feeds, strict=True)):
        scattered = "rows are too scattered to be named one by one: others lie between them"
        changes["exact"] = False
        changes["reason"] = "; ".join(filter(None, [step.reason, scattered]))
    if (more := len(step.sources) - MAX_SOURCES) > 0:
        changes["sources"] = step.sources[-MAX_SOURCES:]
        changes["how"] = [*step.how, f"{more:,} older blocks with some of the rows are left out here"]
    made = step.made[-MAX_SOURCES:]
    changes["made"] = [replace(each, runs=merge_nearest_ranges(each.runs)) for each in made]
    return replace(step, **changes)


def _feed(feed: InputRows) -> InputRows:
    return replace(
        feed,
        runs=merge_nearest_ranges(feed.runs),
        step=None if feed.step is None else truncate_trace(feed.step),
    )


def merge_nearest_ranges(runs: Sequence[OffsetRange], most: int = MAX_TRACE_RANGES) -> list[OffsetRange]:
    """Runs in order, at most so many: the smallest gaps between them are closed."""
    if len(runs) <= most:
        return list(runs)
    gaps = sorted(after[0] - before[1] for before, after in pairwise(runs))
    closed = gaps[len(runs) - most - 1]
    found = [runs[0]]
    for first, last in runs[1:]:
        if first - found[-1][1] <= closed:
            found[-1] = (found[-1][0], last)
        else:
            found.append((first, last))
    return found


_MAX_WAITING: Final = 1 << 21
MAX_RANGES: Final = 1_000_000
"""More of them help nobody, and would not fit."""


class OffsetSet:
    """The offsets of rows of one input.

    Attributes:
        scattered: there were too many runs: those nearest to each other were taken as one.
    """

    def __init__(self) -> None:
        import pyarrow as pa

        self._starts = pa.array([], pa.int64())
        self._ends = pa.array([], pa.int64())
        self._waiting: list[pa.Array] = []
        self._count = 0
        self.scattered = False

    def add(self, offsets: pa.Array) -> None:
        """Takes offsets in any order, each any number of times."""
        if len(offsets):
            self._waiting.append(offsets)
            self._count += len(offsets)
            if self._count > _MAX_WAITING:
                self._fold()

    def add_runs(self, runs: Iterable[OffsetRange]) -> None:
        """Takes whole runs."""
        import pyarrow as pa

        self._fold()
        found = list(runs)
        starts = pa.array([run[0] for run in found], pa.int64())
        ends = pa.array([run[1] for run in found], pa.int64())
        self._merge(starts, ends)

    def runs(self) -> list[OffsetRange]:
        """What there is, in ascending order."""
        self._fold()
        return list(zip(self._starts.to_pylist(), self._ends.to_pylist(), strict=True))

    def _fold(self) -> None:
        import pyarrow as pa

        from odf_engine.data.arrow_compute import pc

        if not self._waiting:
            return
        offsets = pc.unique(pa.chunked_array(self._waiting, pa.int64()))
        self._waiting, self._count = [], 0
        offsets = offsets.take(pc.sort_indices(offsets))
        self._merge(offsets, offsets)

    def _merge(self, starts: pa.Array, ends: pa.Array) -> None:
        """Adds runs; those that touch or overlap become one."""
        import pyarrow as pa

        from odf_engine.data.arrow_compute import pc

        starts = pa.concat_arrays([self._starts, starts])
        ends = pa.concat_arrays([self._ends, ends])
        order = pc.sort_indices(starts)
        starts, ends = starts.take(order), pc.cumulative_max(ends.take(order))
        self._starts, self._ends = _closed(starts, ends, 1)
        gap = 2
        while len(self._starts) > MAX_RANGES:
            self.scattered = True
            self._starts, self._ends = _closed(self._starts, self._ends, gap)
            gap *= 2


def _closed(starts: pa.Array, ends: pa.Array, gap: int) -> tuple[pa.Array, pa.Array]:
    """Runs in order, as one where the next begins at most ``gap`` after the end."""
    import pyarrow as pa

    from odf_engine.data.arrow_compute import pc

    if len(starts) < 2:
        return starts, ends
    apart = pc.greater(starts[1:], pc.add(ends[:-1], gap))
    yes = pa.array([True])
    first, last = pa.concat_arrays([yes, apart]), pa.concat_arrays([apart, yes])
    return starts.filter(first), ends.filter(last)


def normalize_ranges(runs: Sequence[OffsetRange]) -> list[OffsetRange]:
    """Runs in any order, in ascending order."""
    folding = OffsetSet()
    folding.add_runs(runs)
    return folding.runs()
