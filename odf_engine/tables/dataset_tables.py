"""Writes, updates and removes the tables of a dataset."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, suppress
from typing import Final

import msgspec

from odf_engine.base.atomic_files import file_lock
from odf_engine.base.files import ensure_folder
from odf_engine.chain.dataset import Dataset
from odf_engine.errors import OdfError, UsageError
from odf_engine.mirror.dataset_mirror import DatasetMirror
from odf_engine.storage.refs import HEAD
from odf_engine.tables import LATEST_FOLDERS, METADATA_FOLDERS, TableFormat
from odf_engine.tables.delta_table import DeltaTable, commit_name
from odf_engine.tables.iceberg_table import VERSION_HINT, IcebergTable
from odf_engine.tables.latest_table import LatestTable
from odf_engine.tables.stored_table_folder import (
    StoredTableFolder,
    check_readable,
    stored_location,
    stored_table_path,
)
from odf_engine.tables.table_files import OnProgress
from odf_engine.tables.table_folder import TableFolder

_LOCK: Final = "info/tables.lock"
_logger: Final = logging.getLogger(__name__)


class WrittenTable(msgspec.Struct, frozen=True):
    """A table of a dataset.

    Attributes:
        format: its format.
        path: the folder, or the URL in a store, that readers open.
        version: its newest version; for a table of all rows, the number of the newest block.
    """

    format: TableFormat
    path: str
    version: int


def write_table(dataset: Dataset, format: TableFormat, on_progress: OnProgress) -> WrittenTable:
    """Write the table of a dataset, or add what it lacks.

    Raises:
        NotFound, BadData: a block or a slice is missing or damaged, or the dataset has no columns yet.
        Unsupported: the format does not have the type of a column, or its readers cannot open the store.
        UsageError: the dataset is a branch.
        OdfError: the table cannot be written.
    """
    require_head(dataset)
    if isinstance(dataset.origin, DatasetMirror):
        check_readable(dataset.origin, format)
    with _locked(dataset):
        folder = _open_folder(dataset, format)
        folder.keep_current()
        version = _open_table(dataset, format, folder).update(on_progress, thorough=True)
    return WrittenTable(format, table_path(dataset, format), version)


def require_head(dataset: Dataset) -> None:
    """Check that a dataset is not a branch, since a dataset has one table.

    Raises:
        UsageError: it is a branch.
    """
    if dataset.reference != HEAD:
        raise UsageError("a branch has no table", hint="promote the branch, or export its rows")


def remove_table(dataset: Dataset, format: TableFormat, *, latest: bool = False) -> bool:
    """Remove a table of a dataset; return whether there was one. The slices are not removed.

    Args:
        dataset: the dataset.
        format: the format of the table.
        latest: whether the table of the latest state is removed instead of the table of all rows.

    Raises:
        OdfError: it cannot be removed.
    """
    if latest:
        table = LatestTable(dataset, format)
        with table.locked():
            return table.remove()
    folder = _open_folder(dataset, format)
    with _locked(dataset):
        is_removed = folder.remove_all()
        if is_removed and format == "iceberg":
            with suppress(OSError):  # files of the user are in it
                folder.path.parent.rmdir()
    return is_removed


def outdated_tables(dataset: Dataset) -> list[TableFormat]:
    """Return the formats of the existing tables that differ from the chain, or have damaged metadata."""
    outdated: list[TableFormat] = []
    for format in METADATA_FOLDERS:
        folder = _open_folder(dataset, format)
        if folder.exists() and not _open_table(dataset, format, folder).is_intact():
            with _locked(dataset):  # a commit has updated the table in the meantime, or is going to
                if not _open_table(dataset, format).is_intact():
                    outdated.append(format)
    return outdated


def update_tables(dataset: Dataset) -> None:
    """Update the existing tables of a dataset after a commit. An error is only logged."""
    for format in METADATA_FOLDERS:
        try:
            with _locked(dataset):
                folder = _open_folder(dataset, format)
                if folder.exists():
                    _open_table(dataset, format, folder).update(lambda done, total: None)
        except Exception as error:  # the blocks are committed: no error may say otherwise
            reason = error.format_line if isinstance(error, OdfError) else str(error)
            _logger.warning("the %s table was not updated; the next commit tries again: %s", format, reason)


def _locked(dataset: Dataset) -> AbstractContextManager[None]:
    ensure_folder(dataset.folder / "info")
    return file_lock(dataset.folder / _LOCK)


def table_path(dataset: Dataset, format: TableFormat, *, latest: bool = False) -> str:
    """Return the folder, or the URL in a store, that readers of a table open."""
    if latest:
        return str(dataset.folder / LATEST_FOLDERS[format])
    if isinstance(dataset.origin, DatasetMirror):
        return stored_table_path(dataset.origin, format)
    return str(dataset.folder if format == "delta" else dataset.folder / "iceberg")


def _open_folder(dataset: Dataset, format: TableFormat) -> TableFolder:
    path = dataset.folder / METADATA_FOLDERS[format]
    if isinstance(dataset.origin, DatasetMirror):
        marker = commit_name(0) if format == "delta" else VERSION_HINT
        return StoredTableFolder(dataset.origin, path, format, marker)
    return TableFolder(path)


def _open_table(
    dataset: Dataset, format: TableFormat, folder: TableFolder | None = None
) -> DeltaTable | IcebergTable:
    folder = folder or _open_folder(dataset, format)
    if format == "delta":
        return DeltaTable(dataset, folder)
    location = f"file://{dataset.folder.resolve()}"  # not percent-encoded: readers do not decode it
    if isinstance(dataset.origin, DatasetMirror):
        location = stored_location(dataset.origin)
    return IcebergTable(dataset, folder, f"{location}/iceberg", location)
