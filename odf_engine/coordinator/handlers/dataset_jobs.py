"""Jobs on one dataset: definitions, statistics, states, export, diff, trace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from odf_engine.coordinator.protocol import (
    BuildProjection,
    ComputeStatistics,
    Diff,
    Export,
    Trace,
    Update,
    Validate,
)
from odf_engine.coordinator.results import (
    Change,
    ExportResult,
    PinnedBlock,
    ProjectionResult,
    StatisticsResult,
    UpdateResult,
    ValidateResult,
)
from odf_engine.errors import UsageError
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.progress import Reporter

if TYPE_CHECKING:
    from odf_engine.coordinator.job_queue import JobContext
    from odf_engine.metadata.model import DatasetSnapshot
    from odf_engine.provenance.model import TraceResult
    from odf_engine.views.diff import Difference
    from odf_engine.views.scan import Scan


def validate(request: Validate, context: JobContext, reporter: Reporter) -> ValidateResult:
    """Validate the query of a definition.

    Raises:
        OdfError: the definition or its query is invalid.
    """
    # Deferred in all handlers: PySpark and Arrow are slow to import, and jobs of other kinds need neither.
    from odf_engine.data.ddl import to_ddl

    workspace = context.workspace
    snapshot = _definition(request.manifest)
    runtime = context.host.spark(reporter)
    from odf_engine.transform.engines.engine_router import (
        EngineRouter,  # after Spark has started, see warm_up
    )
    from odf_engine.transform.engines.spark_engine import SparkEngine
    from odf_engine.transform.query_migration import InputWithoutSchema, preview_migration

    reporter.phase("validate")
    try:
        found = preview_migration(workspace, snapshot, EngineRouter(workspace.config, SparkEngine(runtime)))
    except InputWithoutSchema as error:
        return ValidateResult(snapshot.name, message=error.message)
    if found is None:
        return ValidateResult(snapshot.name, message="the definition has no query")
    return ValidateResult(
        snapshot.name, checked=True, schema=to_ddl(found.columns), new=found.new, state=found.state
    )


def update(request: Update, context: JobContext, reporter: Reporter) -> UpdateResult:
    """Update a derivative dataset to a definition.

    Raises:
        OdfError: the definition or its query is invalid, or a transaction failed.
    """
    from odf_engine.workspace.definition import record_origin

    workspace = context.workspace
    entry = workspace.resolve(request.dataset)
    snapshot = _definition(request.manifest)
    if snapshot.name.lower() != str(entry.alias).lower():
        raise UsageError(f"the definition is for {snapshot.name}, not for {entry.alias}")
    runtime = context.host.spark(reporter)
    from odf_engine.chain.state import ChainUpdate  # after Spark has started, see warm_up
    from odf_engine.transform.engines.engine_router import engines_for
    from odf_engine.transform.query_migration import migrate_query

    before = entry.dataset.state()
    if request.origin is not None:  # recorded first: it makes the query run in the sandbox
        record_origin(entry, request.origin)
    with engines_for(workspace, entry, runtime) as engine:
        outcome = migrate_query(
            workspace,
            entry,
            snapshot,
            engine,
            reporter,
            choice=request.state,
            accept_columns=request.accept_columns,
            origin=request.origin,
        )
    result = ChainUpdate.from_states(before, entry.dataset.state())
    return UpdateResult(
        name=str(entry.alias),
        status="updated" if result.blocks else "unchanged",
        old_head=_text(result.old_head),
        new_head=_text(result.new_head),
        blocks=result.blocks,
        records=result.records,
        state=outcome.state,
        changes=[Change(each.title, each.lines) for each in outcome.changes],
    )


def _definition(manifest: str) -> DatasetSnapshot:
    from odf_engine.metadata.yaml import read_manifests

    found = read_manifests(manifest, "manifest")
    if len(found) != 1:
        raise UsageError(f"the manifest has {len(found)} definitions instead of one")
    return found[0]


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
