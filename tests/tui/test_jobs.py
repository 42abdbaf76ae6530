"""Pane 4: running and queued jobs, their logs, actions on them, and problems of the worker.

``ODF_UPDATE_GOLDEN=1`` writes ``tests/golden/jobs-*.txt``; check the difference before you commit it.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from odf_engine.api.model import LogPage, Target
from odf_engine.api.readers.job_log import merge_log_entries
from odf_engine.jobs.ingest import Ingest
from odf_engine.jobs.pull import Pull
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.worker.job_log import INTERRUPTED
from odf_engine.worker.protocol import (
    Event,
    Job,
    JobProgress,
    JobState,
    Progress,
    Rate,
    Sample,
    Samples,
    WorkerStatus,
)
from odf_tui.actions.model import Situation
from odf_tui.actions.table import DEFAULT_KEYMAP
from odf_tui.panes.jobs.controller import LOGS, JobsController
from odf_tui.panes.jobs.log_screen import LogScreen
from odf_tui.panes.jobs.view import JobsPane
from odf_tui.state.app_state import WORKER_ENDED, WorkerConnectionState
from odf_tui.state.job_book import LogWindow, log_file_name
from odf_tui.text.job_text import (
    JobRates,
    format_time_left,
    job_outcome,
    ordinal,
    percent_done,
    progress_text,
    queue_text,
    sparkline,
)
from odf_tui.widgets.status_bar import OTHER_VERSION, StatusLine
from tests.tui.conftest import Driven, driven
from tests.tui.context import Fakes
from tests.tui.haven import did
from tests.tui.scripted_worker import Scenario, ScriptedLink
from tests.tui.test_blocks import hashes
from tests.tui.widget_drive import MountedHost, WidgetDrive, driven_widget

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
READINGS = "port-haven.air-readings"


def compare(drive: Driven, name: str) -> None:
    """Compare the panes, or the log screen, with their golden text; a widget alone has no lines of status."""
    lines = drive.text().splitlines()
    text = "\n".join(lines if isinstance(drive.app.screen, LogScreen) else lines[:-2]) + "\n"
    size = drive.app.size
    path = GOLDEN / f"jobs-{size.width}x{size.height}-{name}.txt"
    if os.environ.get("ODF_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.fixture
def at_nine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the clock to half a minute past nine."""
    monkeypatch.setattr(Timestamp, "now", classmethod(lambda _: Timestamp.parse("2024-03-11T09:00:31Z")))


def busy(source: Scenario) -> Job:
    """Add a pull that writes, one that reads, and three queued jobs. Returns the first."""
    first = source.job(JobState.running, READINGS)
    source.changed(first)
    source.changed(source.job(JobState.running, "harbour.tides"))
    source.changed(source.job(JobState.queued, "port-haven.clinics"))
    source.changed(source.job(JobState.queued, "air-by-day"))
    source.changed(source.job(JobState.queued, READINGS, "verify"))
    source.line(first.id, "file sources/air-readings.csv, 311,210,011 bytes, modified 2024-03-11T08:00:00Z")
    source.line(first.id, "key index updated to offset 7,199", "debug")
    source.line(first.id, "air-readings.csv: 41,000 rows, 318,207 bytes written in 9.3 s")
    source.line(first.id, f"air-readings.csv: committed block f1620{'ab' * 32}, 41,000 rows, in 9.9 s")
    source.committed(first.id, first.dataset, 41_000)
    source.line(first.id, "late rows dropped: 3", "warning")
    return first


def samples(*jobs: Job, seconds: int = 60) -> Samples:
    """Return a minute of steady work; Spark's memory grows and is freed."""
    rates = {job.id: Rate(rows=48_000 + 200 * number) for number, job in enumerate(jobs)}
    return Samples(
        [
            Sample(1_000.0 + at, rates, 200_000_000 + at % 20 * 30_000_000, 1_000_000_000, 1_700_000_000)
            for at in range(seconds)
        ]
    )


