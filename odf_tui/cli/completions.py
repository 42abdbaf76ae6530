"""Print the completion script of a shell.

It completes commands, options, and names of datasets and repositories.
"""

from __future__ import annotations

import sys
from typing import Final

import click

from odf_tui.cli.shared.options import define_command
from odf_tui.cli.shared.output import print_note
from odf_tui.cli.shared.root import COMPLETION, odf

ORDER = 480
MEANINGS = "completion"

_INSTALL_HINTS: Final = {
    "bash": "add this line to ~/.bashrc:  source <(odf completions bash)",
    "zsh": "add this line to ~/.zshrc, after compinit:  source <(odf completions zsh)",
    "fish": "save the output as ~/.config/fish/completions/odf.fish",
}


@define_command("completions", help=__doc__, example="source <(odf completions bash)")
@click.argument("shell", type=click.Choice(sorted(_INSTALL_HINTS)))
def command(shell: str) -> None:
    from click.shell_completion import get_completion_class

    completion_class = get_completion_class(shell)
    assert completion_class is not None
    sys.stdout.write(completion_class(odf, {}, "odf", COMPLETION).source() + "\n")
    if sys.stdout.isatty():
        print_note(_INSTALL_HINTS[shell])
