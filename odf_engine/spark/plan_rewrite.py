"""Rewriting of analyzed Catalyst plans: node builders, tracking of row origins."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from py4j.java_gateway import JavaPackage

from odf_engine.errors import InvalidQuery
from odf_engine.metadata.model import DatasetVocabulary
from odf_engine.spark.errors import translate_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class _Package:
    """A Java package that caches its classes: each lookup is a call to the JVM."""

    def __init__(self, package: Any) -> None:
        self._package = package

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._package, name)
        found = _Package(found) if isinstance(found, JavaPackage) else found
        setattr(self, name, found)
        return found


class PlanBuilder:
    """Builds plan nodes and expressions in the JVM.

    Args:
        session: the session of the plans.
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
        """Return the frame of a plan."""
        from pyspark.sql import DataFrame

        made = self.java.org.apache.spark.sql.classic.Dataset.ofRows(self.session._jsparkSession, plan)
        return DataFrame(made, self.session)

    def seq(self, items: Sequence[Any]) -> Any:
        """Return a Scala sequence."""
        return self.java.PythonUtils.toSeq(list(items))

    def none(self) -> Any:
        """Return Scala's empty `Option`."""
        self._none = self._none or self.java.scala.Option.empty()
        return self._none

    def companion(self, name: str, package: Any = None) -> Any:
        """Return the companion object of an expression class, or of a class in another package."""
        where = package or self.expressions
        key = (id(where), name)
        if key not in self._companions:
            self._companions[key] = getattr(getattr(where, f"{name}$"), "MODULE$")
        return self._companions[key]

    def project(self, columns: Sequence[Any], plan: Any) -> Any:
        """Return the plan projected to these columns."""
        return self.catalyst.plans.logical.Project(self.seq(columns), plan)

    def filter(self, condition: Any, plan: Any) -> Any:
        """Return the plan filtered by a condition."""
        return self.catalyst.plans.logical.Filter(condition, plan)

    def alias(self, expression: Any, name: str) -> Any:
        """Return an expression as a new column."""
        new_id = self.expressions.NamedExpression.newExprId()
        empty = self.seq([])
        return self.expressions.Alias(expression, name, new_id, empty, self.none(), empty)

    def renamed(self, expression: Any, column: Any) -> Any:
        """Return an expression that replaces a column: it takes the name and the id of the column."""
        empty = self.seq([])
        return self.expressions.Alias(expression, column.name(), column.exprId(), empty, self.none(), empty)

    def ascending(self, column: Any) -> Any:
        """Return an ascending sort term, nulls first."""
        direction = self.companion("Ascending")
        return self.expressions.SortOrder(column, direction, direction.defaultNullOrdering(), self.seq([]))

    def sorted(self, orders: Sequence[Any], plan: Any, *, everywhere: bool) -> Any:
        """Return the plan sorted: globally, or within each partition."""
        return self.catalyst.plans.logical.Sort(self.seq(orders), everywhere, plan, self.none())

    def literal(self, value: str | int | bool) -> Any:
        """Return a constant; numbers have the type INT."""
        return self.companion("Literal").apply(value)

    def long(self, value: int) -> Any:
        """Return a constant of the type BIGINT."""
        return self.cast(self.literal(value), self.types.LongType)

    def cast(self, expression: Any, kind: Any) -> Any:
        """Cast an expression to a type."""
        return self.expressions.Cast(expression, kind, self.java.scala.Option.apply("UTC"))

    def rebuilt(self, node: Any, children: Sequence[Any]) -> Any:
        """Return a plan or expression with other children."""
        return node.withNewChildren(self.seq(children))


def analyzed_plan(frame: DataFrame) -> Any:
    """Return the analyzed plan of a frame."""
    java: Any = frame._jdf
    return java.queryExecution().analyzed()


def name_of(node: Any) -> str:
    """Return the class name of a plan node or expression."""
    return node.getClass().getSimpleName()


def items(sequence: Any) -> list[Any]:
    """Return a Scala sequence as a list."""
    return [sequence.apply(at) for at in range(sequence.size())]


def id_of(column: Any) -> int:
    """Return the expression id of a column, unique whatever the column's name."""
    return column.exprId().id()


