"""add, new, demo: datasets from manifests, updates of their definitions, checks of their queries."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, cast

import click

from odf_engine.api.pull_plan import PullSelection, plan_pull
from odf_engine.api.samples import add_datasets, make_requests, write_files
from odf_engine.api.text import count_of, printable
from odf_engine.chain.normal_form import SPARK
from odf_engine.coordinator.client import Client
from odf_engine.coordinator.endpoint import notify_datasets_changed
from odf_engine.coordinator.protocol import Job, JobState, Request
from odf_engine.errors import (
    Conflict,
    InvalidManifest,
    NotFound,
    OdfError,
    SourceUnavailable,
    UsageError,
)
from odf_engine.identity.names import DatasetAlias
from odf_engine.jobs import definition
from odf_engine.jobs.definition import UpdateResult, ValidateResult
from odf_engine.jobs.pull import Pull, PullResult
from odf_engine.jobs.verify import Verify, VerifyResult
from odf_engine.metadata.model import DatasetKind, DatasetSnapshot, SetTransform
from odf_engine.metadata.yaml import snapshot_to_yaml, to_builtins
from odf_engine.net.urls import redact_url
from odf_engine.storage.atomic_files import rewrite_text_file
from odf_engine.workspace.definition import PlannedChange, PlannedUpdate
from odf_engine.workspace.definition_update import record_manifest
from odf_engine.workspace.remotes import RemoteInputs
from odf_engine.workspace.workspace import Workspace
from odf_tui.cli.follow import exit_code, follow, print_failure
from odf_tui.cli.output import (
    MAX_TEXT_BYTES,
    OpenWorkstation,
    console,
    data_stream,
    open_workspace,
    options_of,
    print_json,
    print_note,
    print_result,
    read_text,
    verb,
)
from odf_tui.cli.pull import changes_in_brackets, plain_row_count
from odf_tui.text.remotes import plain_block_count

if TYPE_CHECKING:
    from odf_engine.sql.manifest_translation import ManifestTranslation

_STYLES = {"+": "green", "-": "red"}
State = Literal["", "flush", "rebuild"]


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


class DefinitionUpdate:
    """Updates the definitions of datasets from manifests.

    Args:
        origins: for each third-party manifest, the name of its dataset and the address it came from.
        state: ``flush`` or ``rebuild``, if the new query cannot continue from the state of the old one.
        accept_columns: whether new columns of the inputs are added.
    """

    def __init__(
        self, workspace: Workspace, origins: Mapping[str, str], *, state: str, accept_columns: bool
    ) -> None:
        self._workspace = workspace
        self._origins = origins
        self._state: State = cast("State", state)
        self._accept = accept_columns

    def run(self, snapshots: Sequence[DatasetSnapshot], *, dry_run: bool) -> tuple[list[str], int]:
        """Print the changes, then apply them unless ``dry_run`` is set.

        Returns:
            The names of the datasets that changed, and the exit code.
        """
        as_json = options_of().json
        updates = self._workspace.update(snapshots, dry_run=True)
        if not as_json and (dry_run or not options_of().quiet):
            print_changes(updates)
        jobs: dict[int, Job] = {}
        if not dry_run:
            queries = [at for at, update in enumerate(updates) if self._changes_query(update)]
            updates = self._append_events(snapshots, updates, queries)
            jobs = self._run_update_jobs(snapshots, updates, queries)
        results = {at: result for at, job in jobs.items() if (result := job.result_of(definition.Update))}
        if as_json:
            print_json(
                [
                    _update_json(update, dry_run, results.get(at), jobs.get(at))
                    for at, update in enumerate(updates)
                ]
            )
        for at, update in enumerate(updates):
            if at not in jobs:
                _print_update(update, dry_run=dry_run)
            elif at in results:
                print_note(update_line(results[at]))
                if message := results[at].message:
                    print_note(f"{results[at].name}: {message}")
            else:
                print_failure(jobs[at])
        changed = [
            str(update.alias)
            for at, update in enumerate(updates)
            if (results[at].status == "updated" if at in results else update.events and at not in jobs)
        ]
        return [] if dry_run else changed, exit_code(list(jobs.values()))

    def _changes_query(self, update: PlannedUpdate) -> bool:
        """Return whether the worker has to process the remaining input of the old query first."""
        if update.entry is None or update.is_new:
            return False
        state = update.entry.dataset.state()
        if state.kind is not DatasetKind.Derivative or state.last_inputs is None:
            return False
        return self._accept or any(isinstance(event, SetTransform) for event in update.events)

    def _append_events(
        self, snapshots: Sequence[DatasetSnapshot], shown: list[PlannedUpdate], queries: Sequence[int]
    ) -> list[PlannedUpdate]:
        """Append events to the datasets that need no worker; return all updates."""
        direct = [at for at in range(len(shown)) if at not in queries]
        if not direct:
            return shown
        try:
            applied = self._workspace.update(
                [snapshots[at] for at in direct], self._origins, shown=[shown[at] for at in direct]
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
            request = definition.Update(
                dataset=str(entry.id),
                manifest=snapshot_to_yaml(snapshot),
                state=self._state,
                accept_columns=self._accept,
                origin=self._origins.get(snapshot.name),
            )
            requests.append((request, str(entry.alias)))
        return dict(zip(queries, follow(self._workspace, requests), strict=True))


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
        only: names of the datasets to check; None: all.
    """
    updates = workspace.update(snapshots, dry_run=True)
    known_ids = {str(entry.id) for entry in workspace.datasets()}
    requests: list[tuple[Request, str]] = []
    skipped: list[ValidateResult] = []
    for update, snapshot in zip(updates, snapshots, strict=True):
        if snapshot.kind is not DatasetKind.Derivative or (only is not None and snapshot.name not in only):
            continue
        input_ids = {item.dataset_ref for event in update.events for item in getattr(event, "inputs", ())}
        if update.is_new and not input_ids <= known_ids:
            message = "the query cannot be checked before its inputs exist and have data"
            skipped.append(ValidateResult(str(update.alias), message=message))
            continue
        dataset = "" if update.entry is None else str(update.entry.id)
        request = definition.Validate(manifest=snapshot_to_yaml(snapshot), dataset=dataset)
        requests.append((request, str(update.alias)))
    jobs = follow(workspace, requests)
    validated = [result for job in jobs if (result := job.result_of(definition.Validate))]
    return QueryChecks(skipped, validated, jobs)


