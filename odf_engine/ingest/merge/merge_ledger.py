"""Ledger strategy: rows whose primary key was not seen before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from odf_engine.data.arrow_compute import pc
from odf_engine.errors import BadData
from odf_engine.ingest.merge.base import (
    EXAMPLES,
    POSITION,
    KeyedMerge,
    MergeAttempt,
    MergeInputs,
    PreparedMerge,
    SuspectKeys,
    check_null_keys,
    event_time_filler,
    examples,
    key_columns,
    sort_time_sql,
    times_as_numbers,
)
from odf_engine.ingest.merge.key_file import KEY, OFFSET, SECOND, TIME, VALUES
from odf_engine.ingest.merge.key_index import KeyIndex
from odf_engine.ingest.read.error_location import shorten
from odf_engine.metadata.model import Ledger
from odf_engine.spark.row_order import SortOrder, Step, sorted_batches

if TYPE_CHECKING:
    from odf_engine.spark import DataFrame


def keyed_ledger(strategy: Ledger, inputs: MergeInputs) -> KeyedMerge:
    """The rows by the strategy's key."""
    return KeyedMerge(inputs, key_columns(strategy.primary_key, inputs), compared=None, live=False)


def merge_ledger(strategy: Ledger, inputs: MergeInputs) -> PreparedMerge:
    """Prepares the merge; a known key with other values is a warning, or an error if that was asked for."""
    keyed = keyed_ledger(strategy, inputs)
    return PreparedMerge(
        lambda how: _Run(keyed, how).rows(), inputs.reporter, keep=keyed.commit_keys, forget=keyed.forget
    )


class _Run:
    """One attempt."""

    def __init__(self, keyed: KeyedMerge, how: MergeAttempt) -> None:
        self._keyed = keyed
        self._inputs = keyed.inputs
        self._how = how
        self._event_time = self._inputs.vocab.event_time_column
        self._fill = event_time_filler(self._inputs, self._event_time)

    def rows(self) -> Iterator[pa.RecordBatch]:
        """The rows to write, in order."""
        self._index: KeyIndex = self._keyed.open()
        order = SortOrder((self._event_time,), passes=True)
        if self._how.check:  # Then the rows are not as they came any more.
            order = SortOrder((self._event_time, POSITION), extra=(POSITION,))
        new = sorted_batches(self._start, order, self._inputs.reporter, sort=self._how.sort)
        yield from self._keyed.written(new, self._keyed.spool())
        if self._seen and pc.count_distinct(pa.chunked_array(self._seen)).as_py() < sum(map(len, self._seen)):
            raise SuspectKeys
        self._report()

    def _start(self, sort: bool) -> tuple[DataFrame, Step]:
        self._seen: list[pa.Array] = []
        self._changes = 0
        self._examples: list[tuple[int, dict[str, Any]]] = []
        order = f"{sort_time_sql(self._inputs, self._event_time)}, {POSITION}" if sort else None
        return self._keyed.frame(self._how, order), self._step

    def _step(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows whose key is new."""
        check_null_keys(batch)
        known = self._index.find(batch.column(KEY), batch.column(SECOND))
        if known.num_rows:
            self._seen.append(known.column("place").combine_chunks())
            self._notice_changes(batch, known)
            rows = known.column("row").combine_chunks()
            seen = pc.scatter(pa.repeat(True, len(rows)), rows, max_index=batch.num_rows - 1)
            batch = batch.filter(seen.is_null())
        return self._fill(batch)

    def _notice_changes(self, batch: pa.RecordBatch, known: pa.Table) -> None:
        """A row that is known should have the values it had; an event time that is not given may differ."""
        rows = known.column("row")
        changed = pc.not_equal(batch.column(VALUES).take(rows), known.column(VALUES))
        if self._event_time not in self._keyed.keys:
            times = times_as_numbers(batch.column(self._event_time)).take(rows)
            moved = pc.fill_null(pc.not_equal(times, known.column(TIME)), False)
            changed = pc.or_(changed, moved)
        known = known.filter(changed)
        self._changes += known.num_rows
        if known.num_rows and len(self._examples) < EXAMPLES:
            first = known.sort_by("row").slice(0, EXAMPLES - len(self._examples))
            new = batch.take(first.column("row").combine_chunks()).select(self._inputs.names).to_pylist()
            offsets = first.column(OFFSET).to_pylist()
            self._examples += zip((at if at >= 0 else ~at for at in offsets), new, strict=True)

    def _report(self) -> None:
        """Says how many rows changed."""
        if not self._changes:
            return
        old = examples(self._inputs, [offset for offset, _ in self._examples])
        texts = [self._difference(was, now) for was, (_, now) in zip(old, self._examples, strict=True)]
        message = (
            f"{self._changes:,} rows have a known primary key and other values than before; a ledger"
            f" keeps the first ones. Such as: {' | '.join(map(shorten, texts))}"
        )
        if self._inputs.strict:
            raise BadData(message, hint="nothing was committed; pull without --strict to keep the first ones")
        self._inputs.reporter.log(message, "warning")

    def _difference(self, was: dict[str, Any], now: dict[str, Any]) -> str:
        """The key, and what is other than before."""
        key = ", ".join(f"{name}={was[name]}" for name in self._keyed.keys)
        others = [name for name in self._inputs.names if name not in self._keyed.keys]
        changed = [
            f"{name} was {was[name]}, is {now[name]}"
            for name in others
            if was[name] != now[name] and not (name == self._event_time and now[name] is None)
        ]
        return f"{key}: {'; '.join(changed)}"
