"""The table of commands, whose modules are imported on use; help, shell completion."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from odf_engine.errors import UsageError
from odf_tui.cli.output import (
    OpenWorkstation,
    check_parent_folder,
    common_options,
    console,
    options_of,
    print_note,
    verb,
)
from odf_tui.help.pages import COMMANDS, TOPICS, read_page

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


_INSTALL_HINTS: Final = {
    "bash": "add this line to ~/.bashrc:  source <(odf completions bash)",
    "zsh": "add this line to ~/.zshrc, after compinit:  source <(odf completions zsh)",
    "fish": "save the output as ~/.config/fish/completions/odf.fish",
}
_NAMES: Final = ("dataset", "datasets", "name", "names", "old", "other")
_REPOSITORIES: Final = ("repository", "repositories", "place")
_ADDRESSES: Final = ("names", "source")
"""Parameters of `odf pull` that may be a dataset of a repository; only the repository is completed."""
_BRANCHES: Final = ("branch", "promote", "delete", "rename")
_CREATING_VERBS: Final = ("init", "new", "add", "demo", "config")
"""Commands whose arguments are not names of existing datasets."""


@verb("completions", example="source <(odf completions bash)")
@click.argument("shell", type=click.Choice(sorted(_INSTALL_HINTS)))
def completions_verb(shell: str) -> None:
    """Print the completion script of a shell.

    It completes commands, options, and names of datasets and repositories.
    """
    from click.shell_completion import get_completion_class

    completion_class = get_completion_class(shell)
    assert completion_class is not None
    sys.stdout.write(completion_class(odf, {}, "odf", COMPLETION).source() + "\n")
    if sys.stdout.isatty():
        print_note(_INSTALL_HINTS[shell])


def enable_completion(command: click.Command, within: str = "") -> None:
    """Enable completion of the arguments of a command that name datasets or repositories."""
    if isinstance(command, click.Group):
        for each in command.commands.values():
            enable_completion(each, f"{within}{command.name} ")
    verb = f"{within}{command.name}"
    for parameter in command.params:
        # click has no public way to set a completion after the declaration.
        if parameter.name in _REPOSITORIES:
            parameter._custom_shell_complete = _complete_repositories
        elif parameter.name in _BRANCHES and not getattr(parameter, "is_flag", False):
            parameter._custom_shell_complete = _complete_branches
        elif verb == "pull" and parameter.name in _ADDRESSES:
            parameter._custom_shell_complete = _complete_both
        elif (
            verb not in _CREATING_VERBS and isinstance(parameter, click.Argument) and parameter.name in _NAMES
        ):
            parameter._custom_shell_complete = _complete_datasets


def _complete_datasets(
    context: click.Context, parameter: click.Parameter, prefix: str
) -> list[CompletionItem]:
    return _complete(prefix, _dataset_names(context))


def _complete_branches(
    context: click.Context, parameter: click.Parameter, prefix: str
) -> list[CompletionItem]:
    return _complete(prefix, _branch_names(context))


def _complete_repositories(
    context: click.Context, parameter: click.Parameter, prefix: str
) -> list[CompletionItem]:
    return _complete(prefix, _repository_names(context))


def _complete_both(context: click.Context, parameter: click.Parameter, prefix: str) -> list[CompletionItem]:
    repositories = [f"{name}/" for name in _repository_names(context)]
    return _complete(prefix, [*(_dataset_names(context) if parameter.name == "names" else ()), *repositories])


def _complete(prefix: str, names: Iterable[str]) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    return [CompletionItem(name) for name in names if name.startswith(prefix)]


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

    with suppress(OdfError, OSError):  # completion prints no errors
        workspace = Workspace.find(Path.cwd(), options_of(context).workspace)
        yield from sorted(str(entry.alias) for entry in workspace.datasets())


def _branch_names(context: click.Context) -> Iterator[str]:
    """Yield the names of the branches of the dataset, or the datasets, that the command line names."""
    from odf_engine.errors import OdfError
    from odf_engine.workspace.workspace import Workspace

    named = context.params.get("names") or context.params.get("name") or ()
    with suppress(OdfError, OSError):
        workspace = Workspace.find(Path.cwd(), options_of(context).workspace)
        entries = workspace.match([named] if isinstance(named, str) else list(named))
        yield from sorted({branch for entry in entries for branch in entry.dataset.branch_names()})


# --- Help --------------------------------------------------------------------------------------------

_PLAIN_WIDTH: Final = 80
_MAX_WIDTH: Final = 100


def _complete_topics(context: click.Context, _: click.Parameter, prefix: str) -> list[CompletionItem]:
    names = [*TOPICS, COMMANDS, *_group(context.find_root()).list_commands(context)]
    return _complete(prefix, dict.fromkeys(names))


@verb("help", example="odf help getting-started")
@click.argument("topic", nargs=-1, metavar="[TOPIC|COMMAND]", shell_complete=_complete_topics)
@click.option("--man", is_flag=True, help="Write the man page odf(1), in roff.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="With --man: write to a file.",
)
@click.pass_context
def help_verb(ctx: click.Context, topic: tuple[str, ...], man: bool, output: Path | None) -> None:
    """Show a help page or the help of a command.

    Without an argument, list the topics and the commands.
    """
    root = ctx.find_root()
    if man:
        if topic:
            raise UsageError("--man takes no topic")
        _write_man_page(root, output)
    elif output is not None:
        raise UsageError(
            "-o requires --man", hint="to save a page, redirect the output: odf help TOPIC > FILE"
        )
    elif not topic:
        _print_page(_index(root))
    elif len(topic) == 1 and topic[0] in TOPICS:
        _print_page(read_page(topic[0]))
    elif topic == (COMMANDS,):
        from odf_tui.help.commands import reference_page

        _print_page(reference_page(_group(root)))
    else:
        click.echo(_verb_help(root, topic))


def _group(root: click.Context) -> click.Group:
    assert isinstance(root.command, click.Group)
    return root.command


def _index(root: click.Context) -> str:
    """Return the list of topics and commands as Markdown."""
    titles = {**TOPICS, COMMANDS: "All commands with their options"}
    width = max(map(len, titles))
    topics = "\n".join(f"{name:<{width}}  {title}" for name, title in titles.items())
    verbs = " ".join(_group(root).list_commands(root))
    return (
        "# Help of odf\n\n`odf help TOPIC` shows a page. `odf help COMMAND` shows the options of a "
        "command.\n\n"
        f"## Topics\n\n```sh\n{topics}\n```\n\n## Commands\n\n{verbs}\n"
    )


def _verb_help(root: click.Context, words: tuple[str, ...]) -> str:
    """Return the help of a command or subcommand.

    Raises:
        UsageError: there is no such topic or command.
    """
    context, command = root, root.command
    for word in words:
        found = command.get_command(context, word) if isinstance(command, click.Group) else None
        if found is None:
            raise _unknown(word, context, command)
        context, command = click.Context(found, info_name=word, parent=context), found
    return command.get_help(context)


def _unknown(word: str, context: click.Context, command: click.Command) -> UsageError:
    names = command.list_commands(context) if isinstance(command, click.Group) else []
    if context.parent is None:
        names = [*TOPICS, COMMANDS, *names]
        error, everything = f"unknown topic or command: '{word}'", "run odf help to see all topics"
    else:
        error, everything = f"{context.command_path} has no command '{word}'", ""
    from difflib import get_close_matches  # deferred: only errors need it

    close = get_close_matches(word, names, 3) or [name for name in names if word in name]
    return UsageError(error, hint=f"did you mean {' or '.join(close)}?" if close else everything)


def _print_page(page: str) -> None:
    from odf_tui.help.markdown import plain_text, quote_code, render_page, terminal_text

    if not sys.stdout.isatty():
        sys.stdout.write(plain_text(render_page(quote_code(page), _PLAIN_WIDTH)))
        return
    out = console()
    lines = render_page(quote_code(page) if out.no_color else page, min(out.width, _MAX_WIDTH))
    out.print(terminal_text(lines), end="")


def _write_man_page(root: click.Context, output: Path | None) -> None:
    from odf_tui.help.man_page import man_page

    text = man_page(_group(root))
    if output is None:
        sys.stdout.write(text)
        return
    check_parent_folder(output)
    output.write_text(text, encoding="utf-8")


# --- Verbs -------------------------------------------------------------------------------------------

# The module of each verb. Modules are imported on use: `odf list` starts without the imports of `odf demo`.
VERBS: Final = {
    "init": "datasets",
    "add": "add",
    "new": "add",
    "delete": "datasets",
    "rename": "datasets",
    "reset": "datasets",
    "list": "datasets",
    "show": "datasets",
    "status": "jobs",
    "watch": "jobs",
    "graph": "datasets",
    "path": "datasets",
    "log": "chain",
    "schema": "chain",
    "tail": "chain",
    "late": "chain",
    "sql": "sql",
    "provenance": "history",
    "diff": "history",
    "branch": "history",
    "pull": "pull",
    "ingest": "pull",
    "export": "sql",
    "objects": "chain",
    "repo": "repositories",
    "push": "repositories",
    "search": "repositories",
    "trust": "keys",
    "untrust": "keys",
    "verify": "verify",
    "compact": "verify",
    "gc": "verify",
    "fsck": "verify",
    "doctor": "verify",
    "keys": "keys",
    "serve": "jobs",
    "demo": "add",
    "jobs": "jobs",
    "cancel": "jobs",
    "logs": "jobs",
    "worker": "jobs",
    "flow": "flows",
    "check": "flows",
    "alert": "alerts",
    "metrics": "alerts",
    "engine": "jobs",
    "config": "datasets",
    "completions": "verbs",
    "help": "verbs",
    "block": "chain",
    "digest": "chain",
}
ALIASES: Final = {"ls": "list"}
"""Other names of commands, which lists of commands omit."""
_MEANINGS: Final = {
    "list": "dir datasets",
    "show": "describe desc info inspect get",
    "status": "st state stale",
    "watch": "monitor top follow live",
    "new": "create template",
    "delete": "rm del remove drop unlink",
    "rename": "mv move",
    "reset": "undo revert restore rollback checkout",
    "graph": "tree lineage dag deps dependencies",
    "log": "history blocks commits chain",
    "schema": "columns ddl types",
    "tail": "cat head rows preview peek data",
    "sql": "query select shell psql spark-sql repl",
    "provenance": "trace origin why blame",
    "diff": "compare changes",
    "branch": "branches fork staging promote",
    "pull": "fetch update refresh run sync clone download",
    "ingest": "import insert load append put",
    "export": "dump save write copy cp csv parquet",
    "objects": "attachments files blobs links",
    "push": "upload publish share send",
    "repo": "remote remotes repos repository repositories login logout",
    "search": "find discover",
    "verify": "validate audit prove",
    "compact": "optimize merge squash compaction",
    "gc": "vacuum prune cleanup expire",
    "fsck": "repair fix clean",
    "doctor": "health diagnose selftest env",
    "keys": "key token tokens sign",
    "jobs": "ps tasks queue",
    "cancel": "kill stop abort",
    "flow": "flows schedule cron timer trigger pipeline automate",
    "metrics": "prometheus monitoring exporter",
    "alert": "alerts webhook webhooks notification notifications mail email smtp openlineage hook",
    "check": "checks expectation expectations quality test tests rule rules assert",
    "worker": "daemon coordinator start restart",
    "serve": "server http listen",
    "config": "settings set options preferences",
    "completions": "completion",
    "help": "man docs doc tutorial manual topics",
    "digest": "hash checksum sha",
}
"""Words of other tools that mean a command, for suggestions."""
COMPLETION: Final = "_ODF_COMPLETE"
"""The environment variable by which a shell requests completions."""


def suggest_verb(word: str) -> str:
    """Return the command that an unknown word means, or resembles, or "" if there is none."""
    from difflib import get_close_matches  # deferred: only errors need it

    word = word.lower()
    for name, meanings in _MEANINGS.items():
        if word in meanings.split():
            return name
    return next(iter(get_close_matches(word, VERBS, 1)), "")


class _VerbGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        cmd_name = ALIASES.get(cmd_name, cmd_name)
        if cmd_name not in VERBS:
            return None
        module = importlib.import_module(f"odf_tui.cli.{VERBS[cmd_name]}")
        command = getattr(module, cmd_name + "_verb")
        if COMPLETION in os.environ:
            enable_completion(command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            close = suggest_verb(args[0])
            ctx.fail(f"unknown command '{args[0]}'" + (f", did you mean '{close}'?" if close else ""))
        return super().resolve_command(ctx, args)


@click.group(
    cls=_VerbGroup,
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
                 odf help        list the help topics
    """
    return OpenWorkstation(options_of(ctx).workspace) if ctx.invoked_subcommand is None else None
