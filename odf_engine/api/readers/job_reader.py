"""Reads jobs, their logs and requests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from odf_engine.api.model import LOG_LINES, LOG_PAGE, LogPage, WrittenBlock
from odf_engine.api.readers.dataset_reader import WorkspaceEntries
from odf_engine.api.readers.job_log import (
    format_log_line,
    log_file_footer,
    log_file_header,
    log_search_text,
    merge_log_entries,
)
from odf_engine.errors import OdfError
from odf_engine.jobs.ingest import Ingest
from odf_engine.jobs.pull import CRATE_HINT, Pull
from odf_engine.worker.client import Client
from odf_engine.worker.endpoint import WorkerEndpoint
from odf_engine.worker.job_log import JobLogReader, read_journal
from odf_engine.worker.protocol import Job, JobState, JournalEvent, Request
from odf_engine.worker.service import WorkerService, find_service

JOBS: Final = 200
_MAX_BLOCKS: Final = 200
_PATIENCE: Final = 4.0
"""Seconds until a worker that does not reply is reported."""


class JobReader(WorkspaceEntries):
    """Reads jobs, their logs and requests; connects to the worker."""

    @property
    def journal(self) -> JobLogReader:
        """The jobs of the workspace, and their logs."""
        return read_journal(self._workspace.folder)

    def worker_pid(self) -> int | None:
        """Return the process id of the worker, or None if it is not running."""
        return WorkerEndpoint(self._workspace.folder).worker_pid()

    def jobs(self) -> tuple[list[Job], int]:
        """Return the recent jobs, and the last journal number that was read."""
        journal = self.journal
        last = journal.last_seq()  # read before the jobs: events in between are repeated, not lost
        return journal.jobs(JOBS), last

    def log(self, job: str) -> Sequence[JournalEvent]:
        """Return the last events of a job."""
        return self.journal.tail(LOG_LINES, job=job)

    def log_page(
        self, job: str, *, after: int | None = None, before: int | None = None, limit: int = LOG_PAGE
    ) -> LogPage:
        """Return a page of events of a job: after a journal number, before one, or the last ones."""
        journal = self.journal
        if after is not None:
            events = journal.events(after, job=job, limit=limit + 1)
            return LogPage(events[:limit], after > 0, len(events) > limit)
        events = journal.tail(limit + 1, job=job, before=before)
        return LogPage(events[-limit:], len(events) > limit, before is not None)

    def find_in_log(self, job: str, text: str, start: int, *, back: bool) -> int | None:
        """Return the journal number of the next line with a text; ``back`` searches backwards."""
        journal, needle = self.journal, text.lower()
        while True:
            if back:
                page = journal.tail(LOG_PAGE, job=job, before=start)[::-1]
            else:
                page = journal.events(start, job=job, limit=LOG_PAGE)
            if not page:
                return None
            for line in merge_log_entries(page):
                if needle in log_search_text(line):
                    return line.seq
            start = page[-1].seq

    def save_log(self, job: Job, path: Path, *, replace: bool) -> int:
        """Write the complete log of a job to a file, and return the number of its lines.

        Raises:
            FileExistsError: the file exists, and ``replace`` is false.
            OSError: the file is not writable.
        """
        lines = 0
        with path.open("w" if replace else "x", encoding="utf-8", errors="replace") as file:
            file.writelines(f"{line}\n" for line in log_file_header(job))
            after, written = 0, []
            while (page := self.log_page(job.id, after=after)).events:
                log_entries = merge_log_entries([*written, *page.events])[len(written) :]
                file.writelines(f"{format_log_line(line)}\n" for line in log_entries)
                lines += len(log_entries)
                after, written = page.events[-1].seq, [*written, *log_entries][-1:]
            file.writelines(f"{line}\n" for line in log_file_footer(job))
        return lines

    def blocks_of_job(self, job: str) -> list[WrittenBlock]:
        """Return the blocks that a job committed and that still exist, newest first."""
        written_blocks: list[WrittenBlock] = []
        for event in self.journal.commits(job, _MAX_BLOCKS):
            try:
                chain = self.entry(event.dataset).dataset
                number = chain.block(chain.find_block(event.block)).block.sequence_number
            except OdfError:
                continue  # reset, replaced or removed since
            written_blocks.append(WrittenBlock(event.dataset, number, event.block, event.event, event.rows))
        return written_blocks

    def request_of_job(self, job: Job) -> Request:
        """Return the request of a job, to submit it again.

        Raises:
            OdfError: it is unknown, or must not be repeated.
        """
        kind = job.request_type
        if kind is not None and kind.has_screen:
            raise OdfError(f"a {job.kind} job cannot be retried: open its screen again")
        if job.state is JobState.done and not (kind is not None and kind.repeatable):
            raise OdfError(f"this {job.kind} is already done")
        request = self.journal.request(job.id)
        if request is None:
            raise OdfError("the request of this job is no longer in the journal")
        if isinstance(request, Ingest):
            for file in request.files:
                if not Path(file).exists():
                    raise OdfError(f"input file not found: {Path(file).name}", hint="ingest the data again")
        if isinstance(request, Pull) and request.crate and not request.crate_path.exists():
            raise OdfError(f"crate not found: {request.crate_path}", hint=CRATE_HINT)
        if job.kind == "update" and any(
            other.kind == "update" and other.dataset == job.dataset and other.state is JobState.done
            for other in self.journal.jobs(JOBS)
            if int(other.id) > int(job.id)
        ):
            raise OdfError("a later change of the dataset would be reverted: press e to edit its definition")
        return request

    def worker_service(self) -> WorkerService:
        """Return the service of the user's session that runs the worker."""
        return find_service(self._workspace.folder)

    async def connect(self, *, start: bool = True) -> Client:
        """Connect to the worker, which starts Spark if the settings ask so.

        Args:
            start: start it if it does not run.
        """
        return await Client.connect(
            self._workspace.folder, start=start, warm=self._starts_spark, patience=_PATIENCE
        )

    @property
    def _starts_spark(self) -> bool:
        try:
            return self._workspace.config.worker.start_spark
        except OdfError:  # the worker reports invalid settings
            return False

    async def stop_worker(self) -> None:
        """Stop the worker, of any version. Its jobs are cancelled.

        Raises:
            OdfError: there is no worker, or it does not stop.
        """
        await (await Client.connect(self._workspace.folder, start=False)).stop()
