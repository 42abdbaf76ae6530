"""Add datasets from YAML manifests.

MANIFESTS are files, URLs, folders (with -r), or - for stdin. Their order does not matter: a
derivative dataset may precede its inputs. Inputs may be in remotes, as REPO/NAME or a URL: they are
pulled first, after a prompt.

A polling source in a Source resource (RFC-018) is stored outside the chain, so that it is not
published. See `odf help resources`.

With --translate, queries for other engines are translated into Spark SQL, printed and checked. What
cannot be translated is an error. The new queries are written to the manifest files, with the original
ones as comments.

With --update, a manifest may define an existing dataset. Its differences from the chain are printed
and appended. Settings that the manifest does not contain are not changed. A source is disabled if
the manifest has other sources instead, or contains DisablePollingSource or DisablePushSource.

If the query of a derivative dataset changes, the old query first processes all remaining input. A
stateful query continues from the state of the old query if grouping, windows, inputs and stored
columns are the same. Otherwise, use --flush or --rebuild.

With --accept-columns, the datasets get the new columns of their inputs or sources. A new column of a
source is added to read.schema, to the preprocess query and to the schema of the dataset in one
commit, and to the manifest file. It is taken from the manifest, else from the header of the CSV file
that the source gives now. Earlier rows have nulls in it.

With --infer, the source of a dataset is adapted to the file that it gives now: a new URL after a
permanent redirect, separator, encoding, lines above the header, new columns. Columns keep their
names and types. The changes are printed and appended after a prompt, and written to the manifest
file. If a column disappeared, moved or has another type, nothing is changed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from odf_engine.api import (
    SPARK,
    DatasetKind,
    DatasetSnapshot,
    InferSource,
    JobState,
    Pull,
    RemoteInputs,
    ValueSet,
    join_sources,
    locate_errors,
    read_manifests,
    read_value_sets,
    redact_url,
    rewrite_text_file,
)
from odf_engine.api.plans.pull_plan import PullSelection
from odf_engine.api.text import count_of, printable
from odf_engine.api.workspace import Workspace
from odf_engine.errors import UsageError
from odf_tui.cli.shared.definition_update import DefinitionUpdate, check_queries, run_checks
from odf_tui.cli.shared.job_progress import exit_code, follow, print_failure, print_failures
from odf_tui.cli.shared.manifests import is_url, read_sources
from odf_tui.cli.shared.options import define_command, options_of
from odf_tui.cli.shared.output import live_progress, print_note, show
from odf_tui.cli.shared.workspace import open_workspace

if TYPE_CHECKING:
    from odf_engine.api import ManifestTranslation

ORDER = 20


@define_command("add", help=__doc__, example="odf add covid.yaml air-quality.yaml", json=True)
@click.argument("manifests", nargs=-1, type=click.Path())
@click.option("-r", "--recursive", is_flag=True, help="Read the manifests in folders and their subfolders.")
@click.option("--update", is_flag=True, help="Update existing datasets: append the changes to their chains.")
@click.option("--dry-run", is_flag=True, help="Only print what would be added or appended.")
@click.option(
    "--check",
    "check_only",
    is_flag=True,
    help="Only check that queries can run, and print the schemas of their results.",
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
@click.option("--accept-columns", is_flag=True, help="Add new columns of inputs and sources to the datasets.")
@click.option("--infer", metavar="NAME", help="Adapt the source of a dataset to the file that it gives now.")
@click.option("-y", "--yes", is_flag=True, help="With --infer, do not prompt for confirmation.")
@click.option(
    "--translate",
    "target",
    type=click.Choice([SPARK]),
    help="Translate queries for Flink, RisingWave and DataFusion, and update the manifest files.",
)
@click.option("--pull-inputs", is_flag=True, help="Pull inputs that are in remotes, without a prompt.")
def command(manifests: tuple[str, ...], recursive: bool, **settings: Any) -> None:
    options = _Options(**settings)
    workspace = open_workspace()
    options.check_arguments(manifests)
    if options.infer is not None:
        sys.exit(_adapt_source(workspace, options.infer, options))
    definitions = _read_definitions(workspace, manifests, recursive, translate=options.target is not None)
    options.check()
    with locate_errors(definitions.texts):
        if not options.dry_run:
            _pull_remote_inputs(workspace, definitions.snapshots, confirmed=options.pull_inputs)
        if options.check_only:
            sys.exit(check_queries(workspace, definitions.snapshots))
        if definitions.translated and not options.dry_run:
            _check_translations(workspace, definitions)
        if options.dry_run and not options.update:
            return
        changed, code = _apply(workspace, definitions, options)
    if not options.dry_run:
        _store_values(workspace, definitions.sets)
        _write_translations(definitions.translated)
        for name, path in definitions.files.items():
            workspace.record_manifest([workspace.resolve(name).id], path)
    _note_untrusted(definitions, changed)
    sys.exit(code)


@dataclass(frozen=True)
class _Options:
    """The options of the command."""

    update: bool
    dry_run: bool
    check_only: bool
    state: Literal["flush", "rebuild"] | None
    accept_columns: bool
    infer: str | None
    yes: bool
    target: str | None
    pull_inputs: bool

    def check_arguments(self, manifests: Sequence[str]) -> None:
        """Raise a UsageError if there is not either a manifest or a dataset to adapt."""
        if self.infer is None and not manifests:
            raise UsageError("missing argument: MANIFESTS", hint="specify YAML files, or a folder with -r")
        others = (self.check_only, self.state, self.accept_columns, self.target, self.pull_inputs)
        if self.infer is not None and (manifests or any(others)):
            raise UsageError("--infer is used without manifests and other options", hint="use --infer NAME")
        if self.infer is not None and not self.update:
            raise UsageError("--infer requires --update", hint="it applies to existing datasets")

    def check(self) -> None:
        """Raise a UsageError if an option requires or excludes another one."""
        if self.dry_run and not self.update and self.target is None:
            raise UsageError("--dry-run requires --update", hint="--update also adds new datasets")
        if (self.state or self.accept_columns) and not self.update:
            option = f"--{self.state}" if self.state else "--accept-columns"
            raise UsageError(f"{option} requires --update", hint="it applies to existing datasets")
        if self.state and self.dry_run:
            raise UsageError(
                f"--{self.state} requires --update without --dry-run", hint="it applies to existing datasets"
            )


@dataclass(frozen=True)
class _Definitions:
    """The definitions in the manifests.

    Attributes:
        sets: values for sources.
        origins: the addresses of third-party definitions, by dataset name.
        files: the manifest files of the other definitions, by dataset name.
        texts: the texts of the manifests, by file or URL.
        translated: manifests with translated queries, each with its file, or None if it has none.
    """

    snapshots: list[DatasetSnapshot] = field(default_factory=list)
    sets: list[ValueSet] = field(default_factory=list)
    origins: dict[str, str] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    translated: list[tuple[Path | None, ManifestTranslation]] = field(default_factory=list)


def _read_definitions(
    workspace: Workspace, manifests: Sequence[str], recursive: bool, *, translate: bool
) -> _Definitions:
    definitions = _Definitions()
    for name in manifests:
        for source, text in read_sources(workspace, name, recursive):
            file = None if is_url(name) or name == "-" else Path(source)
            definitions.texts[source] = text
            if translate:
                translation = _translate(workspace, text, source)
                snapshots = translation.snapshots
                if translation.queries:
                    definitions.translated.append((file, translation))
            else:
                snapshots = read_manifests(text, source)
            if sets := read_value_sets(text, source):
                if is_url(name):
                    problem = f"{sets[0].type} {sets[0].name}: values are not added from a URL"
                    raise UsageError(problem, hint="save the manifest as a file, check it, then add the file")
                definitions.sets.extend(sets)
            definitions.snapshots.extend(snapshots)
            names = [snapshot.name for snapshot in snapshots]
            if is_url(name):
                definitions.origins.update(dict.fromkeys(names, redact_url(name)))
            elif file is not None:
                definitions.files.update(dict.fromkeys(names, file))
    if not definitions.snapshots and not definitions.sets:
        raise UsageError("no manifest found", hint="specify YAML files, or a folder with -r")
    definitions.snapshots[:] = join_sources(definitions.snapshots)
    return definitions


def _store_values(workspace: Workspace, sets: Sequence[ValueSet]) -> None:
    workspace.store_value_sets(sets)
    for item in sets:
        print_note(f"stored {item.type} {item.name}: {', '.join(item.values)}")


def _apply(workspace: Workspace, definitions: _Definitions, options: _Options) -> tuple[Sequence[str], int]:
    """Add or update the datasets; return the names of the changed ones, and the exit code."""
    if options.update:
        updating = DefinitionUpdate(
            workspace, definitions.origins, options.state or "", options.accept_columns, definitions.files
        )
        return updating.run(definitions.snapshots, dry_run=options.dry_run)
    count = count_of(len(definitions.snapshots), "dataset")
    with live_progress() as show_progress:
        added = workspace.add_definitions(
            definitions.snapshots,
            definitions.origins,
            lambda percent: show_progress(f"adding {count}: {percent:.0f} %"),
        )
    show([{"name": name, "status": "added"} for name in added], None)
    for name in added:
        print_note(f"added {name}")
    return added, 0


def _adapt_source(workspace: Workspace, name: str, options: _Options) -> int:
    """Adapt the source of a dataset to its file; return the exit code."""
    dataset = workspace.resolve(name)
    (job,) = follow(workspace, [(InferSource(dataset=dataset.id), dataset.name)])
    result = job.result_of(InferSource)
    if result is None:
        print_failure(job)
        return exit_code([job])
    for difference in result.differences:
        print_note(f"{dataset.name}: {difference}")
    updating = DefinitionUpdate(workspace, {}, "", bool(result.new), {}, asks=not options.yes)
    definitions = read_manifests(result.definition, "definition")
    changed, code = updating.run(definitions, dry_run=options.dry_run)
    change = (
        workspace.manifest_change(dataset.id, result.definition, keeps_comments=True) if changed else None
    )
    if change is not None and not result.new:
        workspace.write_manifest(change)
        print_note(f"wrote the definition to {change.path}")
    return code


def _note_untrusted(definitions: _Definitions, changed: Sequence[str]) -> None:
    """Note the third-party datasets whose source does not run."""
    for snapshot in definitions.snapshots:
        third_party = snapshot.name in definitions.origins and snapshot.kind is DatasetKind.Root
        if third_party and snapshot.name.lower() in map(str.lower, changed):
            print_note(
                f"{snapshot.name} is not trusted, so its source does not run: run odf trust {snapshot.name}"
            )


def _translate(workspace: Workspace, text: str, source: str) -> ManifestTranslation:
    """Translate the queries of a manifest, and print them."""
    translation = workspace.translate_manifest(text, source)
    if options_of().quiet:
        return translation
    # Standard output has the JSON document only.
    stream = sys.stderr if options_of().json else sys.stdout
    for query in translation.queries:
        stream.write(f"{query.dataset}: query translated from {query.engine} to {SPARK}\n")
        stream.write("".join(f"    {printable(line)}\n" for line in query.diff()))
        stream.write("".join(f"  changed result: {printable(line)}\n" for line in query.changes))
    return translation


def _check_translations(workspace: Workspace, definitions: _Definitions) -> None:
    """Validate translated queries of derivative datasets whose inputs have data."""
    names = {query.dataset for _, translation in definitions.translated for query in translation.queries}
    checks = run_checks(workspace, definitions.snapshots, names)
    for result in [*checks.skipped, *checks.validated]:
        for message in filter(None, (result.message, result.warning)):
            print_note(f"{result.name}: {message}")
    print_failures(checks.jobs)
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
    """Pull the inputs of definitions that are in remotes, after a prompt unless ``confirmed``."""
    try:
        workspace.localize_inputs(snapshots)
        return
    except RemoteInputs as error:
        if not confirmed and not sys.stdin.isatty():
            raise
        inputs = error.inputs
    plan = workspace.plan_pull(PullSelection(locations=inputs))
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
    if code := exit_code(jobs):
        sys.exit(code)
