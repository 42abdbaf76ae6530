"""JobsController: actions on jobs and logs, restart of the worker, notices about ended jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from msgspec.structs import replace
from textual.message import Message
from textual.timer import Timer

from odf_engine.api import Committed, Delivery, Event, Job, JournalEvent, LogLine, Request, Samples, Timestamp
from odf_engine.api.model import Target, WrittenBlock
from odf_engine.api.text import count_of, format_count, printable
from odf_engine.errors import OdfError
from odf_tui.panes.jobs.log_screen import LogScreen
from odf_tui.panes.jobs.view import JobsPane, JobsView, worker_problem_lines
from odf_tui.services.controller import Controller, Host, task
from odf_tui.state import saved_session
from odf_tui.state.app_state import JobNews
from odf_tui.state.job_book import log_file_name
from odf_tui.state.saved_session import SavedLayout
from odf_tui.text.format import error_with_hint, format_count_short, format_duration
from odf_tui.text.job_text import job_outcome, job_seconds, may_have_diverged
from odf_tui.theming.terminal import notification_sequence
from odf_tui.widgets.choice_list import Choice
from odf_tui.widgets.dialogs import ConfirmDialog, PickerDialog, SaveDialog
from odf_tui.widgets.status_bar import DELETED, OTHER_VERSION, StatusLine

LOGS: Final = 8
"""Maximum number of logs of ended jobs in memory."""
LOG_SECONDS: Final = 0.4
"""Interval between repaints of a growing log. Keys must not wait for repaints."""
SNAPSHOT_SECONDS: Final = 2.0
ALERT_SECONDS: Final = 2.0
"""Interval between reads of messages of alerts, where the workspace has alerts."""


class JobsController(Controller):
    """Controls pane 4: the jobs, their logs, and the worker that runs them."""

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self.pane = self.host.query_one(JobsPane)
        self.view = self.pane.view
        self.view.inputs = lambda: {row.id: row.inputs for row in self.state.datasets}
        self._tick = self.host.set_interval(1.0, lambda: self.state.second.send(None), pause=True)
        self._log_screen: LogScreen | None = None
        self._log_timer: Timer | None = None
        self._snapshot_timer: Timer | None = None
        self._last_alert: float | None = None
        self.host.set_interval(ALERT_SECONDS, self._read_alerts)
        self.host.set_interval(60.0, self.view.refresh)  # it shows how long ago jobs started
        self.state.jobs_outdated.connect(lambda _: self._read())
        self.state.jobs_changed.connect(self._jobs_changed)
        self.state.worker_changed.connect(lambda _: self._worker_changed())
        self.state.second.connect(lambda _: self._show_progress())

    def routes(self) -> Mapping[type[Message], Callable[[Any], object]]:
        """Return the handlers of messages: the log follows the selected job."""
        return {JobsView.Moved: lambda _: self._show_selected()}

    def _read(self) -> None:
        def then(page: tuple[list[Job], int] | None, error: str) -> None:
            if page is None:
                self.host.notice(error, "bad")
            else:
                self.state.load_jobs(*page)

        self.host.read("jobs", self.workspace.jobs, then)

    def _jobs_changed(self, news: JobNews) -> None:
        changes = news.changes
        if changes.worker is not None:
            self._show_worker()
        if news.reloaded or changes.added:
            self.view.load()
        else:
            self.view.update(changes.jobs)  # progress is painted once a second
        job = self.view.job
        if job is not None and job.id in changes.jobs:
            self._show_log()
        elif job is not None and job.id in changes.logs and self._log_timer is None:
            self._log_timer = self.host.set_timer(LOG_SECONDS, self._show_log)
        self._update_log_screen(news.events)
        running = bool(self.state.jobs.active_jobs())
        if news.changed_jobs:
            (self._tick.resume if running else self._tick.pause)()
        for job in changes.ended:
            if not news.reloaded and job.id not in self.jobs.quiet:
                self._show_end(job)
            self._announce(job)
        if changes.ended and not running:
            self.save_snapshot_soon()

    def _show_progress(self) -> None:
        self.view.update({job.id for job in self.state.jobs.active_jobs()})

    def _show_end(self, job: Job) -> None:
        """Show a notice about the end of a job. If two histories diverged, a second one has the next step."""
        words, style = job_outcome(job)
        self.host.notice(f"{job.kind} {job.target}: {words}", style if style != "muted" else "good")
        if may_have_diverged(job) and self.state.row_of(job.dataset) is not None and job.error is not None:
            first = job.error.message.partition("\n")[0]
            self.host.notice(f"{job.kind} {job.target}: press V to compare histories; {first}", "bad")

    def _announce(self, job: Job) -> None:
        """Send a terminal notification about the end of a long job, as configured."""
        ui, seconds = self.workspace.ui, job_seconds(job, Timestamp.now())
        if ui.notify_by == "none" or not ui.notify_after_seconds or seconds is None:
            return
        if seconds < ui.notify_after_seconds or job.id in self.jobs.quiet:
            return
        text = f"odf: {job.kind} {job.target}: {job_outcome(job)[0]}, after {format_duration(seconds)}"
        self.host.terminal.write(notification_sequence(text, ui.notify_by))

    def _read_alerts(self) -> None:
        self.host.read(
            "alerts", partial(self.workspace.terminal_messages, self._last_alert), self._show_alerts
        )

    def _show_alerts(self, alerts: tuple[float, list[Delivery]] | None, _: str) -> None:
        """Show a notice for each message, and one terminal notification."""
        if alerts is None:
            return  # the next read may succeed
        self._last_alert, messages = alerts
        for message in messages:
            self.host.notice(
                printable(message.message), "bad" if message.kind.endswith(("Failed", "Paused")) else "good"
            )
        if messages and self.workspace.ui.notify_by != "none":
            more = f", and {len(messages) - 1} more" if len(messages) > 1 else ""
            text = f"odf: {messages[-1].message}{more}"
            self.host.terminal.write(notification_sequence(text, self.workspace.ui.notify_by))

    def save_snapshot_soon(self) -> None:
        """Save the snapshot for the next start, once no job runs. A connection may break at any time."""
        if self._snapshot_timer is None:
            self._snapshot_timer = self.host.set_timer(SNAPSHOT_SECONDS, self._save_snapshot)

    def _save_snapshot(self) -> None:
        self._snapshot_timer = None
        if not self.state.jobs.active_jobs():
            save = partial(saved_session.save_snapshot, self.workspace.folder, self.workspace)
            self.host.read("snapshot", save, lambda *_: None)

    def _worker_changed(self) -> None:
        state = self.state
        if state.restarting:
            self.host.notice("starting the worker …")
        elif state.worker == "stalled" and state.connection is not None:
            self.host.notice(f"{state.connection.detail} – {state.connection.hint}", "warn")
        elif state.worker == "gone" and state.connection is not None:
            reason = (state.connection.detail or "no connection to the worker").splitlines()[0]
            what = "press R to stop it" if state.connection.busy else "press R to restart it"
            if state.is_deleted:
                what = "restore it and press R, or quit"
            self.host.notice(f"{reason}: {what}", "warn")
            state.jobs_outdated.send(None)  # its jobs are marked as interrupted
        self._show_worker()
        self.host.show_hints()

    def _show_worker(self) -> None:
        """Show the state of the worker. A worker of another version counts as present."""
        state = self.state
        shown = state.worker
        if state.worker == "gone" and state.connection is not None:
            shown = OTHER_VERSION if state.connection.busy else shown
            shown = DELETED if state.is_deleted else shown
        self.host.query_one(StatusLine).show_worker(shown, state.worker_status)
        self.pane.show_worker_problem(worker_problem_lines(state.connection, state.worker_status))

    def restart_worker(self) -> None:
        """Restart the worker. A busy worker of another version is stopped after a confirmation."""
        connection = self.state.connection
        if connection is None or not connection.busy:
            self.jobs.connection.restart()
        else:
            self._replace_worker(connection.busy)

    @task
    async def _replace_worker(self, jobs: int) -> None:
        question = f"Stop that worker? {count_of(jobs, 'job')} will be cancelled."
        if not await self.host.ask(ConfirmDialog(question, "Committed blocks are retained.")):
            return
        try:
            await self.workspace.stop_worker()
        finally:
            self.jobs.connection.restart()

    def _show_selected(self) -> None:
        """Show the log of the selected job; read it if it is not in memory."""
        job = self.view.job
        if job is not None and job.id not in self.state.jobs.logs:
            self.host.read("log", lambda: list(self.workspace.log(job.id)), partial(self._log_read, job.id))
        self.pane.show_log()
        self.host.show_hints()

    def _log_read(self, job: str, events: list[JournalEvent] | None, error: str) -> None:
        book = self.state.jobs
        book.load_log(job, events or [])
        for other in list(book.logs)[:-LOGS]:  # read again when they are selected again
            if other != job and (known := book.jobs.get(other)) is not None and known.state.final:
                del book.logs[other]
        self.pane.show_log()

    def _show_log(self) -> None:
        """Show the log below the list, unless it covers the screen."""
        if self._log_timer is not None:
            self._log_timer.stop()
            self._log_timer = None
        if self._log_screen is None:
            self.pane.show_log()

    def _update_log_screen(self, events: Sequence[Event]) -> None:
        samples = [sample for event in events if isinstance(event, Samples) for sample in event.samples]
        if samples:
            self.state.rates.add(samples)
            if self._log_screen is None:
                self.pane.show_gauges()
        screen = self._log_screen
        if screen is None or not screen.is_attached:
            return
        job = self.state.jobs.jobs.get(screen.job.id, screen.job)
        lines = [event for event in events if isinstance(event, LogLine | Committed) and event.job == job.id]
        screen.apply_events(lines, job)
        if samples:
            screen.apply_samples()

    def open_log(self) -> None:
        """Show the complete log of the selected job."""
        job = self.view.job
        if job is None:
            return
        self._log_screen = LogScreen(
            job,
            self.workspace,
            self.state.rates,
            copy=partial(self.host.copy_text, "log"),
            save=self._save_log,
            details=self.pane.details,
            wrap=self.pane.log_view.wrap,
        )
        self.host.open(self._log_screen, self._log_closed)

    def _log_closed(self, action: str | None) -> None:
        screen, self._log_screen = self._log_screen, None
        if screen is None:
            return
        self.pane.details = screen.details
        if self.pane.log_view.wrap is not screen.wraps:
            self.pane.log_view.toggle_wrap()
        self.view.select(screen.job.id)
        self.pane.show_log()
        if action:
            self.host.perform(action)

    def toggle_details(self) -> None:
        """Show or hide the debug lines of logs."""
        self.pane.details = not self.pane.details
        self.pane.show_log()
        self.host.notice("debug lines are " + ("shown" if self.pane.details else "hidden"))

    def toggle_wrap(self) -> None:
        """Wrap or truncate the long lines of the log."""
        view = self.pane.log_view
        view.toggle_wrap()
        self.host.notice("long lines are " + ("wrapped" if view.wrap else "truncated"))

    def save_log(self) -> None:
        """Save the complete log of the selected job to a file that the user chooses."""
        if (job := self.view.job) is not None:
            self._save_log(job)

    @task
    async def _save_log(self, job: Job) -> None:
        path = await self.host.ask(SaveDialog(f"Save the log of {job.kind} {job.target}", log_file_name(job)))
        if path is None:
            return

        def save(*, replace: bool) -> int | None:
            try:
                return self.workspace.save_log(job, path, replace=replace)
            except FileExistsError:
                return None
            except (OdfError, OSError) as error:
                raise OdfError(f"the log cannot be saved: {error_with_hint(error)}") from None

        lines = await asyncio.to_thread(save, replace=False)
        if lines is None:
            if not await self.host.ask(
                ConfirmDialog(f"{path.name} already exists. Overwrite?", "Its contents will be lost.")
            ):
                return
            lines = await asyncio.to_thread(save, replace=True)
        self.host.notice(f"{count_of(lines or 0, 'line')} saved to {path}")

    def cancel(self) -> None:
        """Cancel the selected job, or the job of the selected dataset, after a confirmation."""
        situation = self.host.situation()
        job = situation.job if situation.pane == "jobs" else None
        job = job if job is not None and not job.state.final else situation.dataset_job
        if job is not None:
            self._cancel(job)

    @task
    async def _cancel(self, job: Job) -> None:
        dialog = ConfirmDialog(f"Cancel {job.kind} {job.target}?", "Committed blocks are retained.")
        if await self.host.ask(dialog):
            await (await self.jobs.connection.link()).cancel(job.id)

    def select_dataset(self) -> None:
        """Select the dataset of the selected job."""
        job = self.view.job
        if job is None:
            return
        named = (row for row in self.state.datasets if row.name == job.target)
        row = self.state.row_of(job.dataset) or next(named, None)
        if row is not None:
            self.navigator.select_dataset(row.id)
        else:
            self.host.notice(f"{job.target} is not in this workspace", "warn")

    def retry(self) -> None:
        """Submit the request of the selected job again."""
        job = self.view.job
        if job is None:
            return

        def then(request: Request | None, error: str) -> None:
            if request is None:
                self.host.notice(error, "warn")
            else:
                self.view.go(0)  # where the new job will be
                self.jobs.submit([(request, job.target)])

        self.host.read("request", lambda: self.workspace.request_of_job(job), then)

    def show_block(self) -> None:
        """Go to the block that the selected job wrote. Of several blocks, the user chooses one."""
        job = self.view.job
        if job is not None:
            self.host.read(
                "written",
                lambda: self.workspace.blocks_of_job(job.id),
                partial(self._choose_block, job),
                opens=True,
            )

    def _choose_block(self, job: Job, blocks: list[WrittenBlock] | None, error: str) -> None:
        if not blocks:
            self.host.notice(error or "no block of this job is in the chain", "warn")
            return
        if len(blocks) == 1:
            self._go_to_block(blocks[0])
            return
        choices = [
            Choice(
                str(at),
                f"block {block.number}  {block.event}",
                remark=f"+{format_count_short(block.rows)} rows",
            )
            for at, block in enumerate(blocks)
        ]

        def chosen(at: str | None) -> None:
            if at is not None:
                self._go_to_block(blocks[int(at)])

        title = f"{format_count(len(blocks))} blocks of {job.kind} {job.target}, newest first"
        self.host.open(PickerDialog(title, choices, typing=False), chosen)

    def _go_to_block(self, block: WrittenBlock) -> None:
        self.navigator.follow(Target(block.dataset, "blocks", block.number))

    def restore(self, layout: SavedLayout) -> None:
        """Restore whether long lines are wrapped."""
        if layout.wrap is not None:
            self.pane.log_view.wrap = layout.wrap

    def save(self, layout: SavedLayout) -> SavedLayout:
        """Save whether long lines are wrapped, if the user changed it."""
        wrap = self.pane.log_view.wrap
        return replace(layout, wrap=layout.wrap if wrap and layout.wrap is None else wrap)
