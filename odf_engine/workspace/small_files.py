"""Small files that are replaced as a whole."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from odf_engine.errors import OdfError
from odf_engine.files import open_file, sync_change

MOST_BYTES: Final = 16 << 20
"""No file of settings, or of what is remembered, is larger."""


def read_small(path: Path) -> bytes:
    """Reads a regular file of at most :data:`MOST_BYTES`; never waits for a pipe in its place.

    Raises:
        OSError: it cannot be read, is something else, or is larger.
    """
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        if about.st_size > MOST_BYTES:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
        return file.read(MOST_BYTES)


def write_text(path: Path, text: str) -> None:
    """Replaces a file, readable by its owner alone, durably and in one step.

    Raises:
        NotSynced: it is written; a power failure may undo it.
        OdfError: it cannot be written; it is what it was.
    """
    try:
        _write_text(path, text)
    except OSError as error:
        raise not_writable(path, error) from error


@contextmanager
def held(lock: Path) -> Iterator[None]:
    """Holds a lock, so that nobody else reads, changes and writes the same files meanwhile.

    Raises:
        OdfError: it cannot be written.
    """
    try:
        file = open_file(lock, "wb")
    except OSError as error:
        raise not_writable(lock, error) from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def not_writable(path: Path, error: OSError) -> OdfError:
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
