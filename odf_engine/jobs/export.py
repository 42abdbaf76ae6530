"""Export: write rows to a file."""

from __future__ import annotations

from pathlib import Path, PurePath
from typing import Literal

import msgspec

from odf_engine.base.progress import Reporter, count_of, size_of
from odf_engine.jobs.base import JobContext, JobRequest, JobSummary, release_arrow_memory
from odf_engine.jobs.views import open_rows
from odf_engine.on_demand import row_export


class ExportResult(msgspec.Struct, frozen=True):
    """Result of an export: alias of the dataset, number of rows, size in bytes and path of the file."""

    name: str = ""
    rows: int = 0
    size: int = 0
    path: str = ""


class Export(JobRequest[ExportResult], frozen=True, tag="export"):
    """Write rows to a file.

    Attributes:
        dataset: id of the dataset, or "" if ``file`` is of no dataset.
        path: absolute path of the file to write.
        format: its format.
        file: a Parquet file with the rows; by default all rows of the dataset are exported.
        ranges: the rows to export, as pairs of a row number from 0 and the number after the last row; by
            default all.
        system: export also the system columns.
        replace: overwrite an existing file.
    """

    read_only = True
    is_silent = True

    dataset: str
    path: str
    format: Literal["csv", "json", "ndjson", "parquet"] = "csv"
    file: str | None = None
    ranges: list[tuple[int, int]] = []
    system: bool = True
    replace: bool = False

    @property
    def needs_spark(self) -> bool:
        return False

    def run(self, context: JobContext, reporter: Reporter) -> ExportResult:
        rows, name = open_rows(context.workspace, self.dataset, self.file)
        with release_arrow_memory():
            written = row_export.export(
                rows,
                Path(self.path),
                self.format,
                reporter,
                ranges=self.ranges,
                system=self.system,
                replace=self.replace,
            )
        reporter.log(f"wrote {written.path}")
        return ExportResult(name, written.rows, written.size, str(written.path))

    @classmethod
    def summarize(cls, result: ExportResult) -> JobSummary:
        file = PurePath(result.path).name
        return JobSummary(f"{count_of(result.rows, 'row')}, {size_of(result.size)} in {file}")
