"""Window functions as stages: Top-N and running totals, and the lifetimes of rows in a changelog."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from odf_engine.data.changelog import RETRACTS, Op
from odf_engine.spark.plan_rewrite import OPERATION, column_id, node_name, to_list, unsupported_at

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


BATCH: Final = "odf_batch"
"""The batch in which a row was read or is emitted: 1, 2, … for the new batches, 0 for all earlier ones."""
NEVER: Final = (1 << 31) - 1
"""The number of the batch of rows that are not emitted yet, or not retracted."""
SIGN: Final = "odf_sign"
"""1 for a row that is added, -1 for a row that is retracted."""
PLACE: Final = "odf_place"
"""The position of an input row; null for computed rows."""
FROM: Final = "odf_from"
"""The batch from which a row is part of its key."""
UNTIL: Final = "odf_until"
"""The batch that retracts a row."""
NUMBER: Final = "odf_number"
"""The number of a row within its key, by the order of the window."""
RANKS: Final = {"RowNumber": "row_number", "Rank": "rank", "DenseRank": "dense_rank"}
_RUNNING_FRAME: Final = " BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"
OTHER_FUNCTIONS_HINT: Final = (
    "supported are running totals, sum(x) OVER (PARTITION BY key ORDER BY event_time ROWS UNBOUNDED "
    "PRECEDING), with sum, count, avg, min or max; and the first rows of each key, row_number() OVER "
    "(PARTITION BY key ORDER BY x DESC) AS n in a subquery with WHERE n <= 10 outside; for totals of a "
    "period, group by window(event_time, '1 day')"
)


@dataclass(frozen=True)
class RankedRows:
    """A filter for the first rows of each key.

    Attributes:
        window: the window node.
        function: ``row_number``, ``rank`` or ``dense_rank``.
        first, last: the numbers that pass.
    """

    window: Any
    function: str
    first: int
    last: int


def ranked_rows(plan: Any, conjuncts: Sequence[Any]) -> RankedRows | None:
    """Return the Top-N that a filter selects, or None for other filters.

    Args:
        plan: the filter.
        conjuncts: the conjuncts of its condition.
    """
    node = plan.child()
    while node_name(node) in ("SubqueryAlias", "Project"):
        node = node.child()
    if node_name(node) != "Window" or node.windowExpressions().size() != 1:
        return None
    (number,) = to_list(node.windowExpressions())
    function = node_name(number.child().windowFunction())
    if function not in RANKS:
        return None
    first, last = 1, None
    for conjunct in conjuncts:
        bounds = _bounds(conjunct, column_id(number))
        if bounds is None:
            continue  # The filter is applied to the rows within the bounds.
        first = max(first, bounds[0])
        last = last if bounds[1] is None else min(bounds[1], bounds[1] if last is None else last)
    return None if last is None else RankedRows(node, RANKS[function], first, last)


def _bounds(condition: Any, number: int) -> tuple[int, int | None] | None:
    """Return the least and the greatest number that meet a comparison with constants, or None for others.

    Args:
        condition: the condition.
        number: id of the column with the number.
    """
    name = node_name(condition)
    if name == "Between":
        column, low, high = to_list(condition.parameters())
        if not _is_column(column, number):
            return None
        start, end = _bounds_of("GreaterThanOrEqual", low), _bounds_of("LessThanOrEqual", high)
        return None if start is None or end is None else (start[0], end[1])
    if name not in _COMPARISONS:
        return None
    if _is_column(condition.left(), number):
        return _bounds_of(name, condition.right())
    if _is_column(condition.right(), number):
        return _bounds_of(_COMPARISONS[name], condition.left())
    return None


def _is_column(expression: Any, number: int) -> bool:
    inner = expression.child() if node_name(expression) == "Cast" else expression
    return node_name(inner) == "AttributeReference" and column_id(inner) == number


_COMPARISONS: Final = {
    "EqualTo": "EqualTo",
    "LessThan": "GreaterThan",
    "LessThanOrEqual": "GreaterThanOrEqual",
    "GreaterThan": "LessThan",
    "GreaterThanOrEqual": "LessThanOrEqual",
}
"""Comparisons, with the comparison of the exchanged sides."""


def _bounds_of(comparison: str, constant: Any) -> tuple[int, int | None] | None:
    if node_name(constant) != "Literal" or not str(constant.value()).lstrip("-").isdigit():
        return None
    value = int(str(constant.value()))
    return {
        "EqualTo": (value, value),
        "LessThan": (1, value - 1),
        "LessThanOrEqual": (1, value),
        "GreaterThan": (value + 1, None),
        "GreaterThanOrEqual": (value, None),
    }[comparison]


def running_frames(window: Any, is_time: Any) -> list[bool]:
    """Check that all functions of a window node are running totals.

    Args:
        window: the window node.
        is_time: returns whether a column is an event time.

    Returns:
        For each function, whether rows with equal sort values have the same total (RANGE).

    Raises:
        Unsupported: another function, frame or order; with its position in the query.
    """
    orders = to_list(window.orderSpec())
    frames: list[bool] = []
    for column in to_list(window.windowExpressions()):
        expression = column.child()
        function = expression.windowFunction()
        if node_name(function) in RANKS:
            raise unsupported_at(
                expression,
                f"the number of {RANKS[node_name(function)]}() has no limit",
                "filter outside the subquery: SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY key "
                "ORDER BY x DESC) AS n FROM t) WHERE n <= 10; with one window function in the subquery",
            )
        frame = expression.windowSpec().frameSpecification().sql()
        if node_name(function) != "AggregateExpression" or not frame.endswith(_RUNNING_FRAME):
            raise unsupported_at(
                expression,
                f"the window function {function.sql()} is not supported over this frame",
                OTHER_FUNCTIONS_HINT,
            )
        if not orders or not is_time(orders[0].child()) or "ASC" not in orders[0].sql():
            raise unsupported_at(
                expression,
                "a running total is supported only in the order of the event time",
                "use ORDER BY event_time, the unchanged event time of an input; compute another time in a "
                "separate dataset",
            )
        frames.append(frame.startswith("RANGE"))
    return frames


def comparable(names: Sequence[str], schema: StructType) -> list[str]:
    """Return SQL expressions of columns that group rows."""
    plain = (name[1:-1].replace("``", "`") if name.startswith("`") else name for name in names)
    kinds = [schema[name].dataType.simpleString() for name in plain]
    return [
        f"CAST({name} AS STRING)" if "map<" in kind or "variant" in kind else name
        for name, kind in zip(names, kinds, strict=True)
    ]


def first_values(names: Sequence[str], schema: StructType) -> list[str]:
    """Return SQL expressions of columns, for a grouping by :func:`comparable` of the same columns."""
    return [
        name if name == group else f"first({name}) AS {name}"
        for name, group in zip(names, comparable(names, schema), strict=True)
    ]


def add_sign(rows: str) -> str:
    """Return an SQL query of rows with :data:`SIGN` instead of their operation."""
    return f"SELECT * EXCEPT ({OPERATION}), IF({OPERATION} {RETRACTS}, -1, 1) AS {SIGN} FROM ({rows})"


def add_operation(changes: str) -> str:
    """Return an SQL query of changes with their operation instead of :data:`SIGN`."""
    operation = f"IF({SIGN} < 0, {Op.RETRACT:d}, {Op.APPEND:d}) AS {OPERATION}"
    return f"SELECT * EXCEPT ({SIGN}), {operation} FROM ({changes})"


def lifetimes(rows: str, names: Sequence[str], values: Sequence[str], schema: StructType) -> str:
    """Return an SQL query of the rows that are added, with the batch that retracts each.

    A retraction ends the oldest of the rows with the same values. One without such a row has no effect.

    Args:
        rows: SQL query of rows with ``names``, :data:`BATCH` and :data:`SIGN`.
        names: columns of a row, with :data:`PLACE`.
        values: the columns whose values a retraction repeats.
        schema: types of the columns.
    """
    same = f"OVER (PARTITION BY {', '.join(comparable(values, schema)) or 1}"
    order = ", ".join([BATCH, *([PLACE] if PLACE in names else [])])
    index = f"row_number() {same} ORDER BY {SIGN} DESC, {order}) - 1"
    ends = f"array_sort(collect_list(IF({SIGN} < 0, {BATCH}, NULL)) {same}))"
    until = f"coalesce(get(odf_ends, odf_index), {NEVER}) AS {UNTIL}"
    return (
        f"SELECT {', '.join(names)}, {BATCH} AS {FROM}, {until} "
        f"FROM (SELECT *, {ends} AS odf_ends, {index} AS odf_index FROM ({rows})) WHERE {SIGN} > 0"
    )


def rows_by_version(keys: Sequence[str]) -> str:
    """Return an SQL query of the rows of each key in each batch that changes them.

    It reads ``odf_lives``: rows with ``keys``, and their lifetimes as :data:`FROM` and :data:`UNTIL`. In the
    result these are the lifetime of a version of the key; 0 is the version before the new batches.
    """
    key_list = "".join(f"{key}, " for key in keys)
    partition = f"PARTITION BY {', '.join(keys)}" if keys else ""
    is_same = " AND ".join(
        [*(f"a.{key} <=> b.{key}" for key in keys), f"a.{FROM} <= odf_first", f"odf_first < a.{UNTIL}"]
    )
    changed = (
        f"SELECT DISTINCT {key_list}odf_first FROM odf_lives "
        f"LATERAL VIEW explode(array({FROM}, {UNTIL})) AS odf_first WHERE {FROM} < {UNTIL}"
    )
    versions = (
        f"SELECT *, lead(odf_first, 1, {NEVER}) OVER ({partition} ORDER BY odf_first) AS odf_next "
        f"FROM ({changed}) WHERE odf_first < {NEVER}"
    )
    return (
        f"SELECT a.* EXCEPT ({FROM}, {UNTIL}), odf_first AS {FROM}, odf_next AS {UNTIL} "
        f"FROM odf_lives a JOIN ({versions}) b ON {is_same}"
    )


def lifetime_changes(rows: str, columns: Sequence[str], schema: StructType) -> str:
    """Return an SQL query of the changes at the start and the end of lifetimes, as :func:`net_changes`.

    Args:
        rows: SQL query of rows with ``columns``, :data:`FROM` and :data:`UNTIL`.
        columns, schema: as for :func:`net_changes`.
    """
    ends = ", ".join(
        f"named_struct('batch', {batch}, 'sign', {sign})" for batch, sign in ((FROM, 1), (UNTIL, -1))
    )
    inside = f"each -> each.batch > 0 AND each.batch < {NEVER} AND {FROM} < {UNTIL}"
    changes = f"SELECT *, explode(filter(array({ends}), {inside})) AS odf_change FROM ({rows})"
    selected = ", ".join([*columns, f"odf_change.batch AS {BATCH}", f"odf_change.sign AS {SIGN}"])
    return net_changes(f"SELECT {selected} FROM ({changes})", columns, schema)


def net_changes(rows: str, columns: Sequence[str], schema: StructType, carried: Sequence[str] = ()) -> str:
    """Return an SQL query of changes without those that cancel each other within a batch.

    Args:
        rows: SQL query of the changes: ``columns``, :data:`BATCH` and :data:`SIGN`.
        columns: columns with the values of a row.
        schema: types of the columns.
        carried: columns whose minimum the result has.

    Returns:
        A query of ``columns``, ``carried``, :data:`BATCH` and :data:`SIGN`.
    """
    groups, values = comparable(columns, schema), first_values(columns, schema)
    values += [f"min({name}) AS {name}" for name in carried]
    selected = ", ".join([*columns, *carried, BATCH, f"CAST(sign(odf_net) AS INT) AS {SIGN}"])
    return (
        f"SELECT {selected} FROM (SELECT {', '.join([*values, BATCH])}, sum({SIGN}) AS odf_net FROM ({rows}) "
        f"GROUP BY {', '.join([*groups, BATCH])}) "
        "LATERAL VIEW explode(sequence(1L, abs(odf_net))) AS odf_copy WHERE odf_net <> 0"
    )
