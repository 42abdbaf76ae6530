"""What `odf show` tells of a dataset beyond what lists have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from odf_engine.chain.dataset import Dataset
from odf_engine.chain.state import ChainState
from odf_engine.metadata.model import DatasetSnapshot, DisablePushSource
from odf_engine.metadata.yaml import to_builtins
from odf_engine.workspace.dataset_summary import DatasetEntry, Summary
from odf_engine.workspace.definition import current_definition
from odf_engine.workspace.trust import Trust, find_newest_proven_block
from odf_engine.workspace.workspace import Workspace

_DISABLING: Final = ("DisablePollingSource", "DisablePushSource")
_LONGEST: Final = 2000
_MANY: Final = 1000


def definition_of(workspace: Workspace, entry: DatasetEntry) -> DatasetSnapshot:
    """The dataset's definition as its chain has it; inputs go by their names."""
    return current_definition(entry, {each.id: str(each.alias) for each in workspace.datasets()})


def details(workspace: Workspace, entry: DatasetEntry, summaries: Sequence[Summary]) -> dict[str, Any]:
    """Where it is, what feeds it, and all its settings, for JSON and YAML."""
    state = entry.dataset.state()
    names = {summary.id: summary.name for summary in summaries}
    trust = Trust(workspace)

    def plain(event: Any) -> Any:
        return None if event is None else to_builtins(event)

    return {
        "path": str(entry.dataset.folder),
        "trust": trust.describe_status(entry),
        "origin": trust.read_origin(entry),
        "proof": _proof(entry),
        "inputs": [names.get(each, str(each)) for each in state.inputs()],
        "outputs": [other.name for other in summaries if entry.id in other.inputs],
        "sources": list(_sources(entry.dataset, state)),
        "transform": plain(state.transform),
        "vocabulary": plain(state.vocabulary),
        "license": plain(state.license),
        "info": plain(state.info),
        "attachments": plain(state.attachments),
        "not_understood": state.not_understood,
    }


def _proof(entry: DatasetEntry) -> dict[str, Any] | None:
    """Up to which block the owner stands behind it, and how many are newer."""
    found = find_newest_proven_block(entry)
    return None if found is None else {"block": found.number, "hash": found.hash, "newer": found.newer}


def _sources(dataset: Dataset, state: ChainState) -> Iterator[dict[str, Any]]:
    """The active sources, with what is known of their state; then those that were disabled."""
    if state.polling_source is not None:
        plain = to_builtins(state.polling_source)
        source = state.source_state
        known = None if source is None else {"kind": source.kind, "value": source.value}
        pulled = state.last_data_time if state.was_polled else None
        yield {**plain, "active": True, "state": known, "last_pulled": pulled}
    for pushed in state.push_sources.values():
        yield {**to_builtins(pushed), "active": True}
    yield from _disabled(dataset, state)


def _disabled(dataset: Dataset, state: ChainState) -> Iterator[dict[str, Any]]:
    told = set(state.push_sources)
    polling = state.polling_source is not None
    for row in dataset.list_blocks(_MANY, kinds=_DISABLING):
        event = dataset.block(row.hash).block.event
        when = {"active": False, "disabled": row.system_time, "block": row.sequence_number}
        if isinstance(event, DisablePushSource):
            if event.source_name not in told:
                told.add(event.source_name)
                yield {"kind": "AddPushSource", "sourceName": event.source_name, **when}
        elif not polling:
            polling = True
            yield {"kind": "SetPollingSource", **when}


def bounded(value: Any) -> Any:
    """The value with long texts cut, such as those of attachments."""
    if isinstance(value, dict):
        return {key: bounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [bounded(item) for item in value]
    if isinstance(value, str) and len(value) > _LONGEST:
        return f"{value[:_LONGEST]}\n… {len(value) - _LONGEST:,} more characters (odf show --json has all)"
    return value
