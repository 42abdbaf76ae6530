"""Show a help page or the help of a command.

Without an argument, list the topics and the commands.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from odf_engine.api import LazyModule
from odf_engine.errors import UsageError
from odf_tui.cli.shared.options import FILE, define_command
from odf_tui.cli.shared.output import check_parent_folder, console
from odf_tui.cli.shared.root import odf
from odf_tui.help.commands import reference_page
from odf_tui.help.man_page import man_page
from odf_tui.help.pages import COMMANDS, TOPICS, read_page

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from odf_tui.help import markdown
else:
    markdown = LazyModule("odf_tui.help.markdown")  # imports rich.markdown

ORDER = 490
MEANINGS = "man docs doc tutorial manual topics"

_PLAIN_WIDTH: Final = 80
_MAX_WIDTH: Final = 100


def _complete_topics(context: click.Context, _: click.Parameter, prefix: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    names = [*TOPICS, COMMANDS, *odf.list_commands(context)]
    return [CompletionItem(name) for name in dict.fromkeys(names) if name.startswith(prefix)]


@define_command("help", help=__doc__, example="odf help getting-started")
@click.argument("topic", nargs=-1, metavar="[TOPIC|COMMAND]", shell_complete=_complete_topics)
@click.option("--man", is_flag=True, help="Write the man page odf(1), in roff.")
@click.option("-o", "--output", type=FILE, help="With --man: write to a file.")
@click.pass_context
def command(ctx: click.Context, topic: tuple[str, ...], man: bool, output: Path | None) -> None:
    root = ctx.find_root()
    if man:
        if topic:
            raise UsageError("--man takes no topic")
        _write_man_page(output)
    elif output is not None:
        raise UsageError(
            "-o requires --man", hint="to save a page, redirect the output: odf help TOPIC > FILE"
        )
    elif not topic:
        _print_page(_index(root))
    elif len(topic) == 1 and topic[0] in TOPICS:
        _print_page(read_page(topic[0]))
    elif topic == (COMMANDS,):
        _print_page(reference_page(odf))
    else:
        click.echo(_command_help(root, topic))


def _index(root: click.Context) -> str:
    """Return the list of topics and commands as Markdown."""
    titles = {**TOPICS, COMMANDS: "All commands with their options"}
    width = max(map(len, titles))
    topics = "\n".join(f"{name:<{width}}  {title}" for name, title in titles.items())
    commands = " ".join(odf.list_commands(root))
    return (
        "# Help of odf\n\n`odf help TOPIC` shows a page. `odf help COMMAND` shows the options of a "
        "command.\n\n"
        f"## Topics\n\n```sh\n{topics}\n```\n\n## Commands\n\n{commands}\n"
    )


def _command_help(root: click.Context, words: tuple[str, ...]) -> str:
    """Return the help of a command or subcommand."""
    context, command = root, root.command
    for word in words:
        child = command.get_command(context, word) if isinstance(command, click.Group) else None
        if child is None:
            raise _unknown(word, context, command)
        context, command = click.Context(child, info_name=word, parent=context), child
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
    if not sys.stdout.isatty():
        lines = markdown.render_page(markdown.quote_code(page), _PLAIN_WIDTH)
        sys.stdout.write(markdown.plain_text(lines))
        return
    out = console()
    text = markdown.quote_code(page) if out.no_color else page
    lines = markdown.render_page(text, min(out.width, _MAX_WIDTH))
    out.print(markdown.terminal_text(lines), end="")


def _write_man_page(output: Path | None) -> None:
    text = man_page(odf)
    if output is None:
        sys.stdout.write(text)
        return
    check_parent_folder(output)
    output.write_text(text, encoding="utf-8")
