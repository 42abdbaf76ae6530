"""Looking closer at rows: statistics, the current state by key, files of rows."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from msgspec import structs
from msgspec.structs import replace

from odf_engine.coordinator.protocol import (
    BuildProjection,
    ComputeStatistics,
    Export,
    Failure,
    Job,
    JobState,
    Progress,
)
from odf_engine.views.statistics import ColumnStatistics, FrequentValue
from odf_tui.features.statistics import (
    distinct,
    distribution_sparkline,
    format_percent,
    number,
    short_distinct,
)
from odf_tui.state.model import Health
from odf_tui.widgets.row_table import load_window
from tests.tui.conftest import Driven, driven
from tests.tui.fake import FakeSource

pytestmark = pytest.mark.app

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
AIR = "did:odf:port-haven.air-readings"
SIZES = [(80, 24), (160, 50)]


def compare(drive: Driven, name: str, part: str = ".dialog") -> None:
    """Compares a part of the screen with its golden text."""
    width, height = drive.app.size
    path = GOLDEN / f"stats-{width}x{height}-{name}.txt"
    region = drive.app.screen.query(part).first().region
    shown = drive.text().splitlines()[region.y : region.bottom]
    text = "\n".join(line[region.x : region.right].rstrip() for line in shown) + "\n"
    if os.environ.get("ODF_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def _started_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the program was started."""
    monkeypatch.setattr(Path, "cwd", classmethod(lambda cls: cls("/srv/haven/ada")))
    monkeypatch.setattr(Path, "absolute", lambda path: Path("/srv/haven/ada") / path)


def test_numbers_as_people_read_them() -> None:
    assert [format_percent(part, 10_000) for part in (0, 3, 10, 1430, 9999, 10_000)] == [
        "0 %", "< 0.1 %", "0.1 %", "14.3 %", "> 99.9 %", "100 %",
    ]  # fmt: skip
    exact = ColumnStatistics(name="a", type="int64", distinct=123_456)
    assert (distinct(exact), short_distinct(exact)) == ("123 456", "123k")
    estimate = structs.replace(exact, exact=False)
    assert (distinct(estimate), short_distinct(estimate)) == ("≈ 120 000", "≈123k")
    means = [number(each) for each in (0.0, 3.0, -0.5, 22.7512345, 1234567.125, 1e-9, 1.5e18)]
    assert means == ["0", "3", "-0.5", "22.7512", "1 234 567", "1e-09", "1.5e+18"]


def test_drawings_in_less_room() -> None:
    column = ColumnStatistics(name="a", type="double", bins=[1, 0, 7, 8])
    assert distribution_sparkline(column, 4) == "▁ ▇█"
    assert distribution_sparkline(column, 3) == "▁█"
    assert (
        distribution_sparkline(ColumnStatistics(name="a", type="string", frequent=[FrequentValue("x", 1)]), 3)
        == ""
    )


async def job_of(drive: Driven) -> Job:
    """The newest job, once the screen knows of it."""
    await drive.until(lambda: drive.source.link.submitted)
    await drive.until(lambda: drive.book.active_jobs())
    return drive.book.active_jobs()[-1]


async def ends(drive: Driven, job: Job, **how: object) -> None:
    """The worker says that a job has ended."""
    state = how.pop("state", JobState.done)
    result = how.pop("result", None)
    ended = replace(
        job,
        state=state,
        started="2024-03-11T09:00:00Z",
        ended="2024-03-11T09:00:02Z",
        result=None if result is None else json.dumps(result),
        **how,
    )
    drive.source.link.tell(drive.source.changed(ended))
    await drive.until(lambda: drive.book.jobs[job.id].state.final)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_statistics_that_were_counted_before(source: FakeSource, size: tuple[int, int]) -> None:
    source.counted.add(AIR)
    async with driven(source, size) as drive:
        await drive.press("3", "i", "j", "j", "j")
        compare(drive, "numbers")
        await drive.press("k")
        compare(drive, "texts")
        assert not drive.source.link.submitted
        await drive.press("escape")
        assert drive.app.screen is drive.bench


