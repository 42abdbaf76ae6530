"""Opens remotes and repositories by their URLs."""

from __future__ import annotations

from urllib.parse import urlsplit

from odf_engine.errors import Unsupported
from odf_engine.net.credentials import RemoteAccess
from odf_engine.storage.refs import HEAD
from odf_engine.sync.remotes.base import RemoteDataset, Repository
from odf_engine.sync.remotes.folder_remote import FolderRemote, FolderRepository
from odf_engine.sync.remotes.http_remote import HttpRemote, ServerRepository, ipfs_remote
from odf_engine.sync.remotes.object_store_remote import ObjectStoreRemote, ObjectStoreRepository


def open_remote(url: str, access: RemoteAccess, reference: str = HEAD) -> RemoteDataset:
    """Return the remote dataset at a URL, without any request.

    Args:
        url: normalized by ``odf_engine.workspace.remotes.normalize_url``.
        access: settings, credentials and cancellation.
        reference: its head, or the branch whose chain is read and written instead.

    Raises:
        Unsupported: an unknown URL scheme.
    """
    match urlsplit(url).scheme:
        case "file":
            return FolderRemote(url, reference)
        case "http" | "https":
            return HttpRemote(url, access, reference=reference)
        case "odf+http" | "odf+https":
            # The smart protocol has no references. Its servers have the simple one too.
            if reference != HEAD:
                return HttpRemote(url, access, url.removeprefix("odf+"), reference)
            from odf_engine.sync.smart.smart_remote import SmartRemote  # deferred: it imports aiohttp

            return SmartRemote(url, access)
        case "s3" | "s3+http" | "s3+https" | "gs" | "az":
            return ObjectStoreRemote(url, access, reference)
        case "ipfs" | "ipns" if reference == HEAD:
            return ipfs_remote(url, access)
        case "ipfs" | "ipns":
            raise Unsupported("IPFS has no branches", where=url, hint="omit the branch")
        case scheme:
            raise Unsupported(f"unsupported URL scheme '{scheme}:'")


def open_repository(url: str, access: RemoteAccess) -> Repository:
    """Return the repository at a URL, which lists datasets.

    Raises:
        Unsupported: a URL scheme without listing.
    """
    match urlsplit(url).scheme:
        case "file":
            return FolderRepository(url)
        case "odf+http" | "odf+https" | "http" | "https":
            return ServerRepository(url, access)
        case "s3" | "s3+http" | "s3+https" | "gs" | "az":
            return ObjectStoreRepository(url, access)
        case scheme:
            raise Unsupported(
                f"repositories at {scheme}: cannot be listed", hint="use the full URL of a dataset"
            )
