"""The verb that lets a shell complete verbs, options and names of datasets."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
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
_NAMES: Final = ("dataset", "datasets", "name", "names", "old", "other")
_REPOSITORIES: Final = ("repository", "repositories", "place")
_ADDRESSES: Final = ("names", "source")
"""What may also name a dataset of a repository, in `odf pull`: that far only its repository is known here."""
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


def complete_names(command: click.Command, within: str = "") -> None:
    """Lets the arguments of a verb that name datasets be completed, and those that name repositories."""
    if isinstance(command, click.Group):
        for each in command.commands.values():
            complete_names(each, f"{within}{command.name} ")
    verb = f"{within}{command.name}"
    for parameter in command.params:
        # They are declared long before one may ask.
        if parameter.name in _REPOSITORIES:
            parameter._custom_shell_complete = _repositories
        elif verb == "pull" and parameter.name in _ADDRESSES:
            parameter._custom_shell_complete = _datasets_and_repositories
        elif verb not in _MAKES_ONE and isinstance(parameter, click.Argument) and parameter.name in _NAMES:
            parameter._custom_shell_complete = _datasets


def _datasets(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    return _beginning(begun, _dataset_names(context))


def _repositories(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    return _beginning(begun, _repository_names(context))


def _datasets_and_repositories(
    context: click.Context, parameter: click.Parameter, begun: str
) -> list[CompletionItem]:
    places = [f"{name}/" for name in _repository_names(context)]
    return _beginning(begun, [*(_dataset_names(context) if parameter.name == "names" else ()), *places])


def _beginning(begun: str, names: Iterable[str]) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    return [CompletionItem(name) for name in names if name.startswith(begun)]


def _repository_names(context: click.Context) -> Iterator[str]:
    from odf_engine.errors import OdfError
    from odf_engine.workspace.discovery import ODF_FOLDER, workspace_folder
    from odf_engine.workspace.remotes import Remotes

    with suppress(OdfError, OSError):
        folder = workspace_folder(Path.cwd(), options_of(context).workspace)
        yield from (repo.name for repo in Remotes(folder / ODF_FOLDER).repositories())


def _dataset_names(context: click.Context) -> Iterator[str]:
    from odf_engine.errors import OdfError
    from odf_engine.workspace.workspace import Workspace

    with suppress(OdfError, OSError):  # a shell that completes is no place for complaints
        workspace = Workspace.find(Path.cwd(), options_of(context).workspace)
        yield from sorted(str(entry.alias) for entry in workspace.datasets())
