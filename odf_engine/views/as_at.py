"""Resolves AS AT: a dataset as it was at a block or a system time."""

from __future__ import annotations

from itertools import chain, repeat
from typing import Final

import msgspec

from odf_engine.chain.block_summary import BlockSummary
from odf_engine.chain.dataset import Dataset
from odf_engine.errors import NotFound, UsageError
from odf_engine.metadata.timestamp import Timestamp, looks_like_time, parse_user_time
from odf_engine.workspace.dataset_summary import DatasetEntry

_DIGITS: Final = 7  # of a number: the beginning of a hash may be digits too
_FIRST_PAGE: Final = 8
_PAGE: Final = 1000


class PinnedVersion(msgspec.Struct, frozen=True):
    """A dataset as it was at a block.

    Attributes:
        dataset: its id.
        name: how the workspace calls it.
        block: the hash of the block, in base16.
        sequence_number: of the block.
        system_time: of the block, as RFC 3339.
        last_offset: of the newest record up to the block; None when there was none yet.
        head: whether it is the newest block there is.
    """

    dataset: str
    name: str
    block: str
    sequence_number: int
    system_time: str
    last_offset: int | None
    head: bool

    @property
    def scan_offset(self) -> int:
        """``last_offset`` as :meth:`odf_engine.views.scan.Scan.of_dataset` takes it: -1 if there is none."""
        return -1 if self.last_offset is None else self.last_offset


def resolve_as_at(entry: DatasetEntry, as_at: str | None = None) -> PinnedVersion:
    """Where the history of a dataset stood.

    Args:
        entry: the dataset.
        as_at: a system time as people write it, which means the newest block of then; or a block: its
            number, or its hash as :meth:`odf_engine.chain.dataset.Dataset.find_block` takes it. None: the
            newest block.

    Raises:
        UsageError: the time is none, or before the first block.
        NotFound: there is no such block in its chain, or none at all.
    """
    dataset = entry.dataset
    newest = _block_before(dataset, None)
    if newest is None:
        raise NotFound(f"{entry.alias} has no blocks")
    found = newest if as_at is None else _named(entry, newest, as_at)
    offset = _last_offset(dataset, found.sequence_number)
    return PinnedVersion(
        dataset=str(entry.id),
        name=str(entry.alias),
        block=str(found.hash),
        sequence_number=found.sequence_number,
        system_time=str(found.system_time),
        last_offset=offset,
        head=found.hash == newest.hash,
    )


def _named(entry: DatasetEntry, newest: BlockSummary, as_at: str) -> BlockSummary:
    if looks_like_time(as_at):
        return _at(entry, newest, parse_user_time(as_at))
    if as_at.isdecimal() and len(as_at) <= _DIGITS:
        stored = entry.dataset.block(int(as_at))
    else:
        stored = entry.dataset.block(entry.dataset.find_block(as_at))
    found = _block_before(entry.dataset, stored.block.sequence_number + 1)
    if found is None or found.hash != stored.hash:  # it is there, from before a reset or another history
        raise NotFound(
            f"block {stored.hash} is not part of {entry.alias} as it is now",
            hint="odf log shows all blocks that are",
        )
    return found


def _at(entry: DatasetEntry, newest: BlockSummary, moment: Timestamp) -> BlockSummary:
    """The newest block of a moment: system time never goes back along a chain."""
    first, last = 0, newest.sequence_number
    if moment >= newest.system_time:
        return newest
    found: BlockSummary | None = None
    while first <= last:
        middle = (first + last) // 2
        row = _block_before(entry.dataset, middle + 1)
        assert row is not None
        if row.system_time <= moment:
            found, first = row, middle + 1
        else:
            last = middle - 1
    if found is None:
        begin = _block_before(entry.dataset, 1)
        assert begin is not None
        raise UsageError(
            f"{entry.alias} begins at {begin.system_time}: nothing was known of it at {moment}",
            hint="ask for a later time; odf log shows the times of all blocks",
        )
    return found


def _block_before(dataset: Dataset, number: int | None) -> BlockSummary | None:
    rows = dataset.list_blocks(1, before=number)
    return rows[0] if rows else None


def _last_offset(dataset: Dataset, number: int) -> int | None:
    """The newest record of the blocks up to a number, looked for from there backwards."""
    before: int | None = number + 1
    pages = chain([_FIRST_PAGE], repeat(_PAGE))  # nearly always it is one of the first
    while rows := dataset.list_blocks(next(pages), before=before, kinds=("AddData", "ExecuteTransform")):
        for row in rows:
            if row.rows:
                event = dataset.block(row.hash).block.event
                return getattr(event, "new_data").offset_interval.end  # noqa: B009 (both kinds have it)
        before = rows[-1].sequence_number
    return None
