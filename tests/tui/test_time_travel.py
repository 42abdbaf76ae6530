"""Tests of time travel: the slider in pane 3, and the rows that it shows."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from odf_engine.api.workspace import Workspace as OpenWorkspace
from odf_engine.chain.dataset import Dataset
from odf_engine.jobs.export import Export
from odf_engine.jobs.views import BuildProjection, ComputeStatistics
from odf_engine.worker.protocol import Failure, Job, JobState, Progress
from odf_engine.workspace.workspace import Workspace
from odf_tui.features.time_travel import controller
from odf_tui.features.time_travel.controller import TimeTravelController
from tests.tui.conftest import Driven, driven
from tests.tui.data_screen import GeneratedTimeline, rows_shown, set_primary_key, show_window, write_rows
from tests.tui.haven import AIR, append, did, mask_hashes
from tests.tui.scripted_worker import Scenario
from tests.tui.test_blocks import hashes
from tests.tui.test_data import dataset, harbour, stored

__all__ = ["dataset", "harbour"]

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
STATIONS = did("port-haven.stations")


@pytest.fixture(autouse=True)
def never_resting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slider rests only in tests that set a shorter time, however slow the machine is."""
    monkeypatch.setattr(controller, "REST_SECONDS", 60)


def compare(drive: Driven, name: str) -> None:
    """Compare the screen with a golden picture."""
    width, height = drive.app.size
    path, text = GOLDEN / f"time-{width}x{height}-{name}.txt", mask_hashes(drive.text())
    if os.environ.get("ODF_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def title(drive: Driven) -> str:
    """Return the upper border of pane 3, without the time zone at its end."""
    text, separator, _ = str(drive.data_pane._border_title).partition(" · times in UTC")
    assert separator
    return text


def track(drive: Driven) -> str:
    """Return the slider as text."""
    panel = drive.time_panel
    assert panel is not None
    region = panel.track.region
    lines = drive.text().splitlines()[region.y : region.bottom]
    return "\n".join(line[region.x : region.right] for line in lines)


async def job_of(drive: Driven, number: int = 1) -> Job:
    """Return the newest job, once the screen has it."""
    await drive.until(lambda: drive.source.links and len(drive.source.link.submitted) >= number)
    made = str(len(drive.source.known))
    await drive.until(lambda: made in drive.book.jobs)
    return drive.book.jobs[made]


async def ends(drive: Driven, job: Job, **how: object) -> None:
    """Let the worker end a job."""
    known = {"state": JobState.done, "started": "2024-03-11T09:00:00Z", "ended": "2024-03-11T09:00:02Z"}
    ended = replace(job, **{**known, **how})
    drive.source.link.tell(drive.source.changed(ended))
    await drive.until(lambda: drive.book.jobs[job.id].state.final)


def state_of(drive: Driven, rows: int, *key: str) -> str:
    """Return the result of a job that wrote rows to a file."""
    file = write_rows(drive.source, rows)
    return json.dumps({"name": "x", "key": key, "rows": rows, "of": 7200, "file": file})


async def test_the_rows_follow_the_slider_along_the_blocks(source: Scenario, dataset: Dataset) -> None:
    window = stored(dataset)
    show_window(source, window)
    real = OpenWorkspace(Workspace(dataset.folder.parents[2]))
    source.timeline = lambda _: real.timeline(str(real._workspace.resolve("rows").id))  # type: ignore[method-assign]
    async with rows_shown(source, (80, 24)) as drive:
        pane = drive.data_pane
        await drive.press("at")
        assert title(drive) == "3 Data · 300 rows" and "○" in track(drive)
        assert "12 blocks with new rows" in track(drive)
        await drive.press("left")
        assert title(drive) == "3 Data · as at 2031-03-12 03:33 · block 12 of 13 · 275 rows"
        assert pane.window.window(0, 999).equals(window.window(0, 275))  # type: ignore[union-attr]
        assert (pane.view.cursor, pane.view.slice) == (250, 10)
        await drive.press("home")
        assert "block 2 of 13 · 25 rows" in title(drive) and pane.view.cursor == 0
        await drive.press("right", "l", "]")
        await drive.press("j", "j")
        assert "block 5 of 13 · 100 rows" in title(drive) and pane.view.cursor == 77
        await drive.press("pagedown", "h", "pageup", "[", "end")
        assert "block 13 of 13 · 300 rows" in title(drive)
        await drive.press("t", "=half past nine", "enter")
        assert "'half past nine' is not a number, hash, date or offset" in drive.hint()
        await drive.press("escape")
        assert (title(drive), drive.time_panel) == ("3 Data · 300 rows", None)
        assert pane.view.cursor == 0


async def test_rows_as_of_an_event_time_are_requested_when_the_slider_rests(
    source: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rows_shown(source) as drive:
        await drive.press("at")
        await drive.press("at")
        assert "event time, in steps of 6 hours" not in track(drive)
        assert "2024-03-01 00:00" in track(drive) and "2024-12-25 23:00" in track(drive)
        await drive.pilot.press(*["left"] * 4)
        assert "⏎ computes now, or wait" in track(drive)
        monkeypatch.setattr(controller, "REST_SECONDS", 0.01)
        await drive.pilot.press("left")
        job = await job_of(drive)
        monkeypatch.setattr(controller, "REST_SECONDS", 60)
        (request,) = drive.source.link.submitted
        moment = drive.bench.controller(TimeTravelController).chosen_times[AIR].as_of
        assert request == BuildProjection(AIR, [], as_of=moment) and moment is not None and moment > "2024-12"
        await drive.pilot.press("left")  # what was asked for is not wanted any more
        await drive.until(lambda: drive.source.link.cancelled == [job.id])
        await drive.pilot.press("enter")
        second = await job_of(drive, 2)
        await ends(drive, second, result=state_of(drive, 31))
        await drive.until(lambda: title(drive).startswith("3 Data · as of 2024-12-"))
        assert title(drive).endswith(" · 31 rows") and "handed" not in drive.hint()
        await drive.pilot.press("left", "enter")
        third = await job_of(drive, 3)
        await drive.pilot.press("escape")
        await drive.until(lambda: third.id in drive.source.link.cancelled)
        assert "cancelled" in track(drive) and "as of 2024-12-" in title(drive)
        await drive.pilot.press("left", "enter")
        failing = await job_of(drive, 4)
        await ends(drive, failing, state=JobState.failed, error=Failure("slice is missing"))
        await drive.until(lambda: "slice is missing" in track(drive))
        await drive.press("t", "=2024-02-01", "enter")
        assert "no event time before 2024-03-01 00:00" in drive.hint()
        await drive.press("escape")
        assert title(drive) == "3 Data · 7 200 rows"


async def test_latest_state_is_computed_at_the_chosen_time(source: Scenario) -> None:
    set_primary_key(source, "station")
    async with rows_shown(source) as drive:
        await drive.press("at")
        await drive.press("left")
        await drive.pilot.press("K")
        job = await job_of(drive)
        assert drive.source.link.submitted == [BuildProjection(AIR, ["station"], as_at=hashes(source)[10])]
        await ends(drive, job, result=state_of(drive, 31, "station"))
        await drive.until(lambda: title(drive).endswith("block 10 of 12 · by station · 31 rows"))
        await drive.pilot.press("left", "enter")
        job = await job_of(drive, 2)
        assert drive.source.link.submitted[1] == BuildProjection(AIR, ["station"], as_at=hashes(source)[9])
        await ends(drive, job, result=state_of(drive, 30, "station"))
        await drive.until(lambda: "block 9 of 12 · by station" in title(drive))
        await drive.press("K")
        await drive.until(lambda: title(drive).endswith("block 9 of 12 · 6 000 rows"))
        await drive.press("at")
        await drive.press("left")
        await drive.pilot.press("enter")
        job = await job_of(drive, 3)
        assert drive.source.link.submitted[2].key == []  # type: ignore[attr-defined]
        await ends(drive, job, result=state_of(drive, 4, "station"))
        await drive.until(lambda: "as of" in title(drive))
        await drive.press("K")
        await drive.until(lambda: "this is the state by station already" in drive.hint())
        await drive.pilot.press("B")
        await drive.until(lambda: "Key of the latest state" in drive.text())
        await drive.press("j", "space", "j", "j", "space", "enter")
        job = await job_of(drive, 4)
        point = drive.bench.controller(TimeTravelController).chosen_times[AIR]
        assert point.key is not None and drive.source.link.submitted[3] == BuildProjection(
            AIR, list(point.key), as_of=point.as_of
        )


async def test_latest_state_stays_keyed_when_the_slider_moves(source: Scenario) -> None:
    set_primary_key(source, "station")
    async with rows_shown(source) as drive:
        await drive.pilot.press("K")
        await ends(drive, await job_of(drive), result=state_of(drive, 31, "station"))
        await drive.until(lambda: "latest state by station" in title(drive))
        await drive.press("at")
        await drive.pilot.press("left", "enter")
        await job_of(drive, 2)
        assert drive.source.link.submitted[1] == BuildProjection(AIR, ["station"], as_at=hashes(source)[10])


@pytest.mark.complete
async def test_typed_time_or_block_moves_the_slider(source: Scenario) -> None:
    set_primary_key(source, "station")
    async with rows_shown(source) as drive:
        await drive.press("at")
        for text, found in (
            ("2024-03-07 12:00", "block 6 of 12 · 3 000 rows"),
            ("8", "block 8 of 12 · 5 000 rows"),
            ("2099-01", "block 11 of 12 · 7 200 rows"),
            ("2024-03-05T08:04:00Z", "block 4 of 12 · 1 000 rows"),
        ):
            await drive.press("t", f"={text}", "enter")
            assert title(drive).endswith(found), (title(drive), drive.hint())
        for text, wrong in (
            (
                "2024-03-01 10:00",
                "no rows at that time: the first rows are in block 4, 2024-03-05 08:04",
            ),
            ("2", "no rows at that time: the first rows are in block 4"),
            ("2024-13-45", "'2024-13-45' is not a time"),
            ("99", "sequence numbers are 0 to 12"),
        ):
            await drive.press("t", f"={text}", "enter")
            assert wrong in drive.hint()
            assert title(drive).endswith("block 4 of 12 · 1 000 rows")
        await drive.press("t")
        hints = drive.bench.controller(TimeTravelController).hints()
        assert hints is not None and hints[0].word == "go there"
        await drive.press("escape", "right")
        assert "block 5 of 12" in title(drive)


async def test_missing_event_times_or_rows_are_explained(source: Scenario) -> None:
    line = GeneratedTimeline(7200, 7200)
    line.timed = False
    source.timeline = lambda _: line  # type: ignore[assignment, method-assign]
    async with rows_shown(source) as drive:
        await drive.press("at")
        await drive.press("left")
        assert "1 block with new rows" in track(drive)
        assert title(drive).endswith("block 3 of 3 · 7 200 rows")
        await drive.press("at")
        assert "the rows have no event time" in drive.hint()
        await drive.press("escape", "at")  # at once
        assert "1 block with new rows" in track(drive)
        await drive.press("escape")
        row = next(row for row in source.rows_ if not row.records)
        drive.bench.navigator.select_dataset(row.id)
        await drive.settle()
        await drive.press("at")
        assert "has no rows yet" in drive.hint()


async def test_the_chosen_time_is_stored_by_dataset(source: Scenario) -> None:
    async with rows_shown(source) as drive:
        await drive.press("at")
        await drive.press("left", "left", "enter")
        assert drive.time_panel.track.size.height == 1  # type: ignore[union-attr]
        assert "the rows stay at this time" in drive.hint()
        drive.data_pane.view.go(7)
        drive.bench.navigator.select_dataset(STATIONS)
        await drive.settle()
        assert title(drive) == "3 Data · 31 rows" and drive.time_panel is None
        drive.bench.navigator.select_dataset(AIR)
        await drive.settle()
        assert title(drive).endswith("block 9 of 11 · 6 000 rows")
        append(source.entry(AIR).dataset, 1800)  # new blocks came
        drive.bench.state.show(drive.bench.state.row_of(AIR))
        await drive.settle()
        assert title(drive).endswith("block 9 of 11 · 6 000 rows")
        await drive.press("at")
        await drive.press("right")
        assert title(drive).endswith("block 10 of 11 · 7 000 rows")
        await drive.press("enter", "escape")
        assert title(drive) == "3 Data · 9 000 rows" and drive.time_panel is None
        await drive.press("at")
        await drive.press("left", "enter")
        source.timeline = lambda _: GeneratedTimeline(9000, 900)  # type: ignore[assignment, method-assign]
        drive.bench.navigator.select_dataset(STATIONS)
        await drive.settle()
        drive.bench.navigator.select_dataset(AIR)
        await drive.settle()
        assert "the history was replaced" in drive.hint() and title(drive) == "3 Data · 9 000 rows"
        assert drive.bench.controller(TimeTravelController).chosen_times == {}


@pytest.mark.complete
async def test_all_actions_apply_to_the_rows_of_another_time(
    source: Scenario, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "cwd", classmethod(lambda cls: Path("/srv/haven/ada")))
    show_window(source, stored(dataset))
    source.timeline = lambda _: GeneratedTimeline(300, 25)  # type: ignore[assignment, method-assign]
    async with rows_shown(source, (160, 50)) as drive:
        pane = drive.data_pane
        await drive.press("at")
        await drive.press("home", "right", "enter")
        when = "as at 2024-03-01 10:32 · block 4 of 14"
        assert title(drive) == f"3 Data · {when} · 50 rows"
        await drive.search("lighthouse")
        await drive.press("N")
        assert pane.view.cursor < 50
        await drive.press("escape", "J", "=49", "enter")
        assert pane.view.cursor == 49
        await drive.press("J", "=50", "enter")
        assert "there is no row with offset 50" in drive.text()
        await drive.press("escape")
        await drive.press("enter")
        await drive.until(lambda: "Row 50 of 50" in drive.text())
        await drive.press("escape", "greater_than_sign")
        assert title(drive) == f"3 Data · {when} · sorted: rows 1–50 of 50"
        await drive.press("j", "o")
        assert title(drive) == f"3 Data · {when} · 50 rows"
        await drive.press("E")
        assert "[as at this block: 50]" in drive.text()
        await drive.press("enter")
        await drive.until(lambda: drive.source.link.submitted)
        request = drive.source.link.submitted[0]
        assert isinstance(request, Export) and (request.file, request.ranges) == (None, [(0, 50)])
        await drive.pilot.press("b")
        await drive.until(lambda: drive.app.screen is drive.bench)
        await drive.pilot.press("i")
        await drive.until(lambda: len(drive.source.link.submitted) == 2)
        counted = drive.source.link.submitted[1]
        assert isinstance(counted, ComputeStatistics) and counted.file is not None
        assert pq.read_metadata(counted.file).num_rows == 50
        assert "block 4 of 14" in drive.text()


@pytest.mark.app
async def test_keys_move_the_slider_in_the_workstation(source: Scenario) -> None:
    """Back along blocks, then as of an event time, key by key.

    Golden pictures, of two sizes: the slider along blocks, below the rows as at a block; the slider along
    event time, below the rows that a job wrote.
    """
    set_primary_key(source, "station")
    async with driven(source, (80, 24)) as drive:
        before = len(source.known)
        await drive.press("3")
        for number, size in enumerate(((80, 24), (160, 50)), 1):
            await drive.resize(*size)
            await drive.press("at")
            await drive.press("left", "left")
            await drive.clear_notice()
            compare(drive, "blocks")
            await drive.press("at")
            await drive.press("left", "pageup")
            await drive.pilot.press("enter")
            job = await job_of(drive, number)
            amounts = Progress("find latest", rows=1200, total_rows=7200)
            running = replace(job, state=JobState.running, started="2024-03-11T09:00:00Z", progress=amounts)
            drive.source.link.tell(drive.source.changed(running))
            await drive.until(lambda: "1 200 of 7 200 rows" in track(drive))
            await ends(drive, job, result=state_of(drive, 31, "station"))
            await drive.until(lambda: "as of" in title(drive))
            await drive.settle()
            await drive.clear_notice()
            compare(drive, "events")
            await drive.press("t")
            assert "go there" in drive.hint()
            await drive.press("escape", "escape")
            assert (title(drive), drive.time_panel, drive.pane) == ("3 Data · 7 200 rows", None, "data")
            source.forget_jobs(before)  # the picture of the next size has no job of this one
            drive.bench.state.load_jobs(*source.jobs())
