"""The Spark engine: stateless transactions, validation, row provenance, raw queries."""

from __future__ import annotations

import hashlib
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from odf_engine.data.changelog import Op, repair_correction_pairs, split_corrections
from odf_engine.data.slices import WrittenSlice, write_slice
from odf_engine.errors import InvalidQuery, NotFound, Unsupported
from odf_engine.metadata.model import (
    DatasetVocabulary,
    OffsetInterval,
    RawQueryRequest,
    Sql,
    TransformRequest,
)
from odf_engine.progress import Reporter
from odf_engine.query.execution import TableFiles, execute_query
from odf_engine.spark.arrow_batches import arrow_batches
from odf_engine.spark.errors import translate_errors
from odf_engine.spark.plan_rewrite import (
    INPUT_BITS,
    OPERATION,
    POSITION,
    StatefulQueryError,
    TrackedResult,
    check_repeatable,
    track_origins,
)
from odf_engine.spark.readers import query_schema, slices_frame
from odf_engine.spark.row_order import Make, SortOrder, Step, UnsortedResult, sorted_batches
from odf_engine.spark.sql_types import arrow_schema
from odf_engine.spark.streaming.micro_batch import MicroBatchQuery
from odf_engine.spark.streaming.stateful_query import StreamingPlan, plan_stream, state_fingerprint
from odf_engine.spark.text_files import spark_path
from odf_engine.spark.user_query import run_query, temporal_tables, uses_as_of_join
from odf_engine.sql.table_functions import TableFunctionCall
from odf_engine.transform.engines.as_of_transaction import (
    AsOfStreaming,
    fingerprint_as_of,
    prepare_as_of_query,
)
from odf_engine.transform.engines.contract import (
    Computed,
    QueryInput,
    RowProvenance,
    TransactionResult,
    ValidatedQuery,
)
from odf_engine.transform.engines.output_contract import EmittedRows, OutputContract
from odf_engine.transform.engines.stateful_transaction import StatefulTransaction, matching_checkpoint

if TYPE_CHECKING:
    from odf_engine.spark import DataFrame, SparkSession
    from odf_engine.spark.runtime.session import SparkRuntime


INPUT: Final = "input"


def raw_query(session: SparkSession, request: RawQueryRequest, reporter: Reporter) -> int:
    """Writes the result to the request's output path; how many records it has. Without any there is no file.

    Raises:
        NotFound: an input file is missing.
        InvalidQuery: the query is wrong.
        BadData: a value that cannot be computed.
        Cancelled: nothing is left.
    """
    for path in request.input_data_paths:
        if not Path(path).is_file():
            raise NotFound("there is no such input file", where=path)
    with translate_errors():
        frame = session.read.parquet(*(spark_path(Path(path)) for path in request.input_data_paths))
    result = run_query(session, {INPUT: frame}, request.transform.queries or [])
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


def derive_row_provenance(
    followed: TrackedResult, request: TransformRequest, rows: Sequence[OffsetInterval], reporter: Reporter
) -> RowProvenance:
    """Finds them: the rows of a transaction are in the order of their positions, which name input rows.

    The other half of a correction belongs to a row that one half of it made: without it, the operation
    would be another one.

    Args:
        followed: the result of the transaction's query.
        request: of the transaction.
        rows: offsets of rows that it made.
        reporter: is asked whether to stop.
    """
    found: dict[int, set[int]] = defaultdict(set)
    for position, operation in _positions(followed, request.next_offset, rows, reporter):
        at, offset = position >> INPUT_BITS, position & ((1 << INPUT_BITS) - 1)
        found[at].add(offset)
        other = {Op.CORRECT_FROM: offset + 1, Op.CORRECT_TO: offset - 1}.get(Op(operation))
        interval = request.query_inputs[at].offset_interval
        if other is not None and interval is not None and interval.start <= other <= interval.end:
            found[at].add(other)
    feeds = [
        (each.query_alias, intervals(sorted(found[at])))
        for at, each in enumerate(request.query_inputs)
        if at in found
    ]
    return RowProvenance(feeds, exact=True, reason=None)


