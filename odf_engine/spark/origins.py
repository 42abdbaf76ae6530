"""Where each row of a result comes from: its origin is made to come along through the query.

A query whose rows each come from one row of one input (projections, filters, unions, generators,
joins with constants) needs no state. :func:`follow` finds out whether a query is of that kind, and
adds two columns to the plan that Spark has analysed, so that whatever the query selects, its rows
know their place and their operation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from odf_engine.errors import InvalidQuery
from odf_engine.metadata.model import DatasetVocabulary
from odf_engine.spark.catalyst import Catalyst, analysed, id_of, items, name_of, sortable
from odf_engine.spark.errors import translated

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

POSITION: Final = "odf_position"
OPERATION: Final = "odf_operation"
INPUT_BITS: Final = 56

_CONSTANTS: Final = ("LocalRelation", "OneRowRelation", "Range")
PASSING: Final = ("Filter", "Generate", "ResolvedHint")
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
        plan = analysed(frame)
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
    """The kinds of aggregates in a plan that see the order of rows."""
    for each in items(plan.expressions()):
        yield from _unordered_in(each, ())
    for each in items(plan.children()):
        yield from _unordered(each)


def _unordered_in(expression: Any, above: tuple[str, ...]) -> Iterator[str]:
    """A set or list that was collected has its elements in any order: that does no harm where the
    order is not seen."""
    name = name_of(expression)
    blind = name in _COLLECTED and bool(_BLIND.intersection(above))
    ordered = name == "ListAgg" and not expression.orderExpressions().isEmpty()
    if name in _UNORDERED and not blind and not ordered:
        yield name
    for each in items(expression.children()):
        yield from _unordered_in(each, (*above[-1:], name))


def _snake(name: str) -> str:
    """``CollectList`` as a query writes it."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


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
        return Follower(session, inputs).result(frame)


class Part(NamedTuple):
    """A plan whose rows know their origin.

    ``origin`` are its columns that say so, none for a plan that reads no input; ``passed`` the ids of
    an input's system columns among its columns.
    """

    plan: Any
    origin: list[Any]
    passed: frozenset[int]


class Follower(Catalyst):
    """Goes through an analysed plan and makes the origin of rows come along.

    Args:
        session: in which the query was made.
        inputs: the views that are inputs, in the order of declaration, with their column names.
        system: ids of further columns that are an input's system columns, with the name of the input
            whose operation it is, or an empty text.
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

    def result(self, frame: DataFrame) -> Followed:
        """The frame with the origin of its rows."""
        part, order = self.top(self.opened(frame))
        if not part.origin:
            raise NeedsState("a query that reads no input")
        hidden = part.passed | {id_of(column) for column in part.origin}
        kept = [column for column in items(part.plan.output()) if id_of(column) not in hidden]
        if order:
            total = [*order, *(self.ascending(each) for each in (part.origin[0], *kept) if sortable(each))]
            part = part._replace(plan=self.sorted(total, part.plan, everywhere=True))
        whole = self.project([*kept, *part.origin], part.plan)
        return Followed(self.frame(whole), bool(order))

    def opened(self, frame: DataFrame) -> Any:
        """The analysed plan, with what WITH has named in its place.

        Raises:
            NeedsState: there is a query within an expression.
        """
        plan = analysed(frame)
        if subquery := _SUBQUERIES.search(plan.toJSON()):
            raise NeedsState(f"a subquery ({subquery[1]})")
        return self.in_place(plan)

    def in_place(self, plan: Any) -> Any:
        """The plan with what WITH has named in its place."""
        if name_of(plan) == "WithCTE":
            return self.catalyst.optimizer.InlineCTE(True, False, False).apply(plan)
        return plan

    def top(self, plan: Any) -> tuple[Part, list[Any]]:
        """The result, and what an ORDER BY at its top says."""
        if name_of(plan) == "Sort" and getattr(plan, "global")():
            return self.follow(plan.child()), items(plan.order())
        if name_of(plan) == "Project" and name_of(plan.child()) == "Sort":
            # The query orders by columns that it does not select: they stay until the rows are sorted.
            below, order = self.top(plan.child())
            return self.projected(plan, below, keep=order), order
        return self.follow(plan), []

    def follow(self, plan: Any) -> Part:
        """A plan of which each row comes from one row of an input."""
        name = name_of(plan)
        if name == "View" and (found := self.inputs.get(plan.desc().identifier().table().lower())):
            return self.input(plan, *found)
        if name in ("SubqueryAlias", "View"):
            return self.follow(plan.child())
        if name == "Project":
            return self.projected(plan, self.follow(plan.child()))
        if name in PASSING:
            below = self.follow(plan.child())
            return below._replace(plan=plan.withNewChildren(self.seq([below.plan])))
        if name == "Union":
            return self.union(plan)
        if name == "Join":
            return self.join(plan)
        if name in _CONSTANTS:
            return Part(plan, [], frozenset())
        raise NeedsState(WORDS.get(name, name))

    def input(self, view: Any, at: int, vocab: DatasetVocabulary) -> Part:
        """The rows of input number ``at``."""
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
        return Part(
            self.project([*columns, *origin], view),
            [column.toAttribute() for column in origin],
            frozenset(passed),
        )

    def projected(self, plan: Any, below: Part, keep: Sequence[Any] = ()) -> Part:
        """``keep`` are orders whose columns have to stay for the sort that comes after."""
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

    def union(self, plan: Any) -> Part:
        """The rows of one branch after the other."""
        parts = [self.follow(child) for child in items(plan.children())]
        if not all(part.origin for part in parts):
            raise NeedsState("a UNION with a branch that reads no input")
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
        return Part(made, columns[width:], frozenset(passed))

    def join(self, plan: Any) -> Part:
        """Rows joined with constants."""
        left, right = self.follow(plan.left()), self.follow(plan.right())
        kind = plan.joinType().sql()
        if left.origin and right.origin:
            raise NeedsState("a join of inputs")
        stays = {"LEFT": left, "RIGHT": right}.get(kind.split()[0])
        if kind == "FULL OUTER" or (stays is not None and not stays.origin):
            raise NeedsState(f"a {kind} JOIN that keeps rows of constants")
        made = plan.withNewChildren(self.seq([left.plan, right.plan]))
        return Part(made, left.origin or right.origin, left.passed | right.passed)


WORDS: Final = {
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
