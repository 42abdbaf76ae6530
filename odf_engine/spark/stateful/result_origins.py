"""The input rows behind the rows of a query that can change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from odf_engine.spark.errors import translate_errors
from odf_engine.spark.plan_rewrite import (
    NODE_DESCRIPTIONS,
    StatefulQueryError,
    analyzed_plan,
    node_name,
    to_list,
)
from odf_engine.spark.stateful.result_changes import InputState, ResultChanges, join_keys
from odf_engine.spark.stateful.row_lineage import ORIGINS_COLUMN, describe_grouping, describe_join
from odf_engine.spark.stateful.stream_checks import conjuncts
from odf_engine.spark.stateful.temporal_tables import add_version_value, is_version_lookup

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PASSING: Final = (
    "Filter", "Generate", "ResolvedHint", "Sort", "GlobalLimit", "LocalLimit", "Offset", "Repartition",
    "RepartitionByExpression",
)  # fmt: skip
_OTHERS: Final = "odf_other_places"


class _Rows(NamedTuple):
    """A plan, and its column with the origins of each row."""

    plan: Any
    origins: Any


class ResultOrigins(ResultChanges):
    """Adds to the rows of a query the rows of the inputs that they were derived from.

    A row of a grouping is derived from all rows of its group, a row of a window function from all rows of
    its partition, a row of an as-of join from its row and its version, and a row with EXISTS or IN also from
    the rows that meet the condition. Rows that must not exist (anti joins) are not listed.

    Args:
        session: the session of the query.
        tables: rows of each input by the name of its view: its columns in order, then ``odf_places``.

    Attributes:
        operations: descriptions of the operations, from the inputs to the result.
        is_exact: whether exactly the listed rows contributed.
    """

    def __init__(self, session: SparkSession, tables: Mapping[str, DataFrame]) -> None:
        super().__init__(session, {name: InputState(table, table, None) for name, table in tables.items()})
        self._tables = {name.lower(): table for name, table in tables.items()}
        self.operations: list[str] = []
        self.is_exact = True

    def rows(self, frame: DataFrame) -> DataFrame:
        """Return the rows of a query: its columns, then ``odf_places``.

        Raises:
            StatefulQueryError: the rows cannot be traced; the message names the operation.
        """
        with translate_errors():
            plan = self._normal_form(frame)
            tracked = self._track(self._repeatable(plan))
            return self.to_frame(self.project([*to_list(plan.output()), tracked.origins], tracked.plan))

    def _track(self, plan: Any) -> _Rows:
        name = node_name(plan)
        if (input_name := self._input_name(plan)) is not None:
            return self._track_input(plan, self._tables[input_name])
        if any(map(self._reads_input, to_list(plan.subqueries()))):
            raise StatefulQueryError("a subquery in an expression")
        if name in ("SubqueryAlias", "View"):
            return self._track(plan.child())
        if name == "Union":
            return self._track_union(plan)
        if name == "Join":
            return self._track_join(plan)
        if name not in ("Project", "Expand", "Aggregate", "Window", *_PASSING):
            raise StatefulQueryError(NODE_DESCRIPTIONS.get(name, name))
        below = self._track(plan.child())
        if name == "Aggregate":
            return self._track_aggregate(plan, below)
        if name == "Window":
            keys = to_list(plan.partitionSpec())
            if not keys:
                raise StatefulQueryError("a window function without PARTITION BY")
            if is_version_lookup(plan):
                self.operations.append("joined as of the event time with the version of each key")
                window, version = add_version_value(self, plan, below.origins, below.plan)
                return self._combined(window, to_list(plan.output()), [below.origins, version])
            self.operations.append(f"window functions by {', '.join(key.sql() for key in keys)}")
            window = self.with_children(plan, [below.plan])
            return self._with_origins_of_keys(_Rows(window, None), keys, below, keys)
        return _Rows(self._passing(plan, below.plan, below.origins), below.origins)

    def _reads_input(self, plan: Any) -> bool:
        if self._input_name(plan) is not None:
            return True
        return any(map(self._reads_input, [*to_list(plan.children()), *to_list(plan.subqueries())]))

    def _track_input(self, view: Any, table: DataFrame) -> _Rows:
        rows = analyzed_plan(table)
        *values, origins = to_list(rows.output())
        columns = list(map(self.replace_column, values, to_list(view.output())))
        own = self.alias(origins, ORIGINS_COLUMN)
        return _Rows(self.project([*columns, own], rows), own.toAttribute())

    def _track_union(self, plan: Any) -> _Rows:
        branches: list[Any] = []
        for child in to_list(plan.children()):
            tracked = self._track(child)
            branches.append(self.project([*to_list(child.output()), tracked.origins], tracked.plan))
        union = self.with_children(plan, branches)
        return _Rows(union, to_list(union.output())[-1])

    def _track_aggregate(self, plan: Any, below: _Rows) -> _Rows:
        self.operations.append(describe_grouping(to_list(plan.groupingExpressions())))
        collected = self.alias(self._collected(below.origins), ORIGINS_COLUMN)
        columns = self.seq([*to_list(plan.aggregateExpressions()), collected])
        grouped = self.catalyst.plans.logical.Aggregate(
            plan.groupingExpressions(), columns, below.plan, plan.hint()
        )
        return _Rows(grouped, collected.toAttribute())

    def _collected(self, origins: Any) -> Any:
        collected = self.expressions.aggregate.CollectList(origins)
        return self.expressions.Flatten(collected.toAggregateExpression(False, self.none()))

    def _track_join(self, plan: Any) -> _Rows:
        kind, left = plan.joinType().toString(), self._track(plan.left())
        if kind == "LeftAnti":
            return _Rows(self.with_children(plan, [left.plan, plan.right()]), left.origins)
        if kind == "LeftSemi" or kind.startswith("ExistenceJoin"):
            keys = join_keys(plan)
            conditions = [plan.condition().get()] if plan.condition().isDefined() else []
            if not keys[0]:
                raise StatefulQueryError("EXISTS or IN without an equality condition")
            self.is_exact = self.is_exact and len(conjuncts(conditions)) == len(keys[0])
            matched = self.with_children(plan, [left.plan, plan.right()])
            return self._with_origins_of_keys(
                _Rows(matched, left.origins), keys[0], self._track(plan.right()), keys[1]
            )
        right = self._track(plan.right())
        self.operations.append(describe_join(plan))
        joined = self.with_children(plan, [left.plan, right.plan])
        return self._combined(joined, to_list(plan.output()), [left.origins, right.origins])

    def _with_origins_of_keys(
        self, rows: _Rows, keys: Sequence[Any], others: _Rows, other_keys: Sequence[Any]
    ) -> _Rows:
        """Return rows with the origins of all other rows that have the same keys, and their own, if any."""
        named = [self.plain_alias(key, f"k{index}") for index, key in enumerate(other_keys)]
        collected = self.alias(self._collected(others.origins), _OTHERS)
        logical = self.catalyst.plans.logical
        grouped = logical.Aggregate(
            self.seq(list(other_keys)), self.seq([*named, collected]), others.plan, self.none()
        )
        same = [
            self.expressions.EqualNullSafe(key, column.toAttribute())
            for key, column in zip(keys, named, strict=True)
        ]
        condition = self.java.scala.Option.apply(reduce(self.expressions.And, same))
        outer = self.companion("LeftOuter", self.catalyst.plans)
        hint = self.companion("JoinHint", logical).NONE()
        joined = logical.Join(rows.plan, grouped, outer, condition, hint)
        own = [] if rows.origins is None else [rows.origins]
        return self._combined(joined, to_list(rows.plan.output()), [*own, collected.toAttribute()])

    def _combined(self, plan: Any, columns: Sequence[Any], origins: Sequence[Any]) -> _Rows:
        empty = self.expressions.CreateArray(self.seq([]), False)
        parts = [
            self.expressions.Coalesce(self.seq([origin, self.cast(empty, origin.dataType())]))
            for origin in origins
        ]
        both = self.alias(self.expressions.Concat(self.seq(parts)), ORIGINS_COLUMN)
        return _Rows(self.project([*columns, both], plan), both.toAttribute())
