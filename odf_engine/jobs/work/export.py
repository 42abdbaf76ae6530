"""Work of the jobs in :mod:`odf_engine.jobs.export`."""

from __future__ import annotations

from pathlib import Path

from odf_engine.base.progress import Reporter
from odf_engine.jobs.base import JobContext, release_arrow_memory
from odf_engine.jobs.export import Export, ExportResult
from odf_engine.jobs.work.views import open_rows
from odf_engine.views import export


def run_export(request: Export, context: JobContext, reporter: Reporter) -> ExportResult:
    """Run the job, see :class:`odf_engine.jobs.export.Export`."""
    rows, name = open_rows(context.workspace, request.dataset, request.file)
    with release_arrow_memory():
        written = export.export(
            rows,
            Path(request.path),
            request.format,
            reporter,
            ranges=request.ranges,
            system=request.system,
            replace=request.replace,
        )
    reporter.log(f"wrote {written.path}")
    return ExportResult(name, written.rows, written.size, str(written.path))
