"""Formats YAML, SQL and lists of facts as styled spans."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from pygments.lexer import inherit
from pygments.lexers.sql import MySqlLexer
from pygments.token import Comment, Keyword, Name, Number, String

from odf_engine.api.text import QueryText, Section, printable
from odf_tui.text.format import Span

_YAML: Final = re.compile(r"^(\s*(?:- )*)([\w$./-]+:)( .*|)$")
_BLOCK: Final = re.compile(r"^ [|>][-+\d]*$")
_TAB: Final = 4

# Styles have weight and colour: terminals without colours show keywords in bold.
_STYLES: Final = {Comment: "muted", Keyword: "key", Name.Function: "name", Number: "title", String: "good"}
_NOT_FUNCTIONS: Final = "in|and|or|not|exists|values|over|using|on|where|having|by|as|from|filter|when|then"


class _SparkSql(MySqlLexer):
    """Lexer of Spark SQL. It is close to MySQL: backticks quote names, both kinds of quotes quote strings."""

    tokens = {  # noqa: RUF012
        "root": [
            (r"--[^\n]*", Comment.Single),
            (r"#", Name),
            (r"(?<=\.)[a-z_]\w*(?!\w*\()", Name),  # the name of a column may be a keyword
            (rf"\b(?!(?:{_NOT_FUNCTIONS})\()[a-z_]\w*(?=\()", Name.Function),
            inherit,
        ]
    }


_LEXER: Final = _SparkSql(stripnl=False, ensurenl=False, tabsize=_TAB)


def sql_spans(text: str) -> list[list[Span]]:
    """Return the lines of a query, with styles for keywords, functions, literals and comments."""
    lines: list[list[Span]] = [[]]
    for token, part in _LEXER.get_tokens(text):
        style = _style(token)
        first, *more = part.split("\n")
        for at, part_line in enumerate((first, *more)):
            if at:
                lines.append([])
            if not part_line:
                continue
            if lines[-1] and lines[-1][-1][1] == style:
                lines[-1][-1] = (lines[-1][-1][0] + printable(part_line), style)
            else:
                lines[-1].append((printable(part_line), style))
    return lines


def _style(token: Any) -> str:
    return next((style for kind, style in _STYLES.items() if token in kind), "")


def yaml_spans(text: str) -> list[list[Span]]:
    """Return the lines of a YAML document, with styles for keys and embedded queries."""
    lines: list[list[Span]] = []
    source_lines = text.splitlines()
    at = 0
    while at < len(source_lines):
        line = printable(source_lines[at])
        at += 1
        if line.lstrip().startswith("#"):
            lines.append([(line, "muted")])
        elif (match := _YAML.match(line)) is None:
            lines.append([(line, "")])
        elif match[2] == "query:" and _BLOCK.match(match[3]):
            lines.append([(match[1], ""), (match[2], "name"), (match[3], "muted")])
            end = _end_of_block(source_lines, at, len(match[1]))
            lines += _indented_sql(source_lines[at:end])
            at = end
        elif match[2] == "query:" and match[3][1:2] not in ("'", '"'):
            lines.append([(match[1], ""), (match[2], "name"), (" ", ""), *sql_spans(match[3][1:])[0]])
        else:
            lines.append([(match[1], ""), (match[2], "name"), (match[3], "")])
    return lines


def _end_of_block(lines: Sequence[str], start: int, indent: int) -> int:
    """Return the index of the first line after a block scalar that is indented deeper than ``indent``."""
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
    printed = sql_spans("\n".join(line[indent:] for line in lines))
    return [[(" " * indent, ""), *spans] for spans in printed] if lines else []


NAME_WIDTH = 12
_MAX_NAME_WIDTH = 30
Text = list[list[Span]]


def fact_lines(section: Section) -> Text:
    """Return a title and the facts of a section."""
    width = min(max([NAME_WIDTH, *(len(printable(name)) for name, _ in section.facts)]), _MAX_NAME_WIDTH)
    lines: Text = [[(f" {printable(section.title)}", "title")]]
    for name, value in section.facts:
        for at, spans in enumerate(value_lines(value)):
            printed = printable(name)[:width] if not at else ""
            lines.append([(f"   {printed:<{width}}  ", "muted"), *spans])
    return lines


def value_lines(value: str) -> Text:
    """Return the lines of a value; a query is highlighted."""
    if isinstance(value, QueryText):
        return sql_spans(value)
    return [[(printable(line), "")] for line in value.splitlines() or [""]]
