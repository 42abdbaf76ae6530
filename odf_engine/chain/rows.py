"""What lists show of blocks and slices."""

from __future__ import annotations

from typing import Any

import msgspec

from odf_engine.chain.state import ChainState, count
from odf_engine.chain.summaries import summarise
from odf_engine.identity.multiformats import Multihash
from odf_engine.metadata import model
from odf_engine.metadata.timestamp import Timestamp


class StoredBlock(msgspec.Struct, frozen=True):
    """A block as it is stored: ``size`` bytes of manifest ``version``.

    ``unknown`` names what in it comes from a newer specification.
    """

    hash: Multihash
    block: model.MetadataBlock
    version: int
    size: int
    unknown: tuple[str, ...] = ()


class BlockRow(msgspec.Struct, frozen=True):
    """A block as a list shows it; ``rows`` are the records it added, ``size`` the block's bytes."""

    sequence_number: int
    hash: Multihash
    system_time: Timestamp
    kind: str
    rows: int
    summary: str
    size: int


class SliceRow(msgspec.Struct, frozen=True):
    """A slice of data: offsets ``start`` to ``end``, both inclusive, and its file's hashes and size."""

    sequence_number: int
    start: int
    end: int
    physical_hash: Multihash
    logical_hash: Multihash
    size: int
    system_time: Timestamp


def block_row(stored: StoredBlock, before: ChainState | None = None) -> BlockRow:
    """The block as a list shows it; ``before`` is what its chain amounted to without it."""
    event: Any = stored.block.event
    return BlockRow(
        sequence_number=stored.block.sequence_number,
        hash=stored.hash,
        system_time=stored.block.system_time,
        kind=model.kind_of(event),
        rows=count(getattr(event, "new_data", None)),
        summary=summarise(event, before),
        size=stored.size,
    )


def slice_row(stored: StoredBlock) -> SliceRow | None:
    """The slice that the block added, if it added one."""
    data: model.DataSlice | None = getattr(stored.block.event, "new_data", None)
    if data is None:
        return None
    return SliceRow(
        sequence_number=stored.block.sequence_number,
        start=data.offset_interval.start,
        end=data.offset_interval.end,
        physical_hash=data.physical_hash,
        logical_hash=data.logical_hash,
        size=data.size,
        system_time=stored.block.system_time,
    )
