"""Fetching the files that match a pattern, each once, one payload a file (FetchStep::FilesGlob).

What was taken is remembered by the chain itself, so that a clone of the dataset goes on where this
one stopped. Each file's block carries a source state of the kind ``odf/etag`` whose value is::

    GREATEST <tab> HASH [<tab> NAME]

``GREATEST`` is the greatest name taken so far, which is all that other readers look at: they go on
with the names after it, and a tab sorts before every character of a name that goes on. ``HASH`` is
the SHA2-256 multihash of the file that this block took, ``NAME`` its name where that is not the
greatest one, for a file that came late. All states of the chain together are the list of what was
taken; a state costs the same however long the list is. A value without a hash, as others write it,
means that every name up to it was taken. The walk over the chain is remembered in ``info/`` of the
dataset (:mod:`odf_engine.ingest.taken`), so that a pull reads new blocks only.

A name is relative to the folder before the first wildcard: for ``data/*.csv`` the file's name. When a
changed source looks into another folder, what is there is taken, but for files that were only moved.
A taken file whose content changed later is not taken again, and the log warns of it; a forced pull
takes it again. ``cache: Forever`` skips that look at files that were taken.
"""

from __future__ import annotations

import glob
import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Final

from odf_engine.errors import BadData, InvalidManifest, SourceUnavailable
from odf_engine.identity.multiformats import SHA2_256, Multihash
from odf_engine.ingest.event_time import from_path
from odf_engine.ingest.fetch import ETAG, SOURCE_NAME, FetchContext, Payload, check_readable, stamp_of
from odf_engine.ingest.taken import TakenFiles
from odf_engine.metadata.model import FilesGlob, FromMetadata, FromPath, SourceOrdering, SourceState
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.progress import Reporter

_CHUNK: Final = 1 << 20
_VALUE: Final = re.compile(r"(.*?)\t(f1220[0-9a-f]{64})(?:\t(.*))?", re.DOTALL)


def fetch_files(step: FilesGlob, context: FetchContext) -> Iterator[Payload]:
    """The files that were not taken yet, in the step's order.

    Raises:
        SourceUnavailable: nothing matches, and nothing was ever taken.
        BadData: a name from which the event time cannot be read.
        InvalidManifest: order by event time without a source of event times.
    """
    reporter = context.reporter
    root, files = _matching(step.path, context.root)
    taken = TakenFiles(context.dataset, read_state)
    try:
        if not files and not taken.any():
            raise SourceUnavailable(
                f"no file matches '{step.path}'",
                where=str(root),
                hint="relative paths start at the workspace's folder; check fetch.path in the manifest",
            )
        new = [name for name in files if not taken.has(name)]
        new = [name for name in new if context.force or not _moved(root, name, taken, reporter)]
        reporter.line(f"{step.path}: {len(files):,} files, {len(new):,} of them new")
        if step.cache is None:
            changed = _changed(root, [name for name in files if taken.has(name)], taken, reporter)
            if context.force:
                new = sorted([*new, *changed])
            for name in () if context.force else changed:
                reporter.line(
                    f"{name} was taken before and has another content now: it is not taken again"
                    " (pull with --force to take it again)",
                    "warning",
                )
        for number, name in enumerate(_ordered(step, root, new), 1):
            reporter.check()
            path = root / name
            with _vanishing(path):
                check_readable(path)
                stamp = stamp_of(path)
                reporter.amount(files=number, total_files=len(new))
                digest = _hash(path, reporter, total=stamp[1])
            greatest = max(name, taken.greatest() or name)
            state = SourceState(SOURCE_NAME, ETAG, _value(greatest, name, digest))
            reporter.line(f"file {path}, {stamp[1]:,} bytes")
            yield Payload(path, name, state, _event_time(step, root, name), stamp)
            # The caller came back, so the file's block is in the chain.
            taken.add(name, digest)
            taken.note_hash(name, stamp, digest)
    finally:
        taken.close()


