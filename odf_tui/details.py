"""All that is known of a dataset: for its card, in words, and as YAML. Imported when first asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import msgspec

from odf_engine.chain.state import ChainState
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.trust import Trust, find_newest_proven_block
from odf_engine.workspace.workspace import Workspace
from odf_tui.definition import fetch_words, merge_words, read_words, sections
from odf_tui.humane import count, moment, size
from odf_tui.state import Detail, Fact, Section
from odf_tui.verdict import up_to

_MOST_PUSH_BLOCKS = 1000


def detail_of(workspace: Workspace, entry: DatasetEntry) -> Detail:
    """What is known of a dataset.

    Raises:
        OdfError: its chain cannot be read.
    """
    state = entry.dataset.state()
    names = {str(each.id): str(each.alias) for each in workspace.datasets()}
    found = [*_trust(workspace, entry), *sections(state, names, str(entry.alias), _disabled(entry, state))]
    found.append(Section("Data", tuple(_amounts(state))))
    if columns := _columns(state):
        found.append(Section(f"{count(len(columns))} columns", tuple(columns)))
    found.append(Section("Identity", tuple(_identity(workspace, entry, state))))
    return Detail(tuple(_facts(entry, state, names)), tuple(found), _text(entry, state))


def _disabled(entry: DatasetEntry, state: ChainState) -> list[str]:
    """Sources that were there once, and are not any more."""
    dataset, found = entry.dataset, list[str]()
    newest = dataset.list_blocks(1, kinds={"SetPollingSource", "DisablePollingSource"})
    if newest and newest[0].kind == "DisablePollingSource":
        found.append("the polling source")
    for row in dataset.list_blocks(_MOST_PUSH_BLOCKS, kinds={"DisablePushSource"}):
        event: Any = dataset.block(row.hash).block.event
        if event.source_name not in (*state.push_sources, *found):
            found.append(event.source_name)
    return found


def _trust(workspace: Workspace, entry: DatasetEntry) -> Iterator[Section]:
    trust = Trust(workspace)
    standing = trust.describe_status(entry)
    if standing == "own":
        return
    origin = trust.read_origin(entry)
    facts = [("came from", origin) if origin else ("written by", "somebody else")]
    grant = trust.find_grant(entry)
    if standing == "trusted" and grant is not None:
        facts.append(("trusted", f"since {moment(grant.granted)}, until a block changes its source"))
    else:
        facts.append(("not trusted", "nothing of it runs here; t shows what would, and asks"))
    yield Section("Trust", tuple(facts))


def _columns(state: ChainState) -> list[Fact]:
    if state.schema is None:
        return []
    from odf_engine.data.arrow_schema import decode_schema

    return [
        (field.name, f"{field.type}{'' if field.nullable else ', not null'}")
        for field in decode_schema(state.schema)
    ]


def _identity(workspace: Workspace, entry: DatasetEntry, state: ChainState) -> Iterator[Fact]:
    yield "id", str(entry.id)
    yield "private key", "is here" if workspace.keys.has_key(entry.id) else "is not here"
    yield "owner's proof", _proven(entry) or "none"
    yield "head", str(state.head)
    yield "changed", moment(str(state.system_time))
    yield "folder", str(entry.dataset.folder)


def _proven(entry: DatasetEntry) -> str:
    """Up to which block the owner stands behind it; empty: nowhere."""
    found = find_newest_proven_block(entry)
    return "" if found is None else up_to(found.number, found.newer)


def _amounts(state: ChainState) -> Iterator[Fact]:
    yield "records", count(state.records)
    yield "data", f"{size(state.data_size)} in {count(state.slices)} slice{'' if state.slices == 1 else 's'}"
    if state.transform is not None and state.has_data_block:
        yield "state", _kept(state)
    yield "blocks", count(state.blocks)
    yield "pulled", _moment(state.last_data_time) or "never"


def _kept(state: ChainState) -> str:
    """What the query keeps between transactions."""
    checkpoint = state.last_checkpoint
    return "none: the query needs none" if checkpoint is None else f"{size(checkpoint.size)} in a checkpoint"


def _facts(entry: DatasetEntry, state: ChainState, names: dict[str, str]) -> Iterator[Fact]:
    yield from _amounts(state)
    yield "watermark", _moment(state.watermark) or "none yet"
    if (source := state.polling_source) is not None:
        yield "source", fetch_words(source.fetch)
        yield "read", read_words(source.read)
        yield "merge", _merge(source.merge)
    for name, pushed in state.push_sources.items():
        yield "push", f"{name}: {read_words(pushed.read)}, {_merge(pushed.merge)}"
    if state.transform is not None:
        yield "inputs", ", ".join(names.get(str(each), str(each)) for each in state.inputs())
        yield "engine", getattr(state.transform.transform, "engine", "?")
    if state.license is not None:
        yield "licence", state.license.short_name
    if state.info is not None and state.info.description:
        yield "about", state.info.description
    if owned := _proven(entry):
        yield "proven", f"by its owner {owned}"
    yield "id", "…" + str(entry.id)[-12:]


def _merge(merge: Any) -> str:
    """A merge strategy as short as it can be."""
    first, *rest = merge_words(merge).splitlines()
    key = next((line.removeprefix("key ") for line in rest if line.startswith("key ")), "")
    return first.partition(":")[0] + (f" on {key}" if key else "")


def _moment(value: Timestamp | None) -> str:
    return moment(None if value is None else str(value))


def _text(entry: DatasetEntry, state: ChainState) -> str:
    """All of it as YAML: the settings in force, as events."""
    from odf_engine.metadata.model import SetAttachments
    from odf_engine.metadata.yaml import to_yaml

    head = {
        "id": str(entry.id),
        "name": str(entry.alias),
        "kind": state.kind.value,
        "head": str(state.head),
        "folder": str(entry.dataset.folder),
    }
    lines = [f"{name}: {value}" for name, value in head.items()]
    settings_in_force: list[msgspec.Struct | None] = [
        state.polling_source,
        *state.push_sources.values(),
        state.transform,
        state.info,
        state.license,
        None if state.attachments is None else SetAttachments(state.attachments),
        state.vocabulary,
    ]
    for event in settings_in_force:
        if event is not None:
            lines += ["", to_yaml(cast("Any", event)).rstrip()]
    if columns := _columns(state):
        lines += ["", "columns:", *(f"  {name}: {kind}" for name, kind in columns)]
    return "\n".join(lines) + "\n"
