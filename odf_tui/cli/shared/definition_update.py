"""Updates definitions of datasets, and checks their queries."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from msgspec.structs import replace

from odf_engine.api import (
    AppendedEvent,
    DatasetKind,
    DatasetSnapshot,
    Job,
    PlannedChange,
    PlannedUpdate,
    Request,
    SetTransform,
    Update,
    UpdateResult,
    Validate,
    ValidateResult,
    snapshot_to_yaml,
    to_builtins,
)
from odf_engine.api.text import count_of, printable
from odf_engine.api.workspace import Workspace
from odf_engine.errors import OdfError
from odf_tui.cli.shared.input import confirm
from odf_tui.cli.shared.job_progress import exit_code, follow, print_failure, print_failures
from odf_tui.cli.shared.options import options_of
from odf_tui.cli.shared.output import console, print_note, select_fields, show
from odf_tui.cli.shared.pulls import changes_in_brackets, plain_row_count
from odf_tui.text.remotes import plain_block_count

_STYLES = {"+": "green", "-": "red"}
# How the state of a streaming query is handled that is replaced.
_STATE_CHANGES: Final = {
    "kept": "; continues from the state of the old query",
    "lost": "; incompatible with the state of the old query: use --flush or --rebuild",
    "flushed": "; pending results of the old query emitted, state empty",
    "rebuilt": "; state rebuilt from the start of the inputs",
}


def update_line(result: UpdateResult) -> str:
    """Describe the result of an update of a definition in a line."""
    if result.status != "updated":
        return f"{result.name}: unchanged"
    rows = f", {plain_row_count(result.records)}{changes_in_brackets(result)}" if result.records else ""
    state = _STATE_CHANGES.get(result.state, "")
    return f"updated {result.name}: {plain_block_count(result.blocks)}{rows}{state}"


def validation_lines(result: ValidateResult) -> Iterator[str]:
    """Yield lines that describe whether a query can run, with the columns of its result."""
    if not result.checked:
        yield printable(f"{result.name}: {result.message}")
        return
    state = _STATE_CHANGES.get(result.state, "")
    if result.state == "lost" and result.reads is not None:
        state = "; its rows have to be replaced: use --rebuild"
    yield f"{result.name}: query valid{state}"
    if result.message:
        yield printable(f"  {result.message}")
    if result.warning:
        yield printable(f"  warning: {result.warning}")
    for column in result.schema or ():
        yield printable(f"  {column}")
    if result.new:
        yield printable(f"  new columns: {', '.join(result.new)}")


@dataclass(frozen=True)
class DefinitionUpdate:
    """Updates the definitions of datasets from manifests.

    Attributes:
        origins: for each third-party manifest, the name of its dataset and the address it came from.
        state: ``flush`` or ``rebuild``, if the new query cannot continue from the state of the old one.
        accept_columns: whether new columns of the inputs or sources are added.
        files: the manifest files of the other definitions, by dataset name.
        asks: whether the user confirms the changes.
    """

    workspace: Workspace
    origins: Mapping[str, str]
    state: Literal["", "flush", "rebuild"]
    accept_columns: bool
    files: Mapping[str, Path]
    asks: bool = False

    def run(self, snapshots: Sequence[DatasetSnapshot], *, dry_run: bool) -> tuple[list[str], int]:
        """Print the changes, then apply them unless ``dry_run`` is set.

        Returns:
            The names of the datasets that changed, and the exit code.
        """
        updates = self.workspace.plan_definitions(snapshots, accepts_columns=self.accept_columns)
        queries = [at for at, update in enumerate(updates) if self._requires_worker(update)]
        jobs: dict[int, Job] = {}
        previews = dry_run or self.asks
        if previews and self.accept_columns:
            updates, jobs = self._preview_columns(snapshots, updates, queries)
        if not options_of().json and (dry_run or not options_of().quiet):
            print_changes(
                [update for update in updates if previews or not self._accepts_source_columns(update)]
            )
        dry_run = dry_run or bool(jobs)  # a failed preview
        if self.asks and not dry_run and any(update.changes for update in updates):
            names = ", ".join(str(update.alias) for update in updates)
            confirm(f"Change {names}?", f"changing {names}", "use --yes, or --dry-run")
        if not dry_run:
            updates = self._append_events(snapshots, updates, queries)
            jobs = self._run_update_jobs(snapshots, updates, queries)
        results = {at: result for at, job in jobs.items() if (result := job.result_of(Update))}
        show(
            lambda: [
                _update_json(update, dry_run, results.get(at), jobs.get(at))
                for at, update in enumerate(updates)
            ],
            None,
        )
        for at, update in enumerate(updates):
            if at not in jobs:
                _print_update(update, dry_run=dry_run)
            elif at in results:
                self._show_result(update, results[at], self.files.get(snapshots[at].name))
            else:
                print_failure(jobs[at])
        changed = [
            str(update.alias)
            for at, update in enumerate(updates)
            if (results[at].status == "updated" if at in results else update.changes and at not in jobs)
        ]
        return [] if dry_run else changed, exit_code(list(jobs.values()))

    def _preview_columns(
        self, snapshots: Sequence[DatasetSnapshot], updates: Sequence[PlannedUpdate], queries: Sequence[int]
    ) -> tuple[list[PlannedUpdate], dict[int, Job]]:
        """Find the new columns of the datasets that need the worker.

        Returns:
            The updates with the new columns of root datasets, and the failed jobs by the index of their
            update.
        """
        requests: list[tuple[Request, str]] = []
        for at in queries:
            entry = updates[at].entry
            assert entry is not None  # a new dataset needs no worker
            request = Validate(manifest=snapshot_to_yaml(snapshots[at]), dataset=str(entry.id))
            requests.append((request, str(entry.alias)))
        jobs = dict(zip(queries, follow(self.workspace, requests), strict=True))
        planned = list(updates)
        for at, job in jobs.items():
            if (result := job.result_of(Validate)) is None:
                continue
            if self._accepts_source_columns(updates[at]):
                changes = [PlannedChange(change.title, change.lines) for change in result.changes]
                planned[at] = replace(updates[at], changes=changes)
            elif result.new:
                print_note(f"{result.name}: new columns: {', '.join(result.new)}")
        return planned, {at: job for at, job in jobs.items() if job.result_of(Validate) is None}

    def _show_result(self, update: PlannedUpdate, result: UpdateResult, file: Path | None) -> None:
        """Print the result of a job, and write accepted columns to the manifest file."""
        is_shown = self.asks or options_of().json or options_of().quiet
        if self._accepts_source_columns(update) and not is_shown:
            if result.changes:
                sys.stdout.write(f"{result.name}:\n")
            for change in result.changes:
                _print_change(change, short=False)
        print_note(update_line(result))
        if result.message:
            print_note(f"{result.name}: {result.message}")
        if result.definition is None or update.entry is None:
            return
        dataset = str(update.entry.id)
        if file is not None:
            self.workspace.record_manifest([dataset], file)
        try:
            change = self.workspace.manifest_change(dataset, result.definition, keeps_comments=True)
            if change is not None:
                self.workspace.write_manifest(change)
                print_note(f"wrote the changes to {file or change.path}")
        except OdfError as error:  # The changes are committed.
            print_note(f"the changes were not written to the manifest: {error}")

    def _accepts_source_columns(self, update: PlannedUpdate) -> bool:
        """Return whether the worker has to find the new columns of the sources of a root dataset."""
        if update.entry is None or update.is_new or not self.accept_columns:
            return False
        state = update.entry.dataset.state()
        return state.kind is DatasetKind.Root and state.has_schema

    def _requires_worker(self, update: PlannedUpdate) -> bool:
        """Return whether the worker has to find new columns, or to process the remaining input of the old
        query first.
        """
        if update.entry is None or update.is_new:
            return False
        if self._accepts_source_columns(update):
            return True
        state = update.entry.dataset.state()
        if state.kind is not DatasetKind.Derivative or state.last_inputs is None:
            return False
        return self.accept_columns or any(isinstance(event, SetTransform) for event in update.events)

    def _append_events(
        self, snapshots: Sequence[DatasetSnapshot], shown: list[PlannedUpdate], queries: Sequence[int]
    ) -> list[PlannedUpdate]:
        """Append events to the datasets that need no worker; return all updates."""
        direct = [at for at in range(len(shown)) if at not in queries]
        if not direct:
            return shown
        try:
            applied = self.workspace.update_definitions(
                [snapshots[at] for at in direct], self.origins, [shown[at] for at in direct]
            )
        except OdfError as error:
            if queries:  # the error names the other datasets that were changed or not changed
                names = ", ".join(str(shown[at].alias) for at in queries)
                error.message += f" (queries not changed: {names})"
            raise
        by_index = dict(zip(direct, applied, strict=True))
        return [by_index.get(at, update) for at, update in enumerate(shown)]

    def _run_update_jobs(
        self, snapshots: Sequence[DatasetSnapshot], updates: Sequence[PlannedUpdate], queries: Sequence[int]
    ) -> dict[int, Job]:
        """Update the datasets whose query changes by jobs; return the jobs by the index of their update."""
        requests: list[tuple[Request, str]] = []
        for at in queries:
            entry, snapshot = updates[at].entry, snapshots[at]
            assert entry is not None  # the query of a new dataset is not updated
            request = Update(
                dataset=str(entry.id),
                manifest=snapshot_to_yaml(snapshot),
                state=self.state,
                accept_columns=self.accept_columns,
                origin=self.origins.get(snapshot.name),
            )
            requests.append((request, str(entry.alias)))
        return dict(zip(queries, follow(self.workspace, requests), strict=True))


class QueryChecks(NamedTuple):
    """The checks of the queries of definitions.

    Attributes:
        skipped: queries whose inputs are not in the workspace.
        validated: results of the successful jobs.
        jobs: the checks of the other queries.
    """

    skipped: list[ValidateResult]
    validated: list[ValidateResult]
    jobs: list[Job]


def run_checks(
    workspace: Workspace, snapshots: Sequence[DatasetSnapshot], only: Collection[str] | None = None
) -> QueryChecks:
    """Validate the queries of derivative datasets in the worker.

    Args:
        workspace: the workspace.
        snapshots: all definitions of the command, since one may be an input of another.
        only: names of the datasets to check, or None for all.
    """
    updates = workspace.plan_definitions(snapshots)
    known_ids = {dataset.id for dataset in workspace}
    requests: list[tuple[Request, str]] = []
    skipped: list[ValidateResult] = []
    for update, snapshot in zip(updates, snapshots, strict=True):
        if snapshot.kind is not DatasetKind.Derivative or (only is not None and snapshot.name not in only):
            continue
        input_ids = {item.dataset_ref for event in update.events for item in getattr(event, "inputs", ())}
        if update.is_new and not input_ids <= known_ids:
            message = "the query was not checked: its inputs are new too. Check it after their first pull"
            skipped.append(ValidateResult(str(update.alias), message=message))
            continue
        dataset = "" if update.entry is None else str(update.entry.id)
        request = Validate(manifest=snapshot_to_yaml(snapshot), dataset=dataset)
        requests.append((request, str(update.alias)))
    jobs = follow(workspace, requests)
    validated = [result for job in jobs if (result := job.result_of(Validate))]
    return QueryChecks(skipped, validated, jobs)


def check_queries(workspace: Workspace, snapshots: Sequence[DatasetSnapshot]) -> int:
    """Validate the queries of definitions, print the results, and return the exit code."""
    skipped, validated, jobs = run_checks(workspace, snapshots)
    lines = [line for result in [*skipped, *validated] for line in validation_lines(result)]
    show(
        [*(select_fields(result, "name", "checked", "message") for result in skipped), *validated],
        lambda: sys.stdout.writelines(f"{line}\n" for line in lines),
    )
    print_failures(jobs)
    return exit_code(jobs)


def print_changes(updates: Sequence[PlannedUpdate]) -> None:
    """Print the events to append for each dataset, as lines of YAML with ``+`` and ``-``."""
    for update in updates:
        if update.is_new:
            sys.stdout.write(f"{update.alias}: new\n")
        elif update.changes:
            sys.stdout.write(f"{update.alias}:\n")
        for change in update.changes:
            _print_change(change, short=update.is_new)


def _print_change(change: PlannedChange | AppendedEvent, *, short: bool) -> None:
    sys.stdout.write(f"  {change.title}\n")
    if short:  # the manifest has the definition of a new dataset
        return
    if not sys.stdout.isatty():
        sys.stdout.write("".join(f"    {printable(line)}\n" for line in change.lines))
        return
    out = console()
    for line in change.lines:
        out.print(f"    {printable(line)}", style=_STYLES.get(line[:1], "dim"))


def _print_update(update: PlannedUpdate, *, dry_run: bool) -> None:
    name, count = update.alias, sum(change.in_chain for change in update.changes)
    events = count_of(count, "event", separators=False)
    if update.is_new:
        print_note(f"{name} would be added" if dry_run else f"added {name}")
    elif not update.changes:
        print_note(f"{name}: unchanged")
    elif not count:
        print_note(f"{name}: would change its source" if dry_run else f"changed the source of {name}")
    else:
        print_note(f"{name}: would append {events}" if dry_run else f"updated {name}: {events}")
    if update.unused:
        listed = ", ".join(update.unused)
        print_note(
            f"{name}: {listed} in read.schema, but not in the preprocess query and SetDataSchema: to add"
            f" {'it' if len(update.unused) == 1 else 'them'} to all of them, run"
            " odf add --update --accept-columns MANIFEST"
        )


def _update_json(
    update: PlannedUpdate, dry_run: bool, result: UpdateResult | None, job: Job | None
) -> dict[str, Any]:
    status = "added" if update.is_new else "updated" if update.changes else "unchanged"
    head = update.entry.dataset.head() if update.entry is not None else None
    entry: dict[str, Any] = {
        "name": str(update.alias),
        "status": status,
        "dry_run": dry_run,
        "head": head,
        "events": [to_builtins(event) for event in update.events],
        "changes": update.changes,
    }
    if result is not None:
        entry |= select_fields(result, "status", "changes", "state", "blocks", "records", "message")
        counts = select_fields(result, "added", "retracted", "corrected")
        entry |= {name: count for name, count in counts.items() if count}
    elif job is not None:
        entry["status"] = "failed"
    return entry
