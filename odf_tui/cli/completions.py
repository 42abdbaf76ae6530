"""The verb that lets a shell complete verbs, options and names of datasets."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from odf_tui.cli.output import options_of, say, verb

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_WHERE: Final = {
    "bash": "add to ~/.bashrc:  source <(odf completions bash)",
    "zsh": "add to ~/.zshrc, after compinit:  source <(odf completions zsh)",
    "fish": "save as ~/.config/fish/completions/odf.fish",
}
_NAMES: Final = ("dataset", "datasets", "name", "names", "old")
_MAKES_ONE: Final = ("init", "new", "add", "demo", "config")  # what these name is no dataset that is there


@verb("completions", example="source <(odf completions bash)")
@click.argument("shell", type=click.Choice(sorted(_WHERE)))
def completions_verb(shell: str) -> None:
    """Prints what makes a shell complete the verbs of odf, their options, and names of datasets."""
    from click.shell_completion import get_completion_class

    from odf_tui.cli.verbs import COMPLETION, cli

    made = get_completion_class(shell)
    assert made is not None
    sys.stdout.write(made(cli, {}, "odf", COMPLETION).source() + "\n")
    if sys.stdout.isatty():
        say(_WHERE[shell])


def complete_datasets(command: click.Command) -> None:
    """Lets the arguments of a verb that name datasets be completed."""
    if command.name in _MAKES_ONE:
        return
    for parameter in command.params:
        if isinstance(parameter, click.Argument) and parameter.name in _NAMES:
            parameter._custom_shell_complete = _datasets  # an argument is declared long before one may ask


def _datasets(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    return [CompletionItem(name) for name in _dataset_names(context) if name.startswith(begun)]


def _dataset_names(context: click.Context) -> Iterator[str]:
    from odf_engine.errors import OdfError
    from odf_engine.workspace.workspace import Workspace

    with suppress(OdfError, OSError):  # a shell that completes is no place for complaints
        workspace = Workspace.find(Path.cwd(), options_of(context).workspace)
        yield from sorted(str(entry.alias) for entry in workspace.datasets())