def check_queries(workspace: Workspace, snapshots: Sequence[DatasetSnapshot]) -> int:
    """Validate the queries of definitions, print the results, and return the exit code."""
    skipped, validated, jobs = run_checks(workspace, snapshots)
    if options_of().json:
        documents = [{"name": each.name, "checked": False, "message": each.message} for each in skipped]
        print_json([*documents, *validated])
    else:
        for result in [*skipped, *validated]:
            for line in validation_lines(result):
                sys.stdout.write(line + "\n")
    for job in jobs:
        if job.state is not JobState.done:
            print_failure(job)
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


def _print_change(change: PlannedChange, *, short: bool) -> None:
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
    number = len(update.events)
    events = count_of(number, "event", separators=False)
    if update.is_new:
        print_note(f"{update.alias} would be added" if dry_run else f"added {update.alias}")
    elif not number:
        print_note(f"{update.alias}: unchanged")
    else:
        print_note(
            f"{update.alias}: would append {events}" if dry_run else f"updated {update.alias}: {events}"
        )


def _update_json(
    update: PlannedUpdate, dry_run: bool, result: UpdateResult | None, job: Job | None
) -> dict[str, Any]:
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
            "message": result.message,
        }
        counts = {name: getattr(result, name) for name in ("added", "retracted", "corrected")}
        entry |= {name: count for name, count in counts.items() if count}
    elif job is not None:
        entry["status"] = "failed"
    return entry


