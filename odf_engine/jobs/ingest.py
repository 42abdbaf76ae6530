"""Ingest: push the rows of files into a push source."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from odf_engine.base.progress import Reporter
from odf_engine.jobs.base import JobContext, JobRequest, JobSummary, OnWarning
from odf_engine.jobs.pull import PullResult, pull_result
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.on_demand import definitions, engine_router, push_source, remotes, scratch, trust

INGEST_FORMATS: Final = ("csv", "json", "ndjson", "geojson", "ndgeojson", "parquet", "esrishapefile")
"""The values of ``format`` of :class:`Ingest`."""


class Ingest(JobRequest[PullResult], frozen=True, tag="ingest"):
    """Push the rows of files into a push source.

    Attributes:
        dataset: id of the dataset.
        files: absolute paths, read in this order.
        source: name of the push source; not needed where the dataset has only one.
        format: format of the files; by default the format of the source, or of the file's name.
        event_time: event time of rows without one (RFC 3339).
        ignore_unknown: ignore columns that the schema does not have.
        strict: fail on rows which a ledger has with other values.
        force: ingest files that have not changed since the source ingested them.
        idempotency_key: identifies the push of the only file: another push with this key is skipped.
        attach: absolute paths of files, or folders of files, to store as linked objects.
        branch: the branch that receives the rows, or "" for the head.
        on_warning: as for :class:`odf_engine.jobs.pull.Pull`.
    """

    dataset: str
    files: list[str]
    source: str | None = None
    format: str | None = None
    event_time: str | None = None
    ignore_unknown: bool = False
    strict: bool = False
    force: bool = False
    idempotency_key: str | None = None
    attach: list[str] = []
    branch: str = ""
    on_warning: OnWarning = "continue"

    def run(self, context: JobContext, reporter: Reporter) -> PullResult:
        workspace = context.workspace
        entry = workspace.resolve(self.dataset).on_branch(self.branch, moves=True)
        # These two fail before Spark starts.
        definitions.select_push_source(entry, self.source)
        trust.Trust(workspace).require_trust(entry)
        known = remotes.Remotes(workspace.odf).get(entry.id)
        for url in known.pull:
            if url not in known.push:
                hint = f"to detach it, run odf repo alias remove {entry.alias}"
                reporter.log(f"blocks appended here diverge from the remote {url} ({hint})", "warning")
        files = [Path(file) for file in self.files]
        try:
            runtime = context.host.spark(reporter)
            with engine_router.engines_for(workspace, entry, lambda: runtime) as engines:
                options = push_source.PushOptions(
                    source=self.source,
                    format=self.format,
                    event_time=None if self.event_time is None else Timestamp.parse(self.event_time),
                    ignore_unknown=self.ignore_unknown,
                    strict=self.strict,
                    force=self.force,
                    idempotency_key=self.idempotency_key,
                    attach=[Path(file) for file in self.attach],
                    find_engine=engines.find_external,
                )
                pushed = push_source.push(workspace, entry, runtime, reporter, files, options)
            return pull_result(entry, pushed.update, reporter, pushed.already_ingested)
        finally:
            for file in files:
                scratch.remove_dead_spool(workspace.odf, file)

    @classmethod
    def summarize(cls, result: PullResult) -> JobSummary:
        return result.summary
