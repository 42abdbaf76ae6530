"""Downloads blocks and objects of a remote chain; resumable, verified by hash."""

from __future__ import annotations

import errno
import hashlib
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from odf_engine.chain.dataset import Dataset
from odf_engine.chain.quarantine import Quarantine
from odf_engine.errors import BadData, Cancelled, ChainRuleViolated, Conflict, NotFound, OdfError
from odf_engine.files import fsync_folder, open_no_follow, write_all
from odf_engine.identity import ownership_proof as proofs
from odf_engine.identity.multiformats import SHA2_256, SHA3_256, Multihash
from odf_engine.progress import Reporter
from odf_engine.storage.atomic_files import fsync_files, make_folder
from odf_engine.storage.object_store import LocalObjectStore, find_object_name
from odf_engine.sync.history import (
    HASH_MISMATCH,
    SOURCE_HINT,
    HistoriesDiverged,
    Relation,
    RemoteBlock,
    relation_to,
    verify_block,
    walk_back,
)
from odf_engine.sync.remotes.base import MAX_PROOF_BYTES, ObjectFile, ObjectKind, RemoteDataset

_HASHERS: Final[dict[int, Any]] = {SHA3_256: hashlib.sha3_256, SHA2_256: hashlib.sha256}
_CHUNK: Final = 1 << 20
_WAITING: Final = 8192  # objects that are queued: about 2 MB
_SETTLE_BYTES: Final = 1 << 30  # more frequent syncs would slow down the transfers
_SETTLE_FILES: Final = 4096
_ATTEMPTS: Final = 8
_TELL_SECONDS: Final = 0.1


