"""Process of ``odf serve``: options, sockets, connection limits, signals."""

from __future__ import annotations

import argparse
import asyncio
import errno
import json
import os
import re
import resource
import signal
import socket
import ssl
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Final

from aiohttp import web
from msgspec.structs import replace

from odf_engine.base.config import HOST_NAME, ServeConfig
from odf_engine.base.progress import Reporter
from odf_engine.base.terminal_text import escape_standard_streams
from odf_engine.errors import NotFound, OdfError, UsageError
from odf_engine.sql.query_text import one_line_summary
from odf_engine.sync.server.request_router import SILENT, RequestRouter
from odf_engine.sync.server.service import COMMON_HEADERS, DatasetService
from odf_engine.workspace.workspace import Workspace

HEADER_SECONDS: Final = 15.0
"""Maximum time in seconds for a request line and its headers, and between requests of a connection."""
_HANDSHAKE_SECONDS: Final = 10.0
_MAX_LINGERING: Final = 64
_RETRY_SECONDS: Final = 0.2
_METRICS: Final = "odf_engine.automation.alerts.metrics:collect_metrics"
"""Returns the metrics. It is imported by its name, when it is used, since it is above this package."""
_CATALOG: Final = "odf_engine.publication.catalog:CatalogBuilder"
"""Describes the datasets. It is imported as the metrics are."""
_RUN_JOB: Final = "odf_engine.worker.client:run_job"
_QUERY: Final = "odf_engine.jobs.query:Query"
"""Run a query with Spark. They are imported as the metrics are."""
_MAX_TITLE: Final = 60
_MAX_SPARK_BYTES: Final = 8 << 30
"""Maximum size of the rows of a query with Spark, which are stored on disk in a smaller form."""


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
        """``options`` are as for :class:`aiohttp.web.RequestHandler`."""
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
        for listener in sockets:
            listener.setblocking(False)
            self._start_task(self._accept(listener))

    def stop_listening(self) -> None:
        """Stop accepting connections, and close idle ones."""
        for task in self._tasks:
            task.cancel()
        self._server.pre_shutdown()

    async def close(self) -> None:
        """Close the remaining connections."""
        await self._server.shutdown(0.2)

    def _start_task(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, peer = await loop.sock_accept(listening)
            except OSError:  # no file descriptor is available, or the client has disconnected
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            address = peer[0] if isinstance(peer, tuple) else ""
            if refusal := self._rejection(address):
                self._reject(connection, refusal)
            else:
                self._open[address] += 1
                self._start_task(self._serve_connection(connection, address))

    def _rejection(self, address: str) -> str | None:
        if self._open.total() >= self._limits.connections:
            return "503 Service Unavailable"
        # Behind a proxy, all connections come from its address.
        if not self._limits.behind_proxy and self._open[address] >= self._limits.connections_each:
            return "429 Too Many Requests"
        return None

    def _reject(self, connection: socket.socket, refusal: str) -> None:
        with suppress(OSError):
            if self._tls is None:
                response = (
                    f"HTTP/1.1 {refusal}\r\nRetry-After: 5\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                )
                connection.send(response.encode())
                connection.shutdown(socket.SHUT_WR)
                if self._lingering < _MAX_LINGERING:  # closing immediately could discard the response
                    self._lingering += 1
                    asyncio.get_running_loop().call_later(1.0, self._close_lingering, connection)
                    return
        connection.close()

    def _close_lingering(self, connection: socket.socket) -> None:
        self._lingering -= 1
        connection.close()

    async def _serve_connection(self, connection: socket.socket, address: str) -> None:
        slot = _ConnectionSlot(self._open, address)
        try:
            with suppress(OSError):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: _Connection(self._server, slot),
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=_HANDSHAKE_SECONDS if self._tls else None,
            )
        except (OSError, TimeoutError):  # for example a failed TLS handshake
            slot.release()
            connection.close()
        except BaseException:
            slot.release()
            connection.close()
            raise


class _ConnectionSlot:
    """The slot of a connection in the counts of open connections; released once."""

    def __init__(self, counts: Counter[str], address: str) -> None:
        self._counts = counts
        self._address: str | None = address

    def release(self) -> None:
        if self._address is not None:
            self._counts[self._address] -= 1
            if not self._counts[self._address]:
                del self._counts[self._address]
            self._address = None


class _Server(web.Server):
    def __init__(self, handler: Any, **options: Any) -> None:
        super().__init__(handler, **options)
        self.options = options


class _Connection(web.RequestHandler):
    __slots__ = ("_place",)

    def __init__(self, server: _Server, slot: _ConnectionSlot) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), **server.options)
        self._place = slot

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self._place.release()

    def handle_error(self, *args: Any, **rest: Any) -> web.StreamResponse:
        # The response to an invalid request, which does not reach the handler.
        response = super().handle_error(*args, **rest)
        response.headers.update(COMMON_HEADERS)
        return response


_GRACE_SECONDS: Final = 8.0
"""Maximum time in seconds for running transfers after the stop of the server was requested."""
_BACKLOG: Final = 512
_HTTP_PORT: Final = 8080
_FLIGHT_PORT: Final = 32010
_THIS_MACHINE: Final = ("127.0.0.1", "::1", "localhost")


