"""Bringing the index up to a chain's head after somebody else has moved it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from odf_engine.chain.index import SNAPSHOT_EVERY, ChainIndex, Position
from odf_engine.chain.rows import StoredBlock
from odf_engine.chain.state import ChainState, fold
from odf_engine.errors import ChainRuleViolated, Conflict
from odf_engine.identity.multiformats import Multihash

_BATCH: Final = 1024

Read = Callable[[Multihash], StoredBlock]


def catch_up(index: ChainIndex, read: Read, head: Multihash) -> None:
    """Indexes the chain that ends in ``head``: walks back to the first block that is known already.

    Blocks of the index that are no ancestors of ``head`` are forgotten. Nothing is done, or a part
    only, when another process changes the index at the same time: the caller asks again.

    Raises:
        NotFound, MalformedBlock: a block is missing or damaged.
        ChainRuleViolated: the chain does not begin with a Seed, or its numbers have a gap.
    """
    missing, fork = _walk_back(index, read, head)
    if fork is None:
        state, base, keep = None, None, -1
    else:
        state, base, keep = _state_at(index, read, fork), fork.head, fork.sequence
    pending: list[StoredBlock] = []
    snapshots: list[ChainState] = []
    for stored in _oldest_first(read, missing):
        state = _folded(state, stored)
        pending.append(stored)
        if state.sequence_number % SNAPSHOT_EVERY == SNAPSHOT_EVERY - 1:
            snapshots.append(state)
        if len(pending) == _BATCH:
            if not index.extend(base, keep, pending, state, snapshots):
                return
            base, keep, pending, snapshots = state.head, state.sequence_number, [], []
    if state is not None and (pending or fork is not None):
        index.extend(base, keep, pending, state, snapshots)


def _walk_back(index: ChainIndex, read: Read, head: Multihash) -> tuple[list[Multihash], Position | None]:
    missing: list[Multihash] = []
    at: Multihash | None = head
    while at is not None:
        found = index.position(at)
        if found is not None:
            return missing, found
        missing.append(at)
        at = read(at).block.prev_block_hash
    return missing, None


def _oldest_first(read: Read, newest_first: list[Multihash]) -> Iterator[StoredBlock]:
    # Read again rather than kept: a chain of a million blocks does not fit in memory.
    while newest_first:
        yield read(newest_first.pop())


def _state_at(index: ChainIndex, read: Read, at: Position) -> ChainState:
    """The state at a block that the index has, folded from the nearest state that it kept."""
    state = index.state(at.head) if at.sequence == at.head_sequence else None
    if state is None:
        state = index.snapshot(at.chain, at.sequence)
    first = 0 if state is None else state.sequence_number + 1
    for sequence in range(first, at.sequence + 1):
        block_hash = index.hash_at(at.chain, sequence)
        if block_hash is None:
            raise Conflict("the chain changes while it is read", where=f"block {sequence}", hint="try again")
        state = _folded(state, read(block_hash))
    assert state is not None  # at.sequence >= 0
    return state


def _folded(state: ChainState | None, stored: StoredBlock) -> ChainState:
    expected = 0 if state is None else state.sequence_number + 1
    if stored.block.sequence_number != expected:
        raise ChainRuleViolated(
            "sequence-number",
            f"number {expected} comes next, not {stored.block.sequence_number}",
            block=str(stored.hash),
        )
    return fold(state, stored.block, stored.hash)
