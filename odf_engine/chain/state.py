"""Folded state of a chain at a block: settings, sources, offsets, watermark, totals."""

from __future__ import annotations

import glob
import struct
import threading
from dataclasses import dataclass
from functools import cache
from pathlib import PurePath
from typing import Any, Final, Literal

import msgspec
from msgspec.structs import replace

from odf_engine.errors import ChainRuleViolated, InvalidIdentity
from odf_engine.identity.did import DatasetId
from odf_engine.identity.multiformats import Multihash
from odf_engine.metadata.model import (
    DEFAULT_VOCABULARY,
    AddData,
    AddPushSource,
    Attachments,
    Checkpoint,
    Container,
    DataSchema,
    DatasetKind,
    DatasetVocabulary,
    DataSlice,
    DisablePollingSource,
    DisablePushSource,
    ExecuteTransform,
    ExecuteTransformInput,
    FilesGlob,
    MetadataBlock,
    MetadataEvent,
    Opaque,
    Seed,
    SetAttachments,
    SetDataSchema,
    SetInfo,
    SetLicense,
    SetPollingSource,
    SetTransform,
    SetVocab,
    SourceState,
    Url,
    decode_hook,
    encode_hook,
    kind_of,
)
from odf_engine.metadata.object_links import LinkedTotals, read_totals
from odf_engine.metadata.timestamp import Timestamp

SOURCE_NAME: Final = "default"
"""The name of a polling source of a chain in its source states."""
PAYLOAD_HASH: Final = "odf/payload-hash"
"""Kind of source state: a pushed file, in fields that are separated by tabs.

The fields are the hash of the contents, the event time that the push set, and a digest of the path, size and
modification time. Blocks of earlier versions have no digest, and the event time only if one was set.
"""
IDEMPOTENCY_KEY: Final = "odf/idempotency-key"
"""Kind of source state: the key that a client chose for a push."""
_FIELDS_SLOT: Final = 1
_NAME_SLOT: Final = 0


def parse_column_names(schema: bytes | None, odf_schema: DataSchema | None) -> list[str] | None:
    """Return the column names of a schema, or None if it cannot be parsed.

    Parses the FlatBuffers itself, to avoid the import of Arrow.

    Args:
        schema: a bare Arrow schema.
        odf_schema: an ODF schema, which has precedence.
    """
    if odf_schema is not None:
        return [field.name for field in odf_schema.fields]
    if schema is None:
        return None
    try:
        (root,) = struct.unpack_from("<I", schema)
        vector = _follow_offset(schema, _field_position(schema, root, _FIELDS_SLOT))
        (number,) = struct.unpack_from("<I", schema, vector)
        if number > len(schema) // 4:
            return None
        return [_read_name(schema, vector + 4 + 4 * at) for at in range(number)]
    except (struct.error, UnicodeDecodeError, LookupError):
        return None


def _read_name(data: bytes, at: int) -> str:
    start = _follow_offset(data, _field_position(data, _follow_offset(data, at), _NAME_SLOT))
    (length,) = struct.unpack_from("<I", data, start)
    if start + 4 + length > len(data):
        raise LookupError("longer than the remaining bytes")
    return str(data[start + 4 : start + 4 + length], "utf-8")


def _follow_offset(data: bytes, at: int) -> int:
    return at + int(struct.unpack_from("<I", data, at)[0])


def _field_position(data: bytes, table: int, slot: int) -> int:
    """Return the position of a field of a table; raise LookupError if it is absent."""
    (back,) = struct.unpack_from("<i", data, table)
    vtable = table - back
    if vtable < 0 or 4 + 2 * slot >= struct.unpack_from("<H", data, vtable)[0]:
        raise LookupError("the table has no such field")
    (offset,) = struct.unpack_from("<H", data, vtable + 4 + 2 * slot)
    if not offset:
        raise LookupError("the field is absent")
    return table + int(offset)


def is_same_source(old: Any, new: Any) -> bool:
    """Return whether two fetch steps read the same data, as far as can be determined from them.

    If so, the source state remains valid, although headers, order, event time or image version may differ.
    """
    return source_location(old) == source_location(new)


def source_location(step: Any) -> Any:
    """Return the part of a fetch step that identifies the location of the data."""
    match step:
        case Url():
            return Url(step.url)
        case FilesGlob():
            return FilesGlob(glob_root(step.path))
        case Container():
            name, _, _ = step.image.partition("@")
            head, slash, last = name.rpartition("/")
            image = head + slash + last.partition(":")[0]
            return Container(image, step.command, step.args, step.env)
        case _:
            return step


