"""Push datasets to remotes.

NAMES are names of datasets, or patterns with %, such as 'weather.%'.

A dataset is pushed to the remote that it was pushed to before, else to the only repository. Only
blocks and data that the remote does not have are sent.

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

from odf_engine.api import Job, JobState, Push, Request
from odf_engine.api.text import format_bytes
from odf_engine.errors import UsageError
from odf_engine.jobs.base import branch_title
from odf_engine.jobs.push import PushResult
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.remotes import Remotes, resolve_address
from odf_engine.workspace.workspace import Workspace
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
@click.option(
    "--to",
    "place",
    metavar="REPO|URL",
    type=REPOSITORY,
    help="Remote to push to. Default: the push remote, else the only repository.",
)
@click.option("--force", is_flag=True, help="Overwrite the history of the remote if it has diverged.")
@branch_option("Push this branch of the datasets, to the branch of the same name.")
def command(names: tuple[str, ...], everything: bool, place: str | None, force: bool, branch: str) -> None:
    workspace = open_workspace()
    entries = [entry.on_branch(branch) for entry in match_datasets(workspace, names, everything)]
    targets = [_push_url(workspace, entry, place, len(entries) > 1) for entry in entries]
    requests: list[tuple[Request, str]] = [
        (Push(str(entry.id), url, force, branch), branch_title(str(entry.alias), branch))
        for entry, url in zip(entries, targets, strict=True)
    ]
    jobs = follow(workspace, requests)
    pushed = list(zip(jobs, targets, entries, strict=True))
    show(
        [push_entry(job, url, str(entry.alias)) for job, url, entry in pushed],
        lambda: _print_pushes(workspace, pushed),
    )
    sys.exit(exit_code(jobs))


def _push_url(workspace: Workspace, entry: DatasetEntry, place: str | None, several: bool) -> str:
    """Return the address that a dataset is pushed to."""
    remotes = Remotes(workspace.odf)
    if place is not None:
        return resolve_address(remotes, place, entry.alias, several)
    known = remotes.get(entry.id).push
    if len(known) == 1:
        return known[0]
    if known:
        raise UsageError(
            f"{entry.alias} has several push remotes: {', '.join(known)}", hint="select one with --to"
        )
    repos = remotes.repositories()
    if len(repos) == 1:
        return resolve_address(remotes, repos[0].name, entry.alias)
    names = ", ".join(repo.name for repo in repos)
    hint = f"use --to REPO, one of {names}" if names else "use --to URL, or odf repo add NAME URL"
    raise UsageError(f"{entry.alias} has no push remote", hint=hint)


def push_entry(job: Job, url: str, name: str) -> dict[str, Any]:
    """Return the ``--json`` entry of a push of the dataset ``name``."""
    result = job.result_of(Push)
    entry = to_builtins(result or PushResult(name=name, url=url, status="failed"))
    label = entry.pop("label")
    return {**entry, **({"label": label} if result else {}), "error": error_entry(job)}


def _print_pushes(workspace: Workspace, pushed: Sequence[tuple[Job, str, DatasetEntry]]) -> None:
    remotes = Remotes(workspace.odf)
    for job, url, _ in pushed:
        if job.state is not JobState.done:
            print_failure(job)
        else:
            result = job.result_of(Push) or PushResult()
            print_result(push_line(job.target, result, remotes.display_name(url)))


def push_line(target: str, result: PushResult, remote: str) -> str:
    """Describe the result of a push of the dataset ``target`` in a line; ``remote`` is the remote's name."""
    if result.status != "updated":
        return f"{target}: {remote} is up to date"
    new = "new at the remote, " if result.old_head is None else ""
    return f"{target}: {new}{plain_block_count(result.blocks)}, {format_bytes(result.bytes)} to {remote}"
