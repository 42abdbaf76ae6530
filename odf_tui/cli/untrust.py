"""Revoke trust in a dataset.

Until it is trusted again, its source does not run, and its query runs in a sandbox.
"""

from __future__ import annotations

import click

from odf_tui.cli.shared.options import DATASET, define_command, options_of
from odf_tui.cli.shared.output import print_json, print_note
from odf_tui.cli.shared.workspace import open_workspace
from odf_tui.cli.trust import trust_json

ORDER = 290


@define_command("untrust", help=__doc__, example="odf untrust com.example.cases", json=True)
@click.argument("name", type=DATASET)
def command(name: str) -> None:
    workspace = open_workspace()
    dataset = workspace.resolve(name)
    was_trusted = workspace.untrust(dataset.id)
    status = workspace.trust_status(dataset.id)
    if options_of().json:
        print_json(trust_json(status))
    elif status.trust == "own":
        print_note(f"{dataset.name} is your own dataset and needs no trust")
    else:
        print_note(f"revoked trust in {dataset.name}" if was_trusted else f"{dataset.name} was not trusted")
