"""The screen in windows of all sizes, and in terminals with ASCII only."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from odf_engine.base.config import UiConfig
from odf_engine.workspace.workspace import Workspace
from tests.tui.conftest import Driven, driven
from tests.tui.haven import copy_haven, create_root, mask_hashes
from tests.tui.scripted_worker import Scenario
from tests.tui.test_golden_screens import GOLDEN

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
    """Compare the screen with its golden text."""
    path, text = GOLDEN / f"looks-{name}.txt", mask_hashes(drive.text())
    if os.environ.get("ODF_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


async def resize(drive: Driven, size: tuple[int, int]) -> None:
    """Resize the window."""
    await drive.resize(*size)
    await drive.until(lambda: len(drive.text().splitlines()) == size[1])
    await drive.settle()
    assert max(map(len, drive.text().splitlines())) <= size[0]


def damaged_source(tmp_path: Path) -> Scenario:
    """Port Haven with a damaged dataset, in a folder whose path is too long for the status line."""
    folder = tmp_path / ("long" * 30) / "haven"
    folder.mkdir(parents=True)
    workspace = copy_haven(folder)
    wrecks = create_root(workspace, "wrecks").dataset
    (wrecks.folder / "blocks" / str(wrecks.head())).unlink()
    workspace.close()
    for path in workspace.odf.glob("index.sqlite*"):
        path.unlink()
    source = Scenario(Workspace(folder))
    source.story()
    return source


@pytest.mark.complete
async def test_screen_survives_resizes_at_any_moment(tmp_path: Path) -> None:
    """Pictures: the smallest window, and the card of a damaged dataset in two sizes."""
    async with driven(damaged_source(tmp_path), SMALLEST) as drive:
        compare(drive, "20x5")
        for size in ((80, 24), (160, 50)):
            await resize(drive, size)
            await drive.press("G")
            assert drive.graph.row is not None
            assert drive.graph.row.name == "wrecks"
            compare(drive, f"{size[0]}x{size[1]}-damaged")
        await drive.press("g")
        for what, keys in OPENS.items():
            chance = random.Random(what)
            await drive.press(*keys)
            await resize(drive, (200, 60))  # without scroll bars: their width changes where lines break
            await resize(drive, (120, 36))
            await drive.clear_notice()
            before = drive.text()
            for size in (SMALLEST, (chance.randint(20, 300), chance.randint(5, 100)), LARGEST):
                await resize(drive, size)
            await resize(drive, (120, 36))
            assert drive.text() == before, what
            for _ in range(3):
                await drive.press("escape")
            await drive.press("g", "1")
            assert "1 Datasets" in drive.text()
        # The size changes while a dialog opens or closes.
        for size, key in (
            ((20, 5), "question_mark"),
            ((300, 100), "escape"),
            ((33, 7), "3"),
            ((90, 18), "z"),
        ):
            await drive.resize(*size)
            await drive.pilot.press(key)
        await resize(drive, (80, 24))
        assert "3 Data" in drive.text()


@pytest.mark.complete
async def test_ascii_mode_draws_ascii_only(source: Scenario) -> None:
    """Pictures: the workbench without a character beyond ASCII, in two sizes."""
    source.ui = UiConfig(ascii="always")
    async with driven(source, (80, 24)) as drive:
        await drive.press("l")
        for size in ((80, 24), (160, 50)):
            await resize(drive, size)
            assert drive.text().isascii()
            compare(drive, f"{size[0]}x{size[1]}-ascii")
        await resize(drive, (100, 30))
        for keys in (["2"], ["3", "j", "enter"], ["escape", "4", "enter"], ["escape", "question_mark"]):
            await drive.press(*keys)
            assert drive.text().isascii(), keys
        assert "enter" in drive.text()
