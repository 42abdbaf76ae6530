"""Remove expired old heads, and files that no reference uses.

Without NAMES, cleans all datasets. Lists the files and prompts for confirmation first.

With a store, use --now only while no other machine changes its datasets. See `odf help stores`.

Old heads of compactions expire after 7 days. The settings compaction.keepDays, compaction.keepLast,
compaction.keepDaysOf and compaction.keepLastOf change this. See `odf help compaction`.
"""

from __future__ import annotations

import sys

import click

from odf_engine.api import FsckReport
from odf_engine.api.text import format_bytes
from odf_tui.cli.fsck import PhasePrinter, report_json
from odf_tui.cli.shared.input import confirm, is_interactive
from odf_tui.cli.shared.options import DATASET, define_command
from odf_tui.cli.shared.output import print_note, print_result, show
from odf_tui.cli.shared.workspace import open_workspace
from odf_tui.text.verification_text import workspace_check_lines

ORDER = 320
MEANINGS = "vacuum prune cleanup expire"


@define_command("gc", help=__doc__, example="odf gc --dry-run", json=True)
@click.argument("names", nargs=-1, type=DATASET)
@click.option("--dry-run", is_flag=True, help="List what would be removed, and change nothing.")
@click.option("--now", is_flag=True, help="Also remove files and old heads of the last hour.")
@click.option("-y", "--yes", is_flag=True, help="Do not prompt for confirmation.")
def command(names: tuple[str, ...], dry_run: bool, now: bool, yes: bool) -> None:
    workspace = open_workspace()
    datasets = [dataset.id for dataset in (workspace.match(names) if names else workspace)]
    files = workspace.collect_files(datasets, PhasePrinter(), dry_run=True, now=now)
    if not dry_run and files.findings:
        if not yes:
            if is_interactive():
                _print_garbage(files, "to remove")
            confirm("Remove them?", "removing files", "use --yes, or --dry-run")
        files = workspace.collect_files(datasets, PhasePrinter(), dry_run=False, now=now)
    show(report_json(files), lambda: _print_garbage(files, "to remove" if dry_run else "removed"))
    sys.exit(0 if dry_run or not files.left else 3)


def _print_garbage(report: FsckReport, state: str) -> None:
    """Print the removed or removable files, and their total size."""
    for line in workspace_check_lines(report) if report.findings else ():
        print_result(line)
    removed = [finding for finding in report.findings if not report.repair or finding.repaired]
    files = sum(finding.count for finding in removed)
    size = sum(finding.size for finding in removed)
    print_note(f"{files:,} file{'' if files == 1 else 's'} {state}, {format_bytes(size)}")
