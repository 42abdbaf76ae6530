"""Which columns feed which, on the screen: lists, lights, lines, and going through the graph."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from odf_engine.errors import BadData
from odf_engine.settings import UiConfig
from odf_engine.workspace.column_lineage import ColumnGraph
from tests.tui.conftest import Driven, driven
from tests.tui.fake import FakeSource
from tests.tui.fake_columns import graph

pytestmark = pytest.mark.app

GOLDEN = Path(__file__).resolve().parents[1] / "golden"


def compare(drive: Driven, name: str) -> None:
    """Compares the screen with its golden text."""
    path, text = GOLDEN / f"columns-{name}.txt", drive.text()
    if os.environ.get("ODF_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


async def opened(drive: Driven, name: str) -> None:
    """Opens the columns of a dataset."""
    drive.bench.context.navigator.select_dataset(f"did:odf:{name}")
    await drive.press("number_sign")


@pytest.mark.parametrize("size", [(80, 24), (160, 50)], ids=lambda size: f"{size[0]}x{size[1]}")
async def test_the_columns_of_a_dataset_between_its_neighbours(
    source: FakeSource, size: tuple[int, int]
) -> None:
    async with driven(source, size) as drive:
        await opened(drive, "air-by-day")
        await drive.press("down")
        compare(drive, f"{size[0]}x{size[1]}-middle")
        await drive.press("G")  # what decides about rows
        compare(drive, f"{size[0]}x{size[1]}-rows")


async def test_in_ascii(source: FakeSource) -> None:
    source.ui = UiConfig(ascii="always")
    async with driven(source, (80, 24)) as drive:
        await opened(drive, "air-by-day")
        await drive.press("j", "j", "h")
        assert drive.text().isascii()
        compare(drive, "80x24-ascii")


async def test_through_the_graph_and_back(source: FakeSource) -> None:
    async with driven(source, (120, 30)) as drive:
        await opened(drive, "smoke-and-breath")
        assert "Columns of smoke-and-breath" in drive.text()
        await drive.press("h")  # pm25, and where it comes from
        assert "\nair-by-day: pm25\n" in squeezed(drive)
        assert "goes into pm25 – as it is" in squeezed(drive)
        await drive.press("j")  # over what is lit only: what lies further up
        assert "port-haven.air-readings: pm25\n" in squeezed(drive)
        assert "from many rows, 2 datasets away" in squeezed(drive)
        await drive.press("enter")
        assert "Columns of port-haven.air-readings" in drive.text()
        assert "goes into air-by-day: pm25 – from many rows" in squeezed(drive)
        await drive.press("l", "enter")
        assert "Columns of air-by-day" in drive.text()
        await drive.press("escape")
        assert "Columns of port-haven.air-readings" in drive.text()
        await drive.press("escape")
        assert "Columns of smoke-and-breath" in drive.text()
        assert "comes from air-by-day: pm25" in squeezed(drive)
        await drive.press("h", "o")  # to the dataset in the workbench
        assert drive.graph.selected == "did:odf:air-by-day"


async def test_what_cannot_be_gone_to_says_why(source: FakeSource) -> None:
    async with driven(source, (80, 24)) as drive:
        await opened(drive, "port-haven.stations")
        await drive.press("enter", "enter")
        assert "nothing lies before what is read" in drive.text()
        await drive.press("escape", "escape")
        await opened(drive, "visits-by-day")
        await drive.press("j", "j", "h", "enter")
        assert "? hospitals" in drive.text()
        assert "this dataset is not here: pull it to see further" in squeezed(drive)


async def test_it_begins_at_the_column_under_the_cursor(source: FakeSource) -> None:
    async with driven(source, (120, 36)) as drive:
        drive.bench.context.navigator.select_dataset("did:odf:air-by-day")
        await drive.settle()
        await drive.press("3", "l", "l", "l", "l", "l", "number_sign")
        assert "comes from port-haven.air-readings: pm25 – from many rows" in squeezed(drive)


async def test_what_a_dataset_says_of_itself_is_harmless_and_problems_are_told(source: FakeSource) -> None:
    async with driven(source, (80, 24)) as drive:
        await opened(drive, "port-haven.air-readings")
        assert "\x1b" not in drive.text()
        await drive.press("q")
        await opened(drive, "harbour.tides")
        assert "there is no column 'nothing'" in squeezed(drive)
        await drive.press("q")
        await opened(drive, "port-haven.clinics")
        assert "no columns are known yet" in drive.text()
        await drive.press("j", "h", "enter", "o", "y", "escape")
        assert "1 Datasets" in drive.text()


async def test_a_chain_that_cannot_be_read(source: FakeSource, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(dataset: str) -> ColumnGraph:
        raise BadData("block 3 is damaged", hint="odf verify says more")

    async with driven(source, (80, 24)) as drive:
        monkeypatch.setattr(source, "column_graph", broken)
        await opened(drive, "air-by-day")
        assert "block 3 is damaged" in drive.text()
        await drive.press("j", "enter", "escape")
        assert "1 Datasets" in drive.text()


async def test_any_size(source: FakeSource) -> None:
    async with driven(source, (80, 24)) as drive:
        await opened(drive, "air-by-day")
        for size in ((10, 3), (200, 60)):
            await drive.pilot.resize_terminal(*size)
            await drive.press("j", "h", "j")
        assert "Columns of air-by-day" in drive.text()


def test_what_is_further_away_adds_up() -> None:
    found: ColumnGraph = graph()
    place = next(
        link.source for link in found.edges if link.source == ("did:odf:port-haven.air-readings", "pm25")
    )
    reach = {each.dataset: (how.how, how.steps) for each, how in found.downstream(place).items()}
    assert reach["did:odf:smoke-and-breath"] == ("aggregation", 2)


def squeezed(drive: Driven) -> str:
    """What is said below, in single blanks."""
    return "\n".join(" ".join(line.strip("│ ").split()) for line in drive.text().splitlines()) + "\n"