@pytest.mark.app
@pytest.mark.usefixtures("at_nine")
async def test_jobs_pane_shows_lost_worker_failures_progress_and_logs(source: Scenario) -> None:
    async with driven(source, (80, 24)) as drive:
        await drive.press("4", "z")
        source.link.die()
        await drive.until(lambda: "✗ the worker has ended" in drive.text())
        await drive.settle()
        assert "Press R to restart the worker" in drive.text()
        compare(drive, "gone")  # the problem and what to do, above the jobs
        await drive.press("R")
        await drive.until(lambda: "the worker has ended" not in drive.text())
        assert len(source.links) == 2

        failed = source.known[-1]
        source.link.tell(
            source.line(failed.id, "Traceback (most recent call last):", "debug"),
            source.line(failed.id, '  File "read.py", line 12, in read', "debug"),
        )
        await drive.until(lambda: "i shows 2 debug lines, . retries" in drive.text())
        assert "Traceback" not in drive.text()
        await drive.press("i")
        assert "Traceback" in drive.text()
        assert "shows 2 debug lines" not in drive.text()
        compare(drive, "failed")  # the log with details, and the error below it
        await drive.press("i")
        assert "Traceback" not in drive.text()

        before = source.journal.last_seq()
        first = busy(source)
        source.link.tell(
            *source.journal.events(before),
            JobProgress(first.id, Progress("write", rows=1_200_000, total_rows=6_000_000)),
            samples(first),
        )
        await drive.until(lambda: drive.jobs_pane.rates.samples and drive.jobs_pane.view.count() == 8)
        drive.bench.state.second.send(None)
        await drive.press("g", "j", "j", "j", "j")
        assert "after pull port-haven.air-readings" not in drive.text()
        compare(drive, "running")  # progress and log; there is no room for gauges and reasons
        await drive.resize(160, 50)
        await drive.settle()
        text = drive.text()
        assert "20%" in text and "48.0k rows/s" in text and "~2 min left" in text
        assert "after pull port-haven.air-readings" in text
        assert "◆ air-readings.csv: committed block abababab, 41,000 rows" in text
        assert text.count("abababab") == 1  # the event of the block is not shown again
        assert "1.0 GB" in text
        compare(drive, "running")  # gauges, and why a job is queued

        await drive.press("enter")
        assert "· running" in drive.text()
        for job in drive.book.active_jobs():
            source.changed(replace(job, state=JobState.interrupted, error=INTERRUPTED))
        source.link.die()
        await drive.until(lambda: "· interrupted" in drive.text())
        assert "worker stopped while this job was running" in drive.text()
        await drive.press("full_stop")  # leaves the log, and submits the request again
        await drive.until(lambda: len(source.links) == 3 and source.link.submitted)
        assert drive.app.screen is drive.bench
        assert source.link.submitted == [Pull(dataset=first.dataset)]


class Jobs:
    """The jobs pane, its controller, and a fake worker.

    Attributes:
        fakes: the context of the controller.
        worker: what the status line shows of the worker.
    """

    drive: WidgetDrive

    def __init__(self, source: Scenario, answers: Sequence[Any]) -> None:
        self.source = source
        self.fakes = Fakes(source)
        self.host = self.fakes.host = MountedHost(answers)
        self.state = self.fakes.state
        self.worker: list[str] = []
        line = SimpleNamespace(show_worker=lambda state, status: self.worker.append(state))
        self.host.widgets[StatusLine] = line
        self.pane = JobsPane("jobs", self.state.jobs, self.state.rates)

    def control(self, drive: WidgetDrive) -> None:
        """Make the controller, once the pane is mounted."""
        self.drive, self.host.app = drive, drive.app
        self.controller = JobsController(self.fakes.context)
        drive.app.routes = self.controller.routes()
        self.state.load_jobs(*self.source.jobs())

    async def settle(self) -> None:
        """Wait for the coroutines of the controller, and for the app."""
        await self.host.stories()
        await self.drive.settle()

    async def select(self, index: int) -> Job:
        """Put the cursor on a job, newest first."""
        self.pane.view.go(index)
        await self.settle()
        job = self.pane.view.job
        assert job is not None
        return job

    async def apply(self, *events: Event) -> None:
        """Apply events of the worker, and paint the log."""
        self.state.apply_events(events)
        for timer in self.host.timers:
            if timer.running:
                timer.callback()
        await self.settle()


@asynccontextmanager
async def jobs(
    source: Scenario, size: tuple[int, int] = (80, 24), answers: Sequence[Any] = ()
) -> AsyncIterator[Jobs]:
    """Show the jobs pane with its controller."""
    made = Jobs(source, answers)
    async with driven_widget(made.pane, source, size) as drive:
        made.control(drive)
        await made.settle()
        yield made


