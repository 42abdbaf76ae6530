"""The changes of a query's result: which rows a transaction of its inputs adds and removes.

The query runs twice, over the rows of its inputs before and after the transaction. Both plans have the same
shape, so they are compared node by node. A row-by-row node passes the changes below it through. An inner join
joins the changes of one side with all rows of the other. Every other node is computed before and after the
transaction, only for the keys of the changed rows below it, and the two results are subtracted. A node
without keys is computed completely. The latest state of the result therefore equals Spark's batch result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from odf_engine.spark.errors import translate_errors
from odf_engine.spark.plan_rewrite import (
    PlanBuilder,
    analyzed_plan,
    function_name,
    is_orderable,
    is_session,
    node_name,
    output_ids,
    referenced_ids,
    run_sql,
    to_list,
    unsupported_at,
)
from odf_engine.spark.row_order import LIMITING, is_ordered
from odf_engine.spark.stateful.group_aggregates import find_aggregates
from odf_engine.spark.stateful.stream_checks import check_collations, compared_expressions, conjuncts
from odf_engine.spark.stateful.window_functions import comparable, first_values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


WEIGHT: Final = "odf_weight"
"""How many times a row is added; negative if it is removed."""
_ROW_BY_ROW: Final = ("Project", "Filter", "Generate", "Expand", "ResolvedHint")
_NORMAL_FORMS: Final = (
    "ReplaceIntersectWithSemiJoin",
    "ReplaceExceptWithAntiJoin",
    "RewriteExceptAll",
    "RewriteIntersectAll",
    "ReplaceDistinctWithAggregate",
    "PullupCorrelatedPredicates",
    "RewriteCorrelatedScalarSubquery",
    "RewriteLateralSubquery",
    "RewritePredicateSubquery",
)
"""Rules of Spark's optimizer that express set operations and subqueries as joins and groups."""
_FILTERED_SIDES: Final[Mapping[str, Sequence[int]]] = {
    "LeftSemi": (0, 1), "LeftOuter": (1,), "LeftAnti": (1,), "RightOuter": (0,),
}  # fmt: skip
"""The sides of joins whose rows a condition on this side alone filters, by the kind of the join."""
_ORDER_IGNORING: Final = frozenset({
    "Count", "CountIf", "Min", "Max", "BoolAnd", "BoolOr", "BitAndAgg", "BitOrAgg", "BitXorAgg",
    "CollectSet", "CollectList", "Percentile", "Median", "HyperLogLogPlusPlus",
})  # fmt: skip
"""Aggregates whose result does not depend on the order of the rows (of collected lists, see
:func:`odf_engine.spark.repeatability.check_repeatable`)."""
_EXACT_SUMS: Final = ("Sum", "Average")
_KEYS_VIEW: Final = "odf_changed_keys_"


class InputState(NamedTuple):
    """The rows of an input, without system columns.

    Attributes:
        before, after: the latest state before and after the transaction.
        changes: the changed rows with :data:`WEIGHT`, or None if nothing has changed.
        removes: whether some of the changed rows may be removed.
    """

    before: DataFrame
    after: DataFrame
    changes: DataFrame | None
    removes: bool = True


