"""Content-addressed object store: protocol and local folder."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from odf_engine.errors import NotFound
from odf_engine.files import fsync_file, fsync_folder
from odf_engine.identity.multiformats import Multihash, base58btc_encode
from odf_engine.storage.atomic_files import make_folder

STAGING_PREFIX: Final = ".pending-"


class ObjectStore(Protocol):
    """What holds objects by name; a local folder is one, a remote repository another."""

    def names(self) -> Iterator[str]:
        """The names of all objects, in no order."""
        ...

    def exists(self, name: str) -> bool:
        """Whether an object has this name."""
        ...

    def size(self, name: str) -> int:
        """The object's size in bytes; NotFound when there is none."""
        ...

    def read(self, name: str) -> bytes:
        """The object's bytes; NotFound when there is none."""
        ...

    def open(self, name: str) -> BinaryIO:
        """The object as a stream; NotFound when there is none."""
        ...

    def put(self, name: str, data: bytes) -> None:
        """Stores ``data`` durably; an object that is there already stays as it is."""
        ...


def candidate_names(object_hash: Multihash, written: str | None = None) -> Iterator[str]:
    """The names an object may have: as it was written, in base16, in the base58btc of older times."""
    canonical = str(object_hash)
    if written is not None and written != canonical:
        yield written
    yield canonical
    yield base58btc_encode(bytes(object_hash))


def find_object_name(store: ObjectStore, object_hash: Multihash, written: str | None = None) -> str | None:
    """The name under which ``store`` has the object, or None."""
    for name in candidate_names(object_hash, written):
        if store.exists(name):
            return name
    return None


class LocalObjectStore:
    """Objects as files of one folder, which is made when the first of them is stored.

    The folder around it has to be there: a dataset that was deleted does not come back by a write.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def names(self) -> Iterator[str]:
        """The names of all objects; files in the making are left out."""
        try:
            entries = os.scandir(self.folder)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise NotFound(
                f"the folder cannot be read: {error.strerror}", where=str(self.folder), hint="see: odf fsck"
            ) from error
        with entries:
            for entry in entries:
                if not entry.name.startswith(".") and _is_file(entry):
                    yield entry.name

    def exists(self, name: str) -> bool:
        """Whether an object has this name."""
        return self.path(name).is_file()

    def size(self, name: str) -> int:
        """The object's size in bytes; NotFound when there is none."""
        try:
            return self.path(name).stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            raise self._missing(name) from None
        except OSError as error:
            raise self._unreadable(name, error) from error

    def read(self, name: str) -> bytes:
        """The object's bytes; NotFound when there is none."""
        with self.open(name) as file:
            return file.read()

    def open(self, name: str) -> BinaryIO:
        """The object as a stream; NotFound when there is none."""
        try:
            return self.path(name).open("rb")
        except (FileNotFoundError, NotADirectoryError):
            raise self._missing(name) from None
        except OSError as error:
            raise self._unreadable(name, error) from error

    def path(self, name: str) -> Path:
        """Where the object of this name is, or would be."""
        if not name or "/" in name or name.startswith("."):
            raise NotFound(f"'{name}' cannot be the name of an object")
        return self.folder / name

    def put(self, name: str, data: bytes) -> None:
        """Stores ``data`` durably; an object that is there already stays as it is."""
        self.put_all({name: data})

    def put_all(self, objects: Mapping[str, bytes]) -> None:
        """Stores several objects in their order, durably, and waits for the disk as little as it can.

        An object that is there stays as it is. A file of another size under its name is a damaged one,
        and is replaced.
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
                staged.unlink(missing_ok=True)
        # Also for objects that were there: whoever renamed them may have died before this.
        fsync_folder(self.folder)

    def put_file(self, name: str, staged: Path) -> None:
        """Moves a finished file of this file system to its name, durably.

        When the object is there already, the staged file is removed instead. A file of another size
        under its name is a damaged one, and is replaced.
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
        """A fresh name in the same folder for a file in the making; nothing is created but the folder."""
        make_folder(self.folder)
        return self.folder / f"{STAGING_PREFIX}{secrets.token_hex(8)}"

    def _has_size(self, name: str, size: int) -> bool:
        try:
            return self.size(name) == size
        except NotFound:
            return False

    def _missing(self, name: str) -> NotFound:
        return NotFound(f"object {name} is not in {self.folder}")

    def _unreadable(self, name: str, error: OSError) -> NotFound:
        return NotFound(f"object {name} cannot be read: {error.strerror}", where=str(self.folder))


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # a link that leads to itself, among others
        return False


def remove_stale_files(folder: Path, untouched_for: float) -> int:
    """Removes what a killed process left in the making in ``folder``; how many files that were."""
    removed = 0
    before = time.time() - untouched_for
    for path in folder.glob(f"{STAGING_PREFIX}*"):
        try:
            if path.stat().st_mtime <= before:
                path.unlink()
                removed += 1
        except FileNotFoundError:
            continue  # its owner was quicker
    return removed
