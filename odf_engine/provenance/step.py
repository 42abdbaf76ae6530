"""Traces rows of one derivative dataset to the rows of its inputs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace as structs_replace

from odf_engine.chain.block_summary import StoredBlock
from odf_engine.chain.normal_form import SPARK
from odf_engine.chain.state import ChainState, classify_transaction
from odf_engine.errors import BadData, Cancelled, NotFound, OdfError
from odf_engine.identity.multiformats import Multihash
from odf_engine.metadata.model import (
    Checkpoint,
    ExecuteTransform,
    ExecuteTransformInput,
    OffsetInterval,
    SetTransform,
)
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.progress import Reporter
from odf_engine.provenance.as_of_step import AsOfTrace
from odf_engine.provenance.model import OffsetRange, OffsetSet
from odf_engine.provenance.stateful_step import PlannedTransaction, StatefulTrace
from odf_engine.provenance.stateless_step import (
    SCATTERED,
    RowSelection,
    StepResult,
    trace_rows,
    transaction_session,
)
from odf_engine.spark.plan_rewrite import StatefulQueryError
from odf_engine.spark.user_query import uses_as_of_join
from odf_engine.storage.scratch import job_scratch_folder
from odf_engine.transform.engines.contract import Engine, RowProvenance
from odf_engine.transform.engines.engine_router import engines_for
from odf_engine.transform.engines.stateful_transaction import safe_folder
from odf_engine.transform.plan import Transaction, transaction_of_block
from odf_engine.transform.run import make_request
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.trust import Trust
from odf_engine.workspace.workspace import Workspace

if TYPE_CHECKING:
    from odf_engine.spark.runtime.session import SparkRuntime


_PAGE: Final = 100
MAX_TRANSACTIONS: Final = 1000
"""Maximum number of earlier transactions of a state."""


@dataclass(frozen=True)
class TransactionHistory:
    """A transaction, and the earlier transactions of its state.

    Attributes:
        entry: the derivative dataset.
        block: block of the transaction.
        event: event of the block.
        transform: the query of the transaction.
        before: earlier transactions that contributed to its state, oldest first.
        complete: whether ``before`` is complete; otherwise there are more than :data:`MAX_TRANSACTIONS`.
    """

    entry: DatasetEntry
    block: StoredBlock
    event: ExecuteTransform
    transform: SetTransform
    before: Sequence[tuple[StoredBlock, ExecuteTransform]]
    complete: bool

    @property
    def kind(self) -> str:
        """``execute``, ``finish`` or ``rebuild``."""
        return classify_transaction(self.event)

    @property
    def keeps_state(self) -> bool:
        """Whether it continues from a checkpoint or writes one."""
        return self.event.prev_checkpoint is not None or self.event.new_checkpoint is not None

    @property
    def carries_state(self) -> bool:
        """Whether it left the checkpoint unchanged."""
        after = self.event.new_checkpoint
        return after is not None and after.physical_hash == self.event.prev_checkpoint

    def intervals(self) -> list[OffsetRange | None]:
        """Return the offset range of each input that can have contributed to the result; None if empty."""
        begins = self._start_offsets()
        ranges: list[OffsetRange | None] = []
        for begin, item in zip(begins, self.event.query_inputs, strict=True):
            end = item.prev_offset if item.new_offset is None else item.new_offset
            ranges.append(None if end is None or end < begin else (begin, end))
        return ranges

    def _start_offsets(self) -> list[int]:
        first = self.before[0][1] if self.before else self.event
        if not self.complete or classify_transaction(first) == "rebuild":
            return [0] * len(self.event.query_inputs)
        begins = [0 if item.prev_offset is None else item.prev_offset + 1 for item in first.query_inputs]
        return begins if len(begins) == len(self.event.query_inputs) else [0] * len(self.event.query_inputs)

    def transaction(self, workspace: Workspace) -> Transaction:
        """Return the transaction, ready to run again.

        Raises:
            OdfError: an input is missing or has changed.
        """
        state = _state_before(self.entry, self.block, self.event, self.transform)
        return transaction_of_block(workspace, self.entry, state, self.event, self.block.block.system_time)

    def earlier_transactions(self, workspace: Workspace) -> Transaction | None:
        """Return the earlier transactions merged into one; None if it continues from no state.

        The rows of a stateful query do not depend on how its inputs are split into transactions. Only the end
        of a transaction matters.

        Raises:
            OdfError: an input is missing or has changed.
        """
        if not self.before:
            return None
        (block, first), (last_block, last) = self.before[0], self.before[-1]
        state = _state_before(self.entry, block, first, self.transform)
        from_start = classify_transaction(first) == "rebuild"
        if from_start:
            state = structs_replace(state, watermark=None)
        inputs = [
            _merge_intervals(begin, end, from_start=from_start)
            for begin, end in zip(first.query_inputs, last.query_inputs, strict=True)
        ]
        merged = structs_replace(first, query_inputs=inputs, new_checkpoint=last.new_checkpoint)
        if not any(item.new_block_hash for item in inputs):
            return None
        return transaction_of_block(workspace, self.entry, state, merged, last_block.block.system_time)


def producing_transactions(
    entry: DatasetEntry, runs: Sequence[OffsetRange]
) -> Iterator[tuple[TransactionHistory, list[OffsetRange]]]:
    """Yield the transactions that produced rows, oldest first, each with the ranges of its rows.

    Args:
        entry: a derivative dataset.
        runs: offset ranges of its rows, in ascending order.

    Raises:
        BadData: a block is invalid.
    """
    if not runs:
        return
    for row in entry.dataset.slices(runs[0][0], runs[-1][1]):
        ranges = [
            (max(first, row.start), min(last, row.end))
            for first, last in runs
            if first <= row.end and last >= row.start
        ]
        if ranges:
            yield _transaction_history(entry, row.sequence_number), ranges


def _transaction_history(entry: DatasetEntry, number: int) -> TransactionHistory:
    stored = entry.dataset.block(number)
    event = stored.block.event
    (row,) = entry.dataset.list_blocks(1, before=number, kinds=("SetTransform",)) or (None,)
    transform = None if row is None else entry.dataset.block(row.hash).block.event
    if not isinstance(event, ExecuteTransform) or not isinstance(transform, SetTransform):
        raise BadData(f"block {number} of {entry.alias} has rows but no query")
    before: list[tuple[StoredBlock, ExecuteTransform]] = []
    complete = True
    if classify_transaction(event) != "rebuild":
        for each in _earlier_transactions(entry, number, event):
            if len(before) == MAX_TRANSACTIONS:
                complete = False
                break
            before.append(each)
    return TransactionHistory(entry, stored, event, transform, before[::-1], complete)


def _earlier_transactions(
    entry: DatasetEntry, number: int, event: ExecuteTransform
) -> Iterator[tuple[StoredBlock, ExecuteTransform]]:
    """Yield the earlier transactions of a state, newest first."""
    while event.prev_checkpoint is not None:
        rows = entry.dataset.list_blocks(_PAGE, before=number, kinds=("ExecuteTransform",))
        if not rows:
            return
        for row in rows:
            stored = entry.dataset.block(row.hash)
            assert isinstance(stored.block.event, ExecuteTransform)
            event, number = stored.block.event, row.sequence_number
            yield stored, event
            if event.prev_checkpoint is None or classify_transaction(event) == "rebuild":
                return


def _state_before(
    entry: DatasetEntry, block: StoredBlock, event: ExecuteTransform, transform: SetTransform
) -> ChainState:
    """Return the part of the chain's state before a block that a transaction requires."""
    rows = entry.dataset.list_blocks(1, before=block.block.sequence_number, kinds=("ExecuteTransform",))
    last = entry.dataset.block(rows[0].hash).block.event if rows else None
    return structs_replace(
        entry.dataset.state(),
        transform=transform,
        watermark=last.new_watermark if isinstance(last, ExecuteTransform) else None,
        last_inputs=last.query_inputs if isinstance(last, ExecuteTransform) else None,
        last_checkpoint=_previous_checkpoint(event.prev_checkpoint),
        last_offset=event.prev_offset,
    )


