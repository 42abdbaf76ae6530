"""Groups without a window, as they were after each of some batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from odf_engine.spark.catalyst import analysed, id_of, items
from odf_engine.spark.firsts import window_of_firsts
from odf_engine.spark.lineage import Lineage
from odf_engine.spark.origins import Part
from odf_engine.spark.stateful import ROWS
from odf_engine.spark.undo import Aggregates

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PREFIX: Final = "odf_prefix"
"""The last batch whose rows count."""


class Prefixes(Lineage):
    """Follows a query whose last step groups without a window; the result has ``odf_prefix`` too.

    Attributes:
        wanted: ``odf_key_0``, … of groups and batches after which they are asked for, as ``odf_prefix``.
    """

    wanted: DataFrame

    def _running_groups(self, work: Aggregates, plan: Any, rows: Any, batch: Any, *, signed: bool) -> Part:
        asked = analysed(self.wanted)
        *keys, last = items(asked.output())
        condition: Any = self.expressions.LessThanOrEqual(batch, last)
        for each, key in zip(items(plan.groupingExpressions()), keys, strict=True):
            condition = self.expressions.And(condition, self.expressions.EqualNullSafe(each, key))
        logical, plans = self.catalyst.plans.logical, self.catalyst.plans
        joined = logical.Join(
            rows,
            asked,
            self.companion("Inner", plans),
            self.java.scala.Option.apply(condition),
            self.companion("JoinHint", logical).NONE(),
        )
        made, count = work.made(plan, joined, signed=signed, name=ROWS)
        grouping = self.seq([*items(made.groupingExpressions()), last])
        columns = self.seq([*items(made.aggregateExpressions()), last])
        return Part(logical.Aggregate(grouping, columns, joined, made.hint()), [count, last], frozenset())

    def _filter(self, plan: Any) -> Part:
        if window_of_firsts(plan) is not None:
            return super()._filter(plan)
        below, condition = self.follow(plan.child()), plan.condition()
        self._mention([condition])
        if self._running is None:
            return below._replace(plan=self.filter(condition, below.plan))
        rows, last = below.origin
        yes = self.expressions.Coalesce(self.seq([condition, self.literal(False)]))
        counted = self.alias(self.expressions.If(yes, rows, self.long(0)), ROWS)
        columns = [column for column in items(below.plan.output()) if id_of(column) != id_of(rows)]
        return below._replace(
            plan=self.project([*columns, counted], below.plan), origin=[counted.toAttribute(), last]
        )
