"""What lists show of blocks and slices, and the one line that says what an event did."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from odf_engine.chain.state import count
from odf_engine.chain.transactions import kind_of_transaction
from odf_engine.identity.multiformats import Multihash
from odf_engine.metadata import model
from odf_engine.metadata.timestamp import Timestamp

_LONGEST: Final = 100


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


def block_row(stored: StoredBlock) -> BlockRow:
    """The block as a list shows it."""
    event: Any = stored.block.event
    return BlockRow(
        sequence_number=stored.block.sequence_number,
        hash=stored.hash,
        system_time=stored.block.system_time,
        kind=model.kind_of(event),
        rows=count(getattr(event, "new_data", None)),
        summary=summarise(event),
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


def summarise(event: Any) -> str:
    """One short line for people: what the event did, without its kind."""
    # Anybody may have written the event: what could steer a terminal is left out.
    printable = "".join(char if char.isprintable() else " " for char in _words(event))
    text = " ".join(printable.split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _words(event: Any) -> str:
    match event:
        case model.AddData() | model.ExecuteTransform():
            return _data(event)
        case model.Seed():
            return f"{event.dataset_kind.value.lower()} dataset {event.dataset_id}"
        case model.SetPollingSource():
            return f"source {_fetch(event.fetch)}, {_source(event)}"
        case model.AddPushSource():
            return f"source '{event.source_name}', {_source(event)}"
        case model.DisablePushSource():
            return f"source '{event.source_name}'"
        case model.SetTransform():
            inputs = _named([item.alias or item.dataset_ref for item in event.inputs])
            return f"{_engine(event.transform)} over {inputs}"
        case model.SetVocab():
            return _named(_values(event))
        case model.SetInfo():
            return event.description or _named(event.keywords or [])
        case model.SetLicense():
            return event.short_name
        case model.SetAttachments():
            items = getattr(event.attachments, "items", [])
            return _named([item.path for item in items])
        case model.SetDataSchema():
            return f"schema of {_columns(event)}"
        case model.Opaque():
            return "an event of a newer specification"
        case _:
            return ""


def _data(event: model.AddData | model.ExecuteTransform) -> str:
    parts = []
    if event.new_data is not None:
        rows = count(event.new_data)
        parts.append(f"{rows:,} record" + ("" if rows == 1 else "s"))
    if event.new_watermark is not None:
        parts.append(f"watermark {_time(event.new_watermark)}")
    kind = kind_of_transaction(event) if isinstance(event, model.ExecuteTransform) else "execute"
    if kind != "execute":
        parts.append("the state has ended" if kind == "finish" else "the state was rebuilt")
    elif event.new_checkpoint is not None and event.new_checkpoint.physical_hash != event.prev_checkpoint:
        parts.append("checkpoint")
    if not parts and isinstance(event, model.AddData) and event.new_source_state is not None:
        parts.append("source state")
    return ", ".join(parts) or "nothing new"


def _time(moment: Timestamp) -> str:
    return str(moment).removesuffix("T00:00:00Z")


def _fetch(fetch: Any) -> str:
    match fetch:
        case model.Url():
            return fetch.url
        case model.FilesGlob():
            return fetch.path
        case model.Container():
            return f"container {fetch.image}"
        case model.Mqtt():
            return f"mqtt {fetch.host}:{fetch.port}"
        case _:
            return _name(fetch)


def _source(event: model.SetPollingSource | model.AddPushSource) -> str:
    query = f", {_engine(event.preprocess)}" if event.preprocess is not None else ""
    return f"read {_name(event.read)}{query}, merge {_name(event.merge)}"


def _engine(transform: Any) -> str:
    return f"{transform.engine} query" if isinstance(transform, model.Sql) else _name(transform)


def _name(step: Any) -> str:
    name = model.kind_of(step)
    return name[0].lower() + name[1:]


def _values(struct: msgspec.Struct) -> list[str]:
    return [value for name in struct.__struct_fields__ if (value := getattr(struct, name)) is not None]


def _named(names: Sequence[str]) -> str:
    return ", ".join(names)


def _columns(event: model.SetDataSchema) -> str:
    """How many columns a schema has, without Arrow, for which lists should not wait."""
    if event.schema is None:
        number = len(event.odf_schema.fields) if event.odf_schema is not None else 0
    else:
        try:
            (root,) = struct.unpack_from("<I", event.schema)
            (back,) = struct.unpack_from("<i", event.schema, root)
            (slot,) = struct.unpack_from("<H", event.schema, root - back + 6)  # of the second field
            (vector,) = struct.unpack_from("<I", event.schema, root + slot)
            (number,) = struct.unpack_from("<I", event.schema, root + slot + vector)
        except struct.error:
            number = len(event.schema)
        if number >= len(event.schema):  # not the bytes of a schema
            return f"{len(event.schema):,} bytes"
    return "1 column" if number == 1 else f"{number:,} columns"
