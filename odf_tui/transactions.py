"""Transactions of derivative datasets as their blocks tell of them."""

from __future__ import annotations

from typing import Literal

from odf_engine.chain.block_summary import StoredBlock
from odf_engine.chain.dataset import Dataset
from odf_engine.errors import OdfError
from odf_engine.identity.did import DatasetId
from odf_engine.identity.multiformats import Multihash
from odf_engine.metadata.model import ExecuteTransform, ExecuteTransformInput, SetTransform
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace
from odf_tui.chain_state import Part, Transaction
from odf_tui.definition import query_facts


def transaction_of(workspace: Workspace, entry: DatasetEntry, stored: StoredBlock) -> Transaction | None:
    """What a block says of a transaction; None for a block of another kind.

    Raises:
        OdfError: the dataset's chain cannot be read.
    """
    event = stored.block.event
    if not isinstance(event, ExecuteTransform):
        return None
    entries = {each.id: each for each in workspace.datasets()}
    transform = _transform_at(entry.dataset, stored.block.sequence_number)
    aliases = {item.dataset_ref: item.alias for item in transform.inputs} if transform else {}
    data, checkpoint = event.new_data, event.new_checkpoint
    return Transaction(
        parts=tuple(_part(entries, item, aliases.get(str(item.dataset_id))) for item in event.query_inputs),
        rows=None if data is None else (data.offset_interval.start, data.offset_interval.end),
        size=0 if data is None else data.size,
        watermark=None if event.new_watermark is None else str(event.new_watermark),
        state=None if checkpoint is None else checkpoint.size,
        kept=checkpoint is not None and checkpoint.physical_hash == event.prev_checkpoint,
        query=tuple(query_facts(transform.transform)) if transform else (),
        standing=_standing(entry.dataset, event, stored.block.sequence_number),
    )


def _standing(dataset: Dataset, event: ExecuteTransform, number: int) -> Literal["", "flushed", "rebuilt"]:
    """Why there was a transaction in which no input moved (see ``odf_engine.transform.query_migration``)."""
    if any(item.new_block_hash is not None or item.new_offset is not None for item in event.query_inputs):
        return ""
    before = dataset.list_blocks(1, before=number)
    return "rebuilt" if before and before[0].kind == "SetTransform" else "flushed"


def _transform_at(dataset: Dataset, number: int) -> SetTransform | None:
    """The query in force at a block."""
    rows = dataset.list_blocks(1, before=number, kinds={"SetTransform"})
    event = dataset.block(rows[0].hash).block.event if rows else None
    return event if isinstance(event, SetTransform) else None


def _part(entries: dict[DatasetId, DatasetEntry], item: ExecuteTransformInput, alias: str | None) -> Part:
    entry = entries.get(item.dataset_id)
    name = str(item.dataset_id if entry is None else entry.alias)
    first = 0 if item.prev_offset is None else item.prev_offset + 1
    return Part(
        dataset=str(item.dataset_id),
        name=name,
        alias=alias or name,
        rows=None if item.new_offset is None else (first, item.new_offset),
        block=number_of(entry, item.new_block_hash or item.prev_block_hash),
        after=number_of(entry, item.prev_block_hash),
        here=entry is not None,
    )


def number_of(entry: DatasetEntry | None, block: Multihash | None) -> int | None:
    """The number of a block, if the chain holds it."""
    if entry is None or block is None:
        return None
    try:
        held = entry.dataset.contains_block(block)
        return entry.dataset.block(block).block.sequence_number if held else None
    except OdfError:
        return None
