"""Rename a dataset.

Its id does not change, so the datasets derived from it are not affected.
"""

from __future__ import annotations

import click

from odf_tui.cli.shared.options import DATASET, define_command
from odf_tui.cli.shared.output import print_note
from odf_tui.cli.shared.workspace import open_workspace

ORDER = 50
MEANINGS = "mv move"


@define_command("rename", help=__doc__, example="odf rename cases com.example.cases")
@click.argument("old", type=DATASET)
@click.argument("new")
def command(old: str, new: str) -> None:
    workspace = open_workspace()
    dataset = workspace.resolve(old)
    workspace.rename(dataset.id, new)
    print_note(f"renamed {dataset.name} to {new}")
