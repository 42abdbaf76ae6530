"""Temporary folders of jobs, and what goes wrong with files."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal, get_args

from odf_engine import processes
from odf_engine.errors import OdfError

Kind = Literal["pull", "transform", "replay", "sandbox"]

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def job_folder(cache: Path, kind: Kind = "pull") -> Iterator[Path]:
    """A folder of one piece of work; those of processes that died without cleaning up go."""
    cache.mkdir(parents=True, exist_ok=True)
    for old in cache.glob("*-*-*"):
        what, owner = old.name.split("-")[:2]
        if what in get_args(Kind) and owner.isdigit() and not processes.runs(int(owner)):
            shutil.rmtree(old, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{kind}-{os.getpid()}-", dir=cache))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def inner_folder(job: Path) -> Iterator[Path]:
    """A folder for one payload, so that files of the one before do not pile up."""
    folder = Path(tempfile.mkdtemp(dir=job))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def errors_of_the_disk(where: Path) -> Iterator[None]:
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
