"""The SQL editor: completion, history, running queries, errors, results.

``ODF_UPDATE_GOLDEN=1`` writes ``tests/golden/sql-*.txt``; check the difference before you commit it.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace
from textual.containers import Vertical
from textual.widget import Widget
from textual.widgets import Input

from odf_engine.errors import OdfError
from odf_engine.jobs.query import Query
from odf_engine.worker.protocol import Failure, Job, JobState, Progress
from odf_tui.actions.model import Situation
from odf_tui.features.sql.controller import SqlController
from odf_tui.features.sql.sql_editor import SqlEditor, SqlPanel
from odf_tui.panes.data.view import DataPane
from odf_tui.state.saved_session import load_layout
from odf_tui.text.sql_completion import aliases, complete
from tests.tui.conftest import Driven, driven
from tests.tui.context import Fakes
from tests.tui.scripted_worker import Scenario
from tests.tui.widget_drive import MountedHost, WidgetDrive, driven_widget
from tests.waiting import wait_until_async

GOLDEN = Path(__file__).resolve().parents[1] / "golden"


def ended(
    job: Job,
    table: pa.Table,
    source: Scenario,
    *,
    truncated: bool = False,
    pins: int = 0,
    output: str = "",
) -> Job:
    """Return the job with a result."""
    pq.write_table(table, source.folder / f"r{job.id}")
    columns = [{"name": field.name, "type": str(field.type)} for field in table.schema]
    blocks = [
        {"name": f"harbour.tides-{at}", "block": f"f1620{at:08x}", "head": not at} for at in range(pins)
    ]
    result = {
        "sql": "", "path": "" if output else f"r{job.id}", "columns": columns, "rows": table.num_rows,
        "truncated": truncated, "seconds": 2.3, "pins": blocks, "output": output or None,
    }  # fmt: skip
    return replace(
        job,
        state=JobState.done,
        started="2024-03-11T09:00:01Z",
        ended="2024-03-11T09:00:03.300Z",
        result=json.dumps(result),
    )


def stations() -> pa.Table:
    """Return 120 rows."""
    names = ["Quay", "Old Town", "Lighthouse Hill", "Fish Market"]
    return pa.table({"station": names * 30, "hour": list(range(120)), "pm25": [n / 8 for n in range(120)]})


NAMES = ["port-haven.air-readings", "port-haven.stations", "tides"]
COLUMNS = {
    "port-haven.stations": [("station", "STRING"), ("opened on", "DATE")],
    "tides": [("level", "DOUBLE"), ("station", "STRING")],
}


def words(sql: str, selected: str = "") -> list[str]:
    """Return the completions at ``|``."""
    found = complete(sql.replace("|", ""), sql.index("|"), NAMES, COLUMNS, selected)
    return [word.text for word in found.words]


def test_datasets_complete_tables_and_columns_complete_expressions() -> None:
    assert words("SELECT * FROM |") == NAMES
    assert words("SELECT * FROM port-haven.s|") == ["port-haven.stations"]
    assert words("SELECT * FROM stat|") == ["port-haven.stations"]
    assert words("SELECT * FROM `port|") == ["`port-haven.air-readings`", "`port-haven.stations`"]
    assert words("SELECT 1 FROM tides JOIN t|") == ["tides"]
    assert words("SELECT le| FROM tides")[:2] == ["level", "lead("]
    assert words("SELECT o| FROM port-haven.stations")[0] == "`opened on`"
    assert words("SELECT `o| FROM port-haven.stations") == ["`opened on`"]
    assert words("SELECT * FROM tides t JOIN port-haven.stations AS s ON s.|") == ["station", "`opened on`"]
    assert words("SELECT tides.l| FROM tides") == ["level"]
    assert words("SELECT st| FROM tides, port-haven.stations")[0] == "station"
    assert words("WITH calm AS (SELECT 1) SELECT * FROM ca|") == ["calm"]
    assert "GROUP BY" in words("SELECT 1 FROM tides GR|")
    assert words("SELECT zzz|") == []
    assert words("SELECT * FROM as_|") == ["as_at(", "as_of("]
    assert words("SELECT * FROM as_at(ti|") == ["tides"]
    assert words("SELECT * FROM as_of(as_at(port-haven.s|, 3)") == ["port-haven.stations"]
    assert words("SELECT le| FROM current(tides) WHERE 1")[0] == "level"
    assert words("SELECT t.l| FROM as_at(tides, '2024-03-05') t") == ["level"]


def test_columns_of_the_selected_dataset_come_first_before_a_table_is_named() -> None:
    assert words("SELECT |", "tides")[:3] == ["level", "station", "`opened on`"]
    assert words("SELECT s|", "port-haven.stations")[0] == "station"
    assert words("SELECT `o|") == ["`opened on`"]
    assert "level" not in words("SELECT l| FROM port-haven.stations", "tides")


def test_table_aliases_are_found() -> None:
    assert aliases("SELECT * FROM tides AS t, port-haven.stations s WHERE 1 = 1") == {
        "t": "tides",
        "s": "port-haven.stations",
    }
    assert aliases("SELECT * FROM tides WHERE x") == {}


def compare(drive: Driven, name: str) -> None:
    """Compare pane 3 with its golden text."""
    pane, size = drive.data_pane.region, drive.app.size
    lines = drive.text().split("\n")[pane.y : pane.bottom]
    path = GOLDEN / f"sql-{size.width}x{size.height}-{name}.txt"
    text = "".join(f"{line[pane.x : pane.right]}\n" for line in lines)
    if os.environ.get("ODF_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def panel(drive: Driven) -> SqlPanel:
    """Return the open editor."""
    found = drive.bench.query(SqlPanel)
    assert found
    return found.first()


async def type_text(drive: Driven, text: str) -> None:
    """Type into the editor."""
    names = {" ": "space", "\n": "enter", ".": "full_stop", ",": "comma", "-": "minus", "`": "grave_accent"}
    await drive.press(*(names.get(char, char) for char in text))


async def run_query(drive: Driven, sql: str) -> Job:
    """Run a query. Returns its job."""
    known = len(drive.source.known)
    panel(drive).set_text(sql)
    await drive.press("ctrl+r")
    await drive.until(lambda: len(drive.source.known) > known)
    return drive.source.known[-1]


async def resize(drive: Driven, size: tuple[int, int]) -> None:
    """Resize the terminal."""
    await drive.resize(*size)
    await drive.settle()


async def without_notice(drive: Driven) -> None:
    """Show hints in place of the notice."""
    drive.bench.show_hints()
    await drive.clear_notice()


FAILURE = Failure(
    "there is no column `pm52`",
    hint="did you mean `pm25`, `no2`, `op`?",
    where="query, line 2, column 3",
    excerpt=["2 |   pm52", "  |   ^"],
)


@pytest.mark.app
async def test_query_is_completed_run_and_shown_with_its_result(source: Scenario) -> None:
    async with driven(source, (80, 24)) as drive:
        await drive.press("s")
        assert panel(drive).editor.text == "SELECT *\nFROM port-haven.air-readings\nLIMIT 100"
        await drive.press("ctrl+l")
        await type_text(drive, "SEL")
        await drive.press("tab")  # the only completion is inserted
        await type_text(drive, " * FROM vis")
        await drive.press("tab", "enter")  # clinic-visits matches too, but this begins with it
        assert panel(drive).editor.text == "SELECT * FROM visits-by-day"
        await type_text(drive, " v, port")
        await drive.press("tab")  # the common beginning is inserted
        assert panel(drive).editor.text.endswith(", port-haven.")
        compare(drive, "words")  # the list of completions below the cursor
        await drive.press("escape")
        await resize(drive, (160, 50))
        await drive.press("tab")
        compare(drive, "words")
        await drive.press("down", "enter")
        assert panel(drive).editor.text.endswith(", port-haven.clinic-visits")
        await type_text(drive, "\nWHERE v.se")
        await drive.press("tab")  # columns are read first
        assert panel(drive).editor.text.endswith("WHERE v.sensor")
        await drive.press("escape")
        assert drive.sql_panel is None
        assert not drive.bench.has_class("-asking")
        await resize(drive, (80, 24))
        await drive.press("s")
        assert panel(drive).editor.text.endswith("v.sensor")  # the text is restored
        assert drive.bench.has_class("-asking")

        job = await run_query(drive, "SELECT station,\n  pm52\nFROM port-haven.air-readings")
        failed = replace(job, state=JobState.failed, error=FAILURE, started=job.created, ended=job.created)
        source.link.tell(source.changed(failed))
        await drive.until(lambda: "failed" in drive.text())
        await without_notice(drive)
        assert panel(drive).editor.cursor_location == (1, 2)
        compare(drive, "error")  # the error, its line and a mark below its column
        await resize(drive, (160, 50))
        compare(drive, "error")

        job = await run_query(
            drive, "SELECT station, hour, avg(pm25) AS pm25 -- by hour\nFROM air.x\nGROUP BY ALL"
        )
        assert "✗ there is no column" not in drive.text()
        request = source.link.submitted[-1]
        assert isinstance(request, Query)
        assert request.sql.endswith("GROUP BY ALL")
        assert source.query_history()[-1] == request.sql
        source.link.tell(source.changed(ended(job, stations(), source)))
        await drive.until(lambda: "SQL · 120 rows" in drive.text())
        await drive.settle()
        await without_notice(drive)
        assert "120 rows · 2.3 s" in drive.text()
        compare(drive, "result")  # the rows below the query
        await resize(drive, (80, 24))
        compare(drive, "result")
        await drive.press("shift+tab", "j")
        assert drive.data_pane.view.cursor == 1
        await drive.press("escape")  # first the editor, then the result
        assert drive.sql_panel is None
        assert "SQL · 120 rows" in drive.text()
        await drive.press("escape")
        assert "7 200 rows" in drive.text()
        source.link.tell(source.line("1", "something else"))
        await drive.press("3")
        assert "7 200 rows" in drive.text()  # the result does not come back


class Sql:
    """The SQL controller with a real editor.

    Attributes:
        fakes: the context of the controller.
        drive: the app of the data pane.
    """

    drive: WidgetDrive

    def __init__(self, source: Scenario, selected: str = "port-haven.air-readings") -> None:
        self.source, self.fakes = source, Fakes(source, selected)
        self.host = self.fakes.host = MountedHost()
        self.controller = SqlController(self.fakes.context)

    @property
    def panel(self) -> SqlPanel:
        """The open editor."""
        found = self.controller.sql_panel
        assert found is not None
        return found

    @property
    def line(self) -> str:
        """The line of state below the editor."""
        return "".join(text for text, _ in self.panel.line.spans(0)).strip("─ ").removeprefix("SQL").strip()

    async def open(self) -> None:
        """Open the editor, and focus it."""
        self.controller.open_query()
        await self.settle()

    async def settle(self) -> None:
        """Wait for the coroutines of the controller, and for the app."""
        await self.host.stories()
        await self.drive.settle()

    async def press(self, *keys: str) -> None:
        """Press keys."""
        await self.drive.press(*keys)
        await self.settle()

    async def run(self, sql: str) -> Job:
        """Run a query. Returns its job."""
        self.panel.set_text(sql)
        await self.press("ctrl+r")
        return self.fakes.state.jobs.newest_first()[0]

    async def change(self, job: Job) -> None:
        """Change a job."""
        self.fakes.state.apply_events([self.source.changed(job)])
        await self.settle()

    async def leave(self) -> bool:
        """Leave the innermost thing of the pane. Returns whether it was the editor."""
        left = self.controller.leave()
        await self.settle()
        return left


@asynccontextmanager
async def sql(source: Scenario, size: tuple[int, int] = (120, 36)) -> AsyncIterator[Sql]:
    """Show the data pane with the SQL editor open."""
    made = Sql(source)
    async with driven_widget(DataPane("data"), source, size) as drive:
        made.drive, made.host.app = drive, drive.app
        drive.app.routes = made.controller.routes()
        await made.open()
        yield made


async def test_escape_closes_the_completion_list_before_the_editor(source: Scenario) -> None:
    async with sql(source) as shown:
        shown.panel.set_text("SELECT * FROM `harb` AS v\nWHERE v.`wind speed`")
        shown.panel.editor.move_cursor((0, 19))
        await shown.press("tab")
        assert shown.panel.editor.text.startswith("SELECT * FROM `harbour.tides` AS v\n")
        shown.panel.editor.move_cursor(shown.panel.editor.document.end)
        await type_text(shown.drive, " = s")
        await shown.press("tab")
        assert shown.panel.words.display
        await shown.press("escape")  # the list first
        assert not shown.panel.words.display
        await shown.press("escape")
        assert shown.controller.sql_panel is None


async def test_running_query_shows_progress_and_can_be_cancelled(source: Scenario) -> None:
    (source.folder / ".odf" / "config.yaml").write_text("sql: {engine: duckdb}\n")
    async with sql(source) as shown:
        job = replace(await shown.run("SELECT 1"), state=JobState.running, started="2024-03-11T09:00:01Z")
        assert shown.fakes.jobs.requests == [Query(sql="SELECT 1", engine="duckdb")]
        assert source.query_history() == ["SELECT 1"]
        await shown.change(replace(job, progress=Progress(phase="query", rows=1200)))
        shown.fakes.state.second.send(None)
        assert "query · 1 200 rows" in shown.line
        hints = shown.controller.hints()
        assert hints is not None and (hints[0].key, hints[0].word) == ("^g", "cancel")
        await shown.press("ctrl+r")
        assert "previous query is running" in shown.line
        await shown.press("escape")  # leaving the editor does not cancel the query
        assert shown.fakes.jobs.cancelled == []
        await shown.open()
        await shown.press("ctrl+g")
        assert shown.fakes.jobs.cancelled == [job.id]
        await shown.change(replace(job, state=JobState.cancelled, ended="2024-03-11T09:00:05Z"))
        assert shown.line == "cancelled after 4.0 s"
        await shown.press("ctrl+g")
        assert shown.line == "no query is running; esc closes the editor"


async def test_keys_browse_the_query_history(source: Scenario) -> None:
    for sql_text in ("SELECT 1", "SELECT 2"):
        source.add_to_query_history(sql_text)
    async with sql(source) as shown:
        shown.panel.set_text("mine")
        await shown.press("ctrl+p")
        assert shown.panel.editor.text == "SELECT 2"
        await shown.press("ctrl+p", "ctrl+p")
        assert shown.panel.editor.text == "SELECT 1"
        assert shown.line == "no older query"
        await shown.press("ctrl+o", "ctrl+o")
        assert shown.panel.editor.text == "mine"
        await shown.run("SELECT 3")
        await shown.press("ctrl+p")  # the newest query is in the editor already
        assert shown.panel.editor.text == "SELECT 2"


async def test_query_job_reopens_the_query_with_its_result(source: Scenario) -> None:
    """The workstation was closed since."""
    job = source.job(JobState.done, "SELECT …", "sql", dataset="")
    source.changed(ended(job, stations(), source, truncated=True), Query(sql="SELECT station\nFROM x"))
    gone = source.job(JobState.done, "SELECT gone", "sql", dataset="")
    source.changed(ended(gone, stations(), source), Query(sql="SELECT 1"))
    (source.folder / f"r{gone.id}").unlink()
    async with sql(source, (160, 50)) as shown:
        await shown.press("escape")
        for each, text in ((job, "SELECT station\nFROM x"), (gone, "SELECT 1")):
            shown.fakes.state.focus_pane("jobs")
            shown.host.now = replace(Situation(), pane="jobs", job=each)
            await shown.open()
            assert shown.panel.editor.text == text
        assert "SQL · 120 rows" in shown.drive.text()
        assert "truncated: the query has more rows" in shown.drive.text()
        assert "was removed" in shown.host.last_notice


@pytest.mark.complete
async def test_result_names_the_blocks_it_was_read_from(source: Scenario) -> None:
    async with sql(source, (80, 24)) as shown:
        await shown.change(ended(await shown.run("SELECT 1"), stations(), source, pins=2))
        text = shown.drive.text()
        assert "SQL · 120 rows" in text
        assert "2.3 s · from harbour.tides-0@00000000, harbour.tides-1@0" in text
        assert "2.3 s · from harbour.tides-0@00000000 +1 ─" in text
        await shown.change(ended(await shown.run("SELECT 2"), stations(), source, output="/tmp/x.csv"))
        assert shown.host.last_notice == "rows are in /tmp/x.csv"


async def test_refused_query_is_a_notice(source: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object) -> str:
        raise OdfError("the worker is stopping", hint="try again")

    async with sql(source) as shown:
        monkeypatch.setattr(shown.fakes.jobs, "submit_one", refuse)
        await shown.press("ctrl+r")
        assert shown.host.notices[-1] == ("the worker is stopping – try again", "bad")
        assert shown.line == ""


async def test_an_empty_query_is_not_run(source: Scenario) -> None:
    async with sql(source) as shown:
        await shown.press("ctrl+l", "ctrl+r")
        assert shown.line == "the query is empty"
        assert shown.fakes.jobs.submitted == []


async def test_the_editor_is_left_and_focused_again(source: Scenario) -> None:
    async with sql(source) as shown:
        assert shown.fakes.state.pane == "data" and "-asking" in shown.host.classes
        shown.fakes.state.focus_pane("jobs")
        assert "-asking" not in shown.host.classes
        assert not await shown.leave()  # another pane has the keys
        shown.fakes.state.focus_pane("data")
        assert await shown.leave()
        assert not await shown.leave()


class _SlowRemoval(Widget):
    """A widget whose removal waits for the test."""

    DEFAULT_CSS = "_SlowRemoval { height: 1; }"

    def __init__(self) -> None:
        super().__init__()
        self.may_end = asyncio.Event()

    async def on_unmount(self) -> None:
        await self.may_end.wait()


@pytest.mark.parametrize("kind", [SqlEditor, Input])
async def test_a_removed_editor_can_be_painted_until_its_panel_is_gone(
    source: Scenario, kind: type[Widget]
) -> None:
    sibling = _SlowRemoval()
    async with driven_widget(panel := Vertical(sibling), source) as drive:
        await panel.mount(editor := kind("SELECT 1"))
        drive.app.screen.set_focus(editor)
        await drive.settle()
        removal = panel.remove()
        try:
            await wait_until_async(lambda: not editor.is_attached, interval=0)
            editor.notify_style_update()  # the focus has moved: discards the cached styles
            assert "SELECT 1" not in drive.text()  # paints the screen
        finally:
            sibling.may_end.set()
        await removal


async def test_the_first_key_replaces_the_first_query(source: Scenario) -> None:
    async with driven(source, (80, 24)) as drive:
        await drive.press("s")
        await type_text(drive, "SEL")
        assert panel(drive).editor.text == "SEL"


async def test_a_query_that_did_not_run_survives_the_end_of_the_program(source: Scenario) -> None:
    async with driven(source, (120, 40)) as drive:
        await drive.press("s")
        await drive.until(lambda: not drive.bench.query_one("#jobs").display)  # the editor has the window
        await drive.press("ctrl+l")
        await type_text(drive, "SELECT 7")
        await drive.until(lambda: load_layout(source.folder).query == "SELECT 7")
    async with driven(source, (160, 50)) as drive:
        drive.bench.state.layout.query = "SELECT 7"
        await drive.press("s")
        assert panel(drive).editor.text == "SELECT 7"
        assert drive.bench.query_one("#jobs").display


def test_the_first_query_is_over_the_selected_dataset(source: Scenario) -> None:
    assert Sql(source, "harbour.tides").controller._first_query() == "SELECT *\nFROM harbour.tides\nLIMIT 100"
    source.rows_ = []
    assert Sql(source, "").controller._first_query() == "SELECT 1 + 1 AS two"
