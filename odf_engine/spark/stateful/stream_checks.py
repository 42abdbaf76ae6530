"""Checks of streaming queries: time bounds of joins, collations, groups without a time, Spark's checks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pyspark.errors import PySparkException

from odf_engine.errors import InvalidQuery, Unsupported
from odf_engine.spark.errors import to_user_error
from odf_engine.spark.plan_rewrite import (
    PlanBuilder,
    column_id,
    node_name,
    output_ids,
    referenced_ids,
    to_list,
    unsupported_at,
)

JOIN_KINDS: Final = ("INNER", "CROSS", "LEFT OUTER", "RIGHT OUTER", "FULL OUTER")
"""Kinds of joins of inputs that are supported."""
SUPPORTED_HINT: Final = "use GROUP BY, window(…), joins with a time bound, DISTINCT or UNION ALL"
_TEST_WATERMARK: Final = 10**15
_WATERMARK: Final = "spark.watermarkDelayMs"


def has_watermark(column: Any) -> bool:
    """Return whether a column has a watermark."""
    return node_name(column) == "AttributeReference" and column.metadata().contains(_WATERMARK)


def is_stream_join(plan: Any) -> bool:
    """Return whether a plan is a join of inputs."""
    return node_name(plan) == "Join" and plan.left().isStreaming() and plan.right().isStreaming()


def watermark_delays(builder: PlanBuilder, join: Any, conditions: Sequence[Any]) -> tuple[int, int]:
    """Return how far, in milliseconds, the watermark must be past a row before it can have no new partner.

    Args:
        builder: builds plan nodes.
        join: a join of streams.
        conditions: the conditions on a pair of rows, combined by AND.

    Returns:
        The delay of the left side and of the right side.

    Raises:
        InvalidQuery: there is no time bound, or no equality condition; the hint shows the syntax.
    """
    condition = None
    for part in conditions:
        condition = part if condition is None else builder.expressions.And(condition, part)
    sides = [output_ids(side) for side in (join.left(), join.right())]
    if not any(_is_equality(conjunct, *sides) for conjunct in conjuncts(conditions)):
        raise InvalidQuery(
            "a join of inputs has no equality condition, so each row would be compared with all others",
            where="query",
            hint="add an equality condition: ON a.key = b.key AND b.event_time BETWEEN …",
        )
    option = builder.java.scala.Option
    helper = builder.companion("StreamingJoinHelper", builder.catalyst.analysis)
    checked = builder.catalyst.plans.logical.Join(
        join.left(), join.right(), join.joinType(), option.apply(condition), join.hint()
    )
    if any(map(_compares_times, conjuncts(conditions))) and helper.isWatermarkInJoinKeys(checked):
        return 0, 0
    watermark = option.apply(_TEST_WATERMARK)
    # The watermark says nothing about the values of other columns.
    left, right = (_event_times(builder, side) for side in (join.left(), join.right()))
    bounds = (
        helper.getStateValueWatermark(left, right, option.apply(condition), watermark),
        helper.getStateValueWatermark(right, left, option.apply(condition), watermark),
    )
    if not all(bound.isDefined() for bound in bounds):
        raise InvalidQuery(
            "a join of inputs requires unlimited state without a bound on both event times",
            where="query",
            hint="add a bound on the event times: ON … AND b.event_time BETWEEN "
            "a.event_time - INTERVAL 1 DAY AND a.event_time + INTERVAL 1 DAY",
        )
    first, second = (_TEST_WATERMARK - int(bound.get()) for bound in bounds)
    return first, second


def has_null_times(aggregate: Any) -> bool:
    """Return whether an aggregation has groups without a time: ``ROLLUP``, ``CUBE`` or ``GROUPING SETS``."""
    expand = aggregate.child()
    if node_name(expand) != "Expand":
        return False
    times = {
        column_id(expression)
        for expression in to_list(aggregate.groupingExpressions())
        if has_watermark(expression)
    }
    places = [at for at, column in enumerate(to_list(expand.output())) if column_id(column) in times]
    return any(
        node_name(values.apply(place)) == "Literal"
        for values in to_list(expand.projections())
        for place in places
    )


def _event_times(builder: PlanBuilder, plan: Any) -> Any:
    """Return the columns of a plan with a watermark, as an AttributeSet of Spark."""
    columns = [column for column in to_list(plan.output()) if has_watermark(column)]
    return builder.project(columns, plan).outputSet()


def check_collations(plan: Any, expressions: Sequence[Any]) -> None:
    """Check that no value that a stateful operator compares or stores has a collation.

    The state stores strings without their collation, so equal values would be in different groups.

    Raises:
        Unsupported: with line and column.
    """
    pending = list(expressions)
    while pending:
        expression = pending.pop()
        if node_name(expression) in ("AttributeReference", "Collate", "Cast", "Literal"):
            kind = expression.dataType().sql()
            if "COLLATE" in kind.replace("COLLATE UTF8_BINARY", ""):
                raise unsupported_at(
                    plan,
                    f"{expression.sql()} has a collation, "
                    "which is not supported in groups, joins and ranked rows",
                    "compare a value that is equal for equal strings, such as lower(name)",
                )
        pending += to_list(expression.children())


def compared_expressions(plan: Any) -> list[Any]:
    """Return the expressions that a stateful operator compares or stores."""
    if node_name(plan) == "Distinct":
        return to_list(plan.output())
    if node_name(plan) == "Window":
        return [*to_list(plan.partitionSpec()), *to_list(plan.windowExpressions())]
    return to_list(plan.expressions())


def conjuncts(conditions: Sequence[Any]) -> list[Any]:
    """Return the conjuncts of conditions, from left to right."""
    parts: list[Any] = []
    pending = list(conditions)[::-1]
    while pending:
        condition = pending.pop()
        if node_name(condition) == "And":
            pending += [condition.right(), condition.left()]
        else:
            parts.append(condition)
    return parts


def _is_equality(condition: Any, left: set[int], right: set[int]) -> bool:
    if node_name(condition) not in ("EqualTo", "EqualNullSafe"):
        return False
    left_ids, right_ids = referenced_ids(condition.left()), referenced_ids(condition.right())
    return bool(left_ids and right_ids) and (
        (left_ids <= left and right_ids <= right) or (left_ids <= right and right_ids <= left)
    )


def _compares_times(condition: Any) -> bool:
    """Return whether a condition is an equality of two event times."""
    is_equality = node_name(condition) in ("EqualTo", "EqualNullSafe")
    return is_equality and has_watermark(condition.left()) and has_watermark(condition.right())


def check_streaming(builder: PlanBuilder, plan: Any, *, update: bool) -> None:
    """Check a streaming plan with Spark's own checker.

    Args:
        builder: builds plan nodes.
        plan: analyzed plan of a streaming query.
        update: whether the output mode is ``update``.

    Raises:
        Unsupported: with Spark's message.
    """
    modes = builder.java.org.apache.spark.sql.catalyst.streaming.InternalOutputModes
    checker = builder.companion("UnsupportedOperationChecker", builder.catalyst.analysis)
    try:
        checker.checkForStreaming(plan, builder.companion("Update" if update else "Append", modes))
    except PySparkException as error:
        raise Unsupported(
            f"Spark cannot run the query on a stream: {to_user_error(error).message}",
            where="query",
            hint=SUPPORTED_HINT,
        ) from error
