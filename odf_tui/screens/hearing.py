"""What the workbench learns from its views, its reads and the worker, and what it shows of it."""

from __future__ import annotations

import time
from typing import Final

from textual import on
from textual.timer import Timer

from odf_engine.coordinator.protocol import JobState
from odf_engine.metadata.timestamp import Timestamp
from odf_tui.messages import (
    BlocksRead,
    BlocksWanted,
    DatasetsRead,
    DetailRead,
    EventsArrived,
    JobsRead,
    LogRead,
    Notice,
    RowsOpened,
    ThemeSaved,
    WorkerChanged,
)
from odf_tui.screens.base import Early
from odf_tui.screens.places import Places
from odf_tui.source import Source
from odf_tui.state import DatasetRow, Detail, Health, healths
from odf_tui.widgets.jobs import JobsView, doing, outcome
from odf_tui.widgets.lines import LineView
from odf_tui.widgets.rows import RowsView
from odf_tui.widgets.status import StatusLine

LOOK_SECONDS: Final = 0.08
REOPEN_SECONDS: Final = 2.0
READ_SECONDS: Final = 1.0


class Hearing(Places):
    """The part of the workbench that listens.

    Attributes:
        seen: the dataset, and its head, that the panes show.
        tick: once a second while jobs run.
    """

    tick: Timer

    def __init__(self, source: Source, early: Early | None = None) -> None:
        super().__init__(source, early)
        self.seen: tuple[str, str] = ("", "")
        self._details: dict[str, Detail] = {}
        self._looked = float("-inf")
        self._look: Timer | None = None
        self._read_at = float("-inf")
        self._reading: Timer | None = None

    # --- Datasets ---

    @on(DatasetsRead)
    def _datasets_read(self, message: DatasetsRead) -> None:
        if message.error:
            self.notify_line(message.error, "bad")
        else:
            self.show_datasets(message.rows)

    def show_datasets(self, rows: list[DatasetRow]) -> None:
        """Shows these datasets."""
        self.rows = rows
        self.healths = healths(rows, self.book)
        self.graph.load(rows, self.healths, self.datasets_pane.filter)
        self.make_room_for_card()
        self._selected()

    @on(LineView.Moved, "#graph")
    def _selected(self) -> None:
        """Another dataset is selected, or there is news of it: its neighbours follow in a moment."""
        row = self.graph.row
        self._show_status()
        seen = ("", "") if row is None else (row.id, row.head)
        if seen == self.seen:
            return
        if seen[0] != self.seen[0]:
            self._show_card()
            wait = LOOK_SECONDS
        else:
            wait = max(LOOK_SECONDS, self._looked + REOPEN_SECONDS - time.monotonic())
        if self._look is not None:
            self._look.stop()
        self._look = self.set_timer(wait, self._look_at)

    def _look_at(self) -> None:
        row = self.graph.row
        self._look = None
        self._looked = time.monotonic()
        self.seen = ("", "") if row is None else (row.id, row.head)
        if self.target is not None and self.target.dataset != self.seen[0]:
            self.target = None  # the person went elsewhere
        if row is None:
            self.blocks_pane.view.open("", 0)
            self.data_pane.say("", [(" Rows show here.", "muted")])
            return
        self.blocks_pane.retitle(row.name)
        if row.missing or row.problem:
            why = row.problem or "This input is not in the workspace."
            self.blocks_pane.view.open(row.id, row.blocks)
            self.data_pane.say(row.id, [(f" {why}", "warn")])
            return
        self.blocks_pane.view.open(row.id, row.blocks)
        self.arrive()
        self.reads.detail(row.id)
        self.reads.rows(row.id)

    def _show_card(self) -> None:
        row = self.graph.row
        dataset = row.id if row is not None else ""
        health, job = self.healths.get(dataset), self.book.intake_of(dataset)
        self.datasets_pane.card.load(row, health, self._details.get(dataset), job)
        self.make_room_for_card()

    def _show_status(self) -> None:
        row = self.graph.row
        health = self.healths.get(row.id) if row is not None else None
        now = Timestamp.now()
        running = [doing(job, now) for job in self.book.open() if job.state is JobState.running]
        self.query_one(StatusLine).show(row, health, len(self.rows), running)
        self.show_hints()

    @on(DetailRead)
    def _detail_read(self, message: DetailRead) -> None:
        if message.detail is not None:
            self._details[message.dataset] = message.detail
        if self.graph.selected == message.dataset:
            self._show_card()

    # --- Blocks and rows ---

    @on(BlocksWanted)
    def _blocks_wanted(self, message: BlocksWanted) -> None:
        self.reads.blocks(message.dataset, message.limit, message.before, message.text)

    @on(BlocksRead)
    def _blocks_read(self, message: BlocksRead) -> None:
        if message.dataset == self.blocks_pane.view.dataset:
            self.blocks_pane.view.take(message.blocks, message.text, message.error)

    @on(LineView.Moved, "#chain")
    @on(LineView.Moved, "#job-list")
    def _moved(self) -> None:
        self.show_hints()

    @on(RowsOpened)
    def _rows_opened(self, message: RowsOpened) -> None:
        row = self.graph.row
        if row is None or row.id != message.dataset:
            return
        if message.opened is not None:
            self.data_pane.show(row.id, message.opened)
            self.arrive()
        elif message.error:
            self.data_pane.say(row.id, [(f" {message.error}", "bad")])
        else:
            self.data_pane.say(row.id, *self._no_rows(row))
        self.show_hints()

    def _no_rows(self, row: DatasetRow) -> list[list[tuple[str, str]]]:
        health = self.healths.get(row.id)
        if health in (Health.queued, Health.running):
            return [[(" No rows yet. They show here as soon as the job commits them.", "muted")]]
        if health is Health.failed:
            job = self.book.intake_of(row.id)
            return [
                [(f" No rows: the last {job.kind if job else 'pull'} did not succeed.", "bad")],
                [
                    (" ⏎", "key"),
                    (" in pane ", "muted"),
                    ("1", "key"),
                    (" says why, and what to do.", "muted"),
                ],
            ]
        if row.last_pulled or health is Health.current:
            return [[(" No rows: there were none to take in.", "muted")]]
        if row.derivative:
            return [[(" No rows yet. ", "muted"), ("p", "key"), (" makes them of other datasets.", "muted")]]
        if row.polls:
            return [
                [(" No rows yet. Press ", "muted"), ("p", "key"), (" to pull them from the source.", "muted")]
            ]
        if row.push_sources:
            return [[(" No rows yet. They are pushed: ", "muted"), (f"odf ingest {row.name} FILE", "strong")]]
        return [
            [(" No rows: there is no source. ", "muted"), ("e", "key"), (" edits the definition.", "muted")]
        ]

    @on(RowsView.Failed)
    def _rows_failed(self, message: RowsView.Failed) -> None:
        self.notify_line(message.error, "bad")

    @on(Notice)
    def _notice(self, message: Notice) -> None:
        self.notify_line(message.text, message.style)

    @on(ThemeSaved)
    def _theme_saved(self, message: ThemeSaved) -> None:
        if message.error:
            self.notify_line(f"theme {message.name}, for now: {message.error}", "warn")

    # --- Jobs and worker ---

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

    def _read_soon(self) -> None:
        """Reads the datasets, at most once a second while commits come quickly."""
        if self._reading is None:
            wait = max(self._read_at + READ_SECONDS - time.monotonic(), 0.001)
            self._reading = self.set_timer(wait, self._read_now)

    def _read_now(self) -> None:
        self._reading, self._read_at = None, time.monotonic()
        self.reads.datasets()

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