def _previous_checkpoint(physical_hash: Multihash | None) -> Checkpoint | None:
    return None if physical_hash is None else Checkpoint(physical_hash=physical_hash, size=0)


def _merge_intervals(
    first: ExecuteTransformInput, last: ExecuteTransformInput, *, from_start: bool
) -> ExecuteTransformInput:
    """Merge the intervals of an input from the first transaction to the last."""
    end_block = last.new_block_hash or last.prev_block_hash
    end_offset = last.prev_offset if last.new_offset is None else last.new_offset
    begin_block, begin_offset = (None, None) if from_start else (first.prev_block_hash, first.prev_offset)
    return structs_replace(
        first,
        prev_block_hash=begin_block,
        prev_offset=begin_offset,
        new_block_hash=end_block if end_block != begin_block else None,
        new_offset=end_offset if end_offset != begin_offset else None,
    )


_MAX_RANGES: Final = 2000
_MAX_TRACED_TRANSACTIONS: Final = 100
_TOO_MANY: Final = f"more than {_MAX_TRACED_TRANSACTIONS} transactions produced these rows: trace fewer rows"


@dataclass(frozen=True)
class TransactionTrace:
    """The input rows of rows of a derivative dataset, for one transaction.

    Attributes:
        block: hash of its block.
        sequence_number: number of the block.
        system_time: system time of the block.
        runs: offset ranges of the result rows.
        query: steps of the query as (alias, SQL); the last alias is empty.
        engine: name and version of the engine.
        exact: whether exactly the rows of ``feeds`` contributed; otherwise they are all candidates.
        reason: why they are not exact.
        feeds: alias, dataset id and offset ranges of each input, in the order of the query's inputs.
        operations: descriptions of the operations.
    """

    block: str
    sequence_number: int
    system_time: Timestamp
    runs: list[OffsetRange]
    query: list[tuple[str, str]]
    engine: str
    exact: bool
    reason: str | None
    feeds: list[tuple[str, str, list[OffsetRange]]]
    operations: list[str]