def _record_manifests(workspace: Workspace, files: Mapping[str, Path]) -> None:
    """Store which files define which datasets. Errors are ignored: the datasets are added."""
    with suppress(OdfError):
        for name, path in files.items():
            record_manifest(workspace.folder, workspace.resolve(name), path)


_DOWNLOAD_SECONDS: Final = 60.0


@verb("add", example="odf add covid.yaml air-quality.yaml", json=True)
@click.argument("manifests", nargs=-1, required=True, type=click.Path())
@click.option("-r", "--recursive", is_flag=True, help="Read the manifests in folders and their subfolders.")
@click.option("--update", is_flag=True, help="Update existing datasets: append the changes to their chains.")
@click.option("--dry-run", is_flag=True, help="Only print what would be added or appended.")
@click.option(
    "--check", is_flag=True, help="Only check that queries can run, and print the schemas of their results."
)
@click.option(
    "--flush",
    "state",
    flag_value="flush",
    help="Emit the pending results of the old query, and start the new one with an empty state.",
)
@click.option(
    "--rebuild",
    "state",
    flag_value="rebuild",
    help="Rebuild the state of the new query from the start of its inputs.",
)
@click.option("--accept-columns", is_flag=True, help="Add new columns of the inputs to the dataset.")
@click.option(
    "--translate",
    "target",
    type=click.Choice([SPARK]),
    help="Translate queries for Flink, RisingWave and DataFusion, and update the manifest files.",
)
@click.option("--pull-inputs", is_flag=True, help="Pull inputs that are in remotes, without a prompt.")
def add_verb(
    manifests: tuple[str, ...],
    recursive: bool,
    update: bool,
    dry_run: bool,
    check: bool,
    state: str | None,
    accept_columns: bool,
    target: str | None,
    pull_inputs: bool,
) -> None:
    """Add datasets from YAML manifests.

    MANIFESTS are files, URLs, folders (with -r), or - for stdin. Their order does not matter: a
    derivative dataset may precede its inputs. Inputs may be in remotes, as REPO/NAME or a URL: they are
    pulled first, after a prompt.

    With --translate, queries for other engines are translated into Spark SQL, printed and checked. What
    cannot be translated is an error. The new queries are written to the manifest files, with the original
    ones as comments.

    With --update, a manifest may define an existing dataset. Its differences from the chain are printed
    and appended. Settings that the manifest does not contain are not changed. A source is disabled if
    the manifest has other sources instead, or contains DisablePollingSource or DisablePushSource.

    If the query of a derivative dataset changes, the old query first processes all remaining input. A
    stateful query continues from the state of the old query if grouping, windows, inputs and stored
    columns are the same. Otherwise, use --flush or --rebuild.
    """
    workspace = open_workspace()
    snapshots: list[DatasetSnapshot] = []
    origins: dict[str, str] = {}
    files: dict[str, Path] = {}
    translated: list[tuple[Path | None, ManifestTranslation]] = []
    for name in manifests:
        for source, text in _read_sources(name, recursive):
            if target is not None:
                translation = _translate(workspace, text, source)
                found = translation.snapshots
                if translation.queries:
                    translated.append((None if _is_url(name) or name == "-" else Path(source), translation))
            else:
                found = _parse_manifests(text, source)
            snapshots.extend(found)
            if _is_url(name):
                origins.update((snapshot.name, redact_url(name)) for snapshot in found)
            elif name != "-":
                files.update((snapshot.name, Path(source)) for snapshot in found)
    if not snapshots:
        raise UsageError("no manifest found", hint="specify YAML files, or a folder with -r")
    if dry_run and not update and target is None:
        raise UsageError("--dry-run requires --update", hint="--update also adds new datasets")
    if (state or accept_columns) and (not update or dry_run):
        option = f"--{state}" if state else "--accept-columns"
        raise UsageError(
            f"{option} requires --update{'' if not dry_run else ' without --dry-run'}",
            hint="it applies to existing datasets",
        )
    if not dry_run:
        _pull_remote_inputs(workspace, snapshots, confirmed=pull_inputs)
    if check:
        sys.exit(check_queries(workspace, snapshots))
    if translated and not dry_run:
        _check_translations(workspace, snapshots, translated)
    if dry_run and not update:
        return
    if update:
        updating = DefinitionUpdate(workspace, origins, state=state or "", accept_columns=accept_columns)
        changed, code = updating.run(snapshots, dry_run=dry_run)
    else:
        changed, code = [str(entry.alias) for entry in workspace.add(snapshots, origins)], 0
        if options_of().json:
            print_json([{"name": name, "status": "added"} for name in changed])
        for name in changed:
            print_note(f"added {name}")
    if not dry_run:
        _write_translations(translated)
        _record_manifests(workspace, files)
    notify_datasets_changed(workspace.folder)
    for snapshot in snapshots:
        foreign = snapshot.name in origins and snapshot.kind is DatasetKind.Root
        if foreign and snapshot.name.lower() in map(str.lower, changed):
            print_note(
                f"{snapshot.name} is not trusted, so its source does not run: run odf trust {snapshot.name}"
            )
    if code:
        sys.exit(code)