def references(expression: Any) -> set[int]:
    """Return the ids of the columns that an expression reads."""
    return {id_of(column) for column in items(expression.references().toSeq())}


def is_orderable(column: Any) -> bool:
    """Return whether rows can be sorted by a column."""
    return column.dataType().typeName() not in ("map", "variant")


POSITION: Final = "odf_position"
OPERATION: Final = "odf_operation"
INPUT_BITS: Final = 56
_CONSTANTS: Final = ("LocalRelation", "OneRowRelation", "Range")
PASS_THROUGH_NODES: Final = ("Filter", "Generate", "ResolvedHint")
_SUBQUERIES: Final = re.compile(
    r"expressions\.(ScalarSubquery|Exists|ListQuery|InSubquery|LateralSubquery)\""
)
_CHANGING: Final = {
    "CurrentTimestamp": "current_timestamp", "Now": "now", "LocalTimestamp": "localtimestamp",
    "CurrentDate": "current_date", "CurrentTime": "current_time",
    "Rand": "rand", "Randn": "randn", "RandStr": "randstr", "Uniform": "uniform", "Uuid": "uuid",
    "Shuffle": "shuffle", "MonotonicallyIncreasingID": "monotonically_increasing_id",
    "SparkPartitionID": "spark_partition_id", "InputFileName": "input_file_name",
    "InputFileBlockStart": "input_file_block_start", "InputFileBlockLength": "input_file_block_length",
    "CurrentUser": "current_user", "CurrentDatabase": "current_database", "CurrentCatalog": "current_catalog",
}  # fmt: skip
_COLLECTED: Final = ("CollectSet", "CollectList")
_UNORDERED: Final = frozenset({
    *_COLLECTED, "First", "Last", "AnyValue", "ListAgg", "Mode", "HistogramNumeric",
})  # fmt: skip
_BLIND: Final = frozenset(
    {"Size", "ArraySize", "SortArray", "ArraySort", "ArrayContains", "ArrayMin", "ArrayMax"}
)
_CLASSES: Final = re.compile(r'"class":"org\.apache\.spark\.sql\.catalyst\.expressions\.(?:\w+\.)*(\w+)"')


class StatefulQueryError(Exception):
    """The query is not row-by-row; the message names the operation that needs state."""


@dataclass(frozen=True)
class TrackedResult:
    """A result with the origin of each row.

    Attributes:
        frame: columns of the query, without system columns passed through from an input, then
            ``odf_position`` (BIGINT) and ``odf_operation`` (INT, of the input row). Positions sort rows by
            input, in the order of declaration, then by offset.
        ordered: the query has an ORDER BY, made total; otherwise rows are to be sorted by position.
    """

    frame: DataFrame
    ordered: bool


def check_repeatable(frame: DataFrame, place: str) -> None:
    """Check that a query returns the same rows each time it runs.

    Raises:
        InvalidQuery: it does not; the message names the function.
    """
    with translate_errors():
        plan = analyzed_plan(frame)
        names = _CLASSES.findall(plan.toJSON())
        found = [f"{_CHANGING[name]}()" for name in names if name in _CHANGING]
        if not found and _UNORDERED.intersection(names):
            found = [f"{_snake(name)}()" for name in _unordered(plan)]
        if not found and not plan.deterministic():
            found = ["an expression"]
    if found:
        raise InvalidQuery(
            f"{found[0]} gives another value each time, so nobody could check the result",
            where=place,
            hint="system_time() is the time of the transaction; take everything else from the inputs",
        )


def _unordered(plan: Any) -> Iterator[str]:
    """Yield the names of aggregates in a plan that depend on the row order."""
    for each in items(plan.expressions()):
        yield from _unordered_in(each, ())
    for each in items(plan.children()):
        yield from _unordered(each)


def _unordered_in(expression: Any, above: tuple[str, ...]) -> Iterator[str]:
    """Yield the names of order-dependent aggregates in an expression.

    A collected set or list is harmless if the functions around it ignore the order of elements.
    """
    name = name_of(expression)
    blind = name in _COLLECTED and bool(_BLIND.intersection(above))
    ordered = name == "ListAgg" and not expression.orderExpressions().isEmpty()
    if name in _UNORDERED and not blind and not ordered:
        yield name
    for each in items(expression.children()):
        yield from _unordered_in(each, (*above[-1:], name))


