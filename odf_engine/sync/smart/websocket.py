"""WebSocket message channel of both ends, and the client session."""

from __future__ import annotations

import asyncio
import secrets
import struct
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import aiohttp
from aiohttp import WSCloseCode, WSMsgType, web
from aiohttp.client_proto import ResponseHandler
from yarl import URL

from odf_engine.base.progress import Reporter
from odf_engine.errors import BadData, Conflict, NotFound, SourceUnavailable, Unsupported
from odf_engine.net.address_policy import HomeNetwork
from odf_engine.net.connector import Connector
from odf_engine.net.credentials import RemoteAccess
from odf_engine.net.download import connection_failure
from odf_engine.net.urls import origin_of
from odf_engine.sync.smart.messages import VERSION, VERSION_HEADER

MAX_PACKED_SHARE: Final = 3.65
"""Maximum bytes of a message for each byte of its payload, on average over compressed data."""
_SHORT_BYTES: Final = 1 << 16
_FRAME_BYTES: Final = 1 << 18
_MIN_BYTES_PER_SECOND: Final = 64 << 10  # bytes per second, of long messages
_FULL_BUFFER: Final = 1 << 18
_REASON_BYTES: Final = 123
Socket = aiohttp.ClientWebSocketResponse | web.WebSocketResponse


class ConnectionClosed(SourceUnavailable):
    """The peer closed the connection; ``reason`` is from the close frame."""

    def __init__(self, message: str, *, reason: str = "", **rest: str | None) -> None:
        super().__init__(message, **rest)
        self.reason = reason


class MessageChannel:
    """An open WebSocket.

    Attributes:
        where: name of the peer in errors.
        most_bytes: maximum size of a message, sent or received.
    """

    def __init__(
        self, socket: Socket, transport: asyncio.Transport, where: str, *, patience: float, most_bytes: int
    ) -> None:
        """``patience``: seconds that the peer may send nothing, or receive nothing."""
        self.where = where
        self.most_bytes = most_bytes
        self._socket = socket
        self._transport = transport
        self._patience = patience
        self._masked = isinstance(socket, aiohttp.ClientWebSocketResponse)

    async def send(self, text: bytes) -> None:
        """Send a message.

        Raises:
            Unsupported: it is longer than :attr:`most_bytes`.
            ConnectionClosed, SourceUnavailable: the peer is gone, or does not receive.
        """
        if len(text) > _SHORT_BYTES:
            await self.send_pieces(len(text), lambda start, count: text[start : start + count])
            return
        await self._within(len(text), self._socket.send_str(text.decode()))

    async def send_pieces(self, size: int, read: Callable[[int, int], bytes]) -> None:
        """Send a message of ``size`` bytes; ``read`` returns a number of them from an offset.

        Raises:
            Unsupported, ConnectionClosed, SourceUnavailable: as :meth:`send`.
        """
        if size > self.most_bytes:
            raise Unsupported(
                f"message too long: {size:,} bytes, the limit is {self.most_bytes:,}", where=self.where
            )
        await self._within(size, self._send_in_frames(size, read))

    async def _within(self, size: int, sending: Coroutine[Any, Any, None]) -> None:
        try:
            async with asyncio.timeout(self._patience + size / _MIN_BYTES_PER_SECOND):
                await sending
        except TimeoutError:
            raise SourceUnavailable("timeout: the peer does not receive data", where=self.where) from None
        except (ConnectionError, aiohttp.ClientError, RuntimeError):
            raise self._gone() from None

    async def receive(self, expected: int = 0, patience: float | None = None) -> str:
        """Return the next message; ``expected`` is its approximate size in bytes.

        Raises:
            ConnectionClosed: the peer closed the connection.
            SourceUnavailable: no message arrived in time.
            BadData: it is too long, or not a text.
        """
        wait = (patience or self._patience) + min(expected, self.most_bytes) / _MIN_BYTES_PER_SECOND
        try:
            async with asyncio.timeout(wait):
                message = await self._socket.receive()
        except TimeoutError:
            raise ReceiveTimeout(f"timeout: no message for {wait:g} seconds", where=self.where) from None
        except (ConnectionError, aiohttp.ClientError, RuntimeError):
            raise self._gone() from None
        match message.type:
            case WSMsgType.TEXT:
                return message.data
            case WSMsgType.CLOSE:
                raise self._gone(message.extra or "")
            case WSMsgType.CLOSING | WSMsgType.CLOSED:
                raise self._gone()
            case WSMsgType.ERROR if self._socket.close_code == WSCloseCode.MESSAGE_TOO_BIG:
                raise MessageTooLong(
                    f"received a message longer than {self.most_bytes:,} bytes", where=self.where
                )
        raise BadData("received a message that is not text", where=self.where)

    async def close(self, code: int = WSCloseCode.OK, reason: str | bytes = "") -> None:
        """Close the connection with a reason; wait for the peer at most 5 seconds."""
        raw = reason.encode() if isinstance(reason, str) else reason
        short = raw[:_REASON_BYTES].decode(errors="ignore").encode()
        try:
            async with asyncio.timeout(min(self._patience, 5.0)):
                await self._socket.close(code=code, message=short)
        except (TimeoutError, ConnectionError, aiohttp.ClientError, RuntimeError):
            self.abort()

    def abort(self) -> None:
        """Close the connection without a close frame."""
        self._transport.abort()

    async def _send_in_frames(self, size: int, read: Callable[[int, int], bytes]) -> None:
        # aiohttp sends each message as one frame.
        kind = WSMsgType.TEXT
        for start in range(0, size, _FRAME_BYTES):
            piece = read(start, _FRAME_BYTES)
            first = kind | (0x80 if start + _FRAME_BYTES >= size else 0)
            if self._transport.is_closing():
                raise ConnectionResetError
            header = _header(first, 0x80 if self._masked else 0, len(piece))
            if self._masked:
                key = secrets.token_bytes(4)
                header, piece = header + key, _masked(piece, key)
            self._transport.write(header)
            self._transport.write(piece)
            kind = WSMsgType.CONTINUATION
            pause = 0.001
            while self._transport.get_write_buffer_size() > _FULL_BUFFER:
                await asyncio.sleep(pause)
                pause = min(pause * 1.5, 0.05)  # a slow peer needs few wake-ups

    def _gone(self, reason: str = "") -> ConnectionClosed:
        return ConnectionClosed("connection closed by the peer", reason=reason, where=self.where)


