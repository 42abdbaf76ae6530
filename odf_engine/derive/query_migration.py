"""Migration of a derivative dataset to a new query, with a preview of the outcome."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import pyarrow as pa
from msgspec.structs import replace

from odf_engine.base.files import remove_temporary, translate_os_errors
from odf_engine.base.progress import Reporter
from odf_engine.chain.normal_form import BUILT_IN_ENGINES
from odf_engine.chain.schema_evolution import declare_schema, declared_schema, read_declaration
from odf_engine.chain.state import ChainState, resolve_vocabulary
from odf_engine.checks.gate import StartSession, load_checks
from odf_engine.data.arrow_schema import decode_schema
from odf_engine.derive.plan import Transaction, boundary_transaction
from odf_engine.derive.read_limit import size_of_inputs
from odf_engine.derive.run import (
    CHECKPOINT,
    check_changelog,
    check_rows,
    execute_transaction,
    make_request,
    record_waiting,
    to_event,
    transform,
)
from odf_engine.engines.contract import Engine, QueryInput, TransactionResult, ValidatedQuery
from odf_engine.engines.output_contract import add_new_columns
from odf_engine.errors import BadData, CheckFailed, InvalidQuery, Unsupported, UsageError
from odf_engine.metadata.model import (
    DEFAULT_VOCABULARY,
    DatasetSnapshot,
    DatasetVocabulary,
    MetadataEvent,
    SetDataSchema,
    SetTransform,
    SetVocab,
    TransformInput,
    kind_of,
)
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.sql.query_text import attach_query_excerpt
from odf_engine.storage.scratch import job_scratch_folder
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.definitions.definition import (
    PlannedChange,
    PlannedUpdate,
    commit_update,
    describe_change,
)
from odf_engine.workspace.workspace import Workspace

Choice = Literal["", "flush", "rebuild"]
StateOutcome = Literal["none", "kept", "lost", "flushed", "rebuilt"]


class InputWithoutSchema(Unsupported):
    """A query cannot be validated: an input without data has no schema."""


@dataclass(frozen=True)
class MigrationPreview:
    """The effect of a definition.

    Attributes:
        columns: result columns of the query, without the system columns of the engine.
        new: columns that the dataset does not have yet, or [] if it has no schema.
        state: outcome for the state of the current query, see :data:`StateOutcome`.
        reads: size of the slices that each transaction reads with the inputs as they are now, in bytes, or
            None if transactions read only new rows.
    """

    columns: pa.Schema
    new: list[str]
    state: StateOutcome
    reads: int | None


def preview_migration(
    workspace: Workspace, snapshot: DatasetSnapshot, engine: Engine
) -> MigrationPreview | None:
    """Validate the query of a definition, or None without a query, or with one of a newer specification.

    Raises:
        InputWithoutSchema: an input has no schema.
        OdfError: the definition or its query is invalid.
    """
    (update,) = workspace.update([snapshot], dry_run=True)
    state = None if update.entry is None else update.entry.dataset.state()
    transform = transform_after(update, state)
    if transform is None:
        return None
    vocab = _vocabulary(update, state)
    checked = validate_transform(workspace, transform, engine, vocab)
    declared = schema_after(update, state)
    new = [] if declared is None else add_new_columns(declared, checked.schema, vocab).names[len(declared) :]
    outcome: StateOutcome = "none"
    if state is not None and update.entry is not None and state.last_inputs is not None:
        before = state_before(workspace, update.entry, state, engine)
        outcome = state_outcome(state, before, transform, checked)
    filled = (vocab.offset_column, vocab.operation_type_column, vocab.system_time_column)
    columns = pa.schema([field for field in checked.schema if field.name not in filled])
    return MigrationPreview(columns, new, outcome, _size_of_reads(workspace, transform, checked))


def _size_of_reads(workspace: Workspace, transform: SetTransform, checked: ValidatedQuery) -> int | None:
    return size_of_inputs(workspace, transform) if checked.rereads else None


def transform_after(update: PlannedUpdate, state: ChainState | None) -> SetTransform | None:
    """Return the transform after an update."""
    transforms = [event for event in update.events if isinstance(event, SetTransform)]
    return transforms[-1] if transforms else None if state is None else state.transform


def _vocabulary(update: PlannedUpdate, state: ChainState | None) -> DatasetVocabulary:
    for event in update.events:
        if isinstance(event, SetVocab):
            return resolve_vocabulary(event)
    return DEFAULT_VOCABULARY if state is None else state.vocabulary


def schema_after(update: PlannedUpdate, state: ChainState | None) -> pa.Schema | None:
    """Return the schema after an update."""
    for event in update.events:
        if isinstance(event, SetDataSchema):
            return read_declaration(event)
    return None if state is None else declared_schema(state)


def with_schema(update: PlannedUpdate, state: ChainState, schema: pa.Schema | None) -> PlannedUpdate:
    """Return the update with a change of the schema, if the dataset's schema differs."""
    declared = declared_schema(state)
    if schema is None or (declared is not None and schema.equals(declared, check_metadata=True)):
        return update
    explicit = next((event for event in update.events if isinstance(event, SetDataSchema)), None)
    event = declare_schema(schema, explicit or state, odf=False)
    before = SetDataSchema(state.schema, state.odf_schema) if state.has_schema else None
    pairs = zip(update.events, update.changes, strict=True)
    rest = [(other, text) for other, text in pairs if not isinstance(other, SetDataSchema)]
    all_changes = [(event, describe_change(event, before, {})), *rest]
    return replace(
        update, events=[event for event, _ in all_changes], changes=[text for _, text in all_changes]
    )


