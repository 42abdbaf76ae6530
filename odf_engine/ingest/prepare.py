"""Prepare phase: unpacks what was fetched, or pipes it through commands (specification: PrepStep).

Every step reads a file and writes one into the job's folder, as a stream; so steps may follow each other
in any order. What they write is bounded, so that a small malicious archive cannot fill the disk.
"""

from __future__ import annotations

import errno
import fnmatch
import lzma
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from time import monotonic
from typing import BinaryIO, Final

from odf_engine.errors import BadData
from odf_engine.ingest.pipe import run_pipe
from odf_engine.metadata.model import CompressionFormat, Pipe, PrepStep
from odf_engine.progress import Reporter
from odf_engine.workspace.config import PrepareConfig

_CHUNK: Final = 1 << 18
_GZIP: Final = 31  # zlib's window bits for a gzip stream


@dataclass(frozen=True)
class Limits:
    """Bounds on what a step writes: bytes in all, and how many times its packed size a file may become.

    The ratio is looked at beyond ``ratio_from`` bytes only: small files may well be all zeros.
    """

    most_bytes: int = PrepareConfig().most_bytes
    most_ratio: int = PrepareConfig().most_ratio
    ratio_from: int = 256 << 20

    @classmethod
    def of(cls, config: PrepareConfig) -> Limits:
        """The bounds that the workspace's configuration sets."""
        return cls(config.most_bytes, config.most_ratio)


@dataclass(frozen=True)
class Prepared:
    """A file to be read, and what people call it."""

    path: Path
    name: str


def prepare(
    steps: Sequence[PrepStep] | None,
    path: Path,
    name: str,
    job: Path,
    reporter: Reporter,
    limits: Limits | None = None,
) -> Prepared:
    """Runs the steps over a fetched file; without steps the file is taken as it is.

    Raises:
        BadData: not such an archive, cut short, damaged, unsafe, beyond the limits, or without the entry
            asked for; a command that failed.
        Unsupported: a command that is not installed.
        Cancelled: asked to stop.
    """
    limits = limits or Limits()
    packed = path.stat().st_size  # archives within archives are measured by the outermost one
    for number, step in enumerate(steps or ()):
        target, begun = job / f"prepared-{number}", monotonic()
        if isinstance(step, Pipe):
            run_pipe(step, path, name, target, reporter, limits.most_bytes)
            name = f"{name} | {Path(step.command[0]).name}"
            packed = target.stat().st_size
        elif step.format is CompressionFormat.Zip:
            name = f"{name}/{_unzip(path, name, target, step.sub_path, packed, reporter, limits)}"
        else:
            _gunzip(path, name, target, packed, reporter, limits)
            name = name.removesuffix(".gz")
        reporter.line(f"prepared {name}, {target.stat().st_size:,} bytes in {monotonic() - begun:.1f} s")
        if number:
            path.unlink()  # what the step before wrote
        path = target
    return Prepared(path, name)


def _gunzip(path: Path, name: str, target: Path, packed: int, reporter: Reporter, limits: Limits) -> None:
    with path.open("rb") as source:
        if source.read(2) != b"\x1f\x8b":
            raise BadData("is not gzip", where=name, hint="remove the prepare step, or check what is fetched")
        source.seek(0)
        try:
            _write(_gunzipped(source, name), target, packed, name, reporter, limits)
        except zlib.error as error:
            text = str(error).rpartition(": ")[2]
            raise BadData(f"is damaged gzip: {text}", where=name, hint="fetch the file again") from None


def _gunzipped(source: BinaryIO, name: str) -> Iterator[bytes]:
    """The contents of one gzip member after the other; zero bytes after a member are padding."""
    stream = None
    data = source.read(_CHUNK)
    while data:
        if stream is None:
            data = data.lstrip(b"\0")
            stream = zlib.decompressobj(_GZIP) if data else None
        if stream is not None:
            yield stream.decompress(data, _CHUNK * 4)
            data = stream.unconsumed_tail
            if stream.eof:
                data, stream = stream.unused_data, None
        data = data or source.read(_CHUNK)
    if stream is not None:
        yield stream.flush()
        if not stream.eof:
            raise BadData("is gzip that was cut short", where=name, hint="fetch the whole file again")


