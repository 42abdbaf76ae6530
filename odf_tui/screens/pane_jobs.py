"""Pane 4: jobs, and the worker that runs them."""

from __future__ import annotations

from functools import partial

from textual import on
from textual.timer import Timer

from odf_engine.coordinator.protocol import Job
from odf_engine.errors import OdfError
from odf_tui.messages import EventsArrived, JobsRead, LogRead, Notice, WorkerChanged
from odf_tui.screens.pane_datasets import DatasetsPart
from odf_tui.state import healths
from odf_tui.widgets.jobs import JobsView, outcome
from odf_tui.widgets.lines import LineView
from odf_tui.widgets.status import StatusLine


class JobsPart(DatasetsPart):
    """The part of the workbench about jobs.

    Attributes:
        tick: once a second while jobs run.
    """

    tick: Timer

    # --- What is learnt ---

    @on(JobsRead)
    def _jobs_read(self, message: JobsRead) -> None:
        if message.error:
            self.notify_line(message.error, "bad")
            return
        self.book.load(message.jobs, message.last_seq)
        self.jobs_pane.view.load()
        self._news_of_jobs()

    @on(EventsArrived)
    def _events(self, message: EventsArrived) -> None:
        known = len(self.book.jobs)
        changes = self.book.apply(message.events)
        if changes.worker is not None:
            self.worker_status = changes.worker
            self.show_worker()
        view = self.jobs_pane.view
        if len(self.book.jobs) != known:
            view.load()
        else:
            view.update(changes.jobs | changes.progress)
        if view.job is not None and view.job.id in changes.logs | changes.jobs:
            self.jobs_pane.show_log()
        if changes.jobs:
            self._news_of_jobs()
        elif changes.progress:
            self._show_status()
        if changes.datasets:
            self._read_soon()
        for job in changes.ended:
            words, style = outcome(job)
            self.notify_line(f"{job.kind} {job.target}: {words}", style if style != "muted" else "good")

    def _news_of_jobs(self) -> None:
        before, self.healths = self.healths, healths(self.rows, self.book)
        self.graph.set_healths(self.healths)
        if self.healths.get(selected := self.graph.selected or "") is not before.get(selected):
            self._show_card()
            row = self.graph.row
            if row is not None and not (row.records or row.missing or row.problem):
                self.reads.rows(row.id)  # why there are none is another reason now
        if self.book.open():
            self.tick.resume()
        else:
            self.tick.pause()
        self._show_status()

    def second(self) -> None:
        """Running jobs say how long they run."""
        self.jobs_pane.view.update({job.id for job in self.book.open()})
        self._show_status()

    @on(LineView.Moved, "#job-list")
    def _job_selected(self) -> None:
        job = self.query_one(JobsView).job
        if job is not None and job.id not in self.book.logs:
            self.reads.log(job.id)
        self.jobs_pane.show_log()

    @on(LogRead)
    def _log_read(self, message: LogRead) -> None:
        self.book.load_log(message.job, message.events)
        self.jobs_pane.show_log()

    @on(WorkerChanged)
    def _worker_changed(self, message: WorkerChanged) -> None:
        if message.state == "starting" and self.worker_state == "gone":
            self.notify_line("starting the worker …")
        self.worker_state = message.state
        if message.state == "gone":
            self.worker_status = None
            self.notify_line(f"{message.detail or 'the worker is gone'}: R starts it again", "warn")
            self.reads.jobs()  # what it left is marked as interrupted
        self.show_worker()
        self.show_hints()

    def show_worker(self) -> None:
        """Shows how the worker is."""
        self.query_one(StatusLine).show_worker(self.worker_state, self.worker_status)

    # --- What is done ---

    def do_cancel(self) -> None:
        """Asks, then cancels the selected job, or that of the selected dataset."""
        situation = self.situation()
        job = situation.job if situation.pane == "jobs" else None
        job = job if job is not None and not job.state.final else situation.dataset_job
        if job is None:
            return
        from odf_tui.screens.dialogs import Confirm

        question = f"Cancel {job.kind} {job.target}?"
        self.app.push_screen(Confirm(question, "What it has committed stays."), partial(self._cancel, job))

    def _cancel(self, job: Job, yes: bool | None) -> None:
        async def cancel() -> None:
            try:
                await (await self.follower.link()).cancel(job.id)
            except OdfError as error:
                self.post_message(Notice(str(error), "bad"))

        if yes:
            self.run_worker(cancel(), group="commands")

    def do_restart(self) -> None:
        """Starts the worker again."""
        self.follower.restart()

    def do_open_job(self) -> None:
        """The whole log of a job."""
        job = self.jobs_pane.view.job
        if job is None:
            return
        from odf_tui.screens.dialogs import Reader

        lines = self.jobs_pane.log_lines()
        title = f"{job.kind} {job.target} · {job.state.value}"
        self.app.push_screen(Reader(title, lines, partial(self.copy_text, "log")))

    def do_job_dataset(self) -> None:
        """Selects the job's dataset in the graph."""
        job = self.jobs_pane.view.job
        if job is not None:
            self.select_dataset(job.dataset)
