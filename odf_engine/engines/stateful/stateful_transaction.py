"""Stateful transactions: execution of batches, row order, state."""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
from msgspec import UNSET, UnsetType
from pyarrow import types

from odf_engine.base.progress import Reporter
from odf_engine.chain.normal_form import spark_engine_version
from odf_engine.data.arrow_compute import pc
from odf_engine.data.changelog import INPUT_BITS, OPERATION, ROWS, Op
from odf_engine.data.parquet.slices import WrittenSlice
from odf_engine.engines.contract import LateRows, QueryInput, TransactionResult
from odf_engine.engines.output_contract import (
    EmittedRows,
    OutputContract,
    input_schemas,
    read_emitted_rows,
    write_result,
)
from odf_engine.engines.stateful.batches import (
    END_OF_TIME,
    Batch,
    Slice,
    Watermarks,
    is_late,
    late_slices,
    read_slices,
    split_batches,
)
from odf_engine.engines.stateful.checkpoint import (
    FORMAT,
    CheckpointMetadata,
    ResultState,
    read_checkpoint,
    require_present_rules,
    write_checkpoint,
)
from odf_engine.engines.stateful.query_plan import (
    SMALL_ROWS,
    QuerySource,
    input_frame,
    interpret_queries,
    plan_query,
    query_hash,
)
from odf_engine.errors import InvalidQuery, Unsupported
from odf_engine.metadata.model import Checkpoint, TransformRequest
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.spark.arrow_batches import arrow_batches
from odf_engine.spark.errors import translate_errors
from odf_engine.spark.executors.slice_writer import write_session_slices
from odf_engine.spark.parquet_files import parquet_frame
from odf_engine.spark.plan_rewrite import run_sql
from odf_engine.spark.row_order import SortOrder, external_sort, sort_by_all_columns, sort_by_terms
from odf_engine.spark.sql_types import arrow_schema, identifier, spark_schema
from odf_engine.spark.stateful.changelog_stages import RANK, ChangelogPlanner
from odf_engine.spark.stateful.incremental import (
    IS_ADDITION,
    BatchWatermarks,
    PlannedBatches,
    StateFiles,
    nullable,
    write_batches,
)
from odf_engine.spark.stateful.stateful_query import WATERMARK, StreamingPlan
from odf_engine.spark.stateful.window_functions import BATCH

if TYPE_CHECKING:
    from odf_engine.spark import DataFrame, SparkSession


_EMITTED: Final = "emitted.arrow"
_BATCHES_AT_ONCE: Final = 32


@dataclass(frozen=True)
class BatchSorter:
    """Sorts the rows of batches.

    Attributes:
        session: session of the job.
        folder: folder for files that must exist while the rows are read.
        reporter: receives amounts; checked for cancellation.
    """

    session: SparkSession
    folder: Path
    reporter: Reporter

    def sort_by_time(
        self, rows: Iterator[pa.RecordBatch], schema: pa.Schema, time: str, number: int
    ) -> Iterator[pa.RecordBatch]:
        """Return rows sorted by batch, event time and every other column; retractions before additions.

        All rows have been read at return. ``number`` identifies the files.
        """
        path = self._path(number)
        if any(types.is_nested(field.type) for field in schema):
            self._write(rows, schema, path)
            frame = sort_by_all_columns(self._read(schema, path), *_first_order(schema), identifier(time))
            return arrow_batches(frame, self.reporter, progress=False)[1]
        first = [*_first_order(schema), time]
        order = SortOrder((*first, *(name for name in schema.names if name not in first)))
        sorted_rows = external_sort(rows, order, path)
        first = next(sorted_rows, None)
        return iter(()) if first is None else chain([first], sorted_rows)

    def store(self, rows: Iterator[pa.RecordBatch], schema: pa.Schema, number: int) -> None:
        """Store rows for :meth:`sort_by_query`; ``number`` identifies the file."""
        self._write(rows, schema, self._path(number))

    def sort_by_query(
        self, numbers: Iterable[int], schema: pa.Schema, order: Sequence[str], time: str
    ) -> Iterator[pa.RecordBatch]:
        """Return all stored rows by the query's ORDER BY (:attr:`StreamingPlan.order`), then by time and
        every other column.
        """
        frame = sort_by_terms(self._read(schema, *map(self._path, numbers)), order, time)
        return arrow_batches(frame, self.reporter, progress=False)[1]

    def _path(self, number: int) -> Path:
        return self.folder / f"rows-{number}.parquet"

    def _write(self, rows: Iterator[pa.RecordBatch], schema: pa.Schema, path: Path) -> None:
        selected = (batch.select(schema.names) for batch in rows)
        write_batches(path, nullable(schema), selected, "lz4")

    def _read(self, schema: pa.Schema, *paths: Path) -> DataFrame:
        return parquet_frame(self.session, paths, spark_schema(schema))


