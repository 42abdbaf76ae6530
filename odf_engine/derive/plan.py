"""Plans the next transaction: intervals of blocks and offsets for each input."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple

from msgspec.structs import replace as structs_replace

from odf_engine.base.config import parse_duration
from odf_engine.chain.block_summary import SliceSummary
from odf_engine.chain.compacted_history import (
    HistoryPosition,
    find_branch,
    find_current_position,
    find_position,
    find_replacement,
)
from odf_engine.chain.dataset import Dataset
from odf_engine.chain.normal_form import allowed_lateness
from odf_engine.chain.state import ChainState, Kind, classify_transaction, contains_opaque
from odf_engine.data.arrow_schema import encode_schema
from odf_engine.data.odf_schema import declared_types
from odf_engine.errors import BadData, Conflict, MalformedBlock, NotFound, Unsupported
from odf_engine.identity.did import DatasetId
from odf_engine.identity.multiformats import Multihash
from odf_engine.metadata.model import (
    AddData,
    DatasetVocabulary,
    ExecuteTransform,
    ExecuteTransformInput,
    OffsetInterval,
    SetDataSchema,
    SetTransform,
    TransformInput,
    Watermark,
)
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.storage.refs import HEAD
from odf_engine.workspace.dataset_summary import DatasetEntry, is_readable
from odf_engine.workspace.workspace import Workspace

_DATA_KINDS: Final = ("AddData", "ExecuteTransform")
_MAX_SCHEMAS: Final = 1000
_MAX_BLOCKS: Final = 1000


class Diverged(Conflict):
    """An input's chain does not contain the blocks that the dataset was derived from."""


class InputBehind(Diverged):
    """An input's chain may be a beginning of the one that the dataset was derived from."""


class ChainPosition(NamedTuple):
    """A position in an input's chain: a block, with the last offset and the watermark up to it.

    Attributes:
        history: the chain that has the block: the current one, or one before a compaction.
        block, sequence_number: the block in it.
        offset, watermark: the offset and watermark of the last data block up to it.
    """

    history: Dataset
    block: Multihash
    sequence_number: int
    offset: int | None
    watermark: Timestamp | None

    @property
    def in_history(self) -> HistoryPosition:
        """The block in its chain."""
        return HistoryPosition(self.history, self.block, self.sequence_number)


def last_consumed_position(
    entry: DatasetEntry, alias: str, last: ExecuteTransformInput | None
) -> ChainPosition | None:
    """Return the position in an input after its last transaction, or None before the first."""
    return None if last is None else position_of_block(entry, alias, last.last_block, last.last_offset)


def position_of_block(
    entry: DatasetEntry, alias: str, block: Multihash | None, offset: int | None
) -> ChainPosition | None:
    """Return the position of the input block that a derivative block refers to, or None without one.

    Raises:
        InputBehind: the input's chain may end before the block.
        Diverged: neither the input's chain nor a compacted one contains the block.
    """
    if block is None:
        return None
    dataset = entry.dataset
    position = find_position(dataset, block)
    if position is None or (position.is_replaced and find_current_position(dataset, position) is None):
        raise _missing_block_error(entry, alias, block, offset)
    watermark = _offset_and_watermark(position.history, position.number)[1]
    return ChainPosition(position.history, block, position.number, offset, watermark)


def _missing_block_error(entry: DatasetEntry, alias: str, block: Multihash, offset: int | None) -> Diverged:
    """Return the error for a block that the input's chain lacks; ``offset`` is the last one up to it."""
    dataset, block_text = entry.dataset, f"block {block} of {alias}"
    if dataset.reference != HEAD:
        return Diverged(
            f"'{dataset.reference}' of input '{alias}' lacks blocks that this branch was derived from",
            where=block_text,
            hint=f"create both branches again: odf branch {entry.alias} {dataset.reference} --force",
        )
    head = dataset.head()
    state = None if head is None else dataset.state()
    known = None if state is None else state.last_offset
    is_behind = known is None or (offset is not None and offset >= known)
    with suppress(NotFound, MalformedBlock):  # after a reset or an interrupted pull, the block is stored
        is_behind = head is None or dataset.at(block).contains_block(head)
    if is_behind:
        end = "is empty" if state is None else f"ends at block {state.sequence_number}"
        return InputBehind(
            f"input '{alias}' {end}, and blocks that this dataset was derived from are missing",
            where=block_text,
            hint=f"run odf pull {entry.alias}; if it was reset, rebuild this dataset with "
            "odf pull NAME --reset-on-divergence",
        )
    return Diverged(
        f"input '{alias}' does not have the history that this dataset was derived from",
        where=block_text,
        hint="rebuild this dataset: odf pull NAME --reset-on-divergence; the input was reset, replaced, or "
        "compacted elsewhere",
    )