def _unzip(
    path: Path,
    name: str,
    target: Path,
    sub_path: str | None,
    packed: int,
    reporter: Reporter,
    limits: Limits,
) -> str:
    try:
        with zipfile.ZipFile(path) as archive:
            entry = _choose(archive, sub_path, name)
            if entry.flag_bits & 1:
                raise BadData(
                    f"the entry '{entry.filename}' is encrypted",
                    where=name,
                    hint="no password can be given: unpack it before the pull, or with a Pipe step",
                )
            with archive.open(entry) as source:
                chunks = iter(lambda: source.read(_CHUNK), b"")
                _write(chunks, target, min(packed, entry.compress_size), name, reporter, limits)
            return entry.filename
    except zipfile.BadZipFile as error:
        raise BadData(
            f"is not a sound zip archive: {error}", where=name, hint="fetch the file again"
        ) from None
    except (NotImplementedError, RuntimeError) as error:
        raise BadData(f"is a zip archive that cannot be unpacked: {error}", where=name) from None
    except ZIP_ERRORS as error:
        if is_disk_error(error):
            raise
        raise BadData(f"is a damaged zip archive: {error}", where=name, hint="fetch the file again") from None


ZIP_ERRORS: Final = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    IndexError,
    OSError,
    OverflowError,
    RuntimeError,
    ValueError,
    struct.error,
)
"""What ``zipfile`` raises for damaged archives. An OSError may also be one of the disk."""


def is_disk_error(error: Exception) -> bool:
    """Whether reading an archive failed for another reason than what is in it."""
    return isinstance(error, OSError) and error.errno not in (None, errno.EINVAL)


def _choose(archive: zipfile.ZipFile, sub_path: str | None, name: str) -> zipfile.ZipInfo:
    entries = archive.infolist()
    for entry in entries:
        if _leaves(entry.orig_filename):
            raise BadData(
                f"the archive has an entry outside of itself: '{_plain(entry.orig_filename)}'",
                where=name,
                hint="archives like this are made to overwrite files: nothing of it is unpacked",
            )
    files = [entry for entry in entries if not entry.is_dir() and not entry.filename.startswith("__MACOSX/")]
    names = ", ".join(_plain(entry.filename) for entry in files[:10]) + (", …" if len(files) > 10 else "")
    if not files:
        raise BadData("the archive has no files", where=name)
    if sub_path is None:
        if len(files) > 1:
            raise BadData(
                f"the archive has {len(files)} files, and no subPath says which to read: {names}",
                where=name,
                hint=f"add one to the Decompress step, such as subPath: {_plain(files[0].filename)}",
            )
        return files[0]
    found = [entry for entry in files if entry.filename == sub_path] or [
        entry for entry in files if fnmatch.fnmatchcase(entry.filename, sub_path)
    ]
    if len(found) != 1:
        problem = "no file" if not found else f"{len(found)} files"
        raise BadData(
            f"{problem} of the archive match subPath '{sub_path}'", where=name, hint=f"it has: {names}"
        )
    return found[0]


def _leaves(name: str) -> bool:
    """Whether an entry would be unpacked elsewhere than below the folder it is unpacked to."""
    path = PureWindowsPath(name)  # which knows both kinds of slashes, and drives
    return bool(path.anchor) or ".." in path.parts


def _plain(name: str) -> str:
    return "".join(char if char.isprintable() else "�" for char in name)


def _write(
    chunks: Iterable[bytes], target: Path, packed: int, name: str, reporter: Reporter, limits: Limits
) -> None:
    size = 0
    with target.open("wb") as file:
        for chunk in chunks:
            reporter.check()
            size += len(chunk)
            if size > limits.most_bytes or (
                size > limits.ratio_from and size > limits.most_ratio * max(packed, 1)
            ):
                raise BadData(
                    f"unpacks to more than {size:,} bytes from {packed:,}: this looks like an archive bomb",
                    where=name,
                    hint="if it is not, raise the bound: odf config set prepare.mostRatio N",
                )
            file.write(chunk)
            reporter.amount(bytes=size)
