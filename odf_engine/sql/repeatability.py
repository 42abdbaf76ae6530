"""Static search for expressions that are not repeatable, and for operations over several rows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from sqlglot import exp

from odf_engine.metadata.model import SqlQueryStep
from odf_engine.sql.expression_lineage import LineageUnresolved, parse_query
from odf_engine.sql.query_text import line_and_column, tokenize

_FUNCTIONS: Final = frozenset({
    "curdate", "current_catalog", "current_database", "current_date", "current_path", "current_schema",
    "current_time", "current_timestamp", "current_user", "input_file_block_length",
    "input_file_block_start", "input_file_name", "localtime", "localtimestamp",
    "monotonically_increasing_id", "now",
    "rand", "randn", "random", "randstr", "session_user", "shuffle", "spark_partition_id", "uniform", "user",
    "uuid", "version",
})  # fmt: skip
_WITHOUT_ARGUMENTS: Final = frozenset({"unix_timestamp"})
"""Functions that return the current time if they have no arguments."""
_WITHOUT_PARENTHESES: Final = frozenset({"current_date", "current_time", "current_timestamp", "current_user"})
_TYPES: Final = frozenset({"DATE", "TIMESTAMP", "TIMESTAMP_LTZ", "TIMESTAMP_NTZ"})
SPECIAL_TIMES: Final = ("now", "today", "tomorrow", "yesterday")
"""Texts that Spark converts to the current time or day, in any case and between spaces."""
_TIME_FUNCTIONS: Final = frozenset({
    "date", "timestamp", "to_date", "to_timestamp", "to_timestamp_ltz", "to_timestamp_ntz", "try_to_date",
    "try_to_timestamp",
})  # fmt: skip
_TIME_COLUMNS: Final = ("event_time", "system_time")
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([01][0-7]{2})|(.))", re.DOTALL)
_ENCRYPTION: Final = "aes_encrypt"
_MODE_ARGUMENT: Final = 2
_VECTOR_ARGUMENT: Final = 4


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
    """Return the first expression of a query that is not repeatable, or None if none is known.

    A step that cannot be parsed is skipped: the engine validates it.
    """
    names: set[str] = set()
    for index, step in enumerate(steps):
        calls = [*_special_times(step.query)]
        try:
            tree = parse_query(step.query, ())
            names |= _defined_names(tree)
            calls += _calls(tree, names)
        except (LineageUnresolved, RecursionError):
            pass
        if calls:
            start, text = min(calls)
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
    """Return the first operation over several rows of a query as text, or None if none is known.

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
        if any(union.args.get("distinct") for union in tree.find_all(exp.Union)):
            return "UNION without ALL"
        if any(condition.args.get("query") for condition in tree.find_all(exp.In)):
            return "a subquery in an expression"
    return None


def _calls(tree: exp.Expr, names: set[str]) -> Iterator[tuple[int, str]]:
    """Yield functions with their offsets in the text; ``names`` are columns that the query defines."""
    for node in tree.find_all(exp.Anonymous, exp.Column):
        name = node.name.lower()
        if isinstance(node, exp.Anonymous):
            if name in _FUNCTIONS or (name in _WITHOUT_ARGUMENTS and not node.expressions):
                yield node.meta.get("start", 0), f"{name}()"
            elif name == _ENCRYPTION and _has_random_vector(node.expressions):
                yield node.meta.get("start", 0), f"{name}() without an initialization vector"
        elif name in _WITHOUT_PARENTHESES and name not in names:
            identifier = node.this
            if not node.table and isinstance(identifier, exp.Identifier) and not identifier.quoted:
                yield identifier.meta.get("start", 0), name


def _has_random_vector(arguments: Sequence[exp.Expr]) -> bool:
    """Return whether an encryption with these arguments chooses its initialization vector."""
    mode = arguments[_MODE_ARGUMENT] if len(arguments) > _MODE_ARGUMENT else None
    has_mode = mode is not None and not (mode.is_string and mode.name.upper() in ("GCM", "CBC", "DEFAULT"))
    return len(arguments) <= _VECTOR_ARGUMENT and not has_mode


def _defined_names(tree: exp.Expr) -> set[str]:
    """Return the column names that a query defines, in lower case."""
    names = {alias.alias.lower() for alias in tree.find_all(exp.Alias)}
    for table in tree.find_all(exp.TableAlias):
        names.update(column.name.lower() for column in table.columns)
    return names


def find_special_time(steps: Sequence[SqlQueryStep]) -> NonRepeatable | None:
    """Return the first text that a query converts to the current time, such as ``TIMESTAMP 'now'``."""
    for index, step in enumerate(steps):
        for start, text in _special_times(step.query):
            return NonRepeatable(text, index, *line_and_column(step.query, start))
    return None


def _special_times(query: str) -> Iterator[tuple[int, str]]:
    """Yield literals and casts of words such as ``'now'`` with their offsets in the text."""
    tokens = tokenize(query)
    words = [token.name.lower() for token in tokens]
    for index, token in enumerate(tokens):
        if token.kind != "string":
            continue
        is_raw = index > 0 and words[index - 1] == "r" and tokens[index - 1].end == token.start
        if _string_value(token.text, is_raw).strip().lower() not in SPECIAL_TIMES:
            continue
        before, after = words[: index - is_raw], words[index + 1 :]
        if before and before[-1].upper() in _TYPES:
            literal = tokens[len(before) - 1]
            yield literal.start, f"{literal.text} {query[tokens[len(before)].start : token.end]}"
        elif _is_converted(before, after):
            yield token.start, f"the time {token.text}"


def _is_converted(before: Sequence[str], after: Sequence[str]) -> bool:
    """Return whether a text between these words is converted to a time."""
    function = before[-2] if len(before) > 1 and before[-1] == "(" else ""
    type_name = after[2] if after[:2] == [":", ":"] and len(after) > 2 else ""
    if function in ("cast", "try_cast") and len(after) > 1 and after[0] == "as":
        type_name = after[1]
    compared = (_compared_name(reversed(before)), _compared_name(after))
    return (
        function in _TIME_FUNCTIONS
        or type_name.upper() in _TYPES
        or any(name in _TIME_COLUMNS for name in compared)
    )


def _compared_name(words: Iterable[str]) -> str:
    """Return the name on the other side of a comparison, or "" if the words are none."""
    signs = ""
    for word in words:
        if word not in ("<", ">", "=", "!"):
            return word if signs else ""
        signs += word
    return ""


def _string_value(text: str, is_raw: bool) -> str:
    """Return the value of a string literal."""
    value = text[1:-1]
    if is_raw:
        return value
    return _ESCAPE.sub(
        lambda match: (
            match[4] or chr(int(match[3], 8) if match[3] else min(int(match[1] or match[2], 16), 0x10FFFF))
        ),
        value,
    )
