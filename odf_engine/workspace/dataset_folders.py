"""Folders of the datasets of a workspace, including those being created or received."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from odf_engine.base.atomic_files import replace_text_file, write_error
from odf_engine.base.files import fsync_folder, fsync_folders, open_no_follow, remove_temporary, sync_change
from odf_engine.data.parquet.parquet_reader import open_parquet, parquet_errors
from odf_engine.errors import BadData, Conflict, InvalidIdentity, NotSynced, OdfError
from odf_engine.identity.did import DID_PREFIX, DatasetId
from odf_engine.identity.multiformats import Multihash
from odf_engine.identity.names import DatasetAlias
from odf_engine.mirror.catalog import MARKER, ORIGIN_FILE, CatalogEntry
from odf_engine.storage.refs import HEAD, RefStore
from odf_engine.workspace.discovery import check_dataset_folder

if TYPE_CHECKING:
    from odf_engine.chain.dataset import Dataset


_EXPIRY_SECONDS: Final = 14 * 86_400.0


@contextmanager
def incoming_folder(odf: Path, source: str) -> Iterator[Path]:
    """Yield a folder for a dataset that is being received, with the files of an earlier attempt.

    The caller moves the folder away when the dataset is complete. A folder without files is removed at the
    end.

    Args:
        odf: the ``.odf`` folder of the workspace.
        source: the URL of the dataset, which identifies the folder.

    Raises:
        Conflict: the same dataset is already being received.
    """
    incoming = odf / "incoming"
    name = hashlib.sha256(source.encode()).hexdigest()[:32]
    folder, lock = incoming / name, incoming / f"{name}.lock"
    try:
        incoming.mkdir(mode=0o700, exist_ok=True)
        descriptor = _try_lock(lock)
        if descriptor is None:
            raise Conflict(
                "the dataset is already being transferred",
                hint="wait until the transfer has finished",
                where=source,
            )
        _remove_expired(incoming, exclude=name)
        folder.mkdir(exist_ok=True)
        check_dataset_folder(folder)
    except OSError as error:
        raise write_error(folder, error) from error
    try:
        yield folder
    finally:
        if _is_empty(folder):
            shutil.rmtree(folder, ignore_errors=True)
            remove_temporary(lock)
        os.close(descriptor)


def _try_lock(lock: Path) -> int | None:
    descriptor = open_no_follow(lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_nlink:
            os.utime(descriptor)
            return descriptor
    except BlockingIOError:
        pass
    os.close(descriptor)
    return None


def _remove_expired(incoming: Path, exclude: str) -> None:
    threshold = time.time() - _EXPIRY_SECONDS
    for lock in incoming.glob("*.lock"):
        if lock.stem == exclude or lock.stat().st_mtime > threshold:
            continue
        descriptor = _try_lock(lock)
        if descriptor is not None:
            shutil.rmtree(incoming / lock.stem, ignore_errors=True)
            lock.unlink(missing_ok=True)
            os.close(descriptor)


def _is_empty(folder: Path) -> bool:
    """Return whether the folder has no files except locks."""
    return not any(path.suffix != ".lock" for path in folder.rglob("*") if path.is_file())


ALIAS_FILE: Final = "info/alias"
_STAGED: Final = ".new-"
_DELETED: Final = ".gone-"


class NamedDataset(NamedTuple):
    """A dataset and its name.

    Attributes:
        problem: why the name cannot be read; ``alias`` is then derived from the id.
    """

    id: DatasetId
    alias: DatasetAlias
    problem: OdfError | None = None


class DatasetFolders:
    """The folders within ``home``. All methods except :meth:`aliases` and :meth:`path` require the lock."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._journal = home / ".publishing"
        self._ids: dict[str, DatasetId] = {}

    def path(self, dataset_id: DatasetId) -> Path:
        """Return the folder of a dataset, whether or not it exists."""
        return self.home / dataset_id.multibase

    def aliases(self) -> Iterator[NamedDataset]:
        """Yield the existing datasets with their names.

        An unreadable name does not raise: the dataset has a ``problem``.

        Raises:
            OdfError: the folder of the datasets cannot be read.
        """
        try:
            names = os.listdir(self.home)  # noqa: PTH208 (a path object for each takes most of the time)
        except FileNotFoundError:
            return
        except OSError as error:
            raise OdfError(
                f"the datasets cannot be read: {error.strerror}",
                hint="check the owner and the permissions of the folder",
                where=str(self.home),
            ) from error
        for name in names:
            if name.startswith("."):
                continue
            try:
                dataset_id = self._ids.get(name) or DatasetId.parse(DID_PREFIX + name)
            except InvalidIdentity:
                continue
            self._ids[name] = dataset_id
            yield _read_name(self.home, name, dataset_id)

    def set_alias(self, dataset_id: DatasetId, alias: DatasetAlias) -> None:
        """Set the name of a dataset."""
        replace_text_file(self.path(dataset_id) / ALIAS_FILE, str(alias))

    def stage(self, dataset_id: DatasetId, alias: DatasetAlias, origin: str | None) -> Path:
        """Create a folder for a new dataset, which is invisible until :meth:`publish`."""
        folder = self._staging(dataset_id)
        (folder / ALIAS_FILE).parent.mkdir(parents=True)
        replace_text_file(folder / ALIAS_FILE, str(alias))
        if origin is not None:
            replace_text_file(folder / ORIGIN_FILE, origin)
        return folder

    def sync(self) -> None:
        """Sync the names of all folders to disk."""
        fsync_folder(self.home)

    def publish(self, heads: Mapping[DatasetId, Multihash]) -> None:
        """Make new datasets visible: all or none, also if the process is killed.

        Args:
            heads: the head of each dataset.
        """
        if not heads:
            return
        for dataset in heads:
            fsync_folders(self._staging(dataset))
        if len(heads) > 1:
            replace_text_file(
                self._journal, "".join(f"{dataset.multibase} {head}\n" for dataset, head in heads.items())
            )
        for dataset_id in heads:
            self._staging(dataset_id).rename(self.path(dataset_id))
        fsync_folder(self.home)
        self._end_publishing()

    def is_publishing(self) -> bool:
        """Return whether :meth:`publish` is in progress for several datasets, or was interrupted."""
        return self._journal.exists()

    def recover(self) -> None:
        """Revert an interrupted :meth:`publish`.

        If a published dataset has changed since, publish the others instead. No data are removed.
        """
        try:
            lines = self._journal.read_text(encoding="ascii", errors="replace").splitlines()
        except FileNotFoundError:
            return
        except OSError as error:
            raise OdfError(
                f"the journal of an interrupted command cannot be read: {error.strerror or error}",
                hint="check the disk and the permissions of the file, then try again",
                where=str(self._journal),
            ) from error
        published: list[DatasetId] = []
        staged: list[DatasetId] = []
        is_changed = False
        for line in lines:
            name, _, head = line.partition(" ")
            dataset_id = DatasetId.parse(DID_PREFIX + name)
            if self._staging(dataset_id).is_dir():
                staged.append(dataset_id)
            elif self.path(dataset_id).is_dir():
                published.append(dataset_id)
                is_changed |= RefStore(self.path(dataset_id) / "refs").read(HEAD) != head
        if is_changed:
            for dataset in staged:
                self._staging(dataset).rename(self.path(dataset))
        else:
            for dataset in published:
                self.path(dataset).rename(self._staging(dataset))
        fsync_folder(self.home)
        self._end_publishing()

    def _end_publishing(self) -> None:
        if self._journal.exists():
            self._journal.unlink()
            fsync_folder(self.home)

    def import_dataset(self, folder: Path, dataset_id: DatasetId, alias: DatasetAlias, origin: str) -> None:
        """Move a complete received dataset to its folder; store its name and origin.

        Raises:
            NotSynced: the dataset was added, but a power failure may undo it.
            OdfError: the dataset cannot be moved.
        """
        try:
            (folder / ALIAS_FILE).parent.mkdir(exist_ok=True)
            replace_text_file(folder / ALIAS_FILE, str(alias))
            replace_text_file(folder / ORIGIN_FILE, origin)
            fsync_folders(folder)
            folder.rename(self.path(dataset_id))
        except NotSynced as error:
            raise error.as_failure() from error
        except OSError as error:
            raise write_error(self.path(dataset_id), error) from error
        sync_change(self.home, "the dataset was added")

    def follow(self, catalog: Mapping[str, CatalogEntry]) -> list[NamedDataset] | None:
        """Make the mirrors of a store correspond to its list of datasets. Other datasets are not changed.

        Args:
            catalog: names and origins by the multibase form of ids.

        Returns:
            The existing datasets, or None if they have changed.

        Raises:
            OSError: a folder cannot be changed.
        """
        existing = {dataset.id.multibase: dataset for dataset in self.aliases()}
        is_changed = False
        for name, entry in catalog.items():
            known = existing.get(name)
            if known is not None and str(known.alias) == entry.alias:
                continue
            try:
                dataset_id = DatasetId.parse(DID_PREFIX + name)
                alias = DatasetAlias.parse(entry.alias)
            except InvalidIdentity:
                continue
            if dataset_id.multibase != name:
                continue  # another spelling of the id of a dataset
            is_changed = True
            if known is None:
                self._add_mirror(dataset_id, entry)
            else:
                self.set_alias(dataset_id, alias)
        for name, dataset in existing.items():
            if name not in catalog and (self.path(dataset.id) / MARKER).exists():
                is_changed = True
                with suppress(FileNotFoundError):
                    self.remove(dataset.id)
        return None if is_changed else list(existing.values())

    def _add_mirror(self, dataset_id: DatasetId, entry: CatalogEntry) -> None:
        """Create the mirror of a dataset whose creation is committed, even if it was interrupted here."""
        folder = self._staging(dataset_id)
        (folder / MARKER).parent.mkdir(parents=True, exist_ok=True)
        if entry.origin:
            (folder / ORIGIN_FILE).write_text(entry.origin, encoding="utf-8")
        (folder / ALIAS_FILE).write_text(entry.alias, encoding="utf-8")
        (folder / MARKER).touch()
        os.utime(folder / MARKER, (0, 0))  # its head has not been read
        if entry.origin:
            fsync_folders(folder)  # without its origin, it would be an own dataset
        folder.rename(self.path(dataset_id))

    def is_mirror(self, dataset_id: DatasetId) -> bool:
        """Return whether the dataset is in the store of the workspace."""
        # Every list does this for every dataset, see _read_name.
        return os.path.exists(f"{self.home}/{dataset_id.multibase}/{MARKER}")  # noqa: PTH110

    def staging_path(self, dataset_id: DatasetId) -> Path:
        """Return the folder of a new dataset."""
        return self._staging(dataset_id)

    def discard(self, dataset_ids: Sequence[DatasetId], forget: Callable[[DatasetId], None]) -> None:
        """Remove datasets whose creation failed. Errors of the disk do not raise.

        Args:
            dataset_ids: the datasets.
            forget: removes the private key of a dataset. If that fails, the folder stays, so that a
                later :meth:`sweep` finds the key.
        """
        for dataset_id in dataset_ids:
            with suppress(OSError):
                self.path(dataset_id).rename(self._staging(dataset_id))
            with suppress(OdfError):
                forget(dataset_id)
                shutil.rmtree(self._staging(dataset_id), ignore_errors=True)
        with suppress(OSError):
            self._end_publishing()

    def remove(self, dataset_id: DatasetId) -> None:
        """Remove a dataset.

        Raises:
            FileNotFoundError: the dataset does not exist.
            NotSynced: the dataset was removed, but a power failure may undo it.
        """
        trash = self.home / f"{_DELETED}{dataset_id.multibase}"
        shutil.rmtree(trash, ignore_errors=True)  # left by an interrupted deletion
        self.path(dataset_id).rename(trash)
        # Before its parts are removed: after a power failure the dataset must not reappear without them.
        sync_change(self.home, "the dataset was deleted")
        shutil.rmtree(trash, ignore_errors=True)

    def find_unfinished(self) -> list[Path]:
        """Return the folders of interrupted creations and deletions."""
        return [path for pattern in (_STAGED, _DELETED) for path in self.home.glob(f"{pattern}*")]

    def find_uncreated_ids(self) -> list[DatasetId]:
        """Return the datasets whose creation was interrupted. Their private keys were never in use."""
        ids: list[DatasetId] = []
        for path in self.home.glob(f"{_STAGED}*"):
            with suppress(InvalidIdentity):
                dataset_id = DatasetId.parse(DID_PREFIX + path.name.removeprefix(_STAGED))
                if not self.path(dataset_id).exists():
                    ids.append(dataset_id)
        return ids

    def sweep(self) -> None:
        """Remove the folders of interrupted creations and deletions."""
        for path in self.find_unfinished():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                with suppress(OSError):
                    path.unlink()

    def _staging(self, dataset_id: DatasetId) -> Path:
        return self.home / f"{_STAGED}{dataset_id.multibase}"


