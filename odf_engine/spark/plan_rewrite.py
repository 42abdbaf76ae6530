"""Rewriting of analyzed Catalyst plans: node builders, tracking of row origins."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from py4j.java_gateway import JavaClass, JavaObject, JavaPackage, is_instance_of
from pyspark.sql import DataFrame, SparkSession

from odf_engine.data.changelog import INPUT_BITS, OPERATION, POSITION
from odf_engine.errors import Unsupported
from odf_engine.metadata.model import DatasetVocabulary
from odf_engine.spark.errors import SEPARATOR, translate_errors
from odf_engine.spark.sql_types import CONVERTED_PREFIX, RAW_PREFIX
from odf_engine.spark.text_files import LINE_COLUMN, RECORD_COLUMN

_EXPRESSIONS: Final = "org.apache.spark.sql.catalyst.expressions"


class _Package:
    """A Java package or class that caches its classes, companion objects and static members.

    Each lookup is a call to the JVM, which searches all jars.
    """

    def __init__(self, package: Any) -> None:
        self._package = package
        self._companions: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._package, name)
        member = _Package(member) if isinstance(member, JavaPackage | JavaClass) else member
        setattr(self, name, member)
        return member

    def __call__(self, *arguments: Any) -> Any:
        """Return a new object of the class."""
        return self._package(*arguments)

    def companion(self, name: str) -> Any:
        """Return the companion object of a class."""
        if name not in self._companions:
            self._companions[name] = getattr(getattr(self, f"{name}$"), "MODULE$")
        return self._companions[name]


_SESSION_METADATA: Final = "spark.sessionWindow"
_ROOTS: Final[WeakKeyDictionary[Any, _Package]] = WeakKeyDictionary()
"""The root package of each JVM."""


class PlanBuilder:
    """Builds plan nodes and expressions in the JVM.

    Args:
        session: the session of the plans.
    """

    def __init__(self, session: SparkSession) -> None:
        self.session: Any = session
        self.java: Any = _ROOTS.setdefault(session._jvm, _Package(session._jvm))
        self.catalyst: Any = self.java.org.apache.spark.sql.catalyst
        self.expressions: Any = self.catalyst.expressions
        self.types: Any = self.java.org.apache.spark.sql.types.DataTypes
        self._none: Any = None
        self._empty: Any = None

    def to_frame(self, plan: Any) -> DataFrame:
        """Return the frame of a plan."""
        dataset = self.java.org.apache.spark.sql.classic.Dataset.ofRows(self.session._jsparkSession, plan)
        return DataFrame(dataset, self.session)

    def seq(self, items: Sequence[Any]) -> Any:
        """Return a Scala sequence."""
        if items or self._empty is None:
            sequence = self.java.PythonUtils.toSeq(list(items))
            self._empty = self._empty if items else sequence
            return sequence
        return self._empty

    def none(self) -> Any:
        """Return Scala's empty `Option`."""
        self._none = self._none or self.java.scala.Option.empty()
        return self._none

    def companion(self, name: str, package: Any = None) -> Any:
        """Return the companion object of an expression class, or of a class in another package."""
        owner = package or self.expressions
        return (owner if isinstance(owner, _Package) else _Package(owner)).companion(name)

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

    def plain_alias(self, expression: Any, name: str) -> Any:
        """Return an expression as a new column without metadata, such as of windows and watermarks."""
        new_id, none = self.expressions.NamedExpression.newExprId(), self.seq([])
        empty = self.companion("Metadata", self.java.org.apache.spark.sql.types).empty()
        return self.expressions.Alias(expression, name, new_id, none, self.java.scala.Some(empty), none)

    def replace_column(self, expression: Any, column: Any) -> Any:
        """Return an expression that replaces a column: it takes the name and the id of the column."""
        empty = self.seq([])
        return self.expressions.Alias(expression, column.name(), column.exprId(), empty, self.none(), empty)

    def ascending(self, column: Any) -> Any:
        """Return an ascending sort term, nulls first."""
        direction = self.companion("Ascending")
        return self.expressions.SortOrder(column, direction, direction.defaultNullOrdering(), self.seq([]))

    def sort(self, orders: Sequence[Any], plan: Any, *, everywhere: bool) -> Any:
        """Return the plan sorted: globally, or within each partition."""
        return self.catalyst.plans.logical.Sort(self.seq(orders), everywhere, plan, self.none())

    def literal(self, value: str | int | bool) -> Any:
        """Return a constant; numbers have the type INT."""
        return self.companion("Literal").apply(value)

    def long_literal(self, value: int) -> Any:
        """Return a constant of the type BIGINT."""
        return self.cast(self.literal(value), self.types.LongType)

    def cast(self, expression: Any, data_type: Any) -> Any:
        """Cast an expression to a type."""
        if expression.dataType().equals(data_type):
            return expression  # Spark would remove the cast, and with it the position in the query
        return self.expressions.Cast(expression, data_type, self.java.scala.Option.apply("UTC"))

    def positive_zero(self, expression: Any) -> Any:
        """Return an expression that is 0.0 instead of -0.0, which is equal."""
        if expression.dataType().typeName() not in ("double", "float"):
            return expression
        return self.expressions.KnownFloatingPointNormalized(
            self.catalyst.optimizer.NormalizeNaNAndZero(expression)
        )

    def with_children(self, node: Any, children: Sequence[Any]) -> Any:
        """Return a plan or expression with other children."""
        return node.withNewChildren(self.seq(children))

    def map_children(self, node: Any, change: Callable[[Any], Any]) -> Any:
        """Return a plan or expression whose children are changed; the same one if none of them changes."""
        children = to_list(node.children())
        changed = list(map(change, children))
        if all(new is old for new, old in zip(changed, children, strict=True)):
            return node
        return self.with_children(node, changed)

    def aggregate(self, plan: Any, columns: Sequence[Any], rows: Any) -> Any:
        """Return an aggregation by the same grouping, with other columns and over other rows."""
        grouping, columns = plan.groupingExpressions(), self.seq(columns)
        return self.catalyst.plans.logical.Aggregate(grouping, columns, rows, plan.hint())

    def map_subqueries(self, node: Any, change: Callable[[Any], Any]) -> Any:
        """Return a plan node whose own subqueries are changed."""
        if not to_list(node.subqueries()):
            return node
        arguments = [
            self._map_subqueries(argument, change) for argument in to_list(node.productIterator().toSeq())
        ]
        array = self.session._sc._gateway.new_array(self.session._jvm.Object, len(arguments))
        for index, argument in enumerate(arguments):
            array[index] = argument
        return node.makeCopy(array)

    def _map_subqueries(self, argument: Any, change: Callable[[Any], Any]) -> Any:
        """Return an argument of a node: expressions in it have other subqueries."""
        if self._is_a(argument, "scala.Option"):
            changed = [self._map_subqueries(item, change) for item in to_list(argument.toList())]
            return self.java.scala.Option.apply(changed[0]) if changed else argument
        if self._is_a(argument, "scala.collection.immutable.Seq"):
            return self.seq([self._map_subqueries(item, change) for item in to_list(argument)])
        if not self._is_a(argument, f"{_EXPRESSIONS}.Expression"):
            return argument
        if self._is_a(argument, f"{_EXPRESSIONS}.PlanExpression"):
            argument = argument.withNewPlan(change(argument.plan()))
        return self.map_children(argument, lambda child: self._map_subqueries(child, change))

    def _is_a(self, value: Any, name: str) -> bool:
        return isinstance(value, JavaObject) and is_instance_of(self.session._sc._gateway, value, name)

    def inline_ctes(self, plan: Any) -> Any:
        """Return the plan with common table expressions inlined."""
        if node_name(plan) == "WithCTE":
            return self.catalyst.optimizer.InlineCTE(True, False, False).apply(plan)
        return plan

    def merge_sessions_first(self, plan: Any) -> Any:
        """Return a plan that reads the times of a session only after the rows of the session are merged.

        Spark moves conditions on a session below its group, where they apply to the times of single rows. It
        does not move conditions on the results of aggregates.
        """
        plan = self.map_children(plan, self.merge_sessions_first)
        if node_name(plan) != "Aggregate":
            return plan
        session = next(filter(is_session, to_list(plan.groupingExpressions())), None)
        if session is None:
            return plan
        aggregate, fields = self.expressions.aggregate, list[Any]()
        for index, (name, function) in enumerate((("start", aggregate.Min), ("end", aggregate.Max))):
            time = self.expressions.GetStructField(session, index, self.none())
            fields += [self.literal(name), function(time).toAggregateExpression(False, self.none())]
        merged = self.expressions.CreateNamedStruct(self.seq(fields))
        # Spark would take a column with the id of the session for the session of single rows.
        columns = [
            self.alias(merged, column.name())
            if column.semanticEquals(session)
            else self._replaced(column, session, merged)
            for column in to_list(plan.aggregateExpressions())
        ]
        groups = self.aggregate(plan, columns, plan.child())
        output = zip(to_list(groups.output()), to_list(plan.output()), strict=True)
        return self.project(
            [new if new.semanticEquals(old) else self.replace_column(new, old) for new, old in output], groups
        )

    def _replaced(self, expression: Any, column: Any, replacement: Any) -> Any:
        """Return an expression that has a replacement for a column, except in aggregates."""
        if expression.semanticEquals(column):
            return replacement
        if node_name(expression) == "AggregateExpression":
            return expression
        return self.map_children(expression, lambda child: self._replaced(child, column, replacement))


