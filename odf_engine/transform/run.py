"""Bringing a derivative dataset up to date with its inputs, transaction by transaction."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from odf_engine.data.arrow_schema import decode_schema, encode_schema
from odf_engine.errors import InvalidQuery, Unsupported
from odf_engine.metadata.model import (
    DataSlice,
    ExecuteTransform,
    MetadataEvent,
    SetDataSchema,
    TransformRequest,
    TransformRequestInput,
)
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.progress import Reporter
from odf_engine.transform.contract import Engine, Result
from odf_engine.transform.plan import InputPlan, Transaction, plan_transaction
from odf_engine.workspace.workspace import DatasetEntry, Workspace

MAX_ROWS: Final = 50_000_000
ENGINES: Final = ("spark",)


def transform(workspace: Workspace, entry: DatasetEntry, engine: Engine, reporter: Reporter) -> None:
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
    while True:
        reporter.phase("plan")
        transaction = plan_transaction(workspace, entry, MAX_ROWS)
        if transaction is None:
            return
        with _job_folder(workspace.odf / "cache") as folder:
            _Step(workspace, transaction, engine, folder, reporter).run()


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
        name = self._transaction.transform.transform.engine
        if name.lower() not in ENGINES:
            raise InvalidQuery(
                f"the query is for the engine '{name}', which is not here",
                where="transform",
                hint=f"engines: {', '.join(ENGINES)}",
            )
        staged = self._dataset.staging_path("data")
        try:
            for each in self._transaction.inputs:
                self._reporter.line(_said(each))
            self._reporter.phase("query")
            result = self._engine.execute(self._request(staged), self._declared(), self._reporter)
            self._commit(result, staged)
        finally:
            staged.unlink(missing_ok=True)
        self._reporter.line(f"done in {monotonic() - begun:.1f} s", "debug")

    def _declared(self) -> pa.Schema | None:
        if self._state.schema is not None:
            return decode_schema(self._state.schema)
        if self._state.has_schema:
            raise Unsupported(
                "the dataset's schema is written in terms of a newer specification",
                hint="its data can be read and verified, but not added to",
            )
        return None

    def _request(self, staged: Path) -> TransformRequest:
        last = self._state.last_offset
        return TransformRequest(
            dataset_id=self._transaction.entry.id,
            dataset_alias=str(self._transaction.entry.alias),
            system_time=self._system_time,
            vocab=self._state.vocabulary,
            transform=self._transaction.transform.transform,
            query_inputs=[self._input(at, each) for at, each in enumerate(self._transaction.inputs)],
            next_offset=0 if last is None else last + 1,
            new_checkpoint_path=str(self._folder / "checkpoint"),
            new_data_path=str(staged),
        )

    def _input(self, at: int, each: InputPlan) -> TransformRequestInput:
        # An empty file: the schema at the interval's end, which no slice may have had yet.
        schema_file = self._folder / f"schema-{at}.parquet"
        pq.write_table(decode_schema(each.schema).empty_table(), schema_file)
        dataset = each.entry.dataset
        return TransformRequestInput(
            dataset_id=each.entry.id,
            dataset_alias=str(each.entry.alias),
            query_alias=each.alias,
            vocab=each.vocab,
            offset_interval=each.offsets,
            data_paths=[str(dataset.slice_path(row)) for row in each.slices],
            schema_file=str(schema_file),
            explicit_watermarks=[each.explicit] if each.explicit is not None else [],
        )

    def _commit(self, result: Result, staged: Path) -> None:
        state, reporter, written = self._state, self._reporter, result.written
        reporter.phase("commit")
        reporter.check()
        events: list[MetadataEvent] = []
        if written is not None and not state.has_schema:
            events.append(SetDataSchema(schema=encode_schema(result.schema)))
        checkpoint = state.last_checkpoint
        events.append(
            ExecuteTransform(
                query_inputs=[each.interval for each in self._transaction.inputs],
                prev_checkpoint=checkpoint.physical_hash if checkpoint else None,
                prev_offset=state.last_offset,
                new_data=None
                if written is None
                else DataSlice(
                    logical_hash=written.logical_hash,
                    physical_hash=written.physical_hash,
                    offset_interval=written.offset_interval,
                    size=written.size,
                ),
                new_checkpoint=checkpoint,
                new_watermark=self._transaction.watermark,
            )
        )
        head = self._dataset.commit(
            events,
            system_time=self._system_time,
            expected_head=state.head,
            data=staged if written is not None else None,
            block_version=self._version,
        )
        rows = written.rows if written is not None else 0
        reporter.line(f"block {head}, {rows:,} rows")
        reporter.committed(str(self._transaction.entry.id), str(head), "ExecuteTransform", rows)


def _said(each: InputPlan) -> str:
    rows = sum(row.end - row.start + 1 for row in each.slices)
    mark = f", watermark {each.watermark}" if each.watermark is not None else ""
    return f"input {each.alias}: {rows:,} new rows in {len(each.slices)} slices{mark}"


@contextmanager
def _job_folder(cache: Path) -> Iterator[Path]:
    cache.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="transform-", dir=cache))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
