"""Dataset entries and summaries for lists and graphs, read from the index."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from odf_engine.chain.block_index import BlockIndex
from odf_engine.chain.compacted_history import find_current_number
from odf_engine.chain.dataset import Dataset
from odf_engine.chain.state import ChainState
from odf_engine.data.waiting import AwaitedInput, Waiting
from odf_engine.errors import InvalidIdentity, OdfError
from odf_engine.identity.did import DatasetId
from odf_engine.identity.multiformats import Multihash
from odf_engine.identity.names import DatasetAlias
from odf_engine.metadata.model import (
    DatasetKind,
    ExecuteTransformInput,
    MetadataEvent,
    decode_hook,
    encode_hook,
)
from odf_engine.metadata.resources import SourceDefinition
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.mirror.catalog import ListedHead
from odf_engine.storage.refs import HEAD, tag_name
from odf_engine.workspace.waiting import read_waiting


class DatasetEntry(msgspec.Struct, frozen=True):
    """A dataset of a workspace, with its id and its name.

    Attributes:
        problem: why the name cannot be read; ``alias`` is then derived from the id.
        inputs: the branch that new transactions read of the inputs that have it, or "" for the heads.
    """

    id: DatasetId
    alias: DatasetAlias
    dataset: Dataset
    problem: OdfError | None = None
    inputs: str = ""

    @property
    def branch(self) -> str:
        """The branch or the tag whose chain this is, or "" for the head."""
        reference = self.dataset.reference
        return "" if reference == HEAD else tag_name(reference) or reference

    def on_branch(self, name: str, *, moves: bool = False) -> DatasetEntry:
        """Return the dataset with the chain of a branch or a tag; itself if the name is empty.

        Args:
            name: the name of the branch.
            moves: whether blocks will be appended to the chain.

        Raises:
            NotFound: there is no such branch.
            UsageError: invalid name of a branch.
            Conflict: it is a tag, and ``moves`` is set.
        """
        if not name:
            return self
        self.dataset.refresh_branches()
        dataset = self.dataset.branch(name)
        if moves:
            dataset.require_movable()
        return replace(self, dataset=dataset)


class NewDataset(msgspec.Struct, frozen=True):
    """A dataset that is ready to be created; its first event is the Seed.

    Attributes:
        private: the definition, if its polling source stays outside the chain.
    """

    id: DatasetId
    alias: DatasetAlias
    events: list[MetadataEvent]
    private: SourceDefinition | None = None


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A dataset in lists and graphs.

    Attributes:
        kind: Root if the chain cannot be read.
        head: None if the chain cannot be read; the following fields are then empty.
        size: bytes of data.
        last_pulled: system time of the newest data block.
        polls: whether it has a polling source.
        push_sources: names of the active push sources.
        problem: why the dataset cannot be read, or its name.
        last_offset: offset of the newest row.
        readable: whether queries can read it, see :func:`is_readable`.
        checkpoint: hash of the newest checkpoint, or None if it has none.
        consumed: for each input, the last offset that was processed.
        last_blocks: for each input, the last block that was processed.
        diverged: inputs whose chains no longer contain these blocks, since they were reset or replaced, but
            not compacted. The dataset must be rebuilt (see :mod:`odf_engine.derive.run`).
        compared: the heads of the inputs that ``diverged`` was determined with.
        branches: names of the branches.
        waiting: what its results wait for after its newest transaction, see :func:`find_waiting`.
    """

    id: DatasetId
    name: str
    kind: DatasetKind
    head: Multihash | None
    blocks: int
    records: int
    size: int
    watermark: Timestamp | None
    last_pulled: Timestamp | None
    inputs: list[DatasetId]
    folder: Path
    polls: bool = False
    push_sources: list[str] = []
    problem: str | None = None
    last_offset: int | None = None
    consumed: list[int | None] = []
    last_blocks: list[Multihash | None] = []
    diverged: list[DatasetId] = []
    compared: list[Multihash | None] | None = None
    branches: list[str] = []
    readable: bool = False
    checkpoint: Multihash | None = None
    waiting: Waiting | None = None


