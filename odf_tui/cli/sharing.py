"""The verbs that bring datasets to other places, and find what is there: push, search."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import click

from odf_engine.coordinator.protocol import Job, JobState, Push, Request, Search
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
            _say_push(job, url, remotes.display_name(url))
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
    """The ``--json`` entry of a push."""
    entry: dict[str, Any] = {
        "name": job.target,
        "url": url,
        "status": "failed",
        "old_head": None,
        "new_head": None,
        "blocks": 0,
        "objects": 0,
        "bytes": 0,
    }
    if job.result:
        entry.update(json.loads(job.result))
    return {**entry, "error": error_entry(job)}


def _say_push(job: Job, url: str, label: str) -> None:
    entry = push_entry(job, url)
    if job.state is not JobState.done:
        say_failure(job)
    elif entry["status"] == "updated":
        new = "new there, " if entry["old_head"] is None else ""
        amount = f"{counted(entry['blocks'], 'block')}, {humane.size(entry['bytes'])}"
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
    found = json.loads(job.result) if job.result else {"datasets": [], "problems": []}
    for each in found["datasets"]:
        each["pull"] = _way_here(each)
    if options_of().json:
        print_json({**found, "error": error_entry(job)} if job.error else found)
    elif job.state is JobState.done:
        _print_found(found["datasets"])
    if job.state is not JobState.done:
        say_failure(job)
    sys.exit(max(exit_code([job]), 1 if found["problems"] else 0))


def _way_here(found: dict[str, Any]) -> str:
    """The command that pulls a dataset; names and addresses are of others, and may be anything."""
    with suppress(InvalidIdentity):
        name = DatasetAliasRemote.parse(f"{found['repository']}/{found['name']}")
        return f"odf pull {name}"
    return f"odf pull {shlex.quote(found['url'])}"


def _print_found(datasets: Sequence[dict[str, Any]]) -> None:
    if not datasets:
        say("nothing was found")
        return
    # Texts of others: whatever drives a terminal is shown as a sign.
    rows = [
        [
            humane.plain(f"{each['repository']}/{each['name']}"),
            humane.plain(each["kind"] or ""),
            humane.count(each["records"]),
            humane.size(each["size"]),
            humane.clip(text, _LONGEST).rstrip() if (text := humane.plain(each["description"])) else "",
            humane.plain(each["pull"]),
        ]
        for each in datasets
    ]
    kept = [at for at in range(len(_COLUMNS)) if at in (0, 5) or any(row[at] for row in rows)]
    columns = [_COLUMNS[at] for at in kept]
    right = [column for column in columns if column in ("records", "size")]
    print_table(columns, [[row[at] for at in kept] for row in rows], right=right)


_COLUMNS = ("dataset", "kind", "records", "size", "description", "bring it here with")
