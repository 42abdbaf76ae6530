"""Adds columns to the result of a query, within its text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace
from sqlglot import exp

from odf_engine.errors import InvalidQuery
from odf_engine.metadata.model import SqlQueryStep
from odf_engine.sql.expression_lineage import AGGREGATES, LineageUnresolved, function_name, parse_query
from odf_engine.sql.query_text import (
    Token,
    attach_query_excerpt,
    backquote_identifiers,
    line_and_column,
    tokenize,
)

_PLAIN_NAME: Final = re.compile(r"[a-z_][a-z0-9_]*", re.ASCII)
_OBSTACLES: Final = {
    "with_": "a WITH clause",
    "distinct": "DISTINCT",
    "joins": "a join",
    "laterals": "a LATERAL VIEW",
    "group": "GROUP BY",
    "having": "HAVING",
}
"""Clauses of a SELECT that may change the meaning of a further column."""


def mentions(steps: Sequence[SqlQueryStep], name: str) -> bool:
    """Return whether a query has a word or quoted identifier with this name, ignoring case."""
    return any(
        token.kind in ("word", "quoted") and token.name.casefold() == name.casefold()
        for step in steps
        for token in tokenize(backquote_identifiers(step.query))
    )


def add_columns(
    steps: Sequence[SqlQueryStep], table: str, names: Sequence[str], quote: str
) -> list[SqlQueryStep]:
    """Return a query whose result has further columns of the table that it reads.

    Args:
        steps: the steps of the query, which only selects rows and columns of the table.
        table: name of the table in the query.
        names: names of the columns.
        quote: the quotation mark of identifiers in the dialect of the query.

    Raises:
        InvalidQuery: the columns have to be added by hand; ``where`` is the position.
    """
    extended, index = list(steps), len(steps) - 1
    by_alias = {step.alias.casefold(): at for at, step in enumerate(steps) if step.alias is not None}
    with attach_query_excerpt(steps):
        while True:
            selected = _read_select(steps, index, names)
            if not selected.has_star:
                written = [
                    name if _is_plain(name) else quote + name.replace(quote, quote * 2) + quote
                    for name in names
                ]
                extended[index] = replace(steps[index], query=_insert(steps[index].query, selected, written))
            if selected.table.casefold() == table.casefold():
                return extended
            earlier = by_alias.get(selected.table.casefold())
            if earlier is None or earlier >= index:
                raise _obstacle(steps, index, selected.end, names, f"it reads {selected.table}")
            index = earlier


class _SelectList(NamedTuple):
    """The list of columns of a SELECT.

    Attributes:
        last: offset of the last column.
        comma: offset of the comma before it, or None if it is the only one.
        end: offset after it.
        has_star: the list contains ``*``.
        table: name of the table.
    """

    last: int
    comma: int | None
    end: int
    has_star: bool
    table: str


def _read_select(steps: Sequence[SqlQueryStep], index: int, names: Sequence[str]) -> _SelectList:
    text = backquote_identifiers(steps[index].query)
    words = tokenize(text)
    select, comma, end = 0, None, len(words)
    depth = 0
    for at, token in enumerate(words):
        depth += {"(": 1, ")": -1, "[": 1, "]": -1}.get(token.text, 0)
        keyword = token.text.upper() if token.kind == "word" and not depth else ""
        if keyword == "SELECT":
            select, comma = at, None
        elif keyword == "FROM":
            end = at
            break
        elif token.text == "," and not depth:
            comma = at
    last_end = words[end - 1].end if words else 0
    try:
        tree = parse_query(text, names)
    except (LineageUnresolved, RecursionError) as error:
        raise _obstacle(steps, index, last_end, names, f"it is not supported here: {error}") from None
    if (problem := _find_obstacle(tree)) is not None:
        raise _obstacle(steps, index, last_end, names, f"it has {problem}")
    source = tree.args["from_"].this
    first: Token = words[(select if comma is None else comma) + 1]
    return _SelectList(
        first.start,
        None if comma is None else words[comma].start,
        last_end,
        any(projection.is_star for projection in tree.expressions),
        source.name,
    )


def _find_obstacle(tree: exp.Expr) -> str | None:
    """Return the part of a query that may change the meaning of a further column, or None if absent."""
    if not isinstance(tree, exp.Select):
        return "several SELECT clauses"
    for key, text in _OBSTACLES.items():
        if tree.args.get(key):
            return text
    clause = tree.args.get("from_")
    if clause is None or not isinstance(clause.this, exp.Table) or clause.this.args.get("pivots"):
        return "no table after FROM"
    for projection in tree.expressions:
        for call in projection.find_all(exp.Func):
            is_aggregate = isinstance(call, exp.AggFunc) or function_name(call) in AGGREGATES
            if is_aggregate and call.find_ancestor(exp.Window, exp.Subquery) is None:
                return "an aggregation"
    return None


def _obstacle(
    steps: Sequence[SqlQueryStep], index: int, offset: int, names: Sequence[str], why: str
) -> InvalidQuery:
    line, column = line_and_column(steps[index].query, offset)
    step = f"query step {index + 1} of {len(steps)}" if len(steps) > 1 else "query"
    listed = ", ".join(names)
    return InvalidQuery(
        f"{listed} cannot be added to the query automatically: {why}",
        where=f"{step}, line {line}, column {column}",
        hint=f"add {listed} to the query here, then run the command again",
    )


def _is_plain(name: str) -> bool:
    """Return whether a query can have the name without quotation marks."""
    if not _PLAIN_NAME.fullmatch(name):
        return False
    try:
        columns = parse_query(f"SELECT {name} FROM t", ()).expressions
    except LineageUnresolved:
        return False
    return len(columns) == 1 and isinstance(columns[0], exp.Column)


def _insert(query: str, selected: _SelectList, names: Sequence[str]) -> str:
    """Return the query with further columns, laid out like the last one."""
    comma = selected.comma
    if comma is not None and (indent := _indent_of(query, comma)) is not None:
        between = query[comma + 1 : selected.last]
        added = "".join(f"\n{indent},{between}{name}" for name in names)
    elif (indent := _indent_of(query, selected.last)) is not None:
        added = "".join(f",\n{indent}{name}" for name in names)
    else:
        added = "".join(f", {name}" for name in names)
    return query[: selected.end] + added + query[selected.end :]


def _indent_of(query: str, offset: int) -> str | None:
    """Return the spaces before an offset if it is the first text of a line after the first, or None."""
    start = query.rfind("\n", 0, offset) + 1
    indent = query[start:offset]
    return indent if start and not indent.strip() else None
