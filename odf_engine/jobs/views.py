"""Compute views of a dataset in the cache: statistics of its columns, and its latest state by key."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from odf_engine.base.progress import Reporter, count_of
from odf_engine.errors import UsageError
from odf_engine.jobs.base import JobContext, JobRequest, JobSummary, release_arrow_memory
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.on_demand import as_at, projection, row_scan, row_statistics
from odf_engine.rows import PinnedVersion

if TYPE_CHECKING:
    from odf_engine.rows.scan import Scan
    from odf_engine.workspace.workspace import Workspace


class StatisticsResult(msgspec.Struct, frozen=True):
    """Result of a computation of statistics: alias of the dataset, number of rows."""

    name: str = ""
    rows: int = 0


class ComputeStatistics(JobRequest[StatisticsResult], frozen=True, tag="describe"):
    """Compute statistics of all columns and store them in the workspace's cache.

    The rows come from the dataset, or from ``file``: a Parquet file of a projection or a query result.
    ``dataset`` is empty if that file is of no dataset.
    """

    read_only = True
    has_screen = True
    is_silent = True

    dataset: str
    file: str | None = None

    @property
    def needs_spark(self) -> bool:
        return False

    def run(self, context: JobContext, reporter: Reporter) -> StatisticsResult:
        rows, name = open_rows(context.workspace, self.dataset, self.file)
        with release_arrow_memory():
            computed = row_statistics.compute_statistics(context.workspace.odf, rows, reporter)
        return StatisticsResult(name, computed.rows)

    @classmethod
    def summarize(cls, result: StatisticsResult) -> JobSummary:
        return JobSummary(f"{count_of(result.rows, 'row')} profiled")


class ProjectionResult(msgspec.Struct, frozen=True):
    """Result of a projection.

    Attributes:
        name: alias of the dataset.
        key: the columns of the key.
        rows: number of rows of the projection.
        of: number of rows of the changelog.
        file: absolute path of the Parquet file.
        pin: the block which it was built from.
    """

    name: str = ""
    key: list[str] = []
    rows: int = 0
    of: int = 0
    file: str = ""
    pin: PinnedVersion | None = None


class BuildProjection(JobRequest[ProjectionResult], frozen=True, tag="project"):
    """Build the latest state of a changelog by key: a Parquet file in the workspace's cache.

    Attributes:
        dataset: id of the dataset.
        key: by default the primary key of the merge strategy, or the columns that the query groups by.
        as_at: a system time or a block, see :func:`odf_engine.rows.as_at.resolve_as_at`. Only the rows up
            to it are used.
        as_of: an event time (RFC 3339). Only the events up to it are used.
    """

    read_only = True
    has_screen = True
    is_silent = True

    dataset: str
    key: list[str] = []
    as_at: str | None = None
    as_of: str | None = None

    @property
    def needs_spark(self) -> bool:
        return False

    def run(self, context: JobContext, reporter: Reporter) -> ProjectionResult:
        workspace = context.workspace
        entry = workspace.resolve(self.dataset)
        as_of = None if self.as_of is None else _parse_time(self.as_of)
        pin = as_at.resolve_as_at(entry, self.as_at)
        dataset = as_at.at_version(entry, pin).dataset
        with release_arrow_memory():
            built = projection.build_projection(
                workspace.odf, dataset, self.key, reporter, last_offset=pin.scan_offset, as_of=as_of
            )
        return ProjectionResult(
            name=str(entry.alias),
            key=built.key,
            rows=built.rows,
            of=built.of,
            file=str(built.file),
            pin=pin,
        )

    @classmethod
    def summarize(cls, result: ProjectionResult) -> JobSummary:
        return JobSummary(f"{count_of(result.rows, 'row')} of {result.of:,}")


def _parse_time(text: str) -> Timestamp:
    try:
        return Timestamp.parse(text)
    except ValueError as error:
        raise UsageError(str(error)) from None


def open_rows(workspace: Workspace, dataset: str, file: str | None) -> tuple[Scan, str]:
    """Return the rows of a file or a dataset, and the alias of the dataset, or "" without one."""
    if not dataset:
        if file is None:
            raise UsageError("missing dataset or file")
        return row_scan.Scan.of_file(Path(file)), ""
    entry = workspace.resolve(dataset)
    if file is None:
        return row_scan.Scan.of_dataset(entry.dataset), str(entry.alias)
    return row_scan.Scan.of_file(Path(file), entry.dataset.state().vocabulary), str(entry.alias)
