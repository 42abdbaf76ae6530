"""The provenance tree: steps, input rows, sources, and offset ranges."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Literal

import msgspec
from msgspec.structs import replace

if TYPE_CHECKING:
    from odf_engine.metadata.model import SqlQueryStep


OffsetRange = tuple[int, int]
"""A range of offsets: first and last, both inclusive."""


class ProducingTransaction(msgspec.Struct, frozen=True, omit_defaults=True):
    """A transaction that produced some of the rows.

    Attributes:
        block: hash of its block.
        sequence_number: number of the block.
        system_time: system time of the block, in RFC 3339.
        runs: offset ranges of its rows.
        query: steps of the query as (alias, SQL); the last alias is empty. Empty for roots.
        engine: name and version, or "" for roots.
    """

    block: str
    sequence_number: int
    system_time: str
    runs: list[OffsetRange]
    query: list[tuple[str, str]] = []
    engine: str = ""


def query_texts(steps: Iterable[SqlQueryStep]) -> list[tuple[str, str]]:
    """Return the steps of a query as in :class:`ProducingTransaction`."""
    return [(step.alias or "", step.query) for step in steps]


class SourcePosition(msgspec.Struct, frozen=True, omit_defaults=True):
    """The position of a row in a file of its source. It is found by the values of the row.

    Attributes:
        offset: the offset of the row.
        file: the path of the file.
        place: the line, such as ``line 7``, or the sheet and row, such as ``Cases row 7``; "" if the file
            does not contain the row.
        line: the line, from 1, or 0 in a file without lines.
        text: the line, truncated, or "" in a file without lines.
    """

    offset: int
    file: str
    place: str
    line: int = 0
    text: str = ""


class Retraction(msgspec.Struct, frozen=True, omit_defaults=True):
    """A transaction that retracted rows of a root dataset.

    Attributes:
        runs: offset ranges of the retracted rows, or of the retractions.
        block: hash of the block with the retractions.
        place: where its data came from, as in :class:`RowSource`, or the name of the push source.
        time: the modification time of the data that its source reports, or else the time of the ingest, in
            RFC 3339.
        is_absence: whether the rows were retracted because the data, a snapshot, lacked them.
    """

    runs: list[OffsetRange]
    block: str
    place: str
    time: str
    is_absence: bool = False


class RowSource(msgspec.Struct, frozen=True, omit_defaults=True):
    """The source of rows of a root dataset.

    Attributes:
        block: hash of the block that added them.
        kind: ``polling`` or ``push``; ``unknown`` if the chain does not contain it.
        name: name of the push source.
        place: a URL, a file, a command, a topic, or "" for pushed rows.
        ingested: system time of the ingest, in RFC 3339.
        state: version reported by the source (ETag, time of change), as text.
        steps: descriptions of the ingest steps: prepare, read, preprocess, merge.
        runs: offset ranges of the rows.
        positions: positions of the newest rows in the files of the source.
        unlocated: why there are no positions.
        retractions: the transactions that retracted some of the rows.
    """

    block: str
    kind: Literal["polling", "push", "unknown"]
    name: str
    place: str
    ingested: str
    state: str
    steps: list[str]
    runs: list[OffsetRange]
    positions: list[SourcePosition] = []
    unlocated: str = ""
    retractions: list[Retraction] = []


class TracedInput(msgspec.Struct, frozen=True, omit_defaults=True):
    """Rows of an input behind the rows of a step.

    Attributes:
        alias: name of the input in the query.
        dataset: its id.
        name: its name in the workspace, or its alias if it is missing.
        runs: offset ranges of the rows, in ascending order.
        rows: number of rows.
        columns: its columns that contribute to the traced value, with their transformation (``identity``,
            ``transformation``, ``aggregation``, or ``unknown``); empty for a trace of entire rows.
        missing: whether it is not in the workspace.
        step: the step of these rows, if it was traced.
        branch: the branch or tag with the rows, or "" for the head.
    """

    alias: str
    dataset: str
    name: str
    runs: list[OffsetRange]
    rows: int
    columns: list[tuple[str, str]] = []
    missing: bool = False
    step: TraceStep | None = None
    branch: str = ""

    @property
    def rows_step(self) -> TraceStep:
        """The step of these rows, or a step without origin if it was not traced."""
        return self.step or TraceStep(
            self.dataset, self.name, "root", self.runs, self.rows, branch=self.branch
        )


class TraceStep(msgspec.Struct, frozen=True, omit_defaults=True):
    """Rows of a dataset, and their derivation.

    Attributes:
        dataset: its id.
        name: its name in the workspace.
        kind: ``root`` or ``derivative``.
        runs: offset ranges of the rows.
        rows: number of rows.
        made: producing transactions, oldest first.
        how: description of the derivation, one line per operation.
        exact: whether exactly the rows of ``feeds`` contributed; otherwise they are all candidates.
        reason: why they are not exact.
        feeds: rows of inputs, in the order of the query's inputs.
        sources: sources of rows of a root dataset.
        earlier: rows of the same dataset that these rows retract or correct.
        problem: why the trace ends here, with a hint.
        branch: the branch or tag with the rows, or "" for the head.
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
    feeds: list[TracedInput] = []
    sources: list[RowSource] = []
    earlier: list[OffsetRange] = []
    problem: str | None = None
    branch: str = ""