def glob_root(pattern: str) -> str:
    """Return the folder before the first wildcard. Names of files are relative to it."""
    parts = PurePath(pattern).parts
    fixed = next((at for at, part in enumerate(parts) if glob.has_magic(part)), len(parts) - 1)
    return str(PurePath(*parts[:fixed]))


class ChainState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The folded state of a chain at ``head``. A setting that was never set is None or empty.

    Attributes:
        blocks: the number of blocks, including the head.
        schema: Arrow schema bytes of the newest SetDataSchema.
        odf_schema: ODF schema of the newest SetDataSchema (since 0.37), which has precedence.
        vocabulary: names of the system columns, with defaults.
        push_sources: the active push sources by name.
        last_offset: offset of the newest row.
        watermark: the newest watermark of any data block.
        last_checkpoint: ``newCheckpoint`` of the newest data block, or None.
        source_state: the newest recorded state of the polling source; reset if it moves to another
            location.
        was_polled: whether the polling source has added data from its current location.
        data_watermark, data_source_state: values in the newest data block, or None.
        has_data_block: whether there is an AddData or ExecuteTransform.
        last_inputs: ``queryInputs`` of the newest ExecuteTransform.
        records, data_size, slices: totals: rows by their offsets, bytes, files.
        linked: totals of the linked objects, as the blocks declare them.
        last_data_time: system time of the newest AddData or ExecuteTransform.
        not_understood: settings with parts from a newer specification, with the sequence number of their
            block. The fields above do not include them.
    """

    head: Multihash
    sequence_number: int
    system_time: Timestamp
    dataset_id: DatasetId
    kind: DatasetKind
    schema: bytes | None = None
    odf_schema: DataSchema | None = None
    vocabulary: DatasetVocabulary = DEFAULT_VOCABULARY
    polling_source: SetPollingSource | None = None
    push_sources: dict[str, AddPushSource] = {}
    transform: SetTransform | None = None
    info: SetInfo | None = None
    license: SetLicense | None = None
    attachments: Attachments | None = None
    last_offset: int | None = None
    watermark: Timestamp | None = None
    last_checkpoint: Checkpoint | None = None
    source_state: SourceState | None = None
    was_polled: bool = False
    data_watermark: Timestamp | None = None
    data_source_state: SourceState | None = None
    has_data_block: bool = False
    last_inputs: list[ExecuteTransformInput] | None = None
    records: int = 0
    data_size: int = 0
    slices: int = 0
    linked: LinkedTotals = LinkedTotals()
    last_data_time: Timestamp | None = None
    not_understood: dict[str, int] = {}

    @property
    def blocks(self) -> int:
        """The number of blocks, including the head."""
        return self.sequence_number + 1

    @property
    def has_schema(self) -> bool:
        """Whether a schema was set, in terms of this specification or a newer one."""
        return (
            self.schema is not None or self.odf_schema is not None or "SetDataSchema" in self.not_understood
        )

    def inputs(self) -> list[DatasetId]:
        """Return the ids of the transform's inputs, without references that are not ids."""
        if self.transform is None:
            return []
        return [
            dataset_id
            for item in self.transform.inputs
            if (dataset_id := _as_id(item.dataset_ref)) is not None
        ]


def _as_id(text: str) -> DatasetId | None:
    try:
        return DatasetId.parse(text)
    except InvalidIdentity:
        return None


MAX_NUMBER: Final = 2**63 - 1
_ENCODER: Final = msgspec.msgpack.Encoder(enc_hook=encode_hook)


def encode_state(state: ChainState) -> bytes:
    """Encode the state for the index."""
    return _ENCODER.encode(state)


_creation: Final = threading.Lock()


@cache
def _decoder() -> msgspec.msgpack.Decoder[ChainState]:
    # Slow to create, and not every process decodes a state.
    return msgspec.msgpack.Decoder(ChainState, dec_hook=decode_hook)


def decode_state(data: bytes) -> ChainState:
    """Decode the output of :func:`encode_state`.

    Raises:
        ValueError: not a state, or a state of another version of this program.
    """
    with _creation:  # msgspec crashes if two threads create the decoders of a type at the same time
        decoder = _decoder()
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, InvalidIdentity, TypeError, AttributeError) as error:
        raise ValueError("not the stored state of a chain") from error


