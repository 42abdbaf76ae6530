"""The check that a query reads only its tables, on the syntax tree of DuckDB."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from typing import Any, Final

from odf_engine.query_process.query_request import ErrorReport

SYNTAX_TREE: Final = "SELECT json_serialize_sql($1)"
"""The statement that returns the syntax tree of a query as JSON."""
_TABLE_FUNCTIONS: Final = frozenset({
    "generate_series", "json_each", "json_tree", "range", "repeat", "repeat_row", "unnest",
})  # fmt: skip
"""Table functions that such a query can call."""
_KINDS: Final = frozenset({
    "SELECT_NODE", "BASE_TABLE", "TABLE_FUNCTION", "SHOW_REF", "JOIN", "SUBQUERY", "EMPTY", "EXPRESSION_LIST",
    "PIVOT",
})  # fmt: skip
"""Parts of a FROM clause. The names of tables and functions are checked too."""
_LOCAL_VIEW: Final = re.compile(r"(duckdb|pg|pragma|sqlite)_\w+")
"""Views of DuckDB that a query can name without a schema."""
_NO_LISTS: Final = "databases, tables and columns cannot be listed in SQL"
_SCHEMA: Final = "information_schema"
_LOCAL_FUNCTION: Final = re.compile(
    r"current_setting|getenv|getvariable|format_type|get_block_size|pg_get_\w+"
)
"""Functions that return settings, or read the catalog."""


def find_refused(
    tree: dict[str, Any], tables: Collection[str], locate: Callable[[int], str]
) -> ErrorReport | None:
    """Return why a query is refused, or None if it reads only its tables.

    Args:
        tree: the syntax tree.
        tables: the names of the tables.
        locate: returns the line and column of a position in the query.
    """
    if tree["error"]:  # it is one SELECT
        return ErrorReport("query", tree["error_message"], hint="write it as a SELECT")
    nodes = list(_walk(tree))
    maps = (node["cte_map"]["map"] for node in nodes if "cte_map" in node)
    expressions = {entry["key"].casefold() for entries in maps for entry in entries}
    # Outside the query that declares it, the name of a common table expression can refer to a view.
    known = {name.casefold() for name in tables}
    known |= {name for name in expressions if not _LOCAL_VIEW.fullmatch(name)}
    refused = (_check_node(node, known, locate) for node in nodes)
    return next((report for report in refused if report is not None), None)


def _walk(tree: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield all nodes of a tree; a query can have more levels than Python allows functions."""
    waiting: list[Any] = [tree]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield value
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value


def _check_node(
    node: dict[str, Any], known: Collection[str], locate: Callable[[int], str]
) -> ErrorReport | None:
    if node.get("class") in ("FUNCTION", "WINDOW") and "function_name" not in node:
        problem = "the syntax trees of this version of DuckDB are unknown"  # nothing is permitted by mistake
        return ErrorReport("other", problem, hint="install an earlier version of duckdb on the server")
    if _LOCAL_FUNCTION.fullmatch(function := node.get("function_name", "").casefold()):
        return _refuse(function)
    if "class" in node or ("sample" not in node and str(node.get("type")) not in _KINDS):
        return None  # not a part of a FROM clause
    parts = [part for name in ("catalog_name", "schema_name", "table_name") if (part := node.get(name))]
    kind = node["type"]
    if kind not in _KINDS or (kind == "SHOW_REF" and parts):
        return ErrorReport("query", _NO_LISTS, hint="list them with your driver")
    if kind == "TABLE_FUNCTION":
        function = node["function"]["function_name"].casefold()
        if function not in _TABLE_FUNCTIONS:
            hint = f"query a dataset, or use one of {', '.join(sorted(_TABLE_FUNCTIONS))}"
            return ErrorReport("query", f"clients cannot call the table function '{function}'", hint=hint)
    if kind == "BASE_TABLE" and (len(parts) != 1 or parts[0].casefold() not in known):
        if _LOCAL_VIEW.fullmatch(parts[-1].casefold()) or _SCHEMA in map(str.casefold, parts[:-1]):
            return _refuse(parts[-1])
        name, place = ".".join(parts), locate(node["query_location"])
        hint = f"write (SELECT * FROM {name}) instead"
        return ErrorReport("query", f"dataset '{name}' cannot be named here", place, hint, table=name)
    return None


def _refuse(name: str) -> ErrorReport:
    problem = f"'{name}' reads the catalog of this server, which clients cannot read"
    return ErrorReport("query", problem, hint="list the tables with your driver, or query a dataset")
