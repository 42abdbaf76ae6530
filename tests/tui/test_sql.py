"""The editor of queries: words, history, running, errors, results; ``tests/golden/sql-*.txt`` shows it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pytest
from msgspec.structs import replace

from odf_engine.coordinator.protocol import Failure, Job, JobState, Progress, Query
from odf_tui.features.sql.sql_editor import SqlPanel, aliases, complete
from tests.tui.conftest import Driven, driven
from tests.tui.fake import FakeSource

pytestmark = pytest.mark.app

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
SIZES = pytest.mark.parametrize("size", [(80, 24), (160, 50)], ids=lambda size: f"{size[0]}x{size[1]}")


def compare(drive: Driven, name: str) -> None:
    """Compares pane 3 with its golden text."""
    pane = drive.data_pane.region
    lines = drive.text().split("\n")[pane.y : pane.bottom]
    path, text = GOLDEN / f"sql-{name}.txt", "".join(f"{line[pane.x : pane.right]}\n" for line in lines)
    if os.environ.get("ODF_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def panel(drive: Driven) -> SqlPanel:
    """The editor."""
    found = drive.sql_panel
    assert found is not None
    return found


async def typed(drive: Driven, text: str) -> None:
    """Types into the editor."""
    names = {" ": "space", "\n": "enter", ".": "full_stop", ",": "comma", "-": "minus", "`": "grave_accent"}
    await drive.press(*(names.get(char, char) for char in text))


async def asked(drive: Driven, sql: str) -> Job:
    """Runs a query; the job that it becomes."""
    panel(drive).write(sql)
    await drive.press("ctrl+r")
    await drive.until(lambda: drive.source.known[-1].kind == "sql")
    return drive.source.known[-1]


def ended(
    job: Job, table: pa.Table, source: FakeSource, *, truncated: bool = False, pins: int = 0, output: str = ""
) -> Job:
    """The job with a result."""
    source.kept[f"r{job.id}"] = table
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
    """Some rows."""
    names = ["Quay", "Old Town", "Lighthouse Hill", "Fish Market"]
    return pa.table({"station": names * 30, "hour": list(range(120)), "pm25": [n / 8 for n in range(120)]})


# --- Words ---

NAMES = ["port-haven.air-readings", "port-haven.stations", "tides"]
COLUMNS = {
    "port-haven.stations": [("station", "STRING"), ("opened on", "DATE")],
    "tides": [("level", "DOUBLE"), ("station", "STRING")],
}


def words(sql: str) -> list[str]:
    """What can come where ``|`` stands."""
    return [word.text for word in complete(sql.replace("|", ""), sql.index("|"), NAMES, COLUMNS).words]


def test_datasets_come_where_tables_stand_and_columns_elsewhere() -> None:
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


def test_other_names_of_tables() -> None:
    assert aliases("SELECT * FROM tides AS t, port-haven.stations s WHERE 1 = 1") == {
        "t": "tides",
        "s": "port-haven.stations",
    }
    assert aliases("SELECT * FROM tides WHERE x") == {}


# --- The editor ---


@SIZES
async def test_words_are_offered_and_taken(source: FakeSource, size: tuple[int, int]) -> None:
    async with driven(source, size) as drive:
        await drive.press("s")
        assert panel(drive).editor.text == "SELECT *\nFROM port-haven.air-readings\nLIMIT 100"
        await drive.press("ctrl+l")
        await typed(drive, "SEL")
        await drive.press("tab")  # it can only be one word
        await typed(drive, " * FROM vis")
        await drive.press("tab", "enter")  # clinic-visits is meant, maybe, but this begins so
        assert panel(drive).editor.text == "SELECT * FROM visits-by-day"
        await typed(drive, " v, port")
        await drive.press("tab")  # they begin alike
        assert panel(drive).editor.text.endswith(", port-haven.")
        compare(drive, f"{size[0]}x{size[1]}-words")
        await drive.press("down", "down", "enter")
        assert panel(drive).editor.text.endswith(", port-haven.clinic-visits")
        await typed(drive, "\nWHERE v.wi")
        await drive.press("tab")
        assert panel(drive).editor.text.endswith("WHERE v.`wind speed`")
        panel(drive).write("SELECT * FROM `harb` AS v\nWHERE v.`wind speed`")
        panel(drive).editor.move_cursor((0, 19))
        await drive.press("tab")
        assert panel(drive).editor.text.startswith("SELECT * FROM `harbour.tides` AS v\n")
        panel(drive).editor.move_cursor(panel(drive).editor.document.end)
        await typed(drive, " = s")
        await drive.press("tab", "escape")  # one level at a time
        assert not panel(drive).words.display
        await drive.press("escape")
        assert drive.sql_panel is None
        assert not drive.bench.has_class("-asking")
        await drive.press("s")
        assert panel(drive).editor.text.endswith("`wind speed` = s")  # what was written stays


@SIZES
async def test_a_result_shows_below_its_query(source: FakeSource, size: tuple[int, int]) -> None:
    async with driven(source, size) as drive:
        await drive.press("s")
        job = await asked(
            drive, "SELECT station, hour, avg(pm25) AS pm25 -- by hour\nFROM air.x\nGROUP BY ALL"
        )
        request = source.link.submitted[-1]
        assert isinstance(request, Query)
        assert request.sql.endswith("GROUP BY ALL")
        assert source.history == [request.sql]
        source.link.tell(source.changed(ended(job, stations(), source)))
        await drive.until(lambda: "SQL · 120 rows" in drive.text())
        await drive.settle()
        drive.bench.query_one("#hints").clear()  # type: ignore[attr-defined]
        drive.bench.show_hints()
        await drive.settle()
        assert "120 rows · 2.3 s" in drive.text()
        compare(drive, f"{size[0]}x{size[1]}-result")
        await drive.press("shift+tab", "j")
        assert drive.data_pane.view.cursor == 1
        await drive.press("escape")  # the editor, then the result
        assert drive.sql_panel is None
        assert "SQL · 120 rows" in drive.text()
        await drive.press("escape")
        assert "7 200 rows" in drive.text()
        source.link.tell(source.line("1", "something else"))
        await drive.press("3")
        assert "7 200 rows" in drive.text()  # it does not come back by itself


@SIZES
async def test_an_error_leads_to_its_place(source: FakeSource, size: tuple[int, int]) -> None:
    async with driven(source, size) as drive:
        await drive.press("s")
        job = await asked(drive, "SELECT station,\n  pm52\nFROM port-haven.air-readings")
        error = Failure(
            "there is no column `pm52`",
            hint="did you mean `pm25`, `no2`, `op`?",
            where="query, line 2, column 3",
            excerpt=["2 |   pm52", "  |   ^"],
        )
        failed = replace(job, state=JobState.failed, error=error, started=job.created, ended=job.created)
        source.link.tell(source.changed(failed))
        await drive.until(lambda: "not answered" in drive.text())
        drive.bench.query_one("#hints").clear()  # type: ignore[attr-defined]
        await drive.settle()
        assert panel(drive).editor.cursor_location == (1, 2)
        compare(drive, f"{size[0]}x{size[1]}-error")
        await asked(drive, "SELECT 1")
        assert "✗ there is no column" not in drive.text()


async def test_a_query_says_how_far_it_is_and_can_be_cancelled(source: FakeSource) -> None:
    async with driven(source) as drive:
        await drive.press("s")
        job = replace(await asked(drive, "SELECT 1"), state=JobState.running, started="2024-03-11T09:00:01Z")
        source.link.tell(source.changed(replace(job, progress=Progress(phase="query", rows=1200))))
        await drive.until(lambda: "query · 1 200 rows" in drive.text())
        assert "^g cancel" in drive.hint()
        await drive.press("ctrl+r")
        assert "still runs" in drive.text()
        await drive.press("escape")  # leaving it does not end it
        assert not source.link.cancelled
        await drive.press("s", "ctrl+g")
        assert source.link.cancelled == [job.id]
        source.link.tell(source.changed(replace(job, state=JobState.cancelled, ended="2024-03-11T09:00:05Z")))
        await drive.until(lambda: "cancelled after 4.0 s" in drive.text())


async def test_queries_that_were_asked_come_back(source: FakeSource) -> None:
    source.history = ["SELECT 1", "SELECT 2"]
    async with driven(source) as drive:
        await drive.press("s", "ctrl+l")
        await typed(drive, "mine")
        await drive.press("ctrl+p")
        assert panel(drive).editor.text == "SELECT 2"
        await drive.press("ctrl+p", "ctrl+p")
        assert panel(drive).editor.text == "SELECT 1"
        assert "no older query" in drive.text()
        await drive.press("ctrl+o", "ctrl+o")
        assert panel(drive).editor.text == "mine"
        await asked(drive, "SELECT 3")
        await drive.press("ctrl+p")  # what was just asked is there already
        assert panel(drive).editor.text == "SELECT 2"


async def test_the_job_of_a_query_leads_to_it_and_its_result(source: FakeSource) -> None:
    """The screen was closed meanwhile."""
    job = source.job(JobState.done, "SELECT …", "sql", dataset="")
    source.changed(ended(job, stations(), source, truncated=True))
    gone = source.job(JobState.done, "SELECT gone", "sql", dataset="")
    source.changed(ended(gone, stations(), source))
    source.questions = {job.id: "SELECT station\nFROM x", gone.id: "SELECT 1"}
    del source.kept[f"r{gone.id}"]
    async with driven(source, (160, 50)) as drive:
        await drive.press("4")
        assert "120 rows" in drive.text()
        await drive.press("j", "s")
        await drive.until(lambda: "SQL · 120 rows" in drive.text())
        assert panel(drive).editor.text == "SELECT station\nFROM x"
        assert "there are more, which are not kept" in drive.text()
        await drive.press("escape", "4", "g", "s")
        await drive.until(lambda: "not kept any more" in drive.text())
        assert panel(drive).editor.text == "SELECT 1"


async def test_a_result_says_the_blocks_it_was_made_of(source: FakeSource) -> None:
    async with driven(source, (80, 24)) as drive:
        await drive.press("s")
        job = await asked(drive, "SELECT 1")
        source.link.tell(source.changed(ended(job, stations(), source, pins=2)))
        await drive.until(lambda: "SQL · 120 rows" in drive.text())
        assert "2.3 s · from harbour.tides-0@00000000, harbour.tides-1@0" in drive.text()
        assert "2.3 s · from harbour.tides-0@00000000 +1 ─" in drive.text()
        job = await asked(drive, "SELECT 2")
        source.link.tell(source.changed(ended(job, stations(), source, output="/tmp/x.csv")))
        await drive.until(lambda: "its rows are in /tmp/x.csv" in drive.text())


async def test_a_worker_that_takes_no_query(source: FakeSource) -> None:
    from odf_engine.errors import OdfError

    async with driven(source) as drive:
        await drive.press("s")

        async def refuse(*_: object) -> str:
            raise OdfError("the worker is stopping", hint="try again")

        source.link.submit = refuse  # type: ignore[method-assign, assignment]
        await drive.press("ctrl+r")
        await drive.until(lambda: "the worker is stopping – try again" in drive.text())
        assert "handed to the worker" not in drive.text()