def _translate(workspace: Workspace, text: str, source: str) -> ManifestTranslation:
    """Translate the queries of a manifest, and print them."""
    from odf_engine.sql.manifest_translation import translate_manifest  # deferred: loads sqlglot

    translation = translate_manifest(text, source, workspace.column_types)
    if options_of().quiet:
        return translation
    # Standard output has the JSON document only.
    stream = sys.stderr if options_of().json else sys.stdout
    for query in translation.queries:
        stream.write(f"{query.dataset}: query translated from {query.engine} to {SPARK}\n")
        stream.write("".join(f"    {printable(line)}\n" for line in query.diff()))
        stream.write("".join(f"  changed result: {printable(line)}\n" for line in query.changes))
    return translation


def _check_translations(
    workspace: Workspace,
    snapshots: Sequence[DatasetSnapshot],
    translated: Sequence[tuple[Path | None, ManifestTranslation]],
) -> None:
    """Validate translated queries of derivative datasets whose inputs have data.

    Raises:
        SystemExit: one is invalid. Nothing was added.
    """
    names = {query.dataset for _, each in translated for query in each.queries}
    checks = run_checks(workspace, snapshots, names)
    for result in [*checks.skipped, *checks.validated]:
        for message in filter(None, (result.message, result.warning)):
            print_note(f"{result.name}: {message}")
    for job in checks.jobs:
        if job.state is not JobState.done:
            print_failure(job)
    if code := exit_code(checks.jobs):
        sys.exit(code)


def _write_translations(translated: Sequence[tuple[Path | None, ManifestTranslation]]) -> None:
    """Write translated manifests to their files."""
    for path, translation in translated:
        if path is None:
            print_note(
                "translated queries not saved: a manifest from a URL or from stdin has no file to update"
            )
            continue
        rewrite_text_file(path, translation.text)
        print_note(f"wrote the translated queries to {path}")


