"""The workstation over a copy of Port Haven, and what tests of it share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import textual._wait
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet
from textual.pilot import Pilot
from textual.widgets import Input

from odf_engine.api.model import DatasetRow
from odf_engine.worker.protocol import WorkerStatus
from odf_tui.actions.model import Situation
from odf_tui.app import Workstation
from odf_tui.features.sql.sql_editor import SqlPanel
from odf_tui.features.time_travel.timeline import TimePanel
from odf_tui.panes.blocks.view import BlocksPane
from odf_tui.panes.data.view import DataPane
from odf_tui.panes.datasets.controller import DatasetsController
from odf_tui.panes.datasets.view import DatasetsPane, GraphView
from odf_tui.panes.jobs.view import JobsPane
from odf_tui.panes.pane_layout import PaneLayout
from odf_tui.state.job_book import JobBook
from odf_tui.state.model import Health
from odf_tui.state.saved_session import PaneShares
from odf_tui.widgets.pane_frame import Pane
from odf_tui.widgets.status_bar import StatusLine
from odf_tui.workbench import Workbench
from tests.tui.scripted_worker import Scenario, open_haven
from tests.tui.waiting import press, screen_text, until


class Driven:
    """A workstation that a test drives."""

    def __init__(self, app: Workstation, pilot: Pilot[None], source: Scenario) -> None:
        self.app, self.pilot, self.source = app, pilot, source

    @property
    def bench(self) -> Workbench:
        """The workbench."""
        return self.app.bench

    @property
    def book(self) -> JobBook:
        """The jobs."""
        return self.bench.state.jobs

    @property
    def rows(self) -> list[DatasetRow]:
        """The datasets."""
        return self.bench.state.datasets

    @property
    def healths(self) -> dict[str, Health]:
        """The health of each dataset."""
        return self.bench.state.healths

    @property
    def pane(self) -> str:
        """The name of the focused pane."""
        return self.bench.state.pane

    @property
    def front(self) -> Pane:
        """The focused pane."""
        return self.bench.front

    @property
    def worker_state(self) -> str:
        """The connection to the worker."""
        return self.bench.state.worker

    @property
    def worker_status(self) -> WorkerStatus | None:
        """The newest status of the worker."""
        return self.bench.state.worker_status

    @property
    def graph(self) -> GraphView:
        """The graph of datasets."""
        return self.bench.query_one(GraphView)

    @property
    def datasets_pane(self) -> DatasetsPane:
        """Pane 1."""
        return self.bench.query_one(DatasetsPane)

    @property
    def blocks_pane(self) -> BlocksPane:
        """Pane 2."""
        return self.bench.query_one(BlocksPane)

    @property
    def data_pane(self) -> DataPane:
        """Pane 3."""
        return self.bench.query_one(DataPane)

    @property
    def jobs_pane(self) -> JobsPane:
        """Pane 4."""
        return self.bench.query_one(JobsPane)

    @property
    def sql_panel(self) -> SqlPanel | None:
        """The SQL editor, while it is open."""
        return self.bench.find(SqlPanel)

    @property
    def time_panel(self) -> TimePanel | None:
        """The time slider, while it is open."""
        return self.bench.find(TimePanel)

    @property
    def shares(self) -> PaneShares:
        """How the panes share the screen."""
        return self.bench.controller(PaneLayout).shares

    def situation(self) -> Situation:
        """What the guards of actions depend on."""
        return self.bench.situation()

    async def press(self, *keys: str) -> None:
        """Presses keys and waits until everything that follows is done; ``=text`` is typed in one go."""
        for typed, group in groupby(keys, key=lambda key: key.startswith("=") and len(key) > 1):
            if not typed:
                await press(self.pilot, *group)
                continue
            line = (
                self.app.screen.query(Input).last() if self.app.screen is not self.bench else self.app.focused
            )
            assert isinstance(line, Input)
            line.value = "".join(text[1:] for text in group)
            await self.pilot.pause()
        await self.settle()

    async def resize(self, width: int, height: int) -> None:
        """Resize the terminal, and wait until the screen is laid out and nothing is being read."""
        await self.pilot.resize_terminal(width, height)
        await self.until(lambda: self.app.screen.size == (width, height))
        await self.until(lambda: len(self.text().splitlines()) == height)
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
        lasting = ("worker", "stories")
        reading = any(worker.name not in lasting and not worker.is_finished for worker in self.app.workers)
        return reading or self.bench.controller(DatasetsController).waiting

    async def clear_notice(self) -> None:
        """Remove the notice, and wait until the status line is painted without it."""
        status = self.bench.query_one(StatusLine)
        shown = status.notice
        status.clear_notice()
        if shown is not None:
            await self.until(lambda: shown[0] not in self.text())
        await self.settle()

    async def until(self, condition: Callable[[], object]) -> None:
        """Waits until something is so."""
        await until(self.pilot, condition)

    def text(self) -> str:
        """The screen as text."""
        return screen_text(self.app.screen)

    def hint(self) -> str:
        """The notice, or else the line of hints."""
        status = self.bench.query_one(StatusLine)
        line = self.bench.query_one("#hints") if status.notice is None else status
        return "".join(text for text, _ in line.spans(0))  # type: ignore[attr-defined]

    def status(self) -> str:
        """The line of status."""
        return "".join(text for text, _ in self.bench.query_one(StatusLine).state_spans())


@asynccontextmanager
async def driven(source: Scenario, size: tuple[int, int] = (120, 36)) -> AsyncIterator[Driven]:
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


_RULES: dict[tuple[object, ...], list[RuleSet]] = {}
_parse_rules = Stylesheet._parse_rules


def _parse_rules_once(sheet: Stylesheet, css: str, *place: Any, **more: Any) -> list[RuleSet]:
    key = (css, *place, *more.items(), *sheet._variables.items())
    if key not in _RULES:
        _RULES[key] = _parse_rules(sheet, css, *place, **more)
    return _RULES[key]


@pytest.fixture(autouse=True)
def _shared_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parse the style rules of a theme once, not for each application."""
    monkeypatch.setattr(Stylesheet, "_parse_rules", _parse_rules_once)


@pytest.fixture(autouse=True)
def _no_editor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever editor the person has, tests do not open it."""
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", "true")


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Scenario]:
    """Port Haven, with some jobs that ended."""
    made = open_haven(tmp_path / "haven")
    (made.folder / "manifests").mkdir()
    made.story()
    yield made
    made.journal.close()
