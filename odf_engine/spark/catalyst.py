"""Pieces of Spark's own plans, for code that changes a plan after Spark has analysed it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from py4j.java_gateway import JavaPackage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class _Package:
    """A package of Java whose classes are looked up once: each time costs a call to Java and back."""

    def __init__(self, package: Any) -> None:
        self._package = package

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._package, name)
        found = _Package(found) if isinstance(found, JavaPackage) else found
        setattr(self, name, found)
        return found


class Catalyst:
    """Makes nodes of plans and expressions in Spark's Java.

    Args:
        session: in which the plans were made.
    """

    def __init__(self, session: SparkSession) -> None:
        self.session: Any = session
        self.java: Any = _Package(session._jvm)
        self.catalyst: Any = self.java.org.apache.spark.sql.catalyst
        self.expressions: Any = self.catalyst.expressions
        self.types: Any = self.java.org.apache.spark.sql.types.DataTypes
        self._companions: dict[tuple[int, str], Any] = {}
        self._none: Any = None

    def frame(self, plan: Any) -> DataFrame:
        """The result of a plan."""
        from pyspark.sql import DataFrame

        made = self.java.org.apache.spark.sql.classic.Dataset.ofRows(self.session._jsparkSession, plan)
        return DataFrame(made, self.session)

    def seq(self, items: Sequence[Any]) -> Any:
        """A sequence as Scala knows it."""
        return self.java.PythonUtils.toSeq(list(items))

    def none(self) -> Any:
        """No value where there may be one."""
        self._none = self._none or self.java.scala.Option.empty()
        return self._none

    def companion(self, name: str, package: Any = None) -> Any:
        """The companion object of a class among the expressions, or of another package."""
        where = package or self.expressions
        key = (id(where), name)
        if key not in self._companions:
            self._companions[key] = getattr(getattr(where, f"{name}$"), "MODULE$")
        return self._companions[key]

    def project(self, columns: Sequence[Any], plan: Any) -> Any:
        """The plan with these columns."""
        return self.catalyst.plans.logical.Project(self.seq(columns), plan)

    def filter(self, condition: Any, plan: Any) -> Any:
        """The plan with the rows that fulfil a condition."""
        return self.catalyst.plans.logical.Filter(condition, plan)

    def alias(self, expression: Any, name: str) -> Any:
        """An expression as a column of its own."""
        new_id = self.expressions.NamedExpression.newExprId()
        empty = self.seq([])
        return self.expressions.Alias(expression, name, new_id, empty, self.none(), empty)

    def renamed(self, expression: Any, column: Any) -> Any:
        """An expression in the place of a column."""
        empty = self.seq([])
        return self.expressions.Alias(expression, column.name(), column.exprId(), empty, self.none(), empty)

    def ascending(self, column: Any) -> Any:
        """An order by a column, nulls first."""
        direction = self.companion("Ascending")
        return self.expressions.SortOrder(column, direction, direction.defaultNullOrdering(), self.seq([]))

    def sorted(self, orders: Sequence[Any], plan: Any, *, everywhere: bool) -> Any:
        """The plan with its rows in order: all of them, or those of each partition by themselves."""
        return self.catalyst.plans.logical.Sort(self.seq(orders), everywhere, plan, self.none())

    def literal(self, value: str | int | bool) -> Any:
        """A constant; numbers are of type INT."""
        return self.companion("Literal").apply(value)

    def long(self, value: int) -> Any:
        """A constant of type BIGINT."""
        return self.cast(self.literal(value), self.types.LongType)

    def cast(self, expression: Any, kind: Any) -> Any:
        """The expression in another type."""
        return self.expressions.Cast(expression, kind, self.java.scala.Option.apply("UTC"))

    def rebuilt(self, node: Any, children: Sequence[Any]) -> Any:
        """A plan or expression with other children."""
        return node.withNewChildren(self.seq(children))


def analysed(frame: DataFrame) -> Any:
    """The plan of a frame with every name resolved."""
    java: Any = frame._jdf
    return java.queryExecution().analyzed()


def name_of(node: Any) -> str:
    """What kind of node of a plan or expression it is."""
    return node.getClass().getSimpleName()


def items(sequence: Any) -> list[Any]:
    """A Scala sequence as a list."""
    return [sequence.apply(at) for at in range(sequence.size())]


def id_of(column: Any) -> int:
    """What tells a column from all others, whatever their names."""
    return column.exprId().id()


def references(expression: Any) -> set[int]:
    """The ids of the columns that an expression reads."""
    return {id_of(column) for column in items(expression.references().toSeq())}


def sortable(column: Any) -> bool:
    """Whether rows can be put in order by a column."""
    return column.dataType().typeName() not in ("map", "variant")
