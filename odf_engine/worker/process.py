"""The background worker process."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import logging
import logging.handlers
import os
import signal
import socket
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Final

from odf_engine.base import processes
from odf_engine.base.config import WorkerConfig
from odf_engine.base.files import open_file
from odf_engine.base.processes import program_version
from odf_engine.base.progress import Reporter
from odf_engine.base.settings import load_workspace
from odf_engine.base.terminal_text import escape_controls, escape_standard_streams
from odf_engine.errors import OdfError
from odf_engine.jobs.base import run_request
from odf_engine.on_demand import spark_session, workspaces
from odf_engine.storage.scratch import sweep_spools
from odf_engine.worker.endpoint import WorkerEndpoint
from odf_engine.worker.job_log import JobLog
from odf_engine.worker.job_queue import Executor, JobQueue
from odf_engine.worker.protocol import (
    MAX_COMMAND_BYTES,
    PROTOCOL_VERSION,
    Committed,
    Job,
    JobChanged,
    JournalEvent,
    Request,
    Sample,
    WorkerStatus,
)
from odf_engine.worker.server import SEND_PATIENCE, Sessions
from odf_engine.worker.services import SERVICES, Service
from odf_engine.worker.spark_service import LoadSampler, Runtime, SparkService, StartSpark

EXIT_ALREADY_RUNNING: Final = 75
BEAT_SECONDS: Final = 0.25
"""Seconds between two updates of progress and log lines while jobs run."""
_NICE: Final = 10
STOP_PATIENCE: Final = 5.0
"""Seconds for jobs, and then for Spark, to end when the worker stops."""
_CHECK_SECONDS: Final = 2.0
"""Seconds between two checks whether the worker is idle and its workspace exists."""

_DEFAULTS: Final = WorkerConfig()
_FIRST_PULL: Final = (
    "odf_engine.derive.run",
    "odf_engine.engines.spark_engine",
    "odf_engine.ingest.polling_source",
)

_log = logging.getLogger("odf_engine.worker.process")


class Worker:
    """A workspace's worker.

    Args:
        workspace: the workspace's folder.
        start_spark: starts Spark.
        executor: runs a request.
        config: the settings of the worker. Commands delay the stop of the worker and of Spark, as jobs do.
        send_patience: seconds until a client that reads nothing is disconnected.
        stop_patience: seconds for jobs, and then for Spark, to end when the worker stops.
        spark_later: start Spark with the first job that needs it, instead of immediately.
    """

    def __init__(
        self,
        workspace: Path,
        *,
        start_spark: StartSpark,
        executor: Executor = run_request,
        config: WorkerConfig = _DEFAULTS,
        send_patience: float = SEND_PATIENCE,
        stop_patience: float = STOP_PATIENCE,
        spark_later: bool = False,
    ) -> None:
        self._files = WorkerEndpoint(workspace)
        self._executor = executor
        self._max_jobs = config.max_jobs
        self._idle_seconds = config.idle_minutes * 60
        self._spark_idle_seconds = config.spark_idle_minutes * 60
        self._stop_patience = stop_patience
        self._spark_later = spark_later
        self._stopping = False
        self._last_command = time.monotonic()
        self._sessions = Sessions(self, send_patience)
        self._spark = SparkService(start_spark, self._spark_changed, self._busy)
        self._services: list[Service] = []

    @property
    def folder(self) -> Path:
        """The workspace's folder."""
        return self._files.workspace

    def spark(self, reporter: Reporter) -> Any:
        """Return Spark when it has started."""
        return self._spark.wait(reporter)

    @property
    def journal(self) -> JobLog:
        """The job log."""
        return self._journal

    def status(self) -> WorkerStatus:
        """Return the status of the worker."""
        return WorkerStatus(
            pid=os.getpid(),
            protocol=PROTOCOL_VERSION,
            version=program_version(),
            spark=self._spark.state,
            spark_detail=self._spark.detail,
            running=self._queue.running,
            queued=self._queue.queued,
            last_seq=self._journal.last_seq(),
            spark_hint=self._spark.hint,
            descriptors=processes.count_open_descriptors(),
        )

    def warm_up(self) -> None:
        """Start Spark if it is off. After a failed start, the next job that needs Spark tries again."""
        if self._spark.state == "off":
            self._spark.start()

    def samples(self) -> list[Sample]:
        """Return the load samples of the last minutes."""
        return list(self._sampler.samples)

    def submit(self, request: Request, target: str, environment: Mapping[str, str]) -> Job:
        """Create a job and return it.

        Raises:
            OdfError: the worker is stopping.
        """
        self._last_command = time.monotonic()
        if self._stopping:
            raise OdfError("the worker is stopping", hint="try again: a new worker is started")
        if request.needs_spark:
            self.warm_up()
        job = self._queue.submit(request, target, environment)
        self._loop.call_soon(self._queue.dispatch_ready)
        self._start_beat()
        return job

    def cancel(self, job_id: str) -> None:
        """Cancel a job."""
        self._last_command = time.monotonic()
        self._queue.cancel(job_id)
        self._spark.stop_runaway_tasks()

    def stop(self) -> None:
        """Stop the worker; thread-safe."""
        with contextlib.suppress(RuntimeError):  # the event loop has ended
            self._loop.call_soon_threadsafe(self._stop.set)

    def run(self) -> int:
        """Serve clients until the worker is stopped.

        Returns:
            The exit code: 0, or :data:`EXIT_ALREADY_RUNNING` if the workspace has a worker.

        Raises:
            NotFound: the folder is not a workspace.
        """
        self._files.check()
        with self._files.locked() as acquired:
            if not acquired:
                return EXIT_ALREADY_RUNNING
            self._journal = JobLog(self._files.journal, self._on_event)
            try:
                with self._files.listen() as server:
                    asyncio.run(self._serve(server))
            finally:
                self._journal.close()
        return 0

    async def _serve(self, listening: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._beat: asyncio.Task[None] | None = None
        self._queue = JobQueue(self._journal, self, self._executor, self._max_jobs, self._journal_lost)
        self._sampler = LoadSampler(
            self._queue.amounts, lambda: self._spark.memory, self._busy, self._on_sample
        )
        interrupted = self._journal.interrupt_open_jobs()
        for job in interrupted:
            _log.warning("job %s was interrupted: its worker stopped while it was running", job.id)
        _remove_staged_files(self.folder, [job.dataset for job in interrupted])
        sweep_spools(self._files.odf)
        self._journal.prune()
        self._handle_signals()
        if not self._spark_later:
            self._spark.start()
        _log.info("worker %s started in %s", os.getpid(), self.folder)
        server = await asyncio.start_unix_server(self._serve_client, sock=listening, limit=MAX_COMMAND_BYTES)
        activities = (self._end_when_idle(), *map(self._run_service, SERVICES))
        tasks = [asyncio.create_task(activity) for activity in activities]
        try:
            await self._stop.wait()
        finally:
            for task in tasks:
                task.cancel()
            self._stopping = True
            server.close()
            await self._shut_down()

    async def _serve_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._last_command = time.monotonic()  # a command follows
        await self._sessions.serve(reader, writer)

    async def _run_service(self, folder: str) -> None:
        """Start a service when its folder exists."""
        while not (self._files.odf / folder).is_dir():
            await asyncio.sleep(_CHECK_SECONDS)
        service: Service = resolve_name(SERVICES[folder])(self._files.odf, self.submit)
        self._services.append(service)
        await service.serve()

    async def _shut_down(self) -> None:
        _log.info("worker %s is stopping", os.getpid())
        for service in self._services:
            await service.stop()
        self._queue.cancel_all()
        deadline = time.monotonic() + self._stop_patience
        while self._queue.running and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        self._queue.mark_interrupted()
        if self._beat is not None:
            self._beat.cancel()
        await self._sessions.close()
        await _in_daemon_thread(self._spark.stop, self._stop_patience)

    def _handle_signals(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # signals belong to the program that embeds this worker
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._stop.set)

    def _busy(self) -> bool:
        return bool(self._queue.running or self._queue.queued)

    def _idle(self) -> float:
        """Return the seconds since the last job or command."""
        return 0.0 if self._busy() else time.monotonic() - max(self._last_command, self._queue.last_end)

    async def _end_when_idle(self) -> None:
        while True:
            idle = self._idle()
            if idle >= self._idle_seconds and not any(service.active for service in self._services):
                _log.info("stopping: idle for %.0f s", self._idle_seconds)
                return self.stop()
            if not self._files.workspace_exists():
                _log.warning("stopping: the workspace no longer exists")
                return self.stop()
            if idle >= self._spark_idle_seconds and self._spark.state == "ready":
                reason = f"stopped after {self._spark_idle_seconds / 60:g} idle minutes"
                await asyncio.to_thread(self._spark.stop_idle, reason)
            await asyncio.sleep(min(max(self._idle_seconds - idle, 0.1), _CHECK_SECONDS))

    def _start_beat(self) -> None:
        self._sampler.start()
        if self._beat is None or self._beat.done():
            self._beat = asyncio.create_task(self._beat_while_busy())

    async def _beat_while_busy(self) -> None:
        while self._busy():
            await asyncio.sleep(BEAT_SECONDS)
            self._queue.dispatch_ready()
            self._sessions.send_progress(self._queue.collect())

    def _on_event(self, event: JournalEvent) -> None:
        """Send state changes and commits immediately, log lines with the next beat. Thread-safe."""
        if isinstance(event, JobChanged | Committed):
            self._call_in_loop(self._sessions.wake)
            self._call_in_loop(partial(self._inform_services, event))

    def _inform_services(self, event: JobChanged | Committed) -> None:
        for service in self._services:
            service.notify(event)

    def _on_sample(self, sample: Sample) -> None:
        self._call_in_loop(lambda: self._sessions.send_sample(sample))

    def _spark_changed(self) -> None:
        self._call_in_loop(self._sessions.send_status)

    def _journal_lost(self) -> None:
        _log.critical("stopping: the job log cannot be written")
        self.stop()

    def _call_in_loop(self, action: Callable[[], None]) -> None:
        with contextlib.suppress(
            RuntimeError, AttributeError
        ):  # the event loop has not started, or has ended
            self._loop.call_soon_threadsafe(action)


async def _in_daemon_thread(work: Callable[[], None], seconds: float) -> None:
    """Wait at most ``seconds`` for ``work``; a thread of an executor would delay the exit of the process."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def run() -> None:
        try:
            work()
        except Exception:  # the worker stops whatever fails; the log has the error
            _log.exception("error while stopping")
        finally:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(done.set)

    threading.Thread(target=run, daemon=True).start()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(done.wait(), seconds)


def start_spark(workspace: Path, begin: Callable[[Runtime], None]) -> Runtime:
    """Start Spark with the workspace's settings.

    Args:
        workspace: the workspace's folder.
        begin: called with the runtime right before its start.

    Raises:
        OdfError: it does not start.
    """
    home = workspaces.Workspace.find(explicit=workspace)
    runtime = spark_session.SparkRuntime(home.config.spark, home.odf / "spark.log", home.odf / "cache")
    begin(runtime)
    runtime.start()
    try:
        _warm_up()
    except BaseException:
        runtime.stop()
        raise
    return runtime


def _warm_up() -> None:
    """Import the modules of the first pull, after Spark has started.

    Two threads must not import PySpark at the same time.
    """
    for module in _FIRST_PULL:
        import_module(module)


def _remove_staged_files(folder: Path, datasets: Sequence[str]) -> None:
    """Remove the incomplete files that a killed worker left in these datasets (ids).

    No job may run on them.
    """
    if not datasets:
        return
    interrupted = set(datasets)
    for entry in workspaces.Workspace(folder).datasets():
        if str(entry.id) in interrupted:
            entry.dataset.remove_stale_files(untouched_for=0)


class _LogFile(logging.handlers.RotatingFileHandler):
    """A log file of limited size, opened without following symbolic links."""

    def _open(self) -> io.TextIOWrapper:
        return io.TextIOWrapper(
            open_file(Path(self.baseFilename), "ab"), encoding=self.encoding, errors=self.errors
        )


class _EscapingFormatter(logging.Formatter):
    """Escapes control characters: log messages contain untrusted names and texts."""

    def format(self, record: logging.LogRecord) -> str:
        return escape_controls(super().format(record))


def daemonize(log: Path, foreground: bool) -> None:
    """Make this process a background process: own session, lower priority, a log file of limited size."""
    os.nice(_NICE)  # keeps user interfaces responsive while jobs use all cores
    handlers: list[logging.Handler] = [_LogFile(log, maxBytes=1_000_000, backupCount=1, encoding="utf-8")]
    if foreground:
        handlers.append(logging.StreamHandler())
    else:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        if os.getsid(0) != os.getpid():
            with contextlib.suppress(PermissionError):  # already the leader of a process group
                os.setsid()
    for handler in handlers:
        handler.setFormatter(_EscapingFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=handlers)


def main(arguments: list[str] | None = None) -> int:
    """Run the worker process; return its exit code."""
    escape_standard_streams()
    parser = argparse.ArgumentParser(prog="odf-worker", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("workspace", type=Path)
    parser.add_argument("--foreground", action="store_true", help="Run in the foreground.")
    parser.add_argument(
        "--spark-later", action="store_true", help="Start Spark with the first job that needs it."
    )
    options = parser.parse_args(arguments)
    files = WorkerEndpoint(options.workspace)
    try:
        files.check()
        daemonize(files.log, options.foreground)
        worker = Worker(
            files.workspace,
            start_spark=partial(start_spark, files.workspace),
            config=load_workspace(files.odf).worker,
            spark_later=options.spark_later,
        )
        return worker.run()
    except OdfError as error:
        sys.stderr.write(f"{error}\n" + (f"hint: {error.hint}\n" if error.hint else ""))
        return error.exit_code
    except (OSError, sqlite3.Error) as error:  # mostly a full or read-only disk
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        sys.stderr.write(
            f"the worker cannot write to {files.odf}: {reason}\nhint: free disk space or make the "
            "workspace writable; browsing works without the worker\n"
        )
        return OdfError.exit_code


if __name__ == "__main__":
    code = main()
    logging.shutdown()
    sys.stderr.flush()
    os._exit(code)  # a job that ignores its cancellation must not keep the process alive
