"""Long jobs that end are announced, for somebody who looks elsewhere; and how the worker is."""

from __future__ import annotations

from textual import on

from odf_engine.coordinator.protocol import Job
from odf_engine.metadata.timestamp import Timestamp
from odf_tui.screens.pane_jobs import JobsPart
from odf_tui.services.controller import JobsRead
from odf_tui.text.format import format_duration
from odf_tui.text.job_text import job_outcome, job_seconds
from odf_tui.widgets.status_bar import OTHER_VERSION, StatusLine


class Announcing(JobsPart):
    """The part of the workbench that announces the end of long jobs, and how the worker is."""

    def _ended(self, job: Job) -> None:
        """Tells of a job that ended while it was looked at, and announces it if it took long."""
        super()._ended(job)
        self._announce(job)

    @on(JobsRead)
    def _ended_unseen(self, message: JobsRead) -> None:
        """What a worker left that is gone was not told of; this comes before the jobs are taken over."""
        open_before = {job.id for job in self.book.active_jobs()}
        for job in message.jobs:
            if job.id in open_before and job.state.final:
                self._announce(job)

    def show_worker(self) -> None:
        """Shows how the worker is; one of another version is another thing than none."""
        super().show_worker()
        if self.worker_state == "gone" and self._worker_news is not None and self._worker_news.busy:
            self.query_one(StatusLine).show_worker(OTHER_VERSION, None)

    def _announce(self, job: Job) -> None:
        ui, seconds = self.source.ui, job_seconds(job, Timestamp.now())
        if ui.notify_by == "none" or not ui.notify_after_seconds or seconds is None:
            return
        if seconds < ui.notify_after_seconds:
            return
        text = f"odf: {job.kind} {job.target}: {job_outcome(job)[0]}, after {format_duration(seconds)}"

        def tell() -> None:
            from odf_tui.theming.terminal import notification_sequence

            sequence = notification_sequence(text, ui.notify_by)
            self.app.call_from_thread(self.station._write, sequence)

        self.run_worker(tell, thread=True, group="announce")
