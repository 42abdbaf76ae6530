"""Verification jobs."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import asdict

from odf_engine.coordinator.protocol import Verify
from odf_engine.coordinator.results import Finding, VerifyResult
from odf_engine.data.finding_kinds import NOT_RECOMPUTED, ROWS_DIFFER
from odf_engine.errors import NotFound, SourceUnavailable, Unsupported
from odf_engine.progress import Reporter

if TYPE_CHECKING:
    from odf_engine.coordinator.job_queue import JobContext
    from odf_engine.verify.report import Report
    from odf_engine.workspace.dataset_summary import DatasetEntry


def verify(request: Verify, context: JobContext, reporter: Reporter) -> VerifyResult:
    """Verify a dataset, and replay or recompute its rows.

    Raises:
        OdfError: the dataset is missing, or the range of blocks is empty.
        Cancelled: the job was cancelled.
    """
    # Deferred in all handlers: PySpark and Arrow are slow to import, and jobs of other kinds need neither.
    from odf_engine.chain.block_search import is_derivative
    from odf_engine.verify.integrity import verify as verify_chain
    from odf_engine.verify.report import dataset_origins
    from odf_engine.workspace.engine_versions import other_versions

    workspace = context.workspace
    entry = workspace.resolve(request.dataset).on_branch(request.branch)
    derivative = is_derivative(entry.dataset)
    with ExitStack() as stack:
        replay = None
        if not (request.integrity or request.recompute) and derivative:
            from odf_engine.transform.engines.engine_router import engines_for
            from odf_engine.verify.replay import Replay

            start = partial(context.host.spark, reporter)
            engine = stack.enter_context(engines_for(workspace, entry, start))
            replay = Replay(workspace, entry, engine, reporter)
        known = None if request.rows else workspace.index
        report = verify_chain(entry.dataset, reporter, request.first, request.last, replay, known)
    origins = dataset_origins(workspace, entry, request.last)
    head = None
    if report.valid and request.first is None and request.last is None:
        state = entry.dataset.state()
        head = state.head if state.blocks == report.blocks else None  # unless blocks were appended
    fields = {
        "name": str(entry.alias),
        "head": None if head is None else str(head),
        **asdict(report),
        "origins": origins,
    }
    if request.branch:
        fields["branch"] = request.branch
    if request.recompute and derivative:
        fields |= _recompute(entry, report, context, reporter)
    elif derivative and (versions := other_versions(entry.dataset, workspace.config.engines)):
        fields["written_by"] = versions
    return msgspec.convert(fields, VerifyResult, from_attributes=True)


def _recompute(
    entry: DatasetEntry, report: Report, context: JobContext, reporter: Reporter
) -> dict[str, object]:
    """Compare a dataset with its query over the latest state; return the fields of the result that change."""
    from odf_engine.transform.engines.engine_router import engines_for
    from odf_engine.transform.plan import Diverged
    from odf_engine.verify.recompute import recompute_dataset

    workspace = context.workspace
    start = partial(context.host.spark, reporter)
    try:
        with engines_for(workspace, entry, start) as engine:
            found = recompute_dataset(workspace, entry, engine, context.session(reporter), reporter)
    except (Diverged, NotFound, SourceUnavailable, Unsupported) as error:
        reporter.log(f"not recomputed: {error}")
        return {"unchecked": [*report.unchecked, Finding(NOT_RECOMPUTED, "", str(error))]}
    if found.is_equal:
        return {"recomputed": found}
    reporter.log(found.text)
    finding = Finding(ROWS_DIFFER, found.block, found.text)
    return {"recomputed": found, "valid": False, "head": None, "findings": [*report.findings, finding]}
