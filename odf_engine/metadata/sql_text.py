"""The text of a query before Spark reads it: its words, and the datasets that it names.

People write the name of a dataset as it is, ``port-haven.air-readings``; Spark wants it between backquotes.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
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
    """A name where a query reads a table."""

    name: str
    start: int
    end: int
    quoted: bool

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
    words = tokens(sql)
    return [_name(words, at, end) for at, end in _positions(words)]


def _positions(words: Sequence[Token]) -> Iterator[tuple[int, int]]:
    """Where names of tables stand, as numbers of tokens; the last is one too far."""
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
            end = _chain(words, at)
            if end >= len(words) or words[end].text != "(":  # else a function
                yield at, end
            at = end


def _chain(words: Sequence[Token], at: int) -> int:
    """Where a name ends whose parts are joined by dots, or by dashes and slashes without spaces."""
    end = at + 1
    while end + 1 < len(words) and words[end + 1].kind in ("word", "quoted"):
        before, sign, after = words[end - 1 : end + 2]
        tight = before.end == sign.start and sign.end == after.start
        if sign.text != "." and not (sign.text in ("-", "/", ":") and tight):
            break
        end += 2
    return end


def _name(words: Sequence[Token], at: int, end: int) -> TableName:
    parts = words[at:end]
    quoted = len(parts) == 1 and parts[0].kind == "quoted"
    return TableName("".join(part.name for part in parts), parts[0].start, parts[-1].end, quoted)


class Quoted:
    """A query in which names of datasets stand between backquotes.

    Attributes:
        text: the query for Spark.
        unknown: names that only a dataset could have, and none has.
    """

    def __init__(self, sql: str, known: Collection[str]) -> None:
        """``known`` are the names of the datasets."""
        self._sql = sql
        names = {name.casefold() for name in known}
        words = tokens(sql)
        tables = [_name(words, at, end) for at, end in _positions(words)]
        read = [each for each in tables if each.name.casefold() in names]
        self.unknown = [each for each in tables if each not in read and set(each.name) & set("-/:")]
        self.unknown = [each for each in self.unknown if not each.quoted]
        edits = [(each.start, each.end, each.name) for each in read if each.spelled_out]
        taken = {each.start for each in read}
        edits += _qualifiers(words, {each.name.casefold() for each in read if each.spelled_out}, taken)
        self._edits = sorted(edits)
        self.text = self._edited()

    def place(self, line: int, column: int) -> tuple[int, int]:
        """Line and column in the query as it was written, of those in :attr:`text`; both from 1."""
        lines = self.text.split("\n")
        at = sum(len(each) + 1 for each in lines[: line - 1]) + column - 1
        shift = 0
        for start, end, name in self._edits:
            begin = start + shift
            length = len(_backquoted(name))
            if at < begin:
                break
            if at < begin + length:
                return place_of(self._sql, start)
            shift += length - (end - start)
        return place_of(self._sql, at - shift)

    def place_of(self, name: TableName) -> tuple[int, int]:
        """Line and column of a name in :attr:`text`; both from 1."""
        shift = sum(
            len(_backquoted(text)) - (end - start) for start, end, text in self._edits if end <= name.start
        )
        return place_of(self.text, name.start + shift)

    def _edited(self) -> str:
        parts: list[str] = []
        done = 0
        for start, end, name in self._edits:
            parts += [self._sql[done:start], _backquoted(name)]
            done = end
        return "".join([*parts, self._sql[done:]])


def _qualifiers(
    words: Sequence[Token], names: Collection[str], taken: Collection[int]
) -> Iterator[tuple[int, int, str]]:
    """Names of datasets before the names of their columns."""
    for at, token in enumerate(words):
        if token.kind != "word" or token.start in taken or (at and words[at - 1].text == "."):
            continue
        end = _chain(words, at) - 2  # the column is the last part, or fields of it are
        while end > at:
            name = _name(words, at, end)
            if words[end].text == "." and name.name.casefold() in names:
                yield name.start, name.end, name.name
                break
            end -= 2


def _backquoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def place_of(sql: str, at: int) -> tuple[int, int]:
    """Line and column, both from 1, of the character with this number, from 0."""
    at = max(0, min(at, len(sql)))
    starts = [0, *(match.end() for match in re.finditer("\n", sql))]
    line = bisect_right(starts, at)
    return line, at - starts[line - 1] + 1
