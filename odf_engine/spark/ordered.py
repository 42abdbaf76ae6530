"""Results whose rows come in one order only, so that who asks again can compare them by a hash."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from odf_engine.errors import InvalidQuery
from odf_engine.spark.catalyst import Catalyst, analysed, items, name_of, sortable
from odf_engine.spark.confinement import wrong
from odf_engine.spark.errors import translated
from odf_engine.spark.origins import check_repeatable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PASSING: Final = (
    "Project",
    "SubqueryAlias",
    "GlobalLimit",
    "LocalLimit",
    "Offset",
    "Filter",
    "ResolvedHint",
)
_CUTTING: Final = ("GlobalLimit", "LocalLimit", "Offset", "Tail")
_CUTS: Final = re.compile(r'"class":"[\w.]+\.(?:GlobalLimit|LocalLimit|Offset|Tail|Sample)"')


def in_one_order(session: SparkSession, frame: DataFrame) -> tuple[DataFrame, bool]:
    """The same rows, in the order of the query's ORDER BY with ties broken, else in that of all columns.

    Args:
        session: in which the query was made.
        frame: its result.

    Returns:
        The rows, and whether the query says their order itself.

    Raises:
        InvalidQuery: asked again, it may give other rows.
    """
    try:
        check_repeatable(frame, "query")
    except InvalidQuery as error:
        error.hint = (
            "write a time as text, sort a list that is collected (sort_array); or ask without a proof"
        )
        raise
    with translated():
        return _InOrder(session).result(frame)


class _InOrder(Catalyst):
    def result(self, frame: DataFrame) -> tuple[DataFrame, bool]:
        plan = analysed(frame)
        text = plan.toJSON()
        if "logical.WithCTE" in text:
            plan = self.catalyst.optimizer.InlineCTE(True, False, False).apply(plan)
            text = plan.toJSON()
        self._cuts = 0
        plan = self._total(plan)
        if len(_CUTS.findall(text)) > self._cuts:
            raise InvalidQuery(
                "a LIMIT within an expression may give other rows each time",
                hint="a join, or max_by and min_by, can say the same",
            )
        ordered = _is_ordered(plan)
        if not ordered:
            plan = self.sorted(self._by_all(plan), plan, everywhere=True)
        return self.frame(plan), ordered

    def _total(self, plan: Any) -> Any:
        """The plan in which no ORDER BY leaves anything open."""
        name = name_of(plan)
        if name == "View":
            return plan
        if name == "Sample":
            raise wrong(plan, "TABLESAMPLE gives other rows each time", "choose rows by their values")
        below = items(plan.children())
        made = [self._total(each) for each in below]
        if any(new is not old for new, old in zip(made, below, strict=True)):
            plan = self.rebuilt(plan, made)
        if name == "Sort" and getattr(plan, "global")():
            order = [*items(plan.order()), *self._by_all(made[0])]
            return self.sorted(order, made[0], everywhere=True)
        if name in _CUTTING:
            self._cuts += 1
            if not _is_ordered(made[0]):
                raise wrong(
                    plan, "LIMIT without ORDER BY may give other rows each time", "say which rows: ORDER BY"
                )
        return plan

    def _by_all(self, plan: Any) -> list[Any]:
        return [self.ascending(each) for each in items(plan.output()) if sortable(each)]


def _is_ordered(plan: Any) -> bool:
    while name_of(plan) in _PASSING:
        plan = plan.child()
    return name_of(plan) == "Sort" and getattr(plan, "global")()
