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

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from msgspec.structs import replace

from odf_engine.chain.state import ChainState
from odf_engine.data.arrow_schema import encode_schema
from odf_engine.errors import BadData, InvalidQuery, Unsupported
from odf_engine.ingest.folders import job_folder
from odf_engine.ingest.shape import declared_schema
from odf_engine.metadata.model import (
    DatasetSnapshot,
    MetadataEvent,
    SetDataSchema,
    SetTransform,
    kind_of,
)
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.progress import Reporter
from odf_engine.transform.contract import Engine, Result, Validated
from odf_engine.transform.output import grown
from odf_engine.transform.plan import Transaction, standing_transaction
from odf_engine.transform.prospects import (
    Choice,
    Fate,
    NotYet,
    check_choice,
    checked_query,
    fate_of_state,
    schema_after,
    state_before,
    transform_after,
    with_schema,
)
from odf_engine.transform.run import CHECKPOINT, event_of, make_request, perform, transform
from odf_engine.workspace.appending import append
from odf_engine.workspace.definitions import Change
from odf_engine.workspace.updating import Update
from odf_engine.workspace.versions import SPARK
from odf_engine.workspace.workspace import DatasetEntry, Workspace


@dataclass(frozen=True)
class Outcome:
    """What became of a dataset whose definition changed.

    Attributes:
        changes: what was appended, for people.
        state: what became of the state of its query.
    """

    changes: list[Change]
    state: Fate


class _Boundary(NamedTuple):
    """Where one query ends and another one begins."""

    state: ChainState
    update: Update
    transform: SetTransform
    checked: Validated
    schema: pa.Schema | None
    system_time: Timestamp


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
        transform = transform_after(update, state)
        changes_query = any(isinstance(event, SetTransform) for event in update.events)
        if transform is None or state.last_inputs is None or not (changes_query or accept):
            self._append(update, update.events, origin)
            return Outcome(update.changes, "none")
        self._reporter.phase("validate")
        checked = self._checked(transform, state)
        self._next_schema(update, state, checked, accept)
        before = state_before(self._workspace, self._entry, state, self._engine)
        check_choice(fate_of_state(state, before, transform, checked), choice, checked)
        self._finish_what_lies_before()

        update, state = self._planned(), self._entry.dataset.state()
        schema = self._next_schema(update, state, checked, accept)
        update = with_schema(update, state, schema)
        if not update.events:
            return Outcome([], "none")
        fate = fate_of_state(state, before, transform, checked)
        check_choice(fate, choice, checked)
        moment = max(Timestamp.now(), state.system_time)
        update = replace(update, system_time=moment)
        boundary = _Boundary(state, update, transform, checked, schema, moment)
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

    def _checked(self, transform: SetTransform, state: ChainState) -> Validated:
        try:
            return checked_query(self._workspace, transform, self._engine, state.vocabulary)
        except NotYet:
            raise
        except Unsupported as error:
            # Engines of others may know nothing of validation: what keeps no state can go on all the same.
            if transform.transform.engine.lower() == SPARK or state.last_checkpoint is not None:
                raise
            self._reporter.line(f"the new query is taken as it is: {error}", "warning")
            return Validated(declared_schema(state) or pa.schema([]), None)

    def _planned(self) -> Update:
        (update,) = self._workspace.update([self._snapshot], dry_run=True)
        return update

    def _next_schema(
        self, update: Update, state: ChainState, checked: Validated, accept: bool
    ) -> pa.Schema | None:
        declared = schema_after(update, state)
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
        return schema

    def _finish_what_lies_before(self) -> None:
        try:
            transform(self._workspace, self._entry, self._engine, self._reporter)
        except (InvalidQuery, Unsupported, BadData) as error:
            self._reporter.line(
                f"the query as it was could not take in everything: {error}; as it is now, it goes on there",
                "warning",
            )

    # --- The state at the boundary ------------------------------------------------------------

    def _flush(self, at: _Boundary, origin: str | None) -> None:
        self._reporter.phase("flush")
        transaction = standing_transaction(self._workspace, self._entry, at.state, "finish", at.system_time)
        with self._performed(transaction, at.system_time) as (result, staged, _):
            events: list[MetadataEvent] = [event_of(transaction, result), *at.update.events]
            if result.written is not None and not at.state.has_schema:
                events = _first_schema(events, result.schema, at)
            self._append(at.update, events, origin, data=staged if result.written else None)

    def _rebuild(self, at: _Boundary, origin: str | None) -> None:
        self._reporter.phase("rebuild")
        schema = at.state.schema if at.schema is None else encode_schema(at.schema)
        state = replace(at.state, transform=at.transform, schema=schema)
        transaction = standing_transaction(self._workspace, self._entry, state, "rebuild", at.system_time)
        with self._performed(transaction, at.system_time) as (result, staged, checkpoint):
            events: list[MetadataEvent] = [*at.update.events, event_of(transaction, result)]
            if result.written is not None and at.schema is None:
                events.insert(-1, SetDataSchema(schema=encode_schema(result.schema)))
            self._append(
                at.update,
                events,
                origin,
                data=staged if result.written else None,
                checkpoint=checkpoint,
            )

    @contextmanager
    def _performed(
        self, transaction: Transaction, system_time: Timestamp
    ) -> Iterator[tuple[Result, Path, Path]]:
        """The result of a transaction, with the files of its slice and of its checkpoint."""
        staged = self._entry.dataset.staging_path("data")
        with job_folder(self._workspace.odf / "cache", "transform") as folder:
            try:
                request = make_request(transaction, folder, staged, system_time)
                result = perform(self._engine, transaction, request, self._reporter)
                yield result, staged, folder / CHECKPOINT
            finally:
                staged.unlink(missing_ok=True)

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
        version = self._workspace.config.block_version
        head = append(self._entry, changed, origin, block_version=version, data=data, checkpoint=checkpoint)
        self._reporter.line(f"block {head}: {', '.join(kind_of(event) for event in events)}")
        self._reporter.committed(str(self._entry.id), str(head), kind_of(events[-1]), 0)


_SAID = {
    "none": "the query changed; there is no state to go on from",
    "kept": "the query changed and goes on from the state of the old one",
    "flushed": "the old query's state has ended, and what was still to come is there",
    "rebuilt": "the state is the one that the new query would have, had it been there from the start",
}


def _first_schema(events: Sequence[MetadataEvent], schema: pa.Schema, at: _Boundary) -> list[MetadataEvent]:
    """The events of a flush whose rows are the first that the dataset has, with their schema.

    Raises:
        InvalidQuery: the new query lacks columns that the old one gives.
    """
    rest = [event for event in events if not isinstance(event, SetDataSchema)]
    first = SetDataSchema(schema=encode_schema(schema))
    whole = grown(schema, at.checked.schema, at.state.vocabulary)
    if len(whole) == len(schema):
        return [first, *rest]
    return [first, rest[0], SetDataSchema(schema=encode_schema(whole)), *rest[1:]]