class ObjectDownloads:
    """Downloads of a dataset's missing objects; a context manager.

    Attributes:
        bytes: number of downloaded bytes.
        files: number of complete objects.
    """

    def __init__(
        self, folder: Path, arriving: Path, remote: RemoteDataset, reporter: Reporter, parallel: int
    ) -> None:
        """``folder`` is the dataset's, ``arriving`` that of incomplete downloads; both on one file system."""
        self.bytes = 0
        self.files = 0
        self._arriving, self._remote, self._reporter = arriving, remote, reporter
        self._objects = {kind: LocalObjectStore(folder / kind) for kind in ("data", "checkpoints")}
        self._queue: queue.Queue[ObjectFile | None] = queue.Queue(_WAITING)
        self._threads = [
            threading.Thread(target=self._work, name=f"intake-{number}", daemon=True)
            for number in range(parallel)
        ]
        self._settler = ThreadPoolExecutor(1, "intake-settler")  # syncs files while others are downloaded
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        self._coming: set[tuple[str, bytes]] = set()  # requested, and not in their final place yet
        self._whole: list[ObjectFile] = []
        self._whole_bytes = 0
        self._hashed, self._total_bytes, self._total_files = 0, 0, 0
        self._told = 0.0

    def __enter__(self) -> Self:
        """Do nothing; :meth:`start` starts the transfers."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop all transfers; incomplete ones are stored for the next attempt.

        Raises the first error; later ones only result from closing the remote.
        """
        if error is not None:
            self._fail(error)
        self._join()
        if error is not None and self._error is not None and self._error is not error:
            raise self._error from None

    def start(self, most: int | None = None) -> None:
        """Start the transfers, with all threads or at most ``most``."""
        for thread in self._threads[:most]:
            if thread.ident is None:
                thread.start()

    def is_missing(self, file: ObjectFile) -> bool:
        """Return whether the dataset lacks this object, or has one of another size under its name."""
        objects = self._objects[file.kind]
        name = find_object_name(objects, file.hash)
        return name is None or objects.size(name) != file.size

    def request(self, file: ObjectFile) -> None:
        """Queue an object unless it is stored or queued already; blocks while the queue is full.

        Raises:
            OdfError: the download of another object has failed.
            Cancelled: the job was cancelled.
        """
        if file.hash.code not in _HASHERS:
            problem = f"{file.kind}/{file.hash} is named by a hash that is none of a file's bytes"
            raise BadData(problem, where=self._remote.url, hint=SOURCE_HINT)
        with self._lock:
            if _key(file) in self._coming:
                return
        if not self.is_missing(file):
            return
        with self._lock:
            self._coming.add(_key(file))
            self._total_bytes += file.size
            self._total_files += 1
        while True:
            self._check()
            with suppress(queue.Full):
                self._queue.put(file, timeout=0.1)
                return

    def finish(self) -> None:
        """Wait until all objects are complete, in their final place, and synced.

        Raises:
            OdfError: an object cannot be downloaded, or does not match its hash.
            Cancelled: the job was cancelled.
        """
        self.start()
        self._join()
        self._settle(self._taken(0, 0))
        self._check()
        self._tell(0, now=True)

    # --- Threads ---

    def _work(self) -> None:
        while (file := self._queue.get()) is not None:
            if self._error is not None:
                continue
            try:
                self._fetch(file)
                if files := self._taken(_SETTLE_FILES, _SETTLE_BYTES):
                    self._settler.submit(self._settle, files)
            except OSError as error:
                self._fail(_not_stored(error))
            except BaseException as error:
                self._fail(error)

    def _join(self) -> None:
        for thread in self._threads:
            if thread.is_alive():
                self._queue.put(None)
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        self._settler.shutdown()

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            waiting = self._error is None and bool(self._coming)
            self._error = self._error or error
        if waiting:  # they may block for long
            with suppress(Exception):
                self._remote.close()

    def _check(self) -> None:
        self._reporter.raise_if_cancelled()
        if self._error is not None:
            raise self._error

    # --- One object ---

    def _fetch(self, file: ObjectFile) -> None:
        path = str(self._arriving / file.kind / str(file.hash))
        descriptor = open_no_follow(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            had = os.fstat(descriptor).st_size
            if had > file.size:
                had = _emptied(descriptor)
            if not self._receive(file, descriptor, had) and not (
                had and self._receive(file, descriptor, _emptied(descriptor))
            ):
                os.unlink(path)  # noqa: PTH108
                raise BadData(f"{_name(file)}: {HASH_MISMATCH}", where=self._remote.url, hint=SOURCE_HINT)
        finally:
            os.close(descriptor)
        with self._lock:
            self.files += 1
            self._whole.append(file)
            self._whole_bytes += file.size

    def _receive(self, file: ObjectFile, descriptor: int, had: int) -> bool:
        """Receive the bytes after the first ``had``; return whether the hash of all bytes matches."""
        hasher = _HASHERS[file.hash.code]()
        for at in range(0, had, _CHUNK):
            self._check()
            hasher.update(os.pread(descriptor, min(_CHUNK, had - at), at))
        self._tell(had, fetched=False)
        for _ in range(_ATTEMPTS):
            before = had
            if had < file.size:
                had = self._stream(file, descriptor, hasher, had)
            if had >= file.size or had == before:
                break
        if had > file.size:
            _emptied(descriptor)
            problem = f"{_name(file)} has more than the {file.size:,} bytes that its block says"
            raise BadData(problem, where=self._remote.url, hint=SOURCE_HINT)
        if had < file.size:
            problem = f"{_name(file)} ends after {had:,} of the {file.size:,} bytes that its block says"
            raise BadData(problem, where=self._remote.url, hint=SOURCE_HINT)
        # The hash covers the received bytes, not the file. Every write was complete, so a file of the right
        # size contains them: reading a large slice again would double the time of a pull.
        if os.fstat(descriptor).st_size != file.size:
            raise OSError(errno.EIO, "not all bytes were stored", f"{file.kind}/{file.hash}")
        return hasher.digest() == file.hash.digest

    def _stream(self, file: ObjectFile, descriptor: int, hasher: Any, had: int) -> int:
        chunks: Any = self._remote.chunks(file, had)
        os.lseek(descriptor, had, os.SEEK_SET)
        try:
            for chunk in chunks:
                self._check()
                had += len(chunk)
                if had > file.size:
                    break
                hasher.update(chunk)
                write_all(descriptor, chunk)
                self._tell(len(chunk))
        except NotFound as error:
            problem = f"{_name(file)} is missing: {error.message}"
            raise NotFound(problem, where=self._remote.url, hint=SOURCE_HINT) from error
        finally:
            if hasattr(chunks, "close"):
                chunks.close()
        return had

    # --- All of them ---

    def _taken(self, most_files: int, most_bytes: int) -> list[ObjectFile]:
        """Return all complete objects that are not in their final place, if they exceed these limits."""
        with self._lock:
            if len(self._whole) <= most_files and self._whole_bytes <= most_bytes:
                return []
            files, self._whole, self._whole_bytes = self._whole, [], 0
            return files

    def _settle(self, files: Sequence[ObjectFile]) -> None:
        """Sync complete objects and move them to their final place."""
        if not files or self._error is not None:
            return
        try:
            paths = [str(self._arriving / file.kind / str(file.hash)) for file in files]
            fsync_files(paths)
            folders = {self._objects[file.kind].folder for file in files}
            for folder in folders:
                make_folder(folder)
            for file, path in zip(files, paths, strict=True):
                os.rename(path, self._objects[file.kind].folder / str(file.hash))  # noqa: PTH104
            for folder in folders:
                fsync_folder(folder)
        except OSError as error:
            self._fail(_not_stored(error))
        with self._lock:
            self._coming.difference_update(map(_key, files))

    def _tell(self, size: int, fetched: bool = True, now: bool = False) -> None:
        with self._lock:
            self._hashed += size
            self.bytes += size if fetched else 0
            moment = time.monotonic()
            if now or moment - self._told > _TELL_SECONDS:
                self._told = moment
                self._reporter.set_amounts(
                    bytes=self._hashed,
                    total_bytes=self._total_bytes,
                    files=self.files,
                    total_files=self._total_files,
                )


def _emptied(descriptor: int) -> int:
    os.ftruncate(descriptor, 0)
    return 0


def _key(file: ObjectFile) -> tuple[str, bytes]:
    return file.kind, file.hash.digest


def _name(file: ObjectFile) -> str:
    return f"{file.kind}/{file.hash}"


def _not_stored(error: OSError) -> OdfError:
    return OdfError(
        f"the data cannot be stored: {error.strerror or error}",
        where=str(error.filename or ""),
        hint="nothing was changed; free some space or check the permissions, then try again",
    )


_DIGEST: Final = 32
_MAX_KEPT: Final = 4096
_MAX_KEPT_BYTES: Final = 32 << 20


class BlockStack:
    """A stack of blocks: 32 bytes per hash, and the latest blocks in memory; others are read again."""

    def __init__(self) -> None:
        self._digests = bytearray()
        self._kept: deque[RemoteBlock] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        """Return the number of blocks."""
        return len(self._digests) // _DIGEST

    def add(self, walked: RemoteBlock) -> None:
        """Push the predecessor of the last pushed block."""
        self._digests += walked.hash.digest
        self._kept.append(walked)
        self._bytes += len(walked.data)
        while len(self._kept) > _MAX_KEPT or self._bytes > _MAX_KEPT_BYTES:
            self._bytes -= len(self._kept.popleft().data)

    def oldest_first(self, adoption: Quarantine, where: str) -> Iterator[RemoteBlock]:
        """Pop and yield the blocks, oldest first.

        Raises:
            NotFound: a downloaded block was removed meanwhile.
        """
        while self._digests:
            digest = bytes(self._digests[-_DIGEST:])
            del self._digests[-_DIGEST:]
            yield self._kept.pop() if self._kept else _again(adoption, Multihash(SHA3_256, digest), where)


def _again(adoption: Quarantine, block_hash: Multihash, where: str) -> RemoteBlock:
    data = adoption.read_block(block_hash)
    if data is None:
        raise NotFound(f"block {block_hash} had arrived, and is gone again", where=str(adoption.arriving))
    return verify_block(block_hash, data, where)


class CachedBlockSource:
    """The blocks of a remote, with a cache of earlier downloads."""

    def __init__(self, remote: RemoteDataset, adoption: Quarantine) -> None:
        self.url = remote.url
        self._remote, self._adoption = remote, adoption

    def read(self, kind: ObjectKind, object_hash: Multihash, at_most: int) -> bytes:
        """Return the bytes of a block.

        Raises:
            NotFound: the remote lacks the block.
        """
        data = self._adoption.read_block(object_hash)
        if data is not None and Multihash.sha3_256(data) == object_hash:
            return data
        try:
            data = self._remote.read(kind, object_hash, at_most)
        except NotFound as error:
            problem = f"block {object_hash} is missing: {error.message}"
            raise NotFound(problem, where=self.url, hint=SOURCE_HINT) from error
        if Multihash.sha3_256(data) == object_hash:
            self._adoption.store(object_hash, data)
        return data


class DownloadTotals(NamedTuple):
    """Totals of a download; ``bytes`` counts downloaded slices and checkpoints."""

    blocks: int
    records: int
    bytes: int


def download_chain(
    dataset: Dataset,
    remote: RemoteDataset,
    theirs: Multihash,
    reporter: Reporter,
    *,
    parallel: int,
    force: bool = False,
    first: Callable[[], None] = lambda: None,
    look: Callable[[RemoteBlock], None] = lambda walked: None,
) -> DownloadTotals:
    """Download a chain and make ``theirs`` the head of the dataset, or change nothing.

    Args:
        dataset: the local dataset; its folder must exist, and may be empty.
        remote: the remote dataset.
        theirs: its head, which differs from the local one.
        reporter: receives progress; checked for cancellation.
        parallel: number of parallel transfers.
        force: discard blocks that only the local dataset has; a reference stores its head.
        first: called just before the head is set.
        look: called with every new block as soon as it is known, in any order; may raise.

    Raises:
        HistoriesDiverged: the local dataset has blocks of its own, without ``force``.
        Conflict: it is another dataset; or another process has committed meanwhile.
        OdfError: see :func:`odf_engine.sync.pull.pull_dataset`.
    """
    with Quarantine(dataset) as adoption:
        taking = _Taking(adoption, remote, theirs, reporter, look)
        try:
            taking.compare(parallel, force)
        except Conflict:
            adoption.discard()  # it cannot be resumed
            raise
        keep = f"before-pull-{taking.ours.abbreviated}" if taking.ours is not None and taking.leaves else None
        reporter.phase("commit")
        reporter.raise_if_cancelled()
        adoption.commit(taking.ours, keep=keep, first=first)
        return DownloadTotals(adoption.blocks, adoption.records, taking.bytes)


def restore(
    dataset: Dataset,
    remote: RemoteDataset,
    theirs: Multihash,
    reporter: Reporter,
    *,
    parallel: int,
    look: Callable[[RemoteBlock], None] = lambda walked: None,
) -> DownloadTotals:
    """Download damaged or missing objects of the chain up to ``theirs``; the head is unchanged.

    Blocks are checked by hash, slices and checkpoints by size.

    Args:
        dataset: the local dataset.
        remote: another copy of it.
        theirs: head of that copy.
        reporter: receives progress; checked for cancellation.
        parallel: number of parallel transfers.
        look: called with every block of the copy; may raise.

    Returns:
        The number of downloaded blocks, and the downloaded bytes of slices and checkpoints.

    Raises:
        OdfError: an object cannot be downloaded or stored.
    """
    reporter.phase("fetch")
    with Quarantine(dataset) as adoption:
        blocks: list[Multihash] = []
        with ObjectDownloads(dataset.folder, adoption.arriving, remote, reporter, parallel) as intake:
            intake.start()
            for walked in walk_back(
                CachedBlockSource(remote, adoption), theirs, lambda block: False, reporter
            ):
                look(walked)
                blocks.append(walked.hash)
                for file in referenced_objects(walked):
                    intake.request(file)
            intake.finish()
        restored = adoption.restore(blocks)
        adoption.discard()
        return DownloadTotals(restored, 0, intake.bytes)


class _Taking:
    """One download; ``leaves``: blocks of the local dataset are discarded."""

    def __init__(
        self,
        adoption: Quarantine,
        remote: RemoteDataset,
        theirs: Multihash,
        reporter: Reporter,
        look: Callable[[RemoteBlock], None],
    ) -> None:
        self.adoption, self.remote, self.theirs = adoption, remote, theirs
        self.dataset = adoption.dataset
        self.ours = self.dataset.head()
        self.leaves = False
        self.bytes = 0
        self._reporter, self._look = reporter, look

    def compare(self, parallel: int, force: bool) -> None:
        """Determine the new blocks, and download them with their objects."""
        if self.ours is not None and self.dataset.contains_block(self.theirs):
            self._only_leave(force)
            return
        with self._intake(parallel) as intake:
            batch = self.remote.block_batch(self.ours, self.theirs)
            if batch is not None:
                self._of_batch(batch, self.ours, intake)
            elif self.ours is None:
                self._new(intake)
            else:
                self._after_walk(intake, self.ours, force)
            intake.finish()
            self.bytes = intake.bytes

    # --- Ways ---

    def _only_leave(self, force: bool) -> None:
        """Move back to an older block: the remote head is part of the local chain."""
        if not force:
            raise _diverged(Relation("ahead", 0, 0, self.theirs), self.remote.url)
        self.adoption.set_parent(self.theirs)
        self.leaves = True

    def _new(self, intake: ObjectDownloads) -> None:
        """Download a new dataset: objects are downloaded while older blocks are still being read."""
        self._reporter.phase("fetch")

        def met(walked: RemoteBlock) -> None:
            for file in referenced_objects(walked):
                intake.request(file)

        intake.start(1)  # more threads would slow down the sequential reads of blocks
        trail = self._walk(lambda block: False, met)
        intake.start()
        self.adoption.set_parent(None)
        for walked in trail.oldest_first(self.adoption, self.remote.url):
            self._append(walked)

    def _after_walk(self, intake: ObjectDownloads, ours: Multihash, force: bool) -> None:
        oldest: list[RemoteBlock] = []

        def met(walked: RemoteBlock) -> None:
            oldest[:] = [walked]
            count = walked.block.sequence_number
            self._reporter.set_amounts(
                files=len(trail) + 1, total_files=len(trail) + 1 + max(0, count - newest)
            )

        newest = self.dataset.state().sequence_number + 1
        trail = BlockStack()
        self._walk(self.dataset.contains_block, met, trail)
        relation = relation_to(self.dataset, oldest[0], len(trail), self.remote.url)
        self.leaves = relation.kind == "diverged"
        if self.leaves and not force:
            raise _diverged(relation, self.remote.url)
        common = relation.common
        batch = self.remote.block_batch(common, self.theirs) if self.leaves else None
        if batch is not None:  # the protocol needs the blocks to know the requested objects
            self._of_batch(batch, common, intake)
            return
        self._reporter.phase("fetch")
        intake.start()
        self.adoption.set_parent(common)
        for walked in trail.oldest_first(self.adoption, self.remote.url):
            self._append(walked)
            for file in referenced_objects(walked):
                intake.request(file)

    def _of_batch(
        self, batch: Iterator[tuple[Multihash, bytes]], after: Multihash | None, intake: ObjectDownloads
    ) -> None:
        """Process a batch of blocks, oldest first; objects are downloaded once all blocks are known."""
        self._reporter.phase("fetch")
        self.adoption.set_parent(after)
        files: dict[ObjectFile, None] = {}
        last = after
        for block_hash, data in batch:
            self._reporter.raise_if_cancelled()
            walked = verify_block(block_hash, data, self.remote.url)
            if walked.block.prev_block_hash != last:
                problem = f"block {block_hash} does not follow the one that was sent before it"
                raise BadData(problem, where=self.remote.url, hint=SOURCE_HINT)
            self._look(walked)
            self.adoption.store(block_hash, data)
            self._append(walked)
            files.update(
                dict.fromkeys(file for file in referenced_objects(walked) if intake.is_missing(file))
            )
            last = block_hash
        if last != self.theirs:
            problem = f"the blocks that were sent do not end in {self.theirs}, the head"
            raise BadData(problem, where=self.remote.url, hint=SOURCE_HINT)
        self.remote.prepare(list(files))
        intake.start()
        for file in files:
            intake.request(file)

    # --- Steps ---

    def _intake(self, parallel: int) -> ObjectDownloads:
        folder, arriving = self.dataset.folder, self.adoption.arriving
        return ObjectDownloads(folder, arriving, self.remote, self._reporter, parallel)

    def _walk(
        self,
        known: Callable[[Multihash], bool],
        met: Callable[[RemoteBlock], None],
        trail: BlockStack | None = None,
    ) -> BlockStack:
        trail = BlockStack() if trail is None else trail
        for walked in walk_back(
            CachedBlockSource(self.remote, self.adoption), self.theirs, known, self._reporter
        ):
            self._look(walked)
            met(walked)
            trail.add(walked)
        return trail

    def _append(self, walked: RemoteBlock) -> None:
        self._reporter.raise_if_cancelled()
        try:
            self.adoption.append(walked.stored)
        except ChainRuleViolated as error:
            problem = f"the chain breaks a rule ({error.rule}): {error.message}"
            found = ChainRuleViolated(error.rule, problem, block=error.block, hint=SOURCE_HINT)
            found.where = f"{self.remote.url}, block {error.block}"
            raise found from error


def referenced_objects(walked: RemoteBlock) -> Iterator[ObjectFile]:
    """Yield the slice and the checkpoint of a block."""
    event: Any = walked.block.event
    if (data := getattr(event, "new_data", None)) is not None:
        yield ObjectFile("data", data.physical_hash, data.size)
    if (checkpoint := getattr(event, "new_checkpoint", None)) is not None:
        yield ObjectFile("checkpoints", checkpoint.physical_hash, checkpoint.size)


def download_proof(dataset: Dataset, remote: RemoteDataset, head: Multihash, reporter: Reporter) -> None:
    """Download the ownership proof of a head, if the remote has one. An invalid proof is logged and
    ignored.
    """
    try:
        if proofs.read_proof(dataset.folder, head) is not None:
            return
        found = proofs.OwnershipProof.from_bytes(remote.read("proofs", head, MAX_PROOF_BYTES))
        proofs.verify_proof(found, dataset.state().dataset_id, head)
        proofs.store_proof(dataset.folder, found)
    except (NotFound, Cancelled):
        return  # the pull itself is complete
    except BadData as error:
        reporter.log(f"the proof of ownership is not taken over: {error.message}", "warning")
    except OdfError as error:
        reporter.log(f"whether there is a proof of ownership is not known: {error.message}", "debug")
    except OSError as error:
        reporter.log(f"the proof of ownership cannot be stored: {error.strerror}", "warning")


def _diverged(relation: Relation, where: str) -> HistoriesDiverged:
    here = f"{relation.ours:,} block{'' if relation.ours == 1 else 's'}"
    there = f"{relation.theirs:,}"
    error = HistoriesDiverged(
        f"the histories diverged: {here} only here, {there} only there",
        where=where,
        hint="--force takes the history from there, and keeps the head of here as a reference",
    )
    error.relation = relation
    return error
