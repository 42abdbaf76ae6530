"""Looking over a workspace: datasets, caches, and what is kept beside them; see ``odf fsck``.

Nothing that history needs is ever touched, and no private key but that of a dataset that was never
published. What another process may be at work on is left alone: it is told by locks, by the numbers of
processes in names, else by when it was touched.
"""

from __future__ import annotations

import fcntl
import os
import re
import sqlite3
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from odf_engine import processes
from odf_engine.errors import OdfError
from odf_engine.files import open_file, open_no_follow
from odf_engine.identity.did import DID_PREFIX, DatasetId
from odf_engine.identity.proof import private_key, public_id
from odf_engine.progress import Reporter
from odf_engine.storage.databases import connect
from odf_engine.workspace.checking_dataset import check_dataset
from odf_engine.workspace.checkup import Checkup
from odf_engine.workspace.folders import DatasetFolders
from odf_engine.workspace.remotes import Remotes
from odf_engine.workspace.small_files import held, read_small
from odf_engine.workspace.workspace import Workspace

_OWNED: Final = re.compile(r"[a-z]+-(\d+)-.+")
_JSON_CACHES: Final = ("statistics/*.json", "ui.json", "downloads/*.json")
_PACKED_CACHES: Final = ("screen.msgpack",)
_ROW_CACHES: Final = ("projections/*.parquet", "queries/*.parquet")
_PARTS: Final = ("statistics/.*.part", "projections/.*.part", "exports/.*.part", "queries/*.part", ".*.part")
_PARQUET: Final = b"PAR1"
_ASIDE: Final = ".damaged"  # the end of the names of files that were moved aside


def check_workspace(
    workspace: Workspace,
    reporter: Reporter,
    *,
    repair: bool = False,
    now: bool = False,
    busy: Collection[str] = (),
    has_jobs: bool = False,
    has_worker: bool = False,
) -> Checkup:
    """Looks over a workspace, and repairs what may be repaired if that is wanted.

    Args:
        repair, now: see :class:`Checkup`.
        busy: ids of datasets that jobs work on.
        has_jobs: whether any job runs or waits: then caches are left alone.
        has_worker: whether a worker runs, which writes the journal of jobs.

    Raises:
        Cancelled: somebody asked to stop.
    """
    checkup = Checkup(repair=repair, now=now)
    check = _WorkspaceCheck(checkup, workspace)
    has_index = check.databases(has_worker)
    entries = workspace.datasets()
    for entry in entries:
        reporter.phase(str(entry.alias))
        check_dataset(checkup, workspace, entry, reporter, busy=str(entry.id) in busy, has_index=has_index)
    check.unfinished()
    check.caches("a job runs" if has_jobs else "")
    check.belongings()
    return checkup


