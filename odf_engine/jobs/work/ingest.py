"""Work of the jobs in :mod:`odf_engine.jobs.ingest`."""

from __future__ import annotations

from pathlib import Path

from odf_engine.base.progress import Reporter
from odf_engine.jobs.base import JobContext
from odf_engine.jobs.ingest import Ingest
from odf_engine.jobs.pull import PullResult
from odf_engine.jobs.work.pull import pull_result
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.storage.scratch import remove_dead_spool
from odf_engine.workspace.definitions.definition import select_push_source
from odf_engine.workspace.remotes import Remotes
from odf_engine.workspace.trust import Trust


def run_ingest(request: Ingest, context: JobContext, reporter: Reporter) -> PullResult:
    """Run the job, see :class:`odf_engine.jobs.ingest.Ingest`."""
    workspace = context.workspace
    entry = workspace.resolve(request.dataset).on_branch(request.branch)
    select_push_source(entry, request.source)  # fails before Spark starts, like the check of trust
    Trust(workspace).require_trust(entry)
    known = Remotes(workspace.odf).get(entry.id)
    for url in known.pull:
        if url not in known.push:
            hint = f"to detach it, run odf repo alias remove {entry.alias}"
            reporter.log(f"blocks appended here diverge from the remote {url} ({hint})", "warning")
    files = [Path(file) for file in request.files]
    try:
        runtime = context.host.spark(reporter)

        from odf_engine.ingest import push_source  # after Spark has started, as for a pull

        options = push_source.PushOptions(
            source=request.source,
            format=request.format,
            event_time=None if request.event_time is None else Timestamp.parse(request.event_time),
            ignore_unknown=request.ignore_unknown,
            strict=request.strict,
            force=request.force,
            idempotency_key=request.idempotency_key,
            attach=[Path(file) for file in request.attach],
        )
        pushed = push_source.push(workspace, entry, runtime, reporter, files, options)
        return pull_result(entry, pushed.update, reporter, pushed.already_ingested)
    finally:
        for file in files:
            remove_dead_spool(workspace.odf, file)
