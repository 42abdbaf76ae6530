"""Plans the events that make a dataset match its changed definition."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from odf_engine.chain.append_rules import check_commit
from odf_engine.chain.normal_form import normalise_event, with_engine_version, without_engine_version
from odf_engine.chain.schema_evolution import add_source_columns, read_schema, same_schema, schema_from_ddl
from odf_engine.chain.state import ChainState, vocabulary_of
from odf_engine.data.arrow_schema import encode_schema
from odf_engine.errors import InvalidIdentity, InvalidManifest, InvalidQuery, OdfError, Unsupported
from odf_engine.identity.did import DatasetId
from odf_engine.identity.names import DatasetAlias
from odf_engine.metadata import model
from odf_engine.metadata.model import (
    AddPushSource,
    DatasetSnapshot,
    DatasetVocabulary,
    MetadataEvent,
    SetDataSchema,
    SetPollingSource,
)
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.definition import (
    CheckedDefinition,
    DatasetNames,
    NewDataset,
    Update,
    UpdatePlan,
    check_attachments,
    check_definition,
    check_inputs,
    check_unique,
    data_columns,
    describe_change,
    error_context,
    plan_drafts,
    resolve_inputs,
    topological_order,
)

Source = SetPollingSource | AddPushSource


class SourceChange(NamedTuple):
    """A source of the definition, and the source of the chain that it replaces."""

    source: Source
    before: Source | None

    @property
    def changed(self) -> bool:
        """Whether the chain has another definition of the source."""
        return self.before != self.source


def next_schema(
    state: ChainState, said: SetDataSchema | None, sources: Sequence[SourceChange], vocab: DatasetVocabulary
) -> SetDataSchema | None:
    """Return the new schema that a definition sets, explicitly or because a source reads more columns; None
    if it is unchanged.

    Args:
        state: the state of the chain.
        said: the schema in the definition.
        sources: the sources in the definition.
        vocab: names of the system columns according to the definition.

    Raises:
        InvalidSchema: a malformed or invalid column.
        Unsupported: schemas in terms of a newer specification, which cannot be compared.
    """
    if state.has_schema and state.schema is None:
        if said is not None and (said.odf_schema is None or said.odf_schema != state.odf_schema):
            raise Unsupported(
                "the dataset's schema is written in terms of a newer specification",
                where="SetDataSchema",
                hint="leave SetDataSchema out; the rest of the definition can change",
            )
        return None
    if said is not None and said.odf_schema is not None:
        if state.schema is None:
            return said
        raise Unsupported(
            "a schema in the specification's newer terms cannot be compared with that of the dataset",
            where="SetDataSchema",
            hint='list the columns as DDL: schema: ["id BIGINT", …]',
        )
    declared = None if state.schema is None else read_schema(state.schema)
    wanted = declared if said is None else _said_schema(said, declared, vocab)
    if declared is not None and wanted is not None:
        for reading in sources:
            if reading.changed or said is not None:
                wanted = _with_columns_of(reading, wanted, declared, vocab)
    if wanted is None:
        return None  # the first rows determine the schema
    schema = encode_schema(wanted)
    if state.schema is not None and (wanted is declared or same_schema(state.schema, schema)):
        return None
    return SetDataSchema(schema)


def _said_schema(said: SetDataSchema, declared: pa.Schema | None, vocab: DatasetVocabulary) -> pa.Schema:
    if said.ddl is not None:
        return schema_from_ddl(said.ddl, declared, vocab)
    return read_schema(said.schema or b"")


def _with_columns_of(
    reading: SourceChange, schema: pa.Schema, declared: pa.Schema, vocab: DatasetVocabulary
) -> pa.Schema:
    """Return the schema with the columns of a source, without those that it no longer reads."""
    columns = data_columns(reading.source, vocab)
    if columns is None:
        return schema
    had = None if reading.before is None else data_columns(reading.before, vocab)
    gone: list[str] = []
    if reading.changed:
        # An additional push source may have fewer columns than the dataset.
        others = declared.names if isinstance(reading.source, SetPollingSource) else []
        now = {name.casefold() for name in (*columns.names, *msgspec.structs.astuple(vocab))}
        gone = [name for name in (others if had is None else had.names) if name.casefold() not in now]
    # Unchanged columns of the source keep their declaration in the chain.
    told = [field for field in columns if had is None or field not in had or field.name not in schema.names]
    return add_source_columns(schema, told, gone, vocab)


_PUSH: Final = "AddPushSource "  # prefix of push sources in ChainState.not_understood


class _Step(NamedTuple):
    event: MetadataEvent
    before: MetadataEvent | None  # the event that it replaces


def plan_updates(
    existing: Sequence[DatasetEntry],
    snapshots: Sequence[DatasetSnapshot],
    new_id: Callable[[], DatasetId] | None,
) -> UpdatePlan:
    """Compare definitions with the existing datasets and plan the changes.

    Args:
        existing: the datasets of the workspace.
        snapshots: the definitions, of existing and new datasets.
        new_id: creates an id for a new dataset; None for a dry run.

    Raises:
        NotFound: inputs that neither exist nor are defined here; the message lists all of them.
        ChainRuleViolated: a change that an append rule rejects.
        OdfError: a definition is invalid; ``where`` is the dataset.
    """
    there = {entry.alias: entry for entry in existing}
    ids = {entry.alias: entry.id for entry in existing}
    states = {entry.alias: entry.dataset.state() for entry in _named(snapshots, there)}
    drafts = [_draft(snapshot, states) for snapshot in snapshots]
    check_unique(drafts)
    check_inputs(ids, drafts)
    fresh = [each for each in drafts if each.alias not in states]
    plans = plan_drafts(ids, fresh, new_id or (lambda: DatasetId(os.urandom(32))))
    known = {**ids, **{plan.alias: plan.id for plan in plans}}
    names = {dataset_id: str(alias) for alias, dataset_id in known.items()}
    made = {plan.alias: plan for plan in plans}
    now = Timestamp.now()
    updates: list[Update] = []
    for each in drafts:
        with error_context(f"dataset {each.alias}"):
            if each.alias in made:
                updates.append(_made(made[each.alias], names, now))
            else:
                updates.append(_update(each, there[each.alias], states[each.alias], known, names, now))
    _check_circles(existing, updates, names)
    return UpdatePlan(plans, updates)


def _named(
    snapshots: Sequence[DatasetSnapshot], there: Mapping[DatasetAlias, DatasetEntry]
) -> Iterator[DatasetEntry]:
    for snapshot in snapshots:
        entry = there.get(DatasetAlias.parse(snapshot.name))
        if entry is not None:
            yield entry


def _draft(snapshot: DatasetSnapshot, states: Mapping[DatasetAlias, ChainState]) -> CheckedDefinition:
    state = states.get(DatasetAlias.parse(snapshot.name))
    if state is None:
        return check_definition(snapshot)
    if snapshot.kind is not state.kind:
        raise InvalidManifest(
            f"the dataset is {state.kind.value}, and this definition says {snapshot.kind.value}:"
            " the kind of a dataset never changes",
            where=f"dataset {snapshot.name}",
            hint="give the new definition another name",
        )
    return check_definition(snapshot, vocabulary=state.vocabulary, exists=True)


def _made(plan: NewDataset, names: DatasetNames, now: Timestamp) -> Update:
    check_commit(None, plan.events, now)
    changes = [describe_change(event, None, names) for event in plan.events[1:]]
    return Update(
        entry=None, alias=plan.alias, is_new=True, events=plan.events, changes=changes, system_time=now
    )


def _update(
    each: CheckedDefinition,
    entry: DatasetEntry,
    state: ChainState,
    known: Mapping[DatasetAlias, DatasetId],
    names: DatasetNames,
    now: Timestamp,
) -> Update:
    system_time = max(now, state.system_time)
    steps = list(_steps(each, state, known))
    check_commit(state, [step.event for step in steps], system_time)
    return Update(
        entry=entry,
        alias=entry.alias,
        events=[step.event for step in steps],
        changes=[describe_change(step.event, step.before, names) for step in steps],
        head=state.head,
        system_time=system_time,
    )


def _check_circles(existing: Sequence[DatasetEntry], updates: Sequence[Update], names: DatasetNames) -> None:
    """Check that the inputs form no cycle, if a transform changed."""
    changed = {
        update.alias: [DatasetId.parse(each.dataset_ref) for each in event.inputs]
        for update in updates
        for event in update.events
        if isinstance(event, model.SetTransform)
    }
    if not changed:
        return
    inputs: dict[DatasetAlias, list[DatasetId]] = {}
    for entry in existing:
        with suppress(OdfError):  # the inputs of a damaged dataset are unknown
            inputs[entry.alias] = entry.dataset.state().inputs()
    aliases = {dataset_id: DatasetAlias.parse(name) for dataset_id, name in names.items()}
    topological_order(
        {
            alias: [aliases[each] for each in ids if each in aliases]
            for alias, ids in {**inputs, **changed}.items()
        }
    )


# --- Differences ------------------------------------------------------------------------------


def _steps(
    each: CheckedDefinition, state: ChainState, known: Mapping[DatasetAlias, DatasetId]
) -> Iterator[_Step]:
    """Yield the missing events of the chain, in the order in which they are appended."""
    # The last of several events of the same kind applies, as in a chain.
    said: dict[type, Any] = {type(event): event for event in each.events}
    pushed = {event.source_name: event for event in each.events if isinstance(event, AddPushSource)}
    disabled = [event.source_name for event in each.events if isinstance(event, model.DisablePushSource)]
    polled: SetPollingSource | None = said.get(SetPollingSource)
    vocabulary: model.SetVocab | None = said.get(model.SetVocab)
    if vocabulary is not None and vocabulary_of(vocabulary) != state.vocabulary:
        yield _Step(vocabulary, model.SetVocab(**msgspec.structs.asdict(state.vocabulary)))
    yield from _goes(state, polled, pushed, disabled, model.DisablePollingSource in said)
    sources = [
        SourceChange(source, _active(state, source))
        for source in (polled, *pushed.values())
        if source is not None
    ]
    schema = next_schema(state, said.get(model.SetDataSchema), sources, each.vocabulary)
    if schema is not None:
        yield _Step(schema, None if state.schema is None else model.SetDataSchema(state.schema))
    yield from (_Step(each.source, each.before) for each in sources if each.changed)
    if (said_transform := said.get(model.SetTransform)) is not None:
        transform = _changed_transform(resolve_inputs(said_transform, known), state.transform)
        if transform is not None:
            yield _Step(transform, state.transform)
    attachments = None if state.attachments is None else model.SetAttachments(state.attachments)
    for event, before in (
        (said.get(model.SetLicense), state.license),
        (said.get(model.SetInfo), state.info),
        (said.get(model.SetAttachments), attachments),
    ):
        if event is None or event == before:
            continue
        if isinstance(event, model.SetAttachments):
            check_attachments(event.attachments)
        yield _Step(event, before)


def _changed_transform(
    said: model.SetTransform, before: model.SetTransform | None
) -> model.SetTransform | None:
    """Return the transform to append, with its version; None if the chain already has it.

    A definition without a version does not change the version in the chain.
    """
    if before is not None:
        there = normalize_for_comparison(before)
        if said.transform.version is None:
            there = without_engine_version(there)
        if said == there:
            return None
    return with_engine_version(said)


def _goes(
    state: ChainState,
    polled: SetPollingSource | None,
    pushed: Mapping[str, AddPushSource],
    disabled: Sequence[str],
    unpolled: bool,
) -> Iterator[_Step]:
    """Yield the events that disable the sources which the definition removes."""
    there = state.polling_source is not None or "SetPollingSource" in state.not_understood
    if there and (pushed or unpolled):
        yield _Step(model.DisablePollingSource(), state.polling_source)
    foreign = [key.removeprefix(_PUSH) for key in state.not_understood if key.startswith(_PUSH)]
    for name in dict.fromkeys([*state.push_sources, *foreign]):
        replaced = polled is not None or (pushed and name not in pushed)
        if replaced or name in disabled:
            yield _Step(model.DisablePushSource(name), state.push_sources.get(name))


def _active(state: ChainState, source: Source) -> Source | None:
    """Return the source of the chain that this one replaces."""
    if isinstance(source, SetPollingSource):
        return normalize_for_comparison(state.polling_source)
    return normalize_for_comparison(state.push_sources.get(source.source_name))


def normalize_for_comparison(event: Any) -> Any:
    """Return an event of a chain in the form in which it is compared with definitions."""
    with suppress(InvalidQuery):  # a foreign event may have no normal form; it then differs from all
        event = normalise_event(event)
    if isinstance(event, model.SetTransform):
        event = replace(event, inputs=[_canonical(each) for each in event.inputs])
    return event


def _canonical(given: model.TransformInput) -> model.TransformInput:
    try:
        return replace(given, dataset_ref=str(DatasetId.parse(given.dataset_ref)))
    except InvalidIdentity:
        return given
