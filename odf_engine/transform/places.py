"""Places in the chain of an input: where a transaction begins and ends, and what the input was like there."""

from __future__ import annotations

from typing import Final

import msgspec

from odf_engine.chain.chain import Dataset
from odf_engine.chain.state import ChainState
from odf_engine.errors import BadData, Conflict, NotFound, Unsupported
from odf_engine.identity.multiformats import Multihash
from odf_engine.metadata.model import (
    AddData,
    ExecuteTransform,
    ExecuteTransformInput,
    SetDataSchema,
    Watermark,
)
from odf_engine.metadata.timestamp import Timestamp

_DATA_KINDS: Final = ("AddData", "ExecuteTransform")
_MOST_SCHEMAS: Final = 1000
_MOST_AT_ONCE: Final = 1000


class Diverged(Conflict):
    """An input's history is not the one that the dataset was made from."""


class Place(msgspec.Struct, frozen=True):
    """A place in an input's chain: a block, and what data there was up to it."""

    block: Multihash
    sequence_number: int
    offset: int | None
    watermark: Timestamp | None


def last_place(dataset: Dataset, alias: str, last: ExecuteTransformInput | None) -> Place | None:
    """Where a transaction left an input."""
    if last is None:
        return None
    offset = last.prev_offset if last.new_offset is None else last.new_offset
    return place_of(dataset, alias, last.new_block_hash or last.prev_block_hash, offset)


def place_of(dataset: Dataset, alias: str, block: Multihash | None, offset: int | None) -> Place | None:
    """A place in an input's chain that a block of the derivative names; None for none."""
    if block is None:
        return None
    number = _number_of(dataset, block)
    if number is None:
        raise Diverged(
            f"the history of input '{alias}' is not the one that this dataset was made from",
            where=f"block {block} of {alias}",
            hint="the input was reset or replaced, or what is here is older; to make this dataset anew "
            "from what is here: odf pull NAME --reset-on-divergence",
        )
    return Place(block, number, offset, _data_at(dataset, number)[1])


def check_offset(dataset: Dataset, alias: str, place: Place | None) -> None:
    """Whether the offset of a place is the one that its block says.

    Raises:
        BadData: it is another one.
    """
    if place is None:
        return
    offset = _data_at(dataset, place.sequence_number)[0]
    if offset != place.offset:
        raise BadData(
            f"input '{alias}' is said to end at offset {place.offset}, and ended at {offset} at that block",
            where=f"block {place.block} of {alias}",
        )


def _number_of(dataset: Dataset, block: Multihash) -> int | None:
    """The number of a block of the chain; None when the chain does not have it."""
    try:
        number = dataset.block(block).block.sequence_number
        found = dataset.page(1, before=number + 1)
    except NotFound:
        return None
    return number if found and found[0].hash == block else None


def _data_at(dataset: Dataset, number: int) -> tuple[int | None, Timestamp | None]:
    """The last offset and the watermark after block ``number``."""
    newest = dataset.page(1, before=number + 1, kinds=_DATA_KINDS)
    if not newest:
        return None, None
    event = dataset.block(newest[0].hash).block.event
    assert isinstance(event, AddData | ExecuteTransform)
    offset = event.prev_offset if event.new_data is None else event.new_data.offset_interval.end
    return offset, event.new_watermark


def end_of_transaction(dataset: Dataset, state: ChainState, begin: Place | None, max_rows: int) -> Place:
    """How far the transaction goes in this input."""
    number = state.sequence_number
    first = 0 if begin is None or begin.offset is None else begin.offset + 1
    for row in dataset.slices(first, first):
        number = min([number, *_before_schemas(dataset, row.sequence_number)])
        number = min([number, *_filling(dataset, first + max_rows - 1)])
    if begin is not None and number == begin.sequence_number:
        return begin
    block = dataset.page(1, before=number + 1)[0].hash
    return Place(block, number, *_data_at(dataset, number))


def _before_schemas(dataset: Dataset, number: int) -> list[int]:
    """The numbers of the blocks before each change of the schema after block ``number``."""
    rows = dataset.page(_MOST_SCHEMAS, kinds=("SetDataSchema",))
    return [row.sequence_number - 1 for row in rows if row.sequence_number > number]


def _filling(dataset: Dataset, offset: int) -> list[int]:
    """The number of the block with this offset, where there is one."""
    return [row.sequence_number for row in dataset.slices(offset, offset)]


def schema_at(dataset: Dataset, number: int, alias: str) -> bytes:
    """The schema that the input had after block ``number``."""
    rows = dataset.page(1, before=number + 1, kinds=("SetDataSchema",))
    return _schema_of(dataset, rows[0].hash if rows else None, alias)


def schema_then(dataset: Dataset, moment: Timestamp | None, alias: str) -> bytes:
    """The schema that the input had at a moment; the newest where none is given."""
    rows = dataset.page(_MOST_SCHEMAS, kinds=("SetDataSchema",))
    found = [row.hash for row in rows if moment is None or row.system_time <= moment]
    return _schema_of(dataset, found[0] if found else None, alias)


def _schema_of(dataset: Dataset, block: Multihash | None, alias: str) -> bytes:
    event = None if block is None else dataset.block(block).block.event
    if not isinstance(event, SetDataSchema) or event.schema is None:
        raise Unsupported(
            f"the schema of input '{alias}' is written in terms of a newer specification",
            hint="it can be read and verified, but not transformed",
        )
    return event.schema


def watermarks_between(dataset: Dataset, begin: Place | None, end: Place) -> list[Watermark]:
    """Each new watermark between two places, oldest first."""
    before = None if begin is None else begin.watermark
    if end.watermark is None or end.watermark == before:
        return []
    after = -1 if begin is None else begin.sequence_number
    found: list[Watermark] = []
    number = end.sequence_number + 1
    while number - after > 1:
        # No more than the blocks in between: a long chain before them costs nothing.
        rows = dataset.page(min(_MOST_AT_ONCE, number - after - 1), before=number, kinds=_DATA_KINDS)
        for row in rows:
            if row.sequence_number <= after:
                break
            event = dataset.block(row.hash).block.event
            assert isinstance(event, AddData | ExecuteTransform)
            if event.new_watermark is not None:
                found.append(Watermark(system_time=row.system_time, event_time=event.new_watermark))
        number = rows[-1].sequence_number if rows else after
    found.reverse()
    marks = [before, *(mark.event_time for mark in found)]
    return [mark for mark, last in zip(found, marks, strict=False) if mark.event_time != last]
