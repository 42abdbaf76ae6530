"""Compares histories: equal, ahead, behind or diverged; walks remote chains."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple, Protocol

import msgspec

from odf_engine.base.progress import Reporter
from odf_engine.chain.block_summary import StoredBlock
from odf_engine.chain.dataset import Dataset
from odf_engine.errors import BadData, Conflict, MalformedBlock
from odf_engine.identity.multiformats import Multihash
from odf_engine.metadata.flatbuffers import decode_block
from odf_engine.metadata.model import MetadataBlock, Seed
from odf_engine.sync.remotes.base import MAX_BLOCK_BYTES, ObjectKind, RemoteDataset

HASH_MISMATCH = "the bytes do not match the hash: the source is damaged or was modified"
SOURCE_HINT = "report the error to its publisher, or pull from another location; nothing was changed locally"


class Relation(msgspec.Struct, frozen=True):
    """The relation of the local dataset to a remote one.

    Attributes:
        kind: ``equal``; ``ahead``: only the local one has further blocks; ``behind``: only the remote one
            has; ``diverged``: both have since ``common``; ``new``: one of them does not exist.
        ours: number of blocks that only the local one has.
        theirs: number of blocks that only the remote one has.
        common: the latest common block.
    """

    kind: Literal["equal", "ahead", "behind", "diverged", "new"]
    ours: int
    theirs: int
    common: Multihash | None


class HistoriesDiverged(Conflict):
    """Neither history extends the other; ``relation`` has the details if known."""

    relation: Relation | None = None


class RemoteBlock(NamedTuple):
    """A verified block of a remote chain, with its encoded bytes."""

    hash: Multihash
    block: MetadataBlock
    data: bytes
    version: int = 3
    unknown: tuple[str, ...] = ()

    @property
    def stored(self) -> StoredBlock:
        """The block without its bytes."""
        return StoredBlock(self.hash, self.block, self.version, len(self.data), self.unknown)


class BlockSource(Protocol):
    """A source of a chain's blocks: a remote, or a cache of it."""

    @property
    def url(self) -> str:
        """Location for messages."""
        ...

    def read(self, kind: ObjectKind, object_hash: Multihash, at_most: int) -> bytes:
        """See :meth:`RemoteDataset.read`."""
        ...


def verify_block(block_hash: Multihash, data: bytes, where: str) -> RemoteBlock:
    """Verify and decode a block from a remote.

    Raises:
        BadData: the bytes do not match the hash, or are not a block.
    """
    if Multihash.sha3_256(data) != block_hash:
        raise BadData(f"block {block_hash}: {HASH_MISMATCH}", where=where, hint=SOURCE_HINT)
    try:
        decoded = decode_block(data)
    except MalformedBlock as error:
        location = f" ({error.where})" if error.where else ""
        problem = f"block {block_hash} cannot be read: {error.message}{location}"
        raise BadData(problem, where=where, hint=SOURCE_HINT) from error
    return RemoteBlock(block_hash, decoded.block, data, decoded.version, decoded.unknown)


def walk_back(
    remote: BlockSource, head: Multihash, known: Callable[[Multihash], bool], reporter: Reporter
) -> Iterator[RemoteBlock]:
    """Yield the blocks of a remote chain, latest first, down to the first or to one that is ``known``.

    Raises:
        BadData: a block does not match its hash, or its sequence number is wrong.
        NotFound, SourceUnavailable, Cancelled: as raised by the remote.
    """
    block_hash: Multihash | None = head
    number: int | None = None
    while block_hash is not None and not known(block_hash):
        reporter.raise_if_cancelled()
        remote_block = verify_block(
            block_hash, remote.read("blocks", block_hash, MAX_BLOCK_BYTES), remote.url
        )
        block = remote_block.block
        if number is not None and block.sequence_number != number:
            problem = f"block {block_hash} has sequence number {block.sequence_number}, expected {number}"
            raise BadData(problem, where=remote.url, hint=SOURCE_HINT)
        if (block.prev_block_hash is None) != (block.sequence_number == 0):
            problem = f"block {block_hash} has invalid sequence number {block.sequence_number}"
            raise BadData(problem, where=remote.url, hint=SOURCE_HINT)
        yield remote_block
        block_hash, number = block.prev_block_hash, block.sequence_number - 1


def compare(dataset: Dataset, remote: RemoteDataset, reporter: Reporter) -> Relation:
    """Compare the local dataset with a remote one; reads the blocks that are missing locally.

    Raises:
        Conflict: it is another dataset.
        OdfError: as :func:`walk_back`.
    """
    local_head, remote_head = dataset.head(), remote.head()
    blocks = 0 if local_head is None else dataset.state().blocks
    if remote_head is None or local_head is None:
        return Relation("new", blocks, 0, None)
    if local_head == remote_head:
        return Relation("equal", 0, 0, local_head)
    if dataset.contains_block(remote_head):
        return Relation(
            "ahead", blocks - 1 - dataset.block(remote_head).block.sequence_number, 0, remote_head
        )
    count, last = 0, None
    for last in walk_back(remote, remote_head, dataset.contains_block, reporter):
        count += 1
        total = count + last.block.sequence_number
        reporter.set_amounts(files=count, total_files=total)
    assert last is not None  # their head is not held here
    return relation_to(dataset, last, count, remote.url)


def relation_to(dataset: Dataset, first: RemoteBlock, remote_blocks: int, where: str) -> Relation:
    """Return the relation to a chain with ``theirs`` blocks missing locally; ``first`` is the oldest of them.

    Raises:
        Conflict: it is the chain of another dataset.
    """
    common = first.block.prev_block_hash
    if common is None:
        raise unrelated_error(dataset, first.block, where)
    # Sequence numbers of remote blocks are not trusted here.
    local_blocks = dataset.state().sequence_number - dataset.block(common).block.sequence_number
    return Relation("diverged" if local_blocks else "behind", local_blocks, remote_blocks, common)


def unrelated_error(dataset: Dataset, first: MetadataBlock, where: str) -> Conflict:
    """Return the error for a chain with another first block."""
    local_id = dataset.state().dataset_id
    remote_id = first.event.dataset_id if isinstance(first.event, Seed) else "unknown"
    if remote_id == local_id:
        message = "a different dataset with the same id: the first blocks differ"
    else:
        message = f"a different dataset: {remote_id}, the local one is {local_id}"
    return Conflict(message, where=where, hint="pull it under another name: --as NAME")
