"""Files and folders of the local file system: durable names and contents."""

from __future__ import annotations

import os
from pathlib import Path


def sync_file(path: Path) -> None:
    """Makes the content of a file durable."""
    _sync(path, os.O_RDONLY)


def sync_folder(path: Path) -> None:
    """Makes the names in a folder durable."""
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
