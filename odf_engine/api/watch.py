"""Follows the events of a worker in a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

from odf_engine.base.lazy import LazyModule
from odf_engine.errors import OdfError
from odf_engine.worker.client import Client
from odf_engine.worker.protocol import Event

if TYPE_CHECKING:
    import asyncio
else:
    asyncio = LazyModule("asyncio")  # slow to import


class Watch:
    """Follows the events of a worker. Use it as a context manager, or call :meth:`close`."""

    def __init__(self, folder: Path, listener: Callable[[Event], object]) -> None:
        self._folder, self._listener = folder, listener
        self._loop = asyncio.new_event_loop()
        self._task: asyncio.Task[None] | None = None
        self._connected = threading.Event()
        self._error: OdfError | None = None
        self._thread = threading.Thread(target=self._run, name="odf-watch", daemon=True)
        self._thread.start()
        self._connected.wait()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        self._task = self._loop.create_task(self._follow())
        with suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._task)
        self._loop.close()

    async def _follow(self) -> None:
        try:
            client = await Client.connect(self._folder, warm=False)
        except OdfError as error:
            self._error = error
            self._connected.set()
            return
        try:
            self._connected.set()
            async for event in client.events(client.status.last_seq):
                self._listener(event)
        finally:
            await client.close()

    def close(self) -> None:
        """Stop following. The worker continues."""
        if self._thread.is_alive() and self._task is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
