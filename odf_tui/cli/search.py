"""Search repositories for datasets.

Searches for the words of TEXT in names and ids, and in descriptions and keywords if the repository
provides them. Without TEXT, lists all datasets. Repositories that do not answer are reported. The
search fails only if none answers.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress

import click
from msgspec import to_builtins

from odf_engine.api import DatasetAliasRemote, FoundDataset, JobState, Search, SearchResult
from odf_engine.api.text import format_bytes, format_count, printable
from odf_engine.errors import InvalidIdentity, NotFound
from odf_tui.cli.shared.job_progress import error_entry, exit_code, follow, print_failures
from odf_tui.cli.shared.options import REPOSITORY, define_command
from odf_tui.cli.shared.output import Table, show
from odf_tui.cli.shared.workspace import open_workspace
from odf_tui.text.format import fit_width

ORDER = 270
MEANINGS = "find discover"

_MAX_DESCRIPTION = 60
_COLUMNS = ("dataset", "kind", "rows", "size", "description", "pull command")


@define_command("search", help=__doc__, example="odf search weather --repo lab", json=True)
@click.argument("text", default="")
@click.option(
    "--repo",
    "repositories",
    multiple=True,
    metavar="REPO",
    type=REPOSITORY,
    help="Search only this repository. Can be repeated.",
)
def command(text: str, repositories: tuple[str, ...]) -> None:
    workspace = open_workspace()
    remotes = workspace.remotes
    named = [remotes.repository(name).name for name in repositories]
    if not remotes.repositories():
        raise NotFound("no repositories to search", hint="run odf repo add NAME URL")
    request = Search(text=text, repositories=named)
    (job,) = follow(workspace, [(request, f"'{text}'" if text else "all datasets")])
    result = job.result_of(Search) or SearchResult()
    datasets = [{**to_builtins(dataset), "pull": _pull_command(dataset)} for dataset in result.datasets]
    document = {"datasets": datasets, "problems": result.problems}
    if job.error:
        document["error"] = error_entry(job)
    show(document, _results_table(result.datasets) if job.state is JobState.done else None)
    print_failures([job])
    searched = len(set(named)) or len(remotes.repositories())
    none_answered = len(result.problems) >= searched
    if result.problems:
        failed = ", ".join(problem.repository for problem in result.problems)
        sys.stderr.write(
            f"error: no repository answered: {failed}\n"
            if none_answered
            else f"! no answer from {failed}: its datasets are missing above\n"
        )
    sys.exit(max(exit_code([job]), int(none_answered)))


def _pull_command(dataset: FoundDataset) -> str:
    """Return the command that pulls a dataset. Its name and URL are untrusted text."""
    with suppress(InvalidIdentity):
        name = DatasetAliasRemote.parse(f"{dataset.repository}/{dataset.name}")
        return f"odf pull {name}"
    return f"odf pull {shlex.quote(dataset.url)}"


def _results_table(datasets: Sequence[FoundDataset]) -> Table:
    """Return the datasets as a table, without columns that are empty."""
    # The texts are untrusted: control characters are shown as symbols.
    rows = [
        [
            printable(f"{dataset.repository}/{dataset.name}"),
            printable(dataset.kind or ""),
            format_count(dataset.records),
            format_bytes(dataset.size),
            fit_width(text, _MAX_DESCRIPTION).rstrip() if (text := printable(dataset.description)) else "",
            printable(_pull_command(dataset)),
        ]
        for dataset in datasets
    ]
    shown = [at for at in range(len(_COLUMNS)) if at in (0, 5) or any(row[at] for row in rows)]
    columns = [_COLUMNS[at] for at in shown]
    right = [column for column in columns if column in ("rows", "size")]
    return Table(columns, [[row[at] for at in shown] for row in rows], right, "no datasets found")