def find_unstorable(state: ChainState | None, block: MetadataBlock) -> str | None:
    """Return why the numbers of a block cannot be stored, as a sentence, or None if they can.

    The format allows counts up to 2^64 - 1, and numbers of any length in JSON. SQLite, Arrow and Spark are
    limited to signed 64-bit numbers.

    Args:
        state: the state before the block, or None for the first block.
        block: the block.
    """
    event: Any = block.event
    if not isinstance(event, AddData | ExecuteTransform):
        try:
            _ENCODER.encode(event)
        except (OverflowError, ValueError) as error:
            return f"{kind_of(event)} cannot be stored: {error}"
        return _find_large([("sequence number", block.sequence_number)])
    counts = [("sequence number", block.sequence_number), ("last offset", event.prev_offset or 0)]
    if (data := event.new_data) is not None:
        interval = data.offset_interval
        counts += [("first offset", interval.start), ("last offset", interval.end)]
        counts.append(("size of all data", data.size + (state.data_size if state else 0)))
        counts.append(("number of rows", record_count(data) + (state.records if state else 0)))
    if (checkpoint := event.new_checkpoint) is not None:
        counts.append(("checkpoint size", checkpoint.size))
    if isinstance(event, ExecuteTransform):
        for item in event.query_inputs:
            counts += [("offset of an input", item.prev_offset or 0)]
            counts += [("offset of an input", item.new_offset or 0)]
    return _find_large(counts)


def _find_large(counts: list[tuple[str, int]]) -> str | None:
    for name, value in counts:
        if value > MAX_NUMBER:
            return f"{name} {value} is larger than 2^63 - 1, the largest supported number"
    return None


def apply_block(state: ChainState | None, block: MetadataBlock, block_hash: Multihash) -> ChainState:
    """Return the state after ``block``, given the state before it (None: it is the first block).

    Checks only the rules that the state depends on. Events from a newer specification change only the totals.

    Raises:
        ChainRuleViolated: the first block is not a Seed, or the block has numbers that cannot be stored.
    """
    event: Any = block.event
    if (problem := find_unstorable(state, block)) is not None:
        hint = "delete the dataset, and pull it again after its publisher has corrected it"
        raise ChainRuleViolated("number-range", problem, block=str(block_hash), hint=hint)
    if state is None:
        if not isinstance(event, Seed):
            raise ChainRuleViolated(
                "seed-first",
                f"the first block is {kind_of(event)}, expected Seed",
                block=str(block_hash),
            )
        return ChainState(
            head=block_hash,
            sequence_number=block.sequence_number,
            system_time=block.system_time,
            dataset_id=event.dataset_id,
            kind=event.dataset_kind,
        )
    state = replace(
        state, head=block_hash, sequence_number=block.sequence_number, system_time=block.system_time
    )
    if isinstance(event, AddData | ExecuteTransform):
        return _apply_data(state, block, event)
    return _apply_setting(state, event, block.sequence_number)


def next_block(state: ChainState | None, event: MetadataEvent, system_time: Timestamp) -> MetadataBlock:
    """Return the block with this event that follows the block with this state (None: the first block)."""
    return MetadataBlock(
        system_time=system_time,
        prev_block_hash=None if state is None else state.head,
        sequence_number=0 if state is None else state.sequence_number + 1,
        event=event,
    )


def _apply_data(state: ChainState, block: MetadataBlock, event: AddData | ExecuteTransform) -> ChainState:
    data: DataSlice | None = event.new_data
    changes: dict[str, Any] = {
        "has_data_block": True,
        "last_data_time": block.system_time,
        "last_checkpoint": event.new_checkpoint,
        "data_watermark": event.new_watermark,
        "watermark": event.new_watermark or state.watermark,
    }
    if data is not None:
        interval = data.offset_interval
        changes |= {
            "last_offset": interval.end,
            "records": state.records + record_count(data),
            "data_size": state.data_size + data.size,
            "slices": state.slices + 1,
        }
    elif event.prev_offset is not None:
        changes["last_offset"] = event.prev_offset
    if isinstance(event, AddData):
        changes["data_source_state"] = event.new_source_state
        changes["linked"] = state.linked.plus(read_totals(event))
        if push_state(event) is None:
            has_new_input = data is not None or event.new_source_state is not None
            changes["was_polled"] = state.was_polled or (has_new_input and _is_polled(state))
            changes["source_state"] = event.new_source_state or state.source_state
    else:
        changes["last_inputs"] = event.query_inputs
    return replace(state, **changes)


def _apply_setting(state: ChainState, event: Any, sequence_number: int) -> ChainState:
    if contains_opaque(event):
        return _apply_not_understood(state, event, sequence_number)
    changes: dict[str, Any] = {}
    match event:
        case SetPollingSource():
            old = state.polling_source
            changes["polling_source"] = event
            if old is None or not is_same_source(old.fetch, event.fetch):
                changes |= {"source_state": None, "was_polled": False}
        case DisablePollingSource():
            changes |= {"polling_source": None, "source_state": None, "was_polled": False}
        case AddPushSource():
            changes["push_sources"] = {**state.push_sources, event.source_name: event}
        case DisablePushSource():
            changes["push_sources"] = _without(state.push_sources, event.source_name)
        case SetTransform():
            changes["transform"] = event
        case SetVocab():
            changes["vocabulary"] = resolve_vocabulary(event)
        case SetDataSchema():
            changes |= {"schema": event.schema, "odf_schema": event.odf_schema}
        case SetInfo():
            changes["info"] = event
        case SetLicense():
            changes["license"] = event
        case SetAttachments():
            changes["attachments"] = event.attachments
        case _:
            pass
    key = _setting_key(event)
    if key in state.not_understood:
        changes["not_understood"] = _without(state.not_understood, key)
    return replace(state, **changes)