_LOCAL: Final = ("id", "name", "folder", "problem", "diverged", "compared", "waiting")
"""What a list of heads in a store does not have: it depends on the machine or on other datasets."""
_REQUIRED: Final = dict.fromkeys(("watermark", "last_pulled")) | dict.fromkeys(
    ("blocks", "records", "size"), 0
)


def list_summary(summary: Summary) -> ListedHead:
    """Return the entry of a dataset in the list of heads of a store."""
    fields = msgspec.to_builtins(replace(summary, folder=Path()), enc_hook=_encode)
    short = {name: value for name, value in fields.items() if value and name not in _LOCAL}
    return ListedHead(str(summary.head), msgspec.Raw(msgspec.json.encode(short)))


def read_listed(entry: DatasetEntry, listed: ListedHead) -> Summary | None:
    """Return the summary in the list of heads of a store, or None if it cannot be read."""
    own = {"id": str(entry.id), "name": str(entry.alias), "folder": "", "inputs": []}
    try:
        fields = _REQUIRED | own | msgspec.json.decode(listed.summary, type=dict[str, Any])
        summary = msgspec.convert(fields, Summary, dec_hook=_decode)
    except (msgspec.MsgspecError, InvalidIdentity, ValueError, TypeError):
        return None
    return replace(summary, folder=entry.dataset.folder)


def _encode(value: object) -> str:
    return "" if isinstance(value, Path) else encode_hook(value)


def _decode(kind: type, value: Any) -> Any:
    return Path(value) if kind is Path else decode_hook(kind, value)


def is_readable(state: ChainState) -> bool:
    """Return whether queries can read a dataset: it has rows, or declares columns and has a watermark.

    A dataset with a watermark and no rows is an empty table that is complete up to the watermark.
    """
    return state.last_offset is not None or (state.watermark is not None and state.has_schema)


def find_waiting(summary: Summary, others: Mapping[DatasetId, Summary]) -> Waiting | None:
    """Return what a derivative dataset waits for, or None if it waits for nothing or has input to process."""
    inputs = [others[upstream] for upstream in summary.inputs if upstream in others]
    unreadable = [upstream for upstream in inputs if not upstream.readable and upstream.problem is None]
    if unreadable:
        return Waiting([_awaited_input(upstream) for upstream in unreadable])
    return None if is_behind(summary, others) else summary.waiting


def _awaited_input(input: Summary) -> AwaitedInput:
    if input.watermark is None:
        return AwaitedInput(input.name, None, "no-rows")
    return AwaitedInput(input.name, str(input.watermark), "no-columns")


def is_behind(summary: Summary, others: Mapping[DatasetId, Summary]) -> bool:
    """Return whether a derivative dataset has not processed all rows or the watermark of its inputs."""
    inputs = [others[upstream] for upstream in summary.inputs if upstream in others]
    if not inputs or len(inputs) < len(summary.inputs) or not all(upstream.readable for upstream in inputs):
        return False  # no input can be processed, or not yet
    consumed = summary.consumed or [None] * len(inputs)
    if any(upstream.last_offset != offset for upstream, offset in zip(inputs, consumed, strict=True)):
        return True
    # The watermark of a result can be earlier than that of completely processed inputs, such as for lateness.
    if len(summary.last_blocks) == len(inputs) and all(
        upstream.head == block for upstream, block in zip(inputs, summary.last_blocks, strict=True)
    ):
        return False
    watermarks = [upstream.watermark for upstream in inputs if upstream.watermark is not None]
    return len(watermarks) == len(inputs) and (
        summary.watermark is None or min(watermarks) > summary.watermark
    )


def _last_inputs(state: ChainState) -> list[ExecuteTransformInput | None]:
    """Return the item of the last transaction for each input of the current query."""
    last = {item.dataset_id: item for item in state.last_inputs or ()}
    return [last.get(dataset_id) for dataset_id in state.inputs()]


