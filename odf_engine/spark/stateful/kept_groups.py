"""Groups of changing results whose partial values are kept, so that earlier rows are not read again."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from odf_engine.data.changelog import OPERATION, Op
from odf_engine.spark.plan_rewrite import (
    analyzed_plan,
    function_name,
    is_session,
    node_name,
    run_sql,
    to_list,
)
from odf_engine.spark.stateful.group_aggregates import GroupAggregates, find_aggregates
from odf_engine.spark.stateful.incremental import StateFiles, StoredState
from odf_engine.spark.stateful.result_changes import WEIGHT, InputState, ResultChanges
from odf_engine.spark.stateful.stream_checks import check_collations, compared_expressions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


MAX_KEPT_GROUPS: Final = 1_000_000
"""Above this number, earlier rows are read again instead."""
_EXTREMES: Final = frozenset({"Min", "Max", "BoolAnd", "BoolOr", "BitAndAgg", "BitOrAgg"})
"""Aggregates that a retraction can change to any value."""
_EXACT_TYPES: Final = re.compile(
    r"byte|short|integer|long|decimal\(.*\)|date|timestamp|timestamp_ntz|boolean|string|binary"
)
_NUMBERS: Final = re.compile(r"#\d+")
_KEPT_VIEW: Final = "odf_kept_groups_"
_RETRACTS: Final = "odf_retracts"


class _Aggregation(NamedTuple):
    """An aggregation before and after the transaction, and the name of its state."""

    before: Any
    after: Any
    name: str


class KeptGroups(ResultChanges):
    """Computes the changes of a query's result from the partial values of groups.

    An aggregation whose functions can be merged exactly is computed from the partial values that the state
    has for its groups, and from its changed rows. If a row is retracted from a group with ``min`` or the
    like, the group is computed from its rows. The result is the same as without the state.

    Args:
        session: the session of the query.
        inputs: rows of each input by the name of its view.
        files: the state before the transaction.

    Attributes:
        states: parts of the state that the transaction changes.
        unchanged: names of the other parts.
    """

    def __init__(self, session: SparkSession, inputs: Mapping[str, InputState], files: StateFiles) -> None:
        super().__init__(session, inputs)
        self._files = files
        self._count = 0
        self.states: list[StoredState] = []
        self.unchanged: list[str] = []

    def _plan(self, frame: DataFrame) -> Any:
        plan = self._normal_form(frame)
        return self._with_kept_groups(plan, plan, is_first=True)[1]

    def _plans(self, before: DataFrame, after: DataFrame) -> tuple[Any, Any]:
        return self._with_kept_groups(*super()._plans(before, after), is_first=False)

    def _with_kept_groups(self, before: Any, after: Any, *, is_first: bool) -> tuple[Any, Any]:
        """Return plans that read kept groups instead of computing them."""
        if self._input_name(before) is not None:
            return before, after
        children = list(zip(to_list(before.children()), to_list(after.children()), strict=True))
        rewritten = [self._with_kept_groups(*pair, is_first=is_first) for pair in children]
        if any(new[0] is not old[0] for new, old in zip(rewritten, children, strict=True)):
            before, after = (
                self.with_children(node, [pair[index] for pair in rewritten])
                for index, node in enumerate((before, after))
            )
        if not _is_mergeable(before):
            return before, after
        check_collations(before, compared_expressions(before))
        aggregation = _Aggregation(before, after, self._state_name(before))
        rows = self._first_groups(aggregation) if is_first else self._next_groups(aggregation)
        if rows is None:
            return before, after
        plans = (self._view(before, rows.before, rows), self._view(after, rows.after, rows))
        return (plans[1], plans[1]) if is_first else plans

    def _view(self, aggregate: Any, frame: DataFrame, rows: InputState) -> Any:
        """Return the rows of groups as a plan with the columns of an aggregation."""
        name = f"{_KEPT_VIEW}{len(self._inputs)}"
        frame.createOrReplaceTempView(name)
        self._inputs[name] = rows
        plan = analyzed_plan(self.session.table(name))
        output = zip(to_list(plan.output()), to_list(aggregate.output()), strict=True)
        return self.project([self.replace_column(new, old) for new, old in output], plan)

    def _state_name(self, aggregate: Any) -> str:
        """Return the name of an aggregation's state: its number in the query, and a hash of its plan.

        Another version of Spark may have another plan, and then does not find the state.
        """
        self._count += 1
        numbers: dict[str, str] = {}
        text = _NUMBERS.sub(
            lambda match: numbers.setdefault(match[0], f"#{len(numbers)}"), self._text(aggregate)
        )
        return f"groups-{self._count}-{hashlib.sha3_256(text.encode()).hexdigest()[:16]}"

    def _text(self, plan: Any) -> str:
        if (name := self._input_name(plan)) is not None and not name.startswith(_KEPT_VIEW):
            return name
        below = [*to_list(plan.children()), *to_list(plan.subqueries())]
        return "\n".join([plan.simpleString(1 << 30), *map(self._text, below)])

    def _first_groups(self, aggregation: _Aggregation) -> InputState | None:
        """Return the groups of the first transaction, or None if there are too many to keep."""
        groups = self._aggregates(aggregation.before, None)
        rows = self._rows(groups, self._repeatable(aggregation.before.child()))
        merged = self._materialized(run_sql(groups.merge_rows("SELECT * FROM odf_rows"), rows=rows))
        if merged.count() > MAX_KEPT_GROUPS:
            return None
        self.states.append(StoredState(aggregation.name, merged, groups.key_names))
        result = self._results(groups, merged)
        return InputState(result, result, None)

    def _next_groups(self, aggregation: _Aggregation) -> InputState | None:
        """Return the groups before and after a transaction, or None if the state does not have them."""
        name, child = aggregation.name, aggregation.before.child()
        if not self._files.has(name):
            return None
        changes = self._changes(child, aggregation.after.child())
        if changes is None:
            groups = self._aggregates(aggregation.before, None)
            self.unchanged.append(name)
            result = self._results(groups, self._stored(name, groups, self._rows(groups, child)))
            return InputState(result, result, None)
        operation = f"IF({WEIGHT} < 0, {Op.RETRACT:d}, {Op.APPEND:d}) AS {OPERATION}"
        signed = self._copies(changes).selectExpr(*changes.columns[:-1], operation)
        rows, sign = self._as_rows(child, signed)
        groups = self._aggregates(aggregation.before, sign)
        new = self._rows(groups, rows)
        stored = self._stored(name, groups, new)
        partial = self._materialized(
            run_sql(groups.merge_rows("SELECT * FROM odf_rows", f"min(n) < 0 AS {_RETRACTS}"), rows=new)
        )
        before = self._with_same_keys("SEMI", groups, stored, partial)
        may_remove_extremes = _has_extremes(aggregation.before) and self._may_remove(child)
        if may_remove_extremes and not partial.where(_RETRACTS).isEmpty():
            merged, can_add = self._computed_again(aggregation, partial), False
        else:
            both = before.unionAll(partial.select(*groups.state_names))
            merged = run_sql(groups.merge_rows("SELECT * FROM odf_rows"), rows=both)
            can_add = self._files.can_add(name)
        after = self._materialized(merged)
        others = self._with_same_keys("ANTI", groups, stored, partial)
        all_groups = others.unionAll(after.where("n <> 0") if groups.key_names else after)
        kept = partial.select(*groups.state_names) if can_add else all_groups
        self.states.append(StoredState(name, kept, groups.key_names, added=can_add))
        net = self._net(
            self._results(groups, before)
            .selectExpr("*", f"-1L AS {WEIGHT}")
            .unionAll(self._results(groups, after).selectExpr("*", f"1L AS {WEIGHT}"))
        )
        return InputState(
            self._results(groups, stored), self._results(groups, all_groups), self._materialized(net)
        )

    def _aggregates(self, aggregate: Any, operation: Any) -> GroupAggregates:
        return GroupAggregates(
            self,
            to_list(aggregate.groupingExpressions()),
            to_list(aggregate.aggregateExpressions()),
            signed=True,
            operation=operation,
            values=False,
            changed=None,
        )

    def _rows(self, groups: GroupAggregates, plan: Any) -> DataFrame:
        """Return the rows of a plan as groups of one row."""
        return self.to_frame(self.project(groups.row_columns(), plan))

    def _stored(self, name: str, groups: GroupAggregates, rows: DataFrame) -> DataFrame:
        """Return the stored groups, with the columns of the groups of ``rows``."""
        merged = groups.merge_rows("SELECT * FROM odf_rows")
        return run_sql(merged, rows=self._files.read(name, run_sql(merged, rows=rows).schema))

    def _with_same_keys(
        self, kind: str, groups: GroupAggregates, rows: DataFrame, others: DataFrame
    ) -> DataFrame:
        """Return the groups whose keys other groups have (``SEMI``), or do not have (``ANTI``)."""
        same = " AND ".join(f"r.{name} <=> o.{name}" for name in groups.key_names) or "true"
        return run_sql(
            f"SELECT * FROM odf_rows r {kind} JOIN odf_others o ON {same}", rows=rows, others=others
        )

    def _computed_again(self, aggregation: _Aggregation, partial: DataFrame) -> DataFrame:
        """Return the groups of some keys from all their rows after the transaction."""
        groups = self._aggregates(aggregation.after, None)
        rows, grouping = aggregation.after.child(), to_list(aggregation.after.groupingExpressions())
        view = self._keys_view([partial.select(*groups.key_names)]) if grouping else None
        if view is not None:
            rows = self._with_keys(rows, grouping, view)
        return run_sql(
            groups.merge_rows("SELECT * FROM odf_rows"), rows=self._rows(groups, self._repeatable(rows))
        )

    def _results(self, groups: GroupAggregates, frame: DataFrame) -> DataFrame:
        """Return the columns of an aggregation from its groups, as ``c0``, …"""
        final = groups.finish(frame, "n > 0" if groups.key_names else "true", [])
        columns = self.to_frame(self.project(final.columns, final.plan))
        return columns.toDF(*(f"c{index}" for index in range(len(columns.columns))))


def _is_mergeable(plan: Any) -> bool:
    """Return whether a plan is an aggregation whose partial values can be merged without loss."""
    if node_name(plan) != "Aggregate" or to_list(plan.subqueries()):
        return False
    return not any(map(is_session, to_list(plan.groupingExpressions()))) and all(
        _is_exact(aggregate.aggregateFunction()) and not aggregate.isDistinct()
        for column in to_list(plan.aggregateExpressions())
        for aggregate in find_aggregates(column)
    )


def _is_exact(function: Any) -> bool:
    name, arguments = function_name(function), to_list(function.children())
    if name in ("Count", "CountIf"):
        return True
    if name in ("Sum", "Average") and function.prettyName() not in ("sum", "avg"):
        return False
    return (name in ("Sum", "Average") or name in _EXTREMES) and (
        _EXACT_TYPES.fullmatch(arguments[0].dataType().typeName()) is not None
    )


def _has_extremes(plan: Any) -> bool:
    return any(
        function_name(aggregate.aggregateFunction()) in _EXTREMES
        for column in to_list(plan.aggregateExpressions())
        for aggregate in find_aggregates(column)
    )
