"""Work of the jobs in :mod:`odf_engine.jobs.views`."""

from __future__ import annotations

from pathlib import Path

import msgspec

from odf_engine.base.progress import Reporter
from odf_engine.errors import UsageError
from odf_engine.jobs.base import JobContext, release_arrow_memory
from odf_engine.jobs.views import (
    BuildProjection,
    ComputeStatistics,
    PinnedBlock,
    ProjectionResult,
    StatisticsResult,
)
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.views import projection, statistics
from odf_engine.views.as_at import at_version, resolve_as_at
from odf_engine.views.scan import Scan
from odf_engine.workspace.workspace import Workspace


def run_describe(request: ComputeStatistics, context: JobContext, reporter: Reporter) -> StatisticsResult:
    """Run the job, see :class:`odf_engine.jobs.views.ComputeStatistics`."""
    rows, name = open_rows(context.workspace, request.dataset, request.file)
    odf, dataset = context.workspace.odf, None if request.file else request.dataset
    with release_arrow_memory():
        computed = statistics.compute_statistics(odf, rows, reporter, dataset)
    return StatisticsResult(name, computed.rows)


def run_project(request: BuildProjection, context: JobContext, reporter: Reporter) -> ProjectionResult:
    """Run the job, see :class:`odf_engine.jobs.views.BuildProjection`."""
    workspace = context.workspace
    entry = workspace.resolve(request.dataset)
    as_of = None if request.as_of is None else _parse_time(request.as_of)
    pin = resolve_as_at(entry, request.as_at)
    dataset = at_version(entry, pin).dataset
    with release_arrow_memory():
        built = projection.build_projection(
            workspace.odf, dataset, request.key, reporter, last_offset=pin.scan_offset, as_of=as_of
        )
    return ProjectionResult(
        name=str(entry.alias),
        key=built.key,
        rows=built.rows,
        of=built.of,
        file=str(built.file),
        pin=msgspec.convert(pin, PinnedBlock, from_attributes=True),
    )


def _parse_time(text: str) -> Timestamp:
    try:
        return Timestamp.parse(text)
    except ValueError as error:
        raise UsageError(str(error)) from None


def open_rows(workspace: Workspace, dataset: str, file: str | None) -> tuple[Scan, str]:
    """Return the rows of a file or a dataset, and the alias of the dataset, or "" without one."""
    if not dataset:
        if file is None:
            raise UsageError("missing dataset or file")
        return Scan.of_file(Path(file)), ""
    entry = workspace.resolve(dataset)
    if file is None:
        return Scan.of_dataset(entry.dataset), str(entry.alias)
    return Scan.of_file(Path(file), entry.dataset.state().vocabulary), str(entry.alias)