async def test_a_job_leads_to_the_block_that_it_wrote(source: Scenario) -> None:
    done = next(job for job in source.known if job.state is JobState.done and job.kind == "pull")
    known = hashes(source)
    source.committed(done.id, done.dataset, 7200, known[5])
    async with jobs(source, answers=["0", None]) as shown:
        shown.controller.show_block()
        assert "no block of this job is in the chain" in shown.host.last_notice
        assert await shown.select(2) == done
        shown.controller.show_block()
        assert shown.fakes.navigator.target == Target(done.dataset, "blocks", 5)
        assert (shown.state.pane, shown.state.selected) == ("blocks", done.dataset)
        source.committed(done.id, done.dataset, 0, known[3])
        shown.controller.show_block()
        (dialog,) = shown.host.dialogs
        assert [choice.title for choice in dialog._choices] == ["block 3  AddData", "block 5  AddData"]
        assert shown.fakes.navigator.target == Target(done.dataset, "blocks", 3)
        shown.fakes.navigator.clear_target()
        shown.controller.show_block()  # none is chosen
        assert shown.fakes.navigator.target is None


async def test_a_job_leads_to_its_dataset(source: Scenario) -> None:
    source.changed(source.job(JobState.done, "gone"))
    async with jobs(source) as shown:
        shown.controller.select_dataset()
        assert "gone is not in this workspace" in shown.host.last_notice
        await shown.select(1)
        shown.controller.select_dataset()
        assert shown.state.selected == did("port-haven.clinics")


async def test_a_job_is_retried(source: Scenario) -> None:
    failed = source.known[-1]
    source.changed(failed, Pull(dataset=failed.dataset, force=True))
    pushed = Ingest(dataset=did(READINGS), files=["/nowhere/rows.csv"])
    source.changed(source.job(JobState.failed, READINGS, "ingest"), pushed)
    async with jobs(source) as shown:
        shown.controller.retry()
        assert "input file not found" in shown.host.last_notice
        assert shown.fakes.jobs.submitted == []
        await shown.select(1)
        shown.controller.retry()
        assert shown.fakes.jobs.submitted == [(Pull(dataset=failed.dataset, force=True), failed.target)]
        assert shown.pane.view.cursor == 0  # where the new job will be


async def test_a_running_job_is_not_retried(source: Scenario) -> None:
    job = source.job(JobState.running, READINGS)
    guard = DEFAULT_KEYMAP.by_id["retry"].guard
    assert guard(Situation(pane="jobs", job=job)) == "this job has not ended: press x to cancel it"
    assert guard(Situation(pane="jobs", job=source.known[-1])) is None


async def test_a_job_is_cancelled_after_a_question(source: Scenario) -> None:
    job = source.job(JobState.running, READINGS)
    source.changed(job)
    link = ScriptedLink(source)

    async def connect() -> ScriptedLink:
        return link

    async with jobs(source, answers=[False, True, True]) as shown:
        shown.fakes.jobs.connection = SimpleNamespace(link=connect)
        for situation in (
            Situation(pane="jobs", job=job),
            Situation(pane="jobs", job=job),
            Situation(pane="datasets", job=source.known[-1], dataset_job=job),
        ):
            shown.host.now = situation
            shown.controller.cancel()
            await shown.settle()
    assert link.cancelled == [job.id, job.id]


async def test_a_log_is_saved(source: Scenario, tmp_path: Path) -> None:
    saved = tmp_path / "pull.log"
    answers = [saved, saved, False, saved, True, Path("/nowhere/else.log")]
    async with jobs(source, answers=answers) as shown:
        shown.controller.save_log()
        await shown.settle()
        assert shown.host.last_notice == f"2 lines saved to {saved}"
        assert shown.host.dialogs[0]._path == "pull-port-haven.clinics-3.log"
        text = saved.read_text()
        assert "error   reading stopped at row 212" in text
        assert "# hint: correct the file, or declare the column STRING" in text
        saved.write_text("mine")
        for expected in ("mine", text):  # the question is answered with no, then yes
            shown.controller.save_log()
            await shown.settle()
            assert saved.read_text() == expected
        shown.controller.save_log()
        await shown.settle()
        assert "the log cannot be saved" in shown.host.last_notice
    assert log_file_name(replace(source.known[-1], target="a/../b c")) == "pull-a-..-b-c-3.log"


