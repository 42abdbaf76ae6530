"""Summaries of blocks and slices for lists, with a one-line description of each event."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from odf_engine.chain.state import ChainState, classify_transaction, parse_column_names, record_count
from odf_engine.identity.multiformats import Multihash
from odf_engine.metadata import model
from odf_engine.metadata.object_links import read_totals
from odf_engine.metadata.timestamp import Timestamp

_MAX_CHARACTERS: Final = 100
_MAX_INPUTS: Final = 3
_ID_CHARACTERS: Final = len("did:odf:fed01") + 8
_WORD: Final = re.compile(r"(?<=[a-z])_")


def describe_event(event: Any, before: ChainState | None = None) -> str:
    """Return a short one-line description of an event, without its kind.

    Args:
        event: the event.
        before: the state before the event, to describe changes of a setting.
    """
    # The event may have an untrusted author: control characters are removed.
    printable = "".join(char if char.isprintable() else " " for char in _describe(event, before))
    text = " ".join(printable.split())
    return text if len(text) <= _MAX_CHARACTERS else text[: _MAX_CHARACTERS - 1] + "…"


def _describe(event: Any, before: ChainState | None) -> str:
    match event:
        case model.AddData():
            return _describe_add_data(event, before)
        case model.ExecuteTransform():
            return _describe_transaction(event, before)
        case model.Seed():
            return f"{event.dataset_kind.value.lower()} dataset {event.dataset_id}"
        case model.SetPollingSource():
            return _describe_source("source", event, before and before.polling_source)
        case model.AddPushSource():
            old = before and before.push_sources.get(event.source_name)
            return _describe_source(f"source '{event.source_name}'", event, old)
        case model.DisablePushSource():
            return f"source '{event.source_name}' disabled"
        case model.DisablePollingSource():
            return "source disabled"
        case model.SetTransform():
            return _describe_transform(event, before and before.transform)
        case model.SetDataSchema():
            return _describe_schema(event, before)
        case model.Opaque():
            return "event from a newer specification"
        case _:
            return _describe_metadata(event, before)


def _describe_metadata(event: Any, before: ChainState | None) -> str:
    """Describe an event with descriptive metadata: vocabulary, info, licence or attachments."""
    match event:
        case model.SetVocab():
            return ", ".join(f"{_split_words(name)} is {value}" for name, value in _present_fields(event))
        case model.SetInfo():
            old = before and before.info
            same = old is not None and old.description == event.description
            if event.description and not same:
                return event.description
            return f"keywords {', '.join(event.keywords)}" if event.keywords else "no keywords"
        case model.SetLicense():
            return f"licence {event.short_name}"
        case model.SetAttachments():
            items = getattr(event.attachments, "items", [])
            return f"files {', '.join(item.path for item in items)}"
        case _:
            return ""


def _describe_add_data(event: model.AddData, before: ChainState | None) -> str:
    parts = [] if event.new_data is None else [_describe_rows(event.new_data)]
    if linked := read_totals(event).objects:
        parts.append(f"{linked:,} linked object{'' if linked == 1 else 's'}")
    parts += _describe_watermark(event.new_watermark, before)
    if not parts:
        parts.append("no new rows")
        parts += ["source state stored"] if event.new_source_state is not None else []
    return ", ".join(parts)


def _describe_transaction(event: model.ExecuteTransform, before: ChainState | None) -> str:
    parts = [] if event.new_data is None else [_describe_rows(event.new_data)]
    if moved := _describe_inputs(event, before):
        parts = [f"{parts[0] if parts else 'no rows'} from {moved}"]
    parts += _describe_watermark(event.new_watermark, before)
    kind = classify_transaction(event)
    if kind != "execute":
        parts.append("state flushed" if kind == "finish" else "state rebuilt")
    elif event.new_checkpoint is not None:
        same = event.new_checkpoint.physical_hash == event.prev_checkpoint
        parts.append("state unchanged" if same else "state stored")
    return ", ".join(parts) or "no changes"


def _describe_inputs(event: model.ExecuteTransform, before: ChainState | None) -> str:
    """Return the number of new rows of each input, by its alias in the query."""
    transform = before and before.transform
    names = {source.dataset_ref: source.alias for source in transform.inputs} if transform else {}
    texts: list[str] = []
    for item in event.query_inputs:
        if item.new_offset is not None:
            rows = item.new_offset - (-1 if item.prev_offset is None else item.prev_offset)
            name = names.get(str(item.dataset_id)) or f"{str(item.dataset_id)[:_ID_CHARACTERS]}…"
            texts.append(f"{name} +{rows:,}")
    more = len(texts) - _MAX_INPUTS
    return _join(texts[:_MAX_INPUTS]) + (f" and {more} more" if more > 0 else "")


def _describe_rows(data: model.DataSlice) -> str:
    rows = record_count(data)
    return f"+{rows:,} row" + ("" if rows == 1 else "s")


def _describe_watermark(moment: Timestamp | None, before: ChainState | None) -> list[str]:
    if moment is None or (before is not None and before.watermark == moment):
        return []
    day, _, time = str(moment).partition("T")
    time = time.removesuffix("Z").removesuffix(":00")
    return [f"watermark → {day}" + ("" if time == "00:00" else f" {time}")]


def _describe_source(
    name: str,
    event: model.SetPollingSource | model.AddPushSource,
    old: model.SetPollingSource | model.AddPushSource | None,
) -> str:
    if old is not None:
        changed = _join(list(_find_source_changes(event, old)))
        return f"{name} changed: {changed}" if changed else f"{name} unchanged"
    location = f" {_describe_fetch(event.fetch)}" if isinstance(event, model.SetPollingSource) else ""
    query = f", {_describe_query(event.preprocess)}" if event.preprocess is not None else ""
    return f"{name}{location}, read {_step_name(event.read)}{query}, merge {_step_name(event.merge)}"


def _find_source_changes(event: Any, old: Any) -> Iterable[str]:
    """Yield the parts of a source that differ: a step of another kind, or changed fields."""
    for part in ("fetch", "read", "merge"):
        new, previous = getattr(event, part, None), getattr(old, part, None)
        if type(new) is not type(previous):
            yield f"{_step_name(previous)} → {_step_name(new)}"
        elif new != previous and isinstance(new, msgspec.Struct):
            yield from (
                _split_words(name)
                for name in new.__struct_fields__
                if getattr(new, name) != getattr(previous, name)
            )
    if getattr(event, "prepare", None) != getattr(old, "prepare", None):
        yield "prepare"
    yield from _find_query_changes(event.preprocess, old.preprocess)


def _find_query_changes(new: Any, previous: Any) -> Iterator[str]:
    """Yield the parts of a preprocess query that differ: the query itself, or only its engine."""
    if new == previous:
        return
    if isinstance(new, model.Sql) and isinstance(previous, model.Sql) and _is_same_query(new, previous):
        yield _engine_change(new, previous)
    else:
        yield "query"


def _is_same_query(new: model.Sql, previous: model.Sql) -> bool:
    return (new.query, new.queries, new.temporal_tables) == (
        previous.query,
        previous.queries,
        previous.temporal_tables,
    )


def _engine_change(new: model.Sql, previous: model.Sql) -> str:
    old = f"{previous.engine} {previous.version or ''}".rstrip()
    return f"{old} → {new.engine} {new.version or ''}".rstrip()


def _describe_fetch(fetch: Any) -> str:
    match fetch:
        case model.Url():
            return fetch.url
        case model.FilesGlob():
            return fetch.path
        case model.Container():
            return f"container {fetch.image}"
        case model.Mqtt():
            return f"mqtt {fetch.host}:{fetch.port}"
        case model.EthereumLogs():
            return f"ethereum logs {fetch.chain_id or ''}".rstrip()
        case _:
            return _step_name(fetch)


def _describe_transform(event: model.SetTransform, old: model.SetTransform | None) -> str:
    names = _join([item.alias or item.dataset_ref for item in event.inputs])
    if old is None:
        return f"{_describe_query(event.transform)} over {names}"
    new, previous = event.transform, old.transform
    if not isinstance(new, model.Sql) or not isinstance(previous, model.Sql):
        return f"query changed, over {names}"
    parts: list[str] = []
    if not _is_same_query(new, previous):
        parts.append("query changed")
    if (new.engine, new.version) != (previous.engine, previous.version):
        parts.append(_engine_change(new, previous))
    refs = {item.dataset_ref: item.alias or item.dataset_ref for item in event.inputs}
    old_refs = {item.dataset_ref: item.alias or item.dataset_ref for item in old.inputs}
    parts += [f"+ input {name}" for ref, name in refs.items() if ref not in old_refs]
    parts += [f"- input {name}" for ref, name in old_refs.items() if ref not in refs]
    if not parts and event.inputs != old.inputs:
        parts.append(f"inputs {names}")
    return ", ".join(parts) or "query unchanged"


def _describe_schema(event: model.SetDataSchema, before: ChainState | None) -> str:
    new = parse_column_names(event.schema, event.odf_schema)
    if new is None:
        return f"schema of {len(event.schema or b''):,} bytes"
    old = (
        parse_column_names(before.schema, before.odf_schema)
        if before is not None and before.has_schema
        else None
    )
    if old is None:
        return f"schema of {_count_columns(len(new))}"
    added, removed = [name for name in new if name not in old], [name for name in old if name not in new]
    parts = [f"+{_count_columns(len(added))} {_join(added)}"] if added else []
    parts += [f"-{_count_columns(len(removed))} {_join(removed)}"] if removed else []
    if not parts:
        parts.append("columns reordered" if new != old else "types or comments changed")
    return "schema: " + ", ".join(parts)


def _count_columns(number: int) -> str:
    return "1 column" if number == 1 else f"{number:,} columns"


def _describe_query(transform: Any) -> str:
    return f"{transform.engine} query" if isinstance(transform, model.Sql) else _step_name(transform)


def _step_name(step: Any) -> str:
    name = model.kind_of(step)
    return name[0].lower() + name[1:]


def _split_words(name: str) -> str:
    return _WORD.sub(" ", name)


def _present_fields(struct: msgspec.Struct) -> list[tuple[str, str]]:
    fields = ((name, getattr(struct, name)) for name in struct.__struct_fields__)
    return [(name, value) for name, value in fields if value is not None]


def _join(names: Sequence[str]) -> str:
    return ", ".join(names)


class StoredBlock(msgspec.Struct, frozen=True):
    """A decoded block with its stored size in bytes and its manifest version.

    Attributes:
        unknown: the fields that are from a newer specification.
    """

    hash: Multihash
    block: model.MetadataBlock
    version: int
    size: int
    unknown: tuple[str, ...] = ()


class BlockSummary(msgspec.Struct, frozen=True):
    """A block in a list; ``rows`` is the number of added rows, ``size`` the size of the block in bytes."""

    sequence_number: int
    hash: Multihash
    system_time: Timestamp
    kind: str
    rows: int
    summary: str
    size: int


class SliceSummary(msgspec.Struct, frozen=True):
    """A slice of data: offsets ``start`` to ``end``, both inclusive; hashes and size in bytes of its file."""

    sequence_number: int
    start: int
    end: int
    physical_hash: Multihash
    logical_hash: Multihash
    size: int
    system_time: Timestamp


def summarize_block(stored: StoredBlock, before: ChainState | None = None) -> BlockSummary:
    """Return the summary of a block; ``before`` is the state of its chain before it."""
    event: Any = stored.block.event
    return BlockSummary(
        sequence_number=stored.block.sequence_number,
        hash=stored.hash,
        system_time=stored.block.system_time,
        kind=model.kind_of(event),
        rows=record_count(getattr(event, "new_data", None)),
        summary=describe_event(event, before),
        size=stored.size,
    )


def summarize_slice(stored: StoredBlock) -> SliceSummary | None:
    """Return the slice that the block added, or None."""
    data: model.DataSlice | None = getattr(stored.block.event, "new_data", None)
    if data is None:
        return None
    return SliceSummary(
        sequence_number=stored.block.sequence_number,
        start=data.offset_interval.start,
        end=data.offset_interval.end,
        physical_hash=data.physical_hash,
        logical_hash=data.logical_hash,
        size=data.size,
        system_time=stored.block.system_time,
    )
