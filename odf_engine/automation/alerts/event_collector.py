"""Collects the events for alerts: ends of jobs from the job log, runs of flows, moved heads of datasets.

Each source has a position that the queue stores together with the deliveries. Heads are compared with the
last known ones, so commits of other processes, such as pushes to ``odf serve``, are events too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from odf_engine.automation.alerts.definition import Alert, EventKind
from odf_engine.automation.alerts.events import MAX_MESSAGE, Event, stable_id
from odf_engine.automation.alerts.store import AlertStore
from odf_engine.automation.flows import store as flow_store
from odf_engine.automation.flows.store import FlowStore, Run
from odf_engine.base.progress import count_of
from odf_engine.checks.reports import result_json
from odf_engine.errors import OdfError
from odf_engine.identity.did import DatasetId
from odf_engine.identity.multiformats import Multihash
from odf_engine.jobs.check import CheckResult
from odf_engine.jobs.verify import VerifyResult
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.worker.job_log import JobLogReader
from odf_engine.worker.protocol import Committed, Job, JobChanged, JobState

if TYPE_CHECKING:
    from odf_engine.workspace.dataset_summary import DatasetEntry
    from odf_engine.workspace.workspace import Workspace

_JOBS: Final = "jobs"
_RUNS: Final = "runs"
_HEADS: Final = "heads"
_BATCH: Final = 2000
"""Maximum number of events of the job log that are read at once."""
_SUMMARY: Final = (
    "status", "old_head", "new_head", "blocks", "records", "added", "retracted", "corrected", "late",
    "rejected", "valid", "url",
)  # fmt: skip
"""The fields of results of jobs that events have."""


OpenWorkspace = Callable[[], "Workspace"]
"""Returns the workspace, which is opened by the first call."""


class EventBatch(NamedTuple):
    """New events, and the positions after them.

    Attributes:
        events: the events, in order.
        positions: the new positions by source.
        heads: the new heads by id of the dataset; None: it was deleted.
        more: whether there are further events.
    """

    events: list[Event]
    positions: dict[str, str]
    heads: dict[str, str | None]
    more: bool


class _RunPosition(msgspec.Struct):
    """The newest known run of flows, and the earlier runs that have not ended."""

    last: int
    open: list[int] = []


class EventCollector:
    """Collects the events of a workspace. Its methods must not be called at the same time.

    Args:
        odf: the ``.odf`` folder of the workspace.
        store: the queue, which has the positions.
    """

    def __init__(self, odf: Path, store: AlertStore) -> None:
        self._odf = odf
        self._store = store
        self._journal = JobLogReader(odf / "jobs.sqlite")
        self._flows: FlowStore | None = None

    def close(self) -> None:
        """Close the files."""
        if self._flows is not None:
            self._flows.close()

    def begin(self, alerts: Iterable[Alert], workspace: Workspace, *, replace: bool) -> None:
        """Store the current positions. Only later changes lead to events.

        Args:
            alerts: the alerts.
            workspace: the workspace.
            replace: replace stored positions. Otherwise, only missing ones are added.
        """
        known = {} if replace else self._store.positions()
        batch = self._collect({}, alerts, lambda: workspace, scan=True)
        missing = {source: value for source, value in batch.positions.items() if not known.get(source)}
        heads = batch.heads if _HEADS in missing else {}
        self._store.enqueue((), Timestamp.now().ms / 1000, missing, heads)

    def collect(self, alerts: Iterable[Alert], workspace: OpenWorkspace, *, scan: bool) -> EventBatch:
        """Return the new events.

        Args:
            alerts: the alerts; heads are compared only if one selects their changes.
            workspace: returns the workspace. It is called only if datasets have to be read.
            scan: compare the heads of all datasets. Otherwise, only those that jobs have changed.

        Raises:
            OdfError: a source cannot be read.
        """
        return self._collect(self._store.positions(), alerts, workspace, scan=scan)

    def _collect(
        self, positions: Mapping[str, str], alerts: Iterable[Alert], workspace: OpenWorkspace, *, scan: bool
    ) -> EventBatch:
        watched = any("DatasetUpdated" in alert.spec.kinds for alert in alerts)
        batch = EventBatch([], {}, {}, False)
        touched, more = self._collect_jobs(positions.get(_JOBS), batch)
        self._collect_runs(positions.get(_RUNS), batch)
        if watched:
            self._collect_heads(positions.get(_HEADS), workspace, None if scan else touched, batch)
        elif positions.get(_HEADS):
            batch.positions[_HEADS] = ""  # heads that move from now on are not events later
        return batch._replace(more=more)

    def _collect_jobs(self, position: str | None, batch: EventBatch) -> tuple[set[str], bool]:
        """Add the events of jobs; return the ids of changed datasets, and whether there are more events."""
        newest = self._journal.last_seq()
        since = newest if position is None else int(position)
        if since > newest:  # the job log was replaced
            since = 0
        events = self._journal.events(since, limit=_BATCH)
        touched: set[str] = set()
        for journal_event in events:
            if isinstance(journal_event, Committed):
                touched.add(journal_event.dataset)
            elif isinstance(journal_event, JobChanged):
                if journal_event.job.state.final:
                    touched.add(journal_event.job.dataset)
                event = job_event(journal_event.job)
                if event is not None:
                    batch.events.append(event)
        last = events[-1].seq if events else since
        if position != str(last):
            batch.positions[_JOBS] = str(last)
        return touched, len(events) == _BATCH

    def _collect_runs(self, position: str | None, batch: EventBatch) -> None:
        if self._flows is None:
            if not (self._odf / flow_store.FILE).exists():
                if position is None:
                    batch.positions[_RUNS] = msgspec.json.encode(_RunPosition(0)).decode()
                return
            self._flows = FlowStore(self._odf)
        if position is None:
            newest = next(iter(self._flows.runs(limit=1)), None)
            known = _RunPosition(newest.id if newest else 0, [run.id for run in self._flows.open_runs()])
            batch.positions[_RUNS] = msgspec.json.encode(known).decode()
            return
        known = msgspec.json.decode(position, type=_RunPosition)
        runs = self._flows.runs_after(known.last, known.open)
        states = self._flows.states() if any(run.state == "failed" for run in runs) else {}
        newest_failed = {run.flow: run.id for run in runs if run.state == "failed"}
        for run in runs:
            state = states.get(run.flow)
            paused = bool(
                state is not None
                and state.paused
                and state.pause_reason.startswith("paused after")
                and newest_failed.get(run.flow) == run.id
            )
            event = _run_event(run, state.pause_reason if state is not None and paused else "")
            if event is not None:
                batch.events.append(event)
        last = max([known.last, *(run.id for run in runs)])
        changed = _RunPosition(last, [run.id for run in runs if run.state == "running"])
        if changed != known:
            batch.positions[_RUNS] = msgspec.json.encode(changed).decode()

    def _collect_heads(
        self, position: str | None, workspace: OpenWorkspace, touched: set[str] | None, batch: EventBatch
    ) -> None:
        first = not position
        if touched is not None and not first:
            entries: Sequence[DatasetEntry] = []
            if touched:
                entries = [entry for entry in workspace().datasets() if str(entry.id) in touched]
        else:
            entries = workspace().datasets()
        known = {} if first else self._store.heads()
        for entry in entries:
            try:
                head = entry.dataset.head()
            except OdfError:
                continue  # the dataset has its own problem
            dataset = str(entry.id)
            old = known.pop(dataset, None)
            if head is None or str(head) == old:
                continue
            batch.heads[dataset] = str(head)
            if not first:
                batch.events.append(_head_event(entry, old, head))
        if touched is None or first:
            batch.heads.update(dict.fromkeys(known))  # deleted since
        if first:
            batch.positions[_HEADS] = "known"


def job_event(job: Job) -> Event | None:
    """Return the event of a job that has started or ended, or None if it has none."""
    if (job.request_type is not None and job.request_type.is_silent) or job.state is JobState.queued:
        return None
    data: dict[str, Any] = {"job": job.id, "kind": job.kind, "state": job.state.value}
    data |= {"branch": job.branch} if job.branch else {}
    data |= {"started": job.started} if job.started else {}
    data |= {"ended": job.ended} if job.ended else {}
    kinds: Sequence[EventKind]
    name = f"{job.kind} {job.target}"
    message = f"{name} {job.state.value}"
    match job.state:
        case JobState.running:
            kinds = ["JobStarted"]
            message = f"{name} started"
        case JobState.done:
            kinds, message = _describe_success(job, name, data)
        case JobState.cancelled:
            kinds = ["JobCancelled"]
        case _:
            kinds = ["JobFailed"]
            if job.error is not None:
                location = f"{job.error.where}: " if job.error.where else ""
                message = f"{name} failed: {location}{job.error.message}"
                error = msgspec.to_builtins(job.error)
                error.pop("excerpt", None)  # a line of a source file
                data["error"] = error
                if job.error.kind == "CheckFailed":
                    kinds = ["CheckFailed", "JobFailed"]
    if job.warnings:
        data["warnings"] = msgspec.to_builtins(job.warnings)
        if job.state is JobState.done:
            kinds = [*kinds[:-1], "JobWarned", kinds[-1]]
            message += f"; {count_of(len(job.warnings), 'warning')}: {job.warnings[0].text}"
    return Event(
        id=stable_id("job", job.id, job.created, job.state.value),
        kinds=kinds,
        time=job.ended or job.started or job.created,
        subject=job.target.removesuffix(f"@{job.branch}") if job.branch else job.target,
        message=_one_line(message),
        dataset=job.dataset if _is_dataset_id(job.dataset) else "",
        data=data,
    )


def _describe_success(job: Job, name: str, data: dict[str, Any]) -> tuple[list[EventKind], str]:
    """Return the kinds and the message of a job that has succeeded; add its result to ``data``."""
    result: dict[str, Any] = {}
    with contextlib.suppress(msgspec.MsgspecError):  # of another version
        result = msgspec.json.decode(job.result or "{}", type=dict[str, Any])
    data["result"] = {key: result[key] for key in _SUMMARY if result.get(key) is not None}
    with contextlib.suppress(msgspec.MsgspecError):
        if job.kind == "verify":
            verified = msgspec.convert(result, VerifyResult)
            data["findings"] = [finding.message for finding in verified.findings[:20]]
            if verified.valid is False:
                first = f": {verified.findings[0].message}" if verified.findings else ""
                return ["VerifyFailed", "JobSucceeded"], f"{name}: invalid{first}"
        if job.kind == "check":
            checked = msgspec.convert(result, CheckResult)
            data["checks"] = [result_json(check) for check in checked.results]
            if checked.failed and not checked.is_trial:
                return ["CheckFailed", "JobSucceeded"], f"{name}: {checked.failed[0].text}"
    blocks, records = result.get("blocks"), result.get("records")
    counts = ""
    if isinstance(blocks, int) and isinstance(records, int):
        counts = f": {count_of(blocks, 'block')}, {count_of(records, 'row')}"
    return ["JobSucceeded"], f"{name} succeeded{counts}"


def _run_event(run: Run, pause_reason: str) -> Event | None:
    """Return the event of a run that has succeeded or failed, or None for others."""
    kinds: Sequence[EventKind]
    if run.state == "done":
        kinds = ["FlowSucceeded"]
        message = f"flow {run.flow}: run {run.id} succeeded"
    elif run.state == "failed":
        kinds = ["FlowFailed"]
        message = f"flow {run.flow}: run {run.id} failed: {run.reason}"
        if pause_reason:
            kinds = ["FlowPaused", "FlowFailed"]
            message = f"flow {run.flow} {pause_reason}: {run.reason}"
    else:
        return None
    data: dict[str, Any] = {
        "run": run.id,
        "trigger": run.trigger,
        "attempt": run.attempt,
        "state": run.state,
        "reason": run.reason,
        "started": str(Timestamp.from_seconds(run.begun)),
        "ended": str(Timestamp.from_seconds(run.ended or run.begun)),
        "jobs": run.jobs,
    }
    return Event(
        id=stable_id("run", run.flow, run.id, run.begun),
        kinds=kinds,
        time=str(Timestamp.from_seconds(run.ended or run.begun)),
        subject=run.flow,
        message=_one_line(message),
        data=data,
    )


def _head_event(entry: DatasetEntry, old: str | None, new: Multihash) -> Event:
    """Return the event of a new head of a dataset."""
    breaking, state = False, None
    with contextlib.suppress(OdfError):
        breaking = old is not None and not entry.dataset.contains_block(Multihash.parse(old))
        state = entry.dataset.state()
    data: dict[str, Any] = {"old_head": old, "new_head": str(new), "breaking": breaking}
    if state is not None:
        data |= {"blocks": state.blocks, "records": state.records}
        data |= {"watermark": str(state.watermark)} if state.watermark is not None else {}
    now = str(Timestamp.now())
    change = "has a new history" if breaking else "was created" if old is None else "was updated"
    return Event(
        id=stable_id("head", entry.id, old, new, now),
        kinds=["DatasetUpdated"],
        time=now,
        subject=str(entry.alias),
        message=f"{entry.alias} {change}",
        dataset=str(entry.id),
        data=data,
    )


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_MESSAGE else line[: MAX_MESSAGE - 1] + "…"


def _is_dataset_id(text: str) -> bool:
    with contextlib.suppress(OdfError):
        DatasetId.parse(text)
        return True
    return False