def _pull_remote_inputs(
    workspace: Workspace, snapshots: Sequence[DatasetSnapshot], *, confirmed: bool
) -> None:
    """Pull the inputs of definitions that are in remotes, after a prompt unless ``confirmed``.

    Raises:
        RemoteInputs: they are not pulled, because there is no terminal for the prompt.
        SystemExit: a pull failed.
    """
    try:
        workspace.localize_inputs(snapshots)
        return
    except RemoteInputs as error:
        if not confirmed and not sys.stdin.isatty():
            raise
        inputs = error.inputs
    plan = plan_pull(workspace, PullSelection(locations=inputs))
    targets = plan.targets
    if not confirmed:
        names = ", ".join(target.name for target in targets)
        click.confirm(
            f"Pull {names} from {'its remote' if len(targets) == 1 else 'their remotes'}?",
            abort=True,
            err=True,
        )
    jobs = follow(workspace, plan.requests(Pull(dataset="")))
    for job, target in zip(jobs, targets, strict=True):
        if job.state is not JobState.done:
            print_failure(job)
        else:
            print_note(f"pulled {target.name}")
    notify_datasets_changed(workspace.folder)
    if code := exit_code(jobs):
        sys.exit(code)


def _parse_manifests(text: str, source: str) -> list[DatasetSnapshot]:
    from odf_engine.metadata.yaml import read_manifests

    return read_manifests(text, source)


def _read_sources(name: str, recursive: bool) -> list[tuple[str, str]]:
    if name == "-":
        return [("stdin", _read_utf8(name, "stdin"))]
    if _is_url(name):
        return [(name, _download(name))]
    path = Path(name)
    if path.is_dir():
        if not recursive:
            raise UsageError(
                f"{name} is a folder", hint="use -r to read the manifests in it and its subfolders"
            )
        files = sorted([*path.rglob("*.yaml"), *path.rglob("*.yml")])
        return [(str(file), _read_file(file)) for file in files if ".odf" not in file.parts]
    return [(name, _read_file(path))]


def _is_url(name: str) -> bool:
    return name.lower().startswith(("http://", "https://"))


def _download(url: str) -> str:
    """Download a manifest.

    Raises:
        NotFound: the server does not have it, or cannot be reached.
        SourceUnavailable: it does not arrive within :data:`_DOWNLOAD_SECONDS`.
        InvalidManifest: it is too large, or not UTF-8 text.
    """
    from concurrent.futures import Future  # deferred: loads logging, only a download needs it

    result: Future[bytes] = Future()

    def fetch() -> None:
        try:
            result.set_result(_fetch(url))
        except BaseException as error:
            result.set_exception(error)

    # The time limit of a socket applies to one call: a server that sends single bytes never exceeds it.
    Thread(target=fetch, daemon=True).start()
    try:
        return result.result(_DOWNLOAD_SECONDS).decode("utf-8")
    except TimeoutError:
        raise SourceUnavailable(
            f"the download timed out after {_DOWNLOAD_SECONDS:.0f} seconds",
            hint="check the URL, or download the manifest and add the file",
            where=url,
        ) from None
    except UnicodeDecodeError:
        raise InvalidManifest("the response is not UTF-8 text", where=url) from None


def _fetch(url: str) -> bytes:
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import urlopen

    try:
        with urlopen(url, timeout=30) as response:
            data = response.read(MAX_TEXT_BYTES + 1)
    except HTTPError as error:
        raise NotFound(f"the server responded with {error.code} {error.reason}", where=url) from None
    except (HTTPException, OSError) as error:
        raise NotFound(f"cannot download the manifest: {error}", where=url) from None
    if len(data) > MAX_TEXT_BYTES:
        raise InvalidManifest(
            f"the response exceeds {MAX_TEXT_BYTES:,} bytes", hint="check the URL", where=url
        )
    return data


def _read_file(path: Path) -> str:
    if not path.exists():
        raise NotFound(f"file not found: {path}")
    return _read_utf8(str(path), str(path))


def _read_utf8(name: str, source: str) -> str:
    try:
        return read_text(name)
    except UnicodeDecodeError as error:
        raise InvalidManifest("the file is not UTF-8 text", where=f"{source}: byte {error.start}") from None


