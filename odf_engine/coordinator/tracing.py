"""The job that finds out where rows come from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from odf_engine.coordinator.protocol import Trace
from odf_engine.progress import Reporter

if TYPE_CHECKING:
    from odf_engine.coordinator.operations import Context


def trace(request: Trace, context: Context, reporter: Reporter) -> dict[str, Any]:
    """Finds out where rows come from; the result is described with the request.

    Raises:
        OdfError: there are no such rows, or they cannot be read.
    """
    from msgspec import to_builtins

    from odf_engine.provenance.shortened import shortened
    from odf_engine.provenance.trace import Tracer

    workspace = context.workspace
    entry = workspace.resolve(request.dataset)
    tracer = Tracer(workspace, context.host.spark, reporter)
    found = tracer.trace(entry, request.runs, request.column, request.depth)
    result: dict[str, Any] = to_builtins(shortened(found))
    if request.check:
        result["checked"] = tracer.check(entry, found)
    return result
