"""The job that looks whether what proves the answer of a query is right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from odf_engine.coordinator.protocol import CheckProof
from odf_engine.errors import Unsupported
from odf_engine.progress import Reporter

if TYPE_CHECKING:
    from odf_engine.coordinator.operations import Context


def check(request: CheckProof, context: Context, reporter: Reporter) -> dict[str, Any]:
    """Checks a proof; the result is described with the request.

    Raises:
        OdfError: it cannot be read, or a dataset is not here.
    """
    raise Unsupported("answers cannot be checked yet")