def validate_transform(
    workspace: Workspace, transform: SetTransform, engine: Engine, vocab: DatasetVocabulary
) -> ValidatedQuery:
    """Validate a query with the engine over the current schemas of its inputs."""
    inputs = [_query_input(workspace, item) for item in transform.inputs]
    with attach_query_excerpt(transform.transform.queries or []):
        return engine.validate(transform.transform, inputs, vocab, None)


def _query_input(workspace: Workspace, item: TransformInput) -> QueryInput:
    entry = workspace.resolve(item.dataset_ref)
    state = entry.dataset.state()
    schema = declared_schema(state)
    if schema is None:
        raise InputWithoutSchema(
            f"the query cannot be validated yet: the input {entry.alias} has no schema before it has data",
            where="query",
            hint=f"run odf pull {entry.alias}",
        )
    return QueryInput(item.alias or item.dataset_ref, schema, state.vocabulary)


def state_before(workspace: Workspace, entry: DatasetEntry, state: ChainState, engine: Engine) -> str | None:
    """Return the state fingerprint of a dataset's current query, or None if it has no state, or is not
    validated.
    """
    if state.last_checkpoint is None or state.transform is None:
        return None
    old = boundary_transaction(workspace, entry, state, "finish", state.system_time)
    inputs = [QueryInput(plan.alias, decode_schema(plan.schema), plan.vocab) for plan in old.inputs]
    try:
        return engine.validate(state.transform.transform, inputs, state.vocabulary, None).state
    except (InvalidQuery, Unsupported):
        return None


def state_outcome(
    state: ChainState, before: str | None, transform: SetTransform, checked: ValidatedQuery
) -> StateOutcome:
    """Return the outcome for the state of the current query.

    Args:
        state: state of the chain.
        before: fingerprint of the current state (:func:`state_before`).
        transform: the new query.
        checked: validation result of the new query.
    """
    if checked.state is None and state.last_checkpoint is None:
        return "none"
    if checked.state is None or state.last_checkpoint is None or state.transform is None:
        return "lost"
    same = before == checked.state and _inputs_by_alias(state.transform.inputs) == _inputs_by_alias(
        transform.inputs
    )
    return "kept" if same else "lost"


def _inputs_by_alias(inputs: Sequence[TransformInput]) -> list[tuple[str | None, str]]:
    return [(input.alias, input.dataset_ref) for input in inputs]


def check_choice(outcome: StateOutcome, choice: Choice, checked: ValidatedQuery) -> None:
    """Check that the choice is valid and sufficient.

    Raises:
        UsageError: a choice is required, or not possible.
    """
    flush = (
        "use --flush to emit the pending rows of the old query, such as open windows, and start with "
        "an empty state"
    )
    rebuild = "use --rebuild to read the inputs from their start and compute the state of the new query"
    if choice == "flush" and checked.rereads:
        raise UsageError(
            "the rows of the new query can change at any time, so that it cannot start with an empty state",
            hint=rebuild,
        )
    if choice == "rebuild" and checked.state is None and outcome == "lost":
        raise UsageError("the new query is stateless: there is no state to rebuild", hint=flush)
    if outcome == "lost" and not choice:
        raise UsageError(
            "the new query cannot continue from the state of the old one: grouping, windows, inputs "
            "or stored columns differ",
            hint=flush if checked.state is None else rebuild if checked.rereads else f"{flush}; {rebuild}",
        )


@dataclass(frozen=True)
class MigrationResult:
    """The outcome of a changed definition.

    Attributes:
        changes: descriptions of the appended events.
        state: outcome for the state of the query.
        reads: as in :class:`MigrationPreview`.
    """

    changes: list[PlannedChange]
    state: StateOutcome
    reads: int | None = None


class _Boundary(NamedTuple):
    """The change from one query to another."""

    state: ChainState
    update: PlannedUpdate
    transform: SetTransform
    checked: ValidatedQuery
    schema: pa.Schema | None
    system_time: Timestamp


