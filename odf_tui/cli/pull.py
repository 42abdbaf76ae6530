"""Pull new data into datasets.

NAMES are names of datasets, or patterns with %, such as 'weather.%'.

Polls the source of a root dataset until it has no more data. Runs the query of a derivative dataset
over the new rows of its inputs.

A third-party dataset is specified by its URL, or as REPO/NAME (see `odf repo`). All of its
blocks and data are pulled and verified. Afterwards, `odf pull NAME` pulls new blocks from the same
remote, and the source or query of the dataset does not run.

If the dataset and its remote have diverged, the pull fails. With --force, the history of the remote
replaces the local one, which remains available under a reference.

With --recursive, the inputs of a third-party dataset are pulled from the same repository. With --verify,
the pulled datasets are verified, as by `odf verify`: the transactions are replayed if the inputs are here.
Exits with 3 if a dataset is invalid.

With --branch, the new blocks follow the blocks of a branch (see `odf branch`). The query of a derivative
dataset reads the heads of its inputs; with --inputs, a branch of the inputs that have it. --remote-branch
creates the local branch if it does not exist.

A crate of `odf cite --with-data`, a zip archive or a folder, is pulled without a network connection. It is
checked before its datasets are added, and a later pull does not read it. If a dataset has the name of the
folder, write ./FOLDER.

NAME@TAG, or --tag, pulls a tag of the remote: exactly the version that a citation names (see `odf tag`).
The head does not move. A new dataset ends at the tagged version.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import click

from odf_engine.api import Job, JobState, Pull, Verify
from odf_engine.api.plans.pull_plan import PullPlan, PullSelection, PullTarget
from odf_engine.api.workspace import Workspace
from odf_engine.errors import OdfError, UsageError
from odf_tui.cli.shared.job_progress import LiveReporter, exit_code, follow, print_failures
from odf_tui.cli.shared.options import (
    BRANCH,
    DATASET_OR_REMOTE,
    REMOTE_DATASET,
    branch_option,
    define_command,
    on_warning_option,
    parse_time_option,
)
from odf_tui.cli.shared.output import live_progress, show
from odf_tui.cli.shared.pulls import print_pulls, pull_entry
from odf_tui.cli.shared.workspace import open_workspace
from odf_tui.cli.verify import print_reports

ORDER = 210
MEANINGS = "update refresh run sync clone download"


@define_command("pull", help=__doc__, example="odf pull port-haven.stations", json=True)
@click.argument("names", nargs=-1, type=DATASET_OR_REMOTE)
@click.option(
    "--all", "everything", is_flag=True, help="Pull all datasets; with --from REPO, all of the repository."
)
@click.option("-r", "--recursive", is_flag=True, help="Pull inputs too.")
@click.option("--verify", "verifies", is_flag=True, help="Verify the pulled datasets afterwards.")
@click.option("--from", "source", metavar="URL|REPO/NAME", type=REMOTE_DATASET, help="Pull from this remote.")
@click.option("--as", "alias", metavar="NAME", help="Name of a new dataset.")
@click.option(
    "--fetch-uncacheable", is_flag=True, help="Fetch sources that cannot report whether they have changed."
)
@click.option("--set-watermark", metavar="TIME", help="Only set the watermark to this time (RFC 3339).")
@click.option(
    "--force",
    is_flag=True,
    help="Fetch unchanged sources too. Overwrite a local history that has diverged from the remote. Rebuild "
    "missing and damaged slices of derivative datasets.",
)
@click.option(
    "--strict", is_flag=True, help="Fail on rows whose key is already in the ledger with other values."
)
@on_warning_option
@click.option(
    "--reset-on-divergence",
    is_flag=True,
    help="Rebuild derivative datasets whose inputs were reset or replaced.",
)
@click.option(
    "--rederive",
    is_flag=True,
    help="Derive derivative datasets again from the start of their inputs, by the current rules.",
)
@branch_option("Pull into this branch of the datasets. Their heads do not move.")
@click.option(
    "--inputs",
    metavar="BRANCH",
    default="",
    type=BRANCH,
    help="With --branch: read this branch of the inputs that have it, and the heads of the others.",
)
@click.option(
    "--remote-branch",
    metavar="BRANCH",
    default="",
    help="Pull this branch of the remote, into --branch or the branch of the same name.",
)
@click.option(
    "--tag", metavar="TAG", default="", help="Pull this tag of the remote. A new dataset ends at its version."
)
def command(
    names: tuple[str, ...],
    everything: bool,
    recursive: bool,
    verifies: bool,
    source: str | None,
    alias: str | None,
    set_watermark: str | None,
    **options: Any,
) -> None:
    options["branch"] = options["branch"] or options["remote_branch"]
    if options["branch"] and options["tag"]:
        raise UsageError(
            "--branch and --tag exclude each other", hint="omit --branch: a tag keeps its own name"
        )
    if options["branch"] and recursive:
        raise UsageError("--branch and --recursive exclude each other", hint="pull the inputs first")
    workspace = open_workspace()
    request = Pull("", set_watermark=parse_time_option("--set-watermark", set_watermark), **options)
    jobs: list[Job] = []
    targets: list[PullTarget] = []
    problem: OdfError | None = None
    selection = PullSelection(names, everything, recursive, source, alias)
    with ExitStack() as stack:
        with live_progress() as progress:
            reporter = LiveReporter("checking the crate", progress)
            plan = stack.enter_context(workspace.planned_pull(selection, reporter))
        while plan.targets:
            jobs += follow(workspace, plan.requests(request))
            targets += plan.targets
            try:
                plan = workspace.plan_input_pulls(targets) if recursive else PullPlan([])
            except OdfError as error:  # the datasets before it are pulled
                plan, problem = PullPlan([]), error
    pulled = list(zip(jobs, targets, strict=True))
    checks = _verify(workspace, jobs, options["branch"] or options["tag"]) if verifies else []
    reports = {job.target: report for job in checks if (report := job.result_of(Verify))}
    entries = [pull_entry(job, target.alias or target.name) for job, target in pulled]
    if verifies:
        entries = [{**entry, "verification": reports.get(entry["name"])} for entry in entries]

    def print_text() -> None:
        print_pulls(pulled, workspace)
        print_failures(checks)
        print_reports(list(reports.values()))

    show(entries, print_text)
    if problem is not None:
        raise problem
    valid = all(report.valid for report in reports.values())
    sys.exit(exit_code([*jobs, *checks]) or (0 if valid else 3))


def _verify(workspace: Workspace, pulls: Sequence[Job], branch: str) -> list[Job]:
    """Verify the datasets of the pulls that succeeded; return the jobs, with the names as targets."""
    results = [job.result_of(Pull) for job in pulls if job.state is JobState.done]
    names = [result.name for result in results if result is not None]
    return follow(workspace, [(Verify(workspace[name].id, branch=branch), name) for name in names])
