"""Data that comes through a pipe, kept in a file until the worker has read it.

A spool is a folder ``ingest-PID-…`` in the workspace's cache, with the number of the process that made
it in its name. That process removes it; what a killed one left, the worker does when it has read it, or
when it starts, since no job can need it then any more.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from odf_engine import processes

_CHUNK: Final = 1 << 20


@contextmanager
def spooled(odf: Path, source: BinaryIO, name: str, told: Callable[[int], None]) -> Iterator[Path]:
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


def release(odf: Path, file: Path) -> None:
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
    if kind == "ingest" and owner.isdigit() and not processes.runs(int(owner)):
        shutil.rmtree(folder, ignore_errors=True)
