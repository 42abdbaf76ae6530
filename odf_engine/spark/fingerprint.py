"""What the state of a query depends on: the parts of its plan that keep something, as text.

The text is the same whenever the state is, and another one where a state could not be gone on from:
what is grouped by and computed, the windows, the rows that are joined with the columns that are used,
and everything below. What comes after is left out: columns that are computed of the results, conditions
on them. It may differ where the state would be the same; that costs a new state, and no wrong row.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from odf_engine.spark.catalyst import analysed, items, name_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_KEEPING: Final = ("Aggregate", "Join", "Distinct", "Deduplicate", "Window")
_ID: Final = re.compile(r"#\d+")
_PLACE: Final = re.compile(r"StreamingRelation .*?/(input-\d+)/\*.*")
_NODE: Final = re.compile(r"(?<=EventTimeWatermark )[0-9a-f-]{36}, ")
_LIMIT: Final = (1 << 31) - 1


def fingerprint(session: SparkSession, frame: DataFrame, *, whole: bool) -> str:
    """The text for the result of a query over streaming views.

    Args:
        session: in which the query was made.
        frame: its result.
        whole: whether every column of the result counts, since its rows are kept.
    """
    java_session: Any = session._jsparkSession
    plan = java_session.sessionState().optimizer().execute(analysed(frame))
    parts = [_text(plan)] if whole else [part for node in _topmost(plan) for part in _kept(node)]
    ids: dict[str, str] = {}
    return _ID.sub(lambda found: ids.setdefault(found[0], f"#{len(ids)}"), "\n".join(parts))


def _topmost(plan: Any) -> Iterator[Any]:
    """The nodes that keep something, with none of their kind above them."""
    if name_of(plan) in _KEEPING and plan.isStreaming():
        yield plan
        return
    for child in items(plan.children()):
        yield from _topmost(child)


def _kept(node: Any) -> Iterator[str]:
    if name_of(node) != "Aggregate":
        yield _text(node)
        return
    yield f"by {', '.join(each.toString() for each in items(node.groupingExpressions()))}"
    yield from dict.fromkeys(
        text for column in items(node.aggregateExpressions()) for text in _aggregates(column)
    )
    yield _text(node.child())


def _aggregates(expression: Any) -> Iterator[str]:
    if name_of(expression) == "AggregateExpression":
        yield expression.toString()
        return
    for each in items(expression.children()):
        yield from _aggregates(each)


def _text(plan: Any) -> str:
    text = plan.treeString(True, False, _LIMIT, False, False)
    return _NODE.sub("", _PLACE.sub(r"\1", text))
