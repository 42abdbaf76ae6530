"""Plans the events that make a dataset match its changed definition."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote_from_bytes, unquote_to_bytes

import msgspec
from msgspec.structs import replace

from odf_engine.base.arrow import pa
from odf_engine.base.atomic_files import read_small_file, replace_text_file
from odf_engine.base.config import MetadataConfig
from odf_engine.chain.append_rules import check_commit
from odf_engine.chain.normal_form import (
    allowed_lateness,
    normalize_event,
    query_of,
    with_allowed_lateness,
    with_engine_version,
    with_version,
)
from odf_engine.chain.schema_evolution import declare_schema, read_declaration, same_declaration
from odf_engine.chain.state import ChainState, resolve_vocabulary
from odf_engine.data.arrow_schema import decode_schema
from odf_engine.data.ddl import parse_ddl
from odf_engine.errors import InvalidIdentity, InvalidManifest, InvalidQuery, OdfError, Unsupported
from odf_engine.identity.did import DatasetId
from odf_engine.identity.names import DatasetAlias
from odf_engine.metadata import model
from odf_engine.metadata.attachments import check_attachments
from odf_engine.metadata.model import (
    AddPushSource,
    DatasetSnapshot,
    DatasetVocabulary,
    MetadataEvent,
    SetDataSchema,
    SetPollingSource,
    kind_of,
)
from odf_engine.metadata.resources import join_sources
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.metadata.yaml import read_manifests
from odf_engine.workspace.dataset_summary import DatasetEntry, NewDataset
from odf_engine.workspace.definitions.declared_schema import (
    add_source_columns,
    schema_from_ddl,
    schema_from_odf,
)
from odf_engine.workspace.definitions.definition import (
    CheckedDefinition,
    DatasetNames,
    PlannedChange,
    PlannedUpdate,
    UpdatePlan,
    check_column_limits,
    check_column_precision,
    check_definition,
    check_inputs,
    check_precision,
    check_unique,
    complete_declaration,
    declared_columns,
    describe_change,
    diff_lines,
    error_context,
    plan_drafts,
    read_definition,
    resolve_inputs,
    topological_order,
)
from odf_engine.workspace.definitions.ineffective_options import check_options
from odf_engine.workspace.definitions.manifest_edit import edit_document
from odf_engine.workspace.discovery import ODF_FOLDER
from odf_engine.workspace.documents.private_source import (
    PrivateSource,
    polling_source_of,
    read_private_source,
    with_resource_id,
)
from odf_engine.workspace.remotes import Remotes, localize_inputs

Source = SetPollingSource | AddPushSource


class SourceChange(NamedTuple):
    """A source of the definition, and the source of the chain that it replaces."""

    source: Source
    before: Source | None

    @property
    def is_changed(self) -> bool:
        """Whether the chain has another definition of the source."""
        return self.before != self.source


def plan_schema(
    state: ChainState,
    explicit: SetDataSchema | None,
    sources: Sequence[SourceChange],
    vocab: DatasetVocabulary,
    forms: MetadataConfig,
) -> SetDataSchema | None:
    """Return the new schema of a definition, or None if it is unchanged.

    It is explicit, or changes because a source reads more columns.

    Args:
        state: the state of the chain.
        explicit: the schema in the definition.
        sources: the sources in the definition.
        vocab: names of the system columns according to the definition.
        forms: the forms of the first schema of a dataset.

    Raises:
        InvalidSchema: a malformed or invalid column.
        Unsupported: the schema of the chain is from a newer specification.
    """
    if "SetDataSchema" in state.not_understood:
        if explicit is not None:
            raise Unsupported(
                "the dataset's schema is from a newer specification",
                where="SetDataSchema",
                hint="omit SetDataSchema; the rest of the definition can change",
            )
        return None
    declared = read_declaration(state)
    if declared is None:
        # Otherwise the first rows determine the schema.
        return None if explicit is None else complete_declaration(explicit, vocab, forms)
    new_schema = declared if explicit is None else _explicit_schema(explicit, declared, vocab)
    for change in sources:
        if change.is_changed or explicit is not None:
            new_schema = _with_source_columns(change, new_schema, declared, vocab)
    before = state if explicit is None or explicit.odf_schema is None else explicit
    event = declare_schema(new_schema, before, odf=False)
    return None if new_schema is declared or same_declaration(state, event) else event


def _explicit_schema(event: SetDataSchema, declared: pa.Schema, vocab: DatasetVocabulary) -> pa.Schema:
    if event.odf_schema is not None:
        return schema_from_odf(event.odf_schema, declared, vocab)
    if event.ddl is not None:
        known = {name.casefold() for name in declared.names}
        new = [field for field in parse_ddl(event.ddl) if field.name.casefold() not in known]
        with error_context("SetDataSchema"):
            check_column_precision(new, vocab)
            check_column_limits(new)
        return schema_from_ddl(event.ddl, declared, vocab)
    return decode_schema(event.schema or b"")


def _with_source_columns(
    change: SourceChange, schema: pa.Schema, declared: pa.Schema, vocab: DatasetVocabulary
) -> pa.Schema:
    """Return the schema with the columns of a source, without those that it no longer reads."""
    columns = declared_columns(change.source, vocab)
    if columns is None:
        return schema
    old_columns = None if change.before is None else declared_columns(change.before, vocab)
    removed: list[str] = []
    if change.is_changed:
        # An additional push source may have fewer columns than the dataset.
        candidates = declared.names if isinstance(change.source, SetPollingSource) else []
        current_names = {name.casefold() for name in (*columns.names, *msgspec.structs.astuple(vocab))}
        removed = [
            name
            for name in (candidates if old_columns is None else old_columns.names)
            if name.casefold() not in current_names
        ]
    # Unchanged columns of the source keep their declaration in the chain.
    changed_fields = [
        field
        for field in columns
        if old_columns is None or field not in old_columns or field.name not in schema.names
    ]
    return add_source_columns(schema, changed_fields, removed, vocab)


_PUSH_SOURCE_PREFIX: Final = "AddPushSource "  # prefix of push sources in ChainState.not_understood


class _Step(NamedTuple):
    event: MetadataEvent
    before: MetadataEvent | None  # the event that it replaces


def plan_updates(
    existing: Sequence[DatasetEntry],
    snapshots: Sequence[DatasetSnapshot],
    new_id: Callable[[], DatasetId] | None,
    forms: MetadataConfig,
) -> UpdatePlan:
    """Compare definitions with the existing datasets and plan the changes.

    Args:
        existing: the datasets of the workspace.
        snapshots: the definitions, of existing and new datasets.
        new_id: creates an id for a new dataset, or None for a dry run.
        forms: the forms of the first schema of a dataset.

    Raises:
        NotFound: inputs that neither exist nor are defined here; the message lists all of them.
        ChainRuleViolated: a change that an append rule rejects.
        OdfError: a definition is invalid; ``where`` is the dataset.
    """
    entries = {entry.alias: entry for entry in existing}
    ids = {entry.alias: entry.id for entry in existing}
    states = {entry.alias: entry.dataset.state() for entry in _find_entries(snapshots, entries)}
    drafts = [_check_definition(snapshot, states) for snapshot in snapshots]
    check_unique(drafts)
    check_inputs(ids, drafts)
    new_definitions = [draft for draft in drafts if draft.alias not in states]
    plans = plan_drafts(ids, new_definitions, new_id or (lambda: DatasetId(os.urandom(32))), forms)
    known = {**ids, **{plan.alias: plan.id for plan in plans}}
    names = {dataset_id: str(alias) for alias, dataset_id in known.items()}
    new_datasets = {plan.alias: plan for plan in plans}
    now = Timestamp.now()
    updates: list[PlannedUpdate] = []
    for draft in drafts:
        with error_context(f"dataset {draft.alias}"):
            if draft.alias in new_datasets:
                updates.append(_new_dataset_update(new_datasets[draft.alias], names, now))
            else:
                updates.append(
                    _existing_dataset_update(
                        draft, entries[draft.alias], states[draft.alias], known, names, now, forms
                    )
                )
    _check_cycles(existing, updates, names)
    return UpdatePlan(plans, updates)


def _find_entries(
    snapshots: Sequence[DatasetSnapshot], entries: Mapping[DatasetAlias, DatasetEntry]
) -> Iterator[DatasetEntry]:
    for snapshot in snapshots:
        entry = entries.get(DatasetAlias.parse(snapshot.name))
        if entry is not None:
            yield entry


def _check_definition(
    snapshot: DatasetSnapshot, states: Mapping[DatasetAlias, ChainState]
) -> CheckedDefinition:
    state = states.get(DatasetAlias.parse(snapshot.name))
    if state is None:
        return check_definition(snapshot)
    if snapshot.kind is not state.kind:
        raise InvalidManifest(
            f"the dataset is {state.kind.value}, the definition is {snapshot.kind.value}:"
            " the kind of a dataset cannot change",
            where=f"dataset {snapshot.name}",
            hint="choose another name for the definition",
        )
    return check_definition(snapshot, vocabulary=state.vocabulary, exists=True)


def _new_dataset_update(plan: NewDataset, names: DatasetNames, now: Timestamp) -> PlannedUpdate:
    check_commit(None, plan.events, now)
    changes = [describe_change(event, None, names) for event in plan.events[1:]]
    if plan.private is not None:
        changes.append(_outside_chain(describe_change(polling_source_of(plan.private), None, names)))
    return PlannedUpdate(
        entry=None, alias=plan.alias, is_new=True, events=plan.events, changes=changes, system_time=now
    )


def _existing_dataset_update(
    definition: CheckedDefinition,
    entry: DatasetEntry,
    state: ChainState,
    known: Mapping[DatasetAlias, DatasetId],
    names: DatasetNames,
    now: Timestamp,
    forms: MetadataConfig,
) -> PlannedUpdate:
    system_time = max(now, state.system_time)
    private = read_private_source(entry.dataset.folder)
    steps = list(_plan_steps(definition, state, known, forms, private))
    for step in steps:
        check_options(step.event)
    changes = [describe_change(step.event, step.before, names) for step in steps]
    events = [step.event for step in steps]
    new_source = definition.private
    if new_source is not None:
        in_chain: list[MetadataEvent] = [event for event in events if not isinstance(event, SetPollingSource)]
        changes = [_outside_chain(change) for change in changes]
        old_config = {} if private is None else dict(private.config)
        if old_config != new_source.config:
            lines = diff_lines(_config_lines(old_config), _config_lines(new_source.config))
            changes.append(PlannedChange("config of the source", lines, in_chain=False))
        elif private is not None and len(in_chain) == len(events):
            new_source = None
        events = in_chain
    removes_private = private is not None and _removes_private_source(definition)
    if removes_private:
        changes.append(PlannedChange("no source outside the chain", [], in_chain=False))
    check_commit(state, events, system_time)
    return PlannedUpdate(
        entry=entry,
        alias=entry.alias,
        events=events,
        changes=changes,
        head=state.head,
        system_time=system_time,
        private=new_source and with_resource_id(new_source, state, private),
        removes_private=removes_private,
    )


def _outside_chain(change: PlannedChange) -> PlannedChange:
    """Return a change with the title of a source outside the chain, if it is of the polling source."""
    if change.title != "SetPollingSource":
        return change
    return replace(change, title="source, outside the chain", in_chain=False)


def _config_lines(config: Mapping[str, str]) -> list[str]:
    return [f"{name}: {reference}" for name, reference in config.items()]


def _removes_private_source(definition: CheckedDefinition) -> bool:
    """Return whether a definition has the polling source in the chain, or disables it."""
    return definition.private is None and any(
        isinstance(event, SetPollingSource | model.DisablePollingSource) for event in definition.events
    )


def _check_cycles(
    existing: Sequence[DatasetEntry], updates: Sequence[PlannedUpdate], names: DatasetNames
) -> None:
    """Check that the inputs form no cycle, if a transform changed."""
    changed = {
        update.alias: [DatasetId.parse(query_input.dataset_ref) for query_input in event.inputs]
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
            alias: [aliases[source_id] for source_id in ids if source_id in aliases]
            for alias, ids in {**inputs, **changed}.items()
        }
    )


def _plan_steps(
    definition: CheckedDefinition,
    state: ChainState,
    known: Mapping[DatasetAlias, DatasetId],
    forms: MetadataConfig,
    private: PrivateSource | None,
) -> Iterator[_Step]:
    """Yield the missing events of the chain, in the order of their append.

    A source that stays outside the chain is among them: see :func:`_existing_dataset_update`.
    """
    # The last of several events of the same kind applies, as in a chain.
    events_by_type: dict[type, Any] = {type(event): event for event in definition.events}
    pushed = {event.source_name: event for event in definition.events if isinstance(event, AddPushSource)}
    disabled = [
        event.source_name for event in definition.events if isinstance(event, model.DisablePushSource)
    ]
    polled: SetPollingSource | None = events_by_type.get(SetPollingSource)
    vocabulary: model.SetVocab | None = events_by_type.get(model.SetVocab)
    if vocabulary is not None and resolve_vocabulary(vocabulary) != state.vocabulary:
        yield _Step(vocabulary, model.SetVocab(**msgspec.structs.asdict(state.vocabulary)))
    yield from _disable_removed_sources(
        state,
        polled,
        pushed,
        disabled,
        model.DisablePollingSource in events_by_type or definition.private is not None,
    )
    sources = [
        SourceChange(source, private and private.source)
        if definition.private is not None and source is polled
        else _plan_source(source, _find_replaced_source(state, source))
        for source in (polled, *pushed.values())
        if source is not None
    ]
    for each_source in sources:
        if each_source.is_changed:
            check_precision(each_source.source, definition.vocabulary, each_source.before)
    schema = plan_schema(
        state, events_by_type.get(model.SetDataSchema), sources, definition.vocabulary, forms
    )
    if schema is not None:
        before = model.SetDataSchema(state.schema, state.odf_schema) if state.has_schema else None
        yield _Step(schema, before)
    yield from (_Step(item.source, item.before) for item in sources if item.is_changed)
    if (new_transform := events_by_type.get(model.SetTransform)) is not None:
        transform = _changed_transform(resolve_inputs(new_transform, known), state.transform)
        if transform is not None:
            yield _Step(transform, state.transform)
    attachments = None if state.attachments is None else model.SetAttachments(state.attachments)
    for event, before in (
        (events_by_type.get(model.SetLicense), state.license),
        (events_by_type.get(model.SetInfo), state.info),
        (events_by_type.get(model.SetAttachments), attachments),
    ):
        if event is None or event == before:
            continue
        if isinstance(event, model.SetAttachments):
            check_attachments(event.attachments)
        yield _Step(event, before)


def _changed_transform(
    event: model.SetTransform, previous: model.SetTransform | None
) -> model.SetTransform | None:
    """Return the transform to append, with its version, or None if the chain already has it.

    A definition without a version does not change the version in the chain, and one without an allowed
    lateness does not change that.
    """
    if previous is not None:
        comparable = normalize_for_comparison(previous)
        with suppress(InvalidQuery):  # an invalid one is replaced
            if not allowed_lateness(event.transform):
                event = with_allowed_lateness(event, allowed_lateness(previous.transform))
        if event.transform.version is None:
            comparable = with_version(comparable, None)
        if event == comparable:
            return None
    return with_engine_version(event)


def _disable_removed_sources(
    state: ChainState,
    polled: SetPollingSource | None,
    pushed: Mapping[str, AddPushSource],
    disabled: Sequence[str],
    disables_polling: bool,
) -> Iterator[_Step]:
    """Yield the events that disable the sources which the definition removes."""
    is_polled = state.polling_source is not None or "SetPollingSource" in state.not_understood
    if is_polled and ((pushed and polled is None) or disables_polling):
        yield _Step(model.DisablePollingSource(), state.polling_source)
    not_understood = [
        key.removeprefix(_PUSH_SOURCE_PREFIX)
        for key in state.not_understood
        if key.startswith(_PUSH_SOURCE_PREFIX)
    ]
    for name in dict.fromkeys([*state.push_sources, *not_understood]):
        replaced = (polled is not None or pushed) and name not in pushed
        if replaced or name in disabled:
            yield _Step(model.DisablePushSource(name), state.push_sources.get(name))


def _plan_source(source: Source, previous: Source | None) -> SourceChange:
    """Return the change of a source; the new one has the version of the engine of its preprocess query.

    A definition without a version does not change the version in the chain.
    """
    if previous is not None and source != previous and query_of(previous) is not None:
        source = previous if source == with_version(previous, None) else source
    if source == previous:
        return SourceChange(source, previous)
    return SourceChange(with_engine_version(source), previous)


def _find_replaced_source(state: ChainState, source: Source) -> Source | None:
    """Return the source of the chain that this one replaces."""
    if isinstance(source, SetPollingSource):
        return normalize_for_comparison(state.polling_source)
    return normalize_for_comparison(state.push_sources.get(source.source_name))


def normalize_for_comparison(event: Any) -> Any:
    """Return an event of a chain as it is compared with definitions."""
    with suppress(InvalidQuery):  # a foreign event may have no normal form; it then differs from all
        event = normalize_event(event)
    if isinstance(event, model.SetTransform):
        event = replace(event, inputs=[_with_canonical_id(query_input) for query_input in event.inputs])
    return event


def _with_canonical_id(item: model.TransformInput) -> model.TransformInput:
    try:
        return replace(item, dataset_ref=str(DatasetId.parse(item.dataset_ref)))
    except InvalidIdentity:
        return item


_MANIFEST: Final = "info/manifest"
"""In a dataset's folder: the path of the manifest file that defines the dataset."""
_SEPARATOR: Final = re.compile(r"^---(?:[ \t].*)?$\n?", re.MULTILINE)


