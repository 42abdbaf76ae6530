"""Describes the definition and state of a dataset as facts and as YAML."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from odf_engine.api.model import DatasetDetail
from odf_engine.api.text import (
    Fact,
    QueryText,
    Section,
    count_of,
    format_bytes,
    format_count,
    format_zoned_time,
    signed_range_text,
)
from odf_engine.chain.schema_evolution import column_descriptions, read_declaration
from odf_engine.chain.state import ChainState
from odf_engine.metadata import model
from odf_engine.net.urls import without_login
from odf_engine.on_demand import definition_update, metadata_yaml
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.documents.private_source import PrivateSource, local_state, read_private_source
from odf_engine.workspace.trust import Trust, find_newest_proven_block
from odf_engine.workspace.workspace import Workspace

_FORMAT_NAMES: Final = {
    model.Csv: "CSV",
    model.Json: "JSON",
    model.NdJson: "NDJSON, one document per line",
    model.GeoJson: "GeoJSON",
    model.NdGeoJson: "GeoJSON, one feature per line",
    model.EsriShapefile: "Esri shapefile",
    model.Parquet: "Parquet",
}
_OPTION_NAMES: Final = {
    "separator": "separator",
    "encoding": "encoding",
    "quote": "quote",
    "escape": "escape",
    "null_value": "null value",
    "date_format": "dates",
    "timestamp_format": "timestamps",
    "sub_path": "path",
}
_MERGE_TEXTS: Final = {
    model.Append: "Append: every row is new",
    model.Ledger: "Ledger: rows with a new key are added",
    model.Snapshot: "Snapshot: the complete list each time, compared by key",
    model.ChangelogStream: "ChangelogStream: rows are append, retract or correct operations",
    model.UpsertStream: "UpsertStream: rows insert, update or retract by key",
}
_STATE_NAMES: Final = {"odf/etag": "ETag", "odf/last-modified": "last modified"}


def definition_sections(
    state: ChainState,
    names: dict[str, str],
    alias: str,
    disabled: Sequence[str],
    private: PrivateSource | None = None,
) -> list[Section]:
    """Return the definition of a dataset as sections, without columns and identity.

    Args:
        state: the state of the chain.
        names: names of datasets by id, for the inputs.
        alias: the name of the dataset, for commands.
        disabled: names of disabled push sources, and ``the polling source`` if it is disabled.
        private: the source outside the chain, which ``state`` then has.
    """
    sections: list[Section] = []
    if private is not None:
        values = [(f"config.{name}", reference) for name, reference in private.config.items()]
        facts = [("stored", "outside the chain: not published"), *_polling_facts(private.source, state)]
        sections.append(Section("Source", (*facts, *values)))
    elif state.polling_source is not None:
        sections.append(Section("Source", tuple(_polling_facts(state.polling_source, state))))
    for name, source in state.push_sources.items():
        sections.append(Section(f"Push source {name}", tuple(_push_facts(name, source, state, alias))))
    if state.transform is not None:
        sections.append(Section("Transform", tuple(_transform_facts(state.transform, names))))
    unknown = [(key, f"block {number}") for key, number in state.not_understood.items()]
    if unknown:
        sections.append(Section("From a newer specification", tuple(unknown)))
    if disabled:
        sections.append(Section("Disabled", (("sources", ", ".join(disabled)),)))
    sections.append(Section("Time", tuple(_time_facts(state))))
    if about := tuple(_about_facts(state)):
        sections.append(Section("About", about))
    return sections


def _polling_facts(source: model.SetPollingSource, state: ChainState) -> Iterator[Fact]:
    yield from _fetch_facts(source.fetch)
    if source.prepare:
        yield "prepare", "\n".join(map(_describe_preparation, source.prepare))
    yield from _read_facts(source)
    if source_state := state.source_state:
        yield "state", _describe_source_state(source_state, source.fetch)
    elif isinstance(source.fetch, model.Mqtt):
        yield "state", "the broker stores messages with QoS 1 and 2 until they are committed"
    else:
        missing = "none: the source does not report changes"
        yield "state", missing if state.has_data_block else "none: nothing was ingested yet"


def _push_facts(name: str, source: model.AddPushSource, state: ChainState, alias: str) -> Iterator[Fact]:
    option = "" if len(state.push_sources) == 1 or name == "default" else f" --source {shlex.quote(name)}"
    yield "push", f"odf ingest {alias} FILE{option}\n… | odf ingest {alias} -{option}"
    yield from _read_facts(source)


def _read_facts(source: model.SetPollingSource | model.AddPushSource) -> Iterator[Fact]:
    yield "read", describe_read(source.read)
    if source.preprocess is not None:
        yield from query_facts(source.preprocess)
    yield "merge", describe_merge(source.merge)


def _fetch_facts(fetch: Any) -> Iterator[Fact]:
    match fetch:
        case model.Url():
            yield "fetch", fetch.url
            if fetch.headers:
                yield "headers", ", ".join(header.name for header in fetch.headers)
        case model.FilesGlob():
            yield "fetch", f"files {fetch.path}, {_describe_order(fetch.order)}, one commit each"
        case model.Container():
            yield "fetch", f"container {fetch.image}"
            if command := [*(fetch.command or ()), *(fetch.args or ())]:
                yield "command", shlex.join(command)
            if fetch.env:
                yield "variables", ", ".join(variable.name for variable in fetch.env)
        case model.Mqtt():
            yield (
                "fetch",
                f"MQTT {fetch.host}:{fetch.port} " + ", ".join(topic.path for topic in fetch.topics),
            )
        case model.EthereumLogs():
            chain = "" if fetch.chain_id is None else f" of chain {fetch.chain_id}"
            node = "" if fetch.node_url is None else f" from {without_login(fetch.node_url)}"
            yield "fetch", f"Ethereum logs{chain}{node}"
            if fetch.signature is not None:
                yield "signature", " ".join(fetch.signature.split())
            if fetch.filter is not None:
                yield "filter", " ".join(fetch.filter.split())
        case _:
            yield "fetch", type(fetch).__name__
    if getattr(fetch, "cache", None) is not None:
        yield "cache", "fetched only once"
    if (event_time := getattr(fetch, "event_time", None)) is not None:
        yield "event time", _describe_event_time(event_time)


def describe_fetch(fetch: Any) -> str:
    """Return the origin of the data of a source as a short text."""
    return next((value for name, value in _fetch_facts(fetch) if name == "fetch"), "")


def _describe_order(order: model.SourceOrdering | None) -> str:
    return "by event time" if order is model.SourceOrdering.ByEventTime else "by name"


def _describe_event_time(event_time: Any) -> str:
    match event_time:
        case model.FromPath():
            format_text = f", format {event_time.timestamp_format}" if event_time.timestamp_format else ""
            return f"from the path: {event_time.pattern}{format_text}"
        case model.FromMetadata():
            return "last modification of the source"
        case _:
            return "time of the pull"


def _describe_preparation(step: Any) -> str:
    if isinstance(step, model.Pipe):
        return f"pipe through {shlex.join(step.command)}"
    format_name = {"Gzip": "gzip", "Zip": "zip"}.get(step.format.value, step.format.value)
    return f"unpack {format_name}" + (f", path {step.sub_path}" if step.sub_path else "")


def _describe_source_state(source_state: model.SourceState, fetch: model.FetchStep) -> str:
    value, *_ = source_state.value.split("\t")
    if isinstance(fetch, model.FilesGlob):
        return f"files ingested up to {value}"
    if isinstance(fetch, model.EthereumLogs):
        return f"logs ingested up to block {value.partition('@')[0]}"
    shown = format_zoned_time(value) if source_state.kind == "odf/last-modified" else value
    return f"{_STATE_NAMES.get(source_state.kind, source_state.kind)} {shown}"


def describe_read(read: Any) -> str:
    """Return the format, its options and the number of declared columns as a short text."""
    parts = [_FORMAT_NAMES.get(type(read), type(read).__name__)]
    if isinstance(read, model.Csv):
        parts.append("with a header" if read.header else "without a header")
    parts += [
        f"{name} {value!r}" if field not in ("sub_path", "encoding") else f"{name} {value}"
        for field, name in _OPTION_NAMES.items()
        if (value := getattr(read, field, None)) is not None
    ]
    columns = read.schema if read.odf_schema is None else read.odf_schema.fields
    if columns:
        parts.append(f"{count_of(len(columns), 'column')} declared")
    else:
        parts.append("types inferred" if getattr(read, "infer_schema", None) else "columns not declared")
    return ", ".join(parts)


def describe_merge(merge: Any) -> str:
    """Return the merge strategy, its key and the compared columns, one per line."""
    text = _MERGE_TEXTS.get(type(merge), type(merge).__name__)
    lines = [text]
    if keys := getattr(merge, "primary_key", None):
        lines.append("key " + ", ".join(keys))
    if columns := getattr(merge, "compare_columns", None):
        lines.append("compares " + ", ".join(columns))
    return "\n".join(lines)


def _transform_facts(transform: model.SetTransform, names: dict[str, str]) -> Iterator[Fact]:
    inputs = []
    for transform_input in transform.inputs:
        name = names.get(transform_input.dataset_ref, transform_input.dataset_ref)
        inputs.append(
            f"{name} as {transform_input.alias}"
            if transform_input.alias and transform_input.alias != name
            else name
        )
    yield "inputs", "\n".join(inputs)
    yield from query_facts(transform.transform)


def query_facts(transform: Any) -> Iterator[Fact]:
    """Return engine, steps and temporal tables of a query."""
    version = f" {transform.version}" if getattr(transform, "version", None) else ""
    yield "engine", f"{getattr(transform, 'engine', type(transform).__name__)}{version}"
    if getattr(transform, "query", None):
        yield "query", QueryText(transform.query.strip())
    for step in getattr(transform, "queries", None) or ():
        yield step.alias or "query", QueryText(step.query.strip())
    for table in getattr(transform, "temporal_tables", None) or ():
        yield "as of", f"{table.name} by {', '.join(table.primary_key)}: versions valid at the event time"


def _time_facts(state: ChainState) -> Iterator[Fact]:
    yield "watermark", format_zoned_time(state.watermark) or "none yet"
    yield "event time", f"column {state.vocabulary.event_time_column}"


def _about_facts(state: ChainState) -> Iterator[Fact]:
    if state.info is not None and state.info.description:
        yield "about", state.info.description
    if state.info is not None and state.info.keywords:
        yield "keywords", ", ".join(state.info.keywords)
    if state.license is not None:
        yield "licence", f"{state.license.name} ({state.license.short_name})\n{state.license.website_url}"
    for item in getattr(state.attachments, "items", None) or ():
        lines = len(item.content.splitlines())
        yield "attached", f"{item.path}, {count_of(lines, 'line')}"


_MAX_PUSH_BLOCKS = 1000
_ID_CHARACTERS = len("did:odf:fed01") + 12


def read_dataset_detail(
    workspace: Workspace, entry: DatasetEntry, datasets: Sequence[DatasetEntry]
) -> DatasetDetail:
    """Read the definition and state of a dataset.

    Args:
        workspace: the workspace.
        entry: the dataset.
        datasets: all datasets of the workspace.

    Raises:
        OdfError: the chain cannot be read.
    """
    state, private = local_state(entry.dataset), read_private_source(entry.dataset.folder)
    names = {str(dataset.id): str(dataset.alias) for dataset in datasets}
    disabled = _find_disabled_sources(entry, state) if private is None else []
    sections = [
        *_trust_sections(workspace, entry),
        *definition_sections(state, names, str(entry.alias), disabled, private),
    ]
    sections.append(Section("Data", tuple(_size_facts(state))))
    if columns := _column_facts(state):
        sections.append(Section(count_of(len(columns), "column"), tuple(columns)))
    sections.append(Section("Identity", tuple(_identity_facts(workspace, entry, state))))
    card = tuple(_card_facts(entry, state, names))
    if drift := _drift_facts(workspace.folder, entry, datasets):
        sections.insert(0, Section("Manifest", drift))
        card = (*card[:_DRIFT_POSITION], drift[0], *card[_DRIFT_POSITION:])
    return DatasetDetail(card, tuple(sections), _format_yaml(entry, state))


_DRIFT_POSITION: Final = 3
"""Position in the card: after rows, size and blocks."""


def _drift_facts(folder: Path, entry: DatasetEntry, datasets: Sequence[DatasetEntry]) -> tuple[Fact, ...]:
    """Return the differences between a dataset and its manifest file."""
    drift = definition_update.find_manifest_drift(folder, entry, datasets)
    if drift is None:
        return ()
    path = drift.path.relative_to(folder) if drift.path.is_relative_to(folder) else drift.path
    if drift.problem:
        return (("manifest", f"{path}: {drift.problem}"),)
    titles = ", ".join(change.title for change in drift.changes)
    lines = "\n".join(line for change in drift.changes for line in change.lines)
    return (
        ("manifest", f"{path} differs: {titles}"),
        ("apply it", f"odf add --update {path}; e edits the definition and writes the file"),
        ("changes", lines),
    )


def _find_disabled_sources(entry: DatasetEntry, state: ChainState) -> list[str]:
    """Return the names of sources that were disabled, and not added again."""
    dataset, disabled = entry.dataset, list[str]()
    newest = dataset.list_blocks(1, kinds={"SetPollingSource", "DisablePollingSource"})
    if newest and newest[0].kind == "DisablePollingSource":
        disabled.append("the polling source")
    for row in dataset.list_blocks(_MAX_PUSH_BLOCKS, kinds={"DisablePushSource"}):
        event: Any = dataset.block(row.hash).block.event
        if event.source_name not in (*state.push_sources, *disabled):
            disabled.append(event.source_name)
    return disabled


def _trust_sections(workspace: Workspace, entry: DatasetEntry) -> Iterator[Section]:
    trust = Trust(workspace)
    status = trust.describe_status(entry)
    if status == "own":
        return
    origin = trust.read_origin(entry)
    facts = [("origin", origin) if origin else ("author", "another user")]
    grant = trust.find_grant(entry)
    if status == "trusted" and grant is not None:
        facts.append(
            ("trusted", f"since {format_zoned_time(grant.granted)}, until a block changes its source")
        )
    else:
        facts.append(("untrusted", "its source does not run, its query runs in a sandbox; press t to review"))
    yield Section("Trust", tuple(facts))


def _column_facts(state: ChainState) -> list[Fact]:
    described = column_descriptions(state)
    return [
        (
            field.name,
            f"{field.type}{'' if field.nullable else ', not null'}"
            + (f" · {described[field.name]}" if field.name in described else ""),
        )
        for field in read_declaration(state) or ()
    ]


def _identity_facts(workspace: Workspace, entry: DatasetEntry, state: ChainState) -> Iterator[Fact]:
    yield "id", str(entry.id)
    yield "private key", "in this workspace" if workspace.keys.has_key(entry.id) else "not in this workspace"
    yield "owner's proof", _describe_proof(entry) or "none"
    yield "head", str(state.head)
    yield "last block", format_zoned_time(state.system_time)
    yield "folder", str(entry.dataset.folder)


def _describe_proof(entry: DatasetEntry) -> str:
    """Return the range of blocks that the owner has signed, or "" if there is none."""
    newest = find_newest_proven_block(entry)
    return "" if newest is None else signed_range_text(newest.number, newest.newer, newest.actor)


def _size_facts(state: ChainState) -> Iterator[Fact]:
    yield "rows", format_count(state.records)
    yield (
        "data",
        f"{format_bytes(state.data_size)} in {count_of(state.slices, 'slice')}",
    )
    if state.linked.objects:
        yield (
            "linked objects",
            f"{format_bytes(state.linked.size)} in {count_of(state.linked.objects, 'link')}",
        )
    if state.transform is not None and state.has_data_block:
        yield "state", _describe_checkpoint(state)
    yield "blocks", format_count(state.blocks)
    yield "changed", format_zoned_time(state.last_data_time) or "never"


def _describe_checkpoint(state: ChainState) -> str:
    """Return the size of the checkpoint of a query."""
    checkpoint = state.last_checkpoint
    return (
        "none: stateless query" if checkpoint is None else f"{format_bytes(checkpoint.size)} in a checkpoint"
    )


def _card_facts(entry: DatasetEntry, state: ChainState, names: dict[str, str]) -> Iterator[Fact]:
    yield from _size_facts(state)
    yield "watermark", format_zoned_time(state.watermark) or "none yet"
    if (source := state.polling_source) is not None:
        yield "source", describe_fetch(source.fetch)
        yield "read", describe_read(source.read)
        yield "merge", _describe_merge_briefly(source.merge)
    for name, pushed in state.push_sources.items():
        yield "push", f"{name}: {describe_read(pushed.read)}, {_describe_merge_briefly(pushed.merge)}"
    if state.transform is not None:
        yield "inputs", ", ".join(names.get(str(input_id), str(input_id)) for input_id in state.inputs())
        yield "engine", getattr(state.transform.transform, "engine", "?")
    if state.license is not None:
        yield "licence", state.license.short_name
    if state.info is not None and state.info.description:
        yield "about", state.info.description
    if proof := _describe_proof(entry):
        yield "proven", f"by its owner {proof}"
    yield "id", f"{str(entry.id)[:_ID_CHARACTERS]}…"


def _describe_merge_briefly(merge: Any) -> str:
    """Return the name of a merge strategy and its key."""
    first, *rest = describe_merge(merge).splitlines()
    key = next((line.removeprefix("key ") for line in rest if line.startswith("key ")), "")
    return first.partition(":")[0] + (f" on {key}" if key else "")


def _format_yaml(entry: DatasetEntry, state: ChainState) -> str:
    """Return the identity, the events in force and the columns as YAML."""
    header = {
        "id": str(entry.id),
        "name": str(entry.alias),
        "kind": state.kind.value,
        "head": str(state.head),
        "folder": str(entry.dataset.folder),
    }
    lines = [f"{name}: {value}" for name, value in header.items()]
    settings_in_force: list[msgspec.Struct | None] = [
        state.polling_source,
        *state.push_sources.values(),
        state.transform,
        state.info,
        state.license,
        None if state.attachments is None else model.SetAttachments(state.attachments),
        state.vocabulary,
    ]
    for event in settings_in_force:
        if event is not None:
            lines += ["", metadata_yaml.to_yaml(cast("Any", event)).rstrip()]
    if columns := _column_facts(state):
        lines += ["", "columns:", *(f"  {name}: {kind}" for name, kind in columns)]
    return "\n".join(lines) + "\n"
