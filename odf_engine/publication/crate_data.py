"""The data in a crate: packs datasets, and unpacks and checks them before they are pulled."""

from __future__ import annotations

import shutil
import stat
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final, NamedTuple

import msgspec

from odf_engine.base.files import translate_os_errors
from odf_engine.base.progress import ForwardingReporter, Reporter
from odf_engine.data.zip_archive import ARCHIVE_ERRORS, ZipArchive
from odf_engine.errors import BadData, Cancelled, InvalidIdentity, NotFound, OdfError
from odf_engine.identity.did import DatasetId
from odf_engine.identity.multiformats import Multihash
from odf_engine.identity.names import DatasetAlias
from odf_engine.net.urls import normalize_url
from odf_engine.storage.scratch import job_scratch_folder
from odf_engine.sync.pull import clone_dataset
from odf_engine.sync.push import push
from odf_engine.sync.remotes.folder_remote import FolderRemote
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace

METADATA_FILE: Final = "ro-crate-metadata.json"
DATA_FOLDER: Final = "odf"
"""The folder of a crate with the datasets: a repository."""
_MAX_METADATA: Final = 64 << 20
_MAX_EXPANSION: Final = 100
_MIN_LIMIT: Final = 1 << 20
_CHUNK: Final = 1 << 20
_PARALLEL: Final = 4
_HINT: Final = "get another copy of the crate; nothing was added to the workspace"


class PackedDataset(NamedTuple):
    """A dataset in a crate.

    Attributes:
        name: its name in the crate.
        id, head: its id, and the hash of its newest block.
        url: the URL of its folder.
        is_cited: whether the crate is about this dataset, and not only derived from it.
    """

    name: str
    id: DatasetId
    head: Multihash
    url: str
    is_cited: bool


class CopiedBytes:
    """Copies files to or from an archive, and reports how many bytes of all files were copied.

    Args:
        reporter: receives the progress.
        total: the size of all files.
    """

    def __init__(self, reporter: Reporter, total: int) -> None:
        self._reporter, self._total, self._done = reporter, total, 0

    def copy(self, source: IO[bytes], target: IO[bytes]) -> None:
        """Copy a file.

        Raises:
            Cancelled: the operation was cancelled.
        """
        while chunk := source.read(_CHUNK):
            self._reporter.raise_if_cancelled()
            target.write(chunk)
            self._done += len(chunk)
            self._reporter.set_amounts(bytes=self._done, total_bytes=self._total)


class _DatasetReporter(ForwardingReporter):
    """Adds the name of a dataset to the messages about it."""

    def __init__(self, target: Reporter, name: str) -> None:
        super().__init__(target)
        self._name = name

    def log(self, text: str, level: str = "info") -> None:
        super().log(f"{self._name}: {text}", level)

    def warn(self, text: str, kind: str, count: int | None = None) -> None:
        super().warn(f"{self._name}: {text}", kind, count)


def pack_datasets(entries: Sequence[DatasetEntry], folder: Path, reporter: Reporter) -> None:
    """Write datasets to a repository in the folder of a crate.

    Raises:
        NotFound, BadData: a block or a file is missing or damaged.
    """
    for entry in entries:
        target = folder / DATA_FOLDER / str(entry.alias)
        target.parent.mkdir(parents=True, exist_ok=True)
        remote = FolderRemote(normalize_url(str(target)), is_durable=False)
        try:
            push(entry, remote, _DatasetReporter(reporter, str(entry.alias)), force=False, parallel=_PARALLEL)
        except (NotFound, BadData) as error:
            raise type(error)(
                f"{entry.alias} cannot be packed with its data: {error.message}",
                where=error.where,
                hint=f"find all errors with odf verify --integrity {entry.alias}, and restore the files",
            ) from error
        shutil.rmtree(target / "info", ignore_errors=True)  # a lock, and the folder of temporary files


def is_crate(text: str) -> bool:
    """Return whether a text is the path of a crate: a zip archive, or a folder with the metadata."""
    path = Path(text).expanduser()
    try:
        return (path.suffix.lower() == ".zip" and path.is_file()) or (path / METADATA_FILE).is_file()
    except OSError:  # such as a name that is too long for a path
        return False


@contextmanager
def opened_crate(workspace: Workspace, path: Path, reporter: Reporter) -> Iterator[list[PackedDataset]]:
    """Unpack a crate until the end of the ``with`` body, check its datasets, and yield them.

    The check is a pull into a temporary workspace. So nothing is added if one of the datasets is damaged.

    Raises:
        BadData: the crate is damaged, or the archive is unsafe.
        NotFound: the crate has no data.
        Cancelled: the operation was cancelled.
    """
    with job_scratch_folder(workspace.odf / "cache") as scratch:
        folder = path if path.is_dir() else scratch / "crate"
        if folder != path:
            with translate_os_errors(path):
                _unpack(path, folder, reporter)
        packed = _read_metadata(folder, path)
        _check_datasets(packed, path, scratch / "check", reporter)
        yield packed


