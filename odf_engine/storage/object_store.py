"""Content-addressed object store: protocol and local folder. Specification: "Dataset Layout"."""

from __future__ import annotations

import errno
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from odf_engine.base.atomic_files import make_folder
from odf_engine.base.files import fsync_file, fsync_folder, open_file, remove_temporary
from odf_engine.data.sha3_lanes import find_kernel
from odf_engine.errors import NotFound, disk_hint
from odf_engine.identity.multiformats import SHA3_256, Multihash, base58btc_encode, new_hasher

CHECKS_FOLDER: Final = "checks"
"""Folder of the results of checks, within the folder of a dataset."""
STAGING_PREFIX: Final = ".pending-"
_READ_BYTES: Final = 1 << 20


class ObjectStore(Protocol):
    """Store of objects by name, such as a local folder or a remote repository."""

    def names(self) -> Iterator[str]:
        """Return the names of all objects, unordered."""
        ...

    def exists(self, name: str) -> bool:
        """Return whether an object has this name."""
        ...

    def size(self, name: str) -> int:
        """Return the size of the object in bytes; raise NotFound if it does not exist."""
        ...

    def read(self, name: str) -> bytes:
        """Return the bytes of the object; raise NotFound if it does not exist."""
        ...

    def open(self, name: str) -> BinaryIO:
        """Open the object as a stream; raise NotFound if it does not exist."""
        ...

    def put(self, name: str, data: bytes) -> None:
        """Store ``data`` durably. An existing object is not changed."""
        ...


def candidate_names(object_hash: Multihash, written: str | None = None) -> Iterator[str]:
    """Yield the possible names of an object: as written, in base16, in base58btc (older repositories)."""
    canonical = str(object_hash)
    if written is not None and written != canonical:
        yield written
    yield canonical
    yield base58btc_encode(bytes(object_hash))


def find_object_name(store: ObjectStore, object_hash: Multihash, written: str | None = None) -> str | None:
    """Return the name of the object in ``store``, or None."""
    for name in candidate_names(object_hash, written):
        if store.exists(name):
            return name
    return None


def hash_file(path: Path, code: int, progress: Callable[[int], None]) -> Multihash:
    """Return the physical hash of a file by the algorithm with this multicodec number."""
    with path.open("rb", buffering=0) as file:
        pieces = _pieces(file, progress)
        kernel = find_kernel(os.fstat(file.fileno()).st_size) if code == SHA3_256 else None
        if kernel is not None:
            return Multihash(code, kernel.group.digest(pieces))
        hasher = new_hasher(code)
        for piece in pieces:
            hasher.update(piece)
    return Multihash(code, hasher.digest())


def _pieces(file: BinaryIO, progress: Callable[[int], None]) -> Iterator[bytes]:
    while piece := file.read(_READ_BYTES):
        yield piece
        progress(len(piece))


