"""A dataset in its folder: reads its chain and commits to it."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar

from odf_engine.base.atomic_files import translate_commit_errors
from odf_engine.base.files import ensure_folder
from odf_engine.chain.append_rules import check_append
from odf_engine.chain.block_index import (
    BlockIndex,
    BlockPosition,
    BlockWithStates,
    fold_state_at,
    index_to_head,
)
from odf_engine.chain.block_summary import BlockSummary, SliceSummary, StoredBlock
from odf_engine.chain.compaction_record import RecordStore
from odf_engine.chain.state import ChainState, apply_block, next_block
from odf_engine.errors import (
    BadData,
    Conflict,
    InvalidIdentity,
    MalformedBlock,
    NotFound,
    OdfError,
    SourceUnavailable,
    UsageError,
)
from odf_engine.identity.multiformats import Multihash
from odf_engine.metadata.flatbuffers import decode_block, encode_block
from odf_engine.metadata.model import Checkpoint, DataSlice, MetadataEvent, SourceState
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.storage.dataset_origin import DatasetOrigin
from odf_engine.storage.object_store import (
    LocalObjectStore,
    candidate_names,
    find_object_name,
    remove_stale_files,
)
from odf_engine.storage.refs import COMPACTION_REF, HEAD, TAG_PREFIX, RefStore, is_branch_name, tag_name

if TYPE_CHECKING:
    from odf_engine.base.progress import Reporter
    from odf_engine.data.parquet.parquet_reader import RangedFile


def store_files(
    objects: LocalObjectStore, staged: Sequence[Path], described: Sequence[DataSlice | Checkpoint | None]
) -> None:
    """Move staged files to the objects that events describe. All other described objects must exist.

    Args:
        objects: the target store.
        staged: the files, in the order of the events.
        described: the description of such a file in each event of the commit, or None.

    Raises:
        BadData: the size of a file differs from its description, or no event describes it.
        NotFound: a described object is missing.
    """
    files = list(reversed(staged))
    for item in filter(None, described):
        if not files:
            if find_object_name(objects, item.physical_hash) is None:
                raise NotFound(f"{objects.folder.name} object {item.physical_hash} is missing")
            continue
        file = files.pop()
        if (size := file.stat().st_size) != item.size:
            raise BadData(f"the staged file has {size} bytes, expected {item.size}", where=str(file))
        objects.put_file(str(item.physical_hash), file)
    if files:
        raise BadData("no event refers to the staged file", where=str(files[-1]))


T = TypeVar("T")
_MAX_ATTEMPTS: Final = 5
_MAX_EARLIER: Final = 4
_MIN_CHARACTERS: Final = 4
_TAIL: Final = 8
_REFERENCE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_DAY_SECONDS: Final = 86_400.0
_RESET_REF_PREFIX: Final = "before-reset-"
_RESTORE_HINT: Final = "restore it from a copy of the dataset; run odf verify to find all errors"


HeadSigner = Callable[[Path, ChainState], Path | None]
"""Signs a new head before the reference moves to it. Takes the dataset's folder and the state at the head.

