"""Texts in colours: YAML, and the queries in it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from pygments.lexer import inherit
from pygments.lexers.sql import MySqlLexer
from pygments.token import Comment, Keyword, Name, Number, String

from odf_tui.humane import plain
from odf_tui.widgets.lines import Span

_YAML: Final = re.compile(r"^(\s*(?:- )*)([\w$./-]+:)( .*|)$")
_BLOCK: Final = re.compile(r"^ [|>][-+\d]*$")
_TAB: Final = 4

# Weight and colour both: a terminal without colours shows keywords bold.
_STYLES: Final = {Comment: "muted", Keyword: "key", Name.Function: "name", Number: "title", String: "good"}

_NO_FUNCTIONS: Final = "in|and|or|not|exists|values|over|using|on|where|having|by|as|from|filter|when|then"


class _SparkSql(MySqlLexer):
    """Spark's SQL is closest to MySQL's: backticks quote names, and both kinds of quotes texts."""

    tokens = {  # noqa: RUF012
        "root": [
            (r"--[^\n]*", Comment.Single),
            (r"#", Name),
            (r"(?<=\.)[a-z_]\w*(?!\w*\()", Name),  # a column may be called like a keyword
            (rf"\b(?!(?:{_NO_FUNCTIONS})\()[a-z_]\w*(?=\()", Name.Function),
            inherit,
        ]
    }


_LEXER: Final = _SparkSql(stripnl=False, ensurenl=False, tabsize=_TAB)


def sql_spans(text: str) -> list[list[Span]]:
    """The lines of a query, with keywords, functions, values and comments told apart."""
    lines: list[list[Span]] = [[]]
    for token, part in _LEXER.get_tokens(text):
        style = _style(token)
        first, *more = part.split("\n")
        for at, piece in enumerate((first, *more)):
            if at:
                lines.append([])
            if not piece:
                continue
            if lines[-1] and lines[-1][-1][1] == style:
                lines[-1][-1] = (lines[-1][-1][0] + plain(piece), style)
            else:
                lines[-1].append((plain(piece), style))
    return lines


def _style(token: Any) -> str:
    return next((style for kind, style in _STYLES.items() if token in kind), "")


def yaml_spans(text: str) -> list[list[Span]]:
    """YAML with its keys told apart, and the queries in it as queries."""
    lines: list[list[Span]] = []
    given = text.splitlines()
    at = 0
    while at < len(given):
        safe = plain(given[at])
        at += 1
        if safe.lstrip().startswith("#"):
            lines.append([(safe, "muted")])
        elif (match := _YAML.match(safe)) is None:
            lines.append([(safe, "")])
        elif match[2] == "query:" and _BLOCK.match(match[3]):
            lines.append([(match[1], ""), (match[2], "name"), (match[3], "muted")])
            end = _end_of_block(given, at, len(match[1]))
            lines += _indented_sql(given[at:end])
            at = end
        elif match[2] == "query:" and match[3][1:2] not in ("'", '"'):
            lines.append([(match[1], ""), (match[2], "name"), (" ", ""), *sql_spans(match[3][1:])[0]])
        else:
            lines.append([(match[1], ""), (match[2], "name"), (match[3], "")])
    return lines


def _end_of_block(lines: Sequence[str], start: int, indent: int) -> int:
    """The first line after a block of lines that are deeper than ``indent``, or empty."""
    return next(
        (
            at
            for at in range(start, len(lines))
            if lines[at].strip() and len(lines[at]) - len(lines[at].lstrip(" ")) <= indent
        ),
        len(lines),
    )


def _indented_sql(lines: Sequence[str]) -> list[list[Span]]:
    indent = min((len(line) - len(line.lstrip(" ")) for line in lines if line.strip()), default=0)
    shown = sql_spans("\n".join(line[indent:] for line in lines))
    return [[(" " * indent, ""), *spans] for spans in shown] if lines else []
