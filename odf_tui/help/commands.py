"""Describes the commands: reads them from click, and renders them as a reference page."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from inspect import cleandoc
from typing import Final

import click

_EXAMPLE: Final = "Example:"
_CONVENTIONS: Final = (
    "With `--json`, a command writes one JSON document to stdout. Progress and notes are written to stderr. "
    "Exit codes: 0 success, 1 failed, 2 invalid arguments, 3 verification found problems, 4 conflict, "
    "130 cancelled. Dataset arguments are names, ids or, where several are accepted, patterns with `%`. "
    "Times are RFC 3339."
)


@dataclass(frozen=True)
class CommandDescription:
    """The help of a command, without the options that all commands share.

    Attributes:
        name: the complete name, such as ``odf repo add``.
        usage: its arguments, such as ``[OPTIONS] NAME URL``.
        paragraphs: the text; ``\\b`` and a line feed precede a paragraph whose lines are fixed.
        options: each option with its values, and its help.
        example: an example; may be empty.
    """

    name: str
    usage: str
    paragraphs: list[str] = field(default_factory=list)
    options: list[tuple[str, str]] = field(default_factory=list)
    example: str = ""

    @property
    def summary(self) -> str:
        """The first paragraph as one line."""
        return " ".join(self.paragraphs[0].split()) if self.paragraphs else ""


def describe_commands(root: click.Group) -> Iterator[CommandDescription]:
    """Yield the description of each command and its subcommands, in the order of the help."""
    context = _root_context(root)
    shared = {param.name for param in root.get_params(context)}
    for name in root.list_commands(context):
        command = root.get_command(context, name)
        assert command is not None
        yield from _describe(command, click.Context(command, info_name=name, parent=context), shared)


def describe_shared_options(root: click.Group) -> list[tuple[str, str]]:
    """Return the options that all commands share."""
    return _options(root, _root_context(root), set())


def _root_context(root: click.Group) -> click.Context:
    return click.Context(root, info_name=root.name, **root.context_settings)


def _describe(
    command: click.Command, context: click.Context, shared: Collection[str | None]
) -> Iterator[CommandDescription]:
    text = (command.help or "").partition("\f")[0]
    paragraphs = [part.strip("\n") for part in cleandoc(text).split("\n\n") if part.strip()]
    epilog = command.epilog or ""
    yield CommandDescription(
        context.command_path,
        " ".join(command.collect_usage_pieces(context)),
        paragraphs,
        _options(command, context, shared),
        epilog.removeprefix(_EXAMPLE).strip() if epilog.startswith(_EXAMPLE) else "",
    )
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from _describe(child, click.Context(child, info_name=name, parent=context), shared)


def _options(
    command: click.Command, context: click.Context, shared: Collection[str | None]
) -> list[tuple[str, str]]:
    records = (
        param.get_help_record(context)
        for param in command.get_params(context)
        if param.name not in shared and isinstance(param, click.Option)
    )
    return [record for record in records if record is not None]


def reference_page(root: click.Group) -> str:
    """Return the reference of all commands as Markdown."""
    lines = ["# Commands", "", _CONVENTIONS, "", "All commands have these options, except `--version`:", ""]
    lines += _option_lines(describe_shared_options(root))
    for command in describe_commands(root):
        lines += [f"## {command.name}", "", "```sh", f"{command.name} {command.usage}", "```", ""]
        for paragraph in command.paragraphs:
            fixed = paragraph.startswith("\b")
            body = paragraph.removeprefix("\b").strip("\n")
            lines += ["```text", body, "```", ""] if fixed else [_escape(body), ""]
        lines += _option_lines(command.options)
        if command.example:
            lines += ["Example:", "", "```sh", command.example, "```", ""]
    return "\n".join(lines)


def _option_lines(options: list[tuple[str, str]]) -> list[str]:
    return [*(f"- `{names}`: {_escape(text)}" for names, text in options), ""] if options else []


def _escape(text: str) -> str:
    """Escape characters that Markdown would take as markup, except code in backquotes."""
    parts = text.split("`")
    for at in range(0, len(parts), 2):
        for letter in "\\*_<[":
            parts[at] = parts[at].replace(letter, "\\" + letter)
    return "`".join(parts)
