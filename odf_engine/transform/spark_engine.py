"""The Spark engine: runs one transaction of a derivative dataset within this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from odf_engine.data.slices import WrittenSlice, write_slice
from odf_engine.errors import InvalidQuery, NotFound
from odf_engine.ingest.ordering import Order, OutOfOrder, Step, in_order
from odf_engine.metadata.model import DatasetVocabulary, OffsetInterval, Sql, TransformRequest
from odf_engine.metadata.sql_calls import TableCall
from odf_engine.progress import Reporter
from odf_engine.spark.origins import OPERATION, POSITION, Followed, NeedsState, check_repeatable, follow
from odf_engine.spark.query import run_query
from odf_engine.spark.slices import slices_frame
from odf_engine.spark.temporal import has_clause
from odf_engine.spark.types import arrow_schema
from odf_engine.transform.answering import answering
from odf_engine.transform.as_of import AsOfStreaming
from odf_engine.transform.contract import Computed, Derived, QueryInput, Result, TableFiles, Validated
from odf_engine.transform.output import Contract
from odf_engine.transform.pairs import torn, whole_pairs
from odf_engine.transform.row_origins import all_origins, row_origins
from odf_engine.transform.streaming import Streaming, goes_on
from odf_engine.transform.validate import state_of, validated

if TYPE_CHECKING:
    from odf_engine.spark.frames import DataFrame
    from odf_engine.spark.session import SparkRuntime, SparkSession

_ORIGIN: Final = (POSITION, OPERATION)
_ANY_TIME: Final = "1970-01-01T00:00:00+00:00"


class SparkEngine:
    """Runs queries of the dialect ``spark`` in a Spark that has started."""

    def __init__(self, runtime: SparkRuntime) -> None:
        self._runtime = runtime

    def execute(self, request: TransformRequest, declared: pa.Schema | None, reporter: Reporter) -> Result:
        """See :class:`odf_engine.transform.contract.Engine`."""
        session = self._session(request)
        about = goes_on(request)
        kind = _kind(request)
        followed = None if about is not None or kind is AsOfStreaming else self._query(session, request)
        if followed is None:
            state = None if about is None else about.state
            return kind(session, request, declared, reporter, state or self._state(request)).run()
        output = _Output(followed, request, declared)
        sort = False
        while True:
            try:
                return Result(self._write(output, request, reporter, sort=sort), output.schema)
            except OutOfOrder:
                sort = True

    def validate(
        self,
        transform: Sql,
        inputs: Sequence[QueryInput],
        vocab: DatasetVocabulary,
        declared: pa.Schema | None,
    ) -> Validated:
        """See :class:`odf_engine.transform.contract.Engine`."""
        session = self._runtime.session()
        define_system_time(session, _ANY_TIME)
        return validated(session, transform, inputs, vocab, declared)

    def finish(self, request: TransformRequest, declared: pa.Schema | None, reporter: Reporter) -> Result:
        """See :class:`odf_engine.transform.contract.Engine`."""
        about = goes_on(request)
        state = (None if about is None else about.state) or self._state(request)
        return _kind(request)(self._session(request), request, declared, reporter, state).finish()

    def rebuild(self, request: TransformRequest, declared: pa.Schema | None, reporter: Reporter) -> Result:
        """See :class:`odf_engine.transform.contract.Engine`."""
        state = self._state(request)
        return _kind(request)(self._session(request), request, declared, reporter, state).rebuild()

    def provenance(
        self, request: TransformRequest, rows: Sequence[OffsetInterval], reporter: Reporter
    ) -> Derived:
        """See :class:`odf_engine.transform.contract.Engine`."""
        session = self._session(request)
        stateful = goes_on(request) is not None or _kind(request) is AsOfStreaming
        followed = None if stateful else self._query(session, request)
        if followed is None:
            return all_origins(request, "the query keeps state")
        return row_origins(followed, request, rows, reporter)

    def compute_outcome(self, sql: str, tables: Sequence[TableFiles], reporter: Reporter) -> Computed:
        """See :class:`odf_engine.transform.contract.Engine`."""
        known = {each.name.casefold(): each for each in tables}
        read: list[str] = []

        def find(name: str, call: TableCall | None) -> TableFiles:
            table = known.get(name.casefold())
            if table is None:
                raise NotFound(f"there is no dataset '{name}'")
            read.append(table.name)
            return table

        session = self._runtime.session()
        with answering(sql, [each.name for each in tables], find, session, reporter, proven=True) as answer:
            outcome = answer.outcome(reporter)
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
        return state_of(state, [str(each.dataset_id) for each in request.query_inputs])

    def _query(self, session: SparkSession, request: TransformRequest) -> Followed | None:
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
            return follow(session, frame, {each.query_alias: each.vocab for each in request.query_inputs})
        except NeedsState:
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

    def __init__(self, followed: Followed, request: TransformRequest, declared: pa.Schema | None) -> None:
        self._followed = followed
        result = arrow_schema(followed.frame.schema)
        own = pa.schema([field for field in result if field.name not in _ORIGIN])
        self._contract = Contract(own, request.vocab, declared)
        self.schema = self._contract.schema

    def batches(self, reporter: Reporter, *, sort: bool) -> Iterator[pa.RecordBatch]:
        """The rows in their order, with their operations.

        Raises:
            OutOfOrder: ask again, with ``sort``.
        """
        if self._followed.ordered:
            rows = in_order(lambda _: (self._followed.frame, self._contract.checked), Order(), reporter)
            rows = (torn(batch, OPERATION) for batch in rows)
        else:
            rows = in_order(self._make, Order((POSITION,), passes=True), reporter, sort=sort)
            rows = whole_pairs(rows, POSITION, OPERATION)
        return (self._contract.finished(batch, batch.column(OPERATION)) for batch in rows)

    def _make(self, sort: bool) -> tuple[DataFrame, Step]:
        frame = self._followed.frame
        return frame.sort(POSITION) if sort else frame, self._contract.checked


def _kind(request: TransformRequest) -> type[Streaming]:
    """How a query that keeps state is run."""
    return AsOfStreaming if has_clause(request.transform.queries or []) else Streaming


def define_system_time(session: SparkSession, moment: str) -> None:
    """Makes ``system_time()`` the time of the transaction, in RFC 3339."""
    session.sql(
        f"CREATE OR REPLACE TEMPORARY FUNCTION system_time() RETURNS TIMESTAMP RETURN TIMESTAMP'{moment}'"
    )
