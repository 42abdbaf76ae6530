"""Work of the jobs in :mod:`odf_engine.jobs.diff`."""

from __future__ import annotations

from odf_engine.base.progress import Reporter
from odf_engine.jobs.base import JobContext, release_arrow_memory
from odf_engine.jobs.diff import Diff
from odf_engine.views.diff import Difference
from odf_engine.views.row_diff import diff_datasets


def run_diff(request: Diff, context: JobContext, reporter: Reporter) -> Difference:
    """Run the job, see :class:`odf_engine.jobs.diff.Diff`."""
    with release_arrow_memory():
        return diff_datasets(
            context.workspace,
            request.dataset,
            request.other,
            as_at=request.as_at,
            other_as_at=request.other_as_at,
            key=request.key,
            reporter=reporter,
        )