class ResultChanges(PlanBuilder):
    """Computes the changes of a query's result.

    Args:
        session: the session of the query.
        inputs: rows of each input by the name of its view.
    """

    def __init__(self, session: SparkSession, inputs: Mapping[str, InputState]) -> None:
        super().__init__(session)
        self._inputs = {name.lower(): rows for name, rows in inputs.items()}
        self._cached: list[DataFrame] = []

    def release(self) -> None:
        """Remove computed rows from the memory of Spark."""
        for frame in self._cached:
            frame.unpersist()
            analyzed_plan(frame).rdd().unpersist(False)

    def all_rows(self, frame: DataFrame) -> DataFrame:
        """Return all rows of a query with the weight 1.

        Raises:
            Unsupported: the result depends on how Spark divides the work.
        """
        with translate_errors():
            return self._weighted(self._plan(frame), 1).toDF(*frame.columns, WEIGHT)

    def changes(self, before: DataFrame, after: DataFrame) -> DataFrame | None:
        """Return the changes from one result of a query to another, or None if no input has changed.

        Args:
            before: the query over :attr:`InputState.before`.
            after: the query over :attr:`InputState.after`.

        Returns:
            The columns of the query, and :data:`WEIGHT`, which is not 0. No two rows have the same values.
        """
        with translate_errors():
            changes = self._changes(*self._plans(before, after))
            return None if changes is None else self._net(changes).toDF(*before.columns, WEIGHT)

    def difference(self, before: DataFrame, after: DataFrame) -> DataFrame:
        """Return the changes from one result to another with the same columns, as :meth:`changes`."""
        with translate_errors():
            plans = (self._normal_form(before), self._plan(after))
            return self._net(self._subtract(*plans)).toDF(*before.columns, WEIGHT)

    def _plan(self, frame: DataFrame) -> Any:
        """Return the plan that computes all rows of a query."""
        return self._normal_form(frame)

    def _plans(self, before: DataFrame, after: DataFrame) -> tuple[Any, Any]:
        """Return the plans of a query before and after the transaction."""
        return self._normal_form(before), self._normal_form(after)

    def _normal_form(self, frame: DataFrame) -> Any:
        plan = self._normalized(self.inline_ctes(analyzed_plan(frame)))
        return self._with_subqueries(plan, self._repeatable_subquery)

    def _normalized(self, plan: Any) -> Any:
        """Return a plan after :data:`_NORMAL_FORMS`, which assume that subqueries are optimized first."""
        plan = self.merge_sessions_first(self._with_subqueries(plan, self._normalized))
        # As a join, `NOT (a OR x IN (subquery))` would lose the null of the comparison.
        rule = self.companion("BooleanSimplification", self.catalyst.optimizer)
        while not (simpler := rule.apply(plan)).fastEquals(plan):
            plan = simpler
        plan = self._with_filters_of_joins(plan)
        for name in _NORMAL_FORMS:
            plan = self.companion(name, self.catalyst.optimizer).apply(plan)
        return plan

    def _with_filters_of_joins(self, plan: Any) -> Any:
        """Return a plan whose joins have no subquery in their condition, as far as a filter can have it.

        In a join, NOT IN would ignore nulls of the subquery.
        """
        plan = self.map_children(plan, self._with_filters_of_joins)
        if node_name(plan) != "Join" or not plan.condition().isDefined() or not to_list(plan.subqueries()):
            return plan
        kind = plan.joinType().toString()
        sides, above, kept = [plan.left(), plan.right()], list[Any](), list[Any]()
        for condition in conjuncts([plan.condition().get()]):
            side = next((at for at in _FILTERED_SIDES.get(kind, ())
                         if referenced_ids(condition) <= output_ids(sides[at])), None)  # fmt: skip
            if not self.companion("SubqueryExpression").hasSubquery(condition):
                kept.append(condition)
            elif kind in ("Inner", "Cross"):
                above.append(condition)
            elif side is not None:
                sides[side] = self.filter(condition, sides[side])
            else:
                kept.append(condition)
        both = self.none() if not kept else self.java.scala.Option.apply(reduce(self.expressions.And, kept))
        joined = self.catalyst.plans.logical.Join(*sides, plan.joinType(), both, plan.hint())
        return joined if not above else self.filter(reduce(self.expressions.And, above), joined)

    def _with_subqueries(self, plan: Any, change: Callable[[Any], Any]) -> Any:
        """Return a plan with the subqueries of all its nodes changed."""
        if not to_list(plan.subqueriesAll()):
            return plan
        plan = self.map_children(plan, lambda child: self._with_subqueries(child, change))
        return self.map_subqueries(plan, change)

    def _input_name(self, plan: Any) -> str | None:
        if node_name(plan) != "View":
            return None
        name = _view_name(plan)
        return name if name in self._inputs else None

    def _may_change(self, plan: Any) -> bool:
        """Return whether a plan reads an input that has changed."""
        if (name := self._input_name(plan)) is not None:
            return self._inputs[name].changes is not None
        return any(map(self._may_change, [*to_list(plan.children()), *to_list(plan.subqueries())]))

    def _may_remove(self, plan: Any) -> bool:
        """Return whether rows of a plan may be removed, now that its inputs have changed."""
        if (name := self._input_name(plan)) is not None:
            return self._inputs[name].removes
        is_monotonic = node_name(plan) in ("View", "SubqueryAlias", "Union", *_ROW_BY_ROW) or (
            node_name(plan) == "Join" and plan.joinType().toString() in ("Inner", "Cross")
        )
        below = [*to_list(plan.children()), *to_list(plan.subqueries())]
        return not is_monotonic or any(map(self._may_remove, below))

    def _is_row_by_row(self, plan: Any) -> bool:
        """Return whether each row of a plan is derived from one row of an input."""
        if self._input_name(plan) is not None:
            return True
        name = node_name(plan)
        return name in ("View", "SubqueryAlias", "Union", *_ROW_BY_ROW) and all(
            map(self._is_row_by_row, to_list(plan.children()))
        )

    def _changes(self, before: Any, after: Any) -> DataFrame | None:
        """Return the changed rows of a plan (``c0``, … and the weight), or None if no input has changed."""
        if not self._may_change(before):
            return None
        if (name := self._input_name(before)) is not None:
            return self._changes_of_input(before, self._inputs[name])
        name = node_name(before)
        if name in ("SubqueryAlias", "View", "Sort"):
            return self._changes(before.child(), after.child())
        if any(map(self._may_change, to_list(before.subqueries()))):
            return self._subtract(before, after)
        if name in _ROW_BY_ROW:
            below = self._changes(before.child(), after.child())
            return None if below is None else self._over_changes(before, before.child(), below)
        if name == "Union":
            pairs = zip(to_list(before.children()), to_list(after.children()), strict=True)
            return _union([self._changes(*pair) for pair in pairs])
        if name == "Join":
            return self._changes_of_join(before, after)
        if name == "Aggregate":
            return self._changes_by_keys(before, after, _grouping_keys)
        if name == "Window":
            return self._changes_by_keys(before, after, lambda node: [to_list(node.partitionSpec())])
        return self._subtract(before, after)

    def _changes_of_input(self, view: Any, rows: InputState) -> DataFrame:
        names = [f"c{index}" for index in range(len(to_list(view.output())))]
        assert rows.changes is not None
        return rows.changes.toDF(*names, WEIGHT)

    def _over_changes(self, node: Any, child: Any, changes: DataFrame) -> DataFrame:
        """Return the changes of a row-by-row node."""
        rows, weight = self._as_rows(child, changes)
        return self._named(to_list(node.output()), weight, self._passing(node, rows, weight))

    def _passing(self, node: Any, rows: Any, column: Any) -> Any:
        """Return a row-by-row node over other rows, which have a further column that it passes through."""
        if node_name(node) == "Expand":
            projections = [self.seq([*to_list(row), column]) for row in to_list(node.projections())]
            output = self.seq([*to_list(node.output()), column])
            return self.catalyst.plans.logical.Expand(self.seq(projections), output, rows)
        if node_name(node) == "Project":
            return self.project([*to_list(node.projectList()), column], rows)
        return self.with_children(node, [rows])

    def _as_rows(self, plan: Any, changes: DataFrame) -> tuple[Any, Any]:
        """Return changes as rows of a plan, and the column of their weight."""
        change_plan = analyzed_plan(changes)
        *values, weight = to_list(change_plan.output())
        columns = list(map(self.replace_column, values, to_list(plan.output())))
        own = self.alias(weight, WEIGHT)
        return self.project([*columns, own], change_plan), own.toAttribute()

    def _named(self, columns: Sequence[Any], weight: Any, plan: Any) -> DataFrame:
        named = [self.plain_alias(column, f"c{index}") for index, column in enumerate(columns)]
        return self.to_frame(self.project([*named, self.plain_alias(weight, WEIGHT)], plan))

    def _weighted(self, plan: Any, weight: int) -> DataFrame:
        """Return all rows of a plan with the same weight."""
        return self._named(to_list(plan.output()), self.long_literal(weight), self._repeatable(plan))

    def _subtract(self, before: Any, after: Any) -> DataFrame:
        """Return the changes from all rows of a plan to all rows of another."""
        return self._net(self._weighted(before, -1).unionAll(self._weighted(after, 1)))

    def _net(self, changes: DataFrame) -> DataFrame:
        """Return changes without those that cancel each other."""
        names = changes.columns[:-1]
        groups = comparable(names, changes.schema)
        return run_sql(
            f"SELECT {', '.join(first_values(names, changes.schema))}, sum({WEIGHT}) AS {WEIGHT} "
            f"FROM odf_changes GROUP BY {', '.join(groups)} HAVING sum({WEIGHT}) <> 0",
            changes=changes,
        )

    def _changes_of_join(self, before: Any, after: Any) -> DataFrame | None:
        kind = before.joinType().toString()
        left = self._changes(before.left(), after.left())
        right = self._changes(before.right(), after.right())
        if kind in ("Inner", "Cross"):
            return _union([self._joined(before, 0, left), self._joined(after, 1, right)])
        if right is None and kind not in ("RightOuter", "FullOuter"):
            return self._joined(before, 0, left)
        if left is None and kind == "RightOuter":
            return self._joined(before, 1, right)
        return self._changes_by_keys(before, after, join_keys, [left, right])

    def _joined(self, join: Any, side: int, changes: DataFrame | None) -> DataFrame | None:
        """Return the rows of a join whose rows of the left (0) or right (1) side are changes."""
        if changes is None:
            return None
        sides = [join.left(), join.right()]
        others, keys = sides[1 - side], join_keys(join)
        if keys[0] and not self._is_row_by_row(others):
            changes = self._materialized(changes)
            view = self._keys_view([self._keys_of_changes(sides[side], changes, keys[side])])
            if view is None:
                return None
            others = self._with_keys(others, keys[1 - side], view)
        others = self._repeatable(others)
        rows, weight = self._as_rows(sides[side], changes)
        plan = self.with_children(join, [others, rows] if side else [rows, others])
        return self._named(to_list(join.output()), weight, plan)

    def _changes_by_keys(
        self,
        before: Any,
        after: Any,
        keys_of: Callable[[Any], Sequence[Sequence[Any]]],
        changes: Sequence[DataFrame | None] | None = None,
    ) -> DataFrame | None:
        """Return the changes of a node that is computed before and after, for the keys that have changed.

        Args:
            before, after: the node.
            keys_of: returns the expressions of the keys over the rows of each child of a node.
            changes: the changes of each child.
        """
        keys = keys_of(before)
        if not all(keys):
            return self._subtract(before, after)
        children = to_list(before.children())
        if changes is None:
            changes = list(map(self._changes, children, to_list(after.children())))
        changes = [None if below is None else self._materialized(below) for below in changes]
        changed = [
            self._keys_of_changes(child, below, expressions)
            for child, below, expressions in zip(children, changes, keys, strict=True)
            if below is not None
        ]
        view = self._keys_view(changed)
        if view is None:
            return None
        sides = [
            self._rows_of_keys(child, below, expressions, view)
            for child, below, expressions in zip(children, changes, keys, strict=True)
        ]
        return self._subtract(*(self.with_children(before, rows) for rows in zip(*sides, strict=True)))

    def _rows_of_keys(
        self, plan: Any, changes: DataFrame | None, keys: Sequence[Any], view: str
    ) -> tuple[Any, Any]:
        """Return the rows of a plan that have one of the keys in a view, before and after its changes."""
        before = self._materialized(self._weighted(self._with_keys(plan, keys, view), 1))
        frames = [before]
        if changes is not None:
            after = self._net(before.unionAll(changes)).where(f"{WEIGHT} > 0")
            frames.append(self._copies(after))
        plans = [self.project(to_list(plan.output()), self._as_rows(plan, frame)[0]) for frame in frames]
        return plans[0], plans[-1]

    def _copies(self, changes: DataFrame) -> DataFrame:
        """Return a row for each unit of the weights of changes, with the weight 1 or -1."""
        columns = ", ".join([*changes.columns[:-1], f"CAST(sign({WEIGHT}) AS BIGINT) AS {WEIGHT}"])
        copies = f"explode(sequence(1L, abs({WEIGHT})))"
        return run_sql(
            f"SELECT {columns} FROM odf_changes LATERAL VIEW {copies} AS odf_copy", changes=changes
        )

    def _keys_view(self, changed: Sequence[DataFrame]) -> str | None:
        """Return the name of a view with the distinct keys, or None if there are no keys."""
        if not changed:
            return None
        view = f"{_KEYS_VIEW}{len(self._cached)}"
        frame = self._materialized(reduce(lambda one, other: one.unionAll(other), changed).distinct())
        frame.createOrReplaceTempView(view)
        # Spark then knows the number of keys, and sends few to all tasks instead of sorting the rows.
        return view if frame.count() else None

    def _materialized(self, frame: DataFrame) -> DataFrame:
        """Return a frame whose rows are computed once.

        Its plan is a leaf: otherwise, every nested node would double the plan.
        """
        self._cached.append(frame.localCheckpoint(eager=False).persist())
        return self._cached[-1]

    def _keys_of_changes(self, child: Any, changes: DataFrame, keys: Sequence[Any]) -> DataFrame:
        rows, _ = self._as_rows(child, changes)
        named = [self.plain_alias(key, f"k{index}") for index, key in enumerate(keys)]
        return self.to_frame(self.project(named, rows))

    def _with_keys(self, plan: Any, keys: Sequence[Any], view: str) -> Any:
        """Return the rows of a plan that have one of the keys in a view."""
        plans, view_plan = self.catalyst.plans, analyzed_plan(self.session.table(view))
        same = map(self.expressions.EqualNullSafe, keys, to_list(view_plan.output()))
        condition = self.java.scala.Option.apply(reduce(self.expressions.And, same))
        hint = self.companion("JoinHint", plans.logical).NONE()
        return plans.logical.Join(plan, view_plan, self.companion("LeftSemi", plans), condition, hint)

    def _repeatable(self, plan: Any) -> Any:
        """Return a plan whose result does not depend on how Spark divides the work.

        Floating point sums and functions of windows get their rows in a total order.

        Raises:
            Unsupported: the result depends on it.
        """
        if node_name(plan) == "View" and (self._input_name(plan) or _view_name(plan).startswith(_KEYS_VIEW)):
            return plan
        plan = self.map_children(plan, self._repeatable)
        name = node_name(plan)
        if name in ("Aggregate", "Join", "Window", "Distinct"):
            check_collations(plan, compared_expressions(plan))
        if name == "Aggregate":
            return self._repeatable_aggregate(plan)
        if name == "Window":
            orders = to_list(plan.orderSpec())
            functions = [
                aggregate.child().windowFunction() for aggregate in to_list(plan.windowExpressions())
            ]
            if not orders and "RowNumber" in map(function_name, functions):
                raise unsupported_at(
                    plan,
                    "LIMIT in a LATERAL subquery depends on the order of rows: its ORDER BY has columns that "
                    "are not selected",
                    "select all columns of ORDER BY in the subquery",
                )
            rows = self._sorted(plan.child(), to_list(plan.partitionSpec()), orders)
            columns = list(map(self._with_positive_zeros, to_list(plan.windowExpressions())))
            return self.catalyst.plans.logical.Window(
                self.seq(columns), plan.partitionSpec(), plan.orderSpec(), rows, plan.hint()
            )
        if name == "Sort" and getattr(plan, "global")():
            return self.sort(
                [*to_list(plan.order()), *self._all_columns(plan.child())], plan.child(), everywhere=True
            )
        if name in LIMITING and not is_ordered(plan.child()):
            raise unsupported_at(plan, "LIMIT without ORDER BY depends on the order of rows", "add ORDER BY")
        if name == "Sample":
            raise unsupported_at(plan, "TABLESAMPLE is not deterministic", "filter rows by their values")
        return plan

    def _repeatable_aggregate(self, plan: Any) -> Any:
        columns = list(map(self._with_positive_zeros, to_list(plan.aggregateExpressions())))
        rows = plan.child()
        if any(_depends_on_order(aggregate) for column in columns for aggregate in find_aggregates(column)):
            rows = self._sorted(rows, to_list(plan.groupingExpressions()))
        return self.aggregate(plan, columns, rows)

    def _with_positive_zeros(self, expression: Any) -> Any:
        """Return an expression whose ``min`` and ``max`` are never -0.0: the order of rows would decide."""
        is_extreme = function_name(expression) in ("Min", "Max")
        return self.map_children(expression, self.positive_zero if is_extreme else self._with_positive_zeros)

    def _repeatable_subquery(self, plan: Any) -> Any:
        return self._with_subqueries(self._repeatable(plan), self._repeatable_subquery)

    def _sorted(self, plan: Any, keys: Sequence[Any], orders: Sequence[Any] = ()) -> Any:
        """Return the rows in a total order, with all rows of a key in one partition."""
        logical = self.catalyst.plans.logical
        if keys:
            none = self.none()
            plan = logical.RepartitionByExpression(self.seq(keys), plan, none, none)
        else:
            plan = logical.Repartition(1, True, plan)
        terms = [*map(self.ascending, keys), *orders, *self._all_columns(plan)]
        return self.sort(terms, plan, everywhere=False)

    def _all_columns(self, plan: Any) -> list[Any]:
        return [self.ascending(column) for column in to_list(plan.output()) if is_orderable(column)]


