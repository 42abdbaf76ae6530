"""A chain that the index cannot take in, as far as it can be read: from its head back to where it breaks."""

from __future__ import annotations

from typing import Final

import msgspec

from odf_engine.chain.chain import Dataset
from odf_engine.chain.rows import BlockRow, block_row
from odf_engine.errors import ChainRuleViolated, OdfError
from odf_engine.identity.multiformats import Multihash

MOST: Final = 1000
"""How many blocks are read at most, for people to look at."""


class Broken(msgspec.Struct, frozen=True):
    """What can be read of a chain.

    Attributes:
        rows: oldest first.
        number: of the block that cannot be read, where it is known.
        block: its hash; empty when not even the head is known.
        error: what is wrong; None when there is more, and it was not looked at.
    """

    rows: list[BlockRow]
    number: int | None
    block: str
    error: OdfError | None


def walk_back(dataset: Dataset, most: int = MOST) -> Broken:
    """Reads blocks from the head on, at most so many."""
    rows: list[BlockRow] = []
    number: int | None = None
    at: Multihash | None = None
    try:
        at = dataset.head()
        while at is not None and len(rows) < most:
            stored = dataset.block(at)
            if number is not None and stored.block.sequence_number != number:
                problem = f"number {number} comes here, not {stored.block.sequence_number}"
                raise ChainRuleViolated("sequence-number", problem, block=str(at))
            rows.append(block_row(stored))
            number, at = stored.block.sequence_number - 1, stored.block.prev_block_hash
    except OdfError as error:
        return Broken(rows[::-1], number, "" if at is None else str(at), error)
    return Broken(rows[::-1], number, "" if at is None else str(at), None)
