"""The output writes few bytes, and the screen is still the one that Textual would paint."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.color import ColorSystem
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from textual._compositor import ChopsUpdate, LayoutUpdate
from textual.driver import Driver
from textual.drivers.headless_driver import HeadlessDriver
from textual.geometry import Region
from textual.strip import Strip

from odf_tui.services.terminal_output import TerminalOutput
from tests.tui.conftest import Driven, driven
from tests.tui.scripted_worker import Scenario
from tests.tui.terminal_screen import TerminalScreen

WIDTH, HEIGHT, CUTS = 16, 3, (0, 5, 11, 16)
STYLES = [Style.parse(text) for text in (
    "", "red", "bold red on blue", "reverse", "dim #102030 on #405060", "underline", "bold dim", "strike"
)]  # fmt: skip
letters = st.sampled_from(["a", "b", " ", "─", "◆", "漢", "e\u0301", "👩\u200d🚀", "☺️"])
strips = st.lists(st.tuples(st.lists(letters, max_size=4).map("".join), st.sampled_from(STYLES)), max_size=3)
places = st.tuples(st.integers(0, HEIGHT - 1), st.integers(0, len(CUTS) - 2))
updates = st.lists(st.dictionaries(places, strips, min_size=1), min_size=1, max_size=4)


def shown(update: LayoutUpdate) -> list[list[Any]]:
    """Return what Textual's own output shows on an empty screen."""
    screen = TerminalScreen(WIDTH, HEIGHT)
    screen.feed(update.render_segments(Console(color_system="truecolor", force_terminal=True)))
    return screen.cells


@settings(max_examples=100, deadline=None)
@given(updates)
def test_random_updates_show_what_textual_paints(changes: list[dict[tuple[int, int], Any]]) -> None:
    output, screen = TerminalOutput(), TerminalScreen(WIDTH, HEIGHT)
    chops: list[dict[int, Strip | None]] = [
        {start: Strip.blank(end - start) for start, end in pairwise(CUTS)} for _ in range(HEIGHT)
    ]

    def complete() -> LayoutUpdate:
        lines = [[strip for strip in line.values() if strip is not None] for line in chops]
        return LayoutUpdate(list(lines), Region(0, 0, WIDTH, HEIGHT))  # type: ignore[arg-type]

    screen.feed(output.render(complete(), ColorSystem.TRUECOLOR))
    for change in changes:
        for (y, at), pieces in change.items():
            strip = Strip([Segment(text, style) for text, style in pieces])
            chops[y][CUTS[at]] = strip.adjust_cell_length(CUTS[at + 1] - CUTS[at])
        spans = [(y, CUTS[at], CUTS[at + 1]) for y, at in sorted(change)]
        update = ChopsUpdate(chops, spans, [list(CUTS[1:])] * HEIGHT)
        screen.feed(output.render(update, ColorSystem.TRUECOLOR))
        assert screen.cells == shown(complete())
        assert output.render(complete(), ColorSystem.TRUECOLOR) == ""


class Written:
    """What a workstation writes to its terminal."""

    def __init__(self, drive: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
        self._drive = drive
        self.output = ""
        monkeypatch.setattr(Driver, "is_headless", property(lambda _: False))
        monkeypatch.setattr(HeadlessDriver, "is_headless", property(lambda _: False))
        monkeypatch.setattr(HeadlessDriver, "write", self._write)
        drive.app.action_repaint()
        self.screen = TerminalScreen(*drive.app.size)
        self.screen.feed(self.output)

    def _write(self, data: str) -> None:
        self.output += data

    async def press(self, *keys: str) -> int:
        """Press keys. Returns the bytes that were written, which show what Textual would paint."""
        self.output = ""
        await self._drive.press(*keys)
        self.screen.feed(self.output)
        written = len(self.output.encode())
        complete = TerminalScreen(*self._drive.app.size)
        self.output = ""
        self._drive.app.action_repaint()
        complete.feed(self.output)
        assert self.screen.cells == complete.cells, keys
        return written


@pytest.mark.app
@pytest.mark.parametrize("size", [(80, 24), (160, 50)])
async def test_keys_write_few_bytes(
    source: Scenario, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLORTERM", "truecolor")
    async with driven(source, size) as drive:
        with monkeypatch.context() as patch:
            written = Written(drive, patch)
            for key in ("2", "3", "4", "1", "tab", "shift+tab"):
                assert await written.press(key) <= 5000, key
            for key in ("j", "3", "j", "l", "ctrl+f"):
                assert await written.press(key) <= 5000, key
            assert await written.press("question_mark") <= 15_000
            assert await written.press("j") <= 1000
            assert await written.press("escape") <= 15_000
            await written.press("slash", "=a")
            await written.press("escape", "z")
