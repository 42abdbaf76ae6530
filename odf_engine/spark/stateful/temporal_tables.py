"""Temporal tables: the tables of as-of joins, and as-of joins of earlier steps as ordinary plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from odf_engine.errors import InvalidQuery
from odf_engine.spark.errors import QueryError, translate_errors
from odf_engine.spark.plan_rewrite import (
    PlanBuilder,
    analyzed_plan,
    column_id,
    is_orderable,
    node_name,
    node_position,
    output_ids,
    referenced_ids,
    to_list,
)
from odf_engine.spark.stateful.stream_checks import check_collations, conjuncts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_VIEW_PREFIX: Final = "odf_as_of "
_VERSION: Final = "odf_as_of version"
_TIMES: Final = ("date", "timestamp", "timestamp_ntz")


@dataclass(frozen=True)
class AsOfTable:
    """An input, an earlier step or a common table expression that can be joined as of a time.

    Attributes:
        name: name of the table in the query.
        keys: columns of its primary key.
        time: its event time column.
        of_query: whether the query itself computes the table.
    """

    name: str
    keys: tuple[str, ...]
    time: str
    of_query: bool = False

    @property
    def view(self) -> str:
        """Name of the view that replaces the input in an as-of join."""
        return _VIEW_PREFIX + self.name


class StepJoin(NamedTuple):
    """An as-of join of a table that the query computes, and the parsed AS OF clause."""

    table: AsOfTable
    clause: Any


def match_keys(
    conditions: Sequence[Any], right: Sequence[Any], table: AsOfTable
) -> tuple[list[tuple[Any, Any]], list[Any]]:
    """Find the key in the condition of an as-of join.

    Args:
        conditions: the conjuncts of the condition.
        right: columns of the temporal table.
        table: the temporal table.

    Returns:
        For each key column, the expressions of the rows and of the versions that must be equal; and the
        other conjuncts.

    Raises:
        InvalidQuery: a key column is not compared.
    """
    names = {column_id(column): column.name() for column in right}
    right_ids = set(names)
    keys: dict[str, tuple[Any, Any]] = {}
    others: list[Any] = []
    for condition in conditions:
        pair = _match_equality(condition, right_ids)
        key = None if pair is None else names[next(iter(referenced_ids(pair[1])))]
        if pair is not None and key in table.keys and key not in keys:
            keys[key] = pair
        else:
            others.append(condition)
    missing = [key for key in table.keys if key not in keys]
    if missing:
        raise InvalidQuery(
            f"the join FOR SYSTEM_TIME AS OF has no condition for the key column '{missing[0]}' of "
            f"'{table.name}'",
            where="query",
            hint="compare the complete key with columns of the rows: ON "
            f"{' AND '.join(f't.{key} = {table.name}.{key}' for key in table.keys)}",
        )
    return [keys[key] for key in table.keys], others


def _match_equality(condition: Any, right_ids: set[int]) -> tuple[Any, Any] | None:
    """Return both sides of an equality with a column of the right side, or None for other conditions."""
    if node_name(condition) != "EqualTo":
        return None
    for left, column in ((condition.left(), condition.right()), (condition.right(), condition.left())):
        inner = column.child() if node_name(column) == "Cast" else column
        if (
            node_name(inner) == "AttributeReference"
            and column_id(inner) in right_ids
            and referenced_ids(left)
            and not referenced_ids(left) & right_ids
        ):
            return left, column
    return None


class StepJoins(PlanBuilder):
    """Replaces as-of joins of tables that the query computes.

    The rows of the left side and the versions of the table are united. A window over each key, in the order
    of time, then finds the last version before each row. The plan is an ordinary batch plan.

    Args:
        session: the session of the query.
        joins: the joins by the alias of the right side, which marks it.
    """

    def __init__(self, session: SparkSession, joins: Mapping[str, StepJoin]) -> None:
        super().__init__(session)
        self._joins = joins

    def rewrite(self, frame: DataFrame) -> DataFrame:
        """Return the result of a query without as-of joins.

        Raises:
            InvalidQuery, Unsupported: a join is invalid or not supported.
        """
        with translate_errors():
            return self.to_frame(self._rewrite(analyzed_plan(frame)))

    def _rewrite(self, plan: Any) -> Any:
        if node_name(plan) == "View":  # an input or an earlier step
            return plan
        plan = self.map_children(plan, self._rewrite)
        if node_name(plan) == "Join" and (join := self._find_join(plan.right())) is not None:
            return self._with_versions(plan, join)
        return plan

    def _find_join(self, plan: Any) -> StepJoin | None:
        while node_name(plan) in ("SubqueryAlias", "Project"):
            if node_name(plan) == "SubqueryAlias" and plan.alias() in self._joins:
                return self._joins[plan.alias()]
            plan = plan.child()
        return None

    def _with_versions(self, plan: Any, join: StepJoin) -> Any:
        """Return the rows of the left side of a join with the columns of their version."""
        left, right = (to_list(side.output()) for side in (plan.left(), plan.right()))
        if to_list(plan.subqueries()):
            raise _error(
                join,
                f"the condition of the join of '{join.table.name}' FOR SYSTEM_TIME AS OF has a subquery",
                "select the rows in an earlier step, or after the join",
            )
        condition = plan.condition().get()
        keys, others = match_keys(conjuncts([condition.left()]), right, _with_columns(join, right))
        check_collations(join.clause, [*(side for pair in keys for side in pair), *right])
        times = self._times(plan, join, condition.right().child(), right)
        looked_up = self._window(plan, keys, times)
        columns = to_list(looked_up.output())
        side, rows, version = columns[len(keys) + 1], columns[len(keys) + 2 :][: len(left)], columns[-1]
        fields = [self.expressions.GetStructField(version, index, self.none()) for index in range(len(right))]
        is_valid = self.expressions.IsNotNull(version)
        if others:
            values = dict(zip(map(column_id, [*left, *right]), [*rows, *fields], strict=True))
            also = _replace_columns(self, reduce(self.expressions.And, others), values)
            also = self.expressions.Coalesce(self.seq([also, self.literal(False)]))
            is_valid = self.expressions.And(is_valid, also)
        looked_up = self.filter(self.expressions.EqualTo(side, self.literal(1)), looked_up)
        if plan.joinType().sql() == "INNER":
            looked_up = self.filter(is_valid, looked_up)
        elif others:
            fields = [self.expressions.If(is_valid, field, self._null(field)) for field in fields]
        output = zip([*rows, *fields], [*left, *right], strict=True)
        return self.project([self.replace_column(new, old) for new, old in output], looked_up)

    def _times(self, plan: Any, join: StepJoin, time: Any, right: Sequence[Any]) -> list[Any]:
        """Return the times of the left rows and of the versions, of one type."""
        name = join.table.name
        if not referenced_ids(time) or not referenced_ids(time) <= output_ids(plan.left()):
            raise _error(
                join,
                f"'{name}' is joined FOR SYSTEM_TIME AS OF {time.sql()}, which is not a column of the left "
                "rows",
                "use the event time of the left rows: … FOR SYSTEM_TIME AS OF t.event_time",
            )
        wanted = join.table.time
        columns = [column for column in right if column.name().lower() == wanted.lower()]
        if len(columns) != 1:
            raise _error(
                join,
                f"the temporal table '{name}' has {'several columns' if columns else 'no event time column'} "
                f"'{wanted}'",
                f"select the event time in '{name}' once: … AS {wanted}",
            )
        times = [time, columns[0]]
        for column in times:
            if column.dataType().typeName() not in _TIMES:
                raise _error(
                    join,
                    f"'{name}' is joined FOR SYSTEM_TIME AS OF a time, but {column.sql()} has the type "
                    f"{column.dataType().sql()}",
                    "use a column of the type TIMESTAMP or DATE",
                )
        if times[0].dataType().typeName() != times[1].dataType().typeName():
            times = [self.cast(column, self.types.TimestampType) for column in times]
        return times

    def _window(self, plan: Any, keys: Sequence[tuple[Any, Any]], times: Sequence[Any]) -> Any:
        """Return the rows and versions of a join: keys, time, side, their columns, and the version.

        The side is 0 for versions and 1 for rows. The version of a row is the last one at or before its
        time; null without one.
        """
        logical = self.catalyst.plans.logical
        left, right = (to_list(side.output()) for side in (plan.left(), plan.right()))
        known = [self.expressions.IsNotNull(key) for key in (*(pair[1] for pair in keys), times[1])]
        versions = self.filter(reduce(self.expressions.And, known), plan.right())
        sides = [
            ([pair[0] for pair in keys], times[0], 1, [*left, *map(self._null, right)], plan.left()),
            ([pair[1] for pair in keys], times[1], 0, [*map(self._null, left), *right], versions),
        ]
        branches = [
            self.project(
                [
                    self.alias(value, f"c{index}")
                    for index, value in enumerate([*own, time, self.literal(side), *values])
                ],
                rows,
            )
            for own, time, side, values, rows in sides
        ]
        union = logical.Union(self.seq(branches), False, False)
        columns = to_list(union.output())
        partition, order, values = columns[: len(keys)], columns[len(keys) :][:2], columns[-len(right) :]
        orders = self.seq([self.ascending(term) for term in (*order, *self._tie_breakers(values))])
        fields = [part for value in values for part in (self.literal(value.name()), value)]
        version: Any = self.expressions.CreateNamedStruct(self.seq(fields))
        is_version = self.expressions.EqualTo(order[1], self.literal(0))
        version = self.expressions.If(is_version, version, self._null(version))
        last = self.expressions.aggregate.Last(version, True).toAggregateExpression(False, self.none())
        frame = self.expressions.SpecifiedWindowFrame(
            *map(self.companion, ("RowFrame", "UnboundedPreceding", "CurrentRow"))
        )
        by_key = self.expressions.WindowSpecDefinition(self.seq(partition), orders, frame)
        column = self.alias(self.expressions.WindowExpression(last, by_key), _VERSION)
        return logical.Window(self.seq([column]), self.seq(partition), orders, union, self.none())

    def _tie_breakers(self, columns: Sequence[Any]) -> list[Any]:
        """Return expressions that order different versions of the same time."""
        texts = [
            self.cast(column, self.types.StringType)
            for column in columns
            # 0.0 and -0.0 are equal in an order.
            if not is_orderable(column)
            or any(name in column.dataType().sql() for name in ("DOUBLE", "FLOAT"))
        ]
        return [*filter(is_orderable, columns), *texts]

    def _null(self, expression: Any) -> Any:
        return self.expressions.Literal(None, expression.dataType())


def is_version_lookup(window: Any) -> bool:
    """Return whether a window node finds the versions of an as-of join (:class:`StepJoins`)."""
    return [column.name() for column in to_list(window.windowExpressions())] == [_VERSION]


def add_version_value(build: PlanBuilder, window: Any, value: Any, rows: Any) -> tuple[Any, Any]:
    """Return a window node that also finds a value of the version of each row, and the column of the value.

    Args:
        build: builds plan nodes.
        window: a node of :func:`is_version_lookup`.
        value: a column of ``rows``.
        rows: the rows of the window.
    """
    (version,) = to_list(window.windowExpressions())
    lookup = version.child()
    aggregate = lookup.windowFunction()
    last = aggregate.aggregateFunction()
    no_value = build.expressions.Literal(None, value.dataType())
    version_value = build.expressions.If(last.child().predicate(), value, no_value)
    function = build.with_children(aggregate, [build.with_children(last, [version_value])])
    column = build.alias(build.with_children(lookup, [function, lookup.windowSpec()]), "odf_version_value")
    node = build.catalyst.plans.logical.Window(
        build.seq([version, column]), window.partitionSpec(), window.orderSpec(), rows, window.hint()
    )
    return node, column.toAttribute()


def _with_columns(join: StepJoin, right: Sequence[Any]) -> AsOfTable:
    """Return the temporal table of a join with its key as the columns are spelled.

    Raises:
        QueryError: it lacks a column of its key.
    """
    table = join.table
    spelling = {column.name().lower(): column.name() for column in right}
    for key in table.keys:
        if key.lower() not in spelling:
            raise _error(
                join,
                f"'{table.name}' has no column '{key}', which the primary key of its temporal table names",
                f"columns: {', '.join(spelling.values())}",
            )
    keys = tuple(dict.fromkeys(spelling[key.lower()] for key in table.keys))
    return AsOfTable(table.name, keys, table.time, of_query=True)


def _replace_columns(build: PlanBuilder, expression: Any, values: Mapping[int, Any]) -> Any:
    """Return an expression with some columns, by id, replaced by other expressions."""
    if node_name(expression) == "AttributeReference":
        return values.get(column_id(expression), expression)
    return build.map_children(expression, lambda child: _replace_columns(build, child, values))


def _error(join: StepJoin, message: str, hint: str) -> QueryError:
    return QueryError(message, hint=hint, where=node_position(join.clause))
