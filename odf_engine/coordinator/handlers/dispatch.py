"""Maps requests to handlers; pull, ingest, verify."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from odf_engine.coordinator.handlers import dataset_jobs, query_jobs, verify_jobs
from odf_engine.coordinator.handlers.row_counts import count_changes
from odf_engine.coordinator.protocol import (
    BuildProjection,
    Check,
    CheckProof,
    Compact,
    Compare,
    ComputeStatistics,
    Diff,
    Export,
    Ingest,
    Pull,
    Push,
    Query,
    Request,
    Search,
    Trace,
    Update,
    Validate,
    Verify,
)
from odf_engine.coordinator.results import PullResult
from odf_engine.errors import UsageError
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.progress import Reporter
from odf_engine.storage.refs import HEAD
from odf_engine.storage.scratch import remove_dead_spool
from odf_engine.workspace.dataset_folders import list_late_rows, read_rejects
from odf_engine.workspace.dataset_summary import find_waiting

if TYPE_CHECKING:
    from odf_engine.chain.state import ChainUpdate
    from odf_engine.coordinator.job_queue import JobContext
    from odf_engine.workspace.dataset_summary import DatasetEntry

_DERIVATIVE_WATERMARK: Final = "the watermark of a derivative dataset is the minimum of its inputs"


def run_request(request: Request, context: JobContext, reporter: Reporter) -> msgspec.Struct:
    """Run a job and return its result, of the type that the request declares.

    Raises:
        OdfError: the job failed.
        Cancelled: it was cancelled.
    """
    # Deferred, like the other imports in handlers: what a job needs is imported when it first runs.
    from odf_engine.coordinator.handlers import sync_jobs

    match request:
        case Pull():
            return _pull(request, context, reporter)
        case Push():
            return sync_jobs.push(request, context, reporter)
        case Compare():
            return sync_jobs.compare(request, context, reporter)
        case Search():
            return sync_jobs.search(request, context, reporter)
        case Ingest():
            return _ingest(request, context, reporter)
        case Verify():
            return verify_jobs.verify(request, context, reporter)
        case Check():
            return dataset_jobs.check(request, context, reporter)
        case Validate():
            return dataset_jobs.validate(request, context, reporter)
        case Update():
            return dataset_jobs.update(request, context, reporter)
        case Query():
            return query_jobs.query(request, context, reporter)
        case CheckProof():
            return query_jobs.check_proof(request, context, reporter)
        case Trace():
            return dataset_jobs.trace(request, context, reporter)
        case Diff():
            return dataset_jobs.diff(request, context, reporter)
        case ComputeStatistics():
            return dataset_jobs.compute_statistics(request, context, reporter)
        case BuildProjection():
            return dataset_jobs.build_projection(request, context, reporter)
        case Export():
            return dataset_jobs.export(request, context, reporter)
        case Compact():
            return dataset_jobs.compact(request, context, reporter)


def warm_up() -> None:
    """Import the modules of the first pull, after Spark has started.

    Two threads must not import PySpark at the same time.
    """
    import odf_engine.ingest.push_source
    import odf_engine.transform.engines.spark_engine
    import odf_engine.transform.run  # noqa: F401


def _pull(request: Pull, context: JobContext, reporter: Reporter) -> PullResult:
    from odf_engine.coordinator.handlers import sync_jobs
    from odf_engine.metadata.model import DatasetKind
    from odf_engine.workspace.trust import Trust

    workspace = context.workspace
    if request.url is not None and request.url == request.dataset:  # a new dataset, perhaps
        return sync_jobs.pull(workspace, None, request.url, request, reporter)
    entry = workspace.resolve(request.dataset)
    if (url := sync_jobs.pull_url(workspace, entry, request.url)) is not None:
        if request.rederive:
            raise UsageError(
                f"{entry.alias} is pulled from a remote: only its author can derive it again",
                hint=f"compare it with its query: odf verify --recompute {entry.alias}",
            )
        return sync_jobs.pull(workspace, entry, url, request, reporter)
    if request.remote_branch:
        raise UsageError(f"{entry.alias} has no remote with branches", hint="select one: --from REPO|URL")
    entry = entry.on_branch(request.branch)
    if request.set_watermark is None:
        Trust(workspace).require_trust(entry)  # checked again by the pull; here it fails before Spark starts
    if entry.dataset.state().kind is DatasetKind.Derivative:
        return _transform(request, entry, context, reporter)
    if request.rederive:
        raise UsageError(f"{entry.alias} is a root dataset: only derivative datasets can be derived again")
    runtime = context.host.spark(reporter)
    from odf_engine.ingest.polling_source import pull  # after Spark has started, see warm_up

    result = pull(
        workspace,
        entry,
        runtime,
        reporter,
        fetch_uncacheable=request.fetch_uncacheable,
        set_watermark=None if request.set_watermark is None else Timestamp.parse(request.set_watermark),
        force=request.force,
        strict=request.strict,
        environment=context.environment,
    )
    return _pull_result(entry, result, reporter)


def _transform(request: Pull, entry: DatasetEntry, context: JobContext, reporter: Reporter) -> PullResult:
    if request.set_watermark is not None:
        text = f"watermark {request.set_watermark} is ignored: {_DERIVATIVE_WATERMARK}"
        reporter.warn(text, "ignored-option")
    from odf_engine.coordinator.handlers import sync_jobs
    from odf_engine.transform.engines.engine_router import engines_for
    from odf_engine.transform.run import rederive, transform, transform_or_reset

    workspace = context.workspace
    sync_jobs.warn_about_static(workspace, entry, _DERIVATIVE_WATERMARK, reporter)
    run = transform_or_reset if request.reset_on_divergence else transform
    run = rederive if request.rederive else run
    with engines_for(workspace, entry, partial(context.host.spark, reporter)) as engine:
        if request.force or request.rebuild:
            from odf_engine.transform.rebuild import rebuild_slices

            rebuild_slices(workspace, entry, engine, reporter)
        if request.rebuild:
            from odf_engine.chain.state import ChainUpdate

            state = entry.dataset.state()
            return _pull_result(entry, ChainUpdate.from_states(state, state), reporter)
        session = partial(context.session, reporter)
        result = _pull_result(entry, run(workspace, entry, engine, reporter, session), reporter)
    if entry.dataset.reference != HEAD:
        return result
    summaries = {each.id: each for each in workspace.summaries()}
    waiting = find_waiting(summaries[entry.id], summaries)
    if waiting is None:
        return result
    reporter.log(waiting.text)
    return msgspec.structs.replace(result, waiting=waiting)


def _ingest(request: Ingest, context: JobContext, reporter: Reporter) -> PullResult:
    from odf_engine.coordinator.handlers import sync_jobs
    from odf_engine.workspace.definition import select_push_source
    from odf_engine.workspace.trust import Trust

    workspace = context.workspace
    entry = workspace.resolve(request.dataset).on_branch(request.branch)
    select_push_source(entry, request.source)  # fails before Spark starts, like the check of trust
    Trust(workspace).require_trust(entry)
    sync_jobs.warn_about_upstream(workspace, entry, reporter)
    files = [Path(file) for file in request.files]
    try:
        runtime = context.host.spark(reporter)

        from odf_engine.ingest.push_source import push

        result = push(
            workspace,
            entry,
            runtime,
            reporter,
            files=files,
            source=request.source,
            format=request.format,
            event_time=None if request.event_time is None else Timestamp.parse(request.event_time),
            ignore_unknown=request.ignore_unknown,
            strict=request.strict,
            force=request.force,
            idempotency_key=request.idempotency_key,
            attach=[Path(file) for file in request.attach],
        )
        return _pull_result(entry, result.update, reporter, result.already_ingested)
    finally:
        for file in files:
            remove_dead_spool(workspace.odf, file)


def _pull_result(
    entry: DatasetEntry, update: ChainUpdate, reporter: Reporter, already_ingested: int = 0
) -> PullResult:
    return PullResult(
        name=str(entry.alias),
        status=update.status,
        old_head=_text(update.old_head),
        new_head=_text(update.new_head),
        blocks=update.blocks,
        records=update.records,
        already_ingested=already_ingested or msgspec.UNSET,
        repeated=update.repeated or msgspec.UNSET,
        late=_count_late(entry, update.blocks) or msgspec.UNSET,
        rejected=_count_rejected(entry, update.blocks) or msgspec.UNSET,
        branch=_branch_of(entry),
        **count_changes(entry.dataset, update.blocks, reporter),
    )


def _branch_of(entry: DatasetEntry) -> str | msgspec.UnsetType:
    """Return the name of the branch; absent for the head."""
    return msgspec.UNSET if entry.dataset.reference == HEAD else entry.dataset.reference


def _count_late(entry: DatasetEntry, blocks: int) -> int:
    """Return the number of late rows that the newest blocks of a derivative dataset dropped."""
    late = list_late_rows(entry.dataset) if blocks else []
    newest = {str(row.hash) for row in entry.dataset.list_blocks(blocks)} if late else set()
    return sum(each.rows for each in late if each.block in newest)


def _count_rejected(entry: DatasetEntry, blocks: int) -> int:
    """Return the number of rows that were left out of the newest blocks of a dataset."""
    rejects = read_rejects(entry.dataset.folder)
    if not rejects or not blocks:
        return 0
    newest = map(str, (row.hash for row in entry.dataset.list_blocks(blocks)))
    return sum(rejects[block].rows for block in newest if block in rejects)


def remove_staged_files(folder: Path, datasets: Sequence[str]) -> None:
    """Remove the incomplete files that a killed worker left in these datasets (ids).

    No job may run on them.
    """
    if not datasets:
        return
    from odf_engine.workspace.workspace import Workspace

    interrupted = set(datasets)
    for entry in Workspace(folder).datasets():
        if str(entry.id) in interrupted:
            entry.dataset.remove_stale_files(untouched_for=0)


def _text(value: object) -> str | None:
    return None if value is None else str(value)
