"""The verbs that bring datasets to other places, and find what is there: push, search."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import click
from msgspec import to_builtins

from odf_engine.coordinator.protocol import Job, JobState, Push, Request, Search
from odf_engine.coordinator.results import FoundDataset, PushResult, SearchResult
from odf_engine.errors import InvalidIdentity, NotFound, UsageError
from odf_engine.identity.names import DatasetAliasRemote
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.remotes import Remotes
from odf_engine.workspace.workspace import Workspace
from odf_tui import humane
from odf_tui.cli.data import counted, error_entry, exit_code, say_failure
from odf_tui.cli.follow import follow
from odf_tui.cli.output import open_workspace, options_of, print_json, print_table, say, verb
from odf_tui.cli.pulling import address_in

_LONGEST = 60


@verb("push", example="odf push port-haven.stations --to lab", json=True)
@click.argument("names", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All datasets of the workspace.")
@click.option("--to", "place", metavar="REPO|URL", help="Else where it was pushed before, else the only one.")
@click.option("--force", is_flag=True, help="Of two histories, the one here takes the place of that there.")
def push_verb(names: tuple[str, ...], everything: bool, place: str | None, force: bool) -> None:
    """Brings other places up to date: a folder, a bucket, a server.

    A dataset goes to where it was pushed before, else into the only repository. Blocks and data go there
    as they are, and what is there already is not sent again. Where the other side has blocks that are not
    here, nothing is done, unless --force gives them up there.
    """
    workspace = open_workspace()
    if bool(names) == everything:
        raise UsageError("which datasets?", hint="name some (patterns with % work), or give --all")
    entries = workspace.datasets() if everything else workspace.match(names)
    targets = [_target(workspace, entry, place, len(entries) > 1) for entry in entries]
    requests: list[tuple[Request, str]] = [
        (Push(str(entry.id), url, force), str(entry.alias))
        for entry, url in zip(entries, targets, strict=True)
    ]
    jobs = follow(workspace, requests)
    if options_of().json:
        print_json([push_entry(job, url) for job, url in zip(jobs, targets, strict=True)])
    else:
        remotes = Remotes(workspace.odf)
        for job, url in zip(jobs, targets, strict=True):
            _say_push(job, remotes.display_name(url))
    sys.exit(exit_code(jobs))


def _target(workspace: Workspace, entry: DatasetEntry, place: str | None, several: bool) -> str:
    """Where a dataset is pushed to.

    Raises:
        UsageError: nothing says where to.
    """
    remotes = Remotes(workspace.odf)
    if place is not None:
        return address_in(remotes, place, entry, several)
    known = remotes.get(entry.id).push
    if len(known) == 1:
        return known[0]
    if known:
        raise UsageError(
            f"{entry.alias} goes to {', '.join(known)}", hint="say to which of them: --to REPO or URL"
        )
    repos = remotes.repositories()
    if len(repos) == 1:
        return address_in(remotes, repos[0].name, entry)
    names = ", ".join(repo.name for repo in repos)
    hint = f"--to REPO, one of {names}" if names else "odf repo add NAME URL, or --to URL"
    raise UsageError(f"where should {entry.alias} go?", hint=hint)


def push_entry(job: Job, url: str) -> dict[str, Any]:
    """Return the ``--json`` entry of a push."""
    result = job.result_of(Push)
    entry = to_builtins(result or PushResult(name=job.target, url=url, status="failed"))
    label = entry.pop("label")
    return {**entry, **({"label": label} if result else {}), "error": error_entry(job)}


def _say_push(job: Job, label: str) -> None:
    result = job.result_of(Push) or PushResult()
    if job.state is not JobState.done:
        say_failure(job)
    elif result.status == "updated":
        new = "new there, " if result.old_head is None else ""
        amount = f"{counted(result.blocks, 'block')}, {humane.size(result.bytes)}"
        sys.stdout.write(f"{job.target}: {new}{amount} to {label}\n")
    else:
        sys.stdout.write(f"{job.target}: {label} is up to date\n")


@verb("search", example="odf search weather --repo lab", json=True)
@click.argument("text", default="")
@click.option("--repo", "repositories", multiple=True, metavar="R", help="Only in this one, or these.")
def search_verb(text: str, repositories: tuple[str, ...]) -> None:
    """Looks for datasets in repositories: folders, buckets, servers. Without TEXT it lists all.

    The words of TEXT are looked for in names, ids, descriptions and keywords, as far as a repository
    tells them.
    """
    workspace = open_workspace()
    remotes = Remotes(workspace.odf)
    named = [remotes.repository(name).name for name in repositories]
    if not remotes.repositories():
        raise NotFound("there is no repository to look in", hint="odf repo add NAME URL")
    request = Search(text, named)
    (job,) = follow(workspace, [(request, f"'{text}'" if text else "everything")])
    result = job.result_of(Search) or SearchResult()
    if options_of().json:
        datasets = [{**to_builtins(each), "pull": _pull_command(each)} for each in result.datasets]
        document = {"datasets": datasets, "problems": result.problems}
        print_json({**document, "error": error_entry(job)} if job.error else document)
    elif job.state is JobState.done:
        _print_found(result.datasets)
    if job.state is not JobState.done:
        say_failure(job)
    sys.exit(max(exit_code([job]), 1 if result.problems else 0))


def _pull_command(dataset: FoundDataset) -> str:
    """Return the command that pulls a dataset. Its name and URL are untrusted text."""
    with suppress(InvalidIdentity):
        name = DatasetAliasRemote.parse(f"{dataset.repository}/{dataset.name}")
        return f"odf pull {name}"
    return f"odf pull {shlex.quote(dataset.url)}"


def _print_found(datasets: Sequence[FoundDataset]) -> None:
    if not datasets:
        say("nothing was found")
        return
    # The texts are untrusted: control characters are shown as symbols.
    rows = [
        [
            humane.plain(f"{each.repository}/{each.name}"),
            humane.plain(each.kind or ""),
            humane.count(each.records),
            humane.size(each.size),
            humane.clip(text, _LONGEST).rstrip() if (text := humane.plain(each.description)) else "",
            humane.plain(_pull_command(each)),
        ]
        for each in datasets
    ]
    kept = [at for at in range(len(_COLUMNS)) if at in (0, 5) or any(row[at] for row in rows)]
    columns = [_COLUMNS[at] for at in kept]
    right = [column for column in columns if column in ("records", "size")]
    print_table(columns, [[row[at] for at in kept] for row in rows], right=right)


_COLUMNS = ("dataset", "kind", "records", "size", "description", "bring it here with")