def check_offset(alias: str, position: ChainPosition | None) -> None:
    """Check that the offset of a position matches the chain.

    Raises:
        BadData: the offset differs.
    """
    if position is None:
        return
    offset = _offset_and_watermark(position.history, position.sequence_number)[0]
    if offset != position.offset:
        raise BadData(
            f"input '{alias}' ends at offset {position.offset} in the dataset, but at {offset} in its "
            "own chain",
            where=f"block {position.block} of {alias}",
        )


def _offset_and_watermark(dataset: Dataset, number: int) -> tuple[int | None, Timestamp | None]:
    """Return the last offset and the watermark after block ``number``."""
    newest = dataset.list_blocks(1, before=number + 1, kinds=_DATA_KINDS)
    if not newest:
        return None, None
    event = dataset.block(newest[0].hash).block.event
    assert isinstance(event, AddData | ExecuteTransform)
    offset = event.prev_offset if event.new_data is None else event.new_data.offset_interval.end
    return offset, event.new_watermark


def end_of_transaction(
    dataset: Dataset, state: ChainState, begin: ChainPosition | None, max_rows: int
) -> ChainPosition:
    """Return the end of the transaction's interval in this input."""
    number = state.sequence_number
    first = 0 if begin is None or begin.offset is None else begin.offset + 1
    for row in dataset.slices(first, first):
        schemas = dataset.list_blocks(_MAX_SCHEMAS, kinds=("SetDataSchema",))
        later = [schema.sequence_number for schema in schemas if schema.sequence_number > row.sequence_number]
        last_rows = dataset.slices(first + max_rows - 1, first + max_rows - 1)
        ends = [*(number - 1 for number in later), *(data_slice.sequence_number for data_slice in last_rows)]
        number = min([number, *ends])
    if begin is not None:
        reached = find_current_position(dataset, begin.in_history)
        if reached is not None and reached.is_end and number <= reached.number:
            return begin
    block = dataset.list_blocks(1, before=number + 1)[0].hash
    return ChainPosition(dataset, block, number, *_offset_and_watermark(dataset, number))


def schema_at(dataset: Dataset, number: int, alias: str) -> bytes:
    """Return the schema of the input after block ``number``, as Arrow schema in FlatBuffers."""
    rows = dataset.list_blocks(1, before=number + 1, kinds=("SetDataSchema",))
    return _read_schema(dataset, rows[0].hash if rows else None, alias)


def schema_at_time(dataset: Dataset, time: Timestamp | None, alias: str) -> bytes:
    """Return the schema of the input at a system time; the latest without a time."""
    rows = dataset.list_blocks(_MAX_SCHEMAS, kinds=("SetDataSchema",))
    blocks = [row.hash for row in rows if time is None or row.system_time <= time]
    return _read_schema(dataset, blocks[0] if blocks else None, alias)


def _read_schema(dataset: Dataset, block: Multihash | None, alias: str) -> bytes:
    event = None if block is None else dataset.block(block).block.event
    if not isinstance(event, SetDataSchema) or contains_opaque(event):
        event = SetDataSchema()
    if event.odf_schema is not None:
        return encode_schema(declared_types(event.odf_schema))
    if event.schema is None:
        raise Unsupported(
            f"the schema of input '{alias}' is from a newer specification",
            hint="use a newer version of odf; the input can be read and verified",
        )
    return event.schema


def watermarks_between(dataset: Dataset, begin: ChainPosition | None, end: ChainPosition) -> list[Watermark]:
    """Return each new watermark between two positions, oldest first.

    Both positions are in the same chain, or a compaction has replaced the chain of ``begin``. Then the blocks
    up to the end of their merged block are read from the old chain, and later ones from the new chain.
    """
    before = None if begin is None else begin.watermark
    if end.watermark is None or end.watermark == before:
        return []
    watermarks: list[Watermark] = []
    after = -1
    if begin is not None:
        at = begin.in_history
        while at.block != end.block and not end.history.contains_block(at.block):
            cover = find_replacement(dataset, at)
            position = None if cover is None else find_position(dataset, cover.block)
            if cover is None or position is None:
                raise BadData("the block does not precede the end of the interval", where=f"block {at.block}")
            watermarks += _watermarks_of_blocks(at.history, at.number, cover.last)
            at = position
        after = at.number
    watermarks += _watermarks_of_blocks(end.history, after, end.sequence_number)
    previous = [before, *(watermark.event_time for watermark in watermarks)]
    return [
        watermark
        for watermark, last in zip(watermarks, previous, strict=False)
        if watermark.event_time != last
    ]


