"""Tables with one data file: the latest state of a dataset by key.

Each version replaces the file. The version before remains for programs that are reading it, and older ones
are removed. A record in the folder has the digests of the files of the newest version.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from odf_engine.base.arrow import pa, pq
from odf_engine.base.atomic_files import atomic_file, file_lock
from odf_engine.base.files import ensure_folder, fsync_file, fsync_folder, translate_os_errors
from odf_engine.chain.block_summary import SliceSummary
from odf_engine.chain.dataset import Dataset
from odf_engine.data.parquet.slice_file import FileLabel
from odf_engine.errors import OdfError
from odf_engine.identity.multiformats import Multihash
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.tables import LATEST_FOLDERS, TableFormat
from odf_engine.tables.delta_table import (
    LAST_CHECKPOINT,
    add_action,
    checkpoint_name,
    checkpoint_schema,
    commit_info,
    commit_name,
    declare_table,
    encode_checkpoint,
)
from odf_engine.tables.iceberg_manifests import ManifestWriter
from odf_engine.tables.iceberg_table import VERSION_HINT, metadata_name, table_document
from odf_engine.tables.iceberg_types import IcebergSchemas
from odf_engine.tables.table_files import TableFile, describe_file
from odf_engine.tables.table_folder import READABLE, TableFolder

_LOCK: Final = "info/latest-tables.lock"
"""A separate lock, since commits wait for the lock of the other tables."""
_RECORD: Final = "_odf.json"
_FIRST_VERSIONS: Final[Mapping[TableFormat, int]] = {"delta": 0, "iceberg": 1}


class LatestVersion(msgspec.Struct, frozen=True):
    """A version of a table.

    Attributes:
        version: its number.
        location: the folder of the table when it was written.
        key: the columns of the key.
        block: the hash of the newest block with rows.
        data: the name of the data file.
        files: the digests of the files of the version, by name.
        before: the names of the files of the previous version.
    """

    version: int
    location: str
    key: list[str]
    block: str
    data: str
    files: dict[str, str]
    before: list[str]


class _NewVersion(NamedTuple):
    """What the metadata of a version describes.

    Attributes:
        version: its number.
        file: the data file.
        schema: the columns.
        block: the hash of the newest block with rows.
        number: the sequence number of the block.
        time: the system time of the block.
        replaced: the name of the data file of the previous version, or None if there is none.
    """

    version: int
    file: TableFile
    schema: pa.Schema
    block: Multihash
    number: int
    time: Timestamp
    replaced: str | None


class LatestTable:
    """The table of the latest state of a dataset. Changes require :meth:`locked`.

    Attributes:
        path: its folder.
    """

    def __init__(self, dataset: Dataset, format: TableFormat) -> None:
        self.path = dataset.folder / LATEST_FOLDERS[format]
        self._dataset = dataset
        self._format: TableFormat = format

    def locked(self) -> AbstractContextManager[None]:
        """Hold the lock of the latest tables of the dataset."""
        ensure_folder(self._dataset.folder / "info")
        return file_lock(self._dataset.folder / _LOCK)

    def newest(self) -> LatestVersion | None:
        """Return the newest version, or None if there is none, or the workspace was moved."""
        try:
            record = msgspec.json.decode((self.path / _RECORD).read_bytes(), type=LatestVersion)
        except (OSError, msgspec.MsgspecError):
            return None
        return record if record.location == str(self.path.resolve()) else None

    def is_damaged(self) -> bool:
        """Return whether a file of the newest version is missing or damaged."""
        newest = self.newest()
        try:
            return newest is None or any(
                _digest(self.path / name) != digest for name, digest in newest.files.items()
            )
        except OSError:
            return True

    def replace(
        self, state: Path, key: list[str], newest_slice: SliceSummary, block: Multihash
    ) -> LatestVersion:
        """Add a version.

        Args:
            state: the Parquet file with the rows, which is copied.
            key: the columns of the key.
            newest_slice: the newest slice.
            block: the hash of its block.

        Raises:
            Unsupported: the format does not have the type of a column.
            OdfError: the table cannot be written.
        """
        before = self.newest()
        if before is None:
            self.remove()
        try:
            return self._add(state, key, newest_slice, block, before)
        except BaseException:
            if before is None:
                with suppress(OdfError):  # the first error has the reason
                    self.remove()
            raise

    def _add(
        self,
        state: Path,
        key: list[str],
        newest_slice: SliceSummary,
        block: Multihash,
        before: LatestVersion | None,
    ) -> LatestVersion:
        version = _FIRST_VERSIONS[self._format] if before is None else before.version + 1
        name = f"data/{version:08}-{block.abbreviated}.parquet"
        with atomic_file(self.path / name, READABLE) as temporary:
            shutil.copyfile(state, temporary)
            fsync_file(temporary)
        new = _NewVersion(
            version,
            describe_file(self.path / name, name, FileLabel(name, "run the command again", "file")),
            pq.read_schema(self.path / name),
            block,
            newest_slice.sequence_number,
            newest_slice.system_time,
            None if before is None else before.data,
        )
        with translate_os_errors(self.path):
            fsync_folder(self.path / "data")
            written = self._write_delta(new) if self._format == "delta" else self._write_iceberg(new)
            names = [name, *written]
            record = LatestVersion(
                version,
                str(self.path.resolve()),
                key,
                str(block),
                name,
                {part: _digest(self.path / part) for part in names},
                [] if before is None else list(before.files),
            )
            TableFolder(self.path).write(_RECORD, msgspec.json.encode(record))
            self._remove_unused(record)
        return record

    def remove(self) -> bool:
        """Remove the table; return whether there was one.

        Raises:
            OdfError: it cannot be removed.
        """
        if not self.path.exists():
            return False
        with translate_os_errors(self.path):
            shutil.rmtree(self.path)
        return True

    def _remove_unused(self, record: LatestVersion) -> None:
        used = {_RECORD, *record.files, *record.before}
        for folder, _, names in os.walk(self.path):
            for name in names:
                path = Path(folder, name)
                if path.relative_to(self.path).as_posix() not in used:
                    path.unlink()

    def _write_delta(self, new: _NewVersion) -> list[str]:
        """Write a version and its checkpoint, so that earlier versions are not needed; return the files."""
        folder = TableFolder(self.path / "_delta_log")
        name = f"{self._dataset.state().dataset_id}/latest"
        actions = [*declare_table(new.schema, name, new.time), add_action(new.file, new.time)]
        commit = [commit_info(new.block, new.number, new.time, "WRITE", {"mode": "Overwrite"})]
        if new.replaced not in (None, new.file.path):
            removal = {"path": new.replaced, "deletionTimestamp": new.time.ms, "dataChange": True}
            commit.append({"remove": removal})
        folder.write(commit_name(new.version), b"\n".join(map(msgspec.json.encode, [*commit, *actions])))
        rows = pa.Table.from_pylist(actions, checkpoint_schema())
        folder.write(checkpoint_name(new.version), encode_checkpoint(rows))
        last = {"version": new.version, "size": rows.num_rows}
        folder.write(LAST_CHECKPOINT, msgspec.json.encode(last))
        names = (commit_name(new.version), checkpoint_name(new.version), LAST_CHECKPOINT)
        return [f"_delta_log/{name}" for name in names]

    def _write_iceberg(self, new: _NewVersion) -> list[str]:
        """Write the metadata of a version with one snapshot; return the files."""
        folder = TableFolder(self.path / "metadata")
        location = f"file://{self.path.resolve()}"
        schemas = IcebergSchemas()
        schemas.add(new.schema)
        writer = ManifestWriter(folder, f"{location}/metadata")
        path, suffix = f"{location}/{new.file.path}", new.block.abbreviated
        manifests = writer.add_file([], new.file, path, new.version, suffix, schemas.schemas[0])
        snapshot = {
            "snapshot-id": new.version,
            "sequence-number": new.version,
            "timestamp-ms": new.time.ms,
            "manifest-list": writer.write_list(manifests, new.version, None, suffix),
            "summary": {
                "operation": "overwrite",
                "total-data-files": "1",
                "total-records": str(new.file.rows),
                "odf.block": str(new.block),
                "odf.sequence-number": str(new.number),
            },
            "schema-id": 0,
        }
        folder.sync(writer.written)
        name = f"{self._dataset.state().dataset_id}/latest"
        document = {
            **table_document(name, location, new.time, schemas, snapshot),
            "snapshots": [snapshot],
            "snapshot-log": [{"snapshot-id": new.version, "timestamp-ms": new.time.ms}],
        }
        folder.write(metadata_name(new.version), msgspec.json.encode(document))
        folder.write(VERSION_HINT, str(new.version).encode())
        names = (*writer.written, metadata_name(new.version), VERSION_HINT)
        return [f"metadata/{name}" for name in names]


def latest_tables(dataset: Dataset) -> list[TableFormat]:
    """Return the formats of the existing tables."""
    return [format for format, name in LATEST_FOLDERS.items() if (dataset.folder / name).exists()]


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
