"""``odf serve`` within the process of a test: its own thread, real sockets."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from msgspec.structs import replace

from odf_engine.publication.catalog import CatalogBuilder
from odf_engine.sync.server.__main__ import ConnectionLimiter
from odf_engine.sync.server.request_router import SILENT, RequestRouter
from odf_engine.sync.server.service import DatasetService
from odf_engine.workspace.workspace import Workspace


class Running:
    """A server that runs.

    Attributes:
        url: its address, with a slash at its end.
        address: host and port.
        serving: what its handlers share.
        lines: the access log.
        failures: what should not have happened; a test ends with an error where there is one.
    """

    def __init__(self, serving: DatasetService, tls: ssl.SSLContext | None = None) -> None:
        self.serving = serving
        self.lines: list[str] = []
        self.failures: list[str] = []
        self._tls = tls
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._socket.getsockname()
        self.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{self.address[1]}/"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))

    def start(self) -> None:
        """It listens from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Ends it, and what is running."""
        self._loop.call_soon_threadsafe(self.serving.stopping.set)
        self._thread.join(20)
        self._loop.close()
        assert not self._thread.is_alive()

    async def _run(self) -> None:
        front = RequestRouter(
            self.serving, self.lines.append, self.failures.append, make_catalog=CatalogBuilder
        )
        gate = ConnectionLimiter(front.handle, self.serving.limits, self._tls, logger=SILENT, access_log=None)
        gate.listen([self._socket])
        await self.serving.stopping.wait()
        gate.stop_listening()
        self._socket.close()
        await front.drain(1)
        await gate.close()
        self.serving.close()


@contextmanager
def served(
    workspace: Workspace,
    *,
    allow_push: bool = False,
    patterns: tuple[str, ...] = (),
    tls: ssl.SSLContext | None = None,
    **limits: Any,
) -> Iterator[Running]:
    """A server of a workspace; ``limits`` are fields of ``ServeConfig``."""
    serving = DatasetService(
        workspace,
        limits=replace(workspace.config.serve, **limits),
        allow_push=allow_push,
        patterns=patterns,
        tls=tls is not None,
    )
    running = Running(serving, tls)
    running.start()
    try:
        yield running
    finally:
        running.stop()
    assert running.failures == []
