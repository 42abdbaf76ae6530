"""Datasets in IPFS, read through an HTTP gateway: that of this machine, or any that the settings name.

The gateway also resolves ``ipns://``, be it a key or a name with dots (DNSLink). It is not believed any more
than other servers: what it sends is checked by the dataset's own hashes.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from odf_engine.sync.http import HttpRemote
from odf_engine.sync.places import Access


class IpfsRemote(HttpRemote):
    """A dataset behind a gateway, which answers 500 for a file that a folder does not have."""

    no_head = (500,)


def ipfs_remote(url: str, access: Access) -> IpfsRemote:
    """What reads ``ipfs://CID/PATH/`` or ``ipns://NAME/PATH/``."""
    parts = urlsplit(url)
    gateway = access.config.sync.ipfs_gateway.rstrip("/")
    return IpfsRemote(url, access, at=f"{gateway}/{parts.scheme}/{parts.netloc}{parts.path}")
