"""One step back: from rows of a derivative dataset to the rows of its inputs that made them.

A transaction is run again with the places of rows coming along. So the answer is exact: the rows that
are named made these rows, and no others did. Where that cannot be had, the answer is all rows that could
have, and says why.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from odf_engine.errors import Cancelled, NotFound, OdfError
from odf_engine.ingest.folders import job_folder
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.progress import Reporter
from odf_engine.provenance.step_as_of import AsOfStated
from odf_engine.provenance.step_folding import Folding
from odf_engine.provenance.step_history import History, histories
from odf_engine.provenance.step_rows import SCATTERED, Sought, Traced, session_at, trace_rows
from odf_engine.provenance.step_state import Stated
from odf_engine.provenance.step_time import Part
from odf_engine.spark.origins import NeedsState
from odf_engine.spark.temporal import has_clause
from odf_engine.transform.plan import Transaction
from odf_engine.transform.run import make_request
from odf_engine.transform.streaming import plain_folder
from odf_engine.workspace.traced import Run
from odf_engine.workspace.trust import Trust
from odf_engine.workspace.versions import SPARK
from odf_engine.workspace.workspace import DatasetEntry, Workspace

if TYPE_CHECKING:
    from odf_engine.spark.session import SparkRuntime

_MOST_ASKED: Final = 2000
_MOST_TRACED: Final = 100
_TOO_MANY: Final = (
    f"more than {_MOST_TRACED} transactions made these rows, and only so many are run again: ask for fewer"
)


@dataclass(frozen=True)
class StepOf:
    """What made some rows of a derivative dataset, in one transaction.

    Attributes:
        block: the hash of its block.
        sequence_number: of the block.
        system_time: of the block.
        runs: which of the rows.
        query: the steps of the query that ran, as (alias, SQL); the last one's alias is empty.
        engine: what ran it: name and version.
        exact: whether the rows of ``feeds`` made these rows and no others did; else they are all rows
            that could have.
        reason: why they are not exact.
        feeds: of each input of the query, in their order: what the query calls it, its id, and which
            rows; no runs where none of its rows is among them.
        how: what was done, in words, a line each.
    """

    block: str
    sequence_number: int
    system_time: Timestamp
    runs: list[Run]
    query: list[tuple[str, str]]
    engine: str
    exact: bool
    reason: str | None
    feeds: list[tuple[str, str, list[Run]]]
    how: list[str]


def step(
    workspace: Workspace,
    entry: DatasetEntry,
    runs: Sequence[Run],
    spark: SparkRuntime,
    reporter: Reporter,
) -> list[StepOf]:
    """The rows of its inputs that made rows of a derivative dataset.

    Args:
        workspace: where the inputs are; what is not here is answered from the dataset's own chain.
        entry: the dataset.
        runs: offsets of its rows, in ascending order; what lies past its end is left out.
        spark: runs the queries again.
        reporter: hears of phases and amounts, and is asked whether to stop.

    Returns:
        One answer for each transaction that made some of the rows, oldest first.

    Raises:
        Cancelled: somebody asked to stop.
        OdfError: the dataset's chain or a slice of it cannot be read.
    """
    reporter.phase("trace")
    found: list[StepOf] = []
    for number, (history, own) in enumerate(histories(entry, runs)):
        reporter.check()
        reporter.amount(files=number)
        if number < _MOST_TRACED:
            found.append(_step(workspace, history, own, spark, reporter))
        else:
            found.append(_answer(history, own, _larger(history, _TOO_MANY)))
    return found


def _step(
    workspace: Workspace, history: History, runs: list[Run], spark: SparkRuntime, reporter: Reporter
) -> StepOf:
    reason = _beyond(workspace, history, runs)
    traced: Traced | None = None
    if reason is None:
        try:
            with _plain_folder(workspace, spark) as folder:
                traced = _traced(workspace, history, runs, spark, folder, reporter)
        except Cancelled:
            raise
        except OdfError as error:
            reporter.check()  # what was stopped may fail in any way
            reason = _said(error)
    if traced is None or traced.lost:
        traced = _larger(history, reason or (traced.reason if traced else None))
    return _answer(history, runs, traced)


def _traced(
    workspace: Workspace,
    history: History,
    runs: list[Run],
    spark: SparkRuntime,
    folder: Path,
    reporter: Reporter,
) -> Traced:
    own = _part(history, history.own(workspace), folder / "own")
    sought = _sought(history, runs)
    session = session_at(spark, own.request)
    try:
        if not history.keeps_state:
            return trace_rows(session, own.request, sought, reporter)
        if history.carries_state:
            # It may be that of a query before, which this one has no use for.
            with suppress(NeedsState):
                return trace_rows(session, own.request, sought, reporter)
        before = history.past(workspace)
        past = None if before is None else _part(history, before, folder / "past")
        kind = AsOfStated if has_clause(own.request.transform.queries or []) else Stated
        return kind(session, past, own, sought, folder, reporter).trace()
    except NeedsState as reason:
        return Traced([], reason=f"the query has {reason}", lost=True)


@contextmanager
def _plain_folder(workspace: Workspace, spark: SparkRuntime) -> Iterator[Path]:
    """A folder for temporary files whose path Spark takes as it is."""
    with job_folder(workspace.odf / "cache", "replay") as job:
        folder = plain_folder(job / "step", str(spark.session().sparkContext.master))
        folder.mkdir(exist_ok=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _part(history: History, transaction: Transaction, folder: Path) -> Part:
    folder.mkdir()
    system_time = history.block.block.system_time
    return Part(transaction, make_request(transaction, folder, folder / "data", system_time))


def _sought(history: History, runs: list[Run]) -> Sought:
    data = history.event.new_data
    assert data is not None  # rows were found in it
    dataset = history.entry.dataset
    return Sought(dataset.slice_path(data.physical_hash), runs, dataset.state().vocabulary)


def _beyond(workspace: Workspace, history: History, runs: list[Run]) -> str | None:
    """Why a transaction cannot be traced row by row; None when it can."""
    sql = history.transform.transform
    if sql.engine.lower() != SPARK or SPARK in map(str.lower, workspace.config.engines):
        return f"the engine '{sql.engine}' ran the query, and does not say which rows made which"
    if not Trust(workspace).is_trusted(history.entry):
        return "its query is of somebody else and not trusted here, so it was not run: see odf trust"
    if not history.complete:
        return f"the state of the query goes back over more than {len(history.before):,} transactions"
    if len(runs) > _MOST_ASKED:
        return f"{len(runs):,} separate runs of rows were asked for at once"
    return None


def _said(error: OdfError) -> str:
    if isinstance(error, NotFound):
        return f"it cannot be run again here: {error}"
    return f"it cannot be run again with its rows followed: {error}"


def _larger(history: History, reason: str | None) -> Traced:
    """All rows that could have made the result."""
    feeds: list[Folding] = []
    for run in history.intervals():
        folding = Folding()
        folding.add_runs([] if run is None else [run])
        feeds.append(folding)
    return Traced(feeds, [], reason or "its rows cannot be followed")


def _answer(history: History, runs: list[Run], traced: Traced) -> StepOf:
    sql, block = history.transform.transform, history.block
    found = [folding.runs() for folding in traced.feeds]
    reason = traced.reason
    if reason is None and any(folding.scattered for folding in traced.feeds):
        reason = SCATTERED
    feeds = [
        (item.alias or item.dataset_ref, str(read.dataset_id), found[at])
        for at, (item, read) in enumerate(
            zip(history.transform.inputs, history.event.query_inputs, strict=True)
        )
    ]
    return StepOf(
        block=str(block.hash),
        sequence_number=block.block.sequence_number,
        system_time=block.block.system_time,
        runs=runs,
        query=[(each.alias or "", each.query) for each in sql.queries or []],
        engine=" ".join(filter(None, [sql.engine, sql.version])),
        exact=reason is None,
        reason=reason,
        feeds=feeds,
        how=traced.how,
    )
