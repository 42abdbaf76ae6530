"""Files in the cache of a workspace: written in one step, and the oldest of them removed."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from uuid import uuid4

from odf_engine.errors import OdfError

_STALE_SECONDS: Final = 86_400


def write_whole(path: Path, data: bytes) -> None:
    """Replaces a file of the cache; its folder is made if it is not there.

    Raises:
        OdfError: it cannot be written.
    """
    with begun(path) as temporary:
        temporary.write_bytes(data)


@contextmanager
def begun(path: Path, mode: int = 0o600) -> Iterator[Path]:
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


def keep_newest(folder: Path, most: int, most_bytes: int) -> None:
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
