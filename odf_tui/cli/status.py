"""Show the datasets that need attention, running jobs and the worker.

Lists datasets that are stale, failed, diverged, new or running, those whose results wait for an
input, those whose newest pull or ingest has warnings, and those that are behind a remote or have
blocks to push, each with the command that resolves it, and those that differ from their manifest
file. Remotes are shown as last compared: `odf repo status` compares them now. Exits with 0 in all of
these cases.
"""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from odf_engine.api import Waiting
from odf_engine.api.model import DatasetRow
from odf_engine.api.text import count_of, printable
from odf_engine.api.workspace import Workspace
from odf_tui.cli.jobs import job_json
from odf_tui.cli.shared.datasets import NO_DATASETS, read_rows, remote_json, status_word
from odf_tui.cli.shared.options import define_command
from odf_tui.cli.shared.output import print_note, print_table, show
from odf_tui.cli.shared.workspace import open_workspace
from odf_tui.state.job_book import JobBook, dataset_healths
from odf_tui.state.model import Health
from odf_tui.text.job_text import job_outcome, warnings_text
from odf_tui.text.remotes import blocks_to_push, plain_block_count, push_remotes, relation_text_for_people

ORDER = 90
MEANINGS = "st state stale"


class StatusFinding(NamedTuple):
    """A reason why a dataset needs attention.

    Attributes:
        state: its status, ``waiting`` if its results wait for an input, ``warned`` if its newest pull or
            ingest has warnings, ``ahead`` if it has blocks to push, or ``drifted`` if its manifest file
            differs.
        reason: why.
        hint: the command that resolves it.
    """

    state: str
    reason: str
    hint: str


def find_attention(row: DatasetRow, health: Health, book: JobBook) -> StatusFinding | None:
    """Return why a dataset needs attention, or what runs, or None if it is up to date."""
    state = status_word(health)
    job, latest = book.active_job_of(row.id), book.latest_ingest(row.id)
    remote = next((remote for remote in row.remotes if remote.relation in ("diverged", "behind")), None)
    match health:
        case Health.running | Health.queued if job is not None:
            return StatusFinding(state, f"{job.kind}, {job_outcome(job)[0]}", f"odf logs {job.id} -f")
        case Health.damaged:
            return StatusFinding(state, row.problem or "damaged", f"odf verify {row.name}")
        case Health.invalid:
            return StatusFinding(state, "the last verification found problems", f"odf verify {row.name}")
        case Health.failed if latest is not None:
            reason = latest.error.message.splitlines()[0] if latest.error else latest.state.value
            return StatusFinding(state, f"last {latest.kind} failed: {reason}", f"odf logs {latest.id}")
        case Health.diverged if row.diverged:
            reason = f"inputs were reset or replaced: {', '.join(row.diverged)}"
            return StatusFinding(state, reason, f"odf pull --reset-on-divergence {row.name}")
        case Health.diverged | Health.stale if remote is not None and remote.pull:
            force = "--force " if health is Health.diverged else ""
            reason = f"{relation_text_for_people(remote)} {remote.label}"
            return StatusFinding(state, reason, f"odf pull {force}{row.name}")
        case Health.stale:
            return StatusFinding(state, "its inputs have new data", f"odf pull {row.name}")
        case Health.new if row.waiting is not None:
            return _waiting_finding(state, row.waiting)
        case Health.new:
            pulled = row.polls or row.derivative or row.has_pull_remote
            step = "pull" if pulled else "ingest" if row.push_sources else "show"
            return StatusFinding(state, "no data yet", f"odf {step} {row.name}{' FILE' * (step == 'ingest')}")
    if row.waiting is not None:
        return _waiting_finding("waiting", row.waiting)
    if latest is not None and latest.warnings:
        return StatusFinding("warned", warnings_text(latest.warnings), f"odf logs {latest.id}")
    if blocks_to_push(row.remotes):
        remotes = push_remotes(row.remotes)
        unsent = next(remote for remote in remotes if remote.relation in ("ahead", "diverged", "new"))
        reason = f"{plain_block_count(unsent.ours)} to push to {unsent.label}"
        return StatusFinding("ahead", reason, f"odf push {row.name}")
    return None


def _waiting_finding(state: str, waiting: Waiting) -> StatusFinding:
    awaited = waiting.inputs[0]
    option = " --set-watermark TIME" if awaited.reason != "no-rows" else ""
    return StatusFinding(state, waiting.text, f"odf pull {awaited.name}{option}")


