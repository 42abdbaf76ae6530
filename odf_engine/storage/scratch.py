"""Scratch folders and spool files named after their process, swept when that has died."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final, Literal, get_args

from odf_engine import processes

Kind = Literal["pull", "transform", "replay", "sandbox"]


@contextmanager
def job_scratch_folder(cache: Path, kind: Kind = "pull") -> Iterator[Path]:
    """A folder of one piece of work; those of processes that died without cleaning up go."""
    cache.mkdir(parents=True, exist_ok=True)
    for old in cache.glob("*-*-*"):
        what, owner = old.name.split("-")[:2]
        if what in get_args(Kind) and owner.isdigit() and not processes.is_process_running(int(owner)):
            shutil.rmtree(old, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{kind}-{os.getpid()}-", dir=cache))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def payload_scratch_folder(job: Path) -> Iterator[Path]:
    """A folder for one payload, so that files of the one before do not pile up."""
    folder = Path(tempfile.mkdtemp(dir=job))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


_CHUNK: Final = 1 << 20


@contextmanager
def spool_stream(odf: Path, source: BinaryIO, name: str, told: Callable[[int], None]) -> Iterator[Path]:
    """The file with everything that a stream has, until the block ends.

    Args:
        odf: the workspace's ``.odf`` folder.
        source: is read to its end.
        name: of the file, which is what people are told of it.
        told: hears how many bytes have come so far.

    Raises:
        OSError: reading or writing failed.
    """
    cache = odf / "cache"
    cache.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"ingest-{os.getpid()}-", dir=cache))
    try:
        path = folder / (re.sub(r"[^\w.-]+", "-", name).strip("-") or "stdin")
        size = 0
        with path.open("wb") as file:
            # What a pipe has at the moment, and not only when it has filled a whole chunk.
            while chunk := getattr(source, "read1", source.read)(_CHUNK):
                file.write(chunk)
                size += len(chunk)
                told(size)
        yield path
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_dead_spool(odf: Path, file: Path) -> None:
    """Removes the spool that a file is in, if it is in one and the process that made it is no more."""
    if file.parent.parent == odf / "cache":
        _remove_if_left(file.parent)


def sweep_spools(odf: Path) -> None:
    """Removes what processes left that are no more; nobody may be pushing."""
    for folder in (odf / "cache").glob("ingest-*"):
        _remove_if_left(folder)


def _remove_if_left(folder: Path) -> None:
    kind, _, rest = folder.name.partition("-")
    owner = rest.partition("-")[0]
    if kind == "ingest" and owner.isdigit() and not processes.is_process_running(int(owner)):
        shutil.rmtree(folder, ignore_errors=True)
