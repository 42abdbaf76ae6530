"""The verb that brings datasets up to date: pull; and what it shares with others that wait for jobs."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from odf_engine.coordinator.protocol import Job, JobState, Pull, Request
from odf_engine.errors import UsageError
from odf_engine.workspace.lineage import Graph
from odf_engine.workspace.workspace import DatasetEntry, Workspace
from odf_tui.cli.follow import follow
from odf_tui.cli.output import open_workspace, options_of, print_json, verb


@verb("pull", example="odf pull port-haven.stations", json=True)
@click.argument("names", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All datasets of the workspace.")
@click.option("-r", "--recursive", is_flag=True, help="Pull inputs first.")
@click.option("--fetch-uncacheable", is_flag=True, help="Fetch sources that cannot say whether they changed.")
@click.option("--set-watermark", metavar="TIME", help="Only say how far event time is complete (RFC 3339).")
@click.option("--force", is_flag=True, help="Fetch even if the source says that nothing changed.")
@click.option("--strict", is_flag=True, help="Rows that a ledger has with other values are an error.")
@click.option(
    "--reset-on-divergence",
    is_flag=True,
    help="Derivative datasets whose inputs were reset or replaced begin anew.",
)
def pull_verb(
    names: tuple[str, ...],
    everything: bool,
    recursive: bool,
    fetch_uncacheable: bool,
    set_watermark: str | None,
    force: bool,
    strict: bool,
    reset_on_divergence: bool,
) -> None:
    """Polls the sources of datasets until they have no more; derivative ones take in what is new."""
    workspace = open_workspace()
    watermark = moment("--set-watermark", set_watermark)
    graph = Graph(workspace.summaries())
    entries = chosen(workspace, names, everything, recursive)
    requests: list[tuple[Request, str]] = [
        (
            Pull(
                dataset=str(entry.id),
                after=[str(each) for each in graph.upstream(entry.id)],
                fetch_uncacheable=fetch_uncacheable,
                set_watermark=watermark,
                force=force,
                strict=strict,
                reset_on_divergence=reset_on_divergence,
            ),
            str(entry.alias),
        )
        for entry in entries
    ]
    jobs = follow(workspace, requests)
    if options_of().json:
        print_json([pull_entry(job) for job in jobs])
    else:
        for job in jobs:
            say_pull(job)
    sys.exit(exit_code(jobs))


def moment(option: str, text: str | None) -> str | None:
    """A time that an option was given, as RFC 3339.

    Raises:
        UsageError: it is none.
    """
    if text is None:
        return None
    from odf_engine.metadata.timestamp import Timestamp

    try:
        return str(Timestamp.parse(text))
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None


def chosen(
    workspace: Workspace, names: tuple[str, ...], everything: bool, recursive: bool
) -> list[DatasetEntry]:
    """The datasets that the arguments name, inputs before what is made from them."""
    if bool(names) == everything:
        raise UsageError("which datasets?", hint="name some (patterns with % work), or give --all")
    entries = workspace.datasets() if everything else workspace.match(names)
    graph = Graph(workspace.summaries())
    wanted = {entry.id for entry in entries}
    if recursive:
        wanted.update(*(graph.upstream(entry.id) for entry in entries))
    by_id = {entry.id: entry for entry in workspace.datasets()}
    return [by_id[dataset] for dataset in graph.order(wanted) if dataset in by_id]


def pull_entry(job: Job) -> dict[str, Any]:
    """The ``--json`` entry of a pull or a push."""
    entry: dict[str, Any] = {
        "name": job.target,
        "status": "failed",
        "old_head": None,
        "new_head": None,
        "blocks": 0,
        "records": 0,
        "error": None,
    }
    if job.result:
        entry.update(json.loads(job.result))
    if job.error is not None:
        entry["error"] = {"message": job.error.message, "where": job.error.where, "hint": job.error.hint}
    return entry


def say_pull(job: Job) -> None:
    """The same for people."""
    entry = pull_entry(job)
    if job.state is not JobState.done:
        say_failure(job)
    elif entry["status"] == "updated":
        blocks = "block" if entry["blocks"] == 1 else "blocks"
        sys.stdout.write(f"{job.target}: {entry['records']} records in {entry['blocks']} {blocks}\n")
    else:
        sys.stdout.write(f"{job.target}: up to date\n")


def say_failure(job: Job) -> None:
    """Why a job did not end well, on stderr."""
    error = job.error
    if error is None:
        sys.stderr.write(f"{job.target}: {job.state.value}\n")
        return
    where = f"{error.where}: " if error.where else ""
    sys.stderr.write(f"error: {job.target}: {where}{error.message}\n")
    for line in error.excerpt:
        sys.stderr.write(f"  {line}\n")
    if error.hint:
        sys.stderr.write(f"  hint: {error.hint}\n")
    sys.stderr.write(f"  more: odf logs {job.id}\n")


def exit_code(jobs: list[Job]) -> int:
    """What a command that waited for these jobs ends with."""
    if any(job.state is JobState.cancelled for job in jobs):
        return 130
    return max(
        (1 if job.error is None else job.error.exit_code for job in jobs if job.state is not JobState.done),
        default=0,
    )
