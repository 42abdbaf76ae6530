"""Scratch folders and spool files, named after their process and removed after its end."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final, Literal, get_args

from odf_engine.base import processes
from odf_engine.base.files import ensure_folder

Kind = Literal["pull", "transform", "replay", "recompute", "sandbox", "query", "download"]


@contextmanager
def job_scratch_folder(cache: Path, kind: Kind = "pull") -> Iterator[Path]:
    """Create a scratch folder for one job and remove it at the end.

    The scratch folders of dead processes are removed, too.
    """
    ensure_folder(cache)
    for old in cache.glob("*-*-*"):
        old_kind, owner = old.name.split("-")[:2]
        if old_kind in get_args(Kind) and owner.isdigit() and not processes.is_process_running(int(owner)):
            shutil.rmtree(old, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{kind}-{os.getpid()}-{int(time.time())}-", dir=cache))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def find_oldest_job(cache: Path) -> float | None:
    """Return when the oldest running job started, in seconds since 1970, or None if no job runs."""
    starts: list[float] = []
    for folder in cache.glob("*-*-*-*"):
        kind, owner, start = folder.name.split("-")[:3]
        is_job = kind in get_args(Kind) and owner.isdigit() and start.isdigit()
        if is_job and processes.is_process_running(int(owner)):
            starts.append(float(start))
    return min(starts, default=None)


@contextmanager
def payload_scratch_folder(job: Path) -> Iterator[Path]:
    """Create a scratch folder for one payload of a job and remove it at the end, to limit disk use."""
    folder = Path(tempfile.mkdtemp(dir=job))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


_CHUNK: Final = 1 << 20


@contextmanager
def spool_stream(
    odf: Path, source: BinaryIO, name: str, on_progress: Callable[[int], None]
) -> Iterator[Path]:
    """Copy a stream to a file that exists until the end of the `with` body.

    Args:
        odf: the workspace's ``.odf`` folder.
        source: the stream, read to its end.
        name: the name of the file, which messages show.
        on_progress: called with the number of bytes read so far.

    Raises:
        OSError: reading or writing failed.
    """
    cache = odf / "cache"
    ensure_folder(cache)
    folder = Path(tempfile.mkdtemp(prefix=f"ingest-{os.getpid()}-", dir=cache))
    try:
        path = folder / (re.sub(r"[^\w.-]+", "-", name).strip("-") or "stdin")
        size = 0
        with path.open("wb") as file:
            # read1 returns what a pipe has now; read would wait for a full chunk.
            while chunk := getattr(source, "read1", source.read)(_CHUNK):
                file.write(chunk)
                size += len(chunk)
                on_progress(size)
        yield path
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_dead_spool(odf: Path, file: Path) -> None:
    """Remove the spool folder that contains ``file``, if it is one and its process has ended."""
    if file.parent.parent == odf / "cache":
        _remove_if_dead(file.parent)


def sweep_spools(odf: Path) -> None:
    """Remove the spool folders of all processes that have ended. No push may be running."""
    for folder in (odf / "cache").glob("ingest-*"):
        _remove_if_dead(folder)


def _remove_if_dead(folder: Path) -> None:
    kind, _, rest = folder.name.partition("-")
    owner = rest.partition("-")[0]
    if kind == "ingest" and owner.isdigit() and not processes.is_process_running(int(owner)):
        shutil.rmtree(folder, ignore_errors=True)
