"""What the screen looks like, as plain text: ``tests/golden/tui-*.txt``.

``ODF_UPDATE_GOLDEN=1`` writes the files anew; look at the difference before you commit it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.tui.conftest import Driven, driven
from tests.tui.fake import FakeSource

pytestmark = pytest.mark.app

GOLDEN = Path(__file__).resolve().parents[1] / "golden"


def compare(drive: Driven, name: str) -> None:
    """Compares the screen with its golden text."""
    path, text = GOLDEN / f"tui-{name}.txt", drive.text()
    if os.environ.get("ODF_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("size", [(80, 24), (120, 36), (160, 50)], ids=lambda size: f"{size[0]}x{size[1]}")
async def test_the_workbench(source: FakeSource, size: tuple[int, int]) -> None:
    async with driven(source, size) as drive:
        await drive.press("l")
        compare(drive, f"{size[0]}x{size[1]}")


async def test_small_and_smaller_terminals_show_the_focused_pane(source: FakeSource) -> None:
    async with driven(source, (80, 24)) as drive:
        await drive.press("4")
        compare(drive, "80x24-jobs")
        await drive.pilot.resize_terminal(60, 14)
        await drive.until(lambda: "1 Datasets" not in drive.text())
        await drive.settle()
        compare(drive, "60x14-jobs")
        await drive.press("2")
        assert "2 Blocks" in drive.text()
        assert "4 Jobs" not in drive.text()


async def test_help(source: FakeSource) -> None:
    async with driven(source, (80, 24)) as drive:
        await drive.press("3", "question_mark")
        compare(drive, "80x24-help")


async def test_a_zoomed_table(source: FakeSource) -> None:
    async with driven(source, (120, 20)) as drive:
        await drive.press("3", "z", "j", "l", "l", "l", "l")
        compare(drive, "120x20-rows")


async def test_a_row(source: FakeSource) -> None:
    async with driven(source, (100, 30)) as drive:
        await drive.press("3", "j", "enter")
        compare(drive, "100x30-row")
