"""Opens files without following symbolic links, writes them completely and syncs them to disk."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final, cast

from odf_engine.errors import NotSynced, OdfError, disk_hint

_DISK_FULL_ERRORS: Final = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def translate_os_errors(where: Path, outcome: str = "") -> Iterator[None]:
    """Translate operating system errors within the block; a full disk has its own message.

    Args:
        where: the location, if the error has no file.
        outcome: what the error leaves, as a clause for the hint, such as ``nothing was committed``.

    Raises:
        OdfError: instead of an OSError; with the file and a hint.
    """
    try:
        yield
    except OSError as error:
        full = error.errno in _DISK_FULL_ERRORS
        raise OdfError(
            "the disk is full" if full else f"a file cannot be read or written: {error.strerror or error}",
            where=str(error.filename or where),
            hint=disk_hint(error) + (f"; {outcome}" if outcome else ""),
        ) from error


def open_no_follow(path: str | Path, flags: int, mode: int = 0o666) -> int:
    """Open a regular file; do not follow a symbolic link. Also usable as the ``opener`` of :func:`open`.

    Args:
        path: the file. Symbolic links among its parent folders are followed.
        flags: as for :func:`os.open`.
        mode: the permissions of a new file, before the umask.

    Returns:
        A file descriptor that child processes do not inherit.

    Raises:
        OSError: the path is a symbolic link or not a regular file, or cannot be opened.
    """
    try:
        # Without O_NONBLOCK a named pipe would block until its other end is opened.
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a symbolic link", str(path)) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return descriptor


def open_file(path: Path, mode: str) -> BinaryIO:
    """Open a regular file in a binary mode such as ``wb``; do not follow a symbolic link.

    Raises:
        OSError: as :func:`open_no_follow`.
    """
    return cast("BinaryIO", open(path, mode, opener=open_no_follow))


def write_all(descriptor: int, data: bytes | memoryview, at: int | None = None) -> None:
    """Write all of ``data`` to an open file.

    One write to an unbuffered file may be partial, for example when the disk is full. This function repeats
    it.

    Args:
        descriptor: the file descriptor.
        data: the bytes.
        at: the offset of the first byte. The default is the current position of the file, which then
            advances.

    Raises:
        OSError: not all bytes could be written.
    """
    rest = memoryview(data).cast("B")
    while rest:
        written = os.write(descriptor, rest) if at is None else os.pwrite(descriptor, rest, at)
        if written == 0:
            raise OSError(errno.EIO, "no more bytes can be written")
        rest = rest[written:]
        at = None if at is None else at + written


def ensure_folder(folder: Path) -> None:
    """Create a folder and its missing parents, except the ``.odf`` folder of a deleted workspace.

    Raises:
        FileNotFoundError: the folder is in a workspace that was deleted.
    """
    odf = next((parent for parent in (folder, *folder.parents) if parent.name == ".odf"), None)
    if odf is not None and not odf.is_dir():
        raise FileNotFoundError(errno.ENOENT, "the workspace was deleted", str(odf))
    folder.mkdir(parents=True, exist_ok=True)


def remove_temporary(path: Path) -> None:
    """Remove a temporary file if it exists. Errors do not raise: they must not hide the outcome."""
    with suppress(OSError):
        path.unlink(missing_ok=True)


def remove_file(path: Path) -> bool:
    """Remove a file durably; return whether there was one.

    Raises:
        OdfError: it cannot be removed, or a power failure may restore it.
    """
    with translate_os_errors(path):
        try:
            path.unlink()
        except FileNotFoundError:
            return False
        fsync_folder(path.parent)
    return True


def fsync_file(path: Path) -> None:
    """Sync the content of a file to disk."""
    _sync(path, os.O_RDONLY)


def fsync_folder(path: Path) -> None:
    """Sync the entries of a folder to disk."""
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def fsync_folders(path: Path) -> None:
    """Sync the entries of a folder and of all folders in it to disk, from the bottom up."""
    for folder, _, _ in os.walk(path, topdown=False):
        _sync(Path(folder), os.O_RDONLY | os.O_DIRECTORY)


def sync_change(folder: Path, change: str) -> None:
    """Sync the entries of a folder to disk, as the last step of a change.

    Args:
        folder: the folder.
        change: the completed change as a past participle, such as ``committed``.

    Raises:
        NotSynced: the change was made, but may not survive a power failure.
    """
    try:
        fsync_folder(folder)
    except OSError as error:
        raise NotSynced(change, error.strerror or str(error), str(folder)) from error


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
