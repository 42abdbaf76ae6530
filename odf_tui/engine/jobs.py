"""What pane 4 reads: the journal, and the worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

from odf_engine.coordinator.client import Client, read_journal
from odf_engine.coordinator.protocol import Job, JournalEvent
from odf_tui.engine.base import Entries
from odf_tui.source import Link

JOBS: Final = 200


class JobReads(Entries):
    """Reads jobs."""

    def jobs(self) -> tuple[list[Job], int]:
        """Recent jobs, and up to where the journal was read."""
        journal = read_journal(self.workspace.folder)
        last = journal.last_seq()  # before the jobs: what comes between is told twice, never lost
        return journal.jobs(JOBS), last

    def log(self, job: str) -> Sequence[JournalEvent]:
        """The journal of one job."""
        from odf_tui.state import LOG_LINES

        return read_journal(self.workspace.folder).tail(LOG_LINES, job=job)

    async def connect(self) -> Link:
        """Attaches to the worker, or starts it."""
        return cast("Link", await Client.connect(self.workspace.folder))
