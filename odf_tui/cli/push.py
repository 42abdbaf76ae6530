"""Push datasets to remotes.

NAMES are names of datasets, or patterns with %, such as 'weather.%'.

A dataset is pushed to the remote that it was pushed to before, else to the only repository. Only
blocks and data that the remote does not have are sent.

With --recursive, the inputs are pushed to the repository of the dataset first. If the push of an input
fails, its outputs are not pushed.

If the remote has blocks that the dataset does not have, the push fails. With --force, these blocks
are removed from the history of the remote.

--branch requires a folder or a bucket with the dataset: the smart transfer protocol has no branches.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click
from msgspec import to_builtins

from odf_engine.api import Job, JobState, Push, PushResult
from odf_engine.api.plans.push_plan import PushTarget
from odf_engine.api.text import format_bytes
from odf_engine.errors import UsageError
from odf_tui.cli.shared.job_progress import error_entry, exit_code, follow, print_failure
from odf_tui.cli.shared.options import DATASET, REPOSITORY, branch_option, define_command
from odf_tui.cli.shared.output import print_result, show
from odf_tui.cli.shared.workspace import match_datasets, open_workspace
from odf_tui.text.remotes import plain_block_count

ORDER = 260
MEANINGS = "upload publish share send"


@define_command("push", help=__doc__, example="odf push port-haven.stations --to lab", json=True)
@click.argument("names", nargs=-1, type=DATASET)
@click.option("--all", "everything", is_flag=True, help="Push all datasets of the workspace.")
@click.option("-r", "--recursive", is_flag=True, help="Push inputs too, before their outputs.")
@click.option(
    "--to",
    "place",
    metavar="REPO|URL",
    type=REPOSITORY,
    help="Remote to push to. Default: the push remote, else the only repository.",
)
@click.option("--force", is_flag=True, help="Overwrite the history of the remote if it has diverged.")
@branch_option("Push this branch of the datasets, to the branch of the same name.")
def command(
    names: tuple[str, ...], everything: bool, recursive: bool, place: str | None, force: bool, branch: str
) -> None:
    if recursive and branch:
        raise UsageError("--branch and --recursive exclude each other", hint="push the inputs first")
    workspace = open_workspace()
    selected = [dataset.on_branch(branch).id for dataset in match_datasets(workspace, names, everything)]
    plan = workspace.plan_push(selected, place, recursive=recursive)
    jobs = follow(workspace, plan.requests(force=force, branch=branch))
    pushed = list(zip(jobs, plan.targets, strict=True))
    show([push_entry(job, target.url, target.name) for job, target in pushed], lambda: _print_pushes(pushed))
    sys.exit(exit_code(jobs))


def push_entry(job: Job, url: str, name: str) -> dict[str, Any]:
    """Return the ``--json`` dataset of a push of the dataset ``name``."""
    result = job.result_of(Push)
    dataset = to_builtins(result or PushResult(name=name, url=url, status="failed"))
    label = dataset.pop("label")
    return {**dataset, **({"label": label} if result else {}), "error": error_entry(job)}


def _print_pushes(pushed: Sequence[tuple[Job, PushTarget]]) -> None:
    for job, target in pushed:
        if job.state is not JobState.done:
            print_failure(job)
        else:
            result = job.result_of(Push) or PushResult()
            print_result(push_line(job.target, result, target.label))


def push_line(target: str, result: PushResult, remote: str) -> str:
    """Describe the result of a push of the dataset ``target`` in a line; ``remote`` is the remote's name."""
    if result.status != "updated":
        return f"{target}: {remote} is up to date"
    new = "new at the remote, " if result.old_head is None else ""
    return f"{target}: {new}{plain_block_count(result.blocks)}, {format_bytes(result.bytes)} to {remote}"
