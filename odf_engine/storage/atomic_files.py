"""Atomic and durable file replacement, fsync, lock files, eviction of cache files, disk errors."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from odf_engine.errors import NotFound, OdfError
from odf_engine.files import fsync_folder, open_file, sync_change


@contextmanager
def translate_commit_errors(folder: Path) -> Iterator[None]:
    """Lets errors of the file system within the block be told in words for people."""
    try:
        yield
    except FileNotFoundError as error:
        raise NotFound(f"{error.filename} is not there (any more)", where=str(folder)) from error
    except OSError as error:
        raise OdfError(
            f"the dataset cannot be written: {error.strerror or error}",
            where=str(error.filename or folder),
            hint="nothing was committed; free some space or check the permissions, then try again",
        ) from error


_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def translate_os_errors(where: Path) -> Iterator[None]:
    """Errors of reading and writing files as people can act on them.

    Raises:
        OdfError: instead of an OSError.
    """
    try:
        yield
    except OSError as error:
        full = error.errno in _FULL
        raise OdfError(
            "the disk is full" if full else f"a file could not be read or written: {error.strerror or error}",
            where=str(error.filename or where),
            hint="free some space and try again; nothing was committed" if full else "try again",
        ) from error


_FEW: Final = 16
"""From more files on one wait for the whole file system is shorter than one for each of them."""


def fsync_files(paths: Sequence[str]) -> None:
    """Makes the content of files of one file system durable; their names are not seen to.

    Raises:
        OSError: the disk could not take them.
    """
    if len(paths) > _FEW and _sync_file_system(paths[0]):
        return
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _sync_file_system(path: str) -> bool:
    """Whether everything on the file system of a file is durable now; False where it cannot be told."""
    syncfs = _syncfs()
    if syncfs is None:
        return False
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return syncfs(descriptor) == 0  # else each file says what is wrong with it
    finally:
        os.close(descriptor)


@cache
def _syncfs() -> Any:
    try:
        return ctypes.CDLL(None, use_errno=True).syncfs  # Linux
    except (AttributeError, OSError):
        return None


def make_folder(path: Path) -> None:
    """Makes a folder, durably, if it is not there; the one around it has to be."""
    try:
        path.mkdir()
    except FileExistsError:
        return
    fsync_folder(path.parent)


_STALE_SECONDS: Final = 86_400


def replace_file(path: Path, data: bytes) -> None:
    """Replaces a file of the cache; its folder is made if it is not there.

    Raises:
        OdfError: it cannot be written.
    """
    with atomic_file(path) as temporary:
        temporary.write_bytes(data)


@contextmanager
def atomic_file(path: Path, mode: int = 0o600) -> Iterator[Path]:
    """A file beside ``path``, which takes its place when the block ends well, and goes away else.

    Args:
        path: the file to be.
        mode: who may do what with it, as far as the process allows it.

    Raises:
        OdfError: the file cannot be written: no space, no permission.
    """
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # What a killed worker leaves says of itself what it is.
        temporary = path.with_name(f".{path.name[:100]}-{uuid4().hex[:8]}.part")
        temporary.touch(mode, exist_ok=False)
        yield temporary
        temporary.replace(path)
    except OSError as error:
        raise _refused(error, path) from error
    finally:
        if temporary is not None:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


def _refused(error: OSError, path: Path) -> OdfError:
    """Why a file cannot be written, in words."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return OdfError("the disk is full", where=str(path), hint="make room, then try again")
    reason = os.strerror(error.errno) if error.errno else str(error)  # Arrow's own words are long
    return OdfError(
        f"the file cannot be written: {reason.lower()}",
        where=str(path),
        hint="choose another folder, or check who may write there",
    )


def evict_oldest(folder: Path, most: int, most_bytes: int) -> None:
    """Removes the files that were not used for longest, until there are only so many, of so many bytes.

    The newest one stays, however large it is. What is being made is left alone, unless nobody has touched
    it for a day. What somebody else removes meanwhile does not matter.
    """
    found: list[tuple[float, int, Path]] = []
    for path in folder.iterdir():
        with suppress(OSError):
            about = path.stat()
            if not path.name.startswith("."):
                found.append((about.st_mtime, about.st_size, path))
            elif time.time() - about.st_mtime > _STALE_SECONDS:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    size = 0
    for at, (_, bytes_, path) in enumerate(sorted(found, reverse=True, key=lambda each: each[0])):
        size += bytes_
        if at and (at >= most or size > most_bytes):
            with suppress(OSError):
                path.unlink()


MAX_BYTES: Final = 16 << 20
"""No file of settings, or of what is remembered, is larger."""


def read_small(path: Path) -> bytes:
    """Reads a regular file of at most :data:`MAX_BYTES`; never waits for a pipe in its place.

    Raises:
        OSError: it cannot be read, is something else, or is larger.
    """
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        if about.st_size > MAX_BYTES:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
        return file.read(MAX_BYTES)


def replace_text_file(path: Path, text: str) -> None:
    """Replaces a file, readable by its owner alone, durably and in one step.

    Raises:
        NotSynced: it is written; a power failure may undo it.
        OdfError: it cannot be written; it is what it was.
    """
    try:
        _write_text(path, text)
    except OSError as error:
        raise write_error(path, error) from error


@contextmanager
def file_lock(lock: Path) -> Iterator[None]:
    """Holds a lock, so that nobody else reads, changes and writes the same files meanwhile.

    Raises:
        OdfError: it cannot be written.
    """
    try:
        file = open_file(lock, "wb")
    except OSError as error:
        raise write_error(lock, error) from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def write_error(path: Path, error: OSError) -> OdfError:
    """What a disk that is full or may not be written to means to people."""
    return OdfError(
        f"{path.name} cannot be written: {error.strerror or error}",
        hint="free some space, or check the permissions; what is there can be read nevertheless",
        where=str(path),
    )


def _write_text(path: Path, text: str) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    sync_change(path.parent, f"{path.name} was written")
