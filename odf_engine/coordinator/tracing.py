"""The job that finds out where rows come from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from odf_engine.coordinator.protocol import Trace
from odf_engine.errors import Unsupported
from odf_engine.progress import Reporter

if TYPE_CHECKING:
    from odf_engine.coordinator.operations import Context


def trace(request: Trace, context: Context, reporter: Reporter) -> dict[str, Any]:
    """Finds out where rows come from; the result is described with the request.

    Raises:
        OdfError: there are no such rows, or they cannot be read.
    """
    raise Unsupported("rows cannot be traced yet")
