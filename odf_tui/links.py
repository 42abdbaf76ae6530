"""Where the hashes and ids in a block lead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from odf_engine.chain.block_summary import StoredBlock
from odf_engine.errors import InvalidIdentity
from odf_engine.identity.did import DatasetId
from odf_engine.metadata import model
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace
from odf_tui.chain_state import Link
from odf_tui.state import Target
from odf_tui.transactions import number_of

_Entries = Mapping[DatasetId, DatasetEntry]


def links_of(workspace: Workspace, entry: DatasetEntry, stored: StoredBlock) -> tuple[Link, ...]:
    """The texts in a block that lead on: to blocks, rows, datasets and checkpoints that are here.

    Raises:
        OdfError: the workspace cannot be read.
    """
    block, dataset = stored.block, str(entry.id)
    links: list[Link] = []
    if block.prev_block_hash is not None:
        links.append(Link(str(block.prev_block_hash), Target(dataset, "blocks", block.sequence_number - 1)))
    event = block.event
    if isinstance(event, model.AddData | model.ExecuteTransform):
        links += _data_links(dataset, event)
    if isinstance(event, model.ExecuteTransform | model.SetTransform):
        entries = {each.id: each for each in workspace.datasets()}
        links += _input_links(entries, event)
    return tuple(links)


def _data_links(dataset: str, event: model.AddData | model.ExecuteTransform) -> Iterator[Link]:
    data = event.new_data
    if data is not None:
        rows = Target(dataset, "data", data.offset_interval.start)
        yield from (Link(str(each), rows) for each in (data.logical_hash, data.physical_hash))
    if event.new_checkpoint is not None:
        yield Link(str(event.new_checkpoint.physical_hash), None)
    if event.prev_checkpoint is not None:
        yield Link(str(event.prev_checkpoint), None)


def _input_links(entries: _Entries, event: model.ExecuteTransform | model.SetTransform) -> Iterator[Link]:
    if isinstance(event, model.SetTransform):
        for each in event.inputs:
            if _as_id(each.dataset_ref) in entries:
                yield Link(each.dataset_ref, Target(str(_as_id(each.dataset_ref)), "datasets"))
        return
    for item in event.query_inputs:
        dataset = str(item.dataset_id)
        entry = entries.get(item.dataset_id)
        if entry is not None:
            yield Link(dataset, Target(dataset, "datasets"))
        for block in (item.prev_block_hash, item.new_block_hash):
            number = number_of(entry, block)
            if number is not None:
                yield Link(str(block), Target(dataset, "blocks", number))


def _as_id(text: str) -> DatasetId | None:
    try:
        return DatasetId.parse(text)
    except InvalidIdentity:
        return None
