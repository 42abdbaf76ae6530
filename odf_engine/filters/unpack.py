"""Filter `unpack`: writes the members of an archive, or the content of a compressed file."""

from __future__ import annotations

import bz2
import csv
import fnmatch
import gzip
import io
import lzma
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from typing import BinaryIO, Final

from odf_engine.base.config import PrepareConfig
from odf_engine.data.zip_archive import ZipArchive
from odf_engine.errors import BadData
from odf_engine.filters.csv_filter import RecordReader
from odf_engine.filters.csv_options import CsvOptions
from odf_engine.filters.text_input import open_text

_CHUNK: Final = 1 << 18
_RATIO_FROM: Final = 256 << 20
_HEAD: Final = 512
_MAX_HEADER: Final = 1 << 20
_WITH_HEADER: Final = (".csv", ".tsv")
_ERRORS: Final = (
    EOFError, OSError, RuntimeError, ValueError, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile,
    zlib.error,
)  # fmt: skip


@dataclass(frozen=True)
class UnpackOptions:
    """Options of the filter.

    Attributes:
        member: patterns of the members of an archive; () for all of them.
        member_column: column with the name of the member, for members that are CSV; "" for none.
    """

    member: tuple[str, ...] = ()
    member_column: str = ""


def filter_unpack(source: BinaryIO, target: BinaryIO, options: UnpackOptions) -> None:
    """Write the members of an archive in the order of their names, one after the other.

    The formats are zip, tar, gzip, bzip2, xz and Zstandard, also a tar in one of them. The header of a CSV
    member is left out if the first member has the same.

    Raises:
        BadData: the stream is no archive, is damaged, encrypted or a decompression bomb, has links or names
            outside its folder, or no member matches.
    """
    with tempfile.TemporaryDirectory(prefix="odf-unpack-") as folder:
        path = Path(folder) / "archive"
        with path.open("wb") as file:
            shutil.copyfileobj(source, file, _CHUNK)
        limited = _LimitedOutput(target, path.stat().st_size)
        try:
            _unpack(path, limited, options)
        except BrokenPipeError:
            raise
        except _ERRORS as error:
            raise BadData(f"damaged archive: {error}", hint="fetch the file again") from None
    target.flush()


def _unpack(path: Path, target: _LimitedOutput, options: UnpackOptions) -> None:
    with path.open("rb") as file:
        head = file.read(_HEAD)
    if head.startswith(b"PK"):
        with ZipArchive(path) as archive:
            _write_members(_zip_members(archive), target, options)
        return
    opened = _decompressor(head)
    with _content(path, opened) as content:
        is_tar = _is_tar(content.read(_HEAD))
    if opened is None and not is_tar:
        hint = "the formats are zip, tar, gzip, bzip2, xz and Zstandard"
        raise BadData("not an archive", hint=hint)
    if not is_tar:
        if options.member:
            raise BadData("the file has no members", hint="omit --member")
        with _content(path, opened) as content:
            shutil.copyfileobj(content, target, _CHUNK)
        return
    plain = path
    if opened is not None:
        plain = path.with_suffix(".tar")
        with _content(path, opened) as content, plain.open("wb") as file:
            shutil.copyfileobj(content, _LimitedOutput(file, path.stat().st_size), _CHUNK)
    with tarfile.open(plain, "r:") as archive:
        _write_members(_tar_members(archive), target, options)