@pytest.mark.usefixtures("at_nine")
async def test_lost_worker_is_reported_and_can_be_restarted(source: Scenario) -> None:
    restarts: list[str] = []
    async with jobs(source) as shown:
        shown.fakes.jobs.connection = SimpleNamespace(restart=lambda: restarts.append("now"))
        job = source.job(JobState.running, READINGS)
        await shown.apply(source.changed(job))
        source.changed(replace(job, state=JobState.interrupted, error=INTERRUPTED))
        shown.state.set_worker(WorkerConnectionState("connected"))
        shown.state.set_worker(WorkerConnectionState("gone", WORKER_ENDED))
        await shown.settle()
        text = shown.drive.text()
        assert "✗ the worker has ended" in text and "Press R to restart the worker" in text
        assert shown.host.notices[-1] == ("the worker has ended: press R to restart it", "warn")
        assert shown.state.jobs.jobs[job.id].state is JobState.interrupted  # read from the journal
        assert shown.worker[-1] == "gone"
        shown.controller.restart_worker()
        assert restarts == ["now"]
        shown.state.set_worker(WorkerConnectionState("starting"))
        assert shown.host.last_notice == "starting the worker …"
        shown.state.set_worker(WorkerConnectionState("connected"))
        await shown.settle()
        assert "the worker has ended" not in shown.drive.text()


async def test_a_busy_worker_of_another_version_is_stopped_only_after_a_question(source: Scenario) -> None:
    restarts: list[str] = []
    async with jobs(source, answers=[False, True]) as shown:
        shown.fakes.jobs.connection = SimpleNamespace(restart=lambda: restarts.append("now"))
        reason = "a worker of version 0.0.9 is busy, and this is version 0.1.0"
        shown.state.set_worker(WorkerConnectionState("gone", reason, "wait for it", 2))
        await shown.settle()
        assert "Press R to stop it and its 2 jobs" in shown.drive.text()
        assert shown.worker[-1] == OTHER_VERSION
        shown.controller.restart_worker()
        await shown.settle()
        assert (source.stopped, restarts) == (0, [])
        question = "".join(text for line in shown.host.dialogs[0]._lines for text, _ in line)
        assert "Stop that worker? 2 jobs will be cancelled" in question
        shown.controller.restart_worker()
        await shown.settle()
        assert (source.stopped, restarts) == (1, ["now"])


async def test_spark_start_failure_is_shown_with_its_hint(source: Scenario) -> None:
    async with jobs(source, (160, 50)) as shown:
        down = WorkerStatus(1, 4, "0.1.0", "failed", "there is no Java", 0, 0, 0, spark_hint="install one")
        await shown.apply(down)
        assert "Spark failed: there is no Java" in shown.drive.text()
        assert "install one" in shown.drive.text()
        await shown.apply(replace(down, spark="ready", spark_detail="", spark_hint=""))
        assert "Spark does not run" not in shown.drive.text()


async def test_the_end_of_a_job_is_shown_unless_it_is_quiet(source: Scenario) -> None:
    async with jobs(source) as shown:
        for quiet in (False, True):
            job = source.job(JobState.running, "harbour.tides", "verify")
            await shown.apply(source.changed(job))
            shown.fakes.jobs.quiet = {job.id} if quiet else set()
            await shown.apply(source.changed(replace(job, state=JobState.done, result='{"valid": true}')))
        assert [text for text, _ in shown.host.notices if text.startswith("verify")] == [
            "verify harbour.tides: valid"
        ]


async def test_logs_of_ended_jobs_are_dropped_from_memory(source: Scenario) -> None:
    for number in range(20):
        job = source.job(JobState.done, "harbour.tides")
        source.changed(job)
        source.line(job.id, f"of number {number}")
    async with jobs(source) as shown:
        for at in range(20):
            await shown.select(at)
        assert "of number 0" in shown.drive.text()
        assert len(shown.state.jobs.logs) <= LOGS
        await shown.select(0)
        assert "of number 19" in shown.drive.text()


@pytest.mark.usefixtures("at_nine")
async def test_the_log_screen_gets_new_lines_and_the_state(source: Scenario) -> None:
    job = source.job(JobState.running, READINGS)
    source.changed(job)
    screens: list[LogScreen] = []

    def on_screen(screen: LogScreen) -> str:
        screens.append(screen)
        screen.details = True
        return "retry"

    async with jobs(source, answers=[on_screen]) as shown:
        shown.controller.open_log()
        assert screens[0].job == job
        assert shown.pane.details  # chosen on the log screen
        assert shown.host.performed == ["retry"]