def _read_name(home: Path, name: str, dataset_id: DatasetId) -> NamedDataset:
    # Every list does this for every dataset. Joining strings takes a tenth of the time of joining paths.
    path = f"{home}/{name}/{ALIAS_FILE}"
    by_id = DatasetAlias(None, name)
    try:
        with open(path, encoding="utf-8", opener=open_no_follow) as file:
            return NamedDataset(dataset_id, DatasetAlias.parse(file.read(1024).strip()))
    except (FileNotFoundError, NotADirectoryError, UnicodeDecodeError, InvalidIdentity):
        # A missing name must not hide a dataset: its name is its id until it is renamed.
        return NamedDataset(dataset_id, by_id)
    except OSError as error:
        problem = OdfError(
            f"the name of a dataset cannot be read: {error.strerror or error}",
            hint="check the disk and the permissions of the file, then try again",
            where=path,
        )
        return NamedDataset(dataset_id, by_id, problem)


LATE_ROWS: Final = "info/late"
"""Folder of the late rows of a dataset, within its own folder."""


class LateRowsFile(NamedTuple):
    """The late rows of an input in one transaction.

    Attributes:
        block: hash of the block of the transaction.
        input: name of the input in the query.
        rows: number of rows.
        path: Parquet file with the rows.
    """

    block: str
    input: str
    rows: int
    path: Path


