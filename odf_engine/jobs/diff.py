"""Diff: compare two versions of a dataset, or two datasets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from odf_engine.base.progress import Reporter
from odf_engine.jobs.base import JobContext, JobRequest, JobSummary, release_arrow_memory
from odf_engine.on_demand import diff, row_diff

if TYPE_CHECKING:
    from odf_engine.rows.diff import Difference


class Diff(JobRequest["Difference"], frozen=True, tag="diff"):
    """Compare two versions of a dataset, or two datasets; nothing is changed.

    Attributes:
        dataset: id of the older side.
        other: id of the newer side, or "" for the same dataset.
        as_at, other_as_at: a system time or a block of either side.
        key: the columns that identify a row; by default the key of the datasets.
    """

    read_only = True
    has_screen = True
    is_silent = True

    dataset: str
    other: str = ""
    as_at: str | None = None
    other_as_at: str | None = None
    key: list[str] = []

    @property
    def needs_spark(self) -> bool:
        return False

    @classmethod
    def result_type(cls) -> type[Difference]:
        return diff.Difference

    def run(self, context: JobContext, reporter: Reporter) -> Difference:
        with release_arrow_memory():
            return row_diff.diff_datasets(
                context.workspace,
                self.dataset,
                self.other,
                as_at=self.as_at,
                other_as_at=self.other_as_at,
                key=self.key,
                reporter=reporter,
            )

    @classmethod
    def summarize(cls, result: Difference) -> JobSummary:
        return JobSummary(f"{result.added:,} added, {result.removed:,} removed, {result.changed:,} changed")
