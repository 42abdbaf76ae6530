"""Quarantine of received blocks: stored and checked, but not visible before the head moves."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from odf_engine.chain.append_rules import CONTENT_ERRORS, check_append, unexpected
from odf_engine.chain.block_index import BlockIndex, BlockPosition, BlockWithStates, state_at
from odf_engine.chain.block_summary import StoredBlock
from odf_engine.chain.dataset import Dataset
from odf_engine.chain.state import ChainState, apply_block, record_count
from odf_engine.errors import Conflict, NotFound, NotSynced, OdfError
from odf_engine.files import fsync_folder, open_no_follow, write_all
from odf_engine.identity.multiformats import SHA3_256, Multihash
from odf_engine.storage.atomic_files import fsync_files, make_folder, translate_commit_errors

QUARANTINE_FOLDER: Final = "info/arriving"
_LOCK: Final = "info/arriving.lock"
_KINDS: Final = ("blocks", "data", "checkpoints")
_KEPT_SECONDS: Final = 14 * 86_400.0
_MAX_FOLDED: Final = 4096
_MAX_FOLDED_BYTES: Final = 32 << 20
"""A longer chain is indexed by reading it again: what it amounts to at each block does not fit in memory."""
_DIGEST: Final = 32
_BATCH: Final = 16_384


class Quarantine:
    """What is about to be appended to a dataset; a context manager, which holds the lock against others.

    Attributes:
        dataset: where it goes; its folder has to be there.
        arriving: the folder of what has arrived, with a folder for each kind of object.
        state: what the chain amounts to with the blocks appended so far; None before the first.
        blocks, records: how many were appended.
    """

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self.arriving = dataset.folder / QUARANTINE_FOLDER
        self.state: ChainState | None = None
        self.blocks = 0
        self.records = 0
        self._fork: ChainState | None = None
        self._digests = bytearray()
        self._folded: list[BlockWithStates] | None = []
        self._weight = 0
        self._lock: int | None = None
        self._waiting, self._final = str(self.arriving / "blocks"), str(dataset.folder / "blocks")

    def __enter__(self) -> Self:
        """Takes the lock.

        Raises:
            Conflict: somebody else brings blocks into the dataset.
            NotFound: the dataset is not there (any more).
        """
        with translate_commit_errors(self.dataset.folder):
            self.arriving.parent.mkdir(exist_ok=True)
            lock = open_no_follow(self.dataset.folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                raise Conflict(
                    "somebody else is just bringing blocks into the dataset",
                    hint="wait until that has ended, then try again",
                    where=str(self.dataset.folder),
                ) from None
            self._lock = lock
            self._sweep()
            for kind in _KINDS:
                (self.arriving / kind).mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Lets go of the lock; what has arrived stays, unless it was committed or discarded."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # --- Bytes ---

    def read_block(self, block_hash: Multihash) -> bytes | None:
        """The bytes of a block that is here, in the dataset or from an earlier try; unchecked."""
        name = str(block_hash)
        for folder in (self._waiting, self._final):
            try:
                with open(f"{folder}/{name}", "rb", buffering=0) as file:  # noqa: PTH123 (for each block)
                    return file.read()
            except OSError:
                continue
        return None

    def store(self, block_hash: Multihash, data: bytes) -> None:
        """Stores the bytes of a block, which are those of its hash, in any order of blocks.

        Raises:
            OdfError: the disk does not take all of them.
        """
        with (
            translate_commit_errors(self.dataset.folder),
            open(f"{self._waiting}/{block_hash}", "wb", 0, opener=open_no_follow) as file,
        ):
            write_all(file.fileno(), data)

    # --- The chain ---

    def set_parent(self, after: Multihash | None) -> None:
        """Says which block of the dataset the next ones follow; None: they are the first.

        Raises:
            NotFound: there is no such block in the chain.
        """
        self._fork = self.state = None if after is None else self._state_at(after)

    def append(self, stored: StoredBlock) -> None:
        """Appends a block whose bytes are stored, and are those of its hash.

        Raises:
            ChainRuleViolated: it may not follow.
            MalformedBlock: it has content that this program cannot process.
        """
        assert stored.hash.code == SHA3_256, "no other hash names a block"
        before = self.state
        try:
            check_append(before, stored.block)
            self.state = apply_block(before, stored.block, stored.hash)
        except CONTENT_ERRORS as error:
            raise unexpected(stored.hash, error) from error
        event: Any = stored.block.event
        self.blocks += 1
        self.records += record_count(getattr(event, "new_data", None))
        self._digests += stored.hash.digest
        self._weight += stored.size
        if self._folded is not None:
            self._folded.append(BlockWithStates(stored, self.state, before))
            if len(self._folded) > _MAX_FOLDED or self._weight > _MAX_FOLDED_BYTES:
                self._folded = None

    def commit(
        self,
        expected_head: Multihash | None,
        *,
        keep: str | None = None,
        first: Callable[[], None] = lambda: None,
    ) -> ChainState:
        """Moves the head to the last of the blocks; the objects they speak of have to be there.

        Args:
            expected_head: the head that is there now.
            keep: a reference of this name begins to keep the old head, unless there is such a one.
            first: is called just before the head moves, under the dataset's lock.

        Raises:
            Conflict: the head is another one; nothing is changed.
            NotSynced: the head has moved; a power failure may undo it.
        """
        assert self.state is not None, "nothing to follow"
        with translate_commit_errors(self.dataset.folder):
            self._settle()
        try:
            self.dataset.move_head(
                self.state, self._fork, self._folded, expected_head=expected_head, keep=keep, first=first
            )
        except NotSynced:
            self.discard()
            raise
        self.discard()
        return self.state

    def restore(self, blocks: Sequence[Multihash]) -> int:
        """Moves blocks that the chain has already to their names, in place of damaged or missing files.

        Args:
            blocks: blocks of the chain. Those that were not stored here stay as they are.

        Returns:
            How many files were replaced.

        Raises:
            OdfError: a block is damaged, or the disk does not take it.
        """
        self._digests = bytearray().join(block.digest for block in blocks)
        with translate_commit_errors(self.dataset.folder):
            return self._settle()

    def discard(self) -> None:
        """Removes what has arrived and was not committed."""
        shutil.rmtree(self.arriving, ignore_errors=True)

    # --- Inside ---

    def _state_at(self, block: Multihash) -> ChainState:
        def ask(index: BlockIndex, at: BlockPosition) -> tuple[ChainState | None]:
            found = index.position(block)
            if found is None or found.chain != at.chain or found.sequence > at.sequence:
                return (None,)
            return (state_at(index, self.dataset.block, found),)

        if block == self.dataset.head():
            return self.dataset.state()
        (state,) = self.dataset.query_index(ask)
        if state is None:
            raise NotFound(f"there is no block {block} in this dataset")
        return state

    def _settle(self) -> int:
        """Moves the blocks to their names, durably; they mean nothing before the head moves.

        Returns:
            How many were moved.

        Raises:
            OdfError: the disk does not hold the bytes that were received.
        """
        make_folder(Path(self._final))
        moved = 0
        for start in range(0, len(self._digests), _BATCH * _DIGEST):
            part = bytes(self._digests[start : start + _BATCH * _DIGEST])
            hashes = [Multihash(SHA3_256, part[at : at + _DIGEST]) for at in range(0, len(part), _DIGEST)]
            names = {str(each): each for each in hashes}
            waiting = [name for name in names if os.path.exists(f"{self._waiting}/{name}")]  # noqa: PTH110
            if waiting:
                fsync_files([f"{self._waiting}/{name}" for name in waiting])
            # The hash of what was received says nothing of what the disk holds. Blocks are small.
            for name, block_hash in names.items():
                data = self.read_block(block_hash)
                if data is None or Multihash.sha3_256(data) != block_hash:
                    raise OdfError(
                        f"block {name} was not stored completely",
                        where=str(self.dataset.folder),
                        hint="nothing was committed; check the disk and its free space, then try again",
                    )
            for name in waiting:
                os.rename(f"{self._waiting}/{name}", f"{self._final}/{name}")  # noqa: PTH104
            moved += len(waiting)
        fsync_folder(Path(self._final))
        return moved

    def _sweep(self) -> None:
        try:
            old = time.time() - self.arriving.stat().st_mtime > _KEPT_SECONDS
        except FileNotFoundError:
            return
        if old:
            shutil.rmtree(self.arriving, ignore_errors=True)
        else:
            os.utime(self.arriving)