class ManifestDrift(NamedTuple):
    """The difference between a dataset and the manifest file that defines it.

    Attributes:
        path: the file.
        changes: the events that `odf add --update` would append, or [] if the file cannot be compared.
        problem: why it cannot be compared, or "" if it can.
    """

    path: Path
    changes: list[PlannedChange]
    problem: str = ""


def record_manifest(folder: Path, entry: DatasetEntry, path: Path) -> None:
    """Store the path of the manifest file that defines a dataset. It is not part of the chain.

    Args:
        folder: the workspace's folder; a path in it is stored relative to it.
        entry: the dataset.
        path: the file.

    Raises:
        OdfError: the path cannot be stored.
    """
    path, folder = path.absolute(), folder.absolute()
    text = path.relative_to(folder) if path.is_relative_to(folder) else path
    replace_text_file(entry.dataset.folder / _MANIFEST, quote_from_bytes(os.fsencode(text)))


def find_manifest(folder: Path, entry: DatasetEntry) -> Path | None:
    """Return the manifest file that defines a dataset, or None if it is unknown or was removed.

    It is the recorded file, or one with the name of the dataset in ``manifests`` or the workspace's folder.
    """
    with suppress(OSError, UnicodeDecodeError):
        stored = read_small_file(entry.dataset.folder / _MANIFEST).decode()
        recorded = folder / os.fsdecode(unquote_to_bytes(stored))
        if recorded.is_file():
            return recorded
    name = f"{str(entry.alias).replace('/', '-')}.yaml"
    return next((path for path in (folder / "manifests" / name, folder / name) if path.is_file()), None)


