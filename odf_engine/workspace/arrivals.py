"""Where datasets of others are put together: in ``.odf/incoming/``, until they are whole and get a name.

What an interrupted transfer has brought stays there for the next one of the same source, for two weeks.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from odf_engine.errors import Conflict
from odf_engine.files import open_no_follow
from odf_engine.workspace.small_files import not_writable

_KEPT_SECONDS: Final = 14 * 86_400.0


@contextmanager
def arriving(odf: Path, source: str) -> Iterator[Path]:
    """A folder for the dataset of a source, with what an earlier try has left in it.

    Whoever finishes the dataset moves the folder away; one without any file is removed at the end.

    Args:
        odf: the ``.odf`` folder of the workspace.
        source: what tells sources apart: a URL.

    Raises:
        Conflict: the same source is being transferred already.
    """
    home = odf / "incoming"
    name = hashlib.sha256(source.encode()).hexdigest()[:32]
    folder, lock = home / name, home / f"{name}.lock"
    try:
        home.mkdir(mode=0o700, exist_ok=True)
        held = _held(lock)
        if held is None:
            raise Conflict("this is being transferred already", hint="wait for its end", where=source)
        _sweep(home, but=name)
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise not_writable(folder, error) from error
    try:
        yield folder
    finally:
        if _is_bare(folder):
            shutil.rmtree(folder, ignore_errors=True)
            lock.unlink(missing_ok=True)
        os.close(held)


def _held(lock: Path) -> int | None:
    descriptor = open_no_follow(lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_nlink:
            os.utime(descriptor)
            return descriptor
    except BlockingIOError:
        pass
    os.close(descriptor)
    return None


def _sweep(home: Path, but: str) -> None:
    before = time.time() - _KEPT_SECONDS
    for lock in home.glob("*.lock"):
        if lock.stem == but or lock.stat().st_mtime > before:
            continue
        held = _held(lock)
        if held is not None:
            shutil.rmtree(home / lock.stem, ignore_errors=True)
            lock.unlink(missing_ok=True)
            os.close(held)


def _is_bare(folder: Path) -> bool:
    """Whether nothing has arrived: no file but those of locks."""
    return not any(each.suffix != ".lock" for each in folder.rglob("*") if each.is_file())
