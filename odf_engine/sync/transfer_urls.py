"""URLs that a server tells for reading or writing objects, as far as one may follow them.

They come from a stranger. They may lead to another origin, such as a bucket, but never with our logins, nor
from https to http; which addresses may be connected to is known to :mod:`odf_engine.sync.connections`.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple
from urllib.parse import urlsplit, urlunsplit

from odf_engine.errors import BadData
from odf_engine.sync.messages import TransferUrl, said
from odf_engine.workspace.remotes import origin_of

_LONGEST: Final = 8192
_MOST_HEADERS: Final = 64
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_OURS: Final = frozenset({"expect", "trailer"})


class Transfer(NamedTuple):
    """Where an object is read from or written to.

    Attributes:
        url, headers: as the server said.
        own: whether it is the server's own origin.
    """

    url: str
    headers: dict[str, str]
    own: bool


def transfer_of(told: TransferUrl, base: str) -> Transfer:
    """What a server at ``base`` told, checked.

    Raises:
        BadData: it is no URL to follow.
    """
    url = _checked(told.url, base)
    return Transfer(url, _headers(told, base), origin_of(url) == origin_of(base))


def _checked(url: str, base: str) -> str:
    if len(url) > _LONGEST or not url.isascii() or not url.isprintable() or " " in url:
        raise _refused("it is malformed", url, base)
    try:
        parts, ours = urlsplit(url), urlsplit(base)
        port, host = parts.port, parts.hostname
    except ValueError:
        raise _refused("it is malformed", url, base) from None
    if parts.scheme not in ("http", "https") or not host:
        raise _refused("it is no http: or https: address", url, base)
    if "@" in parts.netloc:
        raise _refused("it has a login in it", url, base)
    if ours.scheme == "https" and parts.scheme == "http":
        # Older servers behind a proxy do not know that they are reached by https.
        if host != ours.hostname or port not in (None, 80, ours.port):
            raise _refused("it leads from https to http", url, base)
        parts = parts._replace(scheme="https", netloc=ours.netloc)
    return urlunsplit(parts._replace(fragment=""))


def _headers(told: TransferUrl, base: str) -> dict[str, str]:
    if len(told.headers) > _MOST_HEADERS:
        raise _refused("too many headers go with it", told.url, base)
    headers: dict[str, str] = {}
    for row in told.headers:
        if not _NAME.fullmatch(row.name) or not _VALUE.fullmatch(row.value) or len(row.value) > _LONGEST:
            raise _refused("a header that goes with it is malformed", told.url, base)
        if row.name.lower() not in _OURS:
            headers[row.name] = row.value
    return headers


def _refused(why: str, url: str, base: str) -> BadData:
    # What stands behind ? may be a signature.
    shown = said(url.partition("?")[0].rpartition("@")[2])
    return BadData(f"the server tells to go to {shown}, which is refused: {why}", where=base)
