"""Worker client: launches, connects, submits jobs, follows events."""

from __future__ import annotations

import contextlib
import errno
import itertools
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self, TypeVar, cast

import msgspec

from odf_engine.base.files import open_file
from odf_engine.base.lazy import LazyModule
from odf_engine.base.processes import build_python_environment, program_version
from odf_engine.base.progress import Reporter
from odf_engine.errors import Cancelled, OdfError, WorkerStalled, has_surrogates
from odf_engine.jobs.base import JobRequest, decode_result
from odf_engine.worker.endpoint import WorkerEndpoint
from odf_engine.worker.job_log import read_journal
from odf_engine.worker.protocol import (
    MAX_EVENT_BYTES,
    PROTOCOL_VERSION,
    Accepted,
    Cancel,
    Command,
    DatasetsChanged,
    Event,
    Failure,
    Job,
    JobChanged,
    JobProgress,
    JobState,
    Ping,
    Rejected,
    Request,
    Samples,
    Stop,
    Submit,
    Subscribe,
    WorkerStatus,
    decode_event,
    encode_line,
)
from odf_engine.workspace.environment import read_allowed_variables

if TYPE_CHECKING:
    import asyncio
else:
    asyncio = LazyModule("asyncio")  # slow to import

R = TypeVar("R")
_ALREADY_RUNNING: Final = 75
_WAIT: Final = 0.02
_HINTS: Final = {
    errno.EROFS: "read-only file system: browsing works, jobs cannot run",
    errno.ENOSPC: "free disk space; browsing still works",
    errno.EDQUOT: "free disk space; browsing still works",
}
_children: list[subprocess.Popen[bytes]] = []
"""Workers started by this process. They are polled, so that ended ones do not stay zombies."""


class WorkerLauncher:
    """Starts a workspace's worker and waits for it in short steps.

    Several clients can do so at the same time: one of their workers gets the lock, the others exit.
    """

    def __init__(
        self,
        files: WorkerEndpoint,
        timeout: float,
        command: Sequence[str] | None = None,
        *,
        warm: bool = True,
    ) -> None:
        self._files = files
        self._deadline = time.monotonic() + timeout
        self._command = command
        self._warm = warm
        self._child: subprocess.Popen[bytes] | None = None

    async def step(self) -> None:
        """Start a worker if none runs or starts, then wait a moment.

        Raises:
            OdfError: the worker exited immediately (the message has the end of its log), or takes too long.
        """
        code = None if self._child is None else self._child.poll()
        if code is not None and code != _ALREADY_RUNNING:
            raise self._failed("the worker exited right after its start")
        if time.monotonic() > self._deadline:
            raise self._failed("the worker does not respond")
        if (self._child is None or code == _ALREADY_RUNNING) and not self._files.worker_alive():
            self._child = self._spawn()
        await asyncio.sleep(_WAIT)

    def _spawn(self) -> subprocess.Popen[bytes]:
        workspace = str(self._files.workspace)
        if has_surrogates(workspace):
            problem = "the worker cannot be started: the path of the workspace is not UTF-8"
            raise OdfError(problem, where=workspace, hint="rename the folder")
        command = self._command or [
            *(sys.executable, "-P", "-m", "odf_engine.worker.process"),
            *([] if self._warm else ["--spark-later"]),
            workspace,
        ]
        try:
            log = open_file(self._files.log, "ab")
        except OSError as error:
            raise OdfError(
                f"the worker cannot be started: {(error.strerror or str(error)).lower()}",
                hint=_HINTS.get(
                    error.errno or 0, f"check the owner and the permissions of {self._files.log}"
                ),
            ) from None
        with log:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._files.workspace,
                env=build_python_environment(),  # with -P: the working folder may hold untrusted modules
                start_new_session=True,
            )
        _children[:] = [process for process in _children if process.poll() is None]
        _children.append(child)
        return child

    def _failed(self, message: str) -> OdfError:
        hint, reason = f"see the log {self._files.log}", ""
        for line in self._files.log_tail().splitlines():
            if line.startswith("hint: "):  # the hint which the worker printed before it exited
                hint = line.removeprefix("hint: ")
            elif line.strip():
                reason = line.strip()
        return OdfError(
            f"{message}: {reason}" if reason else message, where=str(self._files.workspace), hint=hint
        )


