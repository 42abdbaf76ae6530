"""What a definition changes of a derivative dataset's query, found out before anything is appended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
from msgspec.structs import replace

from odf_engine.chain.state import ChainState, vocabulary_of
from odf_engine.data.arrow_schema import decode_schema, encode_schema
from odf_engine.errors import InvalidQuery, Unsupported, UsageError
from odf_engine.ingest.shape import declared_schema
from odf_engine.metadata.model import (
    DEFAULT_VOCABULARY,
    DatasetSnapshot,
    DatasetVocabulary,
    SetDataSchema,
    SetTransform,
    SetVocab,
    TransformInput,
)
from odf_engine.metadata.quoting import quoting
from odf_engine.transform.contract import Engine, QueryInput, Validated
from odf_engine.transform.output import grown
from odf_engine.transform.plan import standing_transaction
from odf_engine.workspace.definitions import change_of
from odf_engine.workspace.updating import Update
from odf_engine.workspace.workspace import DatasetEntry, Workspace

Choice = Literal["", "flush", "rebuild"]
Fate = Literal["none", "kept", "lost", "flushed", "rebuilt"]


class NotYet(Unsupported):
    """A query cannot be looked at yet: an input has no schema before it has data."""


@dataclass(frozen=True)
class Look:
    """What a definition would change.

    Attributes:
        columns: that the query gives, besides those that the engine fills in.
        new: columns that the dataset does not have yet; none for one that has no schema.
        state: what becomes of the state of its query: none, kept or lost.
    """

    columns: pa.Schema
    new: list[str]
    state: Fate


def look(workspace: Workspace, snapshot: DatasetSnapshot, engine: Engine) -> Look | None:
    """Looks whether the query of a definition can be run; None when it has none, or a newer one.

    Raises:
        NotYet: an input has no schema.
        OdfError: the definition or its query is wrong.
    """
    (update,) = workspace.update([snapshot], dry_run=True)
    state = None if update.entry is None else update.entry.dataset.state()
    transform = transform_after(update, state)
    if transform is None:
        return None
    vocab = _vocabulary(update, state)
    checked = checked_query(workspace, transform, engine, vocab)
    declared = schema_after(update, state)
    new = [] if declared is None else grown(declared, checked.schema, vocab).names[len(declared) :]
    fate: Fate = "none"
    if state is not None and update.entry is not None and state.last_inputs is not None:
        before = state_before(workspace, update.entry, state, engine)
        fate = fate_of_state(state, before, transform, checked)
    filled = (vocab.offset_column, vocab.operation_type_column, vocab.system_time_column)
    columns = pa.schema([field for field in checked.schema if field.name not in filled])
    return Look(columns, new, fate)


def transform_after(update: Update, state: ChainState | None) -> SetTransform | None:
    """The transform after an update."""
    found = [event for event in update.events if isinstance(event, SetTransform)]
    return found[-1] if found else None if state is None else state.transform


def _vocabulary(update: Update, state: ChainState | None) -> DatasetVocabulary:
    for event in update.events:
        if isinstance(event, SetVocab):
            return vocabulary_of(event)
    return DEFAULT_VOCABULARY if state is None else state.vocabulary


def schema_after(update: Update, state: ChainState | None) -> pa.Schema | None:
    """The schema after an update."""
    for event in update.events:
        if isinstance(event, SetDataSchema) and event.schema is not None:
            return decode_schema(event.schema)
    return None if state is None else declared_schema(state)


def with_schema(update: Update, state: ChainState, schema: pa.Schema | None) -> Update:
    """The update with this schema, where the dataset has another one."""
    declared = declared_schema(state)
    if schema is None or (declared is not None and schema.equals(declared, check_metadata=True)):
        return update
    event = SetDataSchema(schema=encode_schema(schema))
    before = None if state.schema is None else SetDataSchema(schema=state.schema)
    pairs = zip(update.events, update.changes, strict=True)
    rest = [(other, said) for other, said in pairs if not isinstance(other, SetDataSchema)]
    whole = [(event, change_of(event, before, {})), *rest]
    return replace(update, events=[each for each, _ in whole], changes=[said for _, said in whole])


def checked_query(
    workspace: Workspace, transform: SetTransform, engine: Engine, vocab: DatasetVocabulary
) -> Validated:
    """What the engine says of a query over its inputs as they are now."""
    inputs = [_query_input(workspace, item) for item in transform.inputs]
    with quoting(transform.transform.queries or []):
        return engine.validate(transform.transform, inputs, vocab, None)


def _query_input(workspace: Workspace, item: TransformInput) -> QueryInput:
    entry = workspace.resolve(item.dataset_ref)
    state = entry.dataset.state()
    schema = declared_schema(state)
    if schema is None:
        raise NotYet(
            f"the query cannot be looked at yet: the input {entry.alias} has no columns before it has data",
            where="query",
            hint=f"odf pull {entry.alias}",
        )
    return QueryInput(item.alias or item.dataset_ref, schema, state.vocabulary)


def state_before(workspace: Workspace, entry: DatasetEntry, state: ChainState, engine: Engine) -> str | None:
    """What the state of a dataset's query depends on; None where it keeps none, or nobody knows."""
    if state.last_checkpoint is None or state.transform is None:
        return None
    old = standing_transaction(workspace, entry, state, "finish", state.system_time)
    inputs = [QueryInput(each.alias, decode_schema(each.schema), each.vocab) for each in old.inputs]
    try:
        return engine.validate(state.transform.transform, inputs, state.vocabulary, None).state
    except (InvalidQuery, Unsupported):
        return None


def fate_of_state(state: ChainState, before: str | None, transform: SetTransform, checked: Validated) -> Fate:
    """What becomes of the state of the query that a dataset has.

    Args:
        state: of the chain.
        before: what the state depends on (:func:`state_before`).
        transform: the new query.
        checked: what the engine says of it.
    """
    if checked.state is None and state.last_checkpoint is None:
        return "none"
    if checked.state is None or state.last_checkpoint is None or state.transform is None:
        return "lost"
    same = before == checked.state and _by_alias(state.transform.inputs) == _by_alias(transform.inputs)
    return "kept" if same else "lost"


def _by_alias(inputs: Sequence[TransformInput]) -> list[tuple[str | None, str]]:
    return [(each.alias, each.dataset_ref) for each in inputs]


def check_choice(fate: Fate, choice: Choice, checked: Validated) -> None:
    """Lets pass what is clear.

    Raises:
        UsageError: somebody has to choose.
    """
    flush = (
        "--flush lets come out now what the old query has still to give, such as windows that are open, "
        "and begins with what comes from now on"
    )
    rebuild = "--rebuild reads the inputs from their start, for the state that the new query would have"
    if choice == "rebuild" and checked.state is None and fate == "lost":
        raise UsageError("the new query goes row by row: there is no state to rebuild", hint=flush)
    if fate == "lost" and not choice:
        raise UsageError(
            "the new query cannot go on from the state of the old one: what is grouped by, the windows, "
            "the inputs or what is kept of them are not the same",
            hint=flush if checked.state is None else f"{flush}; {rebuild}",
        )
