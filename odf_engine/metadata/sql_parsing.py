"""A query as a tree, in which nothing is missing that could be the name of a column."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import Token, TokenType

from odf_engine.metadata.sql_text import headline


class NotFollowed(Exception):
    """The query cannot be followed; the text says why, for people."""


_MARKED: Final = 40
_PHRASES: Final = (
    ("FOR", "SYSTEM_TIME", "AS", "OF"), ("WITHIN", "GROUP"), ("IGNORE", "NULLS"), ("RESPECT", "NULLS"),
    ("NULLS", "FIRST"), ("NULLS", "LAST"), ("GROUPING", "SETS"), ("WITH", "ROLLUP"), ("WITH", "CUBE"),
    ("CURRENT", "ROW"),
)  # fmt: skip


class _Parser(Spark.Parser):
    """Spark's grammar, with all functions by the names that the query has for them.

    An array keeps its own class: square brackets behind another one would make a new array.
    """

    FUNCTIONS = {name: Spark.Parser.FUNCTIONS[name] for name in ("ARRAY",)}  # noqa: RUF012 (as sqlglot has it)
    NO_PAREN_FUNCTIONS = {}  # noqa: RUF012


def parsed(query: str, columns: Iterable[str]) -> exp.Query:
    """The tree of a query.

    Args:
        query: its text.
        columns: names of columns that it may have.

    Raises:
        NotFollowed: it is no single query, or has words that the tree would lose.
    """
    spark = Spark()
    try:
        words = _with_windows(spark.tokenize(query))
        trees = [tree for tree in _Parser(dialect=spark).parse(words, query) if tree is not None]
    except SqlglotError as error:
        raise NotFollowed(f"the query could not be read: {_said(error, query)}") from None
    if len(trees) != 1 or not isinstance(trees[0], exp.Query):
        raise NotFollowed(f"this is not one SELECT: {headline(query, _MARKED)}")
    if any(word.token_type == TokenType.PIPE_GT for word in words):
        raise NotFollowed("queries with |> cannot be followed")
    named = {name.upper() for name in columns} & _WORDS
    for word in words:
        if word.text.upper() in named and word.token_type != TokenType.IDENTIFIER:
            raise NotFollowed(
                f"'{word.text}' may be a column or a word of SQL: write the column as `{word.text}`"
            )
    _check_whole(words, trees[0])
    return trees[0]


_WORDS: Final = frozenset({"ALL", "ANY", "AS", "DISTINCT", "FETCH", "INTERVAL", "NOT", "SELECT"})
"""Words that Spark may take for columns where the parser does not."""


def _said(error: SqlglotError, query: str) -> str:
    found = getattr(error, "errors", None)
    if not found or not found[0].get("description"):
        return headline(query, _MARKED)
    first = found[0]
    described = first["description"].partition(" but got <")[0].rstrip(".")
    return f"line {first['line']}, column {first['col']}: {described}"


def _with_windows(words: Sequence[Token]) -> list[Token]:
    """`window` as a name like any other, but for the clause `WINDOW name AS (…)`."""
    made = list(words)
    for at, word in enumerate(words):
        if word.token_type != TokenType.WINDOW:
            continue
        after = [each.token_type for each in words[at + 1 : at + 4]]
        if after[1:] != [TokenType.ALIAS, TokenType.L_PAREN]:
            made[at] = Token(
                TokenType.VAR, word.text, line=word.line, col=word.col, start=word.start, end=word.end
            )
    return made


def _check_whole(words: Sequence[Token], tree: exp.Expr) -> None:
    """Every name of the text has to be in the tree at least as often.

    Raises:
        NotFollowed: one is not.
    """
    held: Counter[str] = Counter()
    for node in tree.walk():
        if not isinstance(node, exp.Literal):
            held.update(value.casefold() for value in node.args.values() if isinstance(value, str))
    grammar = _grammar(words)
    names = [
        word.text.casefold()
        for at, word in enumerate(words)
        if word.token_type in (TokenType.VAR, TokenType.IDENTIFIER) and at not in grammar
    ]
    for name, count in Counter(names).items():
        if count > held[name]:
            raise NotFollowed(f"what becomes of '{name}' could not be followed")


def _grammar(words: Sequence[Token]) -> set[int]:
    """The numbers of words that are part of a clause, or name a function."""
    found: set[int] = set()
    texts = [word.text.upper() for word in words]
    for at in range(len(texts)):
        if texts[at + 1 : at + 2] == ["("]:
            found.add(at)
        for phrase in _PHRASES:
            if tuple(texts[at : at + len(phrase)]) == phrase:
                found.update(range(at, at + len(phrase)))
    return found
