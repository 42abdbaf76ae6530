"""Print the folder of a dataset.

It contains the folders refs, blocks, data and checkpoints.
"""

from __future__ import annotations

import click

from odf_tui.cli.shared.options import DATASET, define_command
from odf_tui.cli.shared.output import data_stream
from odf_tui.cli.shared.workspace import open_workspace

ORDER = 120


@define_command("path", help=__doc__, example="ls $(odf path port-haven.stations)/data")
@click.argument("name", type=DATASET)
def command(name: str) -> None:
    data_stream().write(f"{open_workspace().resolve(name).folder}\n")
