"""Work of the jobs in :mod:`odf_engine.jobs.pull`."""

from __future__ import annotations

from functools import partial
from typing import Final

import msgspec
from msgspec import UNSET

from odf_engine.base.progress import Reporter
from odf_engine.chain.dataset import Dataset
from odf_engine.chain.state import ChainUpdate
from odf_engine.data.operation_counts import count_operations
from odf_engine.errors import OdfError, UsageError
from odf_engine.jobs.base import JobContext, text_or_none
from odf_engine.jobs.pull import ChangeCounts, Pull, PullResult
from odf_engine.metadata.model import DatasetKind
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.net.urls import normalize_url
from odf_engine.storage.refs import HEAD
from odf_engine.sync.recorded_sync import RemotePull, pull_from_remote, warn_about_static
from odf_engine.transform.engines.engine_router import engines_for
from odf_engine.transform.rebuild import rebuild_slices
from odf_engine.transform.run import rederive, transform, transform_or_reset
from odf_engine.workspace.dataset_folders import count_late, count_rejected
from odf_engine.workspace.dataset_summary import DatasetEntry, find_waiting
from odf_engine.workspace.remotes import Remotes
from odf_engine.workspace.trust import Trust
from odf_engine.workspace.workspace import Workspace

_DERIVATIVE_WATERMARK: Final = "the watermark of a derivative dataset is the minimum of its inputs"


def run_pull(request: Pull, context: JobContext, reporter: Reporter) -> PullResult:
    """Run the job, see :class:`odf_engine.jobs.pull.Pull`."""
    return _Pull(request, context, reporter).run()


class _Pull:
    """A running pull."""

    def __init__(self, request: Pull, context: JobContext, reporter: Reporter) -> None:
        self._request = request
        self._context = context
        self._workspace = context.workspace
        self._reporter = reporter

    def run(self) -> PullResult:
        request = self._request
        if request.url is not None and request.url == request.dataset:  # a new dataset, perhaps
            return self._synchronize(None, request.url)
        entry = self._workspace.resolve(request.dataset)
        if (url := request.url or _pull_remote(self._workspace, entry)) is not None:
            if request.rederive:
                raise UsageError(
                    f"{entry.alias} is pulled from a remote: only its author can derive it again",
                    hint=f"compare it with its query: odf verify --recompute {entry.alias}",
                )
            return self._synchronize(entry, url)
        if request.remote_branch:
            raise UsageError(f"{entry.alias} has no remote with branches", hint="select one: --from REPO|URL")
        entry = entry.on_branch(request.branch)
        if request.set_watermark is None:
            # Checked again by the pull; here it fails before Spark starts.
            Trust(self._workspace).require_trust(entry)
        if entry.dataset.state().kind is DatasetKind.Derivative:
            return self._transform(entry)
        if request.rederive:
            raise UsageError(
                f"{entry.alias} is a root dataset: only derivative datasets can be derived again"
            )
        return self._poll(entry)

    def _poll(self, entry: DatasetEntry) -> PullResult:
        request, runtime = self._request, self._context.host.spark(self._reporter)
        from odf_engine.ingest import polling_source  # after Spark has started, see warm_up

        set_watermark = request.set_watermark
        options = polling_source.PullOptions(
            fetch_uncacheable=request.fetch_uncacheable,
            set_watermark=None if set_watermark is None else Timestamp.parse(set_watermark),
            force=request.force,
            strict=request.strict,
            environment=self._context.environment,
        )
        update = polling_source.pull(self._workspace, entry, runtime, self._reporter, options)
        return pull_result(entry, update, self._reporter)

    def _transform(self, entry: DatasetEntry) -> PullResult:
        request, workspace, reporter = self._request, self._workspace, self._reporter
        if request.set_watermark is not None:
            text = f"watermark {request.set_watermark} is ignored: {_DERIVATIVE_WATERMARK}"
            reporter.warn(text, "ignored-option")
        warn_about_static(workspace, entry, _DERIVATIVE_WATERMARK, reporter)
        run = transform_or_reset if request.reset_on_divergence else transform
        run = rederive if request.rederive else run
        with engines_for(workspace, entry, partial(self._context.host.spark, reporter)) as engine:
            if request.force or request.rebuild:
                rebuild_slices(workspace, entry, engine, reporter)
            if request.rebuild:
                state = entry.dataset.state()
                return pull_result(entry, ChainUpdate.from_states(state, state), reporter)
            session = partial(self._context.session, reporter)
            result = pull_result(entry, run(workspace, entry, engine, reporter, session), reporter)
        if entry.dataset.reference != HEAD:
            return result
        summaries = {summary.id: summary for summary in workspace.summaries()}
        waiting = find_waiting(summaries[entry.id], summaries)
        if waiting is None:
            return result
        reporter.log(waiting.text)
        return msgspec.structs.replace(result, waiting=waiting)

    def _synchronize(self, entry: DatasetEntry | None, url: str) -> PullResult:
        request, url = self._request, normalize_url(url)
        if request.set_watermark is not None:
            raise UsageError(
                f"the watermark cannot be set: the dataset is pulled from {url}",
                hint=f"run odf pull --from {url}",
            )
        pull = RemotePull(url, request.alias, request.branch, request.remote_branch, request.force)
        entry, pulled = pull_from_remote(self._workspace, entry, pull, self._reporter)
        appended = 0 if pulled.new_head == pulled.old_head else pulled.blocks  # else blocks were restored
        return PullResult(
            name=str(entry.alias),
            status=pulled.status,
            old_head=text_or_none(pulled.old_head),
            new_head=text_or_none(pulled.new_head),
            blocks=pulled.blocks,
            records=pulled.records,
            url=url,
            label=Remotes(self._workspace.odf).display_name(url),
            bytes=pulled.bytes,
            ahead=pulled.relation.ours,
            branch=request.branch or UNSET,
            **count_changes(entry.dataset, appended, self._reporter),
        )


