"""Pane 4: jobs as they run and wait, their logs, what they lead to, and a worker that is in trouble.

``ODF_UPDATE_GOLDEN=1`` writes ``tests/golden/jobs-*.txt`` anew; look at the difference before you commit it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from odf_engine.coordinator.client import VersionMismatch
from odf_engine.coordinator.job_log import INTERRUPTED
from odf_engine.coordinator.protocol import (
    Job,
    JobProgress,
    JobState,
    Progress,
    Pull,
    Rate,
    Sample,
    Samples,
    Verify,
    WorkerStatus,
)
from odf_engine.metadata.timestamp import Timestamp
from odf_tui.panes.jobs.controller import LOGS
from odf_tui.panes.jobs.log_screen import LogScreen
from odf_tui.state.job_book import LogPage, LogWindow, WrittenBlock, file_name, merge_log_entries
from odf_tui.text.job_text import (
    JobRates,
    format_time_left,
    job_outcome,
    ordinal,
    progress_text,
    queue_text,
    sparkline,
)
from tests.tui.conftest import Driven, driven
from tests.tui.fake import FakeSource

pytestmark = pytest.mark.app

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
READINGS = "port-haven.air-readings"


def compare(drive: Driven, name: str) -> None:
    """Compares the pane, or the screen above the workbench, with its golden text."""
    lines = drive.text().splitlines()
    text = "\n".join(lines if isinstance(drive.app.screen, LogScreen) else lines[:-2]) + "\n"
    path = GOLDEN / f"jobs-{name}.txt"
    if os.environ.get("ODF_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.fixture
def at_nine(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is half a minute past nine."""
    monkeypatch.setattr(Timestamp, "now", classmethod(lambda _: Timestamp.parse("2024-03-11T09:00:31Z")))


def busy(source: FakeSource) -> Job:
    """A pull that writes, one that reads, and three that wait; returns the first."""
    first = source.job(JobState.running, READINGS)
    source.changed(first)
    source.changed(source.job(JobState.running, "harbour.tides"))
    source.changed(source.job(JobState.queued, "port-haven.clinics"))
    source.changed(source.job(JobState.queued, "air-by-day"))
    source.changed(source.job(JobState.queued, READINGS, "verify"))
    source.line(first.id, "file sources/air-readings.csv, 311,210,011 bytes, of 2024-03-11T08:00:00Z")
    source.line(first.id, "remembers the keys up to offset 7,199", "debug")
    source.line(first.id, "air-readings.csv: read, merged and written, 41,000 rows, 318,207 bytes in 9.3 s")
    source.line(first.id, f"air-readings.csv: block f1620{'ab' * 32}, 41,000 rows, in 9.9 s all in all")
    source.committed(first.id, first.dataset, 41_000)
    source.line(first.id, "3 rows came too late for what they belong to: left out", "warning")
    return first


def samples(*jobs: Job, seconds: int = 60) -> Samples:
    """A minute of steady work; Spark's memory goes up and is freed."""
    rates = {job.id: Rate(rows=48_000 + 200 * number) for number, job in enumerate(jobs)}
    return Samples(
        [
            Sample(1_000.0 + at, rates, 200_000_000 + at % 20 * 30_000_000, 1_000_000_000, 1_700_000_000)
            for at in range(seconds)
        ]
    )


async def started(drive: Driven, first: Job) -> None:
    """Progress and samples arrive."""
    drive.source.link.tell(
        JobProgress(first.id, Progress("write", rows=1_200_000, total_rows=6_000_000)), samples(first)
    )
    await drive.until(lambda: drive.jobs_pane.pace.samples)
    drive.bench.state.second.send(None)
    await drive.press("4", "z", "j", "j", "j", "j")
    await drive.settle()


@pytest.mark.usefixtures("at_nine")
@pytest.mark.parametrize("size", [(80, 24), (160, 50)], ids=lambda size: f"{size[0]}x{size[1]}")
async def test_jobs_that_run_and_wait(source: FakeSource, size: tuple[int, int]) -> None:
    first = busy(source)
    async with driven(source, size) as drive:
        await started(drive, first)
        text = drive.text()
        assert "20%" in text and "48.0k rows/s" in text and "~2 min left" in text
        assert "after pull port-haven.air-readings" in text or size[0] == 80
        assert "◆ air-readings.csv: block …abababab, 41,000 rows" in text
        assert text.count("abababab") == 1  # not again for what the journal has of it
        assert "1.0 GB" in text
        compare(drive, f"{size[0]}x{size[1]}-running")


