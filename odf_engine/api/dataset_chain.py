"""The metadata chain of a dataset: blocks, versions, branches, earlier histories, ownership proofs."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

from odf_engine.chain import references
from odf_engine.chain.block_search import resolve_block_number
from odf_engine.chain.references import Branch, Promotion
from odf_engine.derive.promotion import check_inputs, promote
from odf_engine.errors import NotFound
from odf_engine.identity.multiformats import Multihash
from odf_engine.identity.ownership_proof import PROOFS_FOLDER, OwnershipProof
from odf_engine.on_demand import private_source
from odf_engine.rows import PinnedVersion
from odf_engine.rows.as_at import at_version, resolve_as_at
from odf_engine.storage.refs import OLD_HEAD_PREFIXES
from odf_engine.worker.endpoint import notify_datasets_changed
from odf_engine.workspace.trust import ProvenBlock, find_newest_proven_block, prove_block

if TYPE_CHECKING:
    from odf_engine.api.jobs import JobRunner
    from odf_engine.chain.block_summary import BlockSummary, StoredBlock
    from odf_engine.chain.state import ChainState
    from odf_engine.workspace.dataset_summary import DatasetEntry
    from odf_engine.workspace.documents.private_source import PrivateSource
    from odf_engine.workspace.workspace import Workspace


class NewProof(NamedTuple):
    """A new ownership proof.

    Attributes:
        block: the sequence number of the newest block that it proves.
        later: the number of blocks after it.
        file: its file.
        proof: the proof.
    """

    block: int
    later: int
    file: Path
    proof: OwnershipProof


class DatasetChain:
    """Reads and changes the metadata chain of a dataset. Blocks are read from disk on each access."""

    def __init__(self, workspace: Workspace, entry: DatasetEntry, runner: JobRunner) -> None:
        self._workspace, self._entry, self._runner = workspace, entry, runner

    @property
    def id(self) -> str:
        """The id of the dataset, ``did:odf:…``."""
        return str(self._entry.id)

    @property
    def name(self) -> str:
        """The name of the dataset in the workspace."""
        return str(self._entry.alias)

    @property
    def kind(self) -> str:
        """The kind of the dataset: ``root`` or ``derivative``."""
        return self.state.kind.name.lower()

    @property
    def head(self) -> str:
        """The hash of the newest block."""
        return str(self._entry.dataset.head())

    @property
    def folder(self) -> Path:
        """The folder of its files. A dataset in a bucket has a local copy of its chain there."""
        return self._entry.dataset.folder

    @property
    def state(self) -> ChainState:
        """The settings and totals that its blocks result in.

        Raises:
            BadData: a block is missing or damaged.
        """
        return self._entry.dataset.state()

    @property
    def private_source(self) -> PrivateSource | None:
        """Its polling source, if it is kept outside the chain: a Source resource (RFC-018).

        Raises:
            InvalidManifest: the file of the source is damaged.
        """
        return private_source.read_private_source(self.folder)

    @property
    def branch(self) -> str:
        """The branch or the tag whose chain this is, or "" for the head."""
        return self._entry.branch

    def on_branch(self, branch: str) -> Self:
        """Return the dataset with the chain of a branch or a tag, or itself if ``branch`` is "".

        Raises:
            NotFound: there is no such branch.
        """
        return self._with_entry(self._entry.on_branch(branch))

    def at(self, version: PinnedVersion) -> Self:
        """Return the dataset with the chain that has a version: its own, or an earlier history."""
        return self._with_entry(at_version(self._entry, version))

    def _with_entry(self, entry: DatasetEntry) -> Self:
        return type(self)(self._workspace, entry, self._runner)

    def blocks(self) -> Sequence[StoredBlock]:
        """Return the blocks of its metadata chain, oldest first.

        Raises:
            BadData: a block is damaged.

        >>> for block in workspace["city.population"].blocks()[:3]:
        ...     print(block.block.sequence_number, type(block.block.event).__name__)
        0 Seed
        1 AddPushSource
        2 SetDataSchema
        """
        return list(self._entry.dataset.blocks(newest_first=False))

    def __iter__(self) -> Iterator[StoredBlock]:
        """Yield the blocks, newest first.

        >>> next(iter(workspace["city.population"])).block.event.new_data.offset_interval.end
        2
        """
        return iter(self._entry.dataset.blocks())

    def list_blocks(
        self, limit: int | None = None, *, before: int | None = None, kinds: Collection[str] | None = None
    ) -> Sequence[BlockSummary]:
        """Return summaries of blocks, newest first.

        Args:
            limit: maximum number of blocks, or None for all.
            before: only blocks with smaller sequence numbers.
            kinds: only events of these kinds, such as ``AddData``.

        >>> [row.kind for row in workspace["city.population"].list_blocks(1)]
        ['AddData']
        """
        return self._entry.dataset.list_blocks(limit or sys.maxsize, before=before, kinds=kinds)

    def block(self, which: int | str) -> StoredBlock:
        """Return a block by its sequence number or its hash.

        Raises:
            NotFound: there is no such block.
        """
        return self._entry.dataset.block(which if isinstance(which, int) else Multihash.parse(which))

    def block_number(self, text: str) -> int:
        """Return the sequence number of a block of the chain, by its number or a part of its hash.

        Raises:
            NotFound: there is no such block.
        """
        return resolve_block_number(self._entry.dataset, text)

    def stored_block_number(self, text: str) -> int:
        """Return the sequence number of a block of the chain by its hash, a part of it, or a reference.

        Raises:
            NotFound: there is no such block, or it is of an earlier history.
        """
        dataset = self._entry.dataset
        block = dataset.find_stored_block(text)
        if not dataset.contains_block(block):
            raise NotFound(
                f"block {block} is not in the chain of {self.name}",
                hint=f"use a block that odf log {self.name} lists, or its sequence number",
            )
        return dataset.block(block).block.sequence_number

    def version(self, as_at: str | None = None) -> PinnedVersion:
        """Return a version: a block by number, hash or reference, or the newest block at a system time.

        Args:
            as_at: the block or the time, or None for the newest block.

        Raises:
            NotFound: there is no such block.
            UsageError: the time is malformed, or before the first block.
        """
        return resolve_as_at(self._entry, as_at)

    @property
    def references(self) -> dict[str, Multihash]:
        """The references other than the head: branches and earlier histories, with their newest blocks."""
        return self._entry.dataset.references()

    @property
    def branch_names(self) -> list[str]:
        """The names of its branches."""
        self._entry.dataset.refresh_branches()
        return self._entry.dataset.branch_names()

    @property
    def tag_names(self) -> list[str]:
        """The names of its tags."""
        self._entry.dataset.refresh_branches()
        return self._entry.dataset.tag_names()

    def branches(self) -> list[Branch]:
        """Return the branches, compared with the head, by name.

        >>> workspace["city.population"].branches()
        []
        """
        return references.list_branches(self._entry.dataset)

    def tags(self) -> list[Branch]:
        """Return the tags, compared with the head, by name.

        >>> workspace["city.population"].tags()
        []
        """
        return references.list_tags(self._entry.dataset)

    def create_tag(self, name: str, at: str | None = None) -> Multihash:
        """Create a tag, and return its block.

        Args:
            name: the name of the tag.
            at: the version to tag, as in :meth:`version`.

        Raises:
            AlreadyExists: a branch or a tag has the name.
            UsageError: invalid name.
            NotFound: there is no such version.
        """
        block = Multihash.parse(self.version(at).block)
        references.create_tag(self._entry.dataset, name, block)
        self._notify()
        return block

    def delete_tag(self, name: str) -> Multihash:
        """Delete a tag, and return the block that it referred to. No blocks are removed.

        Raises:
            NotFound: there is no such tag.
        """
        block = references.delete_tag(self._entry.dataset, name)
        self._notify()
        return block

    def create_branch(self, name: str, at: str | None = None, *, force: bool = False) -> Multihash:
        """Create a branch, and return its newest block.

        Args:
            name: the name of the branch.
            at: the version to start at, as in :meth:`version`.
            force: move an existing branch.

        Raises:
            AlreadyExists: the branch exists.
            UsageError: invalid name.
            NotFound: there is no such version.
        """
        block = Multihash.parse(self.version(at).block)
        references.create_branch(self._entry.dataset, name, block, replace=force)
        self._notify()
        return block

    def promote_branch(self, name: str, expected: Multihash | None = None) -> Promotion:
        """Move the head to the newest block of a branch.

        Args:
            name: the name of the branch.
            expected: the newest block of the branch when it was reviewed, or None for any block.

        Raises:
            NotFound: there is no such branch.
            Conflict: the branch has moved since, the head has blocks that the branch lacks, or the branch was
                derived from blocks that the head of an input lacks.
        """
        promotion = promote(self._workspace, self._entry, name, expected)
        self._notify()
        return promotion

    def check_promotion(self, name: str) -> None:
        """Check that the heads of the inputs have the blocks that a branch was derived from.

        Raises:
            NotFound: there is no such branch.
            Conflict: the head of an input lacks blocks.
        """
        check_inputs(self._workspace, self._entry, name)

    def delete_branch(self, name: str, *, force: bool = False) -> Multihash:
        """Delete a branch, and return the block that it referred to. No blocks are removed.

        Raises:
            NotFound: there is no such branch.
            Conflict: only the branch has some blocks, and ``force`` is not set.
        """
        block = references.delete_branch(self._entry.dataset, name, force=force)
        self._notify()
        return block

    def rename_branch(self, old: str, new: str) -> Multihash | None:
        """Rename a branch, and return its newest block.

        Raises:
            NotFound: there is no such branch.
            AlreadyExists: there is a branch of the new name.
        """
        references.rename_branch(self._entry.dataset, old, new)
        self._notify()
        return self._entry.dataset.branch(new).head()

    def reset(self, version: PinnedVersion) -> str:
        """Return the dataset to an earlier block, and return the reference to its present history.

        Raises:
            Conflict: the dataset has changed in the meantime.
        """
        dataset = self._entry.dataset
        head = dataset.head()
        if head is None:
            raise NotFound(f"{self.name} has no blocks")
        dataset.reset(Multihash.parse(version.block), expected_head=head)
        self._notify()
        backups = [name for name, block in dataset.references().items() if block == head]
        return next(name for name in backups if name.startswith(OLD_HEAD_PREFIXES))

    def prove(self, block: str | None = None) -> NewProof:
        """Sign a block with the private key of the dataset, and store the ownership proof.

        Args:
            block: the sequence number or the hash of a block; by default the newest one.

        Raises:
            NotFound: the key is not in the workspace, or there is no such block.
        """
        state = self.state
        number = state.sequence_number if block is None else self.block_number(block)
        block_hash = state.head if block is None else self._entry.dataset.block(number).hash
        proof = prove_block(self._workspace, self._entry, block_hash)
        self._notify()
        file = self.folder / PROOFS_FOLDER / str(proof.head)
        return NewProof(number, state.sequence_number - number, file, proof)

    def newest_proven_block(self) -> ProvenBlock | None:
        """Return the newest block with a valid ownership proof, or None if there is none."""
        return find_newest_proven_block(self._entry)

    def _notify(self) -> None:
        notify_datasets_changed(self._workspace.folder)
