"""Dataset definitions: current definition, checks, plans of new datasets, commits of updates."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import SequenceMatcher, get_close_matches
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from odf_engine.base.arrow import pa
from odf_engine.base.atomic_files import replace_text_file
from odf_engine.base.config import MetadataConfig
from odf_engine.base.lazy import LazyModule
from odf_engine.chain.normal_form import (
    check_snapshot,
    normalize_event,
    with_engine_version,
    without_engine_version,
)
from odf_engine.chain.schema_evolution import declare_schema, read_declaration
from odf_engine.chain.state import ChainState, resolve_vocabulary
from odf_engine.data.ddl import field_type_ddl, max_length, parse_ddl, to_ddl, type_ddl
from odf_engine.data.odf_schema import columns_of_step
from odf_engine.data.parquet.slices import slice_schema, with_kamu_types
from odf_engine.data.schema_enforcement import finest_timestamp_unit
from odf_engine.errors import (
    AlreadyExists,
    InvalidIdentity,
    InvalidManifest,
    InvalidSchema,
    NotFound,
    NotSynced,
    OdfError,
    Unsupported,
    UsageError,
)
from odf_engine.identity.did import DatasetId
from odf_engine.identity.multiformats import Multihash
from odf_engine.identity.names import DatasetAlias, DatasetRef, parse_ref
from odf_engine.metadata import model
from odf_engine.metadata.attachments import check_attachments
from odf_engine.metadata.data_types import schema_descriptions
from odf_engine.metadata.model import (
    AddPushSource,
    DatasetKind,
    DatasetSnapshot,
    MetadataEvent,
    SetTransform,
    kind_of,
)
from odf_engine.metadata.resources import SourceDefinition
from odf_engine.metadata.time_formats import check_spark_format
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.mirror.catalog import ORIGIN_FILE
from odf_engine.workspace.dataset_summary import DatasetEntry, NewDataset
from odf_engine.workspace.definitions.declared_schema import (
    add_source_columns,
    data_ddl,
    schema_from_ddl,
    schema_from_odf,
)
from odf_engine.workspace.definitions.ineffective_options import check_fetch, check_options
from odf_engine.workspace.documents.private_source import (
    local_state,
    read_private_source,
    remove_private_source,
    source_path,
    store_private_source,
)

if TYPE_CHECKING:
    from odf_engine.metadata import yaml as metadata_yaml
else:  # imports PyYAML
    metadata_yaml = LazyModule("odf_engine.metadata.yaml")


def select_push_source(entry: DatasetEntry, name: str | None) -> AddPushSource:
    """Return the active push source with this name; without a name, the only one.

    A dataset with a polling source may have push sources too, for corrections of the polled rows.

    Raises:
        Unsupported: the dataset has no push sources, the source is from a newer specification, or the polling
            source was not pulled yet.
        UsageError: there are several, or none with this name.
    """
    state = entry.dataset.state()
    if state.kind is not DatasetKind.Root:
        raise Unsupported(
            f"{entry.alias} is a derivative dataset; rows can only be pushed to root datasets",
            hint="push to its inputs",
        )
    is_polled = state.polling_source is not None or "SetPollingSource" in state.not_understood
    if is_polled and not state.push_sources:
        raise Unsupported(
            f"{entry.alias} has a polling source and no push source, so rows cannot be pushed to it",
            hint=f"run odf pull {entry.alias}; to push corrections, add AddPushSource to its manifest after "
            "SetPollingSource, then run: odf add --update MANIFEST",
        )
    if is_polled and not state.was_polled:
        # The push would be taken for the first pull, and the source would not be fetched.
        raise Unsupported(
            f"the polling source of {entry.alias} was not pulled yet, so there are no rows to correct",
            hint=f"odf pull {entry.alias}",
        )
    sources = state.push_sources
    for key, block in state.not_understood.items():
        if key.startswith("AddPushSource ") and name in (None, key.removeprefix("AddPushSource ")):
            raise Unsupported("the push source is from a newer specification", where=f"block {block}")
    listed = ", ".join(f"'{source}'" for source in sorted(sources))
    if name is None:
        if len(sources) == 1:
            return next(iter(sources.values()))
        if sources:
            raise UsageError(
                f"{entry.alias} has {len(sources)} push sources: {listed}", hint="use --source NAME"
            )
        raise Unsupported(
            f"{entry.alias} has no push source{_describe_disabled(entry, None)}",
            hint="add AddPushSource to its manifest, then run: odf add --update MANIFEST",
        )
    if name not in sources:
        problem = f"{entry.alias} has no push source '{name}'{_describe_disabled(entry, name)}"
        raise UsageError(
            problem, hint=f"use one of: {listed}" if sources else "add AddPushSource to its manifest"
        )
    return sources[name]


def _describe_disabled(entry: DatasetEntry, name: str | None) -> str:
    """Return the part of a message that states which block disabled the source, or "" if none did."""
    dataset = entry.dataset
    for row in dataset.list_blocks(dataset.state().blocks, kinds={"DisablePushSource"}):
        source_name = getattr(dataset.block(row.hash).block.event, "source_name", None)
        if name is None or source_name == name:
            return f": '{source_name}' was disabled by block {row.sequence_number}"
    return ""


class CheckedDefinition(msgspec.Struct, frozen=True):
    """A definition that is valid by itself.

    Attributes:
        events: with queries in normal form; inputs and schemas as the user wrote them.
        inputs: the inputs, each with its text in the definition.
        vocabulary: the names of the system columns.
        private: the definition, if its polling source stays outside the chain.
    """

    alias: DatasetAlias
    kind: model.DatasetKind
    events: list[model.MetadataEvent]
    inputs: list[tuple[DatasetRef, str]]
    vocabulary: model.DatasetVocabulary
    private: SourceDefinition | None = None


def plan_datasets(
    existing: Mapping[DatasetAlias, DatasetId],
    snapshots: Sequence[model.DatasetSnapshot],
    new_id: Callable[[], DatasetId],
    forms: MetadataConfig,
) -> list[NewDataset]:
    """Check definitions and plan their datasets, inputs first.

    Args:
        existing: the datasets of the workspace.
        snapshots: the definitions.
        new_id: creates an id; called once for each definition, after all checks.
        forms: the forms of the schemas of new datasets.

    Raises:
        AlreadyExists: a name exists, or is defined twice.
        NotFound: inputs that neither exist nor are defined here; the message lists all of them.
        OdfError: a definition is invalid; ``where`` is the dataset.
    """
    drafts = [check_definition(snapshot) for snapshot in snapshots]
    check_unique(drafts)
    for draft in drafts:
        if draft.alias in existing:
            raise AlreadyExists(
                f"dataset {draft.alias} already exists",
                hint="use odf add --update to change it, or choose another name",
            )
    check_inputs(existing, drafts)
    return plan_drafts(existing, drafts, new_id, forms)


def plan_drafts(
    existing: Mapping[DatasetAlias, DatasetId],
    drafts: Sequence[CheckedDefinition],
    new_id: Callable[[], DatasetId],
    forms: MetadataConfig,
) -> list[NewDataset]:
    """Plan new datasets, inputs first.

    Raises:
        InvalidManifest: their inputs form a cycle.
    """
    ordered = _inputs_first(drafts)
    ids = {definition.alias: new_id() for definition in ordered}
    known = {**existing, **ids}
    return [_plan(definition, ids[definition.alias], known, forms) for definition in ordered]


def check_definition(
    snapshot: model.DatasetSnapshot,
    *,
    vocabulary: model.DatasetVocabulary = model.DEFAULT_VOCABULARY,
    exists: bool = False,
) -> CheckedDefinition:
    """Check a definition by itself, without other datasets.

    Args:
        snapshot: the definition.
        vocabulary: the names of the system columns, unless the definition sets them.
        exists: whether the dataset exists, so that its sources can be disabled.

    Raises:
        OdfError: the definition is invalid; ``where`` is the dataset.
    """
    alias = DatasetAlias.parse(snapshot.name)
    check_snapshot(snapshot, exists=exists)
    with error_context(f"dataset {alias}"):
        vocabulary = _definition_vocabulary(snapshot, vocabulary)
        events = [normalize_event(event) for event in snapshot.metadata]
        inputs: list[tuple[DatasetRef, str]] = []
        for event in events:
            if not exists:
                check_options(event)
            if isinstance(event, model.SetPollingSource | model.AddPushSource):
                _check_source(event, vocabulary)
                if not exists:
                    check_precision(event, vocabulary)
            elif isinstance(event, model.SetTransform):
                inputs += [(parse_ref(source.dataset_ref), source.dataset_ref) for source in event.inputs]
            elif isinstance(event, model.SetDataSchema):
                _check_schema(event, vocabulary, exists=exists)
            elif isinstance(event, model.SetAttachments) and not exists:
                check_attachments(event.attachments)
    private = snapshot if isinstance(snapshot, SourceDefinition) else None
    return CheckedDefinition(alias, snapshot.kind, events, inputs, vocabulary, private)


def check_unique(drafts: Sequence[CheckedDefinition]) -> None:
    """Check that every dataset is defined once.

    Raises:
        AlreadyExists: one is defined twice.
    """
    seen: set[DatasetAlias] = set()
    for draft in drafts:
        if draft.alias in seen:
            raise AlreadyExists(f"dataset {draft.alias} is defined twice", hint="rename one of them")
        seen.add(draft.alias)


def check_inputs(existing: Mapping[DatasetAlias, DatasetId], drafts: Sequence[CheckedDefinition]) -> None:
    """Check that all inputs exist or are defined here.

    Raises:
        NotFound: some do not; the message lists all of them.
    """
    names = {str(alias): alias for alias in (*existing, *(draft.alias for draft in drafts))}
    available = {*existing, *existing.values(), *names.values()}
    missing = [(text, draft) for draft in drafts for ref, text in draft.inputs if ref not in available]
    if not missing:
        return
    matches = [match for text, _ in missing for match in get_close_matches(text, names, n=1)]
    hint = "did you mean " + " and ".join(f"'{name}'" for name in dict.fromkeys(matches)) + "?"
    raise NotFound(
        "dataset not found: "
        + ", ".join(f"'{text}' (input of {definition.alias})" for text, definition in missing),
        hint=hint if matches else "add the inputs first, or in the same command",
    )


def _inputs_first(drafts: Sequence[CheckedDefinition]) -> list[CheckedDefinition]:
    by_alias = {draft.alias: draft for draft in drafts}
    inputs = {
        draft.alias: [ref for ref, _ in draft.inputs if isinstance(ref, DatasetAlias) and ref in by_alias]
        for draft in drafts
    }
    return [by_alias[alias] for alias in topological_order(inputs)]


def topological_order(inputs: Mapping[DatasetAlias, Sequence[DatasetAlias]]) -> list[DatasetAlias]:
    """Return datasets in an order with inputs first, given the inputs of each.

    Raises:
        InvalidManifest: the inputs form a cycle.
    """
    try:
        return list(TopologicalSorter(inputs).static_order())
    except CycleError as error:
        cycle = " → ".join(str(alias) for alias in error.args[1])
        raise InvalidManifest(
            f"the inputs form a cycle: {cycle}", hint="remove one of these inputs"
        ) from None


def _plan(
    definition: CheckedDefinition,
    dataset_id: DatasetId,
    known: Mapping[DatasetAlias, DatasetId],
    forms: MetadataConfig,
) -> NewDataset:
    events: list[model.MetadataEvent] = [model.Seed(dataset_id, definition.kind)]
    for event in definition.events:
        if definition.private is not None and isinstance(event, model.SetPollingSource):
            continue
        if isinstance(event, model.SetTransform):
            event = with_engine_version(resolve_inputs(event, known))
        elif isinstance(event, model.SetPollingSource | model.AddPushSource):
            event = with_engine_version(event)
        elif isinstance(event, model.SetDataSchema):
            event = complete_declaration(event, definition.vocabulary, forms)
        events.append(event)
    private = definition.private and replace(definition.private, resource_id=str(uuid.uuid4()))
    return NewDataset(dataset_id, definition.alias, events, private)


def resolve_inputs(event: model.SetTransform, known: Mapping[DatasetAlias, DatasetId]) -> model.SetTransform:
    """Return the transform with its inputs by id, each with an alias. All inputs must be known."""

    def by_id(item: model.TransformInput) -> model.TransformInput:
        ref = parse_ref(item.dataset_ref)
        dataset_id = ref if isinstance(ref, DatasetId) else known[ref]
        return replace(item, dataset_ref=str(dataset_id), alias=item.alias or item.dataset_ref)

    return replace(event, inputs=[by_id(source) for source in event.inputs])


def _definition_vocabulary(
    snapshot: model.DatasetSnapshot, default: model.DatasetVocabulary
) -> model.DatasetVocabulary:
    named = [event for event in snapshot.metadata if isinstance(event, model.SetVocab)]
    return resolve_vocabulary(named[-1]) if named else default


def _check_schema(event: model.SetDataSchema, vocabulary: model.DatasetVocabulary, *, exists: bool) -> None:
    with error_context("SetDataSchema"):
        # Deferred, as everywhere in this module: Arrow and PyYAML are slow to import.
        complete_declaration(event, vocabulary, MetadataConfig())
        if event.ddl is not None and not exists:
            columns = parse_ddl(event.ddl)
            check_column_precision(columns, vocabulary)
            check_column_limits(columns)


def complete_declaration(
    event: model.SetDataSchema, vocabulary: model.DatasetVocabulary, forms: MetadataConfig
) -> model.SetDataSchema:
    """Return the declaration of a new dataset with the system columns that the definition omits.

    Raises:
        InvalidSchema: a column is invalid.
    """
    if event.odf_schema is None and event.ddl is None:
        read_declaration(event)
        return event
    if event.odf_schema is not None:
        schema = schema_from_odf(event.odf_schema, None, vocabulary)
        is_complete = any(field.name == vocabulary.offset_column for field in event.odf_schema.fields)
    else:
        schema = schema_from_ddl(event.ddl or [], None, vocabulary)
        is_complete = False
    if forms.system_columns == "kamu" and not is_complete:
        schema = with_kamu_types(schema, vocabulary)
    return declare_schema(schema, event, odf=forms.data_schema == "odf")


def _check_source(
    source: model.SetPollingSource | model.AddPushSource, vocabulary: model.DatasetVocabulary
) -> None:
    """Check a source for errors that would otherwise occur at the first pull."""
    if isinstance(source, model.SetPollingSource):
        check_fetch(source.fetch)
    keys = [*getattr(source.merge, "primary_key", ())]
    if hasattr(source.merge, "primary_key") and not keys:
        raise InvalidManifest("the primary key of the merge strategy has no column", where="merge.primaryKey")
    compared = getattr(source.merge, "compare_columns", None)
    if compared is not None and not compared:
        raise InvalidManifest(
            "the list of columns is empty",
            where="merge.compareColumns",
            hint="omit it to compare all columns",
        )
    for name in ("date_format", "timestamp_format"):
        with error_context(f"read.{name.partition('_')[0]}Format"):
            check_spark_format(getattr(source.read, name, None) or "")
    if not has_read_schema(source.read):
        return
    with error_context("read.schema"):
        read = columns_of_step(source.read)
        columns = declared_columns(source, vocabulary)
        if columns is not None:
            slice_schema(columns, vocabulary)
    if source.preprocess is None and read is not None:
        needed = [*keys, *(compared or ())]
        if isinstance(source.merge, model.ChangelogStream):
            needed.append(vocabulary.operation_type_column)
        _check_columns(read.names, vocabulary, needed)


def check_precision(
    source: model.SetPollingSource | model.AddPushSource,
    vocabulary: model.DatasetVocabulary,
    before: model.SetPollingSource | model.AddPushSource | None = None,
) -> None:
    """Check that slices can store the declared precision of timestamps.

    Chains may contain sources that were not checked. Their timestamps are truncated.

    Args:
        source: the source.
        vocabulary: the names of the system columns.
        before: the source that it replaces, whose columns are not checked again.

    Raises:
        InvalidSchema: a column has a finer precision.
    """
    if not has_read_schema(source.read):
        return
    with error_context("read.schema"):
        known = list((before and columns_of_step(before.read)) or [])
        columns = columns_of_step(source.read) or []
        check_column_precision([field for field in columns if field not in known], vocabulary)


def check_column_precision(columns: Iterable[pa.Field], vocabulary: model.DatasetVocabulary) -> None:
    """Check that slices can store the precision of timestamps in new columns.

    Raises:
        InvalidSchema: a column has a finer precision.
    """
    for field in columns:
        unit = finest_timestamp_unit([field.type])
        is_event_time = field.name.casefold() == vocabulary.event_time_column.casefold()
        if unit not in (("us", "ns") if is_event_time else ("ns",)):
            continue
        if is_event_time:
            raise InvalidSchema(
                f"the event time '{field.name}' is {type_ddl(field.type)}, but the specification has"
                " milliseconds for it",
                hint=f"declare {field.name} TIMESTAMP(3); to keep all digits, add a second column in the"
                " preprocess query",
            )
        raise InvalidSchema(
            f"column '{field.name}' is {type_ddl(field.type)}, but timestamps have at most 6 digits",
            hint=f"declare {field.name} TIMESTAMP(6), or STRING or BIGINT to keep all digits",
        )


def check_column_limits(columns: Iterable[pa.Field]) -> None:
    """Check that new columns of a dataset declare no limits inside their types, which chains do not store.

    Raises:
        InvalidSchema: a column has a maximum length, or a struct field is NOT NULL.
    """

    def has_limit(field: pa.Field) -> bool:
        members = [field.type.field(index) for index in range(field.type.num_fields)]
        return max_length(field) is not None or any(
            not member.nullable or has_limit(member) for member in members
        )

    for field in columns:
        if has_limit(field):
            raise InvalidSchema(
                f"column '{field.name}' is {field_type_ddl(field)}, but datasets do not store lengths or"
                " NOT NULL of struct fields",
                hint="remove them here, and declare them in read.schema, which enforces them",
            )


def accepts_operations(source: model.SetPollingSource | model.AddPushSource) -> bool:
    """Return whether the rows of a source may have a column with operations, such as retract or correct."""
    if isinstance(source, model.AddPushSource):
        return True
    return isinstance(source.merge, model.ChangelogStream | model.UpsertStream)


def declared_columns(
    source: model.SetPollingSource | model.AddPushSource, vocabulary: model.DatasetVocabulary
) -> pa.Schema | None:
    """Return the columns that a source declares for its rows, or None if a query or the data determine them.

    Raises:
        InvalidSchema: the schema is malformed.
    """
    if not has_read_schema(source.read) or source.preprocess is not None:
        return None
    op = vocabulary.operation_type_column.casefold() if accepts_operations(source) else None
    columns = columns_of_step(source.read) or []
    return pa.schema([field for field in columns if field.name.casefold() != op])


def has_read_schema(read: model.ReadStep) -> bool:
    """Return whether a read step declares columns."""
    return bool(read.schema) or (read.odf_schema is not None and bool(read.odf_schema.fields))


def _check_columns(
    columns: Sequence[str], vocabulary: model.DatasetVocabulary, needed: Sequence[str]
) -> None:
    known = {column.lower() for column in (*columns, vocabulary.event_time_column)}
    for column in needed:
        if column.lower() not in known:
            close = get_close_matches(column, columns, n=1)
            raise InvalidSchema(
                f"column '{column}' is not in the schema",
                where="merge",
                hint=f"did you mean '{close[0]}'?" if close else "columns: " + ", ".join(columns),
            )


@contextmanager
def error_context(where: str) -> Iterator[None]:
    """Prepend a location to the location of errors within the block.

    Raises:
        OdfError: the error of the block.
    """
    try:
        yield
    except OdfError as error:
        error.where = f"{where}, {error.where}" if error.where else where
        raise


DatasetNames = Mapping[DatasetId, str]
_CONTEXT_LINES: Final = 3
_MAX_LINES: Final = 300
_MAX_LINE_CHARACTERS: Final = 200


class PlannedChange(msgspec.Struct, frozen=True):
    """An event to append: its title, and lines that start with ``+``, ``-`` or a space.

    ``in_chain`` is False for a change to a source outside the chain, which appends no event.
    """

    title: str
    lines: list[str]
    in_chain: bool = True


def read_definition(entry: DatasetEntry, datasets: Iterable[DatasetEntry]) -> DatasetSnapshot:
    """Return the current definition of a dataset; inputs are referred to by the names of ``datasets``.

    Raises:
        OdfError: the chain cannot be read.
    """
    return current_definition(entry, {dataset.id: str(dataset.alias) for dataset in datasets})


def published_definition(entry: DatasetEntry, datasets: Iterable[DatasetEntry]) -> DatasetSnapshot:
    """Return the definition of a dataset as its chain has it: without a source outside the chain.

    Raises:
        OdfError: the chain cannot be read.
    """
    names = {dataset.id: str(dataset.alias) for dataset in datasets}
    return DatasetSnapshot(
        str(entry.alias), entry.dataset.state().kind, _events_in_force(entry.dataset.state(), names)
    )


def current_definition(entry: DatasetEntry, names: DatasetNames | None = None) -> DatasetSnapshot:
    """Return the current definition of a dataset. An update with it changes nothing.

    Inputs are referred to by ``names``, if known. The schema is included if it does not follow from the
    columns of a source. Parts from a newer specification are omitted.

    Do not publish it: it has the source outside the chain, if there is one.

    Raises:
        OdfError: the chain cannot be read.
    """
    state, private = local_state(entry.dataset), read_private_source(entry.dataset.folder)
    events = _events_in_force(state, names or {})
    if private is not None:
        return SourceDefinition(str(entry.alias), state.kind, events, dict(private.config))
    return DatasetSnapshot(str(entry.alias), state.kind, events)


def _events_in_force(state: ChainState, names: DatasetNames) -> list[MetadataEvent]:
    events: list[MetadataEvent] = []
    vocabulary = _vocabulary_event(state)
    events += [] if vocabulary is None else [vocabulary]
    if state.polling_source is not None:
        events.append(without_engine_version(state.polling_source))
    events += map(without_engine_version, state.push_sources.values())
    if state.transform is not None:
        events.append(without_engine_version(state.transform))
    schema = _definition_schema(state)
    events += [] if schema is None else [schema]
    events += [event for event in (state.license, state.info) if event is not None]
    if state.attachments is not None:
        events.append(model.SetAttachments(state.attachments))
    return [to_user_form(event, names) for event in events]


def to_user_form(event: MetadataEvent, names: DatasetNames) -> Any:
    """Return the event as a user would write it: a single query as ``query``, inputs by name."""
    match event:
        case model.SetTransform():
            inputs = [_with_dataset_name(source, names) for source in event.inputs]
            return replace(event, transform=_as_single_query(event.transform), inputs=inputs)
        case model.SetPollingSource() | model.AddPushSource() if event.preprocess is not None:
            return replace(event, preprocess=_as_single_query(event.preprocess))
        case _:
            return event


def _as_single_query(transform: Any) -> Any:
    steps = getattr(transform, "queries", None)
    if steps is None or len(steps) != 1 or steps[0].alias is not None:
        return transform
    return replace(transform, query=steps[0].query, queries=None)


def _with_dataset_name(item: model.TransformInput, names: DatasetNames) -> model.TransformInput:
    try:
        name = names.get(DatasetId.parse(item.dataset_ref))
    except InvalidIdentity:
        return item
    return item if name is None else replace(item, dataset_ref=name)


def _vocabulary_event(state: ChainState) -> model.SetVocab | None:
    default = msgspec.structs.asdict(model.DEFAULT_VOCABULARY)
    names = msgspec.structs.asdict(state.vocabulary)
    changed = {key: name for key, name in names.items() if name != default[key]}
    return model.SetVocab(**changed) if changed else None


def _definition_schema(state: ChainState) -> model.SetDataSchema | None:
    """Return the declaration for a definition, or None if it follows from the sources."""
    if not state.has_schema or "SetDataSchema" in state.not_understood:
        return None
    event = model.SetDataSchema(state.schema, state.odf_schema)
    if state.odf_schema is not None and _has_attributes(state.odf_schema):
        return event
    try:
        declared = read_declaration(event)
        assert declared is not None
        sources = [source for source in (state.polling_source, *state.push_sources.values()) if source]
        read = [
            columns for item in sources if (columns := declared_columns(item, state.vocabulary)) is not None
        ]
        data = set(declared.names) - set(msgspec.structs.astuple(state.vocabulary))
        follows = any(data <= set(columns.names) for columns in read)
        if follows and all(
            add_source_columns(declared, columns, (), state.vocabulary).equals(declared, check_metadata=True)
            for columns in read
        ):
            return None
        ddl = None if state.odf_schema is not None else data_ddl(declared, state.vocabulary)
    except OdfError:
        ddl = None
    return event if ddl is None else model.SetDataSchema(ddl=ddl)


def _has_attributes(schema: model.DataSchema) -> bool:
    """Whether a column at the top level, or the schema, has custom attributes."""
    return schema.extra is not None or any(field.extra is not None for field in schema.fields)


def describe_change(event: MetadataEvent, before: MetadataEvent | None, names: DatasetNames) -> PlannedChange:
    """Describe the change that an event makes to the event that it replaces."""
    disables = isinstance(event, model.DisablePollingSource | model.DisablePushSource)
    old = [] if before is None else _render_event(before, names)
    new = [] if disables else _render_event(event, names)
    lines = diff_lines(old, new)
    if not lines and not disables:
        lines = ["  only column attributes"] if isinstance(event, model.SetDataSchema) else []
    name = getattr(event, "source_name", None)
    title = kind_of(event) if name is None else f"{kind_of(event)} '{name}'"
    return PlannedChange(title, lines)


def _render_event(event: MetadataEvent, names: DatasetNames) -> list[str]:
    if isinstance(event, model.SetDataSchema) and event.ddl is None:
        schema = read_declaration(event)
        return [] if schema is None else to_ddl(schema, schema_descriptions(event.odf_schema))
    return metadata_yaml.to_yaml(to_user_form(event, names)).splitlines()


def diff_lines(old: Sequence[str], new: Sequence[str]) -> list[str]:
    """Return the changed lines with context, each after its sign; truncated if there are too many."""
    lines: list[str] = []
    groups = SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(_CONTEXT_LINES)
    for number, group in enumerate(groups):
        if number or group[0][1]:
            lines.append("  …")
        for tag, start, stop, new_start, new_stop in group:
            if tag == "equal":
                lines += [f"  {line}" for line in old[start:stop]]
                continue
            lines += [f"- {line}" for line in old[start:stop]]
            lines += [f"+ {line}" for line in new[new_start:new_stop]]
    lines = [
        line if len(line) <= _MAX_LINE_CHARACTERS else line[: _MAX_LINE_CHARACTERS - 1] + "…"
        for line in lines
    ]
    if len(lines) > _MAX_LINES:
        lines[_MAX_LINES:] = [f"  … {len(lines) - _MAX_LINES:,} more lines"]
    return lines


class PlannedUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """The change of one definition.

    Attributes:
        entry: the dataset, or None for a new one that was not created.
        alias: its name.
        is_new: whether the definition creates it.
        events: the events to append, in order, or [] without changes.
        changes: a description of each event.
        head: the head that the definition was compared with, or None for a new dataset.
        system_time: system time of the new blocks.
        unused: new columns of ``read.schema`` that the preprocess query does not use.
        private: the new definition, if its source stays outside the chain and differs from the stored one.
        removes_private: whether the source outside the chain is removed.
    """

    entry: DatasetEntry | None
    alias: DatasetAlias
    is_new: bool = False
    events: list[MetadataEvent]
    changes: list[PlannedChange]
    head: Multihash | None = None
    system_time: Timestamp
    unused: list[str] = []
    private: SourceDefinition | None = None
    removes_private: bool = False

    def write_private(self, entry: DatasetEntry) -> None:
        """Store or remove the source outside the chain, if the definition changes it."""
        if self.private is not None:
            store_private_source(entry.dataset.folder, self.private)
        elif self.removes_private:
            remove_private_source(entry.dataset.folder)


class UpdatePlan(NamedTuple):
    """The datasets to create, inputs first, and the change of every definition, in their order."""

    plans: list[NewDataset]
    updates: list[PlannedUpdate]


def record_origin(entry: DatasetEntry, origin: str) -> None:
    """Store the origin of a third-party definition.

    The dataset is then no longer an own one (see :mod:`odf_engine.workspace.trust`).

    Raises:
        OdfError: the origin was not stored durably. The definition must not be committed without it.
    """
    if entry.dataset.origin is not None:
        entry.dataset.origin.record_author(origin)
    try:
        replace_text_file(entry.dataset.folder / ORIGIN_FILE, origin)
    except NotSynced as error:
        raise error.as_failure() from error


def require_no_state(update: PlannedUpdate) -> None:
    """Check that an update can be committed without an engine.

    Raises:
        UsageError: the query changes, and has a state that the new query may not be able to resume.
    """
    if update.entry is None or not any(isinstance(event, SetTransform) for event in update.events):
        return
    if update.entry.dataset.state().last_checkpoint is not None:
        raise UsageError(
            f"the new query of {update.alias} requires a choice for the state of the old query",
            hint="use odf add --update, which lists the choices",
        )


def commit_update(
    entry: DatasetEntry,
    update: PlannedUpdate,
    origin: str | None = None,
    *,
    block_version: int,
    data: Path | None = None,
    checkpoint: Path | None = None,
) -> Multihash:
    """Append the events of an update in one commit, and store its private source; return the new head.

    Args:
        entry: the dataset.
        update: its events, and the head that they follow.
        origin: the origin of the definition, if it is by a third party.
        block_version: manifest version of the new blocks.
        data, checkpoint: staged files of a transaction among the events.

    Raises:
        Conflict: another process has committed; nothing is changed.
        OdfError: the events violate an append rule.
    """
    if origin is not None:  # before the blocks, so that no untrusted source can run in between
        record_origin(entry, origin)
    if not update.events and update.head is not None:
        update.write_private(entry)
        return update.head
    path = source_path(entry.dataset.folder)
    before = path.read_text(encoding="utf-8") if path.exists() else None
    if update.private is not None:
        # Before the blocks, which may disable the source in the chain: a pull prefers the private source.
        store_private_source(entry.dataset.folder, update.private)
    try:
        head = entry.dataset.commit(
            update.events,
            system_time=update.system_time,
            expected_head=update.head,
            data=data,
            checkpoint=checkpoint,
            block_version=block_version,
        )
    except OdfError as error:
        error.where = f"dataset {entry.alias}" + (f", {error.where}" if error.where else "")
        if update.private is not None and not isinstance(error, NotSynced):
            if before is None:
                path.unlink(missing_ok=True)
            else:
                replace_text_file(path, before)
        raise
    update.write_private(entry)
    return head
