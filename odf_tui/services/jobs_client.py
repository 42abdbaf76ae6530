"""JobsClient submits and cancels jobs and awaits their results; WorkerConnection receives events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from textual.screen import Screen

from odf_engine.api import Event, Job, JobRequest, JobState, Request, Timestamp, decode_result
from odf_engine.api.text import format_count
from odf_engine.errors import Cancelled, OdfError, WorkerStalled
from odf_tui.services import tasks
from odf_tui.state.app_state import (
    WORKER_ENDED,
    WORKSPACE_DELETED,
    AppState,
    JobNews,
    WorkerConnectionState,
)
from odf_tui.state.job_book import JobBook
from odf_tui.text.format import error_line
from odf_tui.text.job_text import job_activity, job_outcome
from odf_tui.widgets.dialogs import ProgressDialog
from odf_tui.widgets.status_bar import Notice

if TYPE_CHECKING:
    from odf_engine.api import Client
    from odf_engine.api.workspace import Workspace

BATCH_SECONDS: Final = 0.25
_STOPPING_SECONDS: Final = 2.0
_WATCH_SECONDS: Final = 2.0
_REPLY_SECONDS: Final = 2.5
"""Seconds until a worker that does not reply is shown as stalled."""
R = TypeVar("R")


class LeftRunning(Exception):
    """The user stopped waiting for a job, which continues."""


class JobsClient:
    """Submits and cancels jobs, and awaits their outcome.

    Args:
        workspace: opens the connection.
        state: the jobs.
        screen: shows notices and dialogs.

    Attributes:
        connection: the connection to the worker.
        quiet: ids of jobs whose end is not shown in a notice.
    """

    def __init__(self, workspace: Workspace, state: AppState, screen: Screen[Any]) -> None:
        self._state, self._screen = state, screen
        self.connection = WorkerConnection(workspace, state, screen.call_later)
        self.quiet: set[str] = set()
        self._waiting: dict[str, asyncio.Future[Job]] = {}
        state.jobs_changed.connect(self._complete_futures)

    def submit(self, requests: Sequence[tuple[Request, str]], remark: str = "") -> None:
        """Submit requests, each with the name of its dataset. Starts the worker if needed.

        A notice confirms the submission, or shows why it failed.
        """

        async def submit() -> None:
            link = await self.connection.link()
            for request, target in requests:
                await link.submit(request, target)

        self._confirm(requests, remark)
        tasks.start(self._screen, submit(), group="commands")

    def _confirm(self, requests: Sequence[tuple[Request, str]], remark: str) -> None:
        kind = requests[0][0].kind() if requests else "pull"
        what = requests[0][1] if len(requests) == 1 else f"{format_count(len(requests))} datasets"
        self._screen.post_message(Notice(f"{kind} {what}: queued{remark}"))

    async def submit_one(self, request: Request, target: str, *, quiet: bool = False) -> str:
        """Submit a request. Returns the id of its job.

        Args:
            request: the request.
            target: name of the dataset.
            quiet: whether the end of the job is not shown in a notice.

        Raises:
            OdfError: there is no worker, or it refuses the request.
        """
        job = await (await self.connection.link()).submit(request, target)
        if quiet:
            self.quiet.add(job)
        return job

    async def cancel(self, job: str) -> None:
        """Cancel a job. Does nothing if it has ended."""
        with suppress(OdfError):
            await (await self.connection.link()).cancel(job)

    async def wait_until_ended(self, job_id: str) -> Job:
        """Wait until a job ends. Returns the ended job."""
        job = self._state.jobs.jobs.get(job_id)
        if job is not None and job.state.final:
            return job
        tasks.release_keys()
        future = self._waiting.get(job_id)
        if future is None:
            future = self._waiting[job_id] = asyncio.get_running_loop().create_future()
        return await asyncio.shield(future)

    async def run_all(self, requests: Sequence[tuple[Request, str]], remark: str = "") -> list[Job]:
        """Submit requests, and return the ended jobs. The caller shows one notice about their ends.

        Args:
            requests: the requests, each with the name of its dataset.
            remark: the end of the notice that confirms the submission.

        Raises:
            OdfError: there is no worker, or it refuses a request.
        """
        ids = [await self.submit_one(request, target, quiet=True) for request, target in requests]
        self._confirm(requests, remark)
        return [await self.wait_until_ended(job) for job in ids]

    async def outcome(self, request: JobRequest[R], target: str, title: str, *, leaves: bool = False) -> R:
        """Submit a request, show its progress in a dialog until it ends, and return the result.

        Args:
            request: the request.
            target: name of the dataset.
            title: title of the dialog.
            leaves: whether the user may leave the dialog without cancelling the job.

        Raises:
            LeftRunning: the user left the dialog.
            Cancelled: the job was cancelled.
            OdfError: the job failed, or there is no worker.
        """
        job_id = await self.submit_one(cast("Request", request), target)
        dialog = ProgressDialog(
            title,
            partial(progress_text, self._state.jobs, job_id),
            partial(self.wait_until_ended, job_id),
            leaves=leaves,
        )
        answer = await tasks.ask(self._screen.app, dialog)
        if answer == "leave":
            raise LeftRunning
        if answer == "stop":
            await self.cancel(job_id)
            with suppress(TimeoutError):
                await asyncio.wait_for(self.wait_until_ended(job_id), _STOPPING_SECONDS)
        return self.result_of(job_id, type(request), title)

    def result_of(self, job_id: str, request: type[JobRequest[R]], title: str) -> R:
        """Return the result of a job that ended.

        Raises:
            Cancelled: the job was cancelled.
            OdfError: the job failed.
        """
        job = self._state.jobs.jobs.get(job_id)
        if job is None or not job.state.final or job.state is JobState.cancelled:
            raise Cancelled(f"{title}: cancelled")
        if job.state is JobState.done:
            return decode_result(job.result or "{}", request)
        if job.error is None:
            raise OdfError(f"{title}: {job.state.value}", hint="see its log in pane 4")
        raise job.error.to_error()

    def _complete_futures(self, news: JobNews) -> None:
        for job_id in [waiting_id for waiting_id in self._waiting if self._is_final(waiting_id)]:
            future = self._waiting.pop(job_id)
            if not future.done():
                future.set_result(self._state.jobs.jobs[job_id])

    def _is_final(self, job_id: str) -> bool:
        job = self._state.jobs.jobs.get(job_id)
        return job is not None and job.state.final


class WorkerConnection:
    """Connects to the worker, and passes its events to the state.

    Args:
        workspace: opens the connection.
        state: receives the state of the connection, and the events.
        call: calls a function with a value on the event loop, in order.
    """

    def __init__(
        self, workspace: Workspace, state: AppState, call: Callable[[Callable[..., object], object], object]
    ) -> None:
        self._workspace, self._state, self._call = workspace, state, call
        self._link: Client | None = None
        self._reconnect = asyncio.Event()
        self._ready = asyncio.Event()
        self._failure: str = ""

    async def run(self) -> None:
        """Connect and receive events; after a lost connection, wait for :meth:`restart`. Never returns."""
        retry_seconds: float | None = None
        while True:
            self._reconnect.clear()
            self._ready.clear()
            if retry_seconds is None:
                self._set_state(WorkerConnectionState("starting"))
            retry_seconds = None
            try:
                self._link = await self._workspace.connect()
            except (OdfError, OSError) as error:
                if isinstance(error, WorkerStalled):
                    retry_seconds = _WATCH_SECONDS
                self._show_failure(error)
            else:
                await self._follow(self._link)
            self._ready.set()  # callers of link() see that there is none
            with suppress(TimeoutError):
                async with asyncio.timeout(retry_seconds):
                    await self._reconnect.wait()

    def _show_failure(self, error: OdfError | OSError) -> None:
        self._failure, hint = error_line(error), getattr(error, "hint", None) or ""
        if self._is_deleted:
            self._failure, hint = WORKSPACE_DELETED, ""
        state = "stalled" if isinstance(error, WorkerStalled) else "gone"
        self._set_state(WorkerConnectionState(state, self._failure, hint, getattr(error, "jobs", 0)))

    @property
    def _is_deleted(self) -> bool:
        return not (self._workspace.folder / ".odf").is_dir()

    def restart(self) -> None:
        """Connect again, if the connection is lost."""
        self._reconnect.set()

    async def link(self) -> Client:
        """Return the connection; reconnect if it is lost.

        Raises:
            OdfError: there is no worker, and none starts.
        """
        if self._link is None:
            self._ready.clear()
            self.restart()
            await self._ready.wait()
        if self._link is None:
            raise OdfError(self._failure or "no connection to the worker", hint="press R to restart it")
        return self._link

    async def _follow(self, link: Client) -> None:
        self._reconnect.clear()
        self._set_state(WorkerConnectionState("connected"))
        self._apply([link.status])
        self._ready.set()
        batches = EventBatcher(self._apply)
        watch = asyncio.ensure_future(self._watch(link))
        try:
            async for event in link.events(self._state.jobs.last_seq):
                batches.add(event)
        except OSError as error:
            self._failure = error_line(error)
        finally:
            watch.cancel()
            self._link = None
            batches.flush()
            self._ready.clear()
        self._failure = WORKSPACE_DELETED if self._is_deleted else WORKER_ENDED
        self._set_state(WorkerConnectionState("gone", self._failure))

    async def _watch(self, link: Client) -> None:
        """Report while the worker does not respond. Ends with the connection."""
        with suppress(OdfError):
            while True:
                reply = asyncio.ensure_future(link.ping())
                # The exception of a reply that nobody awaits any more would be logged on the screen.
                reply.add_done_callback(lambda done: done.cancelled() or done.exception())
                try:
                    # Not wait_for: until Python 3.12 it may lose a cancellation.
                    await asyncio.wait([reply], timeout=_REPLY_SECONDS)
                    if not reply.done():
                        self._show_failure(WorkerStalled.of_process(link.status.pid))
                        await reply
                        self._set_state(WorkerConnectionState("connected"))
                    await reply
                finally:
                    reply.cancel()
                await asyncio.sleep(_WATCH_SECONDS)

    def _set_state(self, state: WorkerConnectionState) -> None:
        self._call(self._state.set_worker, state)

    def _apply(self, events: list[Event]) -> object:
        return self._call(self._state.apply_events, events)


class EventBatcher:
    """Collects events into batches: the first is sent immediately, later ones once per interval.

    Args:
        send: gets each batch.
        seconds: the interval between two batches.
    """

    def __init__(self, send: Callable[[list[Event]], object], seconds: float = BATCH_SECONDS) -> None:
        self._send = send
        self._seconds = seconds
        self._events: list[Event] = []
        self._timer: asyncio.TimerHandle | None = None
        self._sent = float("-inf")

    def add(self, event: Event) -> None:
        """Add an event."""
        self._events.append(event)
        if self._timer is not None:
            return
        loop = asyncio.get_running_loop()
        wait = self._sent + self._seconds - loop.time()
        # The first batch too includes the events that have already arrived.
        self._timer = loop.call_later(max(wait, 0.0), self.flush)

    def flush(self) -> None:
        """Send the collected events now, if there are any."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._events:
            self._sent = asyncio.get_running_loop().time()
            events, self._events = self._events, []
            self._send(events)


def progress_text(book: JobBook, job_id: str) -> str:
    """Return the state of a job that has not started, or what it is doing."""
    job = book.jobs.get(job_id)
    if job is None:
        return "queued"
    return job_outcome(job)[0] if job.started is None else job_activity(job, Timestamp.now())
