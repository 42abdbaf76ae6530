"""Jobs on one dataset: definitions, statistics, states, export, diff, trace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from odf_engine.coordinator.handlers.row_counts import count_changes
from odf_engine.coordinator.protocol import (
    BuildProjection,
    Check,
    Compact,
    ComputeStatistics,
    Diff,
    Export,
    Trace,
    Update,
    Validate,
)
from odf_engine.coordinator.results import (
    Change,
    CheckResult,
    CompactResult,
    ExportResult,
    PinnedBlock,
    ProjectionResult,
    StatisticsResult,
    UpdateResult,
    ValidateResult,
)
from odf_engine.errors import NotFound, OdfError, UsageError
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.progress import Reporter, size_of

if TYPE_CHECKING:
    from odf_engine.coordinator.job_queue import JobContext
    from odf_engine.metadata.model import DatasetSnapshot
    from odf_engine.provenance.model import TraceResult
    from odf_engine.views.diff import Difference
    from odf_engine.views.scan import Scan
    from odf_engine.workspace.workspace import Workspace


def validate(request: Validate, context: JobContext, reporter: Reporter) -> ValidateResult:
    """Validate the query of a definition.

    Raises:
        OdfError: the definition or its query is invalid.
    """
    # Deferred in all handlers: PySpark and Arrow are slow to import, and jobs of other kinds need neither.
    from odf_engine.data.ddl import to_ddl

    workspace = context.workspace
    snapshot = _definition(request.manifest, workspace)
    from odf_engine.transform.engines.engine_router import EngineRouter, built_in_engines
    from odf_engine.transform.query_migration import InputWithoutSchema, preview_migration

    reporter.phase("validate")
    engines = built_in_engines(workspace, partial(context.host.spark, reporter))
    try:
        with closing(EngineRouter(workspace.config, engines, workspace.odf)) as router:
            found = preview_migration(workspace, snapshot, router)
    except InputWithoutSchema as error:
        return ValidateResult(snapshot.name, message=error.message)
    if found is None:
        return ValidateResult(snapshot.name, message="the definition has no query")
    message, warning = _describe_reads(found.reads, workspace)
    return ValidateResult(
        snapshot.name,
        checked=True,
        message=message,
        warning=warning,
        reads=found.reads,
        schema=to_ddl(found.columns),
        new=found.new,
        state=found.state,
    )


def _describe_reads(reads: int | None, workspace: Workspace) -> tuple[str | None, str | None]:
    """Return the costs of a query for the user, and a warning if they exceed the limit.

    Args:
        reads: as in :class:`odf_engine.transform.query_migration.MigrationPreview`.
        workspace: has the limit.
    """
    from odf_engine.transform.read_limit import excessive_read

    if reads is None:
        return None, None
    excess = excessive_read(reads, workspace.config.transform)
    message = "its rows can change at any time, and each pull reads earlier rows of the inputs again"
    return f"{message} (now {size_of(reads)})", None if excess is None else excess.message


def check(request: Check, context: JobContext, reporter: Reporter) -> CheckResult:
    """Evaluate the checks of a dataset on its stored rows.

    Raises:
        OdfError: a check is invalid, not accepted, or cannot be evaluated.
    """
    from odf_engine.checks.gate import load_checks
    from odf_engine.query.execution import release_arrow_memory

    workspace = context.workspace
    entry = workspace.resolve(request.dataset).on_branch(request.branch)
    branch = request.branch or msgspec.UNSET
    checks = load_checks(workspace, entry, partial(context.session, reporter))
    if checks is None:
        reporter.log(f"{entry.alias} has no checks")
        return CheckResult(str(entry.alias), branch=branch)
    with release_arrow_memory():
        results = checks.check_stored(reporter)
    for each in results:
        level = {"failed": "error", "warning": "warning"}.get(each.outcome, "info")
        reporter.log(each.text, level)
    return CheckResult(str(entry.alias), results, branch)


def update(request: Update, context: JobContext, reporter: Reporter) -> UpdateResult:
    """Update a derivative dataset to a definition.

    Raises:
        OdfError: the definition or its query is invalid, or a transaction failed.
    """
    from odf_engine.workspace.definition import record_origin

    workspace = context.workspace
    entry = workspace.resolve(request.dataset)
    snapshot = _definition(request.manifest, workspace)
    if snapshot.name.lower() != str(entry.alias).lower():
        raise UsageError(f"the definition is for {snapshot.name}, not for {entry.alias}")
    from odf_engine.chain.state import ChainUpdate
    from odf_engine.transform.engines.engine_router import engines_for
    from odf_engine.transform.query_migration import migrate_query

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
            choice=request.state,
            accept_columns=request.accept_columns,
            origin=request.origin,
            session=partial(context.session, reporter),
        )
    result = ChainUpdate.from_states(before, entry.dataset.state())
    message, warning = _describe_reads(outcome.reads, workspace)
    if warning is not None:
        reporter.log(warning, "warning")
    return UpdateResult(
        name=str(entry.alias),
        status="updated" if result.blocks else "unchanged",
        old_head=_text(result.old_head),
        new_head=_text(result.new_head),
        blocks=result.blocks,
        records=result.records,
        state=outcome.state,
        message=message,
        changes=[Change(each.title, each.lines) for each in outcome.changes],
        **count_changes(entry.dataset, result.blocks, reporter),
    )


def _definition(manifest: str, workspace: Workspace) -> DatasetSnapshot:
    from odf_engine.metadata.yaml import read_manifests

    found = read_manifests(manifest, "manifest")
    if len(found) != 1:
        raise UsageError(f"the manifest has {len(found)} definitions instead of one")
    return workspace.localize_inputs(found)[0]


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def compute_statistics(
    request: ComputeStatistics, context: JobContext, reporter: Reporter
) -> StatisticsResult:
    """Compute statistics of rows and store them in the cache.

    Raises:
        OdfError: the rows cannot be read, or the cache cannot be written.
    """
    from odf_engine.views import statistics

    rows, name = _open_rows(request.dataset, request.file, context)
    odf, dataset = context.workspace.odf, None if request.file else request.dataset
    with _release_arrow_memory():
        found = statistics.compute_statistics(odf, rows, reporter, dataset)
    return StatisticsResult(name, found.rows)


def build_projection(request: BuildProjection, context: JobContext, reporter: Reporter) -> ProjectionResult:
    """Build the latest state by key.

    Raises:
        OdfError: the key is invalid, the rows cannot be read, or the cache cannot be written.
    """
    from odf_engine.views import projection
    from odf_engine.views.as_at import at_version, resolve_as_at

    workspace = context.workspace
    entry = workspace.resolve(request.dataset)
    as_of = None if request.as_of is None else _parse_time(request.as_of)
    pin = resolve_as_at(entry, request.as_at)
    dataset = at_version(entry, pin).dataset
    with _release_arrow_memory():
        found = projection.build_projection(
            workspace.odf, dataset, request.key, reporter, last_offset=pin.scan_offset, as_of=as_of
        )
    return ProjectionResult(
        name=str(entry.alias),
        key=found.key,
        rows=found.rows,
        of=found.of,
        file=str(found.file),
        pin=msgspec.convert(pin, PinnedBlock, from_attributes=True),
    )


def export(request: Export, context: JobContext, reporter: Reporter) -> ExportResult:
    """Write rows to a file.

    Raises:
        OdfError: the rows cannot be read, or the file cannot be written.
    """
    from odf_engine.views import export as row_export

    rows, name = _open_rows(request.dataset, request.file, context)
    with _release_arrow_memory():
        found = row_export.export(
            rows,
            Path(request.path),
            request.format,
            reporter,
            ranges=request.ranges,
            system=request.system,
            replace=request.replace,
        )
    reporter.log(f"wrote {found.path}")
    return ExportResult(name, found.rows, found.size, str(found.path))


def diff(request: Diff, context: JobContext, reporter: Reporter) -> Difference:
    """Compare two versions of a dataset, or two datasets.

    Raises:
        OdfError: a side is missing, both sides are the same, the key is invalid, or rows cannot be read.
    """
    from odf_engine.views.row_diff import diff_datasets

    with _release_arrow_memory():
        return diff_datasets(
            context.workspace,
            request.dataset,
            request.other,
            as_at=request.as_at,
            other_as_at=request.other_as_at,
            key=request.key,
            reporter=reporter,
        )


def compact(request: Compact, context: JobContext, reporter: Reporter) -> CompactResult:
    """Compact a root dataset, and sign its new head if the workspace has the dataset's key.

    Raises:
        OdfError: it is a derivative dataset, has changed in the meantime, or is damaged.
    """
    from odf_engine.chain import compaction
    from odf_engine.identity.ownership_proof import create_and_store_proof

    workspace, key = context.workspace, None
    entry = workspace.resolve(request.dataset)
    compaction.require_compactable(entry.dataset, str(entry.alias))
    configured = workspace.config.compaction
    policy = compaction.CompactionPolicy(
        request.max_rows or configured.max_rows, request.max_bytes or configured.max_bytes
    )
    if request.dry_run:
        found = compaction.plan_compaction(entry.dataset, policy, reporter)
    else:
        with _release_arrow_memory():
            try:
                key = workspace.keys.private_key_pem(entry.id)
            except NotFound:
                pass  # a dataset of another author
            except (OSError, OdfError) as error:
                reporter.log(f"the compaction is not signed: {error}", "warning")
            version = workspace.config.block_version
            found = compaction.compact(
                entry.dataset, policy, reporter, block_version=version, private_key_pem=key
            )
    changed = found.new_head != found.old_head
    if changed and found.new_head is not None:
        reporter.committed(str(entry.id), str(found.new_head), "compaction", 0)
        try:
            if key is not None:
                create_and_store_proof(entry.dataset.folder, entry.id, key, found.new_head)
        except (OSError, OdfError) as error:
            reporter.log(f"the new head is not signed: {error}", "warning")
    status = "unchanged" if not changed else "planned" if request.dry_run else "compacted"
    return CompactResult(
        name=str(entry.alias),
        status=status,
        old_head=_text(found.old_head),
        new_head=_text(found.new_head),
        old_blocks=found.old_blocks,
        new_blocks=found.new_blocks,
        old_slices=found.old_slices,
        new_slices=found.new_slices,
        merged_bytes=found.merged_bytes,
        written_bytes=found.written_bytes,
        reference=found.reference,
    )


@contextmanager
def _release_arrow_memory() -> Iterator[None]:
    """Release Arrow's unused memory afterwards: the worker is a long-lived process."""
    import pyarrow as pa

    try:
        yield
    finally:
        pa.default_memory_pool().release_unused()