@translate_errors()
def run_sql(query: str, **frames: DataFrame) -> DataFrame:
    """Run a query over frames, which it names ``odf_`` and the name of the argument."""
    for name, frame in frames.items():
        frame.createOrReplaceTempView(f"odf_{name}")
    return next(iter(frames.values())).sparkSession.sql(query)


def null_value(frame: DataFrame, name: str) -> str:
    """Return SQL for a null of the type of a column, whose fields may have names that need quotes."""
    java: Any = frame._jdf
    return f"CAST(NULL AS {java.schema().apply(name).dataType().sql()})"


def analyzed_plan(frame: DataFrame) -> Any:
    """Return the analyzed plan of a frame."""
    java: Any = frame._jdf
    return java.queryExecution().analyzed()


def merge_sessions_first(frame: DataFrame) -> DataFrame:
    """Return a frame that reads the times of a session only after the rows of the session are merged.

    See :meth:`PlanBuilder.merge_sessions_first`.
    """
    build, plan = PlanBuilder(frame.sparkSession), analyzed_plan(frame)
    merged = build.merge_sessions_first(plan)
    return frame if merged is plan else build.to_frame(merged)


def is_session(grouping: Any) -> bool:
    """Return whether a grouping expression is a session window."""
    return node_name(grouping) == "AttributeReference" and grouping.metadata().contains(_SESSION_METADATA)