def list_late_rows(dataset: Dataset) -> list[LateRowsFile]:
    """Return the stored late rows of a derivative dataset, newest block first; other histories are left out.

    Raises:
        BadData: a file is damaged.
    """
    # Deferred: the workstation loads this module before its first paint.
    files: dict[str, list[LateRowsFile]] = {}
    for path in sorted((dataset.folder / LATE_ROWS).glob("[!.]*.parquet")):
        try:
            with open_parquet(path) as file:
                text = {key.decode(): value.decode() for key, value in (file.metadata.metadata or {}).items()}
                late_rows_file = LateRowsFile(
                    text["odf.block"], text["odf.input"], file.metadata.num_rows, path
                )
        except (*parquet_errors(), KeyError) as error:
            raise BadData(
                f"the file with late rows is damaged: {error}", where=str(path), hint="delete the file"
            ) from error
        files.setdefault(late_rows_file.block, []).append(late_rows_file)
    blocks = dataset.list_blocks(sys.maxsize, kinds=("ExecuteTransform",)) if files else []
    return [file for block in blocks for file in files.get(str(block.hash), [])]


_REJECTS: Final = "info/rejects"
_REJECTS_NAME: Final = re.compile(r"(f[0-9a-f]+)-(\d+)\.csv")


class Rejects(NamedTuple):
    """The invalid rows that were left out of a block: their number, and the CSV file that lists them."""

    rows: int
    file: Path