@verb("new", example="odf new com.example.cases --root > cases.yaml")
@click.argument("name")
@click.option("--root", is_flag=True, help="Root dataset with a polling source.")
@click.option("--push", is_flag=True, help="Root dataset with a push source.")
@click.option("--derivative", is_flag=True, help="Derivative dataset: a query over other datasets.")
def new_verb(name: str, root: bool, push: bool, derivative: bool) -> None:
    """Print a commented manifest for a new dataset.

    The manifest is valid without changes. Edit it, then add the dataset with `odf add`.
    """
    from odf_engine.api.samples import DERIVATIVE, PUSH, ROOT

    if (root or push) == derivative:
        raise UsageError("missing kind of dataset", hint="use --root, --push or --derivative")
    alias = DatasetAlias.parse(name)
    template = DERIVATIVE if derivative else PUSH if push else ROOT
    data_stream().write(template.replace("NAME", str(alias)))


@verb("demo", example="odf demo")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default="odf-demo")
@click.option("--no-tui", is_flag=True, help="Print the results instead of opening the workstation.")
def demo_verb(folder: Path, no_tui: bool) -> OpenWorkstation | None:
    """Create a workspace with sample data.

    Adds sample datasets, pulls and verifies them, and opens the workstation. Requires no network.

    The data is about Port Haven, a small harbour town: its air quality, the visits to its clinics and
    its measuring stations. In the first week of March, smoke drifts in.
    """
    if not no_tui:
        _check_terminal()
    workspace = _workspace(folder)
    requests = make_requests(workspace, add_datasets(workspace))
    if no_tui:
        _run_and_print(workspace, folder, requests)
        return None
    # The workstation opens immediately and shows the running jobs.
    asyncio.run(_submit_jobs(workspace, requests))
    return OpenWorkstation(workspace.folder)


def _check_terminal() -> None:
    """Check that the workstation can open, before jobs are started.

    Raises:
        UsageError: it cannot.
    """
    from odf_tui.theming.terminal import require_capable_terminal  # deferred: --no-tui does not need it

    try:
        require_capable_terminal()
    except UsageError as error:
        raise UsageError(error.message, hint="to print the results instead, use odf demo --no-tui") from None


def _workspace(folder: Path) -> Workspace:
    if (folder / ".odf").is_dir():
        workspace = Workspace.find(folder, folder)
        if not (folder / "manifests" / "stations.yaml").is_file():
            raise Conflict(f"{folder} is not a demo workspace", hint="use another folder: odf demo FOLDER")
        return workspace
    if folder.exists() and any(folder.iterdir()):
        raise Conflict(f"{folder} is not empty", hint="use another folder: odf demo FOLDER")
    print_note(f"creating a workspace with sample data in {folder}")
    write_files(folder)
    return Workspace.init(folder)


async def _submit_jobs(workspace: Workspace, requests: list[tuple[Request, str]]) -> None:
    client = await Client.connect(workspace.folder)
    try:
        for request, target in requests:
            await client.submit(request, target)
    finally:
        await client.close()


def _run_and_print(workspace: Workspace, folder: Path, requests: list[tuple[Request, str]]) -> None:
    jobs = follow(workspace, requests)
    for job in jobs:
        if job.state is not JobState.done:
            sys.stdout.write(
                f"{job.kind:8}  {job.target}: {job.error.message if job.error else job.state.value}\n"
            )
        elif job.kind == "pull":
            pulled = job.result_of(Pull) or PullResult()
            rows, blocks = count_of(pulled.records, "new row"), count_of(pulled.blocks, "block")
            print_result(f"pulled    {job.target}: {rows} in {blocks}")
        else:
            report = job.result_of(Verify) or VerifyResult()
            verdict = "valid" if report.valid else f"INVALID, {count_of(len(report.findings), 'finding')}"
            print_result(f"verified  {job.target}: {verdict}")
    # The command as it was called: odf may not be on the path.
    command = sys.argv[0] if sys.argv[0].endswith("odf") else "odf"
    print_result(f"\nOpen the workstation:  {command} -w {folder}")
    if any(job.state is not JobState.done for job in jobs):
        sys.exit(1)
