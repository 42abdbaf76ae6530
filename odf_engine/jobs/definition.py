"""Validate and update the definition of a dataset."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec import UNSET, UnsetType

from odf_engine.base.progress import Reporter, count_of, size_of
from odf_engine.errors import UsageError
from odf_engine.jobs.base import JobContext, JobRequest, JobSummary, text_or_none
from odf_engine.jobs.pull import count_changes
from odf_engine.metadata.model import DatasetKind
from odf_engine.on_demand import (
    chain_state,
    ddl,
    definitions,
    engine_router,
    metadata_yaml,
    new_columns,
    query_migration,
    read_limit,
    source_adaptation,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from odf_engine.ingest.new_columns import AcceptedColumns
    from odf_engine.metadata.model import DatasetSnapshot
    from odf_engine.workspace.dataset_summary import DatasetEntry
    from odf_engine.workspace.definitions.definition import PlannedChange
    from odf_engine.workspace.workspace import Workspace


class AppendedEvent(msgspec.Struct, frozen=True):
    """An appended event: its title, and lines that start with ``+``, ``-`` or a space."""

    title: str = ""
    lines: list[str] = []


class ValidateResult(msgspec.Struct, frozen=True):
    """Result of the validation of a query: an entry of ``odf add --check --json``.

    Attributes:
        name: name of the dataset.
        checked: False when the query cannot be validated yet, because an input has no schema.
        message: a remark for the user, if there is one.
        schema: the columns of the query's result as DDL, or None when it was not checked.
        new: names of the columns which the dataset does not have yet.
        state: effect of an :class:`Update` on the state of the query: ``none`` (it has no state), ``kept``,
            or ``lost`` (it has to be flushed or rebuilt).
        reads: size in bytes of the slices that each pull reads, if the query reads earlier rows again.
        warning: set if this size exceeds ``transform.mostReadBytes``.
        changes: events that :class:`Update` with ``accept_columns`` appends to a root dataset, else [].
    """

    name: str = ""
    checked: bool = False
    message: str | None = None
    schema: list[str] | None = None
    new: list[str] = []
    state: str = "none"
    reads: int | None = None
    warning: str | None = None
    changes: list[AppendedEvent] = []


class Validate(JobRequest[ValidateResult], frozen=True, tag="validate"):
    """Validate the query of a derivative dataset; nothing is changed, and an invalid query fails the job.

    For an existing root dataset, the new columns of its sources are found.

    ``manifest`` is the definition as YAML. ``dataset`` is empty for a dataset that does not exist yet.
    """

    has_screen = True
    is_silent = True

    manifest: str
    dataset: str = ""

    def run(self, context: JobContext, reporter: Reporter) -> ValidateResult:
        workspace = context.workspace
        snapshot = _definition(self.manifest, workspace)
        reporter.phase("validate")
        if snapshot.kind is DatasetKind.Root:
            accepted = _find_columns(workspace.resolve(self.dataset), snapshot, context, reporter)
            changes = _appended_events(accepted.update.changes)
            return ValidateResult(snapshot.name, checked=True, new=accepted.columns, changes=changes)
        engines = engine_router.built_in_engines(workspace, partial(context.host.spark, reporter))
        try:
            with closing(engine_router.EngineRouter(workspace.config, engines, workspace.odf)) as router:
                preview = query_migration.preview_migration(workspace, snapshot, router)
        except query_migration.InputWithoutSchema as error:
            return ValidateResult(snapshot.name, message=error.message)
        if preview is None:
            return ValidateResult(snapshot.name, message="the definition has no query")
        message, warning = _describe_reads(preview.reads, workspace)
        return ValidateResult(
            snapshot.name,
            checked=True,
            message=message,
            warning=warning,
            reads=preview.reads,
            schema=ddl.to_ddl(preview.columns),
            new=preview.new,
            state=preview.state,
        )

    @classmethod
    def summarize(cls, result: ValidateResult) -> JobSummary:
        is_source = result.checked and result.schema is None
        valid = count_of(len(result.new), "new column") if is_source else "query valid"
        text = result.warning or result.message or valid
        return JobSummary(text, "good" if result.checked and not result.warning else "warn")


class InferSourceResult(msgspec.Struct, frozen=True):
    """A definition that is adapted to the file of its source.

    Attributes:
        name: alias of the dataset.
        differences: what changed since the last pull.
        new: names of the columns that read.schema gets. :class:`Update` adds them to the dataset.
        definition: the adapted definition as YAML.
    """

    name: str = ""
    differences: list[str] = []
    new: list[str] = []
    definition: str = ""


class InferSource(JobRequest[InferSourceResult], frozen=True, tag="infer-source"):
    """Adapt the definition of a root dataset to the file that its source gives now; nothing is changed.

    ``dataset`` is the id of the dataset.
    """

    has_screen = True
    is_silent = True

    dataset: str

    def run(self, context: JobContext, reporter: Reporter) -> InferSourceResult:
        workspace = context.workspace
        entry = workspace.resolve(self.dataset)
        context.host.spark(reporter)  # The modules of sources import PySpark.
        adapted = source_adaptation.adapt_source(workspace, entry, reporter, context.environment)
        return InferSourceResult(
            str(entry.alias),
            adapted.differences,
            adapted.new,
            metadata_yaml.snapshot_to_yaml(adapted.definition),
        )

    @classmethod
    def summarize(cls, result: InferSourceResult) -> JobSummary:
        return JobSummary("; ".join(result.differences) or "the source is unchanged")

    def command(self, name_of: Callable[[str], str]) -> list[str]:
        return ["add", "--update", "--infer", name_of(self.dataset)]


class UpdateResult(msgspec.Struct, frozen=True):
    """Result of an update.

    Attributes:
        name: alias of the dataset.
        status: ``updated`` or ``unchanged``.
        old_head, new_head: head before and after the job.
        blocks, records: number of appended blocks, and of the rows in them.
        state: what happened to the state of the query: ``none``, ``kept``, ``flushed`` or ``rebuilt``.
        changes: the appended events.
        added, retracted, corrected: as in :class:`odf_engine.jobs.pull.PullResult`.
        message: a remark on the new query for the user, if there is one.
        definition: the manifest with the accepted columns of a root dataset, if there are new ones.
    """

    name: str = ""
    status: str = ""
    old_head: str | None = None
    new_head: str | None = None
    blocks: int = 0
    records: int = 0
    state: str = ""
    changes: list[AppendedEvent] = []
    added: int | UnsetType = UNSET
    retracted: int | UnsetType = UNSET
    corrected: int | UnsetType = UNSET
    message: str | None = None
    definition: str | None = None


class Update(JobRequest[UpdateResult], frozen=True, tag="update"):
    """Update a derivative dataset to a definition, after the current query has processed earlier rows.

    For a root dataset, the new columns of its sources are added.

    Attributes:
        dataset: id of the dataset.
        manifest: the definition as YAML.
        state: what to do if the new query cannot continue from the state of the current one: ``flush`` emits
            the pending rows and starts with an empty state, ``rebuild`` computes the state which the new
            query would have. Empty: the job fails.
        accept_columns: add new columns of the query or of the sources, even if the definition is unchanged.
        origin: URL of a third party's definition.
    """

    dataset: str
    manifest: str
    state: Literal["", "flush", "rebuild"] = ""
    accept_columns: bool = False
    origin: str | None = None

    def run(self, context: JobContext, reporter: Reporter) -> UpdateResult:
        workspace = context.workspace
        entry = workspace.resolve(self.dataset)
        snapshot = _definition(self.manifest, workspace)
        if snapshot.name.lower() != str(entry.alias).lower():
            raise UsageError(f"the definition is for {snapshot.name}, not for {entry.alias}")
        before = entry.dataset.state()
        if before.kind is DatasetKind.Root:
            return self._accept_columns(entry, snapshot, context, reporter)
        options = query_migration.MigrationOptions(
            choice=self.state, accept_columns=self.accept_columns, origin=self.origin
        )
        if self.origin is not None:  # recorded first: it makes the query run in the sandbox
            definitions.record_origin(entry, self.origin)
        with engine_router.engines_for(workspace, entry, partial(context.host.spark, reporter)) as engine:
            outcome = query_migration.migrate_query(
                workspace,
                entry,
                snapshot,
                engine,
                reporter,
                options,
                session=partial(context.session, reporter),
            )
        update = chain_state.ChainUpdate.from_states(before, entry.dataset.state())
        message, warning = _describe_reads(outcome.reads, workspace)
        if warning is not None:
            reporter.log(warning, "warning")
        return UpdateResult(
            name=str(entry.alias),
            status="updated" if update.blocks else "unchanged",
            old_head=text_or_none(update.old_head),
            new_head=text_or_none(update.new_head),
            blocks=update.blocks,
            records=update.records,
            state=outcome.state,
            message=message,
            changes=_appended_events(outcome.changes),
            **count_changes(entry.dataset, update.blocks, reporter),
        )

    def _accept_columns(
        self, entry: DatasetEntry, snapshot: DatasetSnapshot, context: JobContext, reporter: Reporter
    ) -> UpdateResult:
        before = entry.dataset.state()
        accepted = _find_columns(entry, snapshot, context, reporter, fetches=self.origin is None)
        if accepted.update.changes:
            reporter.phase("commit")
            reporter.raise_if_cancelled()
            version = context.workspace.config.block_version
            head = definitions.commit_update(entry, accepted.update, self.origin, block_version=version)
            kinds = [change.title for change in accepted.update.changes]
            reporter.log(f"committed block {head}: {', '.join(kinds)}")
            reporter.committed(str(entry.id), str(head), kinds[-1], 0)
        update = chain_state.ChainUpdate.from_states(before, entry.dataset.state())
        return UpdateResult(
            name=str(entry.alias),
            status="updated" if accepted.update.changes else "unchanged",
            old_head=text_or_none(update.old_head),
            new_head=text_or_none(update.new_head),
            blocks=update.blocks,
            state="none",
            changes=_appended_events(accepted.update.changes),
            message=None if accepted.columns else "the sources and their queries have no new columns",
            definition=metadata_yaml.snapshot_to_yaml(accepted.definition) if accepted.columns else None,
        )

    @classmethod
    def summarize(cls, result: UpdateResult) -> JobSummary:
        state = f", state {result.state}" if result.state not in ("", "none") else ""
        return JobSummary((result.status or "done") + state)


def _find_columns(
    entry: DatasetEntry,
    snapshot: DatasetSnapshot,
    context: JobContext,
    reporter: Reporter,
    *,
    fetches: bool = True,
) -> AcceptedColumns:
    """Return a definition with the new columns of its sources; the source of a third party is not fetched."""
    runtime = context.host.spark(reporter)
    with engine_router.engines_for(context.workspace, entry, lambda: runtime) as engines:
        acceptance = new_columns.ColumnAcceptance(
            context.workspace,
            entry,
            runtime,
            reporter,
            context.environment,
            engines.find_external,
            fetches,
        )
        return acceptance.plan(snapshot)


def _appended_events(changes: Sequence[PlannedChange]) -> list[AppendedEvent]:
    return [AppendedEvent(change.title, change.lines) for change in changes]


def _definition(manifest: str, workspace: Workspace) -> DatasetSnapshot:
    snapshots = metadata_yaml.read_manifests(manifest, "manifest")
    if len(snapshots) != 1:
        raise UsageError(f"the manifest has {len(snapshots)} definitions instead of one")
    return workspace.localize_inputs(snapshots)[0]


def _describe_reads(reads: int | None, workspace: Workspace) -> tuple[str | None, str | None]:
    """Return the costs of a query for the user, and a warning if they exceed the limit.

    Args:
        reads: as in :class:`odf_engine.derive.query_migration.MigrationPreview`.
        workspace: has the limit.
    """
    if reads is None:
        return None, None
    excess = read_limit.excessive_read(reads, workspace.config.transform)
    message = "its rows can change at any time, and each pull reads earlier rows of the inputs again"
    return f"{message} (now {size_of(reads)})", None if excess is None else excess.message
