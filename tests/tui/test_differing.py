"""Versions of datasets compared on the screen: what is chosen, what differs, and its rows."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odf_engine.coordinator.protocol import Diff, Export
from odf_engine.views.as_at import PinnedVersion
from odf_engine.views.diff import ColumnChange, DiffColumn, Difference
from odf_engine.views.query_results import ResultRows
from odf_engine.workspace.definition import Change
from tests.tui.conftest import Driven, driven
from tests.tui.fake import FakeSource
from tests.tui.test_looking import SIZES, ends, job_of

pytestmark = pytest.mark.app

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
AIR = "did:odf:port-haven.air-readings"
NAME = "port-haven.air-readings"


class Rows(ResultRows):
    """The rows of a file."""

    system_columns = ("offset", "op", "system_time", "event_time")


@pytest.fixture
def found(source: FakeSource, tmp_path: Path) -> Difference:
    """A thousand rows that differ, of which the source gives the rows."""
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
        settings=[Change("SetInfo", ["- description: air", "+ description: \x1b[31mair"])],
        records=(7000, 8200), watermarks=("2024-03-01T00:00:00Z", "2024-03-08T00:00:00Z"), blocks=2,
    )  # fmt: skip


def compare(drive: Driven, name: str) -> None:
    """Compares the dialog with its golden text."""
    width, height = drive.app.size
    path = GOLDEN / f"diff-{width}x{height}-{name}.txt"
    region = drive.app.screen.query(".dialog").first().region
    shown = drive.text().splitlines()[region.y : region.bottom]
    text = "\n".join(line[region.x : region.right].rstrip() for line in shown) + "\n"
    if os.environ.get("ODF_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


async def shown(drive: Driven, found: Difference, *, before: int = 0) -> None:
    """The worker has compared, and the screen shows what differs."""
    await drive.until(lambda: len(drive.source.link.submitted) > before)
    job = await job_of(drive)
    await ends(drive, job, result=msgspec.to_builtins(found))
    await drive.until(lambda: drive.app.screen.query("#difference-head"))
    await drive.settle()


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_what_differs(source: FakeSource, found: Difference, size: tuple[int, int]) -> None:
    async with driven(source, size) as drive:
        await drive.press("3", "d")
        if size == (80, 24):
            compare(drive, "ways")
        await drive.pilot.press("p")
        await shown(drive, found)
        assert drive.source.link.submitted == [Diff(AIR)]
        compare(drive, "rows")
        if size != (80, 24):
            return
        await drive.press("G")
        await drive.until(lambda: "ph-999" in drive.text())  # the last of several pieces
        await drive.press("g", "j", "j", "j", "enter")
        compare(drive, "row")
        await drive.press("left_square_bracket", "left_square_bracket")
        assert "Row 2 of 1000" in drive.text()
        await drive.press("escape", "y")
        await drive.press("m")
        assert "+ description: ␛[31mair" in drive.text()
        await drive.press("escape", "escape")
        assert drive.app.screen is drive.bench


async def test_other_sides_and_other_keys(source: FakeSource, found: Difference, tmp_path: Path) -> None:
    async with driven(source) as drive:
        await drive.press("3", "d", "t")
        await drive.press("=soon", "enter")
        assert "'soon' is not a time" in drive.text()
        await drive.press("=2024-03-01")
        await drive.pilot.press("enter")
        await shown(drive, found)
        await drive.press("B", "space", "j")  # the station is taken out
        await drive.press("space")
        await drive.pilot.press("enter")
        await shown(drive, found, before=1)
        await drive.press("d", "b", "=SetInfo")
        await drive.pilot.press("enter")
        await shown(drive, found, before=2)
        await drive.press("d", "o", "=stations")
        await drive.pilot.press("enter")
        await shown(drive, found, before=3)
        requests: list[Any] = drive.source.link.submitted
        assert requests[:2] == [
            Diff(AIR, as_at="2024-03-01T00:00:00Z"),
            Diff(AIR, as_at="2024-03-01T00:00:00Z", key=["note"]),
        ]
        assert requests[2].as_at.startswith("f16")
        assert requests[3] == Diff(AIR, other="did:odf:port-haven.stations")
        await drive.press("E", f"={tmp_path / 'x.csv'}")
        await drive.pilot.press("enter")
        await drive.until(lambda: len(requests) == 5)
        assert requests[4] == Export("", str(tmp_path / "x.csv"), file=found.file)


async def test_nothing_differs(source: FakeSource, found: Difference) -> None:
    same = msgspec.structs.replace(
        found, added=0, removed=0, changed=0, rows=0, by_column={}, schema=[], settings=[]
    )
    pq.write_table(pq.read_table(found.file).slice(0, 0), found.file)
    async with driven(source) as drive:
        await drive.press("3", "d")
        await drive.pilot.press("p")
        await shown(drive, same)
        await drive.press("j", "enter", "y")
        assert "No row differs." in drive.text()
        assert "nothing else differs" in drive.text()
        await drive.press("escape", "d")
        await drive.pilot.press("p")
        await drive.until(lambda: len(drive.source.link.submitted) == 2)
        await drive.pilot.press("escape")  # it is stopped
        await drive.until(lambda: drive.source.link.cancelled)
