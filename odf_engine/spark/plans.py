"""What a query does to the order of its rows."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import types as st
from pyspark.sql.functions import expr

from odf_engine.spark.casts import identifier
from odf_engine.spark.errors import translated

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_REORDERING: Final = re.compile(
    r"^[ :|+-]*(Aggregate|Join|AsOfJoin|LateralJoin|Window|Distinct|Deduplicate|Intersect|Except"
    r"|Repartition\w*|RebalancePartitions|Pivot|Sample)\b",
    re.MULTILINE,
)


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


def _sortable(kind: st.DataType) -> bool:
    if isinstance(kind, st.ArrayType):
        return _sortable(kind.elementType)
    if isinstance(kind, st.StructType):
        return all(_sortable(field.dataType) for field in kind)
    return not isinstance(kind, st.MapType | st.VariantType | st.NullType)
