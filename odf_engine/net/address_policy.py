"""Address policy against server-side request forgery (SSRF): which addresses a connection may reach."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable
from typing import Final, Self
from urllib.parse import urlsplit

from odf_engine.errors import SourceUnavailable

# Networks that `ipaddress` calls global: protocol assignments, and the host's service in one large cloud.
_SPECIAL: Final = tuple(map(ipaddress.ip_network, ("192.0.0.0/24", "192.88.99.0/24", "168.63.129.16/32")))
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")
_UNICAST: Final = ipaddress.ip_network("2000::/3")
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
Resolver = Callable[[str], list[str]]
"""Returns the numeric addresses of a host."""


class AddressPolicy:
    """Allows every address. Base class of the other policies.

    Attributes:
        allows_proxies: whether the proxies of the environment may be used: a proxy resolves names itself, so
            the address that it connects to cannot be checked.
    """

    allows_proxies = True

    def select(self, host: str, port: int, resolve: Resolver) -> list[str]:
        """Return the addresses of a host that may be reached, in the order of the resolver.

        Raises:
            SourceUnavailable: the policy allows none of them.
            OSError: the host name cannot be resolved.
        """
        return resolve(host)

    def check_name(self, host: str, port: int) -> None:
        """Check a host that a proxy resolves.

        Raises:
            SourceUnavailable: its name is one of a private network.
        """


class PublicAddresses(AddressPolicy):
    """Allows public addresses only: for sources that an untrusted author wrote."""

    allows_proxies = False

    def select(self, host: str, port: int, resolve: Resolver) -> list[str]:
        """Return the public addresses of a host; see :meth:`AddressPolicy.select`."""
        addresses = resolve(host)
        allowed = [address for address in addresses if is_public_address(address)]
        if not allowed:
            raise _not_public(host, addresses[0])
        return allowed


class HomeNetwork(AddressPolicy):
    """Rejects redirects from a public server into a private network.

    The user named one server, the home. Other servers may have private addresses only if home has no public
    address.
    """

    def __init__(self, host: str, port: int) -> None:
        self._home = host, port

    @classmethod
    def of(cls, url: str) -> Self:
        """Return the policy for an http or https URL."""
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:  # invalid: no connection is made
            port = None
        return cls(parts.hostname or "", port or _DEFAULT_PORTS.get(parts.scheme, 0))

    def select(self, host: str, port: int, resolve: Resolver) -> list[str]:
        """Return the allowed addresses of a host; see :meth:`AddressPolicy.select`."""
        addresses = resolve(host)
        if (host, port) == self._home or not any(map(is_public_address, resolve(self._home[0]))):
            return addresses
        allowed = [address for address in addresses if is_public_address(address)]
        if not allowed:
            raise _private_target(host if host == addresses[0] else f"{host} ({addresses[0]})")
        return allowed

    def check_name(self, host: str, port: int) -> None:
        """Check a host that a proxy resolves; see :meth:`AddressPolicy.check_name`."""
        if (host, port) != self._home and looks_private(host) and not looks_private(self._home[0]):
            raise _private_target(host)


def require_public_host(host: str) -> None:
    """Check a host that another library connects to.

    Raises:
        SourceUnavailable: one of its addresses is not public.
        OSError: the host name cannot be resolved.
    """
    for *_, address in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM):
        if not is_public_address(str(address[0])):
            raise _not_public(host, str(address[0]))


def is_public_address(address: str) -> bool:
    """Return whether a numeric address is globally reachable.

    Loopback, link-local, private, shared, multicast and other special addresses are not.
    """
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv4Address):
        special = ip.is_multicast or ip.is_reserved or any(ip in network for network in _SPECIAL)
        return ip.is_global and not special
    # An address that embeds an IPv4 address is routed to that one.
    inner = ip.ipv4_mapped or ip.sixtofour
    if inner is None and ip in _NAT64:
        inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
    if inner is not None:
        return is_public_address(str(inner))
    return ip in _UNICAST and ip.is_global and ip.teredo is None


def looks_private(host: str) -> bool:
    """Return whether a host is private by its name alone: behind a proxy its address is unknown."""
    try:
        return not is_public_address(host)
    except ValueError:
        return "." not in host or host.rpartition(".")[2] in ("local", "localhost", "internal", "lan", "home")


def _not_public(host: str, address: str) -> SourceUnavailable:
    target = address if address == host else f"{host} ({address})"
    return SourceUnavailable(
        f"{target} is not a public address: access by an untrusted dataset denied",
        hint="to allow access, run odf trust NAME --private-network",
    )


def _private_target(target: str) -> SourceUnavailable:
    return SourceUnavailable(
        f"redirect from a public server to {target} in a private network is not followed",
        hint="report the redirect to the operator of the server",
    )
