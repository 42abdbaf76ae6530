"""Compact: merge small slices of a root dataset in a new chain."""

from __future__ import annotations

from collections.abc import Callable

from odf_engine.base.progress import count_of
from odf_engine.jobs.base import JobRequest, JobResult, JobSummary


class CompactResult(JobResult, frozen=True):
    """Result of a compaction: the output of ``odf compact --json``.

    Attributes:
        name: alias of the dataset.
        status: ``compacted``, ``unchanged``, or ``planned`` for a dry run that would merge slices; ``failed``
            only in the output of the command line.
        old_head, new_head: head before and after the job.
        old_blocks, new_blocks, old_slices, new_slices: numbers in the chain before and after it.
        merged_bytes: size of the slices that were, or would be, merged.
        written_bytes: size of the new slices.
        reference: the reference to the old head.
    """

    name: str = ""
    status: str = ""
    old_head: str | None = None
    new_head: str | None = None
    old_blocks: int = 0
    new_blocks: int = 0
    old_slices: int = 0
    new_slices: int = 0
    merged_bytes: int = 0
    written_bytes: int = 0
    reference: str = ""


class Compact(JobRequest[CompactResult], frozen=True, tag="compact"):
    """Merge adjacent small slices of a root dataset in a new chain.

    Attributes:
        dataset: id of the dataset.
        dry_run: only report what would be merged.
        max_rows, max_bytes: the largest slices to write, or None for the configured ones.
    """

    dataset: str
    dry_run: bool = False
    max_rows: int | None = None
    max_bytes: int | None = None

    @property
    def needs_spark(self) -> bool:
        return False

    @classmethod
    def summarize(cls, result: CompactResult) -> JobSummary:
        if result.status == "unchanged":
            return JobSummary("no small slices to merge", "muted")
        slices = f"{count_of(result.old_slices, 'slice')} to {result.new_slices:,}"
        return JobSummary(f"{slices}, {count_of(result.old_blocks, 'block')} to {result.new_blocks:,}")

    def command(self, name_of: Callable[[str], str]) -> list[str]:
        return ["compact", name_of(self.dataset), *(["--dry-run"] if self.dry_run else [])]