def find_manifest_drift(
    folder: Path, entry: DatasetEntry, datasets: Sequence[DatasetEntry]
) -> ManifestDrift | None:
    """Compare a dataset with the manifest file that defines it.

    Settings that the file does not contain are not compared: an update with it would not change them.

    Args:
        folder: the workspace's folder.
        entry: the dataset.
        datasets: all datasets of the workspace.

    Returns:
        The difference, or None if absent, or no file is known.
    """
    path = find_manifest(folder, entry)
    if path is None:
        return None
    try:
        text = _read_manifest(path)
        # A file with thousands of definitions takes seconds to parse. Names with escapes are rare.
        defined = _find_definitions(text, entry, entry.alias.name) or _find_definitions(text, entry)
        if not defined:
            return ManifestDrift(path, [], f"it does not define {entry.alias}")
        ids = {dataset.alias: dataset.id for dataset in datasets}
        defined = localize_inputs(join_sources(defined)[:1], ids, Remotes(folder / ODF_FOLDER))
        (update,) = plan_updates(datasets, defined, None, MetadataConfig()).updates
    except OdfError as error:
        return ManifestDrift(path, [], str(error))
    return ManifestDrift(path, update.changes) if update.changes else None


def read_own_manifest(folder: Path, entry: DatasetEntry, datasets: Sequence[DatasetEntry]) -> str | None:
    """Return the manifest of a dataset as its author wrote it, with comments.

    None if the file is unknown, differs from the dataset, or does not contain its complete definition.

    Args:
        folder: the workspace's folder.
        entry: the dataset.
        datasets: all datasets of the workspace.
    """
    path = find_manifest(folder, entry)
    if path is None or find_manifest_drift(folder, entry, datasets) is not None:
        return None
    needed = {kind_of(event) for event in read_definition(entry, datasets).metadata}
    for text, snapshot in _split_manifest(_read_manifest(path)):
        if (
            snapshot is not None
            and _defines(snapshot, entry)
            and needed <= set(map(kind_of, snapshot.metadata))
        ):
            return text
    return None


