"""How `odf add --update` and `--check` show what definitions change, and have it done."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

from odf_engine.coordinator import protocol
from odf_engine.coordinator.protocol import Job, JobState, Request
from odf_engine.coordinator.results import UpdateResult, ValidateResult
from odf_engine.metadata.model import DatasetKind, DatasetSnapshot, SetTransform
from odf_engine.metadata.yaml import snapshot_to_yaml, to_builtins
from odf_engine.workspace.definition import Change, Update
from odf_engine.workspace.workspace import Workspace
from odf_tui.cli.data import exit_code, say_failure
from odf_tui.cli.follow import follow
from odf_tui.cli.output import console, options_of, print_json, say
from odf_tui.humane import plain

_STYLES = {"+": "green", "-": "red"}
_STATES = {
    "kept": "; it goes on from the state of the old query",
    "lost": "; the state of the old query is of no use to it: say --flush or --rebuild",
    "flushed": "; what the old query had still to give came out",
    "rebuilt": "; its state is as if it had been there from the start",
}
State = Literal["", "flush", "rebuild"]


class Updating:
    """Makes datasets what definitions say.

    Args:
        workspace: where they are.
        origins: where definitions came from that somebody else wrote.
        state: what becomes of states that a new query cannot go on from.
        accept_columns: whether columns that inputs have gained are taken in.
    """

    def __init__(
        self, workspace: Workspace, origins: Mapping[str, str], *, state: str, accept_columns: bool
    ) -> None:
        self._workspace = workspace
        self._origins = origins
        self._state: State = cast("State", state)
        self._accept = accept_columns

    def run(self, snapshots: Sequence[DatasetSnapshot], *, dry_run: bool) -> tuple[list[str], int]:
        """Shows what changes, then changes it.

        Returns:
            The names of the datasets that changed, and the exit code.
        """
        as_json = options_of().json
        updates = self._workspace.update(snapshots, dry_run=True)
        if not as_json:
            print_changes(updates)
        jobs: dict[int, Job] = {}
        if not dry_run:
            queries = [at for at, update in enumerate(updates) if self._changes_query(update)]
            updates = self._append(snapshots, updates, queries)
            jobs = self._have_done(snapshots, updates, queries)
        results = {at: result for at, job in jobs.items() if (result := job.result_of(protocol.Update))}
        if as_json:
            print_json(
                [
                    _as_json(update, dry_run, results.get(at), jobs.get(at))
                    for at, update in enumerate(updates)
                ]
            )
        for at, update in enumerate(updates):
            if at not in jobs:
                _say_done(update, dry_run=dry_run)
            elif at in results:
                _say_result(results[at])
            else:
                say_failure(jobs[at])
        changed = [
            str(update.alias)
            for at, update in enumerate(updates)
            if (results[at].status == "updated" if at in results else update.events and at not in jobs)
        ]
        return [] if dry_run else changed, exit_code(list(jobs.values()))

    def _changes_query(self, update: Update) -> bool:
        """Whether the old query has to do its last, which takes the worker."""
        if update.entry is None or update.is_new:
            return False
        state = update.entry.dataset.state()
        if state.kind is not DatasetKind.Derivative or state.last_inputs is None:
            return False
        return self._accept or any(isinstance(event, SetTransform) for event in update.events)

    def _append(
        self, snapshots: Sequence[DatasetSnapshot], shown: list[Update], queries: Sequence[int]
    ) -> list[Update]:
        """Changes the other datasets at once."""
        direct = [at for at in range(len(shown)) if at not in queries]
        if not direct:
            return shown
        done = self._workspace.update(
            [snapshots[at] for at in direct], self._origins, shown=[shown[at] for at in direct]
        )
        by_place = dict(zip(direct, done, strict=True))
        return [by_place.get(at, update) for at, update in enumerate(shown)]

    def _have_done(
        self, snapshots: Sequence[DatasetSnapshot], updates: Sequence[Update], queries: Sequence[int]
    ) -> dict[int, Job]:
        requests: list[tuple[Request, str]] = []
        for at in queries:
            entry, snapshot = updates[at].entry, snapshots[at]
            assert entry is not None  # or the query would be new
            request = protocol.Update(
                dataset=str(entry.id),
                manifest=snapshot_to_yaml(snapshot),
                state=self._state,
                accept_columns=self._accept,
                origin=self._origins.get(snapshot.name),
            )
            requests.append((request, str(entry.alias)))
        return dict(zip(queries, follow(self._workspace, requests), strict=True))


def check_queries(workspace: Workspace, snapshots: Sequence[DatasetSnapshot]) -> int:
    """Validate the queries of definitions, print the results, and return the exit code."""
    updates = workspace.update(snapshots, dry_run=True)
    here = {str(entry.id) for entry in workspace.datasets()}
    requests: list[tuple[Request, str]] = []
    results: list[ValidateResult] = []
    documents: list[dict[str, Any]] = []
    for update, snapshot in zip(updates, snapshots, strict=True):
        if snapshot.kind is not DatasetKind.Derivative:
            continue
        reads = {item.dataset_ref for event in update.events for item in getattr(event, "inputs", ())}
        if update.is_new and not reads <= here:
            message = "the query cannot be looked at before its inputs are there and have data"
            results.append(ValidateResult(str(update.alias), message=message))
            documents.append({"name": str(update.alias), "checked": False, "message": message})
            continue
        dataset = "" if update.entry is None else str(update.entry.id)
        request = protocol.Validate(manifest=snapshot_to_yaml(snapshot), dataset=dataset)
        requests.append((request, str(update.alias)))
    jobs = follow(workspace, requests)
    validated = [result for job in jobs if (result := job.result_of(protocol.Validate))]
    if options_of().json:
        print_json([*documents, *validated])
    else:
        for result in [*results, *validated]:
            _say_checked(result)
    for job in jobs:
        if job.state is not JobState.done:
            say_failure(job)
    return exit_code(jobs)


def _say_checked(result: ValidateResult) -> None:
    if not result.checked:
        sys.stdout.write(plain(f"{result.name}: {result.message}") + "\n")
        return
    sys.stdout.write(f"{result.name}: the query can be run{_STATES.get(result.state, '')}\n")
    for column in result.schema or ():
        sys.stdout.write(plain(f"  {column}") + "\n")
    if result.new:
        sys.stdout.write(plain(f"  new to the dataset: {', '.join(result.new)}") + "\n")


def print_changes(updates: Sequence[Update]) -> None:
    """What would be appended, dataset by dataset, as lines of YAML with ``+`` and ``-``."""
    for update in updates:
        if update.is_new:
            sys.stdout.write(f"{update.alias}: new\n")
        elif update.changes:
            sys.stdout.write(f"{update.alias}:\n")
        for change in update.changes:
            _print_change(change, short=update.is_new)


def _print_change(change: Change, *, short: bool) -> None:
    sys.stdout.write(f"  {change.title}\n")
    if short:  # all of it is new: the manifest shows it better
        return
    if not sys.stdout.isatty():
        sys.stdout.write("".join(f"    {plain(line)}\n" for line in change.lines))
        return
    out = console()
    for line in change.lines:
        out.print(f"    {plain(line)}", style=_STYLES.get(line[:1], "dim"))


def _say_done(update: Update, *, dry_run: bool) -> None:
    number = len(update.events)
    events = "1 event" if number == 1 else f"{number} events"
    if update.is_new:
        say(f"{update.alias} would be added" if dry_run else f"added {update.alias}")
    elif not number:
        say(f"{update.alias}: nothing to do")
    else:
        say(f"{update.alias}: would append {events}" if dry_run else f"updated {update.alias}: {events}")


def _say_result(result: UpdateResult) -> None:
    if result.status != "updated":
        say(f"{result.name}: nothing to do")
        return
    blocks = "1 block" if result.blocks == 1 else f"{result.blocks} blocks"
    rows = f", {result.records} records" if result.records else ""
    say(f"updated {result.name}: {blocks}{rows}{_STATES.get(result.state, '')}")


def _as_json(update: Update, dry_run: bool, result: UpdateResult | None, job: Job | None) -> dict[str, Any]:
    status = "added" if update.is_new else "updated" if update.events else "unchanged"
    head = update.entry.dataset.head() if update.entry is not None else None
    changes = [{"title": change.title, "lines": change.lines} for change in update.changes]
    entry: dict[str, Any] = {
        "name": str(update.alias),
        "status": status,
        "dry_run": dry_run,
        "head": head,
        "events": [to_builtins(event) for event in update.events],
        "changes": changes,
    }
    if result is not None:
        entry |= {
            "status": result.status,
            "changes": result.changes,
            "state": result.state,
            "blocks": result.blocks,
            "records": result.records,
        }
    elif job is not None:
        entry["status"] = "failed"
    return entry
