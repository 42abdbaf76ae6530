"""Through which proxy an address is reached: what ``http_proxy``, ``https_proxy``, ``all_proxy`` and
``no_proxy`` of the environment say, and nothing else. What is on this machine is reached without one."""

from __future__ import annotations

import http.client
import ipaddress
import socket
from base64 import b64encode
from typing import NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies_environment, proxy_bypass

from odf_engine.errors import SourceUnavailable
from odf_engine.ingest.addresses import is_public


class Proxy(NamedTuple):
    """Where it listens, and what goes into ``Proxy-Authorization``, if anything."""

    host: str
    port: int
    login: str | None

    def __repr__(self) -> str:
        return f"Proxy({self.host}:{self.port})"


def proxy_for(parts: SplitResult) -> Proxy | None:
    """The proxy for a URL.

    Raises:
        SourceUnavailable: it is one that cannot be used.
    """
    host, known = parts.hostname or "", getproxies_environment()
    found = known.get(parts.scheme) or known.get("all")
    if not found or _is_here(host) or proxy_bypass(f"{host}:{parts.port or ''}", known):
        return None
    proxy = urlsplit(found if "://" in found else f"http://{found}")
    try:
        if proxy.scheme == "http" and proxy.hostname:
            login = f"{unquote(proxy.username or '')}:{unquote(proxy.password or '')}"
            header = "Basic " + b64encode(login.encode()).decode() if proxy.username else None
            return Proxy(proxy.hostname, proxy.port or 80, header)
    except ValueError:
        pass
    raise SourceUnavailable(
        f"the environment names a proxy for {parts.scheme}: that cannot be used",
        hint="only http: proxies can; set no_proxy for hosts that are reached without one",
    )


def open_tunnel(sock: socket.socket, proxy: Proxy, host: str, port: int) -> None:
    """Asks a proxy to connect to a host; afterwards what is sent goes there.

    Raises:
        OSError: it does not.
    """
    there = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    lines = [f"CONNECT {there} HTTP/1.1", f"Host: {there}"]
    if proxy.login is not None:
        lines.append(f"Proxy-Authorization: {proxy.login}")
    sock.sendall("\r\n".join([*lines, "", ""]).encode("ascii", "replace"))
    answer = http.client.HTTPResponse(sock, method="CONNECT")
    try:
        answer.begin()
    finally:
        answer.close()
    if answer.status != 200:
        raise ConnectionRefusedError(f"the proxy {proxy.host}:{proxy.port} answered {answer.status}")


def seems_inside(host: str) -> bool:
    """Whether a host is no public one by its looks: behind a proxy its address is not known here."""
    try:
        return not is_public(host)
    except ValueError:
        return "." not in host or host.rpartition(".")[2] in ("local", "localhost", "internal", "lan", "home")


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