def main() -> int:
    """Run the program: options of ``odf serve``."""
    escape_standard_streams()
    arguments = _parse_arguments()
    try:
        _check_options(arguments)
        serving, tls = _prepare(arguments)
        sockets = _listen(arguments.host, arguments.port)
        _raise_file_limit(serving.limits.connections)
        if arguments.flight:
            asyncio.run(_serve_flight(serving, sockets, arguments))
        else:
            asyncio.run(_serve(serving, sockets, tls, arguments))
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


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="odf serve")
    parser.add_argument("--workspace", type=Path, required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--flight", action="store_true")
    parser.add_argument("--require-token", action="store_true")
    parser.add_argument("--port", type=int)
    parser.add_argument("--host-name", action="append", default=[])
    parser.add_argument("--dataset", action="append", default=[])
    parser.add_argument("--allow-push", action="store_true")
    parser.add_argument("--behind-proxy", action="store_true")
    parser.add_argument("--metrics", action="store_true")
    parser.add_argument("--tls-cert", type=Path)
    parser.add_argument("--tls-key", type=Path)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quiet", action="store_true")
    parser.add_argument("--verbose", action="store_true")
    return parser.parse_args()


def _check_options(arguments: argparse.Namespace) -> None:
    """Check that the options suit the protocol, and set the default port."""
    http_only = {
        "--allow-push": arguments.allow_push,
        "--metrics": arguments.metrics,
        "--behind-proxy": arguments.behind_proxy,
        "--host-name": arguments.host_name,
    }
    if arguments.flight and (unsuitable := [name for name, value in http_only.items() if value]):
        raise UsageError(f"{unsuitable[0]} does not apply to --flight", hint=f"omit {unsuitable[0]}")
    if arguments.require_token and not arguments.flight:
        raise UsageError("--require-token applies to --flight only", hint="use --flight --require-token")
    if arguments.port is None:
        arguments.port = _FLIGHT_PORT if arguments.flight else _HTTP_PORT


def _prepare(arguments: argparse.Namespace) -> tuple[DatasetService, ssl.SSLContext | None]:
    workspace = Workspace.find(explicit=arguments.workspace)
    limits = workspace.config.serve
    if arguments.behind_proxy:
        limits = replace(limits, behind_proxy=True)
    for name in arguments.host_name:
        if not re.fullmatch(HOST_NAME, name):
            raise UsageError(
                f"'{name}' is not a host name",
                hint="use a name without scheme and port, such as data.example.com",
            )
    limits = replace(limits, host_names=[*limits.host_names, *arguments.host_name])
    tls = _load_tls(arguments.tls_cert, arguments.tls_key)
    serving = DatasetService(
        workspace,
        limits=limits,
        allow_push=arguments.allow_push,
        patterns=arguments.dataset,
        tls=tls is not None,
        host=arguments.host,
    )
    serving.tokens.list_tokens()  # report damaged tokens now, not to a client
    if arguments.dataset and not arguments.allow_push and not serving.datasets():
        raise NotFound("no dataset matches", hint="list all datasets: odf list")
    return serving, tls


def _load_tls(cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise UsageError("TLS requires both files", hint="use --tls-cert FILE --tls-key FILE")
    for path in (cert, key):
        if not path.is_file():
            raise NotFound(f"file {path} not found")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)

    def no_passphrase() -> str:
        raise UsageError(f"{key} is protected by a passphrase", hint="use a key without a passphrase")

    try:
        context.load_cert_chain(cert, key, no_passphrase)
    except (ssl.SSLError, OSError) as error:
        reason = error.strerror or getattr(error, "reason", None) or error
        hint = "use PEM files, and the key of this certificate"
        raise UsageError(
            f"certificate and key cannot be used: {reason}", where=f"{cert}, {key}", hint=hint
        ) from None
    return context


def _listen(host: str, port: int) -> list[socket.socket]:
    """Return sockets for all addresses of a host, at one port; 0 selects a free port."""
    sockets: list[socket.socket] = []
    try:
        addresses = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in dict.fromkeys(addresses):
            listening = socket.socket(family, kind, protocol)
            sockets.append(listening)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listening.bind(
                (address[0], sockets[0].getsockname()[1], *address[2:]) if len(sockets) > 1 else address
            )
            listening.listen(_BACKLOG)
    except OSError as error:
        for listener in sockets:
            listener.close()
        reason, hint = error.strerror or str(error), "choose another port: --port N; 0 selects a free one"
        if error.errno == errno.EADDRINUSE:
            reason = "address already in use"
        elif error.errno in (errno.EACCES, errno.EPERM):
            reason, hint = "privileged port", "choose a port above 1023: --port N"
        elif isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            reason, hint = "not an address of this machine", "use 0.0.0.0 for all addresses"
        raise OdfError(f"cannot listen at {host}, port {port}: {reason}", hint=hint) from None
    return sockets


def _raise_file_limit(connections: int) -> None:
    """Raise the limit of file descriptors: each connection needs one, and another for the transferred
    file.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    required = 2 * connections + 256
    if soft != resource.RLIM_INFINITY and soft < required:
        limit = required if hard == resource.RLIM_INFINITY else min(required, hard)
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


async def _serve(
    serving: DatasetService,
    sockets: list[socket.socket],
    tls: ssl.SSLContext | None,
    arguments: argparse.Namespace,
) -> None:
    def write_line(text: str) -> None:
        with suppress(OSError, ValueError):
            sys.stderr.write(text + "\n")
            sys.stderr.flush()

    def report_failure(text: str) -> None:
        write_line(text if arguments.verbose else text.partition("\n")[0])

    on_request = write_line if arguments.verbose else None
    metrics = resolve_name(_METRICS) if arguments.metrics else None
    router = RequestRouter(
        serving,
        on_request,
        report_failure,
        metrics=metrics,
        make_catalog=lambda: resolve_name(_CATALOG)(),
    )
    limiter = ConnectionLimiter(router.handle, serving.limits, tls, logger=SILENT, access_log=None)
    _stop_at_signals(serving)
    limiter.listen(sockets)
    await asyncio.to_thread(_announce, serving, arguments, _url(sockets[0], arguments.host, tls))
    await serving.stopping.wait()
    limiter.stop_listening()
    for listener in sockets:
        listener.close()
    if not await router.drain(_GRACE_SECONDS) and not arguments.quiet:
        write_line("running transfers were cancelled")
    await limiter.close()
    serving.close()


async def _serve_flight(
    serving: DatasetService, sockets: list[socket.socket], arguments: argparse.Namespace
) -> None:
    """Serve Flight SQL until a signal. The sockets have shown that the address is free."""
    from odf_engine.sync.server.flight.flight_server import FlightSqlServer

    _stop_at_signals(serving)
    scheme = "grpc" if arguments.tls_cert is None else "grpc+tls"
    port = sockets[0].getsockname()[1]
    for listener in sockets:
        listener.close()
    host = f"[{arguments.host}]" if ":" in arguments.host else arguments.host or "localhost"
    location = f"{scheme}://{host}:{port}"
    tls = (arguments.tls_cert.read_bytes(), arguments.tls_key.read_bytes()) if arguments.tls_cert else None
    try:
        server = FlightSqlServer(
            serving,
            partial(_run_with_spark, serving.workspace.folder) if serving.limits.spark else None,
            location,
            tls,
            require_token=arguments.require_token,
            is_verbose=arguments.verbose,
        )
    except OSError as error:  # errors of Arrow
        raise OdfError(
            f"cannot listen at {location}: {error}", hint="choose another port: --port N"
        ) from None
    _announce(serving, arguments, location)
    await serving.stopping.wait()
    await asyncio.to_thread(server.stop)
    serving.close()


def _run_with_spark(
    workspace: Path, sql: str, datasets: list[str], limit: int, path: Path, reporter: Reporter
) -> bool:
    """Run a query with Spark in the worker of the workspace, see :data:`SparkQuery`."""
    run_job, query = resolve_name(_RUN_JOB), resolve_name(_QUERY)
    output = str(path.absolute())
    request = query(sql=sql, readable=datasets, limit=limit, max_bytes=_MAX_SPARK_BYTES, output=output)
    title = one_line_summary(sql, _MAX_TITLE)
    result, _ = run_job(workspace, request, title, reporter, ends_with_client=True)
    return bool(result.truncated)


def _stop_at_signals(serving: DatasetService) -> None:
    # The loop also notices signals that the system delivers to other threads.
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, _stop, serving)


def _stop(serving: DatasetService) -> None:
    if serving.stopping.is_set():  # second signal: exit immediately
        os._exit(0)
    serving.stopping.set()


def _url(listening: socket.socket, host: str, tls: ssl.SSLContext | None) -> str:
    host_text = f"[{host}]" if ":" in host else host or "localhost"
    return f"{'http' if tls is None else 'https'}://{host_text}:{listening.getsockname()[1]}/"


def _announce(serving: DatasetService, arguments: argparse.Namespace, url: str) -> None:
    number = len(serving.datasets())
    is_unencrypted = url.startswith(("http:", "grpc:")) and not serving.limits.behind_proxy
    has_tokens = serving.allow_push or arguments.require_token
    if has_tokens and is_unencrypted and arguments.host not in _THIS_MACHINE and not arguments.quiet:
        sys.stderr.write("warning: tokens are sent unencrypted; use --tls-cert and --tls-key\n")
    if arguments.json:
        facts = {"url": url, "datasets": number, "push": serving.allow_push, "pid": os.getpid()}
        sys.stdout.write(json.dumps(facts) + "\n")
        sys.stdout.flush()
    elif not arguments.quiet:
        datasets_text = f"{number} dataset{'' if number == 1 else 's'}"
        mode = "push with a token" if serving.allow_push else "read-only"
        mode += ", with a token" if arguments.require_token else ""
        sys.stdout.write(f"serving {datasets_text} at {url} ({mode}); press ^C to stop\n")
        sys.stdout.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ^C during the remaining imports ends the process

    sys.exit(main())