def store_rejects(folder: Path, block: Multihash, rejects: Rejects) -> Path:
    """Move the rejected rows of a block to the folder of its dataset; return the file.

    They are not part of the chain: other copies of the dataset do not have them.

    Args:
        folder: folder of the dataset.
        block: the block with the other rows.
        rejects: the rows, in a temporary file.

    Raises:
        OdfError: the file cannot be written.
    """
    path = folder / _REJECTS / f"{block}-{rejects.rows}.csv"
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(rejects.file, part)
        part.replace(path)
    except OSError as error:
        raise write_error(path, error) from error
    return path


def count_late(dataset: Dataset, blocks: int) -> int:
    """Return the number of late rows that the newest blocks of a derivative dataset dropped."""
    late = list_late_rows(dataset) if blocks else []
    newest = {str(row.hash) for row in dataset.list_blocks(blocks)} if late else set()
    return sum(file.rows for file in late if file.block in newest)


def count_rejected(dataset: Dataset, blocks: int) -> int:
    """Return the number of rows that were left out of the newest blocks of a dataset."""
    rejects = read_rejects(dataset.folder)
    if not rejects or not blocks:
        return 0
    newest = map(str, (row.hash for row in dataset.list_blocks(blocks)))
    return sum(rejects[block].rows for block in newest if block in rejects)


def read_rejects(folder: Path) -> dict[str, Rejects]:
    """Return the rejected rows of a dataset by the hash of their block.

    Args:
        folder: folder of the dataset.
    """
    try:
        files = list((folder / _REJECTS).iterdir())
    except OSError:
        return {}
    matches = ((_REJECTS_NAME.fullmatch(file.name), file) for file in files)
    return {match[1]: Rejects(int(match[2]), file) for match, file in matches if match is not None}
