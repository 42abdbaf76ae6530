"""Recomputation of a result: the query as one batch over the latest state of its inputs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from odf_engine.base.progress import Reporter
from odf_engine.data.changelog import OPERATION, POSITION, RETRACTS, Op
from odf_engine.engines.contract import QueryInput, TransactionResult
from odf_engine.engines.output_contract import OutputContract, input_schemas, write_result
from odf_engine.engines.stateful.as_of_transaction import split_at_joins
from odf_engine.engines.stateful.batches import Watermarks
from odf_engine.engines.stateful.changes_transaction import computed_tables
from odf_engine.engines.stateful.query_plan import (
    has_few_rows,
    input_frame,
    input_views,
    interpret_queries,
)
from odf_engine.errors import Unsupported
from odf_engine.metadata.model import DatasetVocabulary, TransformRequest
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.spark.arrow_batches import arrow_batches
from odf_engine.spark.errors import translate_errors
from odf_engine.spark.executors.slice_writer import write_session_slices
from odf_engine.spark.plan_rewrite import (
    analyzed_plan,
    is_session,
    merge_sessions_first,
    node_name,
    run_sql,
    to_list,
)
from odf_engine.spark.sql_types import arrow_schema, identifier
from odf_engine.spark.stateful.as_of_join import IS_ACTIVE, TIME, joined_schema
from odf_engine.spark.stateful.stream_checks import has_watermark
from odf_engine.spark.stateful.window_functions import comparable
from odf_engine.spark.user_query import run_query
from odf_engine.sql.query_text import tokenize

if TYPE_CHECKING:
    from odf_engine.spark import DataFrame, SparkSession

_END: Final = "odf_group_end"


def recompute(
    session: SparkSession,
    request: TransformRequest,
    declared: pa.Schema | None,
    reporter: Reporter,
    *,
    rereads: bool,
) -> TransactionResult:
    """Run a query as one batch over the latest state of its inputs, and write the rows as a slice.

    Only the parsing of the query and the plan of as-of joins of its own steps are shared with transactions:
    no state, batches or changes of rows are involved. Groups whose window the watermark has not passed, and
    rows of as-of joins and running totals after the watermark, are not part of the result.

    Args:
        session: session of the job; it defines ``system_time()``.
        request: has all input data.
        declared: schema of the dataset.
        reporter: receives amounts; checked for cancellation.
        rereads: whether the rows of the query can change at any time (:attr:`ValidatedQuery.rereads`).

    Returns:
        The rows, all with the operation +A. The watermark is the time up to which they are complete, or None
        if all of them are.

    Raises:
        Unsupported: the result depends on the division into transactions.
        OdfError: as for :meth:`odf_engine.engines.contract.Engine.execute`.
    """
    _check_text(request)
    if has_few_rows([Path(path) for input in request.query_inputs for path in input.data_paths]):
        interpret_queries(session)
    batch = None if rereads else _BatchQuery(session, request)
    frame = _complete_result(session, request) if batch is None else batch.result()
    contract = OutputContract(arrow_schema(frame.schema), request.vocab, declared, input_schemas(request))
    zeros = pa.scalar(int(Op.APPEND), pa.int32())
    rows = (
        contract.select_columns(contract.require_event_time(rows), pa.repeat(zeros, rows.num_rows))
        for rows in arrow_batches(frame, reporter)[1]
    )
    write_slices = partial(write_session_slices, session)
    written = write_result(rows, contract.schema, request, reporter, write_slices)
    until = batch.watermark if batch is not None and batch.has_unmatched else None
    watermark = Timestamp.from_ms(until) if until else None
    return TransactionResult(written, contract.schema, None, watermark=watermark)


def _complete_result(session: SparkSession, request: TransformRequest) -> DataFrame:
    """Return the result of a query whose rows do not wait for the watermark."""
    views: dict[str, DataFrame] = {}
    changes = input_views(session, request)
    for query_input in request.query_inputs:
        vocab = query_input.vocab
        system = (vocab.offset_column, vocab.operation_type_column, vocab.system_time_column)
        views[query_input.query_alias] = latest_state(changes[query_input.query_alias], vocab).drop(*system)
    tables = computed_tables(request.transform, request.vocab)
    return merge_sessions_first(run_query(session, views, request.transform.queries or [], tables))


def _check_text(request: TransformRequest) -> None:
    operations = {input.vocab.operation_type_column.lower() for input in request.query_inputs}
    for step in request.transform.queries or []:
        tokens = [token.text.lower().strip("`") for token in tokenize(step.query)]
        for token, following in zip(tokens, [*tokens[1:], ""], strict=True):
            if token == "system_time" and following == "(":
                raise Unsupported("the query uses system_time(), which differs between transactions")
            if token in operations:
                raise Unsupported("the query reads the operations of rows, which the latest state lacks")


class _BatchQuery:
    """A query over the latest state of its inputs.

    Attributes:
        watermark: of all inputs, in milliseconds, or None.
        has_unmatched: whether the query has an outer join of inputs, whose rows without a partner are emitted
            only when the watermark is past the bound.
    """

    def __init__(self, session: SparkSession, request: TransformRequest) -> None:
        self._session = session
        self._request = request
        self._inputs = [QueryInput.from_request(input) for input in request.query_inputs]
        aliases = [input.alias for input in self._inputs]
        self.watermark = Watermarks({}).after(request.query_inputs, None).combined(aliases)
        self._as_of = split_at_joins(session, request.transform, self._inputs)
        self.has_unmatched = False

    def result(self) -> DataFrame:
        """Return the rows, without system columns."""
        changes = {
            query_input.query_alias: input_frame(
                self._session, list(map(Path, query_input.data_paths)), input
            )
            for query_input, input in zip(self._request.query_inputs, self._inputs, strict=True)
        }
        views = {input.alias: latest_state(changes[input.alias], input.vocab) for input in self._inputs}
        for index, join in enumerate(self._as_of.joins):
            views[join.view] = self._joined_rows(index, views, changes[join.table.name])
        frame = self._as_of.query_after_joins(views)
        with translate_errors():
            plan = self._complete(self._as_of.inline_ctes(analyzed_plan(frame)))
            frame = self._as_of.to_frame(self._as_of.merge_sessions_first(plan))
            vocab = self._request.vocab
            return frame.drop(vocab.offset_column, vocab.operation_type_column, vocab.system_time_column)

    def _joined_rows(self, index: int, views: Mapping[str, DataFrame], changes: DataFrame) -> DataFrame:
        """Return the rows of a join up to the watermark, each with the version at its time."""
        as_of, join = self._as_of, self._as_of.joins[index]
        rows = as_of.left_rows(index, views)
        versions = versions_of(as_of.version_rows(index, changes), len(join.keys))
        reached = "NULL" if self.watermark is None else f"timestamp_millis({self.watermark}L)"
        same_key = " AND ".join(f"a.k{number} = b.k{number}" for number in range(len(join.keys)))
        left = [name for name in rows.columns if name != OPERATION and not name.startswith("k")]
        right = [f"r{number}" for number in range(len(join.right))]
        sql = run_sql(
            f"""
            SELECT {", ".join(f"row.{name}" for name in left)},
                {", ".join(f"version.{name}" for name in right)},
                coalesce(version.{IS_ACTIVE}, false) AS {IS_ACTIVE}
            FROM (
                SELECT first(struct({", ".join(f"a.{name}" for name in left)})) AS row,
                    max_by(IF(b.{TIME} IS NULL, NULL, struct(b.*)), struct(b.{TIME}, b.{POSITION})) AS version
                FROM (SELECT *, monotonically_increasing_id() AS odf_number FROM odf_rows
                      WHERE {TIME} <= {reached}) a
                LEFT JOIN odf_versions b ON {same_key} AND b.{TIME} <= a.{TIME}
                GROUP BY odf_number
            )
            """,
            rows=rows, versions=versions,
        )  # fmt: skip
        matched = as_of.matches_condition(index, sql)
        width = len(join.output) - len(join.right)
        columns = [
            *(f"l{number} AS c{number}" for number in range(width)),
            *(f"IF({IS_ACTIVE}, {name}, NULL) AS c{width + at}" for at, name in enumerate(right)),
        ]
        with translate_errors():
            names = joined_schema(join).names[-2:]
            return (matched if join.outer else matched.where(IS_ACTIVE)).selectExpr(
                *columns, TIME, f"{POSITION} AS {names[0]}", f"{Op.APPEND:d} AS {names[1]}"
            )

    def _complete(self, plan: Any) -> Any:
        """Return a plan whose groups and running totals are those that the watermark has passed."""
        plan = self._as_of.map_children(plan, self._complete)
        name = node_name(plan)
        if name == "Join" and "OUTER" in plan.joinType().sql():
            self.has_unmatched = True
        if name == "Aggregate":
            return self._closed_groups(plan)
        if name == "Window" and (time := _order_time(plan)) is not None:
            return self._as_of.with_children(plan, [self._until(plan.child(), time, 0)])
        return plan

    def _closed_groups(self, plan: Any) -> Any:
        """Return the groups of an aggregation whose window has ended, or all groups without a window."""
        as_of = self._as_of
        time = next(
            (expression for expression in to_list(plan.groupingExpressions()) if has_watermark(expression)),
            None,
        )
        if time is None:
            return plan
        is_window = time.dataType().typeName() == "struct"
        # A row may still arrive for an exact time, or extend a session.
        slack = int(not is_window or is_session(time))
        end = as_of.expressions.GetStructField(time, 1, as_of.none()) if is_window else time
        named = as_of.plain_alias(end, _END)
        output = to_list(plan.output())
        grouped = as_of.aggregate(plan, [*to_list(plan.aggregateExpressions()), named], plan.child())
        return as_of.project(output, self._until(grouped, named.toAttribute(), slack))

    def _until(self, plan: Any, time: Any, slack: int) -> Any:
        """Return the rows of a plan whose time is at least ``slack`` milliseconds before the watermark."""
        as_of = self._as_of
        if self.watermark is None:
            return as_of.filter(as_of.literal(False), plan)
        limit = as_of.expressions.MillisToTimestamp(
            as_of.cast(as_of.literal(str(self.watermark - slack)), as_of.types.LongType)
        )
        return as_of.filter(as_of.expressions.LessThanOrEqual(time, limit), plan)


def _order_time(window: Any) -> Any:
    """Return the event time that orders running totals, or None for another window function."""
    orders = to_list(window.orderSpec())
    functions = {
        node_name(aggregate.child().windowFunction()) for aggregate in to_list(window.windowExpressions())
    }
    if not orders or "AggregateExpression" not in functions:
        return None
    time = orders[0].child()
    return time if has_watermark(time) else None


def latest_state(changes: DataFrame, vocab: DatasetVocabulary) -> DataFrame:
    """Return the rows of a changelog that are not retracted, with the operation +A.

    A retraction ends the oldest of the rows with the same values.

    Args:
        changes: all rows.
        vocab: names of the system columns.
    """
    offset, operation, system_time = (
        identifier(name)
        for name in (vocab.offset_column, vocab.operation_type_column, vocab.system_time_column)
    )
    names = [identifier(name) for name in changes.columns]
    values = comparable([name for name in names if name not in (offset, operation, system_time)],
                        changes.schema)  # fmt: skip
    same = f"PARTITION BY {', '.join(values)}"
    operation_type = changes.schema[vocab.operation_type_column].dataType.simpleString()
    columns = ", ".join(
        f"CAST({Op.APPEND:d} AS {operation_type}) AS {name}" if name == operation else name for name in names
    )
    return run_sql(
        f"""
        SELECT {columns} FROM (
            SELECT *, {operation} {RETRACTS} AS odf_retracts,
                count_if({operation} {RETRACTS}) OVER ({same}) AS odf_retracted,
                row_number() OVER ({same}, {operation} {RETRACTS} ORDER BY {offset}) AS odf_number
            FROM odf_changes
        ) WHERE NOT odf_retracts AND odf_number > odf_retracted
        """,
        changes=changes,
    )


def versions_of(rows: DataFrame, keys: int) -> DataFrame:
    """Return the versions of a temporal table: from which time on a key has which values, or none.

    Args:
        rows: all changes of the table, as of :meth:`AsOfQuery.version_rows`.
        keys: number of key columns.
    """
    same_key = " AND ".join(f"a.k{number} <=> b.k{number}" for number in range(keys))
    pairs = (
        f"a.{OPERATION} = {Op.CORRECT_FROM:d} AND b.{OPERATION} = {Op.CORRECT_TO:d} "
        f"AND b.{POSITION} = a.{POSITION} + 1 AND {same_key}"
    )
    values = [name for name in rows.columns if name not in (TIME, POSITION, OPERATION)]
    # A row that is corrected to an earlier time has the corrected values at both times; a row that is
    # corrected to a later time stays valid before it.
    return run_sql(
        f"""
        SELECT {", ".join(values)}, {TIME}, {POSITION}, {OPERATION} NOT {RETRACTS} AS {IS_ACTIVE}
        FROM odf_all a WHERE NOT EXISTS (SELECT 1 FROM odf_all b WHERE {pairs})
        UNION ALL
        SELECT {", ".join(f"b.{name}" for name in values)}, a.{TIME}, a.{POSITION}, true
        FROM odf_all a JOIN odf_all b ON {pairs} AND b.{TIME} < a.{TIME}
        """,
        all=rows,
    )