def summarize(
    entries: Sequence[DatasetEntry],
    index: BlockIndex,
    known: MutableMapping[DatasetId, Summary],
    listed: Mapping[DatasetId, Summary] = {},
) -> list[Summary]:
    """Return the summaries of the entries, in their order, with one query to the index.

    Args:
        entries: the datasets.
        index: the index of blocks.
        known: cache of summaries, updated; a summary is reused while name and head are unchanged.
        listed: summaries in the store, of datasets that this machine has not read.
    """
    heads: dict[DatasetId, Multihash | OdfError | None] = {}
    for entry in entries:
        if entry.id in listed:
            known[entry.id] = listed[entry.id]
            heads[entry.id] = listed[entry.id].head
            continue
        try:
            heads[entry.id] = entry.dataset.head()
        except OdfError as error:
            heads[entry.id] = error
    changed = [entry for entry in entries if not _is_current(known.get(entry.id), entry, heads[entry.id])]
    missing_heads = [head for entry in changed if isinstance(head := heads[entry.id], Multihash)]
    states = index.states(missing_heads) if missing_heads else {}
    for entry in changed:
        known[entry.id] = _summarize_entry(entry, heads[entry.id], states)
    datasets = {entry.id: entry.dataset for entry in entries if entry.id not in listed}
    for entry in entries:
        if entry.id in listed:
            continue
        if known[entry.id].inputs:
            known[entry.id] = _with_divergence(known[entry.id], datasets, heads)
        with suppress(OdfError):  # the head of such a dataset cannot be read either
            if (names := entry.dataset.branch_names()) != known[entry.id].branches:
                known[entry.id] = replace(known[entry.id], branches=names)
        if known[entry.id].inputs:  # Read each time: it is stored after the head has moved.
            waiting = read_waiting(known[entry.id].folder, known[entry.id].checkpoint)
            if waiting != known[entry.id].waiting:
                known[entry.id] = replace(known[entry.id], waiting=waiting)
    return [known[entry.id] for entry in entries]


def _with_divergence(
    summary: Summary,
    datasets: Mapping[DatasetId, Dataset],
    heads: Mapping[DatasetId, Multihash | OdfError | None],
) -> Summary:
    """Return the summary with ``diverged`` for the current heads of its inputs."""
    input_heads = [heads.get(upstream) for upstream in summary.inputs]
    current_heads = [head if isinstance(head, Multihash) else None for head in input_heads]
    if current_heads == summary.compared:
        return summary
    diverged = [
        source
        for source, head, block in zip(summary.inputs, current_heads, summary.last_blocks, strict=True)
        if source in datasets
        and head is not None
        and block is not None
        and not _contains_block(datasets[source], block)
    ]
    return replace(summary, diverged=diverged, compared=current_heads)


def _contains_block(dataset: Dataset, block: Multihash) -> bool:
    try:
        return dataset.contains_block(block) or find_current_number(dataset, block) is not None
    except OdfError:
        return True  # a damaged input has its own problem


def _is_current(old: Summary | None, entry: DatasetEntry, head: object) -> bool:
    return old is not None and old.head is not None and old.head == head and old.name == str(entry.alias)


def _summarize_entry(
    entry: DatasetEntry, head: Multihash | OdfError | None, states: dict[Multihash, ChainState]
) -> Summary:
    state, problem = None, entry.problem.format_line if entry.problem else None
    try:
        if isinstance(head, OdfError):
            raise head
        # If the head is not indexed, this indexes it.
        state = (states.get(head) if head else None) or entry.dataset.state()
    except OdfError as error:
        problem = error.format_line
    last = _last_inputs(state) if state else []
    return Summary(
        id=entry.id,
        name=str(entry.alias),
        kind=state.kind if state else DatasetKind.Root,
        head=state.head if state else None,
        blocks=state.blocks if state else 0,
        records=state.records if state else 0,
        size=state.data_size + state.linked.size if state else 0,
        watermark=state.watermark if state else None,
        last_pulled=state.last_data_time if state else None,
        inputs=state.inputs() if state else [],
        folder=entry.dataset.folder,
        polls=bool(state and (state.polling_source or "SetPollingSource" in state.not_understood)),
        push_sources=list(state.push_sources) if state else [],
        problem=problem,
        last_offset=state.last_offset if state else None,
        readable=state is not None and is_readable(state),
        checkpoint=state.last_checkpoint.physical_hash if state and state.last_checkpoint else None,
        consumed=[None if upstream is None else upstream.last_offset for upstream in last],
        last_blocks=[None if upstream is None else upstream.last_block for upstream in last],
    )
