"""The door of ``odf serve``: how many come in, and the HTTP connections of those that did."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

from aiohttp import web

from odf_engine.sync.serving import COMMON
from odf_engine.workspace.config import ServeConfig

HEADER_SECONDS: Final = 15.0
"""So long may a request line and its headers take, and a connection wait for the next of them."""
_HANDSHAKE_SECONDS: Final = 10.0
_LINGERING: Final = 64
_NO_MORE_FILES: Final = 0.2


class Gate:
    """Lets connections in as far as there is room, and takes them to an HTTP server.

    What is too much is told so with 429 (of one address) or 503 (in all), without being read.
    """

    def __init__(
        self,
        handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        limits: ServeConfig,
        tls: ssl.SSLContext | None,
        **options: Any,
    ) -> None:
        """``options`` are those of :class:`aiohttp.web.RequestHandler`."""
        self._limits = limits
        self._tls = tls
        self._open: Counter[str] = Counter()
        self._lingering = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._server = _Server(
            handler,
            keepalive_timeout=HEADER_SECONDS,
            lingering_time=0.5,
            auto_decompress=False,
            **options,
        )

    def listen(self, sockets: list[socket.socket]) -> None:
        """Begins to accept connections."""
        for each in sockets:
            each.setblocking(False)
            self._keep(self._accept(each))

    def stop_listening(self) -> None:
        """Accepts no more connections, and lets go of those on which nothing is going on."""
        for task in self._tasks:
            task.cancel()
        self._server.pre_shutdown()

    async def close(self) -> None:
        """Ends the connections that are left."""
        await self._server.shutdown(0.2)

    def _keep(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, peer = await loop.sock_accept(listening)
            except OSError:  # no file descriptor is left, or the client has gone already
                await asyncio.sleep(_NO_MORE_FILES)
                continue
            address = peer[0] if isinstance(peer, tuple) else ""
            if refusal := self._refusal(address):
                self._refuse(connection, refusal)
            else:
                self._open[address] += 1
                self._keep(self._let_in(connection, address))

    def _refusal(self, address: str) -> str | None:
        if self._open.total() >= self._limits.connections:
            return "503 Service Unavailable"
        # Behind a proxy, all come from its address.
        if not self._limits.behind_proxy and self._open[address] >= self._limits.connections_each:
            return "429 Too Many Requests"
        return None

    def _refuse(self, connection: socket.socket, refusal: str) -> None:
        with suppress(OSError):
            if self._tls is None:
                answer = (
                    f"HTTP/1.1 {refusal}\r\nRetry-After: 5\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                )
                connection.send(answer.encode())
                connection.shutdown(socket.SHUT_WR)
                if self._lingering < _LINGERING:  # closed at once, what the client sent would undo the answer
                    self._lingering += 1
                    asyncio.get_running_loop().call_later(1.0, self._let_go, connection)
                    return
        connection.close()

    def _let_go(self, connection: socket.socket) -> None:
        self._lingering -= 1
        connection.close()

    async def _let_in(self, connection: socket.socket, address: str) -> None:
        place = _Place(self._open, address)
        try:
            with suppress(OSError):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: _Connection(self._server, place),
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=_HANDSHAKE_SECONDS if self._tls else None,
            )
        except (OSError, TimeoutError):  # a handshake that failed, among others
            place.leave()
            connection.close()
        except BaseException:
            place.leave()
            connection.close()
            raise


class _Place:
    """A connection's place among those that are open; left once."""

    def __init__(self, places: Counter[str], address: str) -> None:
        self._places = places
        self._address: str | None = address

    def leave(self) -> None:
        if self._address is not None:
            self._places[self._address] -= 1
            if not self._places[self._address]:
                del self._places[self._address]
            self._address = None


class _Server(web.Server):
    def __init__(self, handler: Any, **options: Any) -> None:
        super().__init__(handler, **options)
        self.options = options


class _Connection(web.RequestHandler):
    __slots__ = ("_place",)

    def __init__(self, server: _Server, place: _Place) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), **server.options)
        self._place = place

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self._place.leave()

    def handle_error(self, *args: Any, **rest: Any) -> web.StreamResponse:
        # The answer to what is no request: it does not go through the handler.
        response = super().handle_error(*args, **rest)
        response.headers.update(COMMON)
        return response