def _is_tar(head: bytes) -> bool:
    """Return whether a file starts with the header of a tar member, also without the mark of POSIX."""
    try:
        tarfile.TarInfo.frombuf(head, "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return False
    return True


Opener = Callable[[Path], BinaryIO]


def _decompressor(head: bytes) -> Opener | None:
    """Return a function that opens the content of a compressed file, or None if it is not compressed."""
    if head.startswith(b"\x1f\x8b"):
        return lambda path: gzip.open(path)  # pyright: ignore[reportReturnType]
    if head.startswith(b"BZh"):
        return lambda path: bz2.open(path)  # pyright: ignore[reportReturnType]
    if head.startswith(b"\xfd7zXZ\0"):
        return lambda path: lzma.open(path)  # pyright: ignore[reportReturnType]
    if head.startswith(b"\x28\xb5\x2f\xfd"):
        return _open_zstandard
    return None


def _open_zstandard(path: Path) -> BinaryIO:
    import pyarrow as pa  # takes 200 ms

    return pa.CompressedInputStream(pa.OSFile(str(path)), "zstd")


@contextmanager
def _content(path: Path, opened: Opener | None) -> Iterator[BinaryIO]:
    with path.open("rb") if opened is None else opened(path) as content:
        yield content


@dataclass(frozen=True)
class _Member:
    """A member of an archive, and a function that opens it."""

    name: str
    open: Callable[[], BinaryIO]


def _zip_members(archive: zipfile.ZipFile) -> Iterator[_Member]:
    for entry in archive.infolist():
        _check_name(entry.orig_filename)
        if entry.is_dir() or entry.filename.startswith("__MACOSX/"):
            continue
        if entry.flag_bits & 1:
            raise BadData(f"member '{entry.filename}' is encrypted", hint="passwords are not supported")
        yield _Member(entry.filename, lambda entry=entry: archive.open(entry))  # pyright: ignore[reportArgumentType]


def _tar_members(archive: tarfile.TarFile) -> Iterator[_Member]:
    for entry in archive:
        _check_name(entry.name)
        if entry.isdir():
            continue
        if not entry.isfile():
            raise BadData(
                f"member '{entry.name}' is a link or a device", hint="check the source of the archive"
            )
        yield _Member(entry.name, lambda entry=entry: archive.extractfile(entry))  # pyright: ignore[reportArgumentType]


def _check_name(name: str) -> None:
    path = PureWindowsPath(name)  # it splits at both kinds of slashes, and detects drives
    if path.anchor or ".." in path.parts:
        raise BadData(
            f"the archive has a member outside its folder: '{name}'", hint="check the source of the archive"
        )


def _write_members(members: Iterator[_Member], target: _LimitedOutput, options: UnpackOptions) -> None:
    all_members = sorted(members, key=lambda member: member.name)
    chosen: set[str] = set()
    for pattern in options.member or ("*",):
        matches = {member.name for member in all_members if fnmatch.fnmatchcase(member.name, pattern)}
        if not matches:
            names = ", ".join(member.name for member in all_members[:10])
            raise BadData(f"no member matches '{pattern}'", hint=f"members: {names}")
        chosen |= matches
    selected = [member for member in all_members if member.name in chosen]
    if options.member_column:
        _write_with_names(selected, target, options.member_column)
        return
    header: bytes | None = None
    for member in selected:
        with member.open() as content:
            first = content.readline(_MAX_HEADER)
            is_header = first == header and len(first) < _MAX_HEADER
            target.end_line()
            if not is_header or not member.name.lower().endswith(_WITH_HEADER):
                target.write(first)
            header = first if header is None else header
            shutil.copyfileobj(content, target, _CHUNK)


def _write_with_names(members: Iterable[_Member], target: _LimitedOutput, column: str) -> None:
    """Write CSV members as one CSV with a column that has the name of the member."""
    output = io.StringIO(newline="")
    write = csv.writer(output, lineterminator="\n").writerow
    header: list[str] | None = None
    for member in members:
        with member.open() as content:
            try:
                records = iter(RecordReader(open_text(content), CsvOptions()))
                _, names = next(((line, row) for line, row in records if row), (0, []))
                if header is None:
                    header = names
                    write([column, *header])
                elif names and names != header:
                    raise BadData("the header differs from the first member", where="line 1")
                for _, row in records:
                    if row:
                        write([member.name, *row])
                    if output.tell() > _CHUNK:
                        target.write(output.getvalue().encode())
                        output.seek(0)
                        output.truncate()
            except BadData as error:
                error.where = ", ".join(filter(None, (member.name, error.where)))
                raise
    target.write(output.getvalue().encode())


class _LimitedOutput:
    """An output that ends decompression bombs."""

    def __init__(self, target: BinaryIO, packed: int) -> None:
        self._target = target
        self._packed = max(packed, 1)
        self._size = 0
        self._limits = PrepareConfig()
        self._last = b"\n"

    def end_line(self) -> None:
        """End the last line, if it has no end."""
        if self._last not in b"\r\n":
            self.write(b"\n")

    def write(self, data: bytes) -> int:
        """Write bytes.

        Raises:
            BadData: they are too many for the size of the archive.
        """
        self._size += len(data)
        is_bomb = self._size > _RATIO_FROM and self._size > self._limits.most_ratio * self._packed
        if is_bomb or self._size > self._limits.most_bytes:
            raise BadData(
                f"decompression bomb suspected: more than {self._size:,} bytes from {self._packed:,}"
            )
        self._last = data[-1:] or self._last
        return self._target.write(data)