@pytest.mark.usefixtures("at_nine")
async def test_a_failed_job_and_its_details(source: FakeSource) -> None:
    failed = source.known[-1]
    source.line(failed.id, "Traceback (most recent call last):", "debug")
    source.line(failed.id, '  File "read.py", line 12, in read', "debug")
    async with driven(source, (80, 24)) as drive:
        await drive.press("4", "z")
        assert "Traceback" not in drive.text()
        assert "i shows 2 more lines, . tries again" in drive.text()
        await drive.press("i")
        assert "Traceback" in drive.text()
        assert "more lines" not in drive.text()
        compare(drive, "80x24-failed")
        await drive.press("i")
        assert "Traceback" not in drive.text()


@pytest.mark.usefixtures("at_nine")
async def test_a_log_is_searched(source: FakeSource) -> None:
    job = source.job(JobState.running, READINGS)
    source.changed(job)
    for number in range(1, 5001):
        source.line(job.id, f"file {number} of many, which is read [red]as it is[/]\x1b[31m and no other way")
    async with driven(source, (80, 24)) as drive:
        await drive.press("4", "enter")
        assert "file 5000 of" in drive.text() and "follows" in drive.text()
        await drive.press("slash", "=file 77", "enter")  # the newest is found first: 779
        log = drive.app.screen
        assert isinstance(log, LogScreen)
        await drive.until(lambda: "file 779 of" in drive.text())
        await drive.press("N", "N")
        assert "file 777 of" in drive.text() and "G follows" in drive.text()
        compare(drive, "80x24-searched")
        await drive.press("n", "n", "n")
        assert "none below" in drive.text()
        await drive.press("g")
        assert "file 1 of" in drive.text()
        await drive.press("escape")  # the search
        assert drive.app.screen is log
        drive.source.link.tell(source.line(job.id, "one more"))
        await drive.press("G")
        await drive.until(lambda: "one more" in drive.text())
        await drive.press("escape")
        assert drive.app.screen is drive.bench


@pytest.mark.usefixtures("at_nine")
async def test_a_log_stays_where_one_reads(source: FakeSource) -> None:
    job = source.job(JobState.running, READINGS)
    source.changed(job)
    told = [source.line(job.id, f"line {number}") for number in range(100)]
    async with driven(source, (80, 24)) as drive:
        await drive.press("4", "enter", "k", "k")
        log = drive.app.screen
        assert isinstance(log, LogScreen)
        assert "line 97" in drive.text() and "line 98" not in drive.text()
        drive.source.link.tell(*(source.line(job.id, f"line {number}") for number in range(100, 300)))
        await drive.until(lambda: len(log.window.lines) == 300)
        await drive.settle()
        assert "line 97" in drive.text() and "line 98" not in drive.text()
        assert log.window.lines[0] == told[0]
        await drive.press("G")
        await drive.until(lambda: "line 299" in drive.text())
        await drive.press("w", "m")
        assert "nothing is known of its speed" in drive.text()


def page(first: int, last: int, source: FakeSource, *, older: bool, newer: bool) -> LogPage:
    """Lines by their numbers."""
    return LogPage(list(source.journal[first:last]), older, newer)


def test_a_window_on_a_log_has_no_gaps(source: FakeSource) -> None:
    source.journal.clear()
    for number in range(50):
        source.line("1", f"line {number}")
    window = LogWindow(most=20)
    window.load(page(40, 50, source, older=True, newer=False))
    window.prepend(page(25, 40, source, older=True, newer=False))
    assert [line.seq for line in window.lines] == list(range(26, 46))
    assert window.newer and window.last_seq == 45
    window.add([source.line("1", "not now: there would be a gap")])
    assert window.last_seq == 45
    window.extend(page(45, 51, source, older=True, newer=False))
    assert [line.seq for line in window.lines] == list(range(32, 52))
    assert window.older and not window.newer
    window.add(source.journal[40:])
    assert window.last_seq == 51
    assert len(merge_log_entries(source.journal)) == 51


