"""Collections of tables: archives with several data files, GTFS feeds, Data Packages and CSVW metadata."""

from __future__ import annotations

import csv
import io
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import msgspec

from odf_engine.base.lazy import LazyModule
from odf_engine.base.progress import Reporter
from odf_engine.base.settings import load_workspace
from odf_engine.data.zip_archive import ZipArchive
from odf_engine.errors import BadData, NotFound, OdfError, Unsupported, UsageError
from odf_engine.ingest.inference import gtfs
from odf_engine.ingest.inference.csvw import SUFFIX, is_csvw, read_csvw
from odf_engine.ingest.inference.data_package import FILE_NAME, read_package
from odf_engine.ingest.inference.declared_table import (
    DeclaredTable,
    MetadataFile,
    declared_choices,
    infer_table,
)
from odf_engine.ingest.inference.file_conversion import FORMATS, is_workbook
from odf_engine.ingest.inference.file_groups import resolve_pattern
from odf_engine.ingest.inference.file_inference import FileChoices, InferredFile
from odf_engine.ingest.inference.file_manifest import manifest_text
from odf_engine.ingest.inference.file_sample import (
    FileSample,
    is_url,
    load_sample,
    parts_of_table,
    read_sample,
    split_extensions,
)

if TYPE_CHECKING:
    from odf_engine.ingest.read import file_download
else:
    file_download = LazyModule("odf_engine.ingest.read.file_download")  # imports network libraries

_MAX_DOCUMENT: Final = 16 << 20
_MAX_ARCHIVE: Final = 1 << 30
_NOT_NAME: Final = re.compile(r"[^a-z0-9]+")
_NOTES: Final = re.compile(
    r"(?i)(.*[_ -])?(read[_ -]?me|licen[cs]e|copying|notice|changelog|terms|about)([_ -].*)?"
)
"""Names of text files about the data."""
_GROUP: Final = "csv-metadata.json"
_PACKAGE_LEVELS: Final = 3
"""Number of folders above a file that may have its Data Package."""
_ZIP: Final = b"PK\x03\x04"
_ZIP_ERRORS: Final = (
    zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, BadData,
)  # fmt: skip


class TableCollection:
    """The tables of a file, a collection, or a document that describes them.

    Attributes:
        location: the path, relative to the workspace, or URL.
        tables: the tables.
        is_collection: whether each table becomes a dataset with a name of its own.
    """

    def __init__(
        self, location: str, tables: Sequence[DeclaredTable], folder: Path, archive: Path | None = None
    ) -> None:
        self.location, self.tables = location, tables
        self.is_collection = len(tables) > 1
        self._folder, self._archive = folder, archive

    def find(self, member: str) -> DeclaredTable:
        """Return the table with a name, or with a file name in the archive.

        Raises:
            NotFound: there is no such table.
        """
        for table in self.tables:
            path = table.entry or table.location
            if member in (table.name, path) or f"/{path}".endswith(f"/{member}"):
                return table
        names = ", ".join(PurePosixPath(table.label).name for table in self.tables[:20])
        raise NotFound(f"no table '{member}'", where=self.location, hint=f"use one of {names}")

    def sample(self, table: DeclaredTable, reporter: Reporter) -> FileSample:
        """Read the beginning of a table.

        Raises:
            OdfError: the file is damaged, or cannot be read.
        """
        if self._archive is not None and table.location == self.location:
            return read_sample(self._archive, table.location, reporter, table.entry)
        home = self.location if is_url(self.location) else ""
        return load_sample(table.location, self._folder, reporter, home)

    def infer(self, table: DeclaredTable, reporter: Reporter) -> InferredFile:
        """Infer a table with its declarations.

        Raises:
            OdfError: the file is damaged, has no rows, or cannot be read.
        """
        return infer_table(table, self.sample(table, reporter), reporter)