class WorkspaceState(NamedTuple):
    """The datasets and jobs of a workspace.

    Attributes:
        rows: all datasets.
        healths: their health, by id.
        book: the jobs.
    """

    rows: list[DatasetRow]
    healths: dict[str, Health]
    book: JobBook

    @classmethod
    def read(cls, workspace: Workspace) -> WorkspaceState:
        """Read the state from the chains, the journal of jobs, and the last comparison with remotes."""
        rows, book = read_rows(workspace, workspace.summaries())
        return cls(rows, dataset_healths(rows, book), book)

    def findings(self) -> list[tuple[DatasetRow, StatusFinding]]:
        """Return the datasets that need attention, by name."""
        findings = ((row, find_attention(row, self.healths[row.id], self.book)) for row in self.rows)
        return [(row, finding) for row, finding in findings if finding is not None]

    def counts(self) -> Counter[str]:
        """Return the number of datasets by status."""
        return Counter(status_word(self.healths[row.id]) for row in self.rows)

    def summary(self) -> str:
        """Describe the number of datasets by status, such as ``3 datasets: 2 current, 1 stale``."""
        counts = ", ".join(f"{number} {state}" for state, number in self.counts().most_common())
        return count_of(len(self.rows), "dataset") + (f": {counts}" if counts else "")

    def jobs_summary(self) -> str:
        """Describe the number of running and queued jobs, or "" without jobs."""
        states = Counter(job.state.value for job in self.book.active_jobs())
        return ", ".join(f"{states[state]} {state}" for state in ("running", "queued") if states[state])


@define_command("status", help=__doc__, example="odf status", json=True)
def command() -> None:
    workspace = open_workspace()
    state = WorkspaceState.read(workspace)
    findings = state.findings()
    findings += _find_drift(workspace, state, {row.id for row, _ in findings})
    pid = workspace.worker_pid()
    show(
        lambda: _status_json(workspace, state, {row.id: finding for row, finding in findings}, pid),
        lambda: _print_status(workspace, state, findings, pid),
    )


def _print_status(
    workspace: Workspace,
    state: WorkspaceState,
    findings: Sequence[tuple[DatasetRow, StatusFinding]],
    pid: int | None,
) -> None:
    sys.stdout.write(f"{workspace.folder}\n{state.summary()}\n")
    if findings:
        rows = [
            [finding.state, row.name, printable(finding.reason), finding.hint] for row, finding in findings
        ]
        print_table(["status", "dataset", "reason", "next step"], rows)
    elif state.rows:
        sys.stdout.write("everything is up to date\n")
    else:
        print_note(NO_DATASETS)
    jobs = state.jobs_summary() or "no jobs"
    sys.stdout.write(f"worker: {f'process {pid}, {jobs}' if pid else 'not running'}\n")


def _find_drift(
    workspace: Workspace, state: WorkspaceState, others: Collection[str]
) -> list[tuple[DatasetRow, StatusFinding]]:
    """Return the datasets that differ from the manifest file that defines them, without some others."""
    drifts = workspace.manifest_drift()
    drifted: list[tuple[DatasetRow, StatusFinding]] = []
    for row in state.rows:
        drift = None if row.id in others else drifts.get(row.id)
        if drift is not None:
            reason = drift.problem or f"{count_of(len(drift.changes), 'difference')} to its manifest"
            hint = f"odf add --update {shlex.quote(str(drift.path))}"
            drifted.append((row, StatusFinding("drifted", reason, hint)))
    return drifted


def _status_json(
    workspace: Workspace, state: WorkspaceState, findings: Mapping[str, StatusFinding], pid: int | None
) -> dict[str, Any]:
    return {
        "workspace": str(workspace.folder),
        "counts": dict(state.counts()),
        "datasets": [
            {
                "id": row.id,
                "name": row.name,
                "status": status_word(state.healths[row.id]),
                "reason": finding.reason if (finding := findings.get(row.id)) else None,
                "hint": finding.hint if finding else None,
                "remotes": [remote_json(remote) for remote in row.remotes],
                "waiting": row.waiting,
            }
            for row in state.rows
        ],
        "jobs": [job_json(job) for job in state.book.active_jobs()],
        "worker": {"running": pid is not None, "pid": pid},
    }
