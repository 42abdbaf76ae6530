"""The data pane alone on a screen, with the controllers of rows, for tests that need no other pane."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import replace
from textual.app import ComposeResult
from textual.pilot import Pilot

from odf_engine.api.model import FileTimeRange
from odf_engine.api.readers.row_window import RowWindow
from odf_engine.errors import OdfError
from odf_engine.metadata.model import Append, Ledger
from odf_tui.actions import bindings
from odf_tui.panes.data.controller import DataController
from odf_tui.panes.data.view import DataPane
from odf_tui.services.controller import Controller, Host
from odf_tui.widgets.status_bar import KeyHints, StatusLine
from tests.tui.conftest import Driven
from tests.tui.haven import AIR, SYSTEM, commit, table
from tests.tui.scripted_worker import Scenario
from tests.tui.widget_app import WidgetApp, shown

_LOADED = {"open_row", "export", "statistics", "travel", "differences"}


class GeneratedRows:
    """Any number of rows, which are generated as they are read.

    Attributes:
        read: start and size of the windows that were read.
        error: raised by reads.
    """

    system_columns = SYSTEM

    def __init__(self, count: int) -> None:
        self.row_count = count
        self.read: list[tuple[int, int]] = []
        self.error: OdfError | None = None
        self.columns = self._table(0, 0).schema

    def window(self, start: int, count: int) -> pa.Table:
        """Return the rows of a window."""
        self.read.append((start, count))
        if self.error is not None:
            raise self.error
        return self._table(start, max(min(count, self.row_count - start), 0))

    def _table(self, start: int, count: int) -> pa.Table:
        rows = table(start, count)
        offsets = pa.array(range(start, start + count), pa.uint64())
        times = pa.array([1_710_251_200_000] * count, pa.timestamp("ms", "UTC"))
        return rows.add_column(0, "offset", offsets).add_column(2, "system_time", times)


class GeneratedTimeline:
    """Blocks with an interval of ten minutes. Each fourth has corrections. The schema changes once.

    Attributes:
        probed: the stops whose files were read.
    """

    timed = True

    def __init__(self, rows: int, size: int = 1000) -> None:
        self.rows: Sequence[int] = [min(start + size, rows) for start in range(0, rows, size)]
        self.blocks: Sequence[int] = [3 + at for at in range(len(self.rows))]
        self.times: Sequence[int] = [1_709_288_520_000 + at * 600_000 for at in range(len(self.rows))]
        self.head = self.blocks[-1]
        self.schemas: Sequence[int] = [2] if len(self.rows) > 2 else []
        self.probed: list[int] = []

    def probe(self, stops: Sequence[int]) -> list[FileTimeRange]:
        """Return one hour of event time per row."""
        self.probed += stops
        hour, day = 3_600_000, 1_709_251_200_000
        found: list[FileTimeRange] = []
        for stop in stops:
            first, last = self.rows[stop - 1] if stop else 0, self.rows[stop] - 1
            moments = (day + first * hour,) if stop % 4 == 3 else ()
            group = (last - first + 1, day + first * hour, day + last * hour)
            found.append(FileTimeRange(stop, bool(moments), (group,), moments))
        return found


def show_window(source: Scenario, window: RowWindow) -> None:
    """Show the rows of a window instead of the rows of the datasets."""
    source.rows = lambda dataset: window  # type: ignore[method-assign]


def set_primary_key(source: Scenario, *columns: str) -> None:
    """Append a block that changes the primary key of the air readings; without columns there is none."""
    chain = source.entry(AIR).dataset
    polling = chain.state().polling_source
    assert polling is not None
    merge = Ledger(primary_key=list(columns)) if columns else Append()
    commit(chain, replace(polling, merge=merge))


def write_rows(source: Scenario, count: int) -> str:
    """Write rows to a file, as jobs do. Return its path."""
    path = source.odf / "cache" / f"{count}.parquet"
    path.parent.mkdir(exist_ok=True)
    pq.write_table(GeneratedRows(count).window(0, count), path)
    return str(path)


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

    def __init__(self, source: Scenario, dataset: str) -> None:
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

    def __init__(self, app: WidgetApp, pilot: Pilot[None], source: Scenario, screen: DataScreen) -> None:
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
    source: Scenario, size: tuple[int, int] = (120, 36), dataset: str = AIR
) -> AsyncIterator[DataDriver]:
    """Show the rows of a dataset."""
    screen = DataScreen(source, dataset)
    async with shown(screen, size) as (app, pilot):
        driver = DataDriver(app, pilot, source, screen)
        await driver.until(lambda: source.links)
        await driver.settle()
        yield driver