@contextmanager
def open_tables(location: str, folder: Path, reporter: Reporter) -> Iterator[TableCollection]:
    """Yield the tables of a location. A file that is no collection has one table without a name.

    Args:
        location: a file or collection: a path, relative to the workspace, or URL.
        folder: the folder of the workspace.
        reporter: receives warnings, and cancels the download of an archive.

    Raises:
        OdfError: the collection is invalid, or cannot be read.
    """
    name = _base_name(location)
    with ExitStack() as stack:
        archive = None
        if _is_archive(location, folder, reporter):
            archive = stack.enter_context(_local_archive(location, folder, reporter))
            tables = _archive_tables(location, archive, reporter)
        elif name == FILE_NAME:
            document = MetadataFile(location)
            read = _document_reader(folder, reporter)
            tables = _named(read_package(document, read(location, ""), read, reporter))
            if not tables:
                raise BadData("the package has no table", where=document.place("resources"))
        elif name.endswith(SUFFIX) and (group := _csvw_tables(location, folder, reporter)) is not None:
            tables = _named(group)
        else:
            tables = [_described_table(location, folder, reporter)]
        yield TableCollection(location, tables, folder, archive)


def propose_manifests(
    location: str, name: str, folder: Path, reporter: Reporter, member: str = ""
) -> Iterator[str]:
    """Yield the manifest of each table of a file or collection.

    Args:
        location: a path, relative to the workspace, a pattern such as ``in/*.csv``, or URL.
        name: the dataset name; of a collection the start of the names.
        folder: the folder of the workspace.
        reporter: receives warnings, and cancels the inference.
        member: the only table to take, by its name or file name, or "" for all.

    Raises:
        UsageError: the file is no collection, and has no member.
        OdfError: no table can be read.
    """
    newest, pattern = resolve_pattern(location, folder)
    with open_tables(newest, folder, reporter) as collection:
        tables = collection.tables
        if member and not tables[0].name:
            raise UsageError(f"{location} is not a collection of tables", hint="leave out --member")
        if member or not collection.is_collection:
            table = collection.find(member) if member else tables[0]
            file = collection.infer(table, reporter)
            yield manifest_text(table.location, name, file, declared=table, pattern=pattern)
            return
        problem: OdfError | None = None
        proposed = 0
        for table in tables:
            try:
                file = collection.infer(table, reporter)
            except BadData as error:
                problem = error
                reporter.warn(f"{table.label}: left out: {error.message}", "left-out")
                continue
            proposed += 1
            yield manifest_text(table.location, f"{name}.{table.name}", file, declared=table, pattern=pattern)
        if problem is not None and not proposed:
            raise problem


def list_tables(location: str, folder: Path) -> list[DeclaredTable]:
    """Return the tables of a local file or collection. Archives on servers are one table.

    Raises:
        Unsupported: the location is metadata on a server.
        OdfError: the collection is invalid.
        OSError: it cannot be read.
    """
    if is_url(location):
        name = _base_name(location)
        if name == FILE_NAME or name.endswith(SUFFIX):
            raise Unsupported(f"{name} on a server describes several tables",
                              hint=f"run odf new NAME --from {location} | odf add -")  # fmt: skip
        return [DeclaredTable(location=location)]
    with open_tables(location, folder, Reporter()) as collection:
        return list(collection.tables)


def load_table(table: DeclaredTable, folder: Path, reporter: Reporter) -> FileSample:
    """Read the beginning of a table of :func:`list_tables`.

    Raises:
        OdfError: as in :func:`load_sample`.
        OSError: the file cannot be read.
    """
    if not table.entry:
        return load_sample(table.location, folder, reporter)
    return read_sample(folder / Path(table.location).expanduser(), table.location, reporter, table.entry)


def load_choices(table: DeclaredTable, folder: Path) -> FileChoices:
    """Return what the metadata of a table declare, as choices.

    Raises:
        OdfError: as in :func:`load_sample`.
        OSError: the file cannot be read.
    """
    if not table.origin:
        return FileChoices()
    reporter = Reporter()
    return declared_choices(table, load_table(table, folder, reporter), reporter)