def _unpack(path: Path, folder: Path, reporter: Reporter) -> None:
    """Extract the metadata and the data of an archive.

    Raises:
        BadData: a path leaves the folder, an entry is not a file, or the archive is a zip bomb.
    """
    try:
        with ZipArchive(path) as archive:
            entries = archive.infolist()
            total = sum(entry.file_size for entry in entries)
            if total > _MAX_EXPANSION * path.stat().st_size + _MIN_LIMIT:
                raise BadData(
                    f"the archive expands to more than {_MAX_EXPANSION} times its size",
                    where=str(path),
                    hint=_HINT,
                )
            names = [(entry, _safe_name(entry, path)) for entry in entries]
            files = [(entry, name) for entry, name in names if not entry.is_dir() and _is_pulled(name)]
            reporter.phase("unpack")
            copied = CopiedBytes(reporter, sum(entry.file_size for entry, _ in files))
            for entry, name in files:
                target = folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(entry) as source, target.open("xb") as file:
                    copied.copy(source, file)
    except (*ARCHIVE_ERRORS, FileExistsError, NotADirectoryError) as error:
        raise BadData(f"the archive cannot be read: {error}", where=str(path), hint=_HINT) from None


def _is_pulled(name: PurePosixPath) -> bool:
    return name.parts[0] == DATA_FOLDER or name.parts == (METADATA_FILE,)


def _safe_name(entry: zipfile.ZipInfo, archive: Path) -> PurePosixPath:
    name = PurePosixPath(entry.filename)
    kind = stat.S_IFMT(entry.external_attr >> 16)
    is_safe = name.parts and not name.is_absolute() and ".." not in name.parts and "\\" not in entry.filename
    if not is_safe or not entry.filename.isprintable() or kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise BadData(f"the archive has an unsafe entry: {entry.filename!r}", where=str(archive), hint=_HINT)
    return name


class _Entity(msgspec.Struct):
    """The fields of an entity of the metadata that a pull needs."""

    id: Any = msgspec.field(name="@id", default="")
    name: Any = None
    identifier: Any = None
    version: Any = None
    main: Any = msgspec.field(name="mainEntity", default=None)


class _Metadata(msgspec.Struct):
    graph: list[_Entity] = msgspec.field(name="@graph")


def _read_metadata(folder: Path, crate: Path) -> list[PackedDataset]:
    """Return the datasets that the metadata of a crate lists.

    Raises:
        BadData: the metadata are damaged.
        NotFound: they list no datasets with data, or the archive is not a crate.
    """
    file = folder / METADATA_FILE
    if not file.is_file():
        raise NotFound("not a crate: it has no metadata", where=str(crate), hint="use a file of odf cite -o")
    try:
        if file.stat().st_size > _MAX_METADATA:
            raise BadData("the metadata are too large", where=str(crate), hint=_HINT)
        entities = msgspec.json.decode(file.read_bytes(), type=_Metadata).graph
        cited = [entity.main.get("@id") for entity in entities if isinstance(entity.main, dict)]
        packed = [
            _parse_dataset(entity, folder, is_cited=entity.id in cited)
            for entity in entities
            if str(entity.id).startswith(f"{DATA_FOLDER}/")
        ]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, InvalidIdentity) as error:
        raise BadData(f"the metadata are damaged: {error}", where=str(crate), hint=_HINT) from None
    if not packed:
        hint = "request a crate that was written with odf cite --with-data"
        raise NotFound("the crate has only metadata, and no data", where=str(crate), hint=hint)
    return packed


def _parse_dataset(entity: _Entity, folder: Path, *, is_cited: bool) -> PackedDataset:
    alias = DatasetAlias.parse(str(entity.name))
    url = normalize_url(str((folder / DATA_FOLDER / str(alias)).absolute()))
    head = Multihash.parse(str(entity.version))
    return PackedDataset(str(alias), DatasetId.parse(str(entity.identifier)), head, url, is_cited)


def _check_datasets(packed: Sequence[PackedDataset], crate: Path, folder: Path, reporter: Reporter) -> None:
    """Pull the datasets into a temporary workspace.

    Raises:
        BadData: a dataset is damaged, or is not the version that the metadata name.
    """
    workspace = Workspace.init(folder)
    try:
        for dataset in packed:
            alias, remote = DatasetAlias.parse(dataset.name), FolderRemote(dataset.url)
            named = _DatasetReporter(reporter, dataset.name)
            try:
                entry, _ = clone_dataset(workspace, alias, remote, named, parallel=_PARALLEL)
                if (entry.id, entry.dataset.head()) != (dataset.id, dataset.head):
                    raise BadData("the dataset is not the version that the metadata name")
            except Cancelled:
                raise
            except OdfError as error:
                problem = f"{dataset.name} in the crate is damaged: {error.message}"
                raise BadData(problem, where=str(crate), hint=_HINT) from error
    finally:
        workspace.close()
