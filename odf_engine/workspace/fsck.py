"""Consistency check and repair of a workspace (``odf fsck``)."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import sqlite3
import stat
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from odf_engine.base import processes
from odf_engine.base.atomic_files import file_lock, read_small_file
from odf_engine.base.files import open_file, open_no_follow, translate_os_errors
from odf_engine.base.progress import Reporter
from odf_engine.chain.block_index import BlockIndex
from odf_engine.chain.compaction_record import COMPACTIONS_FOLDER, CompactionRecord
from odf_engine.chain.dataset import Dataset
from odf_engine.chain.linked_objects import read_links
from odf_engine.chain.quarantine import QUARANTINE_FOLDER, Quarantine
from odf_engine.chain.references import RetentionRule, list_old_heads, select_expired
from odf_engine.errors import Cancelled, Conflict, InvalidIdentity, NotFound, OdfError, SourceUnavailable
from odf_engine.identity.did import DID_PREFIX, DatasetId
from odf_engine.identity.multiformats import Multihash
from odf_engine.identity.ownership_proof import PROOFS_FOLDER, dataset_id_of_key, load_private_key
from odf_engine.metadata.model import DatasetKind, SetDataSchema
from odf_engine.metadata.object_links import find_link_columns
from odf_engine.storage.databases import connect_database
from odf_engine.storage.dataset_origin import DatasetOrigin
from odf_engine.storage.object_store import CHECKS_FOLDER, LocalObjectStore
from odf_engine.storage.refs import HEAD, RefStore
from odf_engine.tables import METADATA_FOLDERS
from odf_engine.tables.dataset_tables import outdated_tables, write_table
from odf_engine.workspace.dataset_folders import DatasetFolders
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.remotes import Remotes
from odf_engine.workspace.workspace import Workspace

if TYPE_CHECKING:
    from odf_engine.mirror.dataset_store import DatasetStore

_SETTLED_SECONDS: Final = 3600.0
RECENTLY_CHANGED: Final = "changed within the last hour; use --now to include it"


class FsckFinding(msgspec.Struct, frozen=True, kw_only=True):
    """A problem or a remark.

    Attributes:
        kind: stable name in kebab case.
        where: the dataset's name, or a path relative to ``.odf``.
        message: description for the user.
        count, size: number of affected files, and their size in bytes.
        repaired: whether the problem was removed.
        left: why it was not repaired, or "" if it was repaired, or repair was not requested.
    """

    kind: str
    where: str
    message: str
    count: int = 1
    size: int = 0
    repaired: bool = False
    left: str = ""


class FsckReport(msgspec.Struct):
    """The result of a consistency check, also while it is running.

    Attributes:
        repair: whether problems are repaired, without loss of history.
        now: whether files touched within the last hour are repaired, too.
        findings: problems.
        remarks: information that is not a problem.
        datasets: number of checked datasets.
    """

    repair: bool = False
    now: bool = False
    findings: list[FsckFinding] = []
    remarks: list[FsckFinding] = []
    datasets: int = 0

    @property
    def left(self) -> list[FsckFinding]:
        """The problems that were not repaired."""
        return [finding for finding in self.findings if not finding.repaired]

    def add_finding(
        self,
        kind: str,
        where: str,
        message: str,
        fix: Callable[[], object] | None = None,
        *,
        count: int = 1,
        size: int = 0,
        left: str = "",
    ) -> None:
        """Add a problem; repair it with ``fix`` if repair is requested and ``left`` is empty."""
        repaired = False
        if self.repair and not left:
            if fix is None:
                left = "no automatic repair"
            else:
                try:
                    fix()
                    repaired = True
                except OSError as error:
                    left = f"repair failed: {error.strerror or error}"
                except OdfError as error:
                    left = f"repair failed: {error.message}"
        left = left if self.repair else ""
        self.findings.append(
            FsckFinding(
                kind=kind, where=where, message=message, count=count, size=size, repaired=repaired, left=left
            )
        )

    def add_note(self, kind: str, where: str, message: str, count: int = 1) -> None:
        """Add a remark."""
        self.remarks.append(FsckFinding(kind=kind, where=where, message=message, count=count))

    def add_files(
        self,
        kind: str,
        where: str,
        message: str,
        paths: Iterable[Path],
        *,
        left: str = "",
        unused: bool = False,
    ) -> None:
        """Add unneeded files or folders as problems, if there are any; the repair removes them.

        Args:
            kind: stable name in kebab case.
            where: the dataset's name, or a path relative to ``.odf``.
            message: description for the user.
            paths: the files and folders.
            left: why they must not be removed now.
            unused: whether they are certainly not in use, regardless of their age.
        """
        recent: list[tuple[Path, int]] = []
        older: list[tuple[Path, int]] = []
        for path in paths:
            size, touched = _size_and_mtime(path)
            is_old = unused or self.now or time.time() - touched > _SETTLED_SECONDS
            (older if is_old else recent).append((path, size))
        for selected, reason in ((older, left), (recent, left or RECENTLY_CHANGED)):
            if selected:
                removable = [path for path, _ in selected]
                size = sum(size for _, size in selected)
                self.add_finding(
                    kind,
                    where,
                    message,
                    lambda removable=removable: _remove(removable),
                    count=len(selected),
                    size=size,
                    left=reason,
                )


def _size_and_mtime(path: Path) -> tuple[int, float]:
    """Return the size of a file or of all files in a folder in bytes, and the newest modification time."""
    size, newest = 0, 0.0
    for file in path.rglob("*") if path.is_dir() and not path.is_symlink() else (path,):
        with suppress(OSError):  # its owner has removed it
            status = file.lstat()
            if not stat.S_ISDIR(status.st_mode):
                size += status.st_size
                newest = max(newest, status.st_mtime)
    return size, newest


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


_KINDS: Final = {"blocks": "block", "data": "slice", "checkpoints": "checkpoint"}
_TEMPORARY_FILES: Final = (".pending-*", ".partial-*", ".new-*", ".*.part")
_BATCH: Final = 4096
_BUSY: Final = "a job is using the dataset"


def check_dataset(
    report: FsckReport,
    workspace: Workspace,
    entry: DatasetEntry,
    reporter: Reporter,
    *,
    busy: bool = False,
    has_index: bool = True,
    without: Collection[str] = (),
) -> None:
    """Check one dataset and add the problems to ``report``.

    Args:
        report: the report.
        workspace: the workspace.
        entry: the dataset.
        reporter: for cancellation.
        busy: whether a job uses the dataset, so that nothing may be repaired.
        has_index: whether the index of blocks is readable.
        without: references to ignore, since they are about to be removed.
    """
    entry.dataset.refresh_references()  # other machines may have added some, which need their objects
    _DatasetCheck(report, workspace, entry, reporter, busy, without).run(has_index)


class _DatasetCheck:
    def __init__(
        self,
        report: FsckReport,
        workspace: Workspace,
        entry: DatasetEntry,
        reporter: Reporter,
        busy: bool,
        without: Collection[str],
    ) -> None:
        self._without = without
        self._report, self._workspace, self._reporter = report, workspace, reporter
        self._entry, self._name = entry, str(entry.alias)
        self._folder = entry.dataset.folder
        self._refs = RefStore(self._folder / "refs", self._folder / "info" / "lock")
        self._left = _BUSY if busy else ""
        self._needed: dict[str, set[Multihash]] = {kind: set() for kind in _KINDS}
        self._link_columns: set[str] = set()
        self._slices: set[Multihash] = set()  # those whose links were not read yet

    def run(self, has_index: bool) -> None:
        """Run all checks of the dataset."""
        self._report.datasets += 1
        is_whole = self._follow(add_findings=True)
        if is_whole and has_index:
            self._index()
        with ExitStack() as stack:
            if self._report.repair and not self._left:
                self._lock(stack)
            if is_whole and (not self._report.repair or self._left or self._follow(add_findings=False)):
                self._orphans()
                self._store_objects()
            self._half_written()
        if is_whole and has_index:
            self._missing_slices()
            self._tables()

    def _tables(self) -> None:
        """Report tables that are damaged, or that a failed update has left behind."""
        dataset = self._entry.dataset
        for table_format in outdated_tables(dataset) if dataset.head() else ():
            message = f"the {table_format} table differs from the chain: run odf view --format {table_format}"
            fix = partial(write_table, dataset, table_format, lambda done, total: None)
            self._report.add_finding("table-outdated", self._name, message, fix, left=self._left)

    def _missing_slices(self) -> None:
        """Report missing slices of a dataset in this workspace; stores are compared by their listing."""
        dataset = self._entry.dataset
        if dataset.origin is not None:
            return
        names = [*dataset.branch_names(), *dataset.tag_names()]
        chains = [dataset, *map(dataset.branch, names)] if dataset.head() else []
        rows = {row.physical_hash: row for chain in chains for row in chain.slices()}
        missing = [slice_hash for slice_hash in rows if not dataset.object_path("data", slice_hash).is_file()]
        lost = [slice_hash for slice_hash in missing if dataset.equivalent_slice(slice_hash) is None]
        if lost:
            message = f"missing: data/{lost[0]}; odf pull --force {self._name} " + (
                "rebuilds it from the inputs" if self._is_derivative() else "downloads it from a remote"
            )
            self._report.add_finding("missing-slice", self._name, message, count=len(lost))
        if len(lost) < len(missing):
            message = "missing; an equivalent file with the same rows and other bytes is used"
            self._report.add_note("equivalent-slice", self._name, message, len(missing) - len(lost))

    def _is_derivative(self) -> bool:
        return self._entry.dataset.state().kind is DatasetKind.Derivative

    def _lock(self, stack: ExitStack) -> None:
        """Lock the dataset for the repair; if that fails, record why it is not repaired."""
        try:
            quarantine = stack.enter_context(Quarantine(self._entry.dataset))
            if not any(_find_files(quarantine.folder)):
                stack.callback(quarantine.discard)  # remove the folders that entering has created
            stack.enter_context(self._refs.locked())
        except (Conflict, OSError, OdfError) as error:
            reason = error.message if isinstance(error, OdfError) else str(error.strerror)
            self._left = f"cannot be locked: {reason}"

    def _follow(self, *, add_findings: bool) -> bool:
        """Collect the objects that all references need; return whether all chains could be read."""
        is_whole = self._refs.read(HEAD) is not None or not any(self._folder.glob("blocks/*"))
        if not is_whole and add_findings:
            message = "refs/head, the reference to the newest block, is missing: restore it from a copy"
            self._report.add_finding("chain-damaged", self._name, message)
        for name in self._references():
            try:
                at = self._refs.get(name)
                while at is not None and at not in self._needed["blocks"]:
                    self._reporter.raise_if_cancelled()
                    at = self._need(at)
            except OdfError as error:
                is_whole = False
                if add_findings:
                    self._report_broken(name, error)
        try:
            self._need_linked()
        except OdfError as error:
            is_whole = False
            if add_findings:
                message = f"the links of a slice cannot be read: {error}; run odf verify {self._name}"
                self._report.add_finding("links-unknown", self._name, message)
        return is_whole

    def _references(self) -> Iterator[str]:
        names = sorted(path.name for path in self._refs.folder.glob("*"))
        yield from (name for name in names if not name.startswith(".") and name not in self._without)

    def _need(self, block_hash: Multihash) -> Multihash | None:
        stored = self._entry.dataset.block(block_hash)
        event: Any = stored.block.event
        if isinstance(event, SetDataSchema):
            self._link_columns.update(find_link_columns(event.odf_schema))
        for kind, part in (("data", "new_data"), ("checkpoints", "new_checkpoint")):
            if (named := getattr(event, part, None)) is not None:
                self._needed[kind].add(named.physical_hash)
                self._slices |= {named.physical_hash} if kind == "data" else set()
        self._needed["blocks"].add(block_hash)
        return stored.block.prev_block_hash

    def _need_linked(self) -> None:
        """Add the objects that the slices of all references link to.

        Raises:
            OdfError: a slice cannot be read, so that its links are unknown.
        """
        while self._link_columns and self._slices:
            self._reporter.raise_if_cancelled()
            path = self._entry.dataset.slice_path(self._slices.pop())
            self._needed["data"].update(read_links(path, sorted(self._link_columns)).counts)

    def _report_broken(self, name: str, error: OdfError) -> None:
        if name == HEAD:
            message = f"the chain cannot be read: {error}; run odf verify {self._name}"
            self._report.add_finding("chain-damaged", self._name, message)
        else:
            message = f"the reference refs/{name} cannot be read: {error}"
            self._report.add_finding("reference-broken", self._name, message)

    def _index(self) -> None:
        """Compare the index with the blocks."""
        index, head = self._workspace.index, self._entry.dataset.head()
        if head is None:
            return
        origin = self._entry.dataset.origin
        rebuilt = Dataset(self._folder, BlockIndex(":memory:"), origin)
        try:
            state = rebuilt.state()
        except OdfError as error:
            self._report_broken(HEAD, error)
            return
        try:
            indexed = index.state(head)  # without an index, the next query indexes the head
            if indexed is None or (
                state == indexed and _has_same_content(rebuilt, Dataset(self._folder, index, origin))
            ):
                return
        except OdfError as error:
            self._reporter.log(f"{self._name}: {error}", "debug")
        message = "the index differs from the blocks"
        self._report.add_finding("index-wrong", self._name, message, self._rebuild_index)

    def _rebuild_index(self) -> None:
        self._workspace.index.reset()
        self._entry.dataset.state()

    def _orphans(self) -> None:
        needed = {
            **self._needed,
            PROOFS_FOLDER: self._needed["blocks"],
            COMPACTIONS_FOLDER: self._needed["blocks"] | set(self._compactions()),
            CHECKS_FOLDER: self._needed["data"],
        }
        words = {PROOFS_FOLDER: "proof", COMPACTIONS_FOLDER: "compaction", CHECKS_FOLDER: "check"}
        for kind, word in {**_KINDS, **words}.items():
            objects = LocalObjectStore(self._folder / kind)
            orphans: list[Path] = []
            unknown = 0
            for name in objects.names():
                try:
                    if Multihash.parse(name) not in needed[kind]:
                        orphans.append(objects.path(name))
                except InvalidIdentity:
                    unknown += 1
            message = "not used by any block or reference"
            self._report.add_files(f"orphan-{word}", self._name, message, orphans, left=self._left)
            if unknown:
                message = f"not a name of an object, in {kind}/"
                self._report.add_note("unknown-file", self._name, message, unknown)

    def _compactions(self) -> Iterator[Multihash]:
        """Yield the new heads of the records that lead to a reference, and of those that cannot be read."""
        dataset = self._entry.dataset
        unused: list[CompactionRecord] = []
        for name in dataset.compactions.names():
            with suppress(InvalidIdentity):
                new_head = Multihash.parse(name)
                try:
                    unused.append(dataset.compactions.read(name))
                except OdfError:
                    yield new_head  # `odf verify` reports it
        needed = self._needed["blocks"]
        kept: list[CompactionRecord] = []
        while True:
            leading = [
                record
                for record in unused
                if any(
                    block.block in needed or any(other.number_of(block.block) is not None for other in kept)
                    for block in record.header.blocks
                )
            ]
            if not leading:
                return
            yield from (record.header.new_head for record in leading)
            kept += leading
            unused = [record for record in unused if record not in leading]

    def _store_objects(self) -> None:
        """Compare the objects in the store of the workspace with those that the references need."""
        mirror = self._entry.dataset.origin
        if mirror is None:
            return
        if (head := self._refs.get(HEAD)) is not None and mirror.newest_head() is None:
            message = "refs/head is missing in the store; this machine has it"
            fix = partial(self._restore_head, mirror, head)
            self._report.add_finding("missing-head", self._name, message, fix, left=self._left)
        found_by_kind = {kind: mirror.check_objects(kind, self._needed[kind]) for kind in _KINDS}
        unused = [f"{kind}/{name}" for kind, objects in found_by_kind.items() for name in objects.orphans]
        left = self._left
        deleted: set[str] = set()
        if unused and self._report.repair and not left:
            try:
                deleted = self._delete_unused(mirror, unused)
            except OdfError as error:
                left = f"repair failed: {error.message}"
        message = "in the store, not used by any block or reference, older than a day"
        for kind, word in _KINDS.items():
            self._reporter.raise_if_cancelled()
            objects = found_by_kind[kind]
            names = {f"{kind}/{name}" for name in objects.orphans}
            waiting = names - deleted if self._report.repair and not left else set()
            if waiting:
                note = f"{message}; deleted by a repair or odf gc in an hour or later"
                self._report.add_note(f"unused-{word}", self._name, note, len(waiting))
            if names - waiting:
                self._report.add_finding(
                    f"orphan-{word}",
                    self._name,
                    message,
                    lambda: None,
                    count=len(names - waiting),
                    left=left,
                )
            if objects.missing:
                message = f"missing in the store: {kind}/{objects.missing[0]}"
                fixable = [item for item in objects.missing if (self._folder / kind / str(item)).exists()]
                fix = partial(_upload_all, mirror, kind, fixable) if fixable == objects.missing else None
                self._report.add_finding(
                    f"missing-{word}", self._name, message, fix, count=len(objects.missing), left=self._left
                )

    def _restore_head(self, mirror: DatasetOrigin, head: Multihash) -> None:
        """Store the head, and the objects that the store lacks, unless the dataset was deleted.

        Raises:
            NotFound: another machine has deleted the dataset.
        """
        store = self._workspace.store
        if store is None or self._entry.id.multibase not in store.read().catalog.datasets:
            raise NotFound("another machine has deleted the dataset")
        mirror.publish(None, None, head)

    def _delete_unused(self, mirror: DatasetOrigin, unused: Sequence[str]) -> set[str]:
        """Delete the objects in the store that were unused an hour ago; return their names.

        Raises:
            Conflict: another machine has changed a reference in the meantime. It may use the objects.
        """
        claimed = mirror.claim_unused(unused, now=self._report.now)
        if not claimed:
            return set()
        known = {name: self._refs.get(name) for name in self._refs.names()}
        if {HEAD: mirror.newest_head(), **mirror.references()} != known:
            mirror.delete_unused(())
            raise Conflict(
                "another machine has changed a reference; nothing was deleted",
                where=self._name,
                hint="run the command again",
            )
        mirror.delete_unused(claimed)
        return set(claimed)

    def _half_written(self) -> None:
        folders = (
            *_KINDS,
            "refs",
            PROOFS_FOLDER,
            COMPACTIONS_FOLDER,
            CHECKS_FOLDER,
            "info",
            *METADATA_FOLDERS.values(),
        )
        paths = [
            path
            for name in folders
            for pattern in _TEMPORARY_FILES
            for path in (self._folder / name).glob(pattern)
        ]
        self._report.add_files(
            "half-written", self._name, "left by an interrupted operation", paths, left=self._left
        )
        arriving = [path] if any(_find_files(path := self._folder / QUARANTINE_FOLDER)) else []
        message = "left by an interrupted pull; the next pull resumes from it"
        self._report.add_files("arriving", self._name, message, arriving, left=self._left)


def _upload_all(mirror: DatasetOrigin, kind: str, hashes: Sequence[Multihash]) -> None:
    for object_hash in hashes:
        mirror.upload(kind, str(object_hash))


def _find_files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if not path.is_dir())


def _has_same_content(one: Dataset, other: Dataset) -> bool:
    """Return whether two indexes have the same blocks and slices."""
    if one.slices() != other.slices():
        return False
    before: int | None = None
    while rows := one.list_blocks(_BATCH, before):
        if rows != other.list_blocks(_BATCH, before):
            return False
        before = rows[-1].sequence_number
    return not other.list_blocks(1, before)


_PROCESS_FOLDER: Final = re.compile(r"[a-z]+-(\d+)-.+")
_JSON_CACHES: Final = ("statistics/*.json", "ui.json", "downloads/*.json", "headers/*")
_PACKED_CACHES: Final = ("screen.msgpack",)
_ROW_CACHES: Final = ("projections/*.parquet", "queries/*.parquet")
_TEMPORARY_CACHES: Final = (
    "statistics/.*.part",
    "projections/.*.part",
    "exports/.*.part",
    "queries/*.part",
    ".*.part",
)
_PARQUET: Final = b"PAR1"
_DAMAGED_SUFFIX: Final = ".damaged"  # suffix of damaged files that were renamed


def check_workspace(
    workspace: Workspace,
    reporter: Reporter,
    *,
    repair: bool = False,
    now: bool = False,
    busy: Collection[str] = (),
    has_jobs: bool = False,
    has_worker: bool = False,
) -> FsckReport:
    """Check a workspace, and repair it if requested.

    Args:
        workspace: the workspace.
        reporter: for progress and cancellation.
        repair, now: see :class:`FsckReport`.
        busy: ids of datasets that jobs use.
        has_jobs: whether any job is running or queued; caches are then not repaired.
        has_worker: whether a worker is running, which writes the journal of jobs.

    Raises:
        Cancelled: cancellation was requested.
    """
    report = FsckReport(repair=repair, now=now)
    check = _WorkspaceCheck(report, workspace)
    has_index = check.databases(has_worker)
    entries = workspace.datasets()
    for entry in entries:
        reporter.phase(str(entry.alias))
        with _report_unreadable(report, str(entry.alias)):
            check_dataset(report, workspace, entry, reporter, busy=str(entry.id) in busy, has_index=has_index)
    for part in (
        check.unfinished,
        partial(check.caches, "a job is running" if has_jobs else ""),
        check.belongings,
    ):
        with _report_unreadable(report, "."):
            part()
    return report


@contextmanager
def _report_unreadable(report: FsckReport, where: str) -> Iterator[None]:
    """Report files that the block cannot read or write as a problem, so that the other checks still run."""
    try:
        with translate_os_errors(Path(where)):
            yield
    except Cancelled:
        raise
    except OdfError as error:
        hint = f"; {error.hint}" if error.hint else ""
        report.add_finding("unreadable", where, f"{error}{hint}")


_UNREADABLE: Final = ("chain-damaged", "reference-broken", "links-unknown")
_GARBAGE: Final = ("old-head", "orphan-", "half-written", *_UNREADABLE)
"""Beginnings of the kinds of findings that a collection of garbage reports."""


def collect_garbage(
    workspace: Workspace,
    entries: Sequence[DatasetEntry],
    reporter: Reporter,
    *,
    dry_run: bool,
    now: bool = False,
    busy: Collection[str] = (),
) -> FsckReport:
    """Remove the old heads that have expired by the settings, then the files that no reference uses.

    Files and old heads that were written within the last hour remain, unless ``now``.

    Args:
        workspace: the workspace.
        entries: its datasets to clean.
        reporter: for progress and cancellation.
        dry_run: only list what would be removed.
        now: also remove recent files.
        busy: ids of datasets that jobs use; nothing of them is removed.

    Raises:
        Cancelled: cancellation was requested.
    """
    report = FsckReport(repair=not dry_run, now=now)
    for entry in entries:
        reporter.phase(str(entry.alias))
        is_busy = str(entry.id) in busy
        rule = RetentionRule(*workspace.config.retention_of(str(entry.alias), str(entry.id)))
        entry.dataset.refresh_references()
        expired = select_expired(list_old_heads(entry.dataset), rule)
        if not now:  # jobs that started before may still read the rows of an old head
            recent = time.time() - _SETTLED_SECONDS
            expired = [expired_head for expired_head in expired if expired_head.created <= recent]
        for head in expired:
            report.add_finding(
                "old-head",
                str(entry.alias),
                f"refs/{head.name}, an old head that has expired",
                partial(entry.dataset.remove_reference, head.name, head.block),
                left=_BUSY if is_busy else "",
            )
        without = [head.name for head in expired] if dry_run else []
        check_dataset(report, workspace, entry, reporter, busy=is_busy, has_index=False, without=without)
    report.findings = [finding for finding in report.findings if finding.kind.startswith(_GARBAGE)]
    return report


def _erase(store: DatasetStore, name: str) -> None:
    store.end([name], store.begin([name], "delete"))


class _WorkspaceCheck:
    def __init__(self, report: FsckReport, workspace: Workspace) -> None:
        self._report, self._workspace, self._odf = report, workspace, workspace.odf
        self._cache = workspace.odf / "cache"

    def _locked(self) -> AbstractContextManager[None]:
        """Lock the creation and deletion of datasets during a repair."""
        return file_lock(self._odf / "lock") if self._report.repair else nullcontext()

    def databases(self, has_worker: bool) -> bool:
        """Check the index of blocks and the job log; return whether the index is readable."""
        index, journal = self._odf / "index.sqlite", self._odf / "jobs.sqlite"
        if problem := _database_problem(index):
            message = f"the index of blocks cannot be read: {problem}"
            self._report.add_finding("index-damaged", index.name, message, self._rebuild_index)
        if problem := _database_problem(journal):
            message = f"the job log cannot be read: {problem}"
            left = "a worker is running; run odf worker stop" if has_worker else ""
            self._report.add_finding(
                "journal-damaged", journal.name, message, lambda: _rename_damaged(journal), left=left
            )
        return not _database_problem(index)

    def _rebuild_index(self) -> None:
        self._workspace.index.reset()
        for entry in self._workspace.datasets():
            with suppress(OdfError):  # the check of the dataset reports it
                entry.dataset.state()

    def unfinished(self) -> None:
        """Check for interrupted creations, deletions and transfers, and for folders of dead processes."""
        folders = DatasetFolders(self._odf / "datasets")
        with self._locked():
            left = ""
            if self._report.repair:
                try:
                    if (store := self._workspace.store) is not None:
                        folders.follow(store.read().catalog.datasets)  # completes those that the store lists
                    for dataset_id in folders.find_uncreated_ids():
                        self._workspace.keys.delete(dataset_id)
                except (SourceUnavailable, NotFound) as error:
                    left = f"the store cannot be read: {error.message}"
            message = "left by an interrupted creation or deletion of a dataset"
            self._report.add_files(
                "unfinished-dataset", "datasets", message, folders.find_unfinished(), unused=True, left=left
            )
        self._unfinished_in_store()
        incoming = self._odf / "incoming"
        for name in sorted({path.name.removesuffix(".lock") for path in incoming.glob("*")}):
            self._incoming(incoming / name)
        dead = [path for path in self._cache.glob("*-*-*") if _is_of_dead_process(path)]
        self._report.add_files("left-over", "cache", "left by a terminated process", dead, unused=True)
        halves = [
            path for name in (".", "trust", "remotes", "keys") for path in (self._odf / name).glob(".new-*")
        ]
        self._report.add_files("half-written", ".", "left by an interrupted operation", halves)

    def _unfinished_in_store(self) -> None:
        """Check for objects of interrupted creations and deletions in the store, by any machine."""
        store = self._workspace.store
        if store is None:
            return
        message = "in the store, left by an interrupted creation or deletion of a dataset"
        with self._locked():  # a creation of this workspace is not interrupted while it holds the lock
            try:
                names = store.interrupted()
            except (SourceUnavailable, NotFound):
                return  # the checks of the datasets report it
            for name in names:
                self._report.add_finding("unfinished-dataset", name, message, partial(_erase, store, name))

    def _incoming(self, folder: Path) -> None:
        """Check the files of an interrupted pull of a new dataset."""
        lock = folder.with_name(f"{folder.name}.lock")
        path = str(folder.relative_to(self._odf))
        message = "left by an interrupted pull of a new dataset; the next pull resumes from it"
        if self._report.repair:
            os.close(open_no_follow(lock, os.O_RDONLY | os.O_CREAT, 0o600))
        elif not lock.exists():
            self._report.add_files("arriving", path, message, [folder])
            return
        with open_file(lock, "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return  # the pull is running
            self._report.add_files("arriving", path, message, [folder if folder.exists() else lock])
            if self._report.repair and not folder.exists():
                lock.unlink(missing_ok=True)

    def caches(self, left: str) -> None:
        """Check cache files, which can be rebuilt; ``left`` is why they are not repaired."""
        broken = [
            *self._unreadable(_JSON_CACHES, partial(_is_readable, decode=msgspec.json.decode)),
            *self._unreadable(_PACKED_CACHES, partial(_is_readable, decode=msgspec.msgpack.decode)),
            *self._unreadable(_ROW_CACHES, _is_parquet),
        ]
        message = "cache file cannot be read; it is rebuilt when required"
        self._report.add_files("cache-broken", "cache", message, broken, left=left)
        parts = [path for pattern in _TEMPORARY_CACHES for path in self._cache.glob(pattern)]
        self._report.add_files("half-written", "cache", "left by an interrupted operation", parts, left=left)

    def _unreadable(self, patterns: Collection[str], is_right: Callable[[Path], bool]) -> Iterator[Path]:
        for pattern in patterns:
            for path in sorted(self._cache.glob(pattern)):
                with suppress(FileNotFoundError):  # its owner has removed it
                    if not path.name.startswith(".") and not (path.is_file() and is_right(path)):
                        yield path

    def belongings(self) -> None:
        """Check keys, grants and addresses, and the datasets that they belong to."""
        if not (self._odf / "datasets").is_dir():
            message = "the folder of the datasets is missing"
            self._report.add_finding("datasets-missing", "datasets", message)
            return  # otherwise everything would be reported as orphaned
        known_ids = {entry.id for entry in self._workspace.datasets()}
        for dataset in self._workspace.keys.ids():
            key_path = f"keys/{dataset.multibase}.pem"
            if problem := self._key_problem(dataset):
                message = f"not the key of {dataset}: {problem}; run odf keys import"
                path = self._workspace.keys.folder / f"{dataset.multibase}.pem"
                # The key of an existing dataset would be missing, so this is not repaired.
                fix = None if dataset in known_ids else partial(path.replace, f"{path}{_DAMAGED_SUFFIX}")
                self._report.add_finding("key-damaged", key_path, message, fix)
            elif dataset not in known_ids:
                self._report.add_note("key-alone", key_path, "key of a dataset that is not in this workspace")
        for folder, description in (("trust", "permissions"), ("remotes", "remotes")):
            with self._locked():
                known_ids = {entry.id for entry in self._workspace.datasets()}
                files = sorted((self._odf / folder).glob("*.json"))
                orphans = [
                    path for path in files if (owner := _owner_of_file(path)) and owner not in known_ids
                ]
                message = f"{description} of a dataset that is not in this workspace"
                self._report.add_files(f"{folder}-alone", folder, message, orphans, unused=True)
        try:
            Remotes(self._odf).repositories()
        except OdfError as error:
            self._report.add_finding("repositories-damaged", "repositories.json", error.message)

    def _key_problem(self, dataset: DatasetId) -> str:
        try:
            key_id = dataset_id_of_key(load_private_key(self._workspace.keys.private_key_pem(dataset)))
        except OdfError as error:
            return error.message
        except (OSError, UnicodeDecodeError):
            return "cannot be read"
        return "" if key_id == dataset else "another key"


def _owner_of_file(path: Path) -> DatasetId | None:
    """Return the dataset that a file belongs to by its name, or None."""
    with suppress(OdfError):
        return DatasetId.parse(DID_PREFIX + path.stem)
    return None


def _is_of_dead_process(path: Path) -> bool:
    owned = _PROCESS_FOLDER.fullmatch(path.name)
    return owned is not None and path.is_dir() and not processes.is_process_running(int(owned[1]))


def _is_readable(path: Path, decode: Callable[[bytes], object]) -> bool:
    try:
        decode(read_small_file(path))
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _is_parquet(path: Path) -> bool:
    with path.open("rb") as file:
        magic = file.read(len(_PARQUET))
        if file.seek(0, os.SEEK_END) < 2 * len(_PARQUET):
            return False
        file.seek(-len(_PARQUET), os.SEEK_END)
        return magic == file.read() == _PARQUET


def _database_problem(path: Path) -> str:
    """Return why a database cannot be used, or "" if it can, or does not exist."""
    if not path.exists() or not path.stat().st_size:
        return ""
    problem = ""
    for mode in ("mode=rw", "mode=ro", "immutable=1"):  # the later modes are for read-only file systems
        try:
            with closing(connect_database(path, mode, timeout=5)) as database:
                (result,) = database.execute("PRAGMA quick_check(1)").fetchone()
                return "" if result == "ok" else str(result).splitlines()[0]
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                return ""  # in use by another process, thus readable
            problem = str(error)
        except sqlite3.DatabaseError as error:
            return str(error)
    return problem


def _rename_damaged(journal: Path) -> None:
    """Rename a damaged journal, as a starting worker does."""
    for ending in ("", "-wal", "-shm"):
        part = journal.with_name(journal.name + ending)
        if part.exists():
            part.replace(part.with_name(part.name + _DAMAGED_SUFFIX))
