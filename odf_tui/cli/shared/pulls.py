"""Results of pulls and ingests, as JSON and text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import to_builtins

from odf_engine.api import Job, JobState, Pull, PullResult, UpdateResult, change_counts
from odf_engine.api.plans.pull_plan import PullTarget
from odf_engine.api.text import count_of, format_bytes
from odf_engine.api.workspace import Workspace
from odf_tui.cli.shared.job_progress import error_entry, print_failure
from odf_tui.cli.shared.output import print_result
from odf_tui.text.format import with_spaced_thousands
from odf_tui.text.remotes import plain_block_count


def pull_entry(job: Job, name: str | None = None) -> dict[str, Any]:
    """Return the ``--json`` entry of a pull or an ingest; ``name`` is the name of a new dataset."""
    warnings = {"warnings": job.warnings} if job.warnings else {}
    return {**to_builtins(_pull_result(job, name)), "error": error_entry(job), **warnings}


def _pull_result(job: Job, name: str | None = None) -> PullResult:
    return job.result_of(Pull) or PullResult(name=name or job.target, status="failed")


def print_pulls(pulled: Sequence[tuple[Job, PullTarget | None]], workspace: Workspace | None = None) -> None:
    """Print the results of pulls or ingests as text.

    Args:
        pulled: the jobs, each with the pulled dataset, or None for an ingest.
    """
    for job, target in pulled:
        if job.state is not JobState.done:
            print_failure(job)
            continue
        result = _pull_result(job)
        label = workspace.remotes.display_name(result.url) if workspace and result.url else ""
        is_new = target is not None and target.entry is None and result.old_head is None
        print_result(pull_line(result, label, is_new=is_new))


def changes_in_brackets(result: PullResult | UpdateResult) -> str:
    """Return the numbers of added, retracted and corrected rows, or "" if rows were only added."""
    changes = change_counts(result.added, result.retracted, result.corrected)
    return with_spaced_thousands(f" ({changes})") if changes else ""


def plain_row_count(number: int) -> str:
    """Return a number of rows without separators, as the command line prints it."""
    return count_of(number, "row", separators=False)


def pull_line(result: PullResult, remote: str, *, is_new: bool = False) -> str:
    """Describe the result of a pull or an ingest in a line.

    Args:
        remote: name of the remote, or "" for a dataset that is pulled from its source.
        is_new: whether the pull created the dataset.
    """
    if result.status == "updated":
        new = "new, " if is_new else ""
        size = f", {format_bytes(result.bytes)}" if result.bytes else ""
        origin = f", from {remote}" if remote else ""
        rows = plain_row_count(result.records) + changes_in_brackets(result)
        # Without new rows, the number of blocks shows that something was committed.
        blocks = f" in {plain_block_count(result.blocks)}" if remote or not result.records else ""
        amount = f"{rows}{blocks}{size}"
        refused = (
            f", {count_of(result.already_ingested, 'file', separators=False)} already ingested"
            if result.already_ingested
            else ""
        )
        repeated = f", {plain_row_count(result.repeated)} repeated" if result.repeated else ""
        rejected = f", {plain_row_count(result.rejected)} rejected" if result.rejected else ""
        late = f", {plain_row_count(result.late)} late" if result.late else ""
        waiting = f"; {result.waiting.text}" if result.waiting else ""
        return f"{result.title}: {new}{amount}{repeated}{rejected}{late}{origin}{refused}{waiting}"
    if result.waiting:
        return f"{result.title}: {result.waiting.text}"
    if result.already_ingested:
        return f"{result.title}: already ingested"
    ahead = f" ({plain_block_count(result.ahead)} ahead of {remote})" if result.ahead else ""
    origin = f" with {remote}" if remote and not ahead else ""
    return f"{result.title}: up to date{origin}{ahead}"