def _snake(name: str) -> str:
    """Return a class name as SQL function name: ``CollectList`` becomes ``collect_list``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def track_origins(
    session: SparkSession, frame: DataFrame, inputs: Mapping[str, DatasetVocabulary]
) -> TrackedResult:
    """Add the origin of each row to the result of a query.

    Args:
        session: the session of the query.
        frame: the result of the query.
        inputs: vocabulary of each input by the name of its view, in the order of declaration.

    Raises:
        StatefulQueryError: the query is not row-by-row.
    """
    with translate_errors():
        return OriginTracker(session, inputs).result(frame)


class TrackedPlan(NamedTuple):
    """A plan whose rows carry their origin.

    ``origin`` are the origin columns, empty for a plan that reads no input. ``passed`` are the ids of an
    input's system columns among the columns of the plan.
    """

    plan: Any
    origin: list[Any]
    passed: frozenset[int]


class OriginTracker(PlanBuilder):
    """Rewrites an analyzed plan so that each row carries its origin.

    Args:
        session: the session of the query.
        inputs: vocabulary of each input by the name of its view, in the order of declaration.
        system: ids of further system columns, with the name of the input whose operation they hold, or an
            empty string.
    """

    def __init__(
        self,
        session: SparkSession,
        inputs: Mapping[str, DatasetVocabulary],
        system: Mapping[int, str] | None = None,
    ) -> None:
        super().__init__(session)
        self.system = system or {}
        self.inputs = {name.lower(): (at, vocab) for at, (name, vocab) in enumerate(inputs.items())}

    def result(self, frame: DataFrame) -> TrackedResult:
        """Return the frame with the origin of its rows."""
        part, order = self.top(self.opened(frame))
        if not part.origin:
            raise StatefulQueryError("a query that reads no input")
        hidden = part.passed | {id_of(column) for column in part.origin}
        kept = [column for column in items(part.plan.output()) if id_of(column) not in hidden]
        if order:
            total = [
                *order,
                *(self.ascending(each) for each in (part.origin[0], *kept) if is_orderable(each)),
            ]
            part = part._replace(plan=self.sorted(total, part.plan, everywhere=True))
        whole = self.project([*kept, *part.origin], part.plan)
        return TrackedResult(self.frame(whole), bool(order))

    def opened(self, frame: DataFrame) -> Any:
        """Return the analyzed plan with common table expressions inlined.

        Raises:
            StatefulQueryError: the query has a subquery in an expression.
        """
        plan = analyzed_plan(frame)
        if subquery := _SUBQUERIES.search(plan.toJSON()):
            raise StatefulQueryError(f"a subquery ({subquery[1]})")
        return self.in_place(plan)

    def in_place(self, plan: Any) -> Any:
        """Return the plan with common table expressions inlined."""
        if name_of(plan) == "WithCTE":
            return self.catalyst.optimizer.InlineCTE(True, False, False).apply(plan)
        return plan

    def top(self, plan: Any) -> tuple[TrackedPlan, list[Any]]:
        """Return the tracked plan, and the sort terms of an ORDER BY at its top."""
        if name_of(plan) == "Sort" and getattr(plan, "global")():
            return self.follow(plan.child()), items(plan.order())
        if name_of(plan) == "Project" and name_of(plan.child()) == "Sort":
            # The query sorts by columns that it does not select: they stay until the rows are sorted.
            below, order = self.top(plan.child())
            return self.projected(plan, below, keep=order), order
        return self.follow(plan), []

    def follow(self, plan: Any) -> TrackedPlan:
        """Track a plan in which each row comes from one row of an input."""
        name = name_of(plan)
        if name == "View" and (found := self.inputs.get(plan.desc().identifier().table().lower())):
            return self.input(plan, *found)
        if name in ("SubqueryAlias", "View"):
            return self.follow(plan.child())
        if name == "Project":
            return self.projected(plan, self.follow(plan.child()))
        if name in PASS_THROUGH_NODES:
            below = self.follow(plan.child())
            return below._replace(plan=plan.withNewChildren(self.seq([below.plan])))
        if name == "Union":
            return self.union(plan)
        if name == "Join":
            return self.join(plan)
        if name in _CONSTANTS:
            return TrackedPlan(plan, [], frozenset())
        raise StatefulQueryError(NODE_DESCRIPTIONS.get(name, name))

    def input(self, view: Any, at: int, vocab: DatasetVocabulary) -> TrackedPlan:
        """Track the rows of input number ``index``."""
        columns = items(view.output())
        named = {column.name(): column for column in columns}
        offset, operation = named[vocab.offset_column], named[vocab.operation_type_column]
        place: Any = offset
        if at:
            base = self.expressions.Literal(at << INPUT_BITS, self.types.LongType)
            place = self.expressions.BitwiseOr(offset, base)
        origin = [self.alias(place, POSITION), self.alias(operation, OPERATION)]
        passed = {id_of(named[name]) for name in (vocab.offset_column, vocab.operation_type_column)}
        passed |= self.system.keys()
        if vocab.system_time_column in named:
            passed.add(id_of(named[vocab.system_time_column]))
        return TrackedPlan(
            self.project([*columns, *origin], view),
            [column.toAttribute() for column in origin],
            frozenset(passed),
        )

    def projected(self, plan: Any, below: TrackedPlan, keep: Sequence[Any] = ()) -> TrackedPlan:
        """Track a projection. ``keep`` are sort terms whose columns must stay for a later sort."""
        columns = items(plan.projectList())
        have = {id_of(column) for column in columns}
        needed: list[Any] = []
        for order in keep:
            for column in items(order.references().toSeq()):
                if id_of(column) not in have:
                    have.add(id_of(column))
                    needed.append(column)
        passed = below.passed | {id_of(column) for column in needed}
        return below._replace(
            plan=self.project([*columns, *needed, *below.origin], below.plan), passed=passed
        )

    def union(self, plan: Any) -> TrackedPlan:
        """Track a UNION: the rows of its branches in sequence."""
        parts = [self.follow(child) for child in items(plan.children())]
        if not all(part.origin for part in parts):
            raise StatefulQueryError("a UNION with a branch that reads no input")
        width = len(items(plan.output()))
        rows = []
        for part, child in zip(parts, items(plan.children()), strict=True):
            rows.append(self.project([*items(child.output()), *part.origin], part.plan))
        made = plan.withNewChildren(self.seq(rows))
        columns = items(made.output())
        passing = [
            [id_of(column) in part.passed for column in items(child.output())]
            for part, child in zip(parts, items(plan.children()), strict=True)
        ]
        passed = {id_of(columns[at]) for at in range(width) if all(each[at] for each in passing)}
        return TrackedPlan(made, columns[width:], frozenset(passed))

    def join(self, plan: Any) -> TrackedPlan:
        """Track a join with constants."""
        left, right = self.follow(plan.left()), self.follow(plan.right())
        kind = plan.joinType().sql()
        if left.origin and right.origin:
            raise StatefulQueryError("a join of inputs")
        stays = {"LEFT": left, "RIGHT": right}.get(kind.split()[0])
        if kind == "FULL OUTER" or (stays is not None and not stays.origin):
            raise StatefulQueryError(f"a {kind} JOIN that keeps rows of constants")
        made = plan.withNewChildren(self.seq([left.plan, right.plan]))
        return TrackedPlan(made, left.origin or right.origin, left.passed | right.passed)


NODE_DESCRIPTIONS: Final = {
    "Aggregate": "an aggregation",
    "Distinct": "DISTINCT",
    "Deduplicate": "a deduplication",
    "Window": "a window function",
    "Sort": "an ORDER BY inside the query",
    "GlobalLimit": "a LIMIT",
    "LocalLimit": "a LIMIT",
    "Offset": "an OFFSET",
    "Intersect": "INTERSECT",
    "Except": "EXCEPT",
    "LateralJoin": "a lateral join",
    "Pivot": "a PIVOT",
}
