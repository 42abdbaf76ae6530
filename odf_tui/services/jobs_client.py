"""Follows the worker; submits and cancels jobs, and awaits their outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from textual.message import Message

from odf_engine.coordinator.protocol import Event
from odf_engine.errors import OdfError
from odf_tui.gateway.protocol import Gateway, WorkerLink
from odf_tui.state.app_state import WORKER_ENDED, WorkerConnectionState, WorkerEvents
from odf_tui.text.format import error_line

BATCH_SECONDS: Final = 0.25


class WorkerConnection:
    """Keeps a connection to the worker, and tells what comes through it.

    Args:
        source: connects.
        tell: gets :class:`WorkerConnectionState` and :class:`WorkerEvents`.
        since: the journal number up to which everything is known.
    """

    def __init__(self, source: Gateway, tell: Callable[[Message], object], since: Callable[[], int]) -> None:
        self._source = source
        self._tell = tell
        self._since = since
        self._link: WorkerLink | None = None
        self._again = asyncio.Event()
        self._ready = asyncio.Event()
        self._failure: str = ""

    async def run(self) -> None:
        """Connects, follows, and after the worker is gone waits until :meth:`restart` is called."""
        while True:
            self._again.clear()
            self._ready.clear()
            self._tell(WorkerConnectionState("starting"))
            try:
                self._link = await self._source.connect()
            except (OdfError, OSError) as error:
                self._failure = error_line(error)
                hint = getattr(error, "hint", None) or ""
                self._tell(WorkerConnectionState("gone", error_line(error), hint, getattr(error, "jobs", 0)))
            else:
                await self._follow(self._link)
            self._ready.set()  # whoever waits for a link learns that there is none
            await self._again.wait()

    def restart(self) -> None:
        """Connects again, if the connection is lost."""
        self._again.set()

    async def link(self) -> WorkerLink:
        """The connection; a lost one is made anew.

        Raises:
            OdfError: there is no worker, and none starts.
        """
        if self._link is None:
            self._ready.clear()
            self.restart()
            await self._ready.wait()
        if self._link is None:
            raise OdfError(self._failure or "the worker is gone", hint="R starts it again")
        return self._link

    async def close(self) -> None:
        """Leaves the worker to itself."""
        if self._link is not None:
            await self._link.close()

    async def _follow(self, link: WorkerLink) -> None:
        self._again.clear()
        self._tell(WorkerConnectionState("connected"))
        self._tell(WorkerEvents([link.status]))
        self._ready.set()
        batches = EventBatcher(lambda events: self._tell(WorkerEvents(events)))
        try:
            async for event in link.events(self._since()):
                batches.add(event)
        except OSError as error:
            self._failure = error_line(error)
        finally:
            self._link = None
            batches.flush()
            self._ready.clear()
        self._failure = WORKER_ENDED
        self._tell(WorkerConnectionState("gone", self._failure))


class EventBatcher:
    """Collects events: the first goes on at once, the next wait for the rest of the quarter second."""

    def __init__(self, send: Callable[[list[Event]], object], seconds: float = BATCH_SECONDS) -> None:
        self._send = send
        self._seconds = seconds
        self._events: list[Event] = []
        self._timer: asyncio.TimerHandle | None = None
        self._sent = float("-inf")

    def add(self, event: Event) -> None:
        """Takes an event."""
        self._events.append(event)
        if self._timer is not None:
            return
        loop = asyncio.get_running_loop()
        wait = self._sent + self._seconds - loop.time()
        # Even the first waits for its siblings that have arrived already.
        self._timer = loop.call_later(max(wait, 0.0), self.flush)

    def flush(self) -> None:
        """Sends what there is."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._events:
            self._sent = asyncio.get_running_loop().time()
            events, self._events = self._events, []
            self._send(events)