def _is_archive(location: str, folder: Path, reporter: Reporter) -> bool:
    """Return whether a file is a zip archive: by its suffix, else by its first bytes."""
    suffix, compression = split_extensions(location)
    if compression or suffix in FORMATS:
        return compression == ".zip"
    if is_url(location):
        config = load_workspace(folder / ".odf").fetch
        head = b"".join(file_download.download_chunks(location, len(_ZIP), config, reporter))
    else:
        with (folder / Path(location).expanduser()).open("rb") as file:
            head = file.read(len(_ZIP))
    return head == _ZIP


def _base_name(location: str) -> str:
    return PurePosixPath(urlsplit(location).path if is_url(location) else location).name


def _named(tables: Iterable[DeclaredTable]) -> list[DeclaredTable]:
    """Return tables whose names are unique parts of dataset names."""
    used: set[str] = set()
    named: list[DeclaredTable] = []
    for table in tables:
        stem = _base_name(table.name)
        while (suffix := PurePosixPath(stem).suffix.lower()) in FORMATS or suffix in (".gz", ".zip", ".shp"):
            stem = PurePosixPath(stem).stem
        stem = _NOT_NAME.sub("-", stem.lower()).strip("-") or "table"
        name = next(
            text for number in count(1) if (text := f"{stem}-{number}" if number > 1 else stem) not in used
        )
        used.add(name)
        named.append(msgspec.structs.replace(table, name=name))
    return named


@contextmanager
def _local_archive(location: str, folder: Path, reporter: Reporter) -> Iterator[Path]:
    """Yield the path of an archive, which is downloaded if it is on a server."""
    if not is_url(location):
        yield folder / Path(location).expanduser()
        return
    with TemporaryDirectory() as temporary:
        path = Path(temporary) / "archive.zip"
        with path.open("wb") as file:
            config = load_workspace(folder / ".odf").fetch
            for piece in file_download.download_chunks(location, _MAX_ARCHIVE + 1, config, reporter):
                reporter.raise_if_cancelled()
                file.write(piece)
        if path.stat().st_size > _MAX_ARCHIVE:
            raise BadData(
                f"too large to be inspected: more than {_MAX_ARCHIVE:,} bytes",
                where=location,
                hint="download the file, and use its path",
            )
        yield path


def _archive_tables(location: str, path: Path, reporter: Reporter) -> list[DeclaredTable]:
    """Return the tables of an archive. An archive with one data file is not a collection."""
    single = [DeclaredTable(location=location)]
    with path.open("rb") as file:
        if is_workbook(file):
            return single
    try:
        with ZipArchive(path) as archive:
            names = [entry.filename for entry in archive.infolist() if _is_visible(entry)]
            if (package := _find_package(names)) is not None:
                document = MetadataFile(package, location)
                read = _member_reader(archive, location)
                return _named(read_package(document, read(location, package), read, reporter))
            feed = gtfs.find_feed(names)
            if feed is not None:
                return _named(_feed_tables(location, archive, feed, names))
            files = _table_files(names)
            if len(files) == 1:
                return [DeclaredTable(location=location, entry=files[0])]
            if not files or parts_of_table(archive, [archive.getinfo(name) for name in files]):
                return single
            return _named([DeclaredTable(location=location, name=name, entry=name) for name in files])
    except _ZIP_ERRORS as error:
        if isinstance(error, BadData) and error.where:
            raise
        return single  # reading it says what is wrong


def _is_visible(entry: zipfile.ZipInfo) -> bool:
    parts = PurePosixPath(entry.filename).parts
    return not entry.is_dir() and not any(part.startswith((".", "__MACOSX")) for part in parts)


def _find_package(names: Sequence[str]) -> str | None:
    """Return the descriptor of a Data Package in an archive, or None."""
    packages = [name for name in names if PurePosixPath(name).name == FILE_NAME]
    return min(packages, key=len, default=None)


def _table_files(names: Sequence[str]) -> list[str]:
    """Return the data files of an archive. Text and XML files count if there are no others."""
    if shapes := [name for name in names if name.lower().endswith(".shp")]:
        return shapes
    files = [name for name in names if PurePosixPath(name).suffix.lower() in FORMATS]
    files = [name for name in files if not _NOTES.fullmatch(PurePosixPath(name).stem)]
    return [name for name in files if not name.lower().endswith((".txt", ".xml"))] or files


