"""A real workspace with a worker that a test controls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import msgspec

from odf_engine.api.model import DatasetRow
from odf_engine.api.workspace import Workspace as OpenWorkspace
from odf_engine.base.config import UiConfig
from odf_engine.errors import OdfError
from odf_engine.jobs.pull import Pull
from odf_engine.worker.endpoint import WorkerEndpoint
from odf_engine.worker.job_log import JobLog
from odf_engine.worker.protocol import (
    Committed,
    Event,
    Failure,
    Job,
    JobChanged,
    JobState,
    LogLine,
    Progress,
    Request,
    WorkerStatus,
)
from odf_engine.workspace.workspace import Workspace
from tests.tui.haven import copy_haven, did


class ScriptedLink:
    """A connection. Submitted requests become queued jobs; tests send further events.

    Attributes:
        submitted: the submitted requests.
        cancelled: ids of the cancelled jobs.
    """

    def __init__(self, source: Scenario) -> None:
        self._source = source
        self._queue: asyncio.Queue[Event | None] = asyncio.Queue()
        self.status = source.status
        self.cancelled: list[str] = []
        self.submitted: list[Request] = []

    async def submit(self, request: Request, target: str) -> str:
        """Add a queued job."""
        self.submitted.append(request)
        number = str(len(self._source.known) + 1)
        job = Job(number, request.kind(), target, request.dataset_id, JobState.queued, "2024-03-11T09:00:00Z")
        self.tell(self._source.changed(job, request))
        return number

    async def cancel(self, job: str) -> None:
        """Record the cancellation."""
        self.cancelled.append(job)

    async def events(self, since: int | None = None) -> AsyncIterator[Event]:
        """Yield the events that the test sends."""
        while (event := await self._queue.get()) is not None:
            yield event

    async def ping(self) -> WorkerStatus:
        """Return the status."""
        return self.status

    async def close(self) -> None:
        """End the events."""
        self._queue.put_nowait(None)

    def tell(self, *events: Event) -> None:
        """Send events of the worker."""
        for event in events:
            self._queue.put_nowait(event)

    def die(self) -> None:
        """End the events, as if the worker stopped."""
        self._queue.put_nowait(None)


class Scenario(OpenWorkspace):
    """A workspace whose jobs are those that a test adds to its job log; everything else is real.

    Attributes:
        links: the connections, newest last.
        connecting: errors of the next connections, in turn.
        stopped: how often the worker was stopped.
    """

    ui: UiConfig = UiConfig(ascii="never", theme="tide")  # type: ignore[assignment]  # not of the locale
    status = WorkerStatus(4711, 1, "0.1.0", "ready", "", 0, 0, 0)

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(workspace)
        self._rows: list[DatasetRow] | None = None
        self.links: list[ScriptedLink] = []
        self.connecting: list[OdfError] = []
        self.stopped = 0

    @cached_property
    def journal(self) -> JobLog:  # type: ignore[override]
        """The job log. Its worker is taken to be running."""
        return JobLog(WorkerEndpoint(self.folder).journal)

    @property
    def known(self) -> list[Job]:
        """The jobs, oldest first."""
        return self.journal.jobs()[::-1]

    @property
    def rows_(self) -> list[DatasetRow]:
        """The datasets. A test can set others, in states that are hard to create; None removes them."""
        return self.datasets()

    @rows_.setter
    def rows_(self, rows: Sequence[DatasetRow] | None) -> None:
        self._rows = None if rows is None else list(rows)

    def datasets(self) -> list[DatasetRow]:
        return super().datasets() if self._rows is None else list(self._rows)

    async def connect(self, *, start: bool = True) -> Any:
        """Return a connection, or raise the next prepared error."""
        if self.connecting:
            raise self.connecting.pop(0)
        self.links.append(ScriptedLink(self))
        return self.link

    @property
    def link(self) -> ScriptedLink:
        """The newest connection."""
        return self.links[-1]

    async def stop_worker(self) -> None:
        """Count the call."""
        self.stopped += 1

    def changed(self, job: Job, request: Request | None = None) -> JobChanged:
        """Add or replace a job. Return its event."""
        with self.journal._transaction() as database:
            number = int(job.id)
            database.execute("INSERT OR IGNORE INTO jobs(number, final, body) VALUES (?, 0, x'')", (number,))
            if request is not None or job.kind == "pull":
                conflict = "IGNORE" if request is None else "REPLACE"
                body = msgspec.json.encode(request or Pull(dataset=job.dataset))
                database.execute(
                    f"INSERT OR {conflict} INTO requests(job, body) VALUES (?, ?)", (number, body)
                )
            return self.journal._store(database, job)

    def forget_jobs(self, after: int = 0) -> None:
        """Remove the jobs with greater numbers."""
        with self.journal._transaction() as database:
            for table, number in (("jobs", "number"), ("events", "job"), ("requests", "job")):
                database.execute(f"DELETE FROM {table} WHERE {number} > ?", (after,))

    def line(
        self, job: str, text: str, level: Literal["debug", "info", "warning", "error"] = "info"
    ) -> LogLine:
        """Add a line to a log. Return its event."""
        time = f"2024-03-11T09:00:{self.journal.last_seq() % 60:02d}Z"
        return self._add(LogLine(0, job, time, level, text))

    def committed(self, job: str, dataset: str, rows: int, block: str = "f1620" + "ab" * 32) -> Committed:
        """Add a committed block. Return its event."""
        return self._add(Committed(0, job, dataset, block, "AddData", rows))

    def _add(self, event: Any) -> Any:
        with self.journal._transaction() as database:
            return self.journal._insert(database, event)

    def job(self, state: JobState, name: str, kind: str = "pull", **more: object) -> Job:
        """Return a job in a state, with a new id."""
        known = {
            "id": str(len(self.known) + 1),
            "kind": kind,
            "target": name,
            "dataset": did(name),
            "state": state,
            "created": "2024-03-11T09:00:00Z",
            "started": None if state is JobState.queued else "2024-03-11T09:00:01Z",
            "ended": "2024-03-11T09:00:04.200Z" if state.final else None,
        }
        return Job(**{**known, **more})  # type: ignore[arg-type]

    def story(self) -> None:
        """Add a pull and a verification that succeeded, and a pull that failed."""
        done = self.job(
            JobState.done,
            "port-haven.air-readings",
            result='{"status": "updated", "records": 7200, "blocks": 1}',
        )
        self.changed(done)
        self.line(done.id, "fetched file:sources/air-readings.csv, 412 kB")
        self.committed(done.id, done.dataset, 7200)
        self.changed(self.job(JobState.done, "port-haven.air-readings", "verify", result='{"valid": true}'))
        error = Failure(
            "column 'age' has the value 'forty' in row 212, which is no INT",
            hint="correct the file, or declare the column STRING",
            where="sources/clinics.csv:212",
            excerpt=["212 | 17,Old Town,forty,2024-03-02"],
        )
        failed = self.job(JobState.failed, "port-haven.clinics", error=error)
        self.changed(failed)
        self.line(failed.id, "fetched sources/clinics.csv, 9 kB")
        self.line(failed.id, "reading stopped at row 212", "error")


def open_haven(folder: Path) -> Scenario:
    """Open a copy of Port Haven in a folder."""
    return Scenario(copy_haven(folder))


def progress(rows: int, phase: str = "read") -> Progress:
    """Return a progress with rows and bytes."""
    return Progress(phase=phase, rows=rows, bytes=rows * 80, total_bytes=1_000_000)
