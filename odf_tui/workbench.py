"""The main screen: four panes. It passes keys, messages and results to controllers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from textual import on
from textual.app import ComposeResult

from odf_engine.api import LazyModule
from odf_engine.api.text import format_count, set_timezone
from odf_tui.actions import bindings
from odf_tui.actions.model import PANES, Situation
from odf_tui.panes.blocks.view import BlocksPane
from odf_tui.panes.data.view import DataPane
from odf_tui.panes.datasets.view import DatasetsPane
from odf_tui.panes.jobs.controller import JobsController
from odf_tui.panes.jobs.view import JobsPane
from odf_tui.panes.pane_layout import PaneGrid, PaneLayout
from odf_tui.services.controller import Host
from odf_tui.state.app_state import EarlyReads
from odf_tui.widgets.line_view import LineView
from odf_tui.widgets.status_bar import FilterLine, KeyHints, StatusLine

if TYPE_CHECKING:
    from odf_engine.api.workspace import Workspace
    from odf_tui.features.definitions import controller as definitions
else:
    definitions = LazyModule("odf_tui.features.definitions.controller")

_EARLY_SECONDS: Final = 0.2


class Workbench(Host):
    """Four panes, a status line and a line of hints.

    Args:
        workspace: the engine.
        early: the reads of datasets and jobs that have already started.
        painted: called after the first paint.
        source: a data file to add as a dataset after the start, or "".
    """

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (104, "-medium"), (160, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-low"), (18, "-high")]  # noqa: RUF012

    def __init__(
        self,
        workspace: Workspace,
        early: EarlyReads | None = None,
        painted: Callable[[], None] = lambda: None,
        source: str = "",
    ) -> None:
        super().__init__(workspace)
        self._early, self._painted, self._source = early, painted, source
        set_timezone(workspace.ui.timezone)

    def compose(self) -> ComposeResult:
        """Panes, status line, hints, filter line."""
        with PaneGrid(id="panes"):
            yield DatasetsPane("datasets", classes="-front")
            yield BlocksPane("blocks")
            yield DataPane("data", classes="-lower")
            yield JobsPane("jobs", self.state.jobs, self.state.rates)
        yield StatusLine(self.workspace.folder)
        yield KeyHints()
        yield FilterLine()

    def on_mount(self) -> None:
        """Load the controllers of the panes, and show what was read early."""
        for name in bindings.PANE_CONTROLLERS:
            self.load(name)
        layout = self.state.layout
        for controller in self.loaded():
            controller.restore(layout)
        for signal in (self.state.datasets_changed, self.state.pane_changed):
            # After every other handler: the SQL editor may cover the other panes.
            signal.connect(lambda _: self.call_next(self._layout.arrange))
        if layout.tour:
            self.load("features.tour.TourController")
        self.state.focus_pane(layout.pane if layout.pane in PANES else PANES[0])
        self.state.worker_changed.send(None)
        self.app.theme_changed_signal.subscribe(self, lambda _: self._layout.apply_theme())
        if not self._show_early():
            self._reload()
        self.call_after_refresh(self._begin)

    def _reload(self) -> None:
        self.state.jobs_outdated.send(None)
        self.state.datasets_outdated.send(None)

    def _show_early(self) -> bool:
        if self._early is None:
            return False
        try:
            early = self._early.result(_EARLY_SECONDS)
        except Exception:  # late, or unreadable: it is read again, and a notice shows why it fails
            return False
        self.state.load_jobs(early.jobs, early.last_seq)
        self.state.set_datasets(early.datasets)
        if early.outdated:
            self.call_after_refresh(self._reload)
        return True

    def _begin(self) -> None:
        """Start what can wait until the first paint."""
        self._painted()
        self.controller(JobsController).save_snapshot_soon()
        self.terminal.read_dialog_styles()
        if self.key_problems:
            more = len(self.key_problems) - 1
            self.notice(
                self.key_problems[0] + (f" (and {format_count(more)} more: ?)" if more else ""), "warn"
            )
        self.run_worker(self.jobs.connection.run(), group="worker", name="worker")
        if self._source:
            self.load(bindings.CONTROLLER_OF["add"])
            self.controller(definitions.DefinitionsController).add_data_file(self._source)

    @property
    def _layout(self) -> PaneLayout:
        return self.controller(PaneLayout)

    @on(LineView.Opened)
    def _opened(self) -> None:
        self.action_press("enter")

    @on(KeyHints.Chosen)
    def _hint_chosen(self, message: KeyHints.Chosen) -> None:
        if message.action:
            self.perform(message.action)

    def situation(self) -> Situation:
        """Return the situation, which guards of actions check."""
        return self._layout.situation()

    def on_resize(self) -> None:
        """Arrange the panes, once the breakpoints were applied."""
        self.call_next(self._layout.arrange)
