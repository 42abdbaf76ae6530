"""Return a dataset to an earlier block.

The blocks after it are no longer part of the dataset. They remain under a reference such as
before-reset-1a2b3c4d, and `odf reset NAME REF` restores them. A time selects the newest block at
that time.

Datasets derived from the removed rows are diverged until `odf pull --reset-on-divergence`
rebuilds them. A remote that has the removed blocks is ahead until `odf push --force`.
"""

from __future__ import annotations

import click

from odf_tui.cli.shared.input import confirm
from odf_tui.cli.shared.options import DATASET, define_command
from odf_tui.cli.shared.output import print_note
from odf_tui.cli.shared.workspace import open_workspace
from odf_tui.text.pinned_blocks import history_text

ORDER = 60
MEANINGS = "undo revert restore rollback checkout"


@define_command("reset", help=__doc__, example="odf reset com.example.cases 12")
@click.argument("name", type=DATASET)
@click.argument("version", metavar="BLOCK|TIME|REF")
@click.option("-y", "--yes", is_flag=True, help="Do not prompt for confirmation.")
def command(name: str, version: str, yes: bool) -> None:
    dataset = open_workspace().resolve(name)
    target = dataset.version(version)
    if target.head:
        print_note(f"{dataset.name}: unchanged, block {target.sequence_number} is the newest block")
        return
    place = f"block {target.sequence_number}" + history_text(target)
    if not yes:
        confirm(f"Reset {dataset.name} to {place}?", f"resetting {dataset.name}", "use --yes to skip it")
    backup = dataset.reset(target)
    print_note(f"reset {dataset.name} to {place}; the earlier history is {backup}")
