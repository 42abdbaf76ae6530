"""Positions in a chain and in the chains that compactions replaced."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from odf_engine.chain.block_summary import StoredBlock
from odf_engine.chain.compaction_record import CompactionRecord, Replacement
from odf_engine.chain.dataset import Dataset
from odf_engine.errors import NotFound, OdfError
from odf_engine.identity.multiformats import Multihash
from odf_engine.metadata.model import SourceState


class HistoryPosition(NamedTuple):
    """A block with its sequence number in a chain: the current one, or one before a compaction."""

    history: Dataset
    block: Multihash
    number: int

    @property
    def is_replaced(self) -> bool:
        """Whether the chain is one before a compaction."""
        return self.history.is_earlier


def find_position(dataset: Dataset, block: Multihash) -> HistoryPosition | None:
    """Return the position of a block in the current or a compacted chain, or None if it is in neither."""
    if (number := sequence_number(dataset, block)) is not None:
        return HistoryPosition(dataset, block, number)
    record = _replacing_record(dataset, block)
    number = None if record is None else record.number_of(block)
    if record is None or number is None:
        return None
    return HistoryPosition(dataset.at(record.header.old_head), block, number)


def _replacing_record(dataset: Dataset, block: Multihash) -> CompactionRecord | None:
    """Return a record that has replaced a block, if possible one that leads to the current chain."""
    replacements = list(_replacements(dataset, block))
    leading = (record for record, replacement in replacements if reaches_chain(dataset, replacement.block))
    return next(leading, replacements[0][0] if replacements else None)


def _replacements(dataset: Dataset, block: Multihash) -> Iterator[tuple[CompactionRecord, Replacement]]:
    """Yield the records that have replaced a block, with its replacements."""
    for record in dataset.compactions.all():
        if (number := record.number_of(block)) is not None:
            yield record, record.find_replacement(number)


def reaches_chain(dataset: Dataset, block: Multihash) -> bool:
    """Return whether the current chain contains a block, or one that has replaced it.

    After a reset, or for a branch, records of other chains remain, which contain blocks of each other.
    """
    todo, seen = [block], set[Multihash]()
    while todo:
        at = todo.pop()
        if sequence_number(dataset, at) is not None:
            return True
        if at not in seen:
            seen.add(at)
            todo += [replacement.block for _, replacement in _replacements(dataset, at)]
    return False


def sequence_number(dataset: Dataset, block: Multihash) -> int | None:
    """Return the sequence number of a block of this chain, or None if the chain does not contain it."""
    try:
        number = dataset.block(block).block.sequence_number
        blocks = dataset.list_blocks(1, before=number + 1)
    except NotFound:
        return None
    return number if blocks and blocks[0].hash == block else None


def find_branch(dataset: Dataset, block: Multihash) -> str:
    """Return the first branch or tag whose chain contains a block, or "" if there is none."""
    for name in (*dataset.branch_names(), *dataset.tag_names()):
        with suppress(OdfError):  # another branch may be readable
            if sequence_number(dataset.branch(name), block) is not None:
                return name
    return ""


def find_replacement(dataset: Dataset, position: HistoryPosition) -> Replacement | None:
    """Return the block that replaced a block of a compacted chain, or None if it was not replaced."""
    record = _replacing_record(dataset, position.block)
    return None if record is None else record.find_replacement(position.number)


class CurrentPosition(NamedTuple):
    """The block of the current chain with the rows of an older block.

    Attributes:
        number: its sequence number.
        is_end: whether the older block was the last one that it replaced.
    """

    number: int
    is_end: bool


def find_current_position(dataset: Dataset, position: HistoryPosition) -> CurrentPosition | None:
    """Return the block of the current chain that replaces a block, or None if the chain has no such block."""
    is_end, seen = True, set[Multihash]()
    while position.is_replaced:
        if position.block in seen:
            return None
        seen.add(position.block)
        cover = find_replacement(dataset, position)
        current = None if cover is None else find_position(dataset, cover.block)
        if cover is None or current is None:
            return None
        is_end = is_end and cover.last == position.number
        position = current
    return CurrentPosition(position.number, is_end)


def find_current_number(dataset: Dataset, block: Multihash) -> int | None:
    """Return the number of a block, or of its replacement, in the current chain, or None without one."""
    position = find_position(dataset, block)
    current = None if position is None else find_current_position(dataset, position)
    return None if current is None else current.number


def find_replaced_blocks(dataset: Dataset) -> dict[Multihash, list[StoredBlock]]:
    """Return the blocks that compactions have replaced, newest first, by the block that replaced them.

    After several compactions, a replaced block can itself have replaced others.
    """
    replaced: dict[Multihash, list[StoredBlock]] = {}
    for record in dataset.compactions.all():
        for stored in dataset.at(record.header.old_head).blocks():
            number = stored.block.sequence_number
            if number <= record.header.fork_number:
                break
            replaced.setdefault(record.find_replacement(number).block, []).append(stored)
    return replaced


def find_archived_push(dataset: Dataset, state: SourceState) -> int | None:
    """Return the block of the current chain that has the rows of a push with this state, or None.

    A merged block has only the state of its last push. The records have the others.
    """
    for record in dataset.compactions.all():
        history = dataset.at(record.header.old_head)
        number = history.find_push(state)
        if number is None or number <= record.header.fork_number:
            continue
        block = history.list_blocks(1, before=number + 1)[0].hash
        position = find_position(dataset, block)
        current = None if position is None else find_current_position(dataset, position)
        if current is not None:
            return current.number
    return None
