"""Collections of tables: archives with several data files, GTFS feeds, Data Packages and CSVW metadata."""

from __future__ import annotations

import csv
import glob
import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from odf_engine.base.lazy import LazyModule
from odf_engine.base.progress import Reporter
from odf_engine.base.settings import load_workspace
from odf_engine.data.zip_archive import ARCHIVE_ERRORS, ZipArchive
from odf_engine.errors import BadData, NotFound, OdfError, Unsupported, UsageError
from odf_engine.ingest.inference import gtfs
from odf_engine.ingest.inference.archive_members import (
    Archive,
    Member,
    is_tar,
    is_visible,
    open_archive,
)
from odf_engine.ingest.inference.csvw import SUFFIX, is_csvw, read_csvw
from odf_engine.ingest.inference.data_package import FILE_NAME, read_package
from odf_engine.ingest.inference.declared_table import (
    DeclaredTable,
    MetadataFile,
    declared_choices,
    infer_table,
)
from odf_engine.ingest.inference.file_conversion import FORMATS, escaped_pattern, is_note, is_workbook
from odf_engine.ingest.inference.file_groups import resolve_pattern
from odf_engine.ingest.inference.file_inference import FileChoices, InferredFile
from odf_engine.ingest.inference.file_manifest import manifest_text
from odf_engine.ingest.inference.file_sample import (
    FileSample,
    load_sample,
    read_sample,
    split_extensions,
)
from odf_engine.net.urls import is_url

if TYPE_CHECKING:
    from odf_engine.ingest.read import file_download
else:
    file_download = LazyModule("odf_engine.ingest.read.file_download")  # imports network libraries

_MAX_DOCUMENT: Final = 16 << 20
_MAX_ARCHIVE: Final = 1 << 30
_NOT_NAME: Final = re.compile(r"[^a-z0-9]+")
_GROUP: Final = "csv-metadata.json"
_PACKAGE_LEVELS: Final = 3
"""Number of folders above a file that may have its Data Package."""
_ZIP: Final = b"PK\x03\x04"


class TableCollection:
    """The tables of a file, a collection, or a document that describes them.

    Attributes:
        location: the path, relative to the workspace, or URL.
        tables: the tables.
        is_collection: whether each table becomes a dataset with a name of its own.
        has_members: whether one of its tables or members can be selected.
    """

    def __init__(
        self, location: str, tables: Sequence[DeclaredTable], folder: Path, archive: Path | None = None
    ) -> None:
        self.location, self.tables = location, tables
        self.is_collection = len(tables) > 1
        self.has_members = bool(tables[0].name) or archive is not None
        self._folder, self._archive = folder, archive

    def find(self, members: Sequence[str]) -> DeclaredTable:
        """Return the table with a name or a file name in the archive, or the table of several members.

        Args:
            members: a name, or patterns and names of members that are one table.

        Raises:
            NotFound: there is no such table, or a pattern matches no member.
        """
        for table in self.tables if len(members) == 1 else ():
            path = table.entry or table.location
            if members[0] in (table.name, path) or f"/{path}".endswith(f"/{members[0]}"):
                return table
        names = [PurePosixPath(table.label).name for table in self.tables]
        if self._archive is not None:
            with open_archive(self._archive) as archive:
                table = members_table(self.location, archive, members)
                names = [member.name for member in archive.data]
            if table is not None:
                return table
        wanted = ", ".join(f"'{member}'" for member in members)
        raise NotFound(f"no table {wanted}", where=self.location, hint=f"use one of {', '.join(names[:20])}")

    def sample(self, table: DeclaredTable, reporter: Reporter) -> FileSample:
        """Read the beginning of a table.

        Raises:
            OdfError: the file is damaged, or cannot be read.
        """
        if self._archive is not None and table.location == self.location:
            return read_sample(self._archive, table.location, reporter, table.entry, table.members)
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
        if is_tar(location) or _is_archive(location, folder, reporter):
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


class ArchiveListing(NamedTuple):
    """The data files of an archive.

    Attributes:
        members: the files.
        groups: patterns that match several files of one table, with the files.
    """

    members: Sequence[Member]
    groups: Sequence[tuple[str, Sequence[Member]]]


def propose_manifests(
    location: str, name: str, folder: Path, reporter: Reporter, members: Sequence[str] = ()
) -> Iterator[str]:
    """Yield the manifest of each table of a file or collection.

    Args:
        location: a path, relative to the workspace, a pattern such as ``in/*.csv``, or URL.
        name: the dataset name; of a collection the start of the names.
        folder: the folder of the workspace.
        reporter: receives warnings, and cancels the inference.
        members: the only table to take, by its name or file name; patterns and names of members of an
            archive that are one table; or () for all tables.

    Raises:
        UsageError: the file is no collection, and has no member.
        OdfError: no table can be read.
    """
    newest, pattern = resolve_pattern(location, folder)
    with open_tables(newest, folder, reporter) as collection:
        tables = collection.tables
        if members and not collection.has_members:
            raise UsageError(f"{location} is not a collection of tables", hint="leave out --member")
        if members or not collection.is_collection:
            table = collection.find(members) if members else tables[0]
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
    if not table.entry and not table.members:
        return load_sample(table.location, folder, reporter)
    path = folder / Path(table.location).expanduser()
    return read_sample(path, table.location, reporter, table.entry, table.members)


