"""Remote datasets in folders."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from odf_engine.base.atomic_files import make_folder
from odf_engine.base.files import fsync_file, fsync_folder, remove_temporary
from odf_engine.chain.state import ChainState
from odf_engine.errors import BadData, MalformedBlock, NotFound, OdfError, SourceUnavailable
from odf_engine.identity.multiformats import Multihash
from odf_engine.identity.names import is_valid_name
from odf_engine.storage.object_store import LocalObjectStore, remove_stale_files
from odf_engine.storage.refs import HEAD, RefStore
from odf_engine.sync.remotes.base import (
    BlockwiseRemote,
    ObjectFile,
    ObjectKind,
    ObjectNames,
    RepositoryEntry,
    read_verified_chunks,
    require_empty_target,
)
from odf_engine.sync.remotes.repository_index import (
    RepositoryRow,
    describe_state,
    list_entry,
    lock_index,
    read_index,
    write_index,
)

_CHUNK: Final = 1 << 20
_DAY: Final = 86_400.0
_LATER: Final = "; then push again: complete files are not sent again"
_HINTS: Final = {
    errno.ENOSPC: "free disk space" + _LATER,
    errno.EDQUOT: "free disk space" + _LATER,
    errno.EROFS: "mount it with write access, or push to another location",
    errno.EACCES: "check the owner and the permissions of the folder",
    errno.EPERM: "check the owner and the permissions of the folder",
    errno.ENOENT: "create or mount the parent folder: only folders of datasets and accounts are created",
    errno.ENOTDIR: "check the path: it is a file, not a folder",
    errno.EEXIST: "check the path: it is a file, not a folder",
}


def folder_of(url: str) -> Path:
    """Return the folder of a ``file:`` URL."""
    return Path(unquote(urlsplit(url).path))


class FolderRemote(BlockwiseRemote):
    """A dataset in a folder, which can be read and written.

    Args:
        url: its URL.
        reference: its head, or a branch.
        is_durable: whether objects remain after a power failure, and not only after a crash of the program.
    """

    def __init__(self, url: str, reference: str = HEAD, *, is_durable: bool = True) -> None:
        self.url = url
        self._head_name = reference
        self._is_durable = is_durable
        self.folder = _find_dataset(folder_of(url))
        self._refs = RefStore(self.folder / "refs")
        self._names = ObjectNames()
        # Not in the folders of objects: finding old temporary files would list all objects.
        self._staging = LocalObjectStore(self.folder / "info")

    def head(self) -> Multihash | None:
        """Return the newest block, or None if there is no dataset yet."""
        return self.reference(self._head_name)

    def reference(self, name: str) -> Multihash | None:
        """Return the block of a reference, or None if it does not exist."""
        try:
            # Reading a pipe may never end.
            if not (self.folder / "refs" / name).is_file():
                return None
            block = self._refs.get(name)
            self._names.learn((self._refs.read(name) or "").lstrip())
            return block
        except MalformedBlock as error:
            raise BadData(error.message, where=self.url, hint=error.hint) from None
        except NotFound as error:
            raise SourceUnavailable(error.message, where=self.url) from None
        except OSError as error:
            raise self._unreadable(f"refs/{name}", error) from error

    def read(self, kind: ObjectKind, object_hash: Multihash, at_most: int) -> bytes:
        """Return a small object."""
        data = b"".join(self._read(kind, object_hash, 0, at_most + 1))
        if len(data) > at_most:
            raise BadData(f"{kind}/{object_hash} has more than {at_most:,} bytes", where=self.url)
        return data

    def chunks(self, file: ObjectFile, start: int = 0) -> Iterator[bytes]:
        """Yield a large object in chunks, from byte ``start``."""
        return self._read(file.kind, file.hash, start, file.size + 1 - start)

    def close(self) -> None:
        """Do nothing: there are no connections."""

    def holds(self, kind: ObjectKind, object_hash: Multihash, size: int | None = None) -> bool:
        """Return whether the object exists, with this size."""
        stored_size = self.size(kind, object_hash)
        return stored_size is not None and size in (None, stored_size)

    def size(self, kind: ObjectKind, object_hash: Multihash) -> int | None:
        """Return the size of an object in bytes, or None if it does not exist."""
        objects = self._objects(kind)
        try:
            name = next(filter(objects.exists, self._names.candidates(object_hash)), None)
            return None if name is None else objects.size(name)
        except OSError as error:
            raise self._unreadable(f"{kind}/{object_hash}", error) from error

    def write(self, kind: ObjectKind, object_hash: Multihash, data: bytes) -> None:
        """Store a small object durably, unless it exists with this size."""
        if self.holds(kind, object_hash, len(data)):
            return
        with self._writing(), self._staged(kind, object_hash) as staged:
            staged.write_bytes(data)

    def upload(self, file: ObjectFile, source: Path, on_progress: Callable[[int], None]) -> None:
        """Store a large object durably, if its bytes match its hash."""
        sent = 0
        with self._writing(), self._staged(file.kind, file.hash) as staged, staged.open("xb") as write:
            for piece in read_verified_chunks(file, source):
                write.write(piece)
                sent += len(piece)
                on_progress(sent)

    def set_ref(self, name: str, block: Multihash) -> None:
        """Set a reference to a block; an existing one is not changed."""
        with self._writing(), self._refs.locked():
            if self._refs.read(name) is None:
                self._refs.compare_and_set(name, None, block)

    def replace_ref(self, name: str, block: Multihash) -> None:
        """Set a reference to a block; an existing one is changed."""
        with self._writing(), self._refs.locked():
            self._refs.compare_and_set(name, self._refs.get(name), block)

    def set_head(self, expected: Multihash | None, new: Multihash) -> None:
        """Move the head, under the lock that concurrent programs use.

        Raises:
            NotSynced: the head has moved; a power failure may revert it.
        """
        with self._writing():
            self._refs.compare_and_set(self._head_name, expected, new, is_commit=True)
        with suppress(OSError):  # temporary files of killed processes
            for folder in (self._staging.folder, self._refs.folder):
                remove_stale_files(folder, _DAY)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Create the folder if needed; translate disk errors."""
        try:
            for folder in (self.folder.parent, self.folder):  # not all parents: the path may be wrong
                if not folder.is_dir():
                    make_folder(folder)
            if not (self.folder / "refs").is_dir():
                require_empty_target(os.listdir(self.folder), self.url)  # noqa: PTH208
            yield
        except MalformedBlock as error:
            raise BadData(error.message, where=self.url, hint=error.hint) from None
        except OSError as error:
            problem = f"the folder cannot be written to: {(error.strerror or str(error)).lower()}"
            hint = _HINTS.get(error.errno or 0, "check the drive" + _LATER)
            raise OdfError(problem, where=self.url, hint=hint) from error

    @contextmanager
    def _staged(self, kind: ObjectKind, object_hash: Multihash) -> Iterator[Path]:
        """Yield a temporary file, which gets the name of the object at the end."""
        objects = self._objects(kind)
        staged = self._staging.staging_path()
        try:
            yield staged
            if self._is_durable:
                fsync_file(staged)
            make_folder(objects.folder)
            # An existing file has a wrong size, or the same bytes.
            staged.replace(objects.path(str(object_hash)))
            if self._is_durable:
                fsync_folder(objects.folder)
        finally:
            remove_temporary(staged)

    def _objects(self, kind: ObjectKind) -> LocalObjectStore:
        return LocalObjectStore(self.folder / kind, follow_links=True)

    def _read(self, kind: ObjectKind, object_hash: Multihash, start: int, at_most: int) -> Iterator[bytes]:
        objects = self._objects(kind)
        try:
            names = self._names.candidates(object_hash, rare=True)
            name = next(filter(objects.exists, names), None)
            if name is None:
                raise NotFound(f"{kind}/{object_hash} not found", where=self.url)
            self._names.learn(name)
            with objects.path(name).open("rb", buffering=0) as file:
                file.seek(start)
                while at_most > 0 and (chunk := file.read(min(_CHUNK, at_most))):
                    at_most -= len(chunk)
                    yield chunk
        except OSError as error:
            raise self._unreadable(f"{kind}/{object_hash}", error) from error

    def _unreadable(self, what: str, error: OSError) -> SourceUnavailable:
        problem = f"{what} cannot be read: {(error.strerror or str(error)).lower()}"
        return SourceUnavailable(problem, where=self.url, hint="check the drive and the permissions")


