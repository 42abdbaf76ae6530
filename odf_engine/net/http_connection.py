"""Pool of HTTP connections with minimum transfer rate, size bounds and cancellation."""

from __future__ import annotations

import http.client
import io
import select
import socket
import ssl
import threading
from collections import defaultdict
from contextlib import ExitStack, suppress
from time import monotonic
from typing import Any, Final
from urllib.parse import urlsplit

from odf_engine.errors import SourceUnavailable
from odf_engine.net.address_policy import Proxy, is_public_address, looks_private, open_tunnel, select_proxy
from odf_engine.net.download import run_cancellable
from odf_engine.net.urls import origin_of
from odf_engine.progress import Reporter
from odf_engine.settings import FetchConfig

MIN_BYTES_PER_SECOND: Final = 1 << 10
"""Bytes a second: what comes slower for as long as the patience for reading lasts is given up."""
MAX_HEADER_BYTES: Final = 1 << 18
PIECE: Final = 1 << 18
"""Bytes that are handed on at once where they come fast: so few that they stay in the cache of a core."""
_MAX_IDLE: Final = 64


class TransferTooSlow(TimeoutError):
    """Something comes, but too slowly to wait for its end."""


class ResponseTooLarge(OSError):
    """More came than an answer of this size can need."""


class GuardedReader(io.RawIOBase):
    """What comes from a socket, as long as it comes fast enough and not without end.

    The headers have to be there within ``patience`` seconds. Of a body there have to come ``patience`` times
    :data:`MIN_BYTES_PER_SECOND` bytes, or all of it, in each ``patience`` seconds spent waiting for it.
    """

    def __init__(self, sock: socket.socket, patience: float) -> None:
        self._sock, self._patience = sock, patience
        self._file = sock.makefile("rb", buffering=0)
        if hasattr(socket, "TCP_QUICKACK"):
            # Else a server that sends headers and body apart waits 40 ms between the two.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        self._least: float | None = None
        self._left = patience
        self._came = 0
        self._allowed = MAX_HEADER_BYTES

    def body(self, at_most: int) -> None:
        """The headers are over; of the body, with what is around it, so many bytes may come."""
        self._least = self._patience * MIN_BYTES_PER_SECOND
        self._left, self._came, self._allowed = self._patience, 0, at_most

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Waits for bytes."""
        begun = monotonic()
        self._sock.settimeout(max(self._left, 0.001))
        try:
            count = self._file.readinto(buffer) or 0  # type: ignore[attr-defined]
        except TimeoutError:
            raise (TransferTooSlow if self._came else TimeoutError) from None
        self._left -= monotonic() - begun
        self._came += count
        self._allowed -= count
        if self._allowed < 0:
            raise ResponseTooLarge
        if self._least is not None and self._came >= self._least:
            self._left, self._came = self._patience, 0
        return count

    def close(self) -> None:
        """Lets go of the socket, which stays open for whoever else has it."""
        self._file.close()
        super().close()


class StoppableReporter(Reporter):
    """Says to stop when somebody else says so, or when this is ended; what is told goes to the other one."""

    def __init__(self, outer: Reporter) -> None:
        super().__init__()
        self._outer = outer
        self._link = ExitStack()
        self._link.enter_context(outer.on_cancel(self.cancel))

    def log(self, text: str, level: str = "info") -> None:
        """Goes to the log."""
        self._outer.log(text, level)

    def end(self) -> None:
        """From now on everybody has to stop."""
        self._link.close()
        self.cancel()


class _Made:
    """A socket as ``http.client`` wants it, whose answers are watched."""

    def __init__(self, sock: socket.socket, patience: float) -> None:
        self.watched = GuardedReader(sock, patience)

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self.watched, 1 << 14)


class Connection:
    """A connection to an origin.

    Attributes:
        used: it has carried an exchange before.
        proxy: it leads to this one, which wants to know where every single request goes.
    """

    def __init__(
        self, origin: str, client: http.client.HTTPConnection, sock: socket.socket, proxy: Proxy | None
    ) -> None:
        self.origin, self.client, self.sock, self.proxy = origin, client, sock, proxy
        self.used = False
        self._buffer: memoryview | None = None
        client.sock = sock
        client.auto_open = 0

    @property
    def buffer(self) -> memoryview:
        """Room for a piece of an answer: made once, as much comes over one connection."""
        if self._buffer is None:
            self._buffer = memoryview(bytearray(PIECE))
        return self._buffer

    def answer(self, patience: float) -> tuple[http.client.HTTPResponse, GuardedReader]:
        """Waits for the answer to what was asked."""
        made: list[_Made] = []

        def response(sock: socket.socket, **rest: Any) -> http.client.HTTPResponse:
            made.append(_Made(sock, patience))
            return http.client.HTTPResponse(made[0], **rest)  # type: ignore[arg-type]

        self.client.response_class = response  # type: ignore[assignment]
        return self.client.getresponse(), made[0].watched


class ConnectionPool:
    """The connections of one remote; safe from several threads.

    Args:
        url: the address that a person named.
        reporter: says when all is over.
    """

    def __init__(self, url: str, config: FetchConfig, reporter: Reporter) -> None:
        self._home, self._host = origin_of(url), urlsplit(url).hostname or ""
        self._config, self._reporter = config, reporter
        self._idle: dict[str, list[Connection]] = defaultdict(list)
        self._sockets: set[socket.socket] = set()
        self._known: dict[str, list[str]] = {}
        self._context: ssl.SSLContext | None = None
        self._lock = threading.Lock()
        self._link = ExitStack()
        self._link.enter_context(reporter.on_cancel(self.abort))

    def acquire(self, url: str, *, fresh: bool = False) -> Connection:
        """A connection to the origin of a URL that nobody else uses.

        Raises:
            SourceUnavailable: it may not go there.
            OSError: it cannot be had.
        """
        origin = origin_of(url)
        with self._lock:
            idle = self._idle[origin]
            while idle:
                connection = idle.pop()
                if not fresh and not _says_something(connection.sock):
                    return connection
                self._discard([connection])
        return self._open(origin, url)

    def release(self, connection: Connection) -> None:
        """Takes a connection back for the next one who asks."""
        connection.used = True
        with self._lock:
            idle = self._idle[connection.origin]
            if len(idle) < _MAX_IDLE and not self._reporter.cancelled:
                idle.append(connection)
                return
        self.discard(connection)

    def discard(self, connection: Connection) -> None:
        """Closes a connection."""
        with self._lock:
            self._discard([connection])

    def abort(self) -> None:
        """Cuts off what anybody waits for, and closes what nobody uses."""
        with self._lock:
            for idle in self._idle.values():
                self._discard(idle)
            self._idle.clear()
            sockets = list(self._sockets)
        for sock in sockets:
            with suppress(OSError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def _discard(self, connections: list[Connection]) -> None:
        for connection in connections:
            self._sockets.discard(connection.sock)
            with suppress(OSError):
                connection.client.close()
                connection.sock.close()

    # --- New ones ---

    def _open(self, origin: str, url: str) -> Connection:
        parts = urlsplit(url)
        host, secure = parts.hostname or "", parts.scheme == "https"
        port = parts.port or (443 if secure else 80)
        proxy = select_proxy(parts)
        if proxy is None:
            sock = self._connect(host, self._allowed(origin, host, port), port)
        else:
            self._check_by_looks(origin, host)
            sock = self._connect(proxy.host, self._resolved(proxy.host, proxy.port), proxy.port)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client: http.client.HTTPConnection
            if secure:
                if proxy is not None:
                    open_tunnel(sock, proxy, host, port)
                context = self._trusted()
                client = http.client.HTTPSConnection(host, port, context=context)
                sock = self._noted(
                    sock, context.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
                )
                sock.do_handshake()
            else:
                client = http.client.HTTPConnection(host, port)
            # Whoever cancels sees this socket, or is seen here.
            self._reporter.raise_if_cancelled()
        except BaseException:
            self._forget(sock)
            raise
        return Connection(origin, client, sock, None if secure else proxy)

    def _allowed(self, origin: str, host: str, port: int) -> list[str]:
        addresses = self._resolved(host, port)
        if origin == self._home or not any(map(is_public_address, self._resolved(self._host, port))):
            return addresses
        allowed = [address for address in addresses if is_public_address(address)]
        if not allowed:
            raise _inside(host if host == addresses[0] else f"{host}, which is {addresses[0]},")
        return allowed

    def _check_by_looks(self, origin: str, host: str) -> None:
        if origin != self._home and looks_private(host) and not looks_private(self._host):
            raise _inside(host)

    def _resolved(self, host: str, port: int) -> list[str]:
        """The addresses of a host: asked for once, so that they cannot change in between."""
        if (known := self._known.get(host)) is None:

            def ask() -> list[str]:
                name = "localhost" if host.endswith(".localhost") else host  # RFC 6761
                found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
                return list(dict.fromkeys(str(address[0]) for *_, address in found))

            known = self._known.setdefault(host, run_cancellable(ask, lambda: None, self._reporter))
        return known

    def _connect(self, host: str, addresses: list[str], port: int) -> socket.socket:
        failure: OSError = OSError(f"{host} has no address")
        for address in addresses:
            self._reporter.raise_if_cancelled()
            sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
            with self._lock:
                self._sockets.add(sock)
            try:
                sock.settimeout(self._config.connect_timeout_seconds)
                sock.connect((address, port))
            except OSError as error:
                failure = error
                self._forget(sock)
            else:
                return sock
        self._reporter.raise_if_cancelled()
        raise failure

    def _noted(self, old: socket.socket, new: ssl.SSLSocket) -> ssl.SSLSocket:
        with self._lock:
            self._sockets.discard(old)
            self._sockets.add(new)
        return new

    def _forget(self, sock: socket.socket) -> None:
        with self._lock:
            self._sockets.discard(sock)
        sock.close()

    def _trusted(self) -> ssl.SSLContext:
        """Checks certificates by what the system trusts, or ``SSL_CERT_FILE``."""
        with self._lock:
            if self._context is None:
                self._context = ssl.create_default_context()
                self._context.set_alpn_protocols(["http/1.1"])
            return self._context


def _says_something(sock: socket.socket) -> bool:
    """Whether a server has ended a connection, or sent more than it should have, without being asked."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


def _inside(there: str) -> SourceUnavailable:
    return SourceUnavailable(
        f"the server leads to {there} in a network of this machine, and is not followed there",
        hint="a server of the internet has no business there: tell its owner",
    )
