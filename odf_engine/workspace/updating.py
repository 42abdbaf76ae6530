"""From definitions that people changed to the events that datasets lack.

A definition says what a dataset shall be; what its chain amounts to says what it is. Only the
difference is appended. What a definition does not mention stays as it is, so that nothing is lost by
leaving it out; a source goes when another one of either kind is there in its place, or when it is
disabled by name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from odf_engine.chain.rules import check_commit, normalise_event
from odf_engine.chain.state import ChainState, vocabulary_of
from odf_engine.errors import InvalidIdentity, InvalidManifest, InvalidQuery, OdfError
from odf_engine.identity.did import DatasetId
from odf_engine.identity.multiformats import Multihash
from odf_engine.identity.refs import DatasetAlias
from odf_engine.metadata import model
from odf_engine.metadata.model import AddPushSource, DatasetSnapshot, MetadataEvent, SetPollingSource
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.workspace.adding import (
    Draft,
    Plan,
    check_attachments,
    check_inputs,
    check_once,
    draft,
    in_order,
    plan_drafts,
    resolved,
    within,
)
from odf_engine.workspace.definitions import Change, Names, change_of, snapshot_of
from odf_engine.workspace.migration import Reading, Source, next_schema
from odf_engine.workspace.summary import DatasetEntry
from odf_engine.workspace.versions import unversioned, versioned

__all__ = ["Change", "Planned", "Update", "plan_updates", "snapshot_of"]

_PUSH: Final = "AddPushSource "  # before the name of a push source that is not understood


class Update(msgspec.Struct, frozen=True, kw_only=True):
    """What one definition changes.

    Attributes:
        entry: the dataset; None for a new one that was not made.
        alias: its name.
        is_new: whether the definition makes it.
        events: what is appended, in this order; empty when there is nothing to do.
        changes: the same for people, one an event.
        head: the block that the definition was compared with; None for a new dataset.
        system_time: of the blocks to append.
    """

    entry: DatasetEntry | None
    alias: DatasetAlias
    is_new: bool = False
    events: list[MetadataEvent]
    changes: list[Change]
    head: Multihash | None = None
    system_time: Timestamp


class Planned(NamedTuple):
    """What is to be made, inputs first, and what every definition changes, in their order."""

    plans: list[Plan]
    updates: list[Update]


class _Step(NamedTuple):
    event: MetadataEvent
    before: MetadataEvent | None  # what it takes the place of


def plan_updates(
    existing: Sequence[DatasetEntry],
    snapshots: Sequence[DatasetSnapshot],
    new_id: Callable[[], DatasetId] | None,
) -> Planned:
    """Compares definitions with what is there.

    Args:
        existing: the datasets of the workspace.
        snapshots: the definitions, of datasets that are there and of new ones.
        new_id: makes an identity for a new dataset; None when none will be made.

    Raises:
        NotFound: inputs that are neither there nor defined here; all of them are named.
        ChainRuleViolated: a change that the dataset's chain does not allow.
        OdfError: a definition is wrong; ``where`` names the dataset.
    """
    there = {entry.alias: entry for entry in existing}
    ids = {entry.alias: entry.id for entry in existing}
    states = {entry.alias: entry.dataset.state() for entry in _named(snapshots, there)}
    drafts = [_draft(snapshot, states) for snapshot in snapshots]
    check_once(drafts)
    check_inputs(ids, drafts)
    fresh = [each for each in drafts if each.alias not in states]
    plans = plan_drafts(ids, fresh, new_id or (lambda: DatasetId(os.urandom(32))))
    known = {**ids, **{plan.alias: plan.id for plan in plans}}
    names = {dataset_id: str(alias) for alias, dataset_id in known.items()}
    made = {plan.alias: plan for plan in plans}
    now = Timestamp.now()
    updates: list[Update] = []
    for each in drafts:
        with within(f"dataset {each.alias}"):
            if each.alias in made:
                updates.append(_made(made[each.alias], names, now))
            else:
                updates.append(_update(each, there[each.alias], states[each.alias], known, names, now))
    _check_circles(existing, updates, names)
    return Planned(plans, updates)


def _named(
    snapshots: Sequence[DatasetSnapshot], there: Mapping[DatasetAlias, DatasetEntry]
) -> Iterator[DatasetEntry]:
    for snapshot in snapshots:
        entry = there.get(DatasetAlias.parse(snapshot.name))
        if entry is not None:
            yield entry


def _draft(snapshot: DatasetSnapshot, states: Mapping[DatasetAlias, ChainState]) -> Draft:
    state = states.get(DatasetAlias.parse(snapshot.name))
    if state is None:
        return draft(snapshot)
    if snapshot.kind is not state.kind:
        raise InvalidManifest(
            f"the dataset is {state.kind.value}, and this definition says {snapshot.kind.value}:"
            " the kind of a dataset never changes",
            where=f"dataset {snapshot.name}",
            hint="give the new definition another name",
        )
    return draft(snapshot, vocabulary=state.vocabulary, exists=True)


def _made(plan: Plan, names: Names, now: Timestamp) -> Update:
    check_commit(None, plan.events, now)
    changes = [change_of(event, None, names) for event in plan.events[1:]]
    return Update(
        entry=None, alias=plan.alias, is_new=True, events=plan.events, changes=changes, system_time=now
    )


def _update(
    each: Draft,
    entry: DatasetEntry,
    state: ChainState,
    known: Mapping[DatasetAlias, DatasetId],
    names: Names,
    now: Timestamp,
) -> Update:
    system_time = max(now, state.system_time)
    steps = list(_steps(each, state, known))
    check_commit(state, [step.event for step in steps], system_time)
    return Update(
        entry=entry,
        alias=entry.alias,
        events=[step.event for step in steps],
        changes=[change_of(step.event, step.before, names) for step in steps],
        head=state.head,
        system_time=system_time,
    )


def _check_circles(existing: Sequence[DatasetEntry], updates: Sequence[Update], names: Names) -> None:
    """Whether datasets still feed each other in one direction, where a transform changed."""
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
        with suppress(OdfError):  # a damaged dataset feeds nobody
            inputs[entry.alias] = entry.dataset.state().inputs()
    aliases = {dataset_id: DatasetAlias.parse(name) for dataset_id, name in names.items()}
    in_order(
        {
            alias: [aliases[each] for each in ids if each in aliases]
            for alias, ids in {**inputs, **changed}.items()
        }
    )


# --- What differs ------------------------------------------------------------------------------


def _steps(each: Draft, state: ChainState, known: Mapping[DatasetAlias, DatasetId]) -> Iterator[_Step]:
    """The events that the chain lacks, in the order in which they are appended."""
    # Of several events of a kind the last one counts, as it does in a chain.
    said: dict[type, Any] = {type(event): event for event in each.events}
    pushed = {event.source_name: event for event in each.events if isinstance(event, AddPushSource)}
    disabled = [event.source_name for event in each.events if isinstance(event, model.DisablePushSource)]
    polled: SetPollingSource | None = said.get(SetPollingSource)
    vocabulary: model.SetVocab | None = said.get(model.SetVocab)
    if vocabulary is not None and vocabulary_of(vocabulary) != state.vocabulary:
        yield _Step(vocabulary, model.SetVocab(**msgspec.structs.asdict(state.vocabulary)))
    yield from _goes(state, polled, pushed, disabled, model.DisablePollingSource in said)
    sources = [
        Reading(source, _active(state, source)) for source in (polled, *pushed.values()) if source is not None
    ]
    schema = next_schema(state, said.get(model.SetDataSchema), sources, each.vocabulary)
    if schema is not None:
        yield _Step(schema, None if state.schema is None else model.SetDataSchema(state.schema))
    yield from (_Step(each.source, each.before) for each in sources if each.changed)
    if (said_transform := said.get(model.SetTransform)) is not None:
        transform = _changed_transform(resolved(said_transform, known), state.transform)
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
    """The transform to append, with its version; None where it is the one of the chain already.

    A definition that says no version leaves the one of the chain as it is.
    """
    if before is not None:
        there = normal(before)
        if said.transform.version is None:
            there = unversioned(there)
        if said == there:
            return None
    return versioned(said)


def _goes(
    state: ChainState,
    polled: SetPollingSource | None,
    pushed: Mapping[str, AddPushSource],
    disabled: Sequence[str],
    unpolled: bool,
) -> Iterator[_Step]:
    """The sources that are there and not wanted any more."""
    there = state.polling_source is not None or "SetPollingSource" in state.not_understood
    if there and (pushed or unpolled):
        yield _Step(model.DisablePollingSource(), state.polling_source)
    foreign = [key.removeprefix(_PUSH) for key in state.not_understood if key.startswith(_PUSH)]
    for name in dict.fromkeys([*state.push_sources, *foreign]):
        replaced = polled is not None or (pushed and name not in pushed)
        if replaced or name in disabled:
            yield _Step(model.DisablePushSource(name), state.push_sources.get(name))


def _active(state: ChainState, source: Source) -> Source | None:
    """The source of the chain that this one takes the place of."""
    if isinstance(source, SetPollingSource):
        return normal(state.polling_source)
    return normal(state.push_sources.get(source.source_name))


def normal(event: Any) -> Any:
    """An event of a chain in the form in which definitions are compared with it."""
    with suppress(InvalidQuery):  # what others wrote may have no normal form, and then equals nothing
        event = normalise_event(event)
    if isinstance(event, model.SetTransform):
        event = replace(event, inputs=[_canonical(each) for each in event.inputs])
    return event


def _canonical(given: model.TransformInput) -> model.TransformInput:
    try:
        return replace(given, dataset_ref=str(DatasetId.parse(given.dataset_ref)))
    except InvalidIdentity:
        return given