def _watermarks_of_blocks(dataset: Dataset, after: int, last: int) -> list[Watermark]:
    """Return the watermarks of the data blocks after block ``after`` up to block ``last``, oldest first."""
    watermarks: list[Watermark] = []
    number = last + 1
    while number - after > 1:
        # Never more than the blocks in between: earlier blocks of a long chain are not read.
        rows = dataset.list_blocks(min(_MAX_BLOCKS, number - after - 1), before=number, kinds=_DATA_KINDS)
        for row in rows:
            if row.sequence_number <= after:
                break
            event = dataset.block(row.hash).block.event
            assert isinstance(event, AddData | ExecuteTransform)
            if event.new_watermark is not None:
                watermarks.append(Watermark(system_time=row.system_time, event_time=event.new_watermark))
        number = rows[-1].sequence_number if rows else after
    return watermarks[::-1]


@dataclass(frozen=True)
class InputPlan:
    """The part of an input in a transaction.

    Attributes:
        entry: the input dataset.
        alias: its name in the query.
        interval: interval of blocks and offsets, as stored in the chain.
        slices: slices with the new rows, oldest first; empty without new rows.
        watermark: watermark of the input after the interval, minus its allowed lateness.
        explicit: watermarks of the blocks in the interval, with the system times of these blocks, minus the
            allowed lateness.
        vocab: column names of the input.
        schema: schema at the end of the interval, as Arrow schema in FlatBuffers.
        before: watermark at the start of the interval, minus the allowed lateness. For an input that is new
            to an existing dataset, the watermark of the dataset.
        offsets: offset interval of the new rows, both ends inclusive, or None without new rows. The first and
            the last slice may have further rows, if their blocks were merged after the interval was read.
    """

    entry: DatasetEntry
    alias: str
    interval: ExecuteTransformInput
    slices: list[SliceSummary]
    watermark: Timestamp | None
    explicit: list[Watermark]
    vocab: DatasetVocabulary
    schema: bytes
    before: Timestamp | None = None
    offsets: OffsetInterval | None = None


@dataclass(frozen=True)
class Transaction:
    """A transaction of a derivative dataset that is ready to run.

    Attributes:
        entry: the derivative dataset.
        state: state of its chain; the transaction follows its head.
        transform: the query.
        inputs: the inputs in the order of the query's inputs.
        watermark: watermark of the result: the minimum of the inputs, and not below the previous one.
        kind: ``execute`` runs the query over new input data. At a change of the query, without new input
            data, ``finish`` flushes the state of the old query, and ``rebuild`` computes the state of the new
            query from the start of the inputs.
    """

    entry: DatasetEntry
    state: ChainState
    transform: SetTransform
    inputs: list[InputPlan]
    watermark: Timestamp | None
    kind: Kind = "execute"


def plan_transaction(workspace: Workspace, entry: DatasetEntry, max_rows: int) -> Transaction | None:
    """Return the next transaction, or None if the dataset is up to date.

    No transaction is due while an input is not readable (:func:`is_readable`), or while no input has new
    rows or a new watermark. Other blocks of an input cause no transaction.

    Args:
        workspace: the workspace of the inputs.
        entry: a derivative dataset.
        max_rows: maximum number of rows of each input, rounded up to a complete slice.

    Raises:
        NotFound: an input is not in the workspace.
        Diverged: an input's chain does not contain the last block of the previous transaction.
        Unsupported: the transform or an input's schema is from a newer specification.
    """
    state = entry.dataset.state()
    transform = state.transform
    if transform is None:
        if "SetTransform" in state.not_understood:
            raise Unsupported(
                "the transform is from a newer specification",
                where=f"block {state.not_understood['SetTransform']}",
            )
        return None
    inputs: list[InputPlan] = []
    for item in transform.inputs:
        planned = _plan_input(workspace, entry, item, max_rows)
        if planned is None:
            return None
        inputs.append(planned)
    if not any(input.slices or input.explicit for input in inputs):
        return None
    return _make_transaction(entry, state, transform, inputs)