Returns the file of the signature, or None if the head is not signed.
"""


HeadListener = Callable[["Dataset"], None]
"""Receives a dataset after its head has moved. It must not raise errors of the engine."""


class _NewBlock(NamedTuple):
    folded: BlockWithStates
    data: bytes


class Dataset:
    """A dataset on disk. Creation is cheap. Thread-safe and process-safe.

    Attributes:
        folder: the folder of the dataset, which may be empty before the first commit.
        reference: the reference to the newest block, which commits move: ``head``, or a branch.
        compactions: the records of its compactions.
        origin: the store that the folder mirrors, or None if the folder itself is the dataset.
    """

    def __init__(
        self,
        folder: Path,
        index: BlockIndex,
        origin: DatasetOrigin | None = None,
        reference: str = HEAD,
        signer: HeadSigner | None = None,
        listener: HeadListener | None = None,
    ) -> None:
        self.folder = folder
        self.reference = reference
        self.compactions = RecordStore(folder)
        self.origin = origin
        self._signer = signer
        self._listener = listener
        self._index = index
        self._blocks = self.objects("blocks")
        self._objects = {kind: self.objects(kind) for kind in ("data", "checkpoints")}
        self._refs = RefStore(folder / "refs", folder / "info" / "lock")
        self._newest: ChainState | None = None
        self._earlier: dict[Multihash, Dataset] = {}
        self._branches: dict[str, Dataset] = {}

    @property
    def is_earlier(self) -> bool:
        """Whether this is an earlier history, see :meth:`at`."""
        return False

    @property
    def is_tag(self) -> bool:
        """Whether this is the chain of a tag, which cannot be changed."""
        return bool(tag_name(self.reference))

    def head(self) -> Multihash | None:
        """Return the hash of the newest block, or None if absent."""
        return self._refs.get(self.reference)

    def branch(self, name: str) -> Dataset:
        """Return the dataset with the chain of a branch, whose newest block is ``refs/<name>``, or of a tag.

        It does not change the head. See :mod:`odf_engine.chain.references`.

        Raises:
            NotFound: there is no such branch or tag; the hint has the command to create it.
            UsageError: an invalid name.
        """
        if not is_branch_name(name):
            raise UsageError(f"'{name}' is not a valid name of a branch", hint="see odf help branches")
        reference = self._find_branch(name)
        if reference is None:
            self._branches.pop(name, None)
            raise NotFound(
                f"branch '{name}' not found in this dataset",
                hint=f"to list branches, run odf branch NAME; to create it, run odf branch NAME {name}",
            )
        if reference not in self._branches:
            # The index of the workspace has each block once, and not in two chains with a common beginning.
            index = BlockIndex(self.branch_index_path(reference))
            dataset = Dataset(self.folder, index, self.origin, reference, self._signer)
            dataset._refs = self._refs  # its lock is reentrant only within one object
            self._branches[reference] = dataset
        return self._branches[reference]

    def _find_branch(self, name: str) -> str | None:
        """Return the reference of a branch or of a tag, or None if there is neither."""
        references = (name, f"{TAG_PREFIX}{name}")
        return next((known for known in references if self._refs.read(known) is not None), None)

    def branch_names(self) -> list[str]:
        """Return the names of the branches, sorted, as last read from the origin."""
        return list(filter(is_branch_name, self._refs.names()))

    def tag_names(self) -> list[str]:
        """Return the names of the tags, sorted, as last read from the origin."""
        return list(filter(None, map(tag_name, self._refs.names())))

    def require_movable(self) -> None:
        """Check that commits can move the reference.

        Raises:
            Conflict: it is a tag.
        """
        if self.is_tag:
            name = tag_name(self.reference)
            hint = f"use a branch; odf tag NAME -d {name} deletes the tag"
            raise Conflict(f"'{name}' is a tag, which cannot move", hint=hint)

    def close_branches(self) -> None:
        """Close the files of the indexes of branches. The next use opens them again."""
        for branch in self._branches.values():
            branch._index.close()

    @property
    def cache_folder(self) -> Path:
        """The folder for caches of the chain."""
        info = self.folder / "info"
        return info if self.reference == HEAD else info / "branches" / self.reference

    def branch_index_path(self, name: str) -> Path:
        """Return the path of the index of a branch or a tag, a cache. Its folder is created."""
        path = self.folder / "info" / "branches" / name / "index.sqlite"
        with suppress(OSError):  # on a read-only file system, the index is in memory
            path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def refresh(self) -> None:
        """Read the head from the origin, if there is one.

        Raises:
            SourceUnavailable: the origin cannot be read.
        """
        if self.origin is None:
            return
        newest = self.origin.newest_head(self.reference)
        if newest is not None and newest != self.head():
            with self._refs.locked():
                self._follow_origin(self.origin)
            with suppress(OdfError):  # reported when the blocks are read
                self.state()  # datasets are refreshed at the same time; their blocks are read now

    def _follow_origin(self, origin: DatasetOrigin) -> None:
        """Set the head to the one in the origin. Requires the lock, which commits hold."""
        known, newest = self.head(), origin.newest_head(self.reference)
        if newest is None or newest == known:
            return
        # Before the head moves: the new blocks may have third-party sources, which must not run.
        origin.read_author()
        # After a compaction by another machine, blocks of the old chain are found by its record.
        if origin.read_records() or known is None:
            self._follow_references(origin)
        self._refs.compare_and_set(self.reference, known, newest)

    def copy_index(self, name: str, block: Multihash) -> None:
        """Copy the index of the chain up to a block, for a new branch. Its blocks need not be read again.

        Raises:
            NotFound: the chain does not contain the block.
        """
        self.remove_branch_caches(name)
        path = self.branch_index_path(name)

        def copy(index: BlockIndex, at: BlockPosition) -> tuple[bool]:
            position = index.find_ancestor(at, block)
            if position is None:
                raise NotFound(f"block {block} not found in this dataset")
            target = BlockIndex(path)
            try:
                target.copy_chain(index, position, fold_state_at(index, self.block, position))
            finally:
                target.close()
            return (True,)

        self.query_index(copy)

    def remove_branch_caches(self, name: str) -> None:
        """Remove the index and the other caches of a branch."""
        if (known := self._branches.pop(name, None)) is not None:
            known._index.close()
        shutil.rmtree(self.branch_index_path(name).parent, ignore_errors=True)

    def refresh_branches(self) -> None:
        """Read the references from the origin, if there is one; without access to it, they do not change."""
        with suppress(SourceUnavailable):
            self.refresh_references()

    def refresh_references(self) -> None:
        """Read the references from the origin, if there is one: branches and old heads.

        Raises:
            SourceUnavailable: the origin cannot be read.
        """
        if self.origin is not None:
            with self._refs.locked():
                self.origin.read_author()
                self._follow_references(self.origin)

    def _follow_references(self, origin: DatasetOrigin) -> None:
        """Set all references except the head to those in the origin. Requires the lock."""
        references = {name: block for name, block in origin.references().items() if name != HEAD}
        for name in self._refs.names():
            if name != HEAD and name not in references:
                self._refs.discard(name)
        for name, block in references.items():
            if (known := self._refs.get(name)) != block:
                self._refs.compare_and_set(name, known, block)

    def objects(self, kind: str) -> LocalObjectStore:
        """Return the objects of a kind: ``blocks``, ``data`` or ``checkpoints``."""
        origin = self.origin
        fetch = None if origin is None else partial(origin.fetch, kind)
        return LocalObjectStore(self.folder / kind, fetch)

    def state(self) -> ChainState:
        """Return the folded state of the chain at its head, from the index.

        Raises:
            NotFound: the dataset is empty, or a block is missing.
        """
        newest = self._newest
        if newest is not None and newest.head == self.head():
            return newest
        self._newest = newest = self._at_head(lambda head: self._index.state(head))
        return newest

    def block_bytes(self, block: Multihash) -> bytes:
        """Return the stored bytes of a block, unverified; raise NotFound if it is missing."""
        try:
            return self._blocks.read(str(block))  # the usual name
        except NotFound:
            written = self._refs.read(self.reference) if block == self._refs.get(self.reference) else None
            name = find_object_name(self._blocks, block, written)
        if name is None:
            record = self.compactions.find(block)  # a replaced block, whose file was removed
            data = None if record is None else record.block_bytes(block)
            if data is None:
                raise NotFound("the block is missing", where=f"block {block}", hint=_RESTORE_HINT)
            return data
        return self._blocks.read(name)

    def block(self, which: Multihash | int) -> StoredBlock:
        """Return a block by its hash or its sequence number.

        Raises:
            NotFound: there is no such block.
            MalformedBlock: its bytes cannot be decoded, or do not match the hash.
        """
        block_hash = self.block_hash(which) if isinstance(which, int) else which
        data = self.block_bytes(block_hash)
        if Multihash.sha3_256(data) != block_hash:
            problem = "the block is damaged: its bytes do not match its hash"
            raise MalformedBlock(problem, where=f"block {block_hash}", hint=_RESTORE_HINT)
        try:
            decoded = decode_block(data)
        except MalformedBlock as error:
            field = f", {error.where}" if error.where else ""
            problem = f"the block cannot be read: {error.message}"
            hint = error.hint or "request an undamaged copy from the publisher of the dataset"
            raise MalformedBlock(problem, hint=hint, where=f"block {block_hash}{field}") from error
        return StoredBlock(block_hash, decoded.block, decoded.version, len(data), decoded.unknown)

    def at(self, block: Multihash) -> Dataset:
        """Return the dataset with a chain that contains a block.

        This is the dataset itself if its chain contains the block. Otherwise, the block belongs to an earlier
        history, such as before a reset: the result is read-only, and the block is its head. Its blocks are
        indexed in memory when they are read for the first time.
        """
        return self if self.contains_block(block) else self.ending_at(block)

    def ending_at(self, block: Multihash) -> Dataset:
        """Return the dataset with the chain that ends at a block. It is read-only below the head."""
        if block == self.head():
            return self
        earlier = self._earlier.pop(block, None) or _EarlierHistory(self, block)
        self._earlier[block] = earlier
        for oldest in list(self._earlier)[:-_MAX_EARLIER]:
            self._earlier.pop(oldest, None)
        return earlier

    def references(self) -> dict[str, Multihash]:
        """Return the references other than the head, such as ``before-reset-…``, by their names."""
        multihashes: dict[str, Multihash] = {}
        for name in self._refs.names():
            with suppress(MalformedBlock, NotFound):
                block = None if name in (HEAD, COMPACTION_REF) else self._refs.get(name)
                if block is not None:
                    multihashes[name] = block
        return multihashes

    def newest_compaction(self) -> Multihash | None:
        """Return the new head of the newest compaction, which names its record, or None if absent."""
        return self._refs.get(COMPACTION_REF)

    def find_stored_block(self, text: str) -> Multihash:
        """Return the hash of the stored block that ``text`` identifies, in the chain or an earlier history.

        Args:
            text: the name of a reference, with or without ``refs/``, or of a tag; or as for
                :meth:`find_block`. Blocks of the chain take precedence.

        Raises:
            NotFound: no block matches, or several do.
            MalformedBlock: the reference is damaged.
        """
        text = text.strip()
        name = text.removeprefix("refs/")
        if _REFERENCE.fullmatch(name) and (reference := self._find_branch(name)) is not None:
            block = self._refs.get(reference)
            if block is not None:
                return block
        try:
            return self.find_block(text)
        except NotFound as error:
            if error.hint is not None:  # several blocks of the chain
                raise
            matches = self._find_stored(text.lower())
            if len(matches) > 1:
                raise _ambiguous(text, matches) from None
            if not matches:
                names = ", ".join(self.references())
                hint = f"references to earlier histories: {names}" if names else None
                raise NotFound(error.message, hint=hint) from None
            return matches[0]

    def _find_stored(self, text: str) -> list[Multihash]:
        """Return at most four stored blocks whose base16 hash, or digest, starts or ends with ``text``."""
        if len(text) < _MIN_CHARACTERS:
            return []
        multihashes: list[Multihash] = []
        for name in self._blocks.names():
            with suppress(InvalidIdentity):
                block = Multihash.parse(name)
                starts = str(block).startswith(text) or block.digest.hex().startswith(text)
                if starts or (len(text) == _TAIL and str(block).endswith(text)):
                    multihashes.append(block)
        return sorted(multihashes, key=str)[:4]

    def find_block(self, text: str) -> Multihash:
        """Return the hash of the block that ``text`` identifies.

        Args:
            text: a hash in any encoding, or in base16 the beginning of it or of its digest, or its last 8
                characters.

        Raises:
            NotFound: no block matches, or several do.
        """
        try:
            block_hash = Multihash.parse(text)
        except InvalidIdentity:
            return self._find_abbreviated(text.strip().lower())
        if find_object_name(self._blocks, block_hash, text) is None:
            raise NotFound(f"block {block_hash} not found in this dataset")
        return block_hash

    def list_blocks(
        self, limit: int, before: int | None = None, kinds: Collection[str] | None = None
    ) -> list[BlockSummary]:
        """Return at most ``limit`` blocks before sequence number ``before``, newest first.

        ``kinds`` limits them to these kinds of event.
        """
        if self.head() is None:
            return []
        return self.query_index(lambda index, at: index.list_blocks(at, limit, before, kinds))

    def blocks(self, newest_first: bool = True) -> Iterator[StoredBlock]:
        """Yield every block of the chain at its current head.

        Raises:
            NotFound, MalformedBlock: when a missing or damaged block is reached.
        """
        head = self.head()
        if head is None:
            return
        if not newest_first:
            yield from map(self.block, self.query_index(lambda index, at: index.list_hashes(at)))
            return
        at: Multihash | None = head
        while at is not None:
            stored = self.block(at)
            yield stored
            at = stored.block.prev_block_hash

    def block_hash(self, number: int) -> Multihash:
        """Return the hash of the block with a sequence number; raise NotFound if it does not exist."""

        def query_hash(index: BlockIndex, at: BlockPosition) -> tuple[Multihash | None]:
            return (index.hash_at(at.chain, number) if 0 <= number <= at.sequence else None,)

        (block_hash,) = self.query_index(query_hash)
        if block_hash is None:
            raise NotFound(f"block {number} not found in this dataset")
        return block_hash

    def contains_block(self, block: Multihash) -> bool:
        """Return whether the block is part of the chain at its current head."""
        if self.head() is None:
            return False
        return self.query_index(lambda index, at: index.find_ancestor(at, block) is not None)

    def slices(self, first_offset: int | None = None, last_offset: int | None = None) -> list[SliceSummary]:
        """Return the slices with rows in this range of offsets (inclusive), oldest first."""
        if self.head() is None:
            return []
        return self.query_index(lambda index, at: index.slices(at, first_offset, last_offset))

    def find_push(self, state: SourceState) -> int | None:
        """Return the sequence number of the newest block of a push with this state, or None."""
        if self.head() is None:
            return None
        (number,) = self.query_index(lambda index, at: (index.find_push(at, state),))  # None: not indexed
        return number

    def slice_path(self, which: SliceSummary | Multihash) -> Path:
        """Return the path of a slice, or of an equivalent one, whether or not it exists."""
        physical_hash = which.physical_hash if isinstance(which, SliceSummary) else which
        path = self.object_path("data", physical_hash)
        if self.origin is None and not path.is_file():
            return self.equivalent_slice(physical_hash) or path
        return path

    def slice_paths(self, rows: Iterable[SliceSummary], reporter: Reporter) -> list[Path]:
        """Return the paths of slices, as :meth:`slice_path` does. Missing ones are fetched at the same time.

        Raises:
            BadData: a slice in the origin is damaged.
            SourceUnavailable: the origin cannot be read.
            Cancelled: the job was cancelled.
        """
        slices = list(rows)
        if self.origin is not None:
            self.origin.fetch_all("data", {str(row.physical_hash): row.size for row in slices}, reporter)
        return [self.slice_path(row) for row in slices]

    def equivalent_slice(self, physical_hash: Multihash) -> Path | None:
        """Return a rebuilt file with the rows of a slice, but other bytes, or None if absent.

        It is outside of the folders of objects, so it is never transferred. Its name is its own hash.
        """
        return next(self._equivalents(physical_hash).glob("f1620*"), None)

    def _equivalents(self, physical_hash: Multihash) -> Path:
        return self.folder / "info" / "equivalents" / str(physical_hash)

    def restore_slice(self, committed: Multihash, actual: Multihash, staged: Path) -> None:
        """Move a rebuilt file to a missing or damaged slice; with another hash, to its equivalent.

        Raises:
            OdfError: it cannot be moved.
        """
        folder = self._equivalents(committed)
        with translate_commit_errors(self.folder):
            if actual == committed:
                self.object_path("data", committed).unlink(missing_ok=True)
                self.store_slice(committed, staged)
                shutil.rmtree(folder, ignore_errors=True)
                return
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            LocalObjectStore(folder).put_file(str(actual), staged)
            self.object_path("data", committed).unlink(missing_ok=True)

    def slice_parts(self, row: SliceSummary) -> Path | RangedFile:
        """Return a slice to read in part: its path; if only the origin has it, its ranges there."""
        if self.origin is not None and not self._objects["data"].path(str(row.physical_hash)).is_file():
            names = list(candidate_names(row.physical_hash))
            ranges = self.origin.open_ranges("data", names, row.size)
            if ranges is not None:
                return ranges
        return self.slice_path(row)

    def checkpoint_path(self, checkpoint: Multihash) -> Path:
        """Return the path of a checkpoint, whether or not it exists."""
        return self.object_path("checkpoints", checkpoint)

    def staging_path(self, kind: Literal["data", "checkpoints"]) -> Path:
        """Return a new path for a temporary file, which :meth:`commit` can move to its object."""
        return self._objects[kind].staging_path()

    def commit(
        self,
        events: Sequence[MetadataEvent],
        *,
        system_time: Timestamp,
        expected_head: Multihash | None,
        data: Path | Sequence[Path] | None = None,
        checkpoint: Path | None = None,
        block_version: int = 3,
    ) -> Multihash:
        """Append one block for each event and move the head once. Atomic, also on a crash.

        Args:
            events: the events.
            system_time: the system time of all blocks.
            expected_head: the current head, or None for a dataset without blocks.
            data: staged slices in the order of the events, which become the objects that they describe.
            checkpoint: a staged checkpoint, likewise.
            block_version: manifest version of the blocks.

        Returns:
            The new head.

        Raises:
            Conflict: the head is not ``expected_head``; staged files are not removed.
            ChainRuleViolated: an event violates an append rule.
            NoOpEvent: an event would change nothing.
            BadData: a staged file does not match its event.
            NotSynced: the head has moved, but a power failure may undo it.
        """
        if not events:
            raise UsageError("a commit requires at least one event")
        with translate_commit_errors(self.folder):
            if expected_head is None:
                ensure_folder(self.folder)
            with self._refs.locked():
                state = self._check_head(expected_head)
                new = self._prepare(state, events, system_time, block_version)
                head = new[-1].folded.state.head
                self._store(new, _paths(data), _paths(checkpoint))
                with self._signed(new):
                    stored = [item.folded.stored for item in new]
                    objects = [pair for item in stored for pair in _objects_of(item.block.event, item.hash)]
                    self._publish(objects, expected_head, head)
                    self._refs.compare_and_set(self.reference, expected_head, head, is_commit=True)
        self._newest = new[-1].folded.state
        self._index_blocks(state, new)
        self._notify()
        return new[-1].folded.state.head

    def restart_chain(
        self,
        events: Sequence[MetadataEvent],
        *,
        system_time: Timestamp,
        expected_head: Multihash,
        block_version: int = 3,
    ) -> Multihash:
        """Replace all blocks after the first with one block for each event; return the new head.

        The old head stays available as the reference ``refs/before-reset-…`` with the last characters of its
        hash.

        Raises:
            Conflict: the head is not ``expected_head``.
            ChainRuleViolated: an event violates an append rule.
        """
        if not events:
            raise UsageError("a reset requires at least one event")
        with self._refs.locked():
            self._check_head(expected_head)
            first = self.block(0)
            fork = apply_block(None, first.block, first.hash)
            new = self._prepare(fork, events, system_time, block_version)
            with self._signed(new):
                self.move_head(
                    new[-1].folded.state,
                    fork,
                    [item.folded for item in new],
                    expected_head=expected_head,
                    backup_ref=f"{_RESET_REF_PREFIX}{expected_head.abbreviated}",
                    before_move=lambda: self._store(new, (), ()),
                )
        return new[-1].folded.state.head

    def reset(self, block: Multihash, *, expected_head: Multihash) -> None:
        """Move the head to a stored block, of the chain or of an earlier history. No files are removed.

        The old head stays available, as for :meth:`restart_chain`.

        Raises:
            Conflict: the head is not ``expected_head``.
            NotFound, MalformedBlock: a block of the chain that ends there is missing or damaged.
        """
        self.move_head(
            _EarlierHistory(self, block).state(),
            None,
            None,
            expected_head=expected_head,
            backup_ref=f"{_RESET_REF_PREFIX}{expected_head.abbreviated}",
            before_move=lambda: None,
            required=self._other_objects(block),
        )

    def move_head(
        self,
        state: ChainState,
        fork: ChainState | None,
        folded: Sequence[BlockWithStates] | None,
        *,
        expected_head: Multihash | None,
        backup_ref: str | None,
        before_move: Callable[[], None],
        required: Collection[str] = (),
    ) -> None:
        """Move the head to blocks that are already stored (see :mod:`odf_engine.chain.quarantine`).

        Args:
            state: the state at the new head.
            fork: the state at the block that the new ones follow.
            folded: the new blocks, for the index, or None if they are too many.
            expected_head, backup_ref, before_move: as for :meth:`Quarantine.commit`.
            required: see :meth:`DatasetOrigin.publish`.
        """
        with translate_commit_errors(self.folder), self._refs.locked():
            before = self._check_head(expected_head)
            if self.origin is not None and expected_head is not None:
                self._follow_origin(self.origin)  # before the new objects are stored
                self._check_head(expected_head)
            before_move()
            self._publish(None, expected_head, state.head, backup_ref, required=required)
            if backup_ref is not None and expected_head is not None:
                self._store_ref(backup_ref, expected_head)
            self._refs.compare_and_set(self.reference, expected_head, state.head, is_commit=True)
        self._newest = state
        if folded is not None:
            base, last = before and before.head, -1 if fork is None else fork.sequence_number
            self._index.extend(base, last, folded, state)
        self._notify()

    def _notify(self) -> None:
        if self._listener is not None:
            self._listener(self)

    def set_reference(self, name: str, block: Multihash) -> None:
        """Set a reference other than the head, durably.

        Raises:
            OSError: it cannot be written.
        """
        with self._refs.locked():
            if self.origin is not None:
                self.origin.store_reference(name, block)
            self._refs.compare_and_set(name, self._refs.get(name), block)

    def reference_time(self, name: str) -> float:
        """Return when a reference was written, in seconds since 1970, or 0 if that cannot be determined."""
        try:
            return (self.folder / "refs" / name).stat().st_mtime
        except OSError:
            return 0.0

    def move_branch(self, name: str, expected: Multihash | None, block: Multihash) -> None:
        """Set a branch to a stored block if its value is ``expected`` (None: it does not exist). Atomic.

        Raises:
            Conflict: it has another value, which is unchanged.
            NotSynced: the branch was changed, but a power failure may undo it.
        """
        with translate_commit_errors(self.folder), self._refs.locked():
            self._publish((), expected, block, reference=name, required=self._other_objects(block))
            self._refs.compare_and_set(name, expected, block, is_commit=True)

    def remove_reference(self, name: str, expected: Multihash) -> None:
        """Remove a reference other than the head, if its value is ``expected``.

        Raises:
            Conflict: it has another value, which is unchanged.
            OSError: it cannot be removed.
        """
        if name == HEAD:
            raise UsageError("the head of a dataset cannot be removed")
        with self._refs.locked():
            if self.origin is not None and self._refs.get(name) == expected:
                self.origin.remove_reference(name, expected)
            self._refs.remove(name, expected)

    def store_slice(self, physical_hash: Multihash, staged: Path) -> None:
        """Move a staged slice to its object."""
        self._objects["data"].put_file(str(physical_hash), staged)

    def _publish(
        self,
        objects: Sequence[tuple[str, str]] | None,
        expected: Multihash | None,
        new: Multihash,
        backup_ref: str | None = None,
        reference: str | None = None,
        required: Collection[str] = (),
    ) -> None:
        """Commit to the origin, if there is one. After a conflict, the head is the one in the origin."""
        if self.origin is None:
            return
        try:
            self.origin.publish(objects, expected, new, backup_ref, reference or self.reference, required)
        except Conflict:
            self._follow_origin(self.origin)
            raise

    def _other_objects(self, block: Multihash) -> list[str]:
        """Return the objects of the chain that ends with a block, without objects of the dataset's chain."""
        names: list[str] = []
        at: Multihash | None = block if self.origin is not None else None
        while at is not None and not self.contains_block(at):
            stored = self.block(at)
            names += [f"{kind}/{name}" for kind, name in _objects_of(stored.block.event, at)]
            at = stored.block.prev_block_hash
        return names

    def _store_ref(self, name: str, head: Multihash) -> None:
        if self._refs.get(name) is None:
            self._refs.compare_and_set(name, None, head)

    def remove_stale_files(self, untouched_for: float = _DAY_SECONDS) -> int:
        """Remove temporary files that a killed process left.

        Args:
            untouched_for: minimum age in seconds since the last change. Zero is only safe if no process works
                on the dataset.

        Returns:
            The number of removed files.
        """
        with self._refs.locked():
            folders = ("blocks", "refs", *self._objects)
            return sum(remove_stale_files(self.folder / name, untouched_for) for name in folders)

    def _check_head(self, expected: Multihash | None) -> ChainState | None:
        self.require_movable()
        head = self.head()
        if head != expected:
            raise Conflict(
                f"another {'' if self.origin is None else 'machine or '}process has committed to the dataset"
                if expected is not None
                else "the dataset already exists",
                hint="try again, based on the new head",
                where=f"head {head}, expected {expected}",
            )
        return None if head is None else self.state()

    def _prepare(
        self,
        state: ChainState | None,
        events: Sequence[MetadataEvent],
        system_time: Timestamp,
        block_version: int,
    ) -> list[_NewBlock]:
        new: list[_NewBlock] = []
        for event in events:
            block = next_block(state, event, system_time)
            check_append(state, block)
            data = encode_block(block, block_version)
            block_hash = Multihash.sha3_256(data)
            before, state = state, apply_block(state, block, block_hash)
            stored = StoredBlock(block_hash, block, block_version, len(data))
            new.append(_NewBlock(BlockWithStates(stored, state, before), data))
        return new

    def _store(self, new: Sequence[_NewBlock], data: Sequence[Path], checkpoint: Sequence[Path]) -> None:
        events: list[Any] = [item.folded.stored.block.event for item in new]
        store_files(self._objects["data"], data, [getattr(event, "new_data", None) for event in events])
        checkpoints = [getattr(event, "new_checkpoint", None) for event in events]
        store_files(self._objects["checkpoints"], checkpoint, checkpoints)
        self._blocks.put_all({str(item.folded.stored.hash): item.data for item in new})

    @contextmanager
    def _signed(self, new: Sequence[_NewBlock]) -> Iterator[None]:
        """Sign the new head. If it is not committed, such as after a conflict, the signature is removed."""
        state = new[-1].folded.state
        proof = None if self._signer is None else self._signer(self.folder, state)
        try:
            yield
        except BaseException:
            if proof is not None and self.head() != state.head:
                proof.unlink(missing_ok=True)
            raise

    def _index_blocks(self, before: ChainState | None, new: Sequence[_NewBlock]) -> None:
        """Add new blocks to the index."""
        # If this fails, the next query indexes the blocks.
        base, keep = (None, -1) if before is None else (before.head, before.sequence_number)
        self._index.extend(base, keep, [item.folded for item in new], new[-1].folded.state)

    def _at_head(self, query: Callable[[Multihash], T | None]) -> T:
        """Return the result of ``query`` for the head. While it is None, index the chain and repeat."""
        for attempt in range(_MAX_ATTEMPTS + 2):
            if attempt == _MAX_ATTEMPTS:
                # Other processes keep switching the shared index between two histories, or it is damaged.
                self._index = BlockIndex(":memory:")
            head = self.head()
            if head is None and self.origin is not None:
                self.refresh()  # it was not read yet
                head = self.head()
            if head is None:
                if self.origin is None and any(self._blocks.names()):
                    problem = f"refs/{self.reference}, the reference to the newest block, is missing"
                    raise NotFound(problem, hint=_RESTORE_HINT)
                raise NotFound("the dataset is empty", where=str(self.folder))
            if (result := query(head)) is not None:
                return result
            if head == self.head():
                index_to_head(self._index, self.block, head)
        raise Conflict("the head of the dataset keeps changing", where=str(self.folder), hint="try again")

    def query_index(self, query: Callable[[BlockIndex, BlockPosition], T]) -> T:
        """Query the index, up to date with the head; raise NotFound if the dataset is empty."""

        def query_head(head: Multihash) -> T | None:
            with self._index.read_transaction():
                at = self._index.position(head)
                return None if at is None else query(self._index, at)

        return self._at_head(query_head)

    def _find_abbreviated(self, text: str) -> Multihash:
        matches = (
            self.query_index(lambda index, at: index.find_hashes(at, text, limit=4)) if self.head() else []
        )
        if not matches:
            raise NotFound(f"block '{text}' not found in this dataset")
        if len(matches) > 1:
            raise _ambiguous(text, matches)
        return matches[0]

    def object_path(self, kind: str, object_hash: Multihash) -> Path:
        """Return the path of a slice or checkpoint with this hash, whether or not it exists."""
        path = self._objects[kind].path_of(object_hash)
        if self.origin is not None:
            # The cache evicts by the time of the last use, which file systems do not store at each access.
            with suppress(OSError):
                os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))
        return path


