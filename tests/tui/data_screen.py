"""The data pane alone on a screen, with the controllers of rows, for tests that need no other pane."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from textual.app import ComposeResult
from textual.pilot import Pilot

from odf_tui.actions import bindings
from odf_tui.panes.data.controller import DataController
from odf_tui.panes.data.view import DataPane
from odf_tui.services.controller import Controller, Host
from odf_tui.widgets.status_bar import KeyHints, StatusLine
from tests.tui.conftest import Driven
from tests.tui.fake import FakeSource
from tests.tui.widget_app import WidgetApp, shown

AIR = "did:odf:port-haven.air-readings"
_LOADED = {"open_row", "export", "statistics", "travel", "differences"}


class _Moves(Controller):
    """Runs the keys that move the cursor, and escape."""

    def move(self, move: str) -> None:
        self.host.front.move(move)

    def go_up(self) -> None:
        if self.host.front.filter:
            self.host.front.set_filter("")
        else:
            self.host.leave_innermost()


class DataScreen(Host):
    """The host of the controllers of rows.

    Attributes:
        notices: (text, style) of each notice.
        copied: (what it is, text) of each copy.
    """

    AUTO_FOCUS = ""

    def __init__(self, source: FakeSource, dataset: str) -> None:
        super().__init__(cast("Any", source))
        self._dataset = dataset
        self.notices: list[tuple[str, str]] = []
        self.copied: list[tuple[str, str]] = []
        self.state.load_jobs(*source.jobs())
        self.state.set_datasets(source.datasets())
        self.navigator.selecting.connect(self.select_dataset)
        self.state.pane_changed.connect(lambda _: self.set_focus(None))

    def compose(self) -> ComposeResult:
        yield DataPane("data")
        status = StatusLine(Path())
        status.display = False  # notices are recorded, see below
        yield status
        yield KeyHints()

    def on_mount(self) -> None:
        for name, methods in bindings.CONTROLLERS.items():
            if methods.keys() & _LOADED:
                self.load(name)
        self.query_one(DataPane).apply_theme(active=True)
        self.select_dataset(self._dataset)
        self.state.focus_pane("data")
        self.run_worker(self.jobs.connection.run(), group="worker", name="worker")

    def select_dataset(self, dataset: str) -> None:
        """Select a dataset, and show its rows."""
        self.state.select(dataset)
        self.state.show(self.state.row_of(dataset))

    def action_press(self, key: str) -> None:
        """Run the action of a key of pane 3, if its controller is loaded."""
        action = self.keys.find(key, "data")
        name = "" if action is None else bindings.CONTROLLER_OF[action.id]
        if action is not None and name in self._controllers:
            bindings.run(self._controllers[name], action.id)
        elif action is not None and hasattr(_Moves, bindings.CONTROLLERS[name][action.id].split()[0]):
            bindings.run(_Moves(self), action.id)

    def notice(self, text: str, style: str = "good") -> None:
        self.notices.append((text, style))

    def copy_text(self, what: str, text: str) -> None:
        self.copied.append((what, text))

    def perform(self, action: str) -> None:
        """There is no filter line: see :meth:`DataDriver.search`."""

    def show_hints(self) -> None: ...


class DataDriver(Driven):
    """A data screen that a test drives."""

    app: WidgetApp  # type: ignore[assignment]

    def __init__(self, app: WidgetApp, pilot: Pilot[None], source: FakeSource, screen: DataScreen) -> None:
        super().__init__(cast("Any", app), pilot, source)
        self.screen = screen

    @property
    def bench(self) -> Any:
        return self.screen

    @property
    def rows_controller(self) -> DataController:
        """The controller of pane 3."""
        return self.screen.controller(DataController)

    def _busy(self) -> bool:
        return any(
            worker.name not in ("worker", "stories") and not worker.is_finished for worker in self.app.workers
        )

    def hint(self) -> str:
        """The newest notice."""
        return self.screen.notices[-1][0] if self.screen.notices else ""

    async def search(self, text: str) -> None:
        """Search rows, as the filter line does."""
        self.data_pane.begin_search()
        self.data_pane.set_filter(text)
        await self.settle()


@asynccontextmanager
async def rows_shown(
    source: FakeSource, size: tuple[int, int] = (120, 36), dataset: str = AIR
) -> AsyncIterator[DataDriver]:
    """Show the rows of a dataset."""
    screen = DataScreen(source, dataset)
    async with shown(screen, size) as (app, pilot):
        driver = DataDriver(app, pilot, source, screen)
        await driver.until(lambda: source.links)
        await driver.settle()
        yield driver
