"""The Spark engine: runs one transaction of a derivative dataset within this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

from odf_engine.data.changelog import Op
from odf_engine.data.conform import find_columns, stored_type
from odf_engine.data.ddl import type_ddl
from odf_engine.data.kernels import pc
from odf_engine.data.slices import WrittenSlice, slice_schema, write_slice
from odf_engine.errors import BadData, InvalidQuery, Unsupported
from odf_engine.ingest.ordering import Order, OutOfOrder, Step, in_order
from odf_engine.metadata.model import DatasetVocabulary, TransformRequest
from odf_engine.progress import Reporter
from odf_engine.spark.origins import OPERATION, POSITION, Followed, NeedsState, check_repeatable, follow
from odf_engine.spark.query import run_query
from odf_engine.spark.slices import slices_frame
from odf_engine.spark.types import arrow_schema
from odf_engine.transform.contract import Result
from odf_engine.transform.pairs import torn, whole_pairs

if TYPE_CHECKING:
    from odf_engine.spark.frames import DataFrame
    from odf_engine.spark.session import SparkRuntime, SparkSession

_ORIGIN: Final = (POSITION, OPERATION)


class SparkEngine:
    """Runs queries of the dialect ``spark`` in a Spark that has started."""

    def __init__(self, runtime: SparkRuntime) -> None:
        self._runtime = runtime

    def execute(self, request: TransformRequest, declared: pa.Schema | None, reporter: Reporter) -> Result:
        """See :class:`odf_engine.transform.contract.Engine`."""
        session = self._runtime.session()
        followed = self._query(session, request)
        output = _Output(followed, request, declared)
        sort = False
        while True:
            try:
                return Result(self._write(output, request, reporter, sort=sort), output.schema)
            except OutOfOrder:
                sort = True

    def _query(self, session: SparkSession, request: TransformRequest) -> Followed:
        views: dict[str, DataFrame] = {}
        for each in request.query_inputs:
            schema = pq.read_schema(each.schema_file)
            views[each.query_alias] = slices_frame(
                session, list(map(Path, each.data_paths)), schema, each.vocab
            )
        define_system_time(session, request.system_time.to_datetime().isoformat())
        frame = run_query(session, views, request.transform.queries or [])
        check_repeatable(frame, "query")
        try:
            return follow(session, frame, {each.query_alias: each.vocab for each in request.query_inputs})
        except NeedsState as reason:
            raise Unsupported(
                f"the query has {reason}, which needs state from one transaction to the next",
                where="query",
                hint="queries that go row by row can be run: SELECT … FROM input WHERE …, UNION ALL, explode",
            ) from None

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
        self._vocab = request.vocab
        result = arrow_schema(followed.frame.schema)
        self._own = pa.schema([field for field in result if field.name not in _ORIGIN])
        self._operation = _one(self._own, self._vocab.operation_type_column)
        _check_columns(self._own, self._vocab)
        data = pa.schema([field.with_nullable(True) for field in self._own if field.name != self._operation])
        if declared is not None:
            _check_same(data, declared, self._vocab)
        self.schema = declared if declared is not None else slice_schema(data, self._vocab)

    def batches(self, reporter: Reporter, *, sort: bool) -> Iterator[pa.RecordBatch]:
        """The rows in their order, with their operations.

        Raises:
            OutOfOrder: ask again, with ``sort``.
        """
        if self._followed.ordered:
            rows = in_order(lambda _: (self._followed.frame, self._checked), Order(), reporter)
            rows = (torn(batch, OPERATION) for batch in rows)
        else:
            rows = in_order(self._make, Order((POSITION,), passes=True), reporter, sort=sort)
            rows = whole_pairs(rows, POSITION, OPERATION)
        return (self._finished(batch) for batch in rows)

    def _make(self, sort: bool) -> tuple[DataFrame, Step]:
        frame = self._followed.frame
        return frame.sort(POSITION) if sort else frame, self._checked

    def _checked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        name = _one(self._own, self._vocab.event_time_column)
        times = batch.column(name)
        if times.null_count:
            row = (
                batch.slice(pc.index(times.is_null(), True).as_py(), 1).select(self._own.names).to_pylist()[0]
            )
            shown = ", ".join(f"{column}={value}" for column, value in list(row.items())[:8])
            raise BadData(
                f"the event time '{name}' of a result row is null: {shown}",
                where="query",
                hint=f"filter such rows out, or give them a time: coalesce({name}, …)",
            )
        return batch

    def _finished(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        operations = batch.column(OPERATION)
        batch = batch.select(self._own.names)
        if self._operation is not None:
            return batch
        return batch.append_column(self._vocab.operation_type_column, operations)


def define_system_time(session: SparkSession, moment: str) -> None:
    """Makes ``system_time()`` the time of the transaction, in RFC 3339."""
    session.sql(
        f"CREATE OR REPLACE TEMPORARY FUNCTION system_time() RETURNS TIMESTAMP RETURN TIMESTAMP'{moment}'"
    )


def _one(schema: pa.Schema, name: str) -> str | None:
    """What the schema calls a column, whatever the case of its letters."""
    (place,) = find_columns(schema.names, [name])
    return None if place is None else schema.names[place]


def _check_columns(own: pa.Schema, vocab: DatasetVocabulary) -> None:
    for name in (vocab.offset_column, vocab.system_time_column):
        if (found := _one(own, name)) is not None:
            raise InvalidQuery(
                f"the query gives a column '{found}', which the engine fills in itself",
                where="query",
                hint="leave it out, or give it another name with AS",
            )
    time = _one(own, vocab.event_time_column)
    if time is None:
        raise InvalidQuery(
            f"the query gives no event time: a column '{vocab.event_time_column}' is missing",
            where="query",
            hint=f"its columns are {', '.join(own.names)}; select one AS {vocab.event_time_column}",
        )
    kind = own.field(time).type
    if not (types.is_timestamp(kind) or types.is_date(kind)):
        raise InvalidQuery(
            f"the event time '{time}' is {type_ddl(kind)}, not TIMESTAMP or DATE",
            where="query",
            hint=f"CAST({time} AS TIMESTAMP) AS {time}",
        )
    operation = _one(own, vocab.operation_type_column)
    if operation is not None and not types.is_integer(own.field(operation).type):
        raise InvalidQuery(
            f"the operation '{operation}' is {type_ddl(own.field(operation).type)}, not INT",
            where="query",
            hint=f"operations are {', '.join(f'{each:d} ({each.code})' for each in Op)}",
        )


def _check_same(data: pa.Schema, declared: pa.Schema, vocab: DatasetVocabulary) -> None:
    system = (vocab.offset_column, vocab.operation_type_column, vocab.system_time_column)
    wanted = pa.schema([field for field in declared if field.name not in system])
    differences: list[str] = []
    places = find_columns(data.names, wanted.names)
    for field, place in zip(wanted, places, strict=True):
        if place is None:
            differences.append(f"column '{field.name}' is missing")
        elif stored_type(data.field(place).type) != field.type:
            kind = type_ddl(data.field(place).type)
            differences.append(f"column '{field.name}' was {type_ddl(field.type)}, is {kind}")
    differences += [f"column '{name}' is new" for at, name in enumerate(data.names) if at not in places]
    if differences:
        raise InvalidQuery(
            "the query's columns are not those of the dataset: " + "; ".join(differences),
            where="query",
            hint="name the columns in the query, instead of SELECT *",
        )