ANSWER_SECONDS: Final = 15.0
_STOP_SECONDS: Final = 20.0
_REATTACH_SECONDS: Final = 2.0


class WorkerLost(OdfError):
    """No worker is running, or the connection to it is lost."""


class VersionMismatch(OdfError):
    """A worker of another version is busy with ``jobs``, so it is not replaced."""

    jobs = 0


class Client:
    """A connection to a workspace's worker.

    Attributes:
        status: the status of the worker at the connection or the last :meth:`ping`.
        closed: whether the connection has ended, by :meth:`close` or because the worker ended. In the
            latter case :func:`.read_journal` reads its jobs as interrupted; :meth:`connect` starts another
            worker.
    """

    def __init__(
        self, files: WorkerEndpoint, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._files = files
        self._lines = _EventReader(reader)
        self._writer = writer
        self._lock = asyncio.Lock()
        self._tags = itertools.count(1)
        self._streams: set[asyncio.StreamWriter] = set()
        self.closed = False
        self.status: WorkerStatus

    @classmethod
    async def connect(
        cls,
        workspace: Path,
        start: bool = True,
        *,
        timeout: float = 20.0,
        command: Sequence[str] | None = None,
        warm: bool = True,
        patience: float = ANSWER_SECONDS,
    ) -> Self:
        """Connect to the worker of a workspace; an idle worker of another version is replaced.

        Args:
            workspace: the workspace's folder or the ``.odf`` in it.
            start: start a worker if none runs.
            timeout: seconds to wait for the start.
            command: command line of the worker; by default this program.
            warm: let the worker start Spark immediately; else it starts Spark when a job needs it.
            patience: seconds to wait for the first reply.

        Raises:
            NotFound: the folder is not a workspace.
            WorkerLost: no worker runs, and ``start`` is False.
            WorkerStalled: it does not respond.
            VersionMismatch: a worker of another version is busy.
            OdfError: the worker does not start.
        """
        files = WorkerEndpoint(workspace)
        files.check()
        starter = WorkerLauncher(files, timeout, command, warm=warm)
        while True:
            client = await cls._attach(files, patience)
            if client is not None:
                if not start:
                    return client
                if _compatible(client.status):
                    if warm and client.status.spark == "off":
                        await client.ping(warm=True)
                    return client
                await client._replace()
            if not start:
                raise WorkerLost("no worker is running for this workspace", where=str(files.workspace))
            await starter.step()

    @classmethod
    async def _attach(cls, files: WorkerEndpoint, patience: float) -> Self | None:
        """Connect to a running worker; return None if absent, or if it is about to exit."""
        files.check_owner()
        try:
            reader, writer = await asyncio.open_unix_connection(files.address())
        except PermissionError:
            raise OdfError(
                "cannot connect to the worker of this workspace: permission denied",
                where=files.address(),
                hint=f"restore its permissions: chmod 600 {files.address()}",
            ) from None
        except OSError:
            return None
        client = cls(files, reader, writer)
        try:
            await asyncio.wait_for(client.ping(), patience)
        except WorkerLost:
            return None
        except TimeoutError:
            await client.close()
            raise WorkerStalled.of_process(files.worker_pid()) from None
        except BaseException:
            await client.close()
            raise
        return client

    async def _replace(self) -> None:
        """Stop a worker of another version if it is idle."""
        status = self.status
        if status.running or status.queued:
            await self.close()
            theirs, ours = status.version, program_version()
            if theirs == ours:
                theirs, ours = (
                    f"{theirs}, protocol {status.protocol},",
                    f"{ours}, protocol {PROTOCOL_VERSION}",
                )
            error = VersionMismatch(
                f"a worker of version {theirs} is busy; this is version {ours}",
                hint="wait for its jobs, or run odf worker stop",
            )
            error.jobs = status.running + status.queued
            raise error
        await self.stop()

    async def submit(self, request: Request, target: str, *, ends_with_client: bool = False) -> str:
        """Submit a request and return the id of its job; ``target`` is the dataset's alias, for display.

        The environment variables that the dataset's source may read are sent with the request. If
        ``ends_with_client``, the job is cancelled when the connection ends.

        Raises:
            WorkerLost: the connection is lost. The job log shows whether the job was created.
            OdfError: the worker rejected the request.
        """
        tag = str(next(self._tags))
        environment = read_allowed_variables(self._files.odf, request.dataset_id, target)
        return (await self._accepted(Submit(request, target, tag, environment, ends_with_client), tag)).job

    async def cancel(self, job: str) -> None:
        """Request the cancellation of a job; its end is reported as an event.

        Raises:
            WorkerLost: the connection is lost.
            OdfError: the job does not exist or has ended.
        """
        tag = str(next(self._tags))
        await self._accepted(Cancel(job, tag), tag)

    async def ping(self, warm: bool = False) -> WorkerStatus:
        """Return the status of the worker; with ``warm``, let it start Spark if Spark is off.

        Raises:
            WorkerLost: the connection is lost.
        """
        async with self._exchange():
            await self._send(Ping(warm))
            while not isinstance(answer := await self._receive(), WorkerStatus):
                pass
        self.status = answer
        return answer

    async def stop(self) -> None:
        """Stop the worker, which cancels its jobs, and wait until its process has ended.

        Raises:
            OdfError: it does not end.
        """
        with contextlib.suppress(WorkerLost):
            async with self._exchange():
                await self._send(Stop())
        await self.close()
        deadline = asyncio.get_running_loop().time() + _STOP_SECONDS
        while self._files.worker_pid() == self.status.pid:
            if asyncio.get_running_loop().time() > deadline:
                pid = self.status.pid
                raise OdfError(f"the worker (process {pid}) does not exit", hint=f"stop it: kill -9 {pid}")
            await asyncio.sleep(0.02)

    async def events(self, since: int | None = None) -> AsyncGenerator[Event, None]:
        """Yield the events of the job log after ``since`` (None: none of them), then all new events.

        The first event is a :class:`WorkerStatus`. A lost connection is restored without a gap while the
        worker runs. The iterator ends with the worker; :attr:`closed` is True then.
        """
        cursor = since
        while True:
            stream = await self._subscribe(cursor)
            if stream is None:
                break
            lines, writer = stream
            self._streams.add(writer)
            try:
                while (event := await lines.event()) is not None:
                    if isinstance(event, WorkerStatus):
                        cursor = event.last_seq if cursor is None else cursor
                    elif not isinstance(event, Accepted | Rejected | JobProgress | Samples | DatasetsChanged):
                        cursor = event.seq
                    yield event
            finally:
                self._streams.discard(writer)
                writer.close()
            if self.closed:
                return
        await self.close()

    async def close(self) -> None:
        """Close the connection and end :meth:`events`; the worker and its jobs continue."""
        self.closed = True
        for writer in (self._writer, *self._streams):
            writer.close()

    async def _subscribe(self, since: int | None) -> tuple[_EventReader, asyncio.StreamWriter] | None:
        """Open a connection for events; return None if the worker has ended.

        It is a separate connection, so that a slow reader of events does not delay replies to commands.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _REATTACH_SECONDS
        while True:
            try:
                reader, writer = await asyncio.open_unix_connection(self._files.address())
                writer.write(encode_line(Subscribe(since)))
                return _EventReader(reader), writer
            except OSError:
                if self.closed or not self._files.worker_alive() or loop.time() > deadline:
                    return None
                await asyncio.sleep(0.05)

    async def _accepted(self, command: Command, tag: str) -> Accepted:
        async with self._exchange():
            await self._send(command)
            while True:
                answer = await self._receive()
                if isinstance(answer, Accepted) and answer.tag == tag:
                    return answer
                if isinstance(answer, Rejected) and answer.tag in (tag, ""):
                    raise answer.error.to_error()

    @contextlib.asynccontextmanager
    async def _exchange(self) -> AsyncIterator[None]:
        """Allow one command and its reply at a time."""
        async with self._lock:
            if self.closed:
                raise WorkerLost("the connection to the worker is closed")
            try:
                yield
            except OSError:
                raise await self._lose_connection() from None

    async def _send(self, command: Command) -> None:
        self._writer.write(encode_line(command))
        await self._writer.drain()

    async def _receive(self) -> Event:
        event = await self._lines.event()
        if event is None:
            raise await self._lose_connection()
        return event

    async def _lose_connection(self) -> WorkerLost:
        await self.close()
        return WorkerLost("the worker has stopped", hint="run its jobs again: they are marked as interrupted")


class _EventReader:
    """Reads events from a connection.

    It reads from the socket only on demand, so that a slow reader slows the sender down instead of filling
    the memory of this process.
    """

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._buffer = bytearray()
        self._seen = 0

    async def event(self) -> Event | None:
        """Return the next event, or None when the connection has ended."""
        while (line := await self._line()) is not None:
            try:
                return decode_event(line)
            except ValueError:
                if (status := _foreign_status(line)) is not None:
                    return status
        return None

    async def _line(self) -> bytes | None:
        while (end := self._buffer.find(b"\n", self._seen)) < 0:
            self._seen = len(self._buffer)
            try:
                chunk = await self._reader.read(1 << 16)
            except OSError:
                return None
            if not chunk or self._seen > MAX_EVENT_BYTES:
                return None
            self._buffer += chunk
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        self._seen = 0
        return line


def _foreign_status(line: bytes) -> WorkerStatus | None:
    """Return the known fields of the status of a worker of another version, or None for other events."""
    try:
        plain = msgspec.json.decode(line, type=dict)
    except ValueError:
        return None
    if plain.get("type") != "worker":
        return None
    known: dict[str, int] = {
        name: plain[name] if isinstance(plain.get(name), int) else 0
        for name in ("pid", "protocol", "running", "queued", "last_seq")
    }
    return WorkerStatus(
        version=str(plain.get("version", "unknown")), spark="off", spark_detail="", spark_hint="", **known
    )


def _compatible(status: WorkerStatus) -> bool:
    return status.protocol == PROTOCOL_VERSION and status.version == program_version()


def run_jobs(
    workspace: Path,
    requests: Sequence[tuple[Request, str]],
    on_event: Callable[[Event], None] = lambda event: None,
    *,
    command: Sequence[str] | None = None,
    ends_with_client: bool = False,
) -> list[Job]:
    """Submit requests with their targets, wait until all jobs have ended, and return the jobs.

    ``on_event`` is called with the events of these jobs and of the worker. The first interrupt (^C) cancels
    the jobs and waits for their end; the second one returns immediately. With ``ends_with_client``, they are
    also cancelled if this process is killed.

    Raises:
        Cancelled: after the second interrupt; the jobs are cancelled in the background.
        OdfError: there is no worker, or it rejected a request.
    """
    return asyncio.run(_Run(workspace, on_event, ends_with_client).run(requests, command))


def run_job(
    workspace: Path,
    request: JobRequest[R],
    target: str,
    reporter: Reporter,
    on_event: Callable[[Event], None] = lambda event: None,
    *,
    ends_with_client: bool = False,
) -> tuple[R, Job]:
    """Run a request in the worker; return its result and the ended job.

    Args:
        workspace: the folder of the workspace.
        request: the request.
        target: name of the dataset, for messages.
        reporter: can cancel the job.
        on_event: called with the events of the job and of the worker.
        ends_with_client: whether the job is cancelled if this process is killed.

    Raises:
        Cancelled: the job was cancelled.
        OdfError: it failed, or there is no worker.
    """
    jobs: list[str] = []

    def cancel() -> None:
        if jobs:
            _cancel_job(workspace, jobs[0])

    def note(event: Event) -> None:
        if isinstance(event, JobChanged) and not jobs:
            jobs.append(event.job.id)
            if reporter.cancelled:  # before the job was known
                cancel()
        on_event(event)

    with reporter.on_cancel(cancel):
        requests = [(cast("Request", request), target)]
        (job,) = run_jobs(workspace, requests, note, ends_with_client=ends_with_client)
    title = f"{request.kind()} {target}"
    if job.state is JobState.done:
        return decode_result(job.result or "{}", type(request)), job
    if job.state is JobState.cancelled:
        raise Cancelled(f"{title}: cancelled")
    raise (job.error or Failure(f"{title}: {job.state.value}")).to_error()


def _cancel_job(workspace: Path, job: str) -> None:
    """Request the cancellation of a job in another thread: the worker may take seconds to answer."""

    async def cancel() -> None:
        with contextlib.suppress(OdfError):  # the job has just ended, or its worker has
            client = await Client.connect(workspace, start=False)
            try:
                await client.cancel(job)
            finally:
                await client.close()

    threading.Thread(target=lambda: asyncio.run(cancel()), name="odf-cancel", daemon=True).start()


class _Run:
    def __init__(self, workspace: Path, on_event: Callable[[Event], None], ends_with_client: bool) -> None:
        self._workspace = workspace
        self._on_event = on_event
        self._end_with_client = ends_with_client
        self._jobs: dict[str, Job | None] = {}
        self._interrupts = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, requests: Sequence[tuple[Request, str]], command: Sequence[str] | None) -> list[Job]:
        warm = any(request.needs_spark for request, _ in requests)
        client = await Client.connect(self._workspace, command=command, warm=warm)
        self._client = client
        try:
            since = client.status.last_seq
            with self._on_interrupt():
                await self._submit(requests)
                await self._follow(since)
            return [job for job in self._jobs.values() if job is not None]
        finally:
            await client.close()

    async def _submit(self, requests: Sequence[tuple[Request, str]]) -> None:
        try:
            for request, target in requests:
                if self._interrupts:
                    raise Cancelled
                job = await self._client.submit(request, target, ends_with_client=self._end_with_client)
                self._jobs[job] = None
        except BaseException:
            # All or nothing: the caller gets an error instead of the results of these jobs.
            await self._cancel()
            raise

    async def _follow(self, since: int) -> None:
        if not self._jobs:
            return
        follow = asyncio.ensure_future(self._listen(since))
        self._following = follow
        try:
            await follow
        except asyncio.CancelledError:
            if self._interrupts > 1:
                raise Cancelled("stopped waiting; the jobs are being cancelled in the background") from None
            raise
        for job_id, job in self._jobs.items():
            if job is None or not job.state.final:  # the worker has ended: the job log has the final state
                job = read_journal(self._workspace).job(job_id)
                self._jobs[job_id] = job
                self._on_event(JobChanged(since, job))

    async def _listen(self, since: int) -> None:
        async with contextlib.aclosing(self._client.events(since)) as events:
            async for event in events:
                if isinstance(event, JobChanged):
                    if event.job.id not in self._jobs:
                        continue
                    self._jobs[event.job.id] = event.job
                elif not isinstance(event, WorkerStatus) and getattr(event, "job", None) not in self._jobs:
                    continue
                self._on_event(event)
                if all(job is not None and job.state.final for job in self._jobs.values()):
                    return

    async def _cancel(self) -> None:
        for job_id, job in list(self._jobs.items()):
            if job is None or not job.state.final:
                with contextlib.suppress(OdfError):  # it has just ended
                    await self._client.cancel(job_id)

    def _interrupted(self) -> None:
        self._interrupts += 1
        if self._interrupts == 1:
            task = asyncio.ensure_future(self._cancel())
            self._tasks.add(task)
        elif (following := getattr(self, "_following", None)) is not None:
            following.cancel()

    @contextmanager
    def _on_interrupt(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._interrupted)
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGINT)