def read_state(value: str) -> tuple[str, str | None]:
    """What a state's value says was taken: a name and its hash, or, without hash, all names up to it."""
    match = _VALUE.fullmatch(value)
    if match is None:
        return value, None
    return match[3] if match[3] is not None else match[1], match[2]


def _value(greatest: str, name: str, digest: str) -> str:
    return f"{greatest}\t{digest}" + ("" if name == greatest else f"\t{name}")


def _matching(pattern: str, base: Path) -> tuple[Path, list[str]]:
    """The folder before the first wildcard, and the matching files' names relative to it, sorted."""
    path = Path(pattern).expanduser()
    parts = PurePath(base / path).parts
    # The workspace's own folder may have any characters in its name.
    own = 0 if path.is_absolute() else len(base.parts)
    magic = (at for at, part in enumerate(parts) if at >= own and glob.has_magic(part))
    fixed = next(magic, len(parts) - 1)
    root = Path(*parts[:fixed])
    names = glob.glob(str(Path(*parts[fixed:])), root_dir=root, recursive=True)  # noqa: PTH207
    names = sorted(name for name in names if (root / name).is_file())
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise BadData("the file's name is not UTF-8", where=repr(name), hint="rename it") from None
    return root, names


def _ordered(step: FilesGlob, root: Path, names: list[str]) -> list[str]:
    if step.order is not SourceOrdering.ByEventTime:
        return names
    if not isinstance(step.event_time, FromPath | FromMetadata):
        raise InvalidManifest(
            "order ByEventTime needs the event time of each file",
            hint="set fetch.eventTime to FromPath or FromMetadata, or use order ByName",
        )
    return sorted(names, key=lambda name: (_event_time(step, root, name), name))


def _event_time(step: FilesGlob, root: Path, name: str) -> Timestamp | None:
    if isinstance(step.event_time, FromPath):
        return from_path(step.event_time, name)
    if isinstance(step.event_time, FromMetadata):
        with _vanishing(root / name):
            return Timestamp.from_ms((root / name).stat().st_mtime_ns // 1_000_000)
    return None


def _moved(root: Path, name: str, taken: TakenFiles, reporter: Reporter) -> bool:
    """Whether a file was taken from the folder where the source looked before."""
    if not taken.was_elsewhere(name):
        return False
    with _vanishing(root / name):
        moved = taken.was_moved(name, _known_hash(root, name, taken, reporter))
    if moved:
        reporter.line(f"{name} was taken from another folder before, as it is: it is not taken again")
    return moved


def _known_hash(root: Path, name: str, taken: TakenFiles, reporter: Reporter) -> str:
    """The hash of a file; one that looks as it did before is not read again."""
    stamp = stamp_of(root / name)
    digest = taken.known_hash(name, stamp)
    if digest is None:
        digest = _hash(root / name, reporter)
        taken.note_hash(name, stamp, digest)
    return digest


def _changed(root: Path, names: list[str], taken: TakenFiles, reporter: Reporter) -> list[str]:
    """Those of the taken files that have another content than when they were taken."""
    changed: list[str] = []
    for name in names:
        reporter.check()
        before = taken.digest(name)
        if before is None:
            continue
        try:
            digest = _known_hash(root, name, taken, reporter)
        except FileNotFoundError:
            continue  # somebody has cleaned up: it was taken, so nothing is missing
        if digest != before:
            changed.append(name)
    return changed


@contextmanager
def _vanishing(path: Path) -> Iterator[None]:
    """Errors for a file that is no more there although the folder listed it."""
    try:
        yield
    except (FileNotFoundError, SourceUnavailable) as error:
        if path.exists():
            raise
        raise SourceUnavailable(
            "is gone since the folder was listed", where=str(path), hint="pull again"
        ) from error


def _hash(path: Path, reporter: Reporter, total: int | None = None) -> str:
    hasher, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            reporter.check()
            hasher.update(chunk)
            size += len(chunk)
            if total is not None:
                reporter.amount(bytes=size, total_bytes=total)
    return str(Multihash(SHA2_256, hasher.digest()))
