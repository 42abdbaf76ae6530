"""Clients of the stores of workspaces: buckets, and folders by ``file:`` URLs, with conditional writes."""

from __future__ import annotations

import hashlib
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import unquote, urlsplit

from odf_engine.base.atomic_files import file_lock
from odf_engine.base.config import Config
from odf_engine.base.files import fsync_folder, remove_temporary
from odf_engine.base.progress import Reporter
from odf_engine.errors import NotFound, ObjectUnchanged, SourceUnavailable, WriteConditionFailed, disk_hint
from odf_engine.net.bucket_client import BucketClient, StoredObject
from odf_engine.net.credentials import Credentials, RemoteAccess

if TYPE_CHECKING:
    from obstore import PutMode, UpdateVersion

_CHUNK_BYTES: Final = 1 << 20


class StoreClient(Protocol):
    """Requests to the objects below the URL of a store; methods and errors as of :class:`BucketClient`."""

    def read(self, name: str, max_bytes: int) -> StoredObject | None: ...

    def read_changed(self, name: str, max_bytes: int, known: UpdateVersion) -> StoredObject | None: ...

    def sign(self, names: Sequence[str], validity: timedelta) -> list[str] | None: ...

    def chunks(self, name: str, start: int, end: int) -> Iterator[bytes] | None: ...

    def write(
        self, name: str, data: bytes, mode: PutMode = "overwrite", writer: str = ""
    ) -> UpdateVersion: ...

    def upload(self, name: str, size: int, pieces: Iterable[bytes]) -> None: ...

    def list_all(self, below: str) -> dict[str, datetime]: ...

    def delete(self, names: Sequence[str]) -> None: ...


def open_client(url: str, config: Config, odf: Path) -> StoreClient:
    """Return the client for the URL of a store.

    Args:
        url: the URL.
        config: the settings.
        odf: the ``.odf`` folder of the workspace, with its credentials.

    Raises:
        UsageError: an unsupported URL.
    """
    if urlsplit(url).scheme == "file":
        return FolderClient(url)
    return BucketClient(url, RemoteAccess(config, Credentials(odf), Reporter()))


class FolderClient:
    """A folder with the requests of a bucket, for machines that share a file system, and for tests.

    Conditional writes hold a lock on a file of the folder.
    """

    def __init__(self, url: str) -> None:
        self._root = Path(unquote(urlsplit(url).path))
        self._url = url

    def create_folder(self) -> None:
        """Create the folder, unless it exists.

        Raises:
            NotFound: its parent does not exist.
        """
        with self._errors("the folder"):
            try:
                self._root.mkdir(exist_ok=True)
            except FileNotFoundError:
                self._require_root()

    def read(self, name: str, max_bytes: int) -> StoredObject | None:
        """Return an object, or more than ``max_bytes`` of its first bytes, or None if it does not exist."""
        with self._errors(name):
            try:
                with (self._root / name).open("rb") as file:
                    data = file.read(max_bytes + 1)
            except (FileNotFoundError, NotADirectoryError):
                self._require_root()
                return None
        return StoredObject(data, _version(data))

    def read_changed(self, name: str, max_bytes: int, known: UpdateVersion) -> StoredObject | None:
        """Return an object, unless it has the version ``known``."""
        stored = self.read(name, max_bytes)
        if stored is not None and stored.version == known:
            raise ObjectUnchanged(f"{name} has not changed")
        return stored

    def sign(self, names: Sequence[str], validity: timedelta) -> list[str] | None:
        """Return None: there are no URLs that other machines could read."""
        return None

    def chunks(self, name: str, start: int, end: int) -> Iterator[bytes] | None:
        """Yield the bytes of an object from ``start`` up to ``end``, or None if it does not exist."""
        path = self._root / name
        with self._errors(name):
            if not path.is_file():
                self._require_root()
                return None

        def read() -> Iterator[bytes]:
            with self._errors(name), path.open("rb") as file:
                left = end - start
                file.seek(start)
                while left > 0 and (piece := file.read(min(left, _CHUNK_BYTES))):
                    left -= len(piece)
                    yield piece

        return read()

    def write(self, name: str, data: bytes, mode: PutMode = "overwrite", writer: str = "") -> UpdateVersion:
        """Store a small object; return its version. ``writer`` is not stored: no response is lost."""
        if mode == "overwrite":
            self.upload(name, len(data), [data])
            return _version(data)
        with self._errors(name), file_lock(self._root / ".lock"):
            stored = self.read(name, max(len(data), 1 << 26))
            expected = None if mode == "create" else mode
            if (stored and stored.version) != expected:
                raise WriteConditionFailed(f"{name} was changed by another client", where=self._url)
            self.upload(name, len(data), [data])
        return _version(data)

    def upload(self, name: str, size: int, pieces: Iterable[bytes]) -> None:
        """Store an object atomically and durably."""
        path = self._root / name
        part = path.with_name(f".{uuid.uuid4().hex}.part")
        with self._errors(name):
            self._require_root()
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                with part.open("xb") as file:
                    for piece in pieces:
                        file.write(piece)
                    file.flush()
                    os.fsync(file.fileno())
                part.replace(path)
                fsync_folder(path.parent)
            finally:
                remove_temporary(part)

    def list_all(self, below: str) -> dict[str, datetime]:
        """Return the names of all objects below a folder, relative to it, and when they were stored."""
        folder = self._root / below
        with self._errors(below):
            self._require_root()
            return {
                path.relative_to(folder).as_posix(): datetime.fromtimestamp(path.stat().st_mtime, UTC)
                for path in folder.rglob("*")
                if path.is_file() and not path.name.startswith(".")
            }

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects; those that do not exist are ignored."""
        with self._errors("objects"):
            for name in names:
                (self._root / name).unlink(missing_ok=True)
            for folder in {(self._root / name).parents[1] for name in names if "/" in name}:
                if folder != self._root and not any(path.is_file() for path in folder.rglob("*")):
                    shutil.rmtree(folder, ignore_errors=True)

    def _require_root(self) -> None:
        if not self._root.is_dir():
            raise NotFound(
                "the folder of the store does not exist", where=self._url, hint="create the folder"
            )

    @contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            problem = f"{name} cannot be read or written: {error.strerror or error}"
            raise SourceUnavailable(problem, where=self._url, hint=disk_hint(error)) from error


def _version(data: bytes) -> UpdateVersion:
    return {"e_tag": hashlib.sha256(data).hexdigest()}
