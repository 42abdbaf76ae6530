"""How datasets stand to the places that they come from and go to: in words, and looked at now."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click

from odf_engine.coordinator.protocol import Compare, JobState, Request
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.workspace.dataset_summary import DatasetEntry, Summary
from odf_engine.workspace.workspace import Workspace
from odf_tui.cli.data import counted, exit_code, say_failure
from odf_tui.cli.follow import follow
from odf_tui.cli.output import open_workspace, options_of, print_json, print_table, say, verb
from odf_tui.humane import elapsed
from odf_tui.remotes import Remote, direction


@verb("status", example="odf repo status --json", json=True)
@click.argument("names", nargs=-1)
def status(names: tuple[str, ...]) -> None:
    """Looks how datasets stand to where they come from and go to; by default all that do.

    Nothing is transferred but what it takes to compare: `odf show` and the workstation remember it.
    """
    workspace = open_workspace()
    known = remotes_of(workspace, workspace.summaries())
    chosen = workspace.match(names) if names else workspace.datasets()
    entries = [entry for entry in chosen if known.get(str(entry.id))]
    for entry in chosen if names else ():
        if entry not in entries:
            say(f"{entry.alias} neither comes from elsewhere nor goes there")
    requests: list[tuple[Request, str]] = [(Compare(str(entry.id)), str(entry.alias)) for entry in entries]
    jobs = follow(workspace, requests)
    after = remotes_of(workspace, workspace.summaries())
    problems = {
        (job.dataset, each.url): each.message
        for job in jobs
        if (result := job.result_of(Compare))
        for each in result.problems
    }
    found = [
        (entry, remote, problems.get((str(entry.id), remote.url)))
        for entry in entries
        for remote in after.get(str(entry.id), ())
    ]
    _print(found)
    for job in jobs:
        if job.state is not JobState.done:
            say_failure(job)
    sys.exit(max(exit_code(jobs), 1 if problems else 0))


def _print(found: Sequence[tuple[DatasetEntry, Remote, str | None]]) -> None:
    if options_of().json:
        print_json(
            [
                {"name": str(entry.alias), **document(remote), "error": problem}
                for entry, remote, problem in found
            ]
        )
    elif found:
        print_table(
            ["dataset", "", "place", "standing"],
            [
                [str(entry.alias), direction(remote), remote.label, problem or words(remote)]
                for entry, remote, problem in found
            ],
        )
    elif not options_of().quiet:
        say("no dataset comes from elsewhere or goes there: odf pull REPO/NAME, odf push NAME --to REPO")


def remotes_of(workspace: Workspace, summaries: Sequence[Summary]) -> dict[str, tuple[Remote, ...]]:
    """The remotes of datasets by their ids, as they were when they were looked at, and with what was
    committed here since."""
    from odf_tui.engine.sharing import ShareReads

    return dict(ShareReads(workspace).remotes_of(list(summaries)))


def document(remote: Remote) -> dict[str, Any]:
    """A remote for ``--json``; ``relation`` is equal, ahead, behind, diverged, new, or null: not known."""
    return {
        "url": remote.url,
        "label": remote.label,
        "pull": remote.pull,
        "push": remote.push,
        "relation": remote.relation or None,
        "ours": remote.ours,
        "theirs": remote.theirs,
        "their_head": remote.their_head or None,
        "looked_at": remote.at or None,
    }


def sentence(remote: Remote) -> str:
    """All of it for people, such as ``from lab/cities: behind by 3 blocks, looked at 5 min ago``."""
    seen = ""
    if remote.at:
        ago = (Timestamp.now().ns - Timestamp.parse(remote.at).ns) / 1e9
        seen = ", looked at just now" if ago < 1 else f", looked at {elapsed(ago)} ago"
    return f"{direction(remote)} {remote.label}: {words(remote)}{seen}"


def words(remote: Remote) -> str:
    """How the dataset stands to a place, such as ``behind by 3 blocks``."""
    match remote.relation:
        case "equal":
            return "the same"
        case "ahead":
            return f"ahead by {counted(remote.ours, 'block')}"
        case "behind":
            return f"behind by {counted(remote.theirs, 'block')}"
        case "diverged":
            return f"diverged: {counted(remote.ours, 'block')} only here, {remote.theirs} only there"
        case "new":
            return "nothing is there yet"
        case _:
            return "changed here since it was looked at" if remote.at else "not looked at yet"