def boundary_transaction(
    workspace: Workspace,
    entry: DatasetEntry,
    state: ChainState,
    kind: Literal["finish", "rebuild"],
    system_time: Timestamp,
) -> Transaction:
    """Return a transaction at a change of the query, without new input data.

    Args:
        workspace: the workspace of the inputs.
        entry: the dataset.
        state: state of its chain before the transaction, with the query to finish or rebuild.
        kind: the operation.
        system_time: system time of the transaction: a rebuilt query reads the input schemas of that time.

    Raises:
        NotFound, Diverged, Unsupported: as for :func:`plan_transaction`.
    """
    transform = state.transform
    if transform is None:
        raise Unsupported("the transform is missing, or from a newer specification")
    since_start = None if kind == "finish" else system_time
    inputs = [_plan_unchanged_input(workspace, entry, item, state, since_start) for item in transform.inputs]
    return _make_transaction(entry, state, transform, inputs, kind)


def _plan_unchanged_input(
    workspace: Workspace,
    derived: DatasetEntry,
    item: TransformInput,
    state: ChainState,
    since_start: Timestamp | None,
) -> InputPlan:
    """Plan an input without new data. With ``since_start`` it includes all data that was read before."""
    dataset_id, alias = DatasetId.parse(item.dataset_ref), item.alias or item.dataset_ref
    last = _last_input(state, dataset_id)
    source = _resolve_input(workspace, dataset_id, alias)
    entry = past_input(source, derived, None if last is None else last.last_block)
    position = last_consumed_position(entry, alias, last)
    dataset = entry.dataset
    rebuilt = position if since_start is not None else None
    read = None if rebuilt is None or rebuilt.offset is None else OffsetInterval(0, rebuilt.offset)
    if since_start is not None or position is None:
        schema = schema_at_time(dataset, since_start, alias)
    else:
        schema = schema_at(position.history, position.sequence_number, alias)
    return InputPlan(
        entry=entry,
        alias=alias,
        interval=ExecuteTransformInput(
            dataset_id=entry.id,
            prev_block_hash=None if position is None else position.block,
            prev_offset=None if position is None else position.offset,
        ),
        slices=[] if read is None else dataset.slices(read.start, read.end),
        offsets=read,
        watermark=None if position is None else position.watermark,
        explicit=watermarks_between(dataset, None, rebuilt) if rebuilt else [],
        vocab=dataset.state().vocabulary,
        schema=schema,
        before=state.watermark if position is None and since_start is not None else None,
    )


def transaction_of_block(
    workspace: Workspace,
    entry: DatasetEntry,
    state: ChainState,
    event: ExecuteTransform,
    system_time: Timestamp | None = None,
) -> Transaction:
    """Return a past transaction as recorded in its block.

    Args:
        workspace: the workspace of the inputs.
        entry: the derivative dataset.
        state: state of its chain before the block.
        event: event of the block.
        system_time: system time of the block.

    Raises:
        NotFound: an input is not in the workspace.
        Diverged: an input's chain does not contain the blocks in the event.
        BadData: the offsets in the event do not match the blocks.
        Unsupported: the transform or an input's schema is from a newer specification.
    """
    transform = state.transform
    if transform is None:
        raise Unsupported("the transform is missing, or from a newer specification")
    if (kind := classify_transaction(event)) != "execute":
        return boundary_transaction(workspace, entry, state, kind, system_time or state.system_time)
    inputs: list[InputPlan] = []
    for item, recorded in zip(transform.inputs, event.query_inputs, strict=True):
        alias = item.alias or item.dataset_ref
        source = _resolve_input(workspace, recorded.dataset_id, alias)
        source = past_input(source, entry, recorded.last_block)
        begin = position_of_block(source, alias, recorded.prev_block_hash, recorded.prev_offset)
        end = last_consumed_position(source, alias, recorded)
        if end is None:
            raise BadData(f"input '{alias}' was read without a block interval")
        for position in (begin, end):
            check_offset(alias, position)
        inputs.append(_plan_interval(source, alias, begin, end, state.watermark))
    return _make_transaction(entry, state, transform, inputs)


def _make_transaction(
    entry: DatasetEntry,
    state: ChainState,
    transform: SetTransform,
    inputs: list[InputPlan],
    kind: Kind = "execute",
) -> Transaction:
    lateness = allowed_lateness(transform.transform)
    inputs = [
        _delay_watermarks(input, parse_duration(lateness[input.alias])) if input.alias in lateness else input
        for input in inputs
    ]
    return Transaction(entry, state, transform, inputs, _combined_watermark(state, inputs), kind)


