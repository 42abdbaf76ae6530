"""Where rows come from, as an answer that can be shown and written down (specification: Provenance).

The answer is a tree. A :class:`Step` is some rows of a dataset, and how they came to be: those of a
derivative dataset from rows of its inputs, each of them a :class:`Feed`, and these in turn a step of
their own; those of a root dataset from a source outside.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

Run = tuple[int, int]
"""Offsets of rows that follow each other: of the first and of the last."""


class Made(msgspec.Struct, frozen=True, omit_defaults=True):
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
    runs: list[Run]
    query: list[tuple[str, str]] = []
    engine: str = ""


class Source(msgspec.Struct, frozen=True, omit_defaults=True):
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
    runs: list[Run]


class Feed(msgspec.Struct, frozen=True, omit_defaults=True):
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
    runs: list[Run]
    rows: int
    columns: list[tuple[str, str]] = []
    missing: bool = False
    step: Step | None = None


class Step(msgspec.Struct, frozen=True, omit_defaults=True):
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
    runs: list[Run]
    rows: int
    made: list[Made] = []
    how: list[str] = []
    exact: bool = True
    reason: str | None = None
    feeds: list[Feed] = []
    sources: list[Source] = []
    earlier: list[Run] = []
    problem: str | None = None


def as_runs(offsets: Iterable[int]) -> list[Run]:
    """Offsets in ascending order as runs."""
    runs: list[Run] = []
    for offset in offsets:
        if runs and offset <= runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], max(offset, runs[-1][1]))
        else:
            runs.append((offset, offset))
    return runs


def count_of(runs: Iterable[Run]) -> int:
    """How many rows there are in runs."""
    return sum(last - first + 1 for first, last in runs)