async def test_statistics_from_what_files_tell_to_what_was_counted(source: FakeSource) -> None:
    async with driven(source) as drive:
        await drive.press("3", "i", "j")
        job = await job_of(drive)
        assert drive.source.link.submitted == [ComputeStatistics(AIR)]
        assert "2024-12-25 23:00:00" in drive.text()
        assert "…" in drive.text()
        running = replace(job, state=JobState.running, started="2024-03-11T09:00:00Z")
        amounts = Progress("count", rows=1200, total_rows=7200)
        drive.source.link.tell(drive.source.changed(replace(running, progress=amounts)))
        await drive.until(lambda: "1 200 of 7 200 rows" in drive.text())
        assert drive.healths[AIR] is Health.current  # nothing is being done to the dataset
        source.counted.add(AIR)
        await ends(drive, running, result={"name": "x", "rows": 7200})
        await drive.until(lambda: "the whole changelog" in drive.text())
        assert "7 200" in drive.text()
        await drive.press("j", "j", "y")
        assert drive.hint().startswith(" statistics: ")


async def test_counting_is_stopped(source: FakeSource) -> None:
    async with driven(source) as drive:
        await drive.press("3", "i")
        job = await job_of(drive)
        await drive.press("c")
        await drive.until(lambda: drive.source.link.cancelled == [job.id])
        await ends(drive, job, state=JobState.cancelled)
        await drive.until(lambda: "cancelled: what is shown is what the files tell" in drive.text())


async def test_a_count_that_fails_says_why(source: FakeSource) -> None:
    async with driven(source) as drive:
        await drive.press("3", "i")
        job = await job_of(drive)
        error = Failure(
            "the file with these rows is not there", hint="odf verify shows it", where="slice abc"
        )
        await ends(drive, job, state=JobState.failed, error=error)
        await drive.until(lambda: "not there – odf verify shows it (slice abc)" in drive.text())
        assert drive.healths[AIR] is Health.current


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_the_current_state_and_back(source: FakeSource, size: tuple[int, int]) -> None:
    source.keys[AIR] = ["station"]
    async with driven(source, size) as drive:
        await drive.press("3", "j", "j")
        await drive.pilot.press("K")
        job = await job_of(drive)
        assert drive.source.link.submitted == [BuildProjection(AIR, ["station"])]
        result = {"name": "x", "key": ["station"], "rows": 31, "of": 7200, "file": "/cache/state.parquet"}
        await ends(drive, job, result=result)
        await drive.until(lambda: drive.data_pane.front_view is not None)
        await drive.settle()
        assert drive.data_pane.window.row_count == 31
        compare(drive, "state", "#data")


async def test_k_again_shows_all_rows_where_they_were(source: FakeSource) -> None:
    source.keys[AIR] = ["station"]
    async with driven(source) as drive:
        await drive.press("3", "j", "j")
        await drive.pilot.press("K")
        job = await job_of(drive)
        await ends(drive, job, result={"key": ["station"], "rows": 31, "of": 7200, "file": "/s.parquet"})
        await drive.until(lambda: drive.data_pane.front_view is not None)
        await drive.press("i")  # of what is shown
        await drive.until(lambda: len(drive.source.link.submitted) == 2)
        assert drive.source.link.submitted[1] == ComputeStatistics(AIR, file="/s.parquet")
        assert "current state by station" in drive.text()
        await drive.press("escape", "K")
        assert drive.data_pane.front_view is None
        assert drive.data_pane.view.cursor == 2


async def test_another_key_than_that_of_the_source(source: FakeSource) -> None:
    source.keys[AIR] = ["station", "event_time"]
    async with driven(source) as drive:
        await drive.press("3")
        await drive.pilot.press("B")
        await drive.until(lambda: "✓ station" in drive.text())
        await drive.press("space", "enter")  # the event time is taken out
        await job_of(drive)
        assert drive.source.link.submitted == [BuildProjection(AIR, ["station"])]