def _parse_time(text: str) -> Timestamp:
    try:
        return Timestamp.parse(text)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _open_rows(dataset: str, file: str | None, context: JobContext) -> tuple[Scan, str]:
    """Return the rows of a file or a dataset, and the alias of the dataset; empty without one."""
    from odf_engine.views.scan import Scan

    if not dataset:
        if file is None:
            raise UsageError("missing dataset or file")
        return Scan.of_file(Path(file)), ""
    entry = context.workspace.resolve(dataset)
    if file is None:
        return Scan.of_dataset(entry.dataset), str(entry.alias)
    return Scan.of_file(Path(file), entry.dataset.state().vocabulary), str(entry.alias)


def trace(request: Trace, context: JobContext, reporter: Reporter) -> TraceResult:
    """Trace the provenance of rows.

    Raises:
        OdfError: the rows do not exist or cannot be read.
    """
    from odf_engine.provenance.model import TraceResult, truncate_trace
    from odf_engine.provenance.trace import Tracer

    workspace = context.workspace
    entry = workspace.resolve(request.dataset)
    tracer = Tracer(workspace, context.host.spark, reporter)
    found = tracer.trace(entry, request.runs, request.column, request.depth)
    checked = tracer.check_newest_step(entry, found) if request.check else None
    return TraceResult(**msgspec.structs.asdict(truncate_trace(found)), checked=checked)