def test_rates_and_what_is_left() -> None:
    job = Job("1", "pull", "a", "a", JobState.running, "2024-03-11T09:00:00Z")
    job = replace(job, progress=Progress("write", rows=1000, total_rows=13_000))
    pace = JobRates()
    pace.add(samples(job, seconds=3).samples)
    assert pace.seconds_left(job) is None  # not for long enough
    steady = [Sample(float(at), {"1": Rate(rows=100)}) for at in range(10)]
    pace = JobRates()
    pace.add(steady)
    pace.add(steady)  # told again
    assert len(pace.samples) == 10
    assert pace.seconds_left(job) == 120 and format_time_left(120) == "~2 min left"
    assert progress_text(job, pace, 80).startswith("write · ▁▁▁▁▁▁▁▁ 8% · 1 000 of 13 000 rows · 100 rows/s")
    assert progress_text(job, pace, 60) == "write · ▁▁▁▁▁▁▁▁ 8% · 100 rows/s · ~2 min left"
    assert progress_text(job, pace, 40) == "write · 8% · 100 rows/s · ~2 min left"
    assert progress_text(job, pace, 25) == "write · 8% · ~2 min left"
    assert progress_text(job, pace, 10) == "write · 8%"
    pace.add(Sample(20.0 + at, {"1": Rate(rows=1000 if at % 2 else 10)}) for at in range(3))
    assert pace.seconds_left(job) is None  # not steady
    assert (format_time_left(None), format_time_left(0.2), format_time_left(40_000)) == (
        "",
        "~1 s left",
        "~11 h left",
    )
    assert sparkline([0, 1, 2, 4], 3, 4) == "▂▄█"
    assert sparkline([0, 0], 5) == "▁▁"


def test_the_place_in_the_queue() -> None:
    def job(number: int, dataset: str, kind: str = "pull", state: JobState = JobState.queued) -> Job:
        return Job(str(number), kind, dataset, dataset, state, "2024-03-11T09:00:00Z")

    first, second = job(1, "a", state=JobState.running), job(2, "b")
    assert (
        queue_text(job(3, "c"), [first, second], {"c": ["a", "b"]}) == "2nd in line, after pull a and 1 more"
    )
    assert queue_text(job(3, "c"), [first], {"c": ["a"]}) == "next in line, after pull a"
    assert queue_text(job(3, "c", "verify"), [first, second], {"c": ["a"]}) == "2nd in line"
    assert queue_text(job(3, "a", "verify"), [first], {}) == "next in line, after pull a"
    assert [ordinal(each) for each in (1, 2, 3, 4, 11, 12, 21, 112)] == [
        "1st", "2nd", "3rd", "4th", "11th", "12th", "21st", "112th",
    ]  # fmt: skip


async def test_a_job_leads_to_the_block_that_it_wrote(source: FakeSource) -> None:
    done = next(job for job in source.known if job.state is JobState.done and job.kind == "pull")
    source.blocks_of[done.id] = [WrittenBlock(done.dataset, 5, "f1620aa", "AddData", 7200)]
    async with driven(source) as drive:
        await drive.press("4", "b")
        assert "wrote no block" in drive.hint()
        await drive.press("j", "j", "b")
        assert drive.pane == "blocks"
        assert drive.blocks_pane.view.block is not None
        assert drive.blocks_pane.view.block.sequence_number == 5
        source.blocks_of[done.id].append(WrittenBlock(done.dataset, 3, "f1620bb", "AddData", 0))
        await drive.press("4", "b", "down", "enter")
        assert drive.blocks_pane.view.block.sequence_number == 3


async def test_a_job_is_done_again(source: FakeSource) -> None:
    failed = source.known[-1]
    source.requests[failed.id] = Pull(dataset=failed.dataset, force=True)
    source.changed(source.job(JobState.failed, READINGS, "ingest"))
    async with driven(source) as drive:
        await drive.press("4", "full_stop")
        assert "what it read is gone" in drive.hint()
        assert source.link.submitted == []
        await drive.press("j", "full_stop")
        assert source.link.submitted == [Pull(dataset=failed.dataset, force=True)]
        await drive.until(lambda: drive.book.active_jobs())
        await drive.press("g", "full_stop")
        assert "it has not ended: x cancels it" in drive.hint()


