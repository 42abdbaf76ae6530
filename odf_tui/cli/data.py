"""The verb that brings datasets up to date: pull; and what it shares with others that wait for jobs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click
from msgspec import to_builtins

from odf_engine.coordinator.endpoint import notify_datasets_changed
from odf_engine.coordinator.protocol import Job, JobState, Pull, Request, Search
from odf_engine.coordinator.results import PullResult
from odf_engine.errors import SourceUnavailable, UsageError
from odf_engine.workspace.dataset_graph import DatasetGraph
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.remotes import Remotes
from odf_engine.workspace.workspace import Workspace
from odf_tui.cli.follow import follow
from odf_tui.cli.output import open_workspace, options_of, print_json, verb
from odf_tui.cli.pulling import Asked, Wanted, all_of, wanted
from odf_tui.humane import size


@verb("pull", example="odf pull port-haven.stations", json=True)
@click.argument("names", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All datasets; with --from REPO all of that one.")
@click.option("-r", "--recursive", is_flag=True, help="Pull inputs first.")
@click.option("--from", "source", metavar="URL|REPO/NAME", help="Take it over from there.")
@click.option("--as", "alias", metavar="NAME", help="The name of a dataset that is new here.")
@click.option("--fetch-uncacheable", is_flag=True, help="Fetch sources that cannot say whether they changed.")
@click.option("--set-watermark", metavar="TIME", help="Only say how far event time is complete (RFC 3339).")
@click.option(
    "--force",
    is_flag=True,
    help="Fetch even if the source says that nothing changed; of two histories, take the other one.",
)
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
    source: str | None,
    alias: str | None,
    fetch_uncacheable: bool,
    set_watermark: str | None,
    force: bool,
    strict: bool,
    reset_on_divergence: bool,
) -> None:
    """Polls the sources of datasets until they have no more; derivative ones take in what is new.

    A dataset of somebody else is named by its address, or as REPO/NAME (see odf repo): it comes here whole
    and checked, and from then on odf pull NAME takes over what is new there. Its own source or query does
    not run meanwhile. Where both sides have changed, nothing is done, unless --force takes the history
    there; the one here is then kept under a reference.
    """
    workspace = open_workspace()
    watermark = moment("--set-watermark", set_watermark)
    if everything and source is not None and not names and alias is None:
        found = _all_of(workspace, source)
    else:
        found = wanted(workspace, Asked(names, everything, recursive, source, alias))
    if watermark is not None:
        _check_made_here(workspace, found)
    requests: list[tuple[Request, str]] = [
        (
            Pull(
                dataset=each.url or "" if each.entry is None else str(each.entry.id),
                after=list(each.after),
                fetch_uncacheable=fetch_uncacheable,
                set_watermark=watermark,
                force=force,
                strict=strict,
                reset_on_divergence=reset_on_divergence,
                url=each.url,
                alias=each.alias,
            ),
            each.target,
        )
        for each in found
    ]
    jobs = follow(workspace, requests)
    if options_of().json:
        print_json([pull_entry(job, each.alias) for job, each in zip(jobs, found, strict=True)])
    else:
        for job, each in zip(jobs, found, strict=True):
            say_pull(job, workspace, each)
    if any(each.entry is None for each in found):
        notify_datasets_changed(workspace.folder)
    sys.exit(exit_code(jobs))


def _all_of(workspace: Workspace, repository: str) -> list[Wanted]:
    """All datasets of a repository, which is asked for them."""
    remotes = Remotes(workspace.odf)
    repo = remotes.repository(repository)
    (job,) = follow(workspace, [(Search("", [repo.name]), f"all of {repo.name}")])
    result = job.result_of(Search)
    if result is None:
        say_failure(job)
        sys.exit(exit_code([job]))
    for problem in result.problems:
        raise SourceUnavailable(problem.message, where=repo.name)
    places = all_of(remotes, repo.name, [each.name for each in result.datasets])
    return wanted(workspace, Asked((), places=places)) if places else []


def _check_made_here(workspace: Workspace, found: Sequence[Wanted]) -> None:
    for each in found:
        if each.url is not None:
            raise UsageError(
                f"{each.target} comes from {each.url}: its watermark is set there",
                hint=f"odf repo alias remove {each.target} lets go of that place" if each.entry else None,
            )


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
    """The datasets here that the arguments name, inputs before what is made from them."""
    if bool(names) == everything:
        raise UsageError("which datasets?", hint="name some (patterns with % work), or give --all")
    entries = workspace.datasets() if everything else workspace.match(names)
    graph = DatasetGraph(workspace.summaries())
    wanted = {entry.id for entry in entries}
    if recursive:
        wanted.update(*(graph.upstream(entry.id) for entry in entries))
    by_id = {entry.id: entry for entry in workspace.datasets()}
    return [by_id[dataset] for dataset in graph.order(wanted) if dataset in by_id]


def pull_entry(job: Job, name: str | None = None) -> dict[str, Any]:
    """Return the ``--json`` entry of a pull or an ingest; ``name`` is the name of a new dataset."""
    return {**to_builtins(_pull_result(job, name)), "error": error_entry(job)}


def _pull_result(job: Job, name: str | None = None) -> PullResult:
    return job.result_of(Pull) or PullResult(name=name or job.target, status="failed")


def error_entry(job: Job) -> dict[str, Any] | None:
    """Why a job failed, for ``--json``."""
    error = job.error
    return None if error is None else {"message": error.message, "where": error.where, "hint": error.hint}


def say_pull(job: Job, workspace: Workspace | None = None, wanted: Wanted | None = None) -> None:
    """Print the result of a pull or an ingest as text."""
    if job.state is not JobState.done:
        say_failure(job)
        return
    result = _pull_result(job)
    label = Remotes(workspace.odf).display_name(result.url) if workspace and result.url else ""
    if result.status == "updated":
        new = "new, " if wanted is not None and wanted.entry is None and result.old_head is None else ""
        amount = f", {size(result.bytes)}" if result.bytes else ""
        remote = f", from {label}" if label else ""
        records = f"{result.records} records in {counted(result.blocks, 'block')}"
        sys.stdout.write(f"{result.name}: {new}{records}{amount}{remote}\n")
    else:
        ahead = f" ({counted(result.ahead, 'block')} ahead of {label})" if result.ahead else ""
        remote = f" with {label}" if label and not ahead else ""
        sys.stdout.write(f"{result.name}: up to date{remote}{ahead}\n")


def counted(number: int, what: str) -> str:
    """A number of things, such as ``1 block`` or ``3 blocks``."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def say_failure(job: Job) -> None:
    """Why a job did not end well, on stderr."""
    error = job.error
    if error is None:
        sys.stderr.write(f"{job.target}: {job.state.value}\n")
        return
    where = f"{error.where}: " if error.where and error.where != job.target else ""
    said = f"{where}{error.message}"
    target = "" if said.startswith(f"{job.target} ") else f"{job.target}: "  # a message may name it by itself
    sys.stderr.write(f"error: {target}{said}\n")
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
