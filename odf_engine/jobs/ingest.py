"""Ingest: push the rows of files into a push source."""

from __future__ import annotations

from typing import Final

from odf_engine.jobs.base import JobRequest, JobSummary, OnWarning
from odf_engine.jobs.pull import PullResult

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

    @classmethod
    def summarize(cls, result: PullResult) -> JobSummary:
        return result.summary