def node_name(node: Any) -> str:
    """Return the class name of a plan node or expression."""
    return node.nodeName()


def function_name(function: Any) -> str:
    """Return the class name of a function, whose node name can be that in SQL, such as ``count_if``."""
    return function.getClass().getSimpleName()


def to_list(sequence: Any) -> list[Any]:
    """Return a Scala sequence as a list."""
    return [sequence.apply(index) for index in range(sequence.size())]


def column_id(column: Any) -> int:
    """Return the expression id of a column, which is unique even among columns of one name."""
    return column.exprId().id()


_SEPARATOR: Final = "\x00\x1f"
_ATTRIBUTE_ID: Final = re.compile(r"#(\d+)L?(-T\d+ms)?$")


def named_columns(attributes: Any) -> list[tuple[str, int]]:
    """Return name and id of each column of a sequence, by one call to the JVM instead of four for each."""
    text = attributes.mkString(_SEPARATOR)
    parts = [(part, _ATTRIBUTE_ID.search(part)) for part in (text.split(_SEPARATOR) if text else ())]
    return [(part[: match.start()], int(match[1])) for part, match in parts if match is not None]


def _attribute_ids(attributes: Any) -> set[int]:
    """Return the ids of a sequence of columns."""
    return {number for _, number in named_columns(attributes)}


def columns_except(plan: Any, hidden: Set[int]) -> list[Any]:
    """Return the columns of a plan without those with the given ids."""
    output = plan.output()
    named = zip(to_list(output), named_columns(output), strict=True)
    return [column for column, (_, number) in named if number not in hidden]


