"""Tests of statistics, of the latest state by key, and of exports."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace
from textual.widgets import Input

from odf_engine.api.readers.row_reader import TableDescription
from odf_engine.api.readers.row_window import RowWindow
from odf_engine.base.progress import Reporter
from odf_engine.errors import OdfError
from odf_engine.jobs.export import Export, ExportResult
from odf_engine.jobs.views import BuildProjection, ComputeStatistics
from odf_engine.rows.scan import Scan
from odf_engine.rows.statistics import ColumnStatistics, FrequentValue, Statistics, compute_statistics
from odf_engine.worker.protocol import Failure, Job, JobState, Progress, Request
from odf_tui.features.export import ExportController, ExportDialog, ExportOptions
from odf_tui.features.statistics import (
    StatisticsController,
    StatisticsScreen,
    distribution_sparkline,
    format_distinct,
    format_distinct_short,
    format_mean,
    format_percent,
)
from odf_tui.features.time_travel.controller import TimeTravelController
from odf_tui.panes.data.view import QUERY, STATE, DataPane, TableView
from odf_tui.services.jobs_client import LeftRunning
from odf_tui.state.job_book import JobBook
from odf_tui.state.model import Health
from tests.tui.conftest import Driven, driven
from tests.tui.context import Fakes
from tests.tui.data_screen import rows_shown, set_primary_key, write_rows
from tests.tui.haven import AIR
from tests.tui.scripted_worker import Scenario
from tests.tui.waiting import until
from tests.tui.widget_app import shown

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
SIZES = [(80, 24), (160, 50)]
HOURS = [3, 12, 41, 80, 96, 70, 55, 40, 31, 22, 14, 9, 8, 6, 4, 2, 1, 1, 0, 1]
_PLACES = (
    "Quay",
    "Old Town",
    "Lighthouse Hill",
    "Fish Market",
    "",
    "St. Brendan's Ferry Landing, north side",
)
TYPES = {
    "offset": "uint64", "event_time": "timestamp", "station": "string", "pm25": "double",
    "remark": "string", "money": "decimal128(12, 2)", "sensor": "string", "tags": "list<string>",
}  # fmt: skip
COMMENTS = {"pm25": "micrograms of fine dust in a cubic metre of air"}


def _told(name: str, **known: object) -> ColumnStatistics:
    return ColumnStatistics(name=name, type=TYPES[name], **known)  # type: ignore[arg-type]


COUNTED = [
    _told("offset", nulls=0, distinct=7200, least="0", greatest="7199", mean=3599.5, bins=[512] * 14 + [32]),
    _told(
        "event_time", nulls=0, distinct=7200, least="2024-03-01T00:00:00Z", greatest="2024-12-25T23:00:00Z",
        bins=[12, 300, 480, 480, 480, 470, 480, 480, 480, 480, 480, 480, 480, 480, 480, 480, 98],
    ),
    _told(
        "station", nulls=0, distinct=31, least="", greatest="West \x1b[31mQuay", shortest=0, longest=39,
        frequent=[FrequentValue(place, 1800 - 290 * at) for at, place in enumerate(_PLACES)],
    ),
    _told(
        "pm25", nulls=1029, not_numbers=4, distinct=612, least="3.25", greatest="181.5", mean=22.7512345,
        bins=HOURS,
        frequent=[FrequentValue("3.25", 211), FrequentValue("12.5", 198), FrequentValue("19.0", 7)],
    ),
    _told("remark", nulls=1800, distinct=3, shortest=4, longest=56, frequent=[FrequentValue("fine", 1800)]),
    _told(
        "money", nulls=7, distinct=480_213, least="-12.00", greatest="99999.99",
        mean=-1234567.125, bins=[0, 1, 7000, 3, 0, 0, 188], frequent=[FrequentValue("0.00", 5100)],
    ),
    _told("sensor", nulls=0, distinct=7200, shortest=4, longest=4, frequent=[FrequentValue("s-01", 1)]),
    _told("tags", nulls=0, shortest=0, longest=1),
]  # fmt: skip


def compare(drive: Driven, name: str, part: str = ".dialog") -> None:
    """Compare a part of the screen with a golden picture."""
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
    """Set the working directory."""
    monkeypatch.setattr(Path, "cwd", classmethod(lambda cls: cls("/srv/haven/ada")))
    monkeypatch.setattr(Path, "absolute", lambda path: Path("/srv/haven/ada") / path)


def test_numbers_are_formatted() -> None:
    assert [format_percent(part, 10_000) for part in (0, 3, 10, 1430, 9999, 10_000)] == [
        "0 %", "< 0.1 %", "0.1 %", "14.3 %", "> 99.9 %", "100 %",
    ]  # fmt: skip
    column = ColumnStatistics(name="a", type="int64", distinct=123_456)
    assert (format_distinct(column), format_distinct_short(column)) == ("123 456", "123k")
    means = [format_mean(each) for each in (0.0, 3.0, -0.5, 22.7512345, 1234567.125, 1e-9, 1.5e18)]
    assert means == ["0", "3", "-0.5", "22.7512", "1 234 567", "1e-09", "1.5e+18"]


def test_sparkline_shrinks_to_the_available_width() -> None:
    column = ColumnStatistics(name="a", type="double", bins=[1, 0, 7, 8])
    assert distribution_sparkline(column, 4) == "▁ ▇█"
    assert distribution_sparkline(column, 3) == "▁█"
    assert (
        distribution_sparkline(ColumnStatistics(name="a", type="string", frequent=[FrequentValue("x", 1)]), 3)
        == ""
    )


async def job_of(drive: Driven) -> Job:
    """Return the newest job, once the screen has it."""
    await drive.until(lambda: drive.book.active_jobs())
    return drive.book.active_jobs()[-1]


async def ends(drive: Driven, job: Job, **how: object) -> None:
    """Let the worker end a job."""
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


def state_of(source: Scenario, rows: int, *key: str) -> dict[str, object]:
    """Return the result of a job that wrote a state."""
    return {"name": "x", "key": key, "rows": rows, "of": 7200, "file": write_rows(source, rows)}


def fake_pane(
    window: Any = None, view: TableView | None = None, marked: Sequence[tuple[int, int]] = ()
) -> Any:
    """Return a fake data pane that shows a window."""
    return SimpleNamespace(window=window, front_view=view, marked_ranges=lambda: list(marked))


def exporting(fakes: Fakes, pane: Any) -> ExportController:
    """Return the controller of exports over a pane."""
    fakes.host.widgets[DataPane] = pane
    return ExportController(fakes.context)


def options(path: str, rows: int = 0, **more: Any) -> ExportOptions:
    """Return the options that the user chose in the dialog."""
    chosen: dict[str, Any] = {"format": "csv", "system": True, "replace": False, **more}
    return ExportOptions(rows, path=Path(path), **chosen)


def words(dialog: Any) -> list[str]:
    """Return the choices of rows in the dialog of an export."""
    return dialog._options.values[0]


@pytest.mark.complete
async def test_footer_statistics_are_replaced_when_all_rows_are_counted(source: Scenario) -> None:
    async with rows_shown(source) as drive:
        await drive.press("i", "j", "j", "j")
        job = await job_of(drive)
        assert drive.source.link.submitted == [ComputeStatistics(AIR)]
        assert "2024-12-25 23:00:00" in drive.text()
        assert "…" in drive.text()
        running = replace(job, state=JobState.running, started="2024-03-11T09:00:00Z")
        amounts = Progress("count", rows=1200, total_rows=7200)
        drive.source.link.tell(drive.source.changed(replace(running, progress=amounts)))
        await drive.until(lambda: "1 200 of 7 200 rows" in drive.text())
        assert drive.healths[AIR] is Health.current  # a count does not change the dataset
        scan = Scan.of_dataset(source.entry(AIR).dataset)
        compute_statistics(source.odf, scan, Reporter())
        await ends(drive, running, result={"name": "x", "rows": 7200})
        await drive.until(lambda: "entire changelog" in drive.text())
        assert "7 200" in drive.text()
        await drive.press("j", "j", "y")
        assert drive.screen.copied[0][0] == "statistics"
        assert drive.screen.copied[0][1].startswith(" pm25  double")


async def test_stopped_or_failed_count_is_reported(source: Scenario) -> None:
    async with rows_shown(source) as drive:
        await drive.press("i")
        job = await job_of(drive)
        await drive.press("c")
        await drive.until(lambda: drive.source.link.cancelled == [job.id])
        await ends(drive, job, state=JobState.cancelled)
        await drive.until(lambda: "cancelled: statistics are from file metadata only" in drive.text())
        await drive.press("escape", "i")
        job = await job_of(drive)
        error = Failure("file not found", hint="odf verify shows it", where="slice abc")
        await ends(drive, job, state=JobState.failed, error=error)
        await drive.until(lambda: "not found – odf verify shows it (slice abc)" in drive.text())
        assert drive.healths[AIR] is Health.current


async def test_statistics_are_those_of_the_front_view(source: Scenario) -> None:
    opened: list[Any] = []
    requests: list[Request] = []
    file = write_rows(source, 31)
    for kind in (STATE, QUERY, "sorted"):
        fakes = Fakes(source, "port-haven.air-readings", answers=[opened.append])
        rows = source.file_rows(AIR, file) if kind != "sorted" else source.rows(AIR)
        view = TableView(None, "latest state by station", "", kind, (0, 0))  # type: ignore[arg-type]
        fakes.host.widgets[DataPane] = fake_pane(rows, view)
        StatisticsController(fakes.context).show_statistics()
        await opened[-1]._submit()
        requests += fakes.jobs.requests
    assert requests == [
        ComputeStatistics(AIR, file=file),
        ComputeStatistics("", file=file),
        ComputeStatistics(AIR),
    ]
    assert "latest state by station" in opened[0]._title and opened[1]._title.startswith(
        "Statistics of query result"
    )


async def test_key_toggles_latest_state_and_all_rows(source: Scenario) -> None:
    set_primary_key(source, "station")
    async with rows_shown(source) as drive:
        pane = drive.data_pane
        await drive.press("j", "j")
        await drive.pilot.press("K")
        await ends(drive, await job_of(drive), result=state_of(source, 31, "station"))
        await drive.until(lambda: pane.front_view is not None)
        await drive.settle()
        await drive.press("K")
        assert (pane.front_view, pane.view.cursor) == (None, 2)
        await drive.pilot.press("K")
        await drive.until(lambda: len(drive.source.link.submitted) == 2)


async def test_latest_state_can_use_another_key(source: Scenario) -> None:
    async with rows_shown(source) as drive:
        await drive.pilot.press("B")
        await drive.until(lambda: "✓ station" in drive.text())
        await drive.press("space", "enter")  # removes the event time
        await job_of(drive)
        assert drive.source.link.submitted == [BuildProjection(AIR, ["station"])]


async def test_missing_key_is_chosen_and_remembered(source: Scenario) -> None:
    set_primary_key(source)
    dialogs: list[Any] = []

    def answer(dialog: Any) -> list[str] | None:
        dialogs.append(dialog)
        return ["station"] if len(dialogs) == 1 else None

    fakes = Fakes(
        source,
        "port-haven.air-readings",
        answers=[answer, answer],
        widgets={DataPane: fake_pane(source.rows(AIR))},
        results={BuildProjection: OdfError("column 'station' not found")},
    )
    controller = TimeTravelController(fakes.context)
    for _ in range(2):
        controller.toggle_current_state()
        await fakes.host.stories()
    assert fakes.jobs.requests == [BuildProjection(AIR, ["station"])]
    assert fakes.host.last_notice == "column 'station' not found"
    first, second = dialogs
    assert not {"offset", "op", "system_time"} & set(dict(first._lines.columns))
    assert (first._lines.key, second._lines.key) == ([], ["station"])


async def test_marked_rows_are_exported(source: Scenario) -> None:
    path = "/srv/haven/ada/air-readings.ndjson"
    result = ExportResult("x", 3, 412_000, path)
    fakes = Fakes(
        source,
        "port-haven.air-readings",
        answers=[options(path, format="ndjson", system=False)],
        results={Export: result},
    )
    exporting(fakes, fake_pane(source.rows(AIR), marked=[(1, 4)])).export_rows()
    await fakes.host.stories()
    assert words(fakes.host.dialogs[0]) == ["3 marked", "all 7 200 rows"]
    assert fakes.jobs.requests == [Export(AIR, path, format="ndjson", ranges=[(1, 4)], system=False)]
    assert fakes.host.last_notice == "3 rows in air-readings.ndjson, 412.0 kB"


async def test_export_dialog_confirms_overwriting_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("x")
    rows = ["1 marked", "all 7 200 rows"]
    async with shown(ExportDialog("Export x", rows, "air-readings")) as (app, pilot):
        await pilot.press("up", "l", "up")  # the choice of rows, then the path
        app.screen.query_one(Input).value = str(path)
        await pilot.press("enter")
        await pilot.pause()
        assert "mine.txt already exists" in app.text()
        await pilot.press("n")
        assert app.result is None
        await pilot.press("enter", "y")
        await pilot.pause()
        assert app.result == ExportOptions(1, "csv", True, path, True)
    async with shown(ExportDialog("Export x", rows, "air-readings")) as (app, pilot):
        await pilot.press("l", "down", "right", "enter")
        await pilot.pause()
        assert app.result == ExportOptions(
            0, "ndjson", False, Path("/srv/haven/ada/air-readings.ndjson"), False
        )


async def test_rows_without_a_file_are_written_for_the_worker(source: Scenario) -> None:
    view = TableView(None, "", "", "sorted", (0, 0))  # type: ignore[arg-type]
    write_temporary_rows = source.write_temporary_rows
    for failure in (OdfError("folder not found"), LeftRunning()):
        written: list[tuple[str, int]] = []

        def write(window: RowWindow, written: list[tuple[str, int]] = written) -> str:
            path = write_temporary_rows(window)
            written.append((path, pq.read_metadata(path).num_rows))
            return path

        source.write_temporary_rows = write  # type: ignore[method-assign]
        fakes = Fakes(
            source, "port-haven.air-readings", answers=[options("/a.csv")], results={Export: failure}
        )
        exporting(fakes, fake_pane(source.rows(AIR), view)).export_rows()
        await fakes.host.stories()
        (request,) = fakes.jobs.requests
        assert request == Export(AIR, "/a.csv", file=request.file)  # type: ignore[attr-defined]
        assert written == [(request.file, 7200)]  # type: ignore[attr-defined]
        assert Path(written[0][0]).exists() == isinstance(failure, LeftRunning)  # the job still reads it
    assert "a.csv is being written" in fakes.host.last_notice


async def test_the_result_of_a_query_is_exported(source: Scenario) -> None:
    file = write_rows(source, 31)
    rows = source.file_rows(AIR, file)
    view = TableView(None, "SQL", "", QUERY, (0, 0))  # type: ignore[arg-type]
    path = "/srv/haven/ada/result.csv"
    result = ExportResult("", 1, 9, path)
    fakes = Fakes(source, "port-haven.air-readings", answers=[options(path)], results={Export: result})
    exporting(fakes, fake_pane(rows, view)).export_rows()
    await fakes.host.stories()
    (dialog,) = fakes.host.dialogs
    assert words(dialog) == ["query result: 31"] and dialog._name == "result"
    assert fakes.jobs.requests == [Export("", path, file=file)]
    assert fakes.host.last_notice == "1 row in result.csv, 9 B"


@pytest.mark.app
async def test_keys_show_statistics_latest_state_and_export(source: Scenario) -> None:
    """Statistics, the latest state and an export, key by key.

    Golden pictures, of two sizes: statistics of a number and of texts; the latest state in pane 3; the
    dialog of an export; of one size: the choice of a key.
    """
    description = TableDescription(Statistics(7200, COUNTED), True, TYPES, ("offset", "event_time"), COMMENTS)
    source.column_statistics = lambda *_: description  # type: ignore[method-assign]
    set_primary_key(source)
    async with driven(source, (80, 24)) as drive:
        await drive.press("3")
        await drive.pilot.press("K")
        await drive.until(lambda: "Key of the latest state" in drive.text())
        await drive.press("j", "space", "j", "space", "space")
        compare(drive, "key")
        await drive.press("escape")
        set_primary_key(source, "station")
        for size in SIZES:
            await drive.resize(*size)
            await drive.settle()
            submitted = len(drive.source.link.submitted)
            await drive.press("i", "j", "j", "j")
            compare(drive, "numbers")
            await drive.press("k")
            compare(drive, "texts")
            assert len(drive.source.link.submitted) == submitted
            await drive.press("escape")
            assert drive.app.screen is drive.bench
            await drive.press("g", "j", "space", "j", "j", "space", "E", "l", "down", "right")
            compare(drive, "export")
            await drive.press("escape", "escape", "k")  # no marks, the third row
            await drive.pilot.press("K")
            job = await job_of(drive)
            assert drive.source.link.submitted[submitted:] == [BuildProjection(AIR, ["station"])]
            await ends(drive, job, result=state_of(source, 31, "station"))
            await drive.until(lambda: drive.data_pane.front_view is not None)
            await drive.settle()
            assert drive.data_pane.window.row_count == 31
            compare(drive, "state", "#data")
            await drive.press("K")
            assert (drive.data_pane.front_view, drive.data_pane.view.cursor) == (None, 2)
        await drive.press("E")
        await drive.pilot.press("enter")
        job = await job_of(drive)
        await drive.pilot.press("b")
        await drive.until(lambda: "is being written" in drive.hint())
        assert drive.app.screen is drive.bench
        await ends(drive, job, result={"rows": 1, "size": 9, "path": "/srv/haven/ada/air-readings.csv"})
        await drive.until(lambda: "1 row" in drive.hint() and "air-readings.csv" in drive.hint())


async def test_statistics_can_be_closed_while_they_are_read() -> None:
    closed = asyncio.Event()

    async def read() -> TableDescription:
        await asyncio.shield(asyncio.ensure_future(closed.wait()))
        raise OdfError("the file was removed")

    screen = StatisticsScreen("rows", "2 rows", read, Mock(), Mock(), JobBook(), Mock())
    async with shown(screen) as (app, pilot):
        await screen.query("*").remove()  # as while the screen closes
        closed.set()
        await pilot.pause()
        await until(pilot, lambda: not list(app.workers))
