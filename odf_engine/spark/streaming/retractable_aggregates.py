"""Aggregate functions that process retractions and corrections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from odf_engine.data.changelog import Op
from odf_engine.errors import InvalidQuery
from odf_engine.spark.plan_rewrite import PlanBuilder, node_name, to_list

if TYPE_CHECKING:
    from collections.abc import Sequence

_RETRACTABLE: Final = ("Count", "CountIf", "Sum", "Average")


class RetractableAggregates:
    """The columns of an aggregation over a changelog.

    Args:
        make: builds expressions.
        columns: as analyzed by Spark.
        origin: origin columns of the rows; empty if the inputs were aggregated before.
        changed: name of the result's event time column. A maximum of the event time under this name needs no
            retraction.

    Attributes:
        unsupported: SQL text of an aggregate that does not support retractions; None if all do.

    Raises:
        InvalidQuery: an aggregate with DISTINCT that is not supported on streams.
    """

    def __init__(
        self, make: PlanBuilder, columns: Sequence[Any], origin: Sequence[Any], changed: str | None
    ) -> None:
        self._make = make
        self._columns = list(columns)
        self._origin = list(origin)
        self._changed = changed
        retracted = [
            each for column in columns if not self._is_change(column) for each in _aggregates(column)
        ]
        self.unsupported = next((each.sql() for each in retracted if not _is_retractable(each)), None)

    def aggregate(self, plan: Any, child: Any, *, signed: bool, name: str) -> tuple[Any, Any]:
        """Return the aggregation over other rows, with a column that counts the rows of each group.

        Args:
            plan: the original aggregation.
            child: its rows.
            signed: whether rows can be retracted; otherwise the count of every group is 1.
            name: name of the added column.

        Returns:
            The plan, and the added column.
        """
        builder = self._make
        minus = self._is_retraction() if signed else None
        columns = [
            column if self._is_change(column) else self._replace_aggregates(column, minus)
            for column in self._columns
        ]
        rows = builder.alias(
            builder.long_literal(1) if minus is None else self._count_rows([], minus, builder.none()), name
        )
        aggregation = builder.catalyst.plans.logical.Aggregate(
            plan.groupingExpressions(), builder.seq([*columns, rows]), child, plan.hint()
        )
        return aggregation, rows.toAttribute()

    def _is_change(self, column: Any) -> bool:
        """Return whether a column is the maximum event time of a group, named as the result's event time."""
        if self._changed is None or column.name() != self._changed or node_name(column) != "Alias":
            return False
        inner = column.child()
        if node_name(inner) != "AggregateExpression" or node_name(inner.aggregateFunction()) != "Max":
            return False
        argument = to_list(inner.aggregateFunction().children())[0]
        return node_name(argument) == "AttributeReference" and argument.name() == self._changed

    def _is_retraction(self) -> Any:
        expressions, make = self._make.expressions, self._make
        operation = self._origin[1]
        retracted = expressions.EqualTo(operation, make.literal(int(Op.RETRACT)))
        corrected = expressions.EqualTo(operation, make.literal(int(Op.CORRECT_FROM)))
        return expressions.Or(retracted, corrected)

    def _replace_aggregates(self, expression: Any, minus: Any) -> Any:
        """Return the expression with its aggregates replaced."""
        if node_name(expression) == "AggregateExpression":
            return self._aggregate(expression, minus) or expression
        children = to_list(expression.children())
        rewritten = [self._replace_aggregates(child, minus) for child in children]
        if all(new is old for new, old in zip(rewritten, children, strict=True)):
            return expression
        return self._make.with_children(expression, rewritten)

    def _aggregate(self, aggregate: Any, minus: Any) -> Any:
        """Return the retractable form of an aggregate; None if it needs no change."""
        function, condition = aggregate.aggregateFunction(), aggregate.filter()
        if aggregate.isDistinct():
            return self._distinct(function, condition)
        if minus is None:
            return None
        name, arguments = node_name(function), to_list(function.children())
        if name == "CountIf":
            return self._count_rows([self._one_if(arguments[0])], minus, condition)
        if name == "Count":
            return self._count_rows(
                [aggregate for aggregate in arguments if aggregate.nullable()], minus, condition
            )
        if name == "Sum":
            return self._sum(function, arguments[0], minus, condition)
        return self._average(function, arguments[0], minus, condition)

    def _one_if(self, condition: Any) -> Any:
        """Return an expression that is null where a condition is not met."""
        make = self._make
        return make.expressions.If(
            condition, make.literal(1), make.expressions.Literal(None, make.types.IntegerType)
        )

    def _distinct(self, function: Any, condition: Any) -> Any:
        """Return ``count(DISTINCT x)`` as the size of the set of all values."""
        make, expressions = self._make, self._make.expressions
        if node_name(function) != "Count":
            raise InvalidQuery(
                f"{function.sql(True)} is not supported on streams",
                where="query",
                hint="use count(DISTINCT …), or collect_set(…) for the distinct values",
            )
        values = to_list(function.children())
        value = values[0]
        if len(values) > 1:
            named = [part for index, each in enumerate(values) for part in (make.literal(f"c{index}"), each)]
            value = expressions.CreateNamedStruct(make.seq(named))
            missing = expressions.IsNull(values[0])
            for each in values[1:]:
                missing = expressions.Or(missing, expressions.IsNull(each))
            value = expressions.If(missing, expressions.Literal(None, value.dataType()), value)
        collected = expressions.aggregate.CollectSet(value).toAggregateExpression(False, condition)
        return make.cast(expressions.Size(collected, False), make.types.LongType)

    def _count_rows(self, values: Sequence[Any], minus: Any, condition: Any) -> Any:
        """Return the number of rows in which none of the values is null."""
        make, expressions = self._make, self._make.expressions
        one = expressions.If(minus, make.long_literal(-1), make.long_literal(1))
        for value in values:
            one = expressions.If(expressions.IsNull(value), make.long_literal(0), one)
        total = expressions.aggregate.Sum(one).toAggregateExpression(False, condition)
        return expressions.Coalesce(make.seq([total, make.long_literal(0)]))

    def _sum(self, function: Any, value: Any, minus: Any, condition: Any) -> Any:
        signed = self._make.expressions.If(minus, self._make.expressions.UnaryMinus(value, True), value)
        return self._make.with_children(function, [signed]).toAggregateExpression(False, condition)

    def _average(self, function: Any, value: Any, minus: Any, condition: Any) -> Any:
        make, expressions = self._make, self._make.expressions
        data_type = function.dataType()
        decimal = data_type.typeName().startswith("decimal")
        value = value if decimal else make.cast(value, make.types.DoubleType)
        total = self._sum(expressions.aggregate.Sum(value), value, minus, condition)
        count = self._count_rows([value], minus, condition)
        if decimal:
            divisor = make.cast(count, make.java.org.apache.spark.sql.types.DecimalType(20, 0))
            divided = expressions.DecimalDivideWithOverflowCheck(total, divisor, data_type, None, False)
        else:
            divided = expressions.Divide(total, make.cast(count, make.types.DoubleType))
        none = expressions.Literal(None, data_type)
        return expressions.If(expressions.EqualTo(count, make.long_literal(0)), none, divided)


def _aggregates(expression: Any) -> list[Any]:
    if node_name(expression) == "AggregateExpression":
        return [expression]
    return [found for child in to_list(expression.children()) for found in _aggregates(child)]


def _is_retractable(aggregate: Any) -> bool:
    function = aggregate.aggregateFunction()
    name = node_name(function)
    if aggregate.isDistinct() or name not in _RETRACTABLE:
        return False
    return name != "Average" or "interval" not in function.dataType().typeName()
