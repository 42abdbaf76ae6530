"""Opening a smart session: an event loop in a thread of its own, and a WebSocket to one origin only."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, Final, TypeVar

import aiohttp
from yarl import URL

from odf_engine.errors import BadData, Conflict, NotFound, SourceUnavailable
from odf_engine.ingest.retries import broken
from odf_engine.progress import Reporter
from odf_engine.sync.frames import Channel
from odf_engine.sync.messages import VERSION, VERSION_HEADER
from odf_engine.sync.places import Access
from odf_engine.workspace.remotes import origin_of

T = TypeVar("T")
_JOIN_SECONDS: Final = 5.0
_NOT_SMART: Final = frozenset({200, 204, 301, 302, 303, 304, 307, 308, 404, 405, 410, 501})


class NotSmart(NotFound):
    """What is there does not speak the smart protocol, or has no such dataset."""


class LoopThread:
    """An event loop that runs in the background, started when it is first needed."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.current_thread()
        self._lock = threading.Lock()

    def run(self, work: Coroutine[Any, Any, T], reporter: Reporter) -> T:
        """Does work on the loop and waits for it.

        Raises:
            Cancelled: somebody asked to stop; the work was broken off.
        """
        future = self._submit(work)

        def cancel() -> None:
            future.cancel()

        with reporter.on_cancel(cancel):
            try:
                return future.result()
            except CancelledError:
                reporter.check()
                raise SourceUnavailable("the connection was closed") from None

    def soon(self, work: Coroutine[Any, Any, object]) -> None:
        """Does work on the loop without waiting for it."""
        self._submit(work)

    def close(self) -> None:
        """Breaks off whatever is going on, and ends the thread."""
        with self._lock:
            loop, self._loop = self._loop, None
            if loop is None:
                return
            # What was handed in before has begun by then.
            loop.call_soon_threadsafe(loop.stop)
            thread = self._thread
        if thread is not threading.current_thread():
            thread.join(_JOIN_SECONDS)

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=_serve, args=(self._loop,), name="smart", daemon=True)
                self._thread.start()
            return asyncio.run_coroutine_threadsafe(work, self._loop)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
        loop.run_until_complete(_break_off(asyncio.all_tasks(loop)))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()


async def _break_off(tasks: set[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class _OneOrigin(aiohttp.TCPConnector):
    """Connects to one origin: a redirect to another one is not followed, whatever it would be sent."""

    def __init__(self, origin: URL) -> None:
        super().__init__()
        self._origin = origin
        self.transport: asyncio.Transport | None = None

    async def connect(self, req: Any, *rest: Any, **more: Any) -> Any:
        if req.url.origin() != self._origin:
            raise _Elsewhere
        connection = await super().connect(req, *rest, **more)
        self.transport = connection.transport
        return connection


class _Elsewhere(aiohttp.ClientError):
    """A redirect to another origin."""


class SmartSession:
    """An open session; use it within ``async with``, or :meth:`close` it."""

    def __init__(self, session: aiohttp.ClientSession, channel: Channel) -> None:
        self._session = session
        self.channel = channel

    @classmethod
    async def open(cls, url: str, access: Access, most_bytes: int) -> SmartSession:
        """Connects.

        Args:
            url: ``http(s)://…/pull`` or ``…/push``.
            access: settings, and the login of the origin.
            most_bytes: of a message.

        Raises:
            NotSmart: the server does not know the smart protocol, or the dataset.
            SourceUnavailable: it cannot be reached, or denies access.
        """
        fetch = access.config.fetch
        timeout = aiohttp.ClientTimeout(
            total=None,
            connect=2 * fetch.connect_timeout_seconds,
            sock_connect=fetch.connect_timeout_seconds,
            sock_read=fetch.read_timeout_seconds,
        )
        connector = _OneOrigin(URL(url).origin())
        session = aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False)
        try:
            socket = await session.ws_connect(
                url, headers=headers_for(url, access), max_msg_size=most_bytes, compress=0, heartbeat=None
            )
        except BaseException as error:
            await session.close()
            if isinstance(error, aiohttp.ClientError | TimeoutError | OSError | ValueError):
                raise _refused(error, url) from None
            raise
        assert connector.transport is not None
        channel = Channel(
            socket, connector.transport, url, patience=fetch.read_timeout_seconds, most_bytes=most_bytes
        )
        return cls(session, channel)

    async def close(self, reason: str = "") -> None:
        """Closes the session."""
        try:
            await self.channel.close(reason=reason)
        finally:
            await self._session.close()

    async def abort(self) -> None:
        """Breaks the session off."""
        self.channel.abort()
        with suppress(aiohttp.ClientError, OSError):
            await self._session.close()

    async def __aenter__(self) -> SmartSession:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            await self.close()
        else:
            await self.abort()


def headers_for(url: str, access: Access) -> dict[str, str]:
    """The version of the protocol, and the login of the URL's origin."""
    login = access.credentials.of(url)
    headers = {VERSION_HEADER: VERSION}
    return headers if login is None else {**headers, "Authorization": login.header}


def _refused(error: Exception, url: str) -> Exception:
    if isinstance(error, _Elsewhere):
        return BadData("the server sends us to another origin", where=url)
    if not isinstance(error, aiohttp.WSServerHandshakeError):
        reason = getattr(error, "certificate_error", None) or getattr(error, "os_error", None) or error
        return broken(reason, url, "check the address and the network, then try again").error
    status = error.status
    if status in (401, 403):
        hint = f"log in: odf repo login {origin_of(url)}"
        return SourceUnavailable(f"access is denied (HTTP {status})", where=url, hint=hint)
    if status == 426:
        hint = "a proxy in between has to pass WebSockets on"
        return NotSmart("the server was asked for a session, and did not see it (426)", where=url, hint=hint)
    if status == 409:
        return Conflict(
            "somebody else is pushing the dataset just now (409)", where=url, hint="try again later"
        )
    if status in (429, 503):
        return SourceUnavailable(
            f"the server has too much to do ({status})", where=url, hint="try again later"
        )
    if status in _NOT_SMART or status == 101:
        return NotSmart("no dataset answers there by the smart protocol", where=url)
    if status == 400:
        return SourceUnavailable("the server does not take this version of the protocol", where=url)
    return SourceUnavailable(f"the server answers with HTTP {status}", where=url)