def definition_to_edit(
    folder: Path, entry: DatasetEntry, datasets: Sequence[DatasetEntry]
) -> DatasetSnapshot:
    """Return the definition of a polled dataset as its manifest file has it, or the complete one.

    The complete one is returned if no file defines the source.

    Args:
        folder: the workspace's folder.
        entry: the dataset.
        datasets: all datasets of the workspace.

    Raises:
        InvalidManifest: the file differs from the dataset: a new definition would revert its changes.
    """
    path, drift = find_manifest(folder, entry), find_manifest_drift(folder, entry, datasets)
    if drift is not None and drift.changes:
        raise InvalidManifest(
            f"the manifest differs from {entry.alias}",
            where=str(drift.path),
            hint=f"first run odf add --update {shlex.quote(str(drift.path))}",
        )
    if path is not None and drift is None:
        for _, snapshot in _split_manifest(_read_manifest(path)):
            if snapshot is None or not _defines(snapshot, entry):
                continue
            if any(isinstance(event, SetPollingSource) for event in snapshot.metadata):
                return snapshot
    return read_definition(entry, datasets)


def replace_definition(
    path: Path, entry: DatasetEntry, definition: str, *, keeps_comments: bool = False
) -> str:
    """Return the text of a manifest file with another definition of a dataset.

    Other documents of the file are unchanged.

    Args:
        path: the file.
        entry: the dataset.
        definition: the new definition, as YAML.
        keeps_comments: whether the text of the file is edited if only columns and queries of sources differ.

    Raises:
        InvalidManifest: the file does not define the dataset.
        OdfError: the file cannot be read.
    """
    documents = _split_manifest(_read_manifest(path))
    if not any(document is not None and _defines(document, entry) for _, document in documents):
        raise InvalidManifest(f"the file does not define {entry.alias}", where=str(path))
    text = definition.removeprefix("---\n").rstrip("\n") + "\n"
    new = read_manifests(text, "definition")[0] if keeps_comments else None
    parts: list[str] = []
    is_written = False
    for part, document in documents:
        if document is None or not _defines(document, entry):
            parts.append(part)
        elif not is_written:  # a Dataset and its Source are two documents
            parts.append((new and edit_document(part, new)) or text)
            is_written = True
    return "---\n".join(part if part.endswith("\n") or not part else part + "\n" for part in parts)