def _first_order(schema: pa.Schema) -> list[str]:
    """Return the columns that precede the event time in the order of rows."""
    return [name for name in (BATCH, IS_ADDITION, RANK) if name in schema.names]


class PreparedQuery(NamedTuple):
    """A query that is ready to run: its slices, and the emitted rows of a grouping without a window."""

    query: StreamingPlan
    source: QuerySource
    contract: OutputContract
    slices: list[Slice]
    emitted: EmittedRows | None

    @property
    def retracts_emitted(self) -> bool:
        """Whether all retractions are of rows in ``emitted``: the query returns no operations."""
        return self.emitted is not None and self.contract.operation is None


class QueryTransaction:
    """What transactions of queries with a state have in common.

    Args:
        session: session of the job; it defines ``system_time()``.
        request: the request; the folder of its new checkpoint is used for temporary files.
        declared: schema of the dataset, or None before it has one.
        reporter: receives amounts and late rows; checked for cancellation.
        state: fingerprint of the query's state (:attr:`ValidatedQuery.state`).
    """

    def __init__(
        self,
        session: SparkSession,
        request: TransformRequest,
        declared: pa.Schema | None,
        reporter: Reporter,
        state: str,
    ) -> None:
        self._session = session
        self._request = request
        self._declared = declared
        self._reporter = reporter
        self._fingerprint = state
        self._new_checkpoint = Path(request.new_checkpoint_path)
        self._folder = self._new_checkpoint.with_name("transaction")
        self._kept_folder = self._folder / "kept"
        self._state = StateFiles(session, self._kept_folder / "state", reporter)

    @contextmanager
    def _temporary_files(self) -> Iterator[None]:
        try:
            yield
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _store_checkpoint(
        self,
        watermarks: dict[str, int],
        watermark: int | None,
        result: ResultState | UnsetType = UNSET,
    ) -> Checkpoint:
        metadata = CheckpointMetadata(
            format=FORMAT,
            engine=spark_engine_version(),
            query=query_hash(self._request),
            watermarks=watermarks,
            watermark=watermark,
            state=self._fingerprint,
            result=result,
        )
        return write_checkpoint(self._new_checkpoint, metadata, self._kept_folder)


