"""Process of ``odf serve``: options, sockets, connection limits, signals."""

from __future__ import annotations

import argparse
import asyncio
import errno
import json
import os
import resource
import signal
import socket
import ssl
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from aiohttp import web
from msgspec.structs import replace

from odf_engine.errors import NotFound, OdfError, UsageError
from odf_engine.settings import ServeConfig
from odf_engine.sync.server.request_router import SILENT, RequestRouter
from odf_engine.sync.server.service import COMMON_HEADERS, DatasetService
from odf_engine.terminal_text import escape_standard_streams
from odf_engine.workspace.workspace import Workspace

HEADER_SECONDS: Final = 15.0
"""Maximum time in seconds for a request line and its headers, and between requests of a connection."""
_HANDSHAKE_SECONDS: Final = 10.0
_LINGERING: Final = 64
_NO_MORE_FILES: Final = 0.2


class ConnectionLimiter:
    """Accepts connections up to the limits, and passes them to an HTTP server.

    Excess connections get the status 429 (for one address) or 503 (in total), without being read.
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
        """Start to accept connections."""
        for each in sockets:
            each.setblocking(False)
            self._keep(self._accept(each))

    def stop_listening(self) -> None:
        """Stop accepting connections, and close idle ones."""
        for task in self._tasks:
            task.cancel()
        self._server.pre_shutdown()

    async def close(self) -> None:
        """Close the remaining connections."""
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
            except OSError:  # no file descriptor is available, or the client has disconnected
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
        # Behind a proxy, all connections come from its address.
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
                if self._lingering < _LINGERING:  # closing at once could discard the response
                    self._lingering += 1
                    asyncio.get_running_loop().call_later(1.0, self._let_go, connection)
                    return
        connection.close()

    def _let_go(self, connection: socket.socket) -> None:
        self._lingering -= 1
        connection.close()

    async def _let_in(self, connection: socket.socket, address: str) -> None:
        place = _ConnectionSlot(self._open, address)
        try:
            with suppress(OSError):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: _Connection(self._server, place),
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=_HANDSHAKE_SECONDS if self._tls else None,
            )
        except (OSError, TimeoutError):  # for example a failed TLS handshake
            place.leave()
            connection.close()
        except BaseException:
            place.leave()
            connection.close()
            raise


class _ConnectionSlot:
    """The slot of a connection in the counts of open connections; released once."""

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

    def __init__(self, server: _Server, place: _ConnectionSlot) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), **server.options)
        self._place = place

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self._place.leave()

    def handle_error(self, *args: Any, **rest: Any) -> web.StreamResponse:
        # The response to an invalid request, which does not reach the handler.
        response = super().handle_error(*args, **rest)
        response.headers.update(COMMON_HEADERS)
        return response


_GRACE_SECONDS: Final = 8.0
"""Maximum time in seconds for running transfers after the server was told to stop."""
_BACKLOG: Final = 512
_THIS_MACHINE: Final = ("127.0.0.1", "::1", "localhost")


def main() -> int:
    """Run the program: options of ``odf serve``."""
    escape_standard_streams()
    given = _arguments()
    try:
        serving, tls = _prepared(given)
        sockets = _listen(given.host, given.port)
        _allow_files(serving.limits.connections)
        asyncio.run(_serve(serving, sockets, tls, given))
    except OdfError as error:
        hint = f"\n  hint: {error.hint}" if error.hint else ""
        sys.stderr.write(f"error: {error}{hint}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return 0
    # Do not wait for threads that are blocked by a disk or a lock: their files are temporary.
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="odf serve")
    parser.add_argument("--workspace", type=Path, required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--dataset", action="append", default=[])
    parser.add_argument("--allow-push", action="store_true")
    parser.add_argument("--behind-proxy", action="store_true")
    parser.add_argument("--tls-cert", type=Path)
    parser.add_argument("--tls-key", type=Path)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quiet", action="store_true")
    parser.add_argument("--verbose", action="store_true")
    return parser.parse_args()


def _prepared(given: argparse.Namespace) -> tuple[DatasetService, ssl.SSLContext | None]:
    workspace = Workspace.find(explicit=given.workspace)
    limits = workspace.config.serve
    if given.behind_proxy:
        limits = replace(limits, behind_proxy=True)
    tls = _tls(given.tls_cert, given.tls_key)
    serving = DatasetService(
        workspace,
        limits=limits,
        allow_push=given.allow_push,
        patterns=given.dataset,
        tls=tls is not None,
    )
    serving.tokens.all()  # report damaged tokens now, not to a client
    if given.dataset and not given.allow_push and not serving.datasets():
        raise NotFound("no dataset is of those names", hint="see what is here with: odf list")
    return serving, tls


def _tls(cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise UsageError("TLS needs both files", hint="--tls-cert FILE --tls-key FILE")
    for path in (cert, key):
        if not path.is_file():
            raise NotFound(f"there is no file {path}")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)

    def no_passphrase() -> str:
        raise UsageError(f"{key} is locked with a passphrase", hint="give a key without one")

    try:
        context.load_cert_chain(cert, key, no_passphrase)
    except (ssl.SSLError, OSError) as error:
        reason = error.strerror or getattr(error, "reason", None) or error
        hint = "both are files in PEM; the key has to be that of the certificate"
        raise UsageError(
            f"certificate and key cannot be used: {reason}", where=f"{cert}, {key}", hint=hint
        ) from None
    return context


def _listen(host: str, port: int) -> list[socket.socket]:
    """Return sockets for all addresses of a host, at one port; 0 selects a free port."""
    sockets: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in dict.fromkeys(found):
            made = socket.socket(family, kind, protocol)
            sockets.append(made)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            made.bind(
                (address[0], sockets[0].getsockname()[1], *address[2:]) if len(sockets) > 1 else address
            )
            made.listen(_BACKLOG)
    except OSError as error:
        for each in sockets:
            each.close()
        what, hint = error.strerror or str(error), "choose another: --port N; 0 takes a free one"
        if error.errno == errno.EADDRINUSE:
            what = "somebody listens there already"
        elif error.errno in (errno.EACCES, errno.EPERM):
            what, hint = "that port is not for everybody", "choose one from 1024 on: --port N"
        elif isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            what, hint = "that is no address of this machine", "0.0.0.0 means all of its addresses"
        raise OdfError(f"cannot listen at {host}, port {port}: {what}", hint=hint) from None
    return sockets


def _allow_files(connections: int) -> None:
    """Raise the limit of file descriptors: each connection needs one, and another for the transferred
    file.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * connections + 256
    if soft != resource.RLIM_INFINITY and soft < wanted:
        best = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (best, hard))


