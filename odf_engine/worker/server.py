"""The worker's socket server: client sessions."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec

from odf_engine.errors import OdfError
from odf_engine.worker.job_log import JobLog
from odf_engine.worker.protocol import (
    MAX_COMMAND_BYTES,
    Accepted,
    Cancel,
    Command,
    DatasetsChanged,
    Event,
    Failure,
    Job,
    JobChanged,
    JobProgress,
    NotifyChanged,
    Ping,
    Progress,
    Rejected,
    Request,
    Sample,
    Samples,
    Stop,
    Submit,
    Subscribe,
    WorkerStatus,
    decode_command,
    encode_line,
)
from odf_engine.worker.spark_service import MAX_SAMPLES

SEND_PATIENCE: Final = 30.0
"""Seconds after which a client that reads nothing is disconnected; it may subscribe again by number."""
_PAGE: Final = 200

_log = logging.getLogger(__name__)


class SessionHost(Protocol):
    """The interface of the worker for sessions."""

    @property
    def journal(self) -> JobLog:
        """The job log."""
        ...

    def status(self) -> WorkerStatus:
        """Return the status of the worker."""
        ...

    def warm_up(self) -> None:
        """Start Spark in the background, unless it runs, starts or has failed."""
        ...

    def samples(self) -> list[Sample]:
        """Return the load samples of the last minutes."""
        ...

    def submit(self, request: Request, target: str, environment: Mapping[str, str]) -> Job:
        """Create a job and return it."""
        ...

    def cancel(self, job_id: str) -> None:
        """Cancel a job."""
        ...

    def stop(self) -> None:
        """Stop the worker."""
        ...


class Sessions:
    """All connections of a worker. Runs in the worker's event loop and never blocks."""

    def __init__(self, host: SessionHost, patience: float = SEND_PATIENCE) -> None:
        self._host = host
        self._patience = patience
        self._sessions: dict[_Session, asyncio.Task[Any] | None] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection until it ends."""
        session = _Session(self._host, reader, writer, self._patience, self.notify_datasets_changed)
        self._sessions[session] = asyncio.current_task()
        try:
            await session.run()
        finally:
            del self._sessions[session]

    def wake(self) -> None:
        """Let all sessions send the new events of the job log."""
        for session in self._sessions:
            session.wake.set()

    def send_progress(self, amounts: dict[str, Progress]) -> None:
        """Send the progress of jobs; a slow client receives only the newest."""
        for session in self._sessions:
            session.amounts.update(amounts)
            session.wake.set()

    def send_sample(self, sample: Sample) -> None:
        """Send a sample; a slow client receives the newest of those that it missed."""
        for session in self._sessions:
            session.samples.append(sample)
            session.wake.set()

    def notify_datasets_changed(self) -> None:
        """Notify all clients that datasets have changed."""
        for session in self._sessions:
            session.datasets_changed = True
            session.wake.set()

    def send_status(self) -> None:
        """Send the changed status of the worker."""
        for session in self._sessions:
            session.status_pending = True
            session.wake.set()

    async def close(self, seconds: float = 1.0) -> None:
        """Send the remaining events for at most ``seconds``, and close all connections."""
        sessions, tasks = list(self._sessions), [task for task in self._sessions.values() if task]
        if sessions:
            await asyncio.wait(
                [asyncio.ensure_future(session.finish()) for session in sessions], timeout=seconds
            )
            for session in sessions:
                session.leave()
            _, slow = await asyncio.wait(tasks, timeout=seconds)
            for session in sessions:
                session.abort()
            if slow:
                await asyncio.wait(slow, timeout=seconds)


class _Session:
    def __init__(
        self,
        host: SessionHost,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        patience: float,
        on_change: Callable[[], None],
    ) -> None:
        self._host = host
        self._reader = reader
        self._writer = writer
        self._patience = patience
        self._on_change = on_change
        self.datasets_changed = False
        self._cursor: int | None = None
        self._sending = asyncio.Lock()
        self.wake = asyncio.Event()
        self.amounts: dict[str, Progress] = {}
        self.samples: deque[Sample] = deque(maxlen=MAX_SAMPLES)
        self.status_pending = False
        self._own_jobs: list[str] = []

    async def run(self) -> None:
        pump = asyncio.ensure_future(self._pump())
        listen = asyncio.ensure_future(self._listen())
        try:
            await asyncio.wait([pump, listen], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (pump, listen):
                task.cancel()
            results = await asyncio.gather(pump, listen, return_exceptions=True)
            for result in results:
                _log_failure(result)
            await self._close(too_slow=any(isinstance(result, TimeoutError) for result in results))

    async def _close(self, too_slow: bool) -> None:
        for job in self._own_jobs:
            with contextlib.suppress(OdfError, sqlite3.Error):  # it has ended, or the disk is full
                self._host.cancel(job)
        self.leave()
        if not too_slow:
            with contextlib.suppress(OSError, TimeoutError):
                await asyncio.wait_for(self._writer.wait_closed(), self._patience)
        self.abort()

    async def finish(self) -> None:
        """Send the remaining events of the job log to this client."""
        with contextlib.suppress(OSError, TimeoutError, sqlite3.Error):
            await self._send_events()

    def leave(self) -> None:
        """Close the connection once everything is sent; this ends :meth:`run`."""
        self._writer.close()

    def abort(self) -> None:
        """Close the connection immediately."""
        self._writer.transport.abort()

    async def _listen(self) -> None:
        while True:
            try:
                line = await self._reader.readuntil(b"\n")
            except asyncio.IncompleteReadError:
                return
            except asyncio.LimitOverrunError:
                await self._write([_reject("", f"a command is longer than {MAX_COMMAND_BYTES} bytes")])
                return
            answer = self._reply(line)
            if answer is not None:
                await self._write([answer])

    def _reply(self, line: bytes) -> Event | None:
        try:
            command = decode_command(line)
        except ValueError as error:
            return _reject(_find_tag(line), f"invalid command: {error}")
        tag = getattr(command, "tag", "")
        try:
            return self._execute(command)
        except OdfError as error:
            return Rejected(tag, Failure(error.message, error.hint, error.where, error.exit_code))
        except sqlite3.Error as error:
            hint = "free disk space or make the workspace writable; browsing still works"
            return Rejected(tag, Failure(f"the job log cannot be written: {error}", hint=hint))
        except Exception as error:
            # The command itself is not logged: it may have secrets.
            _log.exception("a command failed: %s", type(command).__name__)
            return _reject(tag, f"the worker failed: {type(error).__name__}: {error}")

    def _execute(self, command: Command) -> Event | None:
        match command:
            case Submit():
                job = self._host.submit(command.request, command.target, command.environment)
                if command.ends_with_client:
                    self._own_jobs.append(job.id)
                return Accepted(command.tag, job.id)
            case Cancel():
                self._host.cancel(command.job)
                return Accepted(command.tag, command.job)
            case Subscribe():
                status = self._host.status()
                since = status.last_seq if command.since is None else command.since
                self._cursor = max(0, min(since, status.last_seq))  # the numbers of a new job log start again
                self.samples.extend(self._host.samples())
                self.wake.set()
                return status
            case Ping():
                if command.warm:
                    self._host.warm_up()
                return self._host.status()
            case NotifyChanged():
                self._on_change()
                return None
            case Stop():
                self._host.stop()
                return None

    async def _pump(self) -> None:
        while True:
            await self.wake.wait()
            self.wake.clear()
            await self._send_events()

    async def _send_events(self) -> None:
        async with self._sending:
            if self._cursor is None:
                self.amounts.clear()
                self.samples.clear()
                self.datasets_changed = False
                return
            # Taken before the job log is read: progress must not be sent after the end of its job.
            amounts, self.amounts = self.amounts, {}
            if self.status_pending:
                self.status_pending = False
                await self._write([self._host.status()])
            if self.datasets_changed:
                self.datasets_changed = False
                await self._write([DatasetsChanged()])
            if self.samples:
                samples = list(self.samples)
                self.samples.clear()
                await self._write([Samples(samples)])
            while page := self._host.journal.events(self._cursor, limit=_PAGE):
                for event in page:
                    if isinstance(event, JobChanged) and event.job.state.final:
                        amounts.pop(event.job.id, None)
                await self._write(page)
                self._cursor = page[-1].seq
            await self._write([JobProgress(job, progress) for job, progress in amounts.items()])

    async def _write(self, events: Sequence[Event]) -> None:
        if events:
            self._writer.write(b"".join(map(encode_line, events)))
            # Not wait_for: until Python 3.12 it may lose a cancellation, and the session would never end.
            async with asyncio.timeout(self._patience):
                await self._writer.drain()


def _reject(tag: str, message: str) -> Rejected:
    return Rejected(
        tag, Failure(message, hint="check that client and worker have the same version", exit_code=2)
    )


def _find_tag(line: bytes) -> str:
    """Return the tag of an invalid command, or "" if it has none."""
    try:
        tag = msgspec.json.decode(line, type=dict[str, Any]).get("tag")
    except (ValueError, RecursionError):
        return ""
    return tag if isinstance(tag, str) else ""


def _log_failure(result: object) -> None:
    """Log why a connection failed; a lost connection is normal, and a slow client only a warning."""
    if isinstance(result, TimeoutError):
        _log.warning("disconnected a client that did not read its events")
    elif isinstance(result, Exception) and not isinstance(result, OSError):
        _log.error("a connection failed", exc_info=result)
