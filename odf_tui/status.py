"""How a dataset stands, from its chain and from the journal of jobs (``odf list``: status)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from odf_engine.coordinator.client import read_journal
from odf_engine.coordinator.protocol import Job, JobState
from odf_engine.identity.did import DatasetId
from odf_engine.workspace.workspace import Summary, Workspace


@dataclass(frozen=True)
class Status:
    """``state`` is new, current, stale, running or failed; ``last_verification`` of the journal."""

    state: str
    last_verification: dict[str, Any] | None = None


def read_statuses(workspace: Workspace, summaries: Iterable[Summary]) -> dict[DatasetId, Status]:
    """The status of each dataset, by id."""
    return statuses(summaries, read_journal(workspace.folder).jobs())


def statuses(summaries: Iterable[Summary], jobs: Iterable[Job]) -> dict[DatasetId, Status]:
    """The status of each dataset, given all jobs that are known (in any order)."""
    newest: dict[str, Job] = {}
    verified: dict[str, Job] = {}
    for job in sorted(jobs, key=lambda job: job.created):
        newest[job.dataset] = job
        if job.kind == "verify" and job.state is JobState.done:
            verified[job.dataset] = job
    return {
        summary.id: Status(
            _state(summary, newest.get(str(summary.id))), _verification(verified.get(str(summary.id)))
        )
        for summary in summaries
    }


def _state(summary: Summary, job: Job | None) -> str:
    if job is not None and not job.state.final:
        return "running"
    if job is not None and job.state in (JobState.failed, JobState.interrupted):
        return "failed"
    if not summary.records and summary.last_pulled is None:
        return "new"
    return "current"


def _verification(job: Job | None) -> dict[str, Any] | None:
    if job is None:
        return None
    result = json.loads(job.result) if job.result else {}
    return {"time": job.ended, "valid": result.get("valid"), "findings": len(result.get("findings", []))}