def all_input_rows(request: TransformRequest, why: str) -> RowProvenance:
    """Everything that a transaction read, for a query that keeps state.

    Raises:
        Unsupported: it goes on from a state, and what that was made of the request does not say.
    """
    if request.prev_checkpoint_path is not None:
        raise Unsupported(f"{why}, and its rows come from earlier transactions too", where="query")
    feeds = [
        (each.query_alias, [each.offset_interval])
        for each in request.query_inputs
        if each.offset_interval is not None
    ]
    return RowProvenance(feeds, exact=False, reason=why)


def _positions(
    followed: TrackedResult, first: int, rows: Sequence[OffsetInterval], reporter: Reporter
) -> Iterator[tuple[int, int]]:
    """Position and operation of each of the rows."""
    wanted = [(each.start - first, each.end - first) for each in rows]
    sort = False
    while True:
        found: list[tuple[int, int]] = []
        number = 0
        try:
            for batch in sorted_batches(_make(followed), _order(followed), reporter, sort=sort):
                reporter.raise_if_cancelled()
                for begin, end in wanted:
                    start, stop = max(begin - number, 0), min(end + 1 - number, batch.num_rows)
                    if start < stop:
                        part = batch.slice(start, stop - start)
                        found += zip(part[POSITION].to_pylist(), part[OPERATION].to_pylist(), strict=True)
                number += batch.num_rows
        except UnsortedResult:
            sort = True
        else:
            yield from found
            return


def _order(followed: TrackedResult) -> SortOrder:
    return SortOrder() if followed.ordered else SortOrder((POSITION,), passes=True)


def _make(followed: TrackedResult) -> Make:
    frame = followed.frame.select(POSITION, OPERATION)

    def make(sort: bool) -> tuple[DataFrame, Step]:
        return frame.sort(POSITION) if sort and not followed.ordered else frame, lambda batch: batch

    return make


def intervals(offsets: Sequence[int]) -> list[OffsetInterval]:
    """Offsets in ascending order as intervals."""
    found: list[OffsetInterval] = []
    for offset in offsets:
        if found and offset == found[-1].end + 1:
            found[-1] = OffsetInterval(found[-1].start, offset)
        else:
            found.append(OffsetInterval(offset, offset))
    return found


_HIDDEN = (POSITION, OPERATION)


def validate_query(
    session: SparkSession,
    transform: Sql,
    inputs: Sequence[QueryInput],
    vocab: DatasetVocabulary,
    declared: pa.Schema | None,
) -> ValidatedQuery:
    """Implements ``Engine.validate``. The caller must not use ``session`` again."""
    if uses_as_of_join(transform.queries or []):
        with tempfile.TemporaryDirectory(prefix="odf-validate-") as folder:
            streams = MicroBatchQuery(session, Path(folder, "state"), Path(folder))
            made = prepare_as_of_query(session, streams, transform, inputs, vocab.event_time_column, set())
            text = fingerprint_as_of(session, streams, made, inputs)
        return _checked(made.query, vocab, declared, text, inputs)
    # No join asks for them, but what they name has to be there.
    temporal_tables(
        transform.temporal_tables or [], {each.alias: (each.schema.names, each.vocab) for each in inputs}
    )
    vocabs = {each.alias: each.vocab for each in inputs}
    views = {each.alias: slices_frame(session, [], each.schema, each.vocab) for each in inputs}
    frame = run_query(session, views, transform.queries or [])
    check_repeatable(frame, "query")
    try:
        followed = track_origins(session, frame, vocabs)
    except StatefulQueryError:
        with tempfile.TemporaryDirectory(prefix="odf-validate-") as folder:
            return _with_state(session, transform, inputs, vocab, declared, Path(folder))
    return ValidatedQuery(OutputContract(_own(followed.frame), vocab, declared).schema, None)


def _with_state(
    session: SparkSession,
    transform: Sql,
    inputs: Sequence[QueryInput],
    vocab: DatasetVocabulary,
    declared: pa.Schema | None,
    folder: Path,
) -> ValidatedQuery:
    streams = MicroBatchQuery(session, folder / "state", folder)
    views = {
        each.alias: streams.view(at, query_schema(each.schema, each.vocab), each.vocab)
        for at, each in enumerate(inputs)
    }
    frame = run_query(session, views, transform.queries or [])
    vocabs = {each.alias: each.vocab for each in inputs}
    query = plan_stream(session, frame, vocabs, vocab.event_time_column, set())
    with translate_errors():
        text = state_fingerprint(session, frame, whole=query.mode == "update")
    return _checked(query, vocab, declared, text, inputs)


