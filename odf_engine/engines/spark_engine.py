"""The Spark engine: stateless transactions, validation, row provenance, raw queries."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import UNSET

from odf_engine.base.progress import Reporter
from odf_engine.chain.normal_form import spark_engine_version
from odf_engine.data.changelog import OPERATION, POSITION
from odf_engine.data.parquet.slices import TableFiles, WrittenSlice
from odf_engine.engines.contract import (
    ComputedResult,
    Operation,
    QueryInput,
    RowProvenance,
    TransactionResult,
    ValidatedQuery,
)
from odf_engine.engines.output_contract import (
    EmittedRows,
    OutputContract,
    StatelessRows,
    input_schemas,
    slice_task,
)
from odf_engine.engines.row_provenance import all_input_rows, provenance_of_positions
from odf_engine.engines.stateful.as_of_transaction import (
    AsOfTransaction,
    as_of_fingerprint,
    prepare_as_of_query,
)
from odf_engine.engines.stateful.changes_transaction import (
    ChangesTransaction,
    validate_changes_query,
)
from odf_engine.engines.stateful.checkpoint import CheckpointMetadata
from odf_engine.engines.stateful.query_plan import input_views, matching_checkpoint, plan_query
from odf_engine.engines.stateful.recomputation import recompute
from odf_engine.engines.stateful.stateful_transaction import StatefulTransaction
from odf_engine.errors import InvalidQuery, NotFound, StateUnusable, Unsupported
from odf_engine.metadata.model import (
    DatasetVocabulary,
    OffsetInterval,
    RawQueryRequest,
    Sql,
    TransformRequest,
)
from odf_engine.rows.execution import execute_query
from odf_engine.spark.arrow_batches import arrow_batches
from odf_engine.spark.errors import translate_errors
from odf_engine.spark.executors.slice_writer import ExecutorWriter
from odf_engine.spark.parquet_files import parquet_frame
from odf_engine.spark.plan_rewrite import (
    OriginTracker,
    StatefulQueryError,
    TrackedResult,
    check_operations,
    merge_sessions_first,
    track_origins,
)
from odf_engine.spark.query_functions import register_functions
from odf_engine.spark.readers import slices_frame
from odf_engine.spark.repeatability import check_repeatable
from odf_engine.spark.row_order import OrderedFrame, SortOrder, Step, run_sorted, sorted_batches
from odf_engine.spark.runtime.jvm import SparkFailed
from odf_engine.spark.sql_types import arrow_schema
from odf_engine.spark.stateful.stateful_query import StreamingPlan, state_fingerprint
from odf_engine.spark.user_query import joins_computed_table, run_query, temporal_tables, uses_as_of_join
from odf_engine.sql.table_functions import TableFunctionCall

if TYPE_CHECKING:
    from odf_engine.spark import DataFrame, SparkSession
    from odf_engine.spark.runtime.session import SparkRuntime


INPUT: Final = "input"
_RULES_OF_JOINED_ROWS: Final = "\nrules 5"
_RULES_OF_DELAYED_ROWS: Final = "\nrules 2"
"""Parts of the fingerprints in stored checkpoints; change them when such states have other rows."""


def run_raw_query(session: SparkSession, request: RawQueryRequest, reporter: Reporter) -> int:
    """Write the result of a query to the request's output path; return the number of rows.

    No file is written for an empty result.

    Raises:
        NotFound: an input file is missing.
        InvalidQuery: the query is invalid.
        BadData: a value cannot be computed.
        Cancelled: no output file remains.
    """
    for path in request.input_data_paths:
        if not Path(path).is_file():
            raise NotFound("input file not found", where=path)
    with translate_errors():
        frame = parquet_frame(session, list(map(Path, request.input_data_paths)))
    steps = request.transform.queries or []
    register_functions(session, steps)
    result = merge_sessions_first(run_query(session, {INPUT: frame}, steps))
    schema, batches = arrow_batches(result, reporter)
    output = Path(request.output_data_path)
    rows = 0
    try:
        with pq.ParquetWriter(output, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
                rows += batch.num_rows
    except BaseException:
        output.unlink(missing_ok=True)
        raise
    if not rows:
        output.unlink()
    return rows


@dataclass(frozen=True)
class _Validation:
    """Implements ``Engine.validate``; ``session`` must not be used again."""

    session: SparkSession
    transform: Sql
    inputs: Sequence[QueryInput]
    vocab: DatasetVocabulary
    declared: pa.Schema | None

    def run(self) -> ValidatedQuery:
        session, transform, inputs = self.session, self.transform, self.inputs
        steps = transform.queries or []
        # The tables must exist even if no join uses them.
        columns = {input.alias: (input.schema.names, input.vocab) for input in inputs}
        tables = temporal_tables(session, transform, columns, self.vocab.event_time_column)
        is_as_of = uses_as_of_join(steps)
        rereads = is_as_of and joins_computed_table(session, steps, tables)
        if is_as_of and not rereads:
            prepared = prepare_as_of_query(session, transform, inputs, self.vocab.event_time_column)
            text = as_of_fingerprint(session, prepared, inputs) + _RULES_OF_JOINED_ROWS
            return self._check_plan(prepared.query, text)
        vocabs = {input.alias: input.vocab for input in inputs}
        views = {input.alias: slices_frame(session, [], input.schema, input.vocab) for input in inputs}
        frame = run_query(session, views, steps, tables)
        check_repeatable(frame, steps, windows=True)
        if rereads:
            return validate_changes_query(session, transform, inputs, self.vocab, self.declared)
        try:
            tracked = track_origins(session, frame, vocabs)
        except StatefulQueryError:
            try:
                return self._check_stateful()
            except (InvalidQuery, Unsupported, SparkFailed):
                return validate_changes_query(session, transform, inputs, self.vocab, self.declared)
        if self.vocab.operation_type_column not in tracked.frame.columns:
            with translate_errors():
                check_operations(OriginTracker(session, vocabs).inlined_plan(frame), vocabs)
        return ValidatedQuery(self._contract(_query_columns(tracked.frame)).schema)

    def _check_stateful(self) -> ValidatedQuery:
        query, source = plan_query(self.session, self.transform, self.inputs, self.vocab.event_time_column)
        with translate_errors():
            text = state_fingerprint(self.session, source.frame, all_columns=query.mode == "update")
        if query.delay:
            text += _RULES_OF_DELAYED_ROWS
        return self._check_plan(query, text)

    def _check_plan(self, query: StreamingPlan, text: str) -> ValidatedQuery:
        contract = self._contract(query.query_schema)
        if query.mode == "update":
            EmittedRows(query.query_schema, query.keys, contract.event_time)
        return ValidatedQuery(contract.schema, _hash([text, *(input.alias for input in self.inputs)]))

    def _contract(self, columns: pa.Schema) -> OutputContract:
        return OutputContract(columns, self.vocab, self.declared, [input.schema for input in self.inputs])


def _query_columns(frame: DataFrame) -> pa.Schema:
    columns = arrow_schema(frame.schema)
    return pa.schema([field for field in columns if field.name not in (POSITION, OPERATION)])


def _hash(parts: Sequence[str]) -> str:
    return hashlib.sha3_256("\n".join(parts).encode()).hexdigest()


_ANY_TIME: Final = "1970-01-01T00:00:00+00:00"


class SparkEngine:
    """Runs queries of the dialect ``spark`` in a running Spark."""

    def __init__(self, runtime: SparkRuntime) -> None:
        self._runtime = runtime

    def run(
        self, operation: Operation, request: TransformRequest, declared: pa.Schema | None, reporter: Reporter
    ) -> TransactionResult:
        """See :class:`odf_engine.engines.contract.Engine`."""
        result = self._run(operation, request, declared, reporter)
        return replace(result, version=spark_engine_version())

    def _run(
        self, operation: Operation, request: TransformRequest, declared: pa.Schema | None, reporter: Reporter
    ) -> TransactionResult:
        session = self._new_session(request)
        if operation == "recompute":
            rereads = self._validate_request(request).rereads
            return recompute(session, request, declared, reporter, rereads=rereads)
        checkpoint = None if operation == "rebuild" else matching_checkpoint(request)
        if operation == "execute" and (tracked := _track_query(session, request, checkpoint)) is not None:
            return _run_stateless(tracked, request, declared, reporter)
        transaction = self._stateful_transaction(session, request, declared, reporter, checkpoint)
        work = {"execute": transaction.run, "finish": transaction.finish, "rebuild": transaction.rebuild}
        return work[operation]()

    def validate(
        self,
        transform: Sql,
        inputs: Sequence[QueryInput],
        vocab: DatasetVocabulary,
        declared: pa.Schema | None,
    ) -> ValidatedQuery:
        """See :class:`odf_engine.engines.contract.Engine`."""
        session = self._runtime.session()
        define_system_time(session, _ANY_TIME)
        return _Validation(session, transform, inputs, vocab, declared).run()

    def _validate_request(self, request: TransformRequest) -> ValidatedQuery:
        inputs = [QueryInput.from_request(input) for input in request.query_inputs]
        return self.validate(request.transform, inputs, request.vocab, None)

    def provenance(
        self, request: TransformRequest, rows: Sequence[OffsetInterval], reporter: Reporter
    ) -> RowProvenance:
        """See :class:`odf_engine.engines.contract.Engine`."""
        try:
            tracked = _track_query(self._new_session(request), request, matching_checkpoint(request))
        except StateUnusable:
            tracked = None
        if tracked is None:
            return all_input_rows(request, "the query is stateful")
        origins = replace(tracked, frame=tracked.frame.select(POSITION, OPERATION))

        def trace(sort: bool) -> RowProvenance:
            batches = _sorted_rows(origins, lambda batch: batch, reporter, sort=sort)
            return provenance_of_positions(batches, request, rows, reporter)

        return run_sorted(trace)

    def compute_outcome(self, sql: str, tables: Sequence[TableFiles], reporter: Reporter) -> ComputedResult:
        """See :class:`odf_engine.engines.contract.Engine`."""
        tables_by_name = {table.name.casefold(): table for table in tables}
        read: list[str] = []

        def find(name: str, call: TableFunctionCall | None) -> TableFiles:
            table = tables_by_name.get(name.casefold())
            if table is None:
                raise NotFound(f"dataset '{name}' not found")
            read.append(table.name)
            return table

        session = self._runtime.session()
        with execute_query(
            sql, [table.name for table in tables], find, session, reporter, proven=True
        ) as answer:
            outcome = answer.summarize(reporter)
        return ComputedResult(outcome, read, session.version)

    def _new_session(self, request: TransformRequest) -> SparkSession:
        session = self._runtime.session()
        define_system_time(session, request.system_time.to_datetime().isoformat())
        return session

    def _stateful_transaction(
        self,
        session: SparkSession,
        request: TransformRequest,
        declared: pa.Schema | None,
        reporter: Reporter,
        checkpoint: CheckpointMetadata | None,
    ) -> StatefulTransaction | ChangesTransaction:
        """Return the transaction of a query with state.

        Args:
            session: session of the job.
            request, declared, reporter: as for :meth:`run`.
            checkpoint: of exactly this query, or None if it has none yet.

        Raises:
            InvalidQuery: the query is stateless.
        """
        if checkpoint is not None:
            state, rereads = checkpoint.state, checkpoint.result is not UNSET
        else:
            checked = self._validate_request(request)
            if checked.state is None:
                raise InvalidQuery("the query is stateless", where="query")
            rereads = checked.rereads
            state = _hash([checked.state, *(str(input.dataset_id) for input in request.query_inputs)])
        if rereads:
            return ChangesTransaction(session, request, declared, reporter, state)
        as_of = uses_as_of_join(request.transform.queries or [])
        transaction_class = AsOfTransaction if as_of else StatefulTransaction
        return transaction_class(session, request, declared, reporter, state)


def _track_query(
    session: SparkSession, request: TransformRequest, checkpoint: CheckpointMetadata | None
) -> TrackedResult | None:
    """Return the result of a stateless query, or None if it needs state."""
    if checkpoint is not None or uses_as_of_join(request.transform.queries or []):
        return None
    frame = run_query(session, input_views(session, request), request.transform.queries or [])
    check_repeatable(frame, request.transform.queries or [], windows=True)
    try:
        return track_origins(
            session, frame, {input.query_alias: input.vocab for input in request.query_inputs}
        )
    except StatefulQueryError:
        return None


def _run_stateless(
    tracked: TrackedResult, request: TransformRequest, declared: pa.Schema | None, reporter: Reporter
) -> TransactionResult:
    """Write the result of a query as rows of a slice (the output contract).

    Raises:
        InvalidQuery: no event time, a reserved column name, or columns that differ from the dataset.
    """
    contract = OutputContract(_query_columns(tracked.frame), request.vocab, declared, input_schemas(request))

    task = slice_task(contract.schema, request)
    writer = ExecutorWriter(tracked.frame.sparkSession, task, lambda: Path(request.new_data_path), reporter)

    def write(sort: bool) -> list[WrittenSlice]:
        batches = _sorted_rows(tracked, contract.require_event_time, reporter, sort=sort)
        return writer.write_batches(contract.stateless_rows(batches, ordered=tracked.ordered))

    prepare = StatelessRows(contract, task.properties, tracked.ordered)
    written = writer.write_frame(_ordered_frame(tracked, lambda batch: batch), prepare, reporter)
    if written is None:
        written = run_sorted(write)
    return TransactionResult(written[0] if written else None, contract.schema)


def _sorted_rows(
    tracked: TrackedResult, step: Step, reporter: Reporter, *, sort: bool
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a result, ordered by its ORDER BY or by position."""
    frame = _ordered_frame(tracked, step)
    return sorted_batches(frame.make_frame, frame.order, reporter, sort=sort)


def _ordered_frame(tracked: TrackedResult, step: Step) -> OrderedFrame:
    order = SortOrder() if tracked.ordered else SortOrder((POSITION,), passes=True)

    def make_frame(sort: bool) -> tuple[DataFrame, Step]:
        return tracked.frame.sort(POSITION) if sort and not tracked.ordered else tracked.frame, step

    return OrderedFrame(make_frame, order)


def define_system_time(session: SparkSession, time: str) -> None:
    """Define ``system_time()`` as the system time of the transaction, in RFC 3339."""
    session.sql(
        f"CREATE OR REPLACE TEMPORARY FUNCTION system_time() RETURNS TIMESTAMP RETURN TIMESTAMP'{time}'"
    )
