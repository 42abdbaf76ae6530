"""Work of the jobs in :mod:`odf_engine.jobs.compact`."""

from __future__ import annotations

from odf_engine.base.progress import Reporter
from odf_engine.chain import compaction
from odf_engine.errors import NotFound, OdfError
from odf_engine.identity.ownership_proof import create_and_store_proof
from odf_engine.jobs.base import JobContext, release_arrow_memory, text_or_none
from odf_engine.jobs.compact import Compact, CompactResult


def run_compact(request: Compact, context: JobContext, reporter: Reporter) -> CompactResult:
    """Run the job, see :class:`odf_engine.jobs.compact.Compact`."""
    workspace, key = context.workspace, None
    entry = workspace.resolve(request.dataset)
    compaction.require_compactable(entry.dataset, str(entry.alias))
    configured = workspace.config.compaction
    policy = compaction.CompactionPolicy(
        request.max_rows or configured.max_rows, request.max_bytes or configured.max_bytes
    )
    if request.dry_run:
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
                create_and_store_proof(entry.dataset.folder, entry.id, key, outcome.new_head)
        except (OSError, OdfError) as error:
            reporter.log(f"the new head is not signed: {error}", "warning")
    return CompactResult(
        name=str(entry.alias),
        status="unchanged" if not changed else "planned" if request.dry_run else "compacted",
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
