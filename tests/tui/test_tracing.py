"""Where rows come from, step by step on the screen."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from odf_engine.coordinator.protocol import Failure, Job, JobState, Progress, Trace
from odf_engine.provenance.model import TraceStep
from tests.tui import fake_tracing
from tests.tui.conftest import Driven, driven
from tests.tui.fake import FakeSource
from tests.tui.fake_tracing import AIR, DAYS, STATIONS

pytestmark = pytest.mark.app

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
SIZES = [(80, 24), (160, 50)]


def compare(drive: Driven, name: str) -> None:
    """Compares the screen with its golden text."""
    width, height = drive.app.size
    path, text = GOLDEN / f"trace-{width}x{height}-{name}.txt", drive.text()
    if os.environ.get("ODF_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


async def begin(drive: Driven, *keys: str) -> None:
    """Goes to the sixth row of the days, and asks where it comes from."""
    drive.graph.select(DAYS)
    await drive.settle()
    await drive.press("3", "j", "j", "j", "j", "j", *keys, "w")


async def running(drive: Driven) -> Job:
    """The newest job, once the screen knows of it."""
    await drive.until(drive.book.active_jobs)
    return drive.book.active_jobs()[-1]


async def ends(drive: Driven, step: TraceStep | None = None, **how: object) -> Trace:
    """The worker says how the newest job ended; what it was asked."""
    job = await running(drive)
    request = drive.source.link.submitted[-1]
    assert isinstance(request, Trace)
    found = step or fake_tracing.answer(request)
    result = {"state": JobState.done, "result": msgspec.json.encode(found).decode()}
    drive.source.link.tell(drive.source.changed(replace(job, **(how or result))))
    await drive.until(lambda: not drive.app.screen.waiting())  # type: ignore[attr-defined]
    await drive.settle()
    return request


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_a_row_down_to_its_source(source: FakeSource, size: tuple[int, int]) -> None:
    async with driven(source, size) as drive:
        await begin(drive)
        await drive.until(lambda: "waits for its turn" in drive.text())
        compare(drive, "looking")
        assert await ends(drive) == Trace(DAYS, [(5, 5)], depth=1)
        compare(drive, "step")
        await drive.press("j", "l", "j", "j", "j", "j", "j")
        compare(drive, "query")


async def test_the_readings_of_a_day_and_their_files(source: FakeSource) -> None:
    async with driven(source, (80, 24)) as drive:
        await begin(drive)
        await ends(drive)
        await drive.press("j", "j", "l")
        assert "all     22 rows at once" in drive.text()
        await drive.press("j", "j", "j", "enter")
        assert await ends(drive) == Trace(AIR, [(120, 120)], depth=1)
        compare(drive, "source")
        await drive.press("j", "space")
        compare(drive, "read")
        await drive.press("escape", "h", "h", "h", "a")
        request = await ends(drive)
        assert request == Trace(AIR, [(120, 140), (143, 143)], depth=1)
        assert "source  block 6 · 2024-03-11 06:00 · https" in drive.text()
        await drive.press("escape")
        assert drive.app.screen is drive.bench


async def test_a_value_and_its_columns(source: FakeSource) -> None:
    async with driven(source, (160, 50)) as drive:
        await begin(drive)  # on the column of offsets, which the system wrote
        await ends(drive)
        await drive.press("w", "=pm", "enter")
        assert await ends(drive) == Trace(DAYS, [(5, 5)], column="pm25", depth=1)
        assert "column pm25" in drive.text()
        await drive.press("j", "j", "l", "k")
        compare(drive, "column")
        await drive.press("j", "j", "j", "j", "l")
        assert await ends(drive) == Trace(AIR, [(120, 120)], column="pm25", depth=1)
        asked = len(drive.source.link.submitted)
        await drive.press("w")
        assert "whole row" in drive.text()
        assert len(drive.source.link.submitted) == asked  # it is kept


async def test_what_a_job_does_and_how_it_is_stopped(source: FakeSource) -> None:
    async with driven(source, (80, 24)) as drive:
        await begin(drive)
        job = await running(drive)
        at_it = replace(job, state=JobState.running, started="2024-03-11T09:00:00Z")
        drive.source.link.tell(drive.source.changed(replace(at_it, progress=Progress("replay", rows=1200))))
        await drive.until(lambda: "replay · 1 200 rows" in drive.text())
        await drive.press("x")
        await drive.until(lambda: drive.source.link.cancelled == [job.id])
        await ends(drive, state=JobState.cancelled)
        assert "stopped: r looks again" in drive.text()
        await drive.press("r")
        error = Failure("the slice of block 5 is damaged", hint="odf verify shows it", where="air-by-day")
        await ends(drive, state=JobState.failed, error=error)
        assert "failed" in drive.text()
        assert "the slice of block 5 is damaged – odf verify" in drive.text()
        await drive.press("r")
        job = await running(drive)
        await drive.press("escape")
        await drive.until(lambda: drive.source.link.cancelled[-1] == job.id)


async def test_the_larger_set_and_inputs_that_are_not_here(source: FakeSource) -> None:
    async with driven(source, (80, 24)) as drive:
        await begin(drive)
        step = fake_tracing.day([(5, 5)], None, exact=False)
        await ends(drive, step)
        assert "larger set" in drive.text()
        assert "because the query has a function" in drive.text()
        await drive.press("G", "k", "enter")
        assert "odf pull URL --as calendar.holidays brings it in" in drive.text()
        await drive.press("escape", "q")
        assert "GROUP BY window" in drive.text()


async def test_to_the_block_and_the_row_and_back(source: FakeSource) -> None:
    async with driven(source, (80, 24)) as drive:
        await begin(drive)
        await ends(drive)
        await drive.press("j", "b")
        assert drive.app.screen is drive.bench
        assert drive.pane == "blocks"
        assert drive.blocks_pane.view.block is not None
        assert drive.blocks_pane.view.block.sequence_number == 4  # the newest there is
        await drive.press("enter", "backspace")  # from the block as it is read
        assert "made by block 5" in drive.text()
        await drive.press("j", "j", "j", "j", "o")
        assert drive.pane == "data"
        assert drive.data_pane.view.cursor == 2
        row = drive.graph.row
        assert row is not None
        assert row.id == STATIONS
        await drive.press("ctrl+o")
        assert "from    port-haven.stations" in drive.text()
        await drive.press("escape", "ctrl+o")
        assert drive.app.screen is drive.bench


async def test_a_trace_is_copied_and_written(
    source: FakeSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with driven(source, (80, 24)) as drive:
        copied: list[str] = []
        monkeypatch.setattr(drive.app, "copy", lambda text: copied.append(text) or "copied")
        await begin(drive)
        await ends(drive)
        await drive.press("j", "j", "l", "j", "j", "j", "l")
        await ends(drive)
        await drive.press("y")
        assert "│ ├─▾    120  +A" in copied[0]
        assert "│ ├─▸    121  +A" in copied[0]
        await drive.press("e", "j", "enter")
        await drive.until(lambda: "5.json: " in drive.text())
        written = json.loads((tmp_path / "air-by-day-5.json").read_text())
        readings = [feed for feed in written["feeds"] if feed["alias"] == "readings"]
        assert [feed["rows"] for feed in readings] == [1, 21]
        assert readings[0]["step"]["sources"][0]["kind"] == "polling"
        await drive.press("E", "g", "enter")
        await drive.until(lambda: "5.dot: " in drive.text())
        graph = (tmp_path / "air-by-day-5.dot").read_text()
        assert graph.startswith("digraph {")
        assert "2024-03.csv" in graph


async def test_many_rows_are_read_as_they_are_seen(source: FakeSource) -> None:
    async with driven(source, (80, 24)) as drive:
        await begin(drive)
        many = fake_tracing.day([(0, 239)], None)
        await ends(drive, many)
        await drive.press("j", "j", "l", "j", "j", "pagedown", "pagedown", "pagedown", "pagedown")
        assert re.search(r"│ ├─▸     7\d  ..  2024", drive.text())
        assert "offset      event_time" in drive.text()  # what columns are stays in sight


async def test_a_step_is_checked(source: FakeSource) -> None:
    async with driven(source, (80, 24)) as drive:
        await begin(drive)
        await ends(drive)
        await drive.press("j", "j", "l", "v")
        await running(drive)
        assert drive.source.link.submitted[-1] == Trace(DAYS, [(5, 5)], depth=1, check=True)
        step = msgspec.to_builtins(fake_tracing.day([(5, 5)], None))
        result = json.dumps({**step, "checked": ["yes: the same row", "no: it is still there"]})
        await ends(drive, state=JobState.done, result=result)
        assert "checked yes: the same row" in drive.text()
        assert "checked no: it is still there" in drive.text()
        assert "all     22 rows at once" in drive.text()  # what was open stays so