def output_ids(plan: Any) -> set[int]:
    """Return the ids of the columns that a plan returns."""
    return _attribute_ids(plan.output())


def referenced_ids(node: Any) -> set[int]:
    """Return the ids of the columns that an expression or a plan node reads."""
    return _attribute_ids(node.references().toSeq())


_UNORDERABLE: Final = re.compile(r"\bMAP<|\bVARIANT\b")


def is_orderable(column: Any) -> bool:
    """Return whether rows can be sorted by a column."""
    return not _UNORDERABLE.search(column.dataType().sql())


_CONSTANTS: Final = ("LocalRelation", "OneRowRelation", "Range")
PASS_THROUGH_NODES: Final = ("Filter", "Generate", "ResolvedHint")
_SUBQUERIES: Final = re.compile(
    r"expressions\.(ScalarSubquery|Exists|ListQuery|InSubquery|LateralSubquery)\""
)


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


def node_position(node: Any) -> str | None:
    """Return the line and column of an expression or a plan node in the query, or None if unknown."""
    origin = node.origin()
    line, start = origin.line(), origin.startPosition()
    if line.isEmpty() or start.isEmpty():
        return None
    return f"line {line.get()}, column {start.get() + 1}"


def unsupported_at(node: Any, message: str, hint: str) -> Unsupported:
    """Return an error with the position of an expression or a plan node in the query."""
    return Unsupported(message, where=node_position(node) or "query", hint=hint)


def check_operations(
    plan: Any, inputs: Mapping[str, DatasetVocabulary], system: Mapping[int, str] | None = None
) -> None:
    """Check that no column of a query depends on the operation of an input row.

    A retraction has another operation than the row that it retracts, and thus another value in the column.
    The operation column of the result itself does not count, nor do columns below an aggregation.

    Args:
        plan: the analyzed plan of the query.
        inputs, system: as for :class:`OriginTracker`.

    Raises:
        Unsupported: a column does; the message names it.
    """
    names = {vocab.operation_type_column for vocab in inputs.values()}
    columns = _operation_columns(plan, {name.lower() for name in inputs}, names, system or {})
    for column in to_list(plan.output()):
        if column_id(column) in columns and column.name() not in names:
            raise unsupported_at(
                columns[column_id(column)],
                f"the column '{column.name()}' depends on the operation of a row, so a retraction cannot "
                "repeat it",
                "remove it; an operation can be used in WHERE, or as the operation of the result",
            )