class Log:
    """The log of a running job in the log screen.

    Attributes:
        saved: the jobs of which the user saved the log.
    """

    def __init__(self, source: Scenario, texts: Iterable[str]) -> None:
        self.source = source
        self.job = source.job(JobState.running, READINGS)
        source.changed(self.job)
        self.lines = [source.line(self.job.id, text) for text in texts]
        self.saved: list[Job] = []
        self.copied: list[str] = []
        self.screen = LogScreen(
            self.job, source, JobRates(), copy=self.copied.append, save=self.saved.append,
            details=False, wrap=True,
        )  # type: ignore[arg-type] # fmt: skip

    def add(self, texts: Iterable[str]) -> None:
        """Add lines to the log."""
        self.screen.apply_events([self.source.line(self.job.id, text) for text in texts], self.job)


async def test_a_log_is_searched(source: Scenario) -> None:
    texts = (
        f"file {number} of many, which is read [red]as it is[/]\x1b[31m and no other way"
        for number in range(1, 5001)
    )
    log = Log(source, texts)
    async with driven_widget(log.screen, source) as drive:
        assert "file 5000 of" in drive.text() and "following" in drive.text()
        await drive.press("slash", "=file 77", "enter")  # upwards from the end: 779
        await drive.until(lambda: "file 779 of" in drive.text())
        await drive.press("N", "N")
        assert "file 777 of" in drive.text() and "G follows" in drive.text()
        compare(drive, "searched")  # the matches are visible, wrapped, control characters replaced
        await drive.press("n", "n", "n")
        assert "no match below" in drive.text()
        await drive.press("g")
        assert "file 1 of" in drive.text()
        await drive.press("escape")  # the search first
        assert drive.app.screen is log.screen
        log.add(["one more"])
        await drive.press("G")
        await drive.until(lambda: "one more" in drive.text())
        await drive.press("S")
        assert log.saved == [log.job]
        await drive.press("escape")
        assert drive.app.screen is drive.bench


async def test_a_log_that_grows_does_not_scroll_away(source: Scenario) -> None:
    log = Log(source, (f"line {number}" for number in range(100)))
    async with driven_widget(log.screen, source) as drive:
        await drive.press("k", "k")
        assert "line 97" in drive.text() and "line 98" not in drive.text()
        log.add(f"line {number}" for number in range(100, 300))
        await drive.until(lambda: log.screen._paint_timer is None)  # painted
        await drive.settle()
        assert len(log.screen.window.lines) == 300
        assert "line 97" in drive.text() and "line 98" not in drive.text()
        assert log.screen.window.lines[0] == log.lines[0]
        await drive.press("G")
        await drive.until(lambda: "line 299" in drive.text())
        await drive.press("w", "m")
        assert "no throughput data" in drive.text()
        assert not log.screen.wraps
        await drive.press("y")
        assert len(log.copied[0].splitlines()) == 300


async def test_older_lines_are_read_above_the_visible_ones(source: Scenario) -> None:
    log = Log(source, (f"line {number}" for number in range(2500)))
    async with driven_widget(log.screen, source) as drive:
        assert log.screen.window.lines[0] == log.lines[500]  # a page has 2000 lines
        log.screen._lines.go(10)
        await drive.press("k")
        await drive.until(lambda: len(log.screen.window.lines) == 2500)
        await drive.settle()
        assert "line 502 " in drive.text().splitlines()[1]
        assert "G follows" in drive.text()


async def test_an_open_log_shows_that_its_job_was_interrupted(source: Scenario) -> None:
    log = Log(source, ["reading"])
    async with driven_widget(log.screen, source) as drive:
        assert "· running" in drive.text()
        log.screen.apply_events([], replace(log.job, state=JobState.interrupted, error=INTERRUPTED))
        await drive.settle()
        assert "· interrupted" in drive.text()
        assert "worker stopped while this job was running" in drive.text()
        await drive.press("full_stop")
        assert drive.app.result == "retry"


def page(first: int, last: int, source: Scenario, *, older: bool, newer: bool) -> LogPage:
    """Return a page of the journal."""
    return LogPage(source.journal.events(job="9")[first:last], older, newer)


