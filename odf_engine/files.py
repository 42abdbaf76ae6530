"""Files and folders of the local file system: opened without following links, and made durable."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO, cast

from odf_engine.errors import NotSynced


def open_no_follow(path: str | Path, flags: int, mode: int = 0o666) -> int:
    """Opens a regular file and never what a symbolic link leads to; also as the opener of :func:`open`.

    Args:
        path: of the file. Links among its folders are followed.
        flags: as for :func:`os.open`.
        mode: the permissions of a new file, as far as the umask allows them.

    Returns:
        A file descriptor that programs started later do not inherit.

    Raises:
        OSError: the path is a symbolic link or no regular file, or cannot be opened.
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
    """Opens a regular file in a binary mode such as ``wb``, and never what a symbolic link leads to.

    Raises:
        OSError: as :func:`open_no_follow`.
    """
    return cast("BinaryIO", open(path, mode, opener=open_no_follow))


def write_all(descriptor: int, data: bytes | memoryview, at: int | None = None) -> None:
    """Writes all of ``data`` to an open file, however little one system call takes.

    An unbuffered file may take only a part, for example when the disk is full: this repeats the call.

    Args:
        descriptor: of the file.
        data: the bytes.
        at: the position of the first byte; by default the current one of the file, which then moves.

    Raises:
        OSError: the file does not take all bytes.
    """
    rest = memoryview(data).cast("B")
    while rest:
        written = os.write(descriptor, rest) if at is None else os.pwrite(descriptor, rest, at)
        if written == 0:
            raise OSError(errno.EIO, "the file takes no more bytes")
        rest = rest[written:]
        at = None if at is None else at + written


def fsync_file(path: Path) -> None:
    """Makes the content of a file durable."""
    _sync(path, os.O_RDONLY)


def fsync_folder(path: Path) -> None:
    """Makes the names in a folder durable."""
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def sync_change(folder: Path, change: str) -> None:
    """Makes the names in a folder durable, after the last step of a change.

    Args:
        folder: the folder.
        change: what was done, such as ``committed``.

    Raises:
        NotSynced: the change is made, and may not survive a power failure.
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