def _pull_remote(workspace: Workspace, entry: DatasetEntry) -> str | None:
    """Return the pull remote of a dataset, or None if it has none.

    Raises:
        UsageError: it has several pull remotes.
    """
    known = Remotes(workspace.odf).get(entry.id).pull
    if len(known) > 1:
        urls = ", ".join(known)
        raise UsageError(f"{entry.alias} has several pull remotes: {urls}", hint="select one: --from URL")
    return known[0] if known else None


def pull_result(
    entry: DatasetEntry, update: ChainUpdate, reporter: Reporter, already_ingested: int = 0
) -> PullResult:
    """Return the result of a job that appended blocks to a dataset."""
    return PullResult(
        name=str(entry.alias),
        status=update.status,
        old_head=text_or_none(update.old_head),
        new_head=text_or_none(update.new_head),
        blocks=update.blocks,
        records=update.records,
        already_ingested=already_ingested or UNSET,
        repeated=update.repeated or UNSET,
        late=count_late(entry.dataset, update.blocks) or UNSET,
        rejected=count_rejected(entry.dataset, update.blocks) or UNSET,
        branch=UNSET if entry.dataset.reference == HEAD else entry.dataset.reference,
        **count_changes(entry.dataset, update.blocks, reporter),
    )


def count_changes(dataset: Dataset, blocks: int, reporter: Reporter) -> ChangeCounts:
    """Return the numbers of rows of the newest blocks by operation: the fields of a result that are not 0.

    The blocks are committed: if a slice cannot be read, a warning is logged and the result is empty.
    """
    if blocks <= 0:
        return {}
    state = dataset.state()
    first = state.sequence_number - blocks + 1
    try:
        paths = [dataset.slice_path(row) for row in dataset.slices() if row.sequence_number >= first]
        counts = count_operations(paths, state.vocabulary.operation_type_column)
    except OdfError as error:
        reporter.log(f"retractions and corrections are not counted: {error}", "warning")
        return {}
    changes = ChangeCounts()
    if counts.added:
        changes["added"] = counts.added
    if counts.retracted:
        changes["retracted"] = counts.retracted
    if counts.corrected:
        changes["corrected"] = counts.corrected
    return changes
