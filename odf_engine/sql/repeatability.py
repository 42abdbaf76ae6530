"""Static search for expressions that are not repeatable, and for operations over several rows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from sqlglot import exp

from odf_engine.metadata.model import SqlQueryStep
from odf_engine.sql.expression_lineage import LineageUnresolved, parse_query
from odf_engine.sql.query_text import line_and_column, tokenize

_FUNCTIONS: Final = frozenset({
    "curdate", "current_catalog", "current_database", "current_date", "current_schema", "current_time",
    "current_timestamp", "current_user", "input_file_block_length", "input_file_block_start",
    "input_file_name", "localtimestamp", "monotonically_increasing_id", "now", "rand", "randn", "random",
    "randstr", "session_user", "shuffle", "spark_partition_id", "uniform", "user", "uuid",
})  # fmt: skip
_WITHOUT_ARGUMENTS: Final = frozenset({"unix_timestamp"})
"""Functions that return the current time if they have no arguments."""
_WITHOUT_PARENTHESES: Final = frozenset({"current_date", "current_time", "current_timestamp", "current_user"})
_TYPES: Final = frozenset({"DATE", "TIMESTAMP", "TIMESTAMP_LTZ", "TIMESTAMP_NTZ"})
_SPECIAL_TIME: Final = re.compile(r"['\"]\s*(now|today|tomorrow|yesterday)\b", re.IGNORECASE)


class NonRepeatable(NamedTuple):
    """An expression that is not repeatable.

    Attributes:
        text: the expression, such as ``rand()``.
        step: index of its step.
        line, column: its position in the step, both from 1.
    """

    text: str
    step: int
    line: int
    column: int


def find_nonrepeatable(steps: Sequence[SqlQueryStep]) -> NonRepeatable | None:
    """Return the first expression of a query that is not repeatable; None if none is known.

    A step that cannot be parsed is skipped: the engine validates it.
    """
    names: set[str] = set()
    for index, step in enumerate(steps):
        found = [*_special_times(step.query)]
        try:
            tree = parse_query(step.query, ())
            names |= _defined_names(tree)
            found += _calls(tree, names)
        except (LineageUnresolved, RecursionError):
            pass
        if found:
            start, text = min(found)
            return NonRepeatable(text, index, *line_and_column(step.query, start))
    return None


_OPERATIONS: Final[tuple[tuple[type[exp.Expr], str], ...]] = (
    (exp.Window, "a window function"),
    (exp.AggFunc, "an aggregation"),
    (exp.Group, "an aggregation"),
    (exp.Join, "a join"),
    (exp.Distinct, "DISTINCT"),
    (exp.Intersect, "INTERSECT"),
    (exp.Except, "EXCEPT"),
    (exp.Limit, "a LIMIT"),
    (exp.Offset, "an OFFSET"),
    (exp.Exists, "a subquery in an expression"),
)


def find_stateful_operation(steps: Sequence[SqlQueryStep]) -> str | None:
    """Return the first operation over several rows of a query as text; None if none is known.

    A step that cannot be parsed is skipped: the engine validates it.
    """
    for step in steps:
        try:
            tree = parse_query(step.query, ())
        except (LineageUnresolved, RecursionError):
            continue
        for kind, text in _OPERATIONS:
            if tree.find(kind) is not None:
                return text
        if any(each.args.get("distinct") for each in tree.find_all(exp.Union)):
            return "UNION without ALL"
        if any(each.args.get("query") for each in tree.find_all(exp.In)):
            return "a subquery in an expression"
    return None


def _calls(tree: exp.Expr, names: set[str]) -> Iterator[tuple[int, str]]:
    """Yield functions with their offsets in the text; ``names`` are columns that the query defines."""
    for node in tree.find_all(exp.Anonymous, exp.Column):
        name = node.name.lower()
        if isinstance(node, exp.Anonymous):
            if name in _FUNCTIONS or (name in _WITHOUT_ARGUMENTS and not node.expressions):
                yield node.meta.get("start", 0), f"{name}()"
        elif name in _WITHOUT_PARENTHESES and name not in names:
            identifier = node.this
            if not node.table and isinstance(identifier, exp.Identifier) and not identifier.quoted:
                yield identifier.meta.get("start", 0), name


def _defined_names(tree: exp.Expr) -> set[str]:
    """Return the column names that a query defines, in lower case."""
    names = {each.alias.lower() for each in tree.find_all(exp.Alias)}
    for each in tree.find_all(exp.TableAlias):
        names.update(column.name.lower() for column in each.columns)
    return names


def _special_times(query: str) -> Iterator[tuple[int, str]]:
    """Yield literals such as ``TIMESTAMP 'now'`` with their offsets in the text."""
    for word, value in pairwise(tokenize(query)):
        is_literal = word.text.upper() in _TYPES and value.kind == "string"
        if is_literal and _SPECIAL_TIME.match(value.text):
            yield word.start, f"{word.text} {value.text}"