class StatefulTransaction(QueryTransaction):
    """A transaction of a stateful query."""

    _has_as_of_joins = False

    def __init__(
        self,
        session: SparkSession,
        request: TransformRequest,
        declared: pa.Schema | None,
        reporter: Reporter,
        state: str,
    ) -> None:
        super().__init__(session, request, declared, reporter, state)
        self._inputs = [QueryInput.from_request(input) for input in request.query_inputs]
        self._aliases = [input.alias for input in self._inputs]
        self._values = False
        self._is_small = False
        self._scratch = self._folder / "scratch"
        self._scratch.mkdir(parents=True)
        self._sorter = BatchSorter(session, self._scratch, reporter)
        self._late_positions: list[pa.Array] = []
        self._pending: int | None = None
        """Number of rows that wait for the watermark of the inputs, or None if it is unknown."""

    def run(self) -> TransactionResult:
        """Run it; write the slice and the checkpoint.

        Raises:
            InvalidQuery, Unsupported: the query is invalid or not supported.
            BadData: a value, a slice or the checkpoint is invalid.
            Cancelled: no output files remain.
        """
        with self._temporary_files():
            watermarks = self._load_state()
            ready = self._prepare()
            planned = self._plan_batches(ready, watermarks)
            written = self._write_slice(self._run_batches(ready, planned, watermarks), ready.contract)
            after = watermarks.after(self._request.query_inputs, None)
            checkpoint = None
            if planned or after != watermarks or self._request.prev_checkpoint_path is None:
                checkpoint = self._write_checkpoint(ready, after)
            return replace(self._result(ready, written, checkpoint, after), late=self._late_rows())

    def finish(self) -> TransactionResult:
        """Write the remaining rows and no checkpoint; the request has no new input data.

        Raises:
            OdfError: as for :meth:`run`.
        """
        with self._temporary_files():
            watermarks = self._load_state()
            ready = self._prepare()
            rows = self._run_batches(ready, [Batch([], END_OF_TIME)], watermarks)
            written = self._write_slice(rows, ready.contract)
            return TransactionResult(written, ready.contract.schema, None, ready.retracts_emitted)

    def rebuild(self) -> TransactionResult:
        """Write the state after all input data of the request, from an empty state.

        The rows are dropped. The state has the single values that retractions require.
        For a grouping without a window the slice has the changes that turn the rows of
        the query whose checkpoint is in the request into its own rows.

        Raises:
            OdfError: as for :meth:`run`.
        """
        with self._temporary_files():
            self._values = True
            ready, no_watermarks = self._prepare(), Watermarks({})
            planned = self._plan_batches(ready, no_watermarks)
            for rows in self._run_batches(ready, planned, no_watermarks):
                deque(rows, maxlen=0)
            written = None
            if ready.emitted is not None:
                changes = _with_operations(*ready.emitted.replacement_changes(self._load_previous_rows()))
                written = self._write_slice([iter(changes)], ready.contract)
            after = no_watermarks.after(self._request.query_inputs, None)
            checkpoint = self._write_checkpoint(ready, after)
            return self._result(ready, written, checkpoint, after)

    def _result(
        self,
        ready: PreparedQuery,
        written: WrittenSlice | None,
        checkpoint: Checkpoint | None,
        after: Watermarks,
    ) -> TransactionResult:
        return TransactionResult(
            written,
            ready.contract.schema,
            checkpoint,
            ready.retracts_emitted,
            self._output_watermark(ready, after),
            pending=self._pending if ready.emitted is None else 0,  # groups without a window do not wait
        )

    def _output_watermark(self, ready: PreparedQuery, watermarks: Watermarks) -> Timestamp | None:
        """Return the watermark of the rows, or None if it is the inputs' watermark."""
        watermark = watermarks.combined(self._aliases)
        if watermark is None or not ready.query.delay:
            return None
        return Timestamp.from_ms(watermark).shifted(ms=-ready.query.delay)

    def _prepare(self) -> PreparedQuery:
        slices = read_slices(self._request.query_inputs)
        self._is_small = (
            sum(data_slice.rows for data_slice in slices) + self._state.count_rows() <= SMALL_ROWS
        )
        if self._is_small:
            interpret_queries(self._session)
        self._values = self._values or any(data_slice.changes for data_slice in slices)
        query, source = self._plan_query()
        contract = OutputContract(
            query.query_schema, self._request.vocab, self._declared, input_schemas(self._request)
        )
        self._check_slices(query, slices)
        emitted = None
        if query.mode == "update":
            emitted = EmittedRows(query.query_schema, query.keys, contract.event_time)
            emitted.load(self._kept_folder / _EMITTED)
        return PreparedQuery(query, source, contract, slices, emitted)

    def _plan_batches(self, ready: PreparedQuery, watermarks: Watermarks) -> list[Batch]:
        inputs, as_of = self._request.query_inputs, self._has_as_of_joins
        return split_batches(ready.slices, inputs, watermarks, ready.query, as_of=as_of)

    def _run_batches(
        self, ready: PreparedQuery, batches: Sequence[Batch], before: Watermarks
    ) -> list[Iterator[pa.RecordBatch]]:
        """Run batches; return their rows in order, in parts.

        Args:
            ready: the query.
            batches: the batches.
            before: watermarks before them.
        """
        exact = ready.query.exact
        watermark = _exclusive(before.combined(self._aliases), exact)
        results: list[Iterator[pa.RecordBatch]] = []
        for number, group in enumerate(self._group_batches(ready.query, batches, before)):
            watermarks = BatchWatermarks(watermark, [_exclusive(batch.watermark, exact) for batch in group])
            rows = self._run_group(ready, group, watermarks, number)
            results.append(rows if ready.emitted is None else _yield_changes(ready.emitted, rows))
            watermark = watermarks.last
        if not ready.query.order or not results:
            return results
        numbers, time = range(len(results)), ready.contract.event_time
        return [self._sorter.sort_by_query(numbers, ready.query.schema, ready.query.order, time)]

    def _group_batches(
        self, query: StreamingPlan, batches: Sequence[Batch], before: Watermarks
    ) -> Iterator[list[Batch]]:
        """Yield the batches that run as one query."""
        has_values = self._values or self._state.has_values()
        is_sequential = query.sequential == "always" or (query.sequential == "changes" and has_values)
        size = 1 if is_sequential else _BATCHES_AT_ONCE
        watermark = before.combined(self._aliases)
        group: list[Batch] = []
        for batch in batches:
            # A session that was emitted is not extended.
            late = watermark is not None and any(
                is_late(data_slice, watermark + 1) for data_slice in batch.slices
            )
            if group and (len(group) == size or (query.sessions and late)):
                yield group
                group = []
            group.append(batch)
            watermark = batch.watermark
        if group:
            yield group

    def _plan_query(self) -> tuple[StreamingPlan, QuerySource]:
        time = self._request.vocab.event_time_column
        return plan_query(self._session, self._request.transform, self._inputs, time)

    def _load_state(self) -> Watermarks:
        """Extract the state of the previous transaction, and return its watermarks."""
        path = self._request.prev_checkpoint_path
        if path is None:
            return Watermarks({})
        metadata = read_checkpoint(Path(path), self._kept_folder)
        require_present_rules(metadata, path)
        if metadata.query != query_hash(self._request) and metadata.state != self._fingerprint:
            raise Unsupported(
                "the checkpoint belongs to another query or to other inputs",
                where=path,
                hint="restore the old query, and change it with odf add --update, which migrates the state",
            )
        return Watermarks(metadata.watermarks)

    def _load_previous_rows(self) -> pa.Table | None:
        """Return the latest rows of the previous query's groups, if it had any."""
        path, folder = self._request.prev_checkpoint_path, self._scratch / "before"
        if path is None:
            return None
        folder.mkdir()
        read_checkpoint(Path(path), folder)
        return read_emitted_rows(folder / _EMITTED)

    def _write_checkpoint(self, ready: PreparedQuery, watermarks: Watermarks) -> Checkpoint:
        if ready.emitted is not None:
            ready.emitted.save(self._kept_folder / _EMITTED)
        return self._store_checkpoint(dict(watermarks.by_alias), watermarks.combined(self._aliases))

    def _check_slices(self, query: StreamingPlan, slices: Sequence[Slice]) -> None:
        """Reject rows that the query cannot process correctly."""
        unsupported = self._unsupported_changes(query)
        for data_slice in slices:
            name = self._alias(data_slice)
            if data_slice.changes and name in unsupported:
                raise InvalidQuery(
                    f"the input '{name}' has retractions or corrections, which {unsupported[name]} "
                    "does not support",
                    where="query",
                    hint="filter by operation, such as WHERE op = 0, or use aggregates over windows",
                )

    def _unsupported_changes(self, query: StreamingPlan) -> Mapping[str, str]:
        """Return the inputs whose changes are not supported, with the operation that prevents it."""
        return query.unsupported_changes

    def _run_group(
        self, ready: PreparedQuery, batches: Sequence[Batch], watermarks: BatchWatermarks, number: int
    ) -> Iterator[pa.RecordBatch]:
        """Run consecutive batches as one query, store the state, and return the rows in order."""
        query = ready.query
        late = late_slices(batches, [watermarks.before, *watermarks.after])
        planner = ChangelogPlanner(
            self._session,
            ready.source.inputs,
            self._request.vocab.event_time_column,
            {
                self._alias(data_slice)
                for batch in batches
                for data_slice in batch.slices
                if data_slice.changes
            }
            | (ready.source.inputs.keys() - set(self._aliases)),
            self._tables(batches, watermarks, number),
            PlannedBatches(
                watermarks,
                self._state,
                may_have_late_rows=any(True for _ in late),
                read_operations=query.read_operations,
                values=self._values,
                single_task=self._is_small,
            ),
            ready.source.system,
        )
        try:
            frame = planner.result(ready.source.frame)
            new_rows = arrow_batches(frame, self._reporter)[1]
            schema = arrow_schema(frame.schema)
            if planner.open_groups is not None:
                new_rows = self._state.split_open_groups(planner.open_groups, new_rows, schema)
                schema = pa.schema(
                    [field for field in schema if field.name not in planner.open_groups.columns]
                )
            new_rows = map(ready.contract.require_event_time, new_rows)
            if query.order:
                self._sorter.store(new_rows, schema, number)
                rows = iter(())
            else:
                rows = self._sorter.sort_by_time(new_rows, schema, ready.contract.event_time, number)
            self._state.replace(planner.states, planner.open_groups)
            self._find_late_rows(planner)
        finally:
            for cached in planner.cached:
                cached.unpersist()
        return rows

    def _alias(self, slice: Slice) -> str:
        return self._aliases[slice.input_index]

    def _find_late_rows(self, planner: ChangelogPlanner) -> None:
        """Find the rows that were dropped because they are late."""
        if not planner.late:
            return
        with translate_errors(self._reporter):
            late = [run_sql(query, new=new) for new, query in planner.late]
            rows = reduce(lambda one, other: one.unionAll(other), late).distinct()
            positions = arrow_batches(rows, self._reporter, progress=False)[1]
            self._late_positions += [batch.column(0) for batch in positions]

    def _late_rows(self) -> list[LateRows]:
        """Return the late rows of each input that has any, and log their numbers."""
        late_rows: list[LateRows] = []
        positions = pa.chunked_array(self._late_positions, pa.int64())
        inputs = pc.shift_right(positions, INPUT_BITS)
        for index, query_input in enumerate(self._request.query_inputs):
            offsets = pc.bit_wise_and(positions.filter(pc.equal(inputs, index)), (1 << INPUT_BITS) - 1)
            if len(offsets):
                late_rows.append(
                    LateRows(query_input.query_alias, offsets.take(pc.array_sort_indices(offsets)))
                )
        if late_rows:
            numbers = ", ".join(f"{row.alias}: {len(row.offsets):,}" for row in late_rows)
            text = f"late rows dropped: {len(positions):,} ({numbers})"
            self._reporter.warn(text, "late-rows", len(positions))
        return late_rows

    def _tables(
        self, batches: Sequence[Batch], watermarks: BatchWatermarks, number: int
    ) -> dict[str, DataFrame]:
        """Return the new rows of each input, with their batch and the watermark before it."""
        tables: dict[str, DataFrame] = {}
        before = [watermarks.before, *watermarks.after]
        for index, batch in enumerate(batches):
            mark = before[index]
            time = "CAST(NULL AS TIMESTAMP)" if mark is None else f"timestamp_millis({mark}L)"
            for name, frame in self._batch_tables(batch, number * _BATCHES_AT_ONCE + index).items():
                rows = frame.selectExpr("*", f"{index + 1} AS {BATCH}", f"{time} AS {WATERMARK}")
                tables[name] = tables[name].unionAll(rows) if name in tables else rows
        return tables

    def _batch_tables(self, batch: Batch, number: int) -> dict[str, DataFrame]:
        """Return the rows of a batch by input."""
        return self._input_frames(batch.slices, self._aliases)

    def _input_frames(self, slices: Sequence[Slice], names: Collection[str]) -> dict[str, DataFrame]:
        """Return inputs as frames, with the rows of some slices."""
        return {
            input.alias: input_frame(
                self._session, [slice.path for slice in slices if slice.input_index == index], input
            )
            for index, input in enumerate(self._inputs)
            if input.alias in names
        }

    def _write_slice(
        self, parts: Sequence[Iterator[pa.RecordBatch]], contract: OutputContract
    ) -> WrittenSlice | None:
        selected = (_select_columns(contract, batch) for rows in parts for batch in rows)
        write_slices = partial(write_session_slices, self._session)
        return write_result(selected, contract.schema, self._request, self._reporter, write_slices)


