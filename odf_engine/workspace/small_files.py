"""Small files that are replaced as a whole."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from odf_engine.errors import OdfError
from odf_engine.files import open_file, sync_change


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