def _checked(
    query: StreamingPlan,
    vocab: DatasetVocabulary,
    declared: pa.Schema | None,
    text: str,
    inputs: Sequence[QueryInput],
) -> ValidatedQuery:
    columns = arrow_schema(query.frame.schema)
    own = pa.schema([columns.field(name) for name in query.own(columns.names)])
    contract = OutputContract(own, vocab, declared)
    if query.mode == "update":
        EmittedRows(own, query.keys, contract.event_time)
    return ValidatedQuery(contract.schema, _hash([text, *(each.alias for each in inputs)]))


def state_dependencies(fingerprint: str, datasets: Sequence[str]) -> str:
    """What the state of a query depends on, its very inputs included.

    Args:
        fingerprint: of the query (:attr:`ValidatedQuery.state`).
        datasets: the ids of the inputs, in the order of declaration.
    """
    return _hash([fingerprint, *datasets])


def _own(frame: DataFrame) -> pa.Schema:
    return pa.schema([field for field in arrow_schema(frame.schema) if field.name not in _HIDDEN])


def _hash(parts: Sequence[str]) -> str:
    return hashlib.sha3_256("\n".join(parts).encode()).hexdigest()


_ORIGIN: Final = (POSITION, OPERATION)
_ANY_TIME: Final = "1970-01-01T00:00:00+00:00"


class SparkEngine:
    """Runs queries of the dialect ``spark`` in a Spark that has started."""

    def __init__(self, runtime: SparkRuntime) -> None:
        self._runtime = runtime

    def execute(
        self, request: TransformRequest, declared: pa.Schema | None, reporter: Reporter
    ) -> TransactionResult:
        """See :class:`odf_engine.transform.engines.contract.Engine`."""
        session = self._session(request)
        about = matching_checkpoint(request)
        kind = _kind(request)
        followed = None if about is not None or kind is AsOfStreaming else self._query(session, request)
        if followed is None:
            state = None if about is None else about.state
            return kind(session, request, declared, reporter, state or self._state(request)).run()
        output = _Output(followed, request, declared)
        sort = False
        while True:
            try:
                return TransactionResult(self._write(output, request, reporter, sort=sort), output.schema)
            except UnsortedResult:
                sort = True

    def validate(
        self,
        transform: Sql,
        inputs: Sequence[QueryInput],
        vocab: DatasetVocabulary,
        declared: pa.Schema | None,
    ) -> ValidatedQuery:
        """See :class:`odf_engine.transform.engines.contract.Engine`."""
        session = self._runtime.session()
        define_system_time(session, _ANY_TIME)
        return validate_query(session, transform, inputs, vocab, declared)

    def finish(
        self, request: TransformRequest, declared: pa.Schema | None, reporter: Reporter
    ) -> TransactionResult:
        """See :class:`odf_engine.transform.engines.contract.Engine`."""
        about = matching_checkpoint(request)
        state = (None if about is None else about.state) or self._state(request)
        return _kind(request)(self._session(request), request, declared, reporter, state).finish()

    def rebuild(
        self, request: TransformRequest, declared: pa.Schema | None, reporter: Reporter
    ) -> TransactionResult:
        """See :class:`odf_engine.transform.engines.contract.Engine`."""
        state = self._state(request)
        return _kind(request)(self._session(request), request, declared, reporter, state).rebuild()

    def provenance(
        self, request: TransformRequest, rows: Sequence[OffsetInterval], reporter: Reporter
    ) -> RowProvenance:
        """See :class:`odf_engine.transform.engines.contract.Engine`."""
        session = self._session(request)
        stateful = matching_checkpoint(request) is not None or _kind(request) is AsOfStreaming
        followed = None if stateful else self._query(session, request)
        if followed is None:
            return all_input_rows(request, "the query keeps state")
        return derive_row_provenance(followed, request, rows, reporter)

    def compute_outcome(self, sql: str, tables: Sequence[TableFiles], reporter: Reporter) -> Computed:
        """See :class:`odf_engine.transform.engines.contract.Engine`."""
        known = {each.name.casefold(): each for each in tables}
        read: list[str] = []

        def find(name: str, call: TableFunctionCall | None) -> TableFiles:
            table = known.get(name.casefold())
            if table is None:
                raise NotFound(f"there is no dataset '{name}'")
            read.append(table.name)
            return table

        session = self._runtime.session()
        with execute_query(
            sql, [each.name for each in tables], find, session, reporter, proven=True
        ) as answer:
            outcome = answer.summarize(reporter)
        return Computed(outcome, read, session.version)

    def _session(self, request: TransformRequest) -> SparkSession:
        session = self._runtime.session()
        define_system_time(session, request.system_time.to_datetime().isoformat())
        return session

    def _state(self, request: TransformRequest) -> str:
        """What the state of the query depends on.

        Raises:
            InvalidQuery: it keeps none.
        """
        inputs = [
            QueryInput(each.query_alias, pq.read_schema(each.schema_file), each.vocab)
            for each in request.query_inputs
        ]
        state = self.validate(request.transform, inputs, request.vocab, None).state
        if state is None:
            raise InvalidQuery("the query goes row by row: it has no state", where="query")
        return state_dependencies(state, [str(each.dataset_id) for each in request.query_inputs])

    def _query(self, session: SparkSession, request: TransformRequest) -> TrackedResult | None:
        """The result of a query that goes row by row; None when it needs state."""
        views: dict[str, DataFrame] = {}
        for each in request.query_inputs:
            schema = pq.read_schema(each.schema_file)
            views[each.query_alias] = slices_frame(
                session, list(map(Path, each.data_paths)), schema, each.vocab
            )
        frame = run_query(session, views, request.transform.queries or [])
        check_repeatable(frame, "query")
        try:
            return track_origins(
                session, frame, {each.query_alias: each.vocab for each in request.query_inputs}
            )
        except StatefulQueryError:
            return None

    def _write(
        self, output: _Output, request: TransformRequest, reporter: Reporter, *, sort: bool
    ) -> WrittenSlice | None:
        return write_slice(
            output.batches(reporter, sort=sort),
            schema=output.schema,
            vocab=request.vocab,
            path=Path(request.new_data_path),
            first_offset=request.next_offset,
            system_time=request.system_time,
            fallback_event_time=request.system_time,
            reporter=reporter,
        )


