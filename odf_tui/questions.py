"""What the editor of queries needs of the engine: part of ``odf_tui.source.Source``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from odf_engine.coordinator.protocol import Job

if TYPE_CHECKING:
    from odf_tui.source import RowWindow


class Questions(Protocol):
    """Everything may block: call it in a thread."""

    def columns(self, dataset: str) -> list[tuple[str, str]]:
        """Names and types of the columns of a dataset; none before it has data."""
        ...

    def result(self, path: str) -> RowWindow:
        """The rows of a result, by its path within the workspace."""
        ...

    def question(self, job: Job) -> str:
        """The query that a job was asked."""
        ...

    def queries(self) -> list[str]:
        """The queries that were asked, the newest last."""
        ...

    def note_query(self, sql: str) -> None:
        """Remembers a query."""
        ...
