"""Sockets to remote hosts: name resolution, address policy, proxies, TLS and cancellation."""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import threading
from base64 import b64encode
from contextlib import suppress
from functools import cached_property
from typing import Final, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies_environment, proxy_bypass
from weakref import WeakSet

from odf_engine.base.progress import Reporter
from odf_engine.errors import SourceUnavailable
from odf_engine.net.address_policy import AddressPolicy
from odf_engine.net.download import run_cancellable

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


class Proxy(NamedTuple):
    """An HTTP proxy; ``login`` is the value of ``Proxy-Authorization``, if there is one."""

    host: str
    port: int
    login: str | None

    def __repr__(self) -> str:
        return f"Proxy({self.host}:{self.port})"


class Connector:
    """Opens sockets, and closes them on cancellation; safe from several threads.

    Each name is resolved once, so that its addresses cannot change between the check and the connection.

    Args:
        policy: the addresses that may be reached.
        connect_timeout: seconds for each address of a host.
        reporter: reports the cancellation.
    """

    def __init__(self, policy: AddressPolicy, connect_timeout: float, reporter: Reporter) -> None:
        self._policy = policy
        self._timeout = connect_timeout
        self._reporter = reporter
        self._addresses: dict[str, list[str]] = {}
        self._sockets: WeakSet[socket.socket] = WeakSet()
        self._lock = threading.Lock()

    def select_proxy(self, parts: SplitResult) -> Proxy | None:
        """Return the proxy of the environment for a URL, if the policy allows one.

        Raises:
            SourceUnavailable: the proxy is of a kind that is not supported.
        """
        url = find_proxy_url(parts) if self._policy.allows_proxies else None
        if url is None:
            return None
        proxy = urlsplit(url)
        login = f"{unquote(proxy.username or '')}:{unquote(proxy.password or '')}"
        header = "Basic " + b64encode(login.encode()).decode() if proxy.username else None
        return Proxy(proxy.hostname or "", proxy.port or 80, header)

    def connect(
        self, host: str, port: int, proxy: Proxy | None = None, *, tunnel: bool = False
    ) -> socket.socket:
        """Return a TCP connection to a host, or to the proxy for it.

        Args:
            tunnel: request a tunnel to the host from the proxy.

        Raises:
            SourceUnavailable: the policy forbids the host.
            OSError: the host name cannot be resolved, no address accepts, or the proxy refuses.
            Cancelled: immediately.
        """
        if proxy is None:
            return self._connect(host, self._policy.select(host, port, self._resolve), port)
        self._policy.check_name(host, port)
        sock = self._connect(proxy.host, self._resolve(proxy.host), proxy.port)
        if tunnel:
            try:
                _open_tunnel(sock, proxy, host, port)
            except BaseException:
                sock.close()
                raise
        return sock

    @cached_property
    def tls_context(self) -> ssl.SSLContext:
        """TLS context that verifies certificates against the system's or ``SSL_CERT_FILE``."""
        register = self.register

        class RegisteredSocket(ssl.SSLSocket):
            def do_handshake(self, block: bool = False) -> None:
                register(self)
                super().do_handshake(block)

        context = ssl.create_default_context()
        context.sslsocket_class = RegisteredSocket
        return context

    def register(self, sock: socket.socket) -> None:
        """Include a socket in :meth:`abort`.

        Raises:
            Cancelled: the cancellation has already happened.
        """
        with self._lock:
            self._sockets.add(sock)
        self._reporter.raise_if_cancelled()

    def abort(self) -> None:
        """Shut down all sockets, in use or idle: reads and writes in other threads end immediately."""
        with self._lock:
            sockets = list(self._sockets)
        for sock in sockets:
            with suppress(OSError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def _resolve(self, host: str) -> list[str]:
        if (known := self._addresses.get(host)) is None:

            def look_up() -> list[str]:
                name = "localhost" if host.endswith(".localhost") else host  # RFC 6761
                addresses = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
                return list(dict.fromkeys(str(address[0]) for *_, address in addresses))

            addresses = run_cancellable(look_up, lambda: None, self._reporter)
            known = self._addresses.setdefault(host, addresses)
        return known

    def _connect(self, host: str, addresses: list[str], port: int) -> socket.socket:
        failure: OSError = OSError(f"{host} has no address")
        for address in addresses:
            sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
            try:
                self.register(sock)
                sock.settimeout(self._timeout)
                sock.connect((address, port))
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._reporter.raise_if_cancelled()
                return sock
            except OSError as error:
                failure = error
                sock.close()
            except BaseException:
                sock.close()
                raise
        self._reporter.raise_if_cancelled()
        raise failure


def find_proxy_url(parts: SplitResult) -> str | None:
    """Return the proxy of the environment for a URL, with its login, or None if absent.

    Raises:
        SourceUnavailable: the proxy is of a kind that is not supported.
    """
    host, proxies = parts.hostname or "", getproxies_environment()
    url = proxies.get(parts.scheme) or proxies.get("all")
    if not url or _is_loopback(host) or proxy_bypass(f"{host}:{parts.port or ''}", proxies):
        return None
    url = url if "://" in url else f"http://{url}"
    with suppress(ValueError):
        proxy = urlsplit(url)
        _ = proxy.port  # raises ValueError if it is invalid
        if proxy.scheme == "http" and proxy.hostname:
            return url
    raise SourceUnavailable(
        f"unsupported proxy for {parts.scheme}: in the environment",
        hint="use an http: proxy, or set no_proxy for hosts that need no proxy",
    )


def port_of(parts: SplitResult) -> int:
    """Return the port of an HTTP URL.

    Raises:
        ValueError: it is no number from 0 to 65535.
    """
    return parts.port or _DEFAULT_PORTS.get(parts.scheme, 0)


def _open_tunnel(sock: socket.socket, proxy: Proxy, host: str, port: int) -> None:
    """Make a proxy connect to a host (RFC 9110, section 9.3.6)."""
    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
    if proxy.login is not None:
        lines.append(f"Proxy-Authorization: {proxy.login}")
    sock.sendall("\r\n".join([*lines, "", ""]).encode("ascii", "replace"))
    response = http.client.HTTPResponse(sock, method="CONNECT")
    try:
        response.begin()
    finally:
        response.close()
    if response.status != 200:
        raise ConnectionRefusedError(f"proxy {proxy.host}:{proxy.port} returned {response.status}")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
