"""The whole screen as plain text: ``tests/golden/tui-*.txt``.

``ODF_UPDATE_GOLDEN=1`` overwrites the files; check the difference before you commit it. ``80x24``, ``120x36``
and ``160x50`` show the four panes, ``80x24-help`` the keys of pane 3, ``80x24-jobs`` and ``60x14-jobs`` the
focused pane of small terminals, ``100x30-row`` a row in a dialog, ``120x20-rows`` a zoomed table.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.tui.conftest import Driven, driven
from tests.tui.haven import mask_hashes
from tests.tui.scripted_worker import Scenario

GOLDEN = Path(__file__).resolve().parents[1] / "golden"


def compare(drive: Driven, name: str) -> None:
    """Compare the screen with its golden text."""
    path, text = GOLDEN / f"tui-{name}.txt", mask_hashes(drive.text())
    if os.environ.get("ODF_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


async def resize(drive: Driven, size: tuple[int, int]) -> None:
    """Resize the terminal, and wait until the screen does not change any more."""
    if tuple(drive.app.size) != size:
        await drive.resize(*size)
        await drive.until(lambda: tuple(drive.app.size) == size)
    await drive.settle()
    before, same = "", 0
    while same < 3:
        await drive.pilot.pause(0.01)
        text = drive.text()
        before, same = text, same + 1 if text == before else 0


@pytest.mark.app
async def test_screen_matches_golden_texts_at_several_sizes(source: Scenario) -> None:
    async with driven(source, (160, 50)) as drive:
        await drive.press("l")
        for size in ((160, 50), (120, 36), (80, 24)):
            await resize(drive, size)
            compare(drive, f"{size[0]}x{size[1]}")

        await drive.press("g", "3")  # the rows behind the dialog are painted first
        await drive.press("question_mark")
        compare(drive, "80x24-help")
        await drive.press("escape", "4")
        compare(drive, "80x24-jobs")
        await resize(drive, (60, 14))
        assert "╭─ 1 Datasets" not in drive.text()
        compare(drive, "60x14-jobs")
        await drive.press("2")
        assert "2 Blocks" in drive.text()
        assert "╭─ 4 Jobs" not in drive.text()

        await resize(drive, (100, 30))
        await drive.press("3", "j", "enter")
        compare(drive, "100x30-row")
        await drive.press("escape")
        await resize(drive, (120, 20))
        await drive.press("z", "l", "l", "l", "l")
        compare(drive, "120x20-rows")