def trace_back(
    workspace: Workspace,
    entry: DatasetEntry,
    runs: Sequence[OffsetRange],
    spark: SparkRuntime,
    reporter: Reporter,
) -> list[TransactionTrace]:
    """Trace rows of a derivative dataset to the rows of its inputs.

    Args:
        workspace: the workspace of the inputs. For missing inputs the result is based on the dataset's chain.
        entry: the dataset.
        runs: offset ranges of its rows, in ascending order; those after its end are ignored.
        spark: runs the queries again.
        reporter: receives phases and amounts; checked for cancellation.

    Returns:
        One trace per transaction that produced some of the rows, oldest first.

    Raises:
        Cancelled: the job was cancelled.
        OdfError: the dataset's chain or one of its slices cannot be read.
    """
    reporter.phase("trace")
    traces: list[TransactionTrace] = []
    for number, (history, ranges) in enumerate(producing_transactions(entry, runs)):
        reporter.raise_if_cancelled()
        reporter.set_amounts(files=number)
        if number < _MAX_TRACED_TRANSACTIONS:
            traces.append(_trace_transaction(workspace, history, ranges, spark, reporter))
        else:
            traces.append(_to_transaction_trace(history, ranges, _all_candidates(history, _TOO_MANY)))
    return traces


def _trace_transaction(
    workspace: Workspace,
    history: TransactionHistory,
    runs: list[OffsetRange],
    spark: SparkRuntime,
    reporter: Reporter,
) -> TransactionTrace:
    reason = _untraceable_reason(workspace, history, runs)
    traced: StepResult | None = None
    if reason is None:
        try:
            with _safe_scratch_folder(workspace, spark) as folder:
                traced = _run_trace(workspace, history, runs, spark, folder, reporter)
        except Cancelled:
            raise
        except OdfError as error:
            reporter.raise_if_cancelled()  # after a cancellation any error may occur
            reason = _failure_reason(error)
    if traced is None or traced.lost:
        traced = _all_candidates(history, reason or (traced.reason if traced else None))
    return _to_transaction_trace(history, runs, traced)


def _run_trace(
    workspace: Workspace,
    history: TransactionHistory,
    runs: list[OffsetRange],
    spark: SparkRuntime,
    folder: Path,
    reporter: Reporter,
) -> StepResult:
    own = _plan(history, history.transaction(workspace), folder / "own")
    selection = _select_rows(history, runs)
    session = transaction_session(spark, own.request)
    try:
        if not history.keeps_state:
            return trace_rows(session, own.request, selection, reporter)
        if history.carries_state:
            # The state may be that of a previous query, which this query does not use.
            with suppress(StatefulQueryError):
                return trace_rows(session, own.request, selection, reporter)
        before = history.earlier_transactions(workspace)
        past = None if before is None else _plan(history, before, folder / "past")
        trace_class = AsOfTrace if uses_as_of_join(own.request.transform.queries or []) else StatefulTrace
        return trace_class(session, past, own, selection, folder, reporter).trace()
    except StatefulQueryError as reason:
        return StepResult([], reason=f"the query has {reason}", lost=True)


