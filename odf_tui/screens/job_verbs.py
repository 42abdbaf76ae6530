"""What is done with jobs: their logs, their blocks, doing them again."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from textual import on
from textual.message import Message

from odf_engine.coordinator.protocol import Job, Request
from odf_engine.errors import OdfError
from odf_tui.screens.pane_datasets import DatasetsPart
from odf_tui.state.job_book import WrittenBlock, file_name
from odf_tui.state.model import Target
from odf_tui.text.format import format_count, format_count_short
from odf_tui.widgets.status_bar import Notice

if TYPE_CHECKING:
    from odf_tui.panes.jobs.log_screen import LogScreen


@dataclass
class LogSaved(Message):
    """A log was written to a file: path and lines; ``there`` if the file exists already."""

    path: str
    lines: int
    there: bool = False
    error: str = ""


@dataclass
class WrittenRead(Message):
    """The blocks that a job wrote were read."""

    job: Job
    blocks: list[WrittenBlock]
    error: str = ""


@dataclass
class RequestRead(Message):
    """The request of a job was read, to submit it again."""

    job: Job
    request: Request | None
    error: str = ""


class JobVerbs(DatasetsPart):
    """The part of the workbench that does something with the selected job."""

    _open_log: LogScreen | None = None

    @property
    def is_current(self) -> bool:
        """Whether it can be seen: not behind a log, so that nothing is painted there."""
        return super().is_current and (self._open_log is None or self.app.screen is self)

    def notify_line(self, text: str, style: str = "good") -> None:
        """Tells something in the line of hints, and in the log that is in front of it."""
        super().notify_line(text, style)
        if self._open_log is not None and self._open_log.is_current:
            self._open_log.say(text)

    def do_cancel(self) -> None:
        """Asks, then cancels the selected job, or that of the selected dataset."""
        situation = self.situation()
        job = situation.job if situation.pane == "jobs" else None
        job = job if job is not None and not job.state.final else situation.dataset_job
        if job is None:
            return
        from odf_tui.widgets.dialogs import ConfirmDialog

        question = f"Cancel {job.kind} {job.target}?"
        self.app.push_screen(
            ConfirmDialog(question, "What it has committed stays."), partial(self._cancel, job)
        )

    def _cancel(self, job: Job, yes: bool | None) -> None:
        async def cancel() -> None:
            try:
                await (await self.follower.link()).cancel(job.id)
            except OdfError as error:
                self.post_message(Notice(str(error), "bad"))

        if yes:
            self.run_worker(cancel(), group="commands")

    def do_job_dataset(self) -> None:
        """Selects the job's dataset in the graph."""
        job = self.jobs_pane.view.job
        if job is None:
            return
        row = self.row_of(job.dataset) or next((row for row in self.rows if row.name == job.target), None)
        if row is not None:
            self.select_dataset(row.id)
        else:
            self.notify_line(f"{job.target} is not in this workspace", "warn")

    def do_job_details(self) -> None:
        """Shows lines for finding mistakes, or hides them."""
        pane = self.jobs_pane
        pane.details = not pane.details
        pane.show_log()
        self.notify_line("details are " + ("shown" if pane.details else "hidden"))

    def do_wrap_log(self) -> None:
        """Wraps long lines of the log, or cuts them."""
        view = self.jobs_pane.log_view
        view.turn_wrap()
        self.notify_line("long lines are " + ("wrapped" if view.wrap else "cut"))

    # --- Doing it again ---

    def do_retry(self) -> None:
        """Does the same again."""
        job = self.jobs_pane.view.job
        if job is not None:
            self.reads.start(
                "request",
                partial(self.source.request, job),
                lambda request, error: RequestRead(job, request, error),
            )

    @on(RequestRead)
    def _request_read(self, message: RequestRead) -> None:
        if message.request is None:
            self.notify_line(message.error, "warn")
        else:
            self.jobs_pane.view.go(0)  # where it will be
            self.submit([(message.request, message.job.target)])

    # --- What it wrote ---

    def do_job_block(self) -> None:
        """Goes to the block that the job wrote."""
        job = self.jobs_pane.view.job
        if job is not None:
            self.reads.start(
                "written",
                partial(self.source.written, job.id),
                lambda blocks, error: WrittenRead(job, blocks or [], error),
            )

    @on(WrittenRead)
    def _written_read(self, message: WrittenRead) -> None:
        blocks = message.blocks
        if message.error or not blocks:
            self.notify_line(message.error or "this job wrote no block that is in the chain now", "warn")
        elif len(blocks) == 1:
            self._go_to_block(blocks[0])
        else:
            from odf_tui.widgets.choice_list import Choice
            from odf_tui.widgets.dialogs import PickerDialog

            choices = [
                Choice(
                    str(at),
                    f"block {block.number}  {block.event}",
                    remark=f"+{format_count_short(block.rows)} rows",
                )
                for at, block in enumerate(blocks)
            ]
            title = (
                f"{format_count(len(blocks))} blocks of {message.job.kind} {message.job.target}, newest first"
            )
            self.app.push_screen(
                PickerDialog(title, choices, typing=False), partial(self._block_picked, blocks)
            )

    def _block_picked(self, blocks: list[WrittenBlock], picked: str | None) -> None:
        if picked is not None:
            self._go_to_block(blocks[int(picked)])

    def _go_to_block(self, block: WrittenBlock) -> None:
        self.follow(Target(block.dataset, "blocks", block.number))

    # --- Saving its log ---

    def do_save_log(self) -> None:
        """Asks where to, and saves the whole log."""
        job = self.jobs_pane.view.job
        if job is not None:
            self.save_log_of(job)

    def save_log_of(self, job: Job) -> None:
        """Asks where to, and saves the whole log of a job."""
        from odf_tui.widgets.dialogs import SaveDialog

        def save(path: Path | None) -> None:
            if path is not None:
                self._save(job, path, replace=False)

        self.app.push_screen(SaveDialog(f"Save the log of {job.kind} {job.target}", file_name(job)), save)

    def _save(self, job: Job, path: Path, *, replace: bool) -> None:
        def work() -> LogSaved:
            try:
                return LogSaved(str(path), self.source.save_log(job, path, replace=replace))
            except FileExistsError:
                return LogSaved(str(path), 0, there=True)

        self._saving = job
        self.reads.start(
            "save log",
            work,
            lambda saved, error: saved or LogSaved(str(path), 0, error=error),
            replaces=False,
        )

    @on(LogSaved)
    def _log_saved(self, message: LogSaved) -> None:
        path = Path(message.path)
        if message.error:
            self.notify_line(f"the log is not saved: {message.error}", "bad")
        elif message.there:
            from odf_tui.widgets.dialogs import ConfirmDialog

            def replace(yes: bool | None) -> None:
                if yes:
                    self._save(self._saving, path, replace=True)

            self.app.push_screen(ConfirmDialog(f"{path.name} is there already.", "Replace it?"), replace)
        else:
            self.notify_line(f"{format_count(message.lines)} lines saved to {path}")