def _delay_watermarks(input: InputPlan, seconds: int) -> InputPlan:
    """Return an input whose watermarks are earlier, so that the query waits for late rows."""
    before = input.before
    if before is not None and input.interval.prev_block_hash is not None:
        before = before.shifted(-seconds)
    return replace(
        input,
        watermark=None if input.watermark is None else input.watermark.shifted(-seconds),
        explicit=[
            structs_replace(watermark, event_time=watermark.event_time.shifted(-seconds))
            for watermark in input.explicit
        ],
        before=before,
    )


def _combined_watermark(state: ChainState, inputs: list[InputPlan]) -> Timestamp | None:
    watermarks = [input.watermark for input in inputs]
    known = [watermark for watermark in watermarks if watermark is not None]
    if len(known) < len(watermarks):
        return state.watermark
    minimum = min(known)
    return minimum if state.watermark is None else max(minimum, state.watermark)


def _plan_input(
    workspace: Workspace, derived: DatasetEntry, item: TransformInput, max_rows: int
) -> InputPlan | None:
    """Plan an input from the last consumed position, or None if it is not readable yet."""
    dataset_id, alias = DatasetId.parse(item.dataset_ref), item.alias or item.dataset_ref
    state = derived.dataset.state()
    entry = _resolve_input(workspace, dataset_id, alias)
    if derived.inputs in entry.dataset.branch_names():
        entry = entry.on_branch(derived.inputs)
    last = _last_input(state, dataset_id)
    past = past_input(entry, derived, None if last is None else last.last_block).dataset.reference
    if past != entry.dataset.reference:
        raise Diverged(
            f"only '{past}' of input '{alias}' has the blocks that this branch was derived from",
            hint=f"use --inputs {past}, or promote it: odf branch {entry.alias} --promote {past}",
        )
    begin = last_consumed_position(entry, alias, last)
    input_state = entry.dataset.state()
    if not is_readable(input_state):
        return None
    end = end_of_transaction(entry.dataset, input_state, begin, max_rows)
    return _plan_interval(entry, alias, begin, end, state.watermark)


def _plan_interval(
    entry: DatasetEntry,
    alias: str,
    begin: ChainPosition | None,
    end: ChainPosition,
    dataset_watermark: Timestamp | None,
) -> InputPlan:
    """Plan an input between two positions in its chain."""
    dataset = entry.dataset
    begin_offset = None if begin is None else begin.offset
    new_rows = end.offset is not None and end.offset != begin_offset
    first = 0 if begin_offset is None else begin_offset + 1
    return InputPlan(
        entry=entry,
        alias=alias,
        interval=ExecuteTransformInput(
            dataset_id=entry.id,
            prev_block_hash=None if begin is None else begin.block,
            new_block_hash=end.block if begin is None or end.block != begin.block else None,
            prev_offset=begin_offset,
            new_offset=end.offset if new_rows else None,
        ),
        slices=dataset.slices(first, end.offset) if new_rows else [],
        offsets=OffsetInterval(first, end.offset) if new_rows and end.offset is not None else None,
        watermark=end.watermark,
        explicit=watermarks_between(dataset, begin, end),
        vocab=dataset.state().vocabulary,
        schema=schema_at(end.history, end.sequence_number, alias),
        before=dataset_watermark if begin is None else begin.watermark,
    )


def _last_input(state: ChainState, dataset_id: DatasetId) -> ExecuteTransformInput | None:
    """Return the interval of an input in the last transaction, or None before the first."""
    return next((last for last in state.last_inputs or () if last.dataset_id == dataset_id), None)


def past_input(source: DatasetEntry, derived: DatasetEntry, block: Multihash | None) -> DatasetEntry:
    """Return an input with the chain that a past transaction has read.

    The transactions of a branch can have read a branch of the input, whose blocks the head lacks.

    Args:
        source: the input.
        derived: the derivative dataset, or its branch.
        block: the last block that the transaction has read, or None for no block.
    """
    if derived.dataset.reference == HEAD or block is None or find_position(source.dataset, block) is not None:
        return source
    return source.on_branch(find_branch(source.dataset, block))


def _resolve_input(workspace: Workspace, dataset_id: DatasetId, alias: str) -> DatasetEntry:
    try:
        return workspace.resolve(str(dataset_id))
    except NotFound:
        raise NotFound(
            f"the input '{alias}' is not in this workspace", where=str(dataset_id), hint="pull it first"
        ) from None
