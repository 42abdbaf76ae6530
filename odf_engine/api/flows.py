"""The flows and checks of a workspace: definitions, state, runs, results; changes that need no job."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from odf_engine.automation.flows.definition import (
    Flow,
    Interval,
    RemoteTrigger,
    Schedule,
    Trigger,
)
from odf_engine.automation.flows.scheduler import due_time
from odf_engine.automation.flows.store import FlowState, FlowStore, Run
from odf_engine.base.progress import JobWarning
from odf_engine.checks.definition import checks_of
from odf_engine.checks.reports import RejectedBatch, StoredReport, list_rejected, list_reports, read_report
from odf_engine.errors import NotFound, OdfError
from odf_engine.worker.job_log import read_journal
from odf_engine.worker.protocol import Job
from odf_engine.workspace.documents.store import DocumentEntry, Documents, Unreadable
from odf_engine.workspace.workspace import Workspace


class FlowSummary(NamedTuple):
    """A flow and its state.

    Attributes:
        name: name of the flow.
        state: ``active``, ``running``, ``paused``, ``new``, ``changed`` or ``invalid``.
        reason: why it is not active, or "" if it is.
        triggers: its triggers as text.
        targets: its targets.
        last: the newest run or decision.
        due: when it is due next, in seconds since 1970, or None if nothing is planned.
    """

    name: str
    state: str
    reason: str
    triggers: str
    targets: Sequence[str]
    last: Run | None
    due: float | None


class WorkspaceFlows:
    """Reads and changes the flows of a workspace.

    Args:
        odf: the ``.odf`` folder.
    """

    def __init__(self, odf: Path) -> None:
        self.documents = Documents(odf, Flow)
        self.store = FlowStore(odf)
        self._journal = read_journal(odf)
        self._ended: dict[str, Job] = {}

    def close(self) -> None:
        """Close the file of states and runs."""
        self.store.close()

    def summaries(self) -> list[FlowSummary]:
        """Return all flows by name, also those whose file is invalid."""
        states = self.store.states()
        return [self._summary(entry, states) for entry in self.documents.entries()]

    def _summary(self, entry: DocumentEntry[Flow] | Unreadable, states: dict[str, FlowState]) -> FlowSummary:
        name = entry.name
        last = next(iter(self.store.runs(name, 1)), None)
        if isinstance(entry, Unreadable):
            return FlowSummary(name, entry.state, entry.reason, "", (), last, None)
        flow = entry.document
        triggers = ", ".join(map(trigger_text, flow.spec.triggers)) or "on request"
        targets = list(map(str, flow.spec.targets))
        if entry.state != "active":
            reason = f"{entry.state}: {entry.reason}"
            return FlowSummary(name, entry.state, reason, triggers, targets, last, None)
        now = time.time()
        state = states.get(name) or FlowState(name, now)
        running = last is not None and last.state == "running"
        due = due_time(flow, state, now, running=running)
        word = "paused" if state.paused else "running" if running else "active"
        return FlowSummary(
            name, word, state.pause_reason, triggers, targets, last, None if due == math.inf else due
        )

    def runs(self, name: str | None, limit: int) -> list[Run]:
        """Return the newest runs and decisions, of all flows or of one, newest first."""
        return self.store.runs(name, limit)

    def outputs(self, runs: Sequence[Run]) -> dict[int, str]:
        """Return the output of the commands of runs, by the id of the run."""
        return self.store.outputs(runs)

    def warnings(self, runs: Sequence[Run], jobs: Mapping[str, Job]) -> dict[int, list[JobWarning]]:
        """Return the warnings of the tasks of runs, by the id of the run.

        Args:
            runs: the runs.
            jobs: their jobs, whose warnings are returned for runs of earlier versions.
        """
        of_jobs = {
            run.id: [warning for name in run.jobs if name in jobs for warning in jobs[name].warnings]
            for run in runs
        }
        return of_jobs | self.store.warnings(runs)

    def jobs_of(self, runs: Sequence[Run]) -> dict[str, Job]:
        """Return the jobs of runs by id; the log of jobs may lack old ones."""
        jobs: dict[str, Job] = {}
        for name in (name for run in runs for name in run.jobs):
            with suppress(NotFound):
                jobs[name] = self._ended.get(name) or self._journal.job(name)
        self._ended = {name: job for name, job in jobs.items() if job.state.final}
        return jobs

    def summary(self, name: str) -> FlowSummary:
        """Return one flow.

        Raises:
            NotFound: there is no such flow.
            InvalidManifest: its file is invalid.
        """
        return self._summary(self.documents.entry(name), self.store.states())

    def resume(self, name: str) -> FlowSummary:
        """Resume a flow, and accept its current definition.

        Raises:
            NotFound: there is no such flow.
            InvalidManifest: its file is invalid.
        """
        self._begin(self.documents.read(name))
        return self.summary(name)

    def accept(self, flow: Flow) -> None:
        """Accept a definition. A paused flow stays paused."""
        state = self.store.states().get(flow.name)
        if state is not None and state.paused:
            self.documents.accept(flow)
        else:
            self._begin(flow)

    def _begin(self, flow: Flow) -> None:
        """Accept a definition; it handles the times from now on."""
        self.documents.accept(flow)
        now = time.time()
        self.store.change(
            flow.name, now, paused=False, pause_reason="", failures=0, handled_until=now, retry_at=None
        )

    def pause(self, name: str) -> None:
        """Pause a flow. A run in progress continues.

        Raises:
            NotFound: there is no such flow.
        """
        self.documents.read(name)
        self.store.change(name, time.time(), paused=True, pause_reason="paused by the user")

    def request(self, name: str) -> None:
        """Request a run of an accepted flow. The worker starts it within a second."""
        self.store.change(name, time.time(), requested=True)

    def remove(self, name: str) -> None:
        """Remove a flow. Its history stays.

        Raises:
            NotFound: there is no such flow.
        """
        self.documents.remove(name)
        self.store.forget(name)


class CommitChecks(NamedTuple):
    """The results of checks of a commit: the number of its last block, and the report."""

    block: int
    stored: StoredReport


class ChecksView(NamedTuple):
    """The checks of a dataset.

    Attributes:
        rules: names of the rules by the name of their check.
        problem: why the checks cannot be evaluated, or "" if they can.
        commits: results of the newest commits, newest first.
        rejected: rejected rows, newest first.
    """

    rules: dict[str, list[str]]
    problem: str
    commits: list[CommitChecks]
    rejected: list[RejectedBatch]


def read_dataset_checks(folder: Path, dataset: str, commits: int) -> ChecksView:
    """Return the checks of a dataset with the results of up to ``commits`` commits.

    Raises:
        OdfError: the dataset cannot be read.
    """
    workspace = Workspace(folder)  # a new one reads the current settings
    try:
        entry = workspace.resolve(dataset)
        rules: dict[str, list[str]] = {}
        problem = ""
        try:
            for check in checks_of(workspace.odf, entry.alias, entry.id, workspace.config):
                rules[check.name] = [rule.label for rule in check.document.spec.rules]
                if check.state != "active":
                    problem = f"review the check {check.name}, then accept it: odf check accept {check.name}"
        except OdfError as error:
            problem = error.format_line
        commit_checks: list[CommitChecks] = []
        names = set(list_reports(entry.dataset.folder))
        for data_slice in reversed(entry.dataset.slices() if names else ()):
            if str(data_slice.physical_hash) in names and len(commit_checks) < commits:
                try:
                    stored = read_report(entry.dataset.folder, entry.id, data_slice.physical_hash)
                except OdfError as error:
                    problem = problem or error.format_line
                else:
                    commit_checks += [CommitChecks(data_slice.sequence_number, stored)] if stored else []
        return ChecksView(rules, problem, commit_checks, list_rejected(workspace.odf, [entry.id]))
    finally:
        workspace.index.close()


def trigger_text(trigger: Trigger) -> str:
    """Return a trigger as text."""
    match trigger:
        case Schedule(cron, zone):
            return cron.text if zone.text == "UTC" else f"{cron.text} {zone.text}"
        case Interval(every):
            return f"every {every.text}"
        case RemoteTrigger(every):
            return f"remote, every {every.text}"
    return "new rows of inputs"
