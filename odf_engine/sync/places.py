"""From an address to what speaks with it: one class a protocol, imported when it is needed."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

from odf_engine.errors import Unsupported
from odf_engine.progress import Reporter
from odf_engine.sync.remote import RemoteDataset, Repository
from odf_engine.workspace.config import Config
from odf_engine.workspace.credentials import Credentials


class Access(NamedTuple):
    """What is needed to speak with other places; ``reporter`` says when to stop."""

    config: Config
    credentials: Credentials
    reporter: Reporter


def open_remote(url: str, access: Access) -> RemoteDataset:
    """What reads (and perhaps writes) the dataset at a URL; nothing is asked yet.

    Args:
        url: as ``odf_engine.workspace.remotes.checked_url`` gives it.
        access: settings, logins, and who wants to stop.
    """
    match urlsplit(url).scheme:
        case "file":
            from odf_engine.sync.folder import FolderRemote

            return FolderRemote(url)
        case "http" | "https":
            from odf_engine.sync.http import HttpRemote

            return HttpRemote(url, access)
        case "odf+http" | "odf+https":
            from odf_engine.sync.smart import SmartRemote

            return SmartRemote(url, access)
        case "s3" | "s3+http" | "s3+https":
            from odf_engine.sync.s3 import S3Remote

            return S3Remote(url, access)
        case "ipfs" | "ipns":
            from odf_engine.sync.ipfs import ipfs_remote

            return ipfs_remote(url, access)
        case scheme:
            raise Unsupported(f"addresses with {scheme}: are not known")


def open_repository(url: str, access: Access) -> Repository:
    """What lists the datasets of a repository."""
    match urlsplit(url).scheme:
        case "file":
            from odf_engine.sync.folder import FolderRepository

            return FolderRepository(url)
        case "odf+http" | "odf+https" | "http" | "https":
            from odf_engine.sync.listing import ServerRepository

            return ServerRepository(url, access)
        case "s3" | "s3+http" | "s3+https":
            from odf_engine.sync.s3 import S3Repository

            return S3Repository(url, access)
        case scheme:
            raise Unsupported(
                f"what lies at {scheme}: cannot be listed", hint="name a dataset by its whole address"
            )
