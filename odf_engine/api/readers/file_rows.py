"""Rows of data files that are no dataset, for the screen: windows and statistics."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from odf_engine.api.readers.row_reader import ResultWindow, TableDescription
from odf_engine.base.progress import Reporter
from odf_engine.metadata.model import DEFAULT_VOCABULARY
from odf_engine.on_demand import query_results, row_scan, row_statistics

if TYPE_CHECKING:
    from odf_engine.ingest.read.file_table import FileRows


class FileWindow(ResultWindow):
    """A window over the rows of data files.

    Attributes:
        rows: the rows.
    """

    def __init__(self, rows: FileRows) -> None:
        super().__init__(query_results.ResultRows(rows.path), str(rows.path), DEFAULT_VOCABULARY)
        self.rows = rows


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
