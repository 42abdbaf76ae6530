"""SQL tokens, table names in a query, and excerpts that point at an error."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, Literal

from msgspec.structs import replace as structs_replace

from odf_engine.errors import OdfError
from odf_engine.metadata.model import SqlQueryStep

_POSITION: Final = re.compile(
    r"query(?: step (?P<step>\d+) of \d+)?, line (?P<line>\d+), column (?P<column>\d+)"
)
_FRAGMENT: Final = re.compile(r", in `(.+?)…?`$")
_MAX_EXCERPT: Final = 60  # characters of the line: the excerpt fits into a terminal with 80 columns


@contextmanager
def attach_query_excerpt(steps: Sequence[SqlQueryStep]) -> Iterator[None]:
    """Add the line of the query as ``excerpt`` to each `OdfError` whose ``where`` is a position in a
    query.
    """
    try:
        yield
    except OdfError as error:
        error.excerpt = error.excerpt or query_excerpt(error, steps)
        raise


def query_excerpt(error: OdfError, steps: Sequence[SqlQueryStep]) -> tuple[str, ...]:
    """Return the line of the query that the error refers to, with its number, and a caret under the column.

    Empty if the error has no position in a query, or one that several steps could have.
    """
    match = _POSITION.match(error.where or "")
    if match is None:
        return ()
    line_index, column = int(match["line"]) - 1, int(match["column"]) - 1
    fragment = _FRAGMENT.search(error.message)
    candidate_steps = steps if match["step"] is None else steps[int(match["step"]) - 1 :][:1]
    matching_lines = [
        line for step in candidate_steps if (line := _line(step.query, line_index, column)) is not None
    ]
    if fragment is not None and len(matching_lines) > 1:
        matching_lines = [
            line for line in matching_lines if line.startswith(fragment[1].partition("\n")[0], column)
        ]
    if len(matching_lines) != 1:
        return ()
    start = max(column - _MAX_EXCERPT * 2 // 3, 0)
    # Control characters of a query must not reach the terminal. Spark counts a tab as one column.
    text = "".join(
        char if char.isprintable() else " " for char in matching_lines[0][start : start + _MAX_EXCERPT]
    )
    number = str(line_index + 1)
    return f"{number} | {text.rstrip()}", f"{' ' * len(number)} | {' ' * (column - start)}^"


def _line(query: str, index: int, column: int) -> str | None:
    lines = query.split("\n")
    return lines[index] if index < len(lines) and column <= len(lines[index]) else None


Kind = Literal["word", "quoted", "string", "comment", "sign"]
# Compiled when first used: most commands parse no SQL.
_TOKEN: Final = (
    r"(?P<comment>--[^\n]*|/\*.*?(?:\*/|\Z))"
    r"|(?P<string>'(?:[^'\\]|\\.)*(?:'|\Z)|\"(?:[^\"\\]|\\.)*(?:\"|\Z))"
    r"|(?P<quoted>`(?:[^`]|``)*(?:`|\Z))"
    r"|(?P<word>\w+)"
    r"|(?P<sign>\S)"
)
_CLAUSES: Final = frozenset({
    "SELECT", "FROM", "JOIN", "WHERE", "GROUP", "ORDER", "SORT", "CLUSTER", "DISTRIBUTE", "HAVING", "ON",
    "USING", "LIMIT", "OFFSET", "WINDOW", "WITH", "UNION", "EXCEPT", "INTERSECT", "MINUS", "VALUES",
    "LATERAL", "PIVOT", "UNPIVOT", "QUALIFY",
})  # fmt: skip
_TABLES_FOLLOW: Final = ("FROM", "JOIN")
_NO_NAMES: Final = frozenset({
    "LATERAL", "SELECT", "VALUES", "LEFT", "RIGHT", "INNER", "OUTER", "FULL", "CROSS", "SEMI", "ANTI",
    "NATURAL",
})  # fmt: skip
"""Words after FROM, JOIN or a comma that are not table names."""
TABLE_TERMINATORS: Final = _CLAUSES | _NO_NAMES | {"FOR", "TABLESAMPLE"}
"""Words after a table that are not its alias."""
TABLE_FUNCTIONS: Final = ("as_at", "as_of", "current", "changelog")
"""Functions around a dataset name that select an earlier or another state of it: see

