"""Where a connection may go: for a dataset that somebody else wrote, to public addresses only.

A manifest from elsewhere must not reach what listens on this machine or in the network around it. A
name is resolved once, each address is looked at, and the connection goes to that very address, so
that a name which says something else a moment later gains nothing.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import Final

from odf_engine.errors import SourceUnavailable

# Besides what the library knows: protocol assignments, and the host's own service in one large cloud.
_SPECIAL: Final = tuple(map(ipaddress.ip_network, ("192.0.0.0/24", "192.88.99.0/24", "168.63.129.16/32")))
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")
_UNICAST: Final = ipaddress.ip_network("2000::/3")


def connect(host: str, port: int, timeout: float | None, *, public_only: bool) -> socket.socket:
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
    allowed = [address for *_, address in found if is_public(str(address[0]))]
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


def check_public(host: str) -> None:
    """Looks at a host that another library is going to connect to.

    Raises:
        SourceUnavailable: one of its addresses is not public.
        OSError: the host is not known.
    """
    for *_, address in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM):
        if not is_public(str(address[0])):
            raise _refused(host, str(address[0]))


def is_public(address: str) -> bool:
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
        return is_public(str(inner))
    return ip in _UNICAST and ip.is_global and ip.teredo is None


def _refused(host: str, address: str) -> SourceUnavailable:
    there = address if address == host else f"{host} is {address}"
    return SourceUnavailable(
        f"{there}, which is no public address: a dataset that somebody else wrote may not go there",
        hint="if you know that it should: odf trust NAME --private-network",
    )
