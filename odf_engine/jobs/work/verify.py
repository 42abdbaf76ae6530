"""Verifies a dataset, see :class:`odf_engine.jobs.verify.Verify`."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Any

from msgspec.structs import asdict

from odf_engine.base.progress import Reporter
from odf_engine.chain.block_search import is_derivative
from odf_engine.errors import NotFound, SourceUnavailable, Unsupported
from odf_engine.jobs.base import JobContext
from odf_engine.jobs.verify import Verify, VerifyResult
from odf_engine.transform.engines.engine_router import engines_for
from odf_engine.transform.plan import Diverged
from odf_engine.verify.finding_kinds import NOT_RECOMPUTED, ROWS_DIFFER
from odf_engine.verify.integrity import verify as verify_chain
from odf_engine.verify.model import IntegrityFinding, IntegrityReport
from odf_engine.verify.replay import Replay
from odf_engine.verify.report import dataset_origins
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.engine_versions import other_versions


def run_verify(request: Verify, context: JobContext, reporter: Reporter) -> VerifyResult:
    """Run the job, see :meth:`odf_engine.jobs.base.JobRequest.run`."""
    workspace = context.workspace
    entry = workspace.resolve(request.dataset).on_branch(request.branch)
    derivative = is_derivative(entry.dataset)
    with ExitStack() as stack:
        replay = None
        if not (request.integrity or request.recompute) and derivative:
            start = partial(context.host.spark, reporter)
            engine = stack.enter_context(engines_for(workspace, entry, start))
            replay = Replay(workspace, entry, engine, reporter)
        known = None if request.rows else workspace.index
        report = verify_chain(entry.dataset, reporter, request.first, request.last, replay, known)
    head = None
    if report.valid and request.first is None and request.last is None:
        state = entry.dataset.state()
        head = state.head if state.blocks == report.blocks else None  # unless blocks were appended
    fields: dict[str, Any] = {
        "name": str(entry.alias),
        "head": None if head is None else str(head),
        **asdict(report),
        "origins": dataset_origins(workspace, entry, request.last),
    }
    if request.branch:
        fields["branch"] = request.branch
    if request.recompute and derivative:
        fields |= _recompute(entry, report, context, reporter)
    elif derivative and (versions := other_versions(entry.dataset, workspace.config.engines)):
        fields["written_by"] = versions
    return VerifyResult(**fields)


def _recompute(
    entry: DatasetEntry, report: IntegrityReport, context: JobContext, reporter: Reporter
) -> dict[str, Any]:
    """Compare a dataset with its query over the latest state; return the fields of the result that change."""
    from odf_engine.verify.recompute import recompute_dataset  # deferred: it imports PySpark

    workspace = context.workspace
    start = partial(context.host.spark, reporter)
    try:
        with engines_for(workspace, entry, start) as engine:
            recomputed = recompute_dataset(workspace, entry, engine, context.session(reporter), reporter)
    except (Diverged, NotFound, SourceUnavailable, Unsupported) as error:
        reporter.log(f"not recomputed: {error}")
        return {"unchecked": [*report.unchecked, IntegrityFinding(NOT_RECOMPUTED, "", str(error))]}
    if recomputed.is_equal:
        return {"recomputed": recomputed}
    reporter.log(recomputed.text)
    finding = IntegrityFinding(ROWS_DIFFER, recomputed.block, recomputed.text)
    return {
        "recomputed": recomputed, "valid": False, "head": None, "findings": [*report.findings, finding],
    }  # fmt: skip
