"""Where each row of a result comes from: its origin is made to come along through the query.

A query whose rows each come from one row of one input (projections, filters, unions, generators,
joins with constants) needs no state. :func:`follow` finds out whether a query is of that kind, and
adds two columns to the plan that Spark has analysed, so that whatever the query selects, its rows
know their place and their operation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from odf_engine.errors import InvalidQuery
from odf_engine.metadata.model import DatasetVocabulary
from odf_engine.spark.errors import translated

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

POSITION: Final = "odf_position"
OPERATION: Final = "odf_operation"
_INPUT_BITS: Final = 56

_CONSTANTS: Final = ("LocalRelation", "OneRowRelation", "Range")
_PASSING: Final = ("Filter", "Generate", "ResolvedHint")
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
_CLASSES: Final = re.compile(r'"class":"org\.apache\.spark\.sql\.catalyst\.expressions\.(?:\w+\.)*(\w+)"')


class NeedsState(Exception):
    """A query that is not row by row; the text names what makes it so."""


@dataclass(frozen=True)
class Followed:
    """A result whose rows know where they come from.

    Attributes:
        frame: the query's own columns, without system columns of an input that merely came through,
            then ``odf_position`` (BIGINT; rows in its order are in the order of the inputs, one input
            after the other, each by offset) and ``odf_operation`` (INT, of the input's row).
        ordered: the query has an ORDER BY of its own, made total; else rows are to be put in the
            order of their position.
    """

    frame: DataFrame
    ordered: bool


def check_repeatable(frame: DataFrame, place: str) -> None:
    """Lets pass what gives the same rows each time it is asked.

    Raises:
        InvalidQuery: names the function that does not.
    """
    with translated():
        plan = _analysed(frame)
        found = [_CHANGING[name] for name in _CLASSES.findall(plan.toJSON()) if name in _CHANGING]
        repeatable = plan.deterministic()
    if found or not repeatable:
        name = f"{found[0]}()" if found else "an expression of the query"
        raise InvalidQuery(
            f"{name} gives another value each time, so nobody could check the result",
            where=place,
            hint="system_time() is the time of the transaction; take everything else from the inputs",
        )


def follow(session: SparkSession, frame: DataFrame, inputs: Mapping[str, DatasetVocabulary]) -> Followed:
    """Adds the origin of each row to the result of a query.

    Args:
        session: in which the query was made.
        frame: its result.
        inputs: the views that are inputs, in the order of declaration, with their column names.

    Raises:
        NeedsState: the query is not of that kind.
    """
    with translated():
        return _Follower(session, inputs).result(frame)


class _Part(NamedTuple):
    """A plan whose rows know their origin.

    ``origin`` are its columns that say so, none for a plan that reads no input; ``passed`` the ids of
    an input's system columns among its columns.
    """

    plan: Any
    origin: list[Any]
    passed: frozenset[int]


class _Follower:
    def __init__(self, session: SparkSession, inputs: Mapping[str, DatasetVocabulary]) -> None:
        self._session: Any = session
        self._java: Any = session._jvm
        self._catalyst: Any = self._java.org.apache.spark.sql.catalyst
        self._inputs = {name.lower(): (at, vocab) for at, (name, vocab) in enumerate(inputs.items())}

    def result(self, frame: DataFrame) -> Followed:
        from pyspark.sql import DataFrame

        plan = _analysed(frame)
        if subquery := _SUBQUERIES.search(plan.toJSON()):
            raise NeedsState(f"a subquery ({subquery[1]})")
        if _name(plan) == "WithCTE":
            plan = self._catalyst.optimizer.InlineCTE(True, False, False).apply(plan)
        part, order = self._top(plan)
        if not part.origin:
            raise NeedsState("a query that reads no input")
        hidden = part.passed | {_id(column) for column in part.origin}
        kept = [column for column in _list(part.plan.output()) if _id(column) not in hidden]
        if order:
            total = [*order, *(self._ascending(each) for each in (part.origin[0], *kept) if _sortable(each))]
            sort = self._catalyst.plans.logical.Sort(self._seq(total), True, part.plan, self._none())
            part = part._replace(plan=sort)
        whole = self._project([*kept, *part.origin], part.plan)
        made = self._java.org.apache.spark.sql.classic.Dataset.ofRows(self._session._jsparkSession, whole)
        return Followed(DataFrame(made, self._session), bool(order))

    def _top(self, plan: Any) -> tuple[_Part, list[Any]]:
        """The result, and what an ORDER BY at its top says."""
        if _name(plan) == "Sort" and getattr(plan, "global")():
            return self._follow(plan.child()), _list(plan.order())
        if _name(plan) == "Project" and _name(plan.child()) == "Sort":
            # The query orders by columns that it does not select: they stay until the rows are sorted.
            below, order = self._top(plan.child())
            return self._projected(plan, below, keep=order), order
        return self._follow(plan), []

    def _follow(self, plan: Any) -> _Part:
        name = _name(plan)
        if name == "View" and (found := self._inputs.get(plan.desc().identifier().table().lower())):
            return self._input(plan, *found)
        if name in ("SubqueryAlias", "View"):
            return self._follow(plan.child())
        if name == "Project":
            return self._projected(plan, self._follow(plan.child()))
        if name in _PASSING:
            below = self._follow(plan.child())
            return below._replace(plan=plan.withNewChildren(self._seq([below.plan])))
        if name == "Union":
            return self._union(plan)
        if name == "Join":
            return self._join(plan)
        if name in _CONSTANTS:
            return _Part(plan, [], frozenset())
        raise NeedsState(_WORDS.get(name, name))

    def _input(self, view: Any, at: int, vocab: DatasetVocabulary) -> _Part:
        columns = _list(view.output())
        named = {column.name(): column for column in columns}
        offset, operation = named[vocab.offset_column], named[vocab.operation_type_column]
        expressions = self._catalyst.expressions
        place: Any = offset
        if at:
            base = expressions.Literal(
                at << _INPUT_BITS, self._java.org.apache.spark.sql.types.DataTypes.LongType
            )
            place = expressions.BitwiseOr(offset, base)
        origin = [self._alias(place, POSITION), self._alias(operation, OPERATION)]
        passed = {_id(named[name]) for name in (vocab.offset_column, vocab.operation_type_column)}
        if vocab.system_time_column in named:
            passed.add(_id(named[vocab.system_time_column]))
        return _Part(
            self._project([*columns, *origin], view),
            [column.toAttribute() for column in origin],
            frozenset(passed),
        )

    def _projected(self, plan: Any, below: _Part, keep: Sequence[Any] = ()) -> _Part:
        """``keep`` are orders whose columns have to stay for the sort that comes after."""
        columns = _list(plan.projectList())
        have = {_id(column) for column in columns}
        needed: list[Any] = []
        for order in keep:
            for column in _list(order.references().toSeq()):
                if _id(column) not in have:
                    have.add(_id(column))
                    needed.append(column)
        passed = below.passed | {_id(column) for column in needed}
        return below._replace(
            plan=self._project([*columns, *needed, *below.origin], below.plan), passed=passed
        )

    def _union(self, plan: Any) -> _Part:
        parts = [self._follow(child) for child in _list(plan.children())]
        if not all(part.origin for part in parts):
            raise NeedsState("a UNION with a branch that reads no input")
        width = len(_list(plan.output()))
        rows = []
        for part, child in zip(parts, _list(plan.children()), strict=True):
            rows.append(self._project([*_list(child.output()), *part.origin], part.plan))
        made = plan.withNewChildren(self._seq(rows))
        columns = _list(made.output())
        passing = [
            [_id(column) in part.passed for column in _list(child.output())]
            for part, child in zip(parts, _list(plan.children()), strict=True)
        ]
        passed = {_id(columns[at]) for at in range(width) if all(each[at] for each in passing)}
        return _Part(made, columns[width:], frozenset(passed))

    def _join(self, plan: Any) -> _Part:
        left, right = self._follow(plan.left()), self._follow(plan.right())
        kind = plan.joinType().sql()
        if left.origin and right.origin:
            raise NeedsState("a join of inputs")
        stays = {"LEFT": left, "RIGHT": right}.get(kind.split()[0])
        if kind == "FULL OUTER" or (stays is not None and not stays.origin):
            raise NeedsState(f"a {kind} JOIN that keeps rows of constants")
        made = plan.withNewChildren(self._seq([left.plan, right.plan]))
        return _Part(made, left.origin or right.origin, left.passed | right.passed)

    # --- Pieces of a plan ---------------------------------------------------------------------

    def _seq(self, items: Sequence[Any]) -> Any:
        return self._java.PythonUtils.toSeq(list(items))

    def _none(self) -> Any:
        return self._java.scala.Option.empty()

    def _project(self, columns: Sequence[Any], plan: Any) -> Any:
        return self._catalyst.plans.logical.Project(self._seq(columns), plan)

    def _alias(self, expression: Any, name: str) -> Any:
        expressions = self._catalyst.expressions
        new_id = expressions.NamedExpression.newExprId()
        empty = self._seq([])
        return expressions.Alias(expression, name, new_id, empty, self._none(), empty)

    def _ascending(self, column: Any) -> Any:
        expressions = self._catalyst.expressions
        direction = getattr(getattr(expressions, "Ascending$"), "MODULE$")
        return expressions.SortOrder(column, direction, direction.defaultNullOrdering(), self._seq([]))


_WORDS: Final = {
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


def _analysed(frame: DataFrame) -> Any:
    java: Any = frame._jdf
    return java.queryExecution().analyzed()


def _name(plan: Any) -> str:
    return plan.getClass().getSimpleName()


def _list(items: Any) -> list[Any]:
    return [items.apply(at) for at in range(items.size())]


def _id(column: Any) -> int:
    return column.exprId().id()


def _sortable(column: Any) -> bool:
    return column.dataType().typeName() not in ("map", "variant")
