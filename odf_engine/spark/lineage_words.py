"""What is done to rows, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from odf_engine.spark.catalyst import name_of

_SESSION: Final = "spark.sessionWindow"


def is_session(grouping: Any) -> bool:
    """Whether rows are grouped by the session that they belong to."""
    return name_of(grouping) == "AttributeReference" and grouping.metadata().contains(_SESSION)


def distinct_words(columns: Sequence[Any]) -> str:
    """A DISTINCT."""
    return (
        f"of rows that are the same in {_listed(columns)}, the first is there (DISTINCT); the others up to "
        "this transaction would have taken its place"
    )


def first_words(keys: Sequence[Any]) -> str:
    """The first row of each key."""
    return (
        f"of rows of the same {_listed(keys)} the first is there; the others up to this transaction would "
        "have taken its place"
    )


def grouped_words(grouping: Sequence[Any]) -> str:
    """A grouping."""
    if not grouping:
        return "grouped: all rows together"
    sessions = " and in one session" if any(map(is_session, grouping)) else ""
    return f"grouped: rows of the same {_listed(grouping)}{sessions}"


def joined_words(join: Any) -> str:
    """A join."""
    said = f" ON {join.condition().get().sql()}" if join.condition().isDefined() else ""
    return f"joined: {join.joinType().sql()} JOIN{said}"


def _listed(columns: Sequence[Any]) -> str:
    return ", ".join(each.sql() for each in columns)