@dataclass(frozen=True)
class MigrationOptions:
    """How a definition is applied.

    Attributes:
        choice: what to do with a state that the new query cannot use.
        accept_columns: add new columns to the schema even if the definition has not changed.
        origin: origin of the definition if its author is a third party.
    """

    choice: Choice = ""
    accept_columns: bool = False
    origin: str | None = None


def migrate_query(
    workspace: Workspace,
    entry: DatasetEntry,
    snapshot: DatasetSnapshot,
    engine: Engine,
    reporter: Reporter,
    options: MigrationOptions = MigrationOptions(),
    session: StartSession | None = None,
) -> MigrationResult:
    """Migrate a derivative dataset to a definition. Everything is validated before the first commit.

    Args:
        workspace: the workspace of the dataset and its inputs.
        entry: the dataset.
        snapshot: the definition.
        engine: runs the queries.
        reporter: receives phases, amounts and commits; checked for cancellation.
        options: how the definition is applied.
        session: returns a Spark session for the queries of checks.

    Raises:
        UsageError: the state cannot be used, and no choice was made.
        InvalidQuery: the new query is invalid, or lacks columns of the dataset.
        Conflict: another process has committed.
        OdfError: the definition is invalid, or a transaction failed.
    """
    migration = _Migration(workspace, entry, snapshot, engine, reporter, session, options.origin)
    return migration.run(options.choice, options.accept_columns)


