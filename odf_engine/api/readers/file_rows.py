"""Rows of data files that are no dataset, for the screen: windows and statistics."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from odf_engine.api.readers.row_reader import TableDescription
from odf_engine.base.progress import Reporter
from odf_engine.metadata.model import DEFAULT_VOCABULARY
from odf_engine.on_demand import query_results, row_scan, row_statistics

if TYPE_CHECKING:
    import pyarrow as pa

    from odf_engine.api.readers.row_window import UnreadableRange
    from odf_engine.ingest.read.file_table import FileRows


class FileWindow:
    """A window over the rows of data files.

    Attributes:
        rows: the rows.
        file: the path of the Parquet file that has the rows.
    """

    def __init__(self, rows: FileRows) -> None:
        self.rows = rows
        self.file = str(rows.path)
        self._result = query_results.ResultRows(rows.path)
        self.columns: pa.Schema = self._result.columns
        self.row_count = self._result.row_count
        self.window = self._result.window
        vocabulary = DEFAULT_VOCABULARY
        self.system_columns = (
            vocabulary.offset_column,
            vocabulary.operation_type_column,
            vocabulary.system_time_column,
            vocabulary.event_time_column,
        )

    def part(
        self, start: int, count: int, columns: Sequence[int]
    ) -> tuple[pa.Table, Sequence[UnreadableRange]]:
        """Return some columns of rows."""
        return self._result.window(start, count, [self.columns.names[column] for column in columns]), ()


def describe_rows(rows: FileRows, folder: Path, reporter: Reporter) -> TableDescription:
    """Compute the statistics of rows in one pass.

    Args:
        rows: the rows.
        folder: the folder for the cache.
        reporter: can cancel.

    Raises:
        BadData: the rows cannot be read.
        Cancelled: the reporter was cancelled.
    """
    statistics = row_statistics.compute_statistics(folder, row_scan.Scan.of_file(rows.path), reporter)
    types = {column.name: column.type for column in rows.columns}
    return TableDescription(statistics, whole=True, types=types)
