"""The status, labels and remotes of datasets, for commands that list them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from odf_engine.api import Config, DatasetId, Job, JobState, Summary, Verify, VerifyResult
from odf_engine.api.model import DatasetRow, Remote
from odf_engine.api.readers.dataset_reader import add_remotes, make_dataset_rows
from odf_engine.api.workspace import Workspace
from odf_engine.errors import OdfError
from odf_tui.cli.shared.output import print_note, select_fields
from odf_tui.state.job_book import JobBook, dataset_healths
from odf_tui.state.model import Health
from odf_tui.text.job_text import known_result

NO_DATASETS: Final = "no datasets yet: odf new NAME --root prints a manifest, odf add adds it"
# The JSON contract has fewer states than the screen.
_WORDS: Final = {
    Health.verified: "current",
    Health.queued: "running",
    Health.invalid: "failed",
    Health.damaged: "failed",
}


@dataclass(frozen=True)
class Status:
    """The status of a dataset.

    Attributes:
        state: new, current, stale, diverged, running or failed.
        last_verification: the newest verification that ended.
        last_polled: end of the newest successful pull or ingest, with or without new rows.
    """

    state: str
    last_verification: dict[str, Any] | None = None
    last_polled: str | None = None


def status_word(health: Health) -> str:
    """Return the status of a dataset in the JSON contract."""
    return _WORDS.get(health, health.word)


def read_rows(workspace: Workspace, summaries: Sequence[Summary]) -> tuple[list[DatasetRow], JobBook]:
    """Return datasets and jobs. If the journal of jobs cannot be read, this is noted."""
    journal = workspace.journal
    book = JobBook()
    try:
        book.load(journal.jobs(), journal.last_seq())
    except OdfError as error:
        print_note(f"warning: {error.format_line}")
    remotes = remotes_of(workspace, summaries)
    return [add_remotes(row, remotes.get(row.id, ())) for row in make_dataset_rows(summaries)], book


def read_statuses(workspace: Workspace, summaries: Sequence[Summary]) -> dict[DatasetId, Status]:
    """Return the status of each dataset by id. If the journal of jobs cannot be read, this is noted."""
    rows, book = read_rows(workspace, summaries)
    healths = dataset_healths(rows, book)
    verifications = {
        job.dataset: _verification_json(job)
        for job in book.jobs.values()
        if job.kind == "verify" and job.state is JobState.done and not job.branch
    }
    polled = book.last_polls()
    return {
        summary.id: Status(
            status_word(healths[str(summary.id)]),
            verifications.get(str(summary.id)),
            polled.get(str(summary.id)),
        )
        for summary in summaries
    }


def _verification_json(job: Job) -> dict[str, Any]:
    report = known_result(job.result, Verify) or VerifyResult()
    return {"time": job.ended, "valid": report.valid, "findings": len(report.findings)}


def read_labels(workspace: Workspace, summaries: Sequence[Summary]) -> dict[DatasetId, dict[str, str]]:
    """Return the labels of datasets. Listing does not require valid settings."""
    try:
        config = workspace.config
    except OdfError as error:
        print_note(f"labels are not shown: {error}")
        config = Config()
    return {summary.id: config.labels_of(summary.name, str(summary.id)) for summary in summaries}


def summary_json(summary: Summary, status: Status, labels: Mapping[str, str]) -> dict[str, Any]:
    """Return a dataset for ``--json``, without what only the workstation shows."""
    return {
        **select_fields(summary, "id", "name", "kind", "head", "blocks", "records", "size"),
        **select_fields(summary, "watermark", "last_pulled"),
        "last_polled": status.last_polled,
        "status": status.state,
        "labels": labels,
        "branches": summary.branches,
    }


def remotes_of(workspace: Workspace, summaries: Sequence[Summary]) -> dict[str, tuple[Remote, ...]]:
    """Return the remotes of datasets by dataset id: as last compared, with the local commits since then."""
    return dict(workspace.read_remotes(list(summaries)))


def remote_json(remote: Remote) -> dict[str, Any]:
    """Return a remote for ``--json``.

    ``relation`` is equal, ahead, behind, diverged, new, or null if it is unknown.
    """
    return {
        **select_fields(remote, "url", "label", "pull", "push"),
        "relation": remote.relation or None,
        **select_fields(remote, "ours", "theirs"),
        "their_head": remote.their_head or None,
        "looked_at": remote.at or None,
    }
