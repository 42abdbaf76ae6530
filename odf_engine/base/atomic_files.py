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

from odf_engine.base.files import ensure_folder, fsync_folder, open_file, remove_temporary, sync_change
from odf_engine.errors import NotFound, OdfError, disk_hint


@contextmanager
def translate_commit_errors(folder: Path) -> Iterator[None]:
    """Translate operating system errors of a commit within the block.

    Raises:
        NotFound: a file of the dataset does not exist.
        OdfError: any other OSError.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise NotFound(f"{error.filename} not found", where=str(folder)) from error
    except OSError as error:
        raise OdfError(
            f"the dataset cannot be written: {error.strerror or error}",
            where=str(error.filename or folder),
            hint=f"nothing was committed; {disk_hint(error)}",
        ) from error


_MAX_SINGLE_SYNCS: Final = 16
"""For more files than this, one sync of the file system is faster than one sync of each file."""
_SYNC_FILE_RANGE_WRITE: Final = 2


def fsync_files(paths: Sequence[str]) -> None:
    """Sync the content of several files of one file system to disk. Their folder entries are not synced.

    Raises:
        OSError: the sync failed.
    """
    if len(paths) > _MAX_SINGLE_SYNCS and _sync_file_system(paths[0]):
        return
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def start_writeback(descriptor: int) -> None:
    """Start to write the content of an open file to disk, so that a later sync has less to wait for."""
    sync_file_range = _linux_function("sync_file_range")
    if sync_file_range is not None:
        whole_file = ctypes.c_int64(0)
        sync_file_range(descriptor, whole_file, whole_file, _SYNC_FILE_RANGE_WRITE)


def _sync_file_system(path: str) -> bool:
    """Sync the file system of a file; return False if that failed or is not supported."""
    syncfs = _linux_function("syncfs")
    if syncfs is None:
        return False
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return syncfs(descriptor) == 0  # otherwise the sync of each file reports the error
    finally:
        os.close(descriptor)


@cache
def _linux_function(name: str) -> Any:
    """Return a function of the C library of Linux, or None if the system has none of this name."""
    try:
        return getattr(ctypes.CDLL(None, use_errno=True), name)
    except (AttributeError, OSError):
        return None


def make_folder(path: Path, mode: int = 0o777) -> None:
    """Create a folder and sync its entry, unless it exists. Its parent must exist."""
    try:
        path.mkdir(mode)
    except FileExistsError:
        return
    fsync_folder(path.parent)


_STALE_SECONDS: Final = 86_400


def replace_file(path: Path, data: bytes) -> None:
    """Replace a cache file atomically; create its folder if it is missing.

    Raises:
        OdfError: the file cannot be written.
    """
    with atomic_file(path) as temporary:
        temporary.write_bytes(data)


@contextmanager
def atomic_file(path: Path, mode: int = 0o600) -> Iterator[Path]:
    """Yield a temporary path for the new content of ``path``.

    It replaces ``path`` if the block succeeds, and is removed otherwise.

    Args:
        path: the final file.
        mode: the permissions of the file, before the umask.

    Raises:
        OdfError: the file cannot be written, for example no space or no permission.
    """
    temporary: Path | None = None
    try:
        ensure_folder(path.parent)
        # The name marks the file as temporary, in case the process is killed.
        temporary = path.with_name(f".{path.name[:100]}-{uuid4().hex[:8]}.part")
        temporary.touch(mode, exist_ok=False)
        yield temporary
        temporary.replace(path)
    except OSError as error:
        raise _atomic_write_error(error, path) from error
    finally:
        if temporary is not None:
            remove_temporary(temporary)


def _atomic_write_error(error: OSError, path: Path) -> OdfError:
    """Return the error for a file that cannot be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return OdfError("the disk is full", where=str(path), hint="free disk space and try again")
    reason = os.strerror(error.errno) if error.errno else str(error)  # messages of Arrow are long
    return OdfError(
        f"the file cannot be written: {reason.lower()}",
        where=str(path),
        hint="choose another folder, or check its permissions",
    )


def evict_oldest(folder: Path, max_files: int, max_bytes: int) -> None:
    """Remove the least recently used files until at most ``max_files`` files with ``max_bytes`` bytes remain.

    The newest file is never removed, regardless of its size. Temporary files are removed after a day without
    changes. Files that other processes remove are ignored.
    """
    files: list[tuple[float, int, Path]] = []
    for path in folder.iterdir():
        with suppress(OSError):
            status = path.stat()
            if not path.name.startswith("."):
                files.append((status.st_mtime, status.st_size, path))
            elif time.time() - status.st_mtime > _STALE_SECONDS:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    size = 0
    for position, (_, bytes_, path) in enumerate(sorted(files, reverse=True, key=lambda file: file[0])):
        size += bytes_
        if position and (position >= max_files or size > max_bytes):
            with suppress(OSError):
                path.unlink()


MAX_BYTES: Final = 16 << 20
"""Limit of :func:`read_small_file`. No file of settings or state is larger."""


def read_small_file(path: Path) -> bytes:
    """Read a regular file of at most :data:`MAX_BYTES`. A named pipe does not block.

    Raises:
        OSError: the file cannot be read, is not a regular file, or is too large.
    """
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        if status.st_size > MAX_BYTES:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
        return file.read(MAX_BYTES)


def replace_text_file(path: Path, text: str) -> None:
    """Replace a file atomically and durably; only its owner can read it.

    Raises:
        NotSynced: the file was written, but a power failure may undo it.
        OdfError: the file cannot be written and is unchanged.
    """
    try:
        _write_text(path, text)
    except OSError as error:
        raise write_error(path, error) from error


def rewrite_text_file(path: Path, text: str) -> None:
    """Replace the content of a user's file atomically; its permissions, and a symbolic link to it, remain.

    Raises:
        OdfError: the file cannot be written and is unchanged.
    """
    try:
        path = path.resolve()
        with atomic_file(path, path.stat().st_mode & 0o777) as part:
            part.write_text(text, encoding="utf-8")
    except OSError as error:
        raise write_error(path, error) from error


@contextmanager
def file_lock(lock: Path) -> Iterator[None]:
    """Hold an exclusive lock on a lock file, so that no other process changes the same files.

    Raises:
        OdfError: the lock file cannot be written.
    """
    try:
        file = open_file(lock, "wb")
    except OSError as error:
        raise write_error(lock, error) from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def write_error(path: Path, error: OSError) -> OdfError:
    """Return the error for a file that cannot be written because of a full disk or missing permission."""
    return OdfError(
        f"{path.name} cannot be written: {error.strerror or error}",
        hint="free disk space, or check the permissions; existing data can still be read",
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
        remove_temporary(Path(temporary))
        raise
    sync_change(path.parent, f"{path.name} was written")
