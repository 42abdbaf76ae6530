"""Preprocess queries of external engines: the engine contract that ingestion requires."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from odf_engine.base.progress import Reporter
from odf_engine.metadata.model import RawQueryRequest
from odf_engine.workspace.definitions.query_check import check_engine


@dataclass(frozen=True)
class RawQueryResult:
    """The result of a query over files. A result without rows may have no file.

    Attributes:
        rows: number of rows.
        version: version of the engine as it reports it, or None if it reports none.
    """

    rows: int
    version: str | None = None


class RawQueryEngine(Protocol):
    """An engine outside of this process that runs queries over files."""

    def run_raw_query(self, request: RawQueryRequest, reporter: Reporter) -> RawQueryResult:
        """Run a query over files (specification: Execute Raw Query).

        Args:
            request: the query, the input files, and the path of the result.
            reporter: receives amounts; checked for cancellation.

        Raises:
            InvalidQuery: the query is invalid.
            BadData: a value cannot be computed, or the result violates the contract.
            SourceUnavailable: the engine is unreachable, or ended the connection.
            Cancelled: the job was cancelled.
        """
        ...


FindEngine = Callable[[str], RawQueryEngine | None]
"""Returns the external engine with a name, or None if a built-in engine has it.

Raises InvalidQuery if there is no such engine.
"""


def find_built_in_engine(name: str) -> None:
    """Check that a built-in engine has this name: the :data:`FindEngine` without external engines."""
    check_engine(name, (), where="preprocess")