def _feed_tables(
    location: str, archive: ZipArchive, folder: str, names: Sequence[str]
) -> Iterator[DeclaredTable]:
    """Yield the tables of a GTFS feed."""
    prefix = f"{folder}/" if folder else ""
    for name in names:
        path = PurePosixPath(name)
        if (
            name.rpartition("/")[0] != folder
            or path.suffix.lower() not in FORMATS
            or _NOTES.fullmatch(path.stem)
        ):
            continue
        table = DeclaredTable(location=location, name=name, entry=name)
        if path.suffix.lower() == ".txt":
            with archive.open(prefix + path.name) as file:
                line = file.readline(1 << 16).decode("utf-8-sig", "replace")
            header = next(csv.reader(io.StringIO(line)), [])
            known = {column.strip().lower(): column.strip() for column in header}
            key = tuple(known[column] for column in gtfs.KEYS.get(path.stem, ()) if column in known)
            table = msgspec.structs.replace(
                table, origin=gtfs.ORIGIN, separator=",", quote='"', header=True,
                columns=gtfs.declare_columns(header), key=key, merge="Snapshot", time="",
            )  # fmt: skip
        yield table


def _csvw_tables(location: str, folder: Path, reporter: Reporter) -> list[DeclaredTable] | None:
    """Return the tables of CSVW metadata, or None for another JSON document."""
    document, read = MetadataFile(location), _document_reader(folder, reporter)
    data = read(location, "")
    return read_csvw(document, data, read) if is_csvw(document, data) else None


def _described_table(location: str, folder: Path, reporter: Reporter) -> DeclaredTable:
    """Return the table of a file, as metadata beside it declare it, if there are such metadata."""
    plain = DeclaredTable(location=location)
    if is_url(location):
        return plain
    path = PurePosixPath(location)
    packages = [str(parent / FILE_NAME) for parent in list(path.parents)[:_PACKAGE_LEVELS]]
    for metadata in (location + SUFFIX, str(path.parent / _GROUP), *packages):
        if not (folder / Path(metadata).expanduser()).is_file():
            continue
        try:
            if metadata in packages:
                document, read = MetadataFile(metadata), _document_reader(folder, Reporter())
                tables = read_package(document, read(metadata, ""), read, Reporter())
            else:
                tables = _csvw_tables(metadata, folder, reporter) or []
        except (OdfError, OSError) as error:
            reporter.warn(f"ignored: {error}", "left-out")
            continue
        for table in tables:
            if table.location == str(path):
                return msgspec.structs.replace(table, location=location, name="")
    return plain


def _document_reader(folder: Path, reporter: Reporter) -> Callable[[str, str], bytes]:
    """Return a function that reads documents of metadata: files and URLs."""

    def read(location: str, entry: str) -> bytes:
        if is_url(location):
            config = load_workspace(folder / ".odf").fetch
            data = b"".join(file_download.download_chunks(location, _MAX_DOCUMENT + 1, config, reporter))
        else:
            with (folder / Path(location).expanduser()).open("rb") as file:
                data = file.read(_MAX_DOCUMENT + 1)
        if len(data) > _MAX_DOCUMENT:
            raise BadData(f"too large: more than {_MAX_DOCUMENT:,} bytes", where=location)
        return data

    return read


def _member_reader(archive: ZipArchive, location: str) -> Callable[[str, str], bytes]:
    """Return a function that reads documents of metadata in an archive."""

    def read(_: str, entry: str) -> bytes:
        try:
            with archive.open(entry) as file:
                data = file.read(_MAX_DOCUMENT + 1)
        except KeyError:
            raise BadData(f"the archive has no {entry}", where=location) from None
        if len(data) > _MAX_DOCUMENT:
            raise BadData(f"too large: more than {_MAX_DOCUMENT:,} bytes", where=entry)
        return data

    return read