@contextmanager
def _safe_scratch_folder(workspace: Workspace, spark: SparkRuntime) -> Iterator[Path]:
    """Create a folder for temporary files with a path that Spark does not interpret."""
    with job_scratch_folder(workspace.odf / "cache", "replay") as job:
        folder = safe_folder(job / "step", str(spark.session().sparkContext.master))
        folder.mkdir(exist_ok=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _plan(history: TransactionHistory, transaction: Transaction, folder: Path) -> PlannedTransaction:
    folder.mkdir()
    system_time = history.block.block.system_time
    return PlannedTransaction(transaction, make_request(transaction, folder, folder / "data", system_time))


def _select_rows(history: TransactionHistory, runs: list[OffsetRange]) -> RowSelection:
    data = history.event.new_data
    assert data is not None  # rows were found in it
    dataset = history.entry.dataset
    return RowSelection(dataset.slice_path(data.physical_hash), runs, dataset.state().vocabulary)


def _untraceable_reason(
    workspace: Workspace, history: TransactionHistory, runs: list[OffsetRange]
) -> str | None:
    """Return why a transaction cannot be traced row by row; None if it can."""
    sql = history.transform.transform
    if sql.engine.lower() != SPARK or SPARK in map(str.lower, workspace.config.engines):
        return f"the engine '{sql.engine}' ran the query and does not report provenance"
    if not Trust(workspace).is_trusted(history.entry):
        return "its query is untrusted and was not run: see odf trust"
    if not history.complete:
        return f"the state of the query covers more than {len(history.before):,} transactions"
    if len(runs) > _MAX_RANGES:
        return f"{len(runs):,} separate ranges of rows were requested at once"
    return None


def _failure_reason(error: OdfError) -> str:
    if isinstance(error, NotFound):
        return f"its transaction cannot be replayed: {error}"
    return f"its transaction cannot be replayed with row tracking: {error}"


def _all_candidates(history: TransactionHistory, reason: str | None) -> StepResult:
    """Return all candidate rows as a result."""
    feeds: list[OffsetSet] = []
    for interval in history.intervals():
        offset_set = OffsetSet()
        offset_set.add_ranges([] if interval is None else [interval])
        feeds.append(offset_set)
    return StepResult(feeds, [], reason or "its rows cannot be traced")


def _to_transaction_trace(
    history: TransactionHistory, runs: list[OffsetRange], traced: StepResult
) -> TransactionTrace:
    sql, block = history.transform.transform, history.block
    ranges = [offset_set.ranges() for offset_set in traced.feeds]
    reason = traced.reason
    if reason is None and any(offset_set.scattered for offset_set in traced.feeds):
        reason = SCATTERED
    feeds = [
        (item.alias or item.dataset_ref, str(read.dataset_id), ranges[index])
        for index, (item, read) in enumerate(
            zip(history.transform.inputs, history.event.query_inputs, strict=True)
        )
    ]
    return TransactionTrace(
        block=str(block.hash),
        sequence_number=block.block.sequence_number,
        system_time=block.block.system_time,
        runs=runs,
        query=[(each.alias or "", each.query) for each in sql.queries or []],
        engine=" ".join(filter(None, [sql.engine, sql.version])),
        exact=reason is None,
        reason=reason,
        feeds=feeds,
        operations=traced.operations,
    )


def refine_with_engine(
    workspace: Workspace,
    entry: DatasetEntry,
    steps: Sequence[TransactionTrace],
    spark: SparkRuntime,
    reporter: Reporter,
) -> list[TransactionTrace]:
    """Refine steps that are not exact with the engine of the query.

    Args:
        workspace: the workspace of the inputs.
        entry: the dataset.
        steps: the result of :func:`trace_back`.
        spark: the Spark of this process.
        reporter: checked for cancellation.

    Raises:
        Cancelled: the job was cancelled.
    """
    local_engines = {SPARK} - set(map(str.lower, workspace.config.engines))
    trusted = Trust(workspace).is_trusted(entry)
    if trusted and all(
        each.exact or each.engine.partition(" ")[0].lower() in local_engines for each in steps
    ):
        return list(steps)
    refined: list[TransactionTrace] = []
    with engines_for(workspace, entry, spark) as engine:
        for each in steps:
            (history, _), *_rest = producing_transactions(entry, each.runs)
            # For stateful transactions, an engine with one transaction alone cannot give an exact result.
            if each.exact or history.keeps_state:
                refined.append(each)
            else:
                refined.append(_refine_step(workspace, history, each, engine, reporter))
    return refined


def _refine_step(
    workspace: Workspace,
    history: TransactionHistory,
    step: TransactionTrace,
    engine: Engine,
    reporter: Reporter,
) -> TransactionTrace:
    rows = [OffsetInterval(first, last) for first, last in step.runs]
    try:
        with job_scratch_folder(workspace.odf / "cache", "replay") as folder:
            system_time = history.block.block.system_time
            request = make_request(history.transaction(workspace), folder, folder / "data", system_time)
            derived = engine.provenance(request, rows, reporter)
    except Cancelled:
        raise
    except OdfError as error:
        reporter.raise_if_cancelled()
        return replace(step, reason=f"{step.reason}; the engine reports: {error}")
    return _apply_provenance(step, derived)


def _apply_provenance(step: TransactionTrace, derived: RowProvenance) -> TransactionTrace:
    runs: dict[str, list[OffsetRange]] = {
        alias: [(each.start, each.end) for each in rows] for alias, rows in derived.feeds
    }
    return replace(
        step,
        exact=derived.exact,
        reason=derived.reason,
        feeds=[(alias, dataset, runs.get(alias, [])) for alias, dataset, _ in step.feeds],
        operations=[
            *step.operations,
            "row by row: each row is derived from one row of an input, according to the engine",
        ]
        if derived.exact
        else step.operations,
    )
