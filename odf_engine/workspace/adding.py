"""From definitions as people write them to events that can be committed.

All definitions of one request are looked at together: they may name each other as inputs, in any
order, and everything that can be wrong is found before anything is made.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from graphlib import CycleError, TopologicalSorter

import msgspec
from msgspec.structs import replace

from odf_engine.chain.rules import check_snapshot, normalise_event
from odf_engine.chain.state import vocabulary_of
from odf_engine.errors import AlreadyExists, InvalidManifest, InvalidSchema, NotFound, OdfError
from odf_engine.identity.did import DatasetId
from odf_engine.identity.refs import DatasetAlias, DatasetRef, parse_ref
from odf_engine.metadata import model


class Plan(msgspec.Struct, frozen=True):
    """A dataset that is ready to be made; its first event is the Seed."""

    id: DatasetId
    alias: DatasetAlias
    events: list[model.MetadataEvent]


class _Draft(msgspec.Struct, frozen=True):
    alias: DatasetAlias
    snapshot: model.DatasetSnapshot
    inputs: list[tuple[DatasetRef, str]]  # what is read, and the text that named it


def plan_datasets(
    existing: Mapping[DatasetAlias, DatasetId],
    snapshots: Sequence[model.DatasetSnapshot],
    new_id: Callable[[], DatasetId],
) -> list[Plan]:
    """Checks definitions and makes plans of them, inputs before what reads them.

    Args:
        existing: the datasets that are there.
        snapshots: the definitions.
        new_id: makes an identity; called once a definition, after all was found right.

    Raises:
        AlreadyExists: a name is taken, or defined twice.
        NotFound: inputs that are neither there nor defined here; all of them are named.
        OdfError: a definition is wrong; ``where`` names the dataset.
    """
    drafts = [_draft(snapshot) for snapshot in snapshots]
    _check_names(existing, drafts)
    _check_inputs(existing, drafts)
    ordered = _inputs_first(drafts)
    ids = {draft.alias: new_id() for draft in ordered}
    known = {**existing, **ids}
    return [_plan(draft, ids[draft.alias], known) for draft in ordered]


def _draft(snapshot: model.DatasetSnapshot) -> _Draft:
    alias = DatasetAlias.parse(snapshot.name)
    check_snapshot(snapshot)
    with _within(f"dataset {alias}"):
        vocabulary = _vocabulary(snapshot)
        inputs: list[tuple[DatasetRef, str]] = []
        for event in map(normalise_event, snapshot.metadata):
            if isinstance(event, model.SetPollingSource | model.AddPushSource):
                _check_source(event, vocabulary)
            elif isinstance(event, model.SetTransform):
                inputs += [(parse_ref(each.dataset_ref), each.dataset_ref) for each in event.inputs]
            elif isinstance(event, model.SetDataSchema) and event.schema is not None:
                from odf_engine.data.arrow_schema import decode_schema

                decode_schema(event.schema)
    return _Draft(alias, snapshot, inputs)


def _check_names(existing: Mapping[DatasetAlias, DatasetId], drafts: Sequence[_Draft]) -> None:
    seen: set[DatasetAlias] = set()
    for draft in drafts:
        if draft.alias in seen:
            raise AlreadyExists(
                f"dataset {draft.alias} is defined twice", hint="give one of them another name"
            )
        if draft.alias in existing:
            raise AlreadyExists(
                f"a dataset named {draft.alias} exists already",
                hint="give the new one another name, or delete the old one first",
            )
        seen.add(draft.alias)


def _check_inputs(existing: Mapping[DatasetAlias, DatasetId], drafts: Sequence[_Draft]) -> None:
    names = {str(alias): alias for alias in (*existing, *(draft.alias for draft in drafts))}
    here = {*existing, *existing.values(), *names.values()}
    missing = [(text, draft) for draft in drafts for ref, text in draft.inputs if ref not in here]
    if not missing:
        return
    from difflib import get_close_matches

    close = [match for text, _ in missing for match in get_close_matches(text, names, n=1)]
    hint = "did you mean " + " and ".join(f"'{name}'" for name in dict.fromkeys(close)) + "?"
    raise NotFound(
        "there is no dataset " + ", ".join(f"'{text}' (input of {draft.alias})" for text, draft in missing),
        hint=hint if close else "add the inputs first, or in the same command",
    )


def _inputs_first(drafts: Sequence[_Draft]) -> list[_Draft]:
    by_alias = {draft.alias: draft for draft in drafts}
    sorter = TopologicalSorter(
        {
            draft.alias: [ref for ref, _ in draft.inputs if isinstance(ref, DatasetAlias) and ref in by_alias]
            for draft in drafts
        }
    )
    try:
        return [by_alias[alias] for alias in sorter.static_order()]
    except CycleError as error:
        circle = " → ".join(str(alias) for alias in error.args[1])
        raise InvalidManifest(
            f"datasets feed each other in a circle: {circle}", hint="a dataset cannot be made of itself"
        ) from None


def _plan(draft: _Draft, dataset_id: DatasetId, known: Mapping[DatasetAlias, DatasetId]) -> Plan:
    events: list[model.MetadataEvent] = [model.Seed(dataset_id, draft.snapshot.kind)]
    for event in draft.snapshot.metadata:
        event = normalise_event(event)
        if isinstance(event, model.SetTransform):
            event = replace(event, inputs=[_resolved(each, known) for each in event.inputs])
        events.append(event)
    return Plan(dataset_id, draft.alias, events)


def _resolved(given: model.TransformInput, known: Mapping[DatasetAlias, DatasetId]) -> model.TransformInput:
    ref = parse_ref(given.dataset_ref)
    dataset_id = ref if isinstance(ref, DatasetId) else known[ref]
    return replace(given, dataset_ref=str(dataset_id), alias=given.alias or given.dataset_ref)


def _vocabulary(snapshot: model.DatasetSnapshot) -> model.DatasetVocabulary:
    named = [event for event in snapshot.metadata if isinstance(event, model.SetVocab)]
    return vocabulary_of(named[-1]) if named else model.DEFAULT_VOCABULARY


def _check_source(
    source: model.SetPollingSource | model.AddPushSource, vocabulary: model.DatasetVocabulary
) -> None:
    """Finds early what would only fail at the first pull."""
    if isinstance(source, model.SetPollingSource):
        _check_fetch(source.fetch)
    keys = [*getattr(source.merge, "primary_key", ())]
    if hasattr(source.merge, "primary_key") and not keys:
        raise InvalidManifest("the primary key of the merge strategy has no column", where="merge.primaryKey")
    compared = getattr(source.merge, "compare_columns", None)
    if compared is not None and not compared:
        raise InvalidManifest(
            "there is no column to compare", where="merge.compareColumns", hint="leave it out to compare all"
        )
    ddl = source.read.schema
    if ddl is None:
        return
    with _within("read.schema"):
        columns = _columns(ddl, source, vocabulary)
    if source.preprocess is None:
        _check_needed(columns, vocabulary, [*keys, *(compared or ())])


def _columns(
    ddl: Sequence[str],
    source: model.SetPollingSource | model.AddPushSource,
    vocabulary: model.DatasetVocabulary,
) -> list[str]:
    import pyarrow as pa

    from odf_engine.data.ddl import parse_ddl
    from odf_engine.data.slices import slice_schema

    schema = parse_ddl(ddl)
    if source.preprocess is None:  # else the query says what columns there will be
        changelog = isinstance(source.merge, model.ChangelogStream | model.UpsertStream)
        op = vocabulary.operation_type_column if changelog else None
        slice_schema(pa.schema([field for field in schema if field.name != op]), vocabulary)
    return schema.names


def _check_fetch(fetch: model.FetchStep) -> None:
    if isinstance(fetch, model.FilesGlob) and not fetch.path.strip():
        raise InvalidManifest("the pattern of files is empty", where="fetch.path")
    if isinstance(fetch, model.Url) and not fetch.url.strip():
        raise InvalidManifest("the URL is empty", where="fetch.url")
    moment = getattr(fetch, "event_time", None)
    if not isinstance(moment, model.FromPath):
        return
    where = "fetch.eventTime.pattern"
    try:
        pattern = re.compile(moment.pattern)
    except re.error as error:
        raise InvalidManifest(
            f"'{moment.pattern}' is not a regular expression: {error}", where=where
        ) from None
    if not pattern.groups:
        raise InvalidManifest(
            f"'{moment.pattern}' has no group",
            where=where,
            hint=r"put the part that is the time in brackets, such as (\d{4}-\d{2}-\d{2})",
        )


def _check_needed(columns: Sequence[str], vocabulary: model.DatasetVocabulary, needed: Sequence[str]) -> None:
    known = {column.lower() for column in (*columns, vocabulary.event_time_column)}
    for column in needed:
        if column.lower() not in known:
            from difflib import get_close_matches

            close = get_close_matches(column, columns, n=1)
            raise InvalidSchema(
                f"column '{column}' is not in the schema",
                where="merge",
                hint=f"did you mean '{close[0]}'?" if close else "columns: " + ", ".join(columns),
            )


@contextmanager
def _within(where: str) -> Iterator[None]:
    """Puts the place before the place that an error names."""
    try:
        yield
    except OdfError as error:
        error.where = f"{where}, {error.where}" if error.where else where
        raise
