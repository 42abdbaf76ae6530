"""Quarantine of received blocks: stored and verified, but not visible until the head moves."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from odf_engine.base.atomic_files import fsync_files, make_folder, translate_commit_errors
from odf_engine.base.files import ensure_folder, fsync_folder, open_no_follow, write_all
from odf_engine.chain.append_rules import CONTENT_ERRORS, check_append, content_error
from odf_engine.chain.block_index import BlockIndex, BlockPosition, BlockWithStates, fold_state_at
from odf_engine.chain.block_summary import StoredBlock
from odf_engine.chain.dataset import Dataset
from odf_engine.chain.state import ChainState, apply_block, record_count
from odf_engine.errors import Conflict, NotFound, NotSynced, OdfError
from odf_engine.identity.multiformats import SHA3_256, Multihash

QUARANTINE_FOLDER: Final = "info/arriving"
_LOCK: Final = "info/arriving.lock"
_OBJECT_KINDS: Final = ("blocks", "data", "checkpoints")
_EXPIRY_SECONDS: Final = 14 * 86_400.0
_MAX_FOLDED: Final = 4096
_MAX_FOLDED_BYTES: Final = 32 << 20
"""A chain above these limits is indexed by reading it again, since the states of its blocks do not fit in
memory.
"""
_DIGEST_BYTES: Final = 32
_BATCH: Final = 16_384


class Quarantine:
    """Blocks that are about to be appended to a dataset. A context manager that holds a lock for this.

    Attributes:
        dataset: the target, whose folder must exist.
        folder: the folder of received files, with a folder for each kind of object.
        state: the state of the chain after the blocks appended so far, or None before the first.
        blocks: the number of appended blocks.
        records: the number of rows in them.
    """

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self.folder = dataset.folder / QUARANTINE_FOLDER
        self.state: ChainState | None = None
        self.blocks = 0
        self.records = 0
        self._fork: ChainState | None = None
        self._digests = bytearray()
        self._folded: list[BlockWithStates] | None = []
        self._folded_bytes = 0
        self._lock: int | None = None
        self._received, self._final = str(self.folder / "blocks"), str(dataset.folder / "blocks")

    def __enter__(self) -> Self:
        """Acquire the lock.

        Raises:
            Conflict: another process is appending blocks to the dataset.
            NotFound: the dataset does not exist any more.
        """
        with translate_commit_errors(self.dataset.folder):
            self.folder.parent.mkdir(exist_ok=True)
            lock = open_no_follow(self.dataset.folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                raise Conflict(
                    "another process is adding blocks to the dataset",
                    hint="wait until it has finished, then try again",
                    where=str(self.dataset.folder),
                ) from None
            self._lock = lock
            self._sweep()
            for kind in _OBJECT_KINDS:
                ensure_folder(self.folder / kind)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the lock. Files that were neither committed nor discarded remain."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def read_block(self, block_hash: Multihash) -> bytes | None:
        """Return the bytes of a block, unverified, or None if it is missing.

        The block may be in the dataset or from an earlier attempt.
        """
        name = str(block_hash)
        for folder in (self._received, self._final):
            try:
                with open(f"{folder}/{name}", "rb", buffering=0) as file:  # noqa: PTH123 (for each block)
                    return file.read()
            except OSError:
                continue
        return None

    def store(self, block_hash: Multihash, data: bytes) -> None:
        """Store the bytes of a block, which must match its hash. Blocks may be stored in any order.

        Raises:
            OdfError: the block cannot be written.
        """
        with (
            translate_commit_errors(self.dataset.folder),
            open(f"{self._received}/{block_hash}", "wb", 0, opener=open_no_follow) as file,
        ):
            write_all(file.fileno(), data)

    def set_parent(self, after: Multihash | None) -> None:
        """Set the block of the dataset that the next blocks follow; None: they are the first.

        Raises:
            NotFound: the chain does not contain this block.
        """
        self._fork = self.state = None if after is None else self._state_at(after)

    def append(self, stored: StoredBlock) -> None:
        """Append a stored block, whose bytes must match its hash.

        Raises:
            ChainRuleViolated: the block violates an append rule.
            MalformedBlock: the block has content that cannot be processed.
        """
        assert stored.hash.code == SHA3_256, "blocks have SHA3-256 hashes"
        before = self.state
        try:
            check_append(before, stored.block)
            self.state = apply_block(before, stored.block, stored.hash)
        except CONTENT_ERRORS as error:
            raise content_error(stored.hash, error) from error
        event: Any = stored.block.event
        self.blocks += 1
        self.records += record_count(getattr(event, "new_data", None))
        self._digests += stored.hash.digest
        self._folded_bytes += stored.size
        if self._folded is not None:
            self._folded.append(BlockWithStates(stored, self.state, before))
            if len(self._folded) > _MAX_FOLDED or self._folded_bytes > _MAX_FOLDED_BYTES:
                self._folded = None

    def commit(
        self,
        expected_head: Multihash | None,
        *,
        backup_ref: str | None = None,
        before_move: Callable[[], None] = lambda: None,
    ) -> ChainState:
        """Move the head to the last of the blocks. The objects that they refer to must exist.

        Args:
            expected_head: the current head.
            backup_ref: the name of a reference that stores the old head, unless the reference exists.
            before_move: called under the lock of the dataset, just before the head moves.

        Returns:
            The state at the new head.

        Raises:
            Conflict: the head is not ``expected_head``; nothing is changed.
            NotSynced: the head has moved, but a power failure may undo it.
        """
        assert self.state is not None, "no blocks were appended"
        with translate_commit_errors(self.dataset.folder):
            self._move_blocks()
        try:
            self.dataset.move_head(
                self.state,
                self._fork,
                self._folded,
                expected_head=expected_head,
                backup_ref=backup_ref,
                before_move=before_move,
            )
        except NotSynced:
            self.discard()
            raise
        self.discard()
        return self.state

    def restore(self, blocks: Sequence[Multihash]) -> int:
        """Replace damaged or missing files of blocks that the chain already contains.

        Args:
            blocks: blocks of the chain. Those that were not stored here are not changed.

        Returns:
            The number of replaced files.

        Raises:
            OdfError: a block is damaged or cannot be written.
        """
        self._digests = bytearray().join(block.digest for block in blocks)
        with translate_commit_errors(self.dataset.folder):
            return self._move_blocks()

    def discard(self) -> None:
        """Remove received files that were not committed."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _state_at(self, block: Multihash) -> ChainState:
        def query_state(index: BlockIndex, at: BlockPosition) -> tuple[ChainState | None]:
            position = index.find_ancestor(at, block)
            return (None if position is None else fold_state_at(index, self.dataset.block, position),)

        if block == self.dataset.head():
            return self.dataset.state()
        (state,) = self.dataset.query_index(query_state)
        if state is None:
            raise NotFound(f"block {block} not found in this dataset")
        return state

    def _move_blocks(self) -> int:
        """Move the blocks to their final names, durably. They are invisible until the head moves.

        Returns:
            The number of moved blocks.

        Raises:
            OdfError: the stored bytes do not match the hash.
        """
        make_folder(Path(self._final))
        moved = 0
        for start in range(0, len(self._digests), _BATCH * _DIGEST_BYTES):
            digests = bytes(self._digests[start : start + _BATCH * _DIGEST_BYTES])
            hashes = [
                Multihash(SHA3_256, digests[at : at + _DIGEST_BYTES])
                for at in range(0, len(digests), _DIGEST_BYTES)
            ]
            names = {str(block_hash): block_hash for block_hash in hashes}
            received = [name for name in names if _exists(f"{self._received}/{name}")]
            if received:
                fsync_files([f"{self._received}/{name}" for name in received])
            # Read the blocks again: a hash of the received bytes does not verify the disk. Blocks are small.
            for name, block_hash in names.items():
                data = self.read_block(block_hash)
                if data is None or Multihash.sha3_256(data) != block_hash:
                    raise OdfError(
                        f"block {name} was not stored completely",
                        where=str(self.dataset.folder),
                        hint="nothing was committed; check the disk and its free space, then try again",
                    )
            for name in received:
                os.rename(f"{self._received}/{name}", f"{self._final}/{name}")  # noqa: PTH104
            moved += len(received)
        fsync_folder(Path(self._final))
        return moved

    def _sweep(self) -> None:
        try:
            old = time.time() - self.folder.stat().st_mtime > _EXPIRY_SECONDS
        except FileNotFoundError:
            return
        if old:
            shutil.rmtree(self.folder, ignore_errors=True)
        else:
            os.utime(self.folder)


def _exists(path: str) -> bool:
    """Return whether a file exists. Unlike in ``os.path.exists``, an error of the disk raises."""
    try:
        os.stat(path)  # noqa: PTH116 (for each block)
    except FileNotFoundError:
        return False
    return True
