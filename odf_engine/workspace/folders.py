"""Where the datasets of a workspace lie: one folder each, named after the identity.

A dataset that is being made or deleted stands in a folder whose name starts with a dot, and moves by
one rename: others see it whole or not at all.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from odf_engine.errors import InvalidIdentity, NotSynced, OdfError
from odf_engine.identity.did import DID_PREFIX, DatasetId
from odf_engine.identity.refs import DatasetAlias
from odf_engine.storage.objects import sync_change, sync_folder
from odf_engine.workspace.small_files import not_writable, write_text

ALIAS_FILE: Final = "info/alias"
ORIGIN_FILE: Final = "info/origin"
"""In a dataset's folder: where its definition came from, if not from here."""


class DatasetFolders:
    """The folders within ``home``; all but :meth:`aliases` and :meth:`path` only under the lock."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._ids: dict[str, DatasetId] = {}

    def path(self, dataset_id: DatasetId) -> Path:
        """The folder of a dataset, whether or not it is there."""
        return self.home / dataset_id.multibase

    def aliases(self) -> Iterator[tuple[DatasetId, DatasetAlias]]:
        """The datasets that are there, and how they are called.

        Raises:
            OdfError: their folder cannot be read.
        """
        try:
            names = os.listdir(self.home)  # noqa: PTH208 (a path object for each costs more than the rest)
        except FileNotFoundError:
            return
        except OSError as error:
            raise OdfError(
                f"the datasets cannot be read: {error.strerror}",
                hint="check whose the folder is, and its permissions",
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
            yield dataset_id, _read_alias(self.home, name)

    def name(self, dataset_id: DatasetId, alias: DatasetAlias) -> None:
        """Calls a dataset something else."""
        write_text(self.path(dataset_id) / ALIAS_FILE, str(alias))

    def stage(self, dataset_id: DatasetId, alias: DatasetAlias, origin: str | None) -> Path:
        """A folder to make a dataset in, which nobody sees before :meth:`publish`."""
        folder = self._staging(dataset_id)
        (folder / ALIAS_FILE).parent.mkdir(parents=True)
        write_text(folder / ALIAS_FILE, str(alias))
        if origin is not None:
            write_text(folder / ORIGIN_FILE, origin)
        return folder

    def publish(self, dataset_id: DatasetId) -> None:
        """Lets others see a dataset that was made."""
        self._staging(dataset_id).rename(self.path(dataset_id))
        sync_folder(self.home)

    def take_in(self, folder: Path, dataset_id: DatasetId, alias: DatasetAlias, origin: str) -> None:
        """Moves a dataset that was made elsewhere to its place, with its name and where it came from.

        Raises:
            NotSynced: it is there; a power failure may undo it.
            OdfError: the file system does not take it.
        """
        try:
            (folder / ALIAS_FILE).parent.mkdir(exist_ok=True)
            write_text(folder / ALIAS_FILE, str(alias))
            write_text(folder / ORIGIN_FILE, origin)
            sync_folder(folder / "refs")  # an earlier try may have failed at just that
            folder.rename(self.path(dataset_id))
        except NotSynced as error:
            raise error.as_failure() from error
        except OSError as error:
            raise not_writable(self.path(dataset_id), error) from error
        sync_change(self.home, "the dataset was added")

    def discard(self, dataset_id: DatasetId) -> None:
        """Removes a dataset that was not made after all."""
        for folder in (self._staging(dataset_id), self.path(dataset_id)):
            shutil.rmtree(folder, ignore_errors=True)

    def remove(self, dataset_id: DatasetId) -> None:
        """Removes a dataset.

        Raises:
            FileNotFoundError: it is not there.
        """
        doomed = self.home / f".gone-{dataset_id.multibase}"
        self.path(dataset_id).rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)

    def sweep(self) -> list[DatasetId]:
        """Removes what a killed process left half made or half deleted; which datasets that were."""
        swept: list[DatasetId] = []
        for folder in self.home.glob(".*-*"):
            shutil.rmtree(folder, ignore_errors=True)
            try:
                swept.append(DatasetId.parse(DID_PREFIX + folder.name.partition("-")[2]))
            except InvalidIdentity:
                continue
        return swept

    def _staging(self, dataset_id: DatasetId) -> Path:
        return self.home / f".new-{dataset_id.multibase}"


def _read_alias(home: Path, name: str) -> DatasetAlias:
    # Every listing does this for every dataset: joining texts is a tenth of the work of joining paths.
    try:
        with open(f"{home}/{name}/{ALIAS_FILE}", encoding="utf-8") as file:  # noqa: PTH123
            return DatasetAlias.parse(file.read(1024).strip())
    except (OSError, UnicodeDecodeError, InvalidIdentity):
        # A lost name must not hide a dataset: until it is renamed it goes by its id.
        return DatasetAlias(None, name)
