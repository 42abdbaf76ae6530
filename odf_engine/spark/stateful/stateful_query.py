"""Plans stateful queries as Spark streams, and computes fingerprints of their state."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import pyarrow as pa

from odf_engine.data.changelog import INPUT_BITS, OPERATION, POSITION, ROWS, Op
from odf_engine.errors import InvalidQuery, Unsupported
from odf_engine.metadata.model import DatasetVocabulary
from odf_engine.spark.errors import translate_errors
from odf_engine.spark.plan_rewrite import (
    NODE_DESCRIPTIONS,
    PASS_THROUGH_NODES,
    OriginTracker,
    PlanBuilder,
    StatefulQueryError,
    TrackedPlan,
    analyzed_plan,
    column_id,
    columns_except,
    function_name,
    named_columns,
    node_name,
    referenced_ids,
    to_list,
    unsupported_at,
)
from odf_engine.spark.row_order import ORDER_PREFIX, strip_order_by
from odf_engine.spark.sql_types import arrow_schema, identifier, spark_schema
from odf_engine.spark.stateful.group_aggregates import GroupAggregates, find_aggregates
from odf_engine.spark.stateful.stream_checks import (
    JOIN_KINDS,
    SUPPORTED_HINT,
    check_collations,
    check_streaming,
    compared_expressions,
    conjuncts,
    has_null_times,
    has_watermark,
    is_stream_join,
    watermark_delays,
)
from odf_engine.spark.stateful.window_functions import BATCH, RankedRows, ranked_rows, running_frames

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_STATEFUL_NODES: Final = ("Aggregate", "Join", "Distinct", "Deduplicate", "Window")
_EXPRESSION_ID: Final = re.compile(r"#\d+")
_COMMON_EXPRESSION: Final = re.compile(r"(?<=_common_expr_)\d+(?=#)")
"""Spark numbers the expressions that it computes once, such as the condition of ``count_if``."""
_RELATION_PATH: Final = re.compile(r"StreamingRelation .*?/(input-\d+)/\*.*")
_WATERMARK_NODE_ID: Final = re.compile(r"(?<=EventTimeWatermark )[0-9a-f-]{36}, ")
_MAX_FIELDS: Final = (1 << 31) - 1


def stream_view(session: SparkSession, number: int, schema: pa.Schema, vocab: DatasetVocabulary) -> DataFrame:
    """Return input ``number`` as a stream without rows, whose plan alone is used.

    Args:
        session: the session of the query.
        number: index of the input.
        schema: schema of its rows, with Spark's types of slices.
        vocab: column names of the input.
    """
    time = vocab.event_time_column
    with translate_errors():
        frame = session.readStream.schema(spark_schema(schema)).parquet(f"file:/odf/input-{number}/*")
        if pa.types.is_date(schema.field(time).type):
            frame = frame.withColumn(time, frame[identifier(time)].cast("timestamp"))
        return frame.withWatermark(identifier(time), "0 seconds")


def state_fingerprint(session: SparkSession, frame: DataFrame, *, all_columns: bool) -> str:
    """Return a text that identifies the state of a query over streaming views.

    Args:
        session: the session of the query.
        frame: the result of the query.
        all_columns: whether every column of the result counts, because its rows are stored.
    """
    java_session: Any = session._jsparkSession
    plan = java_session.sessionState().optimizer().execute(analyzed_plan(frame))
    parts = (
        [_plan_text(plan)]
        if all_columns
        else [part for node in _topmost_stateful(plan) for part in _describe_state(node)]
    )
    ids: dict[str, str] = {}
    text = _COMMON_EXPRESSION.sub("", "\n".join(parts))
    return _EXPRESSION_ID.sub(lambda match: ids.setdefault(match[0], f"#{len(ids)}"), text)


def _topmost_stateful(plan: Any) -> Iterator[Any]:
    """Yield the topmost stateful nodes of a plan."""
    if node_name(plan) in _STATEFUL_NODES and plan.isStreaming():
        yield plan
        return
    for child in to_list(plan.children()):
        yield from _topmost_stateful(child)


def _describe_state(node: Any) -> Iterator[str]:
    if node_name(node) != "Aggregate":
        yield _plan_text(node)
        return
    yield f"by {', '.join(expression.toString() for expression in to_list(node.groupingExpressions()))}"
    columns = to_list(node.aggregateExpressions())
    yield from dict.fromkeys(
        aggregate.toString() for column in columns for aggregate in find_aggregates(column)
    )
    yield _plan_text(node.child())


def _plan_text(plan: Any) -> str:
    text = plan.treeString(True, False, _MAX_FIELDS, False, False)
    return _WATERMARK_NODE_ID.sub("", _RELATION_PATH.sub(r"\1", text))


def is_first_arrival(ranked: RankedRows, below: TrackedPlan) -> bool:
    """Return whether a Top-N is the first row of keys with a time bound, in the order of arrival."""
    keys, orders = to_list(ranked.window.partitionSpec()), to_list(ranked.window.orderSpec())
    if ranked.last > 1 or not any(map(has_watermark, keys)):
        return False
    column = orders[0].child() if len(orders) == 1 and "ASC" in orders[0].sql() else None
    return (
        ranked.function == "row_number"
        and column is not None
        and node_name(column) == "AttributeReference"
        and column.dataType().typeName() == "long"  # of the columns passed through, the offset
        and column_id(column) in below.passed
    )


def replace_window(
    builder: PlanBuilder, plan: Any, columns: Sequence[Any], values: Sequence[Any], rows: Any, keep: Any = ()
) -> Any:
    """Return projections over a window node, with other rows and values of its functions.

    Args:
        builder: builds plan nodes.
        plan: the window node, or projections over it.
        columns: the columns of the rows below it.
        values: for each function, the expression of its value.
        rows: the rows.
        keep: further columns that all projections keep.
    """
    node, projects = plan, list[Any]()
    while node_name(node) != "Window":
        projects += [node] if node_name(node) == "Project" else []
        node = node.child()
    functions = to_list(node.windowExpressions())
    named = [
        builder.replace_column(value, function) for value, function in zip(values, functions, strict=True)
    ]
    rewritten = builder.project([*columns, *named, *keep], rows)
    for project in reversed(projects):
        rewritten = builder.project([*to_list(project.projectList()), *keep], rewritten)
    return rewritten


def running_aggregates(builder: PlanBuilder, window: Any) -> GroupAggregates:
    """Return the aggregates of a window node with running totals."""
    columns = [
        builder.replace_column(aggregate.child().windowFunction(), aggregate)
        for aggregate in to_list(window.windowExpressions())
    ]
    keys = to_list(window.partitionSpec())
    return GroupAggregates(builder, keys, columns, signed=False, operation=None, values=False, changed=None)


@dataclass(frozen=True)
class StreamingPlan:
    """A query that can run as a stream.

    Attributes:
        schema: columns of the query. In mode ``update`` also the BIGINT ``odf_rows``: the number of rows of
            the group, 0 if it is no longer part of the result.
        mode: ``append``: every row is final; ``update``: the latest row of each changed group.
        keys: in mode ``update``, the columns that identify groups.
        unsupported_changes: inputs whose retractions and corrections are not supported, with the operation
            that prevents it.
        exact: whether rows with a time equal to the watermark may still arrive.
        by_commit: whether rows are emitted in the order of the inputs' commits instead of the event time.
            Each commit must then be a separate batch, for a deterministic row order.
        sessions: whether rows are grouped by sessions. A batch with rows up to the watermark then reads the
            state after the batch before.
        sequential: whether each batch reads the state after the one before: always, if rows can be retracted
            (``changes``), or never.
        order: sort terms of a final ORDER BY over hidden columns of the schema: column, direction and null
            order. The order applies within one transaction. Rows of later transactions always follow, so that
            no row moves. The rows are independent of the batches; their order is too if the event time is the
            first sort term.
        delay: how far rows of joins may lag behind the watermark of the inputs, in milliseconds.
        read_operations: inputs whose operation column the query itself reads.
    """

    schema: pa.Schema
    mode: Literal["append", "update"]
    keys: tuple[str, ...]
    unsupported_changes: Mapping[str, str]
    exact: bool
    by_commit: bool
    sessions: bool = False
    sequential: Literal["always", "changes", "never"] = "never"
    order: tuple[str, ...] = ()
    delay: int = 0
    read_operations: frozenset[str] = frozenset()

    @property
    def query_schema(self) -> pa.Schema:
        """The columns of the query itself."""
        return pa.schema(
            [field for field in self.schema if field.name != ROWS and not field.name.startswith(ORDER_PREFIX)]
        )


class StreamPlanner(OriginTracker):
    """Converts an analyzed plan into a streaming plan. Row lineage adds columns to it.

    Args:
        session: the session of the query.
        inputs: vocabulary of each input by the name of its view.
        event_time: event time column of the result.
        system: as for :class:`odf_engine.spark.plan_rewrite.OriginTracker`.
    """

    def __init__(
        self,
        session: SparkSession,
        inputs: Mapping[str, DatasetVocabulary],
        event_time: str,
        system: Mapping[int, str] | None = None,
    ) -> None:
        super().__init__(session, inputs, system)
        self._names = {name.lower(): name for name in inputs}
        self._event_time = event_time
        self._operations = {place: name for place, name in self.system.items() if name}
        self._read_operations: set[str] = set()
        self._unsupported: dict[str, str] = {}
        self._exact = False
        self._by_commit = False
        self._sessions = False
        self._running: list[int] | None = None
        self._grouping: list[str] = []
        self._sequential: Literal["always", "changes", "never"] = "never"
        self._is_checked = False
        self._changing_step: str | None = None
        self._first_row_inputs: set[str] = set()
        self._first_row_steps: set[str] = set()

    @translate_errors()
    def plan_query(self, frame: DataFrame) -> StreamingPlan:
        """Return the stream of a query over streaming views.

        Raises:
            InvalidQuery, Unsupported: the query cannot run as a stream; the hint shows the syntax.
        """
        plan, order = strip_order_by(self, self.inlined_plan(frame))
        try:
            tracked = self.track(plan)
        except StatefulQueryError as reason:
            raise Unsupported(
                f"the query has {reason}, which is not supported in transformations",
                where="query",
                hint=SUPPORTED_HINT,
            ) from None
        shown = columns_except(
            tracked.plan, tracked.passed | {column_id(column) for column in tracked.origin}
        )
        keys = self._key_columns(shown)
        projected = self.project(
            [*shown, *(tracked.origin if self._running is not None else ())], tracked.plan
        )
        if not self._is_checked:
            check_streaming(self, projected, update=self._running is not None)
        unsupported = {
            name: f"{reason_text} with ORDER BY" if order else "row_number() before another step"
            for name, reason_text in self._unsupported.items()
            if (order or name in self._first_row_steps) and name not in self._read_operations
        }
        mode = "append" if self._running is None else "update"
        if order and (mode == "update" or self._changing_step is not None):
            raise Unsupported(
                f"the query has ORDER BY over {self._changing_step or 'groups without a window'}, "
                "which change with every row",
                where="query",
                hint="remove it: the engine defines the order of changes",
            )
        return StreamingPlan(
            arrow_schema(self.to_frame(projected).schema),
            mode,
            keys,
            unsupported,
            self._exact or self._sessions,  # a row extends a session that ends at its time
            self._by_commit,
            self._sessions,
            self._sequential,
            order,
            max(0, self._output_delay(plan) - 1),
            frozenset(self._read_operations),
        )

    def _key_columns(self, shown: list[Any]) -> tuple[str, ...]:
        names = {column_id(column): column.name() for column in shown}
        for column_id_, text in zip(self._running or (), self._grouping, strict=True):
            if column_id_ not in names:
                raise InvalidQuery(
                    f"the query groups by {text} without a window, but does not select it",
                    where="query",
                    hint="select all grouping columns, which identify the rows to correct",
                )
        return tuple(dict.fromkeys(names[column_id_] for column_id_ in self._running or ()))

    def _output_delay(self, plan: Any, condition: Any = None) -> int:
        """Return by how many milliseconds the watermark must be past the rows of a plan, until no further
        row can have their time. ``condition`` filters the rows.
        """
        children = to_list(plan.children())
        if node_name(plan) == "Filter":
            return self._output_delay(plan.child(), plan.condition())
        below = max(map(self._output_delay, children), default=0)
        if not is_stream_join(plan):
            return below
        conditions = [plan.condition().get()] if plan.condition().isDefined() else []
        if condition is not None and plan.joinType().sql() in ("INNER", "CROSS"):
            conditions.append(condition)
        return below + max(watermark_delays(self, plan, conditions))

    def inlined_plan(self, frame: DataFrame) -> Any:
        # No check of subqueries: Spark rejects them over streams.
        return self.inline_ctes(analyzed_plan(frame))

    def track(self, plan: Any) -> TrackedPlan:
        name = node_name(plan)
        if name in ("Aggregate", "Distinct", "Window") or is_stream_join(plan):
            self._check_collations(plan)
        if name in ("Generate", "Expand"):
            return self._track_multiplied(plan)
        if name == "Aggregate":
            return self._track_aggregate(plan)
        if name == "Distinct":
            return self._track_distinct(plan)
        if name == "Filter":
            return self._track_filter(plan)
        if name in PASS_THROUGH_NODES:
            return self._track_passed(plan)
        if name in ("GlobalLimit", "LocalLimit", "Sort", "Offset"):
            raise unsupported_at(
                plan,
                f"the query has {NODE_DESCRIPTIONS[name]} over rows that need state",
                "remove it: an ORDER BY at the end of the last step sorts the rows of a transaction, and "
                "row_number() OVER (PARTITION BY key ORDER BY x) <= n keeps the first rows of each key",
            )
        if name == "Window":
            return self._track_running_totals(plan)
        return super().track(plan)

    def _track_passed(self, plan: Any) -> TrackedPlan:
        tracked = super().track(plan)
        self._record_operations(to_list(plan.expressions()))
        return tracked

    def _track_multiplied(self, plan: Any) -> TrackedPlan:
        """Track a node that makes several rows of one."""
        is_expand = node_name(plan) == "Expand"
        tracked = self._track_expand(plan) if is_expand else self._track_passed(plan)
        if self._running is not None:
            raise unsupported_at(
                plan,
                "the query makes several rows of a group without a window, which has only one latest row",
                "explode or unpivot the rows in a separate dataset",
            )
        return tracked

    def _check_collations(self, plan: Any) -> None:
        check_collations(plan, compared_expressions(plan))

    def track_input(self, view: Any, index: int, vocab: DatasetVocabulary) -> TrackedPlan:
        tracked = super().track_input(view, index, vocab)
        name = self._names[view.desc().identifier().table().lower()]
        # The operations of inputs can have different types, and the plan does not depend on them.
        appended = self.alias(self.literal(int(Op.APPEND)), OPERATION)
        plan = self.project([*to_list(view.output()), tracked.origin[0], appended], tracked.plan)
        tracked = tracked._replace(plan=plan, origin=[tracked.origin[0], appended.toAttribute()])
        for column in to_list(view.output()):
            if column.name() == vocab.operation_type_column:
                self._operations[column_id(column)] = name
        return tracked

    def track_projection(self, plan: Any, below: TrackedPlan, keep: Any = ()) -> TrackedPlan:
        reads_operation = referenced_ids(plan) & self._operations.keys()
        columns = to_list(plan.projectList()) if reads_operation or self._running is not None else []
        self._record_operations([column for column in columns if node_name(column) != "AttributeReference"])
        if self._running is not None:
            renamed: dict[int, int] = {}
            for column in columns:
                if node_name(column) == "AttributeReference":
                    renamed[column_id(column)] = column_id(column)
                elif node_name(column) == "Alias" and node_name(column.child()) == "AttributeReference":
                    renamed.setdefault(column_id(column.child()), column_id(column))
            self._running = [renamed.get(place, -1) for place in self._running]
        return super().track_projection(plan, below, keep)

    def track_union(self, plan: Any) -> TrackedPlan:
        branches, steps = list[TrackedPlan](), list[str | None]()
        for child in to_list(plan.children()):
            self._changing_step = None
            branches.append(self.track(child))
            steps.append(self._changing_step)
        self._changing_step = next(filter(None, steps), None)
        self._require_no_groups(plan)
        if all(branch.origin for branch in branches):
            return super().track_union(plan)
        self._record_unsupported(plan, "UNION with rows that were grouped or joined")
        self._by_commit = True
        rows = [
            self.project(to_list(child.output()), branch.plan)
            for branch, child in zip(branches, to_list(plan.children()), strict=True)
        ]
        return TrackedPlan(self.with_children(plan, rows), [], frozenset())

    def track_join(self, plan: Any, condition: Any = None) -> TrackedPlan:
        if not is_stream_join(plan):
            if plan.condition().isDefined():
                self._record_operations([plan.condition().get()])
            tracked = super().track_join(plan)
            self._require_last_step(plan)
            return tracked
        if (kind := plan.joinType().sql()) not in JOIN_KINDS:
            raise StatefulQueryError(f"a {kind} JOIN of inputs")
        left, right = self.track(plan.left()), self.track(plan.right())
        self._require_last_step(plan)
        conditions = [plan.condition().get()] if plan.condition().isDefined() else []
        self._record_operations(conditions)
        self._record_unsupported(plan, "a join of inputs")
        self._exact = self._by_commit = True
        rewritten = self.with_children(
            plan, [self._without_origin(left, plan.left()), self._without_origin(right, plan.right())]
        )
        all_conditions = [*conditions, *([condition] if condition is not None else [])]
        watermark_delays(self, rewritten, all_conditions)
        return TrackedPlan(rewritten, [], left.passed | right.passed)

    def _track_filter(self, plan: Any) -> TrackedPlan:
        condition = plan.condition()
        if (ranked := ranked_rows(plan, conjuncts([condition]))) is not None:
            return self._track_ranked_rows(plan, ranked)
        child = plan.child()
        if is_stream_join(child):
            inner = child.joinType().sql() in ("INNER", "CROSS")
            below = self.track_join(child, condition if inner else None)
        else:
            below = self.track(child)
        self._record_operations([condition])
        if self._running is None:
            return below._replace(plan=self.filter(condition, below.plan))
        # A group that no longer passes is retracted: its row count is set to 0.
        rows, *others = below.origin
        passes = self.expressions.Coalesce(self.seq([condition, self.literal(False)]))
        counted = self.alias(self.expressions.If(passes, rows, self.long_literal(0)), ROWS)
        columns = [column for column in to_list(below.plan.output()) if column_id(column) != column_id(rows)]
        projected = self.project([*columns, counted], below.plan)
        return below._replace(plan=projected, origin=[counted.toAttribute(), *others])

    def _track_expand(self, plan: Any) -> TrackedPlan:
        """Track rows that belong to several windows or groupings."""
        below = self.track(plan.child())
        for row in to_list(plan.projections()):
            self._record_operations(
                [expression for expression in to_list(row) if node_name(expression) != "AttributeReference"]
            )
        rows = [self.seq([*to_list(row), *below.origin]) for row in to_list(plan.projections())]
        output = self.seq([*to_list(plan.output()), *below.origin])
        expanded = self.catalyst.plans.logical.Expand(self.seq(rows), output, below.plan)
        return below._replace(plan=expanded)

    def _track_distinct(self, plan: Any) -> TrackedPlan:
        below = self.track(plan.child())
        self._require_last_step(plan)
        self._record_unsupported(plan, "DISTINCT")
        self._by_commit = True
        columns = [column for column in to_list(plan.output()) if column_id(column) not in below.passed]
        if not any(has_watermark(column) for column in columns):
            raise InvalidQuery(
                "DISTINCT requires unlimited state without the event time",
                where="query",
                hint="select the unchanged event time as well, or group by the columns instead",
            )
        self._record_exact_time(columns)
        deduplicated = self.catalyst.plans.logical.Deduplicate(
            self.seq(columns), self.project(columns, below.plan), self.none()
        )
        return TrackedPlan(deduplicated, [], frozenset())

    def _track_ranked_rows(self, plan: Any, ranked: RankedRows) -> TrackedPlan:
        """Track the first rows of each key. Spark checks a plan with the rows instead."""
        self._check_collations(ranked.window)
        below = self.track(ranked.window.child())
        self._require_last_step(plan)
        self._record_unsupported(plan, f"{ranked.function}()")
        self._record_exact_time(to_list(ranked.window.partitionSpec()))
        self._by_commit = True
        if not is_first_arrival(ranked, below):
            self._changing_step = f"the first rows by {ranked.function}()"
        self._first_row_inputs |= self._unaggregated_inputs(plan)
        rewritten = replace_window(
            self, plan.child(), to_list(ranked.window.child().output()), [self.literal(1)], below.plan
        )
        return TrackedPlan(self.filter(plan.condition(), rewritten), [], below.passed)

    def _track_running_totals(self, window: Any) -> TrackedPlan:
        """Track running totals. Spark checks a plan with the rows instead."""
        below = self.track(window.child())
        self._require_last_step(window, with_totals=True)
        running_frames(window, has_watermark)
        aggregates = running_aggregates(self, window)
        if (unsupported := aggregates.unmergeable) is not None:
            raise unsupported_at(
                unsupported,
                f"a running total with {unsupported.aggregateFunction().prettyName()}() is not supported",
                "use sum, count, avg, min or max without DISTINCT",
            )
        self._record_unsupported(window, "a running total")
        self._by_commit = True
        self._changing_step = "running totals"
        totals = [
            self.expressions.Literal(None, aggregate.dataType())
            for aggregate in to_list(window.windowExpressions())
        ]
        rewritten = replace_window(self, window, to_list(window.child().output()), totals, below.plan)
        return TrackedPlan(rewritten, [], below.passed)

    def _track_aggregate(self, plan: Any) -> TrackedPlan:
        below = self.track(plan.child())
        self._require_last_step(plan)
        grouping, columns = to_list(plan.groupingExpressions()), to_list(plan.aggregateExpressions())
        self._record_operations([*grouping, *columns])
        windowed = any(has_watermark(key) for key in grouping)
        if windowed and has_null_times(plan):
            raise unsupported_at(
                plan,
                "a total over all times, from ROLLUP, CUBE or GROUPING SETS, is never complete",
                "use GROUPING SETS that all have the time, or compute the total in a separate dataset",
            )
        self._record_exact_time(grouping)
        # Session windows of any length can end at any time; other windows end in the order of their start.
        self._by_commit = any("session_window" in key.sql() for key in grouping)
        self._sessions = self._sessions or self._by_commit
        if not windowed and not below.origin:
            # Final rows of joins and windows. Spark supports them in a stream, but no grouping over them.
            check_streaming(self, below.plan, update=False)
            self._is_checked = self._by_commit = True
        reads = self._unaggregated_inputs(plan.child())
        rows = self.alias(self.long_literal(1), ROWS)
        added = [] if windowed else [rows]
        aggregated = self.aggregate(plan, [*map(self._without_distinct, columns), *added], below.plan)
        if windowed:
            return TrackedPlan(aggregated, [], frozenset())
        self._running = [grouping_column_id(key, columns) for key in grouping]
        self._grouping = [key.sql() for key in grouping]
        # The query of the batches can retract rows of more aggregates than the checked plan has.
        merged = GroupAggregates(
            self,
            grouping,
            columns,
            signed=not reads & self._read_operations,
            operation=None,
            values=False,
            changed=self._event_time,
        )
        if merged.has_values or not grouping:
            self._sequential = "always"
        elif merged.can_keep_values:
            self._sequential = "changes"
        return TrackedPlan(aggregated, [rows.toAttribute()], frozenset())

    def _without_distinct(self, column: Any) -> Any:
        """Return a column with count(x) for count(DISTINCT x), which Spark refuses over streams."""
        distinct = [aggregate for aggregate in find_aggregates(column) if aggregate.isDistinct()]
        for aggregated in distinct:
            if function_name(aggregated.aggregateFunction()) != "Count":
                raise unsupported_at(
                    aggregated,
                    f"{aggregated.aggregateFunction().sql(True)} is not supported over rows that need state",
                    "use count(DISTINCT …), or collect_set(…) for the distinct values",
                )
        return self._replace_distinct(column) if distinct else column

    def _replace_distinct(self, expression: Any) -> Any:
        if node_name(expression) == "AggregateExpression":
            return expression.aggregateFunction().toAggregateExpression(False, expression.filter())
        return self.map_children(expression, self._replace_distinct)

    def _record_operations(self, expressions: list[Any]) -> None:
        """Record the inputs whose operation column the query itself reads."""
        for expression in expressions:
            for operation_id in referenced_ids(expression) & self._operations.keys():
                self._read_operations.add(self._operations[operation_id])

    def _record_exact_time(self, keys: list[Any]) -> None:
        """Record that rows are grouped by their exact time, not by a window that ends later."""
        self._exact = self._exact or any(
            has_watermark(key) and key.dataType().typeName() == "timestamp" for key in keys
        )

    def _record_unsupported(self, plan: Any, operation: str) -> None:
        """Record that a node does not support retractions of the inputs below it."""
        for name in self._unaggregated_inputs(plan):
            self._unsupported.setdefault(name, operation)

    def _unaggregated_inputs(self, plan: Any) -> set[str]:
        """Return the inputs whose rows reach a node without aggregation."""
        if node_name(plan) == "View":
            input_name = self._names.get(plan.desc().identifier().table().lower())
            if input_name is not None:
                return {input_name}
        if node_name(plan) == "Aggregate":
            return set()
        return {name for child in to_list(plan.children()) for name in self._unaggregated_inputs(child)}

    def _require_last_step(self, plan: Any, *, with_totals: bool = False) -> None:
        if self._changing_step is not None and not (with_totals and self._changing_step == "running totals"):
            raise unsupported_at(
                plan,
                f"{self._changing_step} must be the last stateful step of a query",
                "move the later steps to a separate dataset",
            )
        # A retraction makes a later row of its key the first one, which may be late for the later steps.
        self._first_row_steps |= self._first_row_inputs & self._unaggregated_inputs(plan)
        self._require_no_groups(plan)

    def _require_no_groups(self, plan: Any) -> None:
        if self._running is not None:
            raise unsupported_at(
                plan,
                "a grouping without a window must be the last step of a query",
                "group by a time window, or move the later steps to a separate dataset",
            )

    def _without_origin(self, tracked: TrackedPlan, child: Any) -> Any:
        """Return a branch without the origin columns."""
        return self.project(to_list(child.output()), tracked.plan) if tracked.origin else tracked.plan


WATERMARK: Final = "odf_mark"
"""The watermark before the batch that read a row; null without a watermark, and for computed rows."""


class TablePlanner(StreamPlanner):
    """Rewrites the analyzed plan of a query over streaming views to read tables instead.

    Args:
        session, inputs, event_time, system: as for :class:`StreamPlanner`.
        changing: inputs with retractions or corrections in this transaction. For the others, signs are not
            computed.
        tables: rows of each input: its columns in order, then those of ``_ORIGIN`` that it does not have.
    """

    _ORIGIN: tuple[str, ...] = (POSITION, OPERATION, BATCH, WATERMARK)
    """Names of the columns with the origin of a row."""

    def __init__(
        self,
        session: SparkSession,
        inputs: Mapping[str, DatasetVocabulary],
        event_time: str,
        changing: Collection[str],
        tables: Mapping[str, DataFrame],
        system: Mapping[int, str] | None,
    ) -> None:
        super().__init__(session, inputs, event_time, system)
        self._changing = changing
        self._tables = {name.lower(): frame for name, frame in tables.items()}
        self._input_origins: set[int] = set()
        """Ids of the position columns of rows that are rows of inputs."""

    def track_input(self, view: Any, index: int, vocab: DatasetVocabulary) -> TrackedPlan:
        name = view.desc().identifier().table().lower()
        table, output = analyzed_plan(self._tables[name]), view.output()
        named, table_columns = named_columns(output), to_list(table.output())
        by_name = {
            new_column: column
            for (new_column, _), column in zip(named_columns(table.output()), table_columns, strict=True)
        }
        columns = [
            self.replace_column(new, old) for new, old in zip(table_columns, to_list(output), strict=False)
        ]
        by_name[POSITION] = by_name[vocab.offset_column]
        if index:
            base = self.expressions.Literal(index << INPUT_BITS, self.types.LongType)
            by_name[POSITION] = self.expressions.BitwiseOr(by_name[POSITION], base)
        by_name[OPERATION] = by_name[vocab.operation_type_column]
        if self._names[name] not in self._changing:
            by_name[OPERATION] = self.literal(int(Op.APPEND))
        origin = self._origin_columns(*(by_name[name] for name in self._ORIGIN))
        system = (vocab.offset_column, vocab.operation_type_column, vocab.system_time_column)
        passed = {number for column, number in named if column in system}
        self._operations |= {
            number: self._names[name] for column, number in named if column == vocab.operation_type_column
        }
        tracked = self._with_origin(columns, origin, table, frozenset(passed | self.system.keys()))
        self._input_origins.add(column_id(tracked.origin[0]))
        return tracked

    def track_union(self, plan: Any) -> TrackedPlan:
        branches = [self.track(child) for child in to_list(plan.children())]
        width = len(self._ORIGIN)
        return self.combine_branches(
            plan, [branch._replace(origin=branch.origin[:width]) for branch in branches]
        )

    def combine_branches(self, plan: Any, branches: Sequence[TrackedPlan]) -> TrackedPlan:
        tracked = super().combine_branches(plan, branches)
        if all(column_id(branch.origin[0]) in self._input_origins for branch in branches):
            self._input_origins.add(column_id(tracked.origin[0]))
        return tracked

    def _with_origin(
        self, columns: Sequence[Any], origin: Sequence[Any], plan: Any, passed: frozenset[int] = frozenset()
    ) -> TrackedPlan:
        """Return the rows of a plan with these columns and their origin."""
        projected = self.project([*columns, *origin], plan)
        return TrackedPlan(projected, [column.toAttribute() for column in origin], passed)

    def _origin_columns(self, *values: Any) -> list[Any]:
        """Return the columns with the origin of a row, in the order of ``_ORIGIN``."""
        return [self.alias(value, name) for name, value in zip(self._ORIGIN, values, strict=True)]

    def _end_time(self, time: Any) -> Any:
        """Return a time, or the end of a window."""
        if time.dataType().typeName() != "struct":
            return time
        return self.expressions.GetStructField(time, 1, self.none())


def grouping_column_id(grouping: Any, columns: list[Any]) -> int:
    """Return the id of the column for a grouping expression, or -1 without a column."""
    for column in columns:
        inner = column.child() if node_name(column) == "Alias" else column
        if inner.semanticEquals(grouping):
            return column_id(column)
    return -1
