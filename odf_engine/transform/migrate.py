"""A new query in the place of an old one (specification: Query Evolution, Migrate Query).

The old query finishes what lies before. Then the new one is appended, in one commit with what becomes
of the old one's state, where the new query cannot go on from it:

- flush: a transaction of the old query directly before the new one, in which no input moves and after
  which there is no checkpoint; it has the rows that were still to come.
- rebuild: a transaction of the new query directly after it, in which no input moves and which has a
  checkpoint: the state that the query would have by now, had it been there from the start.

So a chain alone says what was done, and everybody can do it again.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import pyarrow as pa
from msgspec.structs import replace

from odf_engine.chain.state import ChainState, vocabulary_of
from odf_engine.data.arrow_schema import decode_schema, encode_schema
from odf_engine.errors import BadData, InvalidQuery, Unsupported, UsageError
from odf_engine.ingest.shape import declared_schema
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
from odf_engine.metadata.quoting import quoting
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.progress import Reporter
from odf_engine.transform.contract import Engine, QueryInput, Result, Validated
from odf_engine.transform.output import grown
from odf_engine.transform.plan import Transaction, standing_transaction
from odf_engine.transform.run import CHECKPOINT, event_of, make_request, perform, transform
from odf_engine.workspace.definitions import Change, change_of
from odf_engine.workspace.updating import Update
from odf_engine.workspace.workspace import DatasetEntry, Workspace

Choice = Literal["", "flush", "rebuild"]
Fate = Literal["none", "kept", "lost", "flushed", "rebuilt"]


class NotYet(Unsupported):
    """A query cannot be looked at yet: an input has no schema before it has data."""


@dataclass(frozen=True)
class Outcome:
    """What became of a dataset whose definition changed.

    Attributes:
        changes: what was appended, for people.
        state: what became of the state of its query.
    """

    changes: list[Change]
    state: Fate


@dataclass(frozen=True)
class Look:
    """What a definition would change.

    Attributes:
        validated: the query as it shall be.
        new: columns that the dataset does not have yet; none for one that has no schema.
        state: what becomes of the state of its query: none, kept or lost.
    """

    validated: Validated
    new: list[str]
    state: Fate


class _Boundary(NamedTuple):
    """Where one query ends and another one begins."""

    state: ChainState
    update: Update
    transform: SetTransform
    schema: pa.Schema | None
    system_time: Timestamp


def look(workspace: Workspace, snapshot: DatasetSnapshot, engine: Engine) -> Look | None:
    """Looks whether the query of a definition can be run; None when it has none, or a newer one.

    Raises:
        NotYet: an input has no schema.
        OdfError: the definition or its query is wrong.
    """
    (update,) = workspace.update([snapshot], dry_run=True)
    state = None if update.entry is None else update.entry.dataset.state()
    transform = _transform(update, state)
    if transform is None:
        return None
    checked = _validated(workspace, transform, engine, _vocabulary(update, state))
    declared = _declared(update, state)
    new: list[str] = []
    if declared is not None and state is not None:
        new = grown(declared, checked.schema, state.vocabulary).names[len(declared) :]
    fate: Fate = "none"
    if state is not None and update.entry is not None and state.last_inputs is not None:
        fate = _fate(workspace, update.entry, state, transform, checked, engine)
    return Look(checked, new, fate)


def change(
    workspace: Workspace,
    entry: DatasetEntry,
    snapshot: DatasetSnapshot,
    engine: Engine,
    reporter: Reporter,
    *,
    choice: Choice = "",
    accept_columns: bool = False,
    origin: str | None = None,
) -> Outcome:
    """Changes a derivative dataset to what a definition says; nothing is appended before all is found right.

    Args:
        workspace: where the dataset and its inputs are.
        entry: the dataset.
        snapshot: the definition.
        engine: what runs its queries.
        reporter: hears of phases, amounts and commits, and is asked whether to stop.
        choice: what becomes of a state that the new query cannot go on from.
        accept_columns: whether new columns come into the schema where nothing else changes.
        origin: where the definition came from, when somebody else wrote it.

    Raises:
        UsageError: the state cannot be kept, and nothing was chosen.
        InvalidQuery: the new query is wrong, or lacks columns that the dataset has.
        Conflict: somebody else committed meanwhile.
        OdfError: the definition is wrong, or a transaction failed.
    """
    return _Migration(workspace, entry, snapshot, engine, reporter).run(choice, accept_columns, origin)


class _Migration:
    def __init__(
        self,
        workspace: Workspace,
        entry: DatasetEntry,
        snapshot: DatasetSnapshot,
        engine: Engine,
        reporter: Reporter,
    ) -> None:
        self._workspace = workspace
        self._entry = entry
        self._snapshot = snapshot
        self._engine = engine
        self._reporter = reporter

    def run(self, choice: Choice, accept: bool, origin: str | None) -> Outcome:
        update, state = self._planned(), self._entry.dataset.state()
        transform = _transform(update, state)
        changes_query = any(isinstance(event, SetTransform) for event in update.events)
        if transform is None or state.last_inputs is None or not (changes_query or accept):
            self._append(update, update.events, origin)
            return Outcome(update.changes, "none")
        self._reporter.phase("validate")
        checked = _validated(self._workspace, transform, self._engine, state.vocabulary)
        schema = self._next_schema(update, state, checked, accept)
        _fate_or_choice(
            _fate(self._workspace, self._entry, state, transform, checked, self._engine), choice, checked
        )
        self._finish_what_lies_before()

        update, state = self._planned(), self._entry.dataset.state()
        update = _with_schema(update, state, schema)
        if not update.events:
            return Outcome([], "none")
        fate = _fate(self._workspace, self._entry, state, transform, checked, self._engine)
        _fate_or_choice(fate, choice, checked)
        moment = max(Timestamp.now(), state.system_time)
        boundary = _Boundary(state, replace(update, system_time=moment), transform, schema, moment)
        if choice == "flush" and state.last_checkpoint is not None:
            self._flush(boundary, origin)
            fate = "flushed"
        elif choice == "rebuild" and checked.state is not None:
            self._rebuild(boundary, origin)
            fate = "rebuilt"
        else:
            self._append(boundary.update, boundary.update.events, origin)
            fate = "kept" if fate == "kept" else "none"
        self._reporter.line(_SAID[fate])
        return Outcome(update.changes, fate)

    # --- What shall be ------------------------------------------------------------------------

    def _planned(self) -> Update:
        (update,) = self._workspace.update([self._snapshot], dry_run=True)
        return update

    def _next_schema(
        self, update: Update, state: ChainState, checked: Validated, accept: bool
    ) -> pa.Schema | None:
        declared = _declared(update, state)
        if declared is None:
            return None
        schema = grown(declared, checked.schema, state.vocabulary)
        new = schema.names[len(declared) :]
        listed = any(isinstance(event, SetDataSchema) for event in self._snapshot.metadata)
        if new and listed and not accept:
            raise InvalidQuery(
                "the query gives columns that the definition's SetDataSchema does not list: "
                + ", ".join(new),
                where="query",
                hint="list them there, or say --accept-columns",
            )
        for name in new:
            self._reporter.line(f"new column: {name}")
        return schema

    def _finish_what_lies_before(self) -> None:
        try:
            transform(self._workspace, self._entry, self._engine, self._reporter)
        except (InvalidQuery, Unsupported, BadData) as error:
            self._reporter.line(
                f"the old query could not finish what lies before: {error}; the new one takes over there",
                "warning",
            )

    # --- The state at the boundary ------------------------------------------------------------

    def _flush(self, at: _Boundary, origin: str | None) -> None:
        self._reporter.phase("flush")
        transaction = standing_transaction(self._workspace, self._entry, at.state, "finish", at.system_time)
        with self._performed(transaction, at.system_time) as (result, staged, _):
            event = event_of(transaction, result)
            self._append(
                at.update, [event, *at.update.events], origin, data=staged if result.written else None
            )

    def _rebuild(self, at: _Boundary, origin: str | None) -> None:
        self._reporter.phase("rebuild")
        schema = at.state.schema if at.schema is None else encode_schema(at.schema)
        state = replace(at.state, transform=at.transform, schema=schema)
        transaction = standing_transaction(self._workspace, self._entry, state, "rebuild", at.system_time)
        with self._performed(transaction, at.system_time) as (result, staged, checkpoint):
            event = event_of(transaction, result)
            self._append(
                at.update,
                [*at.update.events, event],
                origin,
                data=staged if result.written else None,
                checkpoint=checkpoint,
            )

    @contextmanager
    def _performed(
        self, transaction: Transaction, system_time: Timestamp
    ) -> Iterator[tuple[Result, Path, Path]]:
        """The result of a transaction, with the files of its slice and of its checkpoint."""
        cache = self._workspace.odf / "cache"
        cache.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="transform-", dir=cache))
        staged = self._entry.dataset.staging_path("data")
        try:
            request = make_request(transaction, folder, staged, system_time)
            result = perform(self._engine, transaction, request, self._reporter)
            yield result, staged, folder / CHECKPOINT
        finally:
            staged.unlink(missing_ok=True)
            shutil.rmtree(folder, ignore_errors=True)

    def _append(
        self,
        update: Update,
        events: Sequence[MetadataEvent],
        origin: str | None,
        *,
        data: Path | None = None,
        checkpoint: Path | None = None,
    ) -> None:
        if not events:
            return
        self._reporter.phase("commit")
        self._reporter.check()
        changed = replace(update, events=list(events))
        head = self._workspace.append(self._entry, changed, origin, data=data, checkpoint=checkpoint)
        self._reporter.line(f"block {head}: {', '.join(kind_of(event) for event in events)}")
        self._reporter.committed(str(self._entry.id), str(head), kind_of(events[-1]), 0)


_SAID = {
    "none": "the query changed; there is no state to go on from",
    "kept": "the query changed and goes on from the state of the old one",
    "flushed": "the old query's state has ended, and what was still to come is there",
    "rebuilt": "the state is the one that the new query would have, had it been there from the start",
}


def _transform(update: Update, state: ChainState | None) -> SetTransform | None:
    """The transform after an update."""
    found = [event for event in update.events if isinstance(event, SetTransform)]
    return found[-1] if found else None if state is None else state.transform


def _vocabulary(update: Update, state: ChainState | None) -> DatasetVocabulary:
    for event in update.events:
        if isinstance(event, SetVocab):
            return vocabulary_of(event)
    return DEFAULT_VOCABULARY if state is None else state.vocabulary


def _declared(update: Update, state: ChainState | None) -> pa.Schema | None:
    """The schema after an update."""
    for event in update.events:
        if isinstance(event, SetDataSchema) and event.schema is not None:
            return decode_schema(event.schema)
    return None if state is None else declared_schema(state)


def _with_schema(update: Update, state: ChainState, schema: pa.Schema | None) -> Update:
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


def _validated(
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


def _fate(
    workspace: Workspace,
    entry: DatasetEntry,
    state: ChainState,
    transform: SetTransform,
    checked: Validated,
    engine: Engine,
) -> Fate:
    """What becomes of the state of the query that a dataset has."""
    if checked.state is None and state.last_checkpoint is None:
        return "none"
    if checked.state is None or state.last_checkpoint is None or state.transform is None:
        return "lost"
    if _by_alias(state.transform.inputs) != _by_alias(transform.inputs):
        return "lost"
    old = standing_transaction(workspace, entry, state, "finish", state.system_time)
    inputs = [QueryInput(each.alias, decode_schema(each.schema), each.vocab) for each in old.inputs]
    try:
        before = engine.validate(state.transform.transform, inputs, state.vocabulary, None)
    except (InvalidQuery, Unsupported):
        return "lost"
    return "kept" if before.state == checked.state else "lost"


def _by_alias(inputs: Sequence[TransformInput]) -> list[tuple[str | None, str]]:
    return [(each.alias, each.dataset_ref) for each in inputs]


def _fate_or_choice(fate: Fate, choice: Choice, checked: Validated) -> None:
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
