"""What looking closer at rows needs of the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from odf_engine.workspace.column_lineage import ColumnGraph
    from odf_tui.looks import Known
    from odf_tui.source import RowWindow
    from odf_tui.timeline import Timeline


class LookSource(Protocol):
    """Reads for statistics, the current state by key, and exports. All of them may block."""

    def described(self, dataset: str, file: str | None) -> Known:
        """What is known of the columns of a dataset, or of a Parquet file with rows of it."""
        ...

    def primary_key(self, dataset: str) -> list[str]:
        """The columns that tell a dataset's rows apart; empty when nothing says so."""
        ...

    def file_rows(self, dataset: str, file: str) -> RowWindow:
        """The rows of a Parquet file that was made of a dataset's."""
        ...

    def spool(self, window: RowWindow) -> str:
        """Writes the rows of a window to a file, from where the worker can take them."""
        ...

    def unspool(self, file: str) -> None:
        """Removes that file; does nothing to any other."""
        ...

    def timeline(self, dataset: str) -> Timeline:
        """The blocks of a dataset that brought rows, for going back in time."""
        ...

    def column_graph(self, dataset: str) -> ColumnGraph:
        """The columns of a dataset, of all that it is made of, and of all that is made of it."""
        ...
