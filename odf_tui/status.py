"""How datasets stand, for scripts: the words of ``odf list`` and the last verification."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from odf_engine.coordinator.client import read_journal
from odf_engine.coordinator.protocol import Job, JobState, Verify
from odf_engine.coordinator.results import VerifyResult
from odf_engine.errors import OdfError
from odf_engine.identity.did import DatasetId
from odf_engine.workspace.dataset_summary import Summary
from odf_engine.workspace.workspace import Workspace
from odf_tui.engine.datasets import dataset_rows, with_remotes
from odf_tui.engine.sharing import ShareReads
from odf_tui.state import Health, JobBook, healths, known_result

# Scripts know fewer words than the screen shows.
_WORDS: Final = {
    Health.verified: "current",
    Health.queued: "running",
    Health.invalid: "failed",
    Health.damaged: "failed",
}


@dataclass(frozen=True)
class Status:
    """``state`` is new, current, stale, diverged, running or failed; the verification is the newest that
    ended."""

    state: str
    last_verification: dict[str, Any] | None = None


def read_statuses(
    workspace: Workspace, summaries: Sequence[Summary], warn: Callable[[str], None]
) -> dict[DatasetId, Status]:
    """The status of each dataset, by id; ``warn`` is called when the journal of jobs cannot be read."""
    journal = read_journal(workspace.folder)
    book = JobBook()
    try:
        book.load(journal.jobs(), journal.last_seq())
    except OdfError as error:
        warn(f"warning: {error.format_line}")
    remotes = ShareReads(workspace).remotes_of(list(summaries))
    rows = [with_remotes(row, remotes.get(row.id, ())) for row in dataset_rows(summaries)]
    found = healths(rows, book)
    verified = {
        job.dataset: job for job in book.jobs.values() if job.kind == "verify" and job.state is JobState.done
    }
    return {
        summary.id: Status(
            _WORDS.get(health := found[str(summary.id)], health.word),
            _verification(verified.get(str(summary.id))),
        )
        for summary in summaries
    }


def _verification(job: Job | None) -> dict[str, Any] | None:
    if job is None:
        return None
    report = known_result(job.result, Verify) or VerifyResult()
    return {"time": job.ended, "valid": report.valid, "findings": len(report.findings)}
