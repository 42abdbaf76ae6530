"""The provenance of rows: the trace screen, its jobs, files, and going from it to blocks and rows.

``ODF_UPDATE_GOLDEN=1`` writes ``tests/golden/trace-*.txt``; check the difference before you commit it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from odf_engine.api.model import Target
from odf_engine.derive.provenance.model import TraceStep
from odf_engine.jobs.trace import Trace
from odf_engine.worker.protocol import Failure, Job, JobState, Progress
from odf_tui.features.provenance.controller import ProvenanceController
from odf_tui.features.provenance.trace_screen import TraceScreen
from odf_tui.features.provenance.trace_tree import InputGroup, TraceSession
from odf_tui.panes.data.view import QUERY, DataPane
from odf_tui.state.job_book import JobBook
from odf_tui.widgets.dialogs import ConfirmDialog, PickerDialog, SaveDialog
from tests.tui import trace_answers
from tests.tui.conftest import Driven, driven
from tests.tui.context import Fakes
from tests.tui.haven import AIR, DAYS, STATIONS
from tests.tui.scripted_worker import Scenario
from tests.tui.widget_drive import WidgetDrive, driven_widget

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
SIZES = pytest.mark.parametrize("size", [(80, 24), (160, 50)], ids=lambda size: f"{size[0]}x{size[1]}")


def compare(drive: Driven, name: str) -> None:
    """Compare the screen with its golden text."""
    width, height = drive.app.size
    path, text = GOLDEN / f"trace-{width}x{height}-{name}.txt", drive.text()
    if os.environ.get("ODF_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def encoded(step: TraceStep) -> str:
    """Return the result of a job that found a step."""
    return msgspec.json.encode(step).decode()


async def running(drive: Driven) -> Job:
    """Wait until the workstation lists an active job. Returns the newest one."""
    await drive.until(drive.book.active_jobs)
    return drive.book.active_jobs()[-1]


async def end_job(drive: Driven) -> Trace:
    """End the newest job with its result. Returns its request."""
    job = await running(drive)
    request = drive.source.link.submitted[-1]
    assert isinstance(request, Trace)
    done = replace(job, state=JobState.done, result=encoded(trace_answers.answer(request)))
    drive.source.link.tell(drive.source.changed(done))
    await drive.until(lambda: not drive.app.screen.pending_jobs())  # type: ignore[attr-defined]
    await drive.settle()
    return request


@pytest.mark.app
@pytest.mark.complete
async def test_trace_leads_from_a_row_to_blocks_and_rows(source: Scenario) -> None:
    async with driven(source, (80, 24)) as drive:
        drive.graph.select(DAYS)
        await drive.settle()
        await drive.press("3", "j", "j", "j", "j", "j", "w")
        await drive.until(lambda: "queued" in drive.text())
        await drive.settle()
        compare(drive, "looking")  # the screen covers the workbench while the job is queued
        assert await end_job(drive) == Trace(DAYS, [(5, 5)], depth=1)
        compare(drive, "step")  # the result of the job is in the tree
        await drive.press("j", "b")
        assert drive.app.screen is drive.bench
        assert drive.pane == "blocks"
        assert drive.blocks_pane.view.block is not None
        assert drive.blocks_pane.view.block.sequence_number == 4  # the newest there is
        await drive.press("enter", "backspace")  # from the dialog of the block
        assert "made by block 5" in drive.text()
        await drive.press("j", "j", "j", "j", "o")
        assert drive.pane == "data"
        assert drive.data_pane.view.cursor == 2
        row = drive.graph.row
        assert row is not None and row.id == STATIONS
        await drive.press("ctrl+o")
        assert "from    port-haven.stations" in drive.text()
        await drive.press("h", "h", "g", "j", "j", "l", "a")  # the readings, all at once
        job = await running(drive)
        await drive.press("escape")
        await drive.until(lambda: source.link.cancelled == [job.id])
        await drive.press("ctrl+o")
        assert drive.app.screen is drive.bench


class Tracing:
    """A trace screen and a fake worker.

    Attributes:
        submitted: the requests of the screen.
        cancelled: ids of the jobs that the screen cancelled.
        copied: the texts that it copied.
        saved: how often the user saved the trace.
        edited: the files and lines that it opened in the editor.
    """

    drive: WidgetDrive

    def __init__(self, source: Scenario) -> None:
        self.source, self.book = source, JobBook()
        self.submitted: list[Trace] = []
        self.cancelled: list[str] = []
        self.copied: list[str] = []
        self.saved = 0
        self.edited: list[tuple[str, int | None]] = []
        session = TraceSession(DAYS, "air-by-day", 5, "offset", source.rows, is_data_column=False)  # type: ignore[arg-type]
        self.screen = TraceScreen(
            session,
            source,
            self.book,
            submit=self._submit,
            cancel=self._cancel,
            copy=self._copy,
            save=self._save,  # type: ignore[arg-type]
            edit=self._edit,
        )

    async def _submit(self, request: Trace, name: str) -> str:
        self.submitted.append(request)
        job = self.source.job(JobState.queued, name, "trace")
        self.book.apply([self.source.changed(job)])
        return job.id

    async def _cancel(self, job: str) -> None:
        self.cancelled.append(job)

    def _copy(self, text: str) -> str:
        self.copied.append(text)
        return "copied"

    def _save(self, _: TraceScreen) -> None:
        self.saved += 1

    async def _edit(self, path: Path, line: int | None) -> None:
        self.edited.append((str(path), line))

    @property
    def job(self) -> Job:
        """The newest job."""
        return self.source.known[-1]

    def change(self, **fields: object) -> None:
        """Change the newest job."""
        self.book.apply([self.source.changed(replace(self.job, **fields))])

    async def end(self, step: TraceStep | None = None, **fields: object) -> Trace:
        """End the newest job, with its result or other fields. Returns its request."""
        request = self.submitted[-1]
        found = step or trace_answers.answer(request)
        self.change(**(fields or {"state": JobState.done, "result": encoded(found)}))
        await self.drive.until(lambda: not self.screen.pending_jobs())
        await self.drive.settle()
        return request


@asynccontextmanager
async def tracing(source: Scenario, size: tuple[int, int] = (80, 24)) -> AsyncIterator[Tracing]:
    """Open the trace of the sixth row of the days, whose first job is queued."""
    traced = Tracing(source)
    async with driven_widget(traced.screen, source, size) as drive:
        traced.drive = drive
        await drive.until(lambda: "queued" in drive.text())
        yield traced


@SIZES
@pytest.mark.complete(after=1)
async def test_trace_tree_matches_golden_texts_down_to_the_query(
    source: Scenario, size: tuple[int, int]
) -> None:
    async with tracing(source, size) as traced:
        compare(traced.drive, "looking")  # one line while the job is queued
        assert await traced.end() == Trace(DAYS, [(5, 5)], depth=1)
        compare(traced.drive, "step")  # block, inputs, a missing input, earlier rows
        await traced.drive.press("j", "l", "j", "j", "j", "j", "j")
        compare(traced.drive, "query")  # the query below its block, in one line


async def test_trace_expands_to_input_rows_and_source_files(source: Scenario) -> None:
    async with tracing(source) as traced:
        drive = traced.drive
        await traced.end()
        await drive.press("j", "j", "l")
        assert "all     22 rows at once" in drive.text()
        await drive.press("j", "j", "O")
        assert "no source file with this row is known" in drive.text()
        await drive.press("j", "enter")  # the newest row is the first
        assert await traced.end() == Trace(AIR, [(143, 143)], depth=1)
        compare(drive, "source")  # the file that a row came from
        await drive.press("O")
        assert traced.edited == [("/data/2024-03.csv", 145)]
        await drive.press("j", "space")
        compare(drive, "read")  # all details of the file
        await drive.press("escape", "h", "h", "h", "a")
        assert await traced.end() == Trace(AIR, [(120, 140), (143, 143)], depth=1)
        assert "source  block 6 · 2024-03-11 06:00 UTC · https" in drive.text()
        await drive.press("escape")
        assert drive.app.screen is drive.bench


async def test_tracing_a_value_marks_its_columns(source: Scenario) -> None:
    async with tracing(source, (160, 50)) as traced:
        drive = traced.drive
        await traced.end()
        await drive.press("w", "=pm", "enter")  # the session began at a column of the system
        assert await traced.end() == Trace(DAYS, [(5, 5)], column="pm25", depth=1)
        assert "column pm25" in drive.text()
        await drive.press("j", "j", "l", "k")
        compare(drive, "column")  # the columns that made the value are marked
        await drive.press("j", "j", "j", "j", "l")
        assert await traced.end() == Trace(AIR, [(143, 143)], column="pm25", depth=1)
        requests = len(traced.submitted)
        await drive.press("w")
        assert "entire row" in drive.text()
        assert len(traced.submitted) == requests  # the trace of the row is cached


async def test_trace_job_shows_progress_and_can_be_cancelled(source: Scenario) -> None:
    async with tracing(source) as traced:
        drive = traced.drive
        traced.change(
            state=JobState.running, started="2024-03-11T09:00:00Z", progress=Progress("replay", rows=1200)
        )
        await drive.until(lambda: "replay · 1 200 rows" in drive.text())
        await drive.press("x")
        assert traced.cancelled == [traced.job.id]
        await traced.end(state=JobState.cancelled)
        assert "cancelled: r traces again" in drive.text()
        await drive.press("r")
        error = Failure("the slice of block 5 is damaged", hint="odf verify shows it", where="air-by-day")
        await traced.end(state=JobState.failed, error=error)
        assert "failed" in drive.text()
        assert "the slice of block 5 is damaged – odf verify" in drive.text()
        await drive.press("r")
        assert traced.screen.pending_jobs() == [traced.job.id]


async def test_inexact_trace_and_missing_input_are_explained(source: Scenario) -> None:
    async with tracing(source) as traced:
        drive = traced.drive
        await traced.end(trace_answers.day([(5, 5)], None, exact=False))
        assert "not exact" in drive.text()
        assert "because the query has a function" in drive.text()
        await drive.press("G", "k", "enter")
        assert "or run odf pull URL --as calendar.holidays" in drive.text()
        await drive.press("escape", "q")
        assert "GROUP BY window" in drive.text()


async def test_the_tree_is_copied(source: Scenario) -> None:
    async with tracing(source) as traced:
        await traced.end()
        await traced.drive.press("j", "j", "l", "j", "j", "j", "l")
        await traced.end()
        await traced.drive.press("y", "e", "E")
        assert "│ ├─▾    143  +C" in traced.copied[0]
        assert "│ ├─▸    121  +A" in traced.copied[0]
        assert traced.saved == 2


async def test_many_rows_are_read_while_they_are_visible(source: Scenario) -> None:
    async with tracing(source) as traced:
        await traced.end(trace_answers.day([(0, 239)], None))
        await traced.drive.press("j", "j", "l", "j", "j", "pagedown", "pagedown", "pagedown", "pagedown")
        assert re.search(r"│ ├─▸  5 6\d\d  ..  2024", traced.drive.text())
        assert "offset      event_time" in traced.drive.text()  # the header stays


async def test_a_step_is_checked(source: Scenario) -> None:
    async with tracing(source) as traced:
        await traced.end()
        await traced.drive.press("j", "j", "l", "v")
        await traced.drive.until(lambda: len(traced.submitted) == 2)
        assert traced.submitted[-1] == Trace(DAYS, [(5, 5)], depth=1, check=True)
        step = msgspec.to_builtins(trace_answers.day([(5, 5)], None))
        result = json.dumps({**step, "checked": ["yes: the same row", "no: it is still there"]})
        await traced.end(state=JobState.done, result=result)
        text = traced.drive.text()
        assert "checked yes: the same row" in text
        assert "checked no: it is still there" in text
        assert "all     22 rows at once" in text  # the input stays open


def traced_row(source: Scenario, on_screen: Callable[[TraceScreen], Target | None], *answers: Any) -> Fakes:
    """A context in which the sixth row of the days is under the cursor, on the column pm25."""
    fakes = Fakes(source, "air-by-day", answers=[on_screen, *answers])
    view = SimpleNamespace(cursor=5, column=5, count=lambda: 240)
    pane = SimpleNamespace(window=source.rows(DAYS), view=view, front_view=None, time_view=None)
    fakes.host.widgets[DataPane] = pane
    return fakes


def with_step(screen: TraceScreen, remarks: list[str]) -> None:
    """Put the result of a trace into the tree of a screen that is not shown, with a reading traced too."""
    screen.show_message = remarks.append  # type: ignore[method-assign]
    top = screen.trace.top.row(0)
    top.set_step(trace_answers.day([(5, 5)], None))
    readings = next(child for child in top.children if isinstance(child, InputGroup))
    readings.row(0).set_step(trace_answers.reading([(120, 120)]))


async def test_the_row_under_the_cursor_is_traced(source: Scenario) -> None:
    sessions: list[TraceSession] = []
    fakes = traced_row(source, lambda screen: sessions.append(screen.session))
    ProvenanceController(fakes.context).trace_row()
    await fakes.host.stories()
    (session,) = sessions
    assert (session.dataset, session.name, session.offset) == (DAYS, "air-by-day", 5)
    assert (session.value, session.is_data_column) == ("pm25", True)
    assert fakes.navigator.target is None and fakes.navigator.trail == ()


async def test_rows_of_a_query_have_no_provenance(source: Scenario) -> None:
    fakes = traced_row(source, lambda _: None)
    fakes.host.widgets[DataPane].front_view = SimpleNamespace(kind=QUERY)
    ProvenanceController(fakes.context).trace_row()
    await fakes.host.stories()
    assert fakes.host.dialogs == []
    assert "query results have no provenance" in fakes.host.last_notice


async def test_back_reopens_the_trace(source: Scenario) -> None:
    target = Target(STATIONS, "data", 2)
    fakes = traced_row(source, lambda _: target, None)
    ProvenanceController(fakes.context).trace_row()
    await fakes.host.stories()
    assert fakes.navigator.target == target and fakes.state.selected == STATIONS
    assert "returns to the trace" in fakes.host.last_notice
    fakes.navigator.back()
    first, again = fakes.host.dialogs
    assert again is not first and again.session is first.session


async def test_closing_the_screen_cancels_its_jobs(source: Scenario) -> None:
    def wait_for_job(screen: TraceScreen) -> None:
        screen.trace.pending["7"] = screen.trace.top.row(0)

    fakes = traced_row(source, wait_for_job)
    ProvenanceController(fakes.context).trace_row()
    await fakes.host.stories()
    assert fakes.jobs.cancelled == ["7"]


async def test_a_trace_is_written_to_files(source: Scenario, tmp_path: Path) -> None:
    remarks: list[str] = []

    def save(screen: TraceScreen) -> None:
        screen.show_message = remarks.append  # type: ignore[method-assign]
        screen.save_trace(screen)
        assert remarks == ["no trace yet"]
        with_step(screen, remarks)
        screen.save_trace(screen)
        screen.save_trace(screen)

    paths = [tmp_path / "air-by-day-5.json", tmp_path / "air-by-day-5.dot"]
    fakes = traced_row(source, save, "json", "dot", *paths)
    ProvenanceController(fakes.context).trace_row()
    await fakes.host.stories()
    assert [type(dialog) for dialog in fakes.host.dialogs[1:]] == [
        PickerDialog,
        PickerDialog,
        SaveDialog,
        SaveDialog,
    ]
    assert [dialog._path for dialog in fakes.host.dialogs[3:]] == ["air-by-day-5.json", "air-by-day-5.dot"]
    assert {re.sub(r": [\d.]+ k?B", ":", remark) for remark in remarks[1:]} == {
        "air-by-day-5.json: written", "air-by-day-5.dot: written"
    }  # fmt: skip
    written = json.loads(paths[0].read_text())
    readings = [feed for feed in written["feeds"] if feed["alias"] == "readings"]
    assert [feed["rows"] for feed in readings] == [1, 21]
    assert readings[0]["step"]["sources"][0]["kind"] == "polling"
    graph = paths[1].read_text()
    assert graph.startswith("digraph {") and "2024-03.csv" in graph


@pytest.mark.parametrize("replaces", [True, False])
async def test_a_file_is_replaced_only_after_a_question(
    source: Scenario, tmp_path: Path, replaces: bool
) -> None:
    path = tmp_path / "trace.json"
    path.write_text("mine")

    def save(screen: TraceScreen) -> None:
        with_step(screen, [])
        screen.save_trace(screen)

    fakes = traced_row(source, save, "json", path, replaces)
    ProvenanceController(fakes.context).trace_row()
    await fakes.host.stories()
    assert isinstance(fakes.host.dialogs[-1], ConfirmDialog)
    assert (path.read_text() == "mine") is not replaces