def _read_manifest(path: Path) -> str:
    try:
        return read_small_file(path).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidManifest(f"the file cannot be read: {error}", where=str(path)) from None


def _split_manifest(text: str, word: str = "") -> list[tuple[str, DatasetSnapshot | None]]:
    """Return the documents of a manifest, each with the dataset that it defines.

    Args:
        text: the manifest.
        word: parse only documents that contain this text, in upper or lower case. The others have None.

    Raises:
        InvalidManifest: a document is invalid.
    """
    documents: list[tuple[str, DatasetSnapshot | None]] = []
    word = word.casefold()
    for part in _SEPARATOR.split(text):
        is_blank = all(line.lstrip().startswith("#") or not line.strip() for line in part.splitlines())
        is_parsed = not is_blank and word in part.casefold()
        snapshots = read_manifests(part, "manifest") if is_parsed else []
        documents.append((part, snapshots[0] if snapshots else None))  # a set of values defines no dataset
    return documents


def _find_definitions(text: str, entry: DatasetEntry, word: str = "") -> list[DatasetSnapshot]:
    """Return the definitions of a dataset in a manifest; see :func:`_split_manifest`."""
    snapshots = (snapshot for _, snapshot in _split_manifest(text, word))
    return [snapshot for snapshot in snapshots if snapshot is not None and _defines(snapshot, entry)]


def _defines(snapshot: DatasetSnapshot, entry: DatasetEntry) -> bool:
    return DatasetAlias.parse(snapshot.name) == entry.alias
