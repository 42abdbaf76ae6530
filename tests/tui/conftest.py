"""The workstation over a source in memory, and what tests of it share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import groupby
from pathlib import Path

import pytest
import textual._wait
from textual.pilot import Pilot
from textual.widgets import Input

from odf_tui.app import Workstation
from odf_tui.screens.workbench import Workbench
from tests.tui.fake import FakeSource


class Driven:
    """A workstation that a test drives."""

    def __init__(self, app: Workstation, pilot: Pilot[None], source: FakeSource) -> None:
        self.app, self.pilot, self.source = app, pilot, source

    @property
    def bench(self) -> Workbench:
        """The workbench."""
        return self.app.bench

    async def press(self, *keys: str) -> None:
        """Presses keys and waits until everything that follows is done; ``=text`` is typed in one go."""
        for typed, group in groupby(keys, key=lambda key: key.startswith("=") and len(key) > 1):
            if not typed:
                await self.pilot.press(*group)
                continue
            line = (
                self.app.screen.query(Input).last() if self.app.screen is not self.bench else self.app.focused
            )
            assert isinstance(line, Input)
            line.value = "".join(text[1:] for text in group)
            await self.pilot.pause()
        await self.settle()

    async def settle(self) -> None:
        """Waits until nothing is being read and nothing waits to be."""
        quiet = 0  # a paint may ask for more: that nothing is to be done must be so twice
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if self._busy():
                quiet = 0
                await asyncio.sleep(0.005)
            elif quiet == 2:
                return
            else:
                quiet += 1
                await self.pilot.pause()

    def _busy(self) -> bool:
        # The worker's news never end, and what is being written waits for the person.
        lasting = ("worker", "story")
        reading = any(each.name not in lasting and not each.is_finished for each in self.app.workers)
        return reading or self.bench._look is not None or self.bench._reading is not None

    async def until(self, condition: Callable[[], object]) -> None:
        """Waits until something is so."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if condition():
                return
            await self.pilot.pause(0.01)
        raise AssertionError("it did not become so:\n" + self.text())

    def text(self) -> str:
        """The screen as text."""
        strips = self.app.screen._compositor.render_strips()
        lines = ("".join(segment.text for segment in strip) for strip in strips)
        return "\n".join(line.rstrip() for line in lines) + "\n"

    def hint(self) -> str:
        """The last line: hints or a notice."""
        line = self.bench.query_one("#hints")
        return "".join(text for text, _ in line.spans(0))  # type: ignore[attr-defined]

    def status(self) -> str:
        """The line of status."""
        line = self.bench.query_one("#status")
        return "".join(text for text, _ in line.spans(0))  # type: ignore[attr-defined]


@asynccontextmanager
async def driven(source: FakeSource, size: tuple[int, int] = (120, 36)) -> AsyncIterator[Driven]:
    """Opens a workstation and waits until it shows everything."""
    app = Workstation(source)
    async with app.run_test(size=size) as pilot:
        drive = Driven(app, pilot, source)
        await drive.until(lambda: source.links)
        await drive.settle()
        yield drive


@pytest.fixture(autouse=True)
def _quick_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Textual's pilot waits 20 ms several times a key; tests here wait for what they are about."""
    monkeypatch.setattr(textual._wait, "SLEEP_GRANULARITY", 0.002)
    monkeypatch.setattr(textual._wait, "SLEEP_IDLE", 0.0005)


@pytest.fixture(autouse=True)
def _no_own_settings(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever keys and themes the person has, tests do not read them."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.getbasetemp() / "no-settings"))


@pytest.fixture(autouse=True)
def _no_editor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever editor the person has, tests do not open it."""
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", "true")


@pytest.fixture
def source(tmp_path: Path) -> FakeSource:
    """Port Haven, with some jobs that ended."""
    folder = tmp_path / "haven"
    (folder / "manifests").mkdir(parents=True)
    made = FakeSource(folder)
    made.story()
    return made
