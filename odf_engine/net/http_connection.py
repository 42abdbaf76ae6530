"""Connections of urllib3 with minimum transfer rate, size limits and checked addresses."""

from __future__ import annotations

import http.client
import io
import logging
import select
import socket
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cached_property
from itertools import chain
from time import monotonic
from typing import Any, Final, NamedTuple
from urllib.parse import SplitResult

from urllib3.connection import HTTPConnection, HTTPSConnection

from odf_engine.net.connector import Connector, Proxy, port_of

MIN_BYTES_PER_SECOND: Final = 1 << 10
"""Slower transfers fail, measured over the read timeout."""
MAX_HEADER_BYTES: Final = 1 << 18
Origin = tuple[str, str, int]
"""Scheme, host and port."""
_BUFFER_BYTES: Final = 1 << 14
_PIECE_BYTES: Final = 1 << 18  # so few that a piece stays in the cache of a core
_MAX_IDLE: Final = 64
# Its warnings quote URLs, which may have a signature in the query.
logging.getLogger("urllib3").setLevel(logging.ERROR)


class TransferTooSlow(TimeoutError):
    """The transfer rate is below the minimum."""


class ResponseTooLarge(OSError):
    """The response has more bytes than its limit allows."""


class GuardedReader(io.RawIOBase):
    """Reads a socket, with limits on time and size.

    The headers must arrive within ``patience`` seconds. Of the body, ``patience`` times ``min_rate`` bytes,
    or all of it, must arrive in each ``patience`` seconds spent waiting.

    Args:
        patience: seconds.
        min_rate: bytes per second; with 0, only silence fails.
    """

    def __init__(self, sock: socket.socket, patience: float, min_rate: int) -> None:
        self._sock, self._patience, self._min_rate = sock, patience, min_rate
        self._file = sock.makefile("rb", buffering=0)
        if hasattr(socket, "TCP_QUICKACK"):
            # Else a server that sends headers and body apart waits 40 ms between the two.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._in_body = False
        self._seconds_left = patience
        self._received = 0
        self._bytes_left = MAX_HEADER_BYTES

    def start_body(self, max_bytes: int) -> None:
        """End the limits of the headers; allow ``max_bytes`` for the body and its chunk headers."""
        self._in_body = True
        self._seconds_left, self._received, self._bytes_left = self._patience, 0, max_bytes

    def has_more(self) -> bool:
        """Return whether a read would not block."""
        return bool(self._poll.poll(0))

    def limit_wait(self, seconds: float) -> None:
        """Set how long the next read may take."""
        self._seconds_left = seconds

    def makefile(self, _mode: str) -> io.BufferedReader:
        """Return a buffered file, as :class:`http.client.HTTPResponse` requires of a socket."""
        return _LineLimitedReader(self, _BUFFER_BYTES)

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Wait for bytes.

        Raises:
            TransferTooSlow, TimeoutError: time is up.
            ResponseTooLarge: more bytes than allowed.
        """
        started = monotonic()
        self._sock.settimeout(max(self._seconds_left, 0.001))
        try:
            count = self._file.readinto(buffer) or 0  # type: ignore[attr-defined]
        except TimeoutError:
            raise (TransferTooSlow if self._received else TimeoutError) from None
        self._seconds_left -= monotonic() - started
        self._received += count
        self._bytes_left -= count
        if self._bytes_left < 0:
            raise ResponseTooLarge
        if self._in_body and self._received >= self._patience * self._min_rate:
            self._seconds_left, self._received = self._patience, 0
        return count

    def close(self) -> None:
        """Release the socket, which stays open if the connection still uses it."""
        self._file.close()
        super().close()


class _LineLimitedReader(io.BufferedReader):
    """A buffered file whose lines are limited: headers, trailers, and the headers of chunks.

    Without limit, a line without end would fill the memory, and trailers would never end.
    """

    _line_bytes = 0
    _may_have_rest = False

    def readline(self, size: int | None = -1) -> bytes:
        """Read a line.

        Raises:
            ResponseTooLarge: the lines since the last bytes of a body are too long.
        """
        limit = MAX_HEADER_BYTES - self._line_bytes
        line = super().readline(limit + 1 if size is None or size < 0 else size)
        self._line_bytes += len(line)
        self._may_have_rest = True
        if self._line_bytes > MAX_HEADER_BYTES:
            raise ResponseTooLarge
        return line

    def read(self, size: int | None = -1) -> bytes:
        """Read bytes of a body."""
        self._line_bytes = 0
        return super().read(size)

    def read1(self, size: int = -1) -> bytes:
        """Read available bytes of a body."""
        self._line_bytes = 0
        return super().read1(size)

    def readinto(self, buffer: Any) -> int:
        """Read available bytes of a body into a buffer."""
        self._line_bytes = 0
        if not self._may_have_rest:
            return super().readinto1(buffer)
        # Bytes may have arrived with the headers: readinto1 would wait for more of them.
        data = super().read1(min(len(buffer), _BUFFER_BYTES))
        buffer[: len(data)] = data
        self._may_have_rest = len(data) == len(buffer)
        return len(data)


class ResponseLimits(NamedTuple):
    """Limits on the responses of one client.

    Attributes:
        patience: seconds; see :class:`GuardedReader`.
        min_rate: bytes per second.
        enforce_length: stop at Content-Length. Without it, a body is read until the server closes the
            connection, so that a wrong Content-Length can be detected.
    """

    patience: float
    min_rate: int
    enforce_length: bool


class _UnmeasuredResponse(http.client.HTTPResponse):
    """A response whose body may be longer than Content-Length."""

    def begin(self) -> None:
        super().begin()
        if self.status in (200, 206):
            self.length = None


class GuardedConnection(HTTPConnection):
    """A connection of urllib3 with a checked address and guarded responses.

    Attributes:
        origin: scheme, host and port of the pool that it belongs to.
        proxy_used: leads to this proxy, if any.
        is_reused: it has carried an exchange before.
        reader: the reader of the current response.
    """

    reader: GuardedReader
    _uses_tls = False

    def __init__(
        self, origin: Origin, connector: Connector, proxy: Proxy | None, limits: ResponseLimits, **rest: Any
    ) -> None:
        super().__init__(*origin[1:], timeout=limits.patience, **rest)
        self.origin, self.proxy_used, self.is_reused = origin, proxy, False
        self._connector, self._limits = connector, limits
        self.response_class = self._guarded_response  # type: ignore[assignment]

    @cached_property
    def buffer(self) -> memoryview:
        """The buffer of the body of the current response: every response of the connection uses it."""
        return memoryview(bytearray(_PIECE_BYTES))

    def exchange(
        self, method: str, target: str, headers: Mapping[str, str], body: Iterable[bytes] | None
    ) -> http.client.HTTPResponse:
        """Send a request, and return the response without its body.

        Raises:
            OSError, http.client.HTTPException, urllib3.exceptions.HTTPError: the connection broke, or the
                response is invalid.
        """
        if self.sock is None:
            self.connect()
            assert self.sock is not None
            self.sock.settimeout(self.timeout)
        # A server that closes the connection before the end of the body may have sent the reason.
        with suppress(BrokenPipeError, ConnectionResetError):
            self.request(method, target, body=body, headers=headers)
        # The response of urllib3 would read into new buffers only.
        response = http.client.HTTPConnection.getresponse(self)
        if len(set(response.headers.get_all("Content-Length", ()))) > 1:
            raise http.client.HTTPException("the response has different values of Content-Length")
        return response

    def _new_conn(self) -> socket.socket:
        host, port = self.origin[1:]
        return self._connector.connect(host, port, self.proxy_used, tunnel=self._uses_tls)

    def _guarded_response(self, sock: socket.socket, **rest: Any) -> http.client.HTTPResponse:
        self.reader = GuardedReader(sock, self._limits.patience, self._limits.min_rate)
        kind = http.client.HTTPResponse if self._limits.enforce_length else _UnmeasuredResponse
        return kind(self.reader, **rest)  # type: ignore[arg-type]


class GuardedTlsConnection(GuardedConnection, HTTPSConnection):
    """:class:`GuardedConnection` over TLS."""

    default_port = HTTPSConnection.default_port  # type: ignore[misc]
    _uses_tls = True


class ConnectionPool:
    """The keep-alive connections of one client; safe from several threads."""

    def __init__(self, connector: Connector, limits: ResponseLimits) -> None:
        self._connector, self._limits = connector, limits
        self._idle: dict[Origin, list[GuardedConnection]] = defaultdict(list)
        self._lock = threading.Lock()

    def acquire(self, parts: SplitResult) -> GuardedConnection:
        """Return an idle connection for a URL, or one that is not open yet.

        Raises:
            SourceUnavailable: the proxy of the environment is not supported.
            ValueError: the URL has an invalid port.
        """
        origin = parts.scheme, parts.hostname or "", port_of(parts)
        with self._lock:
            idle = self._idle[origin]
            while idle:
                connection = idle.pop()
                if connection.is_connected:
                    return connection
                connection.close()
        proxy = self._connector.select_proxy(parts)
        if origin[0] == "http":
            return GuardedConnection(origin, self._connector, proxy, self._limits)
        context = self._connector.tls_context
        return GuardedTlsConnection(origin, self._connector, proxy, self._limits, ssl_context=context)

    def release(self, connection: GuardedConnection) -> None:
        """Keep a connection for the next request, or close it if there are many."""
        connection.is_reused = True
        with self._lock:
            idle = self._idle[connection.origin]
            if len(idle) < _MAX_IDLE:
                idle.append(connection)
            else:
                connection.close()

    def close(self) -> None:
        """Close the idle connections; shut down the others, so that reads and writes end immediately."""
        with self._lock:
            for connection in chain.from_iterable(self._idle.values()):
                connection.close()
            self._idle.clear()
        self._connector.abort()
