"""The data pane alone on a screen, with the controllers of rows, for tests that need no other pane."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widget import Widget

from odf_tui.actions import bindings, table
from odf_tui.actions.table import DEFAULT_KEYMAP
from odf_tui.panes.data.controller import DataController
from odf_tui.panes.data.view import DataPane
from odf_tui.services.controller import Context, Controller, Reader
from odf_tui.services.jobs_client import JobsClient
from odf_tui.services.navigation import Navigator
from odf_tui.state.app_state import AppState
from odf_tui.text.format import error_with_hint
from odf_tui.widgets.status_bar import KeyHints, Notice, StatusLine
from tests.tui.conftest import Driven
from tests.tui.context import FakeStation
from tests.tui.fake import FakeSource
from tests.tui.widget_app import WidgetApp, shown

AIR = "did:odf:port-haven.air-readings"
_LOADED = {"open_row", "export", "statistics", "travel", "differences"}


class DataScreen(Screen[None], inherit_bindings=False):
    """The host of the controllers of rows.

    Attributes:
        notices: (text, style) of each notice.
        copied: (what it is, text) of each copy.
    """

    AUTO_FOCUS = ""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(key, f"press('{key}')", show=False) for key in table.all_keys()
    ]

    def __init__(self, source: FakeSource, dataset: str) -> None:
        super().__init__()
        self._dataset = dataset
        self.keys, self.key_problems, self.station = DEFAULT_KEYMAP, (), FakeStation()
        self.notices: list[tuple[str, str]] = []
        self.copied: list[tuple[str, str]] = []
        self.state = AppState()
        self.state.load_jobs(*source.jobs())
        self.state.set_datasets(source.datasets())
        opened, host = cast("Any", source), cast("Any", self)
        jobs, navigator = JobsClient(opened, self.state, host), Navigator(self.state)
        self.context = Context(opened, self.state, Reader(self), jobs, navigator, host)
        navigator.selecting.connect(self.select_dataset)
        self.state.pane_changed.connect(lambda _: self.set_focus(None))
        self._controllers: list[Controller] = []
        self._actions: dict[str, Callable[[], object]] = {}

    def compose(self) -> ComposeResult:
        yield DataPane("data")
        status = StatusLine(Path())
        status.display = False  # notices are recorded, see below
        yield status
        yield KeyHints()

    def on_mount(self) -> None:
        panes = SimpleNamespace(move=self.front.move, go_up=self.up)
        for action, binding in bindings.PANE_CONTROLLERS["panes.pane_layout.PaneLayout"].items():
            if hasattr(panes, binding.partition(" ")[0]):
                self._actions[action] = partial(bindings.run, panes, action)
        for name, methods in bindings.CONTROLLERS.items():
            if methods.keys() & _LOADED:
                controller = bindings.import_controller(name)(self.context)
                self._controllers.append(controller)
                self._actions |= {action: partial(bindings.run, controller, action) for action in methods}
        self.query_one(DataPane).apply_theme(active=True)
        self.select_dataset(self._dataset)
        self.state.focus_pane("data")
        self.run_worker(self.context.jobs.connection.run(), group="worker", name="worker")

    def select_dataset(self, dataset: str) -> None:
        """Select a dataset, and show its rows."""
        self.state.select(dataset)
        self.state.show(self.state.row_of(dataset))

    def controller(self, kind: type[Any]) -> Any:
        """Return a controller."""
        return next(controller for controller in self._controllers if isinstance(controller, kind))

    @on(Message)
    def _deliver(self, message: Message) -> None:
        for controller in self._controllers:
            if handler := controller.routes().get(type(message)):
                handler(message)

    def action_press(self, key: str) -> None:
        """Run the action of a key of pane 3."""
        action = self.keys.find(key, "data")
        if action is not None and action.id in self._actions:
            self._actions[action.id]()

    def up(self) -> None:
        """Leave the search, else what the controllers show."""
        pane = self.query_one(DataPane)
        if pane.filter:
            pane.set_filter("")
        else:
            any(controller.leave() for controller in reversed(self._controllers))

    @property
    def top(self) -> Screen[Any]:
        return self.app.screen

    @property
    def is_front(self) -> bool:
        return self.app.screen is self

    @property
    def focused_widget(self) -> Widget | None:
        return self.focused

    @property
    def front(self) -> DataPane:
        return self.query_one(DataPane)

    def widget(self, kind: type[Any]) -> Any:
        return self.query_one(kind)

    def find(self, kind: type[Any]) -> Any:
        return next(iter(self.query(kind)), None)

    def notice(self, text: str, style: str = "good") -> None:
        self.notices.append((text, style))

    @on(Notice)
    def _notice(self, message: Notice) -> None:
        self.notice(message.text, message.style)

    def copy_text(self, what: str, text: str) -> None:
        self.copied.append((what, text))

    def open(self, dialog: Screen[Any], then: Callable[[Any], object] | None = None) -> None:
        self.app.push_screen(dialog, cast("Any", then))

    async def ask(self, dialog: Screen[Any]) -> Any:
        return await self.app.push_screen_wait(dialog)

    def start(self, story: Coroutine[Any, Any, None], group: str = "stories") -> Any:
        async def guarded() -> None:
            try:
                await story
            except Exception as error:
                self.notice(error_with_hint(error), "bad")

        return self.run_worker(guarded(), group=group, name=group)

    def perform(self, action: str) -> None:
        """There is no filter line: see :meth:`DataDriver.search`."""

    def show_hints(self) -> None: ...
    def save_soon(self) -> None: ...


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
