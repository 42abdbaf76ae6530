"""Aggregate functions that process retractions and corrections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from odf_engine.data.changelog import Op
from odf_engine.errors import InvalidQuery
from odf_engine.spark.plan_rewrite import PlanBuilder, items, name_of

if TYPE_CHECKING:
    from collections.abc import Sequence

_ANY_ORDER: Final = frozenset({
    "Count", "CountIf", "Min", "Max", "CollectSet", "CollectList", "BoolAnd", "BoolOr", "BitAndAgg",
    "BitOrAgg", "BitXorAgg", "BoolAndAgg", "BoolOrAgg",
})  # fmt: skip
_UNDONE: Final = ("Count", "CountIf", "Sum", "Average")


class RetractableAggregates:
    """The columns of an aggregation over a changelog.

    Args:
        make: builds expressions.
        columns: as analyzed by Spark.
        origin: origin columns of the rows; empty if the inputs were aggregated before.
        changed: name of the result's event time column. A maximum of the event time under this name needs no
            retraction.

    Attributes:
        not_undone: SQL text of an aggregate that does not support retractions; None if all do.
        order_matters: whether the result depends on the row order, at least in its last bits.

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
        found = [each for column in columns for each in _aggregates(column)]
        kept = [each for column in columns if not self._is_change(column) for each in _aggregates(column)]
        self.not_undone = next((each.sql() for each in kept if not _is_undone(each)), None)
        self.order_matters = any(_order_matters(each.aggregateFunction()) for each in found)

    def made(self, plan: Any, child: Any, *, signed: bool, name: str) -> tuple[Any, Any]:
        """Return the aggregation over other rows, with a column that counts the rows of each group.

        Args:
            plan: the original aggregation.
            child: its rows.
            signed: whether rows can be retracted; otherwise the count of every group is 1.
            name: name of the added column.

        Returns:
            The plan, and the added column.
        """
        make = self._make
        minus = self._minus() if signed else None
        columns = [
            column if self._is_change(column) else self._replaced(column, minus) for column in self._columns
        ]
        rows = make.alias(make.long(1) if minus is None else self._counted([], minus, make.none()), name)
        made = make.catalyst.plans.logical.Aggregate(
            plan.groupingExpressions(), make.seq([*columns, rows]), child, plan.hint()
        )
        return made, rows.toAttribute()

    def _is_change(self, column: Any) -> bool:
        """Return whether a column is the maximum event time of a group, named as the result's event time."""
        if self._changed is None or column.name() != self._changed or name_of(column) != "Alias":
            return False
        inner = column.child()
        if name_of(inner) != "AggregateExpression" or name_of(inner.aggregateFunction()) != "Max":
            return False
        argument = items(inner.aggregateFunction().children())[0]
        return name_of(argument) == "AttributeReference" and argument.name() == self._changed

    def _minus(self) -> Any:
        expressions, make = self._make.expressions, self._make
        operation = self._origin[1]
        retracted = expressions.EqualTo(operation, make.literal(int(Op.RETRACT)))
        corrected = expressions.EqualTo(operation, make.literal(int(Op.CORRECT_FROM)))
        return expressions.Or(retracted, corrected)

    def _replaced(self, expression: Any, minus: Any) -> Any:
        """Return the expression with its aggregates replaced."""
        if name_of(expression) == "AggregateExpression":
            return self._aggregate(expression, minus) or expression
        children = items(expression.children())
        made = [self._replaced(child, minus) for child in children]
        if all(new is old for new, old in zip(made, children, strict=True)):
            return expression
        return self._make.rebuilt(expression, made)

    def _aggregate(self, each: Any, minus: Any) -> Any:
        """Return the retractable form of an aggregate; None if it needs no change."""
        function, only = each.aggregateFunction(), each.filter()
        if each.isDistinct():
            return self._distinct(function, only)
        if minus is None:
            return None
        name, arguments = name_of(function), items(function.children())
        if name == "CountIf":
            return self._counted([self._when(arguments[0])], minus, only)
        if name == "Count":
            return self._counted([each for each in arguments if each.nullable()], minus, only)
        if name == "Sum":
            return self._sum(function, arguments[0], minus, only)
        return self._average(function, arguments[0], minus, only)

    def _when(self, condition: Any) -> Any:
        """Return an expression that is null where a condition is not met."""
        make = self._make
        return make.expressions.If(
            condition, make.literal(1), make.expressions.Literal(None, make.types.IntegerType)
        )

    def _distinct(self, function: Any, only: Any) -> Any:
        """Return ``count(DISTINCT x)`` as the size of the set of all values."""
        make, expressions = self._make, self._make.expressions
        if name_of(function) != "Count":
            raise InvalidQuery(
                f"{function.sql(True)} cannot be computed on a stream",
                where="query",
                hint="count(DISTINCT …) can; for others collect_set(…) gives the distinct values",
            )
        values = items(function.children())
        value = values[0]
        if len(values) > 1:
            named = [part for at, each in enumerate(values) for part in (make.literal(f"c{at}"), each)]
            value = expressions.CreateNamedStruct(make.seq(named))
            missing = expressions.IsNull(values[0])
            for each in values[1:]:
                missing = expressions.Or(missing, expressions.IsNull(each))
            value = expressions.If(missing, expressions.Literal(None, value.dataType()), value)
        collected = expressions.aggregate.CollectSet(value).toAggregateExpression(False, only)
        return make.cast(expressions.Size(collected, False), make.types.LongType)

    def _counted(self, values: Sequence[Any], minus: Any, only: Any) -> Any:
        """Return the number of rows in which none of the values is null."""
        make, expressions = self._make, self._make.expressions
        one = expressions.If(minus, make.long(-1), make.long(1))
        for value in values:
            one = expressions.If(expressions.IsNull(value), make.long(0), one)
        total = expressions.aggregate.Sum(one).toAggregateExpression(False, only)
        return expressions.Coalesce(make.seq([total, make.long(0)]))

    def _sum(self, function: Any, value: Any, minus: Any, only: Any) -> Any:
        signed = self._make.expressions.If(minus, self._make.expressions.UnaryMinus(value, True), value)
        return self._make.rebuilt(function, [signed]).toAggregateExpression(False, only)

    def _average(self, function: Any, value: Any, minus: Any, only: Any) -> Any:
        make, expressions = self._make, self._make.expressions
        kind = function.dataType()
        decimal = kind.typeName().startswith("decimal")
        value = value if decimal else make.cast(value, make.types.DoubleType)
        total = self._sum(expressions.aggregate.Sum(value), value, minus, only)
        count = self._counted([value], minus, only)
        if decimal:
            divisor = make.cast(count, make.java.org.apache.spark.sql.types.DecimalType(20, 0))
            divided = expressions.DecimalDivideWithOverflowCheck(total, divisor, kind, None, False)
        else:
            divided = expressions.Divide(total, make.cast(count, make.types.DoubleType))
        none = expressions.Literal(None, kind)
        return expressions.If(expressions.EqualTo(count, make.long(0)), none, divided)


def _aggregates(expression: Any) -> list[Any]:
    if name_of(expression) == "AggregateExpression":
        return [expression]
    return [found for child in items(expression.children()) for found in _aggregates(child)]


def _is_undone(each: Any) -> bool:
    function = each.aggregateFunction()
    name = name_of(function)
    if each.isDistinct() or name not in _UNDONE:
        return False
    return name != "Average" or "interval" not in function.dataType().typeName()


def _order_matters(function: Any) -> bool:
    name = name_of(function)
    if name in _ANY_ORDER:
        return False
    if name == "Sum":
        return function.dataType().typeName() in ("double", "float")
    if name == "Average":
        kind = items(function.children())[0].dataType().typeName()
        return kind in ("double", "float", "long")
    return True
