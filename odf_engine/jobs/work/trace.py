"""Work of the jobs in :mod:`odf_engine.jobs.trace`."""

from __future__ import annotations

from msgspec.structs import asdict

from odf_engine.base.progress import Reporter
from odf_engine.jobs.base import JobContext
from odf_engine.jobs.trace import Trace
from odf_engine.provenance.model import TraceResult, truncate_trace
from odf_engine.provenance.trace import Tracer


def run_trace(request: Trace, context: JobContext, reporter: Reporter) -> TraceResult:
    """Run the job, see :class:`odf_engine.jobs.trace.Trace`."""
    workspace = context.workspace
    entry = workspace.resolve(request.dataset)
    tracer = Tracer(workspace, context.host.spark, reporter)
    step = tracer.trace(entry, request.runs, request.column, request.depth)
    checked = tracer.check_newest_step(entry, step) if request.check else None
    return TraceResult(**asdict(truncate_trace(step)), checked=checked)