:mod:`odf_engine.sql.table_functions`.
"""


@dataclass(frozen=True)
class Token:
    """A word, a sign, or a quoted text, with its character offsets in the query."""

    kind: Kind
    text: str
    start: int
    end: int

    @property
    def name(self) -> str:
        """The identifier without backquotes."""
        return self.text.strip("`").replace("``", "`") if self.kind == "quoted" else self.text


@dataclass(frozen=True)
class TableName:
    """A name in a table position of a query.

    Attributes:
        name: the name.
        start, end: its character range.
        quoted: whether it is in quotes.
        call: the character range of the table function around it, or None.
        is_file: whether it is the path of a file, as a string.
    """

    name: str
    start: int
    end: int
    quoted: bool
    call: tuple[int, int] | None = None
    is_file: bool = False

    @property
    def alias_start(self) -> int:
        """The character offset before a possible alias."""
        return self.end if self.call is None else self.call[1]

    @property
    def needs_quotes(self) -> bool:
        """Whether Spark requires backquotes to read it as one identifier."""
        return not self.quoted and not re.fullmatch(r"[^\W\d]\w*", self.name)


def tokenize(sql: str, *, comments: bool = False) -> list[Token]:
    """Return the tokens of a query. An unterminated string or comment extends to the end of the text."""
    return [token for token in _tokens(sql) if comments or token.kind != "comment"]


@lru_cache(maxsize=8)
def _tokens(sql: str) -> tuple[Token, ...]:
    return tuple(
        Token(match.lastgroup, match[0], match.start(), match.end())  # type: ignore[arg-type]
        for match in re.finditer(_TOKEN, sql, re.DOTALL)
    )


def one_line_summary(sql: str, max_length: int = 60) -> str:
    """Return the query as one line without comments, of at most ``max_length`` characters."""
    parts, start = [], 0
    for token in tokenize(sql, comments=True):
        if token.kind == "comment":
            parts.append(sql[start : token.start])
            start = token.end
    line = " ".join(" ".join([*parts, sql[start:]]).split())
    return line if len(line) <= max_length else line[: max_length - 1] + "…"


def table_names(sql: str) -> list[TableName]:
    """Return the names after FROM and JOIN, and after commas in these clauses, in text order."""
    return [table for table in _tables(tokenize(sql)) if not table.is_file]


def file_names(sql: str) -> list[TableName]:
    """Return the files after FROM and JOIN in a query for DuckDB, such as ``'cases.csv'``, in text order."""
    tables = _tables(tokenize(spark_spelling(sql)))
    return [
        replace(table, name=sql[table.start + 1 : table.end - 1].replace("''", "'"))
        for table in tables
        if table.is_file
    ]


def _tables(words: Sequence[Token]) -> Iterator[TableName]:
    clauses = [""]
    index = 0
    while index < len(words):
        token = words[index]
        upper = token.text.upper() if token.kind == "word" else ""
        if token.text == "(":
            clauses.append("")
        elif token.text == ")" and len(clauses) > 1:
            clauses.pop()
        elif upper in _CLAUSES and not (index and words[index - 1].text == "."):
            clauses[-1] = upper
        index += 1
        expects_table = upper in _TABLES_FOLLOW or (token.text == "," and clauses[-1] in _TABLES_FOLLOW)
        if expects_table and index < len(words) and words[index].text.startswith("'"):
            yield TableName("", words[index].start, words[index].end, True, is_file=True)
            index += 1
        elif expects_table and index < len(words) and words[index].kind in ("word", "quoted"):
            if words[index].text.upper() in _NO_NAMES:
                continue
            table, end = _called(words, index) if is_table_function(words, index) else _named(words, index)
            if table is not None:
                yield table
            index = end


def _named(words: Sequence[Token], index: int) -> tuple[TableName | None, int]:
    end = qualified_name_end(words, index)
    if end < len(words) and words[end].text == "(":  # a function
        return None, end
    return qualified_name(words, index, end), end


def _called(words: Sequence[Token], index: int) -> tuple[TableName, int]:
    """Return the dataset name within nested table functions, and the index after them.

    The functions may be incomplete. The name is empty if absent.
    """
    begin, depth = index, 0
    end = index + 1
    while end < len(words):
        depth += {"(": 1, ")": -1}.get(words[end].text, 0)
        end += 1
        if not depth:
            break
    while index < end and is_table_function(words, index):
        index += 2
    call = (words[begin].start, words[end - 1].end)
    if index >= end or words[index].kind not in ("word", "quoted"):
        return TableName("", call[1], call[1], False, call), end
    return replace(qualified_name(words, index, qualified_name_end(words, index)), call=call), end


def is_table_function(words: Sequence[Token], index: int) -> bool:
    """Return whether a table function starts at this token."""
    return (
        index + 1 < len(words)
        and words[index].kind == "word"
        and words[index].text.lower() in TABLE_FUNCTIONS
        and words[index + 1].text == "("
    )


def qualified_name_end(words: Sequence[Token], index: int) -> int:
    """Return the index after a qualified name: parts joined by dots, or by ``-``, ``/``, ``:`` without
    spaces.
    """
    end = index + 1
    while end + 1 < len(words) and words[end + 1].kind in ("word", "quoted"):
        before, sign, after = words[end - 1 : end + 2]
        tight = before.end == sign.start and sign.end == after.start
        if sign.text != "." and not (sign.text in ("-", "/", ":") and tight):
            break
        end += 2
    return end


def qualified_name(words: Sequence[Token], start: int, end: int) -> TableName:
    """Return the table name that these tokens spell."""
    parts = words[start:end]
    quoted = len(parts) == 1 and parts[0].kind == "quoted"
    return TableName("".join(part.name for part in parts), parts[0].start, parts[-1].end, quoted)


def line_and_column(sql: str, offset: int) -> tuple[int, int]:
    """Return the line and column, both from 1, of the character at this offset from 0."""
    offset = max(0, min(offset, len(sql)))
    starts = [0, *(match.end() for match in re.finditer("\n", sql))]
    line = bisect_right(starts, offset)
    return line, offset - starts[line - 1] + 1


def make_names_unique(names: Collection[str]) -> list[str]:
    """Make names unique, ignoring case, by the suffixes ``_2``, ``_3``, …."""
    reserved = {name.casefold() for name in names}
    seen: set[str] = set()
    result: list[str] = []
    for name in names:
        unique, number = name, 1
        while unique.casefold() in seen or (number > 1 and unique.casefold() in reserved):
            number += 1
            unique = f"{name}_{number}"
        seen.add(unique.casefold())
        result.append(unique)
    return result


_QUOTABLE: Final = (
    r"(?P<other>--[^\n]*|/\*.*?(?:\*/|\Z)|'(?:[^']|'')*(?:'|\Z)|`[^`]*(?:`|\Z))|\"(?P<name>[^\"`]+)\""
)


def backquote_identifiers(sql: str) -> str:
    """Return a query of a dialect with identifiers in double quotes, with them in backquotes.

    No position changes. Identifiers that contain a quote stay as they are.
    """
    return re.sub(
        _QUOTABLE,
        lambda match: match[0] if match["name"] is None else f"`{match['name']}`",
        sql,
        flags=re.DOTALL,
    )


def double_quoted_texts(sql: str) -> list[str]:
    """Return the texts in double quotes of a query, without repetitions. Spark reads them as strings."""
    matches = re.finditer(_QUOTABLE, sql, re.DOTALL)
    return list(dict.fromkeys(match["name"] for match in matches if match["name"] is not None))


def spark_spelling(sql: str) -> str:
    """Return a query for DuckDB as :func:`tokenize` reads it. No position changes.

    Identifiers are in backquotes, and strings have neither backslashes nor two quotes in place of one.
    """
    return re.sub(
        r"'(?:[^']|'')*(?:'|\Z)|(?P<other>--[^\n]*|/\*.*?(?:\*/|\Z)|`[^`]*(?:`|\Z))",
        lambda match: match[0] if match["other"] else _plain_string(match[0]),
        backquote_identifiers(sql),
        flags=re.DOTALL,
    )


def _plain_string(text: str) -> str:
    inner = text[1:-1].replace("''", "__").replace("\\", "_")
    return f"'{inner}{text[-1]}" if len(text) > 1 else text


def with_backquotes(steps: Sequence[SqlQueryStep]) -> list[SqlQueryStep]:
    """Return steps of such a dialect with :func:`backquote_identifiers`, which Spark's parser can read."""
    return [structs_replace(step, query=backquote_identifiers(step.query)) for step in steps]
