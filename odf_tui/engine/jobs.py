"""What pane 4 reads: the journal, and the worker."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, cast

from odf_engine.coordinator.client import Client, read_journal
from odf_engine.coordinator.job_log import JobLogReader
from odf_engine.coordinator.protocol import Ingest, Job, JobState, JournalEvent, Request
from odf_engine.errors import OdfError
from odf_tui.engine.base import Entries
from odf_tui.logs import PAGE, LogPage, Written, file_end, file_head, file_line, merged, searched_text
from odf_tui.source import Link

JOBS: Final = 200
_MOST_BLOCKS: Final = 200
_AGAIN: Final = ("pull", "verify", "push", "compare")
"""What makes sense again although it was done."""
_FOR_SCREENS: Final = ("validate", "describe", "project", "sql", "search", "trace", "diff", "check-proof")


class JobReads(Entries):
    """Reads jobs."""

    @property
    def _journal(self) -> JobLogReader:
        return read_journal(self.workspace.folder)

    def jobs(self) -> tuple[list[Job], int]:
        """Recent jobs, and up to where the journal was read."""
        journal = self._journal
        last = journal.last_seq()  # before the jobs: what comes between is told twice, never lost
        return journal.jobs(JOBS), last

    def log(self, job: str) -> Sequence[JournalEvent]:
        """The end of the journal of one job."""
        from odf_tui.state import LOG_LINES

        return self._journal.tail(LOG_LINES, job=job)

    def log_page(
        self, job: str, *, after: int | None = None, before: int | None = None, limit: int = PAGE
    ) -> LogPage:
        """Some events of a job: those after a journal number, those before one, or its last."""
        journal = self._journal
        if after is not None:
            found = journal.events(after, job=job, limit=limit + 1)
            return LogPage(found[:limit], after > 0, len(found) > limit)
        found = journal.tail(limit + 1, job=job, before=before)
        return LogPage(found[-limit:], len(found) > limit, before is not None)

    def find_in_log(self, job: str, text: str, start: int, *, back: bool) -> int | None:
        """The journal number of the next line, after or before another, that has a text in it."""
        journal, wanted = self._journal, text.lower()
        while True:
            if back:
                page = journal.tail(PAGE, job=job, before=start)[::-1]
            else:
                page = journal.events(start, job=job, limit=PAGE)
            if not page:
                return None
            for line in merged(page):
                if wanted in searched_text(line):
                    return line.seq
            start = page[-1].seq

    def save_log(self, job: Job, path: Path, *, replace: bool) -> int:
        """Writes a job's whole log to a file; returns how many lines it has.

        Raises:
            FileExistsError: the file is there, and shall not be replaced.
        """
        lines = 0
        with path.open("w" if replace else "x", encoding="utf-8", errors="replace") as file:
            file.writelines(f"{line}\n" for line in file_head(job))
            after, said = 0, []
            while (page := self.log_page(job.id, after=after)).events:
                found = merged([*said, *page.events])[len(said) :]
                file.writelines(f"{file_line(line)}\n" for line in found)
                lines += len(found)
                after, said = page.events[-1].seq, [*said, *found][-1:]
            file.writelines(f"{line}\n" for line in file_end(job))
        return lines

    def written(self, job: str) -> list[Written]:
        """The blocks that a job wrote and that are in their chains still, newest first."""
        found: list[Written] = []
        for event in self._journal.commits(job, _MOST_BLOCKS):
            try:
                chain = self.entry(event.dataset).dataset
                number = chain.block(chain.find_block(event.block)).block.sequence_number
            except OdfError:
                continue  # reset, replaced or removed since
            found.append(Written(event.dataset, number, event.block, event.event, event.rows))
        return found

    def request(self, job: Job) -> Request:
        """What a job was asked to do, to be asked again.

        Raises:
            OdfError: why that cannot or should not be.
        """
        if job.kind in _FOR_SCREENS:
            raise OdfError(f"what {job.kind} finds is for the screen that asked: open that again")
        if job.state is JobState.done and job.kind not in _AGAIN:
            raise OdfError(f"this {job.kind} is done already")
        request = self._journal.request(job.id)
        if request is None:
            raise OdfError("what this job was asked is not in the journal: it is too old")
        if isinstance(request, Ingest):
            for file in request.files:
                if not Path(file).exists():
                    raise OdfError(f"what it read is gone: {Path(file).name}", hint="push it again")
        if job.kind == "update" and any(
            other.kind == "update" and other.dataset == job.dataset and other.state is JobState.done
            for other in self._journal.jobs(JOBS)
            if int(other.id) > int(job.id)
        ):
            raise OdfError("the dataset was changed since, and this would take it back: e edits it")
        return request

    async def connect(self) -> Link:
        """Attaches to the worker, or starts it."""
        return cast("Link", await Client.connect(self.workspace.folder))

    async def stop_worker(self) -> None:
        """Ends the worker, of whatever version it is; its jobs are cancelled.

        Raises:
            OdfError: there is none, or it does not end.
        """
        await (await Client.connect(self.workspace.folder, start=False)).stop()
