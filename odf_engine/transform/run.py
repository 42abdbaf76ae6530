"""Bringing a derivative dataset up to date with its inputs, transaction by transaction."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Final

import pyarrow.parquet as pq

from odf_engine.data.arrow_schema import decode_schema, encode_schema
from odf_engine.errors import Unsupported
from odf_engine.ingest.folders import job_folder
from odf_engine.ingest.poll import PullResult
from odf_engine.ingest.shape import declared_schema
from odf_engine.metadata.model import (
    DataSlice,
    ExecuteTransform,
    MetadataEvent,
    SetDataSchema,
    TransformRequest,
    TransformRequestInput,
    Watermark,
)
from odf_engine.metadata.quoting import quoting
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.progress import Reporter
from odf_engine.transform.contract import Engine, Result
from odf_engine.transform.plan import InputPlan, Transaction, plan_transaction
from odf_engine.workspace.versions import SPARK, SPARK_VERSION
from odf_engine.workspace.workspace import DatasetEntry, Workspace

CHECKPOINT: Final = "checkpoint"


def transform(workspace: Workspace, entry: DatasetEntry, engine: Engine, reporter: Reporter) -> PullResult:
    """Runs transactions until the dataset has taken in all of its inputs; each is one commit.

    Args:
        workspace: where the inputs are.
        entry: a derivative dataset.
        engine: what runs the query.
        reporter: hears of phases, amounts and commits, and is asked whether to stop.

    Raises:
        Cancelled: what was committed until then stays.
        OdfError: a transaction failed; those before it stay, and the next pull goes on there.
    """
    before = entry.dataset.state()
    while True:
        reporter.phase("plan")
        transaction = plan_transaction(workspace, entry, workspace.config.transform.most_rows)
        if transaction is None:
            break
        if SPARK not in map(str.lower, workspace.config.engines):
            _check_version(transaction)
        with job_folder(workspace.odf / "cache", "transform") as folder:
            _Step(workspace, transaction, engine, folder, reporter).run()
    return PullResult.between(before, entry.dataset.state())


def _check_version(transaction: Transaction) -> None:
    """Lets pass queries for the engine of this program.

    Raises:
        Unsupported: the chain says that its rows are made by another version.
    """
    sql = transaction.transform.transform
    if sql.engine.lower() == SPARK and sql.version not in (None, SPARK_VERSION):
        raise Unsupported(
            f"the query is for version {sql.version} of the engine, and this is {SPARK_VERSION}",
            where="transform",
            hint=f"to go on with this one: `version: {SPARK_VERSION}` in its manifest, and odf add --update",
        )


class _Step:
    """Runs and commits one transaction."""

    def __init__(
        self,
        workspace: Workspace,
        transaction: Transaction,
        engine: Engine,
        folder: Path,
        reporter: Reporter,
    ) -> None:
        self._version = workspace.config.block_version
        self._transaction = transaction
        self._dataset = transaction.entry.dataset
        self._state = transaction.state
        self._engine = engine
        self._folder = folder
        self._reporter = reporter
        self._system_time = max(Timestamp.now(), self._state.system_time)

    def run(self) -> None:
        begun = monotonic()
        staged = self._dataset.staging_path("data")
        try:
            for each in self._transaction.inputs:
                self._reporter.line(_said(each))
            self._reporter.phase("query")
            request = make_request(self._transaction, self._folder, staged, self._system_time)
            queried = monotonic()
            result = perform(self._engine, self._transaction, request, self._reporter)
            self._reporter.line(_made(result, monotonic() - queried))
            self._commit(result, staged, begun)
        finally:
            staged.unlink(missing_ok=True)

    def _commit(self, result: Result, staged: Path, begun: float) -> None:
        state, reporter, written = self._state, self._reporter, result.written
        reporter.phase("commit")
        reporter.check()
        events: list[MetadataEvent] = []
        if written is not None and not state.has_schema:
            events.append(SetDataSchema(schema=encode_schema(result.schema)))
        events.append(event_of(self._transaction, result))
        head = self._dataset.commit(
            events,
            system_time=self._system_time,
            expected_head=state.head,
            data=staged if written is not None else None,
            checkpoint=self._folder / CHECKPOINT if result.checkpoint is not None else None,
            block_version=self._version,
        )
        rows = written.rows if written is not None else 0
        reporter.line(f"block {head}, {rows:,} rows, in {monotonic() - begun:.1f} s all in all")
        reporter.committed(str(self._transaction.entry.id), str(head), "ExecuteTransform", rows)


def perform(
    engine: Engine, transaction: Transaction, request: TransformRequest, reporter: Reporter
) -> Result:
    """Has an engine do a transaction.

    Args:
        engine: what runs the query.
        transaction: what is to be done.
        request: made of it by :func:`make_request`.
        reporter: hears of amounts, and is asked whether to stop.

    Raises:
        OdfError: as the methods of :class:`odf_engine.transform.contract.Engine` say.
    """
    work = {"execute": engine.execute, "finish": engine.finish, "rebuild": engine.rebuild}[transaction.kind]
    with quoting(request.transform.queries or []):
        return work(request, declared_schema(transaction.state), reporter)


def event_of(transaction: Transaction, result: Result) -> ExecuteTransform:
    """What the chain says of a transaction that was done."""
    state, written = transaction.state, result.written
    before = state.last_checkpoint
    return ExecuteTransform(
        query_inputs=[each.interval for each in transaction.inputs],
        prev_checkpoint=before.physical_hash if before else None,
        prev_offset=state.last_offset,
        new_data=None
        if written is None
        else DataSlice(
            logical_hash=written.logical_hash,
            physical_hash=written.physical_hash,
            offset_interval=written.offset_interval,
            size=written.size,
        ),
        new_checkpoint=None if transaction.kind == "finish" else result.checkpoint or before,
        new_watermark=transaction.watermark,
    )


def make_request(
    transaction: Transaction, folder: Path, staged: Path, system_time: Timestamp
) -> TransformRequest:
    """What the engine is asked to do.

    Args:
        transaction: what to run.
        folder: for temporary files; it has to stay until the engine is done.
        staged: where the engine writes the slice.
        system_time: of the rows.
    """
    state = transaction.state
    fresh = state.last_checkpoint is None or transaction.kind == "rebuild"
    return TransformRequest(
        dataset_id=transaction.entry.id,
        dataset_alias=str(transaction.entry.alias),
        system_time=system_time,
        vocab=state.vocabulary,
        transform=transaction.transform.transform,
        query_inputs=[
            _request_input(each, folder / f"{at}.parquet", fresh=fresh)
            for at, each in enumerate(transaction.inputs)
        ],
        next_offset=0 if state.last_offset is None else state.last_offset + 1,
        prev_checkpoint_path=_path_of(transaction),
        new_checkpoint_path=str(folder / CHECKPOINT),
        new_data_path=str(staged),
    )


def _path_of(transaction: Transaction) -> str | None:
    """The file of the checkpoint that the transaction goes on from."""
    last = transaction.state.last_checkpoint
    return None if last is None else str(transaction.entry.dataset.checkpoint_path(last.physical_hash))


def _request_input(each: InputPlan, schema_file: Path, *, fresh: bool) -> TransformRequestInput:
    """``fresh`` where no state says which watermark the input had before."""
    # An empty file: the schema at the interval's end, which no slice may have had yet.
    pq.write_table(decode_schema(each.schema).empty_table(), schema_file)
    return TransformRequestInput(
        dataset_id=each.entry.id,
        dataset_alias=str(each.entry.alias),
        query_alias=each.alias,
        vocab=each.vocab,
        offset_interval=each.offsets,
        data_paths=[str(each.entry.dataset.slice_path(row)) for row in each.slices],
        schema_file=str(schema_file),
        explicit_watermarks=[*(_known(each) if fresh else ()), *each.explicit],
    )


def _known(each: InputPlan) -> Iterator[Watermark]:
    """Up to when time was complete when the transaction began; rows from before that are late."""
    if each.before is None:
        return
    block = each.interval.prev_block_hash
    moment = each.entry.dataset.block(block).block.system_time if block else Timestamp.from_ms(0)
    yield Watermark(system_time=moment, event_time=each.before)


def _made(result: Result, seconds: float) -> str:
    written = result.written
    rows = f"{written.rows:,} rows, {written.size:,} bytes" if written is not None else "no rows"
    state = ", and keeps a state" if result.checkpoint is not None else ""
    return f"the query made {rows} in {seconds:.1f} s{state}"


def _said(each: InputPlan) -> str:
    rows = sum(row.end - row.start + 1 for row in each.slices)
    mark = f", watermark {each.watermark}" if each.watermark is not None else ""
    slices = "slice" if len(each.slices) == 1 else "slices"
    return f"input {each.alias}: {rows:,} new rows in {len(each.slices)} {slices}{mark}"
