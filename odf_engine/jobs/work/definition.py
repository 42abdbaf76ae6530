"""Validates and updates definitions, see :mod:`odf_engine.jobs.definition`."""

from __future__ import annotations

from contextlib import closing
from functools import partial

from odf_engine.base.progress import Reporter, size_of
from odf_engine.chain.state import ChainUpdate
from odf_engine.data.ddl import to_ddl
from odf_engine.errors import UsageError
from odf_engine.jobs.base import JobContext, text_or_none
from odf_engine.jobs.definition import AppendedEvent, Update, UpdateResult, Validate, ValidateResult
from odf_engine.jobs.work.pull import count_changes
from odf_engine.metadata.model import DatasetSnapshot
from odf_engine.metadata.yaml import read_manifests
from odf_engine.transform.engines.engine_router import EngineRouter, built_in_engines, engines_for
from odf_engine.transform.query_migration import (
    InputWithoutSchema,
    MigrationOptions,
    migrate_query,
    preview_migration,
)
from odf_engine.transform.read_limit import excessive_read
from odf_engine.workspace.definitions.definition import record_origin
from odf_engine.workspace.workspace import Workspace


def run_validate(request: Validate, context: JobContext, reporter: Reporter) -> ValidateResult:
    """Validate a query, see :class:`odf_engine.jobs.definition.Validate`."""
    workspace = context.workspace
    snapshot = _definition(request.manifest, workspace)
    reporter.phase("validate")
    engines = built_in_engines(workspace, partial(context.host.spark, reporter))
    try:
        with closing(EngineRouter(workspace.config, engines, workspace.odf)) as router:
            preview = preview_migration(workspace, snapshot, router)
    except InputWithoutSchema as error:
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
        schema=to_ddl(preview.columns),
        new=preview.new,
        state=preview.state,
    )


def run_update(request: Update, context: JobContext, reporter: Reporter) -> UpdateResult:
    """Update a dataset, see :class:`odf_engine.jobs.definition.Update`."""
    workspace = context.workspace
    entry = workspace.resolve(request.dataset)
    snapshot = _definition(request.manifest, workspace)
    if snapshot.name.lower() != str(entry.alias).lower():
        raise UsageError(f"the definition is for {snapshot.name}, not for {entry.alias}")
    before = entry.dataset.state()
    if request.origin is not None:  # recorded first: it makes the query run in the sandbox
        record_origin(entry, request.origin)
    with engines_for(workspace, entry, partial(context.host.spark, reporter)) as engine:
        outcome = migrate_query(
            workspace,
            entry,
            snapshot,
            engine,
            reporter,
            MigrationOptions(
                choice=request.state, accept_columns=request.accept_columns, origin=request.origin
            ),
            session=partial(context.session, reporter),
        )
    update = ChainUpdate.from_states(before, entry.dataset.state())
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
        changes=[AppendedEvent(change.title, change.lines) for change in outcome.changes],
        **count_changes(entry.dataset, update.blocks, reporter),
    )


def _definition(manifest: str, workspace: Workspace) -> DatasetSnapshot:
    snapshots = read_manifests(manifest, "manifest")
    if len(snapshots) != 1:
        raise UsageError(f"the manifest has {len(snapshots)} definitions instead of one")
    return workspace.localize_inputs(snapshots)[0]


def _describe_reads(reads: int | None, workspace: Workspace) -> tuple[str | None, str | None]:
    """Return the costs of a query for the user, and a warning if they exceed the limit.

    Args:
        reads: as in :class:`odf_engine.transform.query_migration.MigrationPreview`.
        workspace: has the limit.
    """
    if reads is None:
        return None, None
    excess = excessive_read(reads, workspace.config.transform)
    message = "its rows can change at any time, and each pull reads earlier rows of the inputs again"
    return f"{message} (now {size_of(reads)})", None if excess is None else excess.message
