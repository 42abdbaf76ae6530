"""Check the workspace for orphaned and damaged files.

Finds orphaned files, incomplete files, damaged caches and missing slices. With --repair, removes or
rebuilds them. Missing slices of a derivative dataset are rebuilt by a replay of its transactions.

Blocks and data reachable from the head or another reference of a dataset are never removed. Neither
are private keys of datasets, nor files of datasets with a running job. A damaged key of a dataset
that is not in the workspace is renamed. To verify the contents of datasets, use `odf verify`.

With a store, use --now only while no other machine changes its datasets. See `odf help stores`.

Exits with 3 if problems remain.
"""

from __future__ import annotations

import sys

import click
import msgspec

from odf_engine.api import FsckReport, Pull, Reporter
from odf_engine.api.workspace import Workspace
from odf_engine.errors import UsageError
from odf_tui.cli.shared.job_progress import follow, print_failures
from odf_tui.cli.shared.options import define_command, options_of
from odf_tui.cli.shared.output import print_note, select_fields, show
from odf_tui.cli.shared.workspace import open_workspace
from odf_tui.text.verification_text import workspace_check_lines

ORDER = 330
MEANINGS = "repair fix clean"


class PhasePrinter(Reporter):
    """Prints the phases of a check with ``-v``."""

    def phase(self, name: str) -> None:
        if options_of().verbose:
            print_note(f"checking {name}")


@define_command("fsck", help=__doc__, example="odf fsck --repair", json=True)
@click.option("--repair", is_flag=True, help="Remove orphaned files, and rebuild damaged caches.")
@click.option("--now", is_flag=True, help="With --repair, also remove files modified within the last hour.")
def command(repair: bool, now: bool) -> None:
    if now and not repair:
        raise UsageError("--now requires --repair")
    workspace = open_workspace()
    report = workspace.check_files(PhasePrinter(), repair=repair, now=now)
    if repair:
        _rebuild_slices(workspace, report)
    show(report_json(report), lambda: _print_workspace_report(report))
    sys.exit(3 if report.left else 0)


def _rebuild_slices(workspace: Workspace, report: FsckReport) -> None:
    """Rebuild the missing slices of derivative datasets without a pull remote, and update the report."""
    lost = _find_lost(report)
    datasets = [
        dataset
        for dataset in map(workspace.resolve, sorted(lost))
        if dataset.kind == "derivative" and not dataset.remotes.pull
    ]
    if not datasets:
        return
    requests = [(Pull(dataset.id, rebuild=True), dataset.name) for dataset in datasets]
    print_failures(follow(workspace, requests))
    still_lost = _find_lost(workspace.check_files(PhasePrinter()))
    report.findings = [
        msgspec.structs.replace(finding, repaired=True, left="")
        if finding.kind == "missing-slice" and finding.where in lost - still_lost
        else finding
        for finding in report.findings
    ]


def _find_lost(report: FsckReport) -> set[str]:
    """Return the names of the datasets with missing slices."""
    return {finding.where for finding in report.left if finding.kind == "missing-slice"}


def report_json(report: FsckReport) -> dict[str, object]:
    """Return a report for ``--json``, without the options of the check."""
    return {"clean": not report.left, **select_fields(report, "datasets", "findings", "remarks")}


def _print_workspace_report(report: FsckReport) -> None:
    for line in workspace_check_lines(report) if report.left or not options_of().quiet else ():
        sys.stdout.write(line + "\n")
    if not report.findings:
        return
    if not report.repair:
        print_note("odf fsck --repair removes orphaned files and rebuilds damaged caches")
    elif report.left:
        print_note(f"{len(report.findings) - len(report.left)} repaired, {len(report.left)} not repaired")
