"""The text of a query before Spark reads it: its words, and the datasets that it names."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, Literal

Kind = Literal["word", "quoted", "string", "comment", "sign"]

_TOKEN: Final = re.compile(
    r"(?P<comment>--[^\n]*|/\*.*?(?:\*/|\Z))"
    r"|(?P<string>'(?:[^'\\]|\\.)*(?:'|\Z)|\"(?:[^\"\\]|\\.)*(?:\"|\Z))"
    r"|(?P<quoted>`(?:[^`]|``)*(?:`|\Z))"
    r"|(?P<word>\w+)"
    r"|(?P<sign>\S)",
    re.DOTALL,
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
"""Words behind FROM, JOIN or a comma that are no names."""
ENDS_A_TABLE: Final = _CLAUSES | _NO_NAMES | {"FOR", "TABLESAMPLE"}
"""Words behind a table that are no alias of it."""
TABLE_FUNCTIONS: Final = ("as_at", "as_of", "current", "changelog")
"""What stands around the name of a dataset to see it as it was: see :mod:`odf_engine.metadata.sql_calls`."""


@dataclass(frozen=True)
class Token:
    """A word, a sign, or something between quotes, with its place in the text."""

    kind: Kind
    text: str
    start: int
    end: int

    @property
    def name(self) -> str:
        """What it names, without backquotes."""
        return self.text.strip("`").replace("``", "`") if self.kind == "quoted" else self.text


@dataclass(frozen=True)
class TableName:
    """A name where a query reads a table; ``call`` is where the table function around it begins and ends."""

    name: str
    start: int
    end: int
    quoted: bool
    call: tuple[int, int] | None = None

    @property
    def stop(self) -> int:
        """Where an alias of it may begin."""
        return self.end if self.call is None else self.call[1]

    @property
    def spelled_out(self) -> bool:
        """Whether it has signs that Spark would not take as part of one name."""
        return not self.quoted and not re.fullmatch(r"[^\W\d]\w*", self.name)


def tokens(sql: str, *, comments: bool = False) -> list[Token]:
    """The words and signs of a query; text that is broken off ends where it ends."""
    return [token for token in _tokens(sql) if comments or token.kind != "comment"]


@lru_cache(maxsize=8)
def _tokens(sql: str) -> tuple[Token, ...]:
    return tuple(
        Token(match.lastgroup, match[0], match.start(), match.end())  # type: ignore[arg-type]
        for match in _TOKEN.finditer(sql)
    )


def headline(sql: str, longest: int = 60) -> str:
    """A query as one short line without comments, to name it by."""
    parts, at = [], 0
    for token in tokens(sql, comments=True):
        if token.kind == "comment":
            parts.append(sql[at : token.start])
            at = token.end
    line = " ".join(" ".join([*parts, sql[at:]]).split())
    return line if len(line) <= longest else line[: longest - 1] + "…"


def table_names(sql: str) -> list[TableName]:
    """The names behind FROM and JOIN, and behind commas there, in their order."""
    return list(_tables(tokens(sql)))


def _tables(words: Sequence[Token]) -> Iterator[TableName]:
    clauses = [""]
    at = 0
    while at < len(words):
        token = words[at]
        upper = token.text.upper() if token.kind == "word" else ""
        if token.text == "(":
            clauses.append("")
        elif token.text == ")" and len(clauses) > 1:
            clauses.pop()
        elif upper in _CLAUSES and not (at and words[at - 1].text == "."):
            clauses[-1] = upper
        at += 1
        here = upper in _TABLES_FOLLOW or (token.text == "," and clauses[-1] in _TABLES_FOLLOW)
        if here and at < len(words) and words[at].kind in ("word", "quoted"):
            if words[at].text.upper() in _NO_NAMES:
                continue
            found, end = _called(words, at) if is_call(words, at) else _named(words, at)
            if found is not None:
                yield found
            at = end


def _named(words: Sequence[Token], at: int) -> tuple[TableName | None, int]:
    end = chain_end(words, at)
    if end < len(words) and words[end].text == "(":  # a function
        return None, end
    return name_of(words, at, end), end


def _called(words: Sequence[Token], at: int) -> tuple[TableName, int]:
    """The dataset within table functions, and where these end; they may be broken off.

    Where there is none, its name is empty."""
    begin, depth = at, 0
    end = at + 1
    while end < len(words):
        depth += {"(": 1, ")": -1}.get(words[end].text, 0)
        end += 1
        if not depth:
            break
    while at < end and is_call(words, at):
        at += 2
    call = (words[begin].start, words[end - 1].end)
    if at >= end or words[at].kind not in ("word", "quoted"):
        return TableName("", call[1], call[1], False, call), end
    return replace(name_of(words, at, chain_end(words, at)), call=call), end


def is_call(words: Sequence[Token], at: int) -> bool:
    """Whether a table function of datasets begins at this word."""
    return (
        at + 1 < len(words)
        and words[at].kind == "word"
        and words[at].text.lower() in TABLE_FUNCTIONS
        and words[at + 1].text == "("
    )


def chain_end(words: Sequence[Token], at: int) -> int:
    """Where a name ends whose parts are joined by dots, or by dashes and slashes without spaces."""
    end = at + 1
    while end + 1 < len(words) and words[end + 1].kind in ("word", "quoted"):
        before, sign, after = words[end - 1 : end + 2]
        tight = before.end == sign.start and sign.end == after.start
        if sign.text != "." and not (sign.text in ("-", "/", ":") and tight):
            break
        end += 2
    return end


def name_of(words: Sequence[Token], at: int, end: int) -> TableName:
    """The name that these words make."""
    parts = words[at:end]
    quoted = len(parts) == 1 and parts[0].kind == "quoted"
    return TableName("".join(part.name for part in parts), parts[0].start, parts[-1].end, quoted)


def place_of(sql: str, at: int) -> tuple[int, int]:
    """Line and column, both from 1, of the character with this number, from 0."""
    at = max(0, min(at, len(sql)))
    starts = [0, *(match.end() for match in re.finditer("\n", sql))]
    line = bisect_right(starts, at)
    return line, at - starts[line - 1] + 1
