"""Joins of streams that Spark can run: which rows belong together, and for how long each is kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from odf_engine.errors import InvalidQuery
from odf_engine.spark.catalyst import Catalyst, id_of, items, name_of, references

_FAR: Final = 10**15


def check_join(make: Catalyst, join: Any, conditions: Sequence[Any]) -> None:
    """Lets pass joins by something that is equal, whose rows need not be kept for ever.

    Args:
        make: makes nodes.
        join: of two streams.
        conditions: all of what has to hold for a pair of rows.

    Raises:
        InvalidQuery: another join; the hint says how to write it.
    """
    whole = None
    for each in conditions:
        whole = each if whole is None else make.expressions.And(whole, each)
    sides = [{id_of(column) for column in items(side.output())} for side in (join.left(), join.right())]
    if not any(_is_equality(each, *sides) for each in _parts(conditions)):
        raise InvalidQuery(
            "a join of inputs says nothing that is equal on both sides, so every row had to be compared "
            "with every other",
            where="query",
            hint="say what belongs together: ON a.key = b.key AND b.event_time BETWEEN …",
        )
    option = make.java.scala.Option
    helper = make.companion("StreamingJoinHelper", make.catalyst.analysis)
    asked = make.catalyst.plans.logical.Join(
        join.left(), join.right(), join.joinType(), option.apply(whole), join.hint()
    )
    if helper.isWatermarkInJoinKeys(asked):
        return
    left, right, mark = join.left().outputSet(), join.right().outputSet(), option.apply(_FAR)
    bounds = (
        helper.getStateValueWatermark(left, right, option.apply(whole), mark),
        helper.getStateValueWatermark(right, left, option.apply(whole), mark),
    )
    if not all(bound.isDefined() for bound in bounds):
        raise InvalidQuery(
            "a join of inputs has no bound in time, so all of their rows had to be kept for ever",
            where="query",
            hint="say how far apart two rows may be: ON … AND b.event_time BETWEEN "
            "a.event_time - INTERVAL 1 DAY AND a.event_time + INTERVAL 1 DAY",
        )


def _parts(conditions: Sequence[Any]) -> list[Any]:
    """The conditions that all have to hold, each by itself."""
    parts: list[Any] = []
    waiting = list(conditions)
    while waiting:
        each = waiting.pop()
        if name_of(each) == "And":
            waiting += [each.left(), each.right()]
        else:
            parts.append(each)
    return parts


def _is_equality(condition: Any, left: set[int], right: set[int]) -> bool:
    if name_of(condition) not in ("EqualTo", "EqualNullSafe"):
        return False
    ours, theirs = references(condition.left()), references(condition.right())
    return bool(ours and theirs) and (
        (ours <= left and theirs <= right) or (ours <= right and theirs <= left)
    )
