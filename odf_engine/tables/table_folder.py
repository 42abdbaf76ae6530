"""Folder of the metadata of a table. Each file is written atomically."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from odf_engine.base.atomic_files import atomic_file, fsync_files
from odf_engine.base.files import fsync_file, fsync_folder, translate_os_errors
from odf_engine.metadata.timestamp import Timestamp

READABLE: Final = 0o666
"""Permissions of files. The umask decides, as for slices."""


class TableFolder:
    """The files in a folder, which is created with the first file.

    Attributes:
        path: the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def exists(self) -> bool:
        """Return whether there is a table."""
        return self.path.exists()

    def keep_current(self) -> None:
        """Note that commits update the table. A local table needs no note."""

    def names(self) -> list[str]:
        """Return the names of the files."""
        try:
            return os.listdir(self.path)  # noqa: PTH208 (creating a Path per file is slow)
        except FileNotFoundError:
            return []

    def prefetch(self, names: Sequence[str]) -> None:
        """Prepare reads of several files. Local files need no preparation."""

    def read(self, name: str) -> bytes:
        """Return the content of a file.

        Raises:
            OSError: it cannot be read.
        """
        return (self.path / name).read_bytes()

    def write(self, name: str, data: bytes, time: Timestamp | None = None, *, sync: bool = True) -> None:
        """Replace a file.

        Args:
            name: its name.
            data: its content.
            time: its modification time, or None for the current time.
            sync: whether its content is synced to disk first.

        Raises:
            OdfError: it cannot be written.
        """
        with atomic_file(self.path / name, READABLE) as temporary:
            temporary.write_bytes(data)
            if time is not None:
                os.utime(temporary, ns=(time.ns, time.ns))
            if sync:
                fsync_file(temporary)

    def sync(self, names: Sequence[str]) -> None:
        """Sync files that were written without, and the entries of the folder, to disk.

        Raises:
            OdfError: the sync failed.
        """
        with translate_os_errors(self.path):
            fsync_files([str(self.path / name) for name in names])
            fsync_folder(self.path)

    def remove(self, name: str) -> None:
        """Remove a file, if it exists.

        Raises:
            OdfError: it cannot be removed.
        """
        with translate_os_errors(self.path):
            (self.path / name).unlink(missing_ok=True)

    def remove_all(self) -> bool:
        """Remove the folder; return whether it existed.

        Raises:
            OdfError: it cannot be removed.
        """
        with translate_os_errors(self.path):
            if not self.path.exists():
                return False
            shutil.rmtree(self.path)
        return True