@dataclass
class _Migration:
    _workspace: Workspace
    _entry: DatasetEntry
    _snapshot: DatasetSnapshot
    _engine: Engine
    _reporter: Reporter
    _session: StartSession | None
    _origin: str | None

    def run(self, choice: Choice, accept: bool) -> MigrationResult:
        update, state = self._plan_update(), self._entry.dataset.state()
        transform = transform_after(update, state)
        changes_query = any(isinstance(event, SetTransform) for event in update.events)
        if transform is None or state.last_inputs is None or not (changes_query or accept):
            self._append(update, update.events)
            return MigrationResult(update.changes, "none")
        self._reporter.phase("validate")
        checked = self._validate(transform, state)
        self._next_schema(update, state, checked, accept)
        before = state_before(self._workspace, self._entry, state, self._engine)
        check_choice(state_outcome(state, before, transform, checked), choice, checked)
        self._run_pending_transactions()

        update, state = self._plan_update(), self._entry.dataset.state()
        schema = self._next_schema(update, state, checked, accept)
        update = with_schema(update, state, schema)
        if not update.events:
            return MigrationResult([], "none")
        outcome = state_outcome(state, before, transform, checked)
        check_choice(outcome, choice, checked)
        system_time = max(Timestamp.now(), state.system_time)
        update = replace(update, system_time=system_time)
        boundary = _Boundary(state, update, transform, checked, schema, system_time)
        if choice == "flush" and state.last_checkpoint is not None:
            self._flush_state(boundary)
            outcome = "flushed"
        elif choice == "rebuild" and checked.state is not None:
            self._rebuild_state(boundary)
            outcome = "rebuilt"
        else:
            self._append(boundary.update, boundary.update.events)
            outcome = "kept" if outcome == "kept" else "none"
        self._reporter.log(_OUTCOME_MESSAGES[outcome])
        return MigrationResult(update.changes, outcome, _size_of_reads(self._workspace, transform, checked))

    def _validate(self, transform: SetTransform, state: ChainState) -> ValidatedQuery:
        try:
            return validate_transform(self._workspace, transform, self._engine, state.vocabulary)
        except InputWithoutSchema:
            raise
        except Unsupported as error:
            # External engines may not implement validation. A query without state can continue without it.
            external = set(map(str.lower, self._workspace.config.engines))
            is_built_in = transform.transform.engine.lower() in set(BUILT_IN_ENGINES) - external
            if is_built_in or state.last_checkpoint is not None:
                raise
            self._reporter.log(f"the new query was not validated: {error}", "warning")
            return ValidatedQuery(declared_schema(state) or pa.schema([]), None)

    def _plan_update(self) -> PlannedUpdate:
        (update,) = self._workspace.update([self._snapshot], dry_run=True)
        return update

    def _next_schema(
        self, update: PlannedUpdate, state: ChainState, checked: ValidatedQuery, accept: bool
    ) -> pa.Schema | None:
        declared = schema_after(update, state)
        if declared is None:
            return None
        schema = add_new_columns(declared, checked.schema, state.vocabulary)
        new = schema.names[len(declared) :]
        listed = any(isinstance(event, SetDataSchema) for event in self._snapshot.metadata)
        if new and listed and not accept:
            raise InvalidQuery(
                "the query returns columns that are missing in the definition's SetDataSchema: "
                + ", ".join(new),
                where="query",
                hint="add them there, or use --accept-columns",
            )
        return schema

    def _run_pending_transactions(self) -> None:
        try:
            transform(self._workspace, self._entry, self._engine, self._reporter, self._session)
        except CheckFailed as error:
            # An error would make it impossible to repair a query whose rows a check blocks. The blocked rows
            # stay uncommitted: the new query processes their inputs, and its rows must pass the checks.
            self._reporter.log(
                f"rows of the old query are not committed: {error}; the new query processes their inputs",
                "warning",
            )
        except (InvalidQuery, Unsupported, BadData) as error:
            self._reporter.log(
                f"the old query could not process all rows: {error}; the new query continues from there",
                "warning",
            )

    def _flush_state(self, boundary: _Boundary) -> None:
        self._reporter.phase("flush")
        with self._run_transaction(boundary, boundary.state, "finish") as (transaction, result, data, _):
            events: list[MetadataEvent] = [to_event(transaction, result), *boundary.update.events]
            if result.written is not None and not boundary.state.has_schema:
                events = _with_first_schema(events, self._declare_first(result.schema), boundary)
            self._append(boundary.update, events, data=data)

    def _rebuild_state(self, boundary: _Boundary) -> None:
        self._reporter.phase("rebuild")
        state = replace(boundary.state, transform=boundary.transform)
        if boundary.schema is not None:
            event = declare_schema(boundary.schema, state, odf=False)
            state = replace(state, schema=event.schema, odf_schema=event.odf_schema)
        with self._run_transaction(boundary, state, "rebuild") as (transaction, result, data, checkpoint):
            events: list[MetadataEvent] = [*boundary.update.events, to_event(transaction, result)]
            if result.written is not None and boundary.schema is None:
                events.insert(-1, self._declare_first(result.schema))
            self._append(boundary.update, events, data=data, checkpoint=checkpoint)
            record_waiting(transaction, result, self._reporter)

    def _declare_first(self, schema: pa.Schema) -> SetDataSchema:
        is_odf = self._workspace.config.metadata.data_schema == "odf"
        return declare_schema(schema, None, odf=is_odf)

    @contextmanager
    def _run_transaction(
        self, boundary: _Boundary, state: ChainState, kind: Literal["finish", "rebuild"]
    ) -> Iterator[tuple[Transaction, TransactionResult, Path | None, Path]]:
        """Run the transaction of a change; yield it, its result, its slice and its checkpoint."""
        system_time = boundary.system_time
        transaction = boundary_transaction(self._workspace, self._entry, state, kind, system_time)
        staged = self._entry.dataset.staging_path("data")
        with (
            translate_os_errors(self._workspace.odf, "the transaction was not committed"),
            job_scratch_folder(self._workspace.odf / "cache", "transform") as folder,
        ):
            try:
                request = make_request(transaction, folder, staged, system_time, self._reporter)
                result = execute_transaction(
                    self._workspace, self._engine, transaction, request, self._reporter, is_new=True
                )
                check_changelog(transaction, result, self._reporter)
                checks = load_checks(self._workspace, self._entry, self._session)
                check_rows(checks, transaction, result, system_time, self._reporter)
                data = None if result.written is None else staged
                yield transaction, result, data, folder / CHECKPOINT
            finally:
                remove_temporary(staged)

    def _append(
        self,
        update: PlannedUpdate,
        events: Sequence[MetadataEvent],
        *,
        data: Path | None = None,
        checkpoint: Path | None = None,
    ) -> None:
        if not events:
            return
        self._reporter.phase("commit")
        self._reporter.raise_if_cancelled()
        changed = replace(update, events=list(events))
        version = self._workspace.config.block_version
        head = commit_update(
            self._entry, changed, self._origin, block_version=version, data=data, checkpoint=checkpoint
        )
        self._reporter.log(f"committed block {head}: {', '.join(kind_of(event) for event in events)}")
        self._reporter.committed(str(self._entry.id), str(head), kind_of(events[-1]), 0)


_OUTCOME_MESSAGES = {
    "none": "the query changed; it has no state",
    "kept": "the query changed; it continues from the state of the old one",
    "flushed": "the query changed; the state of the old one was flushed",
    "rebuilt": "the query changed; the state was rebuilt",
}


def _with_first_schema(
    events: Sequence[MetadataEvent], first: SetDataSchema, boundary: _Boundary
) -> list[MetadataEvent]:
    """Return the events of a flush that produces the first rows of the dataset, with their schema.

    Raises:
        InvalidQuery: the new query lacks columns of the old one.
    """
    rest = [event for event in events if not isinstance(event, SetDataSchema)]
    schema = read_declaration(first) or pa.schema([])
    extended = add_new_columns(schema, boundary.checked.schema, boundary.state.vocabulary)
    if len(extended) == len(schema):
        return [first, *rest]
    return [first, rest[0], declare_schema(extended, first, odf=False), *rest[1:]]
