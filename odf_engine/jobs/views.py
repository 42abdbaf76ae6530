"""Compute views of a dataset in the cache: statistics of its columns, and its latest state by key."""

from __future__ import annotations

import msgspec

from odf_engine.base.progress import count_of
from odf_engine.jobs.base import JobRequest, JobSummary


class PinnedBlock(msgspec.Struct, frozen=True):
    """A dataset as of a block, as :class:`odf_engine.views.as_at.PinnedVersion` describes it."""

    dataset: str = ""
    name: str = ""
    block: str = ""
    sequence_number: int = 0
    system_time: str = ""
    last_offset: int | None = None
    head: bool = False
    in_chain: bool = True


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
    pin: PinnedBlock | None = None


class BuildProjection(JobRequest[ProjectionResult], frozen=True, tag="project"):
    """Build the latest state of a changelog by key: a Parquet file in the workspace's cache.

    Attributes:
        dataset: id of the dataset.
        key: by default the primary key of the merge strategy, or the columns that the query groups by.
        as_at: a system time or a block, see :func:`odf_engine.views.as_at.resolve_as_at`. Only the rows up
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

    @classmethod
    def summarize(cls, result: ProjectionResult) -> JobSummary:
        return JobSummary(f"{count_of(result.rows, 'row')} of {result.of:,}")