class ReceiveTimeout(SourceUnavailable):
    """No message arrived in time."""


class MessageTooLong(BadData):
    """A message is longer than the maximum."""


def _header(first: int, mask: int, size: int) -> bytes:
    """Return the header of a frame (RFC 6455, section 5.2)."""
    if size < 0x7E:
        return struct.pack("!BB", first, mask | size)
    if size < 1 << 16:
        return struct.pack("!BBH", first, mask | 0x7E, size)
    return struct.pack("!BBQ", first, mask | 0x7F, size)


def _masked(data: bytes, key: bytes) -> bytes:
    size = len(data)
    pattern = (key * (size // 4 + 1))[:size]
    return (int.from_bytes(data, "big") ^ int.from_bytes(pattern, "big")).to_bytes(size, "big")


T = TypeVar("T")
_JOIN_SECONDS: Final = 5.0
_NOT_SMART: Final = frozenset({200, 204, 301, 302, 303, 304, 307, 308, 404, 405, 410, 501})


class SmartProtocolUnsupported(NotFound):
    """The server does not support the smart protocol, or does not have the dataset."""


class EventLoopThread:
    """An event loop in a background thread, started on demand."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.current_thread()
        self._lock = threading.Lock()

    def run(self, work: Coroutine[Any, Any, T], reporter: Reporter) -> T:
        """Run a coroutine on the loop, and return its result.

        Raises:
            Cancelled: the job was cancelled, and the coroutine with it.
        """
        future = self._submit(work)

        def cancel() -> None:
            future.cancel()

        with reporter.on_cancel(cancel):
            try:
                return future.result()
            except CancelledError:
                reporter.raise_if_cancelled()
                raise SourceUnavailable("the connection was closed") from None

    def soon(self, work: Coroutine[Any, Any, object]) -> None:
        """Start a coroutine on the loop without waiting for it."""
        self._submit(work)

    def close(self) -> None:
        """Cancel all coroutines, and end the thread."""
        with self._lock:
            loop, self._loop = self._loop, None
            if loop is None:
                return
            # Work submitted before has started by then.
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
        loop.run_until_complete(_cancel_all(asyncio.all_tasks(loop)))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()


async def _cancel_all(tasks: set[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class _OneOrigin(aiohttp.BaseConnector):
    """Connects to one origin; redirects to another one are rejected before anything is sent."""

    def __init__(self, origin: URL, connector: Connector) -> None:
        super().__init__()
        self._origin = origin
        self._connector = connector
        self.transport: asyncio.Transport | None = None

    async def _create_connection(self, req: Any, traces: Any, timeout: Any) -> ResponseHandler:
        if req.url.origin() != self._origin:
            raise _CrossOriginRedirect
        host, port = self._origin.host or "", self._origin.port or 0
        # Many proxies refuse tunnels to the ports of http.
        proxy = self._connector.select_proxy(urlsplit(str(self._origin))) if req.is_ssl() else None
        try:
            sock = await asyncio.to_thread(self._connector.connect, host, port, proxy, tunnel=True)
        except asyncio.CancelledError:
            self._connector.abort()
            raise
        sock.setblocking(False)
        tls = {"ssl": self._connector.tls_context, "server_hostname": host} if req.is_ssl() else {}
        self.transport, protocol = await self._loop.create_connection(self._factory, sock=sock, **tls)
        return protocol


class _CrossOriginRedirect(aiohttp.ClientError):
    """A redirect to another origin."""


class SmartSession:
    """An open session; use it in ``async with``, or :meth:`close` it."""

    def __init__(self, session: aiohttp.ClientSession, channel: MessageChannel) -> None:
        self._session = session
        self.channel = channel

    @classmethod
    async def open(cls, url: str, access: RemoteAccess, most_bytes: int) -> SmartSession:
        """Connect.

        Args:
            url: ``http(s)://…/pull`` or ``…/push``.
            access: settings, and the login of the origin.
            most_bytes: maximum size of a message.

        Raises:
            SmartProtocolUnsupported: the server does not support the smart protocol, or does not have the
                dataset.
            SourceUnavailable: it cannot be reached, or denies access.
        """
        fetch = access.config.fetch
        timeout = aiohttp.ClientTimeout(
            total=None,
            connect=2 * fetch.connect_timeout_seconds,
            sock_connect=fetch.connect_timeout_seconds,
            sock_read=fetch.read_timeout_seconds,
        )
        origin = URL(url).origin()
        policy = HomeNetwork(origin.host or "", origin.port or 0)
        sockets = Connector(policy, fetch.connect_timeout_seconds, access.reporter)
        connector = _OneOrigin(origin, sockets)
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
        channel = MessageChannel(
            socket, connector.transport, url, patience=fetch.read_timeout_seconds, most_bytes=most_bytes
        )
        return cls(session, channel)

    async def close(self, reason: str = "") -> None:
        """Close the session."""
        try:
            await self.channel.close(reason=reason)
        finally:
            await self._session.close()

    async def abort(self) -> None:
        """Close the session without a close frame."""
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


def headers_for(url: str, access: RemoteAccess) -> dict[str, str]:
    """Return the headers of a session: protocol version, and the login of the origin."""
    login = access.credentials.of(url)
    headers = {VERSION_HEADER: VERSION}
    return headers if login is None else {**headers, "Authorization": login.header}


def _refused(error: Exception, url: str) -> Exception:
    if isinstance(error, _CrossOriginRedirect):
        return BadData("the server redirects to another origin", where=url)
    if not isinstance(error, aiohttp.WSServerHandshakeError):
        reason = error.__cause__ if isinstance(error.__cause__, OSError) else error
        return connection_failure(reason, url, "check the URL and the network, then try again").error
    status = error.status
    if status in (401, 403):
        hint = f"log in: odf repo login {origin_of(url)}"
        return SourceUnavailable(f"access denied (HTTP {status})", where=url, hint=hint)
    if status == 421:
        hint = "use a host name of the server; odf serve --host-name NAME adds one"
        return SourceUnavailable("the server does not have this host name (HTTP 421)", where=url, hint=hint)
    if status == 426:
        hint = "configure the proxy of the server to forward WebSockets"
        return SmartProtocolUnsupported(
            "the server did not receive the WebSocket upgrade (HTTP 426)", where=url, hint=hint
        )
    if status == 409:
        return Conflict(
            "another push of the dataset is in progress (HTTP 409)", where=url, hint="try again later"
        )
    if status in (429, 503):
        return SourceUnavailable(
            f"the server is overloaded (HTTP {status})", where=url, hint="try again later"
        )
    if status in _NOT_SMART or status == 101:
        return SmartProtocolUnsupported("no dataset with smart protocol found", where=url)
    if status == 400:
        return SourceUnavailable("the server does not support this version of the protocol", where=url)
    return SourceUnavailable(f"unexpected response: HTTP {status}", where=url)