def members_table(location: str, archive: Archive, members: Sequence[str]) -> DeclaredTable | None:
    """Return the table of members of an archive, or None if a pattern matches no member.

    Args:
        location: the path of the archive, relative to the workspace, or URL.
        archive: the archive.
        members: patterns and names.
    """
    matches = [archive.match([pattern]) for pattern in members]
    if not all(matches):
        return None
    chosen = {member for names in matches for member in names}
    patterns = [
        text if glob.has_magic(text) else escaped_pattern(names[0].name)
        for text, names in zip(members, matches, strict=True)
    ]
    if len(chosen) == 1 and archive.is_zip:
        return DeclaredTable(location=location, name="", entry=next(iter(chosen)).name)
    return DeclaredTable(location=location, members=tuple(patterns))


def match_members(table: DeclaredTable, folder: Path) -> list[str]:
    """Return the names of the members that a table of a local archive has now.

    Raises:
        BadData: the archive is damaged.
        OSError: it cannot be read.
    """
    with open_archive(folder / Path(table.location).expanduser()) as archive:
        patterns = table.members or (escaped_pattern(table.entry),)
        return [member.name for member in archive.match(patterns)]


def list_archive(location: str, folder: Path) -> ArchiveListing | None:
    """Return the data files of a local archive, or None if it has at most one, or describes its tables.

    Raises:
        BadData: the archive is damaged.
        OSError: it cannot be read.
    """
    if is_url(location) or not (is_tar(location) or _is_archive(location, folder, Reporter())):
        return None
    path = folder / Path(location).expanduser()
    with path.open("rb") as file:
        if is_workbook(file):
            return None
    with open_archive(path) as archive:
        names = [member.name for member in archive.members]
        if len(archive.data) < 2 or _find_package(names) is not None or gtfs.find_feed(names) is not None:
            return None
        return ArchiveListing(archive.data, archive.groups())


def choose_members(location: str, folder: Path, members: Sequence[str]) -> DeclaredTable:
    """Return the table of members of a local archive.

    Args:
        location: the path of the archive, relative to the workspace.
        folder: the folder of the workspace.
        members: patterns and names.

    Raises:
        NotFound: a pattern matches no member.
        BadData: the archive is damaged.
        OSError: the archive cannot be read.
    """
    with open_tables(location, folder, Reporter()) as collection:
        table = collection.find(members)
        return msgspec.structs.replace(table, name=table.entry)


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
        path = Path(temporary) / "archive"
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
        with open_archive(path) as archive:
            names = [member.name for member in archive.members if is_visible(member.name)]
            if archive.is_zip and (tables := _described_tables(location, path, names, reporter)):
                return _named(tables)
            if not archive.data:
                return single
            groups = archive.groups()
            if len(archive.data) == 1:
                table = members_table(location, archive, [archive.data[0].name])
                return [table or single[0]]
            if groups and len(groups[0][1]) == len(archive.data):
                return [DeclaredTable(location=location, members=(groups[0][0],))]
            return _named(_member_tables(location, archive, groups))
    except (*ARCHIVE_ERRORS, BadData) as error:
        if isinstance(error, BadData) and error.where:
            raise
        return single  # reading it says what is wrong


def _described_tables(
    location: str, path: Path, names: Sequence[str], reporter: Reporter
) -> list[DeclaredTable]:
    """Return the tables that a Data Package or the GTFS reference describes, or [] without one."""
    with ZipArchive(path) as archive:
        if (package := _find_package(names)) is not None:
            document = MetadataFile(package, location)
            read = _member_reader(archive, location)
            return list(read_package(document, read(location, package), read, reporter))
        feed = gtfs.find_feed(names)
        return [] if feed is None else list(_feed_tables(location, archive, feed, names))


def _member_tables(
    location: str, archive: Archive, groups: Sequence[tuple[str, Sequence[Member]]]
) -> Iterator[DeclaredTable]:
    """Yield a table for each group of members, and for each other member."""
    grouped: set[Member] = set()
    for pattern, members in groups:
        if grouped.isdisjoint(members):
            grouped.update(members)
            yield DeclaredTable(location=location, name=pattern.replace("*", ""), members=(pattern,))
    for member in archive.data:
        if member not in grouped and (table := members_table(location, archive, [member.name])):
            yield msgspec.structs.replace(table, name=member.name)


def _find_package(names: Sequence[str]) -> str | None:
    """Return the descriptor of a Data Package in an archive, or None."""
    packages = [name for name in names if PurePosixPath(name).name == FILE_NAME]
    return min(packages, key=len, default=None)


def _feed_tables(
    location: str, archive: ZipArchive, folder: str, names: Sequence[str]
) -> Iterator[DeclaredTable]:
    """Yield the tables of a GTFS feed."""
    prefix = f"{folder}/" if folder else ""
    for name in names:
        path = PurePosixPath(name)
        if name.rpartition("/")[0] != folder or path.suffix.lower() not in FORMATS or is_note(path.name):
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
