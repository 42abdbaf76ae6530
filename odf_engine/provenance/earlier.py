"""Rows of a changelog that later ones take back or replace."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from odf_engine.chain.chain import Dataset
from odf_engine.data.changelog import Op
from odf_engine.data.conform import find_columns
from odf_engine.data.kernels import pc
from odf_engine.data.value_hash import value_hashes
from odf_engine.progress import Reporter
from odf_engine.workspace.stored import StoredRows
from odf_engine.workspace.traced import Run, as_runs, count_of

_MOST: Final = 10_000
"""So many rows are looked up at most: nobody reads more of them, and memory is bounded."""

_Key = tuple[str, ...]


class Changes:
    """What rows of a changelog do, and to which.

    Args:
        dataset: the changelog.
        runs: its rows in question, in order.
        reporter: is asked whether to stop.

    Attributes:
        counts: operations, and how many of the rows have each; empty for more rows than are looked at.
    """

    def __init__(self, dataset: Dataset, runs: Sequence[Run], reporter: Reporter) -> None:
        self._rows = StoredRows.of_dataset(dataset)
        self._reporter = reporter
        self._runs = runs
        self._offset, self._op, _ = self._rows.system_columns
        self._small = count_of(runs) <= _MOST
        found: Counter[int] = Counter()
        self._changing: list[int] = []
        for batch in self._batches([self._offset, self._op]) if self._small else ():
            ops = batch.column(1).to_pylist()
            found.update(ops)
            offsets = batch.column(0).to_pylist()
            self._changing += [at for at, op in zip(offsets, ops, strict=True) if op != Op.APPEND]
        self.counts = sorted(found.items())

    def earlier(self, key: Sequence[str]) -> list[Run]:
        """The rows that were valid until these took them back or replaced them.

        Args:
            key: columns that tell rows apart; without any, rows are the same when all their values are.

        Raises:
            OdfError: rows cannot be read.
        """
        if not self._changing:
            return []
        columns = self._columns(key)
        targets = self._targets(columns, by_partner=not key)
        found: set[int] = set()
        for names, offsets in self._candidates(columns, targets):
            self._settle(targets, names, offsets, found)
            if not targets:
                break
        return as_runs(sorted(found))

    def _columns(self, key: Sequence[str]) -> list[str]:
        available = self._rows.columns.names
        places = find_columns(available, list(key))
        if key and None not in places:
            return [available[place] for place in places if place is not None]
        return [name for name in available if name not in self._rows.system_columns]

    def _targets(self, columns: list[str], *, by_partner: bool) -> dict[_Key, list[int]]:
        """By the values that the earlier rows have: before which offsets they come."""
        wanted = dict(self._values_at(columns, self._changing))
        ops = dict(self._values_at([self._op], self._changing))
        if by_partner:  # a +C has other values than what it replaces, which the -C before it has
            after = [at for at in self._changing if ops[at] == (str(int(Op.CORRECT_TO)),) and at > 0]
            wanted |= {at + 1: values for at, values in self._values_at(columns, [at - 1 for at in after])}
        targets: dict[_Key, list[int]] = defaultdict(list)
        for at, values in wanted.items():
            targets[values].append(at)
        return {values: sorted(offsets) for values, offsets in targets.items()}

    def _values_at(self, columns: list[str], offsets: list[int]) -> Iterator[tuple[int, _Key]]:
        runs = as_runs(sorted(offsets))
        for batch in self._batches([self._offset, *columns], runs):
            yield from zip(batch.column(0).to_pylist(), _keys(batch, columns), strict=True)

    def _candidates(
        self, columns: list[str], targets: dict[_Key, list[int]]
    ) -> Iterator[tuple[list[_Key], list[int]]]:
        """Rows that were valid once and have such values, newest slices first, in order within one."""
        wanted = _Wanted(columns, self._batches([self._offset, *columns], self._around()))
        end = max(offsets[-1] for offsets in targets.values())
        begins = [0]
        for part in self._rows.parts:
            begins.append(begins[-1] + part.rows)
        for at in reversed(range(len(self._rows.parts))):
            if begins[at] >= end:
                continue
            names: list[_Key] = []
            offsets: list[int] = []
            span = (begins[at], min(begins[at + 1], end))
            for batch in self._rows.batches([self._offset, self._op, *columns], [span], at):
                self._reporter.check()
                valid = pc.is_in(batch.column(1), pa.array([Op.APPEND, Op.CORRECT_TO], batch.column(1).type))
                kept = batch.filter(valid)
                kept = kept.filter(wanted.may_be(kept))
                names += _keys(kept, columns)
                offsets += kept.column(0).to_pylist()
            yield names, offsets

    def _around(self) -> list[Run]:
        """The rows that change others, and those before them, which may be the other half of a pair."""
        return as_runs(sorted({each for at in self._changing for each in (max(at - 1, 0), at)}))

    @staticmethod
    def _settle(
        targets: dict[_Key, list[int]], names: list[_Key], offsets: list[int], found: set[int]
    ) -> None:
        """Takes out the targets whose newest earlier row is among these."""
        by_name: dict[_Key, list[int]] = defaultdict(list)
        for name, offset in zip(names, offsets, strict=True):
            if name in targets:
                by_name[name].append(offset)
        for name, known in by_name.items():
            left: list[int] = []
            for target in targets[name]:
                place = bisect_left(known, target)
                if place:
                    found.add(known[place - 1])
                else:
                    left.append(target)
            if left:
                targets[name] = left
            else:
                del targets[name]

    def _batches(self, names: list[str], runs: Sequence[Run] | None = None) -> Iterator[pa.RecordBatch]:
        spans = [(first, last + 1) for first, last in (self._runs if runs is None else runs)]
        for batch in self._rows.batches(list(dict.fromkeys(names)), spans):
            self._reporter.check()
            yield batch


class _Wanted:
    """Tells quickly which rows may have one of some values, by hashes of each column."""

    def __init__(self, columns: list[str], batches: Iterable[pa.RecordBatch]) -> None:
        self._hashes: dict[str, pa.Array] = {}
        parts: dict[str, list[pa.Array]] = defaultdict(list)
        for batch in batches:
            for name in columns:
                if not pa.types.is_nested(batch.column(name).type):
                    parts[name].append(value_hashes(batch.column(name)))
        self._hashes = {name: pa.concat_arrays(each) for name, each in parts.items()}

    def may_be(self, batch: pa.RecordBatch) -> pa.Array:
        """For each row whether it may."""
        mask = pa.array([True]).take(pa.array([0] * batch.num_rows, pa.int64()))
        for name, hashes in self._hashes.items():
            mask = pc.and_(mask, pc.is_in(value_hashes(batch.column(name)), hashes))
        return mask


def _keys(batch: pa.RecordBatch, columns: Sequence[str]) -> list[_Key]:
    """The values of each row in a form that can be compared: null is a value too."""
    values: list[list[Any]] = [batch.column(name).to_pylist() for name in columns]
    return [tuple(map(repr, row)) for row in zip(*values, strict=True)]
