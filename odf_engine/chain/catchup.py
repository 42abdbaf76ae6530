"""Bringing the index up to a chain's head after somebody else has moved it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from odf_engine.chain.index import ChainIndex, Folded, Position
from odf_engine.chain.rows import StoredBlock
from odf_engine.chain.state import ChainState, fold
from odf_engine.chain.violations import CONTENT_ERRORS, unexpected
from odf_engine.errors import ChainRuleViolated, Conflict
from odf_engine.identity.multiformats import Multihash

_BATCH: Final = 1024
_KEPT: Final = 8192  # a chain of a million blocks does not fit in memory: the others are read again

Read = Callable[[Multihash], StoredBlock]


def catch_up(index: ChainIndex, read: Read, head: Multihash) -> None:
    """Indexes the chain that ends in ``head``: walks back to the first block that is known already.

    Blocks of the index that are no ancestors of ``head`` are forgotten. Nothing is done, or a part
    only, when another process changes the index at the same time: the caller asks again.

    Raises:
        NotFound, MalformedBlock: a block is missing or damaged.
        ChainRuleViolated: the chain does not begin with a Seed, or its numbers have a gap.
    """
    missing, walked, fork = _walk_back(index, read, head)
    if fork is None:
        state, base, keep = None, None, -1
    else:
        state, base, keep = state_at(index, read, fork), fork.head, fork.sequence
    pending: list[Folded] = []
    for stored in _oldest_first(read, missing, walked):
        before, state = state, _folded(state, stored)
        pending.append(Folded(stored, state, before))
        if len(pending) == _BATCH:
            if not index.extend(base, keep, pending, state):
                return
            base, keep, pending = state.head, state.sequence_number, []
    if state is not None:
        index.extend(base, keep, pending, state)


def _walk_back(
    index: ChainIndex, read: Read, head: Multihash
) -> tuple[list[Multihash], deque[StoredBlock], Position | None]:
    """What is missing, newest first: all hashes, the blocks met last, and the block that is known."""
    missing: list[Multihash] = []
    walked: deque[StoredBlock] = deque(maxlen=_KEPT)
    at: Multihash | None = head
    while at is not None:
        found = index.position(at)
        if found is not None:
            return missing, walked, found
        stored = read(at)
        missing.append(at)
        walked.append(stored)
        at = stored.block.prev_block_hash
    return missing, walked, None


def _oldest_first(read: Read, missing: list[Multihash], walked: deque[StoredBlock]) -> Iterator[StoredBlock]:
    while missing:
        block_hash = missing.pop()
        yield walked.pop() if walked else read(block_hash)


def state_at(index: ChainIndex, read: Read, at: Position) -> ChainState:
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
    try:
        return fold(state, stored.block, stored.hash)
    except CONTENT_ERRORS as error:
        raise unexpected(stored.hash, error) from error
