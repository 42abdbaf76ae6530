"""Resolves AS AT: the version of a dataset at a block or a system time."""

from __future__ import annotations

from itertools import chain, repeat
from typing import Final

import msgspec

from odf_engine.chain.block_summary import BlockSummary
from odf_engine.chain.dataset import Dataset
from odf_engine.errors import Conflict, NotFound, UsageError
from odf_engine.identity.multiformats import Multihash
from odf_engine.metadata.timestamp import Timestamp, looks_like_time, parse_user_time
from odf_engine.rows import PinnedVersion
from odf_engine.workspace.dataset_summary import DatasetEntry

_DIGITS: Final = 7  # more digits are the beginning of a hash
_FIRST_PAGE: Final = 8
_PAGE: Final = 1000


def resolve_as_at(entry: DatasetEntry, as_at: str | None = None) -> PinnedVersion:
    """Resolve a version of a dataset.

    Args:
        entry: the dataset.
        as_at: a system time as users write it, for the newest block at that time; or a block: its
            number; or a reference or a hash of a stored block, also of an earlier history, as in
            :meth:`odf_engine.chain.dataset.Dataset.find_stored_block`. None: the newest block.

    Raises:
        UsageError: the time is malformed, or before the first block.
        NotFound: there is no such block, the chain has no blocks, or a block of an earlier history is
            missing.
    """
    newest = _block_before(entry.dataset, None)
    if newest is None:
        raise NotFound(f"{entry.alias} has no blocks")
    dataset, block = (entry.dataset, newest) if as_at is None else _find_block(entry, newest, as_at)
    offset = _last_offset(dataset, block.sequence_number)
    return PinnedVersion(
        dataset=str(entry.id),
        name=str(entry.alias),
        block=str(block.hash),
        sequence_number=block.sequence_number,
        system_time=str(block.system_time),
        last_offset=offset,
        head=block.hash == newest.hash,
        in_chain=dataset is entry.dataset,
        history="" if dataset is entry.dataset else _reference_name(entry.dataset, as_at or ""),
    )


def _reference_name(dataset: Dataset, text: str) -> str:
    name = text.strip().removeprefix("refs/")
    return name if name in dataset.references() or name in dataset.tag_names() else ""


def at_version(entry: DatasetEntry, version: PinnedVersion) -> DatasetEntry:
    """Return the dataset with the chain that contains a version: the current one, or an earlier history."""
    if version.in_chain:
        return entry
    return msgspec.structs.replace(entry, dataset=entry.dataset.at(Multihash.parse(version.block)))


def _find_block(entry: DatasetEntry, newest: BlockSummary, as_at: str) -> tuple[Dataset, BlockSummary]:
    """Return a block, and the dataset with the chain that contains it."""
    dataset = entry.dataset
    if looks_like_time(as_at):
        return dataset, _block_at(entry, newest, parse_user_time(as_at))
    if as_at.isdecimal() and len(as_at) <= _DIGITS:
        stored = dataset.block(int(as_at))
    else:
        stored = dataset.block(dataset.find_stored_block(as_at))
        dataset = dataset.at(stored.hash)
    previous = _block_before(dataset, stored.block.sequence_number + 1)
    if previous is None or previous.hash != stored.hash:
        raise Conflict(f"the chain of {entry.alias} changed while it was read", hint="try again")
    return dataset, previous


def _block_at(entry: DatasetEntry, newest: BlockSummary, moment: Timestamp) -> BlockSummary:
    """Return the newest block at a time. System time never decreases along a chain."""
    first, last = 0, newest.sequence_number
    if moment >= newest.system_time:
        return newest
    latest: BlockSummary | None = None
    while first <= last:
        middle = (first + last) // 2
        row = _block_before(entry.dataset, middle + 1)
        assert row is not None
        if row.system_time <= moment:
            latest, first = row, middle + 1
        else:
            last = middle - 1
    if latest is None:
        begin = _block_before(entry.dataset, 1)
        assert begin is not None
        raise UsageError(
            f"{entry.alias} has no blocks at {moment}: its first block is from {begin.system_time}",
            hint="use a later time; run odf log to list the times of its blocks",
        )
    return latest


def _block_before(dataset: Dataset, number: int | None) -> BlockSummary | None:
    rows = dataset.list_blocks(1, before=number)
    return rows[0] if rows else None


def _last_offset(dataset: Dataset, number: int) -> int | None:
    """Return the offset of the newest row in the blocks up to a number, searching backwards."""
    before: int | None = number + 1
    pages = chain([_FIRST_PAGE], repeat(_PAGE))  # nearly always one of the first blocks
    while rows := dataset.list_blocks(next(pages), before=before, kinds=("AddData", "ExecuteTransform")):
        for row in rows:
            if row.rows:
                event = dataset.block(row.hash).block.event
                return getattr(event, "new_data").offset_interval.end  # noqa: B009 (both kinds have it)
        before = rows[-1].sequence_number
    return None
