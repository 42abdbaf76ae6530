"""What a dataset is by now, as a definition that a person can edit; and changes as people read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from odf_engine.chain.state import ChainState
from odf_engine.errors import InvalidIdentity, OdfError
from odf_engine.identity.did import DatasetId
from odf_engine.metadata import model
from odf_engine.metadata.model import DatasetSnapshot, MetadataEvent, kind_of
from odf_engine.workspace.summary import DatasetEntry
from odf_engine.workspace.versions import unversioned

Names = Mapping[DatasetId, str]

_CONTEXT: Final = 3
_MOST_LINES: Final = 300
_WIDEST: Final = 200


class Change(msgspec.Struct, frozen=True):
    """One event that is appended: its title, and lines that start with ``+``, ``-`` or a space."""

    title: str
    lines: list[str]


# --- The definition ----------------------------------------------------------------------------


def snapshot_of(entry: DatasetEntry, names: Names | None = None) -> DatasetSnapshot:
    """The dataset's definition as its chain has it now; an update with it changes nothing.

    Inputs go by the ``names`` of their datasets, where they are known. The schema is there where it
    does not follow from what a source reads. Parts that are of a newer specification are left out.

    Raises:
        OdfError: the chain cannot be read.
    """
    state = entry.dataset.state()
    events: list[MetadataEvent] = []
    vocabulary = _vocabulary(state)
    events += [] if vocabulary is None else [vocabulary]
    if state.polling_source is not None:
        events.append(state.polling_source)
    events += state.push_sources.values()
    if state.transform is not None:
        events.append(unversioned(state.transform))
    schema = _schema(state)
    events += [] if schema is None else [schema]
    events += [event for event in (state.license, state.info) if event is not None]
    if state.attachments is not None:
        events.append(model.SetAttachments(state.attachments))
    readable = [as_written(event, names or {}) for event in events]
    return DatasetSnapshot(str(entry.alias), state.kind, readable)


def as_written(event: MetadataEvent, names: Names) -> Any:
    """The event as a person would write it: a single query as ``query``, inputs by name."""
    match event:
        case model.SetTransform():
            inputs = [_named(each, names) for each in event.inputs]
            return replace(event, transform=_short(event.transform), inputs=inputs)
        case model.SetPollingSource() | model.AddPushSource() if event.preprocess is not None:
            return replace(event, preprocess=_short(event.preprocess))
        case _:
            return event


def _short(transform: Any) -> Any:
    steps = getattr(transform, "queries", None)
    if steps is None or len(steps) != 1 or steps[0].alias is not None:
        return transform
    return replace(transform, query=steps[0].query, queries=None)


def _named(given: model.TransformInput, names: Names) -> model.TransformInput:
    try:
        name = names.get(DatasetId.parse(given.dataset_ref))
    except InvalidIdentity:
        return given
    return given if name is None else replace(given, dataset_ref=name)


def _vocabulary(state: ChainState) -> model.SetVocab | None:
    default = msgspec.structs.asdict(model.DEFAULT_VOCABULARY)
    named = msgspec.structs.asdict(state.vocabulary)
    changed = {key: name for key, name in named.items() if name != default[key]}
    return model.SetVocab(**changed) if changed else None


def _schema(state: ChainState) -> model.SetDataSchema | None:
    if state.schema is None:
        return None if state.odf_schema is None else model.SetDataSchema(odf_schema=state.odf_schema)
    from odf_engine.chain.evolution import read_schema
    from odf_engine.workspace.adding import data_columns
    from odf_engine.workspace.migration import data_ddl, grown_schema

    try:
        declared = read_schema(state.schema)
        sources = [source for source in (state.polling_source, *state.push_sources.values()) if source]
        read = [columns for each in sources if (columns := data_columns(each, state.vocabulary)) is not None]
        data = set(declared.names) - set(msgspec.structs.astuple(state.vocabulary))
        follows = any(data <= set(columns.names) for columns in read)
        if follows and all(
            grown_schema(declared, columns, (), state.vocabulary).equals(declared, check_metadata=True)
            for columns in read
        ):
            return None
        ddl = data_ddl(declared, state.vocabulary)
    except OdfError:
        ddl = None
    return model.SetDataSchema(state.schema) if ddl is None else model.SetDataSchema(ddl=ddl)


# --- Changes -----------------------------------------------------------------------------------


def change_of(event: MetadataEvent, before: MetadataEvent | None, names: Names) -> Change:
    """What appending an event changes, given the one that it takes the place of."""
    disables = isinstance(event, model.DisablePollingSource | model.DisablePushSource)
    old = [] if before is None else _text(before, names)
    new = [] if disables else _text(event, names)
    lines = _difference(old, new)
    if not lines and not disables:
        lines = ["  only attributes of columns"] if isinstance(event, model.SetDataSchema) else []
    name = getattr(event, "source_name", None)
    title = kind_of(event) if name is None else f"{kind_of(event)} '{name}'"
    return Change(title, lines)


def _text(event: MetadataEvent, names: Names) -> list[str]:
    if isinstance(event, model.SetDataSchema) and event.schema is not None:
        from odf_engine.chain.evolution import read_schema
        from odf_engine.data.ddl import to_ddl

        return to_ddl(read_schema(event.schema))
    from odf_engine.metadata.yaml import to_yaml

    return to_yaml(as_written(event, names)).splitlines()


def _difference(old: Sequence[str], new: Sequence[str]) -> list[str]:
    """The changed lines with some around them, each after its sign; cut where there are too many."""
    lines: list[str] = []
    groups = SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(_CONTEXT)
    for number, group in enumerate(groups):
        if number or group[0][1]:
            lines.append("  …")
        for tag, start, stop, new_start, new_stop in group:
            if tag == "equal":
                lines += [f"  {line}" for line in old[start:stop]]
                continue
            lines += [f"- {line}" for line in old[start:stop]]
            lines += [f"+ {line}" for line in new[new_start:new_stop]]
    lines = [line if len(line) <= _WIDEST else line[: _WIDEST - 1] + "…" for line in lines]
    if len(lines) > _MOST_LINES:
        lines[_MOST_LINES:] = [f"  … {len(lines) - _MOST_LINES:,} more lines"]
    return lines
