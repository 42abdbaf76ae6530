"""The local mirror of a dataset in a store: fetches objects, publishes commits, evicts cached slices."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import msgspec

from odf_engine.base.atomic_files import replace_file, replace_text_file
from odf_engine.base.files import remove_temporary, translate_os_errors
from odf_engine.base.progress import Reporter
from odf_engine.chain.compaction_record import COMPACTIONS_FOLDER, MAX_RECORD_BYTES, RecordStore
from odf_engine.errors import (
    BadData,
    Conflict,
    InvalidIdentity,
    NotFound,
    ObjectUnchanged,
    OdfError,
    SourceUnavailable,
    WriteConditionFailed,
)
from odf_engine.identity.multiformats import Multihash, new_hasher
from odf_engine.mirror.catalog import MARKER, ORIGIN_FILE, KnownHead
from odf_engine.mirror.dataset_store import DELETED_BATCH, DatasetStore, parse_head
from odf_engine.mirror.heads_list import HeadsList
from odf_engine.mirror.ranged_object import MIN_RANGED_BYTES, RANGES, RangedObject
from odf_engine.mirror.signed_download import VALIDITY, SignedDownload
from odf_engine.mirror.unused_objects import CHECKED_SECONDS, UnusedObjects
from odf_engine.storage.dataset_origin import CheckedObjects
from odf_engine.storage.object_store import STAGING_PREFIX
from odf_engine.storage.refs import HEAD
from odf_engine.storage.scratch import find_oldest_job

if TYPE_CHECKING:
    from obstore import PutMode, UpdateVersion

    from odf_engine.net.bucket_client import StoredObject

KINDS: Final = ("data", "checkpoints", "blocks")
"""In the order of their storage: a block that exists has all objects that it refers to."""
_MAX_HEAD_BYTES: Final = 4096
_MAX_ORIGIN_BYTES: Final = 4096
_REFERENCE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,199}")
_MAX_OBJECT_BYTES: Final = 1 << 50
_READ_BYTES: Final = 1 << 20
_SINGLE_BYTES: Final = 5 << 20  # larger objects are stored in parts
_IN_USE_SECONDS: Final = 3600.0
_EVICTION_SECONDS: Final = 60.0
_SINGLE_BLOCKS: Final = 8
_PAUSE_SECONDS: Final = 10.0
_ORPHAN_AGE: Final = timedelta(days=1)


class DatasetMirror:
    """The origin of the dataset in ``folder`` (see :class:`odf_engine.storage.dataset_origin.DatasetOrigin`).

    Attributes:
        store: the store.
        name: the folder of the dataset in the store.

    Args:
        store: the store.
        folder: the mirror.
        name: the folder of the dataset in the store.
        heads: the list that new heads are written to, or None for a dataset that is not in it yet.
    """

    _evicted: float = 0.0

    def __init__(self, store: DatasetStore, folder: Path, name: str, heads: HeadsList | None = None) -> None:
        self.store = store
        self._heads = heads
        self._folder = folder
        self.name = name
        self._lock = threading.Lock()
        self._fetched = 0
        self._fetched_at = 0.0

    @cached_property
    def _unused(self) -> UnusedObjects:
        return UnusedObjects(self.store.client, self.name, f"{self.store.url}{self.name}/")

    def fetch(self, kind: str, name: str) -> bool:
        """Store an object in the mirror, if its bytes match its hash; an existing copy is replaced.

        Returns:
            Whether the store has it.

        Raises:
            BadData: the bytes do not match the hash.
            SourceUnavailable: the store cannot be read.
        """
        if not (self._folder / MARKER).exists():
            return False  # not published yet
        target = self._folder / kind / name
        if kind == "blocks" and not target.exists():
            self._fetch_blocks()
            if target.exists():
                return True
        return self._fetch(kind, name)

    def _fetch_blocks(self) -> None:
        """Fetch all missing blocks at the same time, after several were fetched one by one.

        A block names only the one before it. For a few blocks, the list of all would take longer.
        """
        with self._lock:
            now = time.monotonic()
            count = 1 if now - self._fetched_at > _PAUSE_SECONDS else self._fetched + 1
            self._fetched, self._fetched_at = count, now
            if count != _SINGLE_BLOCKS:
                return
        names = self.store.client.list_all(self._key("blocks", ""))
        missing = [name for name in names if not (self._folder / "blocks" / name).exists()]

        def fetch(name: str) -> None:
            with suppress(BadData):  # raised when the block is read, if it is needed
                self._fetch("blocks", name)

        self.store.run_parallel(fetch, missing)

    def fetch_all(self, kind: str, sizes: Mapping[str, int], reporter: Reporter) -> None:
        """Store missing objects in the mirror; see :class:`DatasetOrigin`."""
        folder = self._folder / kind
        missing = _missing(folder, sizes)
        if not missing or not (self._folder / MARKER).exists():
            return
        if self.store.run_downloads is not None:
            keys = [self._key(kind, name) for name in missing]
            urls = self.store.client.sign(keys, VALIDITY)
            if urls is not None:  # otherwise Spark would be started for nothing
                with reporter.nested_phase("fetch"), translate_os_errors(folder):
                    folder.mkdir(exist_ok=True)
                    downloads = map(SignedDownload, urls, map(folder.joinpath, missing), missing.values())
                    self.store.run_downloads(list(downloads), reporter)
            missing = _missing(folder, sizes)
        received, total, lock = 0, sum(missing.values()), threading.Lock()

        def receive(count: int) -> None:
            nonlocal received
            reporter.raise_if_cancelled()
            with lock:
                received += count
                reporter.set_amounts(bytes=received, total_bytes=total)

        with reporter.nested_phase("fetch"):
            self.store.run_parallel(lambda name: self._fetch(kind, name, receive), list(missing))

    def _fetch(self, kind: str, name: str, receive: Callable[[int], None] = lambda _: None) -> bool:
        try:
            expected = Multihash.parse(name)
        except InvalidIdentity:
            return False
        chunks = self.store.client.chunks(self._key(kind, name), 0, _MAX_OBJECT_BYTES)
        if chunks is None:
            return False
        target = self._folder / kind / name
        part = target.with_name(f"{STAGING_PREFIX}{uuid4().hex[:16]}")
        hasher = new_hasher(expected.code)
        with translate_os_errors(target):
            try:
                target.parent.mkdir(exist_ok=True)
                with part.open("xb") as file:
                    for piece in chunks:
                        hasher.update(piece)
                        file.write(piece)
                        receive(len(piece))
                if hasher.digest() != expected.digest:
                    hint = "restore the object in the store from a copy of the dataset"
                    problem = f"{kind}/{name} in the store is damaged: its bytes do not match its hash"
                    raise BadData(problem, where=self.store.url, hint=hint)
                part.replace(target)  # without a sync: a damaged file is fetched again
            finally:
                remove_temporary(part)
        if kind != "blocks":
            self._evict()
        return True

    def open_ranges(self, kind: str, names: Sequence[str], size: int) -> RangedObject | None:
        """Return an object whose bytes are fetched in parts, or None if it is small or not published."""
        if size < MIN_RANGED_BYTES or not (self._folder / MARKER).exists():
            return None
        self._evict()
        keys = [self._key(kind, name) for name in names]
        return RangedObject(self.store, keys, size, self._folder / RANGES / names[0])

    def newest_head(self, reference: str = HEAD) -> Multihash | None:
        """Return the head in the store, by a conditional request, or None if the dataset does not exist.

        ``reference`` is the head or a branch, which is read without a condition.
        """
        if reference != HEAD:
            return self._read(reference)[0]
        known, client, key = self._known(), self.store.client, self._key("refs", HEAD)
        try:
            if known is None:
                stored = client.read(key, _MAX_HEAD_BYTES)
            else:
                stored = client.read_changed(key, _MAX_HEAD_BYTES, _version(known.tag))
        except ObjectUnchanged:
            assert known is not None
            with suppress(OSError):
                os.utime(self._folder / MARKER)
            return Multihash.parse(known.head)
        return self._note(stored)

    def age(self) -> float:
        """Return the seconds since the head was last compared with the store."""
        try:
            return max(0.0, time.time() - (self._folder / MARKER).stat().st_mtime)
        except OSError:
            return float("inf")

    def references(self) -> dict[str, Multihash]:
        """Return the references in the store other than the head, by their names."""
        multihashes: dict[str, Multihash] = {}
        for name in self.store.client.list_all(self._key("refs", "")):
            if name == HEAD or not _REFERENCE.fullmatch(name):
                continue  # it becomes the name of a file
            stored = self.store.client.read(self._key("refs", name), _MAX_HEAD_BYTES)
            if stored is not None:
                multihashes[name] = parse_head(stored.data, self.store.url)
        return multihashes

    def read_records(self) -> bool:
        """Store missing compaction records in the mirror; return whether there were any."""
        folder = self._folder / COMPACTIONS_FOLDER
        is_changed = False
        for name in self.store.client.list_all(self._key(COMPACTIONS_FOLDER, "")):
            try:
                new_head = Multihash.parse(name)
            except InvalidIdentity:
                continue  # it becomes the name of a file
            if not (folder / str(new_head)).exists():
                stored = self.store.client.read(self._key(COMPACTIONS_FOLDER, name), MAX_RECORD_BYTES)
                if stored is not None:
                    RecordStore(self._folder).store(new_head, stored.data)
                    is_changed = True
        return is_changed

    def read_author(self) -> None:
        """Store the origin of the definition in the mirror, if the store has one. It is never removed."""
        if (self._folder / ORIGIN_FILE).exists():
            return
        stored = self.store.client.read(self._key(*ORIGIN_FILE.split("/")), _MAX_ORIGIN_BYTES)
        if stored is not None:
            text = stored.data[:_MAX_ORIGIN_BYTES].decode("utf-8", "replace")
            replace_text_file(self._folder / ORIGIN_FILE, text)  # durable, unlike a cache

    def record_author(self, text: str) -> None:
        """Record the origin of a third-party definition, before its blocks are published."""
        self.store.client.write(self._key(*ORIGIN_FILE.split("/")), text.encode()[:_MAX_ORIGIN_BYTES])

    def upload(self, kind: str, name: str) -> None:
        """Store an object of the mirror."""
        path = self._folder / kind / name
        size = path.stat().st_size
        key = self._key(kind, name)
        if size <= _SINGLE_BYTES:
            self.store.client.write(key, path.read_bytes())
        else:
            self.store.client.upload(key, size, _pieces(path))

    def publish(
        self,
        objects: Sequence[tuple[str, str]] | None,
        expected: Multihash | None,
        new: Multihash,
        backup_ref: str | None = None,
        reference: str = HEAD,
        required: Collection[str] = (),
    ) -> None:
        """Store objects, then move the head, or a branch, by a conditional write.

        Raises:
            Conflict: another machine has committed; nothing was committed.
            NotFound: the store lacks a required object.
            SourceUnavailable: the store cannot be written; nothing was committed, or a response was lost.
        """
        stored, checked = self._require(reference, expected), time.time()
        for kind, name in objects or ():
            self.upload_used(kind, name)
        if objects is None or (not objects and self._unused.withdraw()) or not _is_recent(checked):
            checked = self._upload_missing(required)
        if (self._folder / COMPACTIONS_FOLDER / str(new)).exists():
            self.upload(COMPACTIONS_FOLDER, str(new))
        if backup_ref is not None and expected is not None:
            if self._read(reference)[0] != expected:
                raise self._moved()  # its objects can have been deleted
            with suppress(WriteConditionFailed):
                self.store.client.write(self._key("refs", backup_ref), str(expected).encode(), "create")
        self._swap((reference, expected, new), stored, checked)

    def upload_used(self, kind: str, name: str) -> None:
        """Store an object for a commit. One that exists may be unused, and about to be deleted."""
        path, key = self._folder / kind / name, self._key(kind, name)
        if path.stat().st_size <= _SINGLE_BYTES:
            try:
                self.store.client.write(key, path.read_bytes(), "create")
                return
            except WriteConditionFailed:
                pass
        is_stored = False
        while not is_stored:
            checked, before = time.time(), self._unused.withdraw()
            self.upload(kind, name)
            is_stored = _is_recent(checked) or self._unused.withdraw() == before

    def _upload_missing(self, required: Collection[str]) -> float:
        """Store all objects of the mirror that the store lacks, blocks last.

        A reader of the dataset finds all that a block refers to.

        Args:
            required: names of objects that the store must then have.

        Returns:
            When the objects were checked, in seconds since 1970.
        """
        before = self._unused.withdraw()
        while True:
            stored: set[str] = set()
            for kind in KINDS:
                present = self.store.client.list_all(self._key(kind, ""))
                names = [
                    path.name for path in (self._folder / kind).glob("[!.]*") if path.name not in present
                ]
                self.store.run_parallel(lambda name, kind=kind: self.upload(kind, name), names)
                stored.update(f"{kind}/{name}" for name in (*present, *names))
            checked, after = time.time(), self._unused.withdraw()
            if after == before:  # otherwise objects that were present can have been deleted
                break
            before = after
        if lost := sorted({*required} - stored):
            raise NotFound(
                f"{lost[0]} is missing in the store, so the block cannot be used",
                where=f"{self.store.url}{self.name}/",
                hint="objects that no reference uses are deleted, see odf help stores",
            )
        return checked

    def store_reference(self, name: str, block: Multihash) -> None:
        """Set a reference other than the head in the store, without a condition."""
        self.store.client.write(self._key("refs", name), str(block).encode())

    def remove_reference(self, name: str, expected: Multihash) -> None:
        """Remove a reference other than the head in the store, if its value is ``expected``.

        Raises:
            Conflict: another machine has changed it.
        """
        if self._read(name)[0] not in (None, expected):
            raise self._moved()
        self.store.client.delete([self._key("refs", name)])

    def _require(self, reference: str, expected: Multihash | None) -> UpdateVersion | None:
        """Return the version of a reference in the store, whose value must be ``expected``."""
        known = self._known() if reference == HEAD else None
        if known is not None and expected is not None and known.head == str(expected):
            return _version(known.tag)
        head, stored = self._read(reference)
        if head != expected:
            raise self._moved()
        return None if stored is None else stored.version

    def _read(self, reference: str) -> tuple[Multihash | None, StoredObject | None]:
        """Return the value of a reference in the store, and its object; store it if it is the head."""
        stored = self.store.client.read(self._key("refs", reference), _MAX_HEAD_BYTES)
        if stored is None:
            return None, None
        if reference == HEAD:
            return self._note(stored), stored
        return parse_head(stored.data, f"{self.store.url}{self.name}/"), stored

    def _swap(
        self,
        change: tuple[str, Multihash | None, Multihash],
        version: UpdateVersion | None,
        checked: float,
    ) -> None:
        """Write a reference, unless it has changed.

        A failed response does not mean that the head was not written, and a refusal may follow from a
        repeated request that was successful at first. Therefore the head is read again after each failure.
        Another machine can have written the same value, with an identical block.

        Args:
            change: the reference, its expected value and its new value.
            version: the version of the expected value, or None if the reference does not exist.
            checked: when the objects were checked. They can be deleted later.

        Raises:
            Conflict: the reference has changed, or the check is too old.
        """
        reference, expected, new = change
        writer = uuid4().hex
        for attempt in range(self.store.config.fetch.retries + 1):
            if not _is_recent(checked):
                problem = "the commit was interrupted for too long; nothing was committed"
                raise Conflict(problem, where=f"{self.store.url}{self.name}/", hint="try again")
            mode: PutMode = "create" if version is None else version
            try:
                tag = self.store.client.write(self._key("refs", reference), str(new).encode(), mode, writer)
                if reference == HEAD:
                    self._keep(new, tag)
                return
            except (WriteConditionFailed, SourceUnavailable) as error:
                head, stored = self._read(reference)
                by = "" if stored is None else stored.writer
                if head == new and (by == writer or (not by and isinstance(error, SourceUnavailable))):
                    return
                if head != expected:
                    raise self._moved() from None
                if attempt == self.store.config.fetch.retries:
                    raise
                version = None if stored is None else stored.version

    def _moved(self) -> Conflict:
        return Conflict(
            "another machine has committed to the dataset",
            where=f"{self.store.url}{self.name}/",
            hint="try again, based on the new head",
        )

    def check_objects(self, kind: str, needed: Collection[Multihash]) -> CheckedObjects:
        """Compare the objects of a kind in the store with those that are needed."""
        before = datetime.fromtimestamp(time.time(), UTC) - _ORPHAN_AGE
        orphans: list[str] = []
        present: set[Multihash] = set()
        for name, stored in self.store.client.list_all(self._key(kind, "")).items():
            with suppress(InvalidIdentity):
                present.add(Multihash.parse(name))
                if Multihash.parse(name) not in needed and stored < before:
                    orphans.append(name)
        missing = sorted((item for item in needed if item not in present), key=str)
        return CheckedObjects(sorted(orphans), missing)

    def claim_unused(self, names: Collection[str], *, now: bool) -> list[str]:
        """Return the unused objects that may be deleted until :meth:`delete_unused`."""
        return self._unused.claim(names, now=now)

    def delete_unused(self, names: Sequence[str]) -> None:
        """Delete claimed objects in the store while the claim holds, and end it.

        Raises:
            Conflict: the machine was interrupted for too long.
        """
        for start in range(0, len(names), DELETED_BATCH):
            if not self._unused.holds_claim():
                problem = "the deletion of unused objects was interrupted for too long"
                raise Conflict(problem, where=f"{self.store.url}{self.name}/", hint="run the command again")
            batch = names[start : start + DELETED_BATCH]
            self.store.client.delete([f"{self.name}/{name}" for name in batch])
        self._unused.release()

    def _evict(self) -> None:
        """Remove the least recently used slices of all mirrors beyond the limit.

        Those of the last hour remain, and those that were used since the oldest running job has started.
        """
        now = time.time()
        with self._lock:
            if now - DatasetMirror._evicted < _EVICTION_SECONDS:
                return
            DatasetMirror._evicted = now
        started = find_oldest_job(self._folder.parents[1] / "cache")
        before = min(now - _IN_USE_SECONDS, now if started is None else started)
        evict_slices(self._folder.parent, self.store.config.store.cache_bytes, before)

    def _key(self, kind: str, name: str) -> str:
        return f"{self.name}/{kind}/{name}".rstrip("/")

    def _known(self) -> KnownHead | None:
        try:
            return msgspec.json.decode((self._folder / MARKER).read_bytes(), type=KnownHead)
        except (OSError, msgspec.MsgspecError):
            return None

    def _note(self, stored: StoredObject | None) -> Multihash | None:
        if stored is None:
            return None
        head = parse_head(stored.data, f"{self.store.url}{self.name}/")
        self._keep(head, stored.version)
        return head

    def _keep(self, head: Multihash, version: UpdateVersion) -> None:
        if self._heads is not None:
            self._heads.note({self.name: str(head)})
        data = msgspec.json.encode(KnownHead(str(head), dict(version)))  # type: ignore[arg-type]
        with suppress(OdfError):  # a cache
            replace_file(self._folder / MARKER, data)


def _missing(folder: Path, sizes: Mapping[str, int]) -> dict[str, int]:
    return {name: size for name, size in sizes.items() if not (folder / name).is_file()}


def evict_slices(home: Path, max_bytes: int, before: float) -> int:
    """Remove the least recently used slices, checkpoints and parts of slices of mirrors beyond ``max_bytes``.

    Args:
        home: the folder of the mirrors.
        max_bytes: limit of their size.
        before: files that were used after this time (seconds since 1970) remain.

    Returns:
        The number of removed files.
    """
    files: list[tuple[float, int, str]] = []
    for marker in home.glob(f"*/{MARKER}"):
        for folder in ("data", "checkpoints", RANGES):
            with suppress(OSError), os.scandir(marker.parent.parent / folder) as entries:
                for entry in entries:
                    status = entry.stat()
                    files.append((max(status.st_atime, status.st_mtime), status.st_size, entry.path))
    size = sum(file[1] for file in files)
    removed = 0
    for used, bytes_, path in sorted(files):
        if size <= max_bytes or used > before:
            break
        with suppress(OSError):
            Path(path).unlink()
            removed += 1
        size -= bytes_
    return removed


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb", buffering=0) as file:
        while piece := file.read(_READ_BYTES):
            yield piece


def _is_recent(checked: float) -> bool:
    """Return whether objects that existed at a time are still protected from a deletion."""
    return time.time() - checked <= CHECKED_SECONDS


def _version(tag: dict[str, str]) -> UpdateVersion:
    return dict(tag)  # type: ignore[return-value]