async def test_a_log_is_saved(source: FakeSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with driven(source) as drive:
        await drive.press("4", "S")
        assert str(tmp_path)[:30] in drive.text()
        await drive.press("enter")
        await drive.until(lambda: "2 lines saved to" in drive.hint())
        saved = tmp_path / "pull-port-haven.clinics-3.log"
        text = saved.read_text()
        assert "error   reading stopped at row 212" in text
        assert "# try: correct the file, or declare the column STRING" in text
        saved.write_text("mine")
        await drive.press("enter", "S", "enter")  # from the log itself
        await drive.until(lambda: "is there already" in drive.text())
        await drive.press("n")
        assert saved.read_text() == "mine"
        await drive.press("S", "enter")
        await drive.until(lambda: "is there already" in drive.text())
        await drive.press("y")
        await drive.until(lambda: saved.read_text() == text)
        await drive.press("S", "=/nowhere/else.log", "enter")
        await drive.until(lambda: "is not saved" in drive.text())
    assert file_name(replace(source.known[-1], target="a/../b c")) == "pull-a-..-b-c-3.log"


@pytest.mark.usefixtures("at_nine")
async def test_a_worker_that_is_gone(source: FakeSource) -> None:
    async with driven(source, (80, 24)) as drive:
        await drive.press("4", "z")
        source.link.die()
        await drive.until(lambda: "✗ the worker has ended" in drive.text())
        await drive.settle()
        assert "R starts it again" in drive.text()
        compare(drive, "80x24-gone")
        await drive.press("R")
        await drive.until(lambda: "the worker has ended" not in drive.text())


async def test_an_open_log_hears_that_the_worker_is_gone(source: FakeSource) -> None:
    job = source.job(JobState.running, READINGS)
    source.changed(job)
    async with driven(source, (80, 24)) as drive:
        await drive.press("4", "enter")
        assert "· running" in drive.text()
        source.changed(replace(job, state=JobState.interrupted, error=INTERRUPTED))
        source.link.die()
        await drive.until(lambda: "· interrupted" in drive.text())
        assert "the worker ended before this job did" in drive.text()
        await drive.press("full_stop")  # leaves the log, and does it again
        await drive.until(lambda: len(source.links) == 2 and source.link.submitted)
        assert drive.app.screen is drive.bench


async def test_a_busy_worker_of_another_version_is_never_ended_without_asking(source: FakeSource) -> None:
    error = VersionMismatch(
        "a worker of version 0.0.9 is busy, and this is version 0.1.0", hint="wait for it"
    )
    error.jobs = 2
    async with driven(source) as drive:
        source.connecting = [error]
        source.link.die()
        await drive.until(lambda: drive.worker_state == "gone")
        await drive.press("R")
        await drive.until(lambda: "R stops it, with its 2 jobs" in drive.text())
        await drive.press("R")
        assert "Stop that worker? 2 of its jobs would be cancelled" in drive.text()
        await drive.press("n")
        assert source.stopped == 0
        await drive.press("R", "y")
        assert source.stopped == 1
        await drive.until(lambda: drive.worker_state == "connected")


async def test_spark_that_does_not_start(source: FakeSource) -> None:
    async with driven(source, (160, 50)) as drive:
        down = WorkerStatus(1, 4, "0.1.0", "failed", "there is no Java", 0, 0, 0, spark_hint="install one")
        source.link.tell(down)
        await drive.until(lambda: "Spark does not run: there is no Java" in drive.text())
        assert "install one" in drive.text()
        source.link.tell(replace(down, spark="ready", spark_detail="", spark_hint=""))
        await drive.until(lambda: "Spark does not run" not in drive.text())
        await drive.press("v")
        assert source.link.submitted == [Verify(dataset="did:odf:port-haven.air-readings")]


def test_what_jobs_found_that_only_look() -> None:
    def said(kind: str, result: str) -> str:
        job = Job("1", kind, "a", "a", JobState.done, "2024-03-11T09:00:00Z", result=result)
        return job_outcome(job)[0]

    assert said("sql", '{"rows": 1200, "truncated": true}') == "1 200 rows, there are more"
    assert said("project", '{"rows": 3, "of": 12}') == "3 rows of 12"
    assert said("export", '{"rows": 3, "size": 1200, "path": "/x/rows.csv"}') == "3 rows, 1.2 kB in rows.csv"
    assert said("describe", '{"rows": 3}') == "3 rows looked at"


async def test_logs_of_many_jobs_do_not_stay_in_memory(source: FakeSource) -> None:
    for number in range(20):
        job = source.job(JobState.done, "harbour.tides")
        source.changed(job)
        source.line(job.id, f"of number {number}")
    async with driven(source, (80, 24)) as drive:
        await drive.press("4")
        for _ in range(19):
            await drive.press("j")
        assert "of number 0" in drive.text()
        assert len(drive.book.logs) <= LOGS
        await drive.press("g")
        assert "of number 19" in drive.text()
