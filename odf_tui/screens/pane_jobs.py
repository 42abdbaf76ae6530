"""Pane 4: jobs, and the worker that runs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from textual import on
from textual.timer import Timer

from odf_engine.coordinator.protocol import Committed, DatasetsChanged, Event, Job, LogLine, Samples
from odf_engine.errors import OdfError
from odf_tui.panes.jobs.view import JobsView, worker_problem_lines
from odf_tui.screens.job_verbs import JobVerbs
from odf_tui.services.controller import JobsRead, LogRead
from odf_tui.state.app_state import WorkerConnectionState, WorkerEvents
from odf_tui.state.job_book import dataset_healths
from odf_tui.text.job_text import job_outcome
from odf_tui.widgets.line_view import LineView
from odf_tui.widgets.status_bar import Notice, StatusLine

LOGS: Final = 8
"""How many logs of ended jobs are kept in memory."""
LOG_SECONDS: Final = 0.4
"""How often a log that grows is painted: less often than it is told of, so that keys come first."""

KEEP_SECONDS: Final = 2.0


class JobsPart(JobVerbs):
    """The part of the workbench about jobs.

    Attributes:
        tick: once a second while jobs run.
    """

    tick: Timer
    _worker_news: WorkerConnectionState | None = None
    _log_due: Timer | None = None
    _keep_timer: Timer | None = None

    # --- What is learnt ---

    @on(JobsRead)
    def _jobs_read(self, message: JobsRead) -> None:
        if message.error:
            self.notify_line(message.error, "bad")
            return
        self.book.load(message.jobs, message.last_seq)
        self.jobs_pane.view.load()
        self._tell_open_log([])
        self._news_of_jobs()

    @on(WorkerEvents)
    def _events(self, message: WorkerEvents) -> None:
        known = len(self.book.jobs)
        changes = self.book.apply(message.events)
        if changes.worker is not None:
            self.worker_status = changes.worker
            self.show_worker()
        view = self.jobs_pane.view
        if len(self.book.jobs) != known:
            view.load()
        else:
            view.update(changes.jobs)  # amounts are painted once a second
        if view.job is not None and view.job.id in changes.jobs:
            self._show_log()
        elif view.job is not None and view.job.id in changes.logs and self._log_due is None:
            self._log_due = self.set_timer(LOG_SECONDS, self._show_log)
        self._tell_open_log(message.events)
        if changes.jobs:
            self._news_of_jobs()
        if changes.datasets or any(isinstance(event, DatasetsChanged) for event in message.events):
            self._read_soon()
        for job in changes.ended:
            self._ended(job)
        if changes.ended and not self.book.active_jobs():
            self.keep_soon()

    def keep_soon(self) -> None:
        """Keeps what the next start shows first, once all is quiet: lines break without a farewell."""
        if self._keep_timer is None:
            self._keep_timer = self.set_timer(KEEP_SECONDS, self._keep_now)

    def _keep_now(self) -> None:
        self._keep_timer = None
        if not self.book.active_jobs():
            self.run_worker(self.source.keep, thread=True, exclusive=True, group="keep", exit_on_error=False)

    def _show_log(self) -> None:
        """Shows the log below the list, unless one has the whole screen."""
        if self._log_due is not None:
            self._log_due.stop()
            self._log_due = None
        if self._open_log is None:
            self.jobs_pane.show_log()

    def _ended(self, job: Job) -> None:
        words, style = job_outcome(job)
        self.notify_line(f"{job.kind} {job.target}: {words}", style if style != "muted" else "good")
        self.tell_of_divergence(job)

    def _tell_open_log(self, events: Sequence[Event]) -> None:
        samples = [each for event in events if isinstance(event, Samples) for each in event.samples]
        if samples:
            self.jobs_pane.pace.add(samples)
            if self._open_log is None:
                self.jobs_pane.show_gauges()
        log = self._open_log
        if log is None or not log.is_attached:
            return
        job = self.book.jobs.get(log.job.id, log.job)
        lines = [event for event in events if isinstance(event, LogLine | Committed) and event.job == job.id]
        log.news(lines, job)
        if samples:
            log.sampled()

    def _news_of_jobs(self) -> None:
        before, self.healths = self.healths, dataset_healths(self.rows, self.book)
        self.graph.set_healths(self.healths)
        if self.healths.get(selected := self.graph.selected or "") is not before.get(selected):
            self._show_card()
            row = self.graph.row
            if row is not None and not (row.records or row.missing or row.problem):
                self.reads.rows(row.id)  # why there are none is another reason now
        if self.book.active_jobs():
            self.jobs_pane.view.inputs = self._inputs
            self.tick.resume()
        else:
            self.tick.pause()
        self._show_status()

    def _inputs(self) -> Mapping[str, Sequence[str]]:
        return {row.id: row.inputs for row in self.rows}

    def second(self) -> None:
        """Running jobs say how far they are, and how long they run."""
        self.jobs_pane.view.update({job.id for job in self.book.active_jobs()})
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
        for job in list(self.book.logs)[:-LOGS]:  # read again when they are looked at again
            if job != message.job and (known := self.book.jobs.get(job)) is not None and known.state.final:
                del self.book.logs[job]
        self.jobs_pane.show_log()

    @on(WorkerConnectionState)
    def _worker_changed(self, message: WorkerConnectionState) -> None:
        if message.state == "starting" and self.worker_state == "gone":
            self.notify_line("starting the worker …")
        self.worker_state = message.state
        if message.state != "starting":
            self._worker_news = message
        if message.state == "gone":
            self.worker_status = None
            said = (message.detail or "the worker is gone").splitlines()[0]
            what = "R stops it" if message.busy else "R starts it again"
            self.notify_line(f"{said}: {what}", "warn")
            self.reads.jobs()  # what it left is marked as interrupted
        self.show_worker()
        self.show_hints()

    def show_worker(self) -> None:
        """Shows how the worker is."""
        self.query_one(StatusLine).show_worker(self.worker_state, self.worker_status)
        self.jobs_pane.tell_trouble(worker_problem_lines(self._worker_news, self.worker_status))

    # --- What is done ---

    def do_restart(self) -> None:
        """Starts the worker again; a busy one of another version is stopped first, if that is wanted."""
        news = self._worker_news
        if news is None or not news.busy:
            self.follower.restart()
            return
        from odf_tui.widgets.dialogs import ConfirmDialog

        remark = "What they have committed stays."
        self.app.push_screen(
            ConfirmDialog(f"Stop that worker? {news.busy} of its jobs would be cancelled.", remark),
            self._replace,
        )

    def _replace(self, yes: bool | None) -> None:
        async def replace() -> None:
            try:
                await self.source.stop_worker()
            except OdfError as error:
                self.post_message(Notice(str(error), "bad"))
            self.follower.restart()

        if yes:
            self.run_worker(replace(), group="commands")

    def do_open_job(self) -> None:
        """The whole log of a job."""
        job, pane = self.jobs_pane.view.job, self.jobs_pane
        if job is None:
            return
        from odf_tui.panes.jobs.log_screen import LogScreen

        self._open_log = LogScreen(
            job,
            self.source,
            pane.pace,
            copy=partial(self.copy_text, "log"),
            save=self.save_log_of,
            details=pane.details,
            wrap=pane.log_view.wrap,
        )
        self.app.push_screen(self._open_log, self._log_left)

    def _log_left(self, wanted: str | None) -> None:
        log, self._open_log = self._open_log, None
        if log is None:
            return
        pane = self.jobs_pane
        pane.details = log.details
        if pane.log_view.wrap is not log.wraps:
            pane.log_view.turn_wrap()
        pane.view.select(log.job.id)
        pane.show_log()
        if wanted:
            self.perform(self.keys.by_id[wanted])
