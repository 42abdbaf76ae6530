"""Queries look at the views that they were given, and at nothing else; they run no programs.

A query may come from somebody else. That files are no tables, and that functions which call Java or
read files are not there, is settled with the session; what is left is seen in the parsed query, before
Spark looks up anything that it names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from collections.abc import Set as AbstractSet
from typing import Any, Final

from odf_engine.spark.errors import QueryError

_REFUSED: Final = {
    "ScriptTransformation": (
        "a query cannot run a program",
        "use functions of SQL; what only a program can do belongs in a Pipe step of `prepare`",
    ),
    "PlanWithUnresolvedIdentifier": ("IDENTIFIER() cannot name a table", "write its name"),
    "RelationTimeTravel": ("a view has no earlier versions", "leave VERSION or TIMESTAMP AS OF out"),
}


def check_confined(plan: Any, views: Collection[str], *, clauses: bool = False) -> None:
    """Looks through a parsed query.

    Args:
        plan: Spark's logical plan, not analysed.
        views: the names it may read.
        clauses: whether it may say FOR SYSTEM_TIME AS OF.

    Raises:
        QueryError: it runs a program, or reads something else; with the place.
    """
    tables, own = tables_of(plan, clauses=clauses)
    names = own | {name.casefold() for name in views}
    for parts, node in tables:
        if len(parts) != 1 or parts[0].casefold() not in names:
            named = ".".join(f"`{part}`" for part in parts)
            raise wrong(node, f"there is no table or view {named}", None)


def tables_of(
    plan: Any, *, clauses: bool = False
) -> tuple[list[tuple[tuple[str, ...], Any]], AbstractSet[str]]:
    """The tables that a parsed query names, in any order, and the names that its own WITH clauses make.

    Args:
        plan: Spark's logical plan, not analysed.
        clauses: whether it may say FOR SYSTEM_TIME AS OF.

    Returns:
        The parts of each name with the node that has it, and the query's own names in small letters.

    Raises:
        QueryError: it runs a program, or could name tables that cannot be seen here; with the place.
    """
    tables: list[tuple[tuple[str, ...], Any]] = []
    own: set[str] = set()
    for kind, node in _nodes(plan):
        if kind in _REFUSED and not (clauses and kind == "RelationTimeTravel"):
            message, hint = _REFUSED[kind]
            raise wrong(node, message, hint)
        if kind == "UnresolvedRelation":
            tables.append((tuple(_items(node.multipartIdentifier())), node))
        own.update(each.alias().casefold() for each in _named_within(kind, node))
    return tables, own


def _nodes(plan: Any) -> Iterator[tuple[str, Any]]:
    """Every node with its kind. Each call goes to Java and back: there are as few as can be."""
    waiting = [plan]
    while waiting:
        node = waiting.pop()
        kind = node.nodeName()
        yield kind, node
        waiting += [*_items(node.children()), *_items(node.subqueries()), *_named_within(kind, node)]


def _named_within(kind: str, node: Any) -> Iterator[Any]:
    """The queries of a WITH clause."""
    if kind == "UnresolvedWith":
        yield from _items(node.innerChildren())


def _items(sequence: Any) -> Iterator[Any]:
    iterator = sequence.iterator()
    while iterator.hasNext():
        yield iterator.next()


def wrong(node: Any, message: str, hint: str | None) -> QueryError:
    """The error with the place of a node in the query."""
    origin = node.origin()
    line, start = origin.line(), origin.startPosition()
    if line.isEmpty() or start.isEmpty():
        return QueryError(message, hint=hint)
    place = (line.get(), start.get() + 1)
    where = f"line {place[0]}, column {place[1]}"
    return QueryError(message, hint=hint, where=where, line=place[0], column=place[1])