def _operation_columns(
    plan: Any, views: Set[str], names: Set[str], system: Mapping[int, str]
) -> dict[int, Any]:
    """Return the columns of a plan that depend on an operation, by id, with the expressions that do so."""
    name, output = node_name(plan), to_list(plan.output())
    if name in ("Aggregate", "Window"):
        return {}
    if name == "LocalRelation":
        return {column_id(column): column for column in output if system.get(column_id(column))}
    if name == "View" and plan.desc().identifier().table().lower() in views:
        return {column_id(column): column for column in output if column.name() in names}
    children = to_list(plan.children())
    columns_below = [_operation_columns(child, views, names, system) for child in children]
    if name == "Union":
        columns = [to_list(child.output()) for child in children]
        return {
            column_id(new): below[column_id(old)]
            for below, branch in reversed(list(zip(columns_below, columns, strict=True)))
            for new, old in zip(output, branch, strict=True)
            if column_id(old) in below
        }
    merged = {place: node for below in columns_below for place, node in below.items()}
    if name != "Project":
        return merged
    return {
        column_id(column): merged.get(column_id(column), column)
        for column in to_list(plan.projectList())
        if referenced_ids(column) & merged.keys()
    }


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
        return OriginTracker(session, inputs).track_frame(frame)


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
        self.inputs = {name.lower(): (index, vocab) for index, (name, vocab) in enumerate(inputs.items())}

    def track_frame(self, frame: DataFrame) -> TrackedResult:
        """Return the frame with the origin of its rows."""
        tracked, order = self.track_top(self.inlined_plan(frame))
        if not tracked.origin:
            raise StatefulQueryError("a query that reads no input")
        shown = columns_except(
            tracked.plan, tracked.passed | {column_id(column) for column in tracked.origin}
        )
        if order:
            total = [
                *order,
                *(self.ascending(column) for column in (tracked.origin[0], *shown) if is_orderable(column)),
            ]
            tracked = tracked._replace(plan=self.sort(total, tracked.plan, everywhere=True))
        projected = self.project([*shown, *tracked.origin], tracked.plan)
        return TrackedResult(self.to_frame(projected), bool(order))

    def inlined_plan(self, frame: DataFrame) -> Any:
        """Return the analyzed plan with common table expressions inlined.

        Raises:
            StatefulQueryError: the query has a subquery in an expression.
        """
        plan = analyzed_plan(frame)
        if subquery := _SUBQUERIES.search(plan.toJSON()):
            raise StatefulQueryError(f"a subquery ({subquery[1]})")
        return self.inline_ctes(plan)

    def track_top(self, plan: Any) -> tuple[TrackedPlan, list[Any]]:
        """Return the tracked plan, and the sort terms of an ORDER BY at its top."""
        if node_name(plan) == "Sort" and getattr(plan, "global")():
            return self.track(plan.child()), to_list(plan.order())
        if node_name(plan) == "Project" and node_name(plan.child()) == "Sort":
            # The query sorts by columns that it does not select: they stay until the rows are sorted.
            below, order = self.track_top(plan.child())
            return self.track_projection(plan, below, keep=order), order
        return self.track(plan), []

    def track(self, plan: Any) -> TrackedPlan:
        """Track a plan whose rows come from one input row each."""
        name = node_name(plan)
        if name == "View" and (known_input := self.inputs.get(plan.desc().identifier().table().lower())):
            return self.track_input(plan, *known_input)
        if name in ("SubqueryAlias", "View"):
            return self.track(plan.child())
        if name == "Project":
            return self.track_projection(plan, self.track(plan.child()))
        if name in PASS_THROUGH_NODES:
            below = self.track(plan.child())
            return below._replace(plan=plan.withNewChildren(self.seq([below.plan])))
        if name == "Union":
            return self.track_union(plan)
        if name == "Join":
            return self.track_join(plan)
        if name in _CONSTANTS:
            return TrackedPlan(plan, [], frozenset())
        raise StatefulQueryError(NODE_DESCRIPTIONS.get(name, name))

    def track_input(self, view: Any, index: int, vocab: DatasetVocabulary) -> TrackedPlan:
        """Track the rows of input number ``index``."""
        columns = to_list(view.output())
        by_name = {column.name(): column for column in columns}
        offset, operation = by_name[vocab.offset_column], by_name[vocab.operation_type_column]
        position: Any = offset
        if index:
            base = self.expressions.Literal(index << INPUT_BITS, self.types.LongType)
            position = self.expressions.BitwiseOr(offset, base)
        origin = [self.alias(position, POSITION), self.alias(operation, OPERATION)]
        passed = {column_id(by_name[name]) for name in (vocab.offset_column, vocab.operation_type_column)}
        passed |= self.system.keys()
        if vocab.system_time_column in by_name:
            passed.add(column_id(by_name[vocab.system_time_column]))
        return TrackedPlan(
            self.project([*columns, *origin], view),
            [column.toAttribute() for column in origin],
            frozenset(passed),
        )

    def track_projection(self, plan: Any, below: TrackedPlan, keep: Sequence[Any] = ()) -> TrackedPlan:
        """Track a projection. ``keep`` are sort terms whose columns must stay for a later sort."""
        columns = to_list(plan.projectList())
        present = {column_id(column) for column in columns} if keep else set[int]()
        needed: list[Any] = []
        for order in keep:
            for column in to_list(order.references().toSeq()):
                if column_id(column) not in present:
                    present.add(column_id(column))
                    needed.append(column)
        passed = below.passed | {column_id(column) for column in needed}
        return below._replace(
            plan=self.project([*columns, *needed, *below.origin], below.plan), passed=passed
        )

    def track_union(self, plan: Any) -> TrackedPlan:
        """Track a UNION: the rows of its branches in sequence."""
        return self.combine_branches(plan, [self.track(child) for child in to_list(plan.children())])

    def combine_branches(self, plan: Any, branches: Sequence[TrackedPlan]) -> TrackedPlan:
        """Return a UNION of tracked branches."""
        if not all(branch.origin for branch in branches):
            raise StatefulQueryError("a UNION with a branch that reads no input")
        width = len(to_list(plan.output()))
        rows = []
        for branch, child in zip(branches, to_list(plan.children()), strict=True):
            rows.append(self.project([*to_list(child.output()), *branch.origin], branch.plan))
        rewritten = plan.withNewChildren(self.seq(rows))
        columns = to_list(rewritten.output())
        is_passed = [
            [column_id(column) in branch.passed for column in to_list(child.output())]
            for branch, child in zip(branches, to_list(plan.children()), strict=True)
        ]
        passed = {
            column_id(columns[position])
            for position in range(width)
            if all(flags[position] for flags in is_passed)
        }
        return TrackedPlan(rewritten, columns[width:], frozenset(passed))

    def track_join(self, plan: Any) -> TrackedPlan:
        """Track a join with constants."""
        left, right = self.track(plan.left()), self.track(plan.right())
        kind = plan.joinType().sql()
        if left.origin and right.origin:
            raise StatefulQueryError("a join of inputs")
        preserved = {"LEFT": left, "RIGHT": right}.get(kind.split()[0])
        if kind == "FULL OUTER" or (preserved is not None and not preserved.origin):
            raise StatefulQueryError(f"a {kind} JOIN that keeps rows from outside the inputs")
        rewritten = plan.withNewChildren(self.seq([left.plan, right.plan]))
        return TrackedPlan(rewritten, left.origin or right.origin, left.passed | right.passed)


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
    "Sample": "TABLESAMPLE",
}


