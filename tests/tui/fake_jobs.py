"""FakeLogs, logs and requests of jobs in memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from odf_engine.api.model import LogPage, WrittenBlock
from odf_engine.api.readers.job_log import (
    format_log_line,
    log_file_footer,
    log_file_header,
    log_search_text,
    merge_log_entries,
)
from odf_engine.errors import OdfError
from odf_engine.jobs.pull import Pull
from odf_engine.worker.protocol import Job, JournalEvent, Request


class FakeLogs:
    """Logs of jobs.

    Attributes:
        pages: the arguments ``after`` and ``before`` of each page that was read.
        blocks_of: blocks that jobs wrote, by id of the job.
        requests: requests by id of the job.
        stopped: how often the worker was stopped.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pages: list[tuple[int | None, int | None]] = []
        self.blocks_of: dict[str, list[WrittenBlock]] = {}
        self.requests: dict[str, Request] = {}
        self.stopped = 0

    def log(self, job: str) -> Sequence[JournalEvent]:
        """Return the journal of a job."""
        raise NotImplementedError

    def log_page(
        self, job: str, *, after: int | None = None, before: int | None = None, limit: int = 2000
    ) -> LogPage:
        """Return a page of the journal, and record the arguments."""
        self.pages.append((after, before))
        events = list(self.log(job))
        if after is not None:
            found = [event for event in events if event.seq > after]
            return LogPage(found[:limit], after > 0, len(found) > limit)
        found = [event for event in events if before is None or event.seq < before]
        return LogPage(found[-limit:], len(found) > limit, before is not None)

    def find_in_log(self, job: str, text: str, start: int, *, back: bool) -> int | None:
        """Return the number of the next line with a text."""
        lines = merge_log_entries(self.log(job))
        found = [line.seq for line in lines if text.lower() in log_search_text(line)]
        if back:
            return max((seq for seq in found if seq < start), default=None)
        return min((seq for seq in found if seq > start), default=None)

    def save_log(self, job: Job, path: Path, *, replace: bool) -> int:
        """Write the log to a file."""
        lines = [format_log_line(line) for line in merge_log_entries(self.log(job.id))]
        with path.open("w" if replace else "x", encoding="utf-8") as file:
            file.write("\n".join([*log_file_header(job), *lines, *log_file_footer(job)]) + "\n")
        return len(lines)

    def blocks_of_job(self, job: str) -> list[WrittenBlock]:
        """Return the prepared blocks."""
        return self.blocks_of.get(job, [])

    def request_of_job(self, job: Job) -> Request:
        """Return the prepared request, else a pull. The files of pushed data are missing."""
        if job.kind == "ingest":
            raise OdfError("input file not found: stdin", hint="ingest the data again")
        return self.requests.get(job.id) or Pull(dataset=job.dataset)

    async def stop_worker(self) -> None:
        """Count the call."""
        self.stopped += 1