class _Output:
    """The result of a query as rows of a slice (the output contract).

    Raises:
        InvalidQuery: no event time, a column of a reserved name, or other columns than the dataset has.
    """

    def __init__(
        self, followed: TrackedResult, request: TransformRequest, declared: pa.Schema | None
    ) -> None:
        self._followed = followed
        result = arrow_schema(followed.frame.schema)
        own = pa.schema([field for field in result if field.name not in _ORIGIN])
        self._contract = OutputContract(own, request.vocab, declared)
        self.schema = self._contract.schema

    def batches(self, reporter: Reporter, *, sort: bool) -> Iterator[pa.RecordBatch]:
        """The rows in their order, with their operations.

        Raises:
            OutOfOrder: ask again, with ``sort``.
        """
        if self._followed.ordered:
            rows = sorted_batches(
                lambda _: (self._followed.frame, self._contract.require_event_time), SortOrder(), reporter
            )
            rows = (split_corrections(batch, OPERATION) for batch in rows)
        else:
            rows = sorted_batches(self._make, SortOrder((POSITION,), passes=True), reporter, sort=sort)
            rows = repair_correction_pairs(rows, POSITION, OPERATION)
        return (self._contract.finished(batch, batch.column(OPERATION)) for batch in rows)

    def _make(self, sort: bool) -> tuple[DataFrame, Step]:
        frame = self._followed.frame
        return frame.sort(POSITION) if sort else frame, self._contract.require_event_time


def _kind(request: TransformRequest) -> type[StatefulTransaction]:
    """How a query that keeps state is run."""
    return AsOfStreaming if uses_as_of_join(request.transform.queries or []) else StatefulTransaction


def define_system_time(session: SparkSession, moment: str) -> None:
    """Makes ``system_time()`` the time of the transaction, in RFC 3339."""
    session.sql(
        f"CREATE OR REPLACE TEMPORARY FUNCTION system_time() RETURNS TIMESTAMP RETURN TIMESTAMP'{moment}'"
    )
