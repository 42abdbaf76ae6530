"""The first row of each key: ``row_number() OVER (PARTITION BY … ORDER BY offset) = 1`` on a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from odf_engine.errors import InvalidQuery, Unsupported
from odf_engine.spark.catalyst import Catalyst, id_of, items, name_of, references

if TYPE_CHECKING:
    from odf_engine.spark.origins import Part

_WATERMARK: Final = "spark.watermarkDelayMs"


def marked(column: Any) -> bool:
    """Whether Spark knows up to when a column's time is complete."""
    return name_of(column) == "AttributeReference" and column.metadata().contains(_WATERMARK)


def window_of_firsts(plan: Any) -> Any:
    """The window function under a filter for the first row of each key; None for other filters."""
    condition, node = plan.condition(), plan.child()
    while name_of(node) in ("SubqueryAlias", "Project"):
        node = node.child()
    if name_of(node) != "Window" or node.windowExpressions().size() != 1:
        return None
    (function,) = items(node.windowExpressions())
    if name_of(condition) not in ("EqualTo", "LessThanOrEqual"):
        return None
    one = name_of(condition.right()) == "Literal" and str(condition.right().value()) == "1"
    numbered = "row_number()" in function.sql().lower()
    return node if one and numbered and references(condition.left()) == {id_of(function)} else None


def keys_of_firsts(window: Any, below: Part) -> list[Any]:
    """The columns by which rows are the same.

    Raises:
        InvalidQuery: keys had to be kept for ever.
        Unsupported: another order than that of arrival.
    """
    keys, orders = items(window.partitionSpec()), items(window.orderSpec())
    plain = len(orders) == 1 and name_of(orders[0].child()) == "AttributeReference" and below.origin
    if not plain or id_of(orders[0].child()) not in below.passed or "ASC" not in orders[0].sql():
        raise Unsupported(
            "the first row of each key can be had in the order of arrival alone",
            where="query",
            hint="write row_number() OVER (PARTITION BY … ORDER BY offset) = 1 over one input",
        )
    if not any(marked(key) for key in keys):
        raise InvalidQuery(
            "the first row of each key without a time had to keep all keys for ever",
            where="query",
            hint="say for how long a key counts: PARTITION BY key, window(event_time, '1 day')",
        )
    return keys


def firsts(make: Catalyst, plan: Any, window: Any, keys: list[Any], rows: Any) -> Any:
    """The first rows, as the filter would give them.

    Args:
        make: makes nodes.
        plan: the filter.
        window: the window function under it.
        keys: the columns by which rows are the same.
        rows: in their order.
    """
    # Spark takes one time for the whole stream: that of the keys.
    key_ids = {id_of(key) for key in keys}
    columns = items(window.child().output())
    empty = make.java.scala.Some(make.companion("Metadata", make.java.org.apache.spark.sql.types).empty())
    plain: list[Any] = []
    for column in columns:
        if marked(column) and id_of(column) not in key_ids:
            new_id = make.expressions.NamedExpression.newExprId()
            nothing = make.seq([])
            plain.append(make.expressions.Alias(column, column.name(), new_id, nothing, empty, make.seq([])))
        else:
            plain.append(column)
    deduplicated = make.catalyst.plans.logical.Deduplicate(
        make.seq(keys), make.project(plain, rows), make.none()
    )
    again = [
        new if new is old else make.renamed(new.toAttribute(), old)
        for new, old in zip(plain, columns, strict=True)
    ]
    number = make.renamed(make.literal(1), items(window.windowExpressions())[0])
    made = make.project([*again, number], deduplicated)
    node, between = plan.child(), []
    while name_of(node) != "Window":
        between += [node] if name_of(node) == "Project" else []
        node = node.child()
    for project in reversed(between):
        made = make.project(items(project.projectList()), made)
    return made
