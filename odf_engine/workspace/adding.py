"""From definitions as people write them to events that can be committed.

All definitions of one request are looked at together: they may name each other as inputs, in any
order, and everything that can be wrong is found before anything is made.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from odf_engine.chain.rules import check_snapshot, normalise_event
from odf_engine.chain.state import vocabulary_of
from odf_engine.errors import AlreadyExists, InvalidManifest, InvalidSchema, NotFound, OdfError
from odf_engine.identity.did import DatasetId
from odf_engine.identity.refs import DatasetAlias, DatasetRef, parse_ref
from odf_engine.metadata import model
from odf_engine.workspace.versions import versioned

if TYPE_CHECKING:
    import pyarrow as pa

_MOST_ATTACHED: Final = 4 << 20  # each state that a chain keeps holds the attachments too


class Plan(msgspec.Struct, frozen=True):
    """A dataset that is ready to be made; its first event is the Seed."""

    id: DatasetId
    alias: DatasetAlias
    events: list[model.MetadataEvent]


class Draft(msgspec.Struct, frozen=True):
    """A definition that was found right by itself.

    Attributes:
        events: with queries as chains hold them; inputs and schemas are still as people wrote them.
        inputs: what is read, and the text that named it.
        vocabulary: the names of the system columns by this definition.
    """

    alias: DatasetAlias
    kind: model.DatasetKind
    events: list[model.MetadataEvent]
    inputs: list[tuple[DatasetRef, str]]
    vocabulary: model.DatasetVocabulary


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
    drafts = [draft(snapshot) for snapshot in snapshots]
    check_once(drafts)
    for each in drafts:
        if each.alias in existing:
            raise AlreadyExists(
                f"a dataset named {each.alias} exists already",
                hint="change it with: odf add --update; or give the new one another name",
            )
    check_inputs(existing, drafts)
    return plan_drafts(existing, drafts, new_id)


def plan_drafts(
    existing: Mapping[DatasetAlias, DatasetId], drafts: Sequence[Draft], new_id: Callable[[], DatasetId]
) -> list[Plan]:
    """Plans of new datasets, inputs before what reads them.

    Raises:
        InvalidManifest: they feed each other in a circle.
    """
    ordered = _inputs_first(drafts)
    ids = {each.alias: new_id() for each in ordered}
    known = {**existing, **ids}
    return [_plan(each, ids[each.alias], known) for each in ordered]


def draft(
    snapshot: model.DatasetSnapshot,
    *,
    vocabulary: model.DatasetVocabulary = model.DEFAULT_VOCABULARY,
    exists: bool = False,
) -> Draft:
    """A definition, checked as far as it can be by itself.

    Args:
        snapshot: the definition.
        vocabulary: the names of the system columns where it does not say them.
        exists: whether the dataset is there already, so that its sources can be disabled.

    Raises:
        OdfError: it is wrong; ``where`` names the dataset.
    """
    alias = DatasetAlias.parse(snapshot.name)
    check_snapshot(snapshot, exists=exists)
    with within(f"dataset {alias}"):
        vocabulary = _vocabulary(snapshot, vocabulary)
        events = [normalise_event(event) for event in snapshot.metadata]
        inputs: list[tuple[DatasetRef, str]] = []
        for event in events:
            if isinstance(event, model.SetPollingSource | model.AddPushSource):
                _check_source(event, vocabulary)
            elif isinstance(event, model.SetTransform):
                inputs += [(parse_ref(each.dataset_ref), each.dataset_ref) for each in event.inputs]
            elif isinstance(event, model.SetDataSchema):
                _check_schema(event, vocabulary)
            elif isinstance(event, model.SetAttachments) and not exists:
                check_attachments(event.attachments)
    return Draft(alias, snapshot.kind, events, inputs, vocabulary)


def check_once(drafts: Sequence[Draft]) -> None:
    """Whether every dataset is defined once.

    Raises:
        AlreadyExists: one is not.
    """
    seen: set[DatasetAlias] = set()
    for each in drafts:
        if each.alias in seen:
            raise AlreadyExists(
                f"dataset {each.alias} is defined twice", hint="give one of them another name"
            )
        seen.add(each.alias)


def check_inputs(existing: Mapping[DatasetAlias, DatasetId], drafts: Sequence[Draft]) -> None:
    """Whether all inputs are there, or defined here.

    Raises:
        NotFound: some are not; all of them are named.
    """
    names = {str(alias): alias for alias in (*existing, *(each.alias for each in drafts))}
    here = {*existing, *existing.values(), *names.values()}
    missing = [(text, each) for each in drafts for ref, text in each.inputs if ref not in here]
    if not missing:
        return
    from difflib import get_close_matches

    close = [match for text, _ in missing for match in get_close_matches(text, names, n=1)]
    hint = "did you mean " + " and ".join(f"'{name}'" for name in dict.fromkeys(close)) + "?"
    raise NotFound(
        "there is no dataset " + ", ".join(f"'{text}' (input of {each.alias})" for text, each in missing),
        hint=hint if close else "add the inputs first, or in the same command",
    )


def _inputs_first(drafts: Sequence[Draft]) -> list[Draft]:
    by_alias = {each.alias: each for each in drafts}
    feeding = {
        each.alias: [ref for ref, _ in each.inputs if isinstance(ref, DatasetAlias) and ref in by_alias]
        for each in drafts
    }
    return [by_alias[alias] for alias in in_order(feeding)]


def in_order(feeding: Mapping[DatasetAlias, Sequence[DatasetAlias]]) -> list[DatasetAlias]:
    """Datasets in an order in which inputs come before what reads them, given what each reads.

    Raises:
        InvalidManifest: they feed each other in a circle.
    """
    try:
        return list(TopologicalSorter(feeding).static_order())
    except CycleError as error:
        circle = " → ".join(str(alias) for alias in error.args[1])
        raise InvalidManifest(
            f"datasets feed each other in a circle: {circle}", hint="a dataset cannot be made of itself"
        ) from None


def _plan(each: Draft, dataset_id: DatasetId, known: Mapping[DatasetAlias, DatasetId]) -> Plan:
    events: list[model.MetadataEvent] = [model.Seed(dataset_id, each.kind)]
    for event in each.events:
        if isinstance(event, model.SetTransform):
            event = versioned(resolved(event, known))
        elif isinstance(event, model.SetDataSchema) and event.ddl is not None:
            event = _schema_of(event.ddl, each.vocabulary)
        events.append(event)
    return Plan(dataset_id, each.alias, events)


def resolved(event: model.SetTransform, known: Mapping[DatasetAlias, DatasetId]) -> model.SetTransform:
    """The transform with its inputs by id, each with an alias; they have to be known."""

    def by_id(given: model.TransformInput) -> model.TransformInput:
        ref = parse_ref(given.dataset_ref)
        dataset_id = ref if isinstance(ref, DatasetId) else known[ref]
        return replace(given, dataset_ref=str(dataset_id), alias=given.alias or given.dataset_ref)

    return replace(event, inputs=[by_id(each) for each in event.inputs])


def _vocabulary(snapshot: model.DatasetSnapshot, unsaid: model.DatasetVocabulary) -> model.DatasetVocabulary:
    named = [event for event in snapshot.metadata if isinstance(event, model.SetVocab)]
    return vocabulary_of(named[-1]) if named else unsaid


def _check_schema(event: model.SetDataSchema, vocabulary: model.DatasetVocabulary) -> None:
    with within("SetDataSchema"):
        if event.ddl is not None:
            _schema_of(event.ddl, vocabulary)
        elif event.schema is not None:
            from odf_engine.data.arrow_schema import decode_schema

            decode_schema(event.schema)


def _schema_of(ddl: Sequence[str], vocabulary: model.DatasetVocabulary) -> model.SetDataSchema:
    """The whole schema of slices, of a list of data columns."""
    from odf_engine.data.arrow_schema import encode_schema
    from odf_engine.data.ddl import parse_ddl
    from odf_engine.data.slices import slice_schema

    return model.SetDataSchema(encode_schema(slice_schema(parse_ddl(ddl), vocabulary)))


def check_attachments(attachments: model.Attachments) -> None:
    """Whether texts are small enough to be carried around with a chain.

    Raises:
        InvalidManifest: they are not.
    """
    if not isinstance(attachments, model.Embedded):
        return
    size = sum(len(item.content.encode()) for item in attachments.items)
    if size > _MOST_ATTACHED:
        raise InvalidManifest(
            f"the attachments have {size:,} bytes, and {_MOST_ATTACHED:,} is the most that a block holds",
            where="SetAttachments",
            hint="attach a text that says where the large file is",
        )


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
    from odf_engine.data.ddl import parse_ddl
    from odf_engine.data.slices import slice_schema

    with within("read.schema"):
        names = parse_ddl(ddl).names
        columns = data_columns(source, vocabulary)
        if columns is not None:
            slice_schema(columns, vocabulary)
    if source.preprocess is None:
        _check_needed(names, vocabulary, [*keys, *(compared or ())])


def data_columns(
    source: model.SetPollingSource | model.AddPushSource, vocabulary: model.DatasetVocabulary
) -> pa.Schema | None:
    """The columns that a source says its rows have; None where a query or the data says it.

    Raises:
        InvalidSchema: its schema is malformed.
    """
    if source.read.schema is None or source.preprocess is not None:
        return None
    import pyarrow as pa

    from odf_engine.data.ddl import parse_ddl

    # Rows that are pushed may say what is done with each: taken back, corrected.
    may_say = isinstance(source, model.AddPushSource) or isinstance(
        source.merge, model.ChangelogStream | model.UpsertStream
    )
    op = vocabulary.operation_type_column.casefold() if may_say else None
    return pa.schema([field for field in parse_ddl(source.read.schema) if field.name.casefold() != op])


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
def within(where: str) -> Iterator[None]:
    """Puts the place before the place that an error names.

    Raises:
        OdfError: whatever was raised inside.
    """
    try:
        yield
    except OdfError as error:
        error.where = f"{where}, {error.where}" if error.where else where
        raise