async def test_a_key_is_chosen_where_there_is_none_and_remembered(source: FakeSource) -> None:
    async with driven(source, (80, 24)) as drive:
        await drive.press("3")
        await drive.pilot.press("K")
        await drive.until(lambda: "by which key?" in drive.text())
        assert "system_time" not in drive.text().split("by which key?")[1].split("wind speed")[0]
        await drive.press("j", "space", "j", "space", "space")
        compare(drive, "key")
        await drive.press("enter")
        job = await job_of(drive)
        assert drive.source.link.submitted == [BuildProjection(AIR, ["station"])]
        error = Failure("there is no column 'station'")
        await ends(drive, job, state=JobState.failed, error=error)
        await drive.until(lambda: "there is no column 'station'" in drive.hint())
        await drive.until(lambda: drive.app.screen is drive.bench)
        await drive.pilot.press("K")
        await drive.until(lambda: "✓ station" in drive.text())
        await drive.press("escape")
        assert len(drive.source.link.submitted) == 1


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_an_export(source: FakeSource, size: tuple[int, int]) -> None:
    async with driven(source, size) as drive:
        await drive.press("3", "j", "space", "j", "j", "space", "E", "l", "down", "right")
        compare(drive, "export")
        await drive.press("enter")
        job = await job_of(drive)
        path = "/srv/haven/ada/air-readings.ndjson"
        assert drive.source.link.submitted == [
            Export(AIR, path, format="ndjson", ranges=[(1, 4)], system=False)
        ]
        await ends(drive, job, result={"name": "x", "rows": 3, "size": 412_000, "path": path})
        await drive.until(lambda: "3 rows in air-readings.ndjson, 412.0 kB" in drive.hint())


async def test_an_export_of_all_rows_to_another_place(source: FakeSource, tmp_path: Path) -> None:
    there = tmp_path / "mine.txt"
    there.write_text("x")
    async with driven(source) as drive:
        await drive.press("3", "space", "E", "up", "l", "up")  # the choice of rows, then the path
        await drive.press(f"={there}", "enter")
        await drive.until(lambda: "mine.txt is there already" in drive.text())
        await drive.press("n")
        assert not drive.source.link.submitted
        await drive.press("enter", "y")
        await job_of(drive)
        assert drive.source.link.submitted == [Export(AIR, str(there), replace=True)]


async def test_rows_that_no_file_has_are_written_for_the_worker_first(source: FakeSource) -> None:
    async with driven(source) as drive:
        await drive.press("3", "greater_than_sign")
        await drive.until(lambda: drive.data_pane.front_view is not None)
        window = drive.data_pane.window
        await drive.press("E", "enter")
        job = await job_of(drive)
        (request,) = drive.source.link.submitted
        assert request == Export(AIR, "/srv/haven/ada/air-readings.csv", file="spool-1")
        assert source.spooled == [window]
        await ends(drive, job, state=JobState.failed, error=Failure("the folder is not there"))
        await drive.until(lambda: "the folder is not there" in drive.hint())
        await drive.until(lambda: source.unspooled == ["spool-1"])


async def test_the_result_of_a_query(source: FakeSource) -> None:
    async with driven(source) as drive:
        await drive.press("3")
        pane, rows = drive.data_pane, source.file_rows(AIR, "/cache/result.parquet")
        pane.show_view(AIR, load_window(rows), "SQL", "by a query", "sql")
        await drive.press("E")
        assert "[result of the query: 31]" in drive.text()
        assert "all 7 200 rows" not in drive.text().split("result of the query")[1].split("\n")[0]
        await drive.press("enter")
        await job_of(drive)
        (request,) = drive.source.link.submitted
        assert request == Export("", "/srv/haven/ada/result.csv", file="/cache/result.parquet")
        await drive.press("escape", "i")
        await drive.until(lambda: len(drive.source.link.submitted) == 2)
        assert drive.source.link.submitted[1] == ComputeStatistics("", file="/cache/result.parquet")


async def test_while_a_job_goes_on_the_person_goes_on_too(source: FakeSource) -> None:
    async with driven(source) as drive:
        await drive.press("3", "E")
        await drive.pilot.press("enter")
        job = await job_of(drive)
        await drive.pilot.press("b")
        await drive.until(lambda: "is being written" in drive.hint())
        assert drive.app.screen is drive.bench
        await ends(drive, job, result={"rows": 1, "size": 9, "path": "/srv/haven/ada/air-readings.csv"})
        await drive.until(lambda: "1 row" in drive.hint() and "air-readings.csv" in drive.hint())
