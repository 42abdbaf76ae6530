"""Folder of the metadata of a table in the store of a workspace, beside the slices."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote, urlsplit

from odf_engine.base.files import ensure_folder
from odf_engine.errors import Unsupported
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.mirror.dataset_mirror import DatasetMirror
from odf_engine.net.bucket_client import PART_BYTES, BucketLocation
from odf_engine.tables import METADATA_FOLDERS, TableFormat
from odf_engine.tables.table_folder import TableFolder

_MAX_BYTES: Final = 1 << 40


class StoredTableFolder(TableFolder):
    """The objects below a folder in a store.

    The local folder of the same name is empty. It notes that this machine keeps the table current, so that
    commits to datasets without a table send no requests. Objects that were read or written are kept in
    memory: an update creates a new instance.

    Args:
        mirror: the dataset in the store.
        path: the local folder.
        format: the format of the table.
        marker: the name of an object that each table of the format has.
    """

    def __init__(self, mirror: DatasetMirror, path: Path, format: TableFormat, marker: str) -> None:
        super().__init__(path)
        self._store, self._client = mirror.store, mirror.store.client
        self._below = f"{mirror.name}/{METADATA_FOLDERS[format]}"
        self._is_ordered = format == "delta"  # a version in the log requires all earlier ones
        self._marker = marker
        self._contents: dict[str, bytes] = {}

    def exists(self) -> bool:
        """Return whether this machine keeps the table current and it still exists."""
        if not self.path.exists():
            return False
        self.prefetch([self._marker])
        if self._marker in self._contents or self.names():
            return True
        shutil.rmtree(self.path, ignore_errors=True)
        return False

    def keep_current(self) -> None:
        """Note that commits of this machine update the table."""
        ensure_folder(self.path)

    def names(self) -> list[str]:
        """Return the names of the objects."""
        return list(self._client.list_all(self._below))

    def prefetch(self, names: Sequence[str]) -> None:
        """Read objects in parallel. Missing objects are ignored."""

        def read(name: str) -> None:
            chunks = self._client.chunks(f"{self._below}/{name}", 0, _MAX_BYTES)
            if chunks is not None:
                self._contents[name] = b"".join(chunks)

        self._store.run_parallel(read, [name for name in names if name not in self._contents])

    def read(self, name: str) -> bytes:
        """Return the content of an object.

        Raises:
            FileNotFoundError: it does not exist.
            SourceUnavailable: the store cannot be read.
        """
        self.prefetch([name])
        if name not in self._contents:
            raise FileNotFoundError(errno.ENOENT, "not found in the store", f"{self._below}/{name}")
        return self._contents[name]

    def write(self, name: str, data: bytes, time: Timestamp | None = None, *, sync: bool = True) -> None:
        """Replace an object by one request.

        Args:
            name: its name.
            data: its content.
            time: ignored: the service sets the modification time.
            sync: whether it must be uploaded now. An object that no reader uses yet can wait for
                :meth:`sync`.

        Raises:
            SourceUnavailable: the store cannot be written.
        """
        self._contents[name] = data
        if sync or self._is_ordered:
            self._put(name)

    def sync(self, names: Sequence[str]) -> None:
        """Upload the objects written with ``sync=False``, in parallel.

        Raises:
            SourceUnavailable: the store cannot be written.
        """
        if not self._is_ordered:
            self._store.run_parallel(self._put, list(names))

    def _put(self, name: str) -> None:
        key, data = f"{self._below}/{name}", self._contents[name]
        if len(data) <= PART_BYTES:
            self._client.write(key, data)
        else:
            self._client.upload(key, len(data), [data])

    def remove(self, name: str) -> None:
        """Remove an object, if it exists.

        Raises:
            SourceUnavailable: the store cannot be written.
        """
        self._contents.pop(name, None)
        self._client.delete([f"{self._below}/{name}"])

    def remove_all(self) -> bool:
        """Remove all objects; return whether there were any.

        Raises:
            SourceUnavailable: the store cannot be written.
        """
        names = sorted(self.names(), reverse=True)  # a log without its first versions is no table
        self._contents.clear()
        self._client.delete([f"{self._below}/{name}" for name in names])
        shutil.rmtree(self.path, ignore_errors=True)
        return bool(names)


def stored_location(mirror: DatasetMirror) -> str:
    """Return the location of a dataset in a store for Iceberg, whose readers do not decode URLs."""
    url = mirror.store.url
    if urlsplit(url).scheme == "file":
        return f"file://{unquote(urlsplit(url).path)}{mirror.name}"
    location = BucketLocation.of(url)
    return f"{location.provider}://{location.bucket}/{location.key(mirror.name)}"


def check_readable(mirror: DatasetMirror, format: TableFormat) -> None:
    """Check that readers of the format open URLs of the store.

    Raises:
        Unsupported: no reader opens them.
    """
    if stored_location(mirror).startswith("az:") and format == "iceberg":
        raise Unsupported(
            "programs that read Iceberg tables cannot open az: URLs",
            where=mirror.store.url,
            hint="write the table with --format delta",
        )


def stored_table_path(mirror: DatasetMirror, format: TableFormat) -> str:
    """Return the folder or the URL that readers of a table open."""
    scheme, _, path = stored_location(mirror).partition("://")
    if scheme == "file":
        return path if format == "delta" else f"{path}/iceberg"
    return f"{scheme}://{quote(path)}" if format == "delta" else f"{scheme}://{path}/iceberg"
