"""Counterfactual check of a trace: with its rows alone, and without them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq
from msgspec.structs import replace

from odf_engine.base.progress import Reporter
from odf_engine.data.arrow_compute import python_values
from odf_engine.data.parquet.parquet_reader import read_bounded, read_parquet_schema
from odf_engine.data.parquet.slices import read_batches
from odf_engine.derive.history import TransactionHistory, without_state
from odf_engine.derive.plan import Transaction
from odf_engine.derive.provenance.model import OffsetRange, row_count
from odf_engine.derive.provenance.step import TransactionTrace, producing_transactions
from odf_engine.derive.run import CHECKPOINT, execute_transaction, make_request
from odf_engine.engines.contract import Engine
from odf_engine.engines.row_provenance import slice_batch
from odf_engine.errors import Cancelled, OdfError, Unsupported
from odf_engine.metadata.model import TransformRequest
from odf_engine.storage.scratch import job_scratch_folder, payload_scratch_folder
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace

_MAX_TRANSACTIONS: Final = 10
_MAX_ROWS: Final = 10_000
_DIGITS: Final = 12
_Rows = Counter[tuple[Any, ...]]


def check_trace(
    workspace: Workspace,
    entry: DatasetEntry,
    steps: Sequence[TransactionTrace],
    engine: Engine,
    reporter: Reporter,
) -> list[str]:
    """Run transactions again; describe the results. Each text begins with ``yes:``, ``no:`` or ``not
    checked:``.

    Args:
        workspace: the workspace of the inputs.
        entry: the dataset.
        steps: traces of its rows.
        engine: runs the queries.
        reporter: receives amounts; checked for cancellation.

    Raises:
        Cancelled: the job was cancelled.
    """
    verdicts: list[str] = []
    for step in steps[:_MAX_TRANSACTIONS]:
        prefix = f"block {step.made.sequence_number}: " if len(steps) > 1 else ""
        try:
            lines = CounterfactualCheck(workspace, entry, step, engine, reporter).run()
        except Cancelled:
            raise
        except OdfError as error:
            reporter.raise_if_cancelled()
            lines = [f"not checked: {error.format_line}"]
        for line in lines:
            verdict, _, text = line.partition(": ")
            verdicts.append(f"{verdict}: {prefix}{text}")
    if len(steps) > _MAX_TRANSACTIONS:
        verdicts.append(f"not checked: the rows of {len(steps) - _MAX_TRANSACTIONS} more transactions")
    return verdicts


@dataclass
class CounterfactualCheck:
    """Runs a transaction again on parts of its inputs.

    Args:
        workspace, entry, engine, reporter: as for :func:`check_trace`.
        step: trace of rows of one transaction.
    """

    _workspace: Workspace
    _entry: DatasetEntry
    _step: TransactionTrace
    _engine: Engine
    _reporter: Reporter

    @cached_property
    def _history(self) -> TransactionHistory:
        ((history, _),) = producing_transactions(self._entry, self._step.made.runs)
        return history

    def run(self) -> list[str]:
        """Run with the traced rows alone, and without them; see :func:`check_trace`.

        Raises:
            OdfError: the transaction cannot run again.
            Cancelled: the job was cancelled.
        """
        if row_count(self._step.made.runs) > _MAX_ROWS:
            raise Unsupported(f"more than {_MAX_ROWS:,} rows at once")
        slice_rows, traced = self._recorded_rows()
        with_rows_alone = self.run_on_part(only=True)
        is_sufficient = all(with_rows_alone[row] >= count for row, count in traced.items())
        without_rows = self.run_on_part(only=False)
        is_necessary = all(without_rows[row] < slice_rows[row] for row in traced)
        return [
            "yes: with these rows alone, the query returns the same rows"
            if is_sufficient
            else "no: with these rows alone, the query returns other rows",
            "yes: without these rows, the query no longer returns the traced rows"
            if is_necessary
            else "no: without these rows, the query still returns the traced rows",
        ]

    def run_on_part(self, *, only: bool) -> _Rows:
        """Return the result of the transaction on the traced rows alone, or on all others.

        Raises:
            OdfError: the transaction cannot run again.
        """
        with job_scratch_folder(self._workspace.odf / "cache", "replay") as folder:
            history, state = self._history, None
            if history.kind == "rebuild":
                raise Unsupported("a rebuilt state cannot be computed in parts")
            if (past := history.earlier_transactions(self._workspace)) is not None:
                with payload_scratch_folder(folder) as inner:
                    state = self._compute_state(past, inner, folder / "state", only=only)
            transaction = history.transaction(self._workspace)
            if past is not None and state is None:
                transaction = without_state(transaction)
            with payload_scratch_folder(folder) as inner:
                staged = inner / "data"
                request = self._make_partial_request(transaction, inner, only=only)
                if state is not None:
                    request = replace(request, prev_checkpoint_path=str(state))
                result = execute_transaction(
                    self._workspace, self._engine, transaction, request, self._reporter
                )
                return Counter() if result.written is None else self._count_rows(staged)

    def _compute_state(self, past: Transaction, inner: Path, target: Path, *, only: bool) -> Path | None:
        """Compute the state of the earlier transactions over these rows."""
        past = without_state(past)
        request = self._make_partial_request(past, inner, only=only)
        result = execute_transaction(self._workspace, self._engine, past, request, self._reporter)
        if result.checkpoint is None:
            return None
        (inner / CHECKPOINT).replace(target)
        return target

    def _make_partial_request(
        self, transaction: Transaction, folder: Path, *, only: bool
    ) -> TransformRequest:
        system_time = self._history.block.block.system_time
        request = make_request(transaction, folder, folder / "data", system_time, self._reporter)
        inputs = list(request.query_inputs)
        for index, (plan, (_, _, runs)) in enumerate(zip(transaction.inputs, self._step.feeds, strict=True)):
            paths = list(inputs[index].data_paths)
            for number, row in enumerate(plan.slices):
                assert plan.offsets is not None  # it has slices
                # The file of a merged slice has only the rows of the interval.
                start, end = max(row.start, plan.offsets.start), min(row.end, plan.offsets.end)
                part = clip_ranges(runs, start, end) if only else complement_ranges(runs, start, end)
                if part == [(start, end)]:
                    continue
                copy = folder / f"{index}-{number}.part.parquet"
                copy_rows(Path(paths[number]), [(a - start, b - start) for a, b in part], copy)
                paths[number] = str(copy)
                self._reporter.raise_if_cancelled()
            inputs[index] = replace(inputs[index], data_paths=paths)
        return replace(request, query_inputs=inputs)

    def _recorded_rows(self) -> tuple[_Rows, _Rows]:
        """Return all rows of the transaction, and the traced ones."""
        data = self._history.event.new_data
        assert data is not None  # it made rows
        path = self._entry.dataset.slice_path(data.physical_hash)
        start = data.offset_interval.start
        ranges = [(first - start, last - start) for first, last in self._step.made.runs]
        return self._count_rows(path), self._count_rows(path, ranges)

    def _count_rows(self, path: Path, ranges: Sequence[OffsetRange] | None = None) -> _Rows:
        """Count rows, all or those in ranges, by their values without offset and system time."""
        vocab = self._entry.dataset.state().vocabulary
        skipped = (vocab.offset_column, vocab.system_time_column)
        counts: _Rows = Counter()
        number = 0
        for batch in read_batches(path):
            self._reporter.raise_if_cancelled()
            names = [name for name in batch.schema.names if name not in skipped]
            parts = [batch] if ranges is None else slice_batch(batch, number, ranges)
            for part in parts:
                columns = [python_values(part.column(name)) for name in names]
                counts.update(tuple(map(_comparable_value, row)) for row in zip(*columns, strict=True))
            number += batch.num_rows
        return counts


def _comparable_value(value: Any) -> Any:
    """Return a comparable value: floating-point sums depend on the order of additions."""
    if isinstance(value, float):
        return f"{value:.{_DIGITS}g}"
    return repr(value) if isinstance(value, list | dict) else value


def copy_rows(path: Path, ranges: Sequence[OffsetRange], copy: Path) -> None:
    """Copy rows of a slice, by their positions in it, to another file; they keep their offsets."""
    with pq.ParquetWriter(copy, read_parquet_schema(path)) as writer:
        number = 0
        for batch in read_bounded(path):
            for part in slice_batch(batch, number, ranges):
                writer.write_batch(part)
            number += batch.num_rows


def clip_ranges(ranges: Sequence[OffsetRange], start: int, end: int) -> list[OffsetRange]:
    """Return the parts of ranges between two offsets."""
    return [(max(first, start), min(last, end)) for first, last in ranges if first <= end and last >= start]


def complement_ranges(ranges: Sequence[OffsetRange], start: int, end: int) -> list[OffsetRange]:
    """Return the ranges between two offsets that are in none of the sorted ranges."""
    gaps: list[OffsetRange] = []
    for first, last in clip_ranges(ranges, start, end):
        if first > start:
            gaps.append((start, first - 1))
        start = last + 1
    return [*gaps, (start, end)] if start <= end else gaps
