"""Delete datasets and their data.

NAMES are names of datasets, or patterns with %, such as 'weather.%'. A dataset is not deleted while
other datasets are derived from it. Private keys remain: `odf keys delete` deletes them.
"""

from __future__ import annotations

import click

from odf_engine.coordinator.endpoint import notify_datasets_changed
from odf_engine.workspace.dataset_graph import DatasetGraph
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
    entries = workspace.match(names)
    workspace.check_deletable(entries)
    if not yes:
        listed = ", ".join(str(entry.alias) for entry in entries)
        keys = sum(workspace.keys.has_key(entry.id) for entry in entries)
        remark = "; the private key is not deleted" if keys == 1 else "; the private keys are not deleted"
        remark = remark if keys else ""
        question = f"Delete {listed} and all {'its' if len(entries) == 1 else 'their'} data{remark}?"
        confirm(question, f"deleting {listed}", f"use --yes to skip the prompt{remark}")
    # Downstream datasets are deleted first.
    by_id = {entry.id: entry for entry in entries}
    for dataset in reversed(DatasetGraph(workspace.summaries()).order(by_id)):
        entry = by_id[dataset]
        workspace.delete(entry)
        remark = f"; odf keys delete {entry.id} deletes its private key"
        print_note(f"deleted {entry.alias}{remark if workspace.keys.has_key(entry.id) else ''}")
    notify_datasets_changed(workspace.folder)
