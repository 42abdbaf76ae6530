"""Zip archives whose directory is limited."""

from __future__ import annotations

import gzip
import io
import lzma
import tarfile
import zipfile
import zlib
from pathlib import Path
from typing import Final

from odf_engine.errors import BadData

MAX_DIRECTORY_BYTES: Final = 16 << 20
"""Maximum size of the list of entries. ``zipfile`` reads it as a whole, and needs ten times its size."""

ARCHIVE_ERRORS: Final = (
    zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError,
    NotImplementedError, RuntimeError,
)  # fmt: skip
"""Errors of damaged and unsupported archives and compressed files."""


class ZipArchive(zipfile.ZipFile):
    """An archive that is read.

    Raises:
        BadData: its directory is too large.
        zipfile.BadZipFile: it is not a zip archive.
        OSError: it cannot be read.
    """

    _limited: _LimitedReader | None = None

    def __init__(self, path: Path) -> None:
        self._limited = _LimitedReader(io.FileIO(path))
        try:
            super().__init__(self._limited)
        except BaseException:
            self._limited.close()
            raise

    def close(self) -> None:
        """Close the file."""
        super().close()
        if self._limited is not None:
            self._limited.close()


class _LimitedReader(io.BufferedReader):
    """A file whose reads are limited. Entries are read in pieces; only the directory is read completely."""

    def read(self, size: int | None = -1) -> bytes:
        if size is not None and size > MAX_DIRECTORY_BYTES:
            raise BadData(
                f"the archive lists too many entries: more than {MAX_DIRECTORY_BYTES:,} bytes of names",
                hint="split the archive, or repack it with the required files only",
            )
        return super().read(size)
