"""What a query does to the order of its rows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import types as st
from pyspark.sql.functions import expr

from odf_engine.spark.casts import identifier
from odf_engine.spark.catalyst import Catalyst, items, name_of
from odf_engine.spark.errors import translated

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_REORDERING: Final = re.compile(
    r"^[ :|+-]*(Aggregate|Join|AsOfJoin|LateralJoin|Window|Distinct|Deduplicate|Intersect|Except"
    r"|Repartition\w*|RebalancePartitions|Pivot|Sample)\b",
    re.MULTILINE,
)


ORDER: Final = "odf_order_"
"""Begins the names of columns that rows are put in order by."""


def unsorted(make: Catalyst, plan: Any) -> tuple[Any, tuple[str, ...]]:
    """A plan without the ORDER BY at its top, whose values become columns of their own.

    Args:
        make: makes nodes.
        plan: as Spark has analysed it.

    Returns:
        The plan, and what to order by: the names of such columns, each with its direction and where
        its nulls stand; nothing where there is no ORDER BY.
    """
    sort = plan.child() if name_of(plan) == "Project" else plan
    if name_of(sort) != "Sort" or not getattr(sort, "global")():
        return plan, ()
    columns = items(plan.output() if sort is plan else plan.projectList())
    orders = items(sort.order())
    named = [make.alias(each.child(), f"{ORDER}{at}") for at, each in enumerate(orders)]
    says = [f"{each.direction().sql()} {each.nullOrdering().sql()}" for each in orders]
    made = make.project([*columns, *named], sort.child())
    return made, tuple(f"{ORDER}{at} {each}" for at, each in enumerate(says))


def loses_order(frame: DataFrame) -> bool:
    """Whether rows may come out in an order that depends on how Spark spread the work: they were joined,
    grouped, windowed or made anew. What only picks and computes, row by row, keeps their order."""
    java: Any = frame._jdf
    with translated():
        return _REORDERING.search(java.queryExecution().analyzed().toString()) is not None


def by_all_columns(frame: DataFrame, first: str | None) -> DataFrame:
    """The rows sorted by the expression ``first`` and then by every column, nulls first: an order that
    the rows alone decide."""
    if len(set(map(str.lower, frame.columns))) < len(frame.columns):
        return frame  # that a name is there twice is said later
    keys = [identifier(field.name) for field in frame.schema if _sortable(field.dataType)]
    with translated():
        return frame.sort(*map(expr, [first, *keys] if first else keys))


def by_order(frame: DataFrame, order: Sequence[str], first: str) -> DataFrame:
    """The rows by what an ORDER BY says, then by the column ``first`` and by every other column.

    Args:
        frame: with the columns of :func:`unsorted`.
        order: as that gave it.
        first: the name of a column.
    """
    more = [field.name for field in frame.schema if _sortable(field.dataType) and ORDER not in field.name]
    keys = [*order, *map(identifier, sorted(more, key=lambda name: name != first))]
    with translated():
        frame.createOrReplaceTempView("odf_unsorted")
        return frame.sparkSession.sql(f"SELECT * FROM odf_unsorted ORDER BY {', '.join(keys)}")


def _sortable(kind: st.DataType) -> bool:
    if isinstance(kind, st.ArrayType):
        return _sortable(kind.elementType)
    if isinstance(kind, st.StructType):
        return all(_sortable(field.dataType) for field in kind)
    return not isinstance(kind, st.MapType | st.VariantType | st.NullType)
