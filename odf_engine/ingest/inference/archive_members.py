"""Members of archives (zip, tar) that are the rows of a dataset: lists, patterns, groups of similar names."""

from __future__ import annotations

import glob
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final, NamedTuple, cast

from odf_engine.data.zip_archive import ZipArchive
from odf_engine.errors import BadData
from odf_engine.ingest.inference.file_conversion import (
    FORMATS,
    LINE_FORMATS,
    WITH_HEADER,
    is_note,
    listed,
)
from odf_engine.ingest.inference.file_groups import group_files

_TAR_SUFFIXES: Final = (".tar", ".tgz", ".tar.gz", ".tbz2", ".tar.bz2", ".txz", ".tar.xz")
_MAX_HEADER: Final = 4096


class Member(NamedTuple):
    """A file in an archive: its path and its size in bytes."""

    name: str
    size: int


class Archive(NamedTuple):
    """An open archive.

    Attributes:
        members: its files, except the files that macOS adds.
        open: opens a file by its path.
        is_zip: whether it is a zip archive, otherwise it is a tar archive.
    """

    members: Sequence[Member]
    open: Callable[[str], BinaryIO]
    is_zip: bool

    @property
    def data(self) -> list[Member]:
        """The data files, without hidden files and notes about the data."""
        names = set(data_files([member.name for member in self.members if is_visible(member.name)]))
        return [member for member in self.members if member.name in names]

    def match(self, patterns: Sequence[str]) -> list[Member]:
        """Return the members whose path matches a pattern, or ends with a path that has no wildcards."""
        return [member for member in self.members if any(_matches(member, text) for text in patterns)]

    def require_one_table(self, members: Sequence[Member]) -> None:
        """Raise BadData if the rows of members are not one table.

        Raises:
            BadData: the members have different formats or headers, or are not CSV, TSV or NDJSON.
        """
        suffixes = {suffix_of(member.name) for member in members}
        names = listed([member.name for member in members])
        if len(members) < 2:
            return
        if len(suffixes) > 1 or not suffixes <= {*WITH_HEADER, *LINE_FORMATS}:
            raise BadData(
                f"{len(members)} members cannot be read as one table: {names}",
                hint="choose one member, or several of one of the formats CSV, TSV and NDJSON",
            )
        headers = {self._header(member) for member in members if member.size}
        if suffixes <= WITH_HEADER and len(headers) > 1:
            raise BadData(
                f"{len(members)} members have different columns: {names}",
                hint="choose members with the same header",
            )

    def _header(self, member: Member) -> bytes:
        with self.open(member.name) as file:
            return file.readline(_MAX_HEADER).rstrip()

    def groups(self) -> list[tuple[str, list[Member]]]:
        """Return patterns that match several data files of one table, with the files.

        The first one matches all data files, if they are one table. The others match files whose names differ
        only in numbers.
        """
        data = self.data
        patterns = [f"*{suffix}" for suffix in {suffix_of(member.name) for member in data}]
        patterns = [pattern for pattern in patterns if self.match([pattern]) == data]
        patterns += [group.pattern for group in group_files([*data])]
        groups: list[tuple[str, list[Member]]] = []
        for pattern in patterns:
            members = self.match([pattern])
            is_new = all(members != known for _, known in groups)
            if len(members) > 1 and is_new and set(members) <= set(data) and self._is_table(members):
                groups.append((pattern, members))
        return groups

    def _is_table(self, members: Sequence[Member]) -> bool:
        try:
            self.require_one_table(members)
        except BadData:
            return False
        return sum(member.size > 0 for member in members) > 1


def _matches(member: Member, text: str) -> bool:
    if fnmatchcase(member.name, text):
        return True
    return not glob.has_magic(text) and f"/{member.name}".endswith(f"/{text}")


@contextmanager
def open_archive(path: Path) -> Iterator[Archive]:
    """Open a zip or tar archive.

    Raises:
        BadData: it is damaged or encrypted.
        OSError: it cannot be read.
    """
    if zipfile.is_zipfile(path):
        with ZipArchive(path) as archive:
            entries = [entry for entry in archive.infolist() if not entry.is_dir()]
            for entry in entries:
                if entry.flag_bits & 1:
                    hint = "extract the archive first; passwords are not supported"
                    raise BadData(f"member '{entry.filename}' is encrypted", hint=hint)
            members = [Member(entry.filename, entry.file_size) for entry in entries]
            yield Archive(_own(members), cast("Callable[[str], BinaryIO]", archive.open), is_zip=True)
        return
    with tarfile.open(path) as archive:
        members = [Member(entry.name, entry.size) for entry in archive if entry.isfile()]
        yield Archive(_own(members), cast("Callable[[str], BinaryIO]", archive.extractfile), is_zip=False)


def _own(members: Sequence[Member]) -> list[Member]:
    return [member for member in members if not member.name.startswith("__MACOSX/")]


def is_tar(location: str) -> bool:
    """Return whether the name of a file is the name of a tar archive."""
    return location.lower().endswith(_TAR_SUFFIXES)


def suffix_of(name: str) -> str:
    """Return the suffix of a path in lower case."""
    return PurePosixPath(name).suffix.lower()


def is_visible(name: str) -> bool:
    """Return whether no part of a path is hidden, or of macOS."""
    return not any(part.startswith((".", "__MACOSX")) for part in PurePosixPath(name).parts)


def data_files(names: Sequence[str]) -> list[str]:
    """Return the data files of an archive. Text and XML files count if there are no others."""
    if shapes := [name for name in names if name.lower().endswith(".shp")]:
        return shapes
    files = [name for name in names if suffix_of(name) in FORMATS and not is_note(name)]
    return [name for name in files if not name.lower().endswith((".txt", ".xml"))] or files