def _apply_not_understood(state: ChainState, event: Any, sequence_number: int) -> ChainState:
    # The previous setting is no longer valid, and the new one is unknown.
    not_understood = {**state.not_understood, _setting_key(event): sequence_number}
    changes: dict[str, Any] = {"not_understood": not_understood}
    match event:
        case SetPollingSource():
            changes |= {"polling_source": None, "source_state": None, "was_polled": False}
        case AddPushSource():
            changes["push_sources"] = _without(state.push_sources, event.source_name)
        case SetTransform():
            changes["transform"] = None
        case SetDataSchema():
            changes |= {"schema": None, "odf_schema": None}
        case SetAttachments():
            changes["attachments"] = None
        case _:
            pass
    return replace(state, **changes)


def push_state(event: Any) -> SourceState | None:
    """Return the source state that a push recorded, or None for other events, and pushes without a state."""
    state = event.new_source_state if isinstance(event, AddData) else None
    return state if is_push_state(state) else None


def is_push_state(state: SourceState | None) -> bool:
    """Return whether a push recorded this source state."""
    return state is not None and state.kind in (PAYLOAD_HASH, IDEMPOTENCY_KEY)


def _is_polled(state: ChainState) -> bool:
    return state.polling_source is not None or "SetPollingSource" in state.not_understood


def _without(mapping: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in mapping.items() if name != key}


def _setting_key(event: Any) -> str:
    match event:
        case Opaque():
            return f"event {event.discriminant}"
        case DisablePollingSource():
            return "SetPollingSource"
        case AddPushSource() | DisablePushSource():
            return f"AddPushSource {event.source_name}"
        case _:
            return kind_of(event)


def resolve_vocabulary(event: SetVocab) -> DatasetVocabulary:
    """Return the column names after ``event``. An omitted name is the default, not the previous name."""
    default = DEFAULT_VOCABULARY
    return DatasetVocabulary(
        offset_column=event.offset_column or default.offset_column,
        operation_type_column=event.operation_type_column or default.operation_type_column,
        system_time_column=event.system_time_column or default.system_time_column,
        event_time_column=event.event_time_column or default.event_time_column,
    )


def record_count(data: DataSlice | None) -> int:
    """Return the number of rows of a slice by its offsets, or 0 for None."""
    if data is None:
        return 0
    return max(0, data.offset_interval.end - data.offset_interval.start + 1)


def contains_opaque(value: Any) -> bool:
    """Return whether an event, or a part of it, is from a newer specification."""
    if isinstance(value, Opaque):
        return True
    if isinstance(value, msgspec.Struct):
        return any(contains_opaque(getattr(value, name)) for name in value.__struct_fields__)
    if isinstance(value, list):
        return any(map(contains_opaque, value))
    return False


Kind = Literal["execute", "finish", "rebuild"]


def classify_transaction(event: ExecuteTransform) -> Kind:
    """Return whether the transaction executed the query on new input, or finished or rebuilt its state.

    If no input advances, a missing new checkpoint means that the state was finished, and a new one that it
    was rebuilt.
    """
    if any(item.new_block_hash is not None for item in event.query_inputs):
        return "execute"
    if event.new_checkpoint is None:
        return "execute" if event.prev_checkpoint is None else "finish"
    return "execute" if event.new_checkpoint.physical_hash == event.prev_checkpoint else "rebuild"


@dataclass(frozen=True)
class ChainUpdate:
    """The result of a pull.

    Attributes:
        status: whether anything was committed.
        old_head, new_head: the heads before and after; equal if nothing was committed.
        blocks: the number of committed blocks.
        records: the number of added rows.
        repeated: the number of added rows from files that only repeat earlier rows.
    """

    status: Literal["updated", "up-to-date"]
    old_head: Multihash | None
    new_head: Multihash | None
    blocks: int
    records: int
    repeated: int = 0

    @classmethod
    def from_states(cls, before: ChainState, after: ChainState, repeated: int = 0) -> ChainUpdate:
        """Return the difference between two states of a chain."""
        return cls(
            status="up-to-date" if after.head == before.head else "updated",
            old_head=before.head,
            new_head=after.head,
            blocks=after.blocks - before.blocks,
            records=after.records - before.records,
            repeated=repeated,
        )
