"""Address policy against SSRF: which addresses a connection may reach, also through proxies."""

from __future__ import annotations

import http.client
import ipaddress
import socket
from base64 import b64encode
from typing import Final, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies_environment, proxy_bypass

from odf_engine.errors import SourceUnavailable

# Besides what the library knows: protocol assignments, and the host's own service in one large cloud.
_SPECIAL: Final = tuple(map(ipaddress.ip_network, ("192.0.0.0/24", "192.88.99.0/24", "168.63.129.16/32")))
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")
_UNICAST: Final = ipaddress.ip_network("2000::/3")


def connect_tcp(host: str, port: int, timeout: float | None, *, public_only: bool) -> socket.socket:
    """A connected TCP socket.

    Args:
        timeout: seconds for each address of the host.
        public_only: refuse loopback, link-local, private, shared and other special addresses.

    Raises:
        SourceUnavailable: ``public_only``, and the host has no public address.
        OSError: the host is not known, or nothing answers there.
    """
    if not public_only:
        return socket.create_connection((host, port), timeout)
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    allowed = [address for *_, address in found if is_public_address(str(address[0]))]
    if not allowed:
        raise _refused(host, str(found[0][4][0]))
    failure: OSError | None = None
    for address in allowed:
        try:
            return socket.create_connection((str(address[0]), port), timeout)
        except OSError as error:
            failure = error
    assert failure is not None
    raise failure


def require_public_host(host: str) -> None:
    """Looks at a host that another library is going to connect to.

    Raises:
        SourceUnavailable: one of its addresses is not public.
        OSError: the host is not known.
    """
    for *_, address in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM):
        if not is_public_address(str(address[0])):
            raise _refused(host, str(address[0]))


def is_public_address(address: str) -> bool:
    """Whether a numeric address is one of the internet at large."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv4Address):
        special = ip.is_multicast or ip.is_reserved or any(ip in network for network in _SPECIAL)
        return ip.is_global and not special
    # Addresses that carry an IPv4 address lead to that one.
    inner = ip.ipv4_mapped or ip.sixtofour
    if inner is None and ip in _NAT64:
        inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
    if inner is not None:
        return is_public_address(str(inner))
    return ip in _UNICAST and ip.is_global and ip.teredo is None


def _refused(host: str, address: str) -> SourceUnavailable:
    there = address if address == host else f"{host} is {address}"
    return SourceUnavailable(
        f"{there}, which is no public address: a dataset that somebody else wrote may not go there",
        hint="if you know that it should: odf trust NAME --private-network",
    )


class Proxy(NamedTuple):
    """Where it listens, and what goes into ``Proxy-Authorization``, if anything."""

    host: str
    port: int
    login: str | None

    def __repr__(self) -> str:
        return f"Proxy({self.host}:{self.port})"


def select_proxy(parts: SplitResult) -> Proxy | None:
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


def looks_private(host: str) -> bool:
    """Whether a host is no public one by its looks: behind a proxy its address is not known here."""
    try:
        return not is_public_address(host)
    except ValueError:
        return "." not in host or host.rpartition(".")[2] in ("local", "localhost", "internal", "lan", "home")


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