class TraceResult(TraceStep, frozen=True, omit_defaults=True):
    """Result of a trace job: the trace, and the lines of its check if one was requested."""

    checked: list[str] | None = None


def to_ranges(offsets: Iterable[int]) -> list[OffsetRange]:
    """Merge ascending offsets into ranges."""
    ranges: list[OffsetRange] = []
    for offset in offsets:
        if ranges and offset <= ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], max(offset, ranges[-1][1]))
        else:
            ranges.append((offset, offset))
    return ranges


def row_count(ranges: Iterable[OffsetRange]) -> int:
    """Return the number of rows in ranges."""
    return sum(last - first + 1 for first, last in ranges)


MAX_TRACE_RANGES: Final = 20_000
MAX_SOURCES: Final = 1_000


def truncate_trace(step: TraceStep) -> TraceStep:
    """Limit the size of a step: merge the nearest ranges if there are too many.

    The result is then not exact, with that reason. Row counts are unchanged.
    """
    feeds = [
        replace(
            feed,
            runs=merge_nearest_ranges(feed.runs),
            step=None if feed.step is None else truncate_trace(feed.step),
        )
        for feed in step.feeds
    ]
    changes: dict[str, object] = {
        "feeds": feeds,
        "runs": merge_nearest_ranges(step.runs),
        "earlier": merge_nearest_ranges(step.earlier),
    }
    if any(len(new.runs) < len(old.runs) for new, old in zip(feeds, step.feeds, strict=True)):
        scattered = "rows are too scattered to list one by one: the ranges include other rows"
        changes["exact"] = False
        changes["reason"] = "; ".join(filter(None, [step.reason, scattered]))
    if (omitted := len(step.sources) - MAX_SOURCES) > 0:
        changes["sources"] = step.sources[-MAX_SOURCES:]
        changes["how"] = [*step.how, f"{omitted:,} older blocks with some of the rows are omitted"]
    transactions = step.made[-MAX_SOURCES:]
    changes["made"] = [
        replace(transaction, runs=merge_nearest_ranges(transaction.runs)) for transaction in transactions
    ]
    return replace(step, **changes)


def merge_nearest_ranges(
    ranges: Sequence[OffsetRange], max_ranges: int = MAX_TRACE_RANGES
) -> list[OffsetRange]:
    """Return at most ``max_ranges`` ranges, in order; the smallest gaps between ranges are closed."""
    if len(ranges) <= max_ranges:
        return list(ranges)
    gaps = sorted(after[0] - before[1] for before, after in pairwise(ranges))
    closed = gaps[len(ranges) - max_ranges - 1]
    merged = [ranges[0]]
    for first, last in ranges[1:]:
        if first - merged[-1][1] <= closed:
            merged[-1] = (merged[-1][0], last)
        else:
            merged.append((first, last))
    return merged
