"""Traces rows of one derivative dataset to the rows of its inputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import UNSET

from odf_engine.base.progress import Reporter
from odf_engine.chain.normal_form import SPARK
from odf_engine.derive.history import TransactionHistory, transaction_history
from odf_engine.derive.plan import Transaction
from odf_engine.derive.provenance.as_of_step import AsOfTrace
from odf_engine.derive.provenance.changes_step import trace_changes
from odf_engine.derive.provenance.model import OffsetRange, ProducingTransaction, query_texts
from odf_engine.derive.provenance.offset_set import OffsetSet
from odf_engine.derive.provenance.root_origins import ranges_by_slice
from odf_engine.derive.provenance.stateful_step import PlannedTransaction, StatefulTrace
from odf_engine.derive.provenance.stateless_step import (
    SCATTERED,
    RowsToTrace,
    StepResult,
    trace_rows,
    transaction_session,
)
from odf_engine.derive.run import make_request, with_earlier_rows
from odf_engine.engines.contract import Engine
from odf_engine.engines.engine_router import engines_for
from odf_engine.engines.stateful.checkpoint import read_checkpoint_metadata
from odf_engine.errors import Cancelled, NotFound, OdfError
from odf_engine.metadata.model import OffsetInterval
from odf_engine.spark.plan_rewrite import StatefulQueryError
from odf_engine.spark.user_query import uses_as_of_join
from odf_engine.storage.scratch import job_scratch_folder, payload_scratch_folder
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.trust import Trust
from odf_engine.workspace.workspace import Workspace

if TYPE_CHECKING:
    from odf_engine.spark.runtime.session import SparkRuntime


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
    for row, ranges in ranges_by_slice(entry.dataset, runs):
        yield transaction_history(entry, row.sequence_number), ranges


_MAX_RANGES: Final = 2000
_MAX_TRACED_TRANSACTIONS: Final = 100
_REPLACED: Final = "the rows replace those of another query"
_TOO_MANY: Final = f"more than {_MAX_TRACED_TRANSACTIONS} transactions produced these rows: trace fewer rows"


@dataclass(frozen=True)
class TransactionTrace:
    """The input rows of rows of a derivative dataset, for one transaction.

    Attributes:
        made: the transaction.
        exact: whether exactly the rows of ``feeds`` contributed; otherwise they are all candidates.
        reason: why they are not exact.
        feeds: alias, dataset id and offset ranges of each input, in the order of the query's inputs.
        operations: descriptions of the operations.
    """

    made: ProducingTransaction
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
            with (
                job_scratch_folder(workspace.odf / "cache", "replay") as job,
                payload_scratch_folder(job) as folder,
            ):
                traced = _run_trace(workspace, history, runs, spark, folder, reporter)
        except Cancelled:
            raise
        except OdfError as error:
            reporter.raise_if_cancelled()  # after a cancellation any error may occur
            how = "" if isinstance(error, NotFound) else " with row tracking"
            reason = f"its transaction cannot be replayed{how}: {error}"
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
    own = _plan(history, history.transaction(workspace), folder / "own", reporter)
    data, dataset = history.event.new_data, history.entry.dataset
    assert data is not None  # rows were found in it
    selection = RowsToTrace(dataset.slice_path(data.physical_hash), runs, dataset.state().vocabulary)
    session = transaction_session(spark, own.request)
    try:
        if _rereads(history):
            if own.transaction.kind != "execute":
                return StepResult([], reason=_REPLACED, lost=True)
            request = with_earlier_rows(own.request, own.transaction, reporter)
            return trace_changes(session, request, selection, reporter)
        if not history.keeps_state:
            return trace_rows(session, own.request, selection, reporter)
        if history.carries_state:
            # The state may be that of a previous query, which this query does not use.
            with suppress(StatefulQueryError):
                return trace_rows(session, own.request, selection, reporter)
        before = history.earlier_transactions(workspace)
        past = None if before is None else _plan(history, before, folder / "past", reporter)
        trace_class = AsOfTrace if uses_as_of_join(own.request.transform.queries or []) else StatefulTrace
        return trace_class(session, past, own, selection, folder, reporter).trace()
    except StatefulQueryError as reason:
        return StepResult([], reason=f"the query has {reason}", lost=True)


def _rereads(history: TransactionHistory) -> bool:
    """Return whether the transaction read the earlier rows of its inputs again."""
    checkpoint, dataset = history.event.new_checkpoint, history.entry.dataset
    if checkpoint is None or history.transform.transform.engine.lower() != SPARK:
        return False
    path = dataset.checkpoint_path(checkpoint.physical_hash)
    return read_checkpoint_metadata(path).result is not UNSET


def _plan(
    history: TransactionHistory, transaction: Transaction, folder: Path, reporter: Reporter
) -> PlannedTransaction:
    folder.mkdir()
    system_time = history.block.block.system_time
    request = make_request(transaction, folder, folder / "data", system_time, reporter)
    return PlannedTransaction(transaction, request)


def _untraceable_reason(
    workspace: Workspace, history: TransactionHistory, runs: list[OffsetRange]
) -> str | None:
    """Return why a transaction cannot be traced row by row, or None if it can."""
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


def _all_candidates(history: TransactionHistory, reason: str | None) -> StepResult:
    """Return all candidate rows as a result."""
    feeds = [OffsetSet([] if interval is None else [interval]) for interval in history.intervals()]
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
    transaction = ProducingTransaction(
        block=str(block.hash),
        sequence_number=block.block.sequence_number,
        system_time=str(block.block.system_time),
        runs=runs,
        query=query_texts(sql.queries or []),
        engine=" ".join(filter(None, [sql.engine, sql.version])),
    )
    return TransactionTrace(transaction, reason is None, reason, feeds, traced.operations)


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
        step.exact or step.made.engine.partition(" ")[0].lower() in local_engines for step in steps
    ):
        return list(steps)
    refined: list[TransactionTrace] = []
    with engines_for(workspace, entry, lambda: spark) as engine:
        for step in steps:
            (history, _), *_rest = producing_transactions(entry, step.made.runs)
            # For stateful transactions, an engine with one transaction alone cannot give an exact result.
            if step.exact or history.keeps_state:
                refined.append(step)
            else:
                refined.append(_refine_step(workspace, history, step, engine, reporter))
    return refined


def _refine_step(
    workspace: Workspace,
    history: TransactionHistory,
    step: TransactionTrace,
    engine: Engine,
    reporter: Reporter,
) -> TransactionTrace:
    rows = [OffsetInterval(first, last) for first, last in step.made.runs]
    try:
        with job_scratch_folder(workspace.odf / "cache", "replay") as folder:
            system_time = history.block.block.system_time
            transaction = history.transaction(workspace)
            request = make_request(transaction, folder, folder / "data", system_time, reporter)
            derived = engine.provenance(request, rows, reporter)
    except Cancelled:
        raise
    except OdfError as error:
        reporter.raise_if_cancelled()
        return replace(step, reason=f"{step.reason}; the engine reports: {error}")
    runs: dict[str, list[OffsetRange]] = {
        feed.alias: [(row.start, row.end) for row in feed.rows] for feed in derived.feeds
    }
    description = "row by row: each row is derived from one row of an input, according to the engine"
    return replace(
        step,
        exact=derived.exact,
        reason=derived.reason,
        feeds=[(alias, dataset, runs.get(alias, [])) for alias, dataset, _ in step.feeds],
        operations=[*step.operations, *([description] if derived.exact else [])],
    )