def _objects_of(event: Any, block_hash: Multihash) -> list[tuple[str, str]]:
    """Return the kinds and names of the objects that a block refers to, and of the block."""
    objects: list[tuple[str, str]] = []
    for kind, field in (("data", "new_data"), ("checkpoints", "new_checkpoint")):
        if (described := getattr(event, field, None)) is not None:
            objects.append((kind, str(described.physical_hash)))
    return [*objects, ("blocks", str(block_hash))]


class _EarlierHistory(Dataset):
    """The chain that ends with a block which is not the head of the dataset. It cannot be changed."""

    def __init__(self, dataset: Dataset, head: Multihash) -> None:
        # The index of the workspace has each block once: it cannot have two chains with a common beginning.
        super().__init__(dataset.folder, BlockIndex(":memory:"), dataset.origin)
        self._fixed = head

    @property
    def is_earlier(self) -> bool:
        """True."""
        return True

    def head(self) -> Multihash:
        """Return the hash of the last block of this history."""
        return self._fixed

    def _check_head(self, expected: Multihash | None) -> ChainState | None:
        raise UsageError("an earlier history of a dataset cannot be changed", where=str(self.folder))


def _paths(files: Path | Sequence[Path] | None) -> Sequence[Path]:
    return () if files is None else (files,) if isinstance(files, Path) else files


def _ambiguous(text: str, matches: Sequence[Multihash]) -> NotFound:
    return NotFound(
        f"'{text}' matches more than one block", hint="use one of: " + ", ".join(map(str, matches[:3]))
    )
