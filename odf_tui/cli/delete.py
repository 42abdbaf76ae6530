"""Delete datasets and their data.

NAMES are names of datasets, or patterns with %, such as 'weather.%'. A dataset is not deleted while
other datasets are derived from it. Private keys remain: `odf keys delete` deletes them.
"""

from __future__ import annotations

import click

from odf_tui.cli.shared.input import confirm
from odf_tui.cli.shared.options import DATASET, define_command
from odf_tui.cli.shared.output import print_note
from odf_tui.cli.shared.workspace import open_workspace

ORDER = 40
MEANINGS = "rm del remove drop unlink"


@define_command("delete", help=__doc__, example="odf delete com.example.cases")
@click.argument("names", nargs=-1, required=True, type=DATASET)
@click.option("-y", "--yes", is_flag=True, help="Do not prompt for confirmation.")
def command(names: tuple[str, ...], yes: bool) -> None:
    workspace = open_workspace()
    datasets = workspace.match(names)
    workspace.check_deletable([dataset.id for dataset in datasets])
    if not yes:
        listed = ", ".join(dataset.name for dataset in datasets)
        keys = sum(workspace.has_private_key(dataset.id) for dataset in datasets)
        remark = "; the private key is not deleted" if keys == 1 else "; the private keys are not deleted"
        remark = remark if keys else ""
        question = f"Delete {listed} and all {'its' if len(datasets) == 1 else 'their'} data{remark}?"
        confirm(question, f"deleting {listed}", f"use --yes to skip the prompt{remark}")
    # Downstream datasets are deleted first.
    for dataset in reversed(workspace.in_order(datasets)):
        keeps_key = workspace.delete(dataset.id)
        remark = f"; odf keys delete {dataset.id} deletes its private key" if keeps_key else ""
        print_note(f"deleted {dataset.name}{remark}")