class FolderRepository:
    """A folder of datasets, each in a folder. Datasets of accounts are one level deeper."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._index: dict[str, RepositoryRow] = {}

    def datasets(self) -> Iterator[RepositoryEntry]:
        """Yield the folders that have a head, sorted by name."""
        folder = folder_of(self.url)
        try:
            names = _names(folder)
        except FileNotFoundError:
            raise NotFound(f"folder {folder} not found", where=self.url) from None
        except OSError as error:
            problem = f"the folder cannot be read: {(error.strerror or str(error)).lower()}"
            hint = "check the path, the drive and the permissions"
            raise SourceUnavailable(problem, where=self.url, hint=hint) from error
        self._index = {row.name.lower(): row for row in read_index(folder)}
        for name in names:
            yield from self._look(folder, name, "")

    def update_index(self, name: str, state: ChainState) -> None:
        """Write the index of the folder anew, with the state of a dataset that was pushed.

        It lists all datasets of the folder. Datasets that were pushed by other programs have no details.

        Raises:
            OSError, OdfError: the folder cannot be read, or the index cannot be written.
        """
        folder, pushed = folder_of(self.url), describe_state(name, state)
        with lock_index(folder):
            known = {row.name: row for row in read_index(folder)}
            rows = [
                pushed
                if entry.name == name
                else row
                if (row := known.get(entry.name)) is not None and row.head == entry.head
                else RepositoryRow(entry.name, head=entry.head)
                for entry in self.datasets()
            ]
            write_index(folder, rows)

    def close(self) -> None:
        """Do nothing: there are no connections."""

    def _look(self, folder: Path, name: str, account: str) -> Iterator[RepositoryEntry]:
        """Return the dataset in a folder, or the datasets of an account; skip unreadable folders."""
        try:
            if (folder / name / "refs" / HEAD).is_file():
                remote = FolderRemote(f"{self.url}{account}{name}/")
                yield self._entry(account + name, remote.url, _head(remote))
            elif not account:
                for inner in _names(folder / name):
                    yield from self._look(folder / name, inner, f"{name}/")
        except OSError:
            return

    def _entry(self, name: str, url: str, head: str | None) -> RepositoryEntry:
        """Return a dataset with what the index says about its newest block."""
        row = self._index.get(name.lower())
        if row is not None and row.head == head:
            with suppress(BadData):  # pushes write the index anew
                return list_entry(row, self.url)._replace(name=name, url=url)
        return RepositoryEntry(name, url, head=head)


def _find_dataset(folder: Path) -> Path:
    """Return the folder of a dataset whose name, or account, may be written in another case.

    Names are case-insensitive (chapter "Aliases and References" of the specification).
    """
    if (folder / "refs").is_dir():
        return folder
    for parent in (folder.parent, *_same_names(folder.parent)):
        for dataset in _same_names(parent / folder.name):
            if (dataset / "refs").is_dir():
                return dataset
    return folder


def _same_names(folder: Path) -> list[Path]:
    """Return the folders beside a folder whose names differ only in case."""
    name = folder.name.lower()
    try:
        return [folder.with_name(other) for other in _names(folder.parent) if other.lower() == name]
    except OSError:
        return []


def _names(folder: Path) -> list[str]:
    return sorted(filter(is_valid_name, os.listdir(folder)), key=str.lower)  # noqa: PTH208


def _head(remote: FolderRemote) -> str | None:
    try:
        head = remote.head()
    except OdfError:
        return None  # damaged: a pull reports it
    return None if head is None else str(head)