class _WorkspaceCheck:
    def __init__(self, checkup: Checkup, workspace: Workspace) -> None:
        self._checkup, self._workspace, self._odf = checkup, workspace, workspace.odf
        self._cache = workspace.odf / "cache"

    def _locked(self) -> AbstractContextManager[None]:
        """Keeps others from making and deleting datasets, while something is repaired."""
        return held(self._odf / "lock") if self._checkup.repair else nullcontext()

    # --- Databases ---

    def databases(self, has_worker: bool) -> bool:
        """The index of blocks, and the journal of jobs; whether the index can be read."""
        index, journal = self._odf / "index.sqlite", self._odf / "jobs.sqlite"
        if problem := _database_problem(index):
            message = f"the index of blocks cannot be read: {problem}"
            self._checkup.find("index-damaged", index.name, message, self._index_anew)
        if problem := _database_problem(journal):
            message = f"the journal of jobs cannot be read: {problem}"
            left = "a worker runs: odf worker stop" if has_worker else ""
            self._checkup.find("journal-damaged", journal.name, message, lambda: _aside(journal), left=left)
        return not _database_problem(index)

    def _index_anew(self) -> None:
        self._workspace.index.remake()
        for entry in self._workspace.datasets():
            with suppress(OdfError):  # its own check tells
                entry.dataset.state()

    # --- Work that was interrupted ---

    def unfinished(self) -> None:
        """Datasets that were being made, deleted or transferred, and folders of dead processes."""
        folders = DatasetFolders(self._odf / "datasets")
        with self._locked():
            if self._checkup.repair:
                for dataset_id in folders.unfinished_ids():
                    self._workspace.keys.forget(dataset_id)
            message = "a dataset that was being made or deleted"
            self._checkup.files("unfinished-dataset", "datasets", message, folders.unfinished(), sure=True)
        for path in sorted((self._odf / "incoming").glob("*")):
            if path.is_dir():
                self._incoming(path)
        dead = [path for path in self._cache.glob("*-*-*") if _is_left(path)]
        self._checkup.files("left-over", "cache", "a process that is no more left it", dead, sure=True)
        halves = [
            path for name in (".", "trust", "remotes", "keys") for path in (self._odf / name).glob(".new-*")
        ]
        self._checkup.files("half-written", ".", "interrupted work left it", halves)

    def _incoming(self, folder: Path) -> None:
        """What an interrupted pull of a new dataset has brought."""
        lock = folder.with_name(f"{folder.name}.lock")
        where = str(folder.relative_to(self._odf))
        message = "an interrupted pull of a dataset left it; the next one would go on from there"
        if self._checkup.repair:
            os.close(open_no_follow(lock, os.O_RDONLY | os.O_CREAT, 0o600))
        elif not lock.exists():
            self._checkup.files("arriving", where, message, [folder])
            return
        with open_file(lock, "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return  # it is just coming
            self._checkup.files("arriving", where, message, [folder])
            if self._checkup.repair and not folder.exists():
                lock.unlink(missing_ok=True)

    # --- Caches ---

    def caches(self, left: str) -> None:
        """Files that can be made again; ``left``: why they are left alone."""
        broken = [
            *self._unreadable(_JSON_CACHES, partial(_is_readable, decode=msgspec.json.decode)),
            *self._unreadable(_PACKED_CACHES, partial(_is_readable, decode=msgspec.msgpack.decode)),
            *self._unreadable(_ROW_CACHES, _is_parquet),
        ]
        message = "a file of the cache cannot be read; it is made again when it is needed"
        self._checkup.files("cache-broken", "cache", message, broken, left=left)
        parts = [path for pattern in _PARTS for path in self._cache.glob(pattern)]
        self._checkup.files("half-written", "cache", "interrupted work left it", parts, left=left)

    def _unreadable(self, patterns: Collection[str], is_right: Callable[[Path], bool]) -> Iterator[Path]:
        for pattern in patterns:
            for path in sorted(self._cache.glob(pattern)):
                with suppress(FileNotFoundError):  # its owner was quicker
                    if not path.name.startswith(".") and not (path.is_file() and is_right(path)):
                        yield path

    # --- What belongs to datasets ---

    def belongings(self) -> None:
        """Keys, trust and addresses, and whose they are."""
        if not (self._odf / "datasets").is_dir():
            message = "the folder of all datasets is not there"
            self._checkup.find("datasets-missing", "datasets", message)
            return  # else what belongs to them would seem to belong to nobody
        here = {entry.id for entry in self._workspace.datasets()}
        for dataset in self._workspace.keys.ids():
            where = f"keys/{dataset.multibase}.pem"
            if problem := self._key_problem(dataset):
                message = (
                    f"it does not hold the key of {dataset}: {problem}; odf keys import takes a right one"
                )
                path = self._workspace.keys.folder / f"{dataset.multibase}.pem"
                # The key of a dataset that is here is missed: that stays a finding.
                fix = None if dataset in here else partial(path.replace, f"{path}{_ASIDE}")
                self._checkup.find("key-damaged", where, message, fix)
            elif dataset not in here:
                self._checkup.remark("key-alone", where, "the key of a dataset that is not here")
        for folder, what in (("trust", "what is allowed to"), ("remotes", "the addresses of")):
            with self._locked():
                here = {entry.id for entry in self._workspace.datasets()}
                files = sorted((self._odf / folder).glob("*.json"))
                alone = [path for path in files if (owner := _owner(path)) and owner not in here]
                message = f"{what} a dataset that is not here"
                self._checkup.files(f"{folder}-alone", folder, message, alone, sure=True)
        try:
            Remotes(self._odf).repositories()
        except OdfError as error:
            self._checkup.find("repositories-damaged", "repositories.json", error.message)

    def _key_problem(self, dataset: DatasetId) -> str:
        try:
            found = public_id(private_key(self._workspace.keys.private_key_pem(dataset)))
        except OdfError as error:
            return error.message
        except (OSError, UnicodeDecodeError):
            return "it cannot be read"
        return "" if found == dataset else "it is another key"


def _owner(path: Path) -> DatasetId | None:
    """Whose file this is; None: its name does not say."""
    with suppress(OdfError):
        return DatasetId.parse(DID_PREFIX + path.stem)
    return None


def _is_left(path: Path) -> bool:
    owned = _OWNED.fullmatch(path.name)
    return owned is not None and path.is_dir() and not processes.runs(int(owned[1]))


def _is_readable(path: Path, decode: Callable[[bytes], object]) -> bool:
    try:
        decode(read_small(path))
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _is_parquet(path: Path) -> bool:
    with path.open("rb") as file:
        begins = file.read(len(_PARQUET))
        if file.seek(0, os.SEEK_END) < 2 * len(_PARQUET):
            return False
        file.seek(-len(_PARQUET), os.SEEK_END)
        return begins == file.read() == _PARQUET


def _database_problem(path: Path) -> str:
    """Why a database cannot be used; empty when it can, or is not there."""
    if not path.exists() or not path.stat().st_size:
        return ""
    try:
        with closing(connect(path, "mode=rw", timeout=5)) as database:
            (said,) = database.execute("PRAGMA quick_check(1)").fetchone()
            return "" if said == "ok" else str(said).splitlines()[0]
    except sqlite3.OperationalError as error:
        return "" if "locked" in str(error) else str(error)  # somebody writes: it works
    except sqlite3.DatabaseError as error:
        return str(error)


def _aside(journal: Path) -> None:
    """Moves a damaged journal aside, as a worker that starts does."""
    for ending in ("", "-wal", "-shm"):
        part = journal.with_name(journal.name + ending)
        if part.exists():
            part.replace(part.with_name(part.name + _ASIDE))
