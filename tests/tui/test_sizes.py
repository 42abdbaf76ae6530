"""Windows of any size, at any moment; and what the screen looks like where there is little of anything."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from odf_engine.settings import UiConfig
from tests.tui.conftest import Driven, driven
from tests.tui.fake import HAVEN, FakeSource, dataset
from tests.tui.test_pictures import GOLDEN

pytestmark = pytest.mark.app

SMALLEST, LARGEST = (20, 5), (300, 100)
OPENS = {
    "nothing": (),
    "help": ("question_mark",),
    "row": ("3", "enter"),
    "block": ("2", "enter"),
    "log": ("4", "enter"),
    "adding": ("A",),
    "zoomed": ("3", "z", "G"),
}


def compare(drive: Driven, name: str) -> None:
    """Compares the screen with its golden text."""
    path, text = GOLDEN / f"looks-{name}.txt", drive.text()
    if os.environ.get("ODF_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


async def resize(drive: Driven, size: tuple[int, int]) -> None:
    """Gives the window another size."""
    await drive.pilot.resize_terminal(*size)
    await drive.until(lambda: len(drive.text().splitlines()) == size[1])
    await drive.settle()
    assert max(map(len, drive.text().splitlines())) <= size[0]


@pytest.mark.parametrize("what", OPENS)
async def test_any_size_at_any_moment(source: FakeSource, what: str) -> None:
    chance = random.Random(what)
    async with driven(source, (120, 36)) as drive:
        await drive.press(*OPENS[what])
        await resize(drive, (110, 30))
        await resize(drive, (120, 36))
        before = drive.text()
        for size in (
            SMALLEST,
            LARGEST,
            *((chance.randint(20, 300), chance.randint(5, 100)) for _ in range(2)),
            (80, 24),
        ):
            await resize(drive, size)
        await resize(drive, (120, 36))
        assert drive.text() == before
        for _ in range(3):
            await drive.press("escape")
        await drive.press("1")
        assert "1 Datasets" in drive.text()


async def test_a_resize_while_something_opens(source: FakeSource) -> None:
    async with driven(source, (120, 36)) as drive:
        for size, key in (
            ((20, 5), "question_mark"),
            ((300, 100), "escape"),
            ((33, 7), "3"),
            ((90, 18), "z"),
        ):
            await drive.pilot.resize_terminal(*size)
            await drive.pilot.press(key)
        await resize(drive, (80, 24))
        assert "3 Data" in drive.text()


async def test_the_smallest_window(source: FakeSource) -> None:
    async with driven(source, SMALLEST) as drive:
        compare(drive, "20x5")


@pytest.mark.parametrize("size", [(80, 24), (160, 50)], ids=lambda size: f"{size[0]}x{size[1]}")
async def test_with_ascii_alone(source: FakeSource, size: tuple[int, int]) -> None:
    source.ui = UiConfig(ascii="always")
    async with driven(source, size) as drive:
        await drive.press("l")
        assert drive.text().isascii()
        compare(drive, f"{size[0]}x{size[1]}-ascii")


@pytest.mark.parametrize("size", [(80, 24), (160, 50)], ids=lambda size: f"{size[0]}x{size[1]}")
async def test_a_damaged_dataset(tmp_path: Path, size: tuple[int, int]) -> None:
    folder = tmp_path / ("long" * 30) / "haven"  # there is no room for it, wherever the tests run
    folder.mkdir(parents=True)
    source = FakeSource(folder)
    source.story()
    problem = (
        "the block is missing – bring it back from a copy of the dataset; odf verify shows what else is"
        " wrong (block f1620" + "0a" * 32 + ")"
    )
    source.rows_ = [*HAVEN, dataset("wrecks", problem=problem, blocks=0)]
    async with driven(source, size) as drive:
        await drive.press("G")
        assert drive.graph.row is not None
        assert drive.graph.row.name == "wrecks"
        compare(drive, f"{size[0]}x{size[1]}-damaged")
