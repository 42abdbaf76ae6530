"""Checks that a query reads only its views and runs no programs.

The author of a query may be unknown. The session's settings already exclude files as tables and functions
that call Java or read files. This module checks the plans of a query: the parsed plan, before Spark resolves
any name in it, may consist of known kinds of nodes only, and the analysed plan may contain no program.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterator
from collections.abc import Set as AbstractSet
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final

from odf_engine.spark.errors import QueryError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ALLOWED: Final = frozenset({
    # Tables and their aliases
    "LocalRelation", "NamedStreamingRelation", "OneRowRelation", "SubqueryAlias", "UnresolvedInlineTable",
    "UnresolvedRelation", "UnresolvedSubqueryColumnAliases", "UnresolvedTVFAliases",
    "UnresolvedTableValuedFunction",
    # Clauses of a SELECT, and pipe operators
    "Aggregate", "Distinct", "Filter", "Generate", "GlobalLimit", "LimitAll", "LocalLimit", "Offset",
    "PipeOperator", "Pivot", "Project", "RepartitionByExpression", "Sample", "Sort",
    "UnresolvedBinBy", "UnresolvedEventTimeWatermark", "UnresolvedHaving", "UnresolvedHint",
    "UnresolvedQualify", "UnresolvedWith", "Unpivot", "WithWindowDefinition",
    # Combinations of tables
    "AsOfJoin", "Except", "Intersect", "Join", "LateralJoin", "NearestByJoin", "Union",
})  # fmt: skip
"""Kinds of nodes of a parsed plan that a query may consist of."""
_CATALYST: Final = "org.apache.spark.sql.catalyst."

_REFUSED: Final = {
    "ScriptTransformation": (
        "a query cannot run a program",
        "use functions of SQL; what only a program can do belongs in a Pipe step of `prepare`",
    ),
    "PlanWithUnresolvedIdentifier": ("IDENTIFIER() cannot name a table", "write its name"),
    "RelationTimeTravel": ("a view has no earlier versions", "leave VERSION or TIMESTAMP AS OF out"),
    "RelationChanges": ("a view has no history of changes", "leave CHANGES out"),
}
"""Other kinds, and what to say of them."""

_WALKER: Final = """\
public Object apply(Object root) {
    StringBuilder names = new StringBuilder();
    java.util.List found = new java.util.ArrayList();
    java.util.Map seen = new java.util.IdentityHashMap();
    java.util.Deque waiting = new java.util.ArrayDeque();
    waiting.push(root);
    while (!waiting.isEmpty()) {
        Object each = waiting.pop();
        if (seen.put(each, each) != null) continue;
        if (each instanceof org.apache.spark.sql.catalyst.plans.QueryPlan) {
            names.append(each.getClass().getName()).append('\\n');
            found.add(each);
        }
        scala.collection.Iterator parts = scala.collection.Iterator$.MODULE$.empty();
        if (each instanceof scala.collection.Iterable) parts = ((scala.collection.Iterable) each).iterator();
        else if (each instanceof scala.Product) parts = ((scala.Product) each).productIterator();
        while (parts.hasNext()) {
            Object part = parts.next();
            if (part != null) waiting.push(part);
        }
    }
    found.add(0, names.toString());
    return found;
}
"""
"""Java code that finds every plan within a plan: in children, expressions, collections, any other field.

Spark's own methods omit fields, such as the definitions of named windows. The result is a list: first the
class names of the plans, one per line, then the plans. A call from Python for each field would be too slow.
"""


def check_confined(
    session: SparkSession, plan: Any, views: Collection[str], *, clauses: bool = False
) -> None:
    """Checks a parsed query.

    Args:
        session: in which it was parsed.
        plan: Spark's logical plan, not analysed.
        views: the names it may read.
        clauses: whether it may say FOR SYSTEM_TIME AS OF.

    Raises:
        QueryError: it runs a program, or reads something else; with the place.
    """
    tables, own = tables_of(session, plan, clauses=clauses)
    names = own | {name.casefold() for name in views}
    for parts, node in tables:
        if len(parts) != 1 or parts[0].casefold() not in names:
            named = ".".join(f"`{part}`" for part in parts)
            raise wrong(node, f"there is no table or view {named}", None)


def check_analysed(session: SparkSession, frame: DataFrame) -> None:
    """Checks that the analysed plan of a query contains no program, whatever the parsed plan was.

    Raises:
        QueryError: it contains one; with the place.
    """
    java: Any = frame._jdf
    for kind, node in _nodes(session, java.queryExecution().analyzed()):
        if kind in _REFUSED:
            raise wrong(node(), *_REFUSED[kind])


def tables_of(
    session: SparkSession, plan: Any, *, clauses: bool = False
) -> tuple[list[tuple[tuple[str, ...], Any]], AbstractSet[str]]:
    """The tables that a parsed query names, in any order, and the names that its own WITH clauses make.

    Args:
        session: in which it was parsed.
        plan: Spark's logical plan, not analysed.
        clauses: whether it may say FOR SYSTEM_TIME AS OF.

    Returns:
        The parts of each name with the node that has it, and the query's own names in small letters.

    Raises:
        QueryError: it runs a program, or could name tables that cannot be seen here; with the place.
    """
    tables: list[tuple[tuple[str, ...], Any]] = []
    own: set[str] = set()
    for kind, node in _nodes(session, plan):
        if kind not in _ALLOWED and not (clauses and kind == "RelationTimeTravel"):
            raise wrong(node(), *_REFUSED.get(kind, (f"a query cannot contain {kind}", None)))
        if kind == "UnresolvedRelation":
            tables.append((tuple(_items(node().multipartIdentifier())), node()))
        if kind == "UnresolvedWith":
            own.update(each.alias().casefold() for each in _items(node().innerChildren()))
    return tables, own


def _nodes(session: SparkSession, plan: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The kind of every node of a plan, with a function that returns the node."""
    found = _walker(session._jvm, session.sparkContext._gateway).apply(plan)
    for at, name in enumerate(found.get(0).splitlines(), 1):
        package, _, kind = name.rpartition(".")
        yield kind if package.startswith(_CATALYST) else name, partial(found.get, at)


@lru_cache(maxsize=1)
def _walker(java: Any, gateway: Any) -> Any:
    """The compiled :data:`_WALKER`, as a ``java.util.function.Function``."""
    interfaces = gateway.new_array(java.java.lang.Class, 1)
    interfaces[0] = java.java.lang.Class.forName("java.util.function.Function")
    evaluator = java.org.codehaus.janino.ClassBodyEvaluator()
    # Two threads may compile it at once, and Py4J finds methods by the name of a class.
    evaluator.setClassName(f"odf.Walker{uuid.uuid4().hex}")
    evaluator.setParentClassLoader(java.java.lang.Thread.currentThread().getContextClassLoader())
    evaluator.setImplementedInterfaces(interfaces)
    evaluator.cook(_WALKER)
    constructor = evaluator.getClazz().getDeclaredConstructors()[0]
    return constructor.newInstance(gateway.new_array(java.java.lang.Object, 0))


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
