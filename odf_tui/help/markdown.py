"""Renders Markdown as lines of styled spans, for the workstation, terminals and pipes."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from typing import ClassVar, Final

from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Heading, Markdown, MarkdownElement
from rich.padding import Padding
from rich.style import Style
from rich.text import Text
from rich.theme import Theme

from odf_tui.text.format import Span

MIN_WIDTH: Final = 30
_STYLE: Final = "style"
_STYLES: Final = {
    "h1": "lineage",
    "h2": "key",
    "h3": "strong",
    "strong": "strong",
    "em": "strong",
    "code": "name",
    "code_block": "name",
    "output": "muted",
    "table.header": "head",
    "table.border": "rule",
    "item.bullet": "muted",
    "item.number": "muted",
}
"""The style of the workstation's palette for each element of Markdown."""
_TERMINAL_STYLES: Final = {
    "lineage": "bold underline",
    "key": "bold",
    "strong": "bold",
    "head": "bold",
    "name": "cyan",
    "muted": "dim",
    "rule": "dim",
}
_INLINE_CODE: Final = re.compile(r"(?<!`)`([^`]+)`(?!`)")


class _Heading(Heading):
    """A heading at the left edge."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        yield self.text


class _CodeBlock(CodeBlock):
    """A block of code without background, or of the output of a command."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        name = "output" if self.lexer_name == "text" else "code_block"
        text = Text(str(self.text).rstrip(), style=f"markdown.{name}", overflow="fold")
        yield Padding(text, (0, 0, 0, 2))


class _Page(Markdown):
    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _Heading,
        "fence": _CodeBlock,
        "code_block": _CodeBlock,
    }


# Styles have no colours here. They transport the name of the span's style.
_THEME: Final = Theme({f"markdown.{name}": Style(meta={_STYLE: style}) for name, style in _STYLES.items()})


def render_page(text: str, width: int) -> list[list[Span]]:
    """Render Markdown as lines of at most ``width`` cells, without spaces at their ends."""
    width = max(width, MIN_WIDTH)
    console = Console(file=io.StringIO(), width=width, theme=_THEME, color_system=None, legacy_windows=False)
    rendered = console.render_lines(_Page(text, hyperlinks=False), pad=False)
    lines: list[list[Span]] = []
    for segments in rendered:
        spans = [(part, style.meta.get(_STYLE, "") if style else "") for part, style, _ in segments if part]
        while spans and not spans[-1][0].strip():
            spans.pop()
        if spans:
            spans[-1] = (spans[-1][0].rstrip(), spans[-1][1])
        if spans or (lines and lines[-1]):  # at most one empty line
            lines.append(spans)
    while lines and not lines[-1]:
        lines.pop()
    return lines


def quote_code(text: str) -> str:
    """Return Markdown whose inline code is shown with its backquotes, for output without colours."""
    lines, fenced = [], False
    for line in text.split("\n"):
        fenced ^= line.startswith("```")
        lines.append(line if fenced else _INLINE_CODE.sub(r"`` `\1` ``", line))
    return "\n".join(lines)


def plain_text(lines: Iterable[Iterable[Span]]) -> str:
    """Return rendered lines without styles."""
    return "".join("".join(part for part, _ in line) + "\n" for line in lines)


def terminal_text(lines: Iterable[Iterable[Span]]) -> Text:
    """Return rendered lines with the styles of terminals."""
    text = Text(no_wrap=True, end="")
    for line in lines:
        for part, style in line:
            text.append(part, _TERMINAL_STYLES.get(style, ""))
        text.append("\n")
    return text