PROBLEM_COLUMN: Final = "odf problem"
_ROW_NODES: Final = ("Project", "Filter", "SubqueryAlias", "View", "ResolvedHint", "Sort")
_UNCHECKED: Final = ("AttributeReference", "Literal")


def invalid_rows(session: SparkSession, frame: DataFrame) -> DataFrame | None:
    """Return the rows of a file that fail in the row-by-row part of a query, in the order of the file.

    Casts and other expressions of these rows are evaluated without an error. The query may end with
    operations over several rows, such as an aggregation; they are not evaluated.

    Args:
        session: the session of the query.
        frame: the result of the query. It reads one frame with the columns :data:`LINE_COLUMN` and
            :data:`RECORD_COLUMN`.

    Returns:
        Their columns :data:`LINE_COLUMN`, :data:`RECORD_COLUMN` and :data:`PROBLEM_COLUMN`. A problem has
        the name of the column that the failed expression reads, its type (empty if it is not a conversion),
        the name of its column in the query (empty for the columns as read), and the value that it reads,
        separated by :data:`odf_engine.spark.errors.SEPARATOR`. The value is absent if it is null. If the
        expression reads several columns, the problem has its own name and no value. None if the query reads
        several frames, or has a subquery in an expression.
    """
    with translate_errors():
        return _RowGuard(session).invalid_rows(frame)


class _GuardedPlan(NamedTuple):
    """A plan that does not fail for invalid rows, and its columns for the line, record and problem."""

    plan: Any
    hidden: list[Any]


