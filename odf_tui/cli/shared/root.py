"""The command ``odf``, whose commands are the modules of :mod:`odf_tui.cli`."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import click

from odf_tui.cli.shared.options import OpenWorkstation, common_options, options_of

COMPLETION: Final = "_ODF_COMPLETE"
"""The environment variable by which a shell requests completions."""
_FOLDER: Final = Path(__file__).parents[1]


class CommandInfo(NamedTuple):
    """What the module of a command declares: the first line of its docstring, and its constants."""

    summary: str
    order: int
    meanings: tuple[str, ...]
    aliases: tuple[str, ...]


@cache
def read_commands() -> dict[str, CommandInfo]:
    """Return the commands in the order of the help.

    The source of each module is read: the import of all modules takes most of a second.
    """
    commands = {path.stem: _read_info(path.read_text(encoding="utf-8")) for path in _modules()}
    return dict(sorted(commands.items(), key=lambda item: (item[1].order, item[0])))


def _modules() -> Iterator[Path]:
    return _FOLDER.glob("[!_]*.py")


def _read_info(source: str) -> CommandInfo:
    constants = {
        name: ast.literal_eval(value)
        for name, value in re.findall(r"^(ORDER|MEANINGS|ALIASES) = (.+)$", source, re.MULTILINE)
    }
    return CommandInfo(
        source.partition("\n")[0].strip('"'),
        constants["ORDER"],
        tuple(constants.get("MEANINGS", "").split()),
        tuple(constants.get("ALIASES", "").split()),
    )


def suggest_command(word: str) -> str:
    """Return the command that an unknown word means, or resembles, or "" if there is none."""
    from difflib import get_close_matches  # only errors need it

    commands, word = read_commands(), word.lower()
    by_meaning = (name for name, info in commands.items() if word in info.meanings)
    return next(by_meaning, next(iter(get_close_matches(word, commands, 1)), ""))


def _is_location(word: str) -> bool:
    """Return whether an argument that is no command is a file, a folder, a URL, or standard input."""
    if word.startswith("-"):
        return word == "-"
    return "/" in word or "." in word or Path(word).exists()


class _RootGroup(click.Group):
    """The group of all commands. The module of a command is imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(read_commands())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in {path.stem for path in _modules()}:
            aliased = (name for name, info in read_commands().items() if cmd_name in info.aliases)
            cmd_name = next(aliased, "")
        return importlib.import_module(f"odf_tui.cli.{cmd_name}").command if cmd_name else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and self.get_command(ctx, args[0]) is None and _is_location(args[0]):
            return "view", self.get_command(ctx, "view"), args
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            close = suggest_command(args[0])
            ctx.fail(f"unknown command '{args[0]}'" + (f", did you mean '{close}'?" if close else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = read_commands()
        limit = formatter.width - 6 - max(map(len, commands))  # as click truncates the help of a command
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (name, click.Command(name, help=info.summary).get_short_help_str(limit))
                    for name, info in commands.items()
                ]
            )


@click.group(
    cls=_RootGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@common_options
@click.version_option(package_name="odf-workstation", prog_name="odf")
@click.pass_context
def odf(ctx: click.Context, **common: object) -> OpenWorkstation | None:
    """Manage Open Data Fabric datasets. Without a command, `odf` opens the workstation.

    \b
    Start with:  odf demo        create a workspace with sample data
                 odf init        create an empty workspace in the current folder
                 odf FILE        look at a data file, a URL or a folder
                 odf help        list the help topics
    """
    return OpenWorkstation(options_of(ctx).workspace) if ctx.invoked_subcommand is None else None
