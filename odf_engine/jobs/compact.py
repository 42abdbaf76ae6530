"""Compact: merge small slices of a root dataset in a new chain."""

from __future__ import annotations

from collections.abc import Callable

from odf_engine.base.progress import Reporter, count_of
from odf_engine.errors import NotFound, OdfError
from odf_engine.identity.ownership_proof import create_and_store_proof
from odf_engine.jobs.base import (
    JobContext,
    JobRequest,
    JobResult,
    JobSummary,
    release_arrow_memory,
    text_or_none,
)
from odf_engine.on_demand import compaction


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

    def run(self, context: JobContext, reporter: Reporter) -> CompactResult:
        workspace, key = context.workspace, None
        entry = workspace.resolve(self.dataset)
        compaction.require_compactable(entry.dataset, str(entry.alias))
        configured = workspace.config.compaction
        policy = compaction.CompactionPolicy(
            self.max_rows or configured.max_rows, self.max_bytes or configured.max_bytes
        )
        if self.dry_run:
            outcome = compaction.plan_compaction(entry.dataset, policy, reporter)
        else:
            with release_arrow_memory():
                try:
                    key = workspace.keys.private_key_pem(entry.id)
                except NotFound:
                    pass  # a third party's dataset
                except (OSError, OdfError) as error:
                    reporter.log(f"the compaction is not signed: {error}", "warning")
                version = workspace.config.block_version
                outcome = compaction.compact(
                    entry.dataset, policy, reporter, block_version=version, private_key_pem=key
                )
        changed = outcome.new_head != outcome.old_head
        if changed and outcome.new_head is not None:
            reporter.committed(str(entry.id), str(outcome.new_head), "compaction", 0)
            try:
                if key is not None:
                    create_and_store_proof(
                        entry.dataset.folder, entry.id, key, outcome.new_head, workspace.actor
                    )
            except (OSError, OdfError) as error:
                reporter.log(f"the new head is not signed: {error}", "warning")
        return CompactResult(
            name=str(entry.alias),
            status="unchanged" if not changed else "planned" if self.dry_run else "compacted",
            old_head=text_or_none(outcome.old_head),
            new_head=text_or_none(outcome.new_head),
            old_blocks=outcome.old_blocks,
            new_blocks=outcome.new_blocks,
            old_slices=outcome.old_slices,
            new_slices=outcome.new_slices,
            merged_bytes=outcome.merged_bytes,
            written_bytes=outcome.written_bytes,
            reference=outcome.reference,
        )

    @classmethod
    def summarize(cls, result: CompactResult) -> JobSummary:
        if result.status == "unchanged":
            return JobSummary("no small slices to merge", "muted")
        slices = f"{count_of(result.old_slices, 'slice')} to {result.new_slices:,}"
        return JobSummary(f"{slices}, {count_of(result.old_blocks, 'block')} to {result.new_blocks:,}")

    def command(self, name_of: Callable[[str], str]) -> list[str]:
        return ["compact", name_of(self.dataset), *(["--dry-run"] if self.dry_run else [])]
