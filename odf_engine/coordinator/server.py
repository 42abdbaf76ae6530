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

from odf_engine.coordinator.job_log import JobLog
from odf_engine.coordinator.protocol import (
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
from odf_engine.coordinator.spark_service import MAX_SAMPLES
from odf_engine.errors import OdfError

SEND_PATIENCE: Final = 30.0
"""Seconds after which a client that takes nothing is cut off; it may come back and ask by number."""
_PAGE: Final = 200

_log = logging.getLogger(__name__)


class SessionHost(Protocol):
    """What a session needs of its worker."""

    @property
    def journal(self) -> JobLog:
        """The journal."""
        ...

    def status(self) -> WorkerStatus:
        """How the worker is."""
        ...

    def warm_up(self) -> None:
        """Begins to start Spark, unless it runs or starts already."""
        ...

    def samples(self) -> list[Sample]:
        """How busy it was in the last minutes."""
        ...

    def submit(self, request: Request, target: str, environment: Mapping[str, str]) -> Job:
        """Makes a job."""
        ...

    def cancel(self, job_id: str) -> None:
        """Stops a job."""
        ...

    def stop(self) -> None:
        """Ends the worker."""
        ...


class Sessions:
    """All connections of a worker. Lives in the worker's loop; nothing here blocks."""

    def __init__(self, host: SessionHost, patience: float = SEND_PATIENCE) -> None:
        self._host = host
        self._patience = patience
        self._sessions: dict[_Session, asyncio.Task[Any] | None] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves one connection until it ends."""
        session = _Session(self._host, reader, writer, self._patience, self.touched)
        self._sessions[session] = asyncio.current_task()
        try:
            await session.run()
        finally:
            del self._sessions[session]

    def wake(self) -> None:
        """There is something new in the journal."""
        for session in self._sessions:
            session.wake.set()

    def progress(self, amounts: dict[str, Progress]) -> None:
        """Running jobs have new amounts: the newest ones are sent, whatever a slow client missed."""
        for session in self._sessions:
            session.amounts.update(amounts)
            session.wake.set()

    def sampled(self, sample: Sample) -> None:
        """There is a new sample; a slow client gets the newest ones of those that it missed."""
        for session in self._sessions:
            session.samples.append(sample)
            session.wake.set()

    def touched(self) -> None:
        """Somebody changed datasets."""
        for session in self._sessions:
            session.touched = True
            session.wake.set()

    def status_changed(self) -> None:
        """The worker's status is another one."""
        for session in self._sessions:
            session.status_due = True
            session.wake.set()

    async def close(self, seconds: float = 1.0) -> None:
        """Sends what is left, for a moment, and ends all connections."""
        sessions, tasks = list(self._sessions), [task for task in self._sessions.values() if task]
        if sessions:
            await asyncio.wait([asyncio.ensure_future(each.finish()) for each in sessions], timeout=seconds)
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
        touched: Callable[[], None],
    ) -> None:
        self._host = host
        self._reader = reader
        self._writer = writer
        self._patience = patience
        self._touched = touched
        self.touched = False
        self._cursor: int | None = None
        self._sending = asyncio.Lock()
        self.wake = asyncio.Event()
        self.amounts: dict[str, Progress] = {}
        self.samples: deque[Sample] = deque(maxlen=MAX_SAMPLES)
        self.status_due = False

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
                _note(result)
            await self._say_good_bye(too_slow=any(isinstance(result, TimeoutError) for result in results))

    async def _say_good_bye(self, too_slow: bool) -> None:
        self.leave()
        if not too_slow:
            with contextlib.suppress(OSError, TimeoutError):
                await asyncio.wait_for(self._writer.wait_closed(), self._patience)
        self.abort()

    async def finish(self) -> None:
        """Sends what the journal has for this client."""
        with contextlib.suppress(OSError, TimeoutError, sqlite3.Error):
            await self._send_news()

    def leave(self) -> None:
        """Ends the connection once everything is sent, and with it :meth:`run`."""
        self._writer.close()

    def abort(self) -> None:
        """Ends the connection now."""
        self._writer.transport.abort()

    # --- what the client asks ---

    async def _listen(self) -> None:
        while True:
            try:
                line = await self._reader.readuntil(b"\n")
            except asyncio.IncompleteReadError:
                return
            except asyncio.LimitOverrunError:
                await self._write([_refused("", f"a command is longer than {MAX_COMMAND_BYTES} bytes")])
                return
            answer = self._answer(line)
            if answer is not None:
                await self._write([answer])

    def _answer(self, line: bytes) -> Event | None:
        try:
            command = decode_command(line)
        except (ValueError, RecursionError) as error:
            return _refused(_tag_of(line), f"not a command: {error}")
        tag = getattr(command, "tag", "")
        try:
            return self._do(command)
        except OdfError as error:
            return Rejected(tag, Failure(error.message, error.hint, error.where, error.exit_code))
        except sqlite3.Error as error:
            hint = "make room on the disk of the workspace, or make it writable; reading goes on meanwhile"
            return Rejected(tag, Failure(f"the journal of jobs cannot be written: {error}", hint=hint))
        except Exception as error:
            # Not the command itself: it may carry secrets.
            _log.exception("a command failed: %s", type(command).__name__)
            return _refused(tag, f"the worker failed: {type(error).__name__}: {error}")

    def _do(self, command: Command) -> Event | None:
        match command:
            case Submit():
                job = self._host.submit(command.request, command.target, command.environment)
                return Accepted(command.tag, job.id)
            case Cancel():
                self._host.cancel(command.job)
                return Accepted(command.tag, command.job)
            case Subscribe():
                status = self._host.status()
                since = status.last_seq if command.since is None else command.since
                self._cursor = max(0, min(since, status.last_seq))  # a new journal may begin anew
                self.samples.extend(self._host.samples())
                self.wake.set()
                return status
            case Ping():
                if command.warm:
                    self._host.warm_up()
                return self._host.status()
            case NotifyChanged():
                self._touched()
                return None
            case Stop():
                self._host.stop()
                return None

    # --- what the client is told ---

    async def _pump(self) -> None:
        while True:
            await self.wake.wait()
            self.wake.clear()
            await self._send_news()

    async def _send_news(self) -> None:
        async with self._sending:
            if self._cursor is None:
                self.amounts.clear()
                self.samples.clear()
                self.touched = False
                return
            # Taken before the journal is read: a job whose end is read below gets no amounts after it.
            amounts, self.amounts = self.amounts, {}
            if self.status_due:
                self.status_due = False
                await self._write([self._host.status()])
            if self.touched:
                self.touched = False
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
            await asyncio.wait_for(self._writer.drain(), self._patience)


def _refused(tag: str, message: str) -> Rejected:
    return Rejected(
        tag, Failure(message, hint="is the client of another version than the worker?", exit_code=2)
    )


def _tag_of(line: bytes) -> str:
    """The tag of a command that cannot be understood, if it has one."""
    try:
        tag = msgspec.json.decode(line, type=dict[str, Any]).get("tag")
    except (ValueError, RecursionError):
        return ""
    return tag if isinstance(tag, str) else ""


def _note(result: object) -> None:
    """A connection that broke or was too slow is the client's business; anything else is ours."""
    if isinstance(result, TimeoutError):
        _log.warning("a client took nothing for a long time and was cut off")
    elif isinstance(result, Exception) and not isinstance(result, OSError):
        _log.error("a connection failed", exc_info=result)
