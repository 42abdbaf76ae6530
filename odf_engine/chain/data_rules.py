"""Rules of the blocks that bring data: AddData and ExecuteTransform (RFC-014).

A block carries on what the data block before it ended with, so that nobody has to look further back.
"""

from __future__ import annotations

from odf_engine.chain.state import ChainState
from odf_engine.chain.violations import broken, or_none, unchanged
from odf_engine.metadata.model import AddData, ExecuteTransform, ExecuteTransformInput, MetadataBlock, kind_of

DataEvent = AddData | ExecuteTransform


def not_empty(state: ChainState, block: MetadataBlock, event: DataEvent) -> None:
    """A data block brings data, a checkpoint, a watermark or a source state."""
    carried = [event.new_data, event.new_checkpoint, event.new_watermark]
    if isinstance(event, AddData):
        carried.append(event.new_source_state)
    if all(part is None for part in carried):
        raise unchanged(block, "data-not-empty", f"{kind_of(event)} brings nothing")


def watermark(state: ChainState, block: MetadataBlock, event: DataEvent) -> None:
    """A watermark is carried on, and never goes back."""
    if state.data_watermark is not None and event.new_watermark is None:
        raise broken(
            block, "watermark", f"it does not carry {state.data_watermark}, that of the data block before"
        )
    new = event.new_watermark
    if new is not None and state.watermark is not None and new < state.watermark:
        raise broken(block, "watermark", f"the watermark went back from {state.watermark} to {new}")


def prev_offset(state: ChainState, block: MetadataBlock, event: DataEvent) -> None:
    """``prevOffset`` is the offset of the newest record."""
    if event.prev_offset != state.last_offset:
        raise broken(
            block,
            "prev-offset",
            f"it carries {or_none(event.prev_offset)} as the last offset, and that is "
            f"{or_none(state.last_offset)}",
        )


def offset_sequence(state: ChainState, block: MetadataBlock, event: DataEvent) -> None:
    """Offsets have no gap and no overlap."""
    if event.new_data is None:
        return
    expected = 0 if event.prev_offset is None else event.prev_offset + 1
    start = event.new_data.offset_interval.start
    if start != expected:
        raise broken(block, "offset-sequence", f"its records start at offset {start} and not at {expected}")


def offset_interval(state: ChainState, block: MetadataBlock, event: DataEvent) -> None:
    """A slice ends where it starts, or later."""
    if event.new_data is None:
        return
    interval = event.new_data.offset_interval
    if interval.end < interval.start:
        raise broken(
            block, "offset-interval", f"its records end at offset {interval.end}, before {interval.start}"
        )


def schema_before_data(state: ChainState, block: MetadataBlock, event: DataEvent) -> None:
    """Data follows a SetDataSchema."""
    if event.new_data is not None and not state.has_schema:
        raise broken(block, "schema-before-data", "it brings data, and no SetDataSchema came before")


def prev_checkpoint(state: ChainState, block: MetadataBlock, event: DataEvent) -> None:
    """``prevCheckpoint`` is the checkpoint of the data block before."""
    expected = None if state.last_checkpoint is None else state.last_checkpoint.physical_hash
    if event.prev_checkpoint != expected:
        raise broken(
            block,
            "prev-checkpoint",
            f"it carries {or_none(event.prev_checkpoint)} as the last checkpoint, and that is "
            f"{or_none(expected)}",
        )


def changes_something(state: ChainState, block: MetadataBlock, event: DataEvent) -> None:
    """A data block differs from the one before it in something besides what it carries on."""
    checkpoint = None if event.new_checkpoint is None else event.new_checkpoint.physical_hash
    changed = (
        event.new_data is not None
        or checkpoint != event.prev_checkpoint
        or event.new_watermark != state.data_watermark
    )
    if isinstance(event, AddData):
        changed = changed or event.new_source_state != state.data_source_state
    else:
        changed = changed or any(_advances(item) for item in event.query_inputs)
    if not changed:
        raise unchanged(block, "data-changes-something", f"{kind_of(event)} repeats what is known already")


# --- ExecuteTransform --------------------------------------------------------------------------


def transform_inputs(state: ChainState, block: MetadataBlock, event: ExecuteTransform) -> None:
    """The inputs are those of the transform, in its order."""
    if state.transform is not None:
        expected = state.inputs()
    elif state.last_inputs is not None:
        expected = [item.dataset_id for item in state.last_inputs]
    elif "SetTransform" in state.not_understood:
        return
    else:
        raise broken(block, "transform-inputs", "no SetTransform came before")
    if [item.dataset_id for item in event.query_inputs] != expected:
        raise broken(
            block, "transform-inputs", "its inputs are not those of the transform, each once and in its order"
        )


def transform_intervals(state: ChainState, block: MetadataBlock, event: ExecuteTransform) -> None:
    """Each input goes on where the transaction before it ended."""
    before = {item.dataset_id: item for item in state.last_inputs or ()}
    for item in event.query_inputs:
        problem = _interval_problem(before.get(item.dataset_id), item)
        if problem is not None:
            raise broken(block, "transform-intervals", f"input {item.dataset_id}: {problem}")


def _interval_problem(before: ExecuteTransformInput | None, item: ExecuteTransformInput) -> str | None:
    block, offset = None, None
    if before is not None:
        block = before.new_block_hash or before.prev_block_hash
        offset = before.prev_offset if before.new_offset is None else before.new_offset
    if item.prev_block_hash != block:
        return f"prevBlockHash is {or_none(item.prev_block_hash)} and not {or_none(block)}"
    if item.prev_offset != offset:
        return f"prevOffset is {or_none(item.prev_offset)} and not {or_none(offset)}"
    if item.new_block_hash is not None and item.new_block_hash == item.prev_block_hash:
        return "newBlockHash is prevBlockHash: an input that does not advance has no newBlockHash"
    if item.new_offset is None:
        return None
    if item.new_block_hash is None:
        return "it has a newOffset and no newBlockHash"
    if item.prev_offset is not None and item.new_offset <= item.prev_offset:
        return f"newOffset {item.new_offset} is not after prevOffset {item.prev_offset}"
    return None


def _advances(item: ExecuteTransformInput) -> bool:
    return item.new_block_hash is not None or item.new_offset is not None