def _exclusive(watermark: int | None, exact: bool) -> int | None:
    """Return a watermark that rows with its own time have not reached, if they may still arrive."""
    return None if watermark is None else watermark - exact


def _select_columns(contract: OutputContract, batch: pa.RecordBatch) -> pa.RecordBatch:
    if OPERATION in batch.schema.names:
        return contract.select_columns(batch, batch.column(OPERATION))
    return contract.select_columns(batch, pa.repeat(pa.scalar(int(Op.APPEND), pa.int32()), batch.num_rows))


def _yield_changes(emitted: EmittedRows, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the changes of the latest rows of groups, with the operation of each row."""
    batches = list(rows)
    if not batches:
        return iter(())
    table = pa.Table.from_batches(batches)  # sorted by batch
    ends = pc.run_end_encode(table.column(BATCH).combine_chunks()).run_ends.to_pylist()
    changes: list[pa.RecordBatch] = []
    for start, end in pairwise([0, *ends]):
        part = table.slice(start, end - start)
        in_result = [count > 0 for count in part.column(ROWS).to_pylist()]
        changes += _with_operations(*emitted.update(part, in_result))
    return iter(changes)


def _with_operations(changes: pa.Table, operations: Sequence[int]) -> list[pa.RecordBatch]:
    table = changes.append_column(OPERATION, pa.array(operations, pa.int32()))
    return table.to_batches(max_chunksize=1 << 16)