def test_a_window_on_a_log_has_no_gaps(source: Scenario) -> None:
    before = source.journal.last_seq()
    for number in range(50):
        source.line("9", f"line {number}")
    window = LogWindow(max_lines=20)
    window.load(page(40, 50, source, older=True, newer=False))
    window.prepend(page(25, 40, source, older=True, newer=False))
    assert [line.seq - before for line in window.lines] == list(range(26, 46))
    assert window.newer and window.last_seq == before + 45
    window.add([source.line("9", "not now: there would be a gap")])
    assert window.last_seq == before + 45
    window.extend(page(45, 51, source, older=True, newer=False))
    assert [line.seq - before for line in window.lines] == list(range(32, 52))
    assert window.older and not window.newer
    window.add(source.journal.events(before + 40))
    assert window.last_seq == before + 51
    assert len(merge_log_entries(source.journal.events(before))) == 51


def test_remaining_time_is_estimated_from_steady_rates() -> None:
    job = Job("1", "pull", "a", "a", JobState.running, "2024-03-11T09:00:00Z")
    job = replace(job, progress=Progress("write", rows=1000, total_rows=13_000))
    rates = JobRates()
    rates.add(samples(job, seconds=3).samples)
    assert rates.seconds_left(job) is None  # too few samples
    steady = [Sample(float(at), {"1": Rate(rows=100)}) for at in range(10)]
    rates = JobRates()
    rates.add(steady)
    rates.add(steady)  # sent again
    assert len(rates.samples) == 10
    assert rates.seconds_left(job) == 120 and format_time_left(120) == "~2 min left"
    assert progress_text(job, rates, 80).startswith("write · ▁▁▁▁▁▁▁▁ 7% · 1 000 of 13 000 rows · 100 rows/s")
    assert progress_text(job, rates, 60) == "write · ▁▁▁▁▁▁▁▁ 7% · 100 rows/s · ~2 min left"
    assert progress_text(job, rates, 40) == "write · 7% · 100 rows/s · ~2 min left"
    assert progress_text(job, rates, 25) == "write · 7% · ~2 min left"
    assert progress_text(job, rates, 10) == "write · 7%"
    read = replace(job, progress=Progress("read", rows=1000, total_rows=13_000))
    assert rates.seconds_left(read) is None  # the end of this phase is not the end of the job
    full = replace(job, progress=Progress("write", rows=13_000, total_rows=13_000))
    assert rates.seconds_left(full) is None
    assert progress_text(full, rates, 12) == "write · 99%" and percent_done(full.progress) == 99
    rates.add(Sample(20.0 + at, {"1": Rate(rows=1000 if at % 2 else 10)}) for at in range(3))
    assert rates.seconds_left(job) is None  # not steady
    assert (format_time_left(None), format_time_left(0.2), format_time_left(40_000)) == (
        "",
        "~1 s left",
        "~11 h left",
    )
    assert sparkline([0, 1, 2, 4], 3, 4) == "▂▄█"
    assert sparkline([0, 0], 5) == "▁▁"


def test_queue_text_names_position_and_blocking_jobs() -> None:
    def job(number: int, dataset: str, kind: str = "pull", state: JobState = JobState.queued) -> Job:
        return Job(str(number), kind, dataset, dataset, state, "2024-03-11T09:00:00Z")

    first, second = job(1, "a", state=JobState.running), job(2, "b")
    assert (
        queue_text(job(3, "c"), [first, second], {"c": ["a", "b"]}) == "2nd in queue, after pull a and 1 more"
    )
    assert queue_text(job(3, "c"), [first], {"c": ["a"]}) == "next in queue, after pull a"
    assert queue_text(job(3, "c", "verify"), [first, second], {"c": ["a"]}) == "2nd in queue"
    assert queue_text(job(3, "a", "verify"), [first], {}) == "next in queue, after pull a"
    assert [ordinal(each) for each in (1, 2, 3, 4, 11, 12, 21, 112)] == [
        "1st", "2nd", "3rd", "4th", "11th", "12th", "21st", "112th",
    ]  # fmt: skip


def test_outcome_of_a_read_only_job_is_its_row_count() -> None:
    def outcome(kind: str, result: str) -> str:
        job = Job("1", kind, "a", "a", JobState.done, "2024-03-11T09:00:00Z", result=result)
        return job_outcome(job)[0]

    assert outcome("sql", '{"rows": 1200, "truncated": true}') == "1 200 rows, truncated"
    assert outcome("project", '{"rows": 3, "of": 12}') == "3 rows of 12"
    assert (
        outcome("export", '{"rows": 3, "size": 1200, "path": "/x/rows.csv"}') == "3 rows, 1.2 kB in rows.csv"
    )
    assert outcome("describe", '{"rows": 3}') == "3 rows profiled"