class _RowGuard(PlanBuilder):
    """Rewrites the row-by-row part of an analyzed plan so that it marks invalid rows instead of failing."""

    def invalid_rows(self, frame: DataFrame) -> DataFrame | None:
        plan = analyzed_plan(frame)
        if _SUBQUERIES.search(plan.toJSON()):
            return None
        path = self._path_to_file(self.inline_ctes(plan))
        if path is None:
            return None
        guarded = self._guard_file(path[-1])
        for node in reversed(path[:-1]):
            name = node_name(node)
            if name not in _ROW_NODES:
                break  # An operation over several rows: the nodes above see its result.
            if name == "Project":
                guarded = self._guard_project(node, guarded)
            elif name == "Filter":
                guarded = self._guard_filter(node, guarded)
        invalid = self.expressions.Or(*map(self.expressions.IsNotNull, guarded.hidden[1:]))
        return self.to_frame(self.project(guarded.hidden, self.filter(invalid, guarded.plan)))

    def _path_to_file(self, plan: Any) -> list[Any] | None:
        """Return the nodes from the top to the frame of the file, or None if a node has several children."""
        path = [plan]
        while LINE_COLUMN not in [column.name() for column in to_list(path[-1].output())]:
            children = to_list(path[-1].children())
            if len(children) != 1:
                return None
            path.append(children[0])
        return path

    def _guard_file(self, plan: Any) -> _GuardedPlan:
        by_name = {column.name(): column for column in to_list(plan.output())}
        none = self.alias(self._no_text(), PROBLEM_COLUMN)
        hidden = [by_name[LINE_COLUMN], by_name[RECORD_COLUMN]]
        projected = self.project([*to_list(plan.output()), none], plan)
        return _GuardedPlan(projected, [*hidden, none.toAttribute()])

    def _guard_project(self, node: Any, below: _GuardedPlan) -> _GuardedPlan:
        columns = to_list(node.projectList())
        checked = {
            index: self._attempt(column.child())
            for index, column in enumerate(columns)
            if node_name(column) == "Alias" and node_name(column.child()) not in _UNCHECKED
        }
        attempts = self.project([*to_list(below.plan.output()), *checked.values()], below.plan)
        problems = [
            self._problem(columns[index].name(), columns[index].child(), attempt)
            for index, attempt in checked.items()
        ]
        problem = self._first_problem(below, problems)
        shown = [
            self.replace_column(self._result(checked[index]), column) if index in checked else column
            for index, column in enumerate(columns)
        ]
        projected = self.project([*shown, *below.hidden[:2], problem], attempts)
        return _GuardedPlan(projected, [*below.hidden[:2], problem.toAttribute()])

    def _guard_filter(self, node: Any, below: _GuardedPlan) -> _GuardedPlan:
        attempt = self._attempt(node.condition())
        attempts = self.project([*to_list(below.plan.output()), attempt], below.plan)
        problem = self._first_problem(below, [self._problem("WHERE", node.condition(), attempt)])
        shown = [
            column for column in to_list(below.plan.output()) if not column.semanticEquals(below.hidden[2])
        ]
        projected = self.project([*shown, self.alias(self._result(attempt), "passes"), problem], attempts)
        passes = to_list(projected.output())[len(shown)]
        hidden = [*below.hidden[:2], problem.toAttribute()]
        invalid = self.expressions.Or(*map(self.expressions.IsNotNull, hidden[1:]))
        return _GuardedPlan(self.filter(self.expressions.Or(invalid, passes), projected), hidden)

    def _attempt(self, expression: Any) -> Any:
        """Return a column with the value of an expression in a struct; null if the expression fails."""
        struct = self.expressions.CreateNamedStruct(self.seq([self.literal("value"), expression]))
        return self.alias(self.expressions.TryEval(struct), "attempt")

    def _result(self, attempt: Any) -> Any:
        return self.expressions.GetStructField(attempt.toAttribute(), 0, self.none())

    def _no_text(self) -> Any:
        return self.expressions.Literal(None, self.types.StringType)

    def _problem(self, name: str, expression: Any, attempt: Any) -> Any:
        """Return the text of :data:`PROBLEM_COLUMN` if an attempt failed; else null."""
        read = to_list(expression.references().toSeq())
        raw = [column for column in read if column.name().startswith(RAW_PREFIX)]
        of_query = not raw and not name.startswith(CONVERTED_PREFIX)
        (value,) = raw[:1] or (read if len(read) == 1 else [None])
        column = name if raw or value is None else value.name()
        is_conversion = not of_query or node_name(expression) == "Cast"
        data_type = expression.dataType().sql() if is_conversion else ""
        parts = map(self.literal, (SEPARATOR, column, data_type, name if of_query else ""))
        values = [] if value is None else [self.cast(value, self.types.StringType)]
        text = self.expressions.ConcatWs(self.seq([*parts, *values]))
        failed = self.expressions.IsNull(attempt.toAttribute())
        return self.expressions.If(failed, text, self._no_text())

    def _first_problem(self, below: _GuardedPlan, problems: Sequence[Any]) -> Any:
        first = self.expressions.Coalesce(self.seq([below.hidden[2], *problems]))
        return self.alias(first, PROBLEM_COLUMN)