def _view_name(view: Any) -> str:
    return view.desc().identifier().table().lower()


def _union(frames: Sequence[DataFrame | None]) -> DataFrame | None:
    present = [frame for frame in frames if frame is not None]
    return reduce(lambda one, other: one.unionAll(other), present) if present else None


def _grouping_keys(aggregate: Any) -> list[list[Any]]:
    """Return the grouping expressions without sessions, whose ends depend on other rows."""
    return [
        [expression for expression in to_list(aggregate.groupingExpressions()) if not is_session(expression)]
    ]


def join_keys(join: Any) -> tuple[list[Any], list[Any]]:
    """Return the expressions of each side that a join compares for equality."""
    left, right = output_ids(join.left()), output_ids(join.right())
    keys: tuple[list[Any], list[Any]] = ([], [])
    for conjunct in conjuncts([join.condition().get()] if join.condition().isDefined() else []):
        if node_name(conjunct) not in ("EqualTo", "EqualNullSafe"):
            continue
        sides = [conjunct.left(), conjunct.right()]
        ids = list(map(referenced_ids, sides))
        if ids[0] <= right and ids[1] <= left:
            sides, ids = sides[::-1], ids[::-1]
        if ids[0] and ids[1] and ids[0] <= left and ids[1] <= right:
            keys[0].append(sides[0])
            keys[1].append(sides[1])
    return keys


def _depends_on_order(aggregate: Any) -> bool:
    function = aggregate.aggregateFunction()
    name = function_name(function)
    if name in _EXACT_SUMS:
        return to_list(function.children())[0].dataType().typeName() in ("double", "float")
    return name not in _ORDER_IGNORING
