"""Revoke trust in a dataset.

Until it is trusted again, its source does not run, and its query runs in a sandbox.
"""

from __future__ import annotations

import click

from odf_engine.workspace.trust import Trust
from odf_tui.cli.shared.options import DATASET, define_command, options_of
from odf_tui.cli.shared.output import print_json, print_note
from odf_tui.cli.shared.workspace import open_workspace
from odf_tui.cli.trust import trust_json

ORDER = 290


@define_command("untrust", help=__doc__, example="odf untrust com.example.cases", json=True)
@click.argument("name", type=DATASET)
def command(name: str) -> None:
    workspace = open_workspace()
    entry, trust = workspace.resolve(name), Trust(workspace)
    was_trusted = trust.revoke(entry)
    if options_of().json:
        print_json(trust_json(trust, entry, trust.list_executions(entry)))
    elif trust.is_own(entry):
        print_note(f"{entry.alias} is your own dataset and needs no trust")
    else:
        print_note(f"revoked trust in {entry.alias}" if was_trusted else f"{entry.alias} was not trusted")