async def _serve(
    serving: DatasetService,
    sockets: list[socket.socket],
    tls: ssl.SSLContext | None,
    given: argparse.Namespace,
) -> None:
    def line(text: str) -> None:
        with suppress(OSError, ValueError):
            sys.stderr.write(text + "\n")
            sys.stderr.flush()

    def failed(text: str) -> None:
        line(text if given.verbose else text.partition("\n")[0])

    front = RequestRouter(serving, line if given.verbose else None, failed)
    gate = ConnectionLimiter(front.answer, serving.limits, tls, logger=SILENT, access_log=None)
    loop = asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, _stop, serving)
    gate.listen(sockets)
    await asyncio.to_thread(_told, serving, given, _url(sockets[0], given.host, tls))
    await serving.stopping.wait()
    gate.stop_listening()
    for each in sockets:
        each.close()
    if not await front.drain(_GRACE_SECONDS) and not given.quiet:
        line("transfers that were running were broken off")
    await gate.close()
    serving.close()


def _stop(serving: DatasetService) -> None:
    if serving.stopping.is_set():  # second signal: exit at once
        os._exit(0)
    serving.stopping.set()


def _url(listening: socket.socket, host: str, tls: ssl.SSLContext | None) -> str:
    shown = f"[{host}]" if ":" in host else host or "localhost"
    return f"{'http' if tls is None else 'https'}://{shown}:{listening.getsockname()[1]}/"


def _told(serving: DatasetService, given: argparse.Namespace, url: str) -> None:
    number = len(serving.datasets())
    clear = url.startswith("http:") and not serving.limits.behind_proxy
    if serving.allow_push and clear and given.host not in _THIS_MACHINE and not given.quiet:
        sys.stderr.write("tokens travel unencrypted: --tls-cert and --tls-key prevent that\n")
    if given.json:
        facts = {"url": url, "datasets": number, "push": serving.allow_push, "pid": os.getpid()}
        sys.stdout.write(json.dumps(facts) + "\n")
        sys.stdout.flush()
    elif not given.quiet:
        what = f"{number} dataset{'' if number == 1 else 's'}"
        how = "push with a token" if serving.allow_push else "read-only"
        sys.stdout.write(f"serving {what} at {url} ({how}); ^C ends it\n")
        sys.stdout.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ^C during the remaining imports ends the process

    sys.exit(main())
