"""Downloads blocks and objects of a remote chain; resumable, verified by hash."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from odf_engine.base.progress import Reporter, count_of
from odf_engine.chain.dataset import Dataset
from odf_engine.chain.linked_objects import linked_objects, read_links
from odf_engine.chain.quarantine import Quarantine
from odf_engine.errors import BadData, Cancelled, ChainRuleViolated, Conflict, NotFound, OdfError
from odf_engine.identity import ownership_proof as proofs
from odf_engine.identity.multiformats import SHA3_256, Multihash
from odf_engine.metadata.model import AddData
from odf_engine.metadata.object_links import find_link_columns
from odf_engine.storage.refs import COMPACTED_PREFIX
from odf_engine.sync.compaction_records import OtherChain, RemoteRecord, check_remote_records, store_records
from odf_engine.sync.history import (
    SOURCE_HINT,
    HistoriesDiverged,
    Relation,
    RemoteBlock,
    relation_to,
    verify_block,
    walk_back,
)
from odf_engine.sync.object_downloads import ObjectDownloads
from odf_engine.sync.remotes.base import MAX_PROOF_BYTES, ObjectFile, ObjectKind, RemoteDataset

_FIRST_FILES: Final = 64
_DIGEST_BYTES: Final = 32
_MAX_BLOCKS: Final = 4096
_MAX_BLOCK_STACK_BYTES: Final = 32 << 20


class BlockStack:
    """A stack of blocks: 32 bytes per hash, and the latest blocks in memory; others are read again."""

    def __init__(self) -> None:
        self._digests = bytearray()
        self._blocks: deque[RemoteBlock] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        """Return the number of blocks."""
        return len(self._digests) // _DIGEST_BYTES

    def add(self, block: RemoteBlock) -> None:
        """Push the predecessor of the last pushed block."""
        self._digests += block.hash.digest
        self._blocks.append(block)
        self._bytes += len(block.data)
        while len(self._blocks) > _MAX_BLOCKS or self._bytes > _MAX_BLOCK_STACK_BYTES:
            self._bytes -= len(self._blocks.popleft().data)

    def oldest_first(self, quarantine: Quarantine, where: str) -> Iterator[RemoteBlock]:
        """Pop and yield the blocks, oldest first.

        Raises:
            NotFound: a downloaded block was removed.
        """
        while self._digests:
            digest = bytes(self._digests[-_DIGEST_BYTES:])
            del self._digests[-_DIGEST_BYTES:]
            yield (
                self._blocks.pop()
                if self._blocks
                else _read_again(quarantine, Multihash(SHA3_256, digest), where)
            )


def _read_again(quarantine: Quarantine, block_hash: Multihash, where: str) -> RemoteBlock:
    data = quarantine.read_block(block_hash)
    if data is None:
        raise NotFound(f"downloaded block {block_hash} was removed", where=str(quarantine.folder))
    return verify_block(block_hash, data, where)


class CachedBlockSource:
    """The blocks of a remote, with a cache of earlier downloads."""

    def __init__(self, remote: RemoteDataset, quarantine: Quarantine) -> None:
        self.url = remote.url
        self._remote, self._quarantine = remote, quarantine

    def read(self, kind: ObjectKind, object_hash: Multihash, at_most: int) -> bytes:
        """Return the bytes of a block.

        Raises:
            NotFound: the remote lacks the block.
        """
        data = self._quarantine.read_block(object_hash)
        if data is not None and Multihash.sha3_256(data) == object_hash:
            return data
        try:
            data = self._remote.read(kind, object_hash, at_most)
        except NotFound as error:
            problem = f"block {object_hash} is missing: {error.message}"
            raise NotFound(problem, where=self.url, hint=SOURCE_HINT) from error
        if Multihash.sha3_256(data) == object_hash:
            self._quarantine.store(object_hash, data)
        return data


class DownloadTotals(NamedTuple):
    """Totals of a download; ``bytes`` counts downloaded slices and checkpoints."""

    blocks: int
    records: int
    bytes: int


@dataclass(frozen=True)
class DownloadOptions:
    """How a chain is downloaded.

    Attributes:
        parallel: number of parallel transfers.
        force: discard blocks that only the local dataset has; a reference stores its head.
        first: called just before the head is set.
        check_block: called with every new block as soon as it is known, in any order; may raise.
        replacing: records of the compactions that turned the local chain into the remote one. They are
            verified, and the chain is replaced only if it has the same rows.
    """

    parallel: int
    force: bool = False
    first: Callable[[], None] = lambda: None
    check_block: Callable[[RemoteBlock], None] = lambda walked: None
    replacing: Sequence[RemoteRecord] = ()


def download_chain(
    dataset: Dataset,
    remote: RemoteDataset,
    remote_head: Multihash,
    reporter: Reporter,
    options: DownloadOptions,
) -> DownloadTotals:
    """Download a chain and make ``remote_head`` the head of the dataset, or change nothing.

    Args:
        dataset: the local dataset; its folder must exist, and may be empty.
        remote: the remote dataset.
        remote_head: its head, which differs from the local one.
        reporter: receives progress; checked for cancellation.
        options: how the chain is downloaded.

    Raises:
        HistoriesDiverged: the local dataset has blocks that the remote one lacks, without ``force``.
        OtherChain: ``options.replacing`` does not lead to the remote chain.
        Conflict: it is another dataset; or another process has committed.
        OdfError: see :func:`odf_engine.sync.pull.pull_dataset`.
    """
    force, replacing = options.force, options.replacing
    with Quarantine(dataset) as quarantine:
        download = _ChainDownload(quarantine, remote, remote_head, reporter, options.check_block)
        try:
            download.download(options.parallel, force or bool(replacing))
        except Conflict:
            quarantine.discard()  # it cannot be resumed
            raise
        prefix = COMPACTED_PREFIX if replacing else "before-pull-"
        old_head_ref = (
            f"{prefix}{download.ours.abbreviated}"
            if download.ours is not None and download.discards_blocks
            else None
        )
        if replacing:
            records = [item.record for item in replacing]
            checked = check_remote_records(records, quarantine.read_block, remote_head, dataset, reporter)
            if len(checked) < len(replacing):
                raise OtherChain("the compaction records belong to another chain", where=remote.url)
            store_records(dataset, replacing)
        reporter.phase("commit")
        reporter.raise_if_cancelled()
        quarantine.commit(download.ours, backup_ref=old_head_ref, before_move=options.first)
        return DownloadTotals(quarantine.blocks, quarantine.records, download.bytes)


def restore(
    dataset: Dataset,
    remote: RemoteDataset,
    remote_head: Multihash,
    reporter: Reporter,
    *,
    parallel: int,
    check_block: Callable[[RemoteBlock], None] = lambda walked: None,
) -> DownloadTotals:
    """Download damaged or missing objects of the chain up to ``remote_head``; the head is unchanged.

    Blocks are checked by hash, slices and checkpoints by size.

    Args:
        dataset: the local dataset.
        remote: another copy of it.
        remote_head: head of that copy.
        reporter: receives progress; checked for cancellation.
        parallel: number of parallel transfers.
        check_block: called with every block of the copy; may raise.

    Returns:
        The number of downloaded blocks, and the downloaded bytes of slices and checkpoints.

    Raises:
        OdfError: an object cannot be downloaded or stored.
    """
    reporter.phase("fetch")
    with Quarantine(dataset) as quarantine:
        blocks: list[Multihash] = []
        with ObjectDownloads(dataset.folder, quarantine.folder, remote, reporter, parallel) as downloads:
            downloads.start()
            for walked in walk_back(
                CachedBlockSource(remote, quarantine), remote_head, lambda block: False, reporter
            ):
                check_block(walked)
                blocks.append(walked.hash)
                for file in referenced_objects(walked):
                    downloads.request(file)
            downloads.finish()
        restored = quarantine.restore(blocks)
        linked = linked_objects(dataset, reporter)
        with ObjectDownloads(dataset.folder, quarantine.folder, remote, reporter, parallel) as objects:
            download_linked(linked, remote, objects, reporter)
        quarantine.discard()
        return DownloadTotals(restored, 0, downloads.bytes + objects.bytes)


def download_linked(
    links: Iterable[Multihash], remote: RemoteDataset, downloads: ObjectDownloads, reporter: Reporter
) -> None:
    """Download linked objects. The number of objects that the remote lacks is logged.

    Raises:
        OdfError: an object cannot be downloaded, or does not match its hash.
    """
    downloads.start()
    absent = 0
    for link in links:
        reporter.raise_if_cancelled()
        size = remote.size("data", link)
        if size is None:
            absent += 1
        else:
            downloads.request(ObjectFile("data", link, size))
    downloads.finish()
    if absent:
        reporter.log(f"{count_of(absent, 'linked object')} missing at {remote.url}", "warning")


class _ChainDownload:
    """One download; ``discards_blocks``: blocks of the local dataset are discarded."""

    def __init__(
        self,
        quarantine: Quarantine,
        remote: RemoteDataset,
        remote_head: Multihash,
        reporter: Reporter,
        check_block: Callable[[RemoteBlock], None],
    ) -> None:
        self.quarantine, self.remote, self.remote_head = quarantine, remote, remote_head
        self.dataset = quarantine.dataset
        self.ours = self.dataset.head()
        self.discards_blocks = False
        self.bytes = 0
        self._linked: list[tuple[Multihash, list[str]]] = []  # slices with links, and their columns
        self._reporter, self._check_block = reporter, check_block

    def download(self, parallel: int, force: bool) -> None:
        """Determine the new blocks, and download them with their objects."""
        if self.ours is not None and self.dataset.contains_block(self.remote_head):
            self._move_back(force)
            return
        with self._object_downloads(parallel) as downloads:
            batch = self.remote.block_batch(self.ours, self.remote_head)
            if batch is not None:
                self._download_batch(batch, self.ours, downloads)
            elif self.ours is None:
                self._download_new(downloads)
            else:
                self._download_after_walk(downloads, self.ours, force)
            downloads.finish()
            self.bytes = downloads.bytes
        if self._linked:
            self._download_linked(parallel)

    def _move_back(self, force: bool) -> None:
        """Move back to an older block: the remote head is part of the local chain."""
        if not force:
            raise _diverged_error(Relation("ahead", 0, 0, self.remote_head), self.remote.url)
        self.quarantine.set_parent(self.remote_head)
        self.discards_blocks = True

    def _download_new(self, downloads: ObjectDownloads) -> None:
        """Download a new dataset: objects are downloaded while older blocks are still being read."""
        self._reporter.phase("fetch")

        def request_objects(walked: RemoteBlock) -> None:
            for file in referenced_objects(walked):
                downloads.request(file)

        downloads.start(1)  # more threads would slow down the sequential reads of blocks
        stack = self._walk(lambda block: False, request_objects)
        downloads.start()
        self.quarantine.set_parent(None)
        for walked in stack.oldest_first(self.quarantine, self.remote.url):
            self._append(walked)

    def _download_after_walk(self, downloads: ObjectDownloads, local_head: Multihash, force: bool) -> None:
        oldest: list[RemoteBlock] = []

        def report_block(block: RemoteBlock) -> None:
            oldest[:] = [block]
            count = block.block.sequence_number
            self._reporter.set_amounts(
                files=len(stack) + 1, total_files=len(stack) + 1 + max(0, count - newest)
            )

        newest = self.dataset.state().sequence_number + 1
        stack = BlockStack()
        self._walk(self.dataset.contains_block, report_block, stack)
        relation = relation_to(self.dataset, oldest[0], len(stack), self.remote.url)
        self.discards_blocks = relation.kind == "diverged"
        if self.discards_blocks and not force:
            raise _diverged_error(relation, self.remote.url)
        common = relation.common
        batch = self.remote.block_batch(common, self.remote_head) if self.discards_blocks else None
        if batch is not None:  # the protocol needs the blocks to know the requested objects
            self._download_batch(batch, common, downloads)
            return
        self._reporter.phase("fetch")
        downloads.start()
        self.quarantine.set_parent(common)
        for block in stack.oldest_first(self.quarantine, self.remote.url):
            self._append(block)
            for file in referenced_objects(block):
                downloads.request(file)

    def _download_batch(
        self, batch: Iterator[tuple[Multihash, bytes]], after: Multihash | None, downloads: ObjectDownloads
    ) -> None:
        """Process a batch of blocks, oldest first; objects are downloaded meanwhile."""
        self._reporter.phase("fetch")
        self.quarantine.set_parent(after)
        files: dict[ObjectFile, None] = {}
        max_files = _FIRST_FILES
        last = after
        for block_hash, data in batch:
            self._reporter.raise_if_cancelled()
            block = verify_block(block_hash, data, self.remote.url)
            if block.block.prev_block_hash != last:
                problem = f"block {block_hash} does not follow the previous block"
                raise BadData(problem, where=self.remote.url, hint=SOURCE_HINT)
            self._check_block(block)
            self.quarantine.store(block_hash, data)
            self._append(block)
            files.update(
                dict.fromkeys(file for file in referenced_objects(block) if downloads.is_missing(file))
            )
            last = block_hash
            if len(files) >= max_files:
                self._request_files(files, downloads, more=True)
                max_files *= 2  # each request is a round trip
        if last != self.remote_head:
            problem = f"the received blocks do not end with the head {self.remote_head}"
            raise BadData(problem, where=self.remote.url, hint=SOURCE_HINT)
        self._request_files(files, downloads, more=False)

    def _request_files(
        self, files: dict[ObjectFile, None], downloads: ObjectDownloads, *, more: bool
    ) -> None:
        """Request the files of a batch, and remove them; ``more`` as in :meth:`RemoteDataset.prepare`."""
        self.remote.prepare(list(files), more=more)
        downloads.start()
        for file in files:
            downloads.request(file)
        files.clear()

    def _download_linked(self, parallel: int) -> None:
        """Download the objects that the new slices link to, and that are not stored yet."""
        if not self._linked:
            return
        links: dict[Multihash, None] = {}
        for slice_hash, columns in self._linked:
            self._reporter.raise_if_cancelled()
            path = self.dataset.slice_path(slice_hash)
            links.update(dict.fromkeys(read_links(path, columns).counts))
        missing = [link for link in links if not self.dataset.slice_path(link).is_file()]
        with self._object_downloads(parallel) as downloads:
            download_linked(missing, self.remote, downloads, self._reporter)
            self.bytes += downloads.bytes

    def _object_downloads(self, parallel: int) -> ObjectDownloads:
        folder, arriving = self.dataset.folder, self.quarantine.folder
        return ObjectDownloads(folder, arriving, self.remote, self._reporter, parallel)

    def _walk(
        self,
        known: Callable[[Multihash], bool],
        on_block: Callable[[RemoteBlock], None],
        stack: BlockStack | None = None,
    ) -> BlockStack:
        stack = BlockStack() if stack is None else stack
        for block in walk_back(
            CachedBlockSource(self.remote, self.quarantine), self.remote_head, known, self._reporter
        ):
            self._check_block(block)
            on_block(block)
            stack.add(block)
        return stack

    def _append(self, block: RemoteBlock) -> None:
        self._reporter.raise_if_cancelled()
        try:
            self.quarantine.append(block.stored)
        except ChainRuleViolated as error:
            problem = f"the chain violates rule {error.rule}: {error.message}"
            translated = ChainRuleViolated(error.rule, problem, block=error.block, hint=SOURCE_HINT)
            translated.where = f"{self.remote.url}, block {error.block}"
            raise translated from error
        self._linked += slice_with_links(block, self.quarantine)


def referenced_objects(block: RemoteBlock) -> Iterator[ObjectFile]:
    """Yield the slice and the checkpoint of a block."""
    event: Any = block.block.event
    if (data := getattr(event, "new_data", None)) is not None:
        yield ObjectFile("data", data.physical_hash, data.size)
    if (checkpoint := getattr(event, "new_checkpoint", None)) is not None:
        yield ObjectFile("checkpoints", checkpoint.physical_hash, checkpoint.size)


def slice_with_links(block: RemoteBlock, quarantine: Quarantine) -> list[tuple[Multihash, list[str]]]:
    """Return the slice of the newest block with its link columns, or [] if it has none."""
    event, state = block.block.event, quarantine.state
    if not isinstance(event, AddData) or event.new_data is None or state is None:
        return []
    columns = find_link_columns(state.odf_schema)
    return [(event.new_data.physical_hash, columns)] if columns else []


def download_proof(dataset: Dataset, remote: RemoteDataset, head: Multihash, reporter: Reporter) -> None:
    """Download the ownership proof of a head, if the remote has one. An invalid proof is logged and
    ignored.
    """
    try:
        if proofs.read_proof(dataset.folder, head) is not None:
            return
        proof = proofs.OwnershipProof.from_bytes(remote.read("proofs", head, MAX_PROOF_BYTES))
        proofs.verify_proof(proof, dataset.state().dataset_id, head)
        proofs.store_proof(dataset.folder, proof)
    except (NotFound, Cancelled):
        return  # the pull itself is complete
    except BadData as error:
        reporter.log(f"ownership proof ignored: {error.message}", "warning")
    except OdfError as error:
        reporter.log(f"ownership proof: {error.message}", "debug")
    except OSError as error:
        reporter.log(f"ownership proof cannot be stored: {error.strerror}", "warning")


def _diverged_error(relation: Relation, where: str) -> HistoriesDiverged:
    local_text = f"{relation.ours:,} block{'' if relation.ours == 1 else 's'}"
    remote_text = f"{relation.theirs:,}"
    error = HistoriesDiverged(
        f"the histories have diverged: {local_text} ahead, {remote_text} behind",
        where=where,
        hint="use --force to replace the local history; a reference to the local head is stored",
    )
    error.relation = relation
    return error
