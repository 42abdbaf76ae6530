"""Tests of differences: the choice of versions, the summary, and the rows."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odf_engine.errors import Cancelled
from odf_engine.jobs.diff import Diff
from odf_engine.jobs.export import Export, ExportResult
from odf_engine.rows import PinnedVersion
from odf_engine.rows.diff import ColumnChange, DiffColumn, Difference
from odf_engine.rows.query_results import ResultRows
from odf_engine.workspace.definitions.definition import PlannedChange
from odf_tui.features.dataset_diff import (
    DatasetDiffController,
    DifferenceScreen,
    DiffWindow,
    open_difference,
)
from odf_tui.features.export import ExportOptions
from odf_tui.features.provenance.trace_screen import TraceScreen
from odf_tui.services.jobs_client import LeftRunning
from tests.tui.conftest import Driven, driven
from tests.tui.context import Fakes
from tests.tui.data_screen import AIR
from tests.tui.haven import did
from tests.tui.scripted_worker import Scenario
from tests.tui.test_statistics_and_export import ends, job_of
from tests.tui.widget_app import shown

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
STATIONS = did("port-haven.stations")
NAME = "port-haven.air-readings"


class Rows(ResultRows):
    """The rows of a file."""

    system_columns = ("offset", "op", "system_time", "event_time")


@pytest.fixture
def found(source: Scenario, tmp_path: Path) -> Difference:
    """A difference with a thousand changed rows, in a file."""
    count = 1000
    changes = ["changed", "removed", "added", "changed"] * (count // 4)
    old, new = (
        [None if change == skip else values[at % len(values)] for at, change in enumerate(changes)]
        for skip, values in (("added", [3.25, None, 1.5, 7.0]), ("removed", [4.5, 2.0, None, 7.0]))
    )
    texts = [None if change == "added" else f"note {at}" for at, change in enumerate(changes)]
    other = [None if change == "removed" else f"note {at}" for at, change in enumerate(changes)]
    other[3] = "a \x1b[31mred word"
    table = pa.table(
        {
            "change": changes,
            "station": [f"ph-{at:03}" for at in range(count)],
            "old_note": texts, "new_note": other, "old_pm25": old, "new_pm25": new,
            "new_tags": pa.array([["x"] if change != "removed" else None for change in changes]),
            "old_offset": [None if change == "added" else at for at, change in enumerate(changes)],
            "new_offset": [None if change == "removed" else at + 100 for at, change in enumerate(changes)],
        }
    )  # fmt: skip
    path = tmp_path / "difference.parquet"
    pq.write_table(table, path, row_group_size=300)
    source.file_rows = lambda dataset, file: Rows(Path(file))  # type: ignore[method-assign, return-value]
    columns = [
        DiffColumn("station", True, "string", "string", "station", "station"),
        DiffColumn("note", False, "string", "string", "old_note", "new_note"),
        DiffColumn("pm25", False, "double", "double", "old_pm25", "new_pm25"),
        DiffColumn("tags", False, None, "list<item: string>", None, "new_tags", counts=False),
    ]
    pins = [
        PinnedVersion(
            AIR, NAME, f"f1620{'ab' * 32}", number, f"2024-03-{day}T09:00:00Z", number * 100, number == 12
        )
        for number, day in ((10, "01"), (12, "08"))
    ]
    return Difference(
        old=pins[0], new=pins[1], key=["station"], added=250, removed=250, changed=500, unchanged=6200,
        rows=count, file=str(path), columns=columns, by_column={"pm25": 250, "note": 1},
        schema=[ColumnChange("tags", None, "ARRAY<STRING>"), ColumnChange("pm25", "FLOAT", "DOUBLE")],
        settings=[PlannedChange("SetInfo", ["- description: air", "+ description: \x1b[31mair"])],
        records=(7000, 8200), watermarks=("2024-03-01T00:00:00Z", "2024-03-08T00:00:00Z"), blocks=2,
        offsets=("old_offset", "new_offset"),
    )  # fmt: skip


def compare(drive: Driven, name: str) -> None:
    """Compare the dialog with a golden picture."""
    width, height = drive.app.size
    path = GOLDEN / f"diff-{width}x{height}-{name}.txt"
    region = drive.app.screen.query(".dialog").first().region
    shown = drive.text().splitlines()[region.y : region.bottom]
    text = "\n".join(line[region.x : region.right].rstrip() for line in shown) + "\n"
    if os.environ.get("ODF_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


async def differences_shown(drive: Driven, found: Difference, *, before: int = 0) -> None:
    """Let the worker end the comparison, and wait until the screen shows it."""
    await drive.until(lambda: len(drive.source.link.submitted) > before)
    job = await job_of(drive)
    await ends(drive, job, result=msgspec.to_builtins(found))
    await drive.until(lambda: drive.app.screen.query("#difference-head"))
    await drive.settle()


def difference_screen(source: Scenario, found: Difference, copied: list[tuple[str, str]]) -> DifferenceScreen:
    """Return the screen over the rows of a difference."""
    window = DiffWindow(found, source.file_rows(AIR, found.file))
    return DifferenceScreen("x", window, open_difference(window), 0, lambda *text: copied.append(text))


async def test_diff_accepts_a_time_key_block_or_dataset(
    source: Scenario, found: Difference, tmp_path: Path
) -> None:
    path = tmp_path / "x.csv"
    titles: list[str] = []

    def block(dialog: Any) -> str:
        titles.append(dialog._title)
        return next(choice.id for choice in dialog._choices if "SetInfo" in choice.title)

    def key(dialog: Any) -> list[str]:
        titles.append(dialog._title)
        assert [name for name, _ in dialog._lines.columns] == ["station", "note", "pm25"]
        assert dialog._lines.key == ["station"]
        return ["note"]

    fakes = Fakes(
        source,
        NAME,
        answers=[
            "time",
            "2024-03-01T00:00:00Z",
            "key",
            key,
            "again",
            "block",
            block,
            "again",
            "other",
            STATIONS,
            "export",
            ExportOptions(0, "csv", True, path, False),
        ],
        results={Diff: found, Export: ExportResult("x", 1000, 9000, str(path))},
    )
    DatasetDiffController(fakes.context).show_differences()
    await fakes.host.stories()
    requests: list[Any] = fakes.jobs.requests
    assert requests[:2] == [
        Diff(AIR, as_at="2024-03-01T00:00:00Z"),
        Diff(AIR, as_at="2024-03-01T00:00:00Z", key=["note"]),
    ]
    assert requests[2].as_at.startswith("f16")
    assert requests[3] == Diff(AIR, other=STATIONS)
    assert requests[4] == Export("", str(path), file=found.file)
    assert titles == ["Key of the comparison", f"Compare {NAME} with a block"]
    assert fakes.host.last_notice == "1 000 rows in x.csv, 9.0 kB"
    assert [type(dialog) for dialog in fakes.host.dialogs].count(DifferenceScreen) == 4


async def test_stopped_or_left_diff_is_a_notice(source: Scenario) -> None:
    for failure, notice in (
        (Cancelled("Comparing: cancelled"), "cancelled"),
        (LeftRunning(), "d shows the result"),
    ):
        fakes = Fakes(source, NAME, answers=["before"], results={Diff: failure})
        DatasetDiffController(fakes.context).show_differences()
        await fakes.host.stories()
        assert notice in fakes.host.last_notice


async def test_identical_versions_show_no_differences(source: Scenario, found: Difference) -> None:
    same = msgspec.structs.replace(
        found, added=0, removed=0, changed=0, rows=0, by_column={}, schema=[], settings=[]
    )
    pq.write_table(pq.read_table(found.file).slice(0, 0), found.file)
    copied: list[tuple[str, str]] = []
    async with shown(difference_screen(source, same, copied)) as (app, pilot):
        await pilot.press("j", "enter", "y")
        assert "No rows differ." in app.text()
        assert "no other differences" in app.text()
        assert not copied
        await pilot.press("d")
        await pilot.pause()
        assert app.result == "again"


async def test_rows_and_other_differences_are_copied(source: Scenario, found: Difference) -> None:
    copied: list[tuple[str, str]] = []
    async with shown(difference_screen(source, found, copied)) as (_, pilot):
        await pilot.press("j", "y")
        while not copied:
            await pilot.pause(0.01)
        await pilot.press("m", "y")
        await pilot.pause()
        assert [what for what, _ in copied] == ["row", "other differences"]
        assert copied[0][1].startswith("-  station=ph-001")


async def test_changed_values_are_complete_at_80_columns(source: Scenario, found: Difference) -> None:
    """The changed column is the last one of a wide table; its texts are longer than the screen is wide."""
    old, new = "x" * 130 + " " + "y" * 20, "\u6f22" * 70
    values = {f"c{at}": [f"value {at}"] for at in range(12)}
    table = pa.table({"change": ["changed"], **values, "old_z": [old], "new_z": [new]})
    pq.write_table(table, found.file)
    columns = [DiffColumn(name, name == "c0", "string", "string", name, name) for name in values]
    columns.append(DiffColumn("z", False, "string", "string", "old_z", "new_z"))
    found = msgspec.structs.replace(found, key=["c0"], columns=columns, by_column={"z": 1}, rows=1)
    async with shown(difference_screen(source, found, [])) as (app, pilot):
        assert app.size == (80, 24)
        await app.workers.wait_for_complete()
        await pilot.pause()
        values_shown = app.screen.query_one("#difference-values").region
        panel = app.text().splitlines()[values_shown.y + 1 : values_shown.bottom]
        text = "".join(line.strip(" \u2502") for line in panel)
        assert text.replace(" ", "") == f"z:{old}\u2192{new}".replace(" ", "")
        header = next(line for line in app.text().splitlines() if "change " in line)
        assert header.split()[2:4] == ["c0", "z"]
        await pilot.press("enter")
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert app.text().count("x" * 30) == 2 * 2 and "\u2026" not in app.text()
        await pilot.press("G")
        await pilot.pause()
        assert app.text().count("\u6f22") == 70


@pytest.mark.app
async def test_keys_browse_differences_in_the_workstation(source: Scenario, found: Difference) -> None:
    """From the choice of what to compare to rows in full, key by key.

    Golden pictures: what to compare with; the differences, of two sizes; a row in full.
    """
    async with driven(source, (80, 24)) as drive:
        await drive.press("3", "d")
        compare(drive, "ways")
        await drive.press("t")
        await drive.press("=soon", "enter")
        assert "'soon' is not a time" in drive.text()
        await drive.press("escape", "d")
        await drive.pilot.press("p")
        await differences_shown(drive, found)
        assert drive.source.link.submitted == [Diff(AIR)]
        compare(drive, "rows")
        await drive.press("G")
        await drive.until(lambda: "ph-999" in drive.text())  # in the last of several chunks
        await drive.press("g", "j", "j", "j", "enter")
        compare(drive, "row")
        await drive.press("left_square_bracket", "left_square_bracket")
        assert "Row 2 of 1 000" in drive.text()
        await drive.press("escape", "y")
        await drive.press("m")
        assert "+ description: ␛[31mair" in drive.text()
        await drive.press("escape", "escape")
        assert drive.app.screen is drive.bench
        await drive.resize(160, 50)
        await drive.press("d")
        await drive.pilot.press("p")
        await differences_shown(drive, found, before=1)
        compare(drive, "rows")
        # Traces of a changed row and of a removed one; then the difference is shown again.
        for moves, offset in ((("g", "j", "j", "j"), 103), (("g", "j"), 1)):
            await drive.press(*moves, "w")
            await drive.until(lambda: isinstance(drive.app.screen, TraceScreen))
            trace = cast("TraceScreen", drive.app.screen)
            assert (trace.session.dataset, trace.session.offset) == (AIR, offset)
            assert trace.session.column == ("note" if offset == 103 else None)
            await drive.settle()
            await drive.press("escape")
            await drive.until(lambda: drive.app.screen.query("#difference-head"))
            await drive.settle()
            table = cast("DifferenceScreen", drive.app.screen)._rows
            assert table.cursor == len(moves) - 1
        await drive.press("escape")
        before = len(drive.source.link.submitted)
        await drive.press("d")
        await drive.pilot.press("p")
        await drive.until(lambda: len(drive.source.link.submitted) == before + 1)
        await drive.pilot.press("escape")  # cancels the job
        await drive.until(lambda: drive.source.link.cancelled)