class LocalObjectStore:
    """Objects as files of one folder, which is created when the first object is stored.

    Symbolic links are not objects, because those in a third-party workspace could lead to any file.

    The parent folder must exist, so that a write does not recreate a deleted dataset.

    Args:
        folder: the folder.
        fetch: stores a missing object in the folder, and returns whether its origin has it. By default, the
            folder has all objects.
        follow_links: read through symbolic links, in a repository that the user has named.
    """

    def __init__(
        self, folder: Path, fetch: Callable[[str], bool] | None = None, *, follow_links: bool = False
    ) -> None:
        self.folder = folder
        self._fetch = fetch
        self._follow_links = follow_links

    def names(self) -> Iterator[str]:
        """Return the names of all objects, without temporary files.

        Raises:
            NotFound: the folder cannot be read. A missing folder has no objects.
        """
        try:
            entries = os.scandir(self.folder)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise NotFound(
                f"the folder cannot be read: {error.strerror}", where=str(self.folder), hint="run odf fsck"
            ) from error
        with entries:
            for entry in entries:
                if not entry.name.startswith(".") and _is_file(entry, self._follow_links):
                    yield entry.name

    def exists(self, name: str) -> bool:
        """Return whether an object has this name; raise NotFound if that cannot be determined."""
        try:
            return self._is_local(name) or self._is_fetched(name)
        except OSError as error:
            raise self._unreadable(name, error) from error

    def size(self, name: str) -> int:
        """Return the size of the object in bytes; raise NotFound if it does not exist or cannot be read."""
        try:
            return self._local_size(name)
        except NotFound:
            if not self._is_fetched(name):
                raise
        return self._local_size(name)

    def _is_local(self, name: str) -> bool:
        try:
            return stat.S_ISREG(self.path(name).stat(follow_symlinks=self._follow_links).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def _local_size(self, name: str) -> int:
        try:
            status = self.path(name).stat(follow_symlinks=self._follow_links)
            if stat.S_ISLNK(status.st_mode):
                raise OSError(errno.ELOOP, "it is a symbolic link")
            return status.st_size
        except (FileNotFoundError, NotADirectoryError):
            raise self._missing(name) from None
        except OSError as error:
            raise self._unreadable(name, error) from error

    def _is_fetched(self, name: str) -> bool:
        return self._fetch is not None and self._fetch(name)

    def read(self, name: str) -> bytes:
        """Return the bytes of the object; raise NotFound if it does not exist or cannot be read."""
        with self.open(name) as file:
            try:
                return file.read()
            except OSError as error:
                raise self._unreadable(name, error) from error

    def open(self, name: str) -> BinaryIO:
        """Open the object as a stream; raise NotFound if it does not exist or cannot be read."""
        try:
            return self._open_local(name)
        except (FileNotFoundError, NotADirectoryError):
            if not self._is_fetched(name):
                raise self._missing(name) from None
            return self._open_local(name)
        except OSError as error:
            raise self._unreadable(name, error) from error

    def _open_local(self, name: str) -> BinaryIO:
        path = self.path(name)
        return path.open("rb") if self._follow_links else open_file(path, "rb")

    def path_of(self, object_hash: Multihash) -> Path:
        """Return the path of an object, whether or not it exists.

        Raises:
            NotFound: the path is a symbolic link.
        """
        name = find_object_name(self, object_hash)
        path = self.path(name or str(object_hash))
        if name is None and path.is_symlink():
            raise NotFound(
                f"object {object_hash} is a symbolic link",
                where=str(self.folder),
                hint="replace it with the file",
            )
        return path

    def path(self, name: str) -> Path:
        """Return the path of the object with this name, whether or not it exists.

        Raises:
            NotFound: an invalid name.
        """
        if not name or "/" in name or name.startswith("."):
            raise NotFound(f"invalid object name '{name}'")
        return self.folder / name

    def put(self, name: str, data: bytes) -> None:
        """Store ``data`` durably. An existing object is not changed."""
        self.put_all({name: data})

    def put_all(self, objects: Mapping[str, bytes]) -> None:
        """Store several objects durably, in their order; sync the folder once.

        An existing object is not changed. A file of another size under its name is damaged, and is replaced.
        """
        for name, data in objects.items():
            if self._has_size(name, len(data)):
                continue
            staged = self.staging_path()
            try:
                with staged.open("xb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                staged.rename(self.path(name))
            finally:
                remove_temporary(staged)
        # Also for existing objects: the process that renamed them may have died before its sync.
        fsync_folder(self.folder)

    def put_file(self, name: str, staged: Path) -> None:
        """Move a complete file of the same file system to its name, durably.

        If the object exists, the staged file is removed instead. A file of another size under its name is
        damaged, and is replaced.
        """
        target = self.path(name)
        make_folder(self.folder)
        if self._has_size(name, staged.stat().st_size):
            staged.unlink()
        else:
            fsync_file(staged)
            staged.rename(target)
        fsync_folder(self.folder)

    def staging_path(self) -> Path:
        """Return a new path in the same folder for a temporary file. Only the folder is created."""
        make_folder(self.folder)
        return self.folder / f"{STAGING_PREFIX}{secrets.token_hex(8)}"

    def _has_size(self, name: str, size: int) -> bool:
        try:
            return self._local_size(name) == size
        except NotFound:
            return False

    def _missing(self, name: str) -> NotFound:
        return NotFound(f"object {name} not found in {self.folder}")

    def _unreadable(self, name: str, error: OSError) -> NotFound:
        problem = f"object {name} cannot be read: {error.strerror}"
        return NotFound(problem, where=str(self.folder), hint=disk_hint(error))


def _is_file(entry: os.DirEntry[str], follow_links: bool) -> bool:
    try:
        return entry.is_file(follow_symlinks=follow_links)
    except OSError:  # for example a symbolic link to itself
        return False


def remove_stale_files(folder: Path, untouched_for: float) -> int:
    """Remove temporary files that a killed process left in ``folder``.

    Args:
        folder: the folder.
        untouched_for: minimum age in seconds since the last change.

    Returns:
        The number of removed files.
    """
    removed = 0
    before = time.time() - untouched_for
    for path in folder.glob(f"{STAGING_PREFIX}*"):
        try:
            if path.stat().st_mtime <= before:
                path.unlink()
                removed += 1
        except FileNotFoundError:
            continue  # its owner has removed it
    return removed
